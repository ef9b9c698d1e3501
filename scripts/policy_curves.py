#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figure and the tables of docs/policy.md, from `tenuto replay --no-io`.

    scripts/policy_curves.py figure TRACE.jsonl -o docs/policy.svg
    scripts/policy_curves.py table TRACE.jsonl... [--capacities 1000,5000]
    scripts/policy_curves.py floor TRACE.jsonl... [--capacities 1000,5000]

figure draws hits against capacity. table prints Markdown: hits, and blocks inserted as a share of what LRU inserts
at the same capacity; without --capacities at 1, 2, 5, 10 and 20 percent of a trace's distinct blocks. floor compares default
with the best of the simple policies; without --capacities at 0.2 to 40 percent.
"""
import argparse
import json
import math
import pathlib
import subprocess
import sys

FIGURE_POLICIES = {  # label, colour, dash, where its label goes (capacity, pixels right, pixels down)
    'belady': ('Belady (knows the future)', '#777777', '6 4', (2000, -186, -6)),
    'default': ('default', '#0b62a4', '', (3000, -70, -8)),
    's3fifo': ('S3-FIFO', '#c25a00', '2 3', (20000, 16, 16)),
    'lru': ('LRU', '#3a8a3a', '8 3 2 3', (2000, 22, 14)),
}
TABLE_POLICIES = ('fifo', 'lru', 's3fifo', 'default', 'belady')
CAPACITIES = (250, 500, 1000, 2000, 3000, 5000, 7000, 10000, 15000, 20000, 30000, 50000, 70000)
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 460, 76, 24, 736, 400


def replay(tenuto, trace, policy, capacity):
    command = [tenuto, 'replay', str(trace), '--no-io', '--json', '--policy', policy]
    if capacity:
        command += ['--capacity-blocks', str(capacity)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True)
    if done.returncode:
        sys.exit(f'{" ".join(command)}: exit code {done.returncode}')
    return json.loads(done.stdout)


def figure(args):
    curves, unlimited = {}, replay(args.tenuto, args.traces[0], 'lru', 0)
    for policy in FIGURE_POLICIES:
        curves[policy] = [(c, replay(args.tenuto, args.traces[0], policy, c)['hit_blocks']) for c in CAPACITIES]
        print(policy, curves[policy], file=sys.stderr)
    top = math.ceil(unlimited['hit_blocks'] / 20000) * 20000

    def x(capacity):
        low, high = math.log(CAPACITIES[0]), math.log(CAPACITIES[-1])
        return LEFT + (math.log(capacity) - low) / (high - low) * (RIGHT - LEFT)

    def y(hits):
        return BOTTOM - hits / top * (BOTTOM - TOP)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
           'font-size="13">',
           '<title>Hits against capacity, by policy</title>',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for hits in range(0, top + 1, 20000):
        out.append(f'<line x1="{LEFT}" x2="{RIGHT}" y1="{y(hits):.1f}" y2="{y(hits):.1f}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(hits) + 4:.1f}" text-anchor="end" fill="#333">{hits:,}</text>')
    for capacity in (250, 500, 1000, 2000, 5000, 10000, 20000, 50000):
        out.append(f'<line x1="{x(capacity):.1f}" x2="{x(capacity):.1f}" y1="{TOP}" y2="{BOTTOM}" stroke="#e4e4e4"/>')
        out.append(f'<text x="{x(capacity):.1f}" y="{BOTTOM + 20}" text-anchor="middle" fill="#333">{capacity:,}</text>')
    out.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 44}" text-anchor="middle" fill="#333">'
               'capacity in blocks (logarithmic)</text>')
    out.append(f'<text transform="translate(16 {(TOP + BOTTOM) / 2}) rotate(-90)" text-anchor="middle" fill="#333">'
               f'hit blocks of {unlimited["blocks"]:,}</text>')
    for policy, (label, colour, dash, (at, right, down)) in FIGURE_POLICIES.items():
        points = ' '.join(f'{x(c):.1f},{y(h):.1f}' for c, h in curves[policy])
        out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2" '
                   f'stroke-dasharray="{dash or "none"}"/>')
        out.append(f'<text x="{x(at) + right:.1f}" y="{y(dict(curves[policy])[at]) + down:.1f}" fill="{colour}" '
                   f'font-weight="bold">{label}</text>')
    out.append('</svg>\n')
    args.output.write_text('\n'.join(out), encoding='ascii')


def table(args):
    print('| trace | blocks | ' + ' | '.join(TABLE_POLICIES) + ' | inserted: ' +
          ', '.join(p for p in TABLE_POLICIES if p not in ('lru', 'belady')) + ' |')
    print('|---|---:|' + '---:|' * len(TABLE_POLICIES) + '---|')
    for trace in args.traces:
        capacities = args.capacities
        if not capacities:
            distinct = replay(args.tenuto, trace, 'lru', 0)['distinct_blocks']
            capacities = [int(distinct * share) for share in (.01, .02, .05, .1, .2)]
        for capacity in capacities:
            rows = {p: replay(args.tenuto, trace, p, capacity) for p in TABLE_POLICIES}
            written = [f'{rows[p]["blocks_written"] / rows["lru"]["blocks_written"]:.3f}'
                       for p in TABLE_POLICIES if p not in ('lru', 'belady')]
            print(f'| {trace.stem} | {capacity:,} | ' +
                  ' | '.join(f'{rows[p]["hit_blocks"]:,}' for p in TABLE_POLICIES) +
                  f' | {", ".join(written)} |', flush=True)


def floor(args):
    print('| trace | blocks | best simple policy | default | share | at least 0.99 less 0.1 % of the look-ups |')
    print('|---|---:|---:|---:|---:|---|')
    for trace in args.traces:
        capacities = args.capacities
        if not capacities:
            distinct = replay(args.tenuto, trace, 'lru', 0)['distinct_blocks']
            capacities = [int(distinct * share) for share in (.002, .005, .01, .02, .05, .1, .2, .4)]
        for capacity in capacities:
            best, name = max((replay(args.tenuto, trace, p, capacity)['hit_blocks'], p) for p in ('fifo', 'lru', 's3fifo'))
            row = replay(args.tenuto, trace, 'default', capacity)
            if best < 1000:
                continue
            holds = row['hit_blocks'] >= .99 * best - .001 * row['blocks']
            print(f'| {trace.stem} | {capacity:,} | {name} {best:,} | {row["hit_blocks"]:,} | {row["hit_blocks"] / best:.3f} | '
                  f'{"yes" if holds else "no"} |', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('what', choices=('figure', 'floor', 'table'))
    parser.add_argument('traces', nargs='+', type=pathlib.Path, metavar='TRACE.jsonl')
    parser.add_argument('-o', '--output', type=pathlib.Path, default=pathlib.Path('policy.svg'))
    parser.add_argument('--capacities', type=lambda s: [int(c) for c in s.split(',')])
    parser.add_argument('--tenuto', default='build/cli/tenuto', help='the program (default: build/cli/tenuto)')
    args = parser.parse_args()
    {'figure': figure, 'floor': floor, 'table': table}[args.what](args)


if __name__ == '__main__':
    main()
