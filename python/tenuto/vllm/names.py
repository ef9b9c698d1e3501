# SPDX-License-Identifier: Apache-2.0
"""What vLLM calls blocks: the hashes that its own KV events have, which go to the cache with each save, for who follows the cache's published events.

The worker that has the first share of each block names it, so that a block is told once, and not by each rank.
"""
import struct

from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from tenuto import _core
from tenuto.vllm.store import GONE


def external(hash_):
    """A block hash as vLLM's events have it, as bytes: of an integer 8, the highest first."""
    converted = maybe_convert_block_hash(hash_)
    return struct.pack(">Q", converted) if isinstance(converted, int) else bytes(converted)


class Names:
    """`tokens`: whether token ids go along: they are prompts."""

    def __init__(self, block_tokens, tokens):
        self.block_tokens, self.tokens = block_tokens, tokens
        self.without = None  # the space whose cache was found to keep no names

    def of(self, request, first, end):
        """Of blocks first to end of a request: (bytes of each hash, hashes, the one before them or None, token ids or None)."""
        hashes = [external(h) for h in request.block_hashes[max(first - 1, 0):end]]
        parent = hashes.pop(0) if first else None
        ids = None
        if self.tokens:
            ids = request.all_token_ids[first * self.block_tokens:end * self.block_tokens]
            ids = struct.pack(f"={len(ids)}I", *ids)
        return len(hashes[0]), b"".join(hashes), parent, ids

    def give(self, space, group, keys, first, names):
        """Names blocks of a save, of which a group saves those from `first` on. Raises what ends the use of the cache; anything else costs the names only."""
        space = getattr(space, "spaces", (space,))[0]  # of canonical shares: the first head group speaks for all
        if names is None or space is self.without:
            return
        size, hashes, parent, ids = names
        if first:
            parent = hashes[(first - 1) * size:first * size]
        try:
            if not space.name_blocks(keys, hashes[first * size:], size, self.block_tokens, parent, ids and ids[4 * first * self.block_tokens:], group):
                self.without = space
        except GONE:
            raise
        except _core.InvalidValue:
            self.without = space
        except (OSError, ValueError, MemoryError):
            pass  # these blocks have no names; the next ones may
