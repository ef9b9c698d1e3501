# SPDX-License-Identifier: Apache-2.0
"""Published events between Tenuto and vLLM's own classes, from the installed wheel: each reads the other's.

    ENGINE_PYTHON tests/engines/vllm_events.py        (with tenuto on PYTHONPATH, the plugin zmq on TENUTO_PLUGIN_PATH)

No engine runs here; run.py's "events" has one. Exit 0: all held.
"""
import hashlib
import struct
import sys
import tempfile
import time

import msgspec
import zmq
from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch, ZmqEventPublisher

import tenuto

BLOCKS = 4


def until(what, text):
    end = time.monotonic() + 20
    while not what():
        if time.monotonic() > end:
            sys.exit(f"vllm_events: {text()}")
        time.sleep(0.01)


def port():
    with zmq.Context.instance().socket(zmq.PUB) as s:
        return s.bind_to_random_port("tcp://127.0.0.1")


def our_events_are_read_by_vllm():
    """The batches decode with vLLM's types, strictly, and replay as vLLM's publisher does."""
    live, replay = port(), port()
    with tempfile.TemporaryDirectory(prefix="tenuto-events-") as path:
        cache = tenuto.Cache(path, disk_bytes=64 << 20, host_bytes=16 << 20)
        cache.publish(f"zmq,endpoint=tcp://127.0.0.1:{live},replay=tcp://127.0.0.1:{replay},topic=kv,rank=3,tokens=16")
        geometry = tenuto.Geometry.raw(2, 4096)
        space = cache.space("m", geometry)
        kv = bytearray(8 * geometry.block_bytes)
        pool = cache.memory(kv).pool(geometry, npages=8)
        keys = space.keys(range(BLOCKS))
        hashes = [hashlib.sha256(b"%d" % i).digest() for i in range(BLOCKS)]
        tokens = list(range(16 * BLOCKS))
        assert space.name_blocks(keys, b"".join(hashes), 32, 16, None, struct.pack(f"={len(tokens)}I", *tokens))
        space.save(keys, pool, range(BLOCKS)).finish()
        cache.flush()
        numbers = [2**63 + i for i in range(2)]
        other = space.keys(range(100, 102))
        assert space.name_blocks(other, b"".join(struct.pack(">Q", n) for n in numbers), 8, 16, struct.pack(">Q", 7), None, 1)
        space.save(other, pool, range(2)).finish()
        until(lambda: cache.publish_stats()["events"] >= 2 * BLOCKS + 2, cache.publish_stats)
        space.drop_blocks(keys)
        until(lambda: cache.publish_stats()["events"] >= 4 * BLOCKS + 2, cache.publish_stats)

        with zmq.Context.instance().socket(zmq.REQ) as ask:
            ask.connect(f"tcp://127.0.0.1:{replay}")
            ask.send((0).to_bytes(8, "big"))
            decoder, got, sequences = msgspec.msgpack.Decoder(type=KVEventBatch), [], []
            frames = ask.recv_multipart()
            # A REQ socket takes one answer; vLLM's clients use DEALER for more.
        with zmq.Context.instance().socket(zmq.DEALER) as ask:
            ask.connect(f"tcp://127.0.0.1:{replay}")
            ask.send_multipart([b"", (0).to_bytes(8, "big")])
            while True:
                _, topic, number, payload = ask.recv_multipart()
                if number == ZmqEventPublisher.END_SEQ:
                    assert payload == b""
                    break
                assert topic == b"kv"
                sequences.append(int.from_bytes(number, "big"))
                batch = decoder.decode(payload)
                assert batch.data_parallel_rank == 3 and abs(batch.ts - time.time()) < 60
                got += batch.events
        assert frames[-2] == (0).to_bytes(8, "big"), frames
        assert sequences == list(range(len(sequences))), sequences
        cache.close()
    stored = [e for e in got if isinstance(e, BlockStored)]
    for medium in ("CPU", "STORAGE"):
        told = [e for e in stored if e.medium == medium and e.group_idx is None]
        assert [h for e in told for h in e.block_hashes] == hashes, (medium, got)
        assert told[0].parent_block_hash is None and [t for e in told for t in e.token_ids] == tokens
        assert all(e.block_size == 16 for e in told)
        removed = [e for e in got if isinstance(e, BlockRemoved) and e.medium == medium]
        assert sorted(h for e in removed for h in e.block_hashes) == sorted(hashes), (medium, got)
    second = [e for e in stored if e.group_idx == 1]
    assert [h for e in second if e.medium == "CPU" for h in e.block_hashes] == numbers and second[0].parent_block_hash == 7, second


def vllms_events_are_read_by_us():
    """vLLM's publisher, with its replay; it starts again, and the tree follows."""
    live, replay = port(), port()
    spec = f"zmq,endpoint=tcp://127.0.0.1:{live},replay=tcp://127.0.0.1:{replay},topic=kv"
    tree = tenuto.PrefixTree(1000, 1)
    sub = tenuto.Subscriber(spec, tree)

    def publisher():
        # A wildcard is what vLLM binds; any other address it connects to. The ports of one that has ended are free a moment later.
        for _ in range(200):
            try:
                return ZmqEventPublisher(0, f"tcp://*:{live}", f"tcp://*:{replay}", topic="kv")
            except zmq.ZMQError:
                time.sleep(0.05)
        sys.exit("vllm_events: the ports stay taken")

    def stored(first, n, medium="GPU"):
        return BlockStored(block_hashes=list(range(first, first + n)), parent_block_hash=first - 1 if first > 1 else None, token_ids=[0] * 16 * n,
                           block_size=16, lora_id=None, medium=medium, lora_name=None)

    first = publisher()
    first.publish(KVEventBatch(ts=time.time(), events=[stored(1, 8), stored(1, 4, "CPU")]))
    first.publish(KVEventBatch(ts=time.time(), events=[BlockRemoved(block_hashes=[7], medium="GPU")]))
    until(lambda: tree.find(list(range(1, 9)))[0] == (6, 6, 6, 6), lambda: f"{tree.find(list(range(1, 9)))} {sub.state()}")
    first.publish(KVEventBatch(ts=time.time(), events=[stored(7, 1)]))
    until(lambda: tree.find(list(range(1, 9)))[0] == (8, 8, 8, 8), sub.state)
    assert sub.state()["complete"] and sub.state()["current"], sub.state()
    late_tree = tenuto.PrefixTree(1000, 1)
    late = tenuto.Subscriber(spec, late_tree)
    until(lambda: late_tree.digest(0) == tree.digest(0), late.state)
    first.shutdown()
    second = publisher()
    second.publish(KVEventBatch(ts=time.time(), events=[stored(1, 2)]))
    until(lambda: tree.find(list(range(1, 9)))[0] == (2, 2, 2, 2), lambda: f"{tree.find(list(range(1, 9)))} {sub.state()}")
    second.publish(KVEventBatch(ts=time.time(), events=[AllBlocksCleared()]))
    until(lambda: tree.stats()["blocks"] == 0, sub.state)
    second.shutdown()
    late.close()
    sub.close()


our_events_are_read_by_vllm()
vllms_events_are_read_by_us()
print("vllm_events: both read each other's events")
