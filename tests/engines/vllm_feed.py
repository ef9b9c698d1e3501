#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scenarios of run.py: what vLLM gains from telling Tenuto's scheduler what it does. The cache is that of paced_owner: a described drive whose reads and writes hinder each
other, and so slow that a tiny model on CPUs has something to wait for. What is measured where is in feed_worker.py.

    vllm_feed.py [--rounds N] [--pairs N] [beside | crossover]     the same at full length
"""
import argparse
import contextlib
import json
import os
import re
import shutil
import statistics
import sys

from checks import connector, need, same
from lab import HERE, Lab

sys.path.insert(0, os.path.join(HERE, "../../bench/peers"))  # before run.py of this directory

import run as peers  # noqa: E402
import scratch  # noqa: E402

BLOCK, PREFIX = 128, 2560
LLM = {"max_model_len": 4096, "max_num_batched_tokens": 8192, "max_num_seqs": 16, "block_size": BLOCK}


@contextlib.contextmanager
def paced(lab, read_bps, backlog_bytes=16 << 20):
    """A socket, and the file of decisions."""
    store, socket, explain = scratch.make("/dev/shm"), os.path.join(lab.dir, "paced.sock"), os.path.join(lab.dir, "decisions")
    lab.start_paced(store, socket, read_bps, backlog_bytes, explain)
    try:
        yield socket, explain
    finally:
        lab.stop_daemon()
        scratch.remove(store)


def beside(lab, rounds, read_bps=130_000_000):
    with paced(lab, read_bps) as (socket, explain):
        told = lab.live(connector(socket=socket, plan="auto"), what="beside", llm=LLM, prompts=[], seed=11, prefix=PREFIX, input=1500, cold=512, rounds=rounds, warm=3, settle=0.7)
    first, ways = told["first"], ("fed", "unfed", "quiet")
    ratios = {o: peers.median_and_interval([r["fed"]["seconds"] / r[o]["seconds"] for r in told["rounds"]]) for o in ("unfed", "quiet")}
    with open(explain, encoding="utf-8") as f:
        decisions = [json.loads(line) for line in f]
    told["ratios"] = ratios
    told["ms"] = {w: peers.median_and_interval([1e3 * r[w]["seconds"] for r in told["rounds"]]) for w in ways}
    told["slack"] = {w: slack_of(decisions, [r[w] for r in told["rounds"]]) for w in ways}
    told["equal"] = sum(r[w]["tokens"] == first for r in told["rounds"] for w in ways)
    told["short"] = sum(r[w]["cached"] < PREFIX for r in told["rounds"] for w in ways)
    return told


def slack_of(decisions, spans):
    """Of the decisions while prompts were restored: reads that had slack, their median slack in ms, and writes that went into it."""
    some = [d for d in decisions if any(s["from_ns"] <= d["time_ns"] <= s["to_ns"] for s in spans)]
    reads = [d["slack_ns"] for d in some if d["chosen"] == "read" and "slack_ns" in d]
    return {"reads": len(reads), "with_slack": sum(ns > 0 for ns in reads), "median_ms": round(statistics.median(reads) / 1e6, 2) if reads else None,
            "written_bytes": sum(d["bytes"] for d in some if d["chosen"] == "write"), "into_slack_bytes": sum(d["bytes"] for d in some if d["reason"] == "slack" and d["chosen"] == "write")}


def crossover(lab, pairs, read_bps=30_000_000, repeats=3):
    with paced(lab, read_bps) as (socket, _):
        told = lab.live(connector(socket=socket, plan="auto"), what="pairs", llm=LLM, prompts=[], seed=13, block=BLOCK, longest=2688, inputs=1400, learn=12, pairs=pairs, repeats=repeats)
    for pair in told["pairs"]:
        judge(pair)
    return told


def judge(pair):
    """Whether the choice was right: it takes no longer than the faster of both ways, or the difference is less than the noise, which is half of the ranges of the two together. A
    choice of one way has the times of that way; a part of the prefix has been measured by itself."""
    kept = set(pair["kept"])
    chosen = pair["restored"] if kept == {pair["prefix"]} else pair["computed"] if kept == {0} else pair["chosen"]
    best = min(pair["restored"], pair["computed"], key=statistics.median)
    pair["noise"] = (max(chosen) - min(chosen) + max(best) - min(best)) / 2
    pair["late"] = statistics.median(chosen) - statistics.median(best)
    pair["right"] = pair["late"] <= 0 or pair["late"] < pair["noise"]


def scenario_feed_beside(lab):
    told = beside(lab, 5)
    need(told["equal"] == 15 and not told["short"], f"{told['equal']} of 15 answers are those without a restore; {told['short']} were restored in part")
    need(told["slack"]["fed"]["with_slack"] > 0, "no read had slack")
    return "{} answers equal; first token of a restored prompt beside eight saves {:.2f} x that of a scheduler that is told nothing, {:.2f} x that without writes".format(
        told["equal"], told["ratios"]["unfed"][0], told["ratios"]["quiet"][0])


def scenario_feed_crossover(lab):
    told = crossover(lab, 12)["pairs"]
    return f"{sum(p['right'] for p in told)} of {len(told)} plans chose the faster way, of which {sum(not any(p['kept']) for p in told)} computed all"


def scenario_feed_tables(lab):
    """The second start of an engine knows what the first has learned, and its log names the file."""
    shutil.rmtree(os.path.join(lab.dir, "slack"), ignore_errors=True)
    make, files, n = connector(path=lab.fresh("s1"), disk_bytes="1GiB", plan="auto"), [], 0
    for word in ("new", "restored"):
        name = lab.begin(make, shutdown=True)
        n += same(lab, lab.end(name))
        found = re.search(rf"slack table: (\S+) \({word}\)", lab.log(name))
        need(found, f"no line says that a table is {word}")
        files.append(found[1])
    need(files[0] == files[1], f"two files: {files}")
    return f"{n} answers equal; the second start has read {os.path.basename(files[1])}"


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", default=os.environ.get("ENGINES", os.path.expanduser("~/.cache/tenuto-engines")))
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--read-bps", type=int, help="of the drive")
    parser.add_argument("--json", metavar="FILE", help="all that was measured")
    parser.add_argument("what", choices=["beside", "crossover"])
    args = parser.parse_args()
    args.build, args.prompts = os.path.abspath(args.build), 1
    args.package = os.path.join(args.build, "python")
    with Lab(args) as lab:
        slower = {"read_bps": args.read_bps} if args.read_bps else {}
        told = beside(lab, args.rounds, **slower) if args.what == "beside" else crossover(lab, args.pairs, **slower)
    if args.json:
        with open(args.json, "w", encoding="utf-8") as f:
            json.dump(told, f, indent=1)
    if args.what == "beside":
        for name in ("ms", "ratios", "slack", "equal", "short"):
            print(name, json.dumps(told[name]))
    else:
        some = told["pairs"]
        print(f"{sum(p['right'] for p in some)} of {len(some)} right, {sum(p['late'] <= 0.05 * statistics.median(p['chosen']) for p in some)} no more than 5 % slower than the faster way")
        print(f"{sum(not any(p['kept']) for p in some)} computed, {sum(set(p['kept']) == {p['prefix']} for p in some)} restored whole")
        print(f"restoring is faster in {sum(statistics.median(p['restored']) < statistics.median(p['computed']) for p in some)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
