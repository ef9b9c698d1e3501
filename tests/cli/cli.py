# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command line share: running `tenuto`, checks, TAP output.

A test file defines functions without arguments, named as sentences (three underscores at least), and ends with
main(globals()). Each function runs in a temporary directory of its own. TENUTO names the program (default:
build/cli/tenuto).
"""
import json
import os
import signal
import subprocess
import sys
import time
import traceback

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "scripts"))

import scratch  # noqa: E402

TENUTO = os.path.abspath(os.environ.get("TENUTO", os.path.join(ROOT, "build", "cli", "tenuto")))
OK, PROBLEM, USAGE, ENVIRONMENT = 0, 1, 2, 3
DEADLINE = 60  # seconds that nothing takes unless it hangs
LINE = '{"timestamp": 0, "input_length": 1025, "output_length": 500, "hash_ids": [0, 1, 2]}\n'


if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of a shell's job in the background; the programs would ignore it, too
    signal.signal(signal.SIGINT, signal.default_int_handler)


class Skip(Exception):
    pass


class Result:
    def __init__(self, args, done):
        self.args, self.rc, self.out, self.err = args, done.returncode, done.stdout, done.stderr

    def __str__(self):
        return "%s: exit code %s\n%s%s" % (" ".join(self.args), self.rc, self.out[-2000:], self.err[-2000:])

    def json(self):
        try:
            return json.loads(self.out, parse_constant=lambda c: fail("JSON holds %s: %s" % (c, self)))
        except ValueError as e:
            raise AssertionError("not JSON (%s): %s" % (e, self))


def fail(text):
    raise AssertionError(text)


def until(condition, what):
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    return fail("HANG: no %s within a minute" % what)


def tenuto(*args, rc=OK, timeout=120, stdin="", **more):
    """Runs the program and checks the exit code; a death by signal (a crash) never passes."""
    args = [str(a) for a in args]
    r = Result(args, subprocess.run([TENUTO] + args, input=stdin, capture_output=True, text=True, timeout=timeout, **more))
    if r.rc != rc:
        fail("expected exit code %s; %s" % (rc, r))
    if rc != OK and not r.err.strip() and "--json" not in args:
        fail("failed without a word; %s" % r)
    return r


def says(result, *texts):
    for t in texts:
        if t not in result.err:
            fail("'%s' is not in the message; %s" % (t, result))


def write(name, text):
    with open(name, "w") as f:
        f.write(text)
    return name


def slack_table(token_ns):
    """A table of llama3-8b for an engine that takes token_ns per token and layer, whatever the prefix."""
    return "\n".join(["tenuto-slack 2", "model llama3-8b", "gpu here", "engine -", "when now", "how synthetic", "layers 32",
                      "cells shared", "inputs 1 1000000", "prefixes 0", "cell 1 0 * %d" % token_ns,
                      "cell 1000000 0 * %d" % (1000000 * token_ns), ""])


def rest_of_terminal(fd):
    """The output until the other end is closed; closes fd."""
    text = b""
    try:
        while True:
            text += os.read(fd, 65536)
    except OSError:
        os.close(fd)
        return text


def verbs():
    out = tenuto("--help").out
    return [line.split()[0] for line in out.splitlines() if line.startswith("  ") and line[2] != " "]


def need(verb):
    if verb not in verbs():
        raise Skip("this build has no '%s'" % verb)


def shared_trace():
    """The recorded trace that lies beside the repository, or a skip."""
    for base in (os.environ.get("TENUTO_TRACES"), os.path.join(ROOT, "..", "shared", "traces"),
                 os.path.join(ROOT, "..", "..", "shared", "traces")):
        path = base and os.path.join(base, "conversation.jsonl")
        if path and os.path.exists(path):
            return path
    raise Skip("the trace ../shared/traces/conversation.jsonl is not there (TENUTO_TRACES=DIR names another place)")


def main(names):
    tests = [(n, f) for n, f in names.items() if getattr(f, "__module__", "") == "__main__" and callable(f)
             and f.__code__.co_argcount == 0 and n.count("_") >= 3]
    failed = 0
    print("1..%d" % len(tests))
    for i, (name, test) in enumerate(tests, 1):
        home = os.getcwd()
        top = scratch.make()
        os.chmod(top, 0o711)  # for what a test does as another user
        where = os.path.join(top, "test")  # empty, which top is not
        os.mkdir(where)
        os.chdir(where)
        try:
            test()
            print("ok %d - %s" % (i, name), flush=True)
        except Skip as s:
            print("ok %d - %s # SKIP %s" % (i, name, s), flush=True)
        except Exception:
            failed += 1
            for line in traceback.format_exc().splitlines():
                print("# " + line)
            print("not ok %d - %s" % (i, name), flush=True)
        finally:
            os.chdir(home)
            subprocess.run(["chmod", "-R", "u+rwX", where], check=False)
            scratch.remove(top)
    sys.exit(1 if failed else 0)  # meson counts the skips in TAP; it would take status 77 for a failure
