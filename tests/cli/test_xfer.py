# SPDX-License-Identifier: Apache-2.0
"""`tenuto xfer`: the list of backends, an agent that listens, bytes put into it and got back."""
import os
import subprocess

from cli import ENVIRONMENT, OK, TENUTO, USAGE, fail, main, tenuto, until


def the_backends_are_listed():
    backends = {b["name"]: b for b in tenuto("xfer", "backends", "--json").json()}
    # gds, s3 and ucx need a plugin: each may stand among those that cannot be used.
    if set(backends) != {"memory", "file", "faulty", "null", "gds", "s3", "ucx"}:
        fail("backends: %s" % list(backends))
    for name in "gds", "s3", "ucx":
        if "segments" not in backends[name] and not backends[name]["error"]:
            fail("backends: %s is missing without a word" % name)
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
        # A get that fails leaves the file that is there, and no other one.
        tenuto("xfer", "get", address, "out", "--secret-file", "secret", "--bytes", "1TiB", rc=USAGE)
        with open("out", "rb") as f:
            if f.read() != data or [name for name in os.listdir() if name.startswith("out.")]:
                fail("a get that failed touched its file")
        tenuto("xfer", "get", address, "/dev/null", "--secret-file", "secret", rc=USAGE)
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


def the_bench_compares_with_another_program():
    with open("python", "w") as f:  # in place of one that has nixl: it says how long it took
        f.write("#!/bin/sh\necho noise\necho DONE 0.5 0.25\n")
    os.chmod("python", 0o755)
    args = ("bench", "xfer", "--backend", "file", "--dir", ".", "--total_buffer_size", "8MiB", "--start_block_size", "64KiB", "--max_block_size", "512KiB",
            "--pairs", "2", "--json", "--vs")
    rows = tenuto(*args, "nixl", "--python", os.path.abspath("python")).json()
    if [(r["op"], r["block_bytes"]) for r in rows] != [("WRITE", 65536), ("WRITE", 524288), ("READ", 65536), ("READ", 524288)]:
        fail("rows: %s" % rows)
    if any(abs(r["their_gb_per_s"] - 8 * 1048576 / 0.5e9) > 1e-6 or abs(r["their_cpu_s_per_gb"] - 0.25e9 / (8 * 1048576)) > 1e-3 for r in rows):
        fail("the other program's figures: %s" % rows)
    with open("python", "w") as f:
        f.write("#!/bin/sh\necho ERR 0.5 0.25\n")
    refused = tenuto(*args, "nixl", "--python", os.path.abspath("python"), rc=ENVIRONMENT)
    if "pip install nixl" not in refused.err:
        fail(str(refused))
    tenuto(*args, "other", rc=USAGE)
    tenuto("bench", "xfer", "--vs", "fio", rc=USAGE)


main(globals())
