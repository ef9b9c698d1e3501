# SPDX-License-Identifier: Apache-2.0
"""SGLang's attention for CPUs computes a query for every token of a prompt, also for those of a restored prefix, and throws the prefix's away. on() computes those of the
new tokens only, as SGLang's attention does on other machines: otherwise it is most of the time of a prompt whose prefix was found.
"""
import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from torch.nn.functional import scaled_dot_product_attention


def on():
    whole = TorchNativeAttnBackend._run_sdpa_forward_extend

    def extend(self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, extend_prefix_lens, extend_seq_lens, encoder_lens=None, *,
               scaling=None, enable_gqa=False, causal=False, is_cross_attn=False, sliding_window_size=None):
        windowed = sliding_window_size is not None and sliding_window_size > -1
        if len(seq_lens) != 1 or int(extend_prefix_lens[0]) == 0 or not causal or encoder_lens is not None or windowed:
            return whole(self, query, output, k_cache, v_cache, req_to_token, req_pool_indices, seq_lens, extend_prefix_lens, extend_seq_lens, encoder_lens,
                         scaling=scaling, enable_gqa=enable_gqa, causal=causal, is_cross_attn=is_cross_attn, sliding_window_size=sliding_window_size)
        n, length = int(extend_seq_lens[0]), int(seq_lens[0])
        tokens = req_to_token[req_pool_indices[0], :length]
        key, value = (cache[tokens].movedim(0, 1).to(query.dtype) for cache in (k_cache, v_cache))
        mask = torch.ones(n, length, dtype=torch.bool).tril(length - n)
        out = scaled_dot_product_attention(query[:n].movedim(0, 1)[None], key[None], value[None], attn_mask=mask, enable_gqa=enable_gqa, scale=scaling)
        output[:n] = out[0].movedim(1, 0)
        return output

    TorchNativeAttnBackend._run_sdpa_forward_extend = extend
