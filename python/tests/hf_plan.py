# SPDX-License-Identifier: Apache-2.0
"""Processes of test_hf.py: ROLE DIR. `learn` computes prompts and keeps what it has learned; `slow` and `fast` begin with that on a disk that is described so."""
import logging
import os
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tenuto
from tenuto.hf import Prefixes, past

ROLE, DIR = sys.argv[1:]
LENGTHS = (600, 1100, 2000)
MIX = 'tenuto-mix 1\nsource a test\nmeasured_s 0\nread_bps {0}\nwrite_bps {0}\nmixed_bps {0}\nread_latency_ns 1000\nwrite_latency_ns 1000\n'


def first_token(store, m, ids):
    kv, n = store.prefill(m, ids)
    out = m(input_ids=ids[:, kv.get_seq_length():], **past(m, kv), use_cache=True, logits_to_keep=1)
    return int(out.logits[0, -1].argmax()), n


def main(cache):
    torch.manual_seed(1)
    m = LlamaForCausalLM(LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4)).eval()
    prompts = [torch.randint(512, (1, n), generator=torch.Generator().manual_seed(n)) for n in LENGTHS]
    with Prefixes(cache, m.config, 'plan') as store:
        whole = [(n - 1) // store.block_tokens * store.block_tokens for n in LENGTHS]
        got = [first_token(store, m, ids) for ids in prompts]
        if ROLE == 'learn':
            assert store.space.slack()  # of prompts that were computed, without a load
        assert [n for _, n in got] == {'learn': [0, 0, 0], 'slow': [0, 0, 0], 'fast': whole}[ROLE], got
        if ROLE == 'slow':  # the same blocks are there: it is a choice
            found = [store.restore(prompts[0], lazy=True)[1] for _ in range(64 - len(prompts))]  # one in 32 looks whether the disk is still slow
            assert [i + len(prompts) + 1 for i, n in enumerate(found) if n][:1] == [32], found
            off = Prefixes(cache, m.config, 'plan', plan='off')
            assert [first_token(off, m, ids) for ids in prompts] == [(token, n) for (token, _), n in zip(got, whole)], got
            for name, dtype in (('other', torch.float32), ('plan', torch.bfloat16)):
                assert not Prefixes(cache, m.config, name, dtype=dtype).space.slack(), (name, dtype)
    print('tokens', *[token for token, _ in got])
    if ROLE == 'learn':
        cache.flush()


logging.basicConfig(level=logging.INFO, format='%(message)s')
torch.set_num_threads(1)
if ROLE != 'learn':
    with open(os.path.join(DIR, 'tenuto.mix'), 'w', encoding='ascii') as file:
        file.write(MIX.format({'slow': 100000, 'fast': 100000000000}[ROLE]))
with torch.no_grad(), tenuto.Cache(DIR, disk_bytes=64 << 20, policy='lru') as opened:
    main(opened)
