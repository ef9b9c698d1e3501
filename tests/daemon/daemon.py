# SPDX-License-Identifier: Apache-2.0
"""What the tests of tenutod share: starting it as systemd would, asking it over HTTP, ending it.

Test files are as those of tests/cli (see cli.py there). TENUTOD names the program, TENUTOD_UNITS the directory of the generated units.
"""
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "cli"))

from cli import DEADLINE, ROOT, fail, until  # noqa: E402

TENUTOD = os.path.abspath(os.environ.get("TENUTOD", os.path.join(ROOT, "build", "daemon", "tenutod")))
PORTS = itertools.count()


def free_port():
    """Below those that the kernel gives to connections; processes that run at the same time have other ones each: nobody takes it before the daemon does."""
    while True:
        port = 20000 + (64 * os.getpid() + next(PORTS)) % 12000
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def get(port, path, method="GET", data=None):
    """(status, headers, body)"""
    request = urllib.request.Request("http://127.0.0.1:%d%s" % (port, path), data=data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE) as r:
            return r.status, r.headers, r.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.headers, e.read().decode()


def asked(*args, rc=0):
    """tenutod with options that make it end by itself; its result."""
    done = subprocess.run([TENUTOD, *map(str, args)], capture_output=True, text=True, timeout=DEADLINE)
    if done.returncode != rc or (rc and not done.stderr.startswith("tenutod: ")):
        fail("expected exit code %s; %s: %s\n%s%s" % (rc, args, done.returncode, done.stdout[-2000:], done.stderr[-2000:]))
    return done


class Daemon:
    """A tenutod that runs, with the socket that systemd listens on for its states."""

    def __init__(self, *args, wait="READY=1", env=None, wrap=(), reads=True, **more):
        """reads: its log lines from the beginning on; else from read() on."""
        self.port = free_port()
        self.states, self.err = [], ""
        path = os.path.abspath("notify-%d" % self.port)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(path)
        self.socket.settimeout(0.02)
        command = [*wrap, TENUTOD, *map(str, args)]
        if "--listen" not in args:
            command += ["--listen", "127.0.0.1:%d" % self.port]
        self.run_dir = os.path.abspath("run-%d" % self.port)
        os.mkdir(self.run_dir)
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True,
                                        env={**os.environ, "NOTIFY_SOCKET": path, "RUNTIME_DIRECTORY": self.run_dir, **(env or {})}, **more)
        self.reader = threading.Thread(target=self._read, daemon=True)
        if reads:
            self.read()
        if wait:
            self.wait(wait)

    def read(self):
        self.reader.start()

    def _read(self):
        for line in self.process.stderr:
            self.err += line

    def wait(self, state, count=1):
        """Until it has told systemd this so often, or has ended."""
        def told():
            try:
                self.states += self.socket.recv(4096).decode().split("\n")
            except socket.timeout:
                pass
            return self.states.count(state) >= count or self.process.poll() is not None
        until(told, state)
        if self.states.count(state) < count:
            fail("ended with %s before %s: %s" % (self.process.returncode, state, self.err))

    def wait_for_line(self, text, count=1):
        until(lambda: self.err.count(text) >= count, "line with '%s' in: %s" % (text, self.err))

    def send(self, number):
        self.process.send_signal(number)

    def end(self, number=signal.SIGTERM, rc=0):
        if number:
            self.send(number)
        got = self.process.wait(DEADLINE)
        self.reader.join(DEADLINE)
        try:
            while True:
                self.states += self.socket.recv(4096).decode().split("\n")
        except socket.timeout:
            self.socket.close()
        if got != rc:
            fail("expected exit code %s, got %s: %s" % (rc, got, self.err))
        return self.err

    def get(self, path, **more):
        return get(self.port, path, **more)

    def metrics(self):
        """The names, without labels, to the values of all their samples."""
        status, _, text = self.get("/metrics")
        if status != 200:
            fail("/metrics: %s %s" % (status, text))
        found = {}
        for name, value in re.findall(r"^(\w+)(?:\{[^\n]*\})? (\S+)$", text, re.M):
            found.setdefault(name, []).append(float(value))
        return found

    def __enter__(self):
        return self

    def __exit__(self, *error):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
