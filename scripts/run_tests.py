#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run_tests.py DIR [ARGUMENT OF meson test...]: run the tests of a build directory and count the test cases.

Programs print TAP, so cases are counted, not programs; a program that dies or prints nothing counts as one failed. The
closing line is "DIR: N passed, N failed, N skipped"; with TN_TALLY=FILE it is also appended there as three numbers, after lines
that begin with # and tell what failed. Of programs that drive QEMU's controllers, commands, bytes and injected faults are told.

run_tests.py --targets DIR [--suite NAME] [--no-suite NAME]...: print what ninja must build for these tests, and run nothing.

The tests' TMPDIR is a scratch directory (scratch.py) below the caller's: what a killed run leaves, the next one removes.

Tests that draw random numbers take their seed from TN_SEED. Where it is not set, this script sets it: random in the long form
(TN_SOAK=1), otherwise a number per commit (without git: per version), so that a commit that has passed passes again.
"""
import json
import os
import re
import secrets
import subprocess
import sys
import zlib

import scratch


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


def telling(test):
    """The lines that say best why a program failed; of a sanitizer's report who met whom."""
    told = re.compile(r'not ok\b|# TN_SEED|Traceback|\w*(?:Error|Exception)\b.*:|.*(?:Sanitizer|runtime error|: error: |fail)'
                      r'|\s*(?:#\d+ |(?:Previous |Atomic )*(?:read|write|atomic) of size)', re.I)
    text = f"{test.get('stdout', '')}\n{test.get('stderr', '')}".split('\n  Thread T')[0]
    lines = [re.sub(r' \(\S+\+0x.*|/\S*/\.\./', '', line)[:200] for line in text.splitlines() if told.match(line)]
    return [f"# {test['name']}: {test['result']}", *(f'#   {line}' for line in lines[:16])]


def seed():
    """The seed of this run, never 0."""
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.environ.get('TN_SOAK', '0') not in ('', '0'):
        return 1 + secrets.randbelow(1 << 32)
    try:
        commit = subprocess.run(['git', '-C', root, 'rev-parse', 'HEAD'], capture_output=True, text=True, check=True).stdout
        return 1 + int(commit[:8], 16)
    except (OSError, subprocess.CalledProcessError):
        with open(os.path.join(root, 'meson.build'), encoding='utf-8') as f:
            return 1 + zlib.crc32(re.search(r"version: *'[^']*'", f.read()).group().encode())


def introspect(build, what):
    return json.loads(subprocess.run(['meson', 'introspect', '--' + what, build], capture_output=True, text=True, check=True).stdout)


def targets(build, args):
    """Files below build, as ninja names them, that the tests of these suites run or need."""
    names = list(zip(args, args[1:]))
    want = {name for option, name in names if option == '--suite'}
    leave = {name for option, name in names if option == '--no-suite'}
    files = {t['id']: t['filename'] for t in introspect(build, 'targets')}
    needed = set()
    for test in introspect(build, 'tests'):
        suites = {s.partition(':')[2] for s in test['suite']}
        if suites & want and not suites & leave:
            needed.update(os.path.relpath(f, os.path.abspath(build)) for d in test['depends'] for f in files[d])
    return sorted(needed)


def main():
    if sys.argv[1] == '--targets':
        print('\n'.join(targets(sys.argv[2], sys.argv[3:])))
        return 0
    build, args = sys.argv[1], sys.argv[2:]
    os.environ['TN_SEED'] = os.environ.get('TN_SEED') or str(seed())
    print(f'{build}: TN_SEED={os.environ["TN_SEED"]}', flush=True)
    # Most tests wait, for a disk or for a time to pass: as many as there are CPUs use half of them.
    os.environ.setdefault('MESON_TESTTHREADS', str(2 * len(os.sched_getaffinity(0))))
    log = os.path.join(build, 'meson-logs', 'testlog.json')
    if os.path.exists(log):
        os.remove(log)
    with scratch.directory() as where:
        os.chmod(where, 0o711)  # for what tests do as another user
        rc = subprocess.run(['meson', 'test', '-C', build, '--no-rebuild', '--print-errorlogs', *args],
                            stdin=subprocess.DEVNULL, env={**os.environ, 'TMPDIR': where}, check=False).returncode
    total = [0, 0, 0]
    failures = []
    if os.path.exists(log):
        with open(log, encoding='utf-8') as f:
            for line in f:
                test = json.loads(line)
                counts = count(test['result'], test.get('stdout', ''))
                total = [a + b for a, b in zip(total, counts)]
                if counts[1]:
                    failures += telling(test)
                for figures in re.findall(r'^# (\d+ commands, .* injected faults.*)', test.get('stdout', ''), re.M):
                    print(f'{test["name"]}: {figures}')
    if rc and not total[1]:
        total[1] = 1
    if sum(total) == 0:
        print(f'{build}: no test was found')
        rc = 1
    if os.environ.get('TN_TALLY'):
        with open(os.environ['TN_TALLY'], 'a', encoding='utf-8') as f:
            print(*failures, ' '.join(map(str, total)), sep='\n', file=f)
    print(f'{build}: {total[0]} passed, {total[1]} failed, {total[2]} skipped')
    return 1 if rc or total[1] else 0


if __name__ == '__main__':
    sys.exit(main())
