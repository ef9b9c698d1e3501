# SPDX-License-Identifier: Apache-2.0
"""The connector's side in a worker: it moves bytes between vLLM's KV pages and the cache, and decides nothing.

Loads of a step are waited for layer by layer, before the layer is computed, or - asynchronous ones - asked about after each step. Saves are given
layer by layer as they are computed, and asked about after each step. A page is not given back to vLLM before Tenuto has let go of it. Whatever goes wrong
with a load becomes a block that vLLM computes again, whatever goes wrong with a save a block that is not kept. When too much is under way, what comes waits
for its turn: a load as long as a load may take, a save until its pages are given away.

On a GPU the current stream waits for the layers of loads, and raises the event of a layer that is saved. The host waits for the stream before a load begins, whose pages
a step before may still use, and at the end of a step for its loads: what was computed on a load that failed is computed again, and no save has it, since the scheduler
lets a step with loads save nothing. The times at which layers are asked for are those of launches there, so the cache's scheduler is told none.
"""
import errno
from dataclasses import dataclass, field

from tenuto import _core
from tenuto._streams import Streams
from tenuto.shares import Shares
from tenuto.vllm.feed import Feed
from tenuto.vllm.layout import group_of, layer_of, order_of, place
from tenuto.vllm.messages import Done, Hello
from tenuto.vllm.store import GONE, SAVE_PATIENCE_S, Stats, now


@dataclass
class Load:
    blocks: object
    parts: dict   # group -> (_core.Load, how many blocks, pages)
    good: dict    # group -> good blocks; None: it is over
    begun: float  # or asked for
    waits: bool = False  # for its turn
    told: dict = field(default_factory=dict)  # options of it: what the cache's scheduler is told


@dataclass
class Save:
    blocks: object
    parts: dict   # group -> _core.Save
    given: set
    early: bool
    committed: bool = False


class Worker:
    """`caches`: vLLM's tensors by layer; `describe`: what the model's KV is (connector.Model)."""

    def __init__(self, model, connect, load_timeout_s, stage_bytes, warn, feed=True):
        self.model, self.connect, self.load_timeout_s, self.stage_bytes = model, connect, load_timeout_s, stage_bytes
        self.warn, self.feed = warn, Feed(feed)
        self.store, self.generation = None, 0
        self.groups, self.ranges, self.where, self.tensors = [], [], {}, {}
        self.registered, self.spaces, self.pools, self.memory = 0, {}, {}, None  # with which cache, and what is open in it
        self.loads, self.saves, self.waiting = [], {}, {}
        self.queue = {}  # saves that wait for their turn
        self.driver, self.device, self.streams = None, None, None  # of pages on a GPU: who copies them, where they lie, and its streams beside the cache
        self.invalid, self.failed, self.step = set(), set(), None
        self.done, self.stats, self.revision, self.said = Done(), Stats(warn), bytes(16), ""

    # ---- the engine's memory ----------------------------------------------------------------------------------------

    def register(self, caches):
        """vLLM's KV tensors. Raises NotImplementedError for what cannot be moved."""
        layers = {}
        for name, tensor in caches.items():
            if not hasattr(tensor, "untyped_storage"):
                raise NotImplementedError(f"tenuto: layer {name} keeps a recurrent state; only attention layers can be stored")
            if tensor.device.type not in ("cpu", "cuda") or tensor.device != next(iter(caches.values())).device:
                raise NotImplementedError(f"tenuto: layer {name} lies on {tensor.device}. The connector moves pages that all lie in host memory, or all on one "
                                          "CUDA device: elsewhere use vLLM's OffloadingConnector with tenuto.vllm.tier")
            storage = tensor.untyped_storage()
            layers[name] = layer_of(name, tensor.shape, tensor.stride(), tensor.element_size(), tensor.data_ptr(),
                                    (storage.data_ptr(), storage.nbytes()), self.model.blocks)
        self.tensors = caches
        for g in self.model.groups:
            names = [n for n in g.layers if n in layers]
            for n in names if g.heads else ():
                layers[n].order = order_of(n, caches[n].shape, caches[n].stride(), self.model.blocks, g.heads, self.model.layout)
            self.groups.append(group_of(g.index, names, [layers[n] for n in names], g.block_tokens, g.latent, g.heads))
        self.ranges = place(self.groups, layers)
        device = next(iter(caches.values())).device
        if device.type == "cuda":
            self.driver, self.device, self.feed.wanted = "cuda", device, False
            self.ranges = [(*r, device.index) for r in self.ranges]
        self.where = {name: (g.index, i) for g in self.groups for i, name in enumerate(g.layers)}

    def hello(self):
        m = self.model
        return Hello(m.share, m.shares, {g.index: g.geometry for g in self.groups}, m.means, self.driver is not None)

    # ---- the cache --------------------------------------------------------------------------------------------------

    def ready(self, socket):
        """Whether there is a cache, with spaces and pools open."""
        if self.store is None:
            self.store = self.connect(socket)
        if self.store.cache is None:
            return False
        if self.generation == self.store.generation:
            return True
        try:
            self._open(self.store.cache)
        except GONE as e:
            self.gone(e)
            return False
        except (OSError, MemoryError) as e:
            if str(e) != self.said:
                self.said = str(e)
                self.warn(f"tenuto: the cache cannot be used here: {e}")
            self._leave()
            return False
        self.generation = self.store.generation
        return True

    def _open(self, cache):
        if self.registered != self.store.generation:
            self._leave()
            self.memory = _core.Memory(cache, self.ranges, (), self.stage_bytes, self.driver)
            self.streams = Streams(cache, self.device) if self.driver else None
            self.registered = self.store.generation
        for g in self.groups:
            geometry = _core.Geometry.from_bytes(g.geometry)
            space = self.model.space(cache, g.index, self.model.share, geometry, self.model.means, self.revision)
            if g.index not in self.pools:
                where = self.model.blocks, g.base, g.strides
                self.pools[g.index] = space.pool(self.memory, *where) if isinstance(space, Shares) else _core.Pool(self.memory, geometry, *where)
            self.spaces[g.index] = space

    def _load(self, group, keys, pages, **options):
        space, pool = self.spaces[group], self.pools[group]
        return space.load(keys, pool, pages, **options) if isinstance(space, Shares) else _core.Load(space, pool, keys, pages, **options)

    def _save(self, group, keys, pages, **options):
        space, pool = self.spaces[group], self.pools[group]
        return space.save(keys, pool, pages, **options) if isinstance(space, Shares) else _core.Save(space, pool, keys, pages, **options)

    def _leave(self):
        if self.streams:
            self.streams.close()
        self.streams = None
        self.generation, self.registered, self.spaces, self.pools, self.memory = 0, 0, {}, {}, None

    def gone(self, error):
        """The cache is lost: what was under way has failed. Until `ready` there is none: who goes through several things asks `generation` before each."""
        for load in self.loads + list(self.waiting.values()):
            self._fail(load)
        self.loads = []  # those in self.waiting are told when vLLM asks
        for number in list(self.saves):
            self._save_over(number)
        self._leave()
        for blocks in list(self.queue.values()):
            self._drop(blocks)
        if self.store is not None:
            self.store.lost(error)

    # ---- a step -----------------------------------------------------------------------------------------------------

    def bind(self, step):
        """Before the step: pages that somebody else gets, saves that begin."""
        self.step = step
        if step.revision != self.revision:
            self._reset(step.revision)
        ready = self.ready(step.socket)
        for number in step.wait_for:
            self._wait_save(number)
        for blocks, early in [(b, False) for b in step.late] + [(b, True) for b in step.early]:
            if not (ready and self.generation):
                self._drop(blocks)
            elif self.queue or not self._begin_save(blocks, early):
                self.queue[blocks.id] = blocks
        self.feed.begin(self.store and self.store.cache, step)

    def _reset(self, revision):
        """The weights are others: what is under way was asked for, or computed, under those before. Saves that are complete are good there, and go on."""
        self.revision = revision
        for load in self.waiting.values():
            self._fail(load)
        for number, save in list(self.saves.items()):
            if not save.committed:
                self._abort(save)
                self._save_over(number)
        self.generation, self.spaces = 0, {}
        for blocks in list(self.queue.values()):
            self._drop(blocks)

    def start_loads(self):
        """Before the step computes if it waits for its loads, else behind it."""
        step = self.step
        if step is None or not step.loads:
            return
        loads, step.loads = step.loads, []
        ready = self.ready(step.socket)
        for blocks in loads:
            load = Load(blocks, {}, {}, now(), waits=True, told=self.feed.of_load(step, blocks.is_async))
            if blocks.is_async:
                self.waiting[blocks.request] = load
            if ready and self.generation:
                self._begin_load(load)
            else:
                self._fail(load)
            if not blocks.is_async and load.good is not None:
                self.loads.append(load)
        if not all(blocks.is_async for blocks in loads):
            self.done.steps[step.number] = 1

    def _begin_load(self, load):
        """Begins a load. One that the model waits for makes place for itself; another has its turn later. It is over if it cannot begin."""
        until = load.begun + self.load_timeout_s
        if self.streams:
            self.streams.settle()
        while load.waits and load.good is not None:
            try:
                for group, (first, pages) in load.blocks.pages.items():
                    if pages:
                        keys = load.blocks.keys[first * _core.KEY_BYTES:(first + len(pages)) * _core.KEY_BYTES]
                        part = self._load(group, keys, pages, timeout=max(0.0, until - now()), **load.told)
                        load.parts[group] = (part, len(pages), pages)
                load.waits = False
            except _core.Again:
                self._end_load(load, quiet=True)
                load.parts = {}
                if now() >= until or not load.blocks.is_async and not self._make_place():
                    self._fail(load)
                elif load.blocks.is_async:
                    return
            except GONE as e:
                self._fail(load)  # before the cache is closed
                self.gone(e)
            except OSError as e:
                self.warn(f"tenuto: a load of {len(load.blocks.keys) // _core.KEY_BYTES} blocks cannot begin: {e}")
                self._fail(load)

    def _make_place(self):
        """Waits for something that is under way, and has an operation and session memory that come back. Whether there was anything."""
        for load in self.loads:
            if load.good is not None:
                self._finish_load(load)
                return True
        for number, save in list(self.saves.items()):
            if save.committed:
                self._poll_save(number, save, 0.2)
                return True
        return False

    def _fail(self, load):
        """Ends a load of which nothing is good."""
        if load.good is not None:
            self._end_load(load, failed=True, quiet=True)
            load.good = None
            self._load_failed(load.blocks, {g: 0 for g in load.blocks.pages})

    def wait_layer(self, name):
        """A layer is about to be computed: its pages are there after this, or are known to be no good. On a GPU the stream waits, and goes on in any case: end_step tells.

        The cache takes the time between two waits of a load for compute. With several loads that must not be a wait for another one: so all are asked, which
        ends the compute of the layer before, then waited for, and asked again, which begins that of this layer.
        """
        group, layer = self.where.get(name, (None, 0))
        self._time_layer(group, layer)
        loads = [load for load in self.loads if load.good is not None and group in load.parts and not self._stream_waits(load.parts[group][0], layer)]
        for timeout in (0.0, None, 0.0) if len(loads) > 1 else (None,):
            for load in loads:
                part = load.parts[group][0]
                if load.good is None or part.ended:
                    continue
                try:
                    load.good[group] = part.wait(layer, timeout)
                except OSError as e:
                    if timeout is None or not isinstance(e, _core.Timeout):
                        self.gone(e)
                        return

    def _stream_waits(self, part, layer):
        return self.streams is not None and not part.ended and self.streams.wait(part, layer)

    def _time_layer(self, group, layer):
        space = self.spaces.get(group)
        if space is not None and not self.loads:
            try:
                self.feed.layer(space, layer, len(self.groups[0].layers))
            except OSError as e:
                self.gone(e)

    def _finish_load(self, load):
        """Waits for all of a load. Its pages are the engine's after that."""
        if load.good is None:
            return
        for group, (part, n, _) in load.parts.items():
            if part.ended:
                continue
            try:
                load.good[group] = part.wait()
            except OSError:
                load.good[group] = 0
        self._end_load(load)

    def _end_load(self, load, failed=False, quiet=False):
        if load.good is None:
            return
        for group, (part, n, _) in load.parts.items():
            if failed:
                load.good[group] = 0
            if not part.ended:
                try:
                    while part.end(60.0):
                        self.warn(f"tenuto: the pages of {n} blocks are still written to by a device that does not answer")
                except OSError:
                    load.good[group] = 0
        if not quiet:
            self._judge(load)

    def _judge(self, load):
        """What became of a load that is over."""
        if load.good is None:
            return
        good, load.good = dict(load.good), None
        bad = {g: good.get(g, 0) for g, (_, n, _) in load.parts.items() if good.get(g, 0) < n}
        for group, (_, n, _) in load.parts.items():
            self.stats.add("load_blocks", min(good.get(group, 0), n))
            self.stats.add("load_bytes", min(good.get(group, 0), n) * self._page_bytes(group))
        self.stats.add("loads")
        self.stats.add("load_seconds", now() - load.begun)
        if bad:
            self._load_failed(load.blocks, bad)

    def _page_bytes(self, group):
        for g in self.groups:
            if g.index == group:
                return _core.Geometry.from_bytes(g.geometry).block_bytes
        return 0

    def _load_failed(self, blocks, bad):
        """`bad`: good blocks of each group that has fewer than were asked for."""
        self.failed.add(blocks.request)
        self.done.failed.add(blocks.request)
        for group, good in bad.items():
            pages = blocks.pages[group][1][good:]
            self.stats.add("load_failed_blocks", len(pages))
            self.invalid.update(pages)

    # ---- saves ------------------------------------------------------------------------------------------------------

    def _begin_save(self, blocks, early):
        """Whether a save has begun, or never will; else it has to wait for its turn."""
        save = Save(blocks, {}, set(), early)
        if not self.model.saves:
            self._save_over(blocks.id, blocks)
            return True
        for group, (first, pages) in blocks.pages.items():
            if not pages:
                continue
            keys = blocks.keys[first * _core.KEY_BYTES:(first + len(pages)) * _core.KEY_BYTES]
            parent = blocks.keys[(first - 1) * _core.KEY_BYTES:first * _core.KEY_BYTES] if first else blocks.parent
            try:
                if self.model.share == 0:
                    self.model.names.give(self.spaces[group], group, keys, first, blocks.names)
                save.parts[group] = self._save(group, keys, pages, parent=parent)
            except _core.Again:
                self._abort(save)
                return False
            except GONE as e:
                self.gone(e)
                self._drop(blocks)
                return True
            except OSError as e:
                self.warn(f"tenuto: a save of {len(pages)} blocks cannot begin: {e}")
                self._abort(save)
                self._drop(blocks, told=True)
                return True
        self.saves[blocks.id] = save
        if not early:
            self._commit(save)
        return True

    def save_layer(self, name):
        """A layer was computed, on a GPU by the stream; of several microbatches by the first one, so that the layer is given at the end of the step."""
        if self.model.microbatched:
            return
        group, layer = self.where.get(name, (None, 0))
        saves = [s for s in self.saves.values() if group in s.parts and s.early and not s.committed and (group, layer) not in s.given]
        done = self._done(group) if saves else None
        for save in saves if done is not None else ():
            save.given.add((group, layer))
            try:
                save.parts[group].layer(layer, *done)
            except OSError as e:
                self.gone(e)
                return

    def _done(self, group):
        """What a layer of a save is given: an event, if the GPU has yet to compute it. None: the GPU's stream raises no event."""
        return self.streams.done(self.pools[group]) if self.streams else ()

    def _commit(self, save):
        """Every layer that was not given yet is final now, or once the GPU is there."""
        for group in self.groups:
            part = save.parts.get(group.index)
            if part is None:
                continue
            try:
                left = [layer for layer in range(len(group.layers)) if (group.index, layer) not in save.given]
                done = self._done(group.index) if left else ()
                if done is None:
                    self.streams.settle()
                for layer in left:
                    part.layer(layer, *(done or ()))
                part.commit()
            except OSError as e:
                self.gone(e)
                return
        save.committed = True

    def _abort(self, save):
        for part in save.parts.values():
            try:
                part.abort()
                part.end(SAVE_PATIENCE_S)
            except OSError:
                pass

    def _wait_save(self, number):
        """The pages of a save are wanted: it ends, however long that takes."""
        if number in self.queue:
            self._take_turns()
        if number in self.queue:
            self._drop(self.queue[number])
        save = self.saves.get(number)
        if save is None:
            return
        until = now() + SAVE_PATIENCE_S
        while number in self.saves and not self._poll_save(number, save, 0.2):
            if now() > until:
                until = now() + SAVE_PATIENCE_S
                self.warn(f"tenuto: the pages of {len(save.blocks.keys) // _core.KEY_BYTES} blocks are still read for a save by a device that does not answer")

    def _poll_save(self, number, save, patience=0.0):
        """Whether a save is over."""
        for part in save.parts.values():
            if part.ended:
                continue
            try:
                part.end(patience)
            except _core.Timeout:
                return False
            except GONE as e:
                self.gone(e)
                return True
            except OSError as e:
                self.warn(f"tenuto: a save: {e}")
        for part in save.parts.values():
            r = part.result
            if r is None:
                continue
            for name in ("stored", "existing", "host_only", "rejected"):
                self.stats.add(f"save_{name}_blocks", getattr(r, name))
            if r.error == errno.EAGAIN:
                self.stats.dropped(r.failed)  # parts that found no place
            else:
                self.stats.add("save_failed_blocks", r.failed)
        self._save_over(number)
        return True

    def _save_over(self, number, blocks=None):
        save = self.saves.pop(number, None)
        if blocks or save:
            self.done.saves[number] = self.done.saves.get(number, 0) + 1

    def _drop(self, blocks, told=False):
        """A save that is none. `told`: why, as it is where there is no cache."""
        self.queue.pop(blocks.id, None)
        n = len(blocks.keys) // _core.KEY_BYTES
        if self.generation and not told:
            self.stats.dropped(n)
        else:
            self.stats.add("save_dropped_blocks", n)
        self._save_over(blocks.id, blocks)

    def _take_turns(self):
        """Saves that have waited begin, now that others may have ended. All their layers are there."""
        for number, save in list(self.saves.items()):
            if number in self.saves and save.committed:
                self._poll_save(number, save)
        for number in list(self.queue):
            if not self.generation:
                return
            blocks = self.queue.pop(number)  # who finds the cache gone drops what is queued: this one is told of by itself
            if not self._begin_save(blocks, early=False):
                self.queue = {number: blocks, **self.queue}
                return

    # ---- after a step -----------------------------------------------------------------------------------------------

    def end_step(self):
        """After the forward pass: the step's loads are over, its saves complete."""
        self.feed.end()
        for load in self.loads:
            self._finish_load(load)
        self.loads = []
        for number, save in list(self.saves.items()):
            if number in self.saves and not save.committed:
                self._commit(save)

    def finished(self):
        """(requests whose asynchronous load is over, those of them that failed)."""
        self._take_turns()
        received = set()
        for request, load in list(self.waiting.items()):
            if self._poll_load(load):
                received.add(request)
                self.waiting.pop(request, None)
        failed, self.failed = self.failed, set()
        return received, failed & received

    def _poll_load(self, load):
        if load.waits and load.good is not None:
            self._begin_load(load)
        if load.good is None:
            return True  # it has failed, and is over
        if load.waits:
            return False
        for group, (part, n, _) in load.parts.items():
            if part.ended:
                continue
            try:
                good = part.poll()
                if good is None:
                    return False
                load.good[group] = good
                if part.end(0.0):
                    return False
            except GONE as e:
                self.gone(e)
                return True
            except OSError as e:
                self.warn(f"tenuto: a load: {e}")
                self._end_load(load, failed=True)  # other groups' pages may still be written to
                return True
        if load.good:
            self._judge(load)
        return True

    def take_invalid(self):
        invalid, self.invalid = self.invalid, set()
        return invalid

    def take_done(self):
        done, self.done = self.done, Done()
        done.queued = len(self.queue)
        return done

    def shutdown(self):
        for load in self.loads + list(self.waiting.values()):
            self._end_load(load, failed=True, quiet=True)
        until = now() + SAVE_PATIENCE_S
        while (self.saves or self.queue) and now() < until:
            for number, save in list(self.saves.items()):
                if number in self.saves:
                    self._poll_save(number, save, 0.2)
            self._take_turns()
        self._leave()
        if self.store is not None:
            self.store.close()
