# SPDX-License-Identifier: Apache-2.0
"""Prompt prefixes of Hugging Face transformers, kept across processes.

    store = tenuto.hf.Prefixes(cache, model.config, "my-model", dtype=torch.bfloat16)
    kv, n = store.prefill(model, ids)                    # ids: [1, tokens]; the first n tokens were restored, all else computed and saved
    out = model.generate(ids, past_key_values=kv, ...)   # generate computes what kv lacks: at least the last token

A prefix is restored and saved in whole blocks, layer by layer: attention of the first layers runs while the others still come (Prefixes.restore), and a layer is on
its way to the cache as soon as it was computed (Prefixes.saving). Layers with full attention and one sequence at a time; any number of KV heads, float32, float16 or
bfloat16. The identity of a prefix is the model's name, revision, dtype and rotary settings: name each set of weights by a name of its own.
"""
from __future__ import annotations

import inspect
import json
from typing import Any

try:
    import torch
    from transformers.cache_utils import Cache, DynamicLayer
except ImportError as e:
    raise ImportError(f'tenuto.hf needs torch and transformers ({e}): pip install .[hf]', name=e.name, path=e.path) from e

import tenuto

NAMES = {torch.float32: 'fp32', torch.float16: 'fp16', torch.bfloat16: 'bf16'}


class Shorter(Exception):
    """Blocks of a prefix that was being restored could not be loaded. good: tokens that can be; begin again with so many."""

    def __init__(self, good: int) -> None:
        super().__init__(f'only {good} tokens can be restored')
        self.good = good


def rotary_of(config: Any) -> str:
    """The rotary settings of a configuration, as text that is the same in every process."""
    settings = getattr(config, 'rope_parameters', None) or {k: getattr(config, k, None) for k in ('rope_theta', 'rope_scaling')}
    return json.dumps(settings, sort_keys=True, default=str)


def past(model: Any, kv: Cache) -> dict[str, Cache]:
    """The argument that gives a cache to model(...): transformers has renamed it."""
    return {'cache' if 'cache' in inspect.signature(model.forward).parameters else 'past_key_values': kv}


class Prefixes:
    """The prefixes of one model in a cache.

    cache: of tenuto. config: the model's; name, revision: of its weights. dtype: of keys and values. page_tokens, pages_per_block: what is saved and
    restored is a multiple of their product, 256 tokens by default. tp_rank, tp_size: this process has so many-th share of the KV heads.
    Raises ValueError for layers that are not plain full attention.
    """

    def __init__(self, cache: tenuto.Cache, config: Any, name: str, *, revision: str = '', dtype: torch.dtype = torch.float32, page_tokens: int = 16,
                 pages_per_block: int = 16, tenant: str = '', tp_rank: int = 0, tp_size: int = 1) -> None:
        config = config.get_text_config(decoder=True) if hasattr(config, 'get_text_config') else config
        kinds = set(getattr(config, 'layer_types', None) or ['full_attention'])
        if kinds != {'full_attention'}:
            raise ValueError(f'layers of the kinds {sorted(kinds)}: only full attention can be restored by prefix')
        heads = getattr(config, 'num_key_value_heads', None) or config.num_attention_heads
        if heads % tp_size:
            raise ValueError(f'{heads} KV heads cannot be divided among {tp_size}')
        self.cache, self.dtype, self.tp_rank, self.tp_size = cache, dtype, tp_rank, tp_size
        self.layers, self.heads = config.num_hidden_layers, heads // tp_size
        self.head_dim = getattr(config, 'head_dim', None) or config.hidden_size // config.num_attention_heads
        self._config, self._name = config, name
        self._identity = {'revision': revision, 'kv_dtype': NAMES[dtype], 'rotary': rotary_of(config), 'tenant': tenant}
        self._pages = (page_tokens, pages_per_block)
        self.geometry = self._geometry(heads // tp_size)
        self.space = self._space(tp_rank, tp_size)
        self.block_tokens = self.geometry.block_tokens

    def _geometry(self, heads: int) -> tenuto.Geometry:
        planes = tenuto.kv_planes(heads, self.head_dim, 8 * self.dtype.itemsize)
        return tenuto.Geometry(self.layers, planes, *self._pages, page_order=tenuto.HND)

    def _space(self, rank: int, size: int) -> tenuto.Space:
        heads = self.heads * self.tp_size // size
        return self.cache.space(self._name, self._geometry(heads), tp_rank=rank, tp_size=size, **self._identity)

    def keys(self, ids: torch.Tensor) -> bytes:
        """Packed keys of a prompt's whole blocks. ids: [1, tokens] or [tokens]."""
        if ids.dim() == 2 and ids.shape[0] != 1:
            raise ValueError(f'ids of shape {tuple(ids.shape)}: one sequence at a time')
        return self.space.keys(ids.reshape(-1).to('cpu', torch.int64).contiguous())

    def match(self, ids: torch.Tensor) -> int:
        """Tokens of a prompt that can be restored: whole blocks, and never all of the prompt, since its last token must be computed."""
        most = (ids.shape[-1] - 1) // self.block_tokens
        return min(self.space.match(self.keys(ids)).blocks, most) * self.block_tokens

    def stage(self, blocks: int, space: tenuto.Space | None = None) -> Stage:
        return Stage(self, blocks, space or self.space)

    def restore(self, ids: torch.Tensor, tokens: int | None = None, *, lazy: bool = False, stored_tp: int | None = None) -> tuple[Cache, int]:
        """A transformers cache with the first tokens of a prompt, and how many these are.

        tokens: at most so many (None: all that match). lazy: returns at once; each layer waits for its own bytes when the model reaches it, and raises Shorter if
        fewer blocks are good than were promised. stored_tp: the prefix was saved by so many TP shares, which are cut anew for this one.
        """
        if stored_tp not in (None, self.tp_size):
            return self._restore_shares(ids, stored_tp)
        found = self.space.match(self.keys(ids), pin=True)
        most = (ids.shape[-1] - 1 if tokens is None else tokens) // self.block_tokens
        blocks = min(found.blocks, most)
        if blocks == 0:
            found.unpin()
            return Cache(layers=[DynamicLayer() for _ in range(self.layers)]), 0
        loading = Loading(self, self.keys(ids), blocks, found)
        if lazy:
            return Cache(layers=[RestoredLayer(loading, i) for i in range(self.layers)]), blocks * self.block_tokens
        good = loading.all()
        return self._filled(loading.stage, good), good * self.block_tokens

    def _filled(self, stage: Stage, blocks: int) -> Cache:
        layers = [DynamicLayer() for _ in range(self.layers)]
        for i, layer in enumerate(layers if blocks else ()):
            k, v = stage.take(i, blocks)
            layer.update(k, v)
        return Cache(layers=layers)

    def _restore_shares(self, ids: torch.Tensor, stored_tp: int | None) -> tuple[Cache, int]:
        assert stored_tp is not None
        spaces = [self._space(rank, stored_tp) for rank in range(stored_tp)]
        keys = self.keys(ids)
        with tenuto.match_all(spaces, keys, pin=True) as found:
            blocks = min(found.blocks, (ids.shape[-1] - 1) // self.block_tokens)
            loaded = [self.stage(blocks, space) for space in spaces] if blocks else []
            for space, stage in zip(spaces, loaded):
                blocks = min(blocks, space.load(keys[:stage.blocks * tenuto.KEY_BYTES], stage.pool, range(stage.pages)).finish())
        if not blocks:
            return Cache(layers=[DynamicLayer() for _ in range(self.layers)]), 0
        stage = self.stage(blocks)
        for layer in range(self.layers):
            for block in range(blocks):
                into = bytearray(self.geometry.object_bytes)
                tenuto.reslice(spaces[0].geometry, stored_tp, self.tp_size, self.tp_rank, [s.object(layer, block) for s in loaded], into)
                stage.fill(layer, block, into)
        return self._filled(stage, blocks), blocks * self.block_tokens

    def save(self, ids: torch.Tensor, kv: Cache) -> tenuto.SaveResult:
        """Save the whole blocks of a prompt whose keys and values a transformers cache holds."""
        return self.saving(ids, kv, kv.get_seq_length()).finish()

    def saving(self, ids: torch.Tensor, kv: Cache, computed: int = 0) -> Saving:
        """Save a prompt while it is computed: layers of the cache are saved as the model fills them. finish() waits for the end.

        kv: an empty transformers cache, or one of restore. computed: tokens that it holds already.
        """
        saving = Saving(self, ids, computed)
        for i, layer in enumerate(kv.layers):
            saving.watch(i, layer)
        return saving

    def prefill(self, model: Any, ids: torch.Tensor) -> tuple[Cache, int]:
        """A transformers cache with all of a prompt but its last tokens, and how many of them were restored.

        Restores what is there, computes the other whole blocks in one forward pass, and saves them. What is left for the caller are the tokens behind the last
        whole block, at least one.
        """
        end = (ids.shape[-1] - 1) // self.block_tokens * self.block_tokens
        tokens = None
        while True:
            kv, n = self.restore(ids, tokens, lazy=True)
            if n >= end:
                return kv, n
            saving = self.saving(ids[..., :end], kv, n)
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
            return kv, n


class Stage:
    """Memory for blocks on their way: [layers][K, V][pages][heads][page_tokens][head_dim], which the owner of an attached cache can map, too."""

    def __init__(self, prefixes: Prefixes, blocks: int, space: tenuto.Space) -> None:
        g = space.geometry
        self.prefixes, self.blocks, self.pages, self.geometry = prefixes, blocks, blocks * g.pages_per_block, g
        self.buffer = tenuto.Buffer(blocks * g.block_bytes)
        shape = (g.layers, 2, self.pages, g.planes[0][1], g.page_tokens, prefixes.head_dim)
        self.tensor = torch.frombuffer(self.buffer, dtype=prefixes.dtype, count=blocks * g.block_bytes // prefixes.dtype.itemsize).view(shape)
        self.pool = space.cache.memory(self.buffer).pool(g, npages=self.pages, order=tenuto.POOL_PLANES_PAGES)

    def take(self, layer: int, blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a layer, each [1, heads, tokens, head_dim] and contiguous."""
        pages = blocks * self.geometry.pages_per_block
        both = self.tensor[layer, :, :pages].transpose(1, 2)  # [2, heads, pages, page_tokens, head_dim]
        k, v = both.reshape(2, 1, both.shape[1], -1, both.shape[-1]).unbind(0)
        return k.contiguous(), v.contiguous()

    def put(self, layer: int, k: torch.Tensor, v: torch.Tensor, first: int) -> None:
        """The other way: tokens first to first + what the stage holds."""
        tokens = self.pages * self.geometry.page_tokens
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


class Loading:
    """A prefix on its way into a stage, its lease held until the last layer is there."""

    def __init__(self, prefixes: Prefixes, keys: bytes, blocks: int, found: tenuto.Match) -> None:
        self.prefixes, self.found, self.blocks, self.left = prefixes, found, blocks, prefixes.layers
        self.stage = prefixes.stage(blocks)
        self.load = prefixes.space.load(keys[:blocks * tenuto.KEY_BYTES], self.stage.pool, range(self.stage.pages))

    def all(self) -> int:
        good = self.load.finish()
        self.found.unpin()
        return good

    def layer(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        good = self.load.wait(i)
        if good < self.blocks:
            self.load.end()
            self.found.unpin()
            raise Shorter(good * self.prefixes.block_tokens)
        taken = self.stage.take(i, self.blocks)
        self.left -= 1
        if self.left == 0:
            self.all()
        return taken


class RestoredLayer(DynamicLayer):
    """A layer whose length is known at once, and whose keys and values come when the model reaches it."""

    def __init__(self, loading: Loading, index: int) -> None:
        super().__init__()
        self._loading: Loading | None = loading
        self._index, self._tokens = index, loading.blocks * loading.prefixes.block_tokens

    def _fetch(self) -> None:
        if self._loading:
            k, v = self._loading.layer(self._index)
            self._loading = None
            super().update(k, v)

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self._fetch()
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

    def __init__(self, prefixes: Prefixes, ids: torch.Tensor, computed: int) -> None:
        self.prefixes, self.result = prefixes, tenuto.SaveResult((0, 0, 0, 0, 0, 0))
        keys = prefixes.keys(ids)
        total = len(keys) // tenuto.KEY_BYTES
        self.first = prefixes.space.match(keys).blocks if total else 0  # what is there already costs nothing
        self.end = total * prefixes.block_tokens
        self.save = None
        self._watched: list[Any] = []
        if self.first == total:
            return
        self.stage = prefixes.stage(total - self.first)
        parent = keys[(self.first - 1) * tenuto.KEY_BYTES:self.first * tenuto.KEY_BYTES] if self.first else None
        try:
            self.save = prefixes.space.save(keys[self.first * tenuto.KEY_BYTES:], self.stage.pool, range(self.stage.pages), parent=parent)
        except tenuto.Again:
            pass  # too much is under way: these blocks are left out

    def watch(self, index: int, layer: Any) -> None:
        """Save a layer once it is long enough: now, or when its update has made it so."""
        if self.save is None:
            return
        if layer.is_initialized and layer.keys is not None and layer.keys.shape[-2] >= self.end:
            self._give(index, layer.keys, layer.values)
            return
        update = layer.update

        def updated(*args: Any, **kwargs: Any) -> Any:
            out = update(*args, **kwargs)
            if layer.keys.shape[-2] >= self.end:
                del layer.update
                self._give(index, layer.keys, layer.values)
            return out

        layer.update = updated
        self._watched.append(layer)

    def _give(self, index: int, k: torch.Tensor, v: torch.Tensor) -> None:
        if self.save is not None and not self.save.ended:
            self.stage.put(index, k, v, self.first * self.prefixes.block_tokens)
            self.save.layer(index)

    def _unwatch(self) -> None:
        for layer in self._watched:
            layer.__dict__.pop('update', None)
        self._watched.clear()

    def finish(self) -> tenuto.SaveResult:
        """Commit, and wait. A prompt of which layers are missing is not saved."""
        self._unwatch()
        if self.save is not None and not self.save.ended:
            try:
                self.save.commit()
            except tenuto.InvalidValue:
                self.save.abort()
            self.result = self.save.end()
        return self.result

    def abort(self) -> None:
        """Forget it."""
        self._unwatch()
        if self.save is not None and not self.save.ended:
            self.save.abort()
            self.save.end()
