# SPDX-License-Identifier: Apache-2.0
"""Both sides of vLLM's connector on a real cache, in an engine that computes next to nothing (vllm_engine.py)."""
import ctypes
import os
import random
import shutil
import sys
import tempfile
import types
import unittest

from tenuto import _core
from tenuto.vllm.store import Config, of_replica, warn_of_seed
from vllm_engine import SIZE, Engine, HeadsTensor, Request

REVISION = bytes(range(16))


def raising(error):
    def call(*arguments, **options):
        raise error
    return call


class EngineCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tenuto-vllm-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.addCleanup(shutil.rmtree, self.dir, True)

    def engine(self, store="kv", layerwise=True, blocks=256, layers=2, **options):
        path = os.path.join(self.dir, store)
        os.makedirs(path, exist_ok=True)
        more = {k: options.pop(k) for k in ("load_timeout_s", "tensor") if k in options}
        e = Engine(Config({"path": path, "serve": os.path.join(self.dir, f"{store}.sock"), **{"disk_bytes": "64MiB", **options}}), blocks, layerwise, layers, **more)
        self.addCleanup(e.close)
        return e


class Pages(EngineCase):
    def test_a_request_of_one_token_gives_its_pages_back_when_it_ends(self):
        """On a prefix that came from the cache: what is behind that is saved by the next step."""
        e = self.engine()
        e.run((1, 4))
        r = e.begin(1, 4)
        self.assertEqual(r.found, 4)
        r.num_tokens += 2 * 16
        r.block_hashes += [b"a" * 32, b"b" * 32]
        r.pages += [e.free.pop(), e.free.pop()]
        _, ended = e.step([r])
        self.assertEqual((ended, len(e.free)), ([r], 255))
        self.assertTrue(e.scheduler.busy())
        e.settle()
        self.assertEqual((e.counts()["save_stored_blocks"], e.said, e.wrong), (6, [], 0))

    def test_pages_that_are_given_away_first_are_not_saved_and_that_is_told_once(self):
        e = self.engine(blocks=8)
        e.run((1, 4))
        for turn in range(2):
            r = e.begin(1, 4)
            r.num_tokens += 16
            r.block_hashes.append(bytes([turn]) * 32)
            r.pages.append(e.free.pop())
            e.step([r])
            e.run((f"other{turn}", 6), settle=False)  # on the pages of the one before
        e.settle()
        self.assertEqual((e.counts()["save_dropped_blocks"], len(e.said), e.wrong), (2, 1, 0))
        self.assertIn("save_dropped_blocks", e.said[0])


class Canonical(EngineCase):
    """Blocks by head group: each load and save is one of each of four groups."""

    def test_what_was_saved_is_loaded_by_another_engine(self):
        for layerwise in (True, False):
            with self.subTest(layerwise=layerwise):
                store = f"kv{layerwise}"
                first = self.engine(store, layerwise=layerwise, tensor=HeadsTensor)
                self.assertEqual(first.run((1, 4), (2, 6)), [0, 0])
                self.assertEqual(first.counts()["save_stored_blocks"], 10)
                first.close()
                second = self.engine(store, layerwise=layerwise, tensor=HeadsTensor)
                self.assertEqual(second.run((1, 4), (2, 8)), [4, 6])
                counts = second.counts()
                self.assertEqual((counts["load_blocks"], second.said, second.wrong), (10, [], 0))

    def test_saves_of_several_operations_wait_for_their_turn(self):
        e = self.engine(max_ops=5, blocks=512, tensor=HeadsTensor)
        e.run(*((seed, 4) for seed in range(12)))
        self.assertEqual((e.counts()["save_stored_blocks"], e.run(*((seed, 4) for seed in range(12))), e.wrong), (48, [4] * 12, 0))

    def test_a_share_that_is_missing_ends_the_prefix(self):
        e = self.engine(tensor=HeadsTensor)
        e.run((1, 6))
        keys = e.scheduler.spaces[0][1].keys_from_hashes(b"".join(Request(0, 1, 6).block_hashes))
        self.assertEqual(e.scheduler.spaces[3][1].drop_blocks(keys[2 * _core.KEY_BYTES:3 * _core.KEY_BYTES]), 1)
        e.settle()
        self.assertEqual((e.run((1, 6)), e.wrong), ([2], 0))
        self.assertEqual((e.run((1, 6)), e.wrong), ([6], 0))


class Turns(EngineCase):
    """max_ops is less than what begins at once."""

    def too_much(self, e, name):
        """_core.NAME has no place. The worker's own _core, to be put right again."""
        module = sys.modules[type(e.worker).__module__]._core
        setattr(module, name, raising(_core.Again(11, "too much")))
        return module

    def test_saves_wait_for_their_turn(self):
        e = self.engine(max_ops=4, blocks=512)
        e.run(*[(seed, 4) for seed in range(100)])
        counts = e.counts()
        self.assertEqual((counts["save_stored_blocks"], counts.get("save_dropped_blocks", 0), e.said), (400, 0, []))

    def test_loads_wait_for_their_turn(self):
        for layerwise in (True, False):
            with self.subTest(layerwise=layerwise):
                e = self.engine(store=f"kv{layerwise}", max_ops=4, blocks=512, layerwise=layerwise)
                e.run(*[(seed, 4) for seed in range(100)])
                self.assertEqual(e.run(*[(seed, 4) for seed in range(100)]), [4] * 100)
                self.assertEqual((e.wrong, e.said), (0, []))

    def test_a_save_whose_pages_are_wanted_before_its_turn_is_none(self):
        e = self.engine(max_ops=1, blocks=41)
        module = self.too_much(e, "Save")
        e.run(*[(seed, 4) for seed in range(8)], settle=False)
        self.assertEqual((len(e.worker.queue), e.scheduler.busy()), (8, True))
        e.run(*[(seed, 4) for seed in range(8, 12)], settle=False)
        module.Save = _core.Save
        e.settle()
        counts = e.counts()
        self.assertEqual((counts["save_dropped_blocks"], counts["save_stored_blocks"], len(e.said)), (16, 32, 1))

    def test_an_asynchronous_load_that_has_no_turn_in_time_is_computed(self):
        e = self.engine(layerwise=False, load_timeout_s=0.05)
        e.run((1, 4))
        module = self.too_much(e, "Load")
        self.assertEqual(e.run((1, 4)), [0])
        module.Load = _core.Load
        self.assertEqual((e.run((1, 4)), e.wrong), ([4], 0))


class LongPrompts(EngineCase):
    """More blocks than an operation takes."""

    def test_a_prompt_of_a_million_tokens_is_saved_and_found_whole(self):
        blocks = 1000000 // SIZE
        e = self.engine(blocks=blocks + 2, layers=1, host_bytes="1GiB", max_blocks=blocks)  # most of it is in host memory
        self.assertEqual(e.run((1, blocks)), [0])
        self.assertEqual((e.run((1, blocks)), e.wrong, e.said), ([blocks], 0, []))

    def test_parts_of_a_few_blocks_with_others_beside_them(self):
        for layerwise in (True, False):
            with self.subTest(layerwise=layerwise):
                e = self.engine(f"kv{layerwise}", layerwise, 1024, max_op_blocks=8, max_ops=4)
                prompts = [(seed, 25) for seed in range(20)]
                self.assertEqual(e.run(*prompts), [0] * 20)
                self.assertEqual((e.run(*prompts), e.wrong, e.said), ([25] * 20, 0, []))


class Resets(EngineCase):
    """Weights change while the engine runs."""

    def reset(self, e, weights, revision=REVISION):
        e.weights = weights
        e.scheduler.reset(revision)

    def test_nothing_from_before_is_found_and_an_engine_with_the_first_weights_finds_theirs(self):
        e = self.engine()
        e.run((1, 4))
        self.reset(e, b"1")
        self.assertEqual((e.run((1, 4)), e.run((1, 4))), ([0], [4]))
        e.settle()
        self.reset(e, b"2", bytes(16)[::-1][:15] + b"2")
        self.assertEqual((e.run((1, 4)), e.run((1, 4)), e.wrong), ([0], [4], 0))
        e.settle()
        e.close()
        e = self.engine()
        self.assertEqual((e.run((1, 4)), e.wrong), ([4], 0))

    def test_many_of_them_leave_the_blocks_of_other_models_where_they_are(self):
        """The store knows 1,024 spaces, and gives up the one that was used the longest ago."""
        e = self.engine(layers=1)
        e.run((1, 4))
        other = self.other(e)
        for _ in range(1100):
            e.scheduler.reset()
            e.run((1, 1))
        self.assertEqual((other(), e.wrong, e.said), (1, 0, []))
        e.scheduler.reset(bytes(16))
        self.assertEqual(e.run((1, 4)), [4])

    def test_only_those_that_it_has_drawn_itself_are_given_up(self):
        e = self.engine()
        for revision in (b"1" * 16, None, None, b"2" * 16, None, b"1" * 16):
            e.scheduler.reset(revision)
            found = e.run((1, 4))
        self.assertEqual(found, [4])
        e.scheduler.reset(b"2" * 16)
        self.assertEqual((e.run((1, 4)), e.wrong), ([4], 0))
        blocks = _core.stats(e.store.cache)["disk_blocks"]
        self.assertEqual(blocks, 8)

    @staticmethod
    def other(e):
        """Another model's block in the same cache; whether it is there."""
        geometry = _core.Geometry.raw(1, 4096)
        space, memory = _core.Space(e.store.cache, "other", geometry), bytearray(4096)
        at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        pool = _core.Pool(_core.Memory(e.store.cache, ((at, 4096),), ()), geometry, 1, [0], [4096])
        keys = space.keys([1])
        assert _core.Save(space, pool, keys, [0]).finish().stored == 1
        space.close()

        def there():
            assert memory
            return _core.Space(e.store.cache, "other", geometry).match(keys).blocks
        return there

    def test_engines_that_are_given_one_revision_share_what_comes_after_it(self):
        e = self.engine()
        other = Engine(Config({"socket": e.store.socket}))
        self.addCleanup(other.close)
        e.run((1, 4))
        self.reset(e, b"1")
        self.reset(other, b"1")
        self.assertEqual(other.run((1, 4)), [0])
        other.settle()
        self.assertEqual((e.run((1, 4)), e.wrong, other.wrong), ([4], 0, 0))

    def test_pages_that_were_computed_before_are_not_saved_after_it(self):
        """A request that goes on over a reset, one that has ended, one that begins on pages of the first, and a new one."""
        e = self.engine()
        r = e.begin(1, 8)
        e.step([r], most=4 * 16)
        e.run((2, 4), settle=False)
        self.reset(e, b"1")
        shared = e.begin(1, 8, shares=r.pages[:2])
        while not e.step([r], most=16)[1]:
            pass
        e.step([shared])
        e.settle()
        e.run((3, 4))
        self.assertEqual((e.run((1, 8)), e.run((2, 4)), e.run((3, 4)), e.wrong), ([0], [0], [4], 0))

    def test_a_last_save_is_not_made_up_for_after_it(self):
        e = self.engine()
        e.run((1, 4))
        r = e.begin(1, 4)
        r.num_tokens += 16
        r.block_hashes.append(b"a" * 32)
        r.pages.append(e.free.pop())
        e.step([r])
        self.assertTrue(e.scheduler.busy())
        self.reset(e, b"1")
        self.assertFalse(e.scheduler.busy())

    def test_loads_and_saves_under_way_end(self):
        e = self.engine(layerwise=False)
        e.run((1, 4))
        r = e.begin(1, 4)
        module = sys.modules[type(e.worker).__module__]._core

        class Slow:
            """A load that has arrived, of which nobody was told."""
            def __new__(cls, *arguments, **options):
                self = object.__new__(cls)
                self.load = _core.Load(*arguments, **options)
                return self

            def __getattr__(self, name):
                return getattr(self.load, name)

            def poll(self):
                return None

        module.Load = Slow
        e.step([r])
        module.Load = _core.Load
        self.assertTrue(r.waits)
        self.reset(e, b"1")
        e.step([r])
        self.assertEqual((r.waits, r.found, r.num_computed_tokens, e.wrong), (False, 0, 0, 0))
        e.step([r])
        e.settle()
        self.assertEqual((e.run((1, 4)), e.wrong), ([4], 0))

    def test_a_reset_that_fails_keeps_the_cache_off(self):
        e = self.engine()
        e.run((1, 4))
        real = e.model.space
        e.model.space = raising(_core.Error(28, "no space"))
        self.reset(e, b"1")
        self.assertEqual((e.run((1, 4)), e.run((1, 4))), ([0], [0]))
        e.model.space = real
        self.reset(e, b"1")
        self.assertEqual((e.run((1, 4)), e.run((1, 4)), e.wrong), ([0], [4], 0))


class Parents(EngineCase):
    def test_a_parent_that_has_gone_is_saved_again_once(self):
        e = self.engine()
        r = e.begin(1, 8)
        e.step([r], most=4 * 16)
        e.settle()
        space = e.scheduler.spaces[0][1]
        keys = e.scheduler.requests[r.request_id].keys
        self.assertEqual(space.match(keys).blocks, 4)
        space.drop_blocks(keys[_core.KEY_BYTES:4 * _core.KEY_BYTES])
        self.assertEqual(space.match(keys).blocks, 1)
        step, _ = e.step([r], most=16)
        self.assertEqual([len(b.keys) // _core.KEY_BYTES for b in step.late + step.early], [3, 1])
        e.settle()
        self.assertEqual(space.match(keys).blocks, 5)
        space.drop_blocks(keys[:4 * _core.KEY_BYTES])
        step, _ = e.step([r], most=16)
        self.assertEqual([len(b.keys) // _core.KEY_BYTES for b in step.late + step.early], [1])


class Storms(EngineCase):
    """Whatever comes in whatever order: no byte is restored that is of other weights, or of another block."""

    def flaky(self, draw, real):
        def call(*arguments, **options):
            if draw.random() < 0.1:
                raise draw.choice([_core.Again(11, "too much"), OSError(5, "broken")])
            return real(*arguments, **options)
        return call

    def begin(self, e, draw, running):
        """A request; maybe on pages of one that runs, as vLLM's own prefix cache gives them."""
        seed, n = draw.randrange(6), draw.randrange(1, 6)
        shares, other = [], draw.choice(running) if running and draw.random() < 0.5 else None
        if other is not None and other.looked_at:
            seed, shares = other.seed, other.pages[:min(other.num_computed_tokens // SIZE, n - 1)]
        return e.begin(seed, n, shares=shares) if len(e.free) > n else None

    def storm(self, draw, store):
        e = self.engine(store, draw.random() < 0.5, draw.choice([24, 40, 80]), max_ops=draw.choice([2, 4, 64]), max_op_blocks=draw.choice([2, 8, 8192]))
        module = sys.modules[type(e.worker).__module__]._core
        module.Save, module.Load = self.flaky(draw, _core.Save), self.flaky(draw, _core.Load)
        running, found = [], 0
        for _ in range(300):
            if draw.random() < 0.1:
                weights = draw.randrange(16)  # each with a revision, and sometimes back to one
                e.weights = bytes([weights])
                e.scheduler.reset(bytes([weights]) * 16)
            if draw.random() < 0.5 and len(running) < 6:
                running += filter(None, [self.begin(e, draw, running)])
            ended = e.step(running, most=draw.choice([SIZE, 3 * SIZE, 1 << 30]))[1]
            found += sum(r.found for r in ended)
            running = [r for r in running if r not in ended]
        self.assertEqual(e.wrong, 0)
        return found

    def test_nothing_wrong_is_restored(self):
        seed, found = int(os.environ.get("TN_SEED", "1")), 0
        for i in range(100 if os.environ.get("TN_SOAK") else 4):
            with self.subTest(f"TN_SEED={seed + i}"):
                found += self.storm(random.Random(seed + i), f"kv{i}")
        self.assertGreater(found, 0)


class Adapters(EngineCase):
    def lora(self, name="sql", number=1, content=b"weights", changed_ns=1):
        lora = types.SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=os.path.join(self.dir, name))
        os.makedirs(lora.lora_path, exist_ok=True)
        with open(self.file(lora), "wb") as f:
            f.write(content)
        os.utime(self.file(lora), ns=(changed_ns, changed_ns))
        return lora

    @staticmethod
    def file(lora):
        return os.path.join(lora.lora_path, "adapter_model.safetensors")

    def test_one_that_was_trained_again_finds_nothing_of_the_one_before(self):
        e = self.engine()
        first = self.lora()
        self.assertEqual((e.run((1, 4, first)), e.run((1, 4, first)), e.run((1, 4))), ([0], [4], [0]))
        e.settle()
        e.close()
        for content, blocks in ((b"Weights", 0), (b"weights", 4)):  # sizes and times of all are the same
            e = self.engine()
            again = self.lora(content=content)
            self.assertEqual((e.run((1, 4, again)), e.run((1, 4, again)), e.said, e.wrong), ([blocks], [4], [], 0))
            e.settle()
            e.close()

    def test_one_that_was_copied_finds_what_it_has_stored(self):
        e = self.engine()
        e.run((1, 4, self.lora()))
        e.settle()
        e.close()
        copy = self.lora(changed_ns=2)
        e = self.engine()
        self.assertEqual((e.run((1, 4, copy)), e.said, e.wrong), ([4], [], 0))

    def test_one_that_is_written_while_the_engine_runs_is_computed_without_the_cache(self):
        e = self.engine()
        lora = self.lora()
        e.run((1, 4, lora))
        before = os.stat(self.file(lora)).st_ctime_ns
        while os.stat(self.file(lora)).st_ctime_ns == before:  # size and time that it tells are the same
            self.lora(content=b"Weights")
        for _ in range(2):
            self.assertEqual(e.run((1, 4, lora)), [0])
        self.assertEqual(len(e.said), 1)
        self.assertIn("written anew", e.said[0])
        other = self.lora(number=2, content=b"Weights")
        self.assertEqual((e.run((1, 4, other)), e.run((1, 4, other))), ([0], [4]))

    def test_one_whose_files_are_elsewhere_needs_a_revision(self):
        lora = types.SimpleNamespace(lora_name="hub", lora_int_id=1, lora_path="org/adapter")
        e = self.engine()
        self.assertEqual((e.run((1, 4, lora)), e.run((1, 4, lora)), len(e.said)), ([0], [0], 1))
        e.close()
        e = self.engine("other")
        e.scheduler.adapters.revised = True
        self.assertEqual((e.run((1, 4, lora)), e.run((1, 4, lora)), e.said), ([0], [4], []))


class Configurations(unittest.TestCase):
    def test_the_first_of_several_engines_owns_the_cache_and_the_others_attach(self):
        config = Config({"path": ["/a", "/b"], "disk_bytes": "1GiB", "serve": "/s", "instance": "x", "tenant": "t", "load": "async"}, ("load",))
        for index, rank, owns in ((0, None, True), (0, 0, True), (1, None, False), (5, 0, True), (5, 1, False)):
            c = of_replica(config, types.SimpleNamespace(data_parallel_index=index, data_parallel_rank_local=rank))
            self.assertEqual((c.paths, c.store), (["/a", "/b"], None) if owns else ([], "/a"), (index, rank))
            self.assertEqual((c.instance, c.tenant, c.given["load"]), ("x", "t", "async"))
        joined = Config({"socket": "/s"})
        self.assertIs(of_replica(joined, types.SimpleNamespace(data_parallel_index=1, data_parallel_rank_local=1)), joined)

    def test_hashes_with_a_seed_of_each_process_are_told_once(self):
        seed, said = os.environ.pop("PYTHONHASHSEED", None), []
        try:
            warn_of_seed("sha256", said.append)
            self.assertEqual(said, [])
            warn_of_seed("xxhash_cbor", said.append)
            self.assertIn("PYTHONHASHSEED", said.pop())
            os.environ["PYTHONHASHSEED"] = "0"
            warn_of_seed("xxhash", said.append)
            self.assertEqual(said, [])
        finally:
            os.environ.pop("PYTHONHASHSEED", None)
            if seed is not None:
                os.environ["PYTHONHASHSEED"] = seed


if __name__ == "__main__":
    unittest.main()
