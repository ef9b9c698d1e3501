# SPDX-License-Identifier: Apache-2.0
"""A tier below vLLM's own offloading to host memory: chunks that leave it, or that it does not have, lie in Tenuto.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240,
        "secondary_tiers": [{"type": "TenutoTier", "module_path": "tenuto.vllm.tier", "path": "/nvme/tenuto", "disk_bytes": "200GiB"}]}}'

Options, beside those of tenuto.vllm.store.Config (path, socket or store; tenant, ...):

revision         to be set where engines on one store differ in what vLLM does not tell a tier (_means)
load_timeout_s   a promotion that has not arrived by then has failed, and vLLM computes; 10
remote_timeout_s how long a request waits for what a remote tier has of it; 1; 0: nobody is asked
enable_kv_events tell vLLM which chunks arrive and leave (only if its KV events are on)

vLLM calls a tier in its scheduler, so nothing here waits: look-ups in this process's own cache take microseconds and are answered at once; those of an attached
cache and the begin of transfers are done by one thread, transfers are asked about. That thread has to wait for Python's lock after each call of the library, and
vLLM's loop hardly gives it away: so a step's look-ups are one call, and a job's loads, too. The bytes go between vLLM's shared region and the disk without a copy: the region is registered once, a row of it is a page.
Written for vLLM 0.32, whose interface it is (SecondaryTierManager).
"""
import ctypes
import itertools
import os
import queue
import threading
from collections import OrderedDict
from dataclasses import dataclass, field

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import LookupResult, Medium, OffloadingCounterMetadata, OffloadingEvent, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

from tenuto import _core
from tenuto.options import flag_of, seconds_of
from tenuto.vllm.remote import Remote
from tenuto.vllm.store import GONE, REMOTE_TIMEOUT_S, Config, Stats, Store, drop, fingerprint, now, of_replica

logger = init_logger(__name__)

_OPTIONS = ("load_timeout_s", "remote_timeout_s", "enable_kv_events")
#: Objects of more than so many bytes are cut: a cache takes 128 MiB each, and a layer that is checked early may be used early.
OBJECT_BYTES = 4 << 20
#: Chunks whose name in vLLM is remembered, so that events can name them.
EVENT_CHUNKS = 1 << 16
#: Of an owned cache: vLLM does not tell a tier how many requests there may be.
MAX_OPS = 1024
#: How long stores wait for a cache that is busy, before they are dropped.
STORE_PATIENCE_S = 5.0
COUNTERS = {
    "vllm:tenuto_tier_stored_chunks": "Chunks that the tier has stored.",
    "vllm:tenuto_tier_existing_chunks": "Chunks that were there when they were to be stored.",
    "vllm:tenuto_tier_refused_chunks": "Chunks that the tier did not store: not admitted, no space, no cache, or too much under way.",
    "vllm:tenuto_tier_loaded_chunks": "Chunks that were loaded and verified.",
    "vllm:tenuto_tier_load_failed_chunks": "Chunks that were found, but could not be loaded in time or were damaged.",
}


def geometry_of(row_bytes):
    """A row of the region as objects of equal size, as few as OBJECT_BYTES allows."""
    pages = row_bytes // 4096
    for layers in range(1, pages + 1):
        if pages % layers == 0 and row_bytes // layers <= OBJECT_BYTES:
            return _core.Geometry.raw(layers, row_bytes // layers)
    raise ValueError(f"tenuto: a chunk of {row_bytes} bytes is no whole number of 4 KiB pages")


@dataclass
class Job:
    id: int
    store: bool
    keys: list          # vLLM's, in order
    rows: list
    parts: list = field(default_factory=list)   # (operation, the job's indices of its blocks)
    good: set = field(default_factory=set)      # indices of chunks that arrived
    begun: float = 0.0
    failed: bool = False
    started: bool = False


@dataclass
class Asked:
    """What is known of a chunk that a request looked up: None until the thread has answered."""
    found: bool | None = None


@dataclass
class Batch:
    """Chunks that one request looks up, of which the thread found some missing. parts: (number, space, keys) of the look-ups that ask a remote tier for them."""
    wanted: list  # (key, Asked)
    parts: list


class TenutoTier(SecondaryTierManager):
    """See the module."""

    medium = Medium.STORAGE

    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None, **options):
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        options.pop("backpressure", None)
        config = of_replica(Config(options, _OPTIONS), offloading_spec.config.parallel)
        self._timeout_s = seconds_of(options.get("load_timeout_s", 10.0), "load_timeout_s")
        self._remote, self._batches, self._numbers = Remote(seconds_of(options.get("remote_timeout_s", REMOTE_TIMEOUT_S), "remote_timeout_s")), [], itertools.count()
        self._spec, self._config = offloading_spec, config
        self._rows, self._row_bytes = primary_kv_view.shape
        self._geometry = geometry_of(self._row_bytes)
        flat = primary_kv_view.cast("B")
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(flat))
        flat.release()
        if config.paths:
            config.options.setdefault("max_ops", MAX_OPS)
        self._store = Store(config, offloading_spec.config.engine_id, logger.info, logger.warning)
        self._generation, self._memory, self._pool, self._spaces, self._revision = 0, None, None, {}, bytes(16)
        self._drawn, self._left = False, []  # as the scheduler's of the connector
        self._lock, self._queue = threading.RLock(), queue.SimpleQueue()
        self._jobs, self._finished, self._asked = OrderedDict(), [], {}
        self._later, self._wanted, self._idle = [], [], threading.Condition(self._lock)
        self._stats = Stats()
        events = getattr(offloading_spec, "kv_events_config", None)
        self._events = bool(flag_of(options.get("enable_kv_events", False), "enable_kv_events") and events and events.enable_kv_cache_events)
        self._names, self._cursor = OrderedDict(), None
        self._stopped, self._told = False, False
        self._thread = threading.Thread(target=self._run, name="tenuto-tier", daemon=True)
        self._thread.start()

    # ---- names ------------------------------------------------------------------------------------------------------

    def _means(self):
        """Of what decides what the bytes of a chunk are, beside tokens and weights' name, as far as vLLM tells a tier. It tells neither the model's revision nor
        quantisation, rotary settings and overrides of its configuration, and vLLM's own configuration is not set in the scheduler: docs/engines.md."""
        c = self._spec.config
        parallel = c.parallel
        ranks = [] if parallel.is_parallelism_agnostic or c.replicated_layout else [parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size]
        return fingerprint({
            "groups": [[g.tokens_per_block, list(g.layer_names)] for g in c.groups], "hash": c.cache.tokens_per_hash, "chunk": c.cache.blocks_per_chunk,
            "ranks": ranks, "canonical": c.canonical_layout, "replicated": c.replicated_layout, "layout": c.kv_cache_layout, "row": self._row_bytes,
        })

    def _open_already(self):
        return self._store.cache is not None and self._generation == self._store.generation

    def _open(self):
        """Whether there is a cache, with the region registered. On the thread."""
        if self._store.cache is None:
            return False
        if self._open_already():
            return True
        cache, generation = self._store.cache, self._store.generation
        try:
            memory = _core.Memory(cache, ((self._address, self._rows * self._row_bytes),), ())
            step = self._geometry.object_bytes
            pool = _core.Pool(memory, self._geometry, self._rows, [i * step for i in range(self._geometry.layers)], [self._row_bytes])
            cursor = _core.events(cache, 0)[1] if self._events else None
        except Exception as e:
            self._gone(e)
            return False
        with self._lock:
            self._memory, self._pool, self._spaces, self._generation, self._cursor = memory, pool, {}, generation, cursor
        return True

    def _space(self, group):
        with self._lock:
            if group not in self._spaces:
                c = self._spec.config
                self._spaces[group] = _core.Space(self._store.cache, c.model.name, self._geometry, tenant=self._config.tenant,
                                                  revision=f"{self._config.revision}/{self._means()}", kv_dtype=str(c.model.dtype),
                                                  hash_algorithm="vllm-offload", group=group, reset_revision=self._revision)
            return self._spaces[group]

    def _named(self, keys):
        """By group: (space, packed keys, indices in keys). vLLM's name of a chunk is a hash and four bytes of group number."""
        groups = {}
        for i, key in enumerate(keys):
            groups.setdefault(int.from_bytes(key[-4:], "big"), []).append(i)
        out = []
        for group, at in groups.items():
            space = self._space(group)
            packed = space.keys_from_hashes(b"".join(bytes(keys[i][:-4]) for i in at), len(keys[at[0]]) - 4)
            if self._events:
                self._remember(keys, packed, at)
            out.append((space, packed, at))
        return out

    def _remember(self, keys, packed, at):
        with self._lock:
            for n, i in enumerate(at):
                self._names[packed[n * _core.KEY_BYTES:(n + 1) * _core.KEY_BYTES]] = keys[i]
            while len(self._names) > EVENT_CHUNKS:
                self._names.popitem(last=False)

    # ---- what vLLM's scheduler calls: nothing here waits ------------------------------------------------------------

    def lookup(self, key, req_context):
        with self._lock:
            asked = self._asked.setdefault(req_context.req_id, {})
            known = asked.get(key)
            if known is None:
                known = asked[key] = Asked()
                if not (self._config.paths or self._store.shared) or not self._answered(key, known):
                    self._wanted.append((req_context.req_id, key, known))
            if known.found is None:
                return LookupResult.RETRY
            return LookupResult.HIT if known.found else LookupResult.MISS

    def _answered(self, key, known):
        """Looks up in the cache of this process. What goes wrong is the thread's to find out."""
        try:
            if self._open_already():
                found = bool(self._found([key]))
                known.found = found if found or not self._asks_others() else None
        except Exception:
            pass
        return known.found is not None

    def on_schedule_end(self, context):
        with self._lock:
            wanted, self._wanted = self._wanted, []
        requests = {}
        for name, key, known in wanted:
            requests.setdefault(name, []).append((key, known))
        if requests:
            self._queue.put((self._look_up, (list(requests.values()),)))

    def submit_store(self, job_metadata):
        self._submit(job_metadata, True)

    def submit_load(self, job_metadata):
        self._submit(job_metadata, False)

    def _submit(self, metadata, store):
        pairs = list(zip(metadata.keys, metadata.chunk_ids))
        job = Job(metadata.job_id, store, [k for k, _ in pairs], [int(c) for _, c in pairs], begun=now())
        with self._lock:
            self._jobs[job.id] = job
        self._queue.put((self._begin, (job,)))

    def get_finished_jobs(self):
        with self._lock:
            finished, self._finished = self._finished, []
        return finished

    def has_pending_work(self):
        with self._lock:
            return bool(self._jobs or self._finished)

    def touch(self, keys, req_context):
        self._queue.put((self._touch, (list(keys),)))

    def on_new_request(self, req_context):
        return RequestOffloadingContext()

    def on_request_finished(self, req_context):
        with self._lock:
            self._asked.pop(req_context.req_id, None)

    def take_events(self):
        if not self._events or self._cursor is None or self._store.cache is None:
            return
        try:
            events, self._cursor, _ = _core.events(self._store.cache, self._cursor)
        except (OSError, MemoryError):
            return
        for _, _, key, _, _, _, _, stored, tier in events:
            name = self._names.get(key)
            if name is not None and tier == _core.TIER_DISK:
                yield OffloadingEvent(keys=[name], medium=self.medium, removed=not stored, locality=self.locality)

    @classmethod
    def build_metric_definitions(cls, extra_config):
        return {name: OffloadingCounterMetadata(documentation=text) for name, text in COUNTERS.items()}

    def get_stats(self):
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
        counts = self._stats.take()
        if not counts:
            return None
        stats = OffloadingConnectorStats()
        for name, value in counts.items():
            stats.increase_counter(f"vllm:tenuto_tier_{name}", value)
        return stats

    def drain_jobs(self):
        """vLLM resets its caches, as it does when weights change, and says no more of it to a tier than this. Its region is free of transfers afterwards, and nothing
        that was computed before is found."""
        self._reset(os.urandom(16), True)

    def reset(self, revision):
        """The same, for who changes the weights of several engines: with one revision, of 16 bytes, they go on sharing what they compute. Waits for transfers under
        way, which are of the weights before."""
        self._reset(revision, False)

    def _reset(self, revision, drawn):
        self._drain()
        with self._lock:
            if self._drawn:
                self._left += self._spaces.values()
            self._left = drop(self._left)
            self._drawn, self._revision, self._spaces = drawn, revision, {}
            for asked in self._asked.values():
                asked.clear()

    def _drain(self):
        with self._idle:
            while self._jobs and self._thread.is_alive():
                self._idle.wait(0.1)

    def shutdown(self):
        if not self._stopped:
            self._drain()
            self._stopped = True
            self._queue.put((None, ()))
            self._thread.join()
        self._remote.clear()
        self._spaces, self._pool, self._memory, self._batches = {}, None, None, []
        self._store.close()

    # ---- the thread -------------------------------------------------------------------------------------------------

    def _run(self):
        while True:
            busy = bool(self._later or self._batches) or any(j.started for j in list(self._jobs.values()))
            try:
                call, args = self._queue.get(timeout=0.001 if busy else None)
                if call is None:
                    return
                call(*args)
            except queue.Empty:
                pass
            except Exception:
                logger.exception("tenuto: the tier's thread")
            for job in [j for j in list(self._jobs.values()) if j.started]:
                self._poll(job)
            batches, self._batches = self._batches, []
            for batch in batches:
                self._ask(batch)
            later, self._later = self._later, []
            for job in later:
                self._begin(job)

    def _gone(self, error):
        """No cache any more: all that is under way has failed."""
        with self._lock:
            jobs, self._later = list(self._jobs.values()), []
            batches, self._batches = self._batches, []
            self._generation, self._spaces, self._pool, self._memory = 0, {}, None, None
        for job in jobs:
            for part, _ in job.parts:
                self._end_part(part)
            job.failed = True
            self._over(job)
        self._remote.clear()
        for batch in batches:
            self._answer(batch.wanted, ())
        self._store.lost(error)

    @staticmethod
    def _end_part(part):
        while not part.ended:
            try:
                if isinstance(part, _core.Save):
                    part.abort()
                    part.end(1.0)
                elif not part.end(1.0):
                    return
            except _core.Timeout:
                continue
            except Exception:
                return

    def _found(self, keys):
        """Indices of the keys that are there. A look-up says how many blocks there are before the first that is missing: the next one begins behind that."""
        found = set()
        for space, packed, at in self._named(keys):
            i = 0
            while i < len(at):
                n = _core.match_all([space], packed[i * _core.KEY_BYTES:]).blocks
                found.update(at[i:i + n])
                i += n + 1
        return found

    def _asks_others(self):
        return self._store.remote and self._remote.timeout_s > 0

    def _look_up(self, requests):
        """Answers each request's [(key, Asked)], or asks a remote tier for what is missing."""
        every = [one for wanted in requests for one in wanted]
        found = self._found_of(every)
        for i in found:
            every[i][1].found = True
        for wanted in requests:
            missing = [(key, known) for key, known in wanted if known.found is None]
            if missing and self._asks_others():
                self._ask(Batch(missing, self._parts(missing)))
            else:
                self._answer(missing, ())

    def _parts(self, wanted):
        """Of a batch. What goes wrong is a miss."""
        try:
            return [(next(self._numbers), space, packed) for space, packed, _ in self._named([key for key, _ in wanted])] if self._open() else []
        except (*GONE, _core.Timeout) as e:
            self._gone(e)
        except Exception as e:
            logger.warning("tenuto: a look-up of %d chunks: %r", len(wanted), e)
        return []

    def _ask(self, batch):
        """Answers a batch when no remote tier has still to do so."""
        try:
            waits = [number for number, space, keys in batch.parts if self._remote.waits(number, (space,), keys)]
        except Exception:
            waits = []  # whatever it is, the look-up that follows finds it out, too
        if waits:
            self._batches.append(batch)
            return
        for number, _, _ in batch.parts:
            self._remote.forget(number)
        self._answer(batch.wanted, self._found_of(batch.wanted))

    def _found_of(self, wanted):
        """Indices of what is there of [(key, Asked)]: what goes wrong is a miss."""
        try:
            return self._found([key for key, _ in wanted]) if self._open() else ()
        except (*GONE, _core.Timeout) as e:
            self._gone(e)
        except Exception as e:
            logger.warning("tenuto: a look-up of %d chunks: %r", len(wanted), e)
        return ()

    @staticmethod
    def _answer(wanted, found):
        for i, (_, known) in enumerate(wanted):
            known.found = i in found

    def _touch(self, keys):
        try:
            if self._open():
                for space, packed, _ in self._named(keys):
                    _core.match_all([space], packed)
        except OSError as e:
            if isinstance(e, GONE):
                self._gone(e)

    def _begin(self, job):
        """Begins a job's transfers, or all that are still to be begun of it."""
        if job.id not in self._jobs:
            return
        if not self._open():
            job.failed = True
            self._over(job)
            return
        done = {i for _, at in job.parts for i in at}
        try:
            for space, packed, at in self._named(job.keys):
                todo = [i for i in range(len(at)) if at[i] not in done]
                if not todo:
                    continue
                keys = b"".join(packed[i * _core.KEY_BYTES:(i + 1) * _core.KEY_BYTES] for i in todo)
                rows = [job.rows[at[i]] for i in todo]
                part = (_core.Save(space, self._pool, keys, rows) if job.store else
                        _core.Load(space, self._pool, keys, rows, timeout=max(0.0, job.begun + self._timeout_s - now())))
                job.parts.append((part, [at[i] for i in todo]))
                if job.store:
                    for layer in range(self._geometry.layers):
                        part.layer(layer)
                    part.commit()
        except _core.Again:
            if now() < job.begun + (STORE_PATIENCE_S if job.store else self._timeout_s):
                self._later.append(job)
                return
            job.failed = True
            if job.store and not self._told:
                self._told = True
                logger.warning("tenuto: %d chunks were not stored: too much was under way for %g s. This is told once; vllm:tenuto_tier_refused_chunks counts all",
                               len(job.keys), STORE_PATIENCE_S)
        except GONE as e:
            self._gone(e)
            return
        except Exception as e:
            logger.warning("tenuto: %s of %d chunks: %r", "a store" if job.store else "a load", len(job.keys), e)
            job.failed = True
        job.started = True

    def _poll(self, job):
        if job.id not in self._jobs:
            return
        for part, at in job.parts:
            if part.ended:
                continue
            try:
                if job.store:
                    part.end(0.0)
                elif not self._load_over(job, part, at):
                    return
            except _core.Timeout:
                return
            except GONE as e:
                self._gone(e)
                return
            except Exception as e:
                logger.warning("tenuto: %s: %r", "a store" if job.store else "a load", e)
                self._end_part(part)
        if job.started:
            self._over(job)

    def _load_over(self, job, part, at):
        """Whether a load has ended. It ends at a chunk that is not good: in the time that is left, those behind it are another load."""
        good = part.poll()
        if good is None or part.end(0.0):
            return False
        job.good.update(at[:good])
        behind = at[good + 1:]
        if behind and now() < job.begun + self._timeout_s:
            del at[good + 1:]
            job.started = False
            self._later.append(job)
        return True

    def _over(self, job):
        if job.id not in self._jobs:
            return  # with the cache
        n = len(job.keys)
        if job.store:
            kept = 0
            for part, at in job.parts:
                r = part.result
                if r is not None:
                    kept += r.stored + r.existing + r.host_only
                    self._stats.add("stored_chunks", r.stored + r.host_only)
                    self._stats.add("existing_chunks", r.existing)
            self._stats.add("refused_chunks", n - min(kept, n))
            result = JobResult(job.id, kept >= n, None, now() - job.begun, kept * self._row_bytes)
        else:
            good = [job.keys[i] for i in sorted(job.good)]
            self._stats.add("loaded_chunks", len(good))
            self._stats.add("load_failed_chunks", n - len(good))
            if len(good) < n:
                self._forget([k for i, k in enumerate(job.keys) if i not in job.good])
            result = JobResult(job.id, len(good) == n, tuple(good) or None, now() - job.begun, len(good) * self._row_bytes)
        with self._idle:
            del self._jobs[job.id]
            self._finished.append(result)
            self._idle.notify_all()

    def _forget(self, keys):
        """A chunk that could not be loaded is not offered again to the requests that have asked for it."""
        with self._lock:
            for asked in self._asked.values():
                for key in keys:
                    if key in asked:
                        asked[key].found = False
