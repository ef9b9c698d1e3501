# SPDX-License-Identifier: Apache-2.0
"""Tenuto under LMCache: the class that a `native_plugin` L2 adapter is configured with.

    {"type": "native_plugin", "module_path": "tenuto.lmcache", "class_name": "TenutoConnector",
     "adapter_params": {"path": "/nvme/tenuto", "disk_bytes": "200GiB"}}

docs/engines.md says what the parameters are. The work is done in C by tenuto._core.ObjectClient; here it gets its cache, and another when the owner comes
back. Neither LMCache nor torch is needed to import this.
"""
import logging
import threading

from tenuto import _core
from tenuto.options import count_of, seconds_of, size_of
from tenuto.vllm.store import REMOTE_TIMEOUT_S, Config, Store

OPTIONS = ("load_timeout_s", "save_timeout_s", "remote_timeout_s", "stage_bytes", "threads")


def _logger():
    try:
        from lmcache.logging import init_logger
    except ImportError:
        return logging.getLogger(__name__)
    return init_logger(__name__)


class TenutoConnector:
    """What LMCache's NativeConnectorL2Adapter calls: event_fd, submit_batch_*, drain_completions, close.

    Keyword arguments are the adapter_params. ValueError for those that cannot work; an owner that is not there yet is waited for, and until then every
    look-up is a miss.
    """

    def __init__(self, **params):
        config = Config(params, extra=OPTIONS)
        log = _logger()
        self._client = client = _core.ObjectClient(
            tenant=config.tenant, revision=config.revision, load_timeout=seconds_of(params.get("load_timeout_s", 10.0), "load_timeout_s"),
            save_timeout=seconds_of(params.get("save_timeout_s", 30.0), "save_timeout_s"), stage_bytes=size_of(params.get("stage_bytes", 64 << 20), "stage_bytes"),
            threads=count_of(params.get("threads", 2), "threads", 1), remote_timeout=seconds_of(params.get("remote_timeout_s", REMOTE_TIMEOUT_S), "remote_timeout_s"))
        # The client's own methods: nothing stands between LMCache and C.
        self.event_fd, self.drain_completions = client.event_fd, client.drain_completions
        self.submit_batch_get, self.submit_batch_set = client.submit_batch_get, client.submit_batch_set
        self.submit_batch_exists, self.submit_batch_delete = client.submit_batch_exists, client.submit_batch_delete
        self.counts = client.counts
        self._stop, self._watch, self._bound = threading.Event(), None, 0
        try:
            self._store = Store(config, "lmcache", log.info, log.warning)
        except BaseException:
            client.close()
            raise
        self._bind()
        if not config.paths:
            self._watch = threading.Thread(target=self._keep, args=(config.retry_s,), name="tenuto-lmcache", daemon=True)
            self._watch.start()

    def _bind(self):
        cache, generation = self._store.cache, self._store.generation
        if cache is None or generation == self._bound:
            return
        try:
            self._client.bind(cache)
            self._bound = generation
        except (OSError, MemoryError) as e:
            self._store.lost(e)

    def _keep(self, retry_s):
        """The owner may go, and come back."""
        while not self._stop.wait(retry_s):
            if self._client.gone:
                self._client.unbind()
                self._store.lost("its owner has ended")
            self._bind()

    def close(self):
        """Gives up what is under way; the buffers are LMCache's again when it returns."""
        self._stop.set()
        if self._watch:
            self._watch.join()
        self._client.close()
        self._store.close()
