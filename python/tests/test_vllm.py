# SPDX-License-Identifier: Apache-2.0
"""The adapters for vLLM without an engine: where pages lie, what a configuration must say, and - where vLLM is installed - whether every call that it makes is there.

The engine itself is run by tests/engines/run.py.
"""
import collections
import contextlib
import enum
import errno
import importlib
import inspect
import logging
import os
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

from tenuto import _core, _streams
from tenuto.vllm import layout
from tenuto.vllm.store import Config, Stats, Store, fingerprint
from vllm_calls import GONE, Owner, Part, SchedulerCase, WorkerCase, adapter, no_vllm



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


class HeadGroups(unittest.TestCase):
    def test_heads_before_tokens_in_a_page(self):
        self.assertEqual(layout.order_of("a", (10, 4, 32, 128), (16384, 4096, 128, 1), 10, 4, "LBHNC"), _core.HND)
        self.assertEqual(layout.order_of("a", (10, 4, 32, 128), (16384, 128, 512, 1), 10, 4, "LBNHC"), _core.NHD)

    def test_the_order_of_one_head_is_that_of_workers_with_more(self):
        for name, order in (("LBHNC", _core.HND), ("LBNHC", _core.NHD)):
            self.assertEqual(layout.order_of("a", (10, 1, 32, 128), (4096, 4096, 128, 1), 10, 1, name), order)

    def test_pages_whose_heads_cannot_be_told_are_refused_with_what_to_do(self):
        for shape in ((20, 4, 16, 128), (2, 10, 16, 4, 64), (10, 2, 32, 256)):
            with self.assertRaisesRegex(NotImplementedError, "10 blocks, 4 heads, tokens, bytes.*shares: rank"):
                layout.order_of("a", shape, (1,) * len(shape), 10, 4, "LBHNC")

    def test_a_group_of_layers_has_the_heads_of_a_worker(self):
        layer = layout.Layer((0, 1 << 20), (0,), 16384 * 4, 16384 * 4, _core.HND)
        geometry = _core.Geometry.from_bytes(layout.group_of(0, ["a"], [layer], 32, False, 4).geometry)
        self.assertEqual((geometry.planes, geometry.page_order), (((_core.PLANE_K, 4, 512, 8),), _core.HND))
        groups = _core.HeadGroups(geometry, 2, 1, 8)
        self.assertEqual((groups.count, groups.first, groups.geometry.object_bytes), (4, 4, 16384))
        other = layout.Layer((0, 1 << 20), (0,), 16384 * 4, 16384 * 4, _core.NHD)
        with self.assertRaises(NotImplementedError):
            layout.group_of(0, ["a", "b"], [layer, other], 32, False, 4)


class Configurations(unittest.TestCase):
    def test_all_options_of_a_cache_are_read_so(self):
        read = Config({"path": "/x", "disk_bytes": "64GB", "max_ops": "128", "read_only": "false", "verify": "true", "durability_ms": "never"}).options
        self.assertEqual(read, {"disk_bytes": 64 * 10**9, "max_ops": 128, "read_only": False, "verify": True, "durability_ms": 2**32 - 1})
        for name, value in (("disk_bytes", "-1GiB"), ("max_op_blocks", -8), ("read_only", "no"), ("retry_s", -1), ("offload_lag_ms", "soon"), ("tenant", None),
                            ("policy", True)):
            with self.subTest(name=name), self.assertRaisesRegex(ValueError, name):
                Config({"path": "/x", name: value})

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


class AnOwnerThatGoes(WorkerCase):
    """In the middle of a step: its first call of the cache finds that out, and what else is in the step has failed, too."""

    def test_two_saves_begin(self):
        for early in (False, True):
            with self.subTest(early=early):
                module, w = self.worker()
                module._core.Save = self.of(GONE)
                w.bind(self.step(**{"early" if early else "late": [self.blocks(1), self.blocks(2)]}))
                self.assertEqual((w.take_done().saves, w.saves, w.store.errors), ({1: 1, 2: 1}, {}, [GONE]))
                self.assertEqual(w.stats.take(), {"save_dropped_blocks": 2})

    def test_a_save_that_had_to_wait_is_told_once(self):
        """Twice, the scheduler would give its pages away while another worker reads them."""
        for when, begin in (("it begins", self.of(GONE)), ("it is complete", lambda *arguments, **options: Part(GONE))):
            with self.subTest(when=when):
                module, w = self.worker()
                module._core.Save = self.of(_core.Again(11, "too much is under way"))
                w.bind(self.step(late=[self.blocks(7), self.blocks(8)]))
                self.assertEqual((list(w.queue), w.finished(), list(w.queue), w.take_done().saves), ([7, 8], (set(), set()), [7, 8], {}))
                module._core.Save = begin
                w.finished()
                self.assertEqual((w.take_done().saves, w.queue, w.saves, w.store.errors), ({7: 1, 8: 1}, {}, {}, [GONE]))

    def test_two_saves_are_complete(self):
        module, w = self.worker()
        module._core.Save = lambda *arguments, **options: Part(GONE)
        w.bind(self.step(early=[self.blocks(1), self.blocks(2)]))
        w.end_step()
        self.assertEqual((w.take_done().saves, w.saves, w.store.errors), ({1: 1, 2: 1}, {}, [GONE]))

    def test_two_loads_begin(self):
        for layerwise in (False, True):
            with self.subTest(layerwise=layerwise):
                module, w = self.worker(layerwise)
                module._core.Load = self.of(GONE)
                w.bind(self.step(loads=[self.blocks(1), self.blocks(2)]))
                w.start_loads()
                w.wait_layer("a")
                w.end_step()
                received, failed = w.finished()
                both = {"r1", "r2"}
                self.assertEqual((received, failed), (set(), set()) if layerwise else (both, both))
                self.assertEqual((w.take_done().failed, w.take_invalid(), w.store.errors), (both, {1, 2}, [GONE]))

    def test_a_load_before_has_failed_with_it(self):
        module, w = self.worker(layerwise=True)
        parts = [Part(1), GONE]

        def begin(*arguments, **options):
            part = parts.pop(0)
            if part is GONE:
                raise part
            return part

        module._core.Load, first = begin, parts[0]
        w.bind(self.step(loads=[self.blocks(1), self.blocks(2), self.blocks(3)]))
        w.start_loads()
        self.assertTrue(first.ended)
        self.assertEqual((w.take_invalid(), w.store.errors), ({1, 2, 3}, [GONE]))

    def test_what_of_a_load_has_begun_ends_before_the_cache_is_given_up(self):
        module, w = self.worker()
        w.spaces[1] = w.pools[1] = None
        parts, ended = [Part(1)], []

        def begin(*arguments, **options):
            if not parts:
                raise GONE
            return parts.pop()

        module._core.Load, first = begin, parts[0]
        w.store.lost = lambda error: ended.append(first.ended)
        blocks = self.blocks(1)
        blocks.pages[1] = (0, [7])
        w.bind(self.step(loads=[blocks]))
        w.start_loads()
        self.assertEqual((ended, w.take_invalid()), ([True], {1, 7}))

    def test_loads_that_could_not_be_ended_are_told_once_and_do_not_cost_the_next_cache(self):
        for end in (lambda w: w.finished()[0], lambda w: w.shutdown()):
            module, w = self.worker()
            module._core.Load = lambda *arguments, **options: Part(GONE, _core.Closed(9, "being closed"))
            w.bind(self.step(loads=[self.blocks(1)]))
            w.start_loads()
            w.gone(GONE)
            w.gone(GONE)
            self.assertEqual((w.take_invalid(), w.take_done().failed), ({1}, {"r1"}))
            w.store.errors.clear()
            w.store.back()
            w.store.close = lambda: None
            self.assertIn(end(w), ({"r1"}, None))
            self.assertEqual((w.store.errors, w.take_invalid()), ([], set()))

    def test_a_load_that_was_ended_for_another_is_not_waited_for_again(self):
        """The first load has the session memory that the second needs, and cannot be ended."""
        module, w = self.worker(layerwise=True)
        answers = [Part(GONE, _core.Closed(9, "being closed")), _core.Again(11, "no memory"), _core.Again(11, "no memory")]

        def begin(*arguments, **options):
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

        module._core.Load = begin
        w.bind(self.step(loads=[self.blocks(1), self.blocks(2)]))
        w.start_loads()
        w.end_step()
        self.assertEqual(w.take_invalid(), {1, 2})


class PagesOfSaves(WorkerCase):
    def test_a_device_that_does_not_answer_is_waited_for_and_told(self):
        module, w = self.worker()
        clock = [0.0]

        class Slow(Part):
            def end(self, patience):
                clock[0] += 4
                if clock[0] < 30:
                    raise _core.Timeout(110, "under way")
                self.ended = True

        module._core.Save = lambda *arguments, **options: Slow()
        w.bind(self.step(late=[self.blocks(1)]))
        with unittest.mock.patch.object(module, "now", lambda: clock[0]):
            w.bind(self.step(wait_for=[1]))
        self.assertEqual((w.take_done().saves, len(self.said)), ({1: 1}, 2))


class PartsOfSaves(WorkerCase):
    def test_those_that_found_no_place_are_dropped_blocks_and_told_once(self):
        module, w = self.worker()
        results = [(4, 0, 0, 0, 8, errno.EAGAIN), (4, 0, 0, 0, 8, errno.EAGAIN), (0, 0, 0, 0, 3, errno.EIO)]

        def begin(*arguments, **options):
            part = Part()
            part.result = _core.SaveResult(results.pop(0))
            return part

        module._core.Save = begin
        w.bind(self.step(late=[self.blocks(1), self.blocks(2), self.blocks(3)]))
        w.finished()
        self.assertEqual({n: c for n, c in w.stats.take().items() if c}, {"save_stored_blocks": 8, "save_dropped_blocks": 16, "save_failed_blocks": 3})
        self.assertEqual(len(self.said), 1)
        self.assertIn("too much was under way", self.said[0])


class OnAGpu(WorkerCase):
    """Pages that the current stream of a GPU still uses when the host is asked for something. test_vllm_device.py has a stream that is late."""

    class Streams:
        """Of a GPU whose streams know words, or do not."""

        def __init__(self, order, words):
            self.order, self.words = order, words

        def settle(self):
            self.order.append("the host waits")

        def wait(self, load, layer):
            self.order.append(("the stream waits", layer) if self.words else "no wait")
            return self.words

        def done(self, pool):
            return ("event", 7) if self.words else None

        def close(self):
            self.order.append("closed")

    def on_gpu(self, words):
        module, w = self.worker(layerwise=True)
        self.order = order = []
        w.streams = self.Streams(order, words)

        class Told(Part):
            def layer(self, *layer):
                order.append(("layer", *layer))

            def commit(self):
                order.append("commit")

            def wait(self, layer=None, timeout=None):
                order.append(("wait", layer))
                return self.poll()

        module._core.Load = lambda *arguments, **options: order.append("load") or Told(answer=1)
        module._core.Save = lambda *arguments, **options: order.append("save") or Told()
        return w

    def test_a_load_begins_once_the_stream_is_there_and_the_stream_waits_for_its_layers(self):
        for words, waits in ((True, [("the stream waits", 0)]), (False, ["no wait", ("wait", 0)])):
            with self.subTest(words=words):
                w = self.on_gpu(words)
                w.bind(self.step(loads=[self.blocks(1)], tokens=5))
                w.start_loads()
                self.assertEqual(self.order, ["the host waits", "load"])
                w.wait_layer("a")
                self.assertEqual(self.order[2:], waits)
                w.end_step()  # where the host looks at what became of it
                self.assertEqual(self.order[2:], [*waits, ("wait", None)])

    def test_layers_are_given_with_the_event_that_the_stream_raises(self):
        w = self.on_gpu(True)
        w.bind(self.step(early=[self.blocks(1)]))
        w.save_layer("a")
        self.assertEqual(self.order, ["save", ("layer", 0, "event", 7)])
        w.end_step()
        self.assertEqual(self.order[2:], ["commit"])
        del self.order[:]
        w.bind(self.step(late=[self.blocks(2)]))
        self.assertEqual(self.order, ["save", ("layer", 0, "event", 7), "commit"])

    def test_layers_of_several_microbatches_are_given_at_the_end_of_the_step(self):
        w = self.on_gpu(True)
        w.model.microbatched = True
        w.bind(self.step(early=[self.blocks(1)]))
        w.save_layer("a")
        self.assertEqual(self.order, ["save"])
        w.end_step()
        self.assertEqual(self.order, ["save", ("layer", 0, "event", 7), "commit"])

    def test_without_words_layers_are_given_once_the_host_has_waited(self):
        w = self.on_gpu(False)
        w.bind(self.step(early=[self.blocks(1)]))
        w.save_layer("a")
        self.assertEqual(self.order, ["save"])
        w.end_step()
        self.assertEqual(self.order, ["save", "the host waits", ("layer", 0), "commit"])

    def test_streams_are_waited_for_before_a_cache_is_given_up(self):
        w = self.on_gpu(True)
        w.store.lost = lambda error: self.order.append("lost")
        w.gone(GONE)
        self.assertEqual((self.order, w.streams), (["closed", "lost"], None))

    def test_a_stream_is_asked_while_its_device_is_the_current_one(self):
        """0 is the default stream of whichever device is."""
        at = ["cuda:0"]

        @contextlib.contextmanager
        def device(other):
            before, at[0] = at[0], other
            yield
            at[0] = before

        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(device=device, current_stream=lambda of: types.SimpleNamespace(cuda_stream=0, synchronize=lambda: None)))
        load = types.SimpleNamespace(stream_wait=lambda stream, layer: asked.append((stream, layer, at[0])))
        asked, streams = [], _streams.Streams(None, "cuda:1")
        with unittest.mock.patch.dict(sys.modules, torch=torch):
            self.assertTrue(streams.wait(load, 5))
        self.assertEqual((asked, at), ([(0, 5, "cuda:1")], ["cuda:0"]))

    def test_its_memory_is_registered_with_the_device_and_the_driver(self):
        module = adapter("worker")
        made, device = [], types.SimpleNamespace(type="cuda", index=1)
        module.Streams = lambda cache, of: made.append(of)
        module._core.Memory = lambda *arguments: made.append(arguments[1:]) or object()
        module._core.Pool = lambda *arguments: made.append(arguments[2:]) or object()
        group = types.SimpleNamespace(index=0, layers=("a", "b"), block_tokens=16, latent=False, heads=0)
        model = types.SimpleNamespace(groups=[group], blocks=8, share=0, means="", space=lambda *arguments: None)
        w = module.Worker(model, lambda socket: Owner(), 1.0, 4096, self.fail, feed=True)

        def tensor(address, on=device):
            return types.SimpleNamespace(device=on, shape=(8, 16, 64), stride=lambda: (1024, 64, 1), element_size=lambda: 1, data_ptr=lambda: address,
                                         untyped_storage=lambda: types.SimpleNamespace(data_ptr=lambda: address, nbytes=lambda: 8192))

        with self.assertRaisesRegex(NotImplementedError, "layer b lies on .* all on one CUDA device"):
            w.register({"a": tensor(1 << 20), "b": tensor(1 << 21, types.SimpleNamespace(type="cpu"))})
        w.register({"a": tensor(1 << 20), "b": tensor(1 << 21)})
        self.assertTrue(w.ready(None))
        self.assertEqual(made, [([(1 << 20, 8192, 1), (1 << 21, 8192, 1)], (), 4096, "cuda"), device, (8, [0, 8192], [1024])])
        self.assertFalse(w.feed.wanted)  # times of launches are none of compute


class AsynchronousLoads(WorkerCase):
    def test_pages_are_told_only_when_no_group_writes_to_them(self):
        module, worker = self.worker()
        parts = [Part(OSError(5, "one group's load has failed")), Part(None)]
        blocks = types.SimpleNamespace(request="r", keys=b"", pages={0: (0, [1, 2]), 1: (0, [3, 4])})
        worker.waiting["r"] = module.Load(blocks, {g: (part, 2, blocks.pages[g][1]) for g, part in enumerate(parts)}, {}, 0.0)
        received, failed = worker.finished()
        self.assertEqual((received, failed, worker.take_invalid()), ({"r"}, {"r"}, {1, 2, 3, 4}))
        self.assertTrue(all(part.ended for part in parts))


class Schedulers(SchedulerCase):
    """The scheduler's side with an owner that goes."""

    def test_two_requests_of_a_step(self):
        module, s = self.scheduler(requests=2)

        def match_all(spaces, keys, pin=False):
            if not spaces:
                return _core.match_all(spaces, keys, pin)  # which has a word to say to that
            raise GONE

        module._core.match_all = match_all
        self.assertTrue(s.ready())
        for t in s.requests.values():
            s._keys(t)  # as when they were looked up
        step = s.step(types.SimpleNamespace(
            kv_connector_block_state=types.SimpleNamespace(get_block_ids=lambda request: ([1, 2, 3],)), scheduled_new_reqs=[], scheduled_spec_decode_tokens={},
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[], resumed_req_ids=[], new_block_ids=[]), num_scheduled_tokens=dict.fromkeys(s.requests, 8)))
        self.assertEqual((step.early, step.late, s.store.errors), ([], [], [GONE]))

    def test_events_of_an_owner_that_has_gone(self):
        _, s = self.scheduler(events=WorkerCase.of(GONE))
        self.assertFalse(s.ready())
        self.assertEqual((s.store.errors, s.generation, s.spaces), ([GONE], 0, []))

    def test_an_owner_without_memory_for_events_is_used_without_them(self):
        _, s = self.scheduler(events=WorkerCase.of(MemoryError()))
        self.assertTrue(s.ready())
        self.assertEqual(list(s.events.take()), [])


class Tiers(unittest.TestCase):
    """The tier on a cache of its own. Whatever a call of the library raises, each job and each look-up is answered, and the thread lives on."""

    ROWS, ROW = 8, 8192

    def tier(self, events=False, **options):
        self.module = adapter("tier")
        part = types.SimpleNamespace
        directory = tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR", "/var/tmp"), ignore_cleanup_errors=True)
        self.addCleanup(directory.cleanup)
        config = part(engine_id=directory.name, parallel=part(is_parallelism_agnostic=True, data_parallel_index=0, data_parallel_rank_local=None), replicated_layout=False, canonical_layout=False, kv_cache_layout="NHD",
                      groups=[part(tokens_per_block=4, layer_names=("a",))], cache=part(tokens_per_hash=4, blocks_per_chunk=1),
                      model=part(name="org/model", dtype="bfloat16"))
        spec = part(config=config, kv_events_config=part(enable_kv_cache_events=events))
        self.memory = bytearray(range(256)) * (self.ROWS * self.ROW // 256)
        t = self.module.TenutoTier(spec, memoryview(self.memory).cast("B", (self.ROWS, self.ROW)), "TenutoTier",
                                   **({} if {"path", "socket"} & set(options) else {"path": directory.name, "disk_bytes": "64MiB"}), enable_kv_events=events, **options)
        self.number = 0

        def end():
            t._jobs.clear()  # a test that has failed leaves some
            t.shutdown()

        self.addCleanup(end)
        return t

    @staticmethod
    def keys(n, seed=0):
        return [bytes([seed, i]) * 16 + bytes(4) for i in range(n)]

    def until(self, get):
        end = time.monotonic() + 60
        while not (got := get()):
            self.assertLess(time.monotonic(), end, "no answer")
            time.sleep(0.002)
        return got

    def job(self, t, store, keys):
        """What came out of a job."""
        self.number += 1
        (t.submit_store if store else t.submit_load)(types.SimpleNamespace(job_id=self.number, keys=keys, chunk_ids=range(len(keys))))
        result, = self.until(t.get_finished_jobs)
        self.assertEqual(result.job_id, self.number)
        return result.success

    def look_up(self, t, key, request):
        """HIT or MISS."""
        def asked():
            result = t.lookup(key, types.SimpleNamespace(req_id=request)).name
            t.on_schedule_end(None)
            return result if result != "RETRY" else None
        return self.until(asked)

    def works(self, t, seed):
        keys = self.keys(3, seed)
        self.assertTrue(self.job(t, True, keys))
        self.memory[:3 * self.ROW] = bytes(3 * self.ROW)
        self.assertTrue(self.job(t, False, keys))
        self.assertEqual(self.memory[:512], bytes(range(256)) * 2)
        self.memory[:] = bytes(range(256)) * (len(self.memory) // 256)

    def failing(self, name, error, times=1):
        """The next calls of _core.NAME raise."""
        real, left = getattr(_core, name), [times]

        def call(*arguments, **options):
            if left[0]:
                left[0] -= 1
                raise error
            return real(*arguments, **options)

        call_in_place = unittest.mock.patch.object(self.module._core, name, call)
        call_in_place.start()
        self.addCleanup(call_in_place.stop)

    def test_what_is_stored_comes_back(self):
        t = self.tier()
        self.works(t, 1)
        self.assertEqual([self.look_up(t, k, "r") for k in (self.keys(1, 1) + self.keys(1, 2))], ["HIT", "MISS"])

    def test_a_job_of_more_chunks_than_an_operation_takes(self):
        t = self.tier(max_op_blocks=2, max_ops=2)
        keys = self.keys(self.ROWS, 1)
        self.assertTrue(self.job(t, True, keys))
        self.memory[:] = bytes(len(self.memory))
        self.assertTrue(self.job(t, False, keys))
        self.assertEqual(self.memory, bytes(range(256)) * (len(self.memory) // 256))

    def test_after_vllm_has_reset_its_caches_nothing_from_before_is_found(self):
        """It tells a tier of that by asking for its transfers to end."""
        t = self.tier()
        self.works(t, 1)
        keys = self.keys(3, 1)
        self.assertEqual(self.look_up(t, keys[0], "r"), "HIT")
        t.drain_jobs()
        self.assertEqual([self.look_up(t, k, "r") for k in keys], ["MISS"] * 3)
        self.assertFalse(self.job(t, False, keys))
        self.works(t, 1)
        self.assertEqual(self.look_up(t, keys[0], "s"), "HIT")
        t.reset(bytes(16))  # as after a restart with the first weights
        self.assertEqual(self.look_up(t, keys[0], "s"), "HIT")

    def test_a_reset_drops_what_was_stored_under_a_revision_that_it_has_drawn(self):
        t = self.tier()
        for reset, blocks in ((t.drain_jobs, 3), (t.drain_jobs, 6), (t.drain_jobs, 6), (lambda: t.reset(b"1" * 16), 6), (t.drain_jobs, 6), (t.drain_jobs, 9)):
            self.works(t, 1)
            self.until(lambda: _core.stats(t._store.cache)["disk_blocks"] == blocks)
            reset()

    def test_the_region_cannot_be_registered(self):
        for name, events in (("Memory", False), ("events", True)):
            with self.subTest(name), self.assertLogs(level="WARNING"):
                t = self.tier(events)
                self.failing(name, MemoryError())
                self.assertFalse(self.job(t, True, self.keys(2)))
                self.assertEqual(self.look_up(t, self.keys(1)[0], "r"), "MISS")
                self.assertTrue(t._thread.is_alive())

    def test_a_transfer_cannot_begin(self):
        t = self.tier()
        for error in (MemoryError(), ValueError("a page"), BufferError("moved")):
            with self.subTest(error), self.assertLogs(level="WARNING") as log:
                self.failing("Save", error)
                self.assertFalse(self.job(t, True, self.keys(2)))
                self.assertIn(repr(error), "".join(log.output))
        self.works(t, 1)
        for error in (MemoryError(), ValueError("a page")):
            with self.subTest(error), self.assertLogs(level="WARNING"):
                self.failing("Load", error)
                self.assertFalse(self.job(t, False, self.keys(2, 1)))
        self.works(t, 2)

    def test_stores_wait_for_their_turn_and_what_has_none_is_told_once(self):
        t = self.tier()
        self.failing("Save", _core.Again(11, "too much"), times=3)
        self.works(t, 1)
        with unittest.mock.patch.object(self.module, "STORE_PATIENCE_S", 0.0), self.assertLogs(level="WARNING") as log:
            for seed in (2, 3):
                self.failing("Save", _core.Again(11, "too much"))
                self.assertFalse(self.job(t, True, self.keys(2, seed)))
        self.assertEqual(len(log.output), 1)
        self.assertEqual(t._stats.take()["refused_chunks"], 4)

    def test_a_transfer_cannot_be_asked_about(self):
        t, module = self.tier(), self.module
        self.works(t, 1)
        for store in (True, False):
            broken = []

            class Broken(Part):
                def __init__(self, *arguments, **options):
                    super().__init__()
                    broken.append(self)

                def poll(self):
                    return 2

                def end(self, patience):
                    if patience == 0.0:
                        raise MemoryError
                    self.ended = True

            with self.subTest(store=store), self.assertLogs(level="WARNING") as log:
                with unittest.mock.patch.object(module._core, "Save" if store else "Load", Broken):
                    self.assertFalse(self.job(t, store, self.keys(2, 3)))
                self.assertIn("MemoryError", "".join(log.output))
                self.assertTrue(broken[0].ended)
        self.works(t, 4)

    def test_a_look_up_fails(self):
        t = self.tier()
        self.works(t, 1)
        for number, error in enumerate((MemoryError(), ValueError("no spaces"))):
            with self.subTest(error), self.assertLogs(level="WARNING"):
                self.failing("match_all", error, times=2)  # at once, and then in the thread
                self.assertEqual(self.look_up(t, self.keys(1, 1)[0], f"r{number}"), "MISS")
        self.assertEqual(self.look_up(t, self.keys(1, 1)[0], "r"), "HIT")
        self.works(t, 2)


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

    def test_several_stages_are_refused_by_name(self):
        from tenuto.vllm.connector import Model
        with self.assertRaisesRegex(NotImplementedError, "pipeline_parallel_size is 2"):
            Model(types.SimpleNamespace(parallel_config=types.SimpleNamespace(pipeline_parallel_size=2)), None, None)

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
