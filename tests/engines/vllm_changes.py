# SPDX-License-Identifier: Apache-2.0
"""vLLM whose weights or adapters change, that has many prompts at once, long ones, or several engines. Each function is a scenario of run.py."""
import os
import shutil
import subprocess

import checks
import lab as engines

#: Prompts of four blocks, all different, that come together.
MANY = {"batch": 100, "llm": {"max_num_seqs": 128, "max_num_batched_tokens": 16384}}


def many(lab, make, **job):
    prompts = [engines.prompt(130, seed) for seed in range(100)]
    reference = lab.answers_without(prompts=prompts, **MANY)
    result = lab.live(make, rounds=2, reset=True, settle=1, prompts=prompts, **MANY, **job)
    told = {name: int(result["metrics"].get(f"vllm:tenuto_{name}_blocks", 0)) for name in ("save_stored", "save_dropped", "load_failed")}
    checks.need(told == {"save_stored": 400, "save_dropped": 0, "load_failed": 0}, f"blocks: {told}")
    cached = sum(result["rounds"][1]["cached"])
    checks.need(cached == 12800, f"{cached:,} of 12,800 tokens were found in the second round")
    return f"{checks.same(lab, result, reference)} answers equal; of 100 prompts at once all 400 blocks saved, and {cached:,} tokens found"


def scenario_many(lab):
    return many(lab, checks.connector(path=lab.fresh("n1"), disk_bytes="1GiB"))


def scenario_many_async(lab):
    return many(lab, checks.connector(path=lab.fresh("n2"), disk_bytes="1GiB", load="async"))


def scenario_many_turns(lab):
    """Eight operations at a time: the others wait for their turn, also when no request is left. In one process nobody steps then."""
    make = checks.connector(path=lab.fresh("n3"), disk_bytes="1GiB", load="async", max_ops=8)
    return many(lab, make, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})


def changed(lab, make, **job):
    """The weights change before the second of three rounds, and the engine starts again with those that it had first."""
    job = {**job, "env": {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}}
    other = lab.live(None, change=0, **job)["rounds"][0]["tokens"]
    checks.need(other != lab.reference, "other weights give the same answers: there is nothing to see")
    first = lab.live(make, rounds=3, change=1, reset=True, **job)
    n = checks.same(lab, {"rounds": first["rounds"][:1]}) + checks.same(lab, {"rounds": first["rounds"][1:]}, other)
    again = sum(first["rounds"][2]["cached"]) - sum(first["rounds"][1]["cached"])
    second = lab.live(make, **job)
    checks.need(checks.hits(second) > 0, "nothing of the first weights was found after the restart")
    return n + checks.same(lab, second), again, second


def told_of(n, again, second):
    checks.need(again > 0, "nothing that the new weights had computed was found")
    return f"{n} answers equal to an engine's that has these weights; {again:,} tokens of the new weights found, {checks.hits(second):,} of the first after a restart"


def scenario_reset(lab):
    return told_of(*changed(lab, checks.connector(path=lab.fresh("x1"), disk_bytes="1GiB")))


def scenario_reset_async(lab):
    return told_of(*changed(lab, checks.connector(path=lab.fresh("x2"), disk_bytes="1GiB", load="async")))


def scenario_reset_tier(lab):
    n, _, second = changed(lab, checks.tier(path=lab.fresh("x3"), disk_bytes="1GiB"))
    return f"{n} answers equal to an engine's that has these weights; {checks.hits(second):,} tokens of the first weights found after a restart"


def scenario_adapter(lab):
    """A LoRA adapter that is trained again, and written where it was."""
    make, path = checks.connector(path=lab.fresh("a1"), disk_bytes="1GiB"), os.path.join(lab.dir, "adapter")
    job = {"adapter": path, "llm": {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}}

    def train(seed):
        shutil.rmtree(path, ignore_errors=True)
        subprocess.run([lab.python, os.path.join(engines.HERE, "tiny_adapter.py"), path, str(seed), lab.model], check=True, capture_output=True)

    train(1)
    old, first = (lab.live(m, **job)["rounds"][0]["tokens"] for m in (None, make))
    checks.need(first == old, "the first adapter's answers are others with Tenuto")
    train(2)
    reference = lab.live(None, **job)["rounds"][0]["tokens"]
    checks.need(reference != old, "both adapters give the same answers: there is nothing to see")
    again, warm = lab.live(make, **job), lab.live(make, **job)
    found = checks.hits(again), checks.hits(warm)
    checks.need(found[1] > found[0], f"tokens found: {found[0]} of the adapter that was trained again, {found[1]} after a restart")
    return f"{checks.same(lab, again, reference) + checks.same(lab, warm, reference)} answers equal to the new adapter's; {checks.hits(warm):,} tokens found after a restart"


def scenario_replicas(lab):
    """Two engines of data parallelism with the option path: the second one uses the first one's cache."""
    prompts = lab.prompts[:10]
    result = lab.live(checks.connector(path=lab.fresh("r1"), disk_bytes="1GiB"), replicas=2, rounds=2, prompts=prompts, env={"VLLM_ENABLE_V1_MULTIPROCESSING": "1"})
    cold, warm = (sum(r["cached"]) for r in result["rounds"])
    whole = sum((len(p) - 1) // 32 * 32 for p in prompts)
    checks.need(warm == whole, f"{warm:,} of {whole:,} tokens were found in the second round, {cold:,} in the first")
    return f"{checks.same(lab, result, lab.reference[:10])} answers equal; all {warm:,} tokens found by two engines in one cache (10 prompts)"


def scenario_long(lab):
    """More blocks than an operation takes."""
    tokens = 140000
    job = {"model": lab.other_model("long"), "prompts": [engines.prompt(tokens, 1)], "llm": {"max_model_len": 150000, "max_num_batched_tokens": 8192}}
    make = checks.connector(path=lab.fresh("g1"), disk_bytes="2GiB", max_op_blocks=1024)
    reference = lab.answers_without(**job)
    result = lab.live(make, rounds=2, reset=True, settle=2, **job)
    cached = result["rounds"][1]["cached"][0]
    checks.need(cached == tokens // 32 * 32 - (tokens % 32 == 0) * 32, f"{cached:,} of {tokens:,} tokens were found")
    seconds = [r["seconds"] for r in result["rounds"]]
    return (f"{checks.same(lab, result, reference)} answers equal; {cached:,} of {tokens:,} tokens restored, in operations of 1,024 blocks of {-(-tokens // 32):,}; "
            f"{seconds[0]:.0f} s computed, {seconds[1]:.0f} s restored")


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")}
