#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run_tests.py DIR [ARGUMENT OF meson test...]: run the tests of a build directory and count the test cases.

Programs print TAP, so cases are counted, not programs; a program that dies or prints nothing counts as one failed. The
closing line is "DIR: N passed, N failed, N skipped"; with TN_TALLY=FILE it is also appended there as three numbers.
"""
import json
import os
import re
import subprocess
import sys


def count(result, tap):
    """(passed, failed, skipped) cases of one program."""
    ok = len(re.findall(r'^ok\b', tap, re.M))
    bad = len(re.findall(r'^not ok\b', tap, re.M))
    # "ok 3 - name # SKIP why" and tn_test_skip's own line, after which cmocka says ok
    skipped = len(re.findall(r'^(?:ok\b.*# SKIP|# SKIP)\b', tap, re.M))
    skipped = min(skipped, ok)
    if result == 'SKIP':
        return 0, 0, max(skipped, 1)
    if result not in ('OK', 'EXPECTEDFAIL'):
        bad = max(bad, 1)
    elif ok + bad == 0:
        ok = 1
    return ok - skipped, bad, skipped


def main():
    build, args = sys.argv[1], sys.argv[2:]
    log = os.path.join(build, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.remove(log)
    rc = subprocess.run(['meson', 'test', '-C', build, '--no-rebuild', '--print-errorlogs', *args],
                        stdin=subprocess.DEVNULL, check=False).returncode
    total = [0, 0, 0]
    if os.path.exists(log):
        with open(log, encoding='utf-8') as f:
            for line in f:
                test = json.loads(line)
                for i, n in enumerate(count(test['result'], test.get('stdout', ''))):
                    total[i] += n
    if rc and not total[1]:
        total[1] = 1
    if sum(total) == 0:
        print(f'{build}: no test was found')
        rc = 1
    if os.environ.get('TN_TALLY'):
        with open(os.environ['TN_TALLY'], 'a', encoding='utf-8') as f:
            print(*total, file=f)
    print(f'{build}: {total[0]} passed, {total[1]} failed, {total[2]} skipped')
    return 1 if rc or total[1] else 0


if __name__ == '__main__':
    sys.exit(main())
