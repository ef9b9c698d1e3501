# SPDX-License-Identifier: Apache-2.0
"""What the scenarios of run.py share: configurations of vLLM with Tenuto, and what must hold of the lives of an engine."""
import json
import os


class Failed(Exception):
    pass


def connector(**extra):
    """All that is found is restored, unless a scenario is about what is worth it: the tiny models compute fast."""
    extra = {"plan": "off", **extra}
    return {"kv_connector": "TenutoConnector", "kv_connector_module_path": "tenuto.vllm.connector", "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": extra}


def tier(**extra):
    return {"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "CpuTiering", "spec_module_path": "cpu_tiering", "cpu_bytes_to_use": 64 << 20, "block_size": 32,
        "secondary_tiers": [{"type": "TenutoTier", "module_path": "tenuto.vllm.tier", **extra}]}}


def canary(transfer):
    text = json.dumps(transfer)
    return json.loads(text.replace("TenutoConnector", "CanaryConnector").replace("TenutoTier", "CanaryTier").replace("tenuto.vllm.connector", "canary")
                      .replace("tenuto.vllm.tier", "canary"))


# ---- what must hold ---------------------------------------------------------------------------------------------------

def hits(result):
    """Tokens that came from outside the engine, as vLLM counts them."""
    return int(result["metrics"].get("vllm:external_prefix_cache_hits", 0))


def same(lab, result, reference=None):
    """How many prompts had the reference's tokens; all, or Failed."""
    reference = reference or lab.reference
    for i, r in enumerate(result["rounds"]):
        wrong = [n for n, (a, b) in enumerate(zip(r["tokens"], reference)) if a != b]
        if wrong or len(r["tokens"]) != len(reference):
            raise Failed(f"round {i}: prompts {wrong[:10]} have other tokens than the reference")
    return sum(len(r["tokens"]) for r in result["rounds"])


def need(condition, text):
    if not condition:
        raise Failed(text)


def flip(store):
    """One bit of the first block's KV in a closed store: the first 128 KiB that look like numbers, and not like tables."""
    path, page, run = os.path.join(store, "default", "tenuto.store"), 4096, 0
    with open(path, "r+b") as f:
        for at in range(0, os.path.getsize(path), page):
            run = run + 1 if len(set(f.read(page))) > 150 else 0
            if run == 32:
                break
        need(run == 32, "no data in the store")
        f.seek(at - 16 * page + 5)
        byte = f.read(1)[0]
        f.seek(at - 16 * page + 5)
        f.write(bytes([byte ^ 0x10]))


def three_rounds(lab, make, settle=0.5, **job):
    """Cold, warm, and after a restart of the whole engine; against the same engine without Tenuto."""
    reference = lab.answers_without(**job) if job else lab.reference
    first = lab.live(make, rounds=2, reset=True, settle=settle, **job)
    n = same(lab, first, reference)
    warm = hits(first)
    second = lab.live(make, rounds=1, **job)
    n += same(lab, second, reference)
    need(warm > 0, "no hits in the second round")
    need(hits(second) > 0, "no hits after the restart")
    return f"{n} answers equal; {warm:,} tokens from Tenuto in the warm round, {hits(second):,} after the restart of the engine"


def tier_twice(lab, make, **job):
    """Cold, and after a restart: with the tier, the warm round of one life is vLLM's own host memory."""
    reference = lab.answers_without(**job) if job else lab.reference
    first, second = lab.live(make, **job), lab.live(make, **job)
    loaded = int(second["metrics"].get("vllm:tenuto_tier_loaded_chunks", 0))
    need(loaded > 0, "the tier loaded nothing after the restart")
    return f"{same(lab, first, reference) + same(lab, second, reference)} answers equal; {loaded} chunks loaded after the restart, {hits(second):,} tokens"
