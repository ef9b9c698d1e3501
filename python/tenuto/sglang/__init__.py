# SPDX-License-Identifier: Apache-2.0
"""Tenuto under SGLang's HiCache: a dynamic storage backend.

    --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "tenuto", "module_path": "tenuto.sglang", "class_name": "TenutoStorage", "interface_v1": 1,
      "path": "/nvme/tenuto", "disk_bytes": "200GiB"}'

docs/engines.md says what the options are. With interface_v1 pages go between the disk and SGLang's host memory without a copy; without it SGLang copies each.
SGLang calls the backend in threads of its own (prefetch and backup), so calls here may wait. What does not work is a miss.

HiCache moves pages between the GPU and its host memory itself, and gives a storage backend pages of host memory alone. So no stream is waited for here, and memory
of a GPU is refused.
"""
import hashlib
import logging
import threading
import time

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolName, PoolTransferResult

from tenuto import _core
from tenuto._ask import ask
from tenuto.options import seconds_of, size_of
from tenuto.sglang.pages import pages_of
from tenuto.vllm.store import GONE, REMOTE_TIMEOUT_S, Config, Store, fingerprint

logger = logging.getLogger(__name__)

OPTIONS = ("load_timeout_s", "save_timeout_s", "stage_bytes", "remote_timeout_s")
#: What SGLang itself reads in the same dictionary.
SGLANGS = ("backend_name", "module_path", "class_name", "interface_v1", "prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token",
           "hicache_storage_pass_prefix_keys", "tp_lcm_size")
NAP_S = 0.002
BESIDE_S = 10.0  # most that a process waits for the one that owns the cache, when both start
COPIED = 16  # pages of a batch that SGLang copies
KEY = _core.KEY_BYTES
#: Of SGLang's configuration what decides, beside the model's name, what bytes of KV mean. Host memory of either fp8 is uint8.
MEANS = ("revision", "dtype", "kv_cache_dtype", "quantization", "quantization_param_path", "modelopt_quant", "json_model_override_args",
         "speculative_draft_model_path", "speculative_draft_model_revision")


def configured():
    """The values of MEANS that are in effect in this process; None where there is none."""
    def value(name):
        try:
            return get_context().config_leaf(name)
        except (AttributeError, ValueError):
            return None
    try:
        from sglang.srt.runtime_context import get_context
    except ImportError:
        return [None] * len(MEANS)
    return [value(name) for name in MEANS]


def _check_host(what, device):
    if str(device).split(":")[0] != "cpu":
        raise ValueError(f"tenuto: {what} on {device}: host memory is wanted. HiCache moves pages between the GPU and its host pool itself (--enable-hierarchical-cache), and "
                         "gives a storage backend the pages of that pool")


class _Pool:
    """A host pool of SGLang as this process's cache knows it: a space, and a pool over its memory."""

    def __init__(self, storage, host, name):
        self.storage, self.name = storage, str(name)
        _check_host(f"pool {self.name} lies", getattr(host, "device", "cpu"))
        self.page_size = getattr(host, "page_size", 1) or 1
        self.host = host
        npages = host.size // self.page_size
        if npages < 2:
            raise ValueError(f"tenuto: host pool {self.name} has {npages} pages")
        self.pages = pages_of(self._meta(0), self._meta(1), npages)
        self.cache, self.space, self.pool, self.copies = None, None, None, None

    def _meta(self, page):
        import torch
        try:
            return self.host.get_page_buffer_meta(torch.arange(page * self.page_size, (page + 1) * self.page_size))
        except ValueError as e:
            raise ValueError(f"tenuto: host pool {self.name}: {e}; start SGLang with --hicache-mem-layout page_first_direct") from None

    def open(self, cache):
        if self.cache is cache:
            return
        s, p = self.storage, self.pages
        kept = [str(self.host.dtype), str(getattr(getattr(self.host, "device_pool", None), "dtype", None))]
        self.close()
        memory = _core.Memory(cache, p.ranges, (), s.stage_bytes)
        self.pool = _core.Pool(memory, p.geometry, p.npages, p.base, p.strides)
        self.space = _core.Space(cache, s.model, p.geometry, tenant=s.settings.tenant,
                                 revision=f"{s.settings.revision}/{fingerprint([s.means, self.name, *kept, self.page_size, self.host.layout])}",
                                 kv_dtype=kept[0], hash_algorithm="sglang", tp_rank=s.rank, tp_size=s.ranks, pp_rank=s.pp_rank, pp_size=s.pp_size)
        self.cache = cache

    def close(self):
        self.cache, self.space, self.pool, self.copies = None, None, None, None

    def pages_at(self, indices):
        """Page numbers of the token indices of whole pages."""
        return [i // self.page_size for i in indices[::self.page_size].tolist()]

    def copied(self):
        """Memory for pages that SGLang hands over as values: flat, one after the other."""
        if self.copies is None:
            p = self.pages
            buffer = _core.Buffer(COPIED * p.page_bytes)
            view = memoryview(buffer).cast("B")
            memory = _core.Memory(self.cache, [(_core.View(buffer).pointer, COPIED * p.page_bytes)], (_core.View(buffer),))
            self.copies = view, _core.Pool(memory, p.geometry, COPIED, p.flat, [p.page_bytes] * len(p.strides))
        return self.copies


class TenutoStorage(HiCacheStorage):
    """See the module. storage_config: SGLang's HiCacheStorageConfig, whose extra_config has the options."""

    def __init__(self, storage_config, kwargs=None):
        given = {k: v for k, v in (storage_config.extra_config or {}).items() if k not in SGLANGS}
        c = storage_config
        self.model = c.model_name or ""
        self.means = [c.is_mla_model, c.should_split_heads, c.attn_cp_size, c.dcp_size, c.logical_page_size, configured()]
        # Latent attention is the same on all ranks: SGLang has one of them write it, and all read it.
        shared = c.is_mla_model and c.dcp_size == 1
        self.rank, self.ranks = (0, 1) if shared else (c.tp_rank, c.tp_size)
        if not shared and c.attn_cp_size > 1:
            self.means.append(c.attn_cp_rank)
        if c.dcp_size > 1:
            self.rank, self.ranks = c.dcp_rank, c.dcp_size
        self.pp_rank, self.pp_size = c.pp_rank, c.pp_size
        beside = given.get("path") and (c.tp_rank or c.pp_rank or c.attn_cp_rank or c.dp_rank)
        if beside:
            # The first process owns the cache and serves it; the others use it.
            paths = given["path"] if isinstance(given["path"], (list, tuple)) else [given["path"]]
            given = {k: v for k, v in given.items() if k in (*OPTIONS, "tenant", "revision", "retry_s", "instance", "token")} | {"store": paths[0]}
        self.settings = Config(given, OPTIONS)
        self.load_timeout_s = seconds_of(given.get("load_timeout_s", 10.0), "load_timeout_s")
        self.save_timeout_s = seconds_of(given.get("save_timeout_s", 30.0), "save_timeout_s")
        self.remote_timeout_s = seconds_of(given.get("remote_timeout_s", REMOTE_TIMEOUT_S), "remote_timeout_s")
        self.stage_bytes = size_of(given.get("stage_bytes", 0), "stage_bytes")
        self.store = Store(self.settings, f"sglang {self.settings.paths}", logger.info, logger.warning)
        until = time.monotonic() + BESIDE_S
        while beside and self.store.cache is None and time.monotonic() < until:
            time.sleep(NAP_S)  # the first process is starting, too
        self.registered_pools, self._pools, self._lock, self._told = {}, {}, threading.Lock(), set()

    # ---- pools ----

    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host
        self.register_mem_host_pool_v2(mem_pool_host, PoolName.KV)

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        self.registered_pools[host_pool_name] = host_pool
        self._pools[str(host_pool_name)] = _Pool(self, host_pool, host_pool_name)

    def _open(self, name):
        """The pool of that name, in the cache of now; None: there is none."""
        pool, cache = self._pools.get(str(name)), self.store.cache
        if pool is None or cache is None:
            return None
        with self._lock:
            try:
                pool.open(cache)
            except (OSError, MemoryError, ValueError) as e:
                pool.close()
                self._failed(e)
                return None
        return pool

    def _failed(self, error):
        """Of a call: the cache may be gone, or this is told once per kind."""
        if isinstance(error, GONE):
            self.store.lost(error)
        elif type(error) not in self._told:
            self._told.add(type(error))
            logger.warning("tenuto: %s", error)

    @staticmethod
    def _keys(pool, keys):
        def digest(key):
            try:
                raw = bytes.fromhex(key)
            except ValueError:
                raw = b""
            return raw if len(raw) == 32 else hashlib.sha256(key.encode()).digest()
        return pool.space.keys_from_hashes(b"".join(map(digest, keys)), 32)

    # ---- blocks ----

    def _patiently(self, seconds, call):
        """Others may have what a call needs: it is made again until then."""
        until = time.monotonic() + seconds
        while True:
            try:
                return call()
            except _core.Again:
                if time.monotonic() >= until:
                    raise
                time.sleep(NAP_S)

    def _match(self, name, keys, asks=True):
        """How many pages there are, from the first on. SGLang asks in its prefetch thread, so a remote tier may take its time (`asks`)."""
        pool = self._open(name)
        if pool is None or not keys:
            return 0
        try:
            packed = self._keys(pool, keys)
            found = pool.space.match(packed).blocks
            if asks and found < len(keys) and self.remote_timeout_s and self.store.remote:
                ask([pool.space], packed, self.remote_timeout_s)
                found = pool.space.match(packed).blocks
            return found
        except (OSError, MemoryError) as e:
            self._failed(e)
            return 0

    def _load(self, pool, c_pool, keys, pages):
        """How many of them are in place, from the first on."""
        try:
            load = self._patiently(self.load_timeout_s, lambda: _core.Load(pool.space, c_pool, self._keys(pool, keys), pages, timeout=self.load_timeout_s))
            return load.finish()
        except (OSError, MemoryError) as e:
            self._failed(e)
            return 0

    def _save(self, pool, c_pool, keys, pages, parent):
        """Which of them are kept, or need not be."""
        more = {"parent": self._keys(pool, [parent])} if parent else {}
        try:
            save = self._patiently(self.save_timeout_s, lambda: _core.Save(pool.space, c_pool, self._keys(pool, keys), pages, **more))
            save.finish()
            return [o not in (_core.SAVED_NOT, _core.SAVED_FAILED) for o in save.outcome]
        except (OSError, MemoryError) as e:
            self._failed(e)
            return [False] * len(keys)

    # ---- what SGLang calls ----

    def batch_exists(self, keys, extra_info=None):
        return self._match(PoolName.KV, keys)

    def batch_get_v1(self, keys, host_indices, extra_info=None):
        return self._get(PoolName.KV, keys, host_indices)

    def batch_set_v1(self, keys, host_indices, extra_info=None):
        return self._set(PoolName.KV, keys, host_indices, extra_info)

    def _get(self, name, keys, host_indices):
        pool = self._open(name)
        good = self._load(pool, pool.pool, keys, pool.pages_at(host_indices)) if pool and keys else 0
        return [True] * good + [False] * (len(keys) - good)

    def _set(self, name, keys, host_indices, extra_info, chained=True):
        """chained: a page is found only behind the one before it, so one whose beginning is not there is not stored."""
        pool = self._open(name)
        before = getattr(extra_info, "prefix_keys", None)
        if before is None and "prefix_keys" not in self._told:
            self._told.add("prefix_keys")
            logger.warning('tenuto: SGLang does not say which pages are before those that it saves, so pages are stored, too, that nobody can find; set '
                           '"hicache_storage_pass_prefix_keys": true in --hicache-storage-backend-extra-config')
        parent = before[-1] if before and chained else None
        return self._save(pool, pool.pool, keys, pool.pages_at(host_indices), parent) if pool and keys else [False] * len(keys)

    def batch_exists_v2(self, keys, pool_transfers=None, extra_info=None):
        """The longest prefix that all pools have, each as its policy wants it."""
        pages = self._match(PoolName.KV, keys)
        found, able = {PoolName.KV: pages} if pages else {}, set(range(1, pages + 1))
        for t in pool_transfers or []:
            if t.hit_policy == PoolHitPolicy.ALL_PAGES:
                there = self._match(t.name, keys[:pages])
                mine = set(range(1, there + 1))
            elif t.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                need = max(1, len(t.keys) if t.keys else 1)
                self._match(t.name, keys[max(0, pages - need):pages])  # a remote tier is asked once, for those that the longest prefix wants
                have = [self._match(t.name, [k], asks=False) == 1 for k in keys[:pages]]
                mine = {n for n in range(1, pages + 1) if all(have[max(0, n - need):n])}
                there = max(mine, default=0)
            else:
                logger.warning("tenuto: pool %s: hit policy %s is not known", t.name, t.hit_policy)
                there, mine = 0, set()
            if there:
                found[t.name] = there
            able &= mine
        return PoolTransferResult(max(able, default=0), found, sorted(able))

    def batch_get_v2(self, transfers, extra_info=None):
        return {t.name: self._get(t.name, t.keys or [], t.host_indices) for t in transfers}

    def batch_set_v2(self, transfers, extra_info=None):
        return {t.name: self._set(t.name, t.keys or [], t.host_indices, extra_info, getattr(t, "hit_policy", None) != PoolHitPolicy.TRAILING_PAGES)
                for t in transfers}

    # ---- pages as values, which SGLang copies ----

    def exists(self, key):
        return self._match(PoolName.KV, [key]) == 1

    def get(self, key, target_location=None, target_sizes=None):
        return self.batch_get([key], [target_location])[0]

    def batch_get(self, keys, target_locations=None, target_sizes=None):
        import torch
        for target in target_locations:
            _check_host("a page is wanted", getattr(target, "device", "cpu"))
        out, pool = [], self._open(PoolName.KV)
        for i in range(0, len(keys), COPIED) if pool else ():
            some = keys[i:i + COPIED]
            with self._lock:
                view, c_pool = pool.copied()
                good = self._load(pool, c_pool, some, range(len(some)))
                n = pool.pages.page_bytes
                for k, target in enumerate(target_locations[i:i + good]):
                    target.view(torch.uint8).flatten().copy_(torch.frombuffer(view[k * n:(k + 1) * n], dtype=torch.uint8))
                    out.append(target)
            if good < len(some):
                break
        return out + [None] * (len(keys) - len(out))

    def set(self, key, value=None, target_location=None, target_sizes=None):
        return self.batch_set([key], [value])

    def batch_set(self, keys, values=None, target_locations=None, target_sizes=None):
        import torch
        for value in values:
            _check_host("a page lies", getattr(value, "device", "cpu"))
        pool, done = self._open(PoolName.KV), []
        for i in range(0, len(keys), COPIED) if pool else ():
            some = keys[i:i + COPIED]
            with self._lock:
                view, c_pool = pool.copied()
                n = pool.pages.page_bytes
                for k, value in enumerate(values[i:i + len(some)]):
                    torch.frombuffer(view[k * n:(k + 1) * n], dtype=torch.uint8).copy_(value.contiguous().view(torch.uint8).flatten())
                done += self._save(pool, c_pool, some, range(len(some)), keys[i - 1] if i else None)
        return len(done) == len(keys) and all(done)

    # ---- the end ----

    def clear(self):
        """Drops what this model's pools have."""
        for name in list(self._pools):
            pool = self._open(name)
            if pool is None:
                continue
            try:
                pool.space.drop(timeout=self.save_timeout_s)
            except OSError as e:
                self._failed(e)

    def close(self):
        with self._lock:
            for pool in self._pools.values():
                pool.close()
        self.store.close()
