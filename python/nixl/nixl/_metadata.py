# SPDX-License-Identifier: Apache-2.0
"""How agents find each other's metadata: a directory (etcd, or a TCPStore of torch.distributed), or a push to an agent that listens.

A push is a fetch of the other's metadata, and notifications that have one's own. It needs TENUTO_XFER_SECRET on both sides: who has it is believed.
"""
from __future__ import annotations

import datetime
import errno
import os
import threading
import time
from typing import Any

import tenuto
from tenuto import xfer

from ._types import exception
from .logging import get_logger

logger = get_logger(__name__)

DEFAULT_METADATA_LABEL = 'metadata'
OP_MS, CONNECT_MS = 5000, 30000  # of a TCPStore, where NIXL_TCPSTORE_OP_TIMEOUT_MS and NIXL_TCPSTORE_TIMEOUT_MS say nothing
PUSH = b'\0tenuto-nixl\0'  # begins a notification that is a push: then L (the last one), M (more follow) or F (forget me), and bytes of metadata
PUSH_BYTES = 60000
PUSHED_MAX = 64 << 20
PUSH_S = 300.0  # a push of which nothing came for so long is dropped: its sender is gone


def _setting_ms(name: str, default: int) -> datetime.timedelta:
    return datetime.timedelta(milliseconds=int(os.environ.get(name) or default))


class Etcd:
    """Entries have a lease of 10 s, so those of a dead agent go."""
    fetch_s = 5.0  # how long etcd is waited for, and an entry that is not there yet

    def __init__(self, agent: xfer.Agent) -> None:
        self._agent = agent
        endpoints, namespace = os.environ['NIXL_ETCD_ENDPOINTS'].replace(',', ';'), os.environ.get('NIXL_ETCD_NAMESPACE') or '/nixl/agents'
        agent.directory(f'etcd,endpoints={endpoints},namespace={namespace}')

    def publish(self, label: str, *what: Any) -> None:
        self._agent.publish(label, *what, timeout=self.fetch_s)

    def unpublish(self, label: str) -> None:
        self._agent.unpublish(label, self.fetch_s)

    def lookup(self, peer: str, label: str) -> None:
        """Loads it. Raises tenuto.NotFound: it is not there."""
        self._agent.lookup(peer, label, self.fetch_s)


class TcpStore:
    """A store that somebody else serves (torch.distributed.TCPStore, is_master=True). Entries stay until they are taken back."""

    def __init__(self, agent: xfer.Agent) -> None:
        self._agent = agent
        endpoint = os.environ['NIXL_TCPSTORE_ENDPOINT']
        self._host, _, port = endpoint.rpartition(':')
        if not self._host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise RuntimeError(f'NIXL_TCPSTORE_ENDPOINT={endpoint}: HOST:PORT is wanted')
        self._port = int(port)
        self.fetch_s = _setting_ms('NIXL_TCPSTORE_TIMEOUT_MS', CONNECT_MS).total_seconds()
        self._lock = threading.Lock()
        self._made: Any = None

    def _store(self) -> Any:
        """Connects at the first call, so that an agent can be made before there is a store."""
        with self._lock:
            if self._made is None:
                try:
                    from torch.distributed import TCPStore
                except ImportError as error:
                    raise exception('BACKEND', f'NIXL_TCPSTORE_ENDPOINT needs torch: {error}') from error
                self._made = TCPStore(self._host, self._port, is_master=False, wait_for_workers=False, timeout=_setting_ms('NIXL_TCPSTORE_TIMEOUT_MS', CONNECT_MS))
                self._made.set_timeout(_setting_ms('NIXL_TCPSTORE_OP_TIMEOUT_MS', OP_MS))
            return self._made

    def _ask(self, call: str, *args: Any) -> Any:
        try:
            return getattr(self._store(), call)(*args)
        except RuntimeError as error:  # torch's errors of a store are RuntimeErrors
            with self._lock:
                self._made = None
            raise exception('BACKEND', f'the TCPStore at {self._host}:{self._port}: {error}') from error

    @staticmethod
    def _key(agent: str, label: str) -> str:
        return f'nixl/agents/{label}/{agent}/NULL_AGENT'  # for all agents

    def publish(self, label: str, *what: Any) -> None:
        self._ask('set', self._key(self._agent.name, label), self._agent.metadata(*what))

    def unpublish(self, label: str) -> None:
        self._ask('delete_key', self._key(self._agent.name, label))

    def lookup(self, peer: str, label: str) -> None:
        key = self._key(peer, label)
        if not self._ask('check', [key]):
            raise tenuto.NotFound(errno.ENOENT, f'the TCPStore has no entry {key}')
        name = self._agent.load(self._ask('get', key))
        if name != peer:
            logger.error('the entry %s is metadata of %s', key, name)


def open_directory(agent: xfer.Agent) -> Etcd | TcpStore | None:
    """By the environment, as NIXL chooses it."""
    etcd, store = (os.environ.get(name) for name in ('NIXL_ETCD_ENDPOINTS', 'NIXL_TCPSTORE_ENDPOINT'))
    if etcd and store:
        raise RuntimeError('NIXL_ETCD_ENDPOINTS and NIXL_TCPSTORE_ENDPOINT are mutually exclusive: unset one')
    if store:
        return TcpStore(agent)
    if not etcd:
        return None
    try:
        return Etcd(agent)
    except tenuto.Error as error:
        logger.warning('NIXL_ETCD_ENDPOINTS is not used: %s', error.strerror)
        return None


class Pushes:
    """Metadata that agents send each other, and what has arrived of it. One thread at a time takes."""

    def __init__(self, agent: xfer.Agent) -> None:
        self._agent = agent
        self._parts: dict[str, tuple[float, bytes]] = {}  # when the latest part was taken, and all parts

    def send(self, address: str, metadata: bytes) -> None:
        peer = self._agent.fetch(address)
        for at in range(0, len(metadata), PUSH_BYTES):
            last = at + PUSH_BYTES >= len(metadata)
            self._agent.notify(peer, PUSH + (b'L' if last else b'M') + metadata[at:at + PUSH_BYTES])

    def forget(self, address: str) -> None:
        """Who does not listen any more has ended, and has forgotten all."""
        try:
            self._agent.notify(self._agent.fetch(address), PUSH + b'F')
        except tenuto.Error as error:
            if error.errno not in (errno.ECONNREFUSED, errno.ECONNRESET):
                raise
            logger.info('%s has nothing to forget: %s', address, error.strerror)

    def take(self, sender: str, notification: bytes) -> bool:
        """Whether a notification was a push, which is done then."""
        if not notification.startswith(PUSH):
            return False
        what, part = notification[len(PUSH):len(PUSH) + 1], notification[len(PUSH) + 1:]
        try:
            if what == b'F':
                self._agent.invalidate(sender)
            else:
                self._load(sender, part, what == b'L')
        except tenuto.Error as error:
            logger.error('what agent %s has pushed: %s', sender, error.strerror)
        return True

    def _load(self, sender: str, part: bytes, last: bool) -> None:
        now = time.monotonic()
        for name in [name for name, (taken, _) in self._parts.items() if now - taken > PUSH_S]:
            del self._parts[name]
        whole = self._parts.pop(sender, (now, b''))[1] + part
        if last:
            self._agent.load(whole)
        elif len(whole) <= PUSHED_MAX:
            self._parts[sender] = now, whole
