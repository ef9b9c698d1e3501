# SPDX-License-Identifier: Apache-2.0
"""Block events that tenutod publishes: an engine's session names blocks, `tenuto events` follows, /metrics counts. A bus that cannot be is no reason not to serve."""
import hashlib
import os

import tenuto
from daemon import Daemon, free_port
from cli import fail, main, until, write
from cli import tenuto as program

BLOCKS = 4


def config(events):
    os.makedirs("kv", exist_ok=True)
    write("c.yaml", "dirs: [%s/kv]\ndisk_bytes: 64MiB\nhost_bytes: 16MiB\nplugins: %s\nevents: '%s'\n" % (os.getcwd(), os.environ["ZMQ_DIR"], events))
    return "c.yaml"


def save(daemon):
    """Blocks that the engine calls by a hash of their number."""
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


def what_a_session_saves_is_published_under_the_engines_names():
    live, replay = free_port(), free_port()
    spec = "zmq,endpoint=tcp://127.0.0.1:%d,replay=tcp://127.0.0.1:%d" % (live, replay)
    with Daemon("--config", config(spec)) as daemon:
        daemon.wait_for_line("block events are published")
        save(daemon)
        until(lambda: sum(daemon.metrics().get("tenutod_events_published_total", [0])) >= 2 * BLOCKS, "no events were counted")
        env = {**os.environ, "TENUTO_PLUGIN_PATH": os.environ["ZMQ_DIR"]}
        out = program("events", "tree", "--once", spec, env=env).out.splitlines()[-1].split()
        if out[1:3] != ["all", str(BLOCKS)]:
            fail("tenuto events tree: %s" % out)
        lines = program("events", "tail", "--count", str(2 * BLOCKS), spec, env=env).out.splitlines()
        first = hashlib.sha256(b"0").hexdigest()
        if not any(line.split()[1:] == ["stored", "disk", first, "-"] for line in lines):
            fail("tenuto events tail: %s" % lines)


def a_bus_that_cannot_be_is_said_and_the_cache_is_served():
    with Daemon("--config", config("zmq,endpoint=nowhere")) as daemon:
        daemon.wait_for_line("nothing is published")
        with tenuto.attach(os.path.join(daemon.run_dir, "tenuto.sock")) as cache:
            cache.stats()


main(globals())
