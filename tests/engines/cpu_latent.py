# SPDX-License-Identifier: Apache-2.0
"""vLLM's latent attention on CPUs with a prefix: vLLM turns prefix caching and chunked prefill off for it on CPUs without AMX, though all of its code for
prefixes is there. on() turns both on again: the reference and the engine with Tenuto then split a prefill in the same way.
"""
from vllm.platforms.cpu import CpuPlatform


def on():
    decide = CpuPlatform.check_and_update_config.__func__

    def with_prefixes(cls, config):
        chunk, tokens = config.scheduler_config.enable_chunked_prefill, config.scheduler_config.max_num_batched_tokens
        decide(cls, config)
        config.scheduler_config.enable_chunked_prefill, config.scheduler_config.max_num_batched_tokens = chunk, tokens
        config.cache_config.enable_prefix_caching = True

    CpuPlatform.check_and_update_config = classmethod(with_prefixes)
