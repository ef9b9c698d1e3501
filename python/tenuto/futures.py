# SPDX-License-Identifier: Apache-2.0
"""Loads and saves as futures, for threads (concurrent.futures) and for asyncio.

    async with tenuto.futures.Loop(cache) as loop:
        load = space.load(keys, pool, pages, tag=loop.tag())
        for layer in range(layers):
            good = await loop.layer(load, layer)      # the event loop goes on meanwhile
        await loop.ended(load)                         # then load.end() returns at once

    done = tenuto.futures.Watcher(cache)               # with a thread of its own
    future = done.future(load)                         # resolves to the good prefix, or to the SaveResult of a save

Each cache has one reader of its completions: one Loop or one Watcher at a time.
"""
from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import os
import select
import threading
from typing import Any

_tags = itertools.count(1 << 62)


def _drain(fd: int) -> None:
    try:
        os.read(fd, 8)
    except BlockingIOError:
        pass


class Loop:
    """Loads and saves of a cache in an asyncio event loop, woken by the cache's eventfd."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self._wanted: dict[int, list[tuple[Any, int, asyncio.Future[int]]]] = {}
        self._ended: dict[int, list[tuple[Any, asyncio.Future[Any]]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Loop:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.cache.eventfd(), self._ready)
        return self

    async def __aexit__(self, *exc: Any) -> None:
        assert self._loop is not None
        self._loop.remove_reader(self.cache.eventfd())
        for waits in (*self._wanted.values(), *self._ended.values()):
            for wait in waits:
                wait[-1].cancel()
        self._wanted.clear()
        self._ended.clear()

    @staticmethod
    def tag() -> int:
        """A tag that no other load or save has. Every load and save that is waited for here needs one."""
        return next(_tags)

    def _ready(self) -> None:
        _drain(self.cache.eventfd())
        while told := self.cache.completions():
            for c in told:
                self._look(c.tag)

    def _look(self, tag: int) -> None:
        for table, answer in ((self._wanted, self._layer_now), (self._ended, self._end_now)):
            left = [wait for wait in table.pop(tag, []) if not answer(*wait)]
            if left:
                table[tag] = left

    @staticmethod
    def _layer_now(load: Any, layer: int, future: asyncio.Future[int]) -> bool:
        if not future.done():
            good = load.poll(layer)
            if good is None:
                return False
            future.set_result(good)
        return True

    @staticmethod
    def _end_now(op: Any, future: asyncio.Future[Any]) -> bool:
        if not future.done():
            try:
                over = op.end(0)
            except TimeoutError:
                return False
            except OSError as e:
                future.set_exception(e)
                return True
            if hasattr(op, 'good'):
                if over:
                    return False
                over = op.good
            future.set_result(over)
        return True

    async def layer(self, load: Any, layer: int) -> int:
        """As Load.wait, without holding up the event loop. Returns the length of the good prefix in blocks."""
        assert self._loop is not None
        future: asyncio.Future[int] = self._loop.create_future()
        if not self._layer_now(load, layer, future):
            self._wanted.setdefault(load.tag, []).append((load, layer, future))
        return await future

    async def ended(self, op: Any) -> Any:
        """Until a load, or a committed save, has ended: the good prefix, or the SaveResult. A load is cancelled by its end: wait for its layers first."""
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        if not self._end_now(op, future):
            self._ended.setdefault(op.tag, []).append((op, future))
        return await future


class Watcher:
    """Resolves concurrent futures from a thread that waits for the cache's eventfd."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self._lock = threading.Lock()
        self._wanted: dict[int, tuple[Any, concurrent.futures.Future[Any]]] = {}
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._run, name='tenuto-futures', daemon=True)
        self._thread.start()

    tag = staticmethod(Loop.tag)

    def future(self, op: Any) -> concurrent.futures.Future[Any]:
        """A future of a load (the good prefix, once all layers are there) or of a committed save (its SaveResult). Their pages are the caller's then."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            self._wanted[op.tag] = (op, future)
        self._look(op.tag)
        return future

    def close(self) -> None:
        """Ends the thread; futures that have not resolved are cancelled."""
        os.write(self._woken, b'x')
        self._thread.join()
        os.close(self._wake)
        os.close(self._woken)
        for _, future in self._wanted.values():
            future.cancel()

    def _look(self, tag: int) -> None:
        raised, over = None, None
        with self._lock:  # what comes while this looks is looked at again
            if tag not in self._wanted:
                return
            op, future = self._wanted[tag]
            try:
                over = self._over(op)
            except BaseException as e:  # whatever it is, it is the future's
                raised = e
            if over is None and raised is None:
                return
            del self._wanted[tag]
        if raised:
            future.set_exception(raised)
        else:
            future.set_result(over)

    @staticmethod
    def _over(op: Any) -> Any:
        """The result, or None: it still goes on."""
        if hasattr(op, 'good'):
            good = op.poll()
            return None if good is None or op.end(0) else good
        try:
            return op.end(0)
        except TimeoutError:
            return None

    def _run(self) -> None:
        poller = select.poll()
        poller.register(self.cache.eventfd(), select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == self._wake:
                    return
                _drain(fd)
            try:
                while told := self.cache.completions():
                    for c in told:
                        self._look(c.tag)
            except OSError:
                return  # the cache was closed
