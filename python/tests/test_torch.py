# SPDX-License-Identifier: Apache-2.0
"""torch's own tensors as an engine's KV memory: they go and come whole; those that do not fit, and those that were freed, are an exception with a word that says why."""
import importlib.util
import unittest

import tenuto
from case import Case, main

if importlib.util.find_spec('torch'):
    import torch

LAYERS, PAGES, TOKENS, HEADS, DIM = 3, 6, 4, 2, 8
SHAPE = (2, PAGES, TOKENS, HEADS, DIM)


@unittest.skipIf(importlib.util.find_spec('torch') is None, 'torch missing: pip install .[hf]')
class Tensors(Case):
    def setUp(self):
        super().setUp()
        self.cache = self.open()
        self.geometry = tenuto.Geometry(LAYERS, tenuto.kv_planes(HEADS, DIM, 16), TOKENS, 1)

    def refuse(self, text, tensor):
        with self.assertRaisesRegex((ValueError, BufferError), text):
            self.cache.pool(self.geometry, [tensor] * LAYERS, 'pn')

    def test_they_go_and_come_whole(self):
        tensors = [torch.randn(SHAPE).to(torch.bfloat16) for _ in range(LAYERS)]
        kept, pool = [t.clone() for t in tensors], self.cache.pool(self.geometry, tensors, 'pn')
        space = self.cache.space('torch', self.geometry, kv_dtype='bf16')
        keys = space.keys(range(PAGES * TOKENS))
        self.assertEqual(space.save(keys, pool, range(PAGES)).finish().stored, PAGES)
        for t in tensors:
            t.zero_()
        self.assertEqual(space.load(keys, pool, range(PAGES)).finish(), PAGES)
        self.assertTrue(all(map(torch.equal, tensors, kept)))

    def test_a_wrong_dtype(self):
        self.refuse('elements of 32 bits, plane 0 of the geometry of 16', torch.zeros(SHAPE))

    def test_a_wrong_shape(self):
        self.refuse('page of the array has shape', torch.zeros((2, PAGES, HEADS, TOKENS, DIM), dtype=torch.bfloat16))

    def test_a_tensor_that_is_not_contiguous(self):
        other = torch.zeros((2, PAGES, HEADS, TOKENS, DIM), dtype=torch.bfloat16)
        self.refuse('not contiguous', other.transpose(2, 3))
        self.refuse('not contiguous', torch.zeros((*SHAPE[:-1], 2 * DIM), dtype=torch.bfloat16)[..., ::2])

    def test_memory_that_is_freed_under_a_pool(self):
        tensors = [torch.zeros(SHAPE, dtype=torch.bfloat16) for _ in range(LAYERS)]
        pool = self.cache.pool(self.geometry, tensors, 'pn')
        space = self.cache.space('torch', self.geometry)
        keys = space.keys(range(TOKENS))
        self.assertEqual(space.save(keys, pool, [0]).finish().stored, 1)
        tensors[1].untyped_storage().resize_(0)
        for begin in (space.save, space.load):
            with self.assertRaisesRegex(BufferError, 'has moved or was freed'):
                begin(keys, pool, [0])


if __name__ == '__main__':
    main(__name__)
