# SPDX-License-Identifier: Apache-2.0
"""Blocks by head group: what ranks of one TP size have saved ranks of each size load, and a share that is missing ends the prefix for all."""
import os
import signal
import struct
import subprocess
import sys

import tenuto
from case import SEED, Case, content, main

LAYERS, TOKENS, PAGES, DIM, BLOCKS = 3, 8, 2, 32, 4  # TOKENS per page, PAGES per block
KEY = tenuto.KEY_BYTES
PAGE_BYTES = TOKENS * DIM * 2  # of a head


class Rank:
    """A rank with pages [layers][K, V][pages][heads][page_tokens][head_dim], or [page_tokens][heads] within a page."""

    def __init__(self, cache, kv_heads, tp_size=1, tp_rank=0, order=tenuto.HND, **identity):
        self.heads, self.order, self.kv_heads = max(1, kv_heads // tp_size), order, kv_heads
        self.first = tp_rank * kv_heads // tp_size
        geometry = tenuto.Geometry(LAYERS, tenuto.kv_planes(self.heads, DIM, 16), TOKENS, PAGES, order)
        self.shares = cache.shares('model', geometry, kv_heads=kv_heads, tp_rank=tp_rank, tp_size=tp_size, **identity)
        self.kv = bytearray(BLOCKS * geometry.block_bytes)
        self.pool = self.shares.pool(cache.memory(self.kv), BLOCKS * PAGES, order=tenuto.POOL_PLANES_PAGES)
        self.keys = self.shares.keys(range(BLOCKS * TOKENS * PAGES))
        self.pages = range(BLOCKS * PAGES)

    def expected(self, seed):
        """Bytes of the rank's pages, of a model whose heads have the same whoever has them."""
        out = bytearray()
        for plane in range(2 * LAYERS):
            heads = [content(f'{seed} {plane} {self.first + h}', BLOCKS * PAGES * PAGE_BYTES) for h in range(self.heads)]
            for page in range(BLOCKS * PAGES):
                at = [head[page * PAGE_BYTES:(page + 1) * PAGE_BYTES] for head in heads]
                row = DIM * 2
                out += b''.join(at) if self.order == tenuto.HND else b''.join(a[t * row:(t + 1) * row] for t in range(TOKENS) for a in at)
        return bytes(out)

    def save(self, seed):
        self.kv[:] = self.expected(seed)
        return self.shares.save(self.keys, self.pool, self.pages).finish()

    def load(self):
        self.kv[:] = bytes(len(self.kv))
        return self.shares.load(self.keys, self.pool, self.pages).finish()


class SharesTest(Case):
    def test_ranks_of_each_size_load_what_each_size_has_saved(self):
        cache = self.open()
        for kv_heads in (8, 2):
            for order in (tenuto.HND, tenuto.NHD):
                for wrote in (1, 2, 4):
                    tenant = f'{kv_heads} {order} {wrote}'
                    for rank in range(wrote):
                        result = Rank(cache, kv_heads, wrote, rank, order, tenant=tenant).save(tenant)
                        self.assertEqual(result.stored + result.existing, BLOCKS, result)
                    for reads in (1, 2, 4, 8):
                        for rank in range(reads):
                            reader = Rank(cache, kv_heads, reads, rank, order, tenant=tenant)
                            self.assertEqual(reader.shares.match(reader.keys).blocks, BLOCKS)
                            self.assertEqual(reader.load(), BLOCKS)
                            self.assertTrue(reader.kv == reader.expected(tenant), (tenant, reads, rank))

    def test_a_block_is_found_once_every_rank_has_saved_its_shares(self):
        cache = self.open()
        ranks = [Rank(cache, 8, 4, i) for i in range(4)]
        for i, rank in enumerate(ranks):
            self.assertEqual(rank.shares.match(rank.keys).blocks, 0)
            rank.save('x')
        with ranks[0].shares.match(ranks[0].keys, pin=True) as found:
            self.assertEqual((found.blocks, found.pinned), (BLOCKS, True))
        whole = Rank(cache, 8)
        ranks[2].shares.spaces[1].drop_blocks(whole.keys[2 * KEY:3 * KEY])
        self.assertEqual(whole.shares.match(whole.keys).blocks, 2)
        self.assertEqual(whole.load(), 2)
        # What is missing is stored, and no more.
        save = whole.shares.save(whole.keys, whole.pool, whole.pages)
        whole.kv[:] = whole.expected('x')
        result = save.finish()
        self.assertEqual((result.stored, result.existing, save.outcome[2]), (1, 3, tenuto.SAVED_STORED))
        self.assertEqual(whole.load(), BLOCKS)
        self.assertTrue(whole.kv == whole.expected('x'))

    def test_layers_are_given_and_waited_for_one_by_one(self):
        cache, later = self.open(), []
        rank = Rank(cache, 8, 2, 1)
        rank.kv[:] = rank.expected('y')
        event = cache.event()
        with rank.shares.save(rank.keys, rank.pool, rank.pages) as save:
            self.assertEqual((save.blocks, save.ended, save.outcome), (BLOCKS, False, None))
            for layer in range(LAYERS):
                save.layer(layer, event, layer + 1)
            save.commit()
            with self.assertRaises(tenuto.Timeout):
                save.end(0)
            event.raise_to(LAYERS)
        self.assertEqual((save.ended, save.result.stored), (True, BLOCKS))
        rank.kv[:] = bytes(len(rank.kv))
        with rank.shares.load(rank.keys, rank.pool, rank.pages, input_tokens=100) as load:
            for layer in range(LAYERS):
                self.assertEqual(load.wait(layer, 60), BLOCKS)
                size = len(rank.kv) // LAYERS
                later.append(rank.kv[layer * size:(layer + 1) * size] == rank.expected('y')[layer * size:(layer + 1) * size])
            self.assertEqual((load.poll(), load.good), (BLOCKS, BLOCKS))
        self.assertEqual((later, load.ended, load.end()), ([True] * LAYERS, True, ()))

    def test_a_save_that_raises_or_lacks_a_layer_leaves_nothing(self):
        rank = Rank(self.open(), 8, 2, 0)
        with self.assertRaises(KeyError), rank.shares.save(rank.keys, rank.pool, rank.pages) as save:
            for layer in range(LAYERS):
                save.layer(layer)
            raise KeyError
        self.assertEqual(set(save.outcome), {tenuto.SAVED_NOT})
        with rank.shares.save(rank.keys, rank.pool, rank.pages) as save:
            save.layer(0)
        self.assertEqual((sum(save.result), rank.load()), (0, 0))

    def test_what_finds_no_place_leaves_nothing_under_way(self):
        cache = self.open(max_ops=3)
        rank = Rank(cache, 8, 2, 0)  # four groups
        with self.assertRaises(tenuto.Again):
            rank.shares.load(rank.keys, rank.pool, rank.pages)
        with self.assertRaises(tenuto.Again):
            rank.shares.save(rank.keys, rank.pool, rank.pages)
        one = Rank(cache, 8, 8, 0)
        self.assertEqual(one.save('z').stored, BLOCKS)
        rank.pool.close()

    def test_more_blocks_than_an_operation_takes_read_as_one(self):
        cache = self.open(max_op_blocks=3)
        Rank(cache, 8, 1).save('parts')
        for rank in range(2):
            half = Rank(cache, 8, 2, rank)
            self.assertEqual(half.load(), BLOCKS)
            self.assertTrue(half.kv == half.expected('parts'))

    def test_pages_of_a_sub_range_are_the_ranks(self):
        cache = self.open()
        for order in (tenuto.HND, tenuto.NHD):
            Rank(cache, 4, 1, 0, order, tenant=str(order)).save('sub')
            rank = Rank(cache, 4, 2, 1, order, tenant=str(order))
            rank.kv[:] = b'\xee' * len(rank.kv)
            self.assertEqual(rank.shares.load(rank.keys, rank.pool, rank.pages, first_page=3, npages=2).finish(), BLOCKS)
            page = PAGE_BYTES * rank.heads
            for i in range(BLOCKS * PAGES * 2 * LAYERS):
                at = slice(i * page, (i + 1) * page)
                wanted = rank.expected('sub')[at] if i % (BLOCKS * PAGES) in (3, 4) else b'\xee' * page
                self.assertTrue(rank.kv[at] == wanted, (order, i))

    def test_keys_of_hashes_are_those_of_the_ranks_pages(self):
        cache, hashes = self.open(), content('hashes', 32 * PAGES * BLOCKS)
        found = {Rank(cache, 8, tp, 0, order).shares.keys_from_hashes(hashes) for tp in (1, 8) for order in (tenuto.HND, tenuto.NHD)}
        self.assertEqual([len(keys) for keys in found], [BLOCKS * KEY])

    def test_latents_are_the_blocks_that_a_space_without_groups_has(self):
        cache = self.open()
        geometry = tenuto.Geometry(LAYERS, [(tenuto.PLANE_LATENT, 1, 64, 16)], TOKENS, PAGES)
        kv = bytearray(content('latent', 4 * geometry.block_bytes))
        space = cache.space('mla', geometry)
        keys = space.keys(range(4 * geometry.block_tokens))
        space.save(keys, cache.memory(kv).pool(geometry, npages=4 * PAGES), range(4 * PAGES)).finish()
        for tp in (1, 4):
            into = bytearray(len(kv))
            shares = cache.shares('mla', geometry, kv_heads=0, tp_size=tp, tp_rank=tp - 1)
            self.assertEqual((len(shares.all), shares.saves, shares.match(keys).blocks), (1, tp == 1, 4))
            self.assertEqual(shares.load(keys, shares.pool(cache.memory(into), 4 * PAGES), range(4 * PAGES)).finish(), 4)
            self.assertTrue(into == kv)

    def test_heads_that_fit_no_group_are_refused_with_what_to_do(self):
        cache = self.open()
        for kv_heads, tp, text in ((3, 2, 'one must divide the other'), (3, 3, 'give a most_tp that 3 divides')):
            with self.assertRaisesRegex(tenuto.InvalidValue, f'kv_heads {kv_heads} over tp_size {tp}.*{text}'):
                Rank(cache, kv_heads, tp)
        self.assertEqual([len(Rank(cache, 3, 3, i, most_tp=3).shares.all) for i in range(3)], [3] * 3)
        geometry = tenuto.Geometry(LAYERS, tenuto.kv_planes(2, DIM, 16), TOKENS, PAGES, tenuto.NHD)
        shares = cache.shares('model', geometry, kv_heads=2)
        with self.assertRaisesRegex(tenuto.InvalidValue, 'TN_PAGE_HND'):
            shares.pool(cache.memory(bytearray(geometry.block_bytes)), PAGES, order=tenuto.POOL_PAGES_PLANES)

    def test_a_rank_that_is_killed_between_its_shares_leaves_no_block(self):
        cache = self.open()
        socket = os.path.join(self.dir, 'socket')
        cache.serve(socket)
        half, whole = Rank(cache, 8, 2, 0), Rank(cache, 8)
        self.assertEqual(half.save('dead').stored, BLOCKS)
        code = ('import sys, time, tenuto; import test_shares as t; cache = tenuto.attach(sys.argv[1]); rank = t.Rank(cache, 8, 2, 1)\n'
                'rank.kv[:] = rank.expected("dead"); save = rank.shares.save(rank.keys, rank.pool, rank.pages)\n'
                'for part in save.parts[:2]: part.finish()\n'
                'save.parts[2].layer(0); print("half", flush=True); time.sleep(300)')
        child = subprocess.Popen([sys.executable, '-c', code, socket], stdout=subprocess.PIPE, text=True, cwd=os.path.dirname(__file__),
                                 env={**os.environ, 'TN_SEED': str(SEED)})
        self.assertEqual(child.stdout.readline(), 'half\n')
        self.assertEqual(whole.shares.match(whole.keys).blocks, 0)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        self.assertEqual((whole.shares.match(whole.keys).blocks, whole.load()), (0, 0))
        self.assertEqual([space.match(whole.keys).blocks for space in whole.shares.all], [BLOCKS] * 6 + [0] * 2)
        result = whole.save('dead')
        self.assertEqual((result.stored, result.failed), (BLOCKS, 0), result)
        self.assertEqual((half.load(), half.kv == half.expected('dead')), (BLOCKS, True))

    def test_a_reset_forgets_the_shares_of_all_ranks(self):
        cache = self.open()
        rank = Rank(cache, 8, 2, 0)
        other = Rank(cache, 8, 2, 1)
        rank.save('r')
        other.save('r')
        other.shares.reset(struct.pack('<QQ', 1, SEED))
        self.assertEqual((other.shares.match(other.keys).blocks, rank.shares.match(rank.keys).blocks), (0, BLOCKS))
        rank.shares.drop(60)
        self.assertEqual(rank.shares.match(rank.keys).blocks, 0)


if __name__ == '__main__':
    main(__name__)
