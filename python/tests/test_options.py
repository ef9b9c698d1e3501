# SPDX-License-Identifier: Apache-2.0
"""Options of the adapters as texts, read as tenutod reads its settings: what cannot be meant is refused, with the option's name."""
import unittest

from case import main
from tenuto import options


class Options(unittest.TestCase):
    def refused(self, read, *values):
        for value in values:
            with self.subTest(value=value), self.assertRaisesRegex(ValueError, 'tenuto: some_name: .*(write|range|unit)'):
                read(value, 'some_name')

    def test_sizes_have_the_units_of_tenutod(self):
        for value, size in ((5, 5), ('0', 0), ('5B', 5), ('4096', 4096), ('64GB', 64 * 10**9), ('64GiB', 64 << 30), ('1.5GB', 1500000000), ('500MB', 500000000),
                            ('4KiB', 4096), ('3kB', 3000), ('2TiB', 2 << 40), ('1TB', 10**12), ('0.5MiB', 1 << 19)):
            self.assertEqual(options.size_of(value, 'x'), size, value)
        self.refused(options.size_of, '-1GiB', -1, '64', '64gb', '4 GiB', ' 4GiB', '4Gi', '4G', '1.3B', '1.', 'GiB', '', '1e9', 1.5, True, None, [1],
                     '99999999TiB', 1 << 64, '\u0664GiB')

    def test_flags_are_true_or_false(self):
        self.assertEqual([options.flag_of(v, 'x') for v in (True, False, 'true', 'false')], [True, False, True, False])
        self.refused(options.flag_of, 'True', 'no', '', '0', 0, 1, None)

    def test_counts_and_times(self):
        self.assertEqual([options.count_of(v, 'x') for v in (0, 64, '64', '8k', '1M', '1.5k')], [0, 64, 64, 8000, 1000000, 1500])
        self.refused(options.count_of, -1, '-1', '5G', '1.5', 'many', True, 2.0)
        self.refused(lambda v, name: options.count_of(v, name, 1), 0, '0')
        self.assertEqual([options.ms_of(v, 'x') for v in (0, '1000', 'never')], [0, 1000, 2**32 - 1])
        self.refused(options.ms_of, 'ever', '1k', -1)
        self.assertEqual([options.seconds_of(v, 'x') for v in (0, 2, 0.5, '10', '0.25')], [0, 2, 0.5, 10, 0.25])
        self.refused(options.seconds_of, -1, '-0.5', 'nan', 'inf', 'soon', None, True)

    def test_texts(self):
        self.assertEqual([options.text_of(v, 'x') for v in ('main', 7, '')], ['main', '7', ''])
        self.refused(options.text_of, None, True, ['a'])


if __name__ == '__main__':
    main(__name__)
