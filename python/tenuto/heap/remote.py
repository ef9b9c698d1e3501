# SPDX-License-Identifier: Apache-2.0
"""Objects from other machines: a producer that does not map the heap writes into it one-sidedly, by a transfer agent (docs/heap.md).

    owner = Owner(cache, agent)                  # a rank of the heap; the agent is for this alone
    while running:
        owner.serve(timeout=1.0)

    producer = Producer(agent, 'decode-0')       # elsewhere; both agents have loaded the other one's metadata
    producer.put('prompt-17', kv)

The producer asks for a plan by a notification, writes the bytes into the plan's pages, and says so by the notification that follows the bytes. The owner commits, with
the checksum of what has arrived, and confirms. A plan that is not committed within the heap's reclaim_s ends, and its producer learns that by ESTALE. Its pages
are the plan's until the producer gives it up or its connection is lost: while a producer that is only slow may write still, they are nobody else's.
"""
from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import struct
import time
from collections.abc import Callable
from typing import Any

from .. import _core, xfer
from . import NanoKVCache, WritePlan, _key

_OPEN, _WRITTEN, _GIVE_UP = b'O', b'W', b'G'  # to the owner: '<cQ', of _OPEN '<cQQiI' and the key
_ANSWER = struct.Struct('<QiQ')  # number, errno, address; then text
_HEAD, _WANT = struct.Struct('<cQ'), struct.Struct('<QiI')
_END_S = 1.0  # how long a put that has failed waits for the end of its transfer

_Steps = list[Callable[[], None]]


def _flat(tensor: Any) -> tuple[int, int]:
    """Address and bytes of an array in host memory whose elements follow each other."""
    view = _core.View(tensor, False)
    if view.device is not None:
        raise ValueError(f'the array lies in the memory of device {view.device}: the heap takes host memory, copy it there first')
    step = view.itemsize
    for n, stride in zip(reversed(view.shape), reversed(view.strides)):
        if n > 1 and stride != step:
            raise ValueError("the array's elements do not follow each other: make it contiguous")
        step *= n
    if step == 0:
        raise ValueError(f'an array of shape {view.shape} has no bytes: an object has at least one')
    return view.pointer, step


class Owner:
    """Serves producers. One thread at a time. All notifications of the agent are its own.

    It registers the payload of all ranks that this one may write into. So an agent that it lets connect could write over any object there: load the metadata of
    producers that are trusted alone.
    """

    def __init__(self, cache: NanoKVCache, agent: xfer.Agent) -> None:
        self._cache, self._agent = cache, agent
        # By producer and number, with the producer's generation; not by keys, because a plan that took too long and the next one have the same key.
        self._plans: dict[tuple[str, int], tuple[int, WritePlan]] = {}
        self._sections = [(*cache.payload_of(rank), 0, '') for rank in range(cache.world_size) if cache.may_write(rank)]
        agent.register(self._sections, xfer.DRAM)

    def serve(self, timeout: float | None = None) -> int:
        """Answers what has arrived; waits for it, up to timeout seconds (None: without end). Returns how many requests there were."""
        seen = self._agent.event()
        answered = self._serve_waiting()
        if answered == 0:
            self._agent.event_wait(seen, timeout)
            answered = self._serve_waiting()
        return answered

    def _serve_waiting(self) -> int:
        lost = [name for name, (generation, _) in self._plans.items() if self._generation(name[0]) != generation]
        notes = self._agent.notifications()  # after the look at who is lost: all that these have said is among them
        for peer, note in notes:
            self._take(peer, note)
        for name in lost:
            self._give_up(name)
        return len(notes)

    def _generation(self, peer: str) -> int | None:
        """Of the process that has the name now. None: it is lost."""
        found = self._agent.peer(peer)
        return None if found is None or found.state == 'lost' else found.generation

    def _take(self, peer: str, note: bytes) -> None:
        address = code = number = 0
        text = ''
        try:
            kind, number = _HEAD.unpack_from(note)
            if kind == _OPEN:
                address = self._open(peer, number, note[_HEAD.size:])
            elif kind == _WRITTEN:
                self._cache._heap.commit(self._plan_of(peer, number))
            elif kind == _GIVE_UP:
                self._give_up((peer, number))
                return
            else:
                code, text = errno.EINVAL, f'a notification that begins with {kind!r} is none of a producer'
        except struct.error:
            return  # of somebody who is no producer
        except _core.Error as error:
            code, text = error.errno or errno.EIO, str(error)
        try:
            self._agent.notify(peer, _ANSWER.pack(number, code, address) + text.encode())
        except _core.Error:
            if address:
                self._give_up((peer, number))  # nobody was told of the plan

    def _open(self, peer: str, number: int, want: bytes) -> int:
        nbytes, owner, flags = _WANT.unpack_from(want)
        if (peer, number) in self._plans:
            raise _core.InvalidValue(errno.EINVAL, f'{peer} has plan {number} already: end it first, or take another number')
        generation = self._generation(peer)
        if generation is None:
            raise _core.Error(errno.ENOTCONN, f'{peer} is lost')
        plan = self._cache._open(want[_WANT.size:], nbytes, None if owner < 0 else owner, flags)
        self._plans[peer, number] = generation, plan
        return self._cache.device_ptr(plan.dst_rank, plan.payload_base)

    def _plan_of(self, peer: str, number: int) -> WritePlan:
        if (peer, number) not in self._plans:
            raise _core.InvalidValue(errno.EINVAL, f'{peer} has no plan {number}')
        return self._plans.pop((peer, number))[1]

    def _give_up(self, name: tuple[str, int]) -> None:
        if name in self._plans:
            self._cache._give_up(self._plans.pop(name)[1])

    def close(self) -> None:
        """Ends all plans. No producer may be writing any more: the agent refuses with Busy else."""
        self._agent.deregister(self._sections, xfer.DRAM)
        for name in list(self._plans):
            self._give_up(name)


class Producer:
    """Puts objects into the heap of an Owner. One thread at a time. All notifications of the agent are its own."""

    def __init__(self, agent: xfer.Agent, owner: str) -> None:
        self._agent, self._owner = agent, owner
        self._unfinished: list[_Steps] = []
        self._numbers = itertools.count(int.from_bytes(os.urandom(4), 'little') << 20)  # an answer to a producer before this one is no answer to it

    def put(self, key: str | bytes, tensor: Any, *, preferred_segment: int | None = None, flags: int = 0, timeout: float = 10.0) -> None:
        """Stores a contiguous array. Others find the object when this returns. Arguments as of NanoKVCache.put; timeout in seconds, for all of it.

        Of a put that has failed, no byte moves any more, and its plan is given up. If the transfer does not end soon, the array stays registered and the plan open
        until it has ended, which the next put finds out, or until the connection is lost. One that was not answered in time may have stored the object.
        """
        for steps in list(self._unfinished):
            self._unfinished.remove(steps)
            self._finish(steps)
        number, deadline = next(self._numbers), time.monotonic() + timeout
        address, nbytes = _flat(tensor)
        owner = -1 if preferred_segment is None else preferred_segment
        steps: _Steps = [functools.partial(self._give_up, number)]
        try:
            self._agent.notify(self._owner, _HEAD.pack(_OPEN, number) + _WANT.pack(nbytes, owner, flags) + _key(key))
            there = self._answer(number, deadline)
            self._agent.register(tensor)
            steps.append(functools.partial(self._agent.deregister, tensor, timeout=_END_S))
            request = self._request([(address, nbytes, 0)], [(there, nbytes, 0)])
            steps += request.release, functools.partial(request.cancel, _END_S)
            request.post(timeout=max(.001, deadline - time.monotonic()), notification=_HEAD.pack(_WRITTEN, number))
            request.wait()
            self._answer(number, deadline)
        except BaseException:
            self._finish(steps)
            raise
        self._finish(steps[1:])

    def _request(self, here: list[tuple[int, int, int]], there: list[tuple[int, int, int]]) -> xfer.Request:
        with contextlib.ExitStack() as stack:
            local, remote = self._agent.list(here), self._agent.list(there, peer=self._owner)
            stack.callback(local.release)
            stack.callback(remote.release)
            return self._agent.write(local, remote)

    def _finish(self, steps: _Steps) -> None:
        """Ends a put: its last step first. While bytes may move, the steps wait for the next put, and the owner keeps the plan."""
        try:
            while steps:
                steps[-1]()
                steps.pop()
        except _core.Error:
            pass
        finally:
            if steps:
                self._unfinished.append(steps)

    def _give_up(self, number: int) -> None:
        """No byte of the plan moves any more."""
        with contextlib.suppress(_core.Error):
            self._agent.notify(self._owner, _HEAD.pack(_GIVE_UP, number))

    def _answer(self, number: int, deadline: float) -> int:
        while True:
            seen = self._agent.event()
            for _, note in self._agent.notifications():
                answered, code, address = _ANSWER.unpack_from(note)
                if answered == number and code:
                    raise _core.Error(code, f'{self._owner}: {note[_ANSWER.size:].decode()}')
                if answered == number:
                    return address
            left = deadline - time.monotonic()
            if left <= 0:
                raise _core.Timeout(errno.ETIMEDOUT, f'{self._owner} has not answered')
            self._agent.event_wait(seen, min(left, 1.0))
