# SPDX-License-Identifier: Apache-2.0
"""Makes a Llama with random weights (4 layers, 4 heads, 2 KV heads of 64) and a tokenizer of single bytes: python tiny_model.py DIR."""
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def main():
    out = sys.argv[1]
    special = ["<s>", "</s>", "<pad>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(special + letters)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>").save_pretrained(out)
    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=512, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
                         max_position_embeddings=4096, bos_token_id=0, eos_token_id=1, pad_token_id=2, tie_word_embeddings=False, initializer_range=0.2)
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(out)


if __name__ == "__main__":
    main()
