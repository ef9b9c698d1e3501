#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""crossover.py --dir DIR [--read-mb-s N] [--pairs N] [--seed N]: is the choice between restoring a prefix and computing it right? In transformers, on CPUs.

A first process computes random prompts with tenuto.hf, stores them, and keeps what it has learned. A second one begins with that table. It takes random pairs of
input tokens and prefix tokens, and measures the time to the first token of each in three ways, in turns: computed, restored as a whole, and as planned. A choice
is right if it took no longer than the better one of the other two. Where these are within --even of each other either is right, as nobody can tell which is better;
a choice within --even of the better one is right as well. All ways must give the same token.

DIR is on the disk that is measured, and has to be slow enough that computing pays. --read-mb-s makes such a disk there (slow_disk.py; needs root).
"""
import argparse
import contextlib
import json
import logging
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

from slow_disk import SlowDisk

BLOCK, PREFIXES, INPUTS = 64, (128, 5120), (16, 256)
# Much attention and few KV heads: a token behind a long prefix takes many times as long to compute as one behind a short one, and as long to read.
LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 3, 128, 8, 2, 64
LEARN, TRIES = 60, 2  # requests of the first process; of each way, of which the shortest counts: other processes only make it longer
WAYS = ('computed', 'restored', 'planned')


# ---- the processes ------------------------------------------------------------------------------------------------------------------------------


def made(threads):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=4096, hidden_size=HIDDEN, intermediate_size=2 * HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
                         num_key_value_heads=KV_HEADS, head_dim=HEAD_DIM, max_position_embeddings=2 * (PREFIXES[1] + INPUTS[1]))
    return LlamaForCausalLM(config).eval()


def prompt(prefix, tokens, seed):
    """The first `prefix` tokens are those of all prompts, the others its own."""
    import torch
    common = torch.randint(4096, (1, prefix), generator=torch.Generator().manual_seed(0))
    return torch.cat([common, torch.randint(4096, (1, tokens), generator=torch.Generator().manual_seed(seed))], 1)


def drawn(dice, ends):
    return round(ends[0] * (ends[1] / ends[0]) ** dice.random())


def pair(dice):
    """Lengths whose logarithms are uniform: input tokens, prefix tokens in whole blocks."""
    return drawn(dice, INPUTS), max(1, drawn(dice, PREFIXES) // BLOCK) * BLOCK


def learn(args, cache, model):
    """Requests as they come: some begin with what is stored, some with other tokens."""
    import torch

    from tenuto.hf import Prefixes, past
    dice = random.Random(f'{args.seed} learn')
    with torch.no_grad(), Prefixes(cache, model.config, 'crossover', pages_per_block=BLOCK // 16) as store:
        store.prefill(model, prompt(PREFIXES[1], 1, 0))
        cache.flush()
        for i in range(LEARN):
            tokens, prefix = pair(dice)
            ids = prompt(prefix if i % 2 else 0, tokens if i % 2 else tokens + prefix, i + 1)
            kv, _ = store.prefill(model, ids)
            model(input_ids=ids[:, kv.get_seq_length():], **past(model, kv), use_cache=True, logits_to_keep=1)


def timed(way, store, model, ids):
    """Seconds to the first token, the token, and tokens restored."""
    from transformers.cache_utils import DynamicCache

    from tenuto.hf import past
    begun, restored = time.perf_counter(), 0
    if way == 'computed':
        kv = DynamicCache(config=model.config)
    else:
        kv, restored = store.restore(ids, lazy=True)
    out = model(input_ids=ids[:, restored:], **past(model, kv), use_cache=True, logits_to_keep=1)
    token = int(out.logits[0, -1].argmax())
    return time.perf_counter() - begun, token, restored


def measure(args, cache, model):
    import torch

    from tenuto.hf import Prefixes
    dice = random.Random(f'{args.seed} measure')
    stores = {'planned': Prefixes(cache, model.config, 'crossover', pages_per_block=BLOCK // 16),
              'restored': Prefixes(cache, model.config, 'crossover', pages_per_block=BLOCK // 16, plan='off')}
    rows = []
    with torch.no_grad():
        for way in WAYS:  # what a process does once; and the disk's speed is not known before the first restore
            timed(way, stores.get(way), model, prompt(PREFIXES[1], INPUTS[0], 1))
        for i in range(args.pairs):
            tokens, prefix = pair(dice)
            ids, row = prompt(prefix, tokens, 1000 + i), {'input': tokens, 'prefix': prefix}
            space = stores['planned'].space
            plan = space.plan(space.match(stores['planned'].keys(ids)), tokens)
            row['expected'] = [plan[k] / 1e9 for k in ('recompute_all_ttft_ns', 'restore_all_ttft_ns', 'ttft_ns')]
            tries = [{way: timed(way, stores.get(way), model, ids) for way in dice.sample(WAYS, len(WAYS))} for _ in range(TRIES)]
            row |= {way: min(t[way] for t in tries) for way in WAYS}
            rows.append(row)
    print(json.dumps(rows))


def measure_disk(args, store):
    """Leaves the disk's speed in the store's directory. Beside other programs a measurement may be far off that of the disk that was made: then once more."""
    for _ in range(5):
        subprocess.run([args.tenuto, 'bench', 'mix', '--seconds', '3', '--size', '64MiB', store], check=True, stdout=subprocess.DEVNULL)
        with open(os.path.join(store, 'tenuto.mix'), encoding='ascii') as file:
            read_bps = next(int(line.split()[1]) for line in file if line.startswith('read_bps '))
        print(f'# reads {read_bps / 1e6:.1f} MB/s', file=sys.stderr)
        if not args.read_mb_s or abs(read_bps / 1e6 / args.read_mb_s - 1) < 0.15:
            return
    sys.exit(f'{args.dir} reads {read_bps / 1e6:.1f} MB/s in place of {args.read_mb_s}: other programs need the CPUs; run it again')


def child(args, role):
    command = [sys.executable, __file__, '--role', role] + [f'--{k.replace("_", "-")}={v}' for k, v in vars(args).items()
                                                            if k in ('dir', 'pairs', 'seed', 'threads')]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return done.stdout


# ---- the result ----------------------------------------------------------------------------------------------------------------------------------


def verdict(row, even):
    """'right', 'even' (either is) or 'wrong'."""
    computed, restored, planned = (row[way][0] for way in WAYS)
    kept = row['planned'][2]
    chosen = computed if kept == 0 else restored if kept == row['prefix'] else planned
    best = min(computed, restored)
    if max(computed, restored) <= best * (1 + even):
        return 'even'
    return 'right' if chosen <= best * (1 + even) else 'wrong'


def report(args, rows):
    verdicts = [verdict(row, args.even) for row in rows]
    same = all(len({row[way][1] for way in WAYS}) == 1 for row in rows)
    none, part = sum(r['planned'][2] == 0 for r in rows), sum(0 < r['planned'][2] < r['prefix'] for r in rows)
    right = 1 - verdicts.count('wrong') / len(rows)
    sums = {way: sum(row[way][0] for row in rows) for way in WAYS}
    best = sum(min(row[way][0] for way in WAYS[:2]) for row in rows)
    error = [statistics.median(abs(row['expected'][i] / row[way][0] - 1) for row in rows) for i, way in enumerate(WAYS[:2])]
    if args.json:
        print(json.dumps({'rows': rows, 'verdicts': verdicts, 'right': right, 'same_tokens': same, 'seconds': sums, 'best_seconds': best}))
    else:
        print(f'{len(rows)} pairs: right {verdicts.count("right")}, even {verdicts.count("even")}, wrong {verdicts.count("wrong")}: {100 * right:.1f} % (bar 95); '
              f'computed {none}, in part {part}, restored as a whole {len(rows) - none - part}; tokens {"equal" if same else "DIFFERENT"}')
        print('all pairs: ' + ', '.join(f'{way} {sums[way]:.1f} s' for way in WAYS) + f'; the better of the first two each time {best:.1f} s')
        print(f'estimates off by (median): compute {100 * error[0]:.0f} %, restore {100 * error[1]:.0f} %')
    return 0 if same and right >= 0.95 else 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n')[0])
    parser.add_argument('--dir', required=True, help='empty directory on the disk that is measured')
    parser.add_argument('--read-mb-s', type=float, help='make a disk at DIR that reads so many MB/s')
    parser.add_argument('--pairs', type=int, default=200)
    parser.add_argument('--seed', type=int, default=1)
    parser.add_argument('--threads', type=int, default=1, help='of torch (1)')
    parser.add_argument('--even', type=float, default=0.1, help='times that differ by less are noise (0.1)')
    parser.add_argument('--tenuto', default=shutil.which('tenuto'), help='program with which the disk is measured first (that of PATH, if there is one)')
    parser.add_argument('--json', action='store_true')
    parser.add_argument('--role', choices=['learn', 'measure'], help=argparse.SUPPRESS)
    args = parser.parse_args()
    os.environ['TENUTO_SLACK_DIR'] = os.path.join(args.dir, 'slack')
    if args.role:
        import tenuto
        logging.basicConfig(level=logging.INFO, format='# %(message)s')
        with tenuto.Cache(os.path.join(args.dir, 'store'), disk_bytes=512 << 20) as cache:
            {'learn': learn, 'measure': measure}[args.role](args, cache, made(args.threads))
        return 0
    print(f'# seed {args.seed}')
    with SlowDisk(args.dir, args.read_mb_s) if args.read_mb_s else contextlib.nullcontext():
        store = os.path.join(args.dir, 'store')
        os.makedirs(store)
        if args.tenuto:
            measure_disk(args, store)
        child(args, 'learn')
        rows = json.loads(child(args, 'measure'))
    return report(args, rows)


if __name__ == '__main__':
    sys.exit(main())
