# SPDX-License-Identifier: Apache-2.0
"""One rank of test_heap_llama.py. The first half of the ranks decode and own the memory; the second half compute prompts and write them there.

A producer writes the keys and values of each layer from a Triton kernel within the layer's forward, and its first token. A decoder goes on from there, and never
computes a prompt whose object is there. It copies the pages with a kernel; of one prompt of each decoder it attends to them where they lie, under a lease.
OUT-RANK gets {prompt: [tokens, tokens that the decoder has fed]}.
"""
import json
import os
import signal
import time

import torch
from transformers import AttentionInterface, DynamicCache, LlamaConfig, LlamaForCausalLM

import tenuto
from tenuto.heap import NanoKVCache, kernels

LAYERS, HEADS, WIDTH, NEW = 3, 4, 16, 8
PROMPTS, CANARY = 20, 20
IN_PLACE = 0, 10  # of the first decoder, and of the second one: the interpreter takes seconds for each


def model():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=8, num_key_value_heads=HEADS,
                         max_position_embeddings=512)
    return LlamaForCausalLM(config).eval()


def prompt(i):
    generator = torch.Generator().manual_seed(i)
    return torch.randint(512, (1, 30 + i), generator=generator)


def plain(m, i):
    """Of one process, without a heap."""
    ids = prompt(i)
    return m.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, pad_token_id=0, eos_token_id=None)[0, ids.shape[1]:].tolist()


def layer_bytes(i):
    return HEADS * prompt(i).shape[1] * WIDTH * 4


class Writing(DynamicCache):
    """A cache of transformers that hands each layer over as soon as it is computed. die_at: the process kills itself there."""

    def __init__(self, heap, plan, size, die_at=None):
        super().__init__()
        self.heap, self.plan, self.size, self.die_at = heap, plan, size, die_at

    def update(self, key_states, value_states, layer_idx, *args, **more):
        if layer_idx == self.die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        for plane, values in enumerate((key_states, value_states)):
            kernels.write(self.heap, self.plan, values[0], offset=(2 * layer_idx + plane) * self.size)
        return super().update(key_states, value_states, layer_idx, *args, **more)


def produce(m, cache, i, owner, die_at=None):
    size, ids = layer_bytes(i), prompt(i)
    plan = cache.open_for_write(f'prompt {i}', 2 * LAYERS * size + 8, preferred_segment=owner)
    with torch.no_grad():
        logits = m(ids, past_key_values=Writing(cache, plan, size, die_at), use_cache=True).logits
    kernels.write(cache, plan, logits[0, -1:].argmax(-1), offset=2 * LAYERS * size)
    if i == CANARY:  # as if a layer had gone wrong
        kernels.write(cache, plan, torch.randn(size // 4, generator=torch.Generator().manual_seed(7)) * 3, offset=size)
    kernels.commit(cache, f'prompt {i}')


class InPlace(DynamicCache):
    """A cache of transformers for the tokens that come after a prompt of that length, whose keys and values lie elsewhere."""

    def __init__(self, length):
        super().__init__()
        self.length = length

    def get_seq_length(self, *args, **more):
        return self.length + super().get_seq_length(*args, **more)


def attend_in_place(module, query, key, value, attention_mask, scaling, **more):
    """Attention of one token to the prompt, where module.prompt says that it lies, and to what came after it."""
    grouped = query.view(HEADS, -1, WIDTH)
    before, weight = kernels.attend(query=grouped, scale=scaling, **module.prompt)
    scores = grouped @ key[0].mT * scaling
    part = torch.sigmoid(scores.logsumexp(-1) - weight)[..., None]  # of what came after it
    out = before * (1 - part) + scores.softmax(-1) @ value[0] * part
    return out.view(1, 1, -1, WIDTH), None


AttentionInterface.register('in_place', attend_in_place)


def arrive(cache, i):
    """Waits for the prompt. False: its producer died, and its object went with it."""
    begun, deadline = False, time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            cache.get_location(f'prompt {i}')
            return True
        except tenuto.Again:
            begun = True
        except tenuto.NotFound:
            if begun:
                return False
        time.sleep(.002)
    raise AssertionError(f'prompt {i} does not come')


def go_on(m, kv, first):
    """Tokens from the first one on, and how many were fed to the model for them."""
    tokens, fed = [first], 0
    while len(tokens) < NEW:
        with torch.no_grad():
            logits = m(torch.tensor([[tokens[-1]]]), past_key_values=kv, use_cache=True).logits
        tokens.append(logits[0, -1].argmax(-1).item())
        fed += 1
    return tokens, fed


def decode_in_place(m, cache, i):
    size, length = layer_bytes(i), prompt(i).shape[1]
    with cache.hold(f'prompt {i}') as memory:
        where = cache.get_location(f'prompt {i}')
        cache.remove(f'prompt {i}')  # the lease keeps what is read
        for layer in m.model.layers:
            layer.self_attn.prompt = {'cache': cache, 'meta': where, 'length': length, 'keys': 2 * layer.self_attn.layer_idx * size,
                                      'values': (2 * layer.self_attn.layer_idx + 1) * size}
        m.set_attn_implementation('in_place')
        done = go_on(m, InPlace(length), int.from_bytes(memory[-8:], 'little'))
        m.set_attn_implementation('sdpa')
    return done


def decode_copy(m, cache, i):
    size, length = layer_bytes(i), prompt(i).shape[1]
    into = torch.empty(2 * LAYERS * size + 8, dtype=torch.uint8)
    kernels.read(cache, f'prompt {i}', into)
    cache.remove(f'prompt {i}')
    kv = DynamicCache()
    for layer in range(LAYERS):
        keys, values = (into[(2 * layer + plane) * size:][:size].view(torch.float32).view(1, HEADS, length, WIDTH) for plane in range(2))
        kv.update(keys, values, layer)
    return go_on(m, kv, into[-8:].view(torch.int64).item())


def decode(m, cache, i):
    if not arrive(cache, i):
        return plain(m, i), prompt(i).shape[1] + NEW - 1
    return (decode_in_place if i in IN_PLACE else decode_copy)(m, cache, i)


def main(out, die_at=None):
    m = model()
    with NanoKVCache(8 << 20, page_bytes=16384) as cache:
        half = cache.world_size // 2
        done = {}
        for i in range(PROMPTS + 1):
            producer, owner = half + i % half, i // half % half
            if cache.rank == producer:
                produce(m, cache, i, owner, die_at)
            elif cache.rank == owner:
                done[i] = decode(m, cache, i)
            if die_at is not None:
                break
        if cache.rank < half:
            with open(f'{out}-{cache.rank}', 'w') as f:
                json.dump(done, f)
            assert cache.stats(cache.rank)['leases'] == 0
        deadline = time.monotonic() + 120
        while cache.rank == 0 and any(cache.stats(r)['ready_count'] for r in range(half)) and time.monotonic() < deadline:
            time.sleep(.01)  # the master stays until the other decoder has read all: it removes what it has read
        assert time.monotonic() < deadline
