# SPDX-License-Identifier: Apache-2.0
"""Saves, look-ups and loads of more blocks than one operation takes (max_op_blocks): they read as one."""
import asyncio
import errno

import tenuto
from case import LAYERS, SEED, Case, content, main
from tenuto import futures

KEY = tenuto.KEY_BYTES
PART = 4  # max_op_blocks of most tests


class Parts(Case):
    def small(self, blocks=10, first=0, **options):
        """A cache of small operations, a space, memory for twice as many blocks, and the keys of a prompt that begins with token `first`."""
        cache = self.open(**{'max_op_blocks': PART, **options})
        space, kv, pool = self.raw(cache, 2 * blocks)
        self.size = blocks * space.geometry.block_bytes
        kv[:self.size] = content('parts', self.size)
        return cache, space, kv, pool, space.keys(range(first, first + blocks))

    def again(self, space, kv, pool, keys):
        """Loads all blocks into the second half; they are what was saved."""
        n = len(keys) // KEY
        kv[self.size:] = bytes(self.size)
        self.assertEqual(space.load(keys, pool, range(n, 2 * n)).finish(), n)
        self.assertEqual(kv[self.size:], kv[:self.size])

    def test_a_prompt_of_a_million_tokens_goes_through_one_save_and_one_load(self):
        blocks = 62500
        geometry = tenuto.Geometry(1, tenuto.kv_planes(heads=1, head_dim=4, elem_bits=16), page_tokens=16, pages_per_block=1)
        cache = tenuto.Cache(None, host_bytes=1 << 30, max_blocks=blocks, geometry=geometry)  # host memory: no disk has to be quick
        self.addCleanup(cache.close)
        space = cache.space('long', geometry)
        size = blocks * geometry.block_bytes
        self.assertEqual(geometry.block_tokens * blocks, 1000000)
        kv, back = bytearray(content('million', 1 << 20) * (size // (1 << 20) + 1))[:size], bytearray(size)
        for i in range(blocks):
            kv[i * geometry.block_bytes:i * geometry.block_bytes + 4] = i.to_bytes(4, 'little')
        keys = space.keys(range(1000000))
        result = space.save(keys, cache.memory(kv).pool(geometry, npages=blocks), range(blocks)).finish()
        self.assertEqual((result.host_only, sum(result[:5])), (blocks, blocks), result)
        with space.match(keys, pin=True, tiers=True) as found:
            self.assertEqual((found.blocks, found.host_blocks, set(found.tiers)), (blocks, blocks, {tenuto.TIER_HOST}))
            self.assertEqual(space.load(keys, cache.memory(back).pool(geometry, npages=blocks), range(blocks)).finish(), blocks)
        self.assertTrue(back == kv)  # no difference of megabytes is printed

    def test_layers_are_given_and_waited_for_across_parts(self):
        cache, space, kv, pool, keys = self.small()
        event = cache.event()
        with space.save(keys, pool, range(10)) as save:
            self.assertEqual((save.blocks, save.ended), (10, False))
            for layer in range(LAYERS):
                save.layer(layer, event, 1)
            save.commit()
            with self.assertRaises(tenuto.Timeout):
                save.end(0)
            event.raise_to(1)
        self.assertEqual((save.result.stored, save.outcome), (10, bytes([tenuto.SAVED_STORED]) * 10))
        with space.load(keys, pool, range(10, 20)) as load:
            self.assertEqual([load.wait(layer) for layer in range(LAYERS)], [10] * LAYERS)
            self.assertEqual((load.poll(0), load.good, load.blocks), (10, 10, 10))
            with self.assertRaisesRegex(tenuto.InvalidValue, 'max_op_blocks'):
                load.event(0)
        self.assertTrue(load.ended)
        self.assertEqual(kv[self.size:], kv[:self.size])

    def test_a_part_that_is_missing_ends_the_good_prefix(self):
        for gone, good in ((0, 0), (5, 5), (9, 9)):
            with self.subTest(gone=gone):
                _, space, kv, pool, keys = self.small()
                space.save(keys, pool, range(10)).finish()
                space.drop_blocks(keys[gone * KEY:(gone + 1) * KEY])
                self.assertEqual(space.match(keys).blocks, good)
                self.assertEqual(space.load(keys, pool, range(10, 20)).finish(), good)
            space.cache.close()

    def test_parts_wait_for_their_turn(self):
        cache, space, kv, pool, keys = self.small(blocks=22, max_ops=2)
        event = cache.event()
        save = space.save(keys, pool, range(22))
        for layer in range(LAYERS):
            save.layer(layer, event, 7)
        save.commit()
        with self.assertRaises(tenuto.Timeout):
            save.end(0.01)
        event.raise_to(7)
        self.assertEqual(save.end().stored, 22)
        with space.load(keys, pool, range(22, 44)) as load:
            self.assertEqual([load.wait(layer) for layer in range(LAYERS)], [22] * LAYERS)
        self.assertEqual(kv[self.size:], kv[:self.size])

    def test_a_part_of_a_save_reads_no_layer_before_its_event(self):
        cache, space, kv, pool, keys = self.small(blocks=22, max_ops=2)
        space.save(keys[:8 * KEY], pool, range(8)).finish()  # the first parts have nothing to wait for
        event, right = cache.event(), bytes(kv[:self.size])
        kv[:self.size] = bytes(self.size)
        save = space.save(keys, pool, range(22))
        for layer in range(LAYERS):
            save.layer(layer, event, 1)
        save.commit()
        with self.assertRaises(tenuto.Timeout):
            save.end(0.05)
        kv[:self.size] = right
        event.raise_to(1)
        result = save.end()
        self.assertEqual((result.stored, result.existing), (14, 8))
        self.again(space, kv, pool, keys)

    def test_what_others_keep_from_its_turn_is_told(self):
        _, space, kv, pool, keys = self.small(blocks=20, max_ops=2)
        held = [space.save(space.keys([99]), pool, [0])]  # one of two operations, as long as it likes
        self.assertEqual(space.save(keys, pool, range(20)).finish().stored, 20)
        self.again(space, kv, pool, keys)
        load = space.load(keys, pool, range(20, 40))
        self.assertEqual(load.wait(0, timeout=60), 20)
        held.append(space.save(space.keys([98]), pool, [0]) if load.end() == () else None)
        for begin in (space.load, space.save):
            with self.assertRaises(tenuto.Again):
                begin(keys, pool, range(20, 40))
        for save in held:
            save.abort()
            save.end()
        self.again(space, kv, pool, keys)

    def test_a_part_that_can_not_begin_later_is_a_miss_or_has_failed(self):
        _, space, _, pool, keys = self.small(blocks=12, max_ops=3)
        held = space.load(keys[:KEY], pool, [11])  # a page of the third part, and one of three operations
        save = space.save(keys, pool, range(12))
        result = save.finish()
        self.assertEqual((result.stored, result.failed, result.error), (8, 4, errno.EINVAL))
        self.assertEqual(save.outcome, bytes([tenuto.SAVED_STORED] * 8 + [tenuto.SAVED_FAILED] * 4))
        held.end()
        self.assertEqual(space.save(keys, pool, range(12)).finish().stored, 4)
        held = space.save(keys[:KEY], pool, [23])
        load = space.load(keys, pool, range(12, 24))
        self.assertEqual((load.wait(), load.good, load.finish()), (8, 8, 8))
        held.abort()
        held.end()

    def test_an_abort_leaves_nothing_of_any_part(self):
        for ops in (2, 64):
            with self.subTest(max_ops=ops):
                _, space, _, pool, keys = self.small(first=ops, max_ops=ops)
                save = space.save(keys, pool, range(10))
                for layer in range(LAYERS):
                    save.layer(layer)
                save.abort()
                self.assertEqual(sum(save.end()[:5]), 0)
                self.assertEqual(save.outcome, bytes(10))
                self.assertEqual(space.match(keys).blocks, 0)
                with self.assertRaisesRegex(RuntimeError, 'mine'), space.save(keys, pool, range(10)) as save:
                    raise RuntimeError('mine')
                self.assertTrue(save.ended)
                self.assertEqual(space.match(keys).blocks, 0)
                space.save(keys, pool, range(10))  # nobody keeps it
                self.assertEqual(space.save(keys, pool, range(10)).finish().stored, 10)
                space.cache.close()

    def test_a_cancelled_load_gives_all_pages_back(self):
        for ops in (2, 64):
            with self.subTest(max_ops=ops):
                _, space, kv, pool, keys = self.small(first=ops, max_ops=ops)
                space.save(keys, pool, range(10)).finish()
                load = space.load(keys, pool, range(10, 20))
                load.cancel()
                self.assertLessEqual(load.wait(), 10)
                self.assertEqual(load.end(), ())
                late = space.load(keys, pool, range(10, 20), timeout=0)
                self.assertLessEqual(late.finish(), 10)
                self.again(space, kv, pool, keys)
                space.cache.close()

    def test_a_page_that_is_given_twice_is_refused_and_nothing_was_begun(self):
        _, space, kv, pool, keys = self.small()
        space.save(keys, pool, range(10)).finish()
        with self.assertRaises(tenuto.InvalidValue):
            space.load(keys, pool, [*range(10, 19), 10])
        with self.assertRaises(tenuto.InvalidValue):
            space.save(keys, pool, [*range(9), 1000])
        self.again(space, kv, pool, keys)

    def test_only_the_pages_of_a_part_of_the_prompt_are_written(self):
        _, space, kv, pool, keys = self.small()
        space.save(keys, pool, range(10)).finish()
        block = space.geometry.block_bytes
        for first, n in ((0, 3), (3, 2), (5, 5), (9, 1), (2, 0)):
            kv[self.size:] = bytes(self.size)
            self.assertEqual(space.load(keys, pool, range(10, 20), first_page=first, npages=n).finish(), 10)
            end = first + n if n else 10
            self.assertEqual(kv[self.size + first * block:self.size + end * block], kv[first * block:end * block])
            self.assertEqual(kv[self.size:self.size + first * block], bytes(first * block))
            self.assertEqual(kv[self.size + end * block:], bytes((10 - end) * block))
        with self.assertRaises(tenuto.InvalidValue):
            space.load(keys, pool, range(10, 20), first_page=8, npages=3)

    def test_the_chain_goes_on_from_part_to_part(self):
        cache, space, _, pool, keys = self.small()
        _, cursor, _ = cache.block_events()
        space.save(keys, pool, range(10)).finish()
        parents = {e.key: e.parent for e in cache.block_events(cursor)[0] if e.stored and e.tier == tenuto.TIER_DISK}
        cut = [keys[i * KEY:(i + 1) * KEY] for i in range(10)]
        self.assertEqual([parents[k] for k in cut[1:]], cut[:-1])

    def test_a_lease_of_several_parts_holds_all_and_ends_once(self):
        cache, space, _, pool, keys = self.small(max_ops=1)
        space.save(keys, pool, range(10)).finish()
        for turn in range(3):  # of four leases each takes three
            with space.match(keys, pin=True) as found:
                self.assertEqual((found.blocks, found.pinned), (10, True))
                with self.assertRaises(tenuto.Again):
                    space.match(keys, pin=True)
                self.assertTrue(space.match(keys[:KEY], pin=True).pinned)  # what was taken before was given back
        found = tenuto.match_all([space], keys, pin=True)
        self.assertEqual((found.blocks, found.firsts, found.disk_blocks), (10, (0,), 10))
        found.unpin()
        self.assertFalse(found.pinned)
        query = tenuto.match_begin([space], keys, pin=True)
        found = query.poll()
        self.assertEqual((found.blocks, found.pinned), (10, True))
        found.unpin()
        self.assertEqual(space.match(keys, tiers=True).tiers, bytes([tenuto.TIER_DISK]) * 10)

    def test_windows_and_prefixes_agree_on_an_end(self):
        cache = self.open(max_op_blocks=PART)
        whole, _, pool = self.raw(cache, 16)
        window = cache.space('toy', whole.geometry, group=1, match_rule=tenuto.MATCH_WINDOW, window_tokens=2)
        state = cache.space('toy', whole.geometry, group=2, match_rule=tenuto.MATCH_EXACT)
        keys = whole.keys(range(12))
        whole.save(keys, pool, range(12)).finish()
        for last in (11, 7, 6, 1, 0):
            window.save(keys, pool, range(12)).finish()
            state.save(keys, pool, range(12)).finish()
            for i in range(last + 1, 12):
                window.drop_blocks(keys[i * KEY:(i + 1) * KEY])
            if last == 6:
                state.drop_blocks(keys[6 * KEY:7 * KEY])
            end = last + (last != 6)
            with tenuto.match_all([whole, window, state], keys, pin=True) as found:
                self.assertEqual((found.blocks, found.firsts), (end, (0, max(0, end - 2), end - 1)), (SEED, last))
                self.assertEqual(found.disk_blocks, end + min(end, 2) + 1)
            found = window.match(keys, tiers=True)
            self.assertEqual((found.blocks, found.first), (last + 1, max(0, last - 1)))
        window.drop_blocks(keys)
        self.assertEqual(tenuto.match_all([whole, window], keys, pin=True).blocks, 0)

    def test_an_attached_cache_knows_its_owners_limit(self):
        cache, space, kv, pool, keys = self.small()
        cache.serve(self.dir + '/sock')
        said = self.python('''
import sys, tenuto
cache = tenuto.attach(sys.argv[1])
g = tenuto.Geometry.raw(4, 8192)
space = cache.space('toy', g)
for kv in (bytearray(20 * g.block_bytes), tenuto.Buffer(20 * g.block_bytes)):
    v = memoryview(kv)
    pool = cache.memory(kv).pool(g, npages=20)
    keys = space.keys([*range(10)])
    for i in range(10 * g.block_bytes // 512):
        v[i * 512] = i % 251
    result = space.save(keys, pool, range(10)).finish()
    with space.match(keys, pin=True) as found:
        good = space.load(keys, pool, range(10, 20)).finish()
    plan = space.plan(space.match(keys, tiers=True), 100)
    print(result.stored + result.existing, found.blocks, plan['restore_blocks'], good, v[10 * g.block_bytes:] == v[:10 * g.block_bytes])
cache.close()
''', self.dir + '/sock')
        self.assertEqual(said.split('\n')[:2], ['10 10 10 10 True'] * 2)

    def test_closing_the_cache_ends_all_parts(self):
        for ops in (2, 64):
            with self.subTest(max_ops=ops):
                cache, space, _, pool, keys = self.small(first=ops, max_ops=ops)
                space.save(keys, pool, range(10)).finish()
                save = space.save(keys, pool, range(10))
                cache.close()
                for call in (save.finish, lambda: save.layer(0), save.commit):
                    with self.assertRaises(tenuto.Closed):
                        call()

    def test_futures_wait_for_all_parts(self):
        for ops in (2, 64):
            with self.subTest(max_ops=ops):
                cache, space, kv, pool, keys = self.small(blocks=22, first=100 * ops, max_ops=ops)

                async def both(cache=cache, space=space, pool=pool, keys=keys):
                    async with futures.Loop(cache) as loop:
                        save = space.save(keys, pool, range(22), tag=loop.tag())
                        for layer in range(LAYERS):
                            save.layer(layer)
                        save.commit()
                        saved = await asyncio.wait_for(loop.ended(save), 60)
                        load = space.load(keys, pool, range(22, 44), tag=loop.tag())
                        good = [await asyncio.wait_for(loop.layer(load, layer), 60) for layer in range(LAYERS)]
                        return saved.stored, good, await asyncio.wait_for(loop.ended(load), 60)

                self.assertEqual(asyncio.run(both()), (22, [22] * LAYERS, 22))
                self.assertEqual(kv[self.size:], kv[:self.size])
                watcher = futures.Watcher(cache)
                self.assertEqual(watcher.future(space.load(keys, pool, range(22, 44), tag=watcher.tag())).result(60), 22)
                watcher.close()
                cache.close()


if __name__ == '__main__':
    main(__name__)
