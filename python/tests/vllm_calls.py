# SPDX-License-Identifier: Apache-2.0
"""What stands in for vLLM and for the cache in tests of the adapter: as much of both as its modules call."""
import collections
import enum
import importlib
import logging
import sys
import types
import unittest

from tenuto import _core
from tenuto.slack import Setting

try:
    import vllm  # noqa: F401
    no_vllm = None
except ImportError:
    no_vllm = "vLLM is not installed here: tests/engines/install.sh installs it"


def stand_ins():
    """As much of vLLM as the adapter's modules import, but for the connector's own."""
    stubs = {}

    def module(name, **content):
        for i in range(1, name.count(".") + 2):
            part = ".".join(name.split(".")[:i])
            stubs.setdefault(part, types.ModuleType(part))
        vars(stubs[name]).update(content)

    module("vllm.distributed.kv_transfer.kv_connector.v1.base",
           **{n: type(n, (), {}) for n in ("KVConnectorHandshakeMetadata", "KVConnectorMetadata", "KVConnectorWorkerMetadata")})
    module("vllm.logger", init_logger=logging.getLogger)
    module("vllm.v1.kv_offload.base", LookupResult=enum.Enum("LookupResult", "MISS HIT HIT_PENDING RETRY"), Medium=enum.Enum("Medium", "CPU STORAGE"),
           **{n: type(n, (types.SimpleNamespace,), {}) for n in ("OffloadingCounterMetadata", "OffloadingEvent", "RequestOffloadingContext")})
    module("vllm.v1.kv_offload.tiering.base", JobResult=collections.namedtuple("JobResult", "job_id success successful_keys transfer_time transfer_bytes"),
           SecondaryTierManager=type("SecondaryTierManager", (), {"__init__": lambda self, *arguments: None, "locality": None}))
    return stubs


def adapter(name):
    """A module of the adapter whose `_core` is its own: a test puts what it likes in place of calls."""
    stubs = stand_ins() if no_vllm else {}
    sys.modules.update(stubs)
    try:
        module = importlib.import_module("tenuto.vllm." + name)
    finally:
        for stub in stubs:
            del sys.modules[stub]
    module._core = types.SimpleNamespace(**vars(_core))
    return module


#: In place of names.Names, which needs vLLM: blocks are saved without.
NO_NAMES = types.SimpleNamespace(of=lambda *what: None, give=lambda *what: None)

GONE = _core.OwnerGone(108, "the owner has gone")


class Owner:
    """The adapter's Store: a cache until it is lost, and another one when its owner is back."""

    def __init__(self):
        self.cache, self.generation, self.socket, self.errors = object(), 1, None, []

    def lost(self, error):
        self.cache = None
        self.errors.append(error)

    def back(self):
        self.cache, self.generation = object(), self.generation + 1


class Part:
    """A load or a save of one group. `answer`: what poll gives and each call of a save's steps raises; until `end` its pages are the cache's. `ending`: what end raises."""

    def __init__(self, answer=None, ending=None):
        self.answer, self.ending, self.ended, self.result = answer, ending, False, None

    def poll(self):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def wait(self, layer=None, timeout=None):
        return self.poll()

    def layer(self, layer):
        self.poll()

    def commit(self):
        self.poll()

    def abort(self):
        self.poll()

    def end(self, patience):
        if self.ending:
            raise self.ending
        self.ended = True
        return False


class WorkerCase(unittest.TestCase):
    """A worker with one group of one layer, whose cache is there; vLLM is stood in for."""

    def worker(self, layerwise=False):
        module = adapter("worker")
        self.said, self.layerwise = [], layerwise
        w = module.Worker(types.SimpleNamespace(saves=True, microbatched=False, share=1), lambda socket: None, 1.0, 0, self.said.append, feed=False)
        w.store, w.generation, w.spaces, w.pools = Owner(), 1, {0: None}, {0: None}
        w.groups = [types.SimpleNamespace(index=0, layers=("a",), geometry=_core.Geometry.raw(1, 4096).to_bytes())]
        w.where = {"a": (0, 0)}
        return module, w

    def blocks(self, number):
        """A block, which has the page of its number."""
        return types.SimpleNamespace(id=number, request=f"r{number}", keys=bytes(_core.KEY_BYTES), pages={0: (0, [number])}, parent=None, is_async=not self.layerwise)

    @staticmethod
    def step(**more):
        return types.SimpleNamespace(**{**dict(number=1, socket=None, revision=bytes(16), loads=[], early=[], late=[], wait_for=[], tokens=0, prefix=None, decode=False), **more})

    @staticmethod
    def of(error):
        """In place of _core.Load and _core.Save."""
        def begin(*arguments, **options):
            raise error
        return begin


class SchedulerCase(unittest.TestCase):
    """The scheduler's side, whose cache is there; vLLM is stood in for."""

    def scheduler(self, requests=0, events=None):
        """`events`: in place of _core.events."""
        module = adapter("scheduler")
        module._core.events = events
        space = types.SimpleNamespace(keys_from_hashes=lambda hashes, size: hashes)
        group = types.SimpleNamespace(index=0)
        model = types.SimpleNamespace(events=bool(events), names=NO_NAMES, groups=[group], block_tokens=4, blocks=64, writes=True, min_blocks=1, revised=False, slack=Setting("off"), plans=False, timed="",
                                      space=lambda *arguments: space)
        s = module.Scheduler(model, Owner(), True, lambda text: None)
        geometry = _core.Geometry.raw(1, 4096).to_bytes()
        s.meet({(0, 0): types.SimpleNamespace(means="", share=0, shares=1, geometries={0: geometry}, on_device=False)})
        for i in range(requests):
            hashes = [bytes([i, n]) * (_core.KEY_BYTES // 2) for n in range(2)]
            s.track(types.SimpleNamespace(request_id=f"r{i}", block_hashes=hashes, num_computed_tokens=0, num_tokens=9, lora_request=None))
        return module, s
