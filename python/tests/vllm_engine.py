# SPDX-License-Identifier: Apache-2.0
"""An engine that computes next to nothing: it calls both sides of vLLM's connector as vLLM does, on a real cache. A page's bytes follow from its block's hash, the weights, and
the page before it, so that what is right can be told from what is not."""
import ctypes
import hashlib
import time
import types

from tenuto import _core
from tenuto.shares import Shares
from tenuto.slack import Setting
from tenuto.vllm.store import Config, Store
from vllm_calls import NO_NAMES, adapter

SIZE = 16    # tokens of a block
BYTES = 1024  # of a block in a layer
KNOWN = 32    # the first bytes of these, in which a page differs from others


class Tensor:
    """A layer's pages, [blocks, SIZE, BYTES / SIZE] of bytes."""

    def __init__(self, blocks):
        self.memory = bytearray(blocks * BYTES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.shape, self.device = (blocks, SIZE, BYTES // SIZE), types.SimpleNamespace(type="cpu")

    def stride(self):
        return (BYTES, BYTES // SIZE, 1)

    def element_size(self):
        return 1

    def data_ptr(self):
        return self.address

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: self.address, nbytes=lambda: len(self.memory))

    def get(self, i):
        """What a page has."""
        return bytes(self.memory[i * BYTES:i * BYTES + KNOWN])

    def put(self, i, data):
        self.memory[i * BYTES:i * BYTES + KNOWN] = data


class HeadsTensor(Tensor):
    """The same, [blocks, HEADS, SIZE, bytes]: what a page has is in all of its heads."""

    HEADS = 4

    def __init__(self, blocks):
        super().__init__(blocks)
        self.shape = (blocks, self.HEADS, SIZE, BYTES // SIZE // self.HEADS)

    def stride(self):
        return (BYTES, BYTES // self.HEADS, BYTES // SIZE // self.HEADS, 1)

    def parts(self, i):
        part, step = KNOWN // self.HEADS, BYTES // self.HEADS
        return [(slice(h * part, (h + 1) * part), slice(i * BYTES + h * step, i * BYTES + h * step + part)) for h in range(self.HEADS)]

    def get(self, i):
        return b"".join(self.memory[at] for _, at in self.parts(i))

    def put(self, i, data):
        for part, at in self.parts(i):
            self.memory[at] = data[part]


class Request:
    def __init__(self, number, seed, blocks, lora=None):
        self.request_id, self.seed, self.lora_request = f"r{number}", seed, lora
        self.num_tokens, self.num_computed_tokens = blocks * SIZE + 1, 0
        self.block_hashes, digest = [], repr(seed).encode()
        for _ in range(blocks):
            digest = hashlib.sha256(digest).digest()
            self.block_hashes.append(digest)
        self.pages, self.found, self.looked_at, self.asked = [], 0, False, 0


class Engine:
    """`blocks` pages; `said` are its warnings; `tensor` makes a layer's. `weights` are a part of all that it computes, `wrong` counts restored pages that are of others, or of other blocks."""

    def __init__(self, config, blocks=256, layerwise=True, layers=2, load_timeout_s=10.0, slack="off", tables=None, tensor=Tensor, remote_timeout_s=10.0):
        self.names, self.said, self.weights, self.wrong, self.number = [f"l{i}" for i in range(layers)], [], b"\0", 0, 0
        self.store = Store(config, "stub")
        group = types.SimpleNamespace(index=0, layers=tuple(self.names), block_tokens=SIZE, latent=False, heads=getattr(tensor, "HEADS", 0))
        self.model = types.SimpleNamespace(events=False, groups=[group], block_tokens=SIZE, blocks=blocks, writes=True, saves=True, layout="LBHNC", names=NO_NAMES, microbatched=False, min_blocks=1, revised=False, slack=Setting(slack, tables), plans=slack != "off", timed="stub",
                                           share=0, shares=1, means="", space=self.space)
        self.scheduler = adapter("scheduler").Scheduler(self.model, self.store, layerwise, self.said.append, remote_timeout_s)
        self.worker = adapter("worker").Worker(self.model, lambda socket: Store(Config({"socket": socket})), load_timeout_s, 0, self.said.append, slack != "off")
        self.tensors = {n: tensor(blocks) for n in self.names}
        self.worker.register(self.tensors)
        self.scheduler.meet({(0, 0): self.worker.hello()})
        self.free, self.layerwise, self.requests = list(range(1, blocks)), layerwise, {}  # block 0 is vLLM's null block
        self.layer_s = 0.0  # that a layer takes, beside what it does take

    def space(self, cache, group, share, geometry, means, reset_revision):
        heads = self.model.groups[0].heads
        if heads:
            return Shares(cache, "stub", geometry, kv_heads=heads, reset_revision=reset_revision)
        return _core.Space(cache, "stub", geometry, reset_revision=reset_revision)

    def compute(self, request, block, before):
        """What a block's page has, on the page before it."""
        return hashlib.sha256(self.weights + request.block_hashes[block] + repr(request.lora_request).encode() + before).digest()

    def right(self, request, name):
        """Whether the pages that were restored for a request have what is computed with these weights."""
        digest = b""
        for i in range(request.local + request.found):
            digest = self.compute(request, i, digest)
            yield i < request.local or self.tensors[name].get(request.pages[i]) == digest

    def begin(self, seed, blocks, lora=None, shares=()):
        """A request that vLLM looks up and gives pages, to be stepped with; the first of them are pages that vLLM's own prefix cache has."""
        self.number += 1
        r = self.requests[f"r{self.number}"] = Request(self.number, seed, blocks, lora)
        self.scheduler.track(r)
        r.local = len(shares)
        answer = self.scheduler.matched(r, r.local * SIZE)
        while answer[0] is None:  # as vLLM does: it asks again in each step, and naps after one that computes nothing
            self.step([other for other in self.requests.values() if other is not r and other.waits])
            time.sleep(0.001)
            r.asked += 1
            answer = self.scheduler.matched(r, r.local * SIZE)
        tokens, r.waits = answer
        n = blocks + 1 - r.local
        r.found, r.pages, self.free = tokens // SIZE, [*shares, *self.free[:n]], self.free[n:]
        assert len(r.pages) == blocks + 1, "no pages"
        self.scheduler.allocated(r, (r.pages,), tokens)
        r.num_computed_tokens, r.is_new = r.local * SIZE + tokens, True
        return r

    def step(self, requests=(), most=1 << 30):
        """A step of vLLM: computes the rest of each request, or `most` tokens of it, but for those that wait for their load."""
        run = [r for r in requests if not r.waits]
        scheduled = {r.request_id: min(most, r.num_tokens - r.num_computed_tokens) for r in run}
        old = [r for r in run if not r.is_new]
        step = self.scheduler.step(types.SimpleNamespace(
            kv_connector_block_state=types.SimpleNamespace(get_block_ids=lambda name: (self.requests[name].pages,)), num_scheduled_tokens=scheduled,
            scheduled_new_reqs=[types.SimpleNamespace(req_id=r.request_id, block_ids=(r.pages,), num_computed_tokens=r.num_computed_tokens) for r in run if r.is_new],
            scheduled_cached_reqs=types.SimpleNamespace(req_ids=[r.request_id for r in old], resumed_req_ids=set(), new_block_ids=[None] * len(old),
                                                        num_computed_tokens=[r.num_computed_tokens for r in old]), scheduled_spec_decode_tokens={}))
        self.worker.bind(step)
        first = any(not blocks.is_async for blocks in step.loads)
        if first:
            self.worker.start_loads()
        for name in self.names if run else ():
            self.worker.wait_layer(name)
            time.sleep(self.layer_s)
            for r in run:
                end = r.num_computed_tokens + scheduled[r.request_id]
                tensor = self.tensors[name]
                for i in range(r.num_computed_tokens // SIZE, min(end // SIZE, len(r.block_hashes))):
                    tensor.put(r.pages[i], self.compute(r, i, tensor.get(r.pages[i - 1]) if i else b""))
            self.worker.save_layer(name)
        if not first:  # as vLLM does: nothing of the step waits for these loads
            self.worker.start_loads()
        self.worker.end_step()
        received, failed = self.worker.finished()
        invalid = self.worker.take_invalid()
        for r in run:
            r.num_computed_tokens, r.is_new = r.num_computed_tokens + scheduled[r.request_id], False
        for r in requests:
            if r.request_id in received:
                r.waits = False
            if r.waits or r.looked_at:
                continue
            r.looked_at = True
            bad = [i for i in range(r.local, r.local + r.found) if r.pages[i] in invalid]
            if bad:
                r.found, r.num_computed_tokens = bad[0] - r.local, bad[0] * SIZE
            for name in self.names:
                self.wrong += list(self.right(r, name)).count(False)
        ended = [r for r in run if r.num_computed_tokens >= r.num_tokens]
        for r in ended:  # before what the workers have told
            self.end(r)
        self.scheduler.answered(types.SimpleNamespace(kv_connector_worker_meta=self.worker.take_done(), finished_recving=received))
        return step, ended

    def end(self, r):
        self.scheduler.finished(r, (r.pages,))
        del self.requests[r.request_id]
        others = {p for other in self.requests.values() for p in other.pages}
        self.free = [p for p in r.pages if p not in others] + self.free  # the next to be given away

    def run(self, *prompts, settle=True):
        """Requests that begin together, of (seed, blocks) or (seed, blocks, lora), to their end. How many blocks of each came from the cache."""
        all_of = [self.begin(*p) for p in prompts]
        left = list(all_of)
        while left:
            _, ended = self.step(left)
            left = [r for r in left if r not in ended]
        if settle:
            self.settle()
        return [r.found for r in all_of]

    def settle(self):
        """Steps until nothing is under way."""
        while self.worker.saves or self.worker.queue or self.scheduler.busy():
            self.step()

    def counts(self):
        return {**self.scheduler.stats.take(), **self.worker.stats.take()}

    def close(self):
        self.worker.shutdown()
        self.scheduler.shutdown()
