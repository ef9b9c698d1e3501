# SPDX-License-Identifier: Apache-2.0
"""Tenuto's transfer agent behind the interface of NIXL 1.5's Python module, as far as engines use it (docs/nixl.md).

It is installed where NIXL is not. UCX stands for memory, of this machine, and of others where the plugin ucx is; POSIX for files.
"""
from . import _api, _bindings, logging
from ._api import DEFAULT_COMM_PORT, nixl_agent, nixl_agent_config, nixl_prepped_dlist_handle, nixl_thread_sync_t, nixl_xfer_handle

__all__ = ['DEFAULT_COMM_PORT', '_api', '_bindings', 'logging', 'nixl_agent', 'nixl_agent_config', 'nixl_prepped_dlist_handle', 'nixl_thread_sync_t',
           'nixl_xfer_handle']
