# SPDX-License-Identifier: Apache-2.0
"""What another node has stored, as each adapter finds it: on a store of objects that is in memory and fails as it is told. The engines are those of the adapters' own tests."""
import os
import shutil
import time
import types

import test_lmcache
import test_sglang
import test_vllm
from case import main
from remote_nodes import Nodes
from tenuto.vllm.store import Config
from vllm_engine import Engine, Request


class Connector(Nodes):
    """vLLM's, with both of its ways to load."""

    def engine(self, options, **more):
        e = Engine(Config(options), **more)
        self.addCleanup(e.close)
        return e

    def saved(self, *prompts, name='a'):
        """What a node has computed, before it ended and its disk was wiped."""
        e = Engine(Config(self.options(name)))
        e.run(*prompts)
        e.store.cache.flush()
        self.uploaded(sum(blocks for _, blocks in prompts))
        e.close()
        shutil.rmtree(os.path.join(self.dir, name))

    def test_what_a_node_has_computed_another_restores(self):
        self.saved((1, 6), (2, 4))
        for layerwise in (True, False):
            with self.subTest(layerwise=layerwise):
                e = self.engine(self.options(f'b{layerwise}'), layerwise=layerwise)
                self.assertEqual((e.run((1, 6), (2, 4)), e.wrong, e.said), ([6, 4], 0, []))
                counts = e.counts()
                self.assertEqual((counts['asked_requests'], counts['remote_blocks'], counts['load_blocks'], counts.get('late_requests', 0)), (2, 10, 10, 0))
                self.assertEqual(e.run((1, 6)), [6])  # by now it is here
                self.assertEqual(e.counts().get('asked_requests', 0), 0)

    def test_so_does_an_engine_that_has_attached(self):
        self.saved((1, 6))
        e = self.engine(self.attached('b'))
        self.assertEqual((e.run((1, 8)), e.wrong, e.said), ([6], 0, []))

    def test_pages_of_a_gpu_get_what_was_brought_into_host_memory_first(self):
        """As the scheduler sees them: these pages lie in host memory."""
        self.saved((1, 6))
        e = self.engine(self.options('b'))
        e.scheduler.on_device = True
        r = e.begin(1, 6)
        self.assertEqual((r.found, r.waits, e.scheduler.requests['r1'].match.remote_blocks), (6, False, 0))
        e.step([r])
        self.assertEqual((e.wrong, e.said), (0, []))
        without = self.engine({**self.options('c'), 'host_bytes': 0})
        without.scheduler.on_device = True
        self.assertEqual((without.run((1, 6)), without.wrong, without.counts().get('load_failed_blocks', 0)), ([0], 0, 0))

    def test_what_is_here_is_loaded_although_the_rest_comes_too_late(self):
        self.saved((1, 6))
        e = self.engine(self.options('b'), remote_timeout_s=0.3)
        self.assertEqual(e.run((1, 4)), [4])
        r = Request(99, 1, 6)
        while e.scheduler.matched(r, 0)[0] is None:
            time.sleep(0.001)
        self.slow(1.5)  # all blocks are known by now
        e.scheduler.on_device = True
        r = e.begin(1, 6)
        self.assertEqual((r.found, r.waits), (4, False))
        e.step([r])
        self.assertEqual((e.wrong, e.said), (0, []))

    def test_requests_that_need_nobody_asked_do_not_wait(self):
        e = self.engine({k: v for k, v in self.options('b').items() if k != 'remote'})
        e.run((1, 4))
        r = e.begin(1, 8)
        self.assertEqual((r.found, r.asked, e.counts().get('asked_requests', 0)), (4, 0, 0))

    def test_steps_go_on_while_the_store_takes_its_time(self):
        self.saved((1, 4))
        self.slow(0.2)
        e = self.engine(self.options('b'))
        r = e.begin(1, 4)
        self.assertEqual((r.found, r.asked > 3), (4, True))
        while r.waits:
            e.step([r])
        e.step([r])
        self.assertEqual((e.wrong, e.said), (0, []))

    def test_a_store_that_does_not_answer_costs_the_deadline_and_no_more(self):
        self.saved((1, 4))
        self.slow(1.5)
        e = self.engine(self.options('b'), remote_timeout_s=0.2)
        begin = time.monotonic()
        self.assertEqual(e.run((1, 4), (2, 4)), [0, 0])  # one after the other here, where vLLM asks for both
        self.assertLess(time.monotonic() - begin, 1.2)
        self.assertEqual((e.counts()['late_requests'], e.wrong), (2, 0))

    def test_changed_bytes_are_computed_again(self):
        self.saved((1, 4))
        for layerwise in (True, False):
            with self.subTest(layerwise=layerwise):
                self.change()
                e = self.engine(self.options(f'b{layerwise}'), layerwise=layerwise)
                e.run((1, 4))
                counts = e.counts()
                self.assertEqual((e.wrong, counts['load_failed_blocks'], counts.get('load_blocks', 0)), (0, 4, 0))
                e.store.cache.flush()
                self.replaced()

    def test_a_store_that_goes_in_the_middle_of_a_load(self):
        self.saved((1, 4))
        e = self.engine(self.options('b'), load_timeout_s=0.5)
        r = e.begin(1, 4)
        self.assertEqual(r.found, 4)
        self.server.server.objects = None  # connections that are there break, too
        self.server.close()
        self.server = None
        begin = time.monotonic()
        while r.waits:
            e.step([r])
        e.step([r])
        self.assertLess(time.monotonic() - begin, 2)
        self.assertEqual((e.wrong, e.counts()['load_failed_blocks']), (0, 4))

    def test_a_request_that_ends_while_it_waits_asks_no_more(self):
        self.saved((1, 4))
        self.slow(0.5)
        e = self.engine(self.options('b'))
        r = Request(1, 1, 4)
        e.scheduler.track(r)
        self.assertEqual(e.scheduler.matched(r, 0), (None, False))
        e.scheduler.finished(r, ([],))
        self.assertEqual(e.scheduler.remote._asked, {})

    def test_more_requests_than_look_ups_have_their_turns(self):
        self.saved(*((seed, 1) for seed in range(24)))
        e = self.engine(self.options('b'), remote_timeout_s=5.0)
        left = [Request(seed, seed, 1) for seed in range(24)]
        for r in left:
            e.scheduler.track(r)
        under_way = []
        while left:
            left = [r for r in left if e.scheduler.matched(r, 0)[0] is None]
            time.sleep(0.001)
            under_way.append(e.scheduler.remote._under_way())
        self.assertEqual(max(under_way), 16)
        counts = e.counts()
        self.assertEqual((counts['asked_requests'], counts.get('late_requests', 0), counts['queried_blocks']), (24, 0, 24))


class Tier(Nodes):
    """Below vLLM's offloading connector."""

    def tier(self, options):
        tiers = test_vllm.Tiers('failing')
        t = tiers.tier(**{'remote_timeout_s': 10, **options})
        self.addCleanup(tiers.doCleanups)
        return tiers, t

    def there(self, tiers, t, keys, request='r'):
        """How vLLM looks a prompt up: all keys in a step, up to a miss, until none is to be asked for again."""
        end = time.monotonic() + 20
        while True:
            answers = []
            for key in keys:
                answers.append(t.lookup(key, types.SimpleNamespace(req_id=request)).name)
                if answers[-1] == 'MISS':
                    break
            t.on_schedule_end(None)
            if 'RETRY' not in answers:
                return answers.count('HIT')
            self.assertLess(time.monotonic(), end)
            time.sleep(0.001)

    def saved(self, n):
        tiers, t = self.tier(self.options('a'))
        keys = tiers.keys(n)
        self.assertTrue(tiers.job(t, True, keys))
        t._store.cache.flush()
        self.uploaded(n)
        t.shutdown()
        shutil.rmtree(os.path.join(self.dir, 'a'))
        return keys

    def test_chunks_of_another_node_are_found_in_a_cache_of_its_own_and_in_another_processs(self):
        keys = self.saved(4)
        for options in (self.options('b'), self.attached('c')):
            with self.subTest(options=sorted(options)):
                tiers, t = self.tier(options)
                self.assertEqual((self.there(tiers, t, [*keys, *tiers.keys(2, seed=9)]), self.there(tiers, t, tiers.keys(2, seed=9), 'q')), (4, 0))
                tiers.memory[:] = bytes(len(tiers.memory))
                self.assertTrue(tiers.job(t, False, keys))
                self.assertEqual(tiers.memory[:512], bytes(range(256)) * 2)

    def test_changed_bytes_are_a_failed_load(self):
        keys = self.saved(2)
        self.change()
        tiers, t = self.tier(self.options('b'))
        self.assertEqual(self.there(tiers, t, keys), 2)
        self.assertFalse(tiers.job(t, False, keys))
        self.assertEqual(self.there(tiers, t, keys), 0)  # nor are they offered to this request again
        self.assertEqual(t._stats.take()['load_failed_chunks'], 2)

    def test_a_store_that_does_not_answer_is_a_miss_at_the_deadline(self):
        keys = self.saved(2)
        self.slow(1.5)
        tiers, t = self.tier({**self.options('b'), 'remote_timeout_s': 0.2})
        begin = time.monotonic()
        self.assertEqual(self.there(tiers, t, keys), 0)
        self.assertLess(time.monotonic() - begin, 1.2)


class SGLang(Nodes):
    def backend(self, options):
        backend = test_sglang.Backend('backend')
        self.addCleanup(backend.doCleanups)
        return backend, backend.backend(**options)

    def saved(self, n):
        backend, b = self.backend(self.options('a'))
        names = test_sglang.keys(n)
        backend.save(b, names)
        b.store.cache.flush()
        self.uploaded(n)
        b.close()
        shutil.rmtree(os.path.join(self.dir, 'a'))
        return names

    def test_pages_of_another_node_are_found_in_a_cache_of_its_own_and_in_another_processs(self):
        names = self.saved(5)
        for options in (self.options('b'), self.attached('c')):
            with self.subTest(options=sorted(options)):
                backend, b = self.backend({'remote_timeout_s': 10, **options})
                self.assertEqual(b.batch_exists([*names, *test_sglang.keys(2, seed=9)]), 5)
                self.assertEqual(backend.load(b, names, range(20, 25)), 5)

    def test_changed_pages_are_misses_until_they_are_saved_again(self):
        names = self.saved(2)
        self.change()
        backend, b = self.backend({'remote_timeout_s': 10, **self.options('b')})
        self.assertEqual((b.batch_exists(names), backend.load(b, names, (3, 4))), (2, 0))
        backend.save(b, names)
        b.store.cache.flush()
        self.replaced()

    def test_a_store_that_does_not_answer_is_waited_for_until_the_deadline(self):
        names = self.saved(2)
        self.slow(1.5)
        _, b = self.backend({**self.options('b'), 'remote_timeout_s': 0.2})
        begin = time.monotonic()
        self.assertEqual(b.batch_exists(names), 0)
        self.assertLess(time.monotonic() - begin, 1.2)


class LMCache(Nodes):
    def connector(self, options):
        calls = test_lmcache.Connector('connector')
        calls.dir = self.dir
        self.addCleanup(calls.doCleanups)
        return calls, calls.connector(**options)

    def saved(self):
        """Two ranks' objects, of two sizes."""
        calls, c = self.connector(self.options('a'))
        keys = [test_lmcache.key(i, rank=rank) for rank in range(2) for i in range(3)]
        given = [*test_lmcache.views(3, seed='x'), *test_lmcache.views(3, size=2 * test_lmcache.SIZE, seed='y')]
        for part in (slice(3, 6), slice(0, 3)):  # host memory is cut for the largest, which comes first
            self.assertTrue(calls.put(c, keys[part], given[part]))
        c._store.cache.flush()
        self.uploaded(6 + 2)  # and the list of sizes
        c.close()
        shutil.rmtree(os.path.join(self.dir, 'a'))
        return keys, given

    def test_objects_of_another_node_are_found_in_a_cache_of_its_own_and_in_another_processs(self):
        keys, given = self.saved()
        for options in (self.options('b'), self.attached('c')):
            with self.subTest(options=sorted(options)):
                calls, c = self.connector({'remote_timeout_s': 10, **options})
                asked = [*keys[:3], test_lmcache.key(3), *keys[3:]]  # what is missing of one rank hides nothing of another
                self.assertEqual(calls.there(c, asked), [True] * 3 + [False] + [True] * 3)
                got = [memoryview(bytearray(len(view))) for view in given]
                self.assertEqual(calls.get(c, keys, got), [True] * 6)
                self.assertEqual([bytes(view) for view in got], [bytes(view) for view in given])

    def test_changed_objects_are_misses(self):
        keys, given = self.saved()
        calls, c = self.connector({'remote_timeout_s': 10, **self.options('b')})
        self.assertEqual(calls.there(c, keys), [True] * 6)
        self.change()
        self.assertEqual(calls.get(c, keys, [memoryview(bytearray(len(view))) for view in given]), [False] * 6)

    def test_a_store_that_does_not_answer_is_a_miss_at_the_deadline(self):
        keys, _ = self.saved()
        self.slow(1.5)
        calls, c = self.connector({**self.options('b'), 'remote_timeout_s': 0.2})
        begin = time.monotonic()
        self.assertEqual(calls.there(c, keys), [False] * 6)
        self.assertLess(time.monotonic() - begin, 1.2)


if __name__ == '__main__':
    main(__name__)
