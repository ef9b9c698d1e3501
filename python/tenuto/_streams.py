# SPDX-License-Identifier: Apache-2.0
"""Streams of a GPU beside loads and saves: a stream waits for a layer of a load, and a save waits for what a stream has done.

Neither makes the host wait. A stream that waits for a layer goes on in any case, also if the load fails (docs/device-memory.md). So whoever computes on
such a layer looks at the load before what it has computed is kept. torch is imported only here, and only for tensors on a GPU.
"""
from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from . import _core, shares


@contextlib.contextmanager
def current(device: Any) -> Iterator[Any]:
    """torch's current stream of a device, which is the current one meanwhile: the number of a default stream is the same on all devices."""
    import torch
    with torch.cuda.device(device):
        yield torch.cuda.current_stream(device)


class _Used:
    """A stream that waits for words, or raises one. event: its own, for a second stream would raise the word out of order; value: raised last."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.event: _core.Event | None = None
        self.value = 0


def _settle(used: dict[int, _Used]) -> None:
    for one in used.values():
        one.stream.synchronize()
    used.clear()


class Streams:
    """torch's current streams of a device, for the loads and saves of one cache. Any thread.

    Words that streams wait for or write are memory of the cache. So `close` comes before the cache is closed: it waits for all streams that were used.
    """

    def __init__(self, cache: _core.Cache, device: Any) -> None:
        self.cache, self.device = cache, device
        self._used: dict[int, _Used] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _settle, self._used)

    def close(self) -> None:
        with self._lock:
            _settle(self._used)

    def settle(self) -> None:
        """The host waits until the current stream has done all that it was asked for."""
        with current(self.device) as stream:
            stream.synchronize()

    def wait(self, load: _core.Load | shares.Load, layer: int) -> bool:
        """Whether the current stream waits for a layer of a load from now on. If not, the host has to: the stream knows no words, or the load has several."""
        with current(self.device) as stream, self._lock:
            self._used.setdefault(stream.cuda_stream, _Used(stream))
            try:
                load.stream_wait(stream.cuda_stream, layer)
            except OSError:  # whatever it is: the host's wait tells it, too
                return False
        return True

    def done(self, pool: _core.Pool | shares.Pool) -> tuple[_core.Event, int] | None:
        """An event and the value that it reaches once the current stream has done what it was asked for until now, for Save.layer.

        pool: any in the device's memory. None: the stream writes no words, and the host has to wait for it (settle).
        """
        pool = pool.pools[0] if isinstance(pool, shares.Pool) else pool
        with current(self.device) as stream, self._lock:
            used = self._used.setdefault(stream.cuda_stream, _Used(stream))
            try:
                event = used.event or _core.Event(self.cache)
                event.stream_raise(pool, stream.cuda_stream, used.value + 1)
            except OSError:
                return None
            used.event, used.value = event, used.value + 1
            return event, used.value
