# SPDX-License-Identifier: Apache-2.0
"""Nodes that know each other's blocks by a store of objects: SeaweedFS, a link to it that can be cut, and a tenutod per node."""
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

from checks import Failed

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "python", "tests"))

import s3_servers  # noqa: E402

BUCKET = "blocks"


class Link:
    """Forwards connections to a port. `cut_after`: calls `cut` once so many bytes of one answer have come; None: never."""

    def __init__(self, port, cut):
        self.port, self.cut, self.cut_after = port, cut, None
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                return  # closed, or the store is gone
            threading.Thread(target=self._forward, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._forward, args=(far, near, True), daemon=True).start()

    def _forward(self, source, sink, answers):
        try:
            while data := source.recv(4096):
                if answers and self.cut_after is not None:
                    self.cut_after -= len(data)
                    if self.cut_after < 0:
                        self.cut_after = None
                        self.cut()
                        break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()

    def close(self):
        self.listener.close()


class Nodes:
    """A store of objects, and tenutod on as many nodes as are begun; all is gone at the end of a with-statement."""

    def __init__(self, lab):
        if not s3_servers.weed_program():
            raise Failed("SeaweedFS is missing: scripts/setup.sh installs it")
        self.lab, self.daemons = lab, {}
        self.dir = lab.fresh("nodes")
        os.mkdir(os.path.join(self.dir, "weed"))
        self.server, self.endpoint = s3_servers.seaweedfs(os.path.join(self.dir, "weed"), BUCKET)
        self.link = Link(int(self.endpoint.rsplit(":", 1)[1]), lambda: self.signal(signal.SIGKILL))
        self.secret = os.path.join(self.dir, "cluster.secret")
        with open(os.open(self.secret, os.O_WRONLY | os.O_CREAT, 0o600), "w") as f:
            f.write("the secret of the nodes of this test\n")

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.signal(signal.SIGCONT)
        for name in list(self.daemons):
            self.stop(name)
        self.link.close()
        self.server.close()

    def socket(self, name):
        return os.path.join(self.dir, name + ".sock")

    def start(self, name):
        """tenutod of a node, on the disk that it has."""
        path = os.path.join(self.dir, name)
        os.makedirs(path, exist_ok=True)
        settings = {"dirs": [path], "disk_bytes": "1GiB", "host_bytes": "256MiB", "socket": self.socket(name), "listen": "off", "cluster_secret_file": self.secret,
                    "plugins": os.path.join(self.lab.args.build, "plugins/s3"), "remote": f"s3,bucket={BUCKET},prefix=engines,endpoint={self.link.endpoint},tries=1",
                    "offload": "always"}
        with open(path + ".yaml", "w", encoding="utf-8") as f:
            f.writelines(f"{key}: {json.dumps(value)}\n" for key, value in settings.items())
        env = {**os.environ, "AWS_ACCESS_KEY_ID": s3_servers.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": s3_servers.SECRET_KEY}
        with open(path + ".log", "a", encoding="utf-8") as log:
            self.daemons[name] = subprocess.Popen([os.path.join(self.lab.args.build, "daemon/tenutod"), "--config", path + ".yaml"], env=env, stdout=log,
                                                  stderr=subprocess.STDOUT)
        self.lab.wait_file(self.socket(name), 60)

    def stop(self, name, how=signal.SIGTERM):
        daemon = self.daemons.pop(name)
        daemon.send_signal(how)
        daemon.wait(60)

    def wipe(self, name):
        """The node has a new disk, and nothing in memory."""
        self.stop(name, signal.SIGKILL)
        shutil.rmtree(os.path.join(self.dir, name))
        self.start(name)

    def log(self, name):
        with open(os.path.join(self.dir, name + ".log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def signal(self, number):
        """To the store."""
        self.server.process.send_signal(number)

    # ---- objects ----

    def _ask(self, method, path, data=None):
        request = urllib.request.Request(f"{self.server.filer}/buckets/{BUCKET}/{path}", data=data, method=method, headers={"Accept": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            return answer.read()

    def _names(self, folder):
        listed = json.loads(self._ask("GET", f"{folder}/?limit=100000") or b"{}")
        return [os.path.basename(entry["FullPath"]) for entry in listed.get("Entries") or ()]

    def objects(self):
        """Paths of all blocks in the store."""
        if "engines" not in self._names(""):
            return []
        return [f"engines/{space}/{key}" for space in self._names("engines") for key in self._names(f"engines/{space}")]

    def settled(self, patience=60):
        """How many blocks the store has, when no more come."""
        until, before = time.monotonic() + patience, -1
        while time.monotonic() < until:
            now = len(self.objects())
            if now and now == before:
                return now
            before = now
            time.sleep(2)
        raise Failed(f"blocks still come into the store, or none: {before}")

    def change(self):
        """A bit of each block's first layer, behind its header."""
        objects = self.objects()
        for path in objects:
            data = bytearray(self._ask("GET", path))
            data[4096 + 5] ^= 0x10
            self._ask("PUT", path, bytes(data))
        return len(objects)
