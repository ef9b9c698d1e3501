# SPDX-License-Identifier: Apache-2.0
"""Look-ups that wait for tiers which do not answer at once, as an object store. For callers that may wait; what must not is tenuto.vllm.remote."""
from __future__ import annotations

import time
from collections.abc import Sequence

from tenuto import _core

NAP_S = 0.001


def ask(spaces: Sequence[_core.Space], keys: bytes, timeout: float) -> None:
    """Waits until all tiers have said which of the keys they have, for so many seconds at most: a look-up that follows knows it. Returns at once where nobody has to be
    asked. Raises what the cache raises."""
    until = time.monotonic() + timeout
    query: _core.Query | None = None
    while (left := until - time.monotonic()) > 0:
        try:
            query = query or _core.match_begin(spaces, keys, left)
            if query.poll() is not None:
                return
        except _core.Again:
            pass  # too many look-ups are under way
        time.sleep(NAP_S)


def fetch(space: _core.Space, keys: bytes, timeout: float) -> None:
    """Waits until blocks of a remote tier are in host memory, for so many seconds at most. Returns at once where there is no host tier."""
    until = time.monotonic() + timeout
    if not space.prefetch(keys, timeout):
        return
    while time.monotonic() < until and space.match(keys).remote_blocks:
        time.sleep(NAP_S)


def near(spaces: Sequence[_core.Space], keys: bytes) -> int:
    """How many of the first keys' blocks all spaces have on this machine. Raises what the cache raises."""
    n = len(keys) // _core.KEY_BYTES
    for space in spaces:
        if not n:
            break
        found = space.match(keys[:n * _core.KEY_BYTES], tiers=True)
        n = found.blocks if not found.remote_blocks else min(found.blocks, (found.tiers or bytes([_core.TIER_REMOTE])).index(_core.TIER_REMOTE))
    return n
