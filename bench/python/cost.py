#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cost.py PROGRAM [--rounds N]: what Python's calls cost beside C's. PROGRAM is bench/python/python-cost of a build directory; PYTHONPATH names the package.

Each round runs a process in C and one in Python, in turns, on stores of the same shape in one directory: medians of looking up 512 keys, and of loading 64
blocks of 8 x 64 KiB from disk, begin to end. Prints the median ratio over the rounds, with the smallest and the largest.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts'))

import scratch  # noqa: E402

MATCHED, LOADED, LAYERS, OBJECT = 512, 64, 8, 65536
BOUNDS = {'match': 2.0, 'load': 1.05}


def filled(cache, model, layers, size, n):
    import tenuto
    geometry = tenuto.Geometry.raw(layers, size)
    space = cache.space(model, geometry)
    pool = cache.memory(tenuto.Buffer(n * geometry.block_bytes)).pool(geometry, npages=n)
    keys = space.keys(range(n))
    space.save(keys, pool, range(n)).finish()
    return space, pool, keys


def one(directory, matches, loads):
    """The Python side: the two medians in ns."""
    from array import array

    import tenuto
    with tenuto.Cache(directory, instance='python', policy='lru', disk_bytes=256 << 20) as cache:
        space, _, keys = filled(cache, 'match', 1, 4096, MATCHED)
        times = []
        for _ in range(matches):
            begun = time.perf_counter_ns()
            found = space.match(keys)
            times.append(time.perf_counter_ns() - begun)
            assert found.blocks == MATCHED
        match = statistics.median(times)
        space, pool, keys = filled(cache, 'load', LAYERS, OBJECT, LOADED)
        pages, times = array('I', range(LOADED)), []
        for _ in range(loads):
            begun = time.perf_counter_ns()
            good = space.load(keys, pool, pages).finish()
            times.append(time.perf_counter_ns() - begun)
            assert good == LOADED
        print(match, statistics.median(times))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('program')
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--matches', type=int, default=2000, help='look-ups per process')
    parser.add_argument('--loads', type=int, default=40, help='loads per process')
    parser.add_argument('--json', action='store_true')
    parser.add_argument('--one', help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        return one(args.one, args.matches, args.loads)
    directory = scratch.make()
    counts = [str(args.matches), str(args.loads)]
    commands = {'c': [args.program, directory, *counts],
                'python': [sys.executable, __file__, args.program, '--one', directory, '--matches', counts[0], '--loads', counts[1]]}
    rounds = []
    try:
        for i in range(args.rounds):
            told = {}
            for side in sorted(commands, reverse=i % 2 == 1):
                out = subprocess.run(commands[side], capture_output=True, text=True, check=True).stdout
                told[side] = dict(zip(BOUNDS, map(float, out.split())))
            rounds.append(told)
    finally:
        scratch.remove(directory)
    worst = 0
    for what, bound in BOUNDS.items():
        ratios = sorted(r['python'][what] / r['c'][what] for r in rounds)
        middle = statistics.median(ratios)
        worst |= middle > bound
        if not args.json:
            c, python = (statistics.median(r[side][what] for r in rounds) / 1000 for side in ('c', 'python'))
            print(f'{what:6} C {c:9.1f} us   Python {python:9.1f} us   ratio {middle:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f}), at most {bound}')
    if args.json:
        print(json.dumps({'rounds': rounds}))
    return int(worst)


if __name__ == '__main__':
    sys.exit(main())
