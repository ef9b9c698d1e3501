# SPDX-License-Identifier: Apache-2.0
"""Inside of an engine's life (vllm_worker.py): what the connector tells the scheduler is switched on and off between requests, so that both ways are measured in one life.

vLLM's own prefixes are forgotten before each measurement. Times are the caller's, from add_request to the first token.
"""
import random
import time

from vllm import SamplingParams
from vllm.distributed.kv_transfer import get_kv_transfer_group


class Inside:
    def __init__(self, llm, job):
        self.llm, self.engine, self.job, self.count = llm, llm.llm_engine, job, 0
        self.scheduler = self.engine.engine_core.engine_core.scheduler.connector._scheduler
        self.worker = get_kv_transfer_group()._worker
        self.draw = random.Random(job["seed"])

    def switch(self, feed, plans, restores=True, saves=True):
        self.worker.feed.wanted, self.scheduler.model.plans = feed, plans
        self.scheduler.model.min_blocks, self.scheduler.model.writes = 1 if restores else 1 << 30, saves

    def add(self, prompt, tokens):
        self.count += 1
        self.engine.add_request(str(self.count), {"prompt_token_ids": prompt}, SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True))
        return str(self.count)

    def step_until(self, name):
        """Steps until a request has its first token; all outputs that ended."""
        while True:
            for out in self.engine.step():
                if out.request_id == name and out.outputs[0].token_ids:
                    return

    def drain(self):
        """All requests to their end: their tokens and how many were not computed."""
        told = {}
        while self.engine.has_unfinished_requests():
            for out in self.engine.step():
                if out.finished:
                    told[out.request_id] = list(out.outputs[0].token_ids), out.num_cached_tokens
        return told

    def forget(self):
        """vLLM's own prefixes; saves have ended."""
        for _ in range(1000):
            if not self.worker.saves and self.llm.reset_prefix_cache():
                return
            self.add([3], 1)
            self.drain()
            time.sleep(0.01)
        raise RuntimeError("saves do not end, or the engine does not forget")

    def prompt(self, n):
        return [self.draw.randrange(3, 500) for _ in range(n)]

    def once(self, prompt):
        """Seconds to the only token, and how many tokens were found."""
        self.forget()
        begun = time.perf_counter()
        name = self.add(prompt, 1)
        told = self.drain()[name]
        return time.perf_counter() - begun, told[1]


def beside(inside, job):
    """A long prompt that is restored while eight prompts are saved: with the scheduler fed, unfed, and fed without the writes."""
    long, rounds = inside.prompt(job["prefix"] + job["input"]), []
    inside.switch(True, False, saves=False)
    inside.add(long, 4)
    first = list(inside.drain().values())[0][0]
    inside.switch(True, False)
    inside.once(long[:job["prefix"]] + [3])
    for number in range(job["rounds"] + job["warm"]):
        told = {}
        for way in inside.draw.sample(["fed", "unfed", "quiet"], 3):
            inside.switch(way != "unfed", False)  # restored in any case: what a plan would choose is measured by pairs()
            inside.forget()
            time.sleep(job["settle"])
            for _ in range(8):
                last = inside.add(inside.prompt(job["cold"]), 12)
            inside.step_until(last)
            if way == "quiet":
                time.sleep(job["settle"])
            inside.scheduler.model.writes = False  # the long prompt's last part is computed in each round
            mark, begun = time.monotonic_ns(), time.perf_counter()
            name = inside.add(long, 4)
            inside.step_until(name)
            told[way] = {"seconds": time.perf_counter() - begun, "from_ns": mark, "to_ns": time.monotonic_ns()}
            told[way]["tokens"], told[way]["cached"] = inside.drain()[name]
        if number >= job["warm"]:
            rounds.append(told)
    return {"first": first, "rounds": rounds}


def pairs(inside, job):
    """Random prefixes that are there and inputs that are not: restored, computed, and as the plan chooses."""
    base, out = inside.prompt(job["longest"]), []
    inside.switch(True, False)
    inside.once(base)
    for number in range(job["learn"] + job["pairs"]):
        prefix, tail = inside.draw.randrange(job["block"], job["longest"]) // job["block"] * job["block"], inside.draw.randrange(16, job["inputs"])
        told = {"prefix": prefix, "input": tail, "restored": [], "computed": [], "chosen": [], "kept": []}
        for _ in range(job["repeats"] if number >= job["learn"] else 1):
            for way in inside.draw.sample(["restored", "computed", "chosen"], 3):
                inside.switch(True, way == "chosen", restores=way != "computed", saves=False)
                inside.scheduler.computed = 0  # no trial restores: the choice is looked at
                seconds, cached = inside.once(base[:prefix] + inside.prompt(tail))
                told[way].append(seconds)
                if way == "chosen":
                    told["kept"].append(cached)
        if number >= job["learn"]:
            out.append(told)
    return {"pairs": out}


def run(llm, job):
    began = time.monotonic()
    inside = Inside(llm, job)
    told = {"beside": beside, "pairs": pairs}[job["what"]](inside, job)
    told["table"] = inside.scheduler.spaces[0][1].slack()
    told["took"] = time.monotonic() - began
    return told
