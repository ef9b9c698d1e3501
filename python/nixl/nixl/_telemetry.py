# SPDX-License-Identifier: Apache-2.0
"""NIXL's telemetry events, in the file that NIXL's readers map: NIXL_TELEMETRY_DIR/AGENT, a ring of (type, value).

A reader takes events out. What finds no place is counted, and an event says how many were lost as soon as there is place again.
"""
from __future__ import annotations

import mmap
import os
import struct
import threading

from .logging import get_logger

logger = get_logger(__name__)

VERSION = 4  # of NIXL's format
EVENTS = 4096  # where NIXL_TELEMETRY_BUFFER_SIZE says nothing
NAMES = ('agent_tx_bytes', 'agent_rx_bytes', 'agent_tx_requests_num', 'agent_rx_requests_num', 'agent_memory_registered', 'agent_memory_deregistered', 'agent_xfer_time',
         'agent_xfer_post_time', 'agent_err_not_posted', 'agent_err_invalid_param', 'agent_err_backend', 'agent_err_not_found', 'agent_err_mismatch', 'agent_err_not_allowed',
         'agent_err_repost_active', 'agent_err_unknown', 'agent_err_not_supported', 'agent_err_remote_disconnect', 'agent_err_canceled', 'agent_err_no_telemetry',
         'agent_telemetry_events_dropped')
TYPES = {name: number for number, name in enumerate(NAMES)}
DROPPED = TYPES['agent_telemetry_events_dropped']
HEADER = struct.Struct('=QQIIQQ')  # write and read position, version twice, places, mask
EVENT = struct.Struct('=I4xQ')
POSITION = struct.Struct('=Q')


class Ring:
    """The file of one agent."""

    def __init__(self, directory: str, agent: str) -> None:
        text = os.environ.get('NIXL_TELEMETRY_BUFFER_SIZE') or str(EVENTS)
        self._places = int(text) if text.isdecimal() else 0
        if self._places < 2 or self._places & (self._places - 1):
            raise RuntimeError(f'NIXL_TELEMETRY_BUFFER_SIZE={text}: a power of two is wanted')
        if '/' in agent:
            raise RuntimeError(f'telemetry of agent {agent}: its name is that of its file, and has a slash')
        fd = os.open(os.path.join(directory, agent), os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, HEADER.size + self._places * EVENT.size)
            self._map = mmap.mmap(fd, HEADER.size + self._places * EVENT.size)
        finally:
            os.close(fd)
        HEADER.pack_into(self._map, 0, 0, 0, VERSION, VERSION, self._places, self._places - 1)
        self._lock = threading.Lock()
        self._dropped = 0

    def add(self, *events: tuple[str, int]) -> None:
        """All of them, or none."""
        with self._lock:
            at, end = (POSITION.unpack_from(self._map, offset)[0] for offset in (0, POSITION.size))
            free = (end - at - 1) & (self._places - 1)
            if free < len(events) + (self._dropped > 0):
                self._dropped += len(events)
                return
            numbers = [(TYPES[name], value) for name, value in events]
            if self._dropped:
                numbers.insert(0, (DROPPED, self._dropped))
                self._dropped = 0
            for number, value in numbers:
                EVENT.pack_into(self._map, HEADER.size + at * EVENT.size, number, value)
                at = (at + 1) & (self._places - 1)
            POSITION.pack_into(self._map, 0, at)  # what it points behind is there


def open_ring(agent: str) -> Ring | None:
    """None: nobody has said where, and telemetry is that of requests alone."""
    directory = os.environ.get('NIXL_TELEMETRY_DIR')
    if os.environ.get('NIXL_TELEMETRY_EXPORTER', 'BUFFER') != 'BUFFER':
        logger.warning('NIXL_TELEMETRY_EXPORTER=%s: there is BUFFER alone', os.environ['NIXL_TELEMETRY_EXPORTER'])
    return Ring(directory, agent) if directory else None
