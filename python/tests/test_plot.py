# SPDX-License-Identifier: Apache-2.0
"""Pictures of what the programs print: the numbers always, the drawing where matplotlib is."""
import importlib.util
import io
import json
import os
from contextlib import redirect_stderr

from case import Case, main
from tenuto import plot


def run(capacity, rate, **more):
    return {'policy': 'lru', 'capacity_blocks': capacity, 'hit_rate': rate, 'ranks': 1, **more}


def line(at, disk, host, saved):
    return {'time': at, 'metrics': {'tenuto_loaded_bytes_total{tier="disk"}': disk, 'tenuto_loaded_bytes_total{tier="host"}': host, 'tenuto_saved_bytes_total': saved}}


RUNS = [run(2000, 0.4), run(1000, 0.25), run(1000, 0.3, policy='default', ranks=8)]
TABLE = {'rows': [{'strategy': 'slack', 'hit_rate': h, 'writes': bool(w), 'bubble_ms': 10 * h + w} for w in (0, 1) for h in (0.9, 0.5)]}
LINES = [line(100.0, 0, 0, 5e9), line(101.0, 2e9, 1e9, 5e9), line(103.0, 2e9, 1e9, 9e9)]


class Plot(Case):
    def test_the_numbers_are_those_of_the_programs(self):
        self.assertEqual(plot.series_of_hits(RUNS), {'lru': [(1000, 0.25), (2000, 0.4)], 'default, 8 ranks': [(1000, 0.3)]})
        self.assertEqual(plot.series_of_bubble(TABLE), {'slack': [(0.5, 5), (0.9, 9)], 'slack, with writes': [(0.5, 6), (0.9, 10)]})
        self.assertEqual(plot.series_of_bandwidth(LINES), {'loads, disk': [(1, 2), (3, 0)], 'loads, host': [(1, 1), (3, 0)], 'saves': [(1, 0), (3, 2)]})
        self.assertEqual(plot.series_of_bandwidth([line(1, 9e9, 0, 0), line(2, 1e9, 0, 0)])['loads, disk'], [(1, 0)])  # another owner since

    def test_other_json_is_told_apart(self):
        for series, value in ((plot.series_of_hits, TABLE), (plot.series_of_bubble, RUNS[0]), (plot.series_of_bandwidth, RUNS[0])):
            with self.assertRaisesRegex(ValueError, 'no output of tenuto'):
                series(value if series == plot.series_of_bubble else [value])

    def written(self, name, *values):
        path = os.path.join(self.dir, name)
        with open(path, 'w', encoding='utf-8') as f:
            f.write('\n'.join(json.dumps(v, indent=1 if len(values) == 1 else None) for v in values))
        return path

    def test_every_picture_is_drawn(self):
        if not importlib.util.find_spec('matplotlib'):
            self.skipTest('matplotlib is not installed')
        files = {'hits': [self.written(f'{i}.json', r) for i, r in enumerate(RUNS)], 'bubble': [self.written('t.json', TABLE)],
                 'bandwidth': [self.written('lines', *LINES)]}
        for name, values in files.items():
            for suffix, head in (('png', b'\x89PNG'), ('svg', b'<?xml')):
                out = os.path.join(self.dir, f'{name}.{suffix}')
                self.assertEqual(plot.main([name, *values, '-o', out]), 0)
                with open(out, 'rb') as f:
                    self.assertEqual(f.read(len(head)), head)

    def test_what_is_wrong_is_said(self):
        for arguments, word in ((['hits', 'absent.json'], 'absent.json'), (['hits', self.written('bad', 1) + 'x'], 'badx'),
                                (['bubble', self.written('a', TABLE), self.written('b', TABLE)], '2 tables'),
                                (['bandwidth', self.written('c', LINES[0])], 'one line alone')):
            with redirect_stderr(io.StringIO()) as said:
                self.assertEqual(plot.main([*arguments, '-o', os.path.join(self.dir, 'x.png')]), 2)
            self.assertIn(word, said.getvalue())


if __name__ == '__main__':
    main(__name__)
