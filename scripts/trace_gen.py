#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the synthetic traces of docs/policy.md, in the format that `tenuto replay` reads.

    scripts/trace_gen.py DIR [--seed 1] [NAME...]

They are not models of any real service. Each is a caricature of one way in which prompts share
prefixes, so that a policy that is good at only one of them shows it:

    chat_fast, chat_slow  multi-turn sessions under shared system prompts, thinking for 30 s or 400 s
    agent                 long sessions that grow by tool calls every few seconds
    rag, rag_drift        documents of Zipf's popularity behind one prompt; popularity that changes
    scan                  a few hot prompts, and two thirds that never come again
    phase                 chat, then scan, rag, agent, and another chat: the workload changes
    zipf                  short prompts without sessions
    mix                   chat, agent and rag at once
    loop                  the same 500 prompts in a circle: the worst case of recency

All names come from one stream of random numbers, so a seed's traces are the same whichever are written.
"""
import argparse
import heapq
import itertools
import json
import math
import pathlib
import random

BLOCK_TOKENS = 512


class Ids:
    """Block ids that were never used before."""

    def __init__(self):
        self.next = 0

    def new(self, count):
        first = self.next
        self.next += count
        return list(range(first, self.next))


def chat(rng, ids, seconds, rate, think, spread, goes_on, start=0, systems=6, user=(1, 4), first=(2, 20)):
    """Sessions that arrive at `rate` per second, and go on with a probability of their own."""
    system = [ids.new(rng.randint(1, 10)) for _ in range(systems)]
    turns, requests = [], []
    at, n = start, 0
    while at < start + seconds:
        at += rng.expovariate(rate)
        which = min(int(rng.paretovariate(1.0)) - 1, systems - 1)
        length = int(min(150, first[0] + rng.paretovariate(1.1) * first[1] / 6))
        prompt = system[which] + ids.new(length)
        heapq.heappush(turns, (at, n, prompt, rng.betavariate(2 * goes_on, 2 * (1 - goes_on))))
        n += 1
    while turns:
        at, n, prompt, again = heapq.heappop(turns)
        if at > start + seconds:
            continue
        requests.append((at * 1000, prompt + ids.new(1), True))
        if rng.random() < again:
            later = at + think * math.exp(rng.gauss(0, spread))
            heapq.heappush(turns, (later, n, prompt + ids.new(rng.randint(*user)), again))
    return requests


def agent(rng, ids, seconds, rate, start=0):
    """Sessions of 3 to 40 calls, seconds apart; some are cut back and branch."""
    tools = [ids.new(rng.randint(8, 24)) for _ in range(4)]
    calls, requests = [], []
    at, n = start, 0
    while at < start + seconds:
        at += rng.expovariate(rate)
        heapq.heappush(calls, (at, n, rng.choice(tools) + ids.new(rng.randint(1, 12)), rng.choice([3, 8, 20, 40])))
        n += 1
    while calls:
        at, n, prompt, left = heapq.heappop(calls)
        if at > start + seconds:
            continue
        requests.append((at * 1000, prompt + ids.new(1), True))
        if left == 0:
            continue
        quick = rng.random() < .93
        gap = rng.lognormvariate(math.log(8), .8) if quick else rng.lognormvariate(math.log(200), 1)
        if rng.random() < .03 and len(prompt) > 30:
            prompt = prompt[:len(prompt) - rng.randint(5, 20)]
        heapq.heappush(calls, (at + gap, n, prompt + ids.new(rng.randint(1, 5)), left - 1))
    return requests


def zipf_ranks(rng, count, exponent):
    weights = list(itertools.accumulate(1 / (i + 1) ** exponent for i in range(count)))
    return lambda: rng.choices(range(count), cum_weights=weights)[0]


def rag(rng, ids, count, documents, exponent, start=0, interval=.3, drift=0):
    """One of `documents` in a prompt, a quarter asked about once more. drift: requests between changes of taste."""
    system = ids.new(4)
    rank = zipf_ranks(rng, documents, exponent)
    blocks, order, again, requests = {}, list(range(documents)), [], []
    rng.shuffle(order)
    for q in range(count):
        at = (start + q * interval) * 1000
        if drift and q % drift == 0:
            for _ in range(documents // 50):
                i, j = rng.randrange(min(200, documents)), rng.randrange(documents)
                order[i], order[j] = order[j], order[i]
        if again and again[0][0] <= q:
            requests.append((at, heapq.heappop(again)[1] + ids.new(1), True))
            continue
        document = order[rank()]
        if document not in blocks:
            blocks[document] = ids.new(rng.randint(2, 24))
        prompt = system + blocks[document] + ids.new(rng.randint(0, 2))
        requests.append((at, prompt + ids.new(1), True))
        if rng.random() < .25:
            heapq.heappush(again, (q + rng.randint(20, 300), prompt + ids.new(1)))
    return requests


def scan(rng, ids, count, start=0):
    hot = [ids.new(rng.randint(4, 30)) for _ in range(60)]
    base, requests = ids.new(3), []
    for q in range(count):
        at = (start + q * .2) * 1000
        if rng.random() < .35:
            requests.append((at, rng.choice(hot) + ids.new(1), True))
        else:
            requests.append((at, base + ids.new(rng.randint(10, 60)) + ids.new(1), True))
    return requests


def phase(rng):
    ids = Ids()
    return (chat(rng, ids, 1500, 2, 30, .8, .7) + scan(rng, ids, 2500, 1500) +
            rag(rng, ids, 6000, 3000, .9, start=2100) + agent(rng, ids, 1500, .6, start=4000) +
            chat(rng, ids, 2500, 1.5, 200, 1, .6, start=5500))


def zipf(rng):
    ids, rank, prompts, requests = Ids(), zipf_ranks(rng, 40000, .9), {}, []
    for q in range(100000):
        which = rank()
        if which not in prompts:
            prompts[which] = ids.new(rng.randint(1, 4))
        requests.append((q * 20, prompts[which], False))
    return requests


def mix(rng):
    ids = Ids()
    requests = (chat(rng, ids, 3000, 1.2, 90, 1, .65) + agent(rng, ids, 3000, .15) +
                rag(rng, ids, 7000, 3000, .9, interval=.42))
    return sorted(requests, key=lambda r: r[0])


def loop(_rng):
    ids = Ids()
    system = ids.new(2)
    prompts = [system + ids.new(20) for _ in range(500)]
    return [(q * 100, prompts[q % 500] + ids.new(1), True) for q in range(8000)]


TRACES = {
    'chat_fast': lambda rng: chat(rng, Ids(), 3600, 2.0, 30, .8, .7),
    'chat_slow': lambda rng: chat(rng, Ids(), 7200, 1.2, 400, 1.2, .6),
    'agent': lambda rng: agent(rng, Ids(), 3600, .6),
    'rag': lambda rng: rag(rng, Ids(), 20000, 8000, .8),
    'rag_drift': lambda rng: rag(rng, Ids(), 20000, 8000, 1.0, drift=500),
    'scan': lambda rng: scan(rng, Ids(), 9000),
    'phase': phase,
    'zipf': zipf,
    'mix': mix,
    'loop': loop,
}


def write(path, requests):
    with open(path, 'w', encoding='ascii') as f:
        for at, hash_ids, partial in requests:
            tokens = len(hash_ids) * BLOCK_TOKENS - (BLOCK_TOKENS // 2 if partial else 0)
            f.write(json.dumps({'timestamp': int(at), 'input_length': tokens, 'output_length': 0,
                                'hash_ids': hash_ids}, separators=(',', ':')) + '\n')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('dir', type=pathlib.Path, help='where NAME.jsonl go')
    parser.add_argument('names', nargs='*', metavar='NAME', help='all of them if none is given')
    parser.add_argument('--seed', type=int, default=1)
    args = parser.parse_args()
    unknown = [n for n in args.names if n not in TRACES]
    if unknown:
        parser.error(f'no trace {unknown[0]!r}; there are {", ".join(TRACES)}')
    args.dir.mkdir(parents=True, exist_ok=True)
    rng = random.Random(args.seed)
    for name, make in TRACES.items():
        requests = make(rng)
        if args.names and name not in args.names:
            continue
        write(args.dir / f'{name}.jsonl', requests)
        print(f'{name}: {len(requests)} requests, {sum(len(r[1]) for r in requests)} blocks')


if __name__ == '__main__':
    main()
