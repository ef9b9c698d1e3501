# SPDX-License-Identifier: Apache-2.0
"""The engines of first_token.py, and for each the ways in which it can keep KV: its own disk tier, Tenuto, nothing.

An engine's class is a context; life() is one life of the engine with one way, and returns what came out: times, tokens, cached. What is measured and told is
first_token.py's.
"""
import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, 'tests/engines'))

import lmcache_runs  # noqa: E402
import run_sglang  # noqa: E402
from checks import connector  # noqa: E402
from lab import Lab  # noqa: E402

NOTHING = 'computed'
LENGTH = 4096  # tokens that an engine's context has room for


def tiered(args, **secondary):
    return {'kv_connector': 'OffloadingConnector', 'kv_role': 'kv_both', 'kv_connector_extra_config': {
        'spec_name': 'CpuTiering', 'spec_module_path': 'cpu_tiering', 'cpu_bytes_to_use': args.host_bytes, 'block_size': args.chunk_tokens,
        'secondary_tiers': [secondary]}}


class Vllm:
    """vLLM. Both tiers lie below its offloading to host memory, whose copy kernel is CUDA's: tests/engines/cpu_tiering.py stands in for that copy, for both."""
    versions, needs, marks = 'vLLM 0.32.0', 'vllm-cpu/bin/python', 'first token'
    chunk_tokens, chunks = 256, 15
    own = ("vLLM's fs tier",)
    ways = {
        NOTHING: lambda args, where: None,
        "vLLM's fs tier": lambda args, where: tiered(args, type='fs', root_dir=where),
        "Tenuto's tier": lambda args, where: tiered(args, type='TenutoTier', module_path='tenuto.vllm.tier', path=where, disk_bytes=args.disk_bytes),
        "Tenuto's connector": lambda args, where: connector(path=where, disk_bytes=args.disk_bytes),
    }

    def __init__(self, args, prompts):
        args.prompts = 0
        self.args, self.lab = args, Lab(args)
        self.lab.prompts = prompts

    def __enter__(self):
        self.lab.__enter__()
        return self

    def __exit__(self, *exception):
        self.lab.__exit__(*exception)

    def _with(self, way, where, **job):
        return self.lab.live(self.ways[way](self.args, where), **job)

    def life(self, way, where, filling=False, **job):
        more = {'rounds': 2, 'reset': True, 'settle': 2} if filling else {}
        got = self._with(way, where, tokens=1, llm={'max_model_len': LENGTH}, **more, **job)
        return got['rounds'][0] | {'start_seconds': got['start_seconds']}


class Lmcache(Vllm):
    """LMCache's server with vLLM on top: server and engine are restarted. The ways differ in the server's L2 adapter."""
    versions, needs, marks = 'LMCache 0.5.6 with vLLM 0.32.0', 'vllm-lmcache/bin/lmcache', 'first token, LMCache'
    own = ("LMCache's fs", "LMCache's fs_native")
    ways = {
        NOTHING: lambda args, where: None,
        "LMCache's fs": lambda args, where: {'type': 'fs', 'base_path': where, 'use_odirect': True},
        "LMCache's fs_native": lambda args, where: {'type': 'fs_native', 'base_path': where, 'use_odirect': True},
        'Tenuto': lambda args, where: lmcache_runs.adapter(path=where, disk_bytes=args.disk_bytes),
    }

    def _with(self, way, where, **job):
        below = self.ways[way](self.args, where)
        if below is None:
            return self.lab.live(None, **job)
        with lmcache_runs.Server(self.lab, below, chunk_tokens=self.args.chunk_tokens, memory_gb=self.args.host_bytes / 2**30) as server:
            return server.live(**job)


class Sglang:
    """SGLang's HiCache. What stands in for kernels that SGLang has for other machines only, and for its attention (cpu_extend.py), is the same for all ways."""
    versions, needs, marks = 'SGLang 0.5.23', 'sglang/bin/python', 'first token, SGLang'
    chunk_tokens, chunks = 64, 60
    own = ("SGLang's file backend",)
    ways = {
        NOTHING: lambda args, where: {},
        "SGLang's file backend": lambda args, where: run_sglang.hicache(backend='file'),
        'Tenuto': lambda args, where: run_sglang.hicache(path=where, disk_bytes=args.disk_bytes),
    }

    def __init__(self, args, prompts):
        args.prompts = 0
        self.args, self.lab = args, run_sglang.Lab(args)
        self.lab.prompts = prompts

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.lab.close()

    def life(self, way, where, filling=False, **job):
        engine = {**self.ways[way](self.args, where), 'page_size': self.args.chunk_tokens, 'context_length': LENGTH}
        env = {'SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR': where, 'CPU_EXTEND': '1'}
        got = self.lab.live(engine, env=env, tokens=1, settle=4 if filling else 1, **job)[0]
        return got | {'cached': [c['all'] for c in got['cached']]}


ENGINES = {'vllm': Vllm, 'lmcache': Lmcache, 'sglang': Sglang}
