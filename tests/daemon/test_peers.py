# SPDX-License-Identifier: Apache-2.0
"""Two tenutod, of which one has the other for a remote. The engines are the Python package of the build directory."""
import contextlib
import os
import signal
import time
from types import SimpleNamespace

import tenuto
from daemon import Daemon, asked, free_port  # adds the directory of cli
from cli import USAGE, fail, main, until, write

LAYERS, BLOCKS = 4, 32
PORT = free_port()


def secret(name, text):
    write(name, text)
    os.chmod(name, 0o600)
    return os.path.abspath(name)


def node(name, more):
    write(name + ".yaml", "host_bytes: 64MiB\ncluster_secret_file: %s\n%s\n" % (secret("cluster", "one secret of all nodes, 32 bytes"), more))
    return name + ".yaml"


def server(port):
    return node("a", "serve: {tcp: 127.0.0.1:%d, secret_file: %s}" % (port, secret("peers", "another secret, for peers alone")))


def asker(port, file="peers"):
    secret("peers", "another secret, for peers alone")
    return node("b", "remote: peer,host=127.0.0.1,port=%d,secret_file=%s" % (port, os.path.abspath(file)))


@contextlib.contextmanager
def engine(daemon):
    """A space of a session, and memory of as many blocks as there are."""
    with tenuto.attach(os.path.join(daemon.run_dir, "tenuto.sock")) as cache:
        space = cache.space("toy", tenuto.Geometry.raw(LAYERS, 65536))
        kv = bytearray(BLOCKS * space.geometry.block_bytes)
        yield SimpleNamespace(cache=cache, space=space, kv=kv, keys=space.keys(range(BLOCKS)), pool=cache.memory(kv).pool(space.geometry, npages=BLOCKS))


def found(e):
    """Blocks that a look-up finds which may wait."""
    query = tenuto.match_begin([e.space], e.keys, timeout=2.0)
    while (match := query.poll()) is None:
        time.sleep(0.001)
    return match.blocks


def load(e):
    return e.space.load(e.keys, e.pool, range(BLOCKS)).finish()


def fill(e):
    for i in range(0, len(e.kv), 4096):
        e.kv[i:i + 8] = (i * 2654435761 % 2**64).to_bytes(8, "little")
    e.space.save(e.keys, e.pool, range(BLOCKS)).finish()


def what_one_node_has_computed_is_a_hit_on_the_other():
    with Daemon("--config", server(PORT)) as a, Daemon("--config", asker(PORT)) as b:
        a.wait_for_line("other nodes' caches get blocks at")
        with engine(a) as x, engine(b) as y:
            fill(x)
            if found(y) != BLOCKS:
                fail("found %s" % found(y))
            if load(y) != BLOCKS or y.kv != x.kv:
                fail("other bytes: %s" % b.err)
        text = a.get("/metrics")[2]
        for line in ("nodes 1", "found_keys_total %d" % BLOCKS, "blocks_total %d" % BLOCKS, "mapped_blocks_total %d" % BLOCKS, "misses_total 0"):
            if "\ntenutod_served_%s\n" % line not in text:
                fail("no %s in: %s" % (line, text[-2000:]))


def a_node_that_is_killed_costs_misses_and_one_that_comes_back_is_asked_again():
    port = free_port()
    with Daemon("--config", asker(port)) as b, engine(b) as y:
        with Daemon("--config", server(port)) as a:
            with engine(a) as x:
                fill(x)
                if found(y) != BLOCKS:
                    fail("found %s" % found(y))
            a.process.send_signal(signal.SIGKILL)
            a.process.wait()
        begin = time.monotonic()
        good = load(y)
        if good != 0 or time.monotonic() - begin > 2:
            fail("a dead node: %d blocks, %.1f s" % (good, time.monotonic() - begin))
        with Daemon("--config", server(port)) as a, engine(a) as x:
            fill(x)
            until(lambda: found(y) == BLOCKS and load(y) == BLOCKS, "hits after the restart")
            if y.kv != x.kv:
                fail("other bytes")


def another_secret_is_told_on_both_sides():
    port = free_port()
    secret("wrong", "a secret that nobody else has, of 40 byte")
    with Daemon("--config", server(port)) as a, Daemon("--config", asker(port, "wrong")) as b, engine(b) as y:
        if found(y) != 0:
            fail("a hit")
        b.wait_for_line("another secret")
        a.wait_for_line("another secret")


def mistakes_in_serve_are_told():
    good = "host_bytes: 1MiB\n"
    here = secret("peers", "another secret, for peers alone")
    for text, words in (("serve: 127.0.0.1:9471\n", ["c.yaml:2: ", "mapping"]),
                        ("serve: [a]\n", ["c.yaml:2: ", "mapping"]),
                        ("serve:\n  tpc: 127.0.0.1:9471\n", ["c.yaml:3: ", "'tpc'", "tcp and secret_file"]),
                        ("serve:\n  tcp: here\n", ["c.yaml:3: ", "'here'", "address"]),
                        ("serve: {tcp: 127.0.0.1:9471}\n", ["serve", "secret_file"]),
                        ("serve: {tcp: 127.0.0.1:9471, secret_file: %s.absent}\n" % here, ["c.yaml:2: ", "openssl rand"])):
        write("c.yaml", good + text)
        err = asked("--config", "c.yaml", "--check-config", rc=USAGE).stderr
        for word in words:
            if word not in err:
                fail("'%s' is not in: %s" % (word, err))
    write("c.yaml", good + "serve: {tcp: 127.0.0.1:9471, secret_file: %s}\n" % here)
    asked("--config", "c.yaml", "--check-config")
    write("d.yaml", asked("--config", "c.yaml", "--print-config").stdout)
    if asked("--config", "d.yaml", "--print-config").stdout != open("d.yaml").read():
        fail("the printed settings are others")


main(globals())
