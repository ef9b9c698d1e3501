# SPDX-License-Identifier: Apache-2.0
"""Blocks between pools of random layouts, page sizes and TP sizes: the mapped lists move every byte that both ranks have, and no other."""
import importlib.util
import random
import struct
import unittest

import tenuto
from case import SEED, Case, main
from tenuto import xfer

LAYERS, HEAD_BYTES, TOKENS, NPAGES, FREE = 2, 8, 24, 12, 0xee
HEADS = 8  # of the model; with TP 16 two ranks have each

# By axes: the arrays of a pool, each with the layers and planes that it has.
AXES = {'pn': [(layer, None) for layer in range(LAYERS)], 'np': [(layer, None) for layer in range(LAYERS)],
        'n': [(layer, plane) for layer in range(LAYERS) for plane in range(2)], 'nlp': [(None, None)]}


def value(layer, plane, head, token):
    """What a head has of a token, the same in each pool."""
    return struct.pack('<BBHI', layer, plane, head, token)


def zeroed(kind, shape):
    """An array of bytes, and its memory."""
    size = 1
    for n in shape:
        size *= n
    if kind == 'torch':
        import torch
        array = torch.full(shape, FREE, dtype=torch.uint8)
        return array, memoryview(array.numpy().reshape(-1))
    if kind == 'numpy':
        import numpy
        array = numpy.full(shape, FREE, numpy.uint8)
        return array, memoryview(array.reshape(-1))
    memory = memoryview(bytearray([FREE] * size))
    return memory.cast('B', shape), memory


class Rank:
    """A rank's pool of random shape: its arrays, its share, and where a head's bytes of a token lie."""

    def __init__(self, rng, kind, tp, rank):
        self.first, self.heads = (rank * HEADS // tp, max(1, HEADS // tp))
        self.axes, self.page_tokens = rng.choice(list(AXES)), rng.choice((1, 4, 8, 16))
        self.order = rng.choice((tenuto.NHD, tenuto.HND))
        self.geometry = tenuto.Geometry(LAYERS, tenuto.kv_planes(self.heads, HEAD_BYTES // 2, 16), self.page_tokens, 1, self.order)
        page = self.geometry.page_bytes(0)
        self.npages = max(NPAGES, -(-TOKENS // self.page_tokens) + 2)
        sizes = {'l': LAYERS, 'p': 2, 'n': self.npages}
        made = [zeroed(kind, (*(sizes[a] for a in self.axes), page)) for _ in AXES[self.axes]]
        self.arrays, self.memory = [a for a, _ in made], [m for _, m in made]
        self.strides, step = {}, page
        for a in reversed(self.axes):
            self.strides[a] = step
            step *= sizes[a]
        nested = [self.arrays[2 * i:2 * i + 2] for i in range(LAYERS)] if self.axes == 'n' else self.arrays[0] if self.axes == 'nlp' else self.arrays
        self.share = tenuto.PoolShare.of(self.geometry, nested, self.axes, tp_size=tp, tp_rank=rank, kv_heads=HEADS)
        self.pages = rng.sample(range(self.npages), -(-TOKENS // self.page_tokens))

    def has(self):
        return range(self.first, self.first + self.heads)

    def place(self, layer, plane, head, token):
        """(memory, offset) of a head of the model."""
        which = next(i for i, (of_layer, of_plane) in enumerate(AXES[self.axes]) if of_layer in (None, layer) and of_plane in (None, plane))
        at, h, t = {'l': layer, 'p': plane, 'n': self.pages[token // self.page_tokens]}, head - self.first, token % self.page_tokens
        inside = t * self.heads + h if self.order == tenuto.NHD else h * self.page_tokens + t
        return self.memory[which], sum(at[a] * self.strides[a] for a in self.axes) + inside * HEAD_BYTES

    def each(self):
        return ((layer, plane, head, token) for layer in range(LAYERS) for plane in range(2) for head in self.has() for token in range(TOKENS))

    def fill(self):
        for what in self.each():
            memory, at = self.place(*what)
            memory[at:at + HEAD_BYTES] = value(*what)

    def check(self, test, tokens):
        """Each head has the first tokens, and nothing else was written."""
        for layer, plane, head, token in self.each():
            memory, at = self.place(layer, plane, head, token)
            wanted = value(layer, plane, head, token) if token < tokens else bytes([FREE] * HEAD_BYTES)
            if memory[at:at + HEAD_BYTES] != wanted:
                test.fail(f'layer {layer}, plane {plane}, head {head}, token {token}: {bytes(memory[at:at + HEAD_BYTES]).hex()}')
        written = sum(m.nbytes - bytes(m).count(FREE) for m in self.memory)
        expected = sum(HEAD_BYTES - value(*what).count(FREE) for what in self.each() if what[3] < tokens)
        test.assertEqual(written, expected, 'bytes outside the heads were written')


class LayoutTest(Case):
    def pair(self):
        """Two agents, of which the first knows the second."""
        agents = xfer.Agent('mine'), xfer.Agent('theirs')
        for agent in agents:
            self.addCleanup(agent.close)
        return agents

    def move(self, op, me, them, tokens):
        """Loads the metadata of all that is registered by now, and moves what both ranks have. Returns the number of runs."""
        mine, theirs = self.agents
        share = tenuto.PoolShare.from_bytes(them.share.to_bytes())
        local, remote = xfer.layout_map(me.share, share, me.pages, them.pages, tokens)
        self.assertEqual(len(local), len(remote))
        if not len(local):
            return 0
        peer = mine.load(theirs.metadata())
        with getattr(mine, op)(mine.list(local), mine.list(remote, peer=peer)) as request:
            request.post(10)
            request.wait(10)
        return len(local)

    def trial(self, rng, kind, op):
        mine_tp, their_tp = rng.choice((1, 2, 4, 8, 16)), rng.choice((1, 2, 4, 8, 16))
        me = Rank(rng, kind, mine_tp, rng.randrange(mine_tp))
        others = [Rank(rng, kind, their_tp, r) for r in range(their_tp)]
        self.agents[0].register(me.arrays)
        self.agents[1].register([a for other in others for a in other.arrays])
        tokens = rng.randint(1, TOKENS)
        for rank in [me] if op == 'write' else others:
            rank.fill()
        moved = [other for other in others if self.move(op, me, other, tokens)]
        self.assertEqual({h for other in moved for h in other.has()} & set(me.has()), set(me.has()))
        if op == 'read':
            me.check(self, tokens)
        elif mine_tp <= their_tp:
            for other in moved:
                other.check(self, tokens)
        self.agents[0].deregister(me.arrays)
        self.agents[1].deregister([a for other in others for a in other.arrays])

    def test_random_pools_have_equal_bytes_after_a_transfer(self):
        kinds = ['memoryview'] + [name for name in ('numpy', 'torch') if importlib.util.find_spec(name)]
        self.agents = self.pair()
        for kind in kinds:
            rng = random.Random(f'{SEED} {kind}')
            for i in range(12):
                with self.subTest(kind=kind, trial=i):
                    self.trial(rng, kind, ('read', 'write')[i % 2])

    def test_ranks_without_a_common_head_have_no_rows(self):
        rng = random.Random(SEED)
        one, other = Rank(rng, 'memoryview', 2, 0), Rank(rng, 'memoryview', 2, 1)
        self.assertEqual(xfer.layout_map(one.share, other.share, one.pages, other.pages, TOKENS), ([], []))
        self.assertEqual(one.share.map(other.share, one.pages, other.pages, TOKENS), [])

    def test_the_map_without_an_agent_has_the_same_runs(self):
        rng = random.Random(SEED)
        one, other = Rank(rng, 'memoryview', 4, 1), Rank(rng, 'memoryview', 2, 0)
        runs = one.share.map(other.share, one.pages, other.pages, TOKENS).tolist()
        local, remote = (side.tolist() for side in xfer.layout_map(one.share, other.share, one.pages, other.pages, TOKENS))
        self.assertEqual([(m, n, s, c) for m, _, s, _, n, c in runs], [(a, n, s, c) for a, n, _, s, c in local])
        self.assertEqual([(t, n, s, c) for _, t, _, s, n, c in runs], [(a, n, s, c) for a, n, _, s, c in remote])

    def test_a_share_is_the_same_after_its_bytes(self):
        share = Rank(random.Random(SEED), 'memoryview', 4, 3).share
        again = tenuto.PoolShare.from_bytes(share.to_bytes())
        self.assertEqual(again.to_bytes(), share.to_bytes())
        for name in ('geometry', 'npages', 'ranges', 'tp_size', 'tp_rank', 'kv_heads', 'device'):
            self.assertEqual(getattr(again, name), getattr(share, name), name)
        self.assertEqual((again.tp_size, again.tp_rank, again.kv_heads, again.device), (4, 3, HEADS, None))

    def test_what_is_wrong_is_named(self):
        one = Rank(random.Random(SEED), 'memoryview', 1, 0)
        data = one.share.to_bytes()
        for bad in (b'', data[:-1], data[:40] + bytes([data[40] ^ 1]) + data[41:]):
            with self.assertRaises(tenuto.Error):
                tenuto.PoolShare.from_bytes(bad)
        with self.assertRaisesRegex(tenuto.InvalidValue, 'kv_heads 3 over tp_size 2'):
            tenuto.PoolShare(one.geometry, one.share.ranges, one.npages, [0] * 4, [one.geometry.page_bytes(0)] * 2, 2, 0, 3)
        with self.assertRaisesRegex(ValueError, '3 offsets and 2 strides: 4'):
            tenuto.PoolShare(one.geometry, one.share.ranges, one.npages, [0] * 3, [one.geometry.page_bytes(0)] * 2, 1, 0, HEADS)
        with self.assertRaisesRegex(ValueError, 'kv_heads of the whole model'):
            tenuto.PoolShare.of(tenuto.Geometry(1, tenuto.kv_planes(1, 4, 16), 1, 1), [zeroed('memoryview', (2, 4, 8))[0]], tp_size=2)
        with self.assertRaisesRegex(tenuto.InvalidValue, 'page'):
            one.share.map(one.share, [one.npages], one.pages, 1)
        with self.assertRaisesRegex(ValueError, 'device 4294967296: at most 4294967295'):
            tenuto.PoolShare(one.geometry, one.share.ranges, one.npages, [0] * 4, [one.geometry.page_bytes(0)] * 2, 1, 0, HEADS, 1 << 32)
        state = tenuto.Geometry(LAYERS, [(tenuto.PLANE_STATE, 1, 64, 8)], 4, 1)
        pools = [tenuto.PoolShare(state, [(4096, 1 << 20)], 4, [0, 256 * 1024], [state.page_bytes(0)], size, 0, 2) for size in (1, 2)]
        with self.assertRaisesRegex(tenuto.InvalidValue, '.'):
            pools[0].map(pools[1], [0], [0], 4)

    def test_ranges_that_change_while_they_are_read_are_read_once(self):
        class Growing(list):
            lengths = 0

            def __len__(self):
                self.lengths += 1
                return 1 if self.lengths == 1 else 1 << 16

            def __getitem__(self, i):
                return super().__getitem__(0)

        one = Rank(random.Random(SEED), 'memoryview', 1, 0)
        share = tenuto.PoolShare(one.geometry, Growing([(4096, 1 << 24)]), one.npages, [0] * 4, [one.geometry.page_bytes(0)] * 2, 1, 0, HEADS)
        self.assertEqual(share.ranges, ((4096, 1 << 24),))


if __name__ == '__main__':
    main(__name__)
