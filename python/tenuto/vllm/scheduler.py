# SPDX-License-Identifier: Apache-2.0
"""The connector's side in vLLM's scheduler: what is looked up, loaded and saved.

A step that computes on loaded bytes which nobody has confirmed yet saves nothing: were they wrong, what it computes is wrong, too. Its blocks are saved
by a later step, when all workers have said that their loads were complete. All other steps save layer by layer, while they compute.

A request's pages are vLLM's again when it ends. Blocks of it that were not saved yet are saved by the next step, unless that gives their pages away.

After a reset nothing is looked up, loaded or saved under the revision before it. `stale` pages are those that were not written since, or by a request that
had begun before, or on such pages: they are not saved.
"""
import os
from collections import OrderedDict
from dataclasses import dataclass, field

from tenuto import _core
from tenuto._ask import near
from tenuto.shares import Shares
from tenuto.slack import Probe
from tenuto.vllm.adapters import Adapters
from tenuto.vllm.messages import Blocks, Step
from tenuto.vllm.remote import Remote
from tenuto.vllm.store import GONE, SAVE_PATIENCE_S, Stats, drop, now

KEY = _core.KEY_BYTES
#: Fewer tokens are computed in the time that reading the weights takes (docs/model.md).
FEW_TOKENS = 64
#: Blocks whose engine hash is remembered, so that events can name them as vLLM does.
EVENT_BLOCKS = 1 << 16


@dataclass
class Tracked:
    """A request: `saved` blocks need no more thought, `stale` says that it is not to be saved, `failed` that a load of it was not complete, so that it is
    offered nothing again. `adapter`: what its block hashes do not say of its LoRA (adapters.py), None: that is not known."""
    request: object
    adapter: bytes | None = b""
    keys: bytes = b""
    hashed: int = 0
    saved: int = 0
    again: bool = False  # a missing parent was saved again, which is tried once
    stale: bool = False
    failed: bool = False
    match: object = None
    loading: bool = False
    is_async: bool = False  # nobody but the request waits for its load
    local: int = 0   # blocks that vLLM itself had when it asked
    fetched: float = 0.0  # until when its blocks of a remote tier are waited for in host memory; 0: it has none
    decided: tuple = ()  # (blocks matched, of them restored): a request that waits for pages is looked up in each step, and decided on once


class Scheduler:
    def __init__(self, model, store, layerwise, warn, remote_timeout_s=0.0):
        self.model, self.store, self.layerwise, self.warn = model, store, layerwise, warn
        self.hellos, self.generation, self.spaces, self.on_device = {}, 0, [], False
        self.pages_per_hash = 1  # of the spaces: where heads lie apart in a page, its tokens are pages
        self.requests, self.loads = {}, []
        self.number, self.unconfirmed, self.saving, self.workers = 0, {}, OrderedDict(), 1
        self.pages_saving, self.wait_for, self.next_id, self.ending = {}, set(), 1, {}
        self.stats, self.events = Stats(warn), Events(model.events)
        self.revision, self.stale, self.said = bytes(16), None, ""
        self.drawn, self.left = False, []  # whether the revision is one that nobody else knows; spaces of such that are to be dropped
        self.queued, self.progress = 0, 0.0  # saves that wait for their turn in workers, and when one of any has ended
        self.adapters = Adapters(model.revised, warn)
        self.probe, self.remote = Probe(), Remote(remote_timeout_s)

    # ---- the cache --------------------------------------------------------------------------------------------------

    def meet(self, hellos):
        """What all workers have said of themselves. Raises ValueError if they do not fit together."""
        self.hellos = hellos
        self.workers, self.on_device = len(hellos), any(h.on_device for h in hellos.values())
        if len({(h.means, h.shares) for h in hellos.values()}) != 1:
            raise ValueError("tenuto: the workers keep their KV in different ways")
        self.ready()

    def ready(self):
        if self.store.cache is None or not self.hellos:
            return False
        if self.generation == self.store.generation:
            return True
        try:
            self.spaces, seen = [], set()
            for h in self.hellos.values():
                for group, geometry in h.geometries.items():
                    if (h.share, group) in seen:
                        continue
                    seen.add((h.share, group))
                    space = self.model.space(self.store.cache, group, h.share, _core.Geometry.from_bytes(geometry), h.means, self.revision)
                    self._look_in(group, space, h.shares, seen)
            self.events.begin(self.store.cache)
        except (OSError, MemoryError) as e:
            self._failed(e)
            return False
        self.generation = self.store.generation
        return True

    def _look_in(self, group, space, shares, seen):
        """`space` is one of those that a request's blocks must be in. Canonical shares of one worker know those of all."""
        if isinstance(space, Shares):
            seen.update((share, group) for share in range(shares))
            self.pages_per_hash = space.groups.geometry.pages_per_block
        for one in space.all if isinstance(space, Shares) else (space,):
            self.spaces.append((group, one))
            if self.layerwise:
                self.model.slack.restore(one, self.model.timed)

    def _keep_times(self, closing=False):
        """What was learned of layer times, for the next start. All shares of a layer take the same time, so one space's table is kept."""
        if not self.layerwise or self.store.cache is None or self.generation != self.store.generation:
            return
        self.model.slack.keep(self.spaces[0][1], self.model.timed, closing)

    def _failed(self, error):
        """A call of the cache has failed: without its owner there is no cache, else there is only no answer."""
        if isinstance(error, GONE) or isinstance(error, _core.Timeout):
            self.generation, self.spaces = 0, []
            self.remote.clear()
            for t in self.requests.values():
                t.match = None
            self.store.lost(error)
        elif str(error) != self.said:
            self.said = str(error)
            self.warn(f"tenuto: {error}")

    def _keys(self, t):
        """All keys of the request's full blocks, as far as vLLM has hashed them."""
        hashes = t.request.block_hashes
        if len(hashes) > t.hashed and self.spaces and t.adapter is not None:
            fresh = b"".join(self.adapters.named(bytes(h), t.adapter) * self.pages_per_hash for h in hashes[t.hashed:])
            t.keys += self.spaces[0][1].keys_from_hashes(fresh, len(bytes(hashes[0])))
            self.events.name(t, hashes, KEY)
            t.hashed = len(hashes)
        return t.keys

    def _match(self, keys, pin):
        """A Match of all spaces, or None, also if the cache was lost since `ready`."""
        if not self.spaces:
            return None
        try:
            return _core.match_all([s for _, s in self.spaces], keys, pin)
        except _core.Again:
            return self._match(keys, False) if pin else None
        except OSError as e:
            self._failed(e)
            return None

    # ---- loads ------------------------------------------------------------------------------------------------------

    def matched(self, request, computed):
        """Tokens beyond those computed that can be loaded, and whether asynchronously. None: a tier has still to answer, and vLLM asks again in a later step."""
        t = self.track(request)
        t.match = None
        if t.failed or not self.ready():
            return 0, False
        size = self.model.block_tokens
        first, end = computed // size, (request.num_tokens - 1) // size
        t.local = first
        keys = self._keys(t)[first * KEY:end * KEY]
        if not keys:
            return 0, False
        if self._asks(t, keys):
            return None, False
        t.match = self._match(keys, True)
        self.stats.add("queried_blocks", len(keys) // KEY)
        if t.match is None or t.match.blocks < self.model.min_blocks:
            t.match = None
            return 0, False
        if self.on_device and t.match.remote_blocks:
            keys = keys[:t.match.blocks * KEY]
            waits = self._fetches(t, keys)
            t.match = None if waits else self._near(keys)
            if t.match is None:
                return (None if waits else 0), False
        t.is_async = not self.layerwise or t.match.remote_blocks > 0
        kept = self._worth(t, request.num_tokens - computed - t.match.blocks * size)
        if kept < self.model.min_blocks:
            t.match = None
            return 0, False
        return kept * size, t.is_async

    def _fetches(self, t, keys):
        """Whether blocks of a remote tier are on their way into host memory: pages of a GPU get none from further away. Once per request, and no longer than a look-up waits."""
        if not t.fetched:
            t.fetched = now() + self.remote.timeout_s
            try:
                if not all(space.prefetch(keys, self.remote.timeout_s) for _, space in self.spaces):
                    t.fetched = now()
            except _core.Again:
                pass  # what has begun is waited for
            except OSError as e:
                self._failed(e)
                t.fetched = now()
        return now() < t.fetched

    def _near(self, keys):
        """A match of those before the first block that lies in a remote tier still; None: there is none."""
        try:
            n = near([space for _, space in self.spaces], keys)
        except OSError as e:
            self._failed(e)
            return None
        found = self._match(keys[:n * KEY], True) if n else None
        return None if found is None or found.remote_blocks else found

    def _asks(self, t, keys):
        """Whether a tier that does not answer at once has still to say what it has of a request. Nobody is asked where all of it is known."""
        name = t.request.request_id
        if not self.remote.timeout_s or not self.store.remote:
            return False
        if not self.remote.has(name):
            found = self._match(keys, False)
            if found is None or found.blocks == len(keys) // KEY:
                return False
            self.stats.add("asked_requests")
        late = self.remote.late
        try:
            waits = self.remote.waits(name, [s for _, s in self.spaces], keys)
        except OSError as e:
            self._failed(e)
            return False
        self.stats.add("late_requests", self.remote.late - late)
        return waits

    def _worth(self, t, tokens):
        """How many of the blocks that were found are restored: computing the others is faster. `tokens` are computed in any case. All spaces have the same layer times."""
        blocks = t.match.blocks
        if not self.model.plans or t.is_async:
            return blocks
        if not t.decided or t.decided[0] != blocks:
            try:
                plan = self.spaces[0][1].plan(t.match, tokens)
            except OSError as e:
                self._failed(e)
                return 0
            t.decided = blocks, self.probe.worth(plan, blocks)
            self.stats.add("computed_blocks", blocks - t.decided[1])
        return t.decided[1]

    def allocated(self, request, ids, tokens):
        """Pages of a request that is to run, or to be loaded."""
        t = self.track(request)
        if not tokens or t.match is None:
            return
        size = self.model.block_tokens
        n = tokens // size
        end = len(ids[self.model.groups[0].index])
        computed = t.local
        pages, firsts = {}, t.match.firsts
        for i, (group, _) in enumerate(self.spaces):
            if group in pages:
                continue
            block_ids = ids[group]
            skip = firsts[i]
            while skip < n and block_ids[computed + skip] == 0:
                skip += 1  # vLLM has no page for what lies before a window
            pages[group] = (skip, list(block_ids[computed + skip:computed + n]))
        assert end >= computed + n
        self._begun(request.request_id, ids, computed * size)
        self.loads.append(Blocks(0, request.request_id, t.keys[computed * KEY:(computed + n) * KEY], pages, is_async=t.is_async))
        if not t.local:
            t.saved = max(t.saved, n)
        t.loading = True
        self.stats.add("hit_blocks", n)
        self.stats.add("remote_blocks", t.match.remote_blocks)

    # ---- saves ------------------------------------------------------------------------------------------------------

    def step(self, output):
        """What the workers are to do in a step."""
        self.number += 1
        self._reused(output)
        counts, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
        step = Step(self.number, self.store.socket, self.revision, self.loads, tokens=sum(counts.values()), prefix=self._prefix(counts),
                    decode=all(n <= 1 + len(drafts.get(request_id, ())) for request_id, n in counts.items()))
        self.loads = []
        if not self.unconfirmed:
            self._end_requests(step)
        waited = any(not b.is_async for b in step.loads)
        ready = self.ready()
        self._keep_times()
        table = output.kv_connector_block_state
        # Beside loads only what was computed before is saved: a request that begins now may share pages that are still to be loaded.
        old = set(output.scheduled_cached_reqs.req_ids) - set(output.scheduled_cached_reqs.resumed_req_ids)
        for request_id, n in counts.items():
            if waited and request_id not in old:
                continue
            t = self.requests.get(request_id)
            if t is None:
                continue
            ids = table.get_block_ids(request_id) if table is not None else None
            if ids is None:
                continue
            if ready and not self.unconfirmed:
                have = t.request.num_computed_tokens
                self._plan(step, t, ids, have, have if waited else have + n - len(drafts.get(request_id, ())))
        step.wait_for, self.wait_for = sorted(self.wait_for), set()
        if waited:
            self.unconfirmed[self.number] = (self.workers, [b.request for b in step.loads if not b.is_async])
        for t in self.requests.values():
            if t.match is not None and not t.loading:
                t.match = None  # looked up, but not scheduled: it is looked up again
        return step

    def _prefix(self, counts):
        """The prefix of one prompt whose tokens attend to as many as all requests' tokens do. None: few tokens take as long as weights and prefixes take to be read, and several
        requests have several prefixes."""
        tokens = sum(counts.values())
        if not counts or len(counts) > 1 and tokens < FEW_TOKENS or not all(name in self.requests for name in counts):
            return None
        pairs = sum(n * (self.requests[name].request.num_computed_tokens + n / 2) for name, n in counts.items())
        return max(0, round(pairs / tokens - tokens / 2))

    def _plan(self, step, t, ids, have, end):
        """Saves of a request: `have` tokens are computed, `end` will be."""
        size = self.model.block_tokens
        keys = self._keys(t)
        full = min(end // size, len(keys) // KEY)
        if full <= t.saved or t.stale or not self.model.writes:
            return
        first = self._missing(t, full)
        if first is None:
            return
        t.saved = full
        middle = max(first, min(have // size, full))
        if middle > first:
            step.late.append(self._save(t, keys, ids, first, middle))
        if full > middle:
            step.early.append(self._save(t, keys, ids, middle, full))

    def _missing(self, t, full):
        """The first block of a request that is neither there nor on its way, from t.saved on, or `full`. Once from further before, if the one before t.saved has
        gone, or was not admitted: without it the others would not be found. None: nobody knows."""
        first = t.saved
        before = first > 0 and not t.again and t.keys[(first - 1) * KEY:first * KEY] not in self.saving
        found = self._match(t.keys[(first - before) * KEY:full * KEY], False)
        if found is not None and before and not found.blocks:
            first, t.again = 0, True
            found = self._match(t.keys[:full * KEY], False)
        if found is None:
            return None
        first += found.blocks - (before and first > 0)
        while first < full and t.keys[first * KEY:(first + 1) * KEY] in self.saving:
            first += 1
        return first

    def _save(self, t, keys, ids, first, end):
        number, self.next_id = self.next_id, self.next_id + 1
        pages = {}
        for g in self.model.groups:
            skip = first
            for i in range(first, end):
                if ids[g.index][i] == 0:
                    skip = i + 1
            pages[g.index] = (skip - first, list(ids[g.index][skip:end]))
        mine = [keys[i * KEY:(i + 1) * KEY] for i in range(first, end)]
        used = [p for _, ps in pages.values() for p in ps]
        self.saving.update((k, number) for k in mine)
        self.pages_saving[number] = (self.workers, mine, used)
        parent = keys[(first - 1) * KEY:first * KEY] if first else None
        return Blocks(number, t.request.request_id, b"".join(mine), pages, parent, names=self.model.names.of(t.request, first, end))

    def _reused(self, output):
        """Pages that this step gives to somebody."""
        if not (self.pages_saving or self.ending or self.stale):
            return
        for new in output.scheduled_new_reqs:
            self._begun(new.req_id, new.block_ids, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for request_id, ids, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens):
            if request_id in cached.resumed_req_ids:
                self._begun(request_id, ids or (), computed)
            elif ids:
                self._given_away((p for group in ids for p in group), self.requests.get(request_id))

    def _begun(self, request_id, ids, computed):
        """A request begins, or begins again, behind tokens that are computed, or loaded, and may be others'."""
        n, t = computed // self.model.block_tokens, self.requests.get(request_id)
        if t is not None and self.stale:
            t.stale = any(self.stale[p] for group in ids for p in group[:n])
        self._given_away((p for group in ids for p in group[n:]), t)

    def _given_away(self, pages, to=None):
        """A save that still reads one of them has to end first; one that was to begin now is none."""
        if not (self.pages_saving or self.ending or self.stale):
            return
        pages = set(pages)
        for number, (_, _, used) in self.pages_saving.items():
            if not pages.isdisjoint(used):
                self.wait_for.add(number)
        for request_id, (t, ids) in list(self.ending.items()):
            if any(not pages.isdisjoint(group) for group in ids):
                del self.ending[request_id]
                first, full = self._unsaved(t, ids)
                self.stats.dropped(full - first)
        if self.stale:
            for page in pages:
                self.stale[page] = to is not None and to.stale

    # ---- what workers tell ------------------------------------------------------------------------------------------

    def answered(self, output):
        done = output.kv_connector_worker_meta
        if done is None:
            return
        for request_id in done.failed:
            t = self.requests.get(request_id) or self.ending.get(request_id, (None,))[0]
            if t is not None:
                t.failed = True
                t.saved = 0
                self.stats.add("failed_requests")
        for number, n in done.steps.items():
            left, requests = self.unconfirmed.get(number, (0, ()))
            if left > n:
                self.unconfirmed[number] = (left - n, requests)
                continue
            self.unconfirmed.pop(number, None)
            for request_id in requests:
                self._loaded(request_id)
        for request_id in output.finished_recving or ():
            self._loaded(request_id)
        if done.saves or not self.queued:
            self.progress = now()
        self.queued = done.queued
        for number, n in done.saves.items():
            left, keys, used = self.pages_saving.get(number, (0, (), ()))
            if left > n:
                self.pages_saving[number] = (left - n, keys, used)
                continue
            self.pages_saving.pop(number, None)
            for k in keys:
                if self.saving.get(k) == number:
                    del self.saving[k]

    def _loaded(self, request_id):
        t = self.requests.get(request_id)
        if t is not None:
            t.match, t.loading = None, False  # which ends the lease

    # ---- requests ---------------------------------------------------------------------------------------------------

    def track(self, request):
        t = self.requests.get(request.request_id)
        if t is None:
            t = self.requests[request.request_id] = Tracked(request, self.adapters.of(request.lora_request))
        return t

    def finished(self, request, ids):
        """A request ends. Its pages are vLLM's again: what was not saved is saved by the next step, if they are not given away before."""
        t = self.requests.pop(request.request_id, None)
        self.remote.forget(request.request_id)
        self.loads = [b for b in self.loads if b.request != request.request_id]
        if t is None or t.failed or t.stale or t.loading and t.is_async or not self.model.writes or not self.ready():
            return
        if self._full(t, ids) > t.saved:
            self.ending[request.request_id] = (t, ids)

    def _full(self, t, ids):
        """Blocks of a request that has ended."""
        return min((t.request.num_tokens - 1) // self.model.block_tokens, len(self._keys(t)) // KEY, *(len(ids[g.index]) for g in self.model.groups))

    def _unsaved(self, t, ids):
        """The first block of a request that has ended and is to be saved, and the end of its blocks."""
        full = self._full(t, ids)
        first = self._missing(t, full) if full > t.saved else None
        return full if first is None else first, full

    def _end_requests(self, step):
        """Last saves of requests that have ended, now that it is known that what they were computed on was good."""
        ending, self.ending = self.ending, {}
        for t, ids in ending.values():
            first, full = self._unsaved(t, ids) if self.ready() and not t.failed else (0, 0)
            if first < full:
                step.late.append(self._save(t, t.keys, ids, first, full))

    def reset(self, revision=None):
        """The weights are others from now on, and the cache is that of this revision. What was computed before is not found in it, and is not saved there. None: a
        revision is drawn. When it is left, its spaces are dropped: nobody finds their blocks, but each would keep one of the store's numbers of spaces."""
        if self.drawn:
            self.left += [space for _, space in self.spaces]
        self.left = drop(self.left)
        self.drawn, self.revision = revision is None, os.urandom(16) if revision is None else revision
        self.generation, self.spaces = 0, []
        self.remote.clear()
        self.ending.clear()
        self.stale = bytearray(b"\0") + bytearray(b"\1") * (self.model.blocks - 1)  # vLLM's block 0 is none
        for t in self.requests.values():
            t.match, t.keys, t.hashed, t.saved, t.again, t.stale = None, b"", 0, 0, False, t.request.num_computed_tokens > 0

    def busy(self):
        """Whether the engine is to go on stepping, although no request is left. Not for ever, if a device does not answer."""
        return bool(self.ending) or self.queued > 0 and now() < self.progress + SAVE_PATIENCE_S

    def shutdown(self):
        self._keep_times(closing=True)
        self.remote.clear()
        self.store.close()


class Events:
    """Which blocks arrive in the cache and leave it, in vLLM's words; for those whose hash this engine has seen."""

    def __init__(self, wanted):
        self.wanted, self.cursor, self.cache, self.names = wanted, 0, None, OrderedDict()

    def begin(self, cache):
        self.cache = None
        if self.wanted:
            try:
                _, self.cursor, _ = _core.events(cache, 0)
                self.cache = cache
            except MemoryError:
                pass  # the owner has none to keep events

    def name(self, t, hashes, key_bytes):
        if not self.wanted:
            return
        request = t.request
        for i in range(t.hashed, len(hashes)):
            key = t.keys[i * key_bytes:(i + 1) * key_bytes]
            self.names[key] = (bytes(hashes[i]), bytes(hashes[i - 1]) if i else None, request, i)
            self.names.move_to_end(key)
        while len(self.names) > EVENT_BLOCKS:
            self.names.popitem(last=False)

    def take(self):
        """(whether it arrived, the tier, what the block is called) since the last call."""
        if self.cache is None:
            return []
        try:
            events, self.cursor, _ = _core.events(self.cache, self.cursor)
        except (OSError, MemoryError):
            return []
        return [(stored, tier, self.names[key]) for _, _, key, _, _, _, _, stored, tier in events if key in self.names]
