# SPDX-License-Identifier: Apache-2.0
"""Saves, look-ups and loads; what goes wrong is a clear exception, or a miss."""
import ctypes
import importlib.util
import os
import sys
import threading
import unittest

import tenuto
from case import LAYERS, OBJECT, Case, content, main

KEY = tenuto.KEY_BYTES


class Blocks(Case):
    def test_what_was_saved_comes_back_layer_by_layer(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        size = 4 * space.geometry.block_bytes
        with space.match(keys, pin=True, tiers=True) as found:
            self.assertEqual((found.blocks, found.first, found.pinned), (4, 0, True))
            self.assertEqual(set(found.tiers), {tenuto.TIER_DISK})
            with space.load(keys, pool, range(4, 8)) as load:
                self.assertEqual([load.wait(layer) for layer in range(LAYERS)], [4] * LAYERS)
                self.assertEqual(load.poll(0), 4)
            self.assertTrue(load.ended)
        self.assertFalse(found.pinned)
        self.assertEqual(kv[size:2 * size], kv[:size])

    def test_a_store_is_warm_when_it_is_opened_again(self):
        with self.open() as cache:
            space, kv, pool = self.raw(cache)
            keys = self.stored(space, kv, pool)
            cache.flush()
        self.assertTrue(cache.closed)
        with self.open() as cache:
            space, again, pool = self.raw(cache)
            self.assertEqual(space.keys(range(4)), keys)
            self.assertEqual(space.load(keys, pool, range(4)).finish(), 4)
            self.assertEqual(again, kv)

    def test_host_memory_alone_needs_no_directory(self):
        cache = tenuto.Cache(host_bytes=16 << 20)
        self.addCleanup(cache.close)
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        self.assertEqual(space.match(keys).host_blocks, 4)

    def test_a_block_that_is_not_there_is_a_miss(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool, 2)
        more = keys + content('no key', KEY)
        self.assertEqual(space.match(more).blocks, 2)
        self.assertEqual(space.load(more, pool, [8, 9, 10]).finish(), 2)
        self.assertEqual(space.load(content('none', KEY), pool, [8]).finish(), 0)

    def test_a_damaged_block_is_a_miss(self):
        with self.open(instance='damaged') as cache:
            space, kv, pool = self.raw(cache)
            keys = self.stored(space, kv, pool, 3)
            cache.flush()
        path = os.path.join(self.dir, 'damaged', 'tenuto.store')
        with open(path, 'r+b') as store:
            data = store.read()
            at = data.index(bytes(kv[space.geometry.block_bytes:][:64]))  # the second block
            store.seek(at)
            store.write(bytes(b ^ 1 for b in data[at:at + 64]))
        with self.open(instance='damaged') as cache:
            space, kv, pool = self.raw(cache)
            self.assertEqual(space.load(keys, pool, range(3)).finish(), 1)
            self.assertEqual(space.match(keys).blocks, 1)

    def test_blocks_that_are_dropped_are_gone(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        self.assertEqual(space.drop_blocks(keys[2 * KEY:3 * KEY]), 1)
        self.assertEqual(space.match(keys).blocks, 2)
        space.drop(timeout=60)
        self.assertEqual(space.match(keys).blocks, 0)

    def test_spaces_that_differ_in_anything_never_match(self):
        cache = self.open()
        space, kv, pool = self.raw(cache, tenant='a', kv_dtype='bf16')
        keys = self.stored(space, kv, pool)
        for other in ({'tenant': 'b', 'kv_dtype': 'bf16'}, {'tenant': 'a', 'kv_dtype': 'fp8'}, {'tenant': 'a', 'kv_dtype': 'bf16', 'revision': '2'}):
            stranger = cache.space('toy', space.geometry, **other)
            self.assertEqual(stranger.match(keys).blocks, 0)
            self.assertNotEqual(stranger.keys(range(4)), keys)
        self.assertEqual(cache.space('toy', space.geometry, tenant='a', kv_dtype='bf16').match(keys).blocks, 4)

    def test_match_all_finds_what_every_rank_has(self):
        cache = self.open()
        ranks = [self.raw(cache, tp_rank=r, tp_size=2) for r in range(2)]
        keys = self.stored(*ranks[0], 4)
        self.stored(*ranks[1], 2)
        found = tenuto.match_all([r[0] for r in ranks], keys, pin=True)
        self.assertEqual((found.blocks, found.firsts), (2, (0, 0)))
        found.unpin()
        query = tenuto.match_begin([r[0] for r in ranks], keys, timeout=10)
        self.assertEqual(query.poll().blocks, 2)
        with self.assertRaises(tenuto.Closed):
            query.poll()

    def test_a_lease_ends_also_after_its_space_was_closed(self):
        cache = self.open(max_ops=4, max_op_blocks=2)  # 16 leases
        first, kv, pool = self.raw(cache)
        keys = self.stored(first, kv, pool)
        for _ in range(32):
            space = cache.space('toy', first.geometry)
            match = space.match(keys, pin=True)  # two leases
            space.close()
            self.assertTrue(match.pinned)
            match.unpin()
            space = cache.space('toy', first.geometry)
            query = tenuto.match_begin([space], keys, pin=True)
            match = query.poll()
            space.close()
            self.assertEqual(match.blocks, 4)
            del match

    def test_a_save_whose_body_raises_leaves_nothing(self):
        cache = self.open()
        space, _, pool = self.raw(cache)
        keys = space.keys(range(2))
        with self.assertRaises(KeyError), space.save(keys, pool, [0, 1]) as save:
            save.layer(0)
            raise KeyError
        self.assertEqual(save.result, (0, 0, 0, 0, 0, 0))
        with space.save(keys, pool, [0, 1]) as save:
            save.layer(0)  # not all layers: aborted, too
        self.assertEqual(space.match(keys).blocks, 0)
        with space.save(keys, pool, [0, 1]) as save:
            for layer in range(LAYERS):
                save.layer(layer)
        self.assertEqual((save.result.stored, save.outcome), (2, bytes([tenuto.SAVED_STORED] * 2)))

    def test_a_save_waits_for_an_event(self):
        cache = self.open()
        space, _, pool = self.raw(cache)
        keys, event = space.keys([7]), cache.event()
        save = space.save(keys, pool, [0])
        for layer in range(LAYERS):
            save.layer(layer, event, layer + 1)
        save.commit()
        with self.assertRaises(tenuto.Timeout):
            save.end(0.05)
        event.raise_to(LAYERS)
        self.assertEqual(save.end(60).stored, 1)

    def test_part_of_the_pages_is_loaded(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool, 3)
        block = space.geometry.block_bytes
        kv[8 * block:11 * block] = b'x' * (3 * block)
        self.assertEqual(space.load(keys, pool, [8, 9, 10], first_page=1, npages=1).finish(), 3)
        self.assertEqual(kv[9 * block:10 * block], kv[block:2 * block])
        self.assertEqual(kv[8 * block:9 * block] + kv[10 * block:11 * block], b'x' * (2 * block))


class Resets(Case):
    """The engine's weights change while it runs."""

    def test_after_a_reset_nothing_from_before_is_found_and_the_old_weights_have_theirs_again(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        revision = content('weights', 16)
        space.reset(revision)
        self.assertEqual((space.match(keys).blocks, space.match(space.keys(range(4))).blocks), (0, 0))
        new = self.stored(space, kv, pool, 2)
        other = cache.space('toy', space.geometry, reset_revision=revision)
        self.assertEqual((other.match(new).blocks, other.match(keys).blocks), (2, 0))
        space.reset(bytes(16))
        self.assertEqual((space.match(keys).blocks, space.match(new).blocks), (4, 0))

    def test_what_was_begun_before_a_reset_is_never_seen(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        load, ended = space.load(keys, pool, range(4, 8)), space.load(keys, pool, range(12, 16))
        load.wait()
        ended.wait()
        fresh = space.keys(range(10, 14))
        begun, committed = space.save(fresh[:2 * KEY], pool, (8, 9)), space.save(fresh[2 * KEY:], pool, (10, 11))
        begun.layer(0)
        for layer in range(LAYERS):
            committed.layer(layer)
        committed.commit()
        space.reset(content('other weights', 16))
        self.assertEqual((load.good, load.wait(), load.finish(), load.good), (0, 0, 0, 0))
        self.assertEqual((ended.end(), ended.good), ((), 0))
        for layer in range(LAYERS):
            begun.layer(layer)
        begun.commit()
        self.assertEqual(sum(begun.end()[:5]), 0)
        self.assertEqual(committed.end().stored, 2)  # all of it was computed before: it is of the old weights
        again = space.keys(range(10, 14))
        self.assertEqual((space.match(again).blocks, space.match(fresh).blocks), (0, 0))
        space.reset(bytes(16))
        self.assertEqual((space.match(fresh).blocks, space.match(fresh[2 * KEY:]).blocks), (0, 2))

    def test_parts_that_wait_for_their_turn_never_begin(self):
        cache = self.open(max_op_blocks=2, max_ops=1)
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool, 6)
        load = space.load(keys, pool, range(6, 12))
        space.reset(content('weights', 16))
        self.assertEqual((load.poll(), load.finish(), load.good, space.match(space.keys(range(6))).blocks), (0, 0, 0, 0))
        save = space.save(space.keys(range(10, 16)), pool, range(6))
        space.reset(bytes(16))
        self.assertEqual(sum(save.finish()[:5]), 0)
        self.assertEqual((space.match(keys).blocks, space.match(space.keys(range(10, 16))).blocks), (6, 0))

    def test_a_reset_that_fails_leaves_the_space_closed_until_one_does_not(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        for wrong in (b'', bytes(15), 'sixteen letters!', None):
            with self.assertRaises((ValueError, TypeError)):
                space.reset(wrong)
        self.assertEqual(space.match(keys).blocks, 4)
        others = [cache.space('toy', space.geometry, hash_seed=i) for i in range(1024)]  # as many as can be open, the first of them twice
        with self.assertRaises(tenuto.Error):
            space.reset(content('weights', 16))
        with self.assertRaises(tenuto.Error):
            space.match(keys)
        others.pop().close()
        space.reset(content('weights', 16))
        self.assertEqual(space.match(keys).blocks, 0)
        space.reset(bytes(16))
        self.assertEqual(space.match(keys).blocks, 4)


    def test_threads_reset_a_space_while_others_look_up(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys, old, wrong, going = self.stored(space, kv, pool), bytes(16), [], [True]
        go = threading.Barrier(4)

        def reset(t):
            go.wait()
            for i in range(2000 if os.environ.get('TN_SOAK') else 100):
                try:
                    space.reset(old if i % 4 == t else content((t, i % 8), 16))
                except Exception as e:
                    wrong.append(e)

        def look_up():
            go.wait()
            while going[0]:
                try:
                    blocks = space.match(keys).blocks
                    if blocks not in (0, 4):
                        wrong.append(blocks)
                except Exception as e:
                    wrong.append(e)

        threads = [threading.Thread(target=reset, args=(t,)) for t in range(2)]
        others = [threading.Thread(target=look_up) for _ in range(2)]
        for t in threads + others:
            t.start()
        for t in threads:
            t.join()
        going[0] = False
        for t in others:
            t.join()
        self.assertEqual(wrong, [])
        space.reset(old)
        self.assertEqual(space.match(keys).blocks, 4)
        space.close()
        others = [cache.space('toy', space.geometry, hash_seed=i + 1) for i in range(1024)]  # as many as can be open: no handle was left
        self.assertEqual(len(others), 1024)


class Observed(Case):
    def test_statistics_devices_latencies_processes_and_events(self):
        cache = self.open()
        _, cursor, _ = cache.block_events()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        space.match(keys)
        space.load(keys, pool, range(4, 8)).finish()
        self.assertEqual(cache.stats()['disk_blocks'], 4)
        self.assertEqual(cache.devices()[0]['health'], 'healthy')
        self.assertEqual(cache.latency('load', 'disk')['count'], 1)
        self.assertEqual(sum(n for _, n in cache.latency('match', all_processes=True)['buckets']), 1)
        self.assertEqual(cache.owner()['pid'], os.getpid())
        self.assertEqual(cache.sessions()[0]['loads'], 1)
        events, cursor, gone = cache.block_events(cursor)
        self.assertFalse(gone)
        stored = [e for e in events if e.stored]
        self.assertEqual([e.key for e in stored], [keys[i * KEY:(i + 1) * KEY] for i in range(4)])
        self.assertEqual((stored[0].parent, stored[1].parent), (None, keys[:KEY]))
        snapshot, _ = cache.snapshot()
        self.assertEqual({e.key for e in snapshot}, {e.key for e in stored})
        plan = space.plan(space.match(keys, tiers=True), 100)
        self.assertEqual(plan['restore_blocks'] + plan['recompute_blocks'], 4)
        cache.phase('decode', 1000000)

    def test_log_lines_come_to_a_function(self):
        lines = []
        with self.open(log=lambda *line: lines.append(line), log_level=3) as cache:
            self.raw(cache)
        self.assertTrue(lines)
        self.assertTrue(all(isinstance(t, str) for _, _, t in lines))


class Wrong(Case):
    def test_errors_have_errno_and_a_text_and_are_os_errors(self):
        cache = self.open()
        space, _, pool = self.raw(cache)
        with self.assertRaisesRegex(tenuto.InvalidValue, r'pages\[1\] = 99: the pool has 16 pages') as caught:
            space.load(space.keys([1, 2]), pool, [0, 99])
        key = space.keys([1])
        self.assertIsInstance(caught.exception, OSError)
        self.assertIsInstance(caught.exception, ValueError)
        self.assertEqual(caught.exception.errno, 22)
        for keys, pages in ((key, [1, 2]), (key + b'1', [1]), (b'', []), (key, [-1]), (key, [1 << 32])):
            with self.assertRaises(ValueError):
                space.load(keys, pool, pages)
        with self.assertRaises(TypeError):
            space.load('text', pool, [0])
        with self.assertRaises(TypeError):
            space.load(key, pool, [0], no_such_option=1)
        with self.assertRaises(TypeError):
            tenuto.Cache(self.dir, instance='other', no_such_option=1)
        with space.load(key, pool, [0]) as load, self.assertRaises(IndexError):
            load.wait(LAYERS)

    def test_a_wrong_option_is_named_with_what_is_wanted(self):
        for options, kind, text in (({'disk_bytes': '200GiB'}, TypeError, "disk_bytes: a whole number of bytes is wanted, not '200GiB'"),
                                    ({'disk_bytes': 2e9}, TypeError, 'disk_bytes: .* not 2000000000.0'),
                                    ({'disk_bytes': -1}, ValueError, 'disk_bytes: a whole number of bytes is wanted, not -1'),
                                    ({'host_bytes': 1 << 64}, ValueError, 'host_bytes: .* not 18446744073709551616'),
                                    ({'max_ops': 1 << 32}, ValueError, 'max_ops: 4294967296 is more than 32 bits'),
                                    ({'policy': 1}, TypeError, 'policy: a text is wanted, not 1')):
            with self.assertRaisesRegex(kind, text):
                tenuto.Cache(self.dir, **options)
        with self.assertRaisesRegex(TypeError, "quota: a whole number of bytes is wanted, not '1GiB'"):
            self.open().space('toy', tenuto.Geometry.raw(LAYERS, OBJECT), quota={'disk': '1GiB'})
        with self.assertRaisesRegex(tenuto.Error, 'not a socket .*attach_store'):
            tenuto.attach(self.dir)

    @unittest.skipIf(importlib.util.find_spec('torch'), 'torch is there')
    def test_what_needs_torch_says_how_to_get_it(self):
        self.assertIn('pip install .[hf]', self.python('try:\n import tenuto.hf\nexcept ImportError as e: print(e)'))

    def test_a_cache_that_goes_with_an_error_keeps_the_error(self):
        with self.assertRaises(TypeError):
            tenuto.Cache(self.dir, disk_bytes=32 << 20).flush('no number')
        self.open()  # it was closed

    def test_a_page_of_a_load_is_refused_to_others(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        load = space.load(keys[:KEY], pool, [8])
        with self.assertRaises(tenuto.InvalidValue):
            space.load(keys[:KEY], pool, [8])
        with self.assertRaises(tenuto.Busy):
            pool.close()
        self.assertEqual(load.finish(), 1)
        with self.assertRaises(tenuto.Closed):
            load.wait()
        self.assertEqual(load.end(), ())
        with self.assertRaises(tenuto.Busy):
            pool.memory.close()
        pool.close()
        pool.memory.close()
        with self.assertRaises(tenuto.Closed):
            space.load(keys[:KEY], pool, [8])

    def test_too_much_under_way_is_again(self):
        cache = self.open(max_ops=2)
        space, _, pool = self.raw(cache)
        saves = [space.save(space.keys([i]), pool, [i]) for i in range(2)]
        with self.assertRaises(tenuto.Again):
            space.save(space.keys([9]), pool, [9])
        for save in saves:
            self.assertEqual(save.finish().stored, 1)

    def test_directories_that_are_not_there_or_no_store(self):
        with self.assertRaises(FileNotFoundError):
            tenuto.Cache(os.path.join(self.dir, 'none'))
        os.mkdir(os.path.join(self.dir, 'junk'))
        with open(os.path.join(self.dir, 'junk', 'tenuto.store'), 'wb') as f:
            f.write(b'Z' * 1048576)
        with self.assertRaises(tenuto.Error) as caught:
            tenuto.Cache(self.dir, instance='junk')
        self.assertEqual(caught.exception.errno, 117)  # EUCLEAN

    def test_a_store_of_a_newer_version_is_refused(self):
        self.open().close()
        with open(os.path.join(self.dir, 'default', 'tenuto.store'), 'r+b') as store:
            for copy in (0, 65536):
                store.seek(copy + 4)
                store.write((77).to_bytes(2, 'little'))
            store.seek(0)
            before = store.read()
            with self.assertRaisesRegex(tenuto.WrongVersion, 'version 77'):
                tenuto.Cache(self.dir)
            store.seek(0)
            self.assertEqual(store.read(), before)  # and left as it is

    def test_another_models_store_is_a_miss(self):
        with self.open() as cache:
            space, kv, pool = self.raw(cache, model='one')
            keys = self.stored(space, kv, pool)
            cache.flush()
        with self.open() as cache:
            geometry = tenuto.Geometry.raw(LAYERS, 2 * OBJECT)
            kv = bytearray(4 * geometry.block_bytes)
            for space in (cache.space('two', geometry), cache.space('one', geometry)):
                pool = cache.memory(kv).pool(geometry, npages=4)
                self.assertEqual(space.match(keys).blocks, 0)
                self.assertEqual(space.load(keys, pool, range(4)).finish(), 0)

    def test_a_pool_of_another_geometry_is_refused(self):
        cache = self.open()
        space, _, _ = self.raw(cache)
        other = tenuto.Geometry.raw(LAYERS + 1, OBJECT)
        pool = cache.memory(bytearray(4 * other.block_bytes)).pool(other, npages=4)
        with self.assertRaises(tenuto.InvalidValue):
            space.load(space.keys([1]), pool, [0])

    def test_a_full_store_keeps_what_is_held_and_says_so(self):
        cache = self.open(disk_bytes=4 << 20)
        space, _, pool = self.raw(cache)
        leases, result = [], None
        for i in range(200):
            result = space.save(space.keys([i]), pool, [0]).finish()
            if not result.stored:
                break
            leases.append(space.match(space.keys([i]), pin=True))
        self.assertEqual((result.stored, result.rejected), (0, 1))
        self.assertEqual(space.load(space.keys([0]), pool, [1]).finish(), 1)
        for lease in leases:
            lease.unpin()
        self.assertEqual(space.save(space.keys([1000]), pool, [0]).finish().failed, 0)

    def test_a_full_disk_serves_what_it_has(self):
        libc = ctypes.CDLL(None)
        if libc.unshare(0x20000) or libc.mount(b'none', b'/', None, 0x44000, None) or libc.mount(b'none', self.dir.encode(), b'tmpfs', 0, b'size=71m'):
            self.skipTest('a mount takes root')
        try:
            with open(self.dir + '/other', 'wb') as f:
                f.write(bytes(64 << 20))
            cache = self.open(disk_bytes=64 << 20)
            space, kv, pool = self.raw(cache)
            block, right = space.geometry.block_bytes, 0
            for i in range(400):
                kv[:block] = content(i, block)
                result = space.save(space.keys([i]), pool, [0]).finish()
                self.assertEqual(sum(result[:5]), 1)
            for i in range(400):
                if space.load(space.keys([i]), pool, [1]).finish():
                    self.assertEqual(kv[block:2 * block], content(i, block))
                    right += 1
            self.assertGreater(right, 20)
            cache.close()
        finally:
            libc.umount2(self.dir.encode(), 2)

    def test_two_owners_of_one_directory(self):
        self.open()
        with self.assertRaisesRegex(tenuto.Busy, str(os.getpid())):
            tenuto.Cache(self.dir, lock_timeout_ns=1)
        said = self.python('''
import sys, tenuto
try:
    tenuto.Cache(sys.argv[1], lock_timeout_ns=1)
except tenuto.Busy as e:
    print(e.strerror)
''', self.dir)
        self.assertIn(str(os.getpid()), said)


class Threads(Case):
    def test_many_threads_use_one_cache(self):
        cache = self.open()
        space, kv, pool = self.raw(cache, 64)
        block, wrong = space.geometry.block_bytes, []

        def one(t):
            for i in range(10):
                key, page = space.keys([100 * t + i]), 8 * t
                data = content((t, i), block)
                kv[page * block:(page + 1) * block] = data
                space.save(key, pool, [page]).finish()
                if space.match(key).blocks and space.load(key, pool, [page + 1]).finish() and kv[(page + 1) * block:(page + 2) * block] != data:
                    wrong.append((t, i))

        threads = [threading.Thread(target=one, args=(t,)) for t in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(wrong, [])
        self.assertEqual(cache.sessions()[0]['saves'], 80)

    def test_a_look_up_is_polled_and_cancelled_by_many_threads(self):
        """One of them has the match, or - if it was cancelled first - none; the others are told that it is over, or not yet."""
        cache = self.open(max_op_blocks=2, max_ops=1)
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool, 12)
        interval = sys.getswitchinterval()
        self.addCleanup(sys.setswitchinterval, interval)
        sys.setswitchinterval(1e-6)
        for cancels in [False, True] * (1000 if os.environ.get('TN_SOAK') else 40):
            query, found, wrong = tenuto.match_begin([space], keys, pin=cancels), [], []
            go = threading.Barrier(4)

            def poll(cancel):
                go.wait()
                for _ in range(20):
                    try:
                        if cancel:
                            query.cancel()
                        match = query.poll()
                        if match:
                            found.append(match)
                    except tenuto.Error as e:
                        if 'over' not in str(e):
                            wrong.append(e)

            threads = [threading.Thread(target=poll, args=(cancels and t == 3,)) for t in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            blocks = [match.blocks for match in found]
            self.assertEqual((wrong, [] if cancels else blocks), ([], [] if cancels else [12]))
            self.assertLessEqual(len(found), 1)
            for match in found:
                match.unpin()
            with self.assertRaises(tenuto.Error):
                query.poll()
        tenuto.match_begin([space], keys).cancel()  # there is one at a time: none was left

    def test_other_threads_run_while_one_waits(self):
        cache = self.open()
        space, _, pool = self.raw(cache)
        event, key = cache.event(), space.keys([1])
        save = space.save(key, pool, [0])
        for layer in range(LAYERS):
            save.layer(layer, event, 1)
        save.commit()
        done = []
        waiter = threading.Thread(target=lambda: done.append(save.end()))
        waiter.start()
        event.raise_to(1)  # would never come if the waiter kept the GIL
        waiter.join(60)
        self.assertEqual(done[0].stored, 1)


if __name__ == '__main__':
    main(__name__)
