# SPDX-License-Identifier: Apache-2.0
"""LMCache's multi-process server with Tenuto below it, and vLLM on top. Each function is a scenario of run.py.

The server's own memory (L1) is empty after each start of it: what an engine then finds beyond what its own prompts share came from Tenuto.
"""
import contextlib
import glob
import json
import os
import signal
import socket
import subprocess
import time

from checks import Failed, flip, hits, need, same

ADAPTER = {"module_path": "tenuto.lmcache", "class_name": "TenutoConnector"}
CANARY = {"module_path": "lmcache_canary", "class_name": "CanaryConnector"}


def adapter(which=None, **params):
    """Tenuto's L2 adapter, as LMCache's server is told of it."""
    return {"type": "native_plugin", **(which or ADAPTER), "adapter_params": params}


def environment(lab):
    path = os.path.join(lab.args.engines, "vllm-lmcache")
    need(os.path.exists(os.path.join(path, "bin/lmcache")), "no LMCache: tests/engines/install.sh installs it")
    return path


def free_ports(n):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [s.getsockname()[1] for s in sockets]


class Server:
    """LMCache's server with an L2 adapter: a context."""

    def __init__(self, lab, below, chunk_tokens=32, memory_gb=0.25):
        self.lab, self.ports = lab, free_ports(2)
        self.options = ["--chunk-size", str(chunk_tokens), "--l1-size-gb", str(memory_gb), "--l2-adapter", json.dumps(below)]

    def __enter__(self):
        lab, home = self.lab, environment(self.lab)
        self.log = os.path.join(lab.dir, f"lmcache-{self.ports[0]}.log")
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": os.pathsep.join([lab.args.package, os.path.dirname(__file__)])}
        command = [os.path.join(home, "bin/lmcache"), "server", "--port", str(self.ports[0]), "--http-port", str(self.ports[1]), "--disable-observability",
                   "--supported-transfer-mode", "auto", "--eviction-policy", "LRU", *self.options]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        until = time.monotonic() + 120
        for port in self.ports:
            while not self._listens(port):
                if self.process.poll() is not None or time.monotonic() > until:
                    self.__exit__()
                    raise Failed(f"LMCache's server did not start: {self.tail()}")
                time.sleep(0.2)
        return self

    @staticmethod
    def _listens(port):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", port)) == 0

    def tail(self):
        with open(self.log, errors="replace") as f:
            return " | ".join(f.read().splitlines()[-12:])

    def __exit__(self, *exception):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def live(self, **job):
        """A life of an engine on this server; then the server has time to store what it got."""
        transfer = {"kv_connector": "LMCacheMPConnector", "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector", "kv_role": "kv_both",
                    "kv_connector_extra_config": {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": self.ports[0]}}
        site, = glob.glob(os.path.join(environment(self.lab), "lib/python3*/site-packages"))
        result = self.lab.live(transfer, site=site, **job)
        time.sleep(3)
        return result


def scenario_lmcache(lab):
    """Cold, warm out of the server's own memory, and after a restart of engine and server."""
    store = adapter(path=lab.fresh("lm1"), disk_bytes="1GiB")
    with Server(lab, store) as server:
        first = server.live(rounds=2, reset=True, settle=2)
    with Server(lab, store) as server:
        second = server.live()
    cold = sum(first["rounds"][0]["cached"])
    warm, again = sum(first["rounds"][1]["cached"]), sum(second["rounds"][0]["cached"])
    need(warm > cold and again > cold, f"cached tokens: cold {cold}, warm {warm}, after the restart {again}")
    n = same(lab, first) + same(lab, second)
    return f"{n} answers equal; cached tokens: cold {cold:,}, warm {warm:,}, after the restart of engine and server {again:,}"


def scenario_lmcache_canary(lab):
    store = {"path": lab.fresh("lm2"), "disk_bytes": "1GiB"}
    with Server(lab, adapter(**store)) as server:
        server.live()
    with Server(lab, adapter(CANARY, **store)) as server:
        changed = server.live()
    other = sum(a != b for a, b in zip(changed["rounds"][0]["tokens"], lab.reference))
    need(other > 0, "restored bytes were changed, and the tokens are the same: restored KV is not used")
    return f"restored KV changed on purpose: {other} of {len(lab.reference)} answers differ"


def scenario_lmcache_flip(lab):
    """The same restart twice: with a good store, and with one bit of it changed."""
    path = lab.fresh("lm3")
    store = adapter(path=path, disk_bytes="64MiB")
    found = []
    for damage in (None, None, flip):
        if damage:
            damage(path)
        with Server(lab, store) as server:
            result = server.live()
            n = same(lab, result)
            found.append(hits(result))
    need(found[1] > found[0], f"nothing was found after the restart: {found}")
    need(found[0] < found[2] < found[1], f"tokens found: cold {found[0]}, good {found[1]}, damaged {found[2]}")
    return f"{n} answers equal; {found[1]:,} tokens found in the good store, {found[2]:,} in the damaged one"


def scenario_lmcache_kill_daemon(lab):
    """The cache is tenutod's: killed before an engine's life, and back while the server runs."""
    store, address = lab.fresh("lm4"), os.path.join(lab.dir, "lm.sock")
    found, store_at = [], adapter(socket=address, retry_s=0.2)
    lab.start_daemon(store, address)
    try:
        with Server(lab, store_at) as server:
            results = [server.live()]
        with Server(lab, store_at) as server:
            lab.stop_daemon(signal.SIGKILL)
            results.append(server.live())
        with Server(lab, store_at) as server:
            lab.start_daemon(store, address)
            time.sleep(2)
            results.append(server.live())
    finally:
        lab.stop_daemon()
    found = [hits(r) for r in results]
    need(found[1] <= found[0] < found[2], f"tokens found: {found}")
    n = sum(same(lab, r) for r in results)
    return f"{n} answers equal; tokens found: cold {found[0]:,}, tenutod killed {found[1]:,}, tenutod back {found[2]:,}"


SCENARIOS = {n.removeprefix("scenario_"): f for n, f in list(globals().items()) if n.startswith("scenario_")}
