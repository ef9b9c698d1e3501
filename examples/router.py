#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sends each completion to the vLLM engine that has most of its prefix, by the engines' and the caches' published block events.

    router.py --engine HOST:PORT,zmq:EVENTS:REPLAY[,zmq:EVENTS:REPLAY] --engine ... [--port 8000] [--policy prefix|turns]

EVENTS and REPLAY are addresses as tcp://127.0.0.1:5557. The first pair of an engine is vLLM's own publisher (--kv-events-config), which says what lies in the engine's memory,
with the token ids. A second pair is that of the engine's tenutod, or of its connector (events), which says what lies in Tenuto's tiers.

A prompt is a list of token ids, as "prompt" of /v1/completions; a text is tokenized by the first engine (/tokenize). The router learns which hash a block of tokens has from the
events, because each carries its parent's hash. So it computes no hash of its own, and knows no model. The engine with the best prefix gets the request: a block in the engine's
memory counts 1, one in host memory 0.8, one on disk 0.5. A request under way counts as much against an engine as --load blocks. An engine that does not answer is left out. No queue, no TLS: an example.
"""
import argparse
import http.client
import json
import struct
import sys
import threading
from collections import OrderedDict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import tenuto

MAX_BLOCKS = 1 << 20
WEIGHTS = (1.0, 0.8, 0.5, 0.3)  # of a block by its best tier: device, host, disk, remote
POLICIES = ('prefix', 'turns')


class Hashes:
    """Which hash follows another one with which tokens, as engines have told. Bounded: the oldest go."""

    def __init__(self) -> None:
        self.next: OrderedDict[tuple[int | bytes | None, bytes], int | bytes] = OrderedDict()
        self.block_tokens = 0
        self.lock = threading.Lock()

    def on_event(self, sequence: int, kind: str, name: int | bytes, parent: int | bytes | None, tier: int, group: int, block_tokens: int, tokens: bytes | None) -> None:
        if kind == 'stored' and group == 0 and tokens is not None:
            with self.lock:
                self.block_tokens = block_tokens
                self.next[parent, tokens] = name
                while len(self.next) > MAX_BLOCKS:
                    self.next.popitem(last=False)

    def of(self, tokens: list[int]) -> list[int | bytes]:
        """Hashes of a prompt's blocks, as far as some engine had them."""
        out: list[int | bytes] = []
        with self.lock:
            size = self.block_tokens
            for at in range(0, len(tokens) - size + 1 if size else 0, size or 1):
                name = self.next.get((out[-1] if out else None, struct.pack(f'={size}I', *tokens[at:at + size])))
                if name is None:
                    break
                out.append(name)
        return out


class Engine:
    """One engine, and the caches whose events tell of it: columns of the tree."""

    def __init__(self, spec: str, tree: tenuto.PrefixTree, hashes: Hashes, column: int) -> None:
        self.address, *sources = spec.split(',')
        self.columns = range(column, column + len(sources))
        self.busy = 0
        self.requests = 0
        self.subscribers = []
        for c, source in zip(self.columns, sources):
            kind, rest = source.split(':', 1)
            live, replay = rest.split(':tcp:')
            self.subscribers.append(tenuto.Subscriber(f'{kind},endpoint={live},replay=tcp:{replay}', tree, c, hashes.on_event))

    def worth(self, found: list[tuple[int, int, int, int]]) -> float:
        """Of a prompt's prefix, in blocks of the engine's own memory. A tier's number has the better ones', too, and another cache may have more."""
        best = [max(found[c][t] for c in self.columns) for t in range(len(WEIGHTS))]
        worth, before = 0.0, 0
        for blocks, weight in zip(best, WEIGHTS):
            worth += max(0, blocks - before) * weight
            before = max(before, blocks)
        return worth


class Router(ThreadingHTTPServer):
    """Requests come in, and the engines are behind it."""
    daemon_threads = True

    def __init__(self, port: int, specs: list[str], policy: str, load: float, timeout: float) -> None:
        super().__init__(('127.0.0.1', port), Request)
        columns = sum(len(s.split(',')) - 1 for s in specs)
        self.tree, self.hashes = tenuto.PrefixTree(MAX_BLOCKS, max(1, columns)), Hashes()
        self.engines: list[Engine] = []
        for spec in specs:
            self.engines.append(Engine(spec, self.tree, self.hashes, sum(len(e.columns) for e in self.engines)))
        self.policy, self.load, self.timeout = policy, load, timeout
        self.lock, self.turn = threading.Lock(), 0

    def choose(self, tokens: list[int]) -> list[Engine]:
        """All engines, the best one first."""
        with self.lock:
            self.turn += 1
            turn = [self.engines[(self.turn + i) % len(self.engines)] for i in range(len(self.engines))]
        if self.policy == 'turns':
            return turn
        found = self.tree.find(self.hashes.of(tokens))
        return sorted(turn, key=lambda e: self.load * e.busy - e.worth(found))


class Request(BaseHTTPRequestHandler):
    """A request of a client."""
    server: Router

    def do_GET(self) -> None:
        if self.path == '/router':
            self.answer(200, json.dumps({e.address: {'requests': e.requests, 'busy': e.busy, 'events': [s.state() for s in e.subscribers]} for e in self.server.engines}).encode())
        else:
            self.send_to(self.server.choose([]), None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        try:
            asked = json.loads(body)
            prompt = asked.get('prompt') if isinstance(asked, dict) else None
        except ValueError as error:
            self.answer(400, json.dumps({'error': f'the body is no JSON: {error}'}).encode())
            return
        self.send_to(self.server.choose(self.tokens_of(prompt)), body)

    def tokens_of(self, prompt: object) -> list[int]:
        """Of a prompt; none of one that cannot be looked up."""
        if isinstance(prompt, list) and prompt and all(isinstance(t, int) and 0 <= t < 1 << 32 for t in prompt):
            return prompt
        if not isinstance(prompt, str):
            return []
        try:
            connection = http.client.HTTPConnection(self.server.engines[0].address, timeout=5)
            connection.request('POST', '/tokenize', json.dumps({'prompt': prompt}), {'Content-Type': 'application/json'})
            return json.loads(connection.getresponse().read()).get('tokens', [])
        except (OSError, http.client.HTTPException, ValueError, AttributeError):
            return []

    def send_to(self, engines: list[Engine], body: bytes | None) -> None:
        """To the first one that takes the request."""
        for engine in engines:
            with self.server.lock:
                engine.busy += 1
            try:
                connection = http.client.HTTPConnection(engine.address, timeout=self.server.timeout)
                connection.request(self.command, self.path, body, {'Content-Type': 'application/json'})
                answer = connection.getresponse()
                engine.requests += self.command == 'POST'
                self.stream(answer)
                return
            except (ConnectionRefusedError, ConnectionResetError, http.client.RemoteDisconnected) as error:
                self.log_error('engine %s: %r', engine.address, error)
            finally:
                with self.server.lock:
                    engine.busy -= 1
        self.answer(502, b'{"error": "no engine answers"}')

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, answer: http.client.HTTPResponse) -> None:
        """As it comes. HTTP 1.0: the end of the connection is the end of the stream."""
        self.send_response(answer.status)
        self.send_header('Content-Type', answer.headers.get('Content-Type', 'application/json'))
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()

    def log_request(self, code: int | str = '-', size: int | str = '-') -> None:
        pass


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--engine', action='append', required=True, metavar='HOST:PORT,zmq:EVENTS:REPLAY', help='may be repeated')
    parser.add_argument('--port', type=int, default=8000, help='where clients come, on 127.0.0.1')
    parser.add_argument('--policy', choices=POLICIES, default='prefix', help='turns: one engine after the other, for comparison')
    parser.add_argument('--load', type=float, default=4, help='blocks of a prefix that make up for a request under way')
    parser.add_argument('--timeout', type=float, default=600, help='seconds that an engine may be silent')
    args = parser.parse_args()
    with Router(args.port, args.engine, args.policy, args.load, args.timeout) as server:
        print(f'router: 127.0.0.1:{server.server_address[1]} sends to {", ".join(e.address for e in server.engines)}', flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0


if __name__ == '__main__':
    sys.exit(main())
