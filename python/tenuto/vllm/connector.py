# SPDX-License-Identifier: Apache-2.0
"""vLLM's KV connector on Tenuto: prefixes that another engine, or this one before its restart, has computed are loaded and not computed again.

    --kv-transfer-config '{"kv_connector": "TenutoConnector", "kv_connector_module_path": "tenuto.vllm.connector", "kv_role": "kv_both",
                           "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"path": "/nvme/tenuto", "disk_bytes": "200GiB"}}'

Options, beside those of tenuto.vllm.store.Config (path, socket or store; tenant, revision, ...):

load            "layerwise": the first layer is computed as soon as it is there (default with one group of layers); "async": a request waits for all of its
                load, while others are computed (the only way with several groups)
load_timeout_s  what has not arrived by then is computed again; 10
min_load_blocks shorter hits are computed; 1
max_ops         of an owned cache, if it is not given: as many as max_num_seqs requests can have under way
remote_timeout_s how long a request waits for what a remote tier has of it; 1; 0: nobody is asked
stage_bytes     most memory through which KV pages that the cache's owner cannot map are copied; 0: as much as the pages have, 1 GiB at most
save            false: load only
slack           "auto": Tenuto's scheduler is told how much each step computes, and learns how long each layer takes, also from what an earlier run has learned
                (tenuto.slack); the path of a slack-table file: from that; "off": it is told nothing
shares          "rank": each worker's blocks are its own; "canonical": workers of every tensor_parallel_size that divides most_tp save and load shares of the
                same blocks (docs/shares.md). All that is found is restored then, whatever plan says
most_tp         of canonical shares; 8
publish_tokens  true: token ids go to the cache with vLLM's block hashes, for who follows its published events. They are the prompts; false
plan            "auto": what is computed faster than it is restored is computed, as soon as that is known; "off": all that is found is restored

Written for vLLM 0.32, whose interface it is (KVConnectorBase_V1).
"""
import logging
import math
from dataclasses import dataclass

from vllm.distributed.kv_events import BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, KVConnectorTransferResults, SupportsHMA
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from tenuto import _core, slack
from tenuto.options import count_of, flag_of, seconds_of
from tenuto.shares import MOST_TP, Shares
from tenuto.vllm.names import Names
from tenuto.vllm.scheduler import Scheduler
from tenuto.vllm.store import REMOTE_TIMEOUT_S, Config, Store, fingerprint, of_replica, size_of, warn_of_seed
from tenuto.vllm.worker import Worker

logger = init_logger(__name__)

_OPTIONS = ("load", "load_timeout_s", "min_load_blocks", "stage_bytes", "save", "slack", "plan", "remote_timeout_s", "shares", "most_tp", "publish_tokens")
#: Statistics that the connector tells vLLM: by name what they count.
COUNTERS = {
    "queried_blocks": "blocks that requests asked the cache for",
    "hit_blocks": "blocks that were found, and that loads were begun for",
    "asked_requests": "requests that a remote tier was asked for",
    "late_requests": "requests for which it had not answered in time",
    "remote_blocks": "blocks of hit_blocks that came from a remote tier",
    "computed_blocks": "blocks that were found, but are faster to compute",
    "loads": "loads",
    "load_blocks": "blocks that were loaded and verified",
    "load_bytes": "bytes of these",
    "load_seconds": "time from the beginning of loads to their end",
    "load_failed_blocks": "blocks that were found, but had to be computed again",
    "failed_requests": "requests with such blocks",
    "save_stored_blocks": "blocks that were saved",
    "save_existing_blocks": "blocks that were there when they were to be saved",
    "save_host_only_blocks": "blocks that the policy keeps in host memory",
    "save_rejected_blocks": "blocks that the policy did not admit",
    "save_failed_blocks": "blocks that could not be saved",
    "save_dropped_blocks": "blocks that were not saved, because there was no cache or too much was under way",
}


@dataclass
class ModelGroup:
    index: int
    layers: tuple
    block_tokens: int
    latent: bool
    rule: int
    window: int
    heads: int  # in a page of a worker, where blocks are stored by head group; else 0


class Model:
    """What decides where the model's KV belongs: identity, groups of layers, this process's share. The same in all processes of an engine."""

    def __init__(self, vllm_config, kv_cache_config, config):
        self.vllm_config, self.config = vllm_config, config
        parallel = vllm_config.parallel_config
        if parallel.pipeline_parallel_size > 1:
            raise NotImplementedError(f"tenuto: pipeline_parallel_size is {parallel.pipeline_parallel_size}: the connector does not know yet how to store blocks "
                                      "whose layers lie in several stages. Use pipeline_parallel_size 1, and tensor_parallel_size for more devices")
        self.canonical, self.most_tp = _canonical(config), count_of(config.given.get("most_tp", MOST_TP), "most_tp", 1)
        self.groups = [self._group(i, kv_cache_config.kv_cache_groups[i], self.canonical) for i in kv_cache_config.prefix_cacheable_group_ids]
        if not self.groups or {g.block_tokens for g in self.groups} != {self.groups[0].block_tokens}:
            sizes = [g.block_tokens for g in self.groups]
            raise NotImplementedError(f"tenuto: groups of layers whose blocks have different numbers of tokens ({sizes}) cannot be looked up together")
        if any(g.latent for g in self.groups) and not (vllm_config.cache_config.enable_prefix_caching or vllm_config.scheduler_config.enable_chunked_prefill):
            raise NotImplementedError("tenuto: prefix caching and chunked prefill are off for this model's latent attention (MLA). vLLM turns both off where its "
                                      "kernels give other tokens for a prompt that continues a prefix, as on CPUs without AMX; so nothing may be restored there")
        self.block_tokens, self.blocks = self.groups[0].block_tokens, kv_cache_config.num_blocks
        if kv_cache_config.hash_block_size not in (None, self.block_tokens):
            raise NotImplementedError(f"tenuto: vLLM hashes {kv_cache_config.hash_block_size} tokens at a time, its blocks have {self.block_tokens}")
        copies = max(1, getattr(kv_cache_config, "kv_tp_replicas", 1))
        tp = parallel.tensor_parallel_size
        if self.canonical:
            self.kv_heads = vllm_config.model_config.get_total_num_kv_heads()
            copies = max(1, tp // self.kv_heads)
            for g in self.groups:
                if g.heads:  # an error at the start, if they cannot be shared
                    _core.HeadGroups(_core.Geometry(1, [(_core.PLANE_K, g.heads, 8, 8)], g.block_tokens, 1), max(1, tp // copies), 0, self.kv_heads, self.most_tp)
        if all(g.latent for g in self.groups):
            copies = tp
        rank = getattr(parallel, "rank", 0) % tp
        self.share, self.shares = rank // copies, max(1, tp // copies)
        self.saves = rank % copies == 0
        self.microbatched = bool(getattr(parallel, "use_ubatching", False))  # each of a step's microbatches has a part of a layer
        self.revised = bool(config.revision)
        self.writes = flag_of(config.given.get("save", True), "save")
        self.min_blocks = count_of(config.given.get("min_load_blocks", 1), "min_load_blocks", 1)
        self.layout = kv_cache_config.kv_cache_layout
        self.slack, self.plans = slack.Setting(config.given.get("slack", "auto")), _plans(config) and not self.canonical
        self.names = Names(self.block_tokens, flag_of(config.given.get("publish_tokens", False), "publish_tokens"))
        self.timed = self._timed()
        events = vllm_config.kv_events_config
        self.events = bool(events and events.enable_kv_cache_events)
        self.means = self._means()

    @staticmethod
    def _group(index, group, canonical):
        spec, kind = group.kv_cache_spec, type(group.kv_cache_spec).__name__
        window = getattr(spec, "sliding_window", None) or 0
        if "Mamba" in kind or "CrossAttention" in kind or "ChunkedLocal" in kind or "CircularBuffer" in kind:
            raise NotImplementedError(f"tenuto: group {index} ({kind}): only full, sliding-window and latent attention can be stored")
        rule = _core.MATCH_WINDOW if window and "SlidingWindow" in kind else _core.MATCH_PREFIX
        return ModelGroup(index, tuple(group.layer_names), spec.block_size, "MLA" in kind, rule, window if rule == _core.MATCH_WINDOW else 0,
                          spec.num_heads if canonical and "MLA" not in kind else 0)

    def _means(self):
        """Of everything beside tokens and weights' name that decides what the bytes of a block are."""
        model, cache = self.vllm_config.model_config, self.vllm_config.cache_config
        text = model.hf_text_config
        return fingerprint({
            "dtype": str(model.dtype), "cache_dtype": str(cache.cache_dtype), "quantization": str(model.quantization), "layout": str(self.layout),
            "rope": [getattr(text, n, None) for n in ("rope_parameters", "rope_theta", "rope_scaling", "partial_rotary_factor")],
            "architecture": list(getattr(model.hf_config, "architectures", None) or ()), "layers": [g.layers for g in self.groups],
            "block": self.block_tokens, "shares": "canonical" if self.canonical else self.shares, "pp": 1, "attention": str(getattr(self.vllm_config, "attention_config", "")),
        })

    def _timed(self):
        """Of everything beside the machine that decides how long a layer computes."""
        model, parallel = self.vllm_config.model_config, self.vllm_config.parallel_config
        more = f"{model.quantization or ''} {self.vllm_config.cache_config.cache_dtype} {'eager' if model.enforce_eager else ''}"
        return slack.fingerprint("vllm", model.model, str(model.dtype), len(self.groups[0].layers), revision=model.revision or "", tp_size=parallel.tensor_parallel_size,
                                 more=more.strip())

    def space(self, cache, group, share, geometry, means, reset_revision):
        """The space of a share of a group's blocks."""
        model, cache_config = self.vllm_config.model_config, self.vllm_config.cache_config
        g = next(g for g in self.groups if g.index == group)
        make = (lambda *what, **more: Shares(*what, kv_heads=self.kv_heads, most_tp=self.most_tp, **more)) if self.canonical else _core.Space
        return make(cache, model.model, geometry, tenant=self.config.tenant, revision=f"{model.revision or ''}/{self.config.revision}/{means}",
                    kv_dtype=f"{cache_config.cache_dtype}", hash_algorithm=f"vllm:{cache_config.prefix_caching_hash_algo}", tp_rank=share,
                    tp_size=self.shares, group=group, match_rule=g.rule, window_tokens=g.window, reset_revision=reset_revision)

    def parts(self):
        """Operations of a load or save of a request, at most."""
        return len(self.groups) * (math.gcd(self.kv_heads, self.most_tp) if self.canonical else 1)


def _canonical(config):
    value = config.given.get("shares", "rank")
    if value not in ("rank", "canonical"):
        raise ValueError(f'tenuto: shares: "rank" or "canonical" is wanted, not {value!r}')
    return value == "canonical"


def _plans(config):
    value = config.given.get("plan", "auto")
    if value not in ("auto", "off"):
        raise ValueError(f'tenuto: plan: "auto" or "off" is wanted, not {value!r}')
    return value == "auto"


def _log_as_vllm():
    """Tenuto's own lines go where vLLM's go, unless they have a place of their own."""
    ours, theirs = logging.getLogger("tenuto"), logging.getLogger("vllm")
    if not ours.handlers and ours.level == logging.NOTSET:
        ours.handlers, ours.propagate = list(theirs.handlers), theirs.propagate
        ours.setLevel(theirs.level)


class TenutoConnector(KVConnectorBase_V1, SupportsHMA):
    """Loads prefixes from Tenuto, and saves what is computed. See the module."""

    worker_class = Worker

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        transfer = self._kv_transfer_config
        config = of_replica(Config(transfer.kv_connector_extra_config or {}, _OPTIONS), vllm_config.parallel_config)
        if getattr(transfer, "kv_load_failure_policy", "recompute") != "recompute":
            raise ValueError('tenuto: set "kv_load_failure_policy": "recompute" in the KV transfer configuration; without it vLLM answers nothing to a request '
                             "of which a block could not be loaded")
        _log_as_vllm()
        self._model = Model(vllm_config, kv_cache_config, config)
        mode = config.given.get("load") or ("layerwise" if len(self._model.groups) == 1 else "async")
        if mode not in ("layerwise", "async"):
            raise ValueError(f'tenuto: load: "layerwise" or "async" is wanted, not {mode!r}')
        if mode == "layerwise" and len(self._model.groups) > 1:
            raise ValueError('tenuto: load: a model with several groups of layers needs "async": vLLM cannot be told of single blocks of it that failed')
        self._layerwise = mode == "layerwise"
        self._name = transfer.engine_id or "vllm"
        self._scheduler, self._worker = None, None
        if role == KVConnectorRole.SCHEDULER:
            if config.paths:  # a request has a load and a save of each group at most, and its last save may still be under way when others begin
                config.options.setdefault("max_ops", min(4096, max(64, 4 * vllm_config.scheduler_config.max_num_seqs * self._model.parts())))
            warn_of_seed(vllm_config.cache_config.prefix_caching_hash_algo, logger.warning)
            self._scheduler = Scheduler(self._model, Store(config, self._name, logger.info, logger.warning), self._layerwise, logger.warning,
                                        seconds_of(config.given.get("remote_timeout_s", REMOTE_TIMEOUT_S), "remote_timeout_s"))
        else:
            self._worker = self._make_worker(config)

    def _make_worker(self, config):
        def connect(socket):
            given = {k: v for k, v in config.given.items() if k in ("token", "tenant", "revision", "retry_s", "store", "instance") and not config.paths}
            if not config.store:
                given["socket"] = config.socket or socket
            return Store(Config(given), self._name, logger.info, logger.warning)

        return self.worker_class(self._model, connect, seconds_of(config.given.get("load_timeout_s", 10.0), "load_timeout_s"), size_of(config.given.get("stage_bytes", 0), "stage_bytes"),
                                 logger.warning, self._model.slack.value != "off")

    @property
    def requires_kv_delivery(self):
        return False  # what is not saved is computed again

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config):
        return extra_config.get("load") != "async"

    # ---- worker -----------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches):
        self._worker.register(kv_caches)

    def get_handshake_metadata(self):
        return self._worker.hello() if self._worker else None

    def handle_preemptions(self, kv_connector_metadata):
        pass  # the step names the saves whose pages are wanted: bind_connector_metadata, which comes next, waits for them

    def bind_connector_metadata(self, connector_metadata):
        super().bind_connector_metadata(connector_metadata)
        self._worker.bind(connector_metadata)

    def start_load_kv(self, forward_context, **kwargs):
        self._worker.start_loads()

    def wait_for_layer_load(self, layer_name):
        self._worker.wait_layer(layer_name)

    def save_kv_layer(self, layer_name, kv_layer, attn_metadata, **kwargs):
        self._worker.save_layer(layer_name)

    def wait_for_save(self):
        self._worker.end_step()

    def get_transfer_results(self, finished_req_ids):
        received, failed = self._worker.finished()
        if len(self._model.groups) == 1:
            failed = set()  # told block by block
        return KVConnectorTransferResults(finished_sending=set(), finished_recving=received, failed_recving=failed)

    def get_finished(self, finished_req_ids):
        results = self.get_transfer_results(finished_req_ids)
        return results.finished_sending or None, results.finished_recving or None

    def get_block_ids_with_load_errors(self):
        invalid = self._worker.take_invalid()
        return invalid if len(self._model.groups) == 1 else set()

    def build_connector_worker_meta(self):
        return self._worker.take_done() if self._worker else None

    # ---- scheduler --------------------------------------------------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(self, metadata):
        self._scheduler.meet(metadata)

    def set_xfer_handshake_metadata(self, metadata):
        self._scheduler.meet({(0, rank): hello for rank, hello in metadata.items()})

    def on_new_request(self, request):
        self._scheduler.track(request)

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        return self._scheduler.matched(request, num_computed_tokens)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output):
        return self._scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output):
        self._scheduler.answered(connector_output)

    def request_finished(self, request, block_ids):
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(self, request, block_ids):
        self._scheduler.finished(request, block_ids)
        return False, None

    def has_pending_push_work(self):
        return self._scheduler.busy()

    def take_events(self):
        medium = {_core.TIER_HOST: "CPU", _core.TIER_DISK: "STORAGE"}
        for stored, tier, (digest, parent, request, i) in self._scheduler.events.take():
            parent = maybe_convert_block_hash(parent) if parent is not None else None
            digest = maybe_convert_block_hash(digest)  # the names that vLLM's own events have
            if not stored:
                yield BlockRemoved(block_hashes=[digest], medium=medium.get(tier))
                continue
            size = self._model.block_tokens
            yield BlockStored(block_hashes=[digest], parent_block_hash=parent, token_ids=list(request.all_token_ids[i * size:(i + 1) * size]), block_size=size,
                              lora_id=request.lora_request.adapter_id if request.lora_request else None, medium=medium.get(tier),
                              lora_name=request.lora_request.name if request.lora_request else None)

    def reset_cache(self):
        """vLLM's weights have changed: nothing that was computed with the old ones may be found."""
        self._scheduler.reset()
        return True

    def reset(self, revision):
        """The same, for who changes the weights of several engines: with one revision, of 16 bytes, they go on sharing what they compute. To be called in the
        scheduler's process, between steps."""
        self._scheduler.reset(revision)
        return True

    # ---- both -------------------------------------------------------------------------------------------------------

    def shutdown(self):
        if self._worker:
            self._worker.shutdown()
        if self._scheduler:
            self._scheduler.shutdown()

    def get_kv_connector_stats(self):
        counts = (self._worker or self._scheduler).stats.take()
        return TenutoStats(data=counts) if counts else None

    @classmethod
    def build_kv_connector_stats(cls, data=None):
        return TenutoStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(cls, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        return TenutoMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)


@dataclass
class TenutoStats(KVConnectorStats):
    """Counts of an interval, by the names of COUNTERS."""

    def reset(self):
        self.data = {}

    def aggregate(self, other):
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self):
        out = {f"Tenuto {name}": round(value, 3) for name, value in self.data.items()}
        if self.data.get("load_seconds"):
            out["Tenuto load MB/s"] = round(self.data.get("load_bytes", 0) / self.data["load_seconds"] / 1e6, 1)
        return out

    def is_empty(self):
        return not any(self.data.values())


class TenutoMetrics(KVConnectorPromMetrics):
    """The same counts for Prometheus: vllm:tenuto_NAME."""

    def __init__(self, vllm_config, metric_types, labelnames, per_engine_labelvalues):
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {}
        for name, text in COUNTERS.items():
            counter = self._counter_cls(name=f"vllm:tenuto_{name}", documentation=f"Tenuto: {text}.", labelnames=labelnames)
            for engine, values in per_engine_labelvalues.items():
                self._counters[engine, name] = counter.labels(*values)

    def observe(self, transfer_stats_data, engine_idx=0):
        for name, value in transfer_stats_data.items():
            counter = self._counters.get((engine_idx, name))
            if counter is not None and value:
                counter.inc(value)
