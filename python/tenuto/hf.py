# SPDX-License-Identifier: Apache-2.0
"""Prompt prefixes of Hugging Face transformers, kept across processes.

    store = tenuto.hf.Prefixes(cache, model.config, "my-model", dtype=torch.bfloat16)
    kv, n = store.prefill(model, ids)                    # ids: [1, tokens]; the first n tokens were restored, all else computed and saved
    out = model.generate(ids, past_key_values=kv, ...)   # generate computes what kv lacks: at least the last token

A prefix is restored and saved in whole blocks, layer by layer: attention of the first layers runs while the others still come (Prefixes.restore), and a layer is
on its way to the cache as soon as it was computed (Prefixes.saving). Layers with full attention and one sequence at a time; any number of KV heads, float32,
float16 or bfloat16. The identity of a prefix is the model's name, revision, dtype and rotary settings: name each set of weights by a name of its own.

What tokens do not say goes into `extra`: bytes that name the images or the sound of a prompt, the LoRA adapter, a soft prompt. Prefixes with other bytes never
match. What cannot be restored by tokens and extra raises ValueError, when Prefixes is made or with the prompt.

The keys and values of a prompt whose ids lie on a GPU are restored into its memory and saved from there, in the order of torch's current stream. That stream waits for
the layers of a prefix, and tells the cache which layers it has computed; the host waits once, at the last layer of the prefix, for the outcome of the load. Blocks
on their way lie in GPU memory, as much as the longest prompt needs; it is kept until close. Without a driver for the GPU they go by way of host memory, and a
warning says so.
"""
from __future__ import annotations

import inspect
import json
import logging
import time
import weakref
from typing import Any, NamedTuple

try:
    import torch
    from transformers.cache_utils import Cache, DynamicLayer
except ImportError as e:
    raise ImportError(f'tenuto.hf needs torch and transformers ({e}): pip install .[hf]', name=e.name, path=e.path) from e

import tenuto
from tenuto._answer import Answer
from tenuto._ask import ask, fetch, near
from tenuto._streams import Streams
from tenuto.options import seconds_of
from tenuto.shares import MOST_TP, Shares
from tenuto.slack import Probe, Setting, fingerprint

MODAL = ('image', 'video', 'audio', 'speech', 'vision')
CPU = torch.device('cpu')
_log = logging.getLogger('tenuto')
NAMES = {torch.float32: 'fp32', torch.float16: 'fp16', torch.bfloat16: 'bf16'}


class Shorter(Exception):
    """Blocks of a prefix that was being restored could not be loaded. good: tokens that can be; begin again with so many."""

    def __init__(self, good: int) -> None:
        super().__init__(f'only {good} tokens can be restored')
        self.good = good


def rope_settings(config: Any) -> dict[str, Any]:
    return getattr(config, 'rope_parameters', None) or {k: getattr(config, k, None) for k in ('rope_theta', 'rope_scaling')}


def rotary_of(config: Any) -> str:
    """The rotary settings of a configuration, as text that is the same in every process."""
    return json.dumps(rope_settings(config), sort_keys=True, default=str)


class Rope:
    """Up to how many tokens the keys of a prompt depend on its tokens alone.

    long: LongRoPE: a forward pass that ends behind so many tokens has other factors, for all of its tokens. most: dynamic NTK: from so many tokens on keys
    depend on what the model has computed before.
    """

    def __init__(self, config: Any) -> None:
        self.long: int | None = None
        self.most: int | None = None
        settings = rope_settings(config)
        for one in [settings, *settings.values()]:  # some models have settings for each kind of layers
            if not isinstance(one, dict):
                continue
            kind = str(one.get('rope_type') or one.get('type') or '')
            if kind in ('longrope', 'su'):
                self.long = one.get('original_max_position_embeddings') or getattr(config, 'original_max_position_embeddings', None)
                self.long = self.long or config.max_position_embeddings
            elif 'dynamic' in kind:
                self.most = config.max_position_embeddings

    def is_long(self, tokens: int) -> bool:
        return self.long is not None and tokens > self.long


def layers_of(config: Any) -> int:
    """How many layers keep keys and values of their own. Raises ValueError for those that tokens do not name."""
    kinds = getattr(config, 'layer_types', None) or getattr(config, 'layers_block_type', None)
    if kinds is None:
        limits = {'sliding_attention': 'sliding_window', 'chunked_attention': 'attention_chunk_size'}
        kinds = [kind for kind, name in limits.items() if getattr(config, name, None) is not None] or ['full_attention']
    if not set(kinds) <= {'full_attention', 'attention'}:
        raise ValueError(f'layers of the kinds {sorted(set(kinds))}: only full attention can be restored by prefix')
    for name, why in (('kv_lora_rank', 'keys and values of latent attention (MLA) have other shapes; the adapters of vLLM and SGLang keep them'),
                      ('cross_attention_layers', 'cross attention depends on what is no token of the prompt'),
                      ('is_encoder_decoder', 'only decoders can be restored by prefix'),
                      ('use_bidirectional_attention', 'keys depend on tokens behind them')):
        if getattr(config, name, None):
            raise ValueError(f'{name} is {getattr(config, name)!r}: {why}')
    return int(config.num_hidden_layers - (getattr(config, 'num_kv_shared_layers', None) or 0))


def configs_of(config: Any) -> list[Any]:
    """A configuration, and those within it: of text, images and sound."""
    return [config, *(c for value in vars(config).values() if hasattr(value, 'model_type') for c in configs_of(value))]


def placeholders(config: Any) -> dict[int, str]:
    """Token ids that stand for images, sound or video, with the names that the configuration has for them."""
    return {value: name for c in configs_of(config) for name, value in vars(c).items()
            if type(value) is int and any(kind in name for kind in MODAL) and name.endswith(('token_id', 'token_index'))}


def past(model: Any, kv: Cache) -> dict[str, Cache]:
    """The argument that gives a cache to model(...): transformers has renamed it."""
    return {'cache' if 'cache' in inspect.signature(model.forward).parameters else 'past_key_values': kv}


class Prefixes:
    """The prefixes of one model in a cache.

    cache: of tenuto. config: the model's; name, revision: of its weights. dtype: of keys and values. page_tokens, pages_per_block: what is saved and
    restored is a multiple of their product, 256 tokens by default. tp_rank, tp_size: this process has so many-th share of the KV heads. shares: "rank": each rank
    has blocks of its own; "canonical": ranks of every TP size that divides most_tp save and restore shares of the same blocks (docs/shares.md), and a prefix
    is found once all of its shares are there; all that is found is restored then, whatever plan says. plan: "auto": where the
    compute times and the disk's speed are known, no more of a prefix is restored than comes sooner than it is computed; "off": all of it is. slack: where the
    compute times are kept between runs: "auto", "off" or a file, as tenuto.slack.Setting. They are of a model on CPUs; one thread at a time uses an object.
    remote_timeout: for so many seconds at most restore and prefill wait for what a remote tier has of a prompt, and on a GPU once more until that is in host
    memory; 0: nobody is asked.

    All calls with a prompt take extra, and attention_mask: that of the model's call, if there is one. They raise ValueError for several sequences, for
    padding, for placeholders of images or sound without extra, and for prompts whose keys depend on more than their tokens (dynamic RoPE).
    Raises ValueError for models with layers that are not plain full attention.
    """

    def __init__(self, cache: tenuto.Cache, config: Any, name: str, *, revision: str = '', dtype: torch.dtype = torch.float32, page_tokens: int = 16,
                 pages_per_block: int = 16, tenant: str = '', tp_rank: int = 0, tp_size: int = 1, shares: str = 'rank', most_tp: int = MOST_TP,
                 plan: str = 'auto', slack: Any = 'auto', remote_timeout: float = 1.0) -> None:
        whole, config = config, config.get_text_config(decoder=True) if hasattr(config, 'get_text_config') else config
        if getattr(whole, 'model_type', None) == 'paligemma':
            raise ValueError('paligemma attends to its whole prompt from each token: keys depend on tokens behind them')
        self.layers, self._rope, self._placeholders = layers_of(config), Rope(config), placeholders(whole)
        self._modal = sorted(name for c in configs_of(whole) for name, value in vars(c).items()
                             if name in [f'{kind}_config' for kind in MODAL] and value is not None)
        if plan not in ('auto', 'off'):
            raise ValueError(f'plan: {plan!r}: auto or off')
        if shares not in ('rank', 'canonical'):
            raise ValueError(f'shares: {shares!r}: rank or canonical')
        if dtype not in NAMES:
            raise ValueError(f'keys and values of {dtype}: {", ".join(map(str, NAMES))} can be kept')
        heads = getattr(config, 'num_key_value_heads', None) or getattr(config, 'num_attention_heads', None)
        if not heads:
            raise ValueError(f'{type(config).__name__} has no num_attention_heads: only models with attention can be restored by prefix')
        if heads % tp_size and (shares == 'rank' or tp_size % heads):
            raise ValueError(f'{heads} KV heads cannot be divided among {tp_size}')
        self.cache, self.dtype, self.tp_rank, self.tp_size = cache, dtype, tp_rank, tp_size
        self.heads = max(1, heads // tp_size)
        self._canonical = {'kv_heads': heads, 'most_tp': most_tp} if shares == 'canonical' else None
        self.head_dim = getattr(config, 'head_dim', None) or config.hidden_size // config.num_attention_heads
        self._config, self._name = config, name
        self._identity = {'revision': revision, 'kv_dtype': NAMES[dtype], 'rotary': rotary_of(config), 'tenant': tenant}
        self._pages = (page_tokens, pages_per_block)
        self.geometry = self._geometry(self.heads)
        self.space = self._space(tp_rank, tp_size)
        self._long_space = self._space(tp_rank, tp_size, True) if self._rope.long else self.space
        self.block_tokens = self.geometry.block_tokens
        self.plan, self._slack, self._probe, self._remote_timeout = plan, Setting(slack), Probe(), seconds_of(remote_timeout, 'remote_timeout')
        self._loadings: weakref.WeakSet[Loading] = weakref.WeakSet()  # under way; one that nobody has any more does not count
        self._kept: list[tuple[Pages, weakref.ref[Stage]]] = []  # pages on GPUs, and who has them or had them last
        self._streams: dict[torch.device, Streams] = {}
        self._without: set[torch.device] = set()  # GPUs that no driver reaches
        more = f'{getattr(config, "_attn_implementation", None) or "attention"} {torch.get_num_threads()}threads'
        self._tables = {self.space: self._fingerprint(more)} | ({self._long_space: self._fingerprint(f'{more} long')} if self._rope.long else {})
        for space, name in self._tables.items():
            self._slack.restore(space, name)

    def __enter__(self) -> Prefixes:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def close(self) -> None:
        """Keep the compute times that were learned, for the next start; while the object is used that is done every minute. Before the cache is closed."""
        self._keep(closing=True)
        for streams in self._streams.values():
            streams.close()
        self._kept.clear()

    def _keep(self, closing: bool = False) -> None:
        for space, name in self._tables.items():
            self._slack.keep(space, name, closing)

    def _fingerprint(self, more: str) -> str:
        return fingerprint('transformers', self._name, str(self.dtype), self.layers, revision=self._identity['revision'], tp_size=self.tp_size, more=more)

    def _geometry(self, heads: int) -> tenuto.Geometry:
        planes = tenuto.kv_planes(heads, self.head_dim, 8 * self.dtype.itemsize)
        return tenuto.Geometry(self.layers, planes, *self._pages, page_order=tenuto.HND)

    def _space(self, rank: int, size: int, long: bool = False) -> tenuto.Space | Shares:
        identity = {**self._identity, 'rotary': self._identity['rotary'] + ' long'} if long else self._identity
        if self._canonical:
            return self.cache.shares(self._name, self.geometry, tp_rank=rank, tp_size=size, **self._canonical, **identity)
        heads = self.heads * self.tp_size // size
        return self.cache.space(self._name, self._geometry(heads), tp_rank=rank, tp_size=size, **identity)

    def space_of(self, tokens: int) -> tenuto.Space | Shares:
        """Where the blocks of a prompt of so many tokens are: with LongRoPE long prompts have keys of their own."""
        return self._long_space if self._rope.is_long(tokens) else self.space

    def keys(self, ids: torch.Tensor, *, extra: bytes = b'', attention_mask: torch.Tensor | None = None) -> bytes:
        """Packed keys of a prompt's whole blocks. ids: [1, tokens] or [tokens]."""
        if ids.dim() == 2 and ids.shape[0] != 1:
            raise ValueError(f'ids of shape {tuple(ids.shape)}: one sequence at a time')
        tokens = ids.reshape(-1).to('cpu', torch.int64).contiguous()
        if self._rope.most is not None and len(tokens) >= self._rope.most:
            raise ValueError(f'a prompt of {len(tokens)} tokens: with dynamic RoPE keys depend on earlier prompts from max_position_embeddings on '
                             f'({self._rope.most}); compute it without a cache')
        self._check_padding(tokens, attention_mask)
        if not extra:
            self._check_placeholders(tokens)
        return self.space.keys(tokens, extra)

    def _check_padding(self, tokens: torch.Tensor, attention_mask: torch.Tensor | None) -> None:
        """Whether each token counts. Without a mask tokens that pad are told by their id, unless a prompt may begin or end with it."""
        if attention_mask is not None:
            if not bool(attention_mask.all()):
                raise ValueError('attention_mask has zeros: padding moves the tokens behind it. Cut the padding off, and give the prompt alone')
            return
        pad, bos, eos = (getattr(self._config, name, None) for name in ('pad_token_id', 'bos_token_id', 'eos_token_id'))
        if not isinstance(pad, int) or not len(tokens):
            return
        special = pad == bos or pad == eos or (isinstance(eos, (list, tuple)) and pad in eos)
        if bool((tokens[:2] == pad).all() if special else tokens[0] == pad) or (not special and bool(tokens[-1] == pad)):
            raise ValueError(f'ids begin or end with pad_token_id ({pad}): cut the padding off, and give the prompt alone; or give attention_mask, '
                             'if these tokens count')

    def _check_placeholders(self, tokens: torch.Tensor) -> None:
        if self._modal and not self._placeholders:
            raise ValueError(f'the model has {" and ".join(self._modal)}, and its configuration does not say which tokens stand for what they see: give '
                             'extra, bytes that name it, such as a hash')
        for token in torch.unique(tokens).tolist() if self._placeholders else ():
            if token in self._placeholders:
                raise ValueError(f'ids have token {token} ({self._placeholders[token]}), which does not say what it stands for: give extra, bytes that '
                                 'name it, such as a hash of pixel_values')

    def _most(self, ids: torch.Tensor, tokens: int | None = None) -> tuple[int, int]:
        """How many blocks may be restored, at least and at most; the least counts only if there is one.

        Never all of the prompt. What stands for images is restored whole, so that the model wants either all of them or none.
        """
        flat = ids.reshape(-1)
        most = (len(flat) - 1 if tokens is None else tokens) // self.block_tokens
        stands = torch.isin(flat.to('cpu'), torch.tensor(list(self._placeholders), dtype=flat.dtype)).nonzero() if self._placeholders else ()
        if not len(stands):
            return 0, most
        settings = rope_settings(self._config)
        if any('mrope_section' in one for one in [settings, *settings.values()] if isinstance(one, dict)):
            raise ValueError('positions behind an image depend on its size (mrope): prompts with images cannot be restored by prefix')
        return int(stands[-1]) // self.block_tokens + 1, most

    def match(self, ids: torch.Tensor, *, extra: bytes = b'', attention_mask: torch.Tensor | None = None) -> int:
        """Tokens of a prompt that can be restored: whole blocks, and never all of the prompt, since its last token must be computed."""
        keys = self.keys(ids, extra=extra, attention_mask=attention_mask)
        return self._enough(self.space_of(ids.shape[-1]).match(keys).blocks, ids) * self.block_tokens

    def _enough(self, blocks: int, ids: torch.Tensor, tokens: int | None = None) -> int:
        least, most = self._most(ids, tokens)
        return min(blocks, most) if min(blocks, most) >= least else 0

    def stage(self, blocks: int, space: tenuto.Space | Shares | None = None, device: Any = CPU) -> Stage:
        return Stage(self, blocks, space or self.space, torch.device(device))

    def streams(self, device: torch.device) -> Streams | None:
        """Of a GPU; None: calls of the CPU return when all is done."""
        if device.type == 'cpu':
            return None
        if device not in self._streams:
            self._streams[device] = Streams(self.cache, device)
        return self._streams[device]

    def pages(self, blocks: int, space: tenuto.Space | Shares, stage: Stage, device: torch.device) -> Pages:
        """Pages for a stage. To register memory of a GPU takes long: pages that no stage has any more are used again, or given back if they are too few."""
        if device.type == 'cpu' or device in self._without:
            return Pages(self, blocks, space, CPU)
        free = [pages for pages, user in self._kept if user() is None]
        fit = [pages for pages in free if pages.blocks >= blocks and pages.device == device]
        again = min(fit, key=lambda pages: pages.blocks, default=None)
        self._kept = [(pages, user) for pages, user in self._kept if pages is not again and (again or pages not in free)]
        free.clear()
        try:
            pages = again or Pages(self, blocks, space, device)
        except torch.OutOfMemoryError:
            return Pages(self, blocks, space, CPU)
        except (OSError, MemoryError) as error:
            if isinstance(error, (tenuto.Closed, tenuto.OwnerGone)):
                raise
            self._without.add(device)
            _log.warning('tenuto.hf: blocks go to %s by way of host memory: %s', device, error)
            return Pages(self, blocks, space, CPU)
        self._kept.append((pages, weakref.ref(stage)))
        return pages

    def restore(self, ids: torch.Tensor, tokens: int | None = None, *, lazy: bool = False, stored_tp: int | None = None, extra: bytes = b'',
                attention_mask: torch.Tensor | None = None) -> tuple[Cache, int]:
        """A transformers cache with the first tokens of a prompt, and how many these are.

        tokens: at most so many (None: all that match). lazy: returns at once; each layer waits for its own bytes when the model reaches it, and raises Shorter if
        fewer blocks are good than were promised. On a GPU only the last layer does, before the pass has a result: throw away what the others have computed. The
        next forward pass is taken to have all other tokens, and plan may say that fewer are restored than match. What comes from a remote tier is waited for.
        stored_tp: the prefix was saved by so many TP shares, which are cut anew for this one.

        The prompt's images are restored all together or not at all: give them to the model only if 0 tokens were restored. With LongRoPE the rest of a prompt
        that is longer than original_max_position_embeddings is computed in passes that end behind it.
        """
        keys = self.keys(ids, extra=extra, attention_mask=attention_mask)
        if stored_tp is not None and self._canonical:
            raise ValueError(f'stored_tp is {stored_tp}: canonical shares are of every TP size; leave it out')
        if stored_tp not in (None, self.tp_size):
            return self._restore_shares(ids, keys, stored_tp)
        return self._restore(ids, tokens, keys, lazy, ids.shape[-1])

    def _restore(self, ids: torch.Tensor, tokens: int | None, keys: bytes, lazy: bool, end: int) -> tuple[Cache, int]:
        """end: tokens of the prompt behind the next forward pass."""
        least, most = self._most(ids, tokens)
        space, keys = self.space_of(ids.shape[-1]), keys[:most * tenuto.KEY_BYTES]
        found = self._found(space, keys, ids.device)
        blocks = found.blocks
        if ids.device.type != 'cpu' and found.remote_blocks:
            blocks = near(space.all if isinstance(space, Shares) else [space], keys[:blocks * tenuto.KEY_BYTES])  # its pages get no block from further away
        blocks = blocks if blocks >= least else 0
        lazy = lazy and not found.remote_blocks  # a look-up there reads headers alone: whether an object is whole shows when it comes
        if lazy and blocks and self.plan == 'auto' and not isinstance(space, Shares):
            blocks = self._planned(space, found, least, ids.shape[-1])
        if blocks == 0:
            found.unpin()
            self._tell_phase()
            return self._empty(), 0
        n = blocks * self.block_tokens
        loading = Loading(self, space, keys, blocks, found, (end if end > n else ids.shape[-1]) - n if lazy else 0, ids.device)
        if lazy:
            return Cache(layers=[RestoredLayer(loading, i) for i in range(self.layers)]), n
        good = self._enough(loading.all(), ids, tokens)
        return self._filled(loading.stage, good, ids.device), good * self.block_tokens

    def _found(self, space: tenuto.Space, keys: bytes, device: torch.device) -> tenuto.Match:
        """A match of a prompt with a lease, once all tiers were asked."""
        found = space.match(keys, pin=True, tiers=True)
        if self._remote_timeout and found.blocks < len(keys) // tenuto.KEY_BYTES:
            ask(space.all if isinstance(space, Shares) else [space], keys, self._remote_timeout)
            found = space.match(keys, pin=True, tiers=True)
        if device.type != 'cpu' and found.remote_blocks:
            fetch(space, keys[:found.blocks * tenuto.KEY_BYTES], self._remote_timeout)
            found = space.match(keys, pin=True, tiers=True)
        return found

    def _planned(self, space: tenuto.Space, found: tenuto.Match, least: int, tokens: int) -> int:
        """How many blocks of a match are restored, so that the prompt is computed soonest; what stands for images is restored as a whole or not at all."""
        plan = space.plan(found, tokens - found.blocks * self.block_tokens)
        return self._probe.worth(plan, found.blocks, least)

    def _tell_phase(self) -> None:
        """Between the last load of a prompt and the first one of the next writes may go in larger quanta."""
        self.cache.phase('prefill' if self._loadings else 'decode')

    def _empty(self) -> Cache:
        return Cache(layers=[DynamicLayer() for _ in range(self.layers)])

    def _filled(self, stage: Stage, blocks: int, device: torch.device) -> Cache:
        layers = [DynamicLayer() for _ in range(self.layers)]
        for i, layer in enumerate(layers if blocks else ()):
            k, v = stage.take(i, blocks)
            _begin(layer, k.to(device), v.to(device))
        return Cache(layers=layers)

    def _restore_shares(self, ids: torch.Tensor, keys: bytes, stored_tp: int | None) -> tuple[Cache, int]:
        assert stored_tp is not None
        spaces = [self._space(rank, stored_tp, self._rope.is_long(ids.shape[-1])) for rank in range(stored_tp)]
        if self._remote_timeout and tenuto.match_all(spaces, keys).blocks < len(keys) // tenuto.KEY_BYTES:
            ask(spaces, keys, self._remote_timeout)
        with tenuto.match_all(spaces, keys, pin=True) as found:
            blocks = self._enough(found.blocks, ids)
            loaded = [self.stage(blocks, space) for space in spaces] if blocks else []
            for space, stage in zip(spaces, loaded):
                blocks = min(blocks, space.load(keys[:stage.blocks * tenuto.KEY_BYTES], stage.pool, range(stage.pages)).finish())
        blocks = self._enough(blocks, ids)
        if not blocks:
            return self._empty(), 0
        stage = self.stage(blocks)
        for layer in range(self.layers):
            for block in range(blocks):
                into = bytearray(self.geometry.object_bytes)
                tenuto.reslice(spaces[0].geometry, stored_tp, self.tp_size, self.tp_rank, [s.object(layer, block) for s in loaded], into)
                stage.fill(layer, block, into)
        return self._filled(stage, blocks, ids.device), blocks * self.block_tokens

    def save(self, ids: torch.Tensor, kv: Cache, *, extra: bytes = b'', attention_mask: torch.Tensor | None = None) -> tenuto.SaveResult:
        """Save the whole blocks of a prompt whose keys and values a transformers cache holds.

        With LongRoPE nobody can see which factors a long prompt in a cache has, and ValueError says so: saving, or prefill, save it while it is computed.
        """
        return self.saving(ids, kv, kv.get_seq_length(), extra=extra, attention_mask=attention_mask).finish()

    def saving(self, ids: torch.Tensor, kv: Cache, computed: int = 0, *, extra: bytes = b'', attention_mask: torch.Tensor | None = None) -> Saving:
        """Save a prompt while it is computed: layers of the cache are saved as the model fills them. finish() waits for the end.

        kv: an empty transformers cache, or one of restore. computed: tokens that it holds already.
        """
        return self._saving(ids, kv, computed, self.keys(ids, extra=extra, attention_mask=attention_mask))

    def _saving(self, ids: torch.Tensor, kv: Cache, computed: int, keys: bytes, restored_long: bool = False) -> Saving:
        long = self._rope.is_long(len(keys) // tenuto.KEY_BYTES * self.block_tokens)
        if long != self._rope.is_long(ids.shape[-1]):
            long, keys = False, b''  # its whole blocks may have been computed with either factors
        if long and computed and not restored_long:
            raise ValueError(f'a prompt of {ids.shape[-1]} tokens, of which {computed} were computed before: with LongRoPE (original_max_position_embeddings '
                             f'{self._rope.long}) that may have been with other factors. Use prefill, or saving with an empty cache')
        kinds = {type(layer) for layer in kv.layers} - {DynamicLayer, RestoredLayer}
        if len(kv.layers) != self.layers or kinds:
            raise ValueError(f'a cache of {len(kv.layers)} layers{"".join(f", {k.__name__}" for k in kinds)}: DynamicCache(config=model.config) has the '
                             f'{self.layers} DynamicLayers that are wanted')
        saving = Saving(self, self._long_space if long else self.space, keys, long, ids.device)
        for i, layer in enumerate(kv.layers):
            saving.watch(i, layer)
        return saving

    def answer(self, ids: torch.Tensor, kv: Cache, *, extra: bytes = b'', attention_mask: torch.Tensor | None = None) -> Answer:
        """A streamer of model.generate that saves what is generated behind a prompt. kv: of prefill. Raises ValueError where keys depend on the length (LongRoPE, dynamic RoPE)."""
        self.keys(ids, extra=extra, attention_mask=attention_mask)
        if self._rope.long is not None or self._rope.most is not None:
            raise ValueError('keys and values of a longer prompt are others (LongRoPE or dynamic RoPE): save the next prompt while it is computed, by prefill')
        return Answer(self, kv, extra)

    def prefill(self, model: Any, ids: torch.Tensor, *, extra: bytes = b'', attention_mask: torch.Tensor | None = None) -> tuple[Cache, int]:
        """A transformers cache with all of a prompt but its last tokens, and how many of them were restored.

        Restores what is there, computes the other whole blocks in one forward pass, and saves them. What is left for the caller are the tokens behind the last
        whole block, at least one. Raises ValueError for a prompt with images or sound, which the model does not get here: restore, compute and save it.
        """
        end = (ids.shape[-1] - 1) // self.block_tokens * self.block_tokens
        keys = self.keys(ids, extra=extra, attention_mask=attention_mask)
        if self._most(ids)[0]:
            raise ValueError('ids stand for images or sound, and prefill gives the model tokens alone: use restore, the model with its inputs, and save')
        if self._rope.is_long(ids.shape[-1]) and not self._rope.is_long(end):
            return self._empty(), 0  # a pass over the whole blocks would have the factors of a short prompt
        tokens = None
        while True:
            kv, n = self._restore(ids, tokens, keys, True, end)
            if n >= end:
                return kv, n
            saving = self._saving(ids[..., :end], kv, n, keys[:end // self.block_tokens * tenuto.KEY_BYTES], True)
            try:
                with torch.no_grad():
                    model(input_ids=ids[:, n:end], **past(model, kv), use_cache=True, logits_to_keep=1)
            except Shorter as short:
                saving.abort()
                tokens = short.good
                continue
            except BaseException:
                saving.abort()
                raise
            saving.finish()
            self._keep()
            return kv, n


class Pages:
    """A pool: [layers][K, V][pages][heads][page_tokens][head_dim]. On the CPU the owner of an attached cache can map it, too."""

    def __init__(self, prefixes: Prefixes, blocks: int, space: tenuto.Space | Shares, device: torch.device) -> None:
        g, self.device, self.blocks, pages = space.geometry, device, blocks, blocks * space.geometry.pages_per_block
        shape = (g.layers, 2, pages, g.planes[0][1], g.page_tokens, prefixes.head_dim)
        if device.type == 'cpu':
            memory = tenuto.Buffer(blocks * g.block_bytes)
            self.tensor = torch.frombuffer(memory, dtype=prefixes.dtype, count=blocks * g.block_bytes // prefixes.dtype.itemsize).view(shape)
        else:
            memory = self.tensor = torch.empty(shape, dtype=prefixes.dtype, device=device)
        # As much on the way as there are pages: of loads in batches all layers would be ready at the end only.
        held = space.cache.memory(memory, stage_bytes=blocks * g.block_bytes)
        if isinstance(space, Shares):
            self.pool = space.pool(held, pages, order=tenuto.POOL_PLANES_PAGES)
        else:
            self.pool = held.pool(g, npages=pages, order=tenuto.POOL_PLANES_PAGES)


class Stage:
    """Blocks on their way between a cache and a model: the first pages of a pool."""

    def __init__(self, prefixes: Prefixes, blocks: int, space: tenuto.Space | Shares, device: torch.device) -> None:
        g = space.geometry
        self.prefixes, self.blocks, self.pages, self.geometry = prefixes, blocks, blocks * g.pages_per_block, g
        pages = prefixes.pages(blocks, space, self, device)
        self.tensor, self.pool, self.streams = pages.tensor[:, :, :self.pages], pages.pool, prefixes.streams(pages.device)

    def settle(self) -> None:
        """Waits until a GPU has done all that it was asked for: what still reads or writes these pages, or had their memory before."""
        if self.streams:
            self.streams.settle()

    def waits(self, load: Any, layer: int) -> bool:
        """Whether a GPU waits for a layer before its next `take`. If not, the host has to."""
        return self.streams is not None and self.streams.wait(load, layer)

    def done(self) -> tuple[Any, ...] | None:
        """What Save.layer is given, so that the cache knows when the bytes of `put` are there. None: only the host can wait for them (settle)."""
        return self.streams.done(self.pool) if self.streams else ()

    def take(self, layer: int, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each [1, heads, tokens, head_dim] and contiguous."""
        pages = blocks * self.geometry.pages_per_block
        both = self.tensor[layer, :, :pages].transpose(1, 2)  # [2, heads, pages, page_tokens, head_dim]
        k, v = both.reshape(2, 1, both.shape[1], -1, both.shape[-1]).unbind(0)
        return k.contiguous(), v.contiguous()

    def put(self, layer: int, k: torch.Tensor, v: torch.Tensor, first: int) -> None:
        """The other way: tokens first to first + what the stage holds."""
        tokens, wanted = self.pages * self.geometry.page_tokens, (1, self.geometry.planes[0][1], self.prefixes.head_dim)
        for source in (k, v):
            if (source.shape[0], source.shape[1], source.shape[-1]) != wanted or source.dtype != self.prefixes.dtype:
                raise ValueError(f'the model has keys of shape {tuple(k.shape)} and values of shape {tuple(v.shape)} of {source.dtype}; the configuration says '
                                 f'[{wanted[0]}, {wanted[1]}, tokens, {wanted[2]}], and Prefixes was made with dtype={self.prefixes.dtype}')
        for plane, source in enumerate((k, v)):
            part = source[0, :, first:first + tokens].detach()
            self.tensor[layer, plane].copy_(part.reshape(part.shape[0], self.pages, -1, part.shape[-1]).transpose(0, 1))

    def object(self, layer: int, block: int) -> Any:
        """A layer of a block in stored order, as bytes."""
        per = self.geometry.pages_per_block
        return self.tensor[layer, :, block * per:(block + 1) * per].contiguous().view(torch.uint8).reshape(-1).numpy()

    def fill(self, layer: int, block: int, data: bytearray) -> None:
        per = self.geometry.pages_per_block
        part = self.tensor[layer, :, block * per:(block + 1) * per]
        part.copy_(torch.frombuffer(data, dtype=self.prefixes.dtype).view(part.shape))


def _mark(device: torch.device) -> Any:
    """A point of the current stream of a GPU, whose time is known once the GPU has reached it."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


class Reached(NamedTuple):
    """When a device got somewhere. at: of a GPU a mark, and of CPUs, where calls return when all is computed, the time in ns."""
    device: torch.device
    at: Any


def _reached(like: torch.Tensor) -> Reached:
    return Reached(like.device, _mark(like.device) if like.is_cuda else time.monotonic_ns())


class Loading:
    """A prefix on its way into a stage, its lease held until the last layer is there."""

    def __init__(self, prefixes: Prefixes, space: tenuto.Space | Shares, keys: bytes, blocks: int, found: tenuto.Match, input_tokens: int,
                 device: torch.device) -> None:
        """input_tokens: of the forward pass that reaches the layers one after the other, from now on; 0: all are wanted at once. device: where keys and values go.

        A GPU is asked for layers long before it computes them. So the times at which they are asked for say nothing, and the cache does not get the tokens.
        """
        self.prefixes, self.found, self.blocks, self.left = prefixes, found, blocks, prefixes.layers
        self.good: int | None = None  # blocks, once the load is over
        self.stage, self.device = prefixes.stage(blocks, device=device), device
        self.stage.settle()
        input_tokens = 0 if device.type != 'cpu' else input_tokens
        prefixes._loadings.add(self)
        prefixes._tell_phase()
        self.load = space.load(keys[:blocks * tenuto.KEY_BYTES], self.stage.pool, range(self.stage.pages), input_tokens=input_tokens,
                               start_ns=time.monotonic_ns() if input_tokens else 0)

    def _end(self, good: int) -> None:
        self.good = good
        self.found.unpin()
        self.prefixes._loadings.discard(self)
        self.prefixes._tell_phase()

    def all(self) -> int:
        good = self.load.finish()
        self._end(good)
        return good

    def whole(self) -> bool:
        """Whether all blocks have come. The host waits for that: a stream that waits for a layer goes on without it, too."""
        return (self.load.wait() if self.good is None else self.good) == self.blocks

    def layer(self, i: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """device: of the layer; that of the ids, unless a model lies on several.

        A GPU waits for all layers but the one that is asked for last: before that the host sees whether what was computed on the others is of any use.
        """
        last = self.left == 1
        if last or not self.stage.waits(self.load, i):
            good = self.load.wait(None if last else i)
            if good < self.blocks:
                self.load.end()
                self._end(good)
                raise Shorter(good * self.prefixes.block_tokens)
        k, v = self.stage.take(i, self.blocks)
        self.left -= 1
        if self.left == 0:
            self.all()
        return k.to(device), v.to(device)


def _begin(layer: DynamicLayer, k: torch.Tensor, v: torch.Tensor) -> None:
    """An empty layer has these keys and values: what update would do, without another copy."""
    layer.lazy_initialization(k, v)
    layer.keys, layer.values = k, v


class RestoredLayer(DynamicLayer):
    """A layer whose length is known at once, and whose keys and values come when the model reaches it."""

    def __init__(self, loading: Loading, index: int) -> None:
        super().__init__()
        self._loading: Loading | None = loading
        self._index, self._tokens = index, loading.blocks * loading.prefixes.block_tokens

    def _fetch(self, device: torch.device | None = None) -> None:
        if self._loading:
            k, v = self._loading.layer(self._index, device or self._loading.device)
            self._loading = None
            _begin(self, k, v)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self._fetch(key_states.device)
        return super().update(key_states, value_states, *args, **kwargs)

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        return self._tokens if self._loading else super().get_seq_length()

    def crop(self, *args: Any, **kwargs: Any) -> None:
        self._fetch()
        super().crop(*args, **kwargs)

    def reset(self) -> None:
        self._loading = None
        super().reset()

    def batch_repeat_interleave(self, repeats: int) -> None:
        self._fetch()
        super().batch_repeat_interleave(repeats)

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        self._fetch()
        super().batch_select_indices(indices)


class Saving:
    """A prompt's whole blocks on their way into the cache, each layer as soon as the model has filled it."""

    def __init__(self, prefixes: Prefixes, space: tenuto.Space | Shares, keys: bytes, long: bool, device: torch.device) -> None:
        self.prefixes, self.result = prefixes, tenuto.SaveResult((0, 0, 0, 0, 0, 0))
        total = len(keys) // tenuto.KEY_BYTES
        self.first = space.match(keys).blocks if total else 0  # what is there already costs nothing
        self.end = total * prefixes.block_tokens
        self.save = None
        self._space, self._left, self._next = space, Reached(CPU, 0), (0, 0, 0)  # layer, prefix and end of the update that comes next in a forward pass
        self._long = long
        self._loadings: list[Loading] = []  # prefixes that are computed on
        self._put: list[int] = []  # layers whose pages a GPU still writes, and cannot say when it has
        self._computed: list[tuple[int, int, int, Any, Any]] = []  # layers that a GPU computes: as observe has them, with marks for the time
        self._watched: list[Any] = []
        if self.first == total or isinstance(space, Shares) and not space.saves:
            return
        self.stage = prefixes.stage(total - self.first, device=device)
        parent = keys[(self.first - 1) * tenuto.KEY_BYTES:self.first * tenuto.KEY_BYTES] if self.first else None
        try:
            self.save = space.save(keys[self.first * tenuto.KEY_BYTES:], self.stage.pool, range(self.stage.pages), parent=parent)
        except tenuto.Again:
            pass  # too much is under way: these blocks are left out

    def watch(self, index: int, layer: Any) -> None:
        """Save a layer once it is long enough: now, or when its update has made it so. Until then the updates show how long the layers before took."""
        if self.end == 0:
            return
        loading = getattr(layer, '_loading', None)
        if loading and loading not in self._loadings:
            self._loadings.append(loading)
        if layer.is_initialized and layer.keys is not None and layer.keys.shape[-2] >= self.end:
            self._check(layer)
            self._give(index, layer.keys, layer.values)
            return
        update = layer.update

        def updated(*args: Any, **kwargs: Any) -> Any:
            prefix, reached = layer.get_seq_length(), _reached(args[0] if args else kwargs['key_states'])
            out = update(*args, **kwargs)
            self._check(layer)
            self._observe(index, layer, prefix, reached)
            if layer.keys.shape[-2] >= self.end:
                del layer.update
                self._give(index, layer.keys, layer.values)
            self._left = _reached(layer.keys)
            self._observe_computed(waiting=False)
            return out

        layer.update = updated
        self._watched.append(layer)

    def _observe(self, index: int, layer: Any, prefix: int, reached: Reached) -> None:
        """What the layer before took, if no load shows it."""
        here = (index, prefix, layer.keys.shape[-2])
        if here == self._next and type(layer) is DynamicLayer and self._left.device == reached.device:
            if reached.device.type == 'cpu':
                self._space.observe(here[2] - prefix, prefix, index - 1, reached.at - self._left.at)
            else:
                self._computed.append((here[2] - prefix, prefix, index - 1, self._left.at, reached.at))
        self._next = (index + 1, prefix, here[2])

    def _observe_computed(self, waiting: bool) -> None:
        """Layers that a GPU has computed. waiting: all of them."""
        while self._computed and (waiting or self._computed[0][4].query()):
            tokens, prefix, index, begin, end = self._computed.pop(0)
            end.synchronize()
            self._space.observe(tokens, prefix, index, int(1e6 * begin.elapsed_time(end)))

    def _check(self, layer: Any) -> None:
        """With LongRoPE all passes over a prompt end on the same side of the length from which on factors are others."""
        tokens, rope = layer.keys.shape[-2], self.prefixes._rope
        if self.save is None or rope.is_long(tokens) == self._long:
            return
        self.abort()
        raise ValueError(f'a cache of {tokens} tokens, of a prompt of which {self.end} are to be saved: with LongRoPE (original_max_position_embeddings '
                         f'{rope.long}) these had other factors. Compute a long prompt in passes that all end behind that length, and save a short one before '
                         'its cache grows beyond it')

    def _give(self, index: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.save is not None and not self.save.ended:
            self.stage.put(index, k, v, self.first * self.prefixes.block_tokens)
            done = self.stage.done()
            if done is None:
                self._put.append(index)
            else:
                self.save.layer(index, *done)

    def _unwatch(self) -> None:
        for layer in self._watched:
            layer.__dict__.pop('update', None)
        self._watched.clear()

    def finish(self) -> tenuto.SaveResult:
        """Commit, and wait. A prompt of which layers are missing is not saved, nor one that was computed on a prefix which has not come whole."""
        self._unwatch()
        self._observe_computed(waiting=True)
        if self.save is not None and not self.save.ended:
            self._give_put()
            try:
                if all(loading.whole() for loading in self._loadings):
                    self.save.commit()
                else:
                    self.save.abort()
            except BaseException as error:
                self.save.abort()
                if not isinstance(error, tenuto.InvalidValue):
                    self.save.end()
                    raise
            self.result = self.save.end()
        return self.result

    def _give_put(self) -> None:
        if self._put and self.save is not None:
            self.stage.settle()
            for index in self._put:
                self.save.layer(index)
            self._put.clear()

    def abort(self) -> None:
        """Forget it."""
        self._unwatch()
        self._put.clear()
        if self.save is not None and not self.save.ended:
            self.save.abort()
            self.save.end()
