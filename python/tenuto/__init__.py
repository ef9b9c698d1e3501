# SPDX-License-Identifier: Apache-2.0
"""Tenuto keeps the KV cache of LLM serving in host memory and on NVMe, and gives it back verified.

    cache = tenuto.Cache("/nvme/kv", host_bytes=4 << 30)          # or tenuto.attach("/run/user/1000/kv.sock")
    geometry = tenuto.Geometry(layers=32, planes=tenuto.kv_planes(heads=8, head_dim=128, elem_bits=16), page_tokens=16)
    space = cache.space("llama3-8b", geometry, kv_dtype="bf16")
    pool = cache.pool(geometry, kv_tensors, axes="pn")             # the engine's pages: a tensor [2, npages, ...] per layer

    keys = space.keys(tokens)                                      # packed: KEY_BYTES per whole block
    with space.match(keys, pin=True) as found:
        with space.load(keys[:found.blocks * tenuto.KEY_BYTES], pool, pages) as load:
            for layer in range(32):
                good = load.wait(layer)                            # the first `good` blocks of this layer are there, verified
    space.save(keys, pool, pages).finish()

Units: bytes, blocks, seconds for timeouts, ns where a name ends with _ns. Every error is a tenuto.Error, which is an OSError with errno and the
library's own text. A load that fails is no error: it is a shorter good prefix. Calls release the GIL; objects may be used from any thread, one load or save
by one thread at a time. In a forked child every call on what the parent has opened raises Forked.
"""
from __future__ import annotations

import os
from collections import abc
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from . import _arrays, _core
from ._core import (
    ANY_UID, HND, KEY_BYTES, MATCH_EXACT, MATCH_PREFIX, MATCH_WINDOW, NHD, PLANE_K, PLANE_LATENT, PLANE_SCALE_K, PLANE_SCALE_V, PLANE_STATE,
    PLANE_V, POOL_CROSS_LAYER, POOL_PAGES_PLANES, POOL_PLANE_REGION, POOL_PLANES_PAGES, SAVED_EXISTING, SAVED_FAILED, SAVED_HOST_ONLY, SAVED_NOT,
    SAVED_REJECTED, SAVED_STORED, TIER_DEVICE, TIER_DISK, TIER_HOST, TIER_NONE, TIER_REMOTE,
    Again, Buffer, Busy, Closed, Denied, Error, Event, Forked, Geometry, InvalidValue, Load, Match, NotFound, OwnerGone, Pool, PrefixTree, Query, Save,
    SaveResult, Sequence, Subscriber, Timeout, View, WrongVersion, match_all, match_begin, reslice, version)
from .shares import Shares

__all__ = [
    'ANY_UID', 'HND', 'KEY_BYTES', 'MATCH_EXACT', 'MATCH_PREFIX', 'MATCH_WINDOW', 'NHD', 'PLANE_K', 'PLANE_LATENT', 'PLANE_SCALE_K', 'PLANE_SCALE_V',
    'PLANE_STATE', 'PLANE_V', 'POOL_CROSS_LAYER', 'POOL_PAGES_PLANES', 'POOL_PLANE_REGION', 'POOL_PLANES_PAGES', 'SAVED_EXISTING', 'SAVED_FAILED',
    'SAVED_HOST_ONLY', 'SAVED_NOT', 'SAVED_REJECTED', 'SAVED_STORED', 'TIER_DEVICE', 'TIER_DISK', 'TIER_HOST', 'TIER_NONE', 'TIER_REMOTE',
    'Again', 'BlockEvent', 'Buffer', 'Busy', 'Cache', 'Closed', 'Completion', 'Denied', 'Error', 'Event', 'Forked', 'Geometry', 'InvalidValue', 'Load',
    'Match', 'Memory', 'NotFound', 'OwnerGone', 'Pool', 'PoolShare', 'PrefixTree', 'Query', 'Save', 'SaveResult', 'Sequence', 'Shares', 'Space', 'Subscriber', 'Timeout', 'View', 'WrongVersion', 'attach', 'attach_store',
    'kv_planes', 'match_all', 'match_begin', 'reslice', 'strided', 'to_logging', 'version']

__version__ = version()

LATENCIES = ('match', 'layer_wait', 'load', 'save', 'flush')
TIERS = {'none': TIER_NONE, 'device': TIER_DEVICE, 'host': TIER_HOST, 'disk': TIER_DISK, 'remote': TIER_REMOTE}


class Completion(NamedTuple):
    """A load or save that has made progress (Cache.completions).

    tag: of its options; is_load; ended: its end() has nothing to wait for; ready_layers: loads: so many layers need no wait; good_blocks: loads: length
    of the good prefix so far. One of more than max_op_blocks blocks is told part by part, with the same tag, and the numbers of the part.
    """
    tag: int
    is_load: bool
    ended: bool
    ready_layers: int
    good_blocks: int


class BlockEvent(NamedTuple):
    """A block arrived in a tier (stored) or left it. parent: the key before it, None if it is the first of its chain or that is not known any more."""
    sequence: int
    time_ns: int
    key: bytes
    parent: bytes | None
    bytes: int
    depth: int
    space: int
    stored: bool
    tier: int


class Memory(_core.Memory):
    """Bytes that an engine owns, registered with a cache; made by Cache.memory. It keeps the arrays."""
    __slots__ = ()

    def pool(self, geometry: Geometry, arrays: Any = None, axes: str = 'n', *, npages: int = 0, order: int = POOL_CROSS_LAYER, alignment: int = 1) -> Pool:
        """Where the pages of blocks of one geometry lie in this memory.

        arrays and axes: as of Cache.pool, arrays that lie in this memory. Without them npages pages in an order that engines use (POOL_...), from the
        memory's first byte on; alignment: bytes that each page's start is a multiple of.
        """
        if arrays is None:
            return Pool(self, geometry, npages, order=order, alignment=alignment)
        return _arrays.pool_in(self, geometry, arrays, axes)


class PoolShare(_core.PoolShare):
    """A rank's pool, as others have to know it: where its pages lie, and which KV heads the rank has. to_bytes and from_bytes carry it."""
    __slots__ = ()

    @classmethod
    def of(cls, geometry: Geometry, arrays: Any, axes: str = 'pn', *, tp_size: int = 1, tp_rank: int = 0, kv_heads: int | None = None) -> PoolShare:
        """Of an engine's KV arrays, with axes as of Cache.pool. geometry: of the shard; kv_heads: of the whole model, None: those of the geometry.

        Raises ValueError (a shape or stride that does not fit), InvalidValue (heads that do not fit the rank).
        """
        return _arrays.share(cls, geometry, arrays, axes, tp_size, tp_rank, kv_heads)

    def map(self, theirs: PoolShare, my_pages: Any, their_pages: Any, tokens: int) -> Any:
        """Which bytes of two pools hold the same elements: rows (my address, theirs, my stride, theirs, bytes, count).

        Pages are indices in the order of their tokens. tokens: how many, from the first token of the first pages on. Pools may differ in the order of planes and
        pages, page size, TP size and rank. Without a common head there are no rows. Raises InvalidValue.
        """
        return _arrays.table(super().map(theirs, my_pages, their_pages, tokens), 6)


class Space(_core.Space):
    __doc__ = _core.Space.__doc__
    __slots__ = ()

    def load(self, keys: Any, target: Any, pages: Any = None, *, axes: str = 'lpn', **options: Any) -> Load:
        """Start bringing blocks into pages. The pages are Tenuto's until the load has ended.

        keys: packed, n of them. target: a Pool, with pages the n x pages_per_block page indices, block by block (an integer array or a sequence); or arrays
        as of Cache.pool (with axes), whose first n x pages_per_block pages are meant if pages is None.
        Options: first_page, npages: only so many of the pages from there on are written; timeout: seconds, what has not come by then is a miss; priority:
        higher first; input_tokens: that the engine computes beyond the load; start_ns: CLOCK_MONOTONIC time from which layer 0 can be computed; tag: for
        Cache.completions.

        More blocks than one operation takes (max_op_blocks, 8,192) are loaded in parts that read as one. Each takes one of max_ops; those for which there is
        no place at first begin when a part before them has arrived. Only event() of such a load raises InvalidValue.

        Returns a Load. Blocks that are not there are no error. Raises InvalidValue (a page out of range, given twice, or still part of another load or save),
        Again (too much under way), BufferError (an array has moved), Closed, OwnerGone.
        """
        if not isinstance(target, Pool):
            target, pages = _arrays.pool_for(self, keys, target, pages, axes, writable=True)
        return Load(self, target, keys, pages, **options)

    def save(self, keys: Any, source: Any, pages: Any = None, *, axes: str = 'lpn', **options: Any) -> Save:
        """Announce blocks that compute is about to produce, or has produced. Their pages are Tenuto's to read until the save has ended.

        keys, source, pages, axes: as of load. Options: parent: the key before the first one, if that does not begin the prompt: if it is not there, nor on its way, nothing is stored; partial_last: the last block
        holds a prompt's unfinished tail; priority: -128 to 127, for eviction; ttl: seconds, after which it is not found any more; tag.

        More blocks than one operation takes are saved in parts, as of load. A part that finds no place (max_ops, the write backlog) waits until one before
        it has ended: end() and finish() begin it. If there is none, its blocks have failed, with EAGAIN as the error of the result.

        Returns a Save: finish() does the rest at once, or layer(), commit() and end(). Raises InvalidValue, Again (the write backlog is full: nothing was begun,
        leave these blocks out or ask again), BufferError, Closed, OwnerGone.
        """
        if not isinstance(source, Pool):
            source, pages = _arrays.pool_for(self, keys, source, pages, axes, writable=False)
        return Save(self, source, keys, pages, **options)


class Cache(_core.Cache):
    """A cache that this process owns; attach gives one of another process, for the same calls.

    path: a directory, several (one per disk), or None: host memory only. serve: path of a Unix socket at which other processes may attach. log: called
    with (level, where, text), from a thread of the cache; to_logging passes lines to the logging module. The other options are those of struct tn_cache_opts
    in tenuto/cache.h, with the same names and units: instance, disk_bytes, disk_blocks, geometry, host_bytes, max_blocks, max_ops, max_op_blocks, io_depth,
    io_engine, executors, workers, policy, verify, read_only, write_bytes_per_day, header_cache_bytes, lock_timeout_ns, seed, log_level, scheduler,
    write_backlog_bytes, offload_lag_ms, durability_ms, device_bytes, device, transfer, transfer_streams, cluster_secret_file, remote, offload; device_driver is the name of a plugin, as of pool.

    A context manager. A cache that nobody closes is closed when the interpreter ends.
    Raises NotFound (no such directory), Busy (another process has it open: the text has its pid), InvalidValue, WrongVersion, Error (EUCLEAN: not a store, or
    broken; EROFS, ENOSPC, EIO, ...).
    """

    def __new__(cls, path: Any = None, *, serve: Any = None, rules: Iterable[dict[str, Any]] = (), **options: Any) -> Cache:
        if path is None:
            dirs = ()
        elif isinstance(path, (str, bytes, os.PathLike)):
            dirs = (path,)
        else:
            dirs = tuple(path)
        self = super().__new__(cls, tuple(os.fsencode(d) for d in dirs), **options)
        if serve is not None:
            try:
                self.serve(serve, rules)
            except BaseException:
                self.close()
                raise
        return self

    def serve(self, path: Any, rules: Iterable[dict[str, Any]] = ()) -> None:
        """Let other processes attach at a Unix socket, until the cache closes.

        rules: who may what, the first that fits counts: dicts with uid (or ANY_UID), token, tenants (a sequence), read_only, max_priority, quota. None: processes
        of this process's own user may do everything. Raises Error (EADDRINUSE, EEXIST, ENAMETOOLONG, EALREADY), InvalidValue.
        """
        self._serve(os.fsencode(path), _rules(rules), False)

    def serve_anew(self, rules: Iterable[dict[str, Any]]) -> None:
        """Other rules for processes that attach from now on."""
        self._serve(b'', _rules(rules), True)

    def space(self, model: str, geometry: Geometry, **identity: Any) -> Space:
        """The blocks of one tenant, model and shard; two spaces that differ in anything never match.

        identity: tenant, revision, kv_dtype ("bf16"), rotary, hash_algorithm, hash_seed, reset_revision; tp_rank, tp_size, pp_rank, pp_size, group; match_rule
        (MATCH_PREFIX, MATCH_WINDOW with window_tokens, MATCH_EXACT); quota: {"host": bytes, "disk": bytes}. Raises InvalidValue, Error (ENOSPC: too many are open).
        """
        return Space(self, model, geometry, **identity)

    def shares(self, model: str, geometry: Geometry, *, kv_heads: int, tp_rank: int = 0, tp_size: int = 1, most_tp: int = 8, **identity: Any) -> Shares:
        """As space, of blocks that ranks of every TP size share: the spaces of a model's head groups, which read as one (tenuto.shares).

        geometry: of this rank's share; kv_heads: of the whole model; most_tp: a number that every TP size divides which is to share the blocks.
        """
        return Shares(self, model, geometry, kv_heads=kv_heads, tp_rank=tp_rank, tp_size=tp_size, most_tp=most_tp, **identity)

    def memory(self, *arrays: Any, stage_bytes: int = 0, driver: str | None = None) -> Memory:
        """Register bytes that loads write and saves read: anything with the buffer protocol, __dlpack__ or __cuda_array_interface__, or strided(...).

        They stay where they are while the Memory lives. stage_bytes: in an attached cache, of memory that the owner cannot map (all but tenuto.Buffer and
        shared mappings), and of a device's memory in any cache: most host memory through which each pool's bytes are copied.

        Arrays on a device are all of one. driver: the plugin that copies them ("cuda" by default); of arrays in host memory it is not asked for. Nobody here
        waits for a stream: what it does to the pages must be over before a load begins, and before a layer of a save is given (docs/gpu.md).

        Raises BufferError (read-only), TypeError, ValueError, Error; of a device NotFound (no such plugin), Denied, WrongVersion, InvalidValue (memory that is
        not the device's).
        """
        return _arrays.memory(self, Memory, arrays, stage_bytes, driver)

    def pool(self, geometry: Geometry, arrays: Any, axes: str = 'pn', *, stage_bytes: int = 0, driver: str | None = None) -> Pool:
        """Register an engine's KV arrays, and say where its pages lie in them.

        arrays: one array, or nested sequences of them: by layer, or by layer and plane. axes: what the first dimensions of each array are: l layers, p planes,
        n pages; those not named are the sequences, layers outside planes. What follows is one page, contiguous, of geometry.page_bytes(plane) bytes.

            axes="pn",  [tensor [2, npages, page_tokens, heads, dim] per layer]        vLLM
            axes="np",  [tensor [npages, 2, page_tokens, heads, dim] per layer]        FlashInfer
            axes="n",   [[k [npages, ...], v [npages, ...]] per layer]                 SGLang
            axes="nlp", tensor [npages, layers, 2, ...]                                cross-layer

        stage_bytes, driver: as of memory. Raises ValueError (a shape, type or stride that does not fit: the text has both), TypeError, BufferError (read-only),
        InvalidValue, and what memory raises.
        """
        return _arrays.pool(self, Memory, geometry, arrays, axes, stage_bytes, driver=driver)

    def event(self) -> Event:
        """A word that is raised when bytes of a save are final (Save.layer). Raises Again."""
        return Event(self)

    def eventfd(self) -> int:
        """A descriptor that is readable whenever a load or save has made progress: the cache's, not to be closed. See completions, and tenuto.futures."""
        return _core.eventfd(self)

    def completions(self) -> list[Completion]:
        """The loads and saves that have made progress since this was last asked. Several readers share them: each is told to one."""
        return [Completion(*c) for c in _core.completions(self)]

    def stats(self) -> dict[str, int]:
        """All statistics by name (docs/statistics.md), counted since open."""
        return _core.stats(self)

    def devices(self) -> list[dict[str, Any]]:
        """By directory: path, health ("healthy", "slow", "read-only", "offline"), capacity_bytes, used_bytes, blocks, bytes_read, ..."""
        return _core.devices(self)

    def latency(self, kind: str, tier: str = 'none', *, all_processes: bool = False) -> dict[str, Any]:
        """A histogram: {"count", "sum_ns", "buckets": [(upper bound in ns, count), ...]}. kind: one of LATENCIES; tier: of loads, one of TIERS."""
        return _core.latency(self, LATENCIES.index(kind), TIERS[tier], all_processes)

    def owner(self) -> dict[str, int]:
        """Who owns the cache: pid, sessions, sessions_total, open_ns, write_bytes_per_day. Raises Denied, OwnerGone."""
        return _core.owner(self)

    def sessions(self) -> list[dict[str, int]]:
        """What each process does with the cache; place 0 is the owner's own calls. Raises Denied, OwnerGone."""
        return _core.sessions(self)

    def block_events(self, cursor: int = 0) -> tuple[list[BlockEvent], int, bool]:
        """(events, next cursor, whether some are gone: take a snapshot). 0 begins with the next event."""
        events, cursor, gone = _core.events(self, cursor)
        return [BlockEvent(*e) for e in events], cursor, gone

    def snapshot(self) -> tuple[list[BlockEvent], int]:
        """Every block that the cache holds now, and the cursor from which block_events goes on."""
        events, cursor = _core.snapshot(self)
        return [BlockEvent(*e) for e in events], cursor

    def publish(self, spec: str) -> None:
        """Publish the events of blocks that have an engine's name (Space.name_blocks), until the cache is closed.

        spec: "zmq,endpoint=tcp://127.0.0.1:5557,replay=tcp://127.0.0.1:5558" and more (docs/events.md). Raises InvalidValue, NotFound (no such plugin), Error.
        """
        _core.publish(self, spec)

    def publish_stats(self) -> dict[str, int]:
        """What the publisher has done: events, unnamed, batches, bytes, gaps, snapshots, lag_ns. Raises NotFound (none)."""
        return _core.publish_stats(self)

    def phase(self, phase: str, slack_ns: int = 0) -> None:
        """A hint: "prefill" or "decode", with the time for which no load is expected."""
        _core.phase(self, ('prefill', 'decode').index(phase), slack_ns)


def attach(path: Any, *, token: str | None = None, timeout: float | None = None) -> Cache:
    """The cache that another process serves at a Unix socket.

    token: that the owner's rules ask for; timeout: seconds to wait for the owner's answer (None: ten). Raises NotFound, Error (ECONNREFUSED: nobody serves there),
    Denied (no rule is about this process), WrongVersion, Again (32 are attached), Timeout.
    """
    return Cache._attach(os.fsencode(path), None, token, timeout)


def attach_store(path: Any, instance: str = 'default', *, token: str | None = None, timeout: float | None = None) -> Cache:
    """The cache of the process that has the store in this directory open and serves it. Raises as attach; NotFound: nobody does."""
    return Cache._attach(os.fsencode(path), instance, token, timeout)


def kv_planes(heads: int, head_dim: int, elem_bits: int) -> tuple[tuple[int, int, int, int], ...]:
    """The planes of plain attention, K and V, for Geometry."""
    return ((PLANE_K, heads, head_dim, elem_bits), (PLANE_V, heads, head_dim, elem_bits))


def strided(pointer: int, shape: abc.Sequence[int], strides: abc.Sequence[int] | None, itemsize: int, owner: Any = None,
            device: int | None = None) -> View:
    """An array by its address: strides in elements, as tensor.stride() gives them; itemsize in bytes; owner is kept; device: whose memory it is.

        strided(t.data_ptr(), t.shape, t.stride(), t.element_size(), owner=t)

    The bytes must stay mapped while anything uses them: nobody checks an address.
    """
    return View(pointer=pointer, shape=shape, strides=strides, itemsize=itemsize, owner=owner, device=device)


def to_logging(level: int, where: str, text: str) -> None:
    """For Cache(log=...): lines go to the logger "tenuto"."""
    import logging
    logging.getLogger('tenuto').log((logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG)[level], '%s: %s', where, text)


def _rules(rules: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    return tuple({k: tuple(v) if k == 'tenants' else v for k, v in dict(r).items()} for r in rules)


LogFunction = Callable[[int, str, str], None]
