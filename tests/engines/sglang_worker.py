# SPDX-License-Identifier: Apache-2.0
"""One life of an SGLang engine on a CPU: generates from the prompts of a job, and writes what came out.

    python sglang_worker.py JOB.json

The job: {"model": ..., "engine": {arguments of Engine}, "prompts": [[token, ...], ...], "rounds": n, "tokens": n, "lead": a prompt that comes before all others,
"settle": seconds after a round for what is saved in the background, "out": PATH, "pause": PATH of a file to make after each round and then wait for}.
Between rounds the engine forgets its own prefixes. With CPU_EXTEND in the environment: cpu_extend.py.
"""
import json
import os
import sys
import time

if os.environ.get("CPU_EXTEND"):  # here, because SGLang's own processes begin with this file, too
    import cpu_extend
    cpu_extend.on()


def main():
    with open(sys.argv[1]) as f:
        job = json.load(f)
    import sglang
    engine = sglang.Engine(**{**dict(
        model_path=job["model"], device="cpu", attention_backend="torch_native", sampling_backend="pytorch", dtype="float32", disable_cuda_graph=True,
        disable_overlap_schedule=True, mem_fraction_static=0.1, max_total_tokens=8192, context_length=1024, page_size=16, random_seed=0, skip_server_warmup=True,
        grammar_backend="none", log_level="info"), **job.get("engine", {})})
    sampling, rounds = {"max_new_tokens": job.get("tokens", 8), "temperature": 0, "ignore_eos": True}, []
    if job.get("lead"):
        engine.generate(input_ids=job["lead"], sampling_params=sampling)
    for number in range(job.get("rounds", 1)):
        tokens, cached, times = [], [], []
        for prompt in job["prompts"]:
            begun = time.perf_counter()
            answer = engine.generate(input_ids=prompt, sampling_params=sampling)
            times.append(time.perf_counter() - begun)
            tokens.append(answer["output_ids"])
            cached.append({"all": answer["meta_info"]["cached_tokens"], **(answer["meta_info"].get("cached_tokens_details") or {})})
        rounds.append({"tokens": tokens, "cached": cached, "times": times})
        time.sleep(job.get("settle", 1))
        engine.flush_cache()
        if job.get("pause") and number + 1 < job.get("rounds", 1):
            open(job["pause"] + f".{number}", "w").close()
            while os.path.exists(job["pause"] + f".{number}"):
                time.sleep(0.05)
    with open(job["out"] + ".part", "w") as f:
        json.dump({"rounds": rounds}, f)
    os.replace(job["out"] + ".part", job["out"])
    engine.shutdown()


if __name__ == "__main__":
    main()
