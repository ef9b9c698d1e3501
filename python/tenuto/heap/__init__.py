# SPDX-License-Identifier: Apache-2.0
"""The symmetric heap: a process writes KV straight into memory of the process that will decode (docs/heap.md).

    cache = NanoKVCache(1 << 30)                       # in each process that torchrun has started: rank and world size are its
    cache.put('prompt-17', kv, preferred_segment=3)    # into the heap of rank 3: one copy
    with cache.hold('prompt-17') as bytes_in_place:    # there: no copy; until the end of the block nobody evicts it
        ...

A producer that computes into the heap takes a plan, writes where it says, and commits:

    plan = cache.open_for_write(key, nbytes, preferred_segment=3)
    into = torch.frombuffer(cache.payload(plan), dtype=torch.bfloat16)
    cache.commit(key)

Tensors are torch's on the CPU, or anything with the buffer protocol. torch is not needed without them. Any thread. Errors are tenuto.Error: KeyError does not
occur; a key that is not there is NotFound, one that is not READY yet Again, a plan that took too long errno ESTALE. In a forked child every call raises Forked.
"""
from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import secrets
import sys
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import _core

ANY = 0xFFFFFFFF
PIN, PRIORITY = 1, 2  # flags: eviction passes it by; it goes after all that do not have this flag
CTL_PAGE_BYTES = 164  # heap_layout.h: offset of page_bytes in a control block


def replicas(n: int) -> int:
    """A flag: the object lies at n ranks, 1 to 3: the owner and those that follow it."""
    if not 1 <= n <= 3:
        raise ValueError(f'{n} replicas: 1 to 3')
    return n - 1 << 8


class WritePlan(NamedTuple):
    """Where a producer is to write: offsets count in the heap of dst_rank. copies: the other replicas, which commit writes: (rank, header_off, payload_base, epoch)."""
    key_hash: int
    dst_rank: int
    header_off: int
    payload_base: int
    page_bytes: int
    n_pages: int
    bytes_total: int
    epoch: int
    copies: tuple[tuple[int, int, int, int], ...] = ()

    @property
    def places(self) -> list[WritePlan]:
        """A plan of one place for each replica."""
        return [self._replace(copies=()), *(self._replace(dst_rank=rank, header_off=header, payload_base=payload, epoch=epoch, copies=())
                                            for rank, header, payload, epoch in self.copies)]


class ObjMeta(NamedTuple):
    """Where an object lies: offsets count in the heap of owner_rank."""
    key_hash: int
    owner_rank: int
    header_off: int
    payload_off: int
    bytes_total: int
    page_bytes: int
    n_pages: int
    epoch: int


def _ranks() -> tuple[int, int, str]:
    """Rank, world size, and a name that the ranks of one run share and nobody else has.

    torch.distributed, if it runs, gives all three, and rank 0 sends the name. Else they are of torchrun's environment.
    """
    dist = getattr(sys.modules.get('torch'), 'distributed', None)
    if dist and dist.is_available() and dist.is_initialized():
        name = [secrets.token_hex(8)]
        dist.broadcast_object_list(name, src=0)
        return dist.get_rank(), dist.get_world_size(), name[0]
    rank, size = int(os.environ.get('RANK', 0)), int(os.environ.get('WORLD_SIZE', 1))
    if size == 1:
        return rank, size, secrets.token_hex(8)
    run = [os.environ.get(name, '') for name in ('TORCHELASTIC_RUN_ID', 'MASTER_PORT')]
    if not any(run):
        raise _core.InvalidValue(errno.EINVAL, f'WORLD_SIZE is {size}, but the ranks have no name in common: neither TORCHELASTIC_RUN_ID nor MASTER_PORT is set; '
                                               'start them with torchrun, or call torch.distributed.init_process_group first')
    return rank, size, hashlib.sha256('/'.join(run).encode()).hexdigest()[:16]


def _key(key: str | bytes) -> bytes:
    return key.encode() if isinstance(key, str) else bytes(key)


class NanoKVCache:
    """An object cache over a symmetric heap. heap_bytes: payload of each rank; page_bytes: a power of two. The second cache of a process is another heap.

    reclaim_s: seconds after which the master ends a plan that was not committed; the master's counts.
    need_tokens: ranks other than the master need a token of its, from make_token, and may do what that says.
    """

    _made = 0

    def __init__(self, heap_bytes: int, master_rank: int = 0, page_bytes: int = 256 * 1024, *, reclaim_s: float = 10.0, need_tokens: bool = False, token: bytes = bytes(16)) -> None:
        self.rank, self.world_size, name = _ranks()
        self._heap = _core.Heap(f'nano-{name}-{NanoKVCache._made}', self.world_size, self.rank, heap_bytes=heap_bytes, page_bytes=page_bytes,
                                master_rank=master_rank, reclaim_ns=int(reclaim_s * 1e9), need_tokens=int(need_tokens),
                                token_low=int.from_bytes(token[:8], 'little'), token_high=int.from_bytes(token[8:], 'little'))
        NanoKVCache._made += 1
        self.page_bytes = int.from_bytes(self._heap.view(self.rank, CTL_PAGE_BYTES, 4, True), 'little')  # the master's
        self._plans: dict[bytes, WritePlan] = {}

    def put(self, key: str | bytes, tensor: Any, *, preferred_segment: int | None = None, flags: int = 0) -> None:
        """Stores a contiguous tensor. preferred_segment: the owner's rank; None: hash of the key modulo the world size. flags: PIN | PRIORITY | replicas(n)."""
        self._heap.put(_key(key), tensor, ANY if preferred_segment is None else preferred_segment, flags)

    def get(self, key: str | bytes, *, dst: Any = None) -> Any:
        """A copy, verified if the object has a checksum: dst, which has as many bytes at least, else a new tensor of uint8 (a bytearray without torch)."""
        if dst is None:
            while True:  # the object may be replaced meanwhile by one of another size
                dst = bytearray(self.get_location(key).bytes_total)
                try:
                    del dst[self._heap.get(_key(key), dst):]
                    break
                except _core.Error as error:
                    if error.errno != errno.ENOBUFS:
                        raise
            torch = sys.modules.get('torch')
            return torch.frombuffer(dst, dtype=torch.uint8) if torch else dst
        self._heap.get(_key(key), dst)
        return dst

    def remove(self, key: str | bytes) -> None:
        self._heap.remove(_key(key))

    def open_for_write(self, key: str | bytes, bytes_total: int, *, preferred_segment: int | None = None, flags: int = 0) -> WritePlan:
        """Memory for an object, until commit or abandon. An object that is not committed within reclaim_s is lost.

        If such a plan of this process for the key was neither committed nor abandoned, this call abandons it: nobody may write there any more.
        """
        plan = self._open(key, bytes_total, preferred_segment, flags)
        before = self._plans.get(_key(key))
        self._plans[_key(key)] = plan
        if before is not None:
            self._give_up(before)
        return plan

    def _open(self, key: str | bytes, bytes_total: int, owner: int | None, flags: int) -> WritePlan:
        return WritePlan(*self._heap.open_for_write(_key(key), bytes_total, ANY if owner is None else owner, flags))

    def _give_up(self, plan: WritePlan) -> None:
        """Abandons a plan that the master may have ended already."""
        with contextlib.suppress(_core.Error):
            self._heap.abandon(plan)

    def commit(self, key: str | bytes) -> None:
        """The object of this process's plan is READY; all of it was written before."""
        self._heap.commit(self._plan_of(key))

    def abandon(self, key: str | bytes) -> None:
        self._heap.abandon(self._plan_of(key))

    def _plan_of(self, key: str | bytes) -> WritePlan:
        plan = self._plans.pop(_key(key), None)
        if plan is None:
            raise _core.InvalidValue(22, f'{key!r}: this process has no plan for that key: open_for_write comes first')
        return plan

    def payload(self, plan: WritePlan) -> Any:
        """The memory of a plan, with the buffer protocol: torch.frombuffer(cache.payload(plan), dtype=...)."""
        return self._heap.view(plan.dst_rank, plan.payload_base, plan.bytes_total, False)

    def get_location(self, key: str | bytes) -> ObjMeta:
        """Where a READY object lies now. It may be evicted meanwhile: hold keeps it."""
        return ObjMeta(*self._heap.location(_key(key)))

    @contextlib.contextmanager
    def hold(self, key: str | bytes) -> Iterator[memoryview]:
        """The object's bytes in place, read-only, under a lease. Arrays over them must not outlive the block: it ends the lease, and raises BufferError."""
        meta = ObjMeta(*self._heap.hold(_key(key)))
        view = memoryview(self._heap.view(meta.owner_rank, meta.payload_off, meta.bytes_total, True))
        try:
            yield view
        finally:
            try:
                view.release()
            finally:
                self._heap.release(meta)

    @staticmethod
    def name(key: str | bytes) -> tuple[int, int, int]:
        """What the header of an object says of its key: hash, and digest in two words."""
        return _core.Heap.name(_key(key))

    def stats(self, rank: int | None = None) -> dict[str, int]:
        """Counters of a rank, by default of this one (docs/heap.md)."""
        return self._heap.stats(self.rank if rank is None else rank)

    def evict_until_below(self, usage_ratio: float) -> int:
        """Evicts objects of every rank that this one may write into until at most that part (0 to 1) of its heap is in use. Returns how many went."""
        return self._heap.evict(int(usage_ratio * 100))

    def make_token(self, rank: int, *, read: Iterable[int], write: Iterable[int]) -> bytes:
        """Lets a process join as a rank that reads and writes in the heaps of these ranks alone. The master makes it."""
        read_bits, write_bits = (sum(1 << owner for owner in set(owners)) for owners in (read, write))
        return b''.join(word.to_bytes(8, 'little') for word in self._heap.token(rank, read_bits, write_bits))

    def may_write(self, rank: int) -> bool:
        """Whether this process may write into the heap of a rank: with need_tokens as its token says, else yes."""
        return bool(self._heap.write_rights() >> rank & 1)

    def take_over(self) -> None:
        """This rank becomes the master in place of one that is dead (calls raise OwnerGone then)."""
        self._heap.take_over()

    def device_ptr(self, rank: int, offset: int) -> int:
        """This process's address of an offset in the heap of a rank."""
        return self._heap.address(rank, offset)

    def payload_of(self, rank: int) -> tuple[int, int]:
        """This process's address of the payload of a rank's heap, and its bytes."""
        begin, end = (int.from_bytes(self._heap.view(rank, offset, 8, True), 'little') for offset in (0, 8))  # heap_layout.h: heap_base, heap_limit
        return self._heap.address(rank, begin), end - begin

    @property
    def heap_bases(self) -> list[int]:
        """This process's address of each rank's heap."""
        return [self._heap.address(rank, 0) for rank in range(self.world_size)]

    @property
    def heap_bases_tensor(self) -> Any:
        """heap_bases as a tensor of int64, for kernels."""
        import torch
        return torch.tensor(self.heap_bases, dtype=torch.int64)

    def close(self) -> None:
        """Leaves the heap. Raises Busy while arrays over its memory are left."""
        self._heap.close()

    def __enter__(self) -> NanoKVCache:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
