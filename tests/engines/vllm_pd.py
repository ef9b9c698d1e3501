# SPDX-License-Identifier: Apache-2.0
"""Scenarios of run.py: prefill in one vLLM server, decode in another, with vLLM's own NixlConnector over Tenuto's module nixl (run.py --nixl: over another one), behind
examples/pd_proxy.py. The reference is one engine without any connector. Scenarios in a row share a pair of servers, which forget their prefixes in between."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time

import checks
from lab import HERE, prompt

LEASE_S = 12  # for which the prefill engine keeps KV that nobody has fetched
SHARED = {}  # memory of one machine
TCP = {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "TENUTO_XFER_TIMEOUT_S": "3"}
FEW = 20  # prompts, where engines come and go
LONG = 4000  # tokens: 16 MB of KV, so that a transfer takes a while


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def get(port, path, method="GET", body=None, patience=600):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
    connection.request(method, path, body and json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    return answer.status, answer.read()


def ask(port, model, tokens, **more):
    """The body of an answer to a prompt."""
    body = {"model": model, "prompt": tokens, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
    try:
        status, told = get(port, "/v1/completions", "POST", body)
    except (OSError, http.client.HTTPException) as error:
        raise checks.Failed(f"no answer: {error!r}") from error
    checks.need(status == 200, f"status {status}: {told[:300]}")
    return json.loads(told)


def wait_health(port, has_ended, patience=600):
    until = time.monotonic() + patience
    while time.monotonic() < until and not has_ended():
        with contextlib.suppress(OSError, http.client.HTTPException):
            if get(port, "/health")[0] == 200:
                return True
        time.sleep(0.2)
    return False


class Server:
    """A vLLM server, of which the last argument is the configuration of its connector. One that is started again has its ports."""

    def __init__(self, lab, env, tp=1, length=4096):
        self.lab, self.port, self.side, self.name, self.transfer = lab, free_port(), free_port(), None, None
        self.env = {**env, "VLLM_ENABLE_V1_MULTIPROCESSING": "1", "VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "0|1" if tp == 2 else "nobind",
                    "TENUTO_PLUGIN_PATH": os.path.join(lab.args.build, "plugins/ucx")}
        self.arguments = ["--model", lab.model, "--host", "127.0.0.1", "--port", str(self.port), "--enforce-eager", "--dtype", "float32", "--max-model-len", str(length),
                          "--max-num-seqs", "8", "--max-num-batched-tokens", "4096", "--block-size", "32", "--seed", "0", "--tensor-parallel-size", str(tp)]

    def start(self):
        self.name = self.lab.begin(None, serve=[*self.arguments, "--kv-transfer-config", json.dumps(self.transfer)], nixl=self.lab.args.nixl, env=self.env)

    def wait_ready(self):
        if not wait_health(self.port, lambda: os.path.exists(self.name + ".rc")):
            raise checks.Failed(f"the server did not start: {self.lab.tail(self.name)}")

    def group(self):
        self.lab.wait_file(self.name + ".pid")
        with open(self.name + ".pid") as f:
            return int(f.read())

    def send(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.group(), number)

    def log(self):
        return self.lab.log(self.name)

    def metric(self, name):
        lines = get(self.port, "/metrics")[1].decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " ")))

    def moved_tokens(self):
        return int(self.metric("vllm:external_prefix_cache_hits_total"))

    def forget(self):
        checks.need(get(self.port, "/reset_prefix_cache", "POST")[0] == 200, "the prefixes were not forgotten")


def nixl_connector(role, side):
    return {"kv_connector": "NixlConnector", "kv_role": f"kv_{role}", "kv_buffer_device": "cpu", "kv_load_failure_policy": "recompute", "engine_id": f"{role}-{side}",
            "kv_connector_extra_config": {"kv_lease_duration": LEASE_S, "num_threads": 1}}


class Pair:
    """Both servers and the proxy."""

    def __init__(self, lab, env, tp):
        self.lab, self.kind, self.proxy, self.port = lab, (env, tp), None, free_port()
        self.dir = lab.fresh("watched")
        self.prefill, self.decode = Server(lab, env, tp), Server(lab, {**env, "NIXL_TEST_DIR": self.dir})
        for server, role in ((self.prefill, "producer"), (self.decode, "consumer")):
            server.transfer = nixl_connector(role, server.side)
            server.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(server.side)
            server.start()
        for server in (self.prefill, self.decode):
            server.wait_ready()
        self.proxy = subprocess.Popen([sys.executable, os.path.join(HERE, "../../examples/pd_proxy.py"), "--prefill", f"127.0.0.1:{self.prefill.port}", "--decode",
                                       f"127.0.0.1:{self.decode.port}", "--port", str(self.port)], stdout=open(os.path.join(lab.dir, "proxy.log"), "a"), stderr=subprocess.STDOUT)
        checks.need(wait_health(self.port, lambda: self.proxy.poll() is not None), "the proxy did not start")

    def close(self):
        if self.proxy:
            self.proxy.kill()
            self.proxy.wait()
        for server in (self.prefill, self.decode):
            if server.name:
                server.send(signal.SIGKILL)

    def order(self, name, text=""):
        """A file that nixl_agents.py looks for."""
        path = os.path.join(self.dir, name)
        with open(path + ".part", "w") as f:
            f.write(text)
        os.rename(path + ".part", path)
        return path

    def generate(self, tokens, port=None, **more):
        return ask(port or self.port, self.lab.model, tokens, **more)["choices"][0]["token_ids"]

    def right(self, first, end, at=1):
        """Asks for prompts, `at` of them at a time. How many answers are the reference's: all, or Failed."""
        with concurrent.futures.ThreadPoolExecutor(at) as pool:
            told = list(pool.map(self.generate, self.lab.prompts[first:end]))
        wrong = [first + i for i, (a, b) in enumerate(zip(told, self.lab.reference[first:end])) if a != b]
        checks.need(not wrong, f"prompts {wrong[:10]} have other tokens than the reference")
        return len(told)

    def failed_transfers(self):
        return int(self.decode.metric("vllm:nixl_num_failed_transfers_total"))


@contextlib.contextmanager
def pair(lab, env, tp=1):
    """A pair that knows no prefixes: the last scenario's, if it was such a one and has not failed."""
    if lab.pair and lab.pair.kind != (env, tp):
        lab.pair.close()
        lab.pair = None
    lab.pair, taken = None, lab.pair or Pair(lab, env, tp)
    try:
        taken.decode.forget()
        yield taken
    except BaseException:
        taken.close()
        raise
    lab.pair = taken


# ---- the same tokens ---------------------------------------------------------------------------------------------------


def ours(lab):
    return os.path.samefile(lab.args.nixl, os.path.join(HERE, "../../python/nixl"))


def equal(lab, env, count, wanted, tp=1):
    with pair(lab, env, tp) as p:
        before = p.decode.moved_tokens()
        n, moved = p.right(0, count), p.decode.moved_tokens() - before
        by = sorted({line.rsplit(" ", 1)[1] for line in p.decode.log().splitlines() if "pd: moved by " in line})
    checks.need(moved > 0, "no token came from the prefill engine")
    checks.need(by == [wanted] or not ours(lab), f"moved by {by}, not by {wanted}")
    return f"{n} answers equal; {moved:,} tokens of KV came from the prefill engine, moved by {', '.join(by)}"


def scenario_pd(lab):
    return equal(lab, SHARED, len(lab.prompts), "memory")


def scenario_pd_canary(lab):
    with pair(lab, SHARED) as p:
        path = p.order("canary")
        other = sum(p.generate(tokens) != wanted for tokens, wanted in zip(lab.prompts[:10], lab.reference))
        os.unlink(path)
    checks.need(other > 0, "bytes were changed on the way, and the tokens are the same: the KV of the prefill engine is not used")
    return f"bytes changed on the way: {other} of {len(lab.prompts[:10])} answers differ"


def scenario_pd_tcp(lab):
    return equal(lab, TCP, len(lab.prompts), "ucx")


def scenario_pd_tp2(lab):
    """Two workers prefill, one decodes: it reads the heads of each block from both."""
    return f"{equal(lab, SHARED, 10, 'memory', 2)} (10 prompts)"


# ---- an engine that dies, or stops -------------------------------------------------------------------------------------


def cut(lab, p, order, text, evidence):
    """Orders what befalls the prefill engine at the next transfer. Seconds until the decode engine has answered all the same."""
    prompts = [prompt(LONG, seed) for seed in (1, 2)]
    wanted = lab.answers_without(prompts=prompts, llm={"max_model_len": 4096, "max_num_batched_tokens": 4096})
    checks.need(p.generate(prompts[0]) == wanted[0], "other tokens than the reference")
    failed = p.failed_transfers()
    p.order(order, text)
    begun = time.monotonic()
    checks.need(p.generate(prompts[1]) == wanted[1], "other tokens than the reference after the signal")
    took = time.monotonic() - begun
    checks.need(evidence in p.decode.log() and p.failed_transfers() > failed, "no transfer was cut")
    return took


def away_and_back(lab, p):
    """The dead prefill engine is away, while the decode engine computes; and it comes back at its address, under its name."""
    n, before = p.right(0, FEW // 2, 4), p.decode.moved_tokens()
    p.prefill.start()
    p.prefill.wait_ready()
    n += p.right(FEW // 2, FEW)
    back = p.decode.moved_tokens() - before
    checks.need(back > 0, "the prefill engine is back, and no token came from it")
    return f"{n + 2} answers equal, of which {FEW // 2} while the prefill engine was away, {n - FEW // 2} since it is back ({back:,} tokens moved)"


def scenario_pd_kill_prefill(lab):
    """After its answer, before the transfer. A copy of memory is over before its process has died, so it is not cut in the middle."""
    with pair(lab, SHARED) as p:
        took = cut(lab, p, "kill", str(p.prefill.group()), "killed before the transfer")
        return f"{away_and_back(lab, p)}; that of the failed transfer after {took:.1f} s"


def scenario_pd_kill_prefill_tcp(lab):
    """In mid-transfer."""
    with pair(lab, TCP) as p:
        took = cut(lab, p, "signal", f"{p.prefill.group()} {signal.SIGKILL:d}", f"signal {signal.SIGKILL:d} sent; the transfer is PROC")
        return f"{away_and_back(lab, p)}; that of the cut transfer after {took:.1f} s"


def scenario_pd_stop_prefill(lab):
    """Over TCP: the prefill engine is stopped in mid-transfer, and goes on later. The transfer has a deadline of 3 s."""
    with pair(lab, TCP) as p:
        took = cut(lab, p, "signal", f"{p.prefill.group()} {signal.SIGSTOP:d}", f"signal {signal.SIGSTOP:d} sent; the transfer is PROC")
        p.prefill.send(signal.SIGCONT)
        before = p.decode.moved_tokens()
        n, back = p.right(0, FEW), p.decode.moved_tokens() - before
    checks.need(back > 0, "the prefill engine goes on, and no token came from it")
    return f"{n + 2} answers equal: that of the transfer that stood still after {took:.1f} s, the rest since the prefill engine goes on ({back:,} tokens moved)"


def scenario_pd_kill_decode(lab):
    """The decode engine dies while prompts are under way, four at a time, and comes back."""
    with pair(lab, SHARED) as p:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            some = pool.submit(p.right, 0, FEW, 4)
            time.sleep(1)
            checks.need(not some.done(), "all was answered before the decode engine was killed")
            p.decode.send(signal.SIGKILL)
            n = some.result()
        p.decode.start()
        p.decode.wait_ready()
        n += p.right(0, 10)
        moved = p.decode.moved_tokens()
    checks.need(moved > 0, "the decode engine is back, and no token was moved")
    return f"{n} answers equal, with the decode engine killed among them; {moved:,} tokens moved since it is back"


def scenario_pd_late(lab):
    """A proxy that hears late: it sends requests to the decode engine when the lease of the prefill engine is over, and when that has died."""
    with pair(lab, SHARED) as p:
        told = [ask(p.prefill.port, lab.model, tokens, max_tokens=1, kv_transfer_params={"do_remote_decode": True, "do_remote_prefill": False})["kv_transfer_params"]
                for tokens in lab.prompts[:3]]
        time.sleep(LEASE_S + 1)
        for i in range(3):
            if i == 1:
                p.prefill.send(signal.SIGKILL)
            begun = time.monotonic()
            checks.need(p.generate(lab.prompts[i], p.decode.port, kv_transfer_params=told[i]) == lab.reference[i], f"prompt {i} has other tokens")
            took = time.monotonic() - begun
        n = p.right(0, FEW // 2)
        p.prefill.start()
        p.prefill.wait_ready()
    return f"{n + 3} answers equal: one after the lease, two of a prefill engine that had died (the last after {took:.1f} s), the rest while it was away"


# Those with one pair follow one another.
NAMES = ("pd", "pd_canary", "pd_kill_prefill", "pd_kill_decode", "pd_late", "pd_tcp", "pd_kill_prefill_tcp", "pd_stop_prefill", "pd_tp2")
SCENARIOS = {name: globals()[f"scenario_{name}"] for name in NAMES}
