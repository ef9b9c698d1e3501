# SPDX-License-Identifier: Apache-2.0
"""vLLM in other shapes than one worker and one Llama: several workers, latent attention, sliding windows, too little KV memory. Each function is a scenario of run.py."""
import json

import checks

WORKERS = {"llm": {"tensor_parallel_size": 2}, "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1"}}


def few(lab):
    """Enough prompts for each beginning to come back; two workers on two CPUs are slow."""
    return lab.prompts[:10]


def with_few(lab, lives, make, **job):
    return f"{lives(lab, make, prompts=few(lab), **WORKERS, **job)} ({len(few(lab))} prompts)"


def scenario_connector_tp2(lab):
    """Two workers, each with its share of each block."""
    return with_few(lab, checks.three_rounds, checks.connector(path=lab.fresh("p1"), disk_bytes="1GiB"), settle=2)


def scenario_connector_tp2_async(lab):
    return with_few(lab, checks.three_rounds, checks.connector(path=lab.fresh("p2"), disk_bytes="1GiB", load="async"), settle=2)


def scenario_tier_tp2(lab):
    """The tier runs in the scheduler's process: a row of vLLM's region has the bytes of both workers."""
    return with_few(lab, checks.tier_twice, checks.tier(path=lab.fresh("p3"), disk_bytes="1GiB"))


def scenario_shares(lab):
    """Canonical shares: one worker loads what two have saved, and two what one has saved."""
    jobs, told = {1: {"prompts": few(lab)}, 2: {"prompts": few(lab), **WORKERS}}, []
    for wrote, reads in ((2, 1), (1, 2)):
        make = checks.connector(path=lab.fresh(f"s{wrote}"), disk_bytes="1GiB", shares="canonical")
        lab.live(make, settle=2, **jobs[wrote])
        second = lab.live(make, settle=2, **jobs[reads])
        n, found = checks.same(lab, second, lab.answers_without(**jobs[reads])), checks.hits(second)
        checks.need(found > 0, f"TP {reads} found nothing of what TP {wrote} has saved")
        told.append(f"{n} answers of TP {reads} equal to TP {reads} without Tenuto, {found:,} tokens from what TP {wrote} has saved")
    return f"{'; '.join(told)} ({len(few(lab))} prompts)"


def scenario_window(lab):
    """Gemma 3: layers with a sliding window of 64 tokens and layers without, two groups of blocks."""
    return checks.three_rounds(lab, checks.connector(path=lab.fresh("w1"), disk_bytes="1GiB"), model=lab.other_model("gemma3"))


def scenario_tier_window(lab):
    return checks.tier_twice(lab, checks.tier(path=lab.fresh("w2"), disk_bytes="1GiB"), model=lab.other_model("gemma3"))


def latent(lab):
    """vLLM's kernels for every CPU, also where it has others (AMX), which do not take float32."""
    return {"model": lab.other_model("deepseek"), "llm": {"block_size": 16, "attention_config": {"backend": "CPU_MLA"}}, "latent": True}


def as_own_prefixes(lab, make, settle=0.5, **job):
    """Cold, warm and after a restart, each against vLLM with its own prefix cache and the same tokens found, so that each prefill is split in the same place:
    vLLM's latent attention on CPUs has other tokens for a prefill that is split than for one that is not."""
    name = "own prefixes " + json.dumps(job, sort_keys=True)
    if name not in lab.answers:
        lab.answers[name] = lab.live(None, rounds=2, **job)["rounds"]
    cold, warm = lab.answers[name]
    first = lab.live(make, rounds=2, reset=True, settle=settle, **job)
    second = lab.live(make, **job)
    n = 0
    for text, got, wanted in (("cold", first["rounds"][0], cold), ("warm", first["rounds"][1], warm), ("restarted", second["rounds"][0], warm)):
        checks.need(got["cached"] == wanted["cached"], f"{text}: {got['cached']} tokens found, vLLM itself finds {wanted['cached']}")
        n += checks.same(lab, {"rounds": [got]}, wanted["tokens"])
    checks.need(checks.hits(second) > 0, "no hits after the restart")
    return f"{n} answers and the tokens found equal to vLLM's own prefix cache; {checks.hits(second):,} tokens after the restart", (first, second)


def scenario_latent(lab):
    """DeepSeek's latent attention (MLA): one vector per token."""
    return as_own_prefixes(lab, checks.connector(path=lab.fresh("m1"), disk_bytes="1GiB"), **latent(lab))[0]


def scenario_latent_async(lab):
    return as_own_prefixes(lab, checks.connector(path=lab.fresh("m2"), disk_bytes="1GiB", load="async"), **latent(lab))[0]


def whole_blocks(prompts, lives, tokens):
    """How many different blocks there are of so many tokens in what was asked and answered; the last token of an answer was never computed."""
    said = [p + a for life in lives for r in life["rounds"] for p, a in zip(prompts, r["tokens"])]
    return len({tuple(s[:end]) for s in said for end in range(tokens, len(s), tokens)})


def scenario_latent_tp2(lab):
    """Both workers hold the same latent vectors: one of them saves, both load. Counted in the store: shares of two workers would lie in two spaces."""
    one, store = latent(lab), lab.fresh("m3")
    both = {**one, "prompts": few(lab), "llm": {**one["llm"], **WORKERS["llm"]}, "env": WORKERS["env"]}
    text, lives = as_own_prefixes(lab, checks.connector(path=store, disk_bytes="1GiB"), settle=2, **both)
    wanted = whole_blocks(few(lab), lives, one["llm"]["block_size"])
    stored, spaces = lab.kept(store)
    checks.need((stored, spaces) == (wanted, 1), f"{wanted} different blocks were computed; {stored} are stored, in {spaces} space(s)")
    return f"{text}; {wanted} different blocks were computed, {stored} are stored ({len(few(lab))} prompts)"


def scenario_latent_canary(lab):
    make, job = checks.connector(path=lab.fresh("m5"), disk_bytes="1GiB"), latent(lab)
    good = lab.live(make, **job), lab.live(make, **job)
    changed = lab.live(checks.canary(make), **job)
    other = sum(a != b for a, b in zip(changed["rounds"][0]["tokens"], good[1]["rounds"][0]["tokens"]))
    checks.need(other > 0, "restored bytes were changed, and the tokens are the same: restored KV is not used")
    return f"restored KV changed on purpose: {other} of {len(lab.prompts)} answers differ"


def scenario_latent_refused(lab):
    """As vLLM comes, prefixes are off for MLA on this machine: the connector does not start, where it would give other tokens."""
    name = lab.begin(checks.connector(path=lab.fresh("m6"), disk_bytes="1GiB"), **{**latent(lab), "latent": False})
    try:
        lab.end(name)
    except checks.Failed:
        checks.need("chunked prefill are off for this model" in lab.log(name), "the engine did not start, and does not say why")
        return "vLLM has turned prefixes off for this model: the connector refuses to start, and says so"
    raise checks.Failed("the connector restores prefixes where vLLM has turned them off")


def preempted(lab, **options):
    """Requests that together need more KV memory than there is: vLLM takes pages from some, which are computed or loaded again."""
    job = {"batch": 8, "tokens": 160, "llm": {"num_gpu_blocks_override": 40, "max_model_len": 512}}
    make = checks.connector(path=lab.fresh("b" + options.get("load", "")), disk_bytes="1GiB", **options)
    reference = lab.answers_without(**job)
    first = lab.live(make, rounds=2, reset=True, **job)
    times = int(first["metrics"].get("vllm:num_preemptions", 0))
    checks.need(times > 0, "nothing was preempted")
    checks.need(checks.hits(first) > 0, "no hits")
    return f"{checks.same(lab, first, reference)} answers equal; {times} preemptions, {checks.hits(first):,} tokens from Tenuto"


def scenario_preemption(lab):
    return preempted(lab)


def scenario_preemption_async(lab):
    return preempted(lab, load="async")


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")}
