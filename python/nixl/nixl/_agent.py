# SPDX-License-Identifier: Apache-2.0
"""nixlAgent: the calls of NIXL's agent by their C++ names, on tenuto.xfer. nixl_agent of _api is made of it, as there.

Where NIXL knows no deadline, TENUTO_XFER_TIMEOUT_S says how many seconds a transfer may take (120). TENUTO_XFER_SECRET is the secret of agents that find each
other by the listener; TENUTO_XFER_LISTEN where an agent listens (tenuto.xfer.Agent). _metadata has what it reads of the environment.

Handles of backends are numbers; those of lists and requests are objects, which are given back when nobody holds them.
"""
from __future__ import annotations

import collections
import datetime
import errno
import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import tenuto
from tenuto import xfer

from ._metadata import DEFAULT_METADATA_LABEL, Pushes, open_directory
from ._plugins import PLUGINS, available, open_backend
from ._telemetry import open_ring
from ._types import (
    DEFAULT_COMM_PORT, STATUS_OF_END, STATUS_OF_EXCEPTION, exception, exception_of, nixl_cost_t, nixl_mem_t, nixl_status_t, nixl_thread_sync_t, nixl_xfer_op_t, nixlRegDList,
    nixlRemoteDList, nixlXferDList, nixlXferTelemetry, text_of)
from .logging import get_logger

logger = get_logger(__name__)

TIMEOUT_S = 120.0
ABORT_S = 1.0
NOTIFICATION_BYTES = 4096  # of a request that was made with a shorter one; posts may have another
LOOKUP_STEP_S = 0.05

SEGMENTS = {nixl_mem_t.DRAM_SEG: xfer.DRAM, nixl_mem_t.VRAM_SEG: xfer.VRAM, nixl_mem_t.BLK_SEG: xfer.BLOCK, nixl_mem_t.OBJ_SEG: xfer.OBJECT,
            nixl_mem_t.FILE_SEG: xfer.FILE}
FILES = (nixl_mem_t.FILE_SEG, nixl_mem_t.BLK_SEG)
YES, NO = ('y', 'yes', 'on', '1', 'true', 'enable'), ('n', 'no', 'off', '0', 'false', 'disable')


def _timeout() -> float | None:
    text = os.environ.get('TENUTO_XFER_TIMEOUT_S')
    if not text:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise exception('INVALID_PARAM', f'TENUTO_XFER_TIMEOUT_S={text}: seconds are wanted, 0 for no deadline')
    return seconds or None


def _telemetry_wanted(config: nixlAgentConfig) -> bool:
    """NIXL_TELEMETRY_ENABLE, where it says something, goes before what the program asks for."""
    text = os.environ.get('NIXL_TELEMETRY_ENABLE', '').lower()
    if text and text not in YES + NO:
        raise RuntimeError(f'NIXL_TELEMETRY_ENABLE={text}: y or n is wanted')
    return text in YES if text else config.captureTelemetry


def _bytes(message: bytes | str) -> bytes:
    return message.encode() if isinstance(message, str) else bytes(message)


def _as_nixl(call: Callable[..., Any]) -> Callable[..., Any]:
    """Errors of Tenuto become NIXL's exceptions."""
    @functools.wraps(call)
    def run(*args: Any, **more: Any) -> Any:
        try:
            return call(*args, **more)
        except tenuto.Error as error:
            raise exception_of(error) from error
    return run


def _told(call: Callable[..., Any]) -> Callable[..., Any]:
    """NIXL's exceptions of transfers are events of telemetry."""
    @functools.wraps(call)
    def run(self: nixlAgent, *args: Any, **more: Any) -> Any:
        try:
            return call(self, *args, **more)
        except tuple(STATUS_OF_EXCEPTION) as error:
            if self._ring:
                self._ring.add((f'agent_err_{STATUS_OF_EXCEPTION[type(error)].lower()}', 1))
            raise
    return run


def _path_of(meta: str) -> tuple[str, set[str]] | None:
    """Path and flags of "ro,FLAG:PATH" or "rw,FLAG,...:PATH". Any other meta is no path: the device is an open descriptor, as there."""
    modes, _, path = meta.partition(':')
    access, *flags = modes.split(',')
    return (path, {access, *flags}) if path and access in ('ro', 'rw') and set(flags) <= {'direct', 'sync', 'noatime', 'create'} else None


def _file_meta(meta: str) -> str | None:
    """What Tenuto has for it."""
    found = _path_of(meta)
    if found is None:
        return None
    path, flags = found
    if 'sync' in flags:
        raise exception('NOT_SUPPORTED', f'{meta}: no write is synced here')
    return f"{'ro' if 'ro' in flags else 'rw'}{',direct' if 'direct' in flags else ''}:{path}"


def sections_of(descs: nixlRegDList) -> Any:
    """Sections of a list: no empty ones of memory, and meta for files and objects alone."""
    if descs.getType() == nixl_mem_t.OBJ_SEG:
        return [(a, n, d, meta.decode() or str(d)) for a, n, d, meta in descs]
    if descs.getType() in FILES:
        return [(a, n, d, _file_meta(meta.decode())) for a, n, d, meta in descs]
    return [(a, n, d, None) for a, n, d, _ in descs if n] if isinstance(descs.rows(), list) else descs.rows()


def _check_files(descs: nixlRegDList) -> None:
    """A file is made only if its meta says so."""
    for _, _, _, meta in descs if descs.getType() in FILES else ():
        found = _path_of(meta.decode())
        if found and 'create' not in found[1] and not os.path.exists(found[0]):
            raise exception('BACKEND', f'{found[0]}: there is no such file; rw,create: makes it')


def _file_info(path: str | int) -> dict[str, str]:
    """Of a file that is named by its path, or by a descriptor."""
    try:
        stat = os.stat(path)
    except FileNotFoundError:  # it was there
        return {}
    return {'mode': str(stat.st_mode), 'mtime': str(int(stat.st_mtime))}


def _why(request: xfer.Request, error: int) -> str:
    """The library's words for the end of a request that has failed."""
    try:
        request.wait(0)
    except tenuto.Error as told:
        return told.strerror
    except MemoryError:
        pass
    return os.strerror(error)


def _durations(status: xfer.Status) -> tuple[int, int]:
    """Microseconds of the post and of all, at least one: NIXL's readers take 0 for nothing."""
    post_us = -(-status.post_ns // 1000)
    return post_us, max(-(-status.time_ns // 1000), post_us)


def _events(way: str, status: xfer.Status) -> list[tuple[str, int]]:
    """Telemetry of the end of a request."""
    if status.error:
        return [(f"agent_err_{STATUS_OF_END.get(status.error, 'BACKEND').lower()}", 1)]
    post_us, time_us = _durations(status)
    return [('agent_xfer_post_time', post_us), ('agent_xfer_time', time_us), (f'agent_{way}_bytes', status.bytes), (f'agent_{way}_requests_num', 1)]


class nixlAgentConfig:
    """What an agent is made with. The progress thread, thread modes and delays have no meaning here: agents may be used from any thread."""

    def __init__(self, useProgThread: bool = False, useListenThread: bool = False, listenPort: int = 0,
                 syncMode: Any = nixl_thread_sync_t.NIXL_THREAD_SYNC_DEFAULT, numWorkers: int = 1, pthrDelay: int = 0, lthrDelay: int = 100000,
                 captureTelemetry: bool = False) -> None:
        self.useProgThread = useProgThread
        self.useListenThread = useListenThread
        self.listenPort = listenPort
        self.syncMode = syncMode
        self.numWorkers = numWorkers
        self.pthrDelay = pthrDelay
        self.lthrDelay = lthrDelay
        self.captureTelemetry = captureTelemetry
        self.etcdWatchTimeout = datetime.timedelta(seconds=5)


class _Request:
    """A request, and what NIXL knows of one."""
    __slots__ = ('ended', 'indexed', 'notif', 'posted', 'request', 'start_us', 'way')

    def __init__(self, request: xfer.Request, way: str, notif: bytes, indexed: bool) -> None:
        self.request: xfer.Request | None = request
        self.way = way  # tx or rx
        self.ended = True  # and was told
        self.notif = notif
        self.indexed = indexed
        self.posted = False
        self.start_us = 0

    def get(self) -> xfer.Request:
        if self.request is None:
            raise exception('INVALID_PARAM', 'the handle was released')
        return self.request


class _List:
    __slots__ = ('list', 'local')

    def __init__(self, made: Any, local: bool) -> None:
        self.list = made
        self.local = local


class nixlAgent:
    """A transfer agent with NIXL's calls. Names of agents are str or bytes."""

    def __init__(self, name: str, config: nixlAgentConfig) -> None:
        if not name:
            raise ValueError('an agent has a name')
        listen, secret = os.environ.get('TENUTO_XFER_LISTEN'), os.environ.get('TENUTO_XFER_SECRET')
        # Who fetches metadata from a listener proves itself by the secret.
        if config.useListenThread and secret and not listen:
            listen = f'tcp::{config.listenPort}'
        self.name = name
        self._telemetry = _telemetry_wanted(config)
        self._ring = open_ring(name) if self._telemetry else None
        self._agent = self._open(name, listen, secret)
        self._backends: list[tuple[str, list[str], dict[str, str]]] = []  # name, Tenuto's backends, the preferred one first, parameters
        self._pushes = Pushes(self._agent) if config.useListenThread and secret else None
        self._waiting: collections.deque[tuple[str, bytes]] = collections.deque()
        self._taking = threading.Lock()  # of all that takes notifications: parts of a push have an order
        self._directory = open_directory(self._agent)
        self._labels: set[str] = set()

    @staticmethod
    @_as_nixl
    def _open(name: str, listen: str | None, secret: str | None) -> xfer.Agent:
        return xfer.Agent(name, backends=[], listen=listen, secret=secret.encode() if secret else None)

    # ---- backends

    def getAvailPlugins(self) -> list[str]:
        return available()

    def getPluginParams(self, type: str) -> tuple[dict[str, str], list[str]]:
        if type not in available():
            raise exception('NOT_FOUND', f'backend {type}: there are {", ".join(available())}')
        return dict(PLUGINS[type].params), list(PLUGINS[type].memories)

    def getBackendParams(self, backend: int) -> tuple[dict[str, str], list[str]]:
        name, _, params = self._backend(backend)
        return {**PLUGINS[name].params, **params}, list(PLUGINS[name].memories)

    def _backend(self, handle: int) -> tuple[str, list[str], dict[str, str]]:
        if not isinstance(handle, int) or not 0 < handle <= len(self._backends):
            raise exception('INVALID_PARAM', f'{handle!r} is no handle of a backend of this agent')
        return self._backends[handle - 1]

    @_as_nixl
    def createBackend(self, type: str, initParams: dict[str, str] | None = None) -> int:
        params = {name: str(value) for name, value in (initParams or {}).items()}
        if type not in available():
            raise exception('NOT_FOUND', f'backend {type}: there are {", ".join(available())}')
        self._backends.append((type, open_backend(self._agent, type, params), params))
        return len(self._backends)

    def _order(self, backends: Any) -> list[str] | None:
        """Tenuto's backends to try, one after the other. What was measured when they were made would choose ucx before memory on a busy machine."""
        return [ours for handle in backends or range(1, len(self._backends) + 1) for ours in self._backend(handle)[1]] or None

    # ---- memory

    @_as_nixl
    def registerMem(self, descs: nixlRegDList, backends: Any = ()) -> nixl_status_t:
        _check_files(descs)
        self._agent.register(sections_of(descs), segment=SEGMENTS[descs.getType()])
        self._tell_memory('agent_memory_registered', descs)
        return nixl_status_t.NIXL_SUCCESS

    @_as_nixl
    def deregisterMem(self, descs: nixlRegDList, backends: Any = ()) -> nixl_status_t:
        self._agent.deregister(sections_of(descs), segment=SEGMENTS[descs.getType()])
        self._tell_memory('agent_memory_deregistered', descs)
        return nixl_status_t.NIXL_SUCCESS

    def _tell_memory(self, event: str, descs: nixlRegDList) -> None:
        if self._ring:
            self._ring.add((event, sum(int(row[1]) for row in descs.rows())))

    @_as_nixl
    def queryMem(self, descs: nixlRegDList, backend: int) -> list[dict[str, str] | None]:
        """The size of each that exists, and of a file its mode and mtime. Files are named by their paths, or by a descriptor."""
        self._backend(backend)
        files = descs.getType() in FILES
        named = [(a, n, d, (_path_of(meta.decode()) or (meta.decode(),))[0] or None) for a, n, d, meta in descs] if files else sections_of(descs)
        sizes = self._agent.query(named, segment=SEGMENTS[descs.getType()])
        return [None if size is None else {'size': str(size), **(_file_info(path or device) if files else {})} for size, (_, _, device, path) in zip(sizes, named)]

    # ---- lists and requests

    def _make_list(self, peer: str, rows: Any, mem: nixl_mem_t) -> Any:
        self._take_pushes()
        return self._agent.list(rows, peer=None if peer in ('', self.name) else peer, segment=SEGMENTS[mem])

    @_as_nixl
    def prepXferDlist(self, *args: Any) -> _List:
        """(descs), (agent, descs) or (agent, kind of memory, N x 5 array of strided descriptors); then handles of backends."""
        remote = isinstance(args[0], (str, bytes))
        peer = text_of(args[0]) if remote else ''
        rest = args[1:] if remote else args
        if isinstance(rest[0], (nixlXferDList, nixlRegDList)):
            return _List(self._make_list(peer, rest[0].rows(), rest[0].getType()), peer == '')
        if len(rest) < 2:
            raise exception('INVALID_PARAM', f'{rest[0]!r} is no list of descriptors')
        return _List(self._make_list(peer, rest[1].astype('uint64'), rest[0]), peer == '')

    def _make(self, operation: int, local: Any, local_indices: Any, remote: Any, remote_indices: Any, notif: bytes | str, backends: Any) -> _Request:
        reads = operation == nixl_xfer_op_t.NIXL_READ
        make = self._agent.read if reads else self._agent.write
        message = _bytes(notif)
        request = make(local, remote, local_indices, remote_indices, self._order(backends), max(len(message), NOTIFICATION_BYTES))
        return _Request(request, 'rx' if reads else 'tx', message, local_indices is not None)

    @_told
    @_as_nixl
    def makeXferReq(self, operation: int, local_side: _List, local_indices: Any, remote_side: _List, remote_indices: Any, notif_msg: bytes | str = b'',
                    backend: Any = (), skip_desc_merg: bool = False) -> _Request:
        if len(local_indices) != len(remote_indices) or not len(local_indices):
            raise exception('INVALID_PARAM', f'{len(local_indices)} local and {len(remote_indices)} remote indices')
        if not local_side.local or remote_side.local:
            raise exception('INVALID_PARAM', 'the local list must be of NIXL_INIT_AGENT, the remote one of an agent')
        return self._make(operation, local_side.list, local_indices, remote_side.list, remote_indices, notif_msg, backend)

    @_told
    @_as_nixl
    def createXferReq(self, operation: int, local_descs: nixlXferDList, remote_descs: nixlXferDList, remote_agent: bytes | str, notif_msg: bytes | str = b'',
                      backend: Any = ()) -> _Request:
        if local_descs.descCount() != remote_descs.descCount() or local_descs.isEmpty():
            raise exception('INVALID_PARAM', f'{local_descs.descCount()} local and {remote_descs.descCount()} remote descriptors')
        local = self._make_list('', local_descs.rows(), local_descs.getType())
        try:
            remote = self._make_list(text_of(remote_agent), remote_descs.rows(), remote_descs.getType())
            try:
                return self._make(operation, local, None, remote, None, notif_msg, backend)
            finally:
                remote.release()
        finally:
            local.release()

    @_told
    def _post(self, reqh: _Request) -> None:
        start = time.time_ns() // 1000
        try:
            reqh.get().post(_timeout(), reqh.notif or None)
        except tenuto.Busy as error:
            raise exception('REPOST_ACTIVE', error.strerror) from error
        except tenuto.Error as error:
            raise exception_of(error) from error
        reqh.start_us, reqh.posted, reqh.ended = start, True, False

    def postXferReq(self, reqh: _Request, notif_msg: bytes | str = b'') -> nixl_status_t:
        if notif_msg:
            reqh.notif = _bytes(notif_msg)
        self._post(reqh)
        return self.getXferStatus(reqh)

    def getXferStatus(self, reqh: _Request) -> nixl_status_t:
        """NIXL_SUCCESS or NIXL_IN_PROG. A request that has failed raises, as NIXL's does.

        One that has missed its deadline raises at once, though bytes may still land: until releaseXferReq has succeeded, its memory is not free for other use. To wait
        here for the end instead would have no limit where a peer has stopped.
        """
        if not reqh.posted:
            raise exception('NOT_POSTED', 'the request was not posted')
        status = reqh.get().status()
        if status.state != xfer.ENDED and not status.error:
            return nixl_status_t.NIXL_IN_PROG
        if self._ring and not reqh.ended:
            self._ring.add(*_events(reqh.way, status))
        reqh.ended = True
        if status.error:
            raise exception(STATUS_OF_END.get(status.error, 'BACKEND'), _why(reqh.get(), status.error))
        return nixl_status_t.NIXL_SUCCESS

    def getXferTelemetry(self, reqh: _Request) -> nixlXferTelemetry:
        if not reqh.posted:
            raise exception('NOT_POSTED', 'the request was not posted')
        if not self._telemetry:
            raise exception('NO_TELEMETRY', 'the agent was made without capture_telemetry, or NIXL_TELEMETRY_ENABLE says no')
        if self.getXferStatus(reqh) != nixl_status_t.NIXL_SUCCESS:
            raise exception('NOT_POSTED', 'the transfer is not complete yet')
        status = reqh.get().status()
        # Descriptors that were chosen by index are merged there, others are not.
        return nixlXferTelemetry(reqh.start_us, *_durations(status), status.bytes, status.pieces if reqh.indexed else status.descriptors)

    def estimateXferCost(self, req_handle: _Request) -> tuple[int, int, int]:
        return req_handle.get().status().estimate_ns // 1000, 0, int(nixl_cost_t.NIXL_COST_ANALYTICAL_BACKEND)

    def queryXferBackend(self, reqh: _Request) -> int:
        backend = reqh.get().status().backend
        return next(i + 1 for i, (_, ours, _) in enumerate(self._backends) if backend in ours)

    @_as_nixl
    def releaseXferReq(self, reqh: _Request) -> nixl_status_t:
        """Ends one that is under way, and raises if bytes may still move then."""
        if reqh.request is not None:
            try:
                reqh.request.cancel(ABORT_S)
            except tenuto.Busy as error:
                raise exception('REPOST_ACTIVE', error.strerror) from error
            reqh.request.release()
            reqh.request = None
        return nixl_status_t.NIXL_SUCCESS

    @_as_nixl
    def releasedDlistH(self, handle: _List) -> nixl_status_t:
        handle.list.release()
        return nixl_status_t.NIXL_SUCCESS

    def prepMemView(self, dlist: nixlXferDList | nixlRemoteDList, backends: Any = ()) -> int:
        raise exception('NOT_SUPPORTED', 'memory views are for kernels that transfer by themselves: no backend here has them')

    def releaseMemView(self, mvh: int) -> None:
        raise exception('NOT_SUPPORTED', 'there are no memory views')

    # ---- notifications

    def _drain(self) -> None:
        """Takes what has arrived: pushes are done, the rest waits for getNotifs. Under the lock _taking."""
        for one in self._agent.notifications():
            if self._pushes is None or not self._pushes.take(*one):
                self._waiting.append(one)

    def _take_pushes(self) -> None:
        if self._pushes is not None:
            with self._taking:
                self._drain()

    def getNotifs(self, notif_map: dict[str, list[bytes]], backends: Any = ()) -> dict[str, list[bytes]]:
        with self._taking:
            self._drain()
            while self._waiting:
                sender, notification = self._waiting.popleft()
                notif_map.setdefault(sender, []).append(notification)
        return notif_map

    @_as_nixl
    def genNotif(self, remote_agent: bytes | str, msg: bytes | str, backends: Any = ()) -> nixl_status_t:
        self._take_pushes()
        self._agent.notify(text_of(remote_agent), _bytes(msg))
        return nixl_status_t.NIXL_SUCCESS

    # ---- metadata

    @_as_nixl
    def getLocalMD(self) -> bytes:
        return self._agent.metadata()

    @_as_nixl
    def getLocalPartialMD(self, descs: nixlRegDList, inc_conn_info: bool = False, backends: Any = ()) -> bytes:
        """Of these sections; how to connect is always in it."""
        return self._agent.metadata(sections_of(descs), segment=SEGMENTS[descs.getType()])

    @_as_nixl
    def loadRemoteMD(self, remote_metadata: bytes) -> bytes:
        return self._agent.load(remote_metadata).encode()

    @_as_nixl
    def invalidateRemoteMD(self, remote_agent: bytes | str) -> nixl_status_t:
        try:
            self._agent.invalidate(text_of(remote_agent))
        except tenuto.NotFound:
            return nixl_status_t.NIXL_ERR_NOT_FOUND
        return nixl_status_t.NIXL_SUCCESS

    @_as_nixl
    def makeConnection(self, remote_agent: bytes | str, backends: Any = ()) -> nixl_status_t:
        self._take_pushes()
        self._agent.connect(text_of(remote_agent))
        return nixl_status_t.NIXL_SUCCESS

    @_as_nixl
    def checkRemoteMD(self, remote_name: bytes | str, descs: nixlXferDList) -> nixl_status_t:
        """Whether the agent can be transferred with: its metadata is there, these sections are in it, and its process was not lost since."""
        self._take_pushes()
        peer = self._agent.peer(text_of(remote_name))
        if peer is None or peer.state == 'lost':
            return nixl_status_t.NIXL_ERR_NOT_FOUND
        if not descs.isEmpty():
            try:
                self._agent.list(descs.rows(), peer=text_of(remote_name), segment=SEGMENTS[descs.getType()]).release()
            except tenuto.Error as error:
                if error.errno != errno.ENOENT:
                    raise
                return nixl_status_t.NIXL_ERR_NOT_FOUND
        return nixl_status_t.NIXL_SUCCESS

    def _want_directory(self) -> Any:
        if self._directory is None:
            raise exception('INVALID_PARAM', 'no address of an agent that listens: name one, or set NIXL_ETCD_ENDPOINTS or NIXL_TCPSTORE_ENDPOINT')
        return self._directory

    def _address(self, ip_addr: str, port: int) -> str:
        if not os.environ.get('TENUTO_XFER_SECRET'):
            raise exception('NOT_SUPPORTED', f'{ip_addr}: agents that talk to a listener share TENUTO_XFER_SECRET, which is not set')
        return f'tcp:{ip_addr}:{port or DEFAULT_COMM_PORT}'

    @_as_nixl
    def _publish(self, label: str, *what: Any) -> None:
        self._want_directory().publish(label, *what)
        self._labels.add(label)

    @_as_nixl
    def sendLocalMD(self, ip_addr: str = '', port: int = 0) -> None:
        """To an agent that listens, whose metadata is loaded, too; or into the directory."""
        if ip_addr:
            Pushes(self._agent).send(self._address(ip_addr, port), self.getLocalMD())
        else:
            self._publish(DEFAULT_METADATA_LABEL)

    @_as_nixl
    def sendLocalPartialMD(self, descs: nixlRegDList, inc_conn_info: bool = False, backends: Any = (), ip_addr: str = '', port: int = 0, label: str = '') -> None:
        if ip_addr:
            Pushes(self._agent).send(self._address(ip_addr, port), self.getLocalPartialMD(descs))
            return
        self._want_directory()
        if not label:
            raise exception('INVALID_PARAM', 'metadata of some sections is published under a label: name one')
        self._publish(label, sections_of(descs), SEGMENTS[descs.getType()])

    def fetchRemoteMD(self, remote_agent: bytes | str, ip_addr: str = '', port: int = 0, label: str = '') -> None:
        """Begins to fetch; checkRemoteMD says when it is there."""
        if ip_addr:
            what: tuple[Any, ...] = (self._fetch, self._address(ip_addr, port))
        else:
            what = (self._lookup, self._want_directory(), text_of(remote_agent), label or DEFAULT_METADATA_LABEL)
        threading.Thread(target=what[0], args=what[1:], daemon=True).start()

    def _fetch(self, address: str) -> None:
        try:
            self._agent.fetch(address)
        except tenuto.Error as error:
            logger.error('metadata of %s: %s', address, error.strerror)

    def _lookup(self, directory: Any, peer: str, label: str) -> None:
        end = time.monotonic() + directory.fetch_s
        while True:
            try:
                directory.lookup(peer, label)
                return
            except tenuto.NotFound as error:
                text = error.strerror
            except Exception as error:  # of the thread that asks: whoever waits looks at checkRemoteMD
                logger.error('metadata of %s: %s', peer, error)
                return
            if time.monotonic() >= end:
                logger.error('metadata of %s: %s', peer, text)
                return
            time.sleep(LOOKUP_STEP_S)

    @_as_nixl
    def invalidateLocalMD(self, ip_addr: str = '', port: int = 0) -> None:
        """The agent that listens forgets this one; or all that was published is taken back."""
        if ip_addr:
            Pushes(self._agent).forget(self._address(ip_addr, port))
            return
        directory = self._want_directory()
        for label in list(self._labels):
            directory.unpublish(label)
            self._labels.discard(label)
