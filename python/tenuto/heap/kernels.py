# SPDX-License-Identifier: Apache-2.0
"""Triton functions and kernels on a symmetric heap: a producer's kernel writes into the owner's memory by itself (docs/heap.md).

In a kernel, an address of this rank's heap stands for the same place of every heap. heap_bases (cache.heap_bases_tensor) says where the others lie:

    store(ptr, value, from_rank, to_rank, heap_bases, mask)       # ptr is an address in the heap of from_rank; the value goes to that place of to_rank's heap
    load(ptr, my_rank, from_rank, heap_bases, mask)
    atomic_xchg, atomic_add, atomic_cas(ptr, ..., from_rank, to_rank, heap_bases, mask, sem, scope)

Kernels, and functions of the same names without `_kernel` that start them:

    write   values from registers into the pages of a plan, of each replica; the values may be strided and of another type
    copy    memory into the pages of a plan, of each replica, past the first-level cache (.cg)
    commit  READY: one 64-bit compare-and-swap of {state, epoch} per replica, release, system scope
    read    an object of any rank into a tensor
    attend  attention of a token to keys and values where they lie in an object of any rank
    put     an object without the master: claims an extent, writes header and pages, commits, announces

The memory of the heaps must be accessible for the kernel: on the CPU under Triton's interpreter (TRITON_INTERPRET=1), on a GPU if it reads host memory, or if the
host memory is registered with it. 64-bit atomics on host memory need a platform that has them. Needs torch and triton.
"""
from __future__ import annotations

import errno
import os
import time
from typing import Any

import torch
import triton
import triton.language as tl

from .. import _core
from . import CTL_PAGE_BYTES, NanoKVCache, ObjMeta, WritePlan, _key

# Elements of one program, and tokens of a step of attention: the interpreter is slow per program, and per step.
BLOCK, ROWS = (1 << 16, 64) if os.environ.get('TRITON_INTERPRET') == '1' else (1024, 16)

# heap_layout.h: states, and offsets of the words that a kernel uses.
WRITING, READY, DEAD = tl.constexpr(1), tl.constexpr(2), tl.constexpr(3)
WORD, NEXT, SIZE_CLASS = tl.constexpr(32), tl.constexpr(92), tl.constexpr(96)
CTL_SLOTS, CTL_COUNT, CTL_FREE, CTL_PAGES = tl.constexpr(24), tl.constexpr(32), tl.constexpr(40), tl.constexpr(CTL_PAGE_BYTES)
CTL_ANNOUNCES, CTL_CAPACITY, CTL_HEAD, CTL_TAIL = tl.constexpr(104), tl.constexpr(112), tl.constexpr(116), tl.constexpr(120)
CLASSES, SLOT_BYTES, ANNOUNCE_BYTES = tl.constexpr(8), tl.constexpr(128), tl.constexpr(64)
# Of put_kernel.
NO_EXTENT, LOST = 0, 2


# ---- functions of a kernel -----------------------------------------------------------------------------------------------------------------

@triton.jit
def translate(ptr, from_rank, to_rank, heap_bases):
    """The same place of another heap."""
    offset = tl.cast(ptr, tl.int64) - tl.load(heap_bases + from_rank)
    return tl.cast(tl.load(heap_bases + to_rank) + offset, ptr.dtype)


@triton.jit
def store(ptr, value, from_rank, to_rank, heap_bases, mask=None, cache_modifier: tl.constexpr = ''):
    tl.store(translate(ptr, from_rank, to_rank, heap_bases), value, mask=mask, cache_modifier=cache_modifier)


@triton.jit
def load(ptr, my_rank, from_rank, heap_bases, mask=None):
    return tl.load(translate(ptr, my_rank, from_rank, heap_bases), mask=mask)


@triton.jit
def atomic_xchg(ptr, value, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = 'release', scope: tl.constexpr = 'sys'):
    return tl.atomic_xchg(translate(ptr, from_rank, to_rank, heap_bases), value, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_add(ptr, value, from_rank, to_rank, heap_bases, mask=None, sem: tl.constexpr = 'acq_rel', scope: tl.constexpr = 'sys'):
    return tl.atomic_add(translate(ptr, from_rank, to_rank, heap_bases), value, mask=mask, sem=sem, scope=scope)


@triton.jit
def atomic_cas(ptr, was, value, from_rank, to_rank, heap_bases, sem: tl.constexpr = 'acq_rel', scope: tl.constexpr = 'sys'):
    return tl.atomic_cas(translate(ptr, from_rank, to_rank, heap_bases), was, value, sem=sem, scope=scope)


@triton.jit
def words(rank, offset, heap_bases):
    """Address of 64-bit words at an offset of this rank's heap."""
    return tl.cast(tl.load(heap_bases + rank) + offset, tl.pointer_type(tl.int64))


@triton.jit
def halves(rank, offset, heap_bases):
    return tl.cast(tl.load(heap_bases + rank) + offset, tl.pointer_type(tl.int32))


@triton.jit
def word(state, epoch):
    return (tl.cast(epoch, tl.int64) << 32) | state


@triton.jit
def finish(header_off, epoch, to, rank, dst_rank, heap_bases):
    """WRITING by this rank becomes `to`; 0: the plan has ended, and the master learns that this rank writes no more (tn_heap_finish)."""
    at = words(rank, header_off + WORD, heap_bases)
    by = tl.cast(rank + 1, tl.int64) << 8
    was = word(WRITING | by, epoch)
    done = atomic_cas(at, was, word(to, epoch), rank, dst_rank, heap_bases, sem='release') == was
    if not done:
        atomic_cas(at, word(DEAD | by, epoch), word(DEAD, epoch), rank, dst_rank, heap_bases, sem='release')
    return done


@triton.jit
def claim(size_class, rank, dst_rank, heap_bases):
    """A free slot of the class that this rank writes from now on, and its word; -1: there is none (tn_heap_claim)."""
    slots = tl.load(words(dst_rank, CTL_SLOTS, heap_bases))
    count = tl.load(halves(dst_rank, CTL_COUNT, heap_bases))
    stack = words(dst_rank, CTL_FREE + 8 * size_class, heap_bases)
    slot = tl.full((), -1, tl.int32)
    claimed = tl.full((), 0, tl.int64)
    looking = count > 0
    while looking:
        head = tl.load(stack, volatile=True)
        top = tl.cast(head & 0xffffffff, tl.int32) - 1
        looking = (top >= 0) & (top < count)
        if looking:
            at = slots + tl.cast(top, tl.int64) * SLOT_BYTES
            state = words(dst_rank, at + WORD, heap_bases)
            was = tl.load(state, volatile=True)
            epoch = (was >> 32) & 0xffffffff
            mine = word(WRITING | (tl.cast(rank + 1, tl.int64) << 8), epoch + 1)
            won = epoch < 0
            lost = won
            if ((was & 0xffffffff) == DEAD) & (epoch % 2 == 0):
                won = tl.atomic_cas(state, was, mine, sem='acq_rel', scope='sys') == was
                lost = not won
            if not lost:
                below = tl.cast(tl.load(halves(dst_rank, at + NEXT, heap_bases), volatile=True), tl.int64) + 1
                tl.atomic_cas(stack, head, ((((head >> 32) & 0xffffffff) + 1) << 32) | (below & 0xffffffff), sem='acq_rel', scope='sys')
            if won:
                slot = top
                claimed = mine
                looking = count < 0
    return slot, claimed


@triton.jit
def announce(key_hash, owner, epoch, header_off, payload_off, n_pages, page_bytes, nbytes, heap_bases):
    """Tells the master of a READY object; if the ring is full, the master's sweep finds it (tn_heap_announce)."""
    ring = tl.load(words(owner, CTL_ANNOUNCES, heap_bases))
    capacity = tl.load(halves(owner, CTL_CAPACITY, heap_bases))
    head = halves(owner, CTL_HEAD, heap_bases)
    trying = capacity > 0
    while trying:
        turn = tl.load(head, volatile=True)
        trying = turn - tl.load(halves(owner, CTL_TAIL, heap_bases), volatile=True) < capacity
        if trying:
            if tl.atomic_cas(head, turn, turn + 1, sem='acq_rel', scope='sys') == turn:
                cell = ring + tl.cast(turn & (capacity - 1), tl.int64) * ANNOUNCE_BYTES
                tl.store(words(owner, cell, heap_bases), key_hash)
                tl.store(halves(owner, cell + 8, heap_bases), owner)
                tl.store(halves(owner, cell + 12, heap_bases), tl.cast(epoch, tl.int32))
                tl.store(words(owner, cell + 16, heap_bases), header_off)
                tl.store(words(owner, cell + 24, heap_bases), payload_off)
                tl.store(halves(owner, cell + 32, heap_bases), n_pages)
                tl.store(halves(owner, cell + 36, heap_bases), page_bytes)
                tl.store(words(owner, cell + 40, heap_bases), nbytes)
                tl.atomic_xchg(halves(owner, cell + 48, heap_bases), turn + 1, sem='release', scope='sys')
                trying = capacity < 0


# ---- kernels -------------------------------------------------------------------------------------------------------------------------------

@triton.jit
def write_kernel(values, planes, rows, columns, plane_stride, row_stride, payload_off, rank, dst_rank, heap_bases, TYPE: tl.constexpr, BLOCK: tl.constexpr):
    """planes x rows x columns values, of which those of a row follow each other, become contiguous in the owner's pages."""
    at = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = at < tl.cast(planes, tl.int64) * rows * columns
    row = at // columns
    value = tl.load(values + (row // rows) * plane_stride + (row % rows) * row_stride + at % columns, mask=mask)
    pages = tl.cast(tl.load(heap_bases + rank) + payload_off, tl.pointer_type(TYPE))
    store(pages + at, value.to(TYPE), rank, dst_rank, heap_bases, mask)


@triton.jit
def copy_kernel(source, count, payload_off, rank, dst_rank, heap_bases, BLOCK: tl.constexpr):
    at = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + at, mask=at < count, cache_modifier='.cg')
    pages = tl.cast(tl.load(heap_bases + rank) + payload_off, source.dtype)
    store(pages + at, value, rank, dst_rank, heap_bases, at < count, cache_modifier='.cg')


@triton.jit
def commit_kernel(header_off, epoch, rank, dst_rank, heap_bases, result):
    tl.store(result, tl.cast(finish(header_off, epoch, READY, rank, dst_rank, heap_bases), tl.int32))


@triton.jit
def read_kernel(into, count, header_off, payload_off, epoch, rank, owner, heap_bases, invalid, BLOCK: tl.constexpr):
    """invalid becomes 1 if the object was not READY before or after its bytes were read."""
    state = words(rank, header_off + WORD, heap_bases)
    ready = word(READY, epoch)
    before = atomic_add(state, tl.cast(0, tl.int64), rank, owner, heap_bases)
    at = tl.cast(tl.program_id(0), tl.int64) * BLOCK + tl.arange(0, BLOCK)
    pages = tl.cast(tl.load(heap_bases + rank) + payload_off, into.dtype)
    tl.store(into + at, load(pages + at, rank, owner, heap_bases, at < count), mask=at < count)
    tl.debug_barrier()
    after = atomic_add(state, tl.cast(0, tl.int64), rank, owner, heap_bases)
    if (before != ready) | (after != ready):
        tl.store(invalid, 1)


@triton.jit
def attend_kernel(query, key_off, value_off, length, scale, rank, owner, heap_bases, out, weight, GROUP: tl.constexpr, WIDTH: tl.constexpr,
                  TYPE: tl.constexpr, ROWS: tl.constexpr):
    """One head of keys per program: its GROUP queries. Keys and values are heads x length x WIDTH. weight: logarithm of the sum of the exponentials."""
    head = tl.cast(tl.program_id(0), tl.int64)
    member, column = tl.arange(0, GROUP), tl.arange(0, WIDTH)
    place = (head * GROUP + member[:, None]) * WIDTH + column[None, :]
    q = tl.load(query + place).to(tl.float32) * scale
    base = tl.load(heap_bases + rank)
    keys = tl.cast(base + key_off, tl.pointer_type(TYPE)) + head * length * WIDTH
    values = tl.cast(base + value_off, tl.pointer_type(TYPE)) + head * length * WIDTH
    most = tl.full((GROUP,), float('-inf'), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    sums = tl.zeros((GROUP, WIDTH), tl.float32)
    for first in range(0, length, ROWS):
        row = first + tl.arange(0, ROWS)
        at, there = row[:, None] * WIDTH + column[None, :], (row < length)[:, None]
        k = load(keys + at, rank, owner, heap_bases, there).to(tl.float32)
        v = load(values + at, rank, owner, heap_bases, there).to(tl.float32)
        score = tl.where((row < length)[None, :], tl.sum(q[:, None, :] * k[None, :, :], 2), float('-inf'))
        new = tl.maximum(most, tl.max(score, 1))
        part, kept = tl.exp(score - new[:, None]), tl.exp(most - new)
        total = total * kept + tl.sum(part, 1)
        sums = sums * kept[:, None] + tl.sum(part[:, :, None] * tl.where(there, v, 0.0)[None, :, :], 1)
        most = new
    tl.store(out + place, sums / total[:, None])
    tl.store(weight + head * GROUP + member, most + tl.log(total))


@triton.jit
def put_kernel(source, count, name, nbytes, now, size_class, n_pages, rank, dst_rank, heap_bases, result, BLOCK: tl.constexpr):
    """One program. name: hash and digest of the key. result: NO_EXTENT, 1, or LOST (written, but the plan had ended)."""
    slot, claimed = claim(size_class, rank, dst_rank, heap_bases)
    if slot >= 0:
        epoch = (claimed >> 32) & 0xffffffff
        header_off = tl.load(words(dst_rank, CTL_SLOTS, heap_bases)) + tl.cast(slot, tl.int64) * SLOT_BYTES
        page_bytes = tl.load(halves(dst_rank, CTL_PAGES, heap_bases))
        if tl.load(halves(dst_rank, header_off + SIZE_CLASS, heap_bases), volatile=True) != size_class:  # the master has resized it meanwhile
            finish(header_off, epoch, DEAD, rank, dst_rank, heap_bases)
        else:
            header = words(dst_rank, header_off, heap_bases)
            payload_off = tl.load(header + 2)
            key_hash = tl.load(name)
            tl.store(header, key_hash)
            tl.store(halves(dst_rank, header_off + 8, heap_bases), n_pages)
            tl.store(halves(dst_rank, header_off + 12, heap_bases), page_bytes)
            tl.store(header + 3, nbytes)
            tl.store(header + 5, now)                                        # last_access
            tl.store(halves(dst_rank, header_off + 48, heap_bases), 0)       # flags
            tl.store(header + 8, tl.load(name + 1))                          # digest
            tl.store(header + 9, tl.load(name + 2))
            tl.store(halves(dst_rank, header_off + 88, heap_bases), 0)       # no checksum
            tl.store(header + 13, now)                                       # born
            pages = tl.cast(tl.load(heap_bases + dst_rank) + payload_off, source.dtype)
            for first in range(0, count, BLOCK):
                at = first + tl.arange(0, BLOCK)
                tl.store(pages + at, tl.load(source + at, mask=at < count), mask=at < count)
            tl.debug_barrier()
            if finish(header_off, epoch, READY, rank, dst_rank, heap_bases):
                announce(key_hash, dst_rank, epoch, header_off, payload_off, n_pages, page_bytes, nbytes, heap_bases)
                tl.store(result, 1)
            else:
                tl.store(result, 2)


# ---- what starts them ----------------------------------------------------------------------------------------------------------------------

_TYPES = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.int64: tl.int64, torch.int32: tl.int32,
          torch.int16: tl.int16, torch.int8: tl.int8, torch.uint8: tl.uint8}


def _grid(count: int) -> tuple[int]:
    return (triton.cdiv(count, BLOCK),)


def _flat(tensor: torch.Tensor, *also: int) -> torch.Tensor:
    """A contiguous tensor in words as wide as its bytes, its address and the offsets allow."""
    if not tensor.is_contiguous():
        raise ValueError('the tensor is not contiguous: make it so, or use write, which takes strides')
    if any(n % 8 for n in (tensor.nbytes, tensor.data_ptr(), *also)):
        return tensor.view(-1).view(torch.uint8)
    return tensor.view(-1).view(torch.int64)


def _check(plan: WritePlan, offset: int, nbytes: int) -> None:
    if offset < 0 or nbytes < 1 or offset + nbytes > plan.bytes_total:
        raise ValueError(f'{nbytes} bytes at offset {offset}: the plan has {plan.bytes_total} bytes')


def write(cache: NanoKVCache, plan: WritePlan, values: torch.Tensor, *, offset: int = 0, dtype: torch.dtype | None = None) -> None:
    """Values into the pages of a plan, contiguous from a byte offset on, as dtype (default: theirs; the interpreter truncates to bfloat16).

    values: up to three dimensions; those of the last one follow each other.
    """
    kind = values.dtype if dtype is None else dtype
    if kind not in _TYPES or values.ndim not in (1, 2, 3) or values.stride(-1) != 1:
        raise ValueError(f'{kind}, shape {tuple(values.shape)}, strides {values.stride()}: up to three dimensions, the last one of stride 1, of {list(_TYPES)}')
    _check(plan, offset, values.numel() * kind.itemsize)
    shaped = values[(None,) * (3 - values.ndim)]
    for place in plan.places:
        write_kernel[_grid(values.numel())](values, *shaped.shape, *shaped.stride()[:2], place.payload_base + offset, cache.rank, place.dst_rank,
                                            cache.heap_bases_tensor.to(values.device), TYPE=_TYPES[kind], BLOCK=BLOCK)


def copy(cache: NanoKVCache, plan: WritePlan, tensor: torch.Tensor, *, offset: int = 0) -> None:
    """A contiguous tensor into the pages of a plan."""
    _check(plan, offset, tensor.nbytes)
    flat = _flat(tensor, offset)
    for place in plan.places:
        copy_kernel[_grid(flat.numel())](flat, flat.numel(), place.payload_base + offset, cache.rank, place.dst_rank,
                                         cache.heap_bases_tensor.to(tensor.device), BLOCK=BLOCK)


def commit(cache: NanoKVCache, key: str | bytes, device: Any = 'cpu') -> None:
    """READY, by a kernel after those that have written. Without a checksum. Waits for the kernel. Raises Error with errno ESTALE if the plan had ended."""
    places = cache._plan_of(key).places
    results = torch.zeros(len(places), dtype=torch.int32, device=device)
    for place, result in zip(places, results.split(1)):
        commit_kernel[(1,)](place.header_off, place.epoch, cache.rank, place.dst_rank, cache.heap_bases_tensor.to(device), result)
    if not results.any().item():
        raise _core.Error(errno.ESTALE, f'{key!r}: the plan has ended, because it was not committed in time; write the object again')


def read(cache: NanoKVCache, key: str | bytes, into: torch.Tensor) -> int:
    """An object into a contiguous tensor, under a lease. Returns its bytes. Waits for the kernel."""
    meta = ObjMeta(*cache._heap.hold(_key(key)))
    try:
        if meta.bytes_total > into.nbytes:
            raise ValueError(f'{key!r} has {meta.bytes_total} bytes, the tensor {into.nbytes}')
        flat = _flat(into.view(-1).view(torch.uint8)[:meta.bytes_total])
        invalid = torch.zeros(1, dtype=torch.int32, device=into.device)
        read_kernel[_grid(flat.numel())](flat, flat.numel(), meta.header_off, meta.payload_off, meta.epoch, cache.rank, meta.owner_rank,
                                         cache.heap_bases_tensor.to(into.device), invalid, BLOCK=BLOCK)
        if invalid.item():
            raise _core.Error(errno.ESTALE, f'{key!r} was removed while it was read')
    finally:
        cache._heap.release(meta)
    return meta.bytes_total


def attend(cache: NanoKVCache, meta: ObjMeta, query: torch.Tensor, *, keys: int, values: int, length: int, scale: float,
           dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of one token to keys and values where they lie in an object, which the caller holds. Nothing is copied.

    query: heads x group x width, float32 or less, group and width powers of two. keys, values: byte offsets in the object of contiguous heads x length x width, of
    dtype (default: the query's). Returns heads x group x width in float32, and heads x group: logarithms of the sums of exponentials, by which two such results over
    different tokens are joined.
    """
    kind = query.dtype if dtype is None else dtype
    heads, group, width = query.shape
    nbytes = heads * length * width * kind.itemsize
    if kind not in _TYPES or (group & group - 1) or (width & width - 1) or not query.is_contiguous() or length < 1:
        raise ValueError(f'{kind}, query of shape {tuple(query.shape)}, {length} tokens: a contiguous query, group and width powers of two, at least a token')
    if min(keys, values) < 0 or max(keys, values) + nbytes > meta.bytes_total:
        raise ValueError(f'{nbytes} bytes at offsets {keys} and {values}: the object has {meta.bytes_total} bytes')
    out = torch.empty(query.shape, dtype=torch.float32, device=query.device)
    weight = torch.empty(heads, group, dtype=torch.float32, device=query.device)
    attend_kernel[(heads,)](query, meta.payload_off + keys, meta.payload_off + values, length, scale, cache.rank, meta.owner_rank,
                            cache.heap_bases_tensor.to(query.device), out, weight, GROUP=group, WIDTH=width, TYPE=_TYPES[kind], ROWS=ROWS)
    return out, weight


def put(cache: NanoKVCache, key: str | bytes, tensor: torch.Tensor, *, preferred_segment: int | None = None) -> bool:
    """An object without the master, from the owner's free extents. False: none is free; cache.put asks the master. Waits for the kernel.

    Others find the object once the master has heard of it, 0.25 s later at most. A second object of a key is dropped only then.
    """
    name = torch.tensor(cache.name(key), dtype=torch.uint64).view(torch.int64).to(tensor.device)
    owner = cache.name(key)[0] % cache.world_size if preferred_segment is None else preferred_segment
    pages = -(-tensor.nbytes // cache.page_bytes)
    size_class = (pages - 1).bit_length()
    if not 0 <= owner < cache.world_size or pages < 1 or size_class >= CLASSES.value:
        raise ValueError(f'{tensor.nbytes} bytes at rank {owner}: 1 byte to 128 pages of {cache.page_bytes} bytes, at a rank below {cache.world_size}')
    if not cache.may_write(owner):
        raise _core.Denied(errno.EACCES, f'rank {cache.rank} may not write into the heap of rank {owner}: its token does not say so')
    flat = _flat(tensor)
    result = torch.zeros(1, dtype=torch.int32, device=tensor.device)
    put_kernel[(1,)](flat, flat.numel(), name, tensor.nbytes, time.monotonic_ns(), size_class, pages, cache.rank, owner,
                     cache.heap_bases_tensor.to(tensor.device), result, BLOCK=BLOCK)
    if result.item() == LOST:
        raise _core.Error(errno.ESTALE, f'{key!r}: this process was stopped for too long; write the object again')
    return result.item() != NO_EXTENT
