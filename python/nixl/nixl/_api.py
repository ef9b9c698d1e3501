# SPDX-License-Identifier: Apache-2.0
"""nixl_agent and nixl_agent_config: what engines use, on nixlAgent of _bindings. _agent says what of the environment counts."""
from __future__ import annotations

import enum
import json
from typing import Any

import tenuto
from tenuto import xfer

from . import _bindings as nixlBind
from ._agent import SEGMENTS
from ._types import DEFAULT_COMM_PORT, exception, exception_of, nixl_cost_t, nixl_mem_t, nixl_status_t, nixlRegDList, nixlRemoteDList, nixlXferDList, nixlXferTelemetry, text_of
from .logging import get_logger

logger = get_logger(__name__)

nixl_backend_handle = int
STATES = {nixl_status_t.NIXL_SUCCESS: 'DONE', nixl_status_t.NIXL_IN_PROG: 'PROC'}


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

    def bound(self) -> nixlBind.nixlAgentConfig:
        """The same for nixlAgent."""
        default = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT if self.enable_listen else nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
        config = nixlBind.nixlAgentConfig(self.enable_pthread, self.enable_listen, self.port)
        config.syncMode = (self.sync_mode or default).value
        config.captureTelemetry = self.capture_telemetry
        return config


class _Handle:
    """Given back by release(), or when nobody holds it."""

    def __init__(self, agent: Any, handle: Any) -> None:
        self._agent = agent
        self._handle = handle
        self.released = False

    def __repr__(self) -> str:
        return f'{type(self).__name__}({id(self._handle):#x}, released={self.released})'


class nixl_prepped_dlist_handle(_Handle):
    """A prepared list."""

    def release(self) -> None:
        if not self.released:
            self._agent.releasedDlistH(self._handle)
            self.released = True


class nixl_xfer_handle(_Handle):
    """A request. release() ends one that is under way, and raises if bytes may still move."""

    def request(self) -> xfer.Request:
        """Tenuto's, for what NIXL does not tell: explain(), results() of each descriptor, wait()."""
        return self._handle.get()

    def release(self) -> None:
        if not self.released:
            self._agent.releaseXferReq(self._handle)
            self.released = True


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
    """A transfer agent with NIXL's calls. agent is what it is made of."""

    nixl_mems = {'DRAM': nixl_mem_t.DRAM_SEG, 'VRAM': nixl_mem_t.VRAM_SEG, 'cpu': nixl_mem_t.DRAM_SEG, 'cuda': nixl_mem_t.VRAM_SEG,
                 'BLOCK': nixl_mem_t.BLK_SEG, 'OBJ': nixl_mem_t.OBJ_SEG, 'FILE': nixl_mem_t.FILE_SEG}
    nixl_ops = {'READ': nixlBind.NIXL_READ, 'WRITE': nixlBind.NIXL_WRITE}

    def __init__(self, agent_name: str, nixl_conf: nixl_agent_config | None = None, instantiate_all: bool = False) -> None:
        conf = nixl_conf or nixl_agent_config()
        self.agent = nixlBind.nixlAgent(agent_name, conf.bound())
        self.name = agent_name
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, nixl_backend_handle] = {}
        self.plugin_list = self.agent.getAvailPlugins()
        for backend in self.plugin_list if instantiate_all and not nixl_conf else conf.backends:
            if backend in self.plugin_list:
                self.create_backend(backend, {'num_threads': str(conf.num_threads)} if conf.num_threads > 0 else None)
            else:
                logger.warning('Skipping backend registration %s due to the missing plugin.', backend)

    # ---- backends

    def get_plugin_list(self) -> list[str]:
        return self.plugin_list

    def _plugin(self, backend: str) -> tuple[dict[str, str], list[str]]:
        return self.agent.getPluginParams(backend) if backend in self.plugin_list else ({}, [])

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        return self._plugin(backend)[1]

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        return self._plugin(backend)[0]

    def get_backend_mem_types(self, backend: str) -> list[str]:
        return self.agent.getBackendParams(self.backends[backend])[1] if backend in self.backends else []

    def get_backend_params(self, backend: str) -> dict[str, str]:
        return self.agent.getBackendParams(self.backends[backend])[0] if backend in self.backends else {}

    def create_backend(self, backend: str, initParams: dict[str, str] | None = None) -> None:
        self.backends[backend] = self.agent.createBackend(backend, initParams or {})
        logger.info('Backend %s was instantiated', backend)

    def _handles(self, backends: list[str] | None) -> list[nixl_backend_handle]:
        return [self.backends[backend] for backend in backends or ()]

    # ---- memory

    def register_memory(self, reg_list: Any, mem_type: str | None = None, backends: list[str] | None = None) -> nixlRegDList | None:
        descs = self.get_reg_descs(reg_list, mem_type)
        if descs is None:
            raise exception('INVALID_PARAM', 'no list of descriptors')
        self.agent.registerMem(descs, self._handles(backends))
        return descs

    def deregister_memory(self, dereg_list: nixlRegDList, backends: list[str] | None = None) -> None:
        self.agent.deregisterMem(dereg_list, self._handles(backends))

    def query_memory(self, reg_list: Any, backend: str, mem_type: str | None = None) -> list[dict[str, str] | None]:
        if backend not in self.backends:
            raise ValueError(f"Backend '{backend}' not found. Available backends: {list(self.backends)}")
        return self.agent.queryMem(self.get_reg_descs(reg_list, mem_type), self.backends[backend])

    # ---- lists

    def _descs(self, kind: type, descs: Any, mem_type: str | None, columns: int) -> Any:
        if isinstance(descs, kind):
            return descs
        if isinstance(descs, (nixlXferDList, nixlRegDList)):
            logger.error('%s detected where %s is wanted', type(descs).__name__, kind.__name__)
            return None
        if _is_tensor(descs) or (isinstance(descs, (list, tuple)) and len(descs) and _is_tensor(descs[0])):
            found = _tensor_rows([descs] if _is_tensor(descs) else list(descs))
            empty = ('',) * (columns - 3)
            return kind(self.nixl_mems[found[0]], [row + empty for row in found[1]]) if found else None
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

    def get_remote_descs(self, descs: Any, mem_type: str | None = None) -> nixlRemoteDList | None:
        return self._descs(nixlRemoteDList, descs, mem_type, 4)

    def get_serialized_descs(self, descs: Any) -> bytes:
        """Bytes of Tenuto's own: nothing is run when they are read."""
        if isinstance(descs, nixlXferDList):
            return b'X' + bytes([descs.getType()]) + xfer.pack(descs.rows(), SEGMENTS[descs.getType()])
        return b'R' + bytes([descs.getType()]) + json.dumps([[a, n, d, m.hex()] for a, n, d, m in descs]).encode()

    def deserialize_descs(self, serialized_descs: bytes) -> Any:
        try:
            kind, mem, data = serialized_descs[:1], nixl_mem_t(serialized_descs[1]), serialized_descs[2:]
            if kind == b'R':
                return nixlRegDList(mem, [(a, n, d, bytes.fromhex(m)) for a, n, d, m in json.loads(data)])
            _, runs = xfer.unpack(data)
        except tenuto.Error as error:
            raise exception_of(error) from error
        except (ValueError, TypeError, IndexError) as error:
            raise exception('MISMATCH', f'{len(serialized_descs)} bytes are no list of descriptors of Tenuto: {error}') from error
        return nixlXferDList(mem, [(a + i * stride, n, d) for a, n, d, stride, count in runs for i in range(count)])

    def prep_xfer_dlist(self, agent_name: str, xfer_list: Any, mem_type: str | None = None, backends: list[str] | None = None) -> nixl_prepped_dlist_handle:
        local = agent_name in ('NIXL_INIT_AGENT', '')
        if getattr(xfer_list, 'ndim', 0) == 2 and xfer_list.shape[1] == 5:
            if mem_type is None:
                raise ValueError('Please specify a mem type for strided descriptors')
            made = self.agent.prepXferDlist('' if local else agent_name, self.nixl_mems[mem_type], xfer_list, self._handles(backends))
        else:
            descs = self.get_xfer_descs(xfer_list, mem_type)
            if descs is None:
                raise exception('INVALID_PARAM', 'no list of descriptors')
            made = self.agent.prepXferDlist('' if local else agent_name, descs, self._handles(backends))
        return nixl_prepped_dlist_handle(self.agent, made)

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        handle.release()

    def prep_mem_view(self, dlist: nixlXferDList | nixlRemoteDList, *, backends: list[str] | None = None) -> int:
        return self.agent.prepMemView(dlist, self._handles(backends))

    def release_mem_view(self, mvh: int) -> None:
        self.agent.releaseMemView(mvh)

    # ---- transfers

    def make_prepped_xfer(self, operation: str, local_xfer_side: nixl_prepped_dlist_handle, local_indices: Any, remote_xfer_side: nixl_prepped_dlist_handle,
                          remote_indices: Any, notif_msg: bytes = b'', backends: list[str] | None = None, skip_desc_merge: bool = False) -> nixl_xfer_handle:
        made = self.agent.makeXferReq(self.nixl_ops[operation], local_xfer_side._handle, local_indices, remote_xfer_side._handle, remote_indices, notif_msg,
                                      self._handles(backends), skip_desc_merge)
        return nixl_xfer_handle(self.agent, made)

    def initialize_xfer(self, operation: str, local_descs: nixlXferDList, remote_descs: nixlXferDList, remote_agent: str, notif_msg: bytes = b'',
                        backends: list[str] | None = None) -> nixl_xfer_handle:
        made = self.agent.createXferReq(self.nixl_ops[operation], local_descs, remote_descs, remote_agent, notif_msg, self._handles(backends))
        return nixl_xfer_handle(self.agent, made)

    def transfer(self, handle: nixl_xfer_handle, notif_msg: bytes | str = b'') -> str:
        return STATES[self.agent.postXferReq(handle._handle, notif_msg)]

    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """DONE or PROC. A request that has failed raises, as NIXL's does."""
        return STATES[self.agent.getXferStatus(handle._handle)]

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> nixlXferTelemetry:
        return self.agent.getXferTelemetry(handle._handle)

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        duration, margin, method = self.agent.estimateXferCost(req_handle._handle)
        return duration, margin, 'ANALYTICAL_BACKEND' if method == nixl_cost_t.NIXL_COST_ANALYTICAL_BACKEND else 'UNKNOWN'

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        backend = self.agent.queryXferBackend(handle._handle)
        return next(name for name, of_it in self.backends.items() if of_it == backend)

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        handle.release()

    # ---- notifications

    def get_new_notifs(self, backends: list[str] | None = None) -> dict[str, list[bytes]]:
        return self.agent.getNotifs({}, self._handles(backends))

    def update_notifs(self, backends: list[str] | None = None) -> dict[str, list[bytes]]:
        self.notifs = self.agent.getNotifs(self.notifs, self._handles(backends))
        return self.notifs

    def check_remote_xfer_done(self, remote_agent_name: str, lookup_tag: bytes, backends: list[str] | None = None, tag_is_prefix: bool = True) -> bool:
        waiting = self.update_notifs(backends).get(text_of(remote_agent_name), [])
        for i, message in enumerate(waiting):
            if message.startswith(lookup_tag) if tag_is_prefix else lookup_tag in message:
                del waiting[i]
                return True
        return False

    def send_notif(self, remote_agent_name: str, notif_msg: bytes | str, backend: str | None = None) -> None:
        self.agent.genNotif(remote_agent_name, notif_msg, self._handles([backend] if backend else None))

    # ---- metadata

    def get_agent_metadata(self) -> bytes:
        return self.agent.getLocalMD()

    def get_partial_agent_metadata(self, descs: nixlRegDList, inc_conn_info: bool = False, backends: list[str] | None = None) -> bytes:
        """Of these sections; how to connect is always in it."""
        return self.agent.getLocalPartialMD(descs, inc_conn_info, self._handles(backends))

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """The agent's name: bytes, as there. All calls take it so."""
        return self.agent.loadRemoteMD(metadata)

    def remove_remote_agent(self, agent: bytes | str) -> None:
        self.agent.invalidateRemoteMD(agent)

    def make_connection(self, remote_agent: bytes | str, backends: list[str] | None = None) -> None:
        self.agent.makeConnection(remote_agent, self._handles(backends))

    def check_remote_metadata(self, agent: bytes | str, descs: nixlXferDList | None = None) -> bool:
        return self.agent.checkRemoteMD(agent, nixlXferDList(nixl_mem_t.DRAM_SEG) if descs is None else descs) == nixl_status_t.NIXL_SUCCESS

    def fetch_remote_metadata(self, remote_agent: bytes | str, ip_addr: str = '', port: int = DEFAULT_COMM_PORT, label: str = '') -> None:
        """Begins to fetch: from an agent that listens, or from the directory. check_remote_metadata says when it is there."""
        self.agent.fetchRemoteMD(remote_agent, ip_addr, port, label)

    def send_local_metadata(self, ip_addr: str = '', port: int = DEFAULT_COMM_PORT) -> None:
        """To an agent that listens, or into the directory."""
        self.agent.sendLocalMD(ip_addr, port)

    def send_partial_agent_metadata(self, descs: nixlRegDList, inc_conn_info: bool = False, backends: list[str] | None = None, ip_addr: str = '',
                                    port: int = DEFAULT_COMM_PORT, label: str = '') -> None:
        """Of these sections: to an agent that listens, or into the directory, under a label."""
        self.agent.sendLocalPartialMD(descs, inc_conn_info, self._handles(backends), ip_addr, port, label)

    def invalidate_local_metadata(self, ip_addr: str = '', port: int = DEFAULT_COMM_PORT) -> None:
        """An agent that listens forgets this one; or what was published is taken back."""
        self.agent.invalidateLocalMD(ip_addr, port)
