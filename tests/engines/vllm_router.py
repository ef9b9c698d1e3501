# SPDX-License-Identifier: Apache-2.0
"""Two vLLM engines on CPUs behind examples/router.py: conversations of several turns, by prefix and in turns. Prints hit rates and times to the first token.

    ENGINE_PYTHON tests/engines/vllm_router.py BUILD MODEL [--talks 12] [--turns 4]

BUILD: a build directory. MODEL: a tiny model without a tokenizer is enough. Each engine has a cache of Tenuto that it owns, which publishes. Exit 0: sending by prefix hits more.
"""
import argparse
import concurrent.futures
import http.client
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from vllm_pd import free_port, get, wait_health

HERE = os.path.dirname(os.path.abspath(__file__))
POLICIES = ("turns", "prefix")
FIRST_TOKENS, TURN_TOKENS, ANSWER = 512, 96, 4


class Engine:
    def __init__(self, args, directory, number):
        self.port, self.live, self.replay, self.kv_live, self.kv_replay = (free_port() for _ in range(5))
        self.dir = os.path.join(directory, f"engine{number}")
        os.makedirs(os.path.join(self.dir, "kv"))
        events = f"zmq,endpoint=tcp://127.0.0.1:{self.kv_live},replay=tcp://127.0.0.1:{self.kv_replay}"
        transfer = {"kv_connector": "TenutoConnector", "kv_connector_module_path": "tenuto.vllm.connector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
                    "kv_connector_extra_config": {"path": os.path.join(self.dir, "kv"), "disk_bytes": "1GiB", "host_bytes": "256MiB", "events": events}}
        publish = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{self.live}", "replay_endpoint": f"tcp://*:{self.replay}"}
        serve = ["--model", args.model, "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager", "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs",
                 "4", "--max-num-batched-tokens", "2048", "--block-size", "32", "--seed", "0", "--skip-tokenizer-init", "--enable-prefix-caching",
                 "--kv-events-config", json.dumps(publish), "--kv-transfer-config", json.dumps(transfer)]
        job = os.path.join(self.dir, "job.json")
        with open(job, "w") as f:
            json.dump({"serve": serve}, f)
        env = {**os.environ, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
               "VLLM_CPU_KVCACHE_SPACE": "1", "PYTHONHASHSEED": "0", "TENUTO_PLUGIN_PATH": os.path.join(args.build, "plugins/zmq")}
        self.log = os.path.join(self.dir, "log")
        self.process = subprocess.Popen([sys.executable, os.path.join(HERE, "vllm_server.py"), job], env=env, stdout=open(self.log, "w"), stderr=subprocess.STDOUT, start_new_session=True)

    def spec(self):
        return (f"127.0.0.1:{self.port},zmq:tcp://127.0.0.1:{self.live}:tcp://127.0.0.1:{self.replay},"
                f"zmq:tcp://127.0.0.1:{self.kv_live}:tcp://127.0.0.1:{self.kv_replay}")

    def metric(self, name):
        lines = get(self.port, "/metrics")[1].decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def first_token(port, model, tokens):
    """Seconds until the first token of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    begun = time.monotonic()
    connection.request("POST", "/v1/completions", json.dumps({"model": model, "prompt": tokens, "max_tokens": ANSWER, "temperature": 0, "ignore_eos": True, "stream": True,
                                                              "return_token_ids": True}), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"vllm_router: status {answer.status}: {answer.read(300)}")
    answer.readline()
    seconds = time.monotonic() - begun
    answer.read()
    return seconds


def talk(port, args, policy, number):
    """Times to the first token of a conversation's turns. Each turn's prompt is all that was said before, and more."""
    rng = random.Random(f"{policy} {number}")
    tokens, times = [rng.randrange(10, 30000) % args.vocabulary for _ in range(FIRST_TOKENS)], []
    for _ in range(args.turns):
        times.append(first_token(port, args.model, tokens))
        tokens = tokens + [rng.randrange(10, 30000) % args.vocabulary for _ in range(TURN_TOKENS)]
        time.sleep(rng.random() * 0.3)
    return times


def measure(args, engines, policy):
    port = free_port()
    router = subprocess.Popen([sys.executable, os.path.join(HERE, "../../examples/router.py"), "--port", str(port), "--policy", policy,
                               *(a for e in engines for a in ("--engine", e.spec()))],
                              env={**os.environ, "TENUTO_PLUGIN_PATH": os.path.join(args.build, "plugins/zmq")})
    try:
        if not wait_health(port, lambda: router.poll() is not None):
            sys.exit("vllm_router: the router did not start")
        names = ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total")
        before = [sum(e.metric(n) for e in engines) for n in names]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            talks = list(pool.map(lambda n: talk(port, args, policy, n), range(args.talks)))
        asked, own, loaded = (sum(e.metric(n) for e in engines) - b for n, b in zip(names, before))
        later = [t for times in talks for t in times[1:]]
        state = json.loads(get(port, "/router")[1])
        print(f"{policy}: {len(talks)} conversations of {args.turns} turns: {100 * (own + loaded) / asked:.1f} % of {asked:.0f} prompt tokens were there "
              f"({own:.0f} in the engine, {loaded:.0f} from Tenuto); first token of later turns after {1000 * statistics.median(later):.0f} ms (median), "
              f"{1000 * statistics.quantiles(later, n=10)[-1]:.0f} ms (p90); requests {[e['requests'] for e in state.values()]}", flush=True)
        if policy == "prefix":
            print("events:", {a: [(s["events"], s["current"], s["complete"], s["gaps"]) for s in e["events"]] for a, e in state.items()}, flush=True)
        return (own + loaded) / asked
    finally:
        router.kill()
        router.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("model")
    parser.add_argument("--talks", type=int, default=12)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=500)
    args = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="tenuto-router-")
    engines = []
    try:
        engines = [Engine(args, directory, i) for i in range(2)]
        for e in engines:
            if not wait_health(e.port, lambda e=e: e.process.poll() is not None):
                with open(e.log) as f:
                    sys.exit(f"vllm_router: an engine did not start: {f.read()[-3000:]}")
        rates = {policy: measure(args, engines, policy) for policy in POLICIES}
    finally:
        for e in engines:
            e.end()
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if rates["prefix"] > rates["turns"] else 1


if __name__ == "__main__":
    sys.exit(main())
