# SPDX-License-Identifier: Apache-2.0
"""One process of test_hf.py: ROLE DIR. `save` computes prompts without a cut and saves their prefixes; `restore` restores them, goes on and compares every bit."""
import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

import tenuto
from tenuto.hf import Prefixes, past

ROLE, DIR = sys.argv[1:]
DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16}
# Aligned: the prefix is all of the prompt but its last token; unaligned: tokens are left behind the last whole block.
LENGTHS = (4097, 4000)
SHARED = 3000  # the third prompt has so many tokens in common with the first


def model(dtype):
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=128, num_hidden_layers=3, num_attention_heads=8, num_key_value_heads=4,
                         max_position_embeddings=8192)
    return LlamaForCausalLM(config).to(dtype).eval()


def prompts(name):
    generator = torch.Generator().manual_seed(len(name))
    out = {n: torch.randint(512, (1, n), generator=generator) for n in LENGTHS}
    third = torch.randint(512, (1, LENGTHS[0]), generator=generator)
    third[:, :SHARED] = out[LENGTHS[0]][:, :SHARED]
    out['shared'] = third
    return out


def go_on(m, ids, kv):
    """Logits of the rest of a prompt and of eight more tokens."""
    logits = []
    rest = ids[:, kv.get_seq_length():]
    for _ in range(9):
        out = m(input_ids=rest, **past(m, kv), use_cache=True)
        logits.append(out.logits[:, -1:].clone())
        rest = out.logits[:, -1:].argmax(-1)
    return torch.cat(logits, 1)


def share(kv, rank, size):
    """The KV heads of one TP rank, as a transformers cache."""
    layers = [DynamicLayer() for _ in kv.layers]
    for mine, layer in zip(layers, kv.layers):
        heads = layer.keys.shape[1] // size
        mine.update(layer.keys[:, rank * heads:(rank + 1) * heads], layer.values[:, rank * heads:(rank + 1) * heads])
    return Cache(layers=layers)


def save(cache):
    for name, dtype in DTYPES.items():
        m, expected, first = model(dtype), {}, []
        store = Prefixes(cache, m.config, 'm', dtype=dtype)
        for n, ids in prompts(name).items():
            kv = DynamicCache(config=m.config)
            if n == 'shared':  # another split of the prefill would change bits: what this process still has of the first prompt is the reference
                cut = SHARED // store.block_tokens * store.block_tokens
                for i, (keys, values) in enumerate(first):
                    kv.update(keys[:, :, :cut].contiguous(), values[:, :, :cut].contiguous(), i)
            else:
                cut = (ids.shape[1] - 1) // store.block_tokens * store.block_tokens
                saving = store.saving(ids[:, :cut], kv)
                m(input_ids=ids[:, :cut], **past(m, kv), use_cache=True, logits_to_keep=1)
                assert saving.finish().stored == cut // store.block_tokens, saving.result
            if n == LENGTHS[0]:
                first = [(layer.keys.clone(), layer.values.clone()) for layer in kv.layers]
            if n in LENGTHS:
                for rank in range(2):
                    two = Prefixes(cache, m.config, 'tp', dtype=dtype, tp_rank=rank, tp_size=2)
                    assert two.save(ids[:, :cut], share(kv, rank, 2)).stored == cut // store.block_tokens
            expected[n] = (cut, go_on(m, ids, kv))
        torch.save(expected, os.path.join(DIR, name))
    cache.flush()


def restore(cache):
    for name, dtype in DTYPES.items():
        m, expected = model(dtype), torch.load(os.path.join(DIR, name))
        store = Prefixes(cache, m.config, 'm', dtype=dtype)
        for n, ids in prompts(name).items():
            for lazy in (True, False):
                kv, restored = store.restore(ids, lazy=lazy)
                cut, logits = expected[n]
                assert restored == cut == kv.get_seq_length(), (name, n, restored, cut)
                assert torch.equal(go_on(m, ids, kv), logits), (name, n, lazy)
            if n in LENGTHS:
                for size in (1, 4):
                    assert torch.equal(go_on(m, ids, joined(cache, m.config, dtype, ids, size, cut)), logits), (name, n, size)
        canary(store, m, prompts(name)[LENGTHS[0]], expected[LENGTHS[0]][1])
    misses(cache, store, m)


def joined(cache, config, dtype, ids, size, cut):
    """What two shares have saved, restored as size shares; their KV heads side by side again, for a model in one piece."""
    shares = []
    for rank in range(size):
        kv, restored = Prefixes(cache, config, 'tp', dtype=dtype, tp_rank=rank, tp_size=size).restore(ids, stored_tp=2)
        assert restored == cut and kv.layers[0].keys.shape[1] == config.num_key_value_heads // size, (restored, cut, size, rank)
        shares.append(kv)
    whole = DynamicCache(config=config)
    for i in range(config.num_hidden_layers):
        whole.update(torch.cat([kv.layers[i].keys for kv in shares], 1), torch.cat([kv.layers[i].values for kv in shares], 1), i)
    return whole


def canary(store, m, ids, logits):
    """Restored bytes are what the model computes with: others give other logits."""
    kv, _ = store.restore(ids)
    kv.layers[1].keys[0, 0, 5] += 1
    assert not torch.equal(go_on(m, ids, kv), logits)


def misses(cache, store, m):
    """A damaged or dropped block is a shorter prefix, also when it is missed in the middle of a forward pass."""
    ids = prompts('bf16')[LENGTHS[1]]
    kv, n = store.prefill(m, ids)
    end = kv.get_seq_length()
    assert n == end == (LENGTHS[1] - 1) // store.block_tokens * store.block_tokens
    del kv  # its blocks are held until the model reaches them
    keys = store.keys(ids)
    store.space.drop_blocks(keys[5 * tenuto.KEY_BYTES:6 * tenuto.KEY_BYTES])
    assert store.match(ids) == 5 * store.block_tokens
    kv, n = store.prefill(m, ids)
    assert n == 5 * store.block_tokens and kv.get_seq_length() == end
    assert store.match(ids) == end  # and it is there again


torch.set_num_threads(1)  # another number of threads may add in another order
with torch.no_grad(), tenuto.Cache(DIR, disk_bytes=512 << 20, policy='lru') as opened:
    {'save': save, 'restore': restore}[ROLE](opened)
print('done')
