# SPDX-License-Identifier: Apache-2.0
"""What vLLM's connector tells Tenuto's scheduler of the engine's steps, and what it makes of what the cache has learned from that; on a real cache, in an engine that computes
next to nothing (vllm_engine.py)."""
import os
import shutil
import sys
import tempfile
import time
import unittest
from unittest import mock

from tenuto import _core, slack
from tenuto.vllm.store import Config
from vllm_engine import SIZE, Engine

LAYERS = 4
PHASE = _core.phase


def table(ns):
    """A slack table in which each layer takes so long per token."""
    return f"tenuto-slack 2\nmodel -\ngpu -\nengine -\nwhen -\nhow profiled\nlayers {LAYERS}\ncells shared\ninputs 1 65536\nprefixes 0\ncell 1 0 * {ns}\ncell 65536 0 * {65536 * ns}\n"


MIX = """tenuto-mix 1
source a test
measured_s 0
read_bps 100000000
write_bps 100000000
mixed_bps 100000000
read_latency_ns 100000
write_latency_ns 100000
"""


def window(text, tokens, prefix):
    """What a table says that a layer takes; None: nothing."""
    found = [int(line.split()[4]) for line in text.splitlines() if line.startswith(f"cell {tokens} {prefix} ")]
    return found[0] if found else None


class FeedCase(unittest.TestCase):
    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="tenuto-vllm-", dir=os.environ.get("TMPDIR", "/var/tmp"))
        self.addCleanup(shutil.rmtree, self.dir, True)

    def engine(self, layerwise=True, setting="auto", store="kv", plans=False):
        path = os.path.join(self.dir, store)
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "tenuto.mix"), "w", encoding="utf-8") as f:
            f.write(MIX)
        config = Config({"path": path, "serve": os.path.join(self.dir, f"{store}.sock"), "disk_bytes": "64MiB"})
        e = Engine(config, layerwise=layerwise, layers=LAYERS, slack=setting, tables=os.path.join(self.dir, "tables"))
        e.model.plans = plans
        self.addCleanup(e.close)
        return e

    def calls(self, e, module, name, stand_in):
        """Puts a call in place of one of the library's, in a module of the adapter."""
        core = sys.modules[module.__module__]._core
        patch = mock.patch.object(core, name, stand_in)
        patch.start()
        self.addCleanup(patch.stop)

    def options_of_loads(self, e):
        """What loads are given from now on."""
        given = []

        def load(*arguments, **options):
            given.append(options)
            return _core.Load(*arguments, **options)

        self.calls(e, type(e.worker), "Load", load)
        return given

    def phases(self, e):
        told = []

        def phase(cache, which, slack_ns):
            told.append((("prefill", "decode")[which], slack_ns))
            PHASE(cache, which, slack_ns)

        self.calls(e, type(e.worker.feed), "phase", phase)
        return told

    def learn(self, e, *prompts):
        """Restores prompts until the owner has heard of their layer times, and then some more."""
        known = 0
        while known < 3:
            self.assertEqual(e.run(*prompts), [blocks for _, blocks in prompts])
            known += bool(self.learned(e))

    @staticmethod
    def learned(e):
        return e.scheduler.spaces[0][1].slack()


class Loads(FeedCase):
    def test_a_load_says_all_tokens_that_its_step_computes_and_when_that_begins(self):
        e = self.engine()
        e.run((1, 4))
        given = self.options_of_loads(e)
        before = time.monotonic_ns()
        restored, cold = e.begin(1, 4), e.begin(2, 3)
        e.step([restored, cold])
        self.assertEqual((restored.found, cold.found), (4, 0))
        self.assertEqual([o["input_tokens"] for o in given], [1 + 3 * SIZE + 1])
        self.assertTrue(before <= given[0]["start_ns"] <= time.monotonic_ns())

    def test_nothing_is_said_where_slack_is_off(self):
        e = self.engine(setting="off")
        e.run((1, 4))
        given, told = self.options_of_loads(e), self.phases(e)
        self.assertEqual(e.run((1, 4)), [4])
        e.run((2, 4))
        self.assertEqual(([set(o) for o in given], told, self.learned(e)), ([{"timeout"}], [], ""))

    def test_an_asynchronous_load_is_wanted_when_the_step_beside_it_has_ended(self):
        e = self.engine(layerwise=False)
        e.layer_s = 0.01
        e.run((1, 4))
        e.run((3, 3))  # of the size of what comes beside the load
        given = self.options_of_loads(e)
        restored, cold = e.begin(1, 4), e.begin(2, 3)
        before = time.monotonic_ns()
        e.step([restored, cold])
        self.assertNotIn("input_tokens", given[0])
        self.assertGreaterEqual(given[0]["start_ns"], before + LAYERS * 10_000_000)

    def test_the_time_of_a_layer_is_learned(self):
        e = self.engine()
        e.layer_s = 0.01
        e.run((1, 8))
        self.learn(e, (1, 8))
        self.assertTrue(10e6 <= window(self.learned(e), 1, 512) < 40e6)

    def test_waits_for_another_load_of_the_step_are_no_compute(self):
        e = self.engine()
        e.run((1, 4), (2, 4))

        class Late:
            """A load whose layers take their time."""
            def __init__(self, *arguments, **options):
                self.load = _core.Load(*arguments, **options)

            def __getattr__(self, name):
                return getattr(self.load, name)

            def wait(self, layer=None, timeout=None):
                if timeout == 0.0 and layer not in self.__dict__.setdefault("there", set()):
                    self.load.poll(layer)
                    self.touch(layer)
                    raise _core.Timeout(110, "not yet")
                if layer is not None and layer not in self.there:
                    time.sleep(0.05)
                    self.there.add(layer)
                return self.load.wait(layer, timeout)

            def touch(self, layer):
                """As the library's wait that is over at once: compute ends here."""
                try:
                    self.load.wait(layer, 0.0)
                except _core.Timeout:
                    pass

        self.calls(e, type(e.worker), "Load", Late)
        self.learn(e, (1, 4), (2, 4))
        self.assertLess(window(self.learned(e), 2, 512), 40e6)


class Phases(FeedCase):
    def test_no_load_is_expected_before_the_end_of_a_step_as_long_as_those_before(self):
        e = self.engine()
        e.layer_s = 0.005
        e.run((1, 4))
        told = self.phases(e)
        r = e.begin(2, 4)
        e.step([r], most=2 * SIZE)
        e.step([r], most=SIZE)
        e.step([r], most=SIZE)
        self.assertEqual([p for p, _ in told], ["prefill"])  # the first steps of these sizes are not known
        self.assertGreaterEqual(told[0][1], LAYERS * 5_000_000)
        for _ in range(3):
            r.num_tokens += 1
            e.step([r], most=1)
        self.assertEqual([p for p, _ in told[1:]], ["decode"] * (len(told) - 1))
        self.assertGreaterEqual(len(told), 2)

    def test_a_step_with_a_load_ends_the_phase(self):
        e = self.engine()
        e.run((1, 4))
        told = self.phases(e)
        self.assertEqual(e.run((1, 4)), [4])
        self.assertEqual(told[0], ("prefill", 0))


class Plans(FeedCase):
    def test_what_is_computed_faster_is_computed_and_what_is_not_is_restored(self):
        for plans, ns, restored in ((True, 1, 0), (True, 10**7, 8), (False, 1, 8)):
            with self.subTest(plans=plans, ns=ns):
                e = self.engine(store=f"{plans}{ns}", plans=plans)
                e.run((1, 8))
                e.scheduler.spaces[0][1].slack(table(ns))
                e.counts()
                self.assertEqual(e.run((1, 8)), [restored])
                counts = e.counts()
                self.assertEqual((counts.get("hit_blocks", 0), counts.get("computed_blocks", 0)), (restored, 8 - restored))
                self.assertEqual((counts.get("save_stored_blocks", 0), e.wrong, e.said), (0, 0, []))


    def test_one_of_many_prompts_that_are_computed_is_restored_all_the_same(self):
        e = self.engine(plans=True)
        e.run((1, 8))
        e.scheduler.spaces[0][1].slack(table(1))
        self.assertEqual([e.run((1, 8)) for _ in range(64)], ([[0]] * 31 + [[8]]) * 2)


    def test_a_request_that_waits_for_pages_is_decided_on_once(self):
        e = self.engine(plans=True)
        e.run((1, 8))
        e.scheduler.spaces[0][1].slack(table(1))
        e.counts()
        waiting = e.begin(1, 8)
        self.assertEqual([e.scheduler.matched(waiting, 0)[0] for _ in range(64)], [0] * 64)
        self.assertEqual(e.counts()["computed_blocks"], 8)
        e.step([waiting])
        self.assertEqual([e.run((1, 8)) for _ in range(31)], [[0]] * 30 + [[8]])


class Steps(FeedCase):
    def test_the_time_of_a_layer_is_learned_from_prompts_that_are_computed(self):
        e = self.engine()
        e.layer_s = 0.01
        seed = 0
        while not self.learned(e) or seed < 8:
            seed += 1
            e.run((seed, 8))
        self.assertTrue(10e6 <= window(self.learned(e), 128, 0) < 40e6, window(self.learned(e), 128, 0))

    def test_a_step_has_the_prefix_of_one_prompt_with_as_much_attention(self):
        e = self.engine()
        for have, counts, prefix in (((512,), (100,), 512), ((512,), (1,), 512), ((512, 0), (64, 64), 224), ((0, 0), (64, 64), 0), ((512, 512), (1, 1), None)):
            requests = [e.begin(i, 40) for i, _ in enumerate(have)]
            for r, n in zip(requests, have):
                r.num_computed_tokens = n
            with self.subTest(have=have, counts=counts):
                self.assertEqual(e.scheduler._prefix({r.request_id: n for r, n in zip(requests, counts)}), prefix)
            for r in requests:
                e.end(r)


class Tables(FeedCase):
    def test_the_next_start_knows_what_this_one_has_learned(self):
        e = self.engine()
        e.run((1, 8))
        self.learn(e, (1, 8))
        known = self.learned(e)
        e.close()
        file = slack.Tables(os.path.join(self.dir, "tables")).path("stub")
        with self.assertLogs("tenuto", "INFO") as logs:
            e = self.engine(store="other")
        self.assertIn(f"{file} (restored)", "\n".join(logs.output))
        self.assertAlmostEqual(window(self.learned(e), 1, 512), window(known, 1, 512), delta=0.1 * window(known, 1, 512))

    def test_a_given_table_outlives_its_file(self):
        path = os.path.join(self.dir, "given")
        with open(path, "w", encoding="utf-8") as f:
            f.write(table(1000))
        e = self.engine(setting=path)
        os.unlink(path)
        e.scheduler.reset()  # the spaces are opened anew, as behind an owner that has come back
        self.assertTrue(e.scheduler.ready())
        self.assertEqual(window(self.learned(e), 1, 0), 1000)

    def test_a_given_table_that_no_space_takes_leaves_the_connector_on(self):
        path = os.path.join(self.dir, "given")
        with open(path, "w", encoding="utf-8") as f:
            f.write(table(1000).replace("model -", "model other"))
        with self.assertLogs("tenuto", "WARNING") as logs:
            e = self.engine(setting=path)
            e.run((1, 4))
            self.assertEqual(e.run((1, 4)), [4])
        self.assertEqual(len(logs.output), 1, logs.output)

    def test_it_is_kept_while_the_engine_runs(self):
        with mock.patch.object(slack, "KEEP_EVERY_S", 0.0):
            e = self.engine()
            e.run((1, 8))
            self.learn(e, (1, 8))
            e.run((1, 8))
            e.model.slack._writer.join(30)
            self.assertTrue(os.path.exists(slack.Tables(os.path.join(self.dir, "tables")).path("stub")))


if __name__ == "__main__":
    unittest.main()
