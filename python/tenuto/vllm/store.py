# SPDX-License-Identifier: Apache-2.0
"""The cache that an adapter uses: opened by it, or attached to, and attached to again when its owner comes back.

What does not work is no error of the engine: `Store.cache` is None while there is no cache, and the engine computes. Only a configuration that
cannot work raises, when the engine starts. Neither vLLM nor torch is imported here.
"""
import hashlib
import json
import os
import tempfile
import threading
import time

from tenuto import _core
from tenuto.options import count_of, flag_of, ms_of, seconds_of, size_of, text_of

#: What ends a use of a cache, and not only one call: the owner has gone, hangs, or the cache was closed.
GONE = (_core.OwnerGone, _core.Closed, _core.Forked)

#: How long saves are waited for where nobody needs their pages, and how often it is said that they still are where somebody does.
SAVE_PATIENCE_S = 10.0

#: How long a prompt waits at most for what a remote tier says of it. SeaweedFS on the same machine says in 0.35 s that it has 512 blocks.
REMOTE_TIMEOUT_S = 1.0

_CACHE_TEXTS = ("instance", "policy", "io_engine", "scheduler", "transfer", "remote", "offload", "cluster_secret_file")
_CACHE_NUMBERS = {**dict.fromkeys(("disk_bytes", "host_bytes", "write_bytes_per_day", "write_backlog_bytes", "header_cache_bytes"), size_of),
                  **dict.fromkeys(("max_blocks", "max_ops", "max_op_blocks", "io_depth", "executors", "workers", "transfer_streams"), count_of),
                  **dict.fromkeys(("offload_lag_ms", "durability_ms"), ms_of)}
_CACHE_FLAGS = ("verify", "read_only")
_COMMON = ("path", "socket", "store", "token", "serve", "events", "tenant", "revision", "retry_s")

#: Stores whose cache this process has opened, by the socket that they are served at: who runs beside the owner uses its cache, and not the socket.
_owned = {}


class Config:
    """What the engine's user has written, checked. `extra`: names that the adapter takes beside those of a cache."""

    def __init__(self, given, extra=()):
        given = dict(given)
        known = {*_COMMON, *_CACHE_TEXTS, *_CACHE_NUMBERS, *_CACHE_FLAGS, *extra}
        unknown = sorted(set(given) - known)
        if unknown:
            raise ValueError(f"tenuto: no such option: {', '.join(unknown)}. There are: {', '.join(sorted(known))}")
        paths = given.get("path")
        self.paths = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths or ())
        self.socket, self.store = given.get("socket"), given.get("store")
        if (bool(self.paths) + bool(self.socket) + bool(self.store)) != 1:
            raise ValueError('tenuto: exactly one of "path" (directories that this engine owns), "socket" (of tenutod, or of an engine that serves its '
                             'cache) and "store" (a directory whose owner serves it) is wanted')
        self.token = given.get("token")
        self.serve = given.get("serve")
        self.events = text_of(given.get("events", ""), "events")
        self.tenant = text_of(given.get("tenant", ""), "tenant")
        self.revision = text_of(given.get("revision", ""), "revision")
        self.retry_s = seconds_of(given.get("retry_s", 1.0), "retry_s")
        self.instance = given.get("instance") or "default"
        self.options = {n: text_of(given[n], n) for n in _CACHE_TEXTS if n in given}
        self.options.update({n: read(given[n], n) for n, read in _CACHE_NUMBERS.items() if n in given})
        self.options.update({n: flag_of(given[n], n) for n in _CACHE_FLAGS if n in given})
        if not self.paths and (self.options or self.events):
            wrong = sorted({*self.options, *(["events"] if self.events else [])} - {"instance"})
            if wrong:
                raise ValueError(f"tenuto: {', '.join(wrong)}: only the owner of a cache decides that; it is attached to here")
        self.given = given


def of_replica(config, parallel):
    """The same for one of several engines that vLLM starts with data_parallel_size: the first of a machine owns the cache of `path`, the others attach to it."""
    rank = parallel.data_parallel_rank_local
    if not config.paths or not (parallel.data_parallel_index if rank is None else rank):
        return config
    owners = {"path", "serve", "events", *_CACHE_TEXTS, *_CACHE_NUMBERS, *_CACHE_FLAGS} - {"instance"}
    given = {k: v for k, v in config.given.items() if k not in owners}
    return Config({**given, "store": config.paths[0]}, given)


def warn_of_seed(algorithm, warn):
    """Of block hashes that begin with another random number in each process."""
    if algorithm.startswith("xxhash") and not os.environ.get("PYTHONHASHSEED"):
        warn(f"tenuto: prefix_caching_hash_algo is {algorithm}, and PYTHONHASHSEED is not set: each engine hashes with a seed of its own, so nothing will be found after "
             "a restart, or by another engine. Set PYTHONHASHSEED to the same number for all, or use sha256")


def default_socket(name):
    """Where an engine serves the cache that it owns to its workers: a path of less than 107 bytes."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    if not base or not os.path.isdir(base):
        base = tempfile.gettempdir()
    return os.path.join(base, f"tenuto-{os.getpid()}-{hashlib.sha256(name.encode()).hexdigest()[:12]}.sock")


class Store:
    """A cache, now and after its owner has come back.

    `generation` changes whenever `cache` does: what was opened in the one before is gone. `warn` and `info` take a text. `remote`: whether there may be tiers that do not
    answer at once; of a cache of another process nobody knows.
    """

    def __init__(self, config, name="", info=None, warn=None):
        self.config, self.info, self.warn = config, info or (lambda text: None), warn or (lambda text: None)
        self.cache, self.generation, self.shared = None, 0, False
        self.socket, self.remote = config.socket, not config.paths or bool(config.options.get("remote"))
        self._lock, self._thread, self._stop = threading.Lock(), None, threading.Event()
        self._serving = None
        if config.paths:
            self._open(name)
        else:
            self._try_attach(first=True)

    def _open(self, name):
        c = self.config
        self.cache = _core.Cache(tuple(os.fsencode(p) for p in c.paths), log=lambda level, where, text: self.warn(f"tenuto: {text}"), **c.options)
        self.generation = 1
        self.socket = c.serve or default_socket(name)
        try:
            if c.events:
                _core.publish(self.cache, c.events)
            self.cache._serve(os.fsencode(self.socket), (), False)
        except BaseException:
            self.cache.close()
            raise
        _owned[self.socket] = self
        self.info(f"tenuto: {', '.join(map(str, c.paths))} is open, and served at {self.socket}")

    def _attach(self, timeout):
        c = self.config
        mine = _owned.get(c.socket)
        if mine is not None and mine.cache is not None:
            self.shared, self.remote = True, mine.remote
            return mine.cache
        if c.store:
            return _core.Cache._attach(os.fsencode(c.store), c.instance, c.token, timeout)
        return _core.Cache._attach(os.fsencode(c.socket), None, c.token, timeout)

    def _try_attach(self, first=False):
        try:
            cache = self._attach(5.0)
        except (OSError, MemoryError) as e:
            if first:
                self.warn(f"tenuto: no cache yet ({e}); the engine serves without it, and asks again every {self.config.retry_s} s")
                self._retry()
            return False
        with self._lock:
            if self._stop.is_set():
                if not self.shared:
                    cache.close()
                return True
            self.cache, self.generation = cache, self.generation + 1
        self.info(f"tenuto: attached to {self.config.socket or self.config.store}")
        return True

    def _retry(self):
        """Asks in a thread of its own until the owner is back."""
        def run():
            while not self._stop.wait(self.config.retry_s):
                if self._try_attach():
                    return

        if self._stop.is_set() or (self._thread and self._thread.is_alive()):
            return
        self._thread = threading.Thread(target=run, name="tenuto-attach", daemon=True)
        self._thread.start()

    def lost(self, error):
        """The cache is of no use any more: whoever noticed calls this, after ending what it had begun."""
        with self._lock:
            cache, self.cache = self.cache, None
        if cache is None:
            return
        self.warn(f"tenuto: the cache has gone ({str(error) or type(error).__name__}); the engine serves on without it")
        if not self.shared:
            threading.Thread(target=self._close_quietly, args=(cache,), name="tenuto-close", daemon=True).start()
        if not self.config.paths:
            self._retry()

    @staticmethod
    def _close_quietly(cache):
        try:
            cache.close()
        except OSError:
            pass

    def close(self):
        """Ends the retrying, and the cache if this process has it. Raises nothing."""
        self._stop.set()
        with self._lock:
            cache, self.cache = self.cache, None
        if cache is None or self.shared:
            return
        _owned.pop(self.socket, None)
        try:
            cache.close()
        except OSError as e:
            self.warn(f"tenuto: closing: {e}")


def fingerprint(values):
    """A short name for everything that decides what KV bytes mean."""
    text = json.dumps(values, sort_keys=True, default=str, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:24]


def drop(spaces):
    """Drops spaces that nobody looks in any more, which goes on without the caller. Returns those that still have loads or saves under way."""
    busy = []
    for space in spaces:
        try:
            space.drop(0)
        except _core.Busy:
            busy.append(space)
        except (OSError, MemoryError):
            pass  # it goes on, or cannot be: whoever needs the number of a space then takes that of the one used the longest ago
    return busy


class Stats:
    """Counters by name, taken and reset by whoever sends them on."""

    def __init__(self, warn=None):
        self._counts, self._lock, self._warn = {}, threading.Lock(), warn

    def add(self, name, value=1):
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + value

    def dropped(self, blocks):
        """Blocks that were not saved, though there was a cache: counted, and told once."""
        if not blocks:
            return
        self.add("save_dropped_blocks", blocks)
        warn, self._warn = self._warn, None
        if warn:
            warn(f"tenuto: {blocks} blocks were not saved: too much was under way until vLLM gave their pages away. This is told once; "
                 "vllm:tenuto_save_dropped_blocks counts all")

    def take(self):
        with self._lock:
            counts, self._counts = self._counts, {}
        return counts


def now():
    return time.monotonic()
