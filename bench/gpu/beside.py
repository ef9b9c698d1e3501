#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much slower a matrix product and a memory-bound kernel are while blocks are loaded from host memory.

Alternately alone and beside loads. Each turn runs the kernel for a while, timed by marks of the stream; the ratio is that of neighbouring turns.
"""
import threading
import time

import clock
import torch

import tenuto


class Loads:
    """Loads of the same blocks over and over, on a thread."""

    def __init__(self, cache, device, small):
        geometry = tenuto.Geometry.raw(4 if small else 32, 256 << 10)
        blocks = 4 if small else 256
        self.memory = torch.zeros(blocks * geometry.block_bytes, dtype=torch.uint8, device=device.name)
        device.wait()
        self.space = cache.space('beside', geometry)
        self.pool, self.keys, self.pages = cache.memory(self.memory, stage_bytes=self.memory.numel()).pool(geometry, npages=blocks), self.space.keys(range(blocks)), range(blocks)
        self.space.save(self.keys, self.pool, self.pages).finish()

    def __enter__(self):
        self.stopped, self.bytes, self.begun = threading.Event(), 0, time.perf_counter()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        return self

    def _run(self):
        while not self.stopped.is_set():
            good = self.space.load(self.keys, self.pool, self.pages).finish()
            self.bytes += good * self.space.geometry.block_bytes

    def __exit__(self, *exc):
        self.stopped.set()
        self.thread.join()
        self.rate = self.bytes / (time.perf_counter() - self.begun)


def kernels(device, small):
    """By name: the kernel, and how often a turn runs it."""
    n, dtype = (128, torch.float32) if small else (8192, torch.bfloat16)
    a, b = (torch.randn(n, n, device=device.name).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    wide = torch.zeros((1 << 20) if small else (1 << 30), dtype=torch.uint8, device=device.name)
    target = torch.empty_like(wide)
    return {'matrix_product': (lambda: torch.matmul(a, b, out=out), 20 if small else 100), 'copy_in_memory': (lambda: target.copy_(wide), 20 if small else 200)}


def main():
    part = clock.Part(__doc__.split('\n')[0])
    device = part.device
    with tenuto.Cache(host_bytes=(64 << 20) if part.small else (4 << 30), policy='lru', write_backlog_bytes=(64 << 20) if part.small else (4 << 30)) as cache:
        loads = Loads(cache, device, part.small)
        for name, (kernel, times) in kernels(device, part.small).items():
            kernel()

            def turn(kernel=kernel, times=times):
                for _ in range(times):
                    kernel()

            alone, beside, rates = [], [], []
            for _ in range(2 if part.small else 9):
                device.wait()
                alone.append(device.timed(turn))
                with loads:
                    time.sleep(0.01)
                    beside.append(device.timed(turn))
                rates.append(loads.rate)
                if part.left() < 5:
                    break
            part.row(name, alone_s=clock.median(alone), beside_s=clock.median(beside), ratio=clock.median([b / a for a, b in zip(alone, beside)]),
                     loads_bytes_per_s=clock.median(rates), turns=len(alone))
    part.end()


if __name__ == '__main__':
    main()
