# SPDX-License-Identifier: Apache-2.0
"""What the scheduler's side and the workers' sides of the connector tell each other: plain values, pickled by vLLM."""
from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorHandshakeMetadata, KVConnectorMetadata, KVConnectorWorkerMetadata


@dataclass
class Hello(KVConnectorHandshakeMetadata):
    """A worker, once: the share of each block that it has, and the geometry of each group's pages.

    `shares` is how many different shares there are: workers that hold the same bytes (MLA, replicated KV heads) have the same one, and one of them saves it.
    """
    share: int
    shares: int
    geometries: dict  # group index -> bytes
    means: str        # fingerprint of what the bytes mean
    on_device: bool = False  # its pages lie in memory of a GPU


@dataclass
class Blocks:
    """Blocks of a prompt: keys, and each group's pages. `pages` has, by group, the first block that is meant and the page of each from there on. `is_async`: a load of them is
    waited for by their request alone, and not by a step."""
    id: int
    request: str
    keys: bytes
    pages: dict
    parent: bytes | None = None
    is_async: bool = False
    names: tuple | None = None  # of a save: vLLM's hashes of the blocks, the one before them, token ids (Names.of)


@dataclass
class Step(KVConnectorMetadata):
    """The scheduler, in every step. `early` saves are of blocks that this step computes, `late` ones of blocks that are there already."""
    number: int = 0
    socket: str | None = None
    revision: bytes = bytes(16)                    # of the last reset: another one than before ends what was begun under that
    loads: list = field(default_factory=list)
    early: list = field(default_factory=list)
    late: list = field(default_factory=list)
    wait_for: list = field(default_factory=list)   # saves whose pages this step gives to somebody else
    tokens: int = 0                                # that the step computes, of all requests together
    prefix: int | None = None                      # in front of each of them, as the attention of one prompt would have it; None: no prompt's is like this step's
    decode: bool = False                           # each request computes the tokens behind its last one only


@dataclass
class Done(KVConnectorWorkerMetadata):
    """A worker, after every step. Counts are by save, so that the scheduler knows when all workers are through."""
    steps: dict = field(default_factory=dict)      # steps with loads that were waited for: how many workers
    saves: dict = field(default_factory=dict)      # saves that have ended: how many workers
    failed: set = field(default_factory=set)       # requests whose load was not complete
    queued: int = 0                                # saves that wait for their turn

    def aggregate(self, other):
        for mine, theirs in ((self.steps, other.steps), (self.saves, other.saves)):
            for key, n in theirs.items():
                mine[key] = mine.get(key, 0) + n
        self.failed |= other.failed
        self.queued += other.queued
        return self
