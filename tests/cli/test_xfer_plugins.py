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
