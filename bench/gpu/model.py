# SPDX-License-Identifier: Apache-2.0
"""A model of Llama-3-8B's shape with random weights, or a tiny one, and an attention that does without a mask.

transformers gives sdpa a mask of input x all tokens when a prefix is there: 8 GB at 64K tokens. A causal bias of torch has the same result without one, where
the kernels take it; which call does is tried on a small input first, against the plain product.
"""
import torch
from torch.nn.attention.bias import causal_lower_right
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

SMALL = {'vocab_size': 512, 'hidden_size': 128, 'intermediate_size': 256, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2}
LLAMA_3_8B = {'vocab_size': 128256, 'hidden_size': 4096, 'intermediate_size': 14336, 'num_hidden_layers': 32, 'num_attention_heads': 32,
              'num_key_value_heads': 8, 'rope_parameters': {'rope_type': 'default', 'rope_theta': 500000.0}}


def repeated(query, key, value):
    groups = query.shape[1] // key.shape[1]
    return key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)


def by_groups(query, key, value, scale):
    bias = causal_lower_right(query.shape[2], key.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias, scale=scale, enable_gqa=True)


def by_copies(query, key, value, scale):
    bias = causal_lower_right(query.shape[2], key.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(query, *repeated(query, key, value), attn_mask=bias, scale=scale)


def by_mask(query, key, value, scale):
    mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device).tril(key.shape[2] - query.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(query, *repeated(query, key, value), attn_mask=mask, scale=scale)


def right(attention, device, dtype, input_tokens, tokens):
    """Whether an attention gives what the plain product does."""
    shape, groups = (1, 8, input_tokens, 128), 4
    generator = torch.Generator(device=device).manual_seed(1)
    query, key, value = (torch.randn(s, generator=generator, device=device).to(dtype) for s in (shape, (1, 8 // groups, tokens, 128), (1, 8 // groups, tokens, 128)))
    wide_key, wide_value = (t.double() for t in repeated(query, key, value))
    scores = query.double() @ wide_key.transpose(2, 3) * 128 ** -0.5
    scores.masked_fill_(torch.ones_like(scores, dtype=torch.bool).triu(tokens - input_tokens + 1), float('-inf'))
    try:
        got = attention(query, key, value, 128 ** -0.5)
    except (RuntimeError, TypeError):  # versions of torch differ in what they take
        return False
    return got.shape == shape and bool(((got.double() - scores.softmax(-1) @ wide_value).abs() < 0.05).all())


def choose(device, dtype):
    """The first attention that is right with and without a prefix."""
    for attention in (by_groups, by_copies):
        if all(right(attention, device, dtype, n, 200) for n in (200, 72, 1)):
            return attention
    return by_mask


def made(device, small):
    """The model, and the name of its attention."""
    dtype = torch.float32 if small else torch.bfloat16
    attention = choose(device, dtype)

    def forward(module, query, key, value, attention_mask, scaling=None, **more):
        return attention(query, key, value, scaling).transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register('causal', forward)
    config = LlamaConfig(max_position_embeddings=131072, attn_implementation='causal', **(SMALL if small else LLAMA_3_8B))
    config.dtype = dtype
    before = torch.get_default_dtype()
    torch.manual_seed(1)
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)
    return model.eval(), attention.__name__
