#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""heap.py: a prefill process writes the KV of a prompt into the memory of a decode process, which reads it where it lies (docs/heap.md).

It starts both processes by itself. Under torchrun, or with RANK, WORLD_SIZE and MASTER_PORT set, it is the one of that rank.
"""
import os
import subprocess
import sys
import time

import tenuto
from tenuto.heap import NanoKVCache

DECODE, PREFILL = 0, 1  # ranks
LAYERS, LAYER_BYTES = 4, 65536


def compute_layer(layer: int, into: memoryview) -> None:
    """In the place of a model's forward, which would write keys and values there."""
    into[:] = bytes([layer]) * len(into)


def prefill(cache: NanoKVCache) -> None:
    plan = cache.open_for_write('prompt-17', LAYERS * LAYER_BYTES, preferred_segment=DECODE)
    pages = memoryview(cache.payload(plan))  # memory of the decode process
    for layer in range(LAYERS):
        compute_layer(layer, pages[layer * LAYER_BYTES:(layer + 1) * LAYER_BYTES])
    cache.commit('prompt-17')  # from now on it is found, and does not change


def decode(cache: NanoKVCache) -> None:
    until = time.monotonic() + 30
    while True:
        try:
            with cache.hold('prompt-17') as kv:  # no copy; until the end of the block nobody evicts it
                layers = [kv[layer * LAYER_BYTES:(layer + 1) * LAYER_BYTES] for layer in range(LAYERS)]
                right = sum(bytes(layers[layer]) == bytes([layer]) * LAYER_BYTES for layer in range(LAYERS))
                for layer in layers:
                    layer.release()
            break
        except (tenuto.NotFound, tenuto.Again):  # not written yet
            if time.monotonic() > until:
                sys.exit('no KV has come for 30 s')
            time.sleep(0.001)
    cache.remove('prompt-17')
    print(f'{right} of {LAYERS} layers are right, in place')


def start(rank: int) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, __file__], env={**os.environ, 'RANK': str(rank), 'WORLD_SIZE': '2', 'MASTER_PORT': str(os.getpid())})


if __name__ == '__main__':
    if 'RANK' not in os.environ:
        ranks = [start(DECODE), start(PREFILL)]
        sys.exit(max(abs(process.wait()) for process in ranks))
    with NanoKVCache(64 << 20) as cache:  # as many bytes in each rank
        (decode if cache.rank == DECODE else prefill)(cache)
