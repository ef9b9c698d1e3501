# SPDX-License-Identifier: Apache-2.0
"""Block events that tenutod publishes: an engine's session names blocks, `tenuto events` follows, /metrics counts. A bus that cannot be is no reason not to serve."""
import contextlib
import hashlib
import json
import os
import urllib.error
import urllib.request

import tenuto
from daemon import Daemon, free_port
from cli import fail, main, until, write
from cli import tenuto as program

BLOCKS = 4


def config(events):
    os.makedirs("kv", exist_ok=True)
    write("c.yaml", "dirs: [%s/kv]\ndisk_bytes: 64MiB\nhost_bytes: 16MiB\nplugins: %s\nevents: '%s'\n" % (os.getcwd(), os.environ["ZMQ_DIR"], events))
    return "c.yaml"


def hint(daemon, body, token="the token of the test"):
    """The status of the answer, and its text."""
    request = urllib.request.Request("http://127.0.0.1:%d/v1/hints" % daemon.port, body if isinstance(body, bytes) else json.dumps(body).encode(),
                                     {"Authorization": "Bearer " + token})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@contextlib.contextmanager
def saved(daemon):
    """An engine's session, with blocks that the engine calls by a hash of their number."""
    with tenuto.attach(os.path.join(daemon.run_dir, "tenuto.sock")) as cache:
        geometry = tenuto.Geometry.raw(2, 8192)
        space = cache.space("toy", geometry)
        kv = bytearray(BLOCKS * geometry.block_bytes)
        pool = cache.memory(kv).pool(geometry, npages=BLOCKS)
        keys = space.keys(range(BLOCKS))
        if not space.name_blocks(keys, b"".join(hashlib.sha256(b"%d" % i).digest() for i in range(BLOCKS)), 32, 16):
            fail("the owner keeps no names")
        space.save(keys, pool, range(BLOCKS)).finish()
        cache.flush()
        yield cache


def what_a_session_saves_is_published_under_the_engines_names():
    live, replay = free_port(), free_port()
    spec = "zmq,endpoint=tcp://127.0.0.1:%d,replay=tcp://127.0.0.1:%d" % (live, replay)
    with Daemon("--config", config(spec)) as daemon:
        daemon.wait_for_line("block events are published")
        with saved(daemon):
            pass
        until(lambda: sum(daemon.metrics().get("tenutod_events_published_total", [0])) >= 2 * BLOCKS, "no events were counted")
        env = {**os.environ, "TENUTO_PLUGIN_PATH": os.environ["ZMQ_DIR"]}
        out = program("events", "tree", "--once", spec, env=env).out.splitlines()[-1].split()
        if out[1:3] != ["all", str(BLOCKS)]:
            fail("tenuto events tree: %s" % out)
        lines = program("events", "tail", "--count", str(2 * BLOCKS), spec, env=env).out.splitlines()
        first = hashlib.sha256(b"0").hexdigest()
        if not any(line.split()[1:] == ["stored", "disk", first, "-"] for line in lines):
            fail("tenuto events tail: %s" % lines)


def hints_by_http_need_the_token_and_do_not_tell_what_is_there():
    write("hints.token", "the token of the test\n")
    name = config("zmq,endpoint=tcp://127.0.0.1:%d" % free_port())
    with open(name, "a") as f:
        f.write("hints_token_file: %s/hints.token\n" % os.getcwd())
    with Daemon("--config", name) as daemon, saved(daemon) as cache:
        hashes = [hashlib.sha256(b"%d" % i).hexdigest() for i in range(BLOCKS)]
        for wrong in ("", "the token of the tesT", "the token of the test and more"):
            if hint(daemon, {"hint": "demote", "hashes": hashes}, wrong)[0] != 401:
                fail("the token %r was taken" % wrong)

        answers = {hint(daemon, {"hint": "demote", "hashes": hashes}), hint(daemon, {"hint": "demote", "hashes": ["%064x" % i for i in range(99)]})}
        if answers != {(202, "taken\n")}:
            fail("the answers differ: %s" % answers)
        until(lambda: cache.stats()["host_blocks"] == 0, "the blocks did not leave host memory")
        if hint(daemon, {"hint": "prefetch", "hashes": [h[-16:] for h in hashes], "seconds": 10})[0] != 202:
            fail("no hint was taken by the last 16 digits")
        until(lambda: cache.stats()["host_blocks"] == BLOCKS, "the blocks did not come back")
        for bad in (b"", b"{", b"[]", {"hint": "promote", "hashes": hashes}, {"hint": "pin", "hashes": []}, {"hint": "pin", "hashes": ["xyz"], "seconds": 1},
                    {"hint": "pin", "hashes": hashes, "seconds": -1}, {"hint": "pin", "hashes": [5], "seconds": 1}):
            status, text = hint(daemon, bad)
            if status != 400 or "prefetch" not in text:
                fail("%r: %s %s" % (bad, status, text))
        if hint(daemon, b" " * (300 << 10))[0] != 413:
            fail("a large body was taken")


def a_bus_that_cannot_be_is_said_and_the_cache_is_served():
    with Daemon("--config", config("zmq,endpoint=nowhere")) as daemon:
        daemon.wait_for_line("nothing is published")
        with tenuto.attach(os.path.join(daemon.run_dir, "tenuto.sock")) as cache:
            cache.stats()


main(globals())
