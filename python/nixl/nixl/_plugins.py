# SPDX-License-Identifier: Apache-2.0
"""NIXL's backends by name, and which of Tenuto's stand for each."""
from __future__ import annotations

import functools
import os
from typing import NamedTuple

import tenuto
from tenuto import xfer

from .logging import get_logger

logger = get_logger(__name__)


class Plugin(NamedTuple):
    """Kinds of memory that it takes, and parameters with their defaults."""
    memories: list[str]
    params: dict[str, str]


PLUGINS = {
    'UCX': Plugin(['DRAM_SEG'], {'ucx_devices': '', 'num_workers': '1', 'num_threads': '0', 'ucx_error_handling_mode': 'peer'}),
    'POSIX': Plugin(['DRAM_SEG', 'FILE_SEG'], {'use_aio': 'false', 'use_uring': 'false', 'use_posix_aio': 'false'}),
    'OBJ': Plugin(['DRAM_SEG', 'OBJ_SEG'], {'bucket': '', 'endpoint_override': '', 'scheme': 'https', 'region': '', 'access_key': '', 'secret_key': '',
                                            'session_token': '', 'ca_bundle': ''}),
}

# Transports of UCX within a machine, by the names that UCX_TLS has for them.
SHARED_MEMORY_TLS = {'all', 'shm', 'sm', 'mm', 'posix', 'sysv', 'xpmem', 'cma', 'knem'}


@functools.cache
def _found() -> tuple[str, ...]:
    """s3 is a plugin, which may be missing."""
    try:
        xfer.Agent('nixl', backends=['s3'], listen='none').close()
    except tenuto.InvalidValue:
        pass  # it is there, and wants a bucket
    except tenuto.Error as error:
        logger.info('OBJ is left out: %s', error.strerror)
        return tuple(name for name in PLUGINS if name != 'OBJ')
    return tuple(PLUGINS)


def available() -> list[str]:
    """NIXL's names of what can be used here."""
    return list(_found())


def _shared_memory_allowed() -> bool:
    """Whether UCX_TLS allows UCX a transport within the machine. The backend memory stands for those."""
    text = os.environ.get('UCX_TLS', '')
    names = set(text.removeprefix('^').split(','))
    if text.startswith('^'):
        return not names & {'shm', 'sm'}
    return not text or bool(names & SHARED_MEMORY_TLS)


def _open_ucx(agent: xfer.Agent, params: dict[str, str]) -> list[str]:
    """Memory reaches the processes of this machine, ucx those of others. ucx is a plugin, and UCX may be missing."""
    opened, threads = [], int(params.get('num_threads') or 0)
    if _shared_memory_allowed():
        agent.backend_add('memory' + (f',threads={min(threads, 16)}' if threads > 0 else ''))
        opened.append('memory')
    try:
        agent.backend_add('ucx')
        opened.append('ucx')
    except tenuto.Error as error:
        if not opened:
            raise
        logger.info('UCX reaches this machine alone: %s', error.strerror)
    return opened


def _file_spec(params: dict[str, str]) -> str:
    if params.get('use_uring', '').lower() == 'true':
        return 'file,engine=uring'
    return 'file,engine=posix' if 'true' in (params.get(k, '').lower() for k in ('use_aio', 'use_posix_aio')) else 'file'


def _obj_spec(params: dict[str, str]) -> str:
    """What is not set comes from AWS's environment; a bucket from AWS_DEFAULT_BUCKET."""
    names = {'bucket': 'bucket', 'region': 'region', 'access_key': 'access_key', 'secret_key': 'secret_key', 'session_token': 'session_token', 'ca_bundle': 'ca_file'}
    values = {ours: params[theirs] for theirs, ours in names.items() if params.get(theirs)}
    values.setdefault('bucket', os.environ.get('AWS_DEFAULT_BUCKET', ''))
    endpoint = params.get('endpoint_override')
    if endpoint:
        values['endpoint'] = endpoint if '://' in endpoint else f"{params.get('scheme') or 'https'}://{endpoint}"
    return 's3' + ''.join(f',{name}={value}' for name, value in values.items())


def open_backend(agent: xfer.Agent, name: str, params: dict[str, str]) -> list[str]:
    """Opens what stands for a backend of NIXL. Returns Tenuto's names, the preferred one first."""
    if name == 'UCX':
        return _open_ucx(agent, params)
    agent.backend_add(_obj_spec(params) if name == 'OBJ' else _file_spec(params))
    return ['s3' if name == 'OBJ' else 'file']
