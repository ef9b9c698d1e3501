# SPDX-License-Identifier: Apache-2.0
"""What NIXL's users take from nixl._bindings: names of _types, and nixlAgent with its configuration."""
from ._agent import nixlAgent, nixlAgentConfig
from ._types import *  # noqa: F403
from ._types import nixl_mem_t, nixl_status_t, nixlRegDList, nixlRemoteDList, nixlXferDList, nixlXferTelemetry

__all__ = ['nixlAgent', 'nixlAgentConfig', 'nixlRegDList', 'nixlRemoteDList', 'nixlXferDList', 'nixlXferTelemetry', 'nixl_mem_t', 'nixl_status_t']
