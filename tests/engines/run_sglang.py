#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs SGLang with Tenuto behind its HiCache, end to end, and says what came out: tokens with Tenuto against tokens without, hits as the engine counts them, faults.

    run_sglang.py [--engines DIR] [--build DIR] [--report FILE] [--prompts N] [SCENARIO ...]

It exits with 0 if every scenario held, 1 if one did not, 77 if SGLang is not there. DIR/sglang is its environment; DIR/stubs, if it is there, stands in for kernels that
SGLang has for other machines only. Tokens are greedy, in float32, one prompt at a time.
"""
import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time

from checks import Failed, flip, need
from lab import prompts
import report
import scratch

HERE = os.path.dirname(os.path.abspath(__file__))
NIXL = os.path.join(os.path.dirname(os.path.dirname(HERE)), "python", "nixl")
MARKS = ("<!-- sglang: begin -->", "<!-- sglang: end -->")
PATIENCE = 300


class Lab:
    def __init__(self, args):
        self.args, self.count, self.daemon = args, 0, None
        self.dir = scratch.make()
        self.prompts = prompts(args.prompts, 7)

    def begin(self, engine, env=None, **job):
        self.count += 1
        name = os.path.join(self.dir, f"{self.count:03}")
        job = {"model": os.path.join(self.args.engines, "models/tiny-llama"), "prompts": self.prompts, "engine": engine, "out": name + ".out", **job}
        with open(name + ".json", "w") as f:
            json.dump(job, f)
        path = os.pathsep.join([self.args.package, HERE, os.path.join(self.args.engines, "stubs"), NIXL])
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": path, **(env or {})}
        process = subprocess.Popen([os.path.join(self.args.engines, "sglang/bin/python"), os.path.join(HERE, "sglang_worker.py"), name + ".json"], env=env,
                                   stdout=open(name + ".log", "w"), stderr=subprocess.STDOUT, start_new_session=True)
        return name, process

    def end(self, name, process):
        """What a life has written. Raises Failed if it did not end well."""
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill(process)
            raise Failed(f"the engine did not end: {self.tail(name)}") from None
        if not os.path.exists(name + ".out"):
            raise Failed(f"the engine ended without an answer: {self.tail(name)}")
        with open(name + ".out") as f:
            return json.load(f)["rounds"]

    def live(self, engine, **job):
        return self.end(*self.begin(engine, **job))

    @staticmethod
    def kill(process):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @staticmethod
    def tail(name):
        with open(name + ".log", errors="replace") as f:
            return " | ".join(line[:200] for line in f.read().splitlines()[-8:])

    @staticmethod
    def log(name):
        with open(name + ".log", errors="replace") as f:
            return f.read()

    def fresh(self, name):
        path = os.path.join(self.dir, name)
        os.mkdir(path)
        return path

    def wait_file(self, path):
        until = time.monotonic() + PATIENCE
        while not os.path.exists(path):
            need(time.monotonic() < until, f"no {path}")
            time.sleep(0.02)

    def start_daemon(self, store, socket):
        self.daemon = subprocess.Popen([os.path.join(self.args.build, "daemon/tenutod"), "--dir", store, "--disk-bytes", "1GiB", "--socket", socket, "--listen", "off"],
                                       stdout=open(os.path.join(self.dir, "tenutod.log"), "a"), stderr=subprocess.STDOUT)
        self.wait_file(socket)

    def stop_daemon(self, how=signal.SIGTERM):
        if self.daemon:
            self.daemon.send_signal(how)
            self.daemon.wait(60)
            self.daemon = None

    def close(self):
        self.stop_daemon()
        scratch.remove(self.dir)


def hicache(layout="page_first_direct", v1=1, module="tenuto.sglang", name="TenutoStorage", tp=1, backend="dynamic", **options):
    tenuto = {"backend_name": "tenuto", "module_path": module, "class_name": name, "interface_v1": v1, **options}
    extra = {"prefetch_threshold": 16, **(tenuto if backend == "dynamic" else options)}
    return {"enable_hierarchical_cache": True, "hicache_size": 1, "hicache_io_backend": "direct", "hicache_mem_layout": layout, "tp_size": tp,
            "hicache_storage_prefetch_policy": "wait_complete", "hicache_storage_backend": backend, "hicache_storage_backend_extra_config": json.dumps(extra)}


def stored(rounds, i=0):
    """Tokens that came out of the storage in a round, as SGLang counts them."""
    return sum(c.get("storage", 0) for c in rounds[i]["cached"])


def same(lab, rounds):
    for i, r in enumerate(rounds):
        wrong = [n for n, (a, b) in enumerate(zip(r["tokens"], lab.reference)) if a != b]
        need(not wrong and len(r["tokens"]) == len(lab.reference), f"round {i}: prompts {wrong[:10]} have other tokens than the reference")
    return sum(len(r["tokens"]) for r in rounds)


def three_rounds(lab, engine, **job):
    """Cold, warm, and after a restart of the whole engine."""
    first = lab.live(engine, rounds=2, **job)
    second = lab.live(engine, **job)
    need(stored(first, 1) > 0, "no hits in the second round")
    need(stored(second) > 0, "no hits after the restart")
    return f"{same(lab, first) + same(lab, second)} answers equal; {stored(first, 1):,} tokens from Tenuto in the warm round, {stored(second):,} after the restart of the engine"


def scenario_sglang(lab):
    return three_rounds(lab, hicache(path=lab.fresh("s1"), disk_bytes="1GiB"))


def scenario_sglang_layer_first(lab):
    return three_rounds(lab, hicache(layout="layer_first", path=lab.fresh("s2"), disk_bytes="1GiB"))


def scenario_sglang_copied(lab):
    """Without interface_v1: SGLang copies each page."""
    return three_rounds(lab, hicache(v1=0, path=lab.fresh("s3"), disk_bytes="1GiB"))


def scenario_sglang_tp2(lab):
    return three_rounds(lab, hicache(tp=2, path=lab.fresh("s4"), disk_bytes="1GiB"), env={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"})


def scenario_sglang_nixl(lab):
    """SGLang's own backend for NIXL, over the module nixl. Its cleaner removes all files of a disk that is fuller than 80 %."""
    env = {"SGLANG_HICACHE_NIXL_BACKEND_PLUGIN": "POSIX", "SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR": lab.fresh("nixl")}
    return three_rounds(lab, hicache(backend="nixl", l3_cleaner_enabled=False), env=env)


def scenario_sglang_canary(lab):
    store = lab.fresh("s5")
    lab.live(hicache(path=store, disk_bytes="1GiB"))
    changed = lab.live(hicache(module="sglang_canary", name="CanaryStorage", path=store, disk_bytes="1GiB"))
    other = sum(a != b for a, b in zip(changed[0]["tokens"], lab.reference))
    need(other > 0, "restored bytes were changed, and the tokens are the same: restored KV is not used")
    return f"restored KV changed on purpose: {other} of {len(lab.reference)} answers differ"


def scenario_sglang_flip(lab):
    store = lab.fresh("s6")
    lab.live(hicache(path=store, disk_bytes="64MiB"))
    flip(store)
    name, process = lab.begin(hicache(path=store, disk_bytes="64MiB"))
    after = lab.end(name, process)
    need("failed to retrieve page" in lab.log(name), "the flipped byte was not noticed")
    need(stored(after) > 0, "no other page was found")
    return f"{same(lab, after)} answers equal; the page was a miss, {stored(after):,} tokens from other pages"


def scenario_sglang_late(lab):
    store = lab.fresh("s7")
    lab.live(hicache(path=store, disk_bytes="1GiB"))
    after = lab.live(hicache(path=store, disk_bytes="1GiB", load_timeout_s=0.000001))
    return f"{same(lab, after)} answers equal, with loads that were never in time"


def scenario_sglang_kill_engine(lab):
    """kill -9 after the cold round, without a flush of the cache."""
    engine, pause = hicache(path=lab.fresh("s8"), disk_bytes="1GiB"), os.path.join(lab.dir, "kill")
    _, process = lab.begin(engine, rounds=2, pause=pause)
    lab.wait_file(pause + ".0")
    lab.kill(process)
    after = lab.live(engine)
    need(stored(after) > 0, "nothing was there after the kill")
    return f"{same(lab, after)} answers equal; {stored(after):,} tokens were there after the kill"


def scenario_sglang_kill_daemon(lab):
    """The cache is tenutod's: it is killed between two rounds, and comes back before the fourth."""
    store, socket, pause = lab.fresh("s9"), os.path.join(lab.dir, "d.sock"), os.path.join(lab.dir, "daemon")
    lab.start_daemon(store, socket)
    name, process = lab.begin(hicache(socket=socket, retry_s=0.2), rounds=4, pause=pause)
    for number, act in enumerate((None, lambda: lab.stop_daemon(signal.SIGKILL), lambda: lab.start_daemon(store, socket))):
        lab.wait_file(f"{pause}.{number}")
        if act:
            act()
            time.sleep(3)
        os.unlink(f"{pause}.{number}")
    rounds = lab.end(name, process)
    lab.stop_daemon()
    found = [stored(rounds, i) for i in range(4)]
    need(found[1] > 0 and found[2] == 0 and found[3] > 0, f"tokens from Tenuto by round: {found}")
    return f"{same(lab, rounds)} answers equal; tokens from Tenuto by round: cold {found[0]:,}, warm {found[1]:,}, tenutod killed {found[2]:,}, tenutod back {found[3]:,}"


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", default=os.environ.get("ENGINES", os.path.expanduser("~/.cache/tenuto-engines")))
    parser.add_argument("--build", default=os.path.join(HERE, "../../build"))
    parser.add_argument("--package", help="directory of the package tenuto; the build's", default=None)
    parser.add_argument("--report", help="a document between whose marks the results are written")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=", ".join(SCENARIOS))
    args = parser.parse_args()
    args.build = os.path.abspath(args.build)
    args.package = os.path.abspath(args.package or os.path.join(args.build, "python"))
    if not os.path.exists(os.path.join(args.engines, "sglang/bin/python")):
        print(f"no SGLang in {args.engines}")
        return 77
    told, bad, lab = {}, 0, Lab(args)
    try:
        lab.reference = lab.live({})[0]["tokens"]
        for name in args.scenarios or SCENARIOS:
            begun = time.monotonic()
            try:
                text, ok = SCENARIOS[name](lab), "holds"
            except Failed as e:
                text, ok, bad = str(e), "FAILED", bad + 1
            lab.stop_daemon()
            print(f"{ok:7} {name:22} {time.monotonic() - begun:6.1f} s  {text}", flush=True)
            told[name] = ok, text
            if args.report:
                report.put(args.report, MARKS, f"SGLang 0.5.23 on CPUs, {args.prompts} prompts", SCENARIOS, told)
    finally:
        lab.close()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
