# SPDX-License-Identifier: Apache-2.0
"""One life of a vLLM engine: generates from the prompts of a job, and writes what came out.

    python vllm_worker.py JOB.json

The job: {"model": ..., "llm": {arguments of LLM}, "transfer": {KVTransferConfig} or null, "prompts": [[token, ...], ...], "rounds": n, "tokens": n,
"reset": forget the engine's own prefixes between rounds, "batch": prompts at a time, "lead": a prompt that comes before all others, "out": PATH, "pause": PATH of a file to make after
each round and then wait for, "mark": PATH of a file to make as soon as "mark_at" prompts were answered, "change": the round before which the weights change,
"what": measurements of feed_worker.py, which takes the place of the rounds, "shutdown": end the engine as a server does, "adapter": PATH of a LoRA adapter, "replicas": engines that vLLM starts for data parallelism; then prompts come one at a time, and most other keys are
not looked at}.
"""
import asyncio
import json
import os
import sys
import threading
import time


def cached_and_metrics(llm):
    """What the engine itself counts."""
    values = {}
    for metric in llm.get_metrics():
        if "prefix_cache" in metric.name or "preemption" in metric.name or "tenuto" in metric.name or "kv_offload" in metric.name:
            values[metric.name] = values.get(metric.name, 0) + getattr(metric, "value", 0)
    return values


def beside_lmcache(site):
    """LMCache lives in an environment of its own. What vLLM scans at a start has an object of numba's then, which has no dictionary."""
    import vllm.triton_utils.dispatcher as dispatcher
    dispatcher.vars = lambda v: v.__dict__ if isinstance(v.__dict__, dict) else {}
    sys.path.append(site)


def other_weights(model):
    """In the worker, as whoever trains a model in place does."""
    import torch
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "qkv_proj" in name or "embed" in name:
                weight.mul_(1.37)
    return True


def change_weights(llm, prompts, sampling):
    """After requests of one token, which end on what was restored for them; the engine must be able to forget at once."""
    for prompt in prompts:
        llm.generate([{"prompt_token_ids": prompt + [7] * 40}], sampling, use_tqdm=False)
    if not llm.llm_engine.engine_core.engine_core.scheduler.reset_prefix_cache(reset_running_requests=True, reset_connector=True):
        raise RuntimeError("the engine could not forget what it had computed")
    llm.apply_model(other_weights)


class Listener(threading.Thread):
    """Reads vLLM's event stream: what of each medium was stored and removed."""

    def __init__(self, endpoint):
        super().__init__(daemon=True)
        import zmq
        self.socket = zmq.Context.instance().socket(zmq.SUB)
        self.socket.connect(endpoint)
        self.socket.setsockopt(zmq.SUBSCRIBE, b"")
        self.stored, self.removed, self.over = {}, {}, False

    def run(self):
        import msgspec
        from vllm.distributed.kv_events import BlockRemoved, BlockStored, KVEventBatch
        decoder = msgspec.msgpack.Decoder(KVEventBatch)
        while not self.over:
            if not self.socket.poll(100):
                continue
            for event in decoder.decode(self.socket.recv_multipart()[-1]).events:
                if isinstance(event, BlockStored):
                    size = event.block_size
                    for i, name in enumerate(event.block_hashes):
                        self.stored.setdefault(str(event.medium), {})[str(name)] = event.token_ids[i * size:(i + 1) * size]
                elif isinstance(event, BlockRemoved):
                    self.removed.setdefault(str(event.medium), []).extend(str(name) for name in event.block_hashes)

    def end(self):
        self.over = True
        self.join()
        self.socket.close()
        return {"stored": self.stored, "removed": self.removed}


def arguments(job):
    """Of an engine."""
    from vllm.config import KVTransferConfig
    transfer = {"kv_transfer_config": KVTransferConfig(**job["transfer"])} if job.get("transfer") else {}
    return {**dict(model=job["model"], enforce_eager=True, dtype="float32", max_model_len=1024, max_num_seqs=8, block_size=32, seed=0, enable_prefix_caching=True,
                   disable_log_stats=False), **job.get("llm", {}), **transfer}


async def replicas(job):
    """Rounds of several engines, whose own prefixes are forgotten between rounds."""
    from vllm import SamplingParams
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments(job), data_parallel_size=job["replicas"]))
    sampling, rounds = SamplingParams(max_tokens=job.get("tokens", 8), temperature=0, ignore_eos=True), []
    for number in range(job["rounds"]):
        outs = []
        for i, prompt in enumerate(job["prompts"]):
            async for out in engine.generate({"prompt_token_ids": prompt}, sampling, f"{number}.{i}"):
                last = out
            outs.append(last)
        rounds.append({"tokens": [list(o.outputs[0].token_ids) for o in outs], "cached": [o.num_cached_tokens for o in outs]})
        await asyncio.sleep(job.get("settle", 0.5))
        if not await engine.reset_prefix_cache():
            raise RuntimeError("the engines do not forget their own prefixes")
    engine.shutdown()
    put(job, {"rounds": rounds, "metrics": {}})


def put(job, result):
    with open(job["out"] + ".part", "w") as f:
        json.dump(result, f)
    os.replace(job["out"] + ".part", job["out"])


def main():
    with open(sys.argv[1]) as f:
        job = json.load(f)
    if job.get("replicas"):
        asyncio.run(replicas(job))
        return
    begun = time.monotonic()
    from vllm import LLM, SamplingParams
    if job.get("latent"):
        import cpu_latent
        cpu_latent.on()
    if job.get("site"):
        beside_lmcache(job["site"])
    extra = {}
    if job.get("events"):
        from vllm.config import KVEventsConfig
        extra["kv_events_config"] = KVEventsConfig(enable_kv_cache_events=True, publisher="zmq", endpoint=job["events"])
    llm = LLM(**arguments(job), **extra)
    listener = Listener(job["events"]) if job.get("events") else None
    if listener:
        listener.start()
        time.sleep(1)
    ready = time.monotonic()
    if job.get("what"):
        import feed_worker
        put(job, feed_worker.run(llm, job))
        return
    sampling = SamplingParams(max_tokens=job.get("tokens", 8), temperature=0, ignore_eos=True)
    rounds, batch = [], job.get("batch", 1)
    if job.get("lead"):
        llm.generate([{"prompt_token_ids": job["lead"]}], sampling, use_tqdm=False)
        time.sleep(job.get("settle", 0.5))
    lora = {}
    if job.get("adapter"):
        from vllm.lora.request import LoRARequest
        lora["lora_request"] = LoRARequest("taught", 1, job["adapter"])
    for number in range(job.get("rounds", 1)):
        if job.get("change") == number:
            change_weights(llm, job["prompts"], SamplingParams(max_tokens=1))
        tokens, cached, times, first = [], [], [], time.monotonic()
        for at in range(0, len(job["prompts"]), batch):
            some = [{"prompt_token_ids": p} for p in job["prompts"][at:at + batch]]
            begun_at = time.perf_counter()
            outs = llm.generate(some, sampling, use_tqdm=False, **lora)
            times.append(time.perf_counter() - begun_at)
            for out in outs:
                tokens.append(list(out.outputs[0].token_ids))
                cached.append(out.num_cached_tokens)
            if job.get("mark") and at >= job["mark_at"] and not os.path.exists(job["mark"]):
                open(job["mark"], "w").close()
        rounds.append({"tokens": tokens, "cached": cached, "times": times, "seconds": time.monotonic() - first})
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
    if listener:
        time.sleep(1)
        result["events"] = listener.end()
    if job.get("shutdown"):
        llm.llm_engine.engine_core.shutdown()
    put(job, result)


if __name__ == "__main__":
    main()
