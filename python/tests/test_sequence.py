# SPDX-License-Identifier: Apache-2.0
"""Sequences: tokens as they are produced, and the lives of their blocks."""
import tenuto
from case import Case, main


class Sequences(Case):
    def setUp(self):
        super().setUp()
        self.cache = self.open()
        self.space = self.cache.space('toy', tenuto.Geometry(2, tenuto.kv_planes(2, 32, 16), 16, 2))
        self.tokens = self.space.geometry.block_tokens
        kv = bytearray(8 * self.space.geometry.block_bytes)
        self.pool = self.cache.memory(kv).pool(self.space.geometry, npages=16)

    def completed(self, n, salt=b''):
        sequence = tenuto.Sequence(self.space)
        sequence.init(salt)
        for i in range(n):
            self.assertEqual(sequence.add(range(i * self.tokens, (i + 1) * self.tokens + 5)), self.tokens)
            sequence.commit()
        return sequence

    def test_blocks_are_registered_once_and_counted_as_duplicates_then(self):
        for expected in ((3, 0), (3, 3)):
            sequence = self.completed(3, b'salt')
            self.assertEqual(sequence.keys(), self.space.keys(range(3 * self.tokens), b'salt'))
            save = self.space.save(sequence.keys(), self.pool, range(6))
            save.finish()
            self.assertEqual(sequence.register(3, save.outcome), expected)
            self.assertEqual((sequence.blocks, sequence.registered, sequence.duplicates), (3, 3, expected[1]))
        sequence.drop()
        self.assertEqual(sequence.blocks, 0)

    def test_what_is_forbidden_is_refused(self):
        sequence = tenuto.Sequence(self.space)
        for call in (lambda: sequence.add([1]), sequence.commit, lambda: sequence.register(1), lambda: sequence.reset(0), sequence.drop):
            self.assertRaises(tenuto.InvalidValue, call)
        with self.assertRaisesRegex(ValueError, 'outcome'):
            self.completed(1).register(1, b'12')

    def test_a_sequence_outlives_its_cache_and_says_so(self):
        sequence = self.completed(1)
        self.space.save(sequence.keys(), self.pool, range(2)).finish()
        self.assertEqual(sequence.register(1)[0], 1)
        self.cache.close()
        self.assertRaises(tenuto.Error, sequence.drop)
        self.assertRaises(tenuto.Error, sequence.keys)
        self.assertEqual(sequence.blocks, 0)


if __name__ == '__main__':
    main(__name__)
