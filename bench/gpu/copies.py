#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies of many objects between host memory and the GPU's, as a share of one large copy of as many bytes.

First bench-cuda-copies, which asks the driver alone, and `tenuto bench device`: loads and saves of pages on the GPU beside those of pages in host memory. Then
loads and saves of a cache whose host tier has the objects, in pages of a random order, through Python.
"""
import random
import time

import clock
import torch

import tenuto

LAYERS = 32


def program(part, share, name, *args):
    """What a program prints, as rows; it may have so much of the time that is left."""
    with part.guarded(name):
        status, told, error = part.program(name, *args, limit=part.left() * share)
        part.check(name, status == 0, status=status, error=error)
        for document in told:
            part.row(name, told=document)


def large(device, size):
    """Bytes per second of one copy, both ways; host memory is pinned."""
    host, there = torch.empty(size, dtype=torch.uint8, pin_memory=device.cuda), torch.empty(size, dtype=torch.uint8, device=device.name)
    rates = {}
    for way, into, source in (('load', there, host), ('save', host, there)):
        into.copy_(source, non_blocking=True)
        rates[way] = size / min(device.timed(lambda i=into, s=source: i.copy_(s, non_blocking=True)) for _ in range(3))
    return rates


def objects(part, size, n, rates):
    device, geometry = part.device, tenuto.Geometry.raw(LAYERS, size)
    blocks = n // LAYERS
    memory = torch.empty(blocks * geometry.block_bytes, dtype=torch.uint8, device=device.name)
    memory.random_()
    device.wait()
    with tenuto.Cache(host_bytes=2 * memory.numel() + (64 << 20), policy='lru', write_backlog_bytes=2 * memory.numel()) as cache:
        space, pages = cache.space('copies', geometry), random.Random(1).sample(range(blocks), blocks)
        pool, keys, times = cache.memory(memory, stage_bytes=memory.numel()).pool(geometry, npages=blocks), space.keys(range(blocks)), {'load': [], 'save': []}
        for _ in range(3):
            begun = time.perf_counter()
            saved = space.save(keys, pool, pages).finish()
            times['save'].append(time.perf_counter() - begun)
            begun = time.perf_counter()
            good = space.load(keys, pool, pages).finish()
            times['load'].append(time.perf_counter() - begun)
            if good != blocks:
                raise RuntimeError(f'{good} of {blocks} blocks were loaded; the save has said {saved}')
            space.drop_blocks(keys)
    row = {f'{way}_bytes_per_s': memory.numel() / min(t) for way, t in times.items()}
    part.row('objects', object_bytes=size, objects=blocks * LAYERS, **row, **{f'{way}_share': row[f'{way}_bytes_per_s'] / rates[way] for way in times})


def main():
    part = clock.Part(__doc__.split('\n')[0])
    if part.args.pack:
        program(part, 0.4, 'bench-cuda-copies')
        program(part, 0.4, 'tenuto', 'bench', 'device', '--total', '1GiB', '--rounds', '5', '--json')
    rates = large(part.device, 1 << (20 if part.small else 30))
    part.row('large', **{f'{way}_bytes_per_s': rate for way, rate in rates.items()})
    for size in (32, 64, 128, 256, 512):
        n = 64 if part.small else max(10_000, min(100_000, (3 << 30) // (size << 10)))
        if part.left() > 10:
            with part.guarded(f'objects of {size} KiB'):
                objects(part, size << 10, n, rates)
        part.device.free()
    part.end()


if __name__ == '__main__':
    main()
