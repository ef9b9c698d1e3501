# SPDX-License-Identifier: Apache-2.0
"""The transfer agent: moves bytes between memories, files and processes (docs/xfer.md).

    agent = tenuto.xfer.Agent('prefill-0')
    agent.register(kv)                                             # an array or tensor; or (address, bytes, device) and a segment
    channel.send(agent.metadata())                                 # bytes, carried as you like

    peer = agent.load(channel.recv())                              # 'decode-0'
    local = agent.list(kv_runs)                                    # [(address, bytes, device, stride, count)], or an array of 3 or 5 columns
    remote = agent.list(their_runs, peer=peer)
    request = agent.write(local, remote, local_indices=pages, remote_indices=their_pages)
    request.post(timeout=5.0, notification=b'request 17')
    request.wait()                                                 # raises why it failed; cancel() ends it early

Times are seconds, and a timeout of None never ends. Errors are tenuto.Error with errno and the library's own text: Timeout of a deadline, Busy while bytes may
still move. Calls release the GIL; any thread may use an agent, one at a time a request.
"""
from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from . import PoolShare, _arrays, _core

DRAM, VRAM, BLOCK, OBJECT, FILE = _core.XFER_DRAM, _core.XFER_VRAM, _core.XFER_BLOCK, _core.XFER_OBJECT, _core.XFER_FILE
IDLE, ACTIVE, ENDING, ENDED = _core.XFER_IDLE, _core.XFER_ACTIVE, _core.XFER_ENDING, _core.XFER_ENDED

__all__ = ['ACTIVE', 'BLOCK', 'DRAM', 'ENDED', 'ENDING', 'FILE', 'IDLE', 'OBJECT', 'VRAM', 'Agent', 'Peer', 'Request', 'Section', 'Status', 'backend_names',
           'layout_map', 'pack', 'runs_of', 'sections_of', 'unpack']

PEER_STATES = {_core.XFER_PEER_LOADED: 'loaded', _core.XFER_PEER_CONNECTED: 'connected', _core.XFER_PEER_LOST: 'lost'}

backend_names = _core.xfer_backend_names


class Peer(NamedTuple):
    """What is known of a peer: state is 'loaded', 'connected' or 'lost'."""
    state: str
    sections: int
    generation: int
    revision: int


class Section(NamedTuple):
    """A section of a peer; bytes 0: all that there will be."""
    segment: int
    address: int
    bytes: int
    device: int


class Status(NamedTuple):
    """How a request stands: state is IDLE, ACTIVE, ENDING or ENDED; error an errno, 0: none (yet); times in ns."""
    state: int
    error: int
    bytes: int
    post_ns: int
    time_ns: int
    estimate_ns: int
    descriptors: int
    pieces: int
    backend: str


def _listed(arrays: Any) -> Any:
    return arrays if isinstance(arrays, (list, tuple)) else [arrays]


def sections_of(arrays: Any) -> list[tuple[int, int, int]]:
    """(address, bytes, device) of an array, or of each of several."""
    views = [_core.View(a, False) for a in _listed(arrays)]
    return [(first, end - first, view.device or 0) for view, (first, end) in zip(views, map(_arrays.extent, views))]


def _segment_of(arrays: Any) -> int:
    """VRAM or DRAM, by where the arrays are."""
    kinds = {VRAM if _core.View(a, False).device is not None else DRAM for a in _listed(arrays)}
    if len(kinds) > 1:
        raise ValueError('arrays in host memory and on a device: one call has those of one kind')
    return kinds.pop() if kinds else DRAM


def runs_of(array: Any) -> list[tuple[int, int, int, int, int]]:
    """One descriptor per entry of an array's first dimension, as one run."""
    view = _core.View(array, False)
    first, end = _arrays.extent(view)
    count = view.shape[0]
    if (end - first) % count or (count > 1 and view.strides[0] * count != end - first):
        raise ValueError(f'the {count} entries of an array of {end - first} bytes do not follow each other')
    size = (end - first) // count
    return [(first, size, view.device or 0, size, count)]


def pack(runs: Any, segment: int = DRAM) -> bytes:
    """Descriptors as bytes, for another process."""
    return _core.xfer_pack(segment, runs)


def unpack(packed: bytes) -> tuple[int, list[tuple[int, int, int, int, int]]]:
    """(segment, runs) of what pack made."""
    return _core.xfer_unpack(packed)


def layout_map(mine: PoolShare, theirs: PoolShare, my_pages: Any, their_pages: Any, tokens: int) -> tuple[Any, Any]:
    """(local, remote): descriptors for Agent.list that move the blocks of two pools, which may differ in order, page size and TP size.

    mine: a pool of this process; theirs: of another agent, PoolShare.from_bytes of what it has sent. Pages are indices in the order of their tokens; tokens: how many,
    from the first token of the first pages on. Two empty lists: the ranks have no head in common. The pools' arrays are registered on either side.
    Raises InvalidValue for what no copy can map.
    """
    local, remote = _core.xfer_layout_map(mine, theirs, my_pages, their_pages, tokens)
    return _arrays.table(local, 5), _arrays.table(remote, 5)


class Request:
    """A transfer that can be posted any number of times. Made by Agent.read and Agent.write."""

    def __init__(self, agent: Agent, request: _core.XferRequest) -> None:
        self._agent = agent
        self._request = request

    def post(self, timeout: float | None = None, notification: bytes | None = None) -> None:
        """Begins. It fails with Timeout when the timeout is over; notification: what the remote agent is told after all bytes are there."""
        self._request.post(timeout, notification)

    def wait(self, timeout: float | None = None) -> bool:
        """Sleeps until all is there: True. False: it still goes on after timeout. Raises why it failed."""
        return self._request.wait(timeout)

    async def finish(self) -> None:
        """The same for asyncio, without a timeout: that of post counts."""
        while True:
            seen = self._agent.event()
            if self._request.wait(0):
                return
            await self._agent.changed(seen)

    def status(self) -> Status:
        return Status(*self._request.status())

    def results(self, first: int = 0, count: int | None = None) -> list[tuple[int, int]]:
        """(errno, bytes moved) per descriptor."""
        return self._request.results(first, self.status().descriptors - first if count is None else count)

    def cancel(self, timeout: float | None = None) -> None:
        """Ends it early: nothing of it moves when this returns. Raises Busy if that is not so after timeout."""
        self._request.cancel(timeout)

    def release(self) -> None:
        """Gives it back. Raises Busy while bytes may move."""
        self._request.release()

    def explain(self) -> str:
        """Why it has its backend."""
        return self._request.explain()

    def __enter__(self) -> Request:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.cancel()
        self.release()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class Agent:
    """A transfer agent.

    name: among those that exchange metadata; backends: specs, the preferred one first (None: memory and file); listen: 'unix:PATH', 'tcp:HOST:PORT' or 'none' (None: a
    socket of its own); secret: bytes that agents share, else metadata carries a random key; connect_timeout: seconds to wait for a peer; notifications_max: most that
    wait to be taken.
    """

    def __init__(self, name: str, backends: Sequence[str] | None = None, listen: str | None = None, secret: bytes | None = None,
                 connect_timeout: float = 5.0, notifications_max: int = 4096) -> None:
        self._core = _core.XferAgent(name, backends, listen, secret, max(1, int(connect_timeout * 1e9)), notifications_max)
        self.name = name
        self._arrays: dict[tuple[int, int, int], list[Any]] = {}
        self._waiters: list[asyncio.Future[None]] = []

    def close(self) -> None:
        """Ends the agent. Raises Busy while it has lists or requests."""
        self._core.close()
        self._arrays.clear()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    # ---- sections

    def _sections(self, what: Any, segment: int | None) -> tuple[int, Any]:
        if segment is None:
            return _segment_of(what), sections_of(what)
        return segment, what

    def register(self, what: Any, segment: int | None = None) -> None:
        """Sections that transfers may name: arrays, which are held; or with a segment (address, bytes, device, meta) each, or an array of 3 columns."""
        kind, sections = self._sections(what, segment)
        self._core.register(kind, sections)
        if segment is None:
            for array, section in zip(_listed(what), sections):
                self._arrays.setdefault(section, []).append(array)

    def deregister(self, what: Any, segment: int | None = None, timeout: float | None = 10.0) -> None:
        """As they were registered. Raises Busy while a request uses one, or a peer has not confirmed after timeout."""
        kind, sections = self._sections(what, segment)
        self._core.deregister(kind, sections, timeout)
        if segment is None:
            for section in sections:
                held = self._arrays.get(section)
                if held:
                    held.pop()
                if not held:
                    self._arrays.pop(section, None)

    def query(self, sections: Any, segment: int = FILE) -> list[int | None]:
        """The size of each file or object that exists."""
        return self._core.query(segment, sections)

    # ---- metadata and peers

    def metadata(self, what: Any = None, segment: int | None = None) -> bytes:
        """What another agent needs: of all sections, or of some; [] with a segment: only how to connect."""
        if what is None:
            return self._core.metadata()
        return self._core.metadata(*self._sections(what, segment))

    def load(self, metadata: bytes) -> str:
        """Takes another agent's metadata. Returns its name."""
        return self._core.load(metadata)

    def fetch(self, address: str, timeout: float | None = 10.0) -> str:
        """Loads the metadata of the agent that listens at an address; both have the same secret. Returns its name."""
        return self._core.fetch(address, timeout)

    def directory(self, spec: str) -> None:
        """Where publish and lookup go: 'etcd,endpoints=http://127.0.0.1:2379,ttl_s=10'."""
        self._core.directory(spec)

    def publish(self, label: str | None = None, what: Any = None, segment: int | None = None, timeout: float | None = 10.0) -> None:
        """Puts this agent's metadata into the directory, under a label; what and segment: as of metadata. It stays until unpublish, or until the agent ends or dies."""
        if what is None:
            self._core.publish(label, DRAM, None, timeout)
        else:
            self._core.publish(label, *self._sections(what, segment), timeout)

    def unpublish(self, label: str | None = None, timeout: float | None = 10.0) -> None:
        """Takes an entry of this agent back. Peers keep what they have loaded."""
        self._core.unpublish(label, timeout)

    def lookup(self, peer: str, label: str | None = None, timeout: float | None = 10.0) -> None:
        """Loads the metadata that an agent has published. Raises NotFound if there is none."""
        self._core.lookup(peer, label, timeout)

    def connect(self, peer: str, timeout: float | None = 10.0) -> None:
        """Now; else the first transfer does."""
        self._core.connect(peer, timeout)

    def invalidate(self, peer: str) -> None:
        """Forgets a peer: its requests end, its lists are of no use."""
        self._core.invalidate(peer)

    def peer(self, name: str) -> Peer | None:
        found = self._core.peer(name)
        return Peer(PEER_STATES[found[0]], *found[1:]) if found else None

    def peer_sections(self, name: str) -> Sequence[Section]:
        """What is known of a peer's sections, sorted by segment, device and address. Raises NotFound: it was not loaded."""
        return [Section(*found) for found in self._core.peer_sections(name)]

    # ---- transfers

    def list(self, runs: Any, peer: str | None = None, segment: int = DRAM) -> _core.XferList:
        """Descriptors that requests name by index: (address, bytes, device) or (..., stride, count) each, or an array of 3 or 5 columns. peer: whose."""
        return self._core.list(peer, segment, runs)

    def _request(self, op: int, local: Any, remote: Any, local_indices: Any, remote_indices: Any, backends: Iterable[str] | None,
                 notification_bytes: int) -> Request:
        return Request(self, self._core.request(op, local, local_indices, remote, remote_indices, backends, notification_bytes))

    def read(self, local: _core.XferList, remote: _core.XferList, local_indices: Any = None, remote_indices: Any = None,
             backends: Iterable[str] | None = None, notification_bytes: int = 256) -> Request:
        """A transfer from remote to local. Indices: None is all. backends: names, in the order to try."""
        return self._request(_core.XFER_READ, local, remote, local_indices, remote_indices, backends, notification_bytes)

    def write(self, local: _core.XferList, remote: _core.XferList, local_indices: Any = None, remote_indices: Any = None,
              backends: Iterable[str] | None = None, notification_bytes: int = 256) -> Request:
        """A transfer from local to remote."""
        return self._request(_core.XFER_WRITE, local, remote, local_indices, remote_indices, backends, notification_bytes)

    # ---- notifications and events

    def notify(self, peer: str, notification: bytes) -> None:
        """Tells a peer something. Raises Again if too much waits to be sent."""
        self._core.notify(peer, notification)

    def notifications(self) -> list[tuple[str, bytes]]:
        """(sender, bytes) of all that have arrived."""
        out = []
        while (one := self._core.take()) is not None:
            out.append(one)
        return out

    def event(self) -> int:
        """A number that rises whenever a request ends, a notification arrives, or a peer is lost."""
        return self._core.event()

    def event_wait(self, seen: int, timeout: float | None = None) -> bool:
        """Sleeps while event() is seen. Whether it rose."""
        return self._core.event_wait(seen, timeout)

    def fileno(self) -> int:
        """An eventfd that is readable after event() rose."""
        return self._core.fileno()

    async def changed(self, seen: int) -> None:
        """For asyncio: until event() is not seen any more."""
        loop, fd = asyncio.get_running_loop(), self.fileno()
        waiter = loop.create_future()
        self._waiters.append(waiter)
        loop.add_reader(fd, self._rose)
        try:
            if self.event() == seen:
                await waiter
        finally:
            self._waiters.remove(waiter)
            if not any(w.get_loop() is loop for w in self._waiters):
                loop.remove_reader(fd)

    def _rose(self) -> None:
        """Wakes all: also those of other loops, whose descriptor this has read."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fileno())
        for waiter in list(self._waiters):
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    async def arrived(self) -> Sequence[tuple[str, bytes]]:
        """For asyncio: the next notifications, at least one."""
        while True:
            seen = self.event()
            if found := self.notifications():
                return found
            await self.changed(seen)

    def backends(self) -> list[tuple[str, int, int, int]]:
        """(name, bits of segments, latency in ns, bytes per s) of each."""
        return self._core.backends()

    def backend_add(self, spec: str) -> None:
        self._core.backend_add(spec)

    def stats(self) -> dict[str, int]:
        """By name, as docs/xfer.md lists them: requests that failed are counted by cause, too."""
        return self._core.stats()

    def fetch_stats(self, address: str, timeout: float | None = 10.0) -> dict[str, int]:
        """Those of the agent that listens at an address; both have the same secret. Raises as fetch."""
        lines = (line.split() for line in self._core.fetch_stats(address, timeout).splitlines())
        return {name: int(value) for name, value in lines}

    def log_lines(self) -> Sequence[tuple[int, str, str]]:
        """(level, where, text) of the log since the last call, at most the last 64 lines: which peer is lost, who was refused. tenuto.to_logging takes one."""
        return self._core.log_lines()
