# SPDX-License-Identifier: Apache-2.0
"""Rank 1 of a test of test_heap_kernels.py: AMD's IRIS functions on the heap. Only their module of operations: the package itself wants HIP."""
import importlib.util
import sys
import types

for name in ('iris', 'iris.mem', 'iris.mem.triton', 'iris.device'):
    package = types.ModuleType(name)
    package.__path__ = list(importlib.util.find_spec(name).submodule_search_locations)
    sys.modules[name] = package

import iris.mem.triton.ops as ops  # noqa: E402
import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from tenuto.heap import NanoKVCache, kernels  # noqa: E402


@triton.jit
def double(source_off, source, dst_off, dst, rank, heap_bases, count, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mine = tl.load(heap_bases + rank)
    value = ops.load(tl.cast(mine + source_off, tl.pointer_type(tl.int64)) + at, rank, source, heap_bases, mask=at < count)
    ops.store(tl.cast(mine + dst_off, tl.pointer_type(tl.int64)) + at, value * 2, rank, dst, heap_bases, mask=at < count)


with NanoKVCache(1 << 20, page_bytes=4096) as cache:
    plan = cache.open_for_write('doubled', 4800, preferred_segment=0)
    at = cache.get_location('of 0')
    double[(1,)](at.payload_off, at.owner_rank, plan.payload_base, plan.dst_rank, cache.rank, cache.heap_bases_tensor.view(torch.uint64), 600, BLOCK=1024)
    kernels.commit(cache, 'doubled')
