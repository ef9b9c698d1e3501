# SPDX-License-Identifier: Apache-2.0
"""Blocks that ranks of every TP size share: a model's spaces by head group, which read as one (docs/shares.md).

    shares = cache.shares("llama3-8b", geometry, kv_heads=8, tp_size=2, tp_rank=1, kv_dtype="bf16")    # geometry: of this rank's 4 heads
    pool = shares.pool(cache.memory(kv), npages=4096, order=tenuto.POOL_PLANES_PAGES)                   # over the rank's own pages
    keys = shares.keys(tokens)
    with shares.match(keys, pin=True) as found:                     # blocks whose shares are all stored, by ranks of whatever size
        shares.load(keys[:found.blocks * tenuto.KEY_BYTES], pool, pages).finish()

Shares, its pools, loads and saves have the methods of Space, Pool, Load and Save, and the same errors. A load or save is an operation for each head group of
the rank, and counts as so many against max_ops.
"""
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from . import _core

MOST_TP = 8  # if nobody says another number

#: Of a block with shares of several outcomes the first of these counts.
_WORST = (_core.SAVED_FAILED, _core.SAVED_REJECTED, _core.SAVED_NOT, _core.SAVED_HOST_ONLY, _core.SAVED_STORED, _core.SAVED_EXISTING)
_COUNTED = (_core.SAVED_STORED, _core.SAVED_EXISTING, _core.SAVED_HOST_ONLY, _core.SAVED_REJECTED, _core.SAVED_FAILED)  # in the order of SaveResult


def _each(parts: Any, call: Callable[[Any], Any]) -> list[Any]:
    """What a call says of all parts. The first error is raised once all were called."""
    out, errors = [], []
    for part in parts:
        try:
            out.append(call(part))
        except Exception as error:
            errors.append(error)
    if errors:
        raise errors[0]
    return out


def _left(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _until(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


class Pool:
    """A pool of each head group of a rank, over the pages of the rank; made by Shares.pool."""

    def __init__(self, shares: Shares, memory: _core.Memory, npages: int, base: Any, strides: Any, **order: Any) -> None:
        self.memory, self.geometry, self.npages, self.groups = memory, shares.geometry, npages, shares.groups
        views = [shares.groups.view(i, npages, base, strides, **order) for i in range(shares.groups.count)]
        self.pools = tuple(_core.Pool(memory, shares.groups.geometry, *view) for view in views)

    def close(self) -> None:
        _each(self.pools, lambda pool: pool.close())


class _Parts:
    """What loads and saves have in common."""

    def __init__(self, parts: list[Any]) -> None:
        self.parts = tuple(parts)

    @property
    def blocks(self) -> int:
        return self.parts[0].blocks

    @property
    def tag(self) -> int:
        return self.parts[0].tag

    @property
    def ended(self) -> bool:
        return all(part.ended for part in self.parts)


class Load(_Parts):
    """A load of each head group: a layer of a block is good when it is of all of them."""

    @property
    def good(self) -> int:
        return min(part.good for part in self.parts)

    def _ask(self, layer: int | None) -> list[int | None]:
        return _each(self.parts, lambda part: part.poll(layer))

    def wait(self, layer: int | None = None, timeout: float | None = None) -> int:
        """As Load.wait. The cache takes the time between two waits of a load for compute: so all are asked before one is waited for, and again behind it."""
        if len(self.parts) == 1:
            return int(self.parts[0].wait(layer, timeout))
        until = _until(timeout)
        self._ask(layer)
        good = min(part.wait(layer, _left(until)) for part in self.parts)
        self._ask(layer)
        return good

    def poll(self, layer: int | None = None) -> int | None:
        good = self._ask(layer)
        return None if None in good else min(g for g in good if g is not None)

    def event(self, layer: int) -> tuple[int, int]:
        if len(self.parts) == 1:
            return self.parts[0].event(layer)
        raise ValueError('a load of several head groups has no one word for a layer: wait or poll, or let a stream wait (stream_wait)')

    def stream_wait(self, stream: int, layer: int | None = None) -> None:
        for part in self.parts:
            part.stream_wait(stream, layer)

    def cancel(self) -> None:
        _each(self.parts, lambda part: part.cancel())

    def end(self, timeout: float | None = None) -> tuple[int, ...]:
        until, live = _until(timeout), [part for part in self.parts if not part.ended]
        if len(live) > 1:
            _each(live, lambda part: part.end(0))  # what is missing of all is cancelled before one is waited for
        return tuple(sorted({block for busy in _each(live, lambda part: part.end(_left(until))) for block in busy}))

    def finish(self) -> int:
        good = self.wait()
        self.end()
        return good

    def __enter__(self) -> Load:
        return self

    def __exit__(self, *exc: Any) -> bool:
        self.end()
        return False


class Save(_Parts):
    """A save of each head group. A block is stored when all of its shares are."""

    def __init__(self, parts: list[Any], layers: int) -> None:
        super().__init__(parts)
        self._left, self._committed, self._aborted = set(range(layers)), False, False

    def layer(self, layer: int, event: _core.Event | None = None, value: int = 0) -> None:
        for part in self.parts:
            part.layer(layer, event, value)
        self._left.discard(layer)

    def commit(self) -> None:
        for part in self.parts:
            part.commit()
        self._committed = True

    def abort(self) -> None:
        if not self._committed:
            _each(self.parts, lambda part: part.abort())
            self._aborted = True

    def end(self, timeout: float | None = None) -> _core.SaveResult:
        until = _until(timeout)
        _each([part for part in self.parts if not part.ended], lambda part: part.end(_left(until)))
        result = self.result
        assert result is not None
        return result

    def finish(self) -> _core.SaveResult:
        for layer in sorted(self._left) if not self._aborted else ():
            self.layer(layer)
        if not self._aborted and not self._committed:
            self.commit()
        return self.end()

    @property
    def outcome(self) -> bytes | None:
        outcomes = [part.outcome for part in self.parts]
        if None in outcomes:
            return None
        return bytes(min(block, key=_WORST.index) for block in zip(*outcomes))

    @property
    def result(self) -> _core.SaveResult | None:
        outcome = self.outcome
        if outcome is None:
            return None
        errors = [part.result.error for part in self.parts if part.result.error]
        return _core.SaveResult((*(outcome.count(kind) for kind in _COUNTED), errors[0] if errors else 0))

    def __enter__(self) -> Save:
        return self

    def __exit__(self, raised: Any, *exc: Any) -> bool:
        if not self.ended and not self._committed:
            if raised is None and not self._left:
                self.commit()
            else:
                self.abort()
        self.end()
        return False


class Shares:
    """The blocks of one model for ranks of every TP size, as one rank has them.

    geometry: of the rank's share. kv_heads: of the whole model; tp_rank, tp_size: which of them the rank has. most_tp: a number that every TP size divides: all
    engines that are to share blocks give the same. identity: as of Cache.space.

    groups: which head groups these are. spaces: of the rank's groups; all: of all groups of the model, which a look-up asks. saves: whether this rank is the first
    of those that have its heads: its saves serve the others.
    Raises InvalidValue: heads that do not fit the rank, or groups that it has not whole.
    """

    def __init__(self, cache: Any, model: str, geometry: _core.Geometry, *, kv_heads: int, tp_rank: int = 0, tp_size: int = 1, most_tp: int = MOST_TP,
                 **identity: Any) -> None:
        self.cache, self.geometry = cache, geometry
        self.groups = _core.HeadGroups(geometry, tp_size, tp_rank, kv_heads, most_tp)
        total = self.groups.total
        self.all = tuple(_core.Space(cache, model, self.groups.geometry, head_group=i, head_groups=total, **identity) for i in range(total))
        self.spaces = self.all[self.groups.first:self.groups.first + self.groups.count]
        self.saves = self.groups.replica == 0

    def pool(self, memory: _core.Memory, npages: int, base: Any = None, strides: Any = None, **order: Any) -> Pool:
        """Where the rank's pages lie in a memory: as of Pool, with the rank's geometry."""
        return Pool(self, memory, npages, base, strides, **order)

    def keys(self, tokens: Any, extra: bytes = b'') -> bytes:
        return self.all[0].keys(tokens, extra)

    def keys_from_hashes(self, hashes: bytes, hash_bytes: int = 32) -> bytes:
        """Of the hashes of the rank's pages."""
        parts = self.groups.geometry.pages_per_block // self.geometry.pages_per_block  # 1, or the tokens of a page
        if parts > 1:
            hashes = b''.join(hashes[i:i + hash_bytes] * parts for i in range(0, len(hashes), hash_bytes))
        return self.all[0].keys_from_hashes(hashes, hash_bytes)

    def match(self, keys: Any, pin: bool = False, tiers: bool = False) -> _core.Match:
        """Blocks of which all shares are there, also those of other ranks. tiers: not told of several spaces."""
        return self.all[0].match(keys, pin, tiers) if len(self.all) == 1 else _core.match_all(self.all, keys, pin)

    def _begin(self, make: Any, target: Pool, keys: Any, pages: Any, options: dict[str, Any]) -> list[Any]:
        parts: list[Any] = []
        own = memoryview(self.groups.pages(pages)).cast('I')
        try:
            for space, pool in zip(self.spaces, target.pools):
                parts.append(make(space, pool, keys, own, **options))
        except BaseException:
            for part in parts:
                if isinstance(part, _core.Save):
                    part.abort()
                part.end()
            raise
        return parts

    def load(self, keys: Any, target: Pool, pages: Any, **options: Any) -> Load:
        """As Space.load, of pages of the rank. first_page and npages count in them, too."""
        parts = self.groups.geometry.pages_per_block // self.geometry.pages_per_block
        for name in ('first_page', 'npages'):
            if name in options:
                options[name] *= parts
        return Load(self._begin(_core.Load, target, keys, pages, options))

    def save(self, keys: Any, source: Pool, pages: Any, **options: Any) -> Save:
        """As Space.save, of pages of the rank."""
        return Save(self._begin(_core.Save, source, keys, pages, options), self.geometry.layers)

    def prefetch(self, keys: Any, timeout: float | None = None) -> int:
        return min(space.prefetch(keys, timeout) for space in self.spaces)

    def slack(self, table: str | None = None) -> str | None:
        """As Space.slack: set in the spaces of all its groups, read of the first."""
        if table is None:
            return self.spaces[0].slack()
        for space in self.spaces:
            space.slack(table)
        return None

    def observe(self, input_tokens: int, prefix_tokens: int, layer: int, ns: int) -> None:
        for space in self.spaces:
            space.observe(input_tokens, prefix_tokens, layer, ns)

    def reset(self, revision: bytes) -> None:
        for space in self.all:
            space.reset(revision)

    def drop_blocks(self, keys: Any) -> int:
        """Of all ranks. Returns blocks of which a share was found."""
        return max(space.drop_blocks(keys) for space in self.all)

    def drop(self, timeout: float | None = None) -> None:
        """Of all ranks."""
        until = _until(timeout)
        _each(self.all, lambda space: space.drop(_left(until)))

    def close(self) -> None:
        _each(self.all, lambda space: space.close())
