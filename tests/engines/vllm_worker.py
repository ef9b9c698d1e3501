# SPDX-License-Identifier: Apache-2.0
"""One life of a vLLM engine: generates from the prompts of a job, and writes what came out.

    python vllm_worker.py JOB.json

The job: {"model": ..., "llm": {arguments of LLM}, "transfer": {KVTransferConfig} or null, "prompts": [[token, ...], ...], "rounds": n, "tokens": n,
"reset": forget the engine's own prefixes between rounds, "batch": prompts at a time, "out": PATH, "pause": PATH of a file to make after
each round and then wait for, "mark": PATH of a file to make as soon as "mark_at" prompts were answered}.
"""
import json
import os
import sys
import time


def cached_and_metrics(llm):
    """What the engine itself counts."""
    values = {}
    for metric in llm.get_metrics():
        if "prefix_cache" in metric.name or "preemption" in metric.name or "tenuto" in metric.name or "kv_offload" in metric.name:
            values[metric.name] = values.get(metric.name, 0) + getattr(metric, "value", 0)
    return values


def main():
    with open(sys.argv[1]) as f:
        job = json.load(f)
    begun = time.monotonic()
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig
    extra = {}
    if job.get("transfer"):
        extra["kv_transfer_config"] = KVTransferConfig(**job["transfer"])
    if job.get("events"):
        from vllm.config import KVEventsConfig
        extra["kv_events_config"] = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=job["events"])
    llm = LLM(**{**dict(model=job["model"], enforce_eager=True, dtype="float32", max_model_len=1024, max_num_seqs=8, block_size=32, seed=0,
                        enable_prefix_caching=True, disable_log_stats=False), **job.get("llm", {}), **extra})
    ready = time.monotonic()
    sampling = SamplingParams(max_tokens=job.get("tokens", 8), temperature=0, ignore_eos=True)
    rounds, batch = [], job.get("batch", 1)
    for number in range(job.get("rounds", 1)):
        tokens, cached, first = [], [], time.monotonic()
        for at in range(0, len(job["prompts"]), batch):
            some = [{"prompt_token_ids": p} for p in job["prompts"][at:at + batch]]
            for out in llm.generate(some, sampling, use_tqdm=False):
                tokens.append(list(out.outputs[0].token_ids))
                cached.append(out.num_cached_tokens)
            if job.get("mark") and at >= job["mark_at"] and not os.path.exists(job["mark"]):
                open(job["mark"], "w").close()
        rounds.append({"tokens": tokens, "cached": cached, "seconds": time.monotonic() - first})
        if job.get("reset"):
            for _ in range(200):
                if llm.reset_prefix_cache():
                    break
                llm.generate([{"prompt_token_ids": [3]}], SamplingParams(max_tokens=1), use_tqdm=False)
            time.sleep(job.get("settle", 0.5))
        if job.get("pause") and number + 1 < job.get("rounds", 1):
            open(job["pause"] + f".{number}", "w").close()
            while os.path.exists(job["pause"] + f".{number}"):
                time.sleep(0.05)
    result = {"rounds": rounds, "metrics": cached_and_metrics(llm), "start_seconds": ready - begun}
    with open(job["out"] + ".part", "w") as f:
        json.dump(result, f)
    os.replace(job["out"] + ".part", job["out"])


if __name__ == "__main__":
    main()
