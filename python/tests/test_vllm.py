# SPDX-License-Identifier: Apache-2.0
"""The adapters for vLLM without an engine: where pages lie, what a configuration must say, and - where vLLM is installed - whether every call that it makes is there.

The engine itself is run by tests/engines/run.py.
"""
import inspect
import os
import sys
import tempfile
import types
import unittest
import unittest.mock

from tenuto import _core
from tenuto.vllm import layout
from tenuto.vllm.store import Config, Stats, Store, fingerprint, size_of

try:
    import vllm  # noqa: F401
    no_vllm = None
except ImportError:
    no_vllm = "vLLM is not installed here: tests/engines/install.sh installs it"


class Layouts(unittest.TestCase):
    def test_k_and_v_in_one_piece(self):
        """vLLM on CPUs: [blocks, heads, tokens, 2 x 64]."""
        layer = layout.layer_of("a", (10, 2, 32, 128), (8192, 4096, 128, 1), 4, 4096 + 640, (4096, 1 << 20), 10)
        self.assertEqual((layer.offsets, layer.stride, layer.page_bytes), ((640,), 32768, 32768))

    def test_k_and_v_in_two_pieces(self):
        """FlashAttention: [2, blocks, tokens, heads, 64]."""
        layer = layout.layer_of("a", (2, 10, 16, 2, 64), (20480, 2048, 128, 64, 1), 2, 0, (0, 81920), 10)
        self.assertEqual((layer.offsets, layer.stride, layer.page_bytes), ((0, 40960), 4096, 4096))

    def test_strides_decide_and_not_the_order_of_dimensions(self):
        """Heads before tokens in memory, though not in the shape."""
        layer = layout.layer_of("a", (10, 16, 2, 64), (2048, 64, 1024, 1), 2, 0, (0, 40960), 10)
        self.assertEqual((layer.offsets, layer.stride, layer.page_bytes), ((0,), 4096, 4096))

    def test_blocks_of_the_kernel_may_be_smaller(self):
        layer = layout.layer_of("a", (20, 16, 2, 64), (2048, 128, 64, 1), 2, 0, (0, 81920), 10)
        self.assertEqual((layer.stride, layer.page_bytes), (8192, 8192))

    def test_gaps_are_refused(self):
        with self.assertRaises(NotImplementedError):
            layout.layer_of("a", (10, 16, 2, 64), (4096, 256, 64, 1), 2, 0, (0, 81920), 10)

    def test_a_tensor_without_blocks_is_refused(self):
        with self.assertRaises(ValueError):
            layout.layer_of("a", (7, 16, 2, 64), (2048, 128, 64, 1), 2, 0, (0, 81920), 10)

    def test_layers_of_a_group_are_alike(self):
        a = layout.Layer((0, 100), (0,), 4096, 4096)
        b = layout.Layer((0, 100), (0,), 8192, 8192)
        with self.assertRaises(NotImplementedError):
            layout.group_of(0, ["a", "b"], [a, b], 32, False)

    def test_offsets_count_through_the_storages(self):
        layers = {"a": layout.Layer((1 << 20, 8192), (64,), 4096, 4096), "b": layout.Layer((2 << 20, 16384), (128,), 4096, 4096)}
        group = layout.group_of(0, ["a", "b"], list(layers.values()), 32, False)
        self.assertEqual(layout.place([group], layers), [(1 << 20, 8192), (2 << 20, 16384)])
        self.assertEqual((group.base, group.strides), ([64, 8192 + 128], [4096]))
        geometry = _core.Geometry.from_bytes(group.geometry)
        self.assertEqual((geometry.layers, geometry.object_bytes, geometry.block_tokens), (2, 4096, 32))


class Configurations(unittest.TestCase):
    def test_sizes(self):
        self.assertEqual([size_of(v, "x") for v in (5, "5", "4KiB", "4GB", "1.5g", "2 TiB")], [5, 5, 4096, 4 << 30, 3 << 29, 2 << 40])
        for wrong in ("4 apples", True, None, 1.5):
            with self.assertRaises(ValueError):
                size_of(wrong, "x")

    def test_what_is_not_known_is_named(self):
        with self.assertRaisesRegex(ValueError, "disk_byte.*There are"):
            Config({"path": "/x", "disk_byte": 5})

    def test_exactly_one_cache_is_named(self):
        for given in ({}, {"path": "/x", "socket": "/y"}):
            with self.assertRaisesRegex(ValueError, "exactly one"):
                Config(given)

    def test_only_the_owner_sizes_a_cache(self):
        with self.assertRaisesRegex(ValueError, "disk_bytes"):
            Config({"socket": "/x", "disk_bytes": 5})

    def test_fingerprints_differ_by_content_and_not_by_order(self):
        self.assertEqual(fingerprint({"a": 1, "b": 2}), fingerprint({"b": 2, "a": 1}))
        self.assertNotEqual(fingerprint({"a": 1}), fingerprint({"a": 2}))

    def test_counts_are_taken_once(self):
        stats = Stats()
        stats.add("x", 2)
        stats.add("x")
        self.assertEqual((stats.take(), stats.take()), ({"x": 3}, {}))


class Stores(unittest.TestCase):
    def test_without_an_owner_there_is_no_cache_and_no_error(self):
        said = []
        with tempfile.TemporaryDirectory() as d:
            store = Store(Config({"socket": os.path.join(d, "s"), "retry_s": 60}), warn=said.append)
            self.assertIsNone(store.cache)
            store.close()
        self.assertEqual(len(said), 1)

    def test_beside_the_owner_the_cache_is_shared(self):
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(os.path.join(d, "kv"))
            owner = Store(Config({"path": os.path.join(d, "kv"), "disk_bytes": "64MiB", "serve": os.path.join(d, "s")}))
            other = Store(Config({"socket": owner.socket}))
            self.assertIs(other.cache, owner.cache)
            other.close()
            self.assertFalse(owner.cache.closed)
            owner.close()

    def test_a_second_owner_is_refused(self):
        with tempfile.TemporaryDirectory() as d:
            os.mkdir(os.path.join(d, "kv"))
            given = {"path": os.path.join(d, "kv"), "disk_bytes": "64MiB"}
            owner = Store(Config({**given, "serve": os.path.join(d, "s")}))
            try:
                with self.assertRaises(_core.Busy):
                    second = Config({**given, "serve": os.path.join(d, "t")})
                    second.options["lock_timeout_ns"] = 1
                    Store(second)
            finally:
                owner.close()


class Part:
    """A load of one group: `poll` gives a count or raises; until `end` its pages are the cache's."""

    def __init__(self, answer):
        self.answer, self.ended = answer, False

    def poll(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def end(self, patience):
        self.ended = True
        return False


class AsynchronousLoads(unittest.TestCase):
    """A worker without vLLM: the three classes of it that messages derive from are stood in for."""

    def worker(self):
        names = ["vllm"] + [f"vllm.{n}" for n in ("distributed", "distributed.kv_transfer", "distributed.kv_transfer.kv_connector",
                                                  "distributed.kv_transfer.kv_connector.v1", "distributed.kv_transfer.kv_connector.v1.base")]
        if no_vllm:
            stubs = {n: types.ModuleType(n) for n in names}
            for n in ("KVConnectorHandshakeMetadata", "KVConnectorMetadata", "KVConnectorWorkerMetadata"):
                setattr(stubs[names[-1]], n, type(n, (), {}))
            with unittest.mock.patch.dict(sys.modules, stubs):
                from tenuto.vllm import worker
        else:
            from tenuto.vllm import worker
        return worker, worker.Worker(None, None, 1.0, 0, False, lambda text: None)

    def test_pages_are_told_only_when_no_group_writes_to_them(self):
        module, worker = self.worker()
        parts = [Part(OSError(5, "one group's load has failed")), Part(None)]
        blocks = types.SimpleNamespace(request="r", keys=b"", pages={0: (0, [1, 2]), 1: (0, [3, 4])})
        worker.waiting["r"] = module.Load(blocks, {g: (part, 2, blocks.pages[g][1]) for g, part in enumerate(parts)}, {}, 0.0)
        _, received, failed = worker.finished()
        self.assertEqual((received, failed, worker.take_invalid()), ({"r"}, {"r"}, {1, 2, 3, 4}))
        self.assertTrue(all(part.ended for part in parts))


@unittest.skipIf(no_vllm, no_vllm)
class Interfaces(unittest.TestCase):
    """Every call of vLLM's base classes takes the same arguments here."""

    def same_calls(self, mine, base, but=()):
        for name, method in inspect.getmembers(base, inspect.isfunction):
            if name.startswith("_") or name in but or name not in mine.__dict__:
                continue
            self.assertEqual(list(inspect.signature(getattr(mine, name)).parameters), list(inspect.signature(method).parameters), name)
        self.assertFalse(inspect.isabstract(mine))

    def test_connector(self):
        from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, SupportsHMA
        from tenuto.vllm.connector import TenutoConnector
        self.same_calls(TenutoConnector, KVConnectorBase_V1)
        self.same_calls(TenutoConnector, SupportsHMA)

    def test_tier(self):
        from vllm.v1.kv_offload.tiering.base import SecondaryTierManager
        from tenuto.vllm.tier import TenutoTier
        self.same_calls(TenutoTier, SecondaryTierManager)

    def test_statistics_of_workers_add_up(self):
        from tenuto.vllm.connector import TenutoStats
        both = TenutoStats(data={"loads": 1, "load_seconds": 0.5, "load_bytes": 1000000}).aggregate(TenutoStats(data={"loads": 2}))
        self.assertEqual(both.data["loads"], 3)
        self.assertEqual(both.reduce()["Tenuto load MB/s"], 2.0)

    def test_a_step_of_all_workers(self):
        from tenuto.vllm.messages import Done
        both = Done({7: 1}, {1: 1}, {"a"}).aggregate(Done({7: 1}, {2: 1}, {"b"}))
        self.assertEqual((both.steps, both.saves, both.failed), ({7: 2}, {1: 1, 2: 1}, {"a", "b"}))


if __name__ == "__main__":
    unittest.main()
