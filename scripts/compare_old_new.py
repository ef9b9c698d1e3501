#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare_old_new.py OLD NEW: two build directories measured alternately, in one run.

Each round runs every benchmark once with either build, the old one first in every other round; what the machine does meanwhile
befalls both. Per figure: the median over the rounds of new against old in the same round, and the interval of that median (95 %, by
order statistics; with fewer than six rounds all that was seen). Every ratio is turned so that above 1 the new build is
better. Exit code 1 if the interval of any ratio lies wholly below the limit.

Benchmarks (--only): store (saves and loads of whole blocks, on tmpfs unless --dir says otherwise), submit, match, restores (p50
and p99, beside writes and without), and replay (a trace with real bytes, the conversation trace of docs/benchmarks.md). At the priority of everybody else on a shared machine the ratios tell little: use
"chrt -f 5 scripts/compare_old_new.py ...".
"""
import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys

import scratch


def store(result):
    for row in result['rows']:
        what = '%s of %d KiB' % ('save' if row['op'] == 'write' else 'load', row['object_bytes'] >> 10)
        yield 'store: GB/s, ' + what, row['gbps']
        yield 'store: CPU seconds per GB, ' + what, 1 / row['cpu_s_per_gb']


def submit(result):
    for row in result['rows']:
        where = '%d blocks, %d executors' % (row['blocks'], row['executors'])
        for figure in ('begin_us', 'resolve_us', 'layer_us', 'first_ms', 'last_ms'):
            yield 'submit: %s, %s' % (figure, where), 1 / row[figure]
        yield 'submit: begin and resolve, ' + where, 1 / (row['begin_us'] + row['resolve_us'])


def match(result):
    for part in ('p50', 'p90', 'p99'):
        yield 'match: ns per key, ' + part, 1 / result['ns_per_key_' + part]
    yield 'match: index bytes per block', 1 / result['index_bytes_per_block']


def restores(result):
    for row in result['rows']:
        for part in ('p50_ms', 'p99_ms'):
            writes = 'with writes' if row['writes'] else 'without writes'
            yield 'restores: %s, %s, %s' % (row['strategy'], writes, part), 1 / row[part]


def replay(result):
    yield 'replay: seconds', 1 / result['wall_seconds']
    yield 'replay: CPU seconds', 1 / result['cpu_seconds']
    yield 'replay: hit rate', result['hit_rate']


def benchmarks(args, directory):
    """name: (command line, what to take from its JSON). lru: other policies draw random samples, so that work differs per run."""
    where = ['--dir', args.dir] if args.dir else []
    return {
        'store': (['bench', 'store', '--object', '32KiB', '--object', '512KiB', '--pairs', '3', '--no-tmpfs', '--dir',
                   args.dir or '/dev/shm'], store),
        'submit': (['bench', 'submit', '--rounds', '10'] + where, submit),
        'match': (['bench', 'match', '--entries', '4M', '--rounds', '500'], match),
        'restores': (['bench', 'pipeline', '--mode', 'restores', '--layers', '8', '--repeat', '1', '--restores',
                      str(args.restores)] + where, restores),
        'replay': (['replay', args.trace, '--geometry', '8x16KiB', '--capacity-blocks', '10000', '--policy',
                    'lru', '--limit', str(args.requests), '--dir', os.path.join(directory, 'store')], replay),
    }


def run(build, command, directory):
    store = os.path.join(directory, 'store')
    shutil.rmtree(store, ignore_errors=True)
    os.mkdir(store)
    program = os.path.join(build, 'cli', 'tenuto')
    done = subprocess.run([program] + command + ['--json'], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit('%s %s: exit code %d\n%s' % (program, ' '.join(command), done.returncode, done.stderr[-2000:]))
    return json.loads(done.stdout)


def interval(values):
    """Of the median: the narrowest pair of ranks that has it inside with 95 %."""
    n, outside, k = len(values), 0.0, 0
    while k < n // 2 and outside + math.comb(n, k) * 0.5 ** n <= 0.025:
        outside += math.comb(n, k) * 0.5 ** n
        k += 1
    ordered = sorted(values)
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


def report(ratios, limit):
    below = 0
    for name, values in ratios.items():
        low, high = interval(values)
        below += high < limit
        print('%-60s %6.3f  %.3f - %.3f%s' % (name, statistics.median(values), low, high, '  BELOW' if high < limit else ''))
    print('%d of %d ratios wholly below %g' % (below, len(ratios), limit))
    return below


def measure(args, names, directory):
    ratios = {}
    for number in range(args.rounds):
        for name in names:
            command, figures = benchmarks(args, directory)[name]
            got = {}
            for build in (args.old, args.new) if number % 2 == 0 else (args.new, args.old):
                got[build] = dict(figures(run(build, command, directory)))
            for figure, value in got[args.new].items():
                if got[args.old].get(figure):
                    ratios.setdefault(figure, []).append(value / got[args.old][figure])
        print('round %d of %d' % (number + 1, args.rounds), file=sys.stderr)
    return ratios


def main():
    names = ['store', 'submit', 'match', 'restores', 'replay']
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('old', help='build directory of the old revision')
    parser.add_argument('new', help='build directory of the new revision')
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--only', default=','.join(names), help='some of ' + ', '.join(names))
    parser.add_argument('--trace', help='for replay; without it there is none')
    parser.add_argument('--dir', help='for store, submit and restores: where to measure, instead of their default')
    parser.add_argument('--restores', type=int, default=100, help='per round and row')
    parser.add_argument('--requests', type=int, default=1000, help='of the trace')
    parser.add_argument('--limit', type=float, default=0.98)
    args = parser.parse_args()
    if args.old == args.new:
        parser.error('twice the same build')
    chosen = [n for n in args.only.split(',') if n != 'replay' or args.trace]
    if not chosen or not set(chosen) <= set(names):
        parser.error('--only: nothing that there is')
    directory = scratch.make(args.dir)
    try:
        ratios = measure(args, chosen, directory)
    finally:
        scratch.remove(directory)
    sys.exit(report(ratios, args.limit) > 0)


if __name__ == '__main__':
    main()
