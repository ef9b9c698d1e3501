# SPDX-License-Identifier: Apache-2.0
"""What a model of transformers generates, saved block by block: Prefixes.answer of tenuto.hf."""
from __future__ import annotations

from typing import TYPE_CHECKING

import tenuto
from tenuto.shares import Shares

if TYPE_CHECKING:
    import torch
    from transformers.cache_utils import Cache

    from tenuto.hf import Prefixes, Stage


class Answer:
    """Generated tokens, saved block by block as they fill: a streamer of model.generate.

        kv, n = store.prefill(model, ids)
        out = model.generate(ids, past_key_values=kv, streamer=store.answer(ids, kv), ...)

    A block is saved once the model has computed the keys and values of its last token, while the next tokens are generated. So the next prompt, which begins with this
    one and its answer, finds both. sequence: how far the blocks are; it holds them until the object is gone, or close.
    """

    def __init__(self, prefixes: Prefixes, kv: Cache, extra: bytes) -> None:
        space = prefixes.space.spaces[0] if isinstance(prefixes.space, Shares) else prefixes.space  # of canonical shares the first one stands for all
        self.prefixes, self.kv, self.sequence = prefixes, kv, tenuto.Sequence(space)
        self._begun = self._stopped = False
        self._save: tuple[tenuto.Save, Stage, int] | None = None  # under way, with its pages and blocks
        self.sequence.init(extra)

    def put(self, value: torch.Tensor) -> None:
        """Called by generate: with the prompt, then with each token."""
        if value.dim() > 1 and value.shape[0] != 1:
            raise ValueError(f'tokens of shape {tuple(value.shape)}: one sequence at a time')
        tokens = value.reshape(-1).tolist()
        while tokens:
            taken = self.sequence.add(tokens)
            tokens = tokens[taken:]
            if not taken or tokens:
                self.sequence.commit()
        if self._begun:
            self._go_on(waiting=False)
        self._begun = True  # before the first pass a restored layer has no keys yet

    def end(self) -> None:
        """Called by generate: waits for the blocks that are full."""
        self._go_on(waiting=True)

    def close(self) -> None:
        """Give the blocks back: the cache may evict them."""
        self._register(waiting=True)
        if self.sequence.blocks > self.sequence.registered:
            self.sequence.reset(self.sequence.registered)
        elif self.sequence.tokens:
            self.sequence.reset(self.sequence.blocks)
        if self.sequence.registered:
            self.sequence.drop()

    def _go_on(self, waiting: bool) -> None:
        tokens = self.prefixes.block_tokens
        if self.sequence.tokens == tokens:
            self.sequence.commit()
        first, end = self.sequence.registered, min(self.sequence.blocks, self.kv.get_seq_length() // tokens)
        if self._save:
            self._register(waiting or end - first > self._save[2] + 1)  # no more than a block waits for a save to end
            first = self.sequence.registered
        if self._save or self._stopped or first >= end:
            return
        keys = self.sequence.keys()[:end * tenuto.KEY_BYTES]
        there = self.prefixes.space.match(keys).blocks  # of the prompt, mostly
        if there > first:
            first += self.sequence.register(there - first, bytes([tenuto.SAVED_EXISTING]) * (there - first))[0]
        if first < end:
            self._begin(keys, first, end)
        if waiting:
            self._register(waiting)

    def _begin(self, keys: bytes, first: int, end: int) -> None:
        stage = self.prefixes.stage(end - first, device=self.kv.layers[0].keys.device)
        parent = keys[(first - 1) * tenuto.KEY_BYTES:first * tenuto.KEY_BYTES] if first else None
        try:
            save = self.prefixes.space.save(keys[first * tenuto.KEY_BYTES:], stage.pool, range(stage.pages), parent=parent)
        except tenuto.Again:
            return  # too much is under way: the next block begins again with these
        self._save = save, stage, end - first
        for index, layer in enumerate(self.kv.layers):
            stage.put(index, layer.keys, layer.values, first * self.prefixes.block_tokens)
        done = stage.done()
        if done is None:
            stage.settle()
        for index in range(len(self.kv.layers)):
            save.layer(index, *(done or ()))
        save.commit()

    def _register(self, waiting: bool) -> None:
        if not self._save:
            return
        save, _, blocks = self._save
        try:
            save.end(None if waiting else 0)
        except tenuto.Timeout:
            return
        self._save = None
        self._stopped = self.sequence.register(blocks, save.outcome)[0] < blocks  # the cache does not want them: nor what follows
