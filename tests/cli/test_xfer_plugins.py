# SPDX-License-Identifier: Apache-2.0
"""`tenuto xfer` with the plugins s3 and etcd: files to objects and back; agents that are found by name."""
import os
import shutil
import subprocess
import sys

from cli import OK, PROBLEM, TENUTO, USAGE, Skip, fail, main, tenuto, until

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python", "tests"))
import s3_servers  # noqa: E402


def write_input():
    data = os.urandom(200000)
    with open("in", "wb") as f:
        f.write(data)
    return data


def a_file_becomes_an_object_and_comes_back():
    data = write_input()
    store = s3_servers.Faulty()
    os.environ.update(AWS_ENDPOINT_URL=store.endpoint, AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", no_proxy="*")
    try:
        tenuto("xfer", "put", "s3://bucket/a key", "in")
        tenuto("xfer", "get", "s3://bucket/a key", "out", "--offset", "1000B")
        with open("out", "rb") as f:
            if f.read() != data[1000:]:
                fail("other bytes came back")
        if "no such object" not in tenuto("xfer", "get", "s3://bucket/none", "out", rc=PROBLEM).err:
            fail("a missing object")
        tenuto("xfer", "get", "s3://bucket", "out", rc=USAGE)
    finally:
        store.close()


def transfers_to_objects_are_measured():
    store = s3_servers.Faulty()
    sizes = ("--start_block_size", "64KiB", "--max_block_size", "64KiB", "--max_batch_size", "8", "--num_iter", "3", "--total_buffer_size", "2MiB")
    backend = "s3,bucket=bucket,access_key=a,secret_key=b,endpoint=" + store.endpoint
    try:
        for op in ("WRITE", "READ"):
            rows = tenuto("bench", "xfer", "--backend", backend, "--op_type", op, "--check", "--json", *sizes).json()
            if [r["batch"] for r in rows] != [1, 8] or any(r["gb_per_s"] <= 0 for r in rows):
                fail("rows: %s" % rows)
        keys = sorted(store.objects)
        if keys != ["/bucket/tenuto-bench/65536/%d" % i for i in range(8)] or {len(v) for v in store.objects.values()} != {65536}:
            fail("objects: %s" % keys)
        if "bucket=" not in tenuto("bench", "xfer", "--backend", "s3,endpoint=" + store.endpoint, rc=USAGE).err:
            fail("no bucket")
        tenuto("bench", "xfer", "--backend", backend, "--peer", rc=USAGE)
    finally:
        store.close()


def an_agent_that_is_published_is_found_by_name():
    if not shutil.which("etcd"):
        raise Skip("etcd is missing: make setup installs it (etcd-server)")
    data = write_input()
    server, endpoint = s3_servers.etcd(os.getcwd())
    directory = ("--directory", "etcd,ttl_s=2,endpoints=" + endpoint)
    with open("published", "wb") as out:
        listener = subprocess.Popen([TENUTO, "xfer", "listen", "unix:" + os.path.abspath("socket"), "--bytes", "1MiB", *directory], stdout=out)
    try:
        until(lambda: os.path.getsize("published"), "listener")
        name = "tenuto-listen-%d" % listener.pid
        if "1 sections" not in tenuto("xfer", "info", name, *directory).out:
            fail("info")
        tenuto("xfer", "put", name, "in", *directory)
        tenuto("xfer", "get", name, "out", *directory, "--bytes", "200000")
        with open("out", "rb") as f:
            if f.read() != data:
                fail("other bytes came back")
    finally:
        listener.terminate()
        ended = listener.wait(60)
    if ended != OK or "there is no" not in tenuto("xfer", "info", name, *directory, rc=USAGE).err:
        fail("the listener ended with %d, or its entry stays" % ended)
    server.close()


main(globals())
