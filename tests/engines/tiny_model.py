# SPDX-License-Identifier: Apache-2.0
"""Makes a model with random weights and a tokenizer of single bytes: python tiny_model.py DIR [llama | gemma3 | deepseek | long].

llama     4 layers, 4 heads, 2 KV heads of 64
gemma3    4 layers, every second one sees a window of 64 tokens: two groups of KV blocks
deepseek  2 layers of latent attention (MLA), one latent of 576 for all heads
long      1 layer, 1 head of 64, for 160,000 tokens
"""
import sys

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SHAPE = dict(vocab_size=512, hidden_size=256, intermediate_size=512, num_attention_heads=4, bos_token_id=0, eos_token_id=1, pad_token_id=2)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **SHAPE, num_hidden_layers=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096, tie_word_embeddings=False, initializer_range=0.2))


def gemma3():
    return transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **SHAPE, num_hidden_layers=4, num_key_value_heads=2, head_dim=64, max_position_embeddings=4096, sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2, initializer_range=0.2))


def long():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **{**SHAPE, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 1}, num_hidden_layers=1, num_key_value_heads=1, head_dim=64,
        max_position_embeddings=160000, tie_word_embeddings=False, initializer_range=0.2))


def deepseek():
    return transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(
        **SHAPE, num_hidden_layers=2, num_key_value_heads=4, max_position_embeddings=2048, moe_intermediate_size=128, kv_lora_rank=512, q_lora_rank=None,
        qk_rope_head_dim=64, qk_nope_head_dim=64, v_head_dim=64, n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=2,
        initializer_range=0.2))


def main():
    out, kind = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "llama"
    special = ["<s>", "</s>", "<pad>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(special + letters)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>").save_pretrained(out)
    torch.manual_seed(1)
    {"llama": llama, "gemma3": gemma3, "deepseek": deepseek, "long": long}[kind]().to(torch.float32).save_pretrained(out)


if __name__ == "__main__":
    main()
