# SPDX-License-Identifier: Apache-2.0
"""Kinds of memory, status codes, exceptions, descriptor lists and telemetry, by NIXL's names."""
from __future__ import annotations

import enum
import errno
from collections.abc import Iterator
from typing import Any, NamedTuple

DEFAULT_COMM_PORT = 8888
NIXL_INIT_AGENT = ''
HAVE_UCX_GPU_DEVICE_API = False


class nixl_mem_t(enum.IntEnum):
    DRAM_SEG = 0
    VRAM_SEG = 1
    BLK_SEG = 2
    OBJ_SEG = 3
    FILE_SEG = 4


class nixl_xfer_op_t(enum.IntEnum):
    NIXL_READ = 0
    NIXL_WRITE = 1


class nixl_status_t(enum.IntEnum):
    NIXL_IN_PROG = 1
    NIXL_SUCCESS = 0
    NIXL_ERR_NOT_POSTED = -1
    NIXL_ERR_INVALID_PARAM = -2
    NIXL_ERR_BACKEND = -3
    NIXL_ERR_NOT_FOUND = -4
    NIXL_ERR_MISMATCH = -5
    NIXL_ERR_NOT_ALLOWED = -6
    NIXL_ERR_REPOST_ACTIVE = -7
    NIXL_ERR_UNKNOWN = -8
    NIXL_ERR_NOT_SUPPORTED = -9
    NIXL_ERR_REMOTE_DISCONNECT = -10
    NIXL_ERR_CANCELED = -11
    NIXL_ERR_NO_TELEMETRY = -12


class nixl_thread_sync_t(enum.IntEnum):
    NIXL_THREAD_SYNC_NONE = 0
    NIXL_THREAD_SYNC_STRICT = 1
    NIXL_THREAD_SYNC_RW = 2
    NIXL_THREAD_SYNC_DEFAULT = 0


class nixl_cost_t(enum.IntEnum):
    NIXL_COST_ANALYTICAL_BACKEND = 0


for _kind in (nixl_mem_t, nixl_xfer_op_t, nixl_status_t, nixl_thread_sync_t, nixl_cost_t):
    globals().update(_kind.__members__)


class nixlNotPostedError(Exception):
    """The request was not posted."""


class nixlInvalidParamError(Exception):
    """A value that the call does not take."""


class nixlBackendError(Exception):
    """The backend failed."""


class nixlNotFoundError(Exception):
    """No such agent, section, backend or file."""


class nixlMismatchError(Exception):
    """Metadata that is broken, or of another version."""


class nixlNotAllowedError(Exception):
    """Not now: something is in use."""


class nixlRepostActiveError(Exception):
    """The request is under way."""


class nixlUnknownError(Exception):
    """Anything else."""


class nixlNotSupportedError(Exception):
    """No backend can do it."""


class nixlRemoteDisconnectError(Exception):
    """The other agent is gone."""


class nixlCancelledError(Exception):
    """The request was cancelled."""


class nixlNoTelemetryError(Exception):
    """The agent was made without telemetry."""


STATUS_OF_ERRNO = {
    errno.EINVAL: 'INVALID_PARAM', errno.E2BIG: 'INVALID_PARAM', errno.EEXIST: 'INVALID_PARAM', errno.EOVERFLOW: 'INVALID_PARAM',
    errno.ENOENT: 'NOT_FOUND', errno.EBADMSG: 'MISMATCH', errno.EPROTONOSUPPORT: 'MISMATCH', errno.EBUSY: 'NOT_ALLOWED', errno.EACCES: 'NOT_ALLOWED',
    errno.ENOTSUP: 'NOT_SUPPORTED', errno.ECONNRESET: 'REMOTE_DISCONNECT', errno.ECONNREFUSED: 'REMOTE_DISCONNECT', errno.ESTALE: 'NOT_FOUND',
    errno.ECANCELED: 'CANCELED',
}

# Of a request that has ended; any other errno is the backend's.
STATUS_OF_END = {errno.ECONNRESET: 'REMOTE_DISCONNECT', errno.ESTALE: 'NOT_FOUND', errno.ECANCELED: 'CANCELED'}

EXCEPTIONS = {
    'NOT_POSTED': nixlNotPostedError, 'INVALID_PARAM': nixlInvalidParamError, 'BACKEND': nixlBackendError, 'NOT_FOUND': nixlNotFoundError,
    'MISMATCH': nixlMismatchError, 'NOT_ALLOWED': nixlNotAllowedError, 'REPOST_ACTIVE': nixlRepostActiveError, 'UNKNOWN': nixlUnknownError,
    'NOT_SUPPORTED': nixlNotSupportedError, 'REMOTE_DISCONNECT': nixlRemoteDisconnectError, 'CANCELED': nixlCancelledError,
    'NO_TELEMETRY': nixlNoTelemetryError,
}


STATUS_OF_EXCEPTION = {kind: status for status, kind in EXCEPTIONS.items()}


def exception(status: str, text: str) -> Exception:
    """The exception of a status: its text begins with NIXL's name of the status."""
    return EXCEPTIONS[status](f'NIXL_ERR_{status}: {text}')


def exception_of(error: OSError) -> Exception:
    """The exception of an error of Tenuto."""
    return exception(STATUS_OF_ERRNO.get(error.errno, 'BACKEND'), error.strerror or str(error))


def text_of(name: bytes | str) -> str:
    """The name of an agent, which is str or bytes."""
    return name.decode() if isinstance(name, bytes) else name


class nixlXferTelemetry(NamedTuple):
    """Of a request that has ended. Times in microseconds; startTime since 1970; descCount: after neighbours were merged."""
    startTime: int
    postDuration: int
    xferDuration: int
    totalBytes: int
    descCount: int


class _DList:
    """Descriptors of one kind of memory: tuples, or an array of 3 columns, which is taken as it is. A number in place of descriptors is a list's size in NIXL."""

    def __init__(self, type: nixl_mem_t, descs: Any = ()) -> None:
        self._type = nixl_mem_t(type)
        if isinstance(descs, int):
            descs = ()
        if hasattr(descs, '__array_interface__'):
            if descs.ndim != 2 or descs.shape[1] != 3 or descs.dtype.str[1:] not in ('u8', 'i8') or not descs.flags['C_CONTIGUOUS']:
                raise ValueError(f'an array of shape {descs.shape} and type {descs.dtype}: rows of 3 are wanted, of uint64 or int64, one behind the other')
            self._rows = descs.view('uint64')
        else:
            self._rows = [self._row(d) for d in descs]

    def _row(self, desc: Any) -> tuple[Any, ...]:
        raise NotImplementedError

    def _tuples(self) -> list[tuple[Any, ...]]:
        """The rows as tuples, also for changes: an array is given up for them."""
        if not isinstance(self._rows, list):
            self._rows = [self._of_array(*row) for row in self._rows.tolist()]
        return self._rows

    def _of_array(self, *row: int) -> tuple[Any, ...]:
        return row

    def rows(self) -> Any:
        """What Tenuto takes."""
        return self._rows

    def getType(self) -> nixl_mem_t:
        return self._type

    def descCount(self) -> int:
        return len(self._rows)

    def isEmpty(self) -> bool:
        return len(self._rows) == 0

    def clear(self) -> None:
        self._rows = []

    def append(self, desc: Any) -> None:
        self._tuples().append(self._row(desc))

    addDesc = append

    def remDesc(self, index: int) -> None:
        del self._tuples()[index]

    def index(self, desc: Any) -> int:
        row = self._row(desc)
        if row not in self._tuples():
            raise exception('NOT_FOUND', f'{row} is not in the list')
        return self._tuples().index(row)

    def print(self) -> None:
        print(f'{self._type.name}: {self._tuples()}')

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._tuples()[index]

    def __setitem__(self, index: int, desc: Any) -> None:
        self._tuples()[index] = self._row(desc)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._tuples())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self._type == other._type and self._tuples() == other._tuples()

    __hash__ = None


def _fields(desc: Any, n: int) -> Any:
    if not isinstance(desc, (tuple, list)):
        raise TypeError(f'a descriptor is a tuple of {n}, not {desc!r}')
    if len(desc) != n:
        raise ValueError(f'a descriptor has {n} fields: {desc!r} has {len(desc)}')
    return desc


class nixlXferDList(_DList):
    """Descriptors of transfers: (address, bytes, device)."""

    def _row(self, desc: Any) -> tuple[int, int, int]:
        address, size, device = _fields(desc, 3)
        return int(address), int(size), int(device)


class nixlRegDList(_DList):
    """Descriptors of registrations: (address, bytes, device, meta)."""

    def _row(self, desc: Any) -> tuple[int, int, int, bytes]:
        address, size, device, meta = _fields(desc, 4)
        return int(address), int(size), int(device), meta.encode() if isinstance(meta, str) else bytes(meta)

    def _of_array(self, *row: int) -> tuple[Any, ...]:
        return (*row, b'')

    def trim(self) -> nixlXferDList:
        """The same without meta."""
        return nixlXferDList(self._type, [row[:3] for row in self._tuples()])


class nixlRemoteDList(_DList):
    """Descriptors with the agents that have them: (address, bytes, device, agent)."""

    def _row(self, desc: Any) -> tuple[int, int, int, str]:
        address, size, device, agent = _fields(desc, 4)
        return int(address), int(size), int(device), agent.decode() if isinstance(agent, bytes) else str(agent)
