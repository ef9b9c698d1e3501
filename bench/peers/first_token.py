#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to first token of warm prompts after a restart, end to end in an engine: nothing kept, the engine's own disk tier, Tenuto.

Each way has a directory of its own, which one life of the engine has filled. Each round restarts the engine once for each way, in an order that is drawn anew, after the
files of the store have left the page cache; a life answers a short prompt that nobody has seen, then each of the warm prompts with one token, and the clock of the
caller counts. first_token_ways.py has the engines and their ways.

vLLM and LMCache are those of tests/engines/install.sh; Tenuto's package is a build directory's. A life that found fewer tokens than it should, or answered otherwise
than the engine without a store, is told in the report.
"""
import argparse
import json
import os
import platform
import random
import statistics
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path += [HERE, os.path.join(ROOT, 'scripts')]

import run as peers  # noqa: E402
import scratch  # noqa: E402
import worker  # noqa: E402
from first_token_ways import ENGINES, NOTHING  # noqa: E402


def round_of(engine, args, directories, number):
    told, draw = {}, random.Random(number)
    for way in draw.sample(list(directories), len(directories)):
        worker.drop(directories[way])
        lead = [draw.randrange(3, 500) for _ in range(args.chunk_tokens + 20)]
        told[way] = engine.life(way, directories[way], lead=lead)
    return told


def measured(args, kind, keep):
    """All rounds; keep() is told of those that there are after each one."""
    draw = random.Random(7)
    prompts = [[draw.randrange(3, 500) for _ in range(args.chunk_tokens * args.chunks + 20)] for _ in range(args.count)]
    top, rounds = scratch.make(args.dir), []
    try:
        with kind(args, prompts) as engine:
            directories = {way: os.path.join(top, str(i)) for i, way in enumerate(kind.ways)}
            for way in directories:
                os.mkdir(directories[way])
                engine.life(way, directories[way], filling=True)
            for number in range(args.rounds):
                rounds.append(round_of(engine, args, directories, number))
                keep(rounds)
                print(f'round {number + 1} of {args.rounds}: ' + ', '.join(f'{way} {1e3 * statistics.median(t["times"]):.1f} ms' for way, t in rounds[-1].items()),
                      file=sys.stderr, flush=True)
    finally:
        scratch.remove(top)
    return rounds


def table(args, kind, rounds):
    tokens, lines, others = args.chunk_tokens * args.chunks, [], (NOTHING, *kind.own)
    lines += ['| | ms | ' + ' | '.join(f'beside {o}' for o in others) + ' | slowest prompt, ms |', '|---' * (len(others) + 3) + '|']
    for way in kind.ways:
        middles = [statistics.median(r[way]['times']) for r in rounds]
        cells = ['{:.1f} ({:.1f} to {:.1f})'.format(*(1e3 * x for x in peers.median_and_interval(middles)))]
        for other in others:
            ratios = [m / statistics.median(r[other]['times']) for m, r in zip(middles, rounds)]
            cells.append('{:.2f} ({:.2f} to {:.2f})'.format(*peers.median_and_interval(ratios)) if way != other else '')
        cells.append(f'{1e3 * statistics.median(max(r[way]["times"]) for r in rounds):.1f}')
        lines.append(f'| {way} | ' + ' | '.join(cells) + ' |')
    short = {way: sum(c < tokens for r in rounds for c in r[way]['cached']) for way in kind.ways if way != NOTHING}
    wrong = {way: sum(a != b for r in rounds for a, b in zip(r[way]['tokens'], r[NOTHING]['tokens'])) for way in kind.ways if way != NOTHING}
    lines += ['', f'Prompts of which fewer than the {tokens:,} tokens were found, of {args.count * len(rounds)}: ' + ', '.join(f'{w} {n}' for w, n in short.items()) +
              '. First tokens other than the computed ones: ' + ', '.join(f'{w} {n}' for w, n in wrong.items()) + '.']
    return lines


def put(path, marks, lines):
    """The table between the marks of a document."""
    begin, end = f'<!-- {marks} -->\n', f'<!-- {marks}: end -->\n'
    with open(path, encoding='utf-8') as f:
        head, rest = f.read().split(begin)
    with open(path, 'w', encoding='utf-8') as f:
        f.write(head + begin + lines + end + rest.partition(end)[2])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--engine', choices=ENGINES, default='vllm')
    parser.add_argument('--engines', default=os.environ.get('ENGINES', os.path.expanduser('~/.cache/tenuto-engines')))
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--dir', default='/var/tmp', help='where the stores are made (/var/tmp): a file system on the disk to measure')
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--count', type=int, default=8, help='warm prompts')
    parser.add_argument('--chunk-tokens', type=int, help='tokens of a chunk of the tiers, or a page of SGLang (256, SGLang 64)')
    parser.add_argument('--chunks', type=int, help='chunks of a prompt, which has 20 tokens behind them; 4,096 tokens in all at most (15, SGLang 60)')
    parser.add_argument('--json', metavar='FILE', help='every run')
    parser.add_argument('--report', metavar='FILE', help='put the table between the marks of this file')
    args = parser.parse_args()
    kind = ENGINES[args.engine]
    args.build = os.path.abspath(args.build)
    args.package = os.path.join(args.build, 'python')
    args.host_bytes, args.disk_bytes = 512 << 20, '1GiB'
    args.chunk_tokens = args.chunk_tokens or kind.chunk_tokens
    args.chunks = args.chunks or kind.chunks
    if not os.path.exists(os.path.join(args.engines, kind.needs)):
        print(f'no {kind.versions} in {args.engines}')
        return 77
    result = {'date': time.strftime('%Y-%m-%d'), 'machine': f'{os.cpu_count()} CPUs, {platform.release()}, {platform.machine()}', 'versions': kind.versions,
              'prompts': args.count, 'tokens': args.chunk_tokens * args.chunks + 20, 'chunk_tokens': args.chunk_tokens}

    def keep(rounds):
        if args.json:
            with open(args.json, 'w', encoding='utf-8') as f:
                json.dump(result | {'rounds': rounds}, f, indent=1)

    rounds = measured(args, kind, keep)
    lines = peers.prose([f'{result["date"]}, {result["machine"]}; {kind.versions}, {args.count} prompts of {result["tokens"]:,} tokens, chunks of {args.chunk_tokens} tokens, '
                         f'{args.rounds} rounds.', '', *table(args, kind, rounds)])
    print(lines)
    if args.report:
        put(args.report, kind.marks, lines)
    return 0


if __name__ == '__main__':
    sys.exit(main())
