# SPDX-License-Identifier: Apache-2.0
"""nixl_agent and nixl_agent_config, on tenuto.xfer.

Where NIXL knows no deadline, TENUTO_XFER_TIMEOUT_S says how many seconds a transfer may take (120). TENUTO_XFER_SECRET is the secret of agents that find each
other by the listener; TENUTO_XFER_LISTEN where an agent listens (tenuto.xfer.Agent). NIXL_ETCD_ENDPOINTS and NIXL_ETCD_NAMESPACE say where metadata is published;
an entry goes some seconds after its agent has died.
"""
from __future__ import annotations

import contextlib
import enum
import errno
import functools
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import tenuto
from tenuto import xfer

from . import _bindings
from . import _bindings as nixlBind
from ._bindings import DEFAULT_COMM_PORT, nixl_mem_t, nixl_status_t, nixlRegDList, nixlXferDList, nixlXferTelemetry
from .logging import get_logger

logger = get_logger(__name__)

TIMEOUT_S = 120.0
ABORT_S = 1.0
ETCD_WAIT_S = 5.0  # for an entry that is not there yet
DEFAULT_METADATA_LABEL = 'metadata'
NOTIFICATION_BYTES = 4096  # of a request that was made with a shorter one; posts may have another

# NIXL's name, Tenuto's, kinds of memory, parameters and what they become.
PLUGINS: dict[str, tuple[str, list[str], dict[str, str]]] = {
    'UCX': ('memory', ['DRAM_SEG'], {'ucx_devices': '', 'num_workers': '1', 'num_threads': '0', 'ucx_error_handling_mode': 'peer'}),
    'POSIX': ('file', ['DRAM_SEG', 'FILE_SEG'], {'use_aio': 'false', 'use_uring': 'false', 'use_posix_aio': 'false'}),
    'OBJ': ('s3', ['DRAM_SEG', 'OBJ_SEG'], {'bucket': '', 'endpoint_override': '', 'scheme': 'https', 'region': '', 'access_key': '', 'secret_key': '', 'session_token': '',
                                            'ca_bundle': ''}),
}
SEGMENTS = {nixl_mem_t.DRAM_SEG: xfer.DRAM, nixl_mem_t.VRAM_SEG: xfer.VRAM, nixl_mem_t.BLK_SEG: xfer.BLOCK, nixl_mem_t.OBJ_SEG: xfer.OBJECT,
            nixl_mem_t.FILE_SEG: xfer.FILE}

nixl_backend_handle = int


@functools.cache
def _plugins() -> list[str]:
    """NIXL's names of what can be used here. s3 is a plugin, which may be missing."""
    try:
        xfer.Agent('nixl', backends=['s3'], listen='none').close()
    except tenuto.InvalidValue:
        pass  # it is there, and wants a bucket
    except tenuto.Error as error:
        logger.info('OBJ is left out: %s', error.strerror)
        return [name for name in PLUGINS if name != 'OBJ']
    return list(PLUGINS)


def _obj_spec(params: dict[str, str]) -> str:
    """The spec of backend OBJ. What is not set comes from AWS's environment; a bucket from AWS_DEFAULT_BUCKET."""
    names = {'bucket': 'bucket', 'region': 'region', 'access_key': 'access_key', 'secret_key': 'secret_key', 'session_token': 'session_token', 'ca_bundle': 'ca_file'}
    values = {ours: params[theirs] for theirs, ours in names.items() if params.get(theirs)}
    values.setdefault('bucket', os.environ.get('AWS_DEFAULT_BUCKET', ''))
    endpoint = params.get('endpoint_override')
    if endpoint:
        values['endpoint'] = endpoint if '://' in endpoint else f"{params.get('scheme') or 'https'}://{endpoint}"
    return 's3' + ''.join(f',{name}={value}' for name, value in values.items())


def _timeout() -> float | None:
    text = os.environ.get('TENUTO_XFER_TIMEOUT_S')
    if not text:
        return TIMEOUT_S
    return float(text) or None


@contextlib.contextmanager
def _as_nixl() -> Iterator[None]:
    """Errors of Tenuto become NIXL's exceptions."""
    try:
        yield
    except tenuto.Error as error:
        raise _bindings.exception_of(error) from error


class nixl_thread_sync_t(enum.Enum):
    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 0


class nixl_agent_config:
    """What an agent is made with. The progress thread and the thread modes have no meaning here: agents may be used from any thread."""

    def __init__(self, enable_prog_thread: bool = True, enable_listen_thread: bool = False, listen_port: int = DEFAULT_COMM_PORT,
                 capture_telemetry: bool = False, num_threads: int = 0, backends: list[str] | None = None, sync_mode: nixl_thread_sync_t | None = None) -> None:
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(f'sync_mode must be a nixl_thread_sync_t (got {type(sync_mode).__name__!r})')
        self.backends = ['UCX'] if backends is None else backends
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.sync_mode = sync_mode


class nixl_prepped_dlist_handle:
    """A prepared list. Given back by release(), or when nobody holds it."""

    def __init__(self, made: Any, local: bool) -> None:
        self._list = made
        self._local = local

    @property
    def released(self) -> bool:
        return self._list is None

    def release(self) -> None:
        if self._list is not None:
            self._list.release()
            self._list = None

    def __repr__(self) -> str:
        return f'nixl_prepped_dlist_handle({id(self):#x}, released={self.released})'


class nixl_xfer_handle:
    """A request. release() ends one that is under way, and raises if bytes may still move."""

    def __init__(self, request: xfer.Request, notif: bytes) -> None:
        self._request: xfer.Request | None = request
        self._notif = notif
        self._posted = False
        self._start_us = 0

    @property
    def released(self) -> bool:
        return self._request is None

    def request(self) -> xfer.Request:
        if self._request is None:
            raise _bindings.exception('INVALID_PARAM', 'the handle was released')
        return self._request

    def release(self) -> None:
        if self._request is None:
            return
        try:
            self._request.cancel(ABORT_S)
        except tenuto.Busy as error:
            raise _bindings.exception('REPOST_ACTIVE', error.strerror) from error
        self._request.release()
        self._request = None

    def __repr__(self) -> str:
        return f'nixl_xfer_handle({id(self):#x}, released={self.released})'


def _is_tensor(what: Any) -> bool:
    return hasattr(what, 'data_ptr') and hasattr(what, 'is_contiguous')


def _tensor_rows(tensors: list[Any]) -> tuple[str, list[tuple[int, int, int]]] | None:
    """(kind of memory, rows) of tensors that are contiguous and on one device."""
    if not all(t.is_contiguous() and t.device == tensors[0].device for t in tensors):
        logger.error('Please use a list of contiguous tensors of one device')
        return None
    device = tensors[0].get_device()
    return 'DRAM' if device == -1 else 'VRAM', [(t.data_ptr(), t.numel() * t.element_size(), max(device, 0)) for t in tensors]


class nixl_agent:
    """A transfer agent with NIXL's calls."""

    nixl_mems = {'DRAM': nixl_mem_t.DRAM_SEG, 'VRAM': nixl_mem_t.VRAM_SEG, 'cpu': nixl_mem_t.DRAM_SEG, 'cuda': nixl_mem_t.VRAM_SEG,
                 'BLOCK': nixl_mem_t.BLK_SEG, 'OBJ': nixl_mem_t.OBJ_SEG, 'FILE': nixl_mem_t.FILE_SEG}
    nixl_ops = {'READ': _bindings.nixl_xfer_op_t.NIXL_READ, 'WRITE': _bindings.nixl_xfer_op_t.NIXL_WRITE}

    def __init__(self, agent_name: str, nixl_conf: nixl_agent_config | None = None, instantiate_all: bool = False) -> None:
        conf = nixl_conf or nixl_agent_config()
        listen = os.environ.get('TENUTO_XFER_LISTEN')
        secret = os.environ.get('TENUTO_XFER_SECRET')
        # Who fetches metadata from a listener proves itself by the secret.
        if conf.enable_listen and secret and not listen:
            listen = f'tcp::{conf.port}'
        with _as_nixl():
            self._agent = xfer.Agent(agent_name, backends=[], listen=listen, secret=secret.encode() if secret else None)
        self.name = agent_name
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, nixl_backend_handle] = {}
        self._ours: dict[str, list[str]] = {}  # Tenuto's backends of each, the preferred one first
        self.plugin_list = _plugins()
        self._labels: set[str] = set()
        self._etcd = self._open_etcd()
        self._telemetry = conf.capture_telemetry
        self._threads = conf.num_threads
        for backend in self.plugin_list if instantiate_all and not nixl_conf else conf.backends:
            if backend in self.plugin_list:
                self.create_backend(backend)
            else:
                logger.warning('Skipping backend registration %s due to the missing plugin.', backend)

    # ---- backends

    def get_plugin_list(self) -> list[str]:
        return list(_plugins())

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        return list(PLUGINS[backend][1]) if backend in PLUGINS else []

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        return dict(PLUGINS[backend][2]) if backend in PLUGINS else {}

    def get_backend_mem_types(self, backend: str) -> list[str]:
        return self.get_plugin_mem_types(backend) if backend in self.backends else []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        return self.get_plugin_params(backend) if backend in self.backends else {}

    def create_backend(self, backend: str, initParams: dict[str, str] | None = None) -> None:
        params = initParams or {}
        if backend not in self.plugin_list:
            raise _bindings.exception('NOT_FOUND', f'backend {backend}: there are {", ".join(self.plugin_list)}')
        spec = _obj_spec(params) if backend == 'OBJ' else PLUGINS[backend][0]
        if backend == 'UCX' and self._threads > 0:
            spec += f',threads={min(self._threads, 16)}'
        if backend == 'POSIX' and str(params.get('use_uring', '')).lower() == 'true':
            spec += ',engine=uring'
        elif backend == 'POSIX' and 'true' in (str(params.get(k, '')).lower() for k in ('use_aio', 'use_posix_aio')):
            spec += ',engine=posix'
        with _as_nixl():
            self._agent.backend_add(spec)
        self._ours[backend] = [PLUGINS[backend][0]]
        if backend == 'UCX':
            self._add_ucx()
        self.backends[backend] = len(self.backends) + 1
        logger.info('Backend %s was instantiated', backend)

    def _add_ucx(self) -> None:
        """Memory reaches the processes of this machine, ucx those of others. It is a plugin, and UCX may be missing."""
        try:
            self._agent.backend_add('ucx')
            self._ours['UCX'].append('ucx')
        except tenuto.Error as error:
            logger.info('UCX reaches this machine alone: %s', error.strerror)

    def _order(self, backends: list[str]) -> list[str] | None:
        return [ours for b in backends if self.backends[b] for ours in self._ours[b]] or None

    # ---- memory

    def register_memory(self, reg_list: Any, mem_type: str | None = None, backends: list[str] | None = None) -> nixlRegDList | None:
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None:
            raise _bindings.exception('INVALID_PARAM', 'no list of descriptors')
        with _as_nixl():
            self._agent.register(self._sections(descs), segment=SEGMENTS[descs.getType()])
        return descs

    def deregister_memory(self, dereg_list: nixlRegDList, backends: list[str] | None = None) -> None:
        with _as_nixl():
            self._agent.deregister(self._sections(dereg_list), segment=SEGMENTS[dereg_list.getType()])

    @staticmethod
    def _sections(descs: nixlRegDList) -> Any:
        """Sections of a list: no empty ones of memory, and meta for files alone."""
        if descs.getType() == nixl_mem_t.OBJ_SEG:
            return [(a, n, d, meta.decode() or str(d)) for a, n, d, meta in descs]
        named = descs.getType() in (nixl_mem_t.FILE_SEG, nixl_mem_t.BLK_SEG)
        if not named and not isinstance(descs.rows(), list):
            return descs.rows()
        return [(a, n, d, meta.decode() or None) if named else (a, n, d, None) for a, n, d, meta in descs if named or n]

    def query_memory(self, reg_list: Any, backend: str, mem_type: str | None = None) -> list[dict[str, str] | None]:
        if backend not in self.backends:
            raise ValueError(f"Backend '{backend}' not found. Available backends: {list(self.backends)}")
        descs = self.get_reg_descs(reg_list, mem_type)
        with _as_nixl():
            sizes = self._agent.query(self._sections(descs), segment=SEGMENTS[descs.getType()])
        return [None if size is None else {'size': str(size)} for size in sizes]

    # ---- lists

    def _descs(self, kind: type, descs: Any, mem_type: str | None, columns: int) -> Any:
        if isinstance(descs, kind):
            return descs
        if isinstance(descs, (nixlXferDList, nixlRegDList)):
            logger.error('%s detected where %s is wanted', type(descs).__name__, kind.__name__)
            return None
        if _is_tensor(descs) or (isinstance(descs, (list, tuple)) and len(descs) and _is_tensor(descs[0])):
            found = _tensor_rows([descs] if _is_tensor(descs) else list(descs))
            return kind(self.nixl_mems[found[0]], found[1]) if found else None
        if mem_type is None:
            logger.error('Please specify a mem type if not using Tensors')
            return None
        array = hasattr(descs, '__array_interface__')
        if array and (descs.ndim != 2 or descs.shape[1] != 3):
            logger.error('Nx3 shape required for a descriptor list from a numpy array')
            return None
        if not array and len(descs) and len(descs[0]) != columns:
            logger.error('%d-tuple list needed', columns)
            return None
        return kind(self.nixl_mems[mem_type], descs.astype('uint64') if array else descs)

    def get_xfer_descs(self, descs: Any, mem_type: str | None = None) -> nixlXferDList | None:
        return self._descs(nixlXferDList, descs, mem_type, 3)

    def get_reg_descs(self, descs: Any, mem_type: str | None = None) -> nixlRegDList | None:
        return self._descs(nixlRegDList, descs, mem_type, 4)

    def get_serialized_descs(self, descs: Any) -> bytes:
        """Bytes of Tenuto's own: nothing is run when they are read."""
        if isinstance(descs, nixlXferDList):
            return b'X' + bytes([descs.getType()]) + xfer.pack(descs.rows(), SEGMENTS[descs.getType()])
        return b'R' + bytes([descs.getType()]) + json.dumps([[a, n, d, m.hex()] for a, n, d, m in descs]).encode()

    def deserialize_descs(self, serialized_descs: bytes) -> Any:
        kind, mem, data = serialized_descs[:1], serialized_descs[1], serialized_descs[2:]
        if kind == b'R':
            return nixlRegDList(nixl_mem_t(mem), [(a, n, d, bytes.fromhex(m)) for a, n, d, m in json.loads(data)])
        with _as_nixl():
            _, runs = xfer.unpack(data)
        return nixlXferDList(nixl_mem_t(mem), [(a + i * stride, n, d) for a, n, d, stride, count in runs for i in range(count)])

    def _list(self, peer: str, rows: Any, mem: nixl_mem_t) -> Any:
        with _as_nixl():
            return self._agent.list(rows, peer=None if peer in ('', self.name) else peer, segment=SEGMENTS[mem])

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: str | None = None, backends: list[str] | None = None) -> nixl_prepped_dlist_handle:
        local = agent_name in ('NIXL_INIT_AGENT', '')
        if getattr(xfer_list, 'ndim', 0) == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError('Please specify a mem type for strided descriptors')
            return nixl_prepped_dlist_handle(self._list('' if local else agent_name, xfer_list.astype('uint64'), self.nixl_mems[mem_type]), local)
        descs = self.get_xfer_descs(xfer_list, mem_type)
        if descs is None:
            raise _bindings.exception('INVALID_PARAM', 'no list of descriptors')
        return nixl_prepped_dlist_handle(self._list('' if local else agent_name, descs.rows(), descs.getType()), local)

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        handle.release()

    # ---- transfers

    def _make(self, operation: str, local: Any, local_indices: Any, remote: Any, remote_indices: Any, notif_msg: bytes | str,
              backends: list[str] | None) -> nixl_xfer_handle:
        make = self._agent.read if self.nixl_ops[operation] == _bindings.nixl_xfer_op_t.NIXL_READ else self._agent.write
        notif = notif_msg.encode() if isinstance(notif_msg, str) else bytes(notif_msg)
        with _as_nixl():
            request = make(local, remote, local_indices, remote_indices, self._order(backends or []), max(len(notif), NOTIFICATION_BYTES))
        return nixl_xfer_handle(request, notif)

    def make_prepped_xfer(self, operation: str, local_xfer_side: nixl_prepped_dlist_handle, local_indices: Any, remote_xfer_side: nixl_prepped_dlist_handle,
                          remote_indices: Any, notif_msg: bytes = b'', backends: list[str] | None = None, skip_desc_merge: bool = False) -> nixl_xfer_handle:
        if len(local_indices) != len(remote_indices) or not len(local_indices):
            raise _bindings.exception('INVALID_PARAM', f'{len(local_indices)} local and {len(remote_indices)} remote indices')
        if not local_xfer_side._local or remote_xfer_side._local:
            raise _bindings.exception('INVALID_PARAM', 'the local list must be of NIXL_INIT_AGENT, the remote one of an agent')
        return self._make(operation, local_xfer_side._list, local_indices, remote_xfer_side._list, remote_indices, notif_msg, backends)

    def initialize_xfer(self, operation: str, local_descs: nixlXferDList, remote_descs: nixlXferDList, remote_agent: str, notif_msg: bytes = b'',
                        backends: list[str] | None = None) -> nixl_xfer_handle:
        self.nixl_ops[operation]
        if local_descs.descCount() != remote_descs.descCount() or local_descs.isEmpty():
            raise _bindings.exception('INVALID_PARAM', f'{local_descs.descCount()} local and {remote_descs.descCount()} remote descriptors')
        local = self._list('', local_descs.rows(), local_descs.getType())
        try:
            remote = self._list(remote_agent, remote_descs.rows(), remote_descs.getType())
            try:
                return self._make(operation, local, None, remote, None, notif_msg, backends)
            finally:
                remote.release()
        finally:
            local.release()

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes | str = b'') -> str:
        if notif_msg:
            handle._notif = notif_msg.encode() if isinstance(notif_msg, str) else bytes(notif_msg)
        start = time.time_ns() // 1000
        try:
            handle.request().post(_timeout(), handle._notif or None)
        except tenuto.Busy as error:
            raise _bindings.exception('REPOST_ACTIVE', error.strerror) from error
        except tenuto.Error as error:
            raise _bindings.exception_of(error) from error
        handle._start_us = start
        handle._posted = True
        return self.check_xfer_state(handle)

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """DONE or PROC. A request that has failed raises, as NIXL's does."""
        if not handle._posted:
            raise _bindings.exception('NOT_POSTED', 'transfer() was not called')
        status = handle.request().status()
        if status.error:
            raise _bindings.exception(_bindings.STATUS_OF_ERRNO.get(status.error, 'BACKEND'), os.strerror(status.error))
        return 'DONE' if status.state == xfer.ENDED else 'PROC'

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        if not handle._posted:
            raise _bindings.exception('NOT_POSTED', 'transfer() was not called')
        if not self._telemetry:
            raise _bindings.exception('NO_TELEMETRY', 'the agent was made without capture_telemetry')
        status = handle.request().status()
        if status.state != xfer.ENDED:
            raise _bindings.exception('NOT_POSTED', 'the transfer is not complete yet')
        return nixlXferTelemetry(handle._start_us, status.post_ns // 1000, status.time_ns // 1000, status.bytes, status.pieces)

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        return req_handle.request().status().estimate_ns // 1000, 0, 'ANALYTICAL_BACKEND'

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        backend = handle.request().status().backend
        return next(name for name, ours in self._ours.items() if backend in ours)

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        handle.release()

    # ---- notifications

    def _take(self, into: dict[str, list[bytes]]) -> dict[str, list[bytes]]:
        for sender, notification in self._agent.notifications():
            into.setdefault(sender, []).append(notification)
        return into

    def get_new_notifs(self, backends: list[str] | None = None) -> dict[str, list[bytes]]:
        return self._take({})

    def update_notifs(self, backends: list[str] | None = None) -> dict[str, list[bytes]]:
        return self._take(self.notifs)

    def check_remote_xfer_done(self, remote_agent_name: str, lookup_tag: bytes, backends: list[str] | None = None, tag_is_prefix: bool = True) -> bool:
        waiting = self._take(self.notifs).get(remote_agent_name, [])
        for i, message in enumerate(waiting):
            if message.startswith(lookup_tag) if tag_is_prefix else lookup_tag in message:
                del waiting[i]
                return True
        return False

    def send_notif(self, remote_agent_name: str, notif_msg: bytes | str, backend: str | None = None) -> None:
        with _as_nixl():
            self._agent.notify(remote_agent_name, notif_msg.encode() if isinstance(notif_msg, str) else notif_msg)

    # ---- metadata

    def get_agent_metadata(self) -> bytes:
        with _as_nixl():
            return self._agent.metadata()

    def get_partial_agent_metadata(self, descs: nixlRegDList, inc_conn_info: bool = False, backends: list[str] | None = None) -> bytes:
        """Of these sections; how to connect is always in it."""
        with _as_nixl():
            return self._agent.metadata(self._sections(descs), segment=SEGMENTS[descs.getType()])

    def add_remote_agent(self, metadata: bytes) -> str:
        with _as_nixl():
            return self._agent.load(metadata)

    def remove_remote_agent(self, agent: str) -> None:
        with _as_nixl(), contextlib.suppress(tenuto.NotFound):
            self._agent.invalidate(agent)

    def make_connection(self, remote_agent: str, backends: list[str] | None = None) -> None:
        with _as_nixl():
            self._agent.connect(remote_agent)

    def check_remote_metadata(self, agent: str, descs: nixlXferDList | None = None) -> bool:
        if self._agent.peer(agent) is None:
            return False
        if descs is None or descs.isEmpty():
            return True
        try:
            self._agent.list(descs.rows(), peer=agent, segment=SEGMENTS[descs.getType()]).release()
        except tenuto.Error as error:
            if error.errno != errno.ENOENT:
                raise _bindings.exception_of(error) from error
            return False
        return True

    def _open_etcd(self) -> bool:
        endpoints = os.environ.get('NIXL_ETCD_ENDPOINTS', '')
        if not endpoints:
            return False
        namespace = os.environ.get('NIXL_ETCD_NAMESPACE') or '/nixl/agents'
        try:
            self._agent.directory(f"etcd,endpoints={endpoints.replace(',', ';')},namespace={namespace}")
        except tenuto.Error as error:
            logger.warning('NIXL_ETCD_ENDPOINTS is not used: %s', error.strerror)
            return False
        return True

    def _want_etcd(self, ip_addr: str) -> None:
        if ip_addr or not self._etcd:
            raise _bindings.exception('NOT_SUPPORTED', 'metadata is not pushed to an agent, which fetches it itself: set NIXL_ETCD_ENDPOINTS to publish it')

    def fetch_remote_metadata(self, remote_agent: str, ip_addr: str = '', port: int = DEFAULT_COMM_PORT, label: str = '') -> None:
        """Begins to fetch; check_remote_metadata says when it is there. From an agent's listener, with TENUTO_XFER_SECRET on both sides; or from etcd."""
        if not ip_addr and not self._etcd:
            raise _bindings.exception('NOT_SUPPORTED', 'there is no metadata server: name the address of an agent that listens, or set NIXL_ETCD_ENDPOINTS')
        what = (self._fetch, (f'tcp:{ip_addr}:{port}',)) if ip_addr else (self._lookup, (remote_agent, label or DEFAULT_METADATA_LABEL))
        threading.Thread(target=what[0], args=what[1], daemon=True).start()

    def _fetch(self, address: str) -> None:
        try:
            self._agent.fetch(address)
        except tenuto.Error as error:
            logger.error('metadata of %s: %s', address, error.strerror)

    def _lookup(self, peer: str, label: str) -> None:
        end = time.monotonic() + ETCD_WAIT_S
        while True:
            try:
                self._agent.lookup(peer, label, ETCD_WAIT_S)
                return
            except tenuto.NotFound as error:
                if time.monotonic() >= end:
                    logger.error('metadata of %s: %s', peer, error.strerror)
                    return
            except tenuto.Error as error:
                logger.error('metadata of %s: %s', peer, error.strerror)
                return
            time.sleep(0.05)

    def _publish(self, label: str, *what: Any) -> None:
        with _as_nixl():
            self._agent.publish(label, *what)
        self._labels.add(label)

    def send_local_metadata(self, ip_addr: str = '', port: int = DEFAULT_COMM_PORT) -> None:
        """Publishes it in etcd."""
        self._want_etcd(ip_addr)
        self._publish(DEFAULT_METADATA_LABEL)

    def send_partial_agent_metadata(self, descs: nixlRegDList, inc_conn_info: bool = False, backends: list[str] | None = None, ip_addr: str = '',
                                    port: int = DEFAULT_COMM_PORT, label: str = '') -> None:
        """Publishes some sections in etcd, under a label."""
        self._want_etcd(ip_addr)
        self._publish(label or DEFAULT_METADATA_LABEL, self._sections(descs), SEGMENTS[descs.getType()])

    def invalidate_local_metadata(self, ip_addr: str = '', port: int = DEFAULT_COMM_PORT) -> None:
        """Takes back what was published in etcd."""
        self._want_etcd(ip_addr)
        with _as_nixl():
            for label in list(self._labels):
                self._agent.unpublish(label)
                self._labels.discard(label)
