#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Time to the first token of a prompt of which a part is restored, and how long the GPU waits for it: from host memory, then from disk.

A random model of Llama-3-8B's shape computes a prompt once, and tenuto.hf keeps it. Then, in rounds, for each hit rate and in an order that is drawn anew: the prompt is computed whole;
its first tokens are restored and then the rest is computed (load-then-compute); they are restored layer by layer behind the compute of the layers before;
the same while other blocks are saved. Each row has the seconds of one of these. The rows "summary" have the medians, and the row "crossover" says up to which hit
rate loading takes no longer than computing.

bubble: time between two marks of the stream around the wait for a layer: the GPU has done all before the first one, and what follows the second one has not begun.
resident: seconds from a prefix in GPU memory to the first token. It is the second half of load-then-compute.
"""
import contextlib
import gc
import random
import threading
import time

import clock
import model as models
import scratch
import torch
from transformers.cache_utils import DynamicCache

import tenuto
from tenuto.hf import Prefixes, past

HITS = (93.75, 87.5, 98, 99, 75, 50, 25, 0)
WAYS = ('whole', 'then', 'layers', 'saving')
TIERS = ('host', 'disk')


class Sizes:
    """tokens: of the prompt; saved_blocks: that are saved beside a restore; share: of the part's time."""

    def __init__(self, small, tier):
        self.tokens = 528 if small else 65552 if tier == 'host' else 16400  # a last block that is not whole
        self.pages_per_block = 2 if small else 4
        self.saved_blocks = 2 if small else 256 if tier == 'host' else 64
        self.share = 0.55 if tier == 'host' else 1.0
        self.rounds = 1 if small else 3
        self.hits = (0, 50, 87.5) if small else HITS


class Waited:
    """A load of tenuto, with marks around each wait for a layer, by the stream or by the host."""

    def __init__(self, load, device):
        self._load, self._device, self.gaps = load, device, []

    def _marked(self, call, *args):
        before = self._device.mark()
        out = call(*args)
        self.gaps.append((before, self._device.mark()))
        return out

    def wait(self, layer):
        return self._marked(self._load.wait, layer)

    def stream_wait(self, stream, layer):
        return self._marked(self._load.stream_wait, stream, layer)

    def __getattr__(self, name):
        return getattr(self._load, name)

    def seconds(self):
        return [self._device.seconds(*gap) for gap in self.gaps]


class Background:
    """Saves of other blocks, one after the other on a thread, while a prompt is restored."""

    def __init__(self, store, blocks, where, device):
        self.space, self.layers, self.random = store.space, store.layers, torch.Generator().manual_seed(8)
        self.tokens = blocks * store.block_tokens
        self.stage = store.stage(blocks, device=where)
        self.stage.tensor.normal_()
        device.wait()

    def begin(self):
        self.stopped, self.blocks = threading.Event(), 0
        self.keys = [self.space.keys(torch.randint(1 << 30, (self.tokens,), generator=self.random)) for _ in range(16)]
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        while not self.stopped.is_set():
            keys = self.keys[0]
            self.keys = self.keys[1:] + self.keys[:1]
            with contextlib.suppress(tenuto.Again):
                result = self.space.save(keys, self.stage.pool, range(self.stage.pages)).finish()
                self.blocks += result.stored + result.host_only
                self.space.drop_blocks(keys)  # they take nobody's place

    def end(self):
        """Blocks that were saved."""
        self.stopped.set()
        self.thread.join()
        return self.blocks


class Prompts:
    """The prompt of a tier, and the ways to its first token."""

    def __init__(self, part, model, tier, cache):
        self.part, self.model, self.device, self.sizes = part, model, part.device, Sizes(part.small, tier)
        self.store = Prefixes(cache, model.config, 'gpu-check', dtype=model.dtype, pages_per_block=self.sizes.pages_per_block, plan='off', slack='off')
        generator = torch.Generator().manual_seed(7)
        self.ids = torch.randint(model.config.vocab_size, (1, self.sizes.tokens), generator=generator).to(self.device.name)
        self.background = None

    def fill(self):
        """Computes the prompt and keeps it; what a process does once is done after that."""
        kv, _ = self.store.prefill(self.model, self.ids)
        del kv
        self.store.cache.flush()
        self.background = Background(self.store, self.sizes.saved_blocks, self.ids.device, self.device)
        return self.store.match(self.ids)

    def blocks(self, hit):
        return int(hit / 100 * self.sizes.tokens) // self.store.block_tokens

    def first(self, kv, restored):
        """The logits of the first token: the host has them when it returns."""
        out = self.model(input_ids=self.ids[:, restored:], **past(self.model, kv), use_cache=True, logits_to_keep=1)
        return out.logits[0, -1].float().cpu()

    def go(self, way, hit):
        """One row, and the logits."""
        tokens, clocked = self.blocks(hit) * self.store.block_tokens, {}
        self.device.wait()
        begin = time.perf_counter()
        if way == 'whole':
            return self._row(begin, self.first(DynamicCache(config=self.model.config), 0), clocked)
        if way == 'saving':
            self.background.begin()
        begin = time.perf_counter()
        kv, restored = self.store.restore(self.ids, tokens, lazy=way != 'then')
        if restored != tokens:
            raise RuntimeError(f'{restored} of {tokens} tokens were restored')
        if way == 'then':
            self.device.wait()
            clocked['load_s'] = time.perf_counter() - begin
            return self._row(begin, self.first(kv, restored), clocked)
        load = kv.layers[0]._loading.load = Waited(kv.layers[0]._loading.load, self.device)
        row, logits = self._row(begin, self.first(kv, restored), clocked)
        if way == 'saving':
            row['saved_blocks'] = self.background.end()
        gaps = load.seconds()
        row |= {'bubble_s': sum(gaps), 'first_layer_s': gaps[0]}
        return row, logits

    @staticmethod
    def _row(begin, logits, clocked):
        row = {'ttft_s': time.perf_counter() - begin, **clocked}
        if 'load_s' in row:
            row['resident_s'] = row['ttft_s'] - row['load_s']
        return row, logits


class Measured:
    """All rows of a tier, and what follows from them."""

    def __init__(self, part, tier, tokens):
        self.part, self.tier, self.tokens = part, tier, tokens
        self.rows, self.logits, self.same, self.compared, self.token = {}, {}, True, 0, {}

    def add(self, hit, way, row, logits):
        self.part.row('run', tier=self.tier, tokens=self.tokens, hit=hit, way=way, **row)
        self.rows.setdefault((hit, way), []).append(row)
        self.token[hit, way] = int(logits.argmax())
        if way != 'whole':  # the same pass over the same bytes, wherever they came from
            self.compared += hit in self.logits
            self.same = self.same and torch.equal(self.logits.setdefault(hit, logits), logits)

    def middle(self, hit, way, name):
        return clock.median([row[name] for row in self.rows.get((hit, way), []) if name in row])

    def summary(self, hits):
        whole, points = self.middle(0, 'whole', 'ttft_s'), []
        for hit in sorted(h for h in hits if h):
            names = {'then_ttft_s': ('then', 'ttft_s'), 'load_s': ('then', 'load_s'), 'resident_s': ('then', 'resident_s'), 'ttft_s': ('layers', 'ttft_s'),
                     'bubble_s': ('layers', 'bubble_s'), 'first_layer_s': ('layers', 'first_layer_s'), 'saving_ttft_s': ('saving', 'ttft_s'),
                     'saving_bubble_s': ('saving', 'bubble_s')}
            row = {name: self.middle(hit, *where) for name, where in names.items()}
            row = {name: value for name, value in row.items() if value is not None}
            if 'bubble_s' in row and 'resident_s' in row:
                row['bubble_share'] = row['bubble_s'] / row['resident_s']
            if 'load_s' in row:
                points.append((hit, row['load_s'] - row['resident_s']))
            self.part.row('summary', tier=self.tier, tokens=self.tokens, hit=hit, whole_ttft_s=whole, **row)
        self.part.row('crossover', tier=self.tier, tokens=self.tokens, hit=crossover(points))
        first = {token for (hit, _), token in self.token.items()}
        # Of the passes that restore a hit rate, in either way: the same bits. Beside them: how many first tokens all hit rates and ways have; one is expected.
        self.part.check('logits', self.same and self.compared, tier=self.tier, compared=self.compared, first_tokens=len(first))


def crossover(points):
    """The hit rate at which loading begins to take longer than computing the rest, between two that were measured. points: (hit, load - compute), rising.

    None: nothing was measured; the highest of all if loading always hides, the lowest if it never does.
    """
    for (low, before), (high, after) in zip(points, points[1:]):
        if before <= 0 < after:
            return low + (high - low) * before / (before - after)
    return points[-1 if points[-1][1] <= 0 else 0][0] if points else None


def once_more(prompts, way, hit):
    """A row, by another try if the GPU's memory was in pieces. What torch keeps is given back only then, since to allocate anew takes long."""
    try:
        return prompts.go(way, hit)
    except torch.OutOfMemoryError:
        prompts.part.row('out_of_memory', hit=hit, way=way)
    gc.collect()
    prompts.device.free()
    return prompts.go(way, hit)


def measure(part, model, tier, cache):
    prompts = Prompts(part, model, tier, cache)
    sizes, until = prompts.sizes, part.left() * (1 - Sizes(part.small, tier).share)
    kept = prompts.fill()
    part.row('kept', tier=tier, tokens=sizes.tokens, of_these=kept, bytes=kept // prompts.store.block_tokens * prompts.store.geometry.block_bytes,
             pages_on=str(prompts.background.stage.tensor.device))
    measured, dice, longest = Measured(part, tier, sizes.tokens), random.Random(1), {}
    for hit, way in ((0, 'whole'), (50, 'then'), (50, 'layers'), (50, 'saving')):
        once_more(prompts, way, hit)  # what happens once
    for number in range(sizes.rounds):
        for hit in sizes.hits:
            for way in dice.sample(WAYS[1:], 3) if hit else WAYS[:1]:
                begun = part.left()
                if begun - longest.get((hit, way), 0) < until + 2:
                    part.row('left_out', tier=tier, round=number, hit=hit, way=way)
                    continue
                measured.add(hit, way, *once_more(prompts, way, hit))
                longest[hit, way] = begun - part.left()
    measured.summary(sizes.hits)
    prompts.store.close()


def main():
    part = clock.Part(__doc__.split('\n')[0])
    with torch.no_grad():
        if part.args.cpu:
            torch.set_num_threads(1)
        model, attention = models.made(part.device.name, part.small)
        part.row('model', layers=model.config.num_hidden_layers, dtype=str(model.dtype), attention=attention,
                 parameters=sum(p.numel() for p in model.parameters()))
        gib = 1 << 20 if part.small else 1 << 30
        for tier in TIERS:
            with part.guarded(f'first token, {tier}'), scratch.directory() as directory:
                options = {'path': None, 'host_bytes': 24 * gib} if tier == 'host' else {'path': directory, 'disk_bytes': 12 * gib, 'host_bytes': 0}
                with tenuto.Cache(**options, policy='lru', write_backlog_bytes=12 * gib) as cache:
                    measure(part, model, tier, cache)
            gc.collect()
            part.device.free()
    part.end()


if __name__ == '__main__':
    main()
