# SPDX-License-Identifier: Apache-2.0
"""`tenuto xfer`: the list of backends, an agent that listens, bytes put into it and got back."""
import os
import subprocess

from cli import ENVIRONMENT, OK, TENUTO, USAGE, fail, main, tenuto, until


def the_backends_are_listed():
    names = [b["name"] for b in tenuto("xfer", "backends", "--json").json()]
    if names != ["memory", "file", "faulty", "null"]:
        fail("backends: %s" % names)
    table = tenuto("xfer", "backends").out
    if "DRAM BLOCK FILE" not in table:
        fail(table)


def what_was_put_is_got_back():
    with open("secret", "w") as f:
        f.write("a secret of two programs\n")
    data = os.urandom(300000)
    with open("in", "wb") as f:
        f.write(data)
    address = "unix:" + os.path.abspath("socket")
    with open("listener", "wb") as out:
        listener = subprocess.Popen([TENUTO, "xfer", "listen", address, "--secret-file", "secret", "--bytes", "1MiB"], stdout=out)
    try:
        until(lambda: os.path.exists("socket") and os.path.getsize("listener"), "listener")
        info = tenuto("xfer", "info", address, "--secret-file", "secret").out
        if "1 sections" not in info or "1,048,576" not in info:
            fail(info)
        tenuto("xfer", "put", address, "in", "--secret-file", "secret", "--offset", "4KiB")
        tenuto("xfer", "get", address, "out", "--secret-file", "secret", "--offset", "4KiB", "--bytes", "300000")
        with open("out", "rb") as f:
            if f.read() != data:
                fail("other bytes came back")
        tenuto("xfer", "put", address, "in", "--secret-file", "secret", "--offset", "1MiB", rc=USAGE)
        tenuto("xfer", "put", address, "in", "--secret-file", "secret")
        stats = dict(line.split()[:2] for line in tenuto("xfer", "info", address, "--secret-file", "secret").out.splitlines() if len(line.split()) == 2)
        if (stats.get("received_notifications"), stats.get("registered_bytes"), stats.get("failed_requests")) != ("3", "1,048,576", "0"):
            fail("statistics: %s" % stats)
        with open("other", "w") as f:
            f.write("another secret of programs")
        refused = tenuto("xfer", "info", address, "--secret-file", "other", rc=ENVIRONMENT)
        if "another secret" not in refused.err:
            fail(str(refused))
    finally:
        listener.terminate()
        if listener.wait(60) != OK:
            fail("the listener ended with %d" % listener.returncode)
    with open("listener") as f:
        if "put of 300000 bytes" not in f.read():
            fail("no notification")


main(globals())
