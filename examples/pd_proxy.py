#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill on one vLLM, decode on another: a proxy between clients and both, for vLLM's NixlConnector.

    pd_proxy.py --prefill HOST:PORT --decode HOST:PORT [--port 8000]

A completion goes to the prefill engine with one token to generate. Its answer says where the KV lies, and goes with the request to the decode engine, which reads the KV and
answers the client. Of two engines one can fail: without the prefill engine, the decode engine computes the prompt, too. Without the decode engine, the prefill engine answers
all. A stream that breaks after its beginning is the client's to repeat. One pair, no balancing, no queue, no TLS: an example, not a router.
"""
import argparse
import http.client
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMPLETIONS = ('/v1/completions', '/v1/chat/completions')
REMOTE_DECODE = {'do_remote_decode': True, 'do_remote_prefill': False, 'remote_engine_id': None, 'remote_block_ids': None, 'remote_host': None, 'remote_port': None}


class EngineDown(Exception):
    """No answer, or an engine's own failure."""


class Engine:
    """One engine, by HTTP."""

    def __init__(self, address: str, timeout: float) -> None:
        self.address = address
        self.timeout = timeout

    def open(self, method: str, path: str, body: bytes | None) -> http.client.HTTPResponse:
        """The answer, of which the status is read and the body is not. Raises EngineDown."""
        try:
            connection = http.client.HTTPConnection(self.address, timeout=self.timeout)
            connection.request(method, path, body, {'Content-Type': 'application/json'})
            answer = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise EngineDown(f'engine {self.address}: {error!r}') from error
        if answer.status >= 500:
            raise EngineDown(f'engine {self.address}: status {answer.status}')
        return answer

    def read(self, method: str, path: str, body: bytes | None) -> tuple[int, bytes]:
        """The whole answer. Raises EngineDown, also if the engine dies before its end."""
        answer = self.open(method, path, body)
        try:
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineDown(f'engine {self.address}: {error!r}') from error


def prefill_body(body: dict) -> dict:
    """What the prefill engine gets: the same prompt, and one token to generate."""
    asked = {**body, 'stream': False, 'max_tokens': 1, 'kv_transfer_params': REMOTE_DECODE}
    if 'max_completion_tokens' in body:
        asked['max_completion_tokens'] = 1
    for name in ('stream_options', 'min_tokens'):
        asked.pop(name, None)
    return asked


class Proxy(BaseHTTPRequestHandler):
    """A request of a client."""

    prefill: Engine
    decode: Engine

    def do_GET(self) -> None:
        self.pass_on('GET', None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        if self.path not in COMPLETIONS:
            self.answer(404, json.dumps({'error': f'{self.path}: one of {", ".join(COMPLETIONS)} is wanted'}).encode())
            return
        try:
            asked = json.loads(body)
        except ValueError as error:
            self.answer(400, json.dumps({'error': f'the body is no JSON: {error}'}).encode())
            return
        if not isinstance(asked, dict):
            self.answer(400, json.dumps({'error': 'the body is no JSON object'}).encode())
            return
        if asked.pop('kv_transfer_params', None) is not None:  # it names the host that KV comes from: not the client's to say
            body = json.dumps(asked).encode()
        try:
            status, told = self.prefill.read('POST', self.path, json.dumps(prefill_body(asked)).encode())
            if status != 200:
                self.answer(status, told)
                return
            asked['kv_transfer_params'] = json.loads(told).get('kv_transfer_params')
        except EngineDown as error:
            self.log_error('%s: the decode engine computes the prompt', error)
        self.pass_on('POST', json.dumps(asked).encode(), body)

    def pass_on(self, method: str, body: bytes | None, whole: bytes | None = None) -> None:
        """To the decode engine; what it does not answer, to the prefill engine, as the client asked it (whole)."""
        try:
            streamed = body is not None and json.loads(body).get('stream')
            if streamed:
                self.stream(self.decode.open(method, self.path, body))
            else:
                self.answer(*self.decode.read(method, self.path, body))
        except EngineDown as error:
            self.log_error('%s: the prefill engine answers', error)
            try:
                if streamed:
                    self.stream(self.prefill.open(method, self.path, whole or body))
                else:
                    self.answer(*self.prefill.read(method, self.path, whole or body))
            except EngineDown as other:
                self.answer(502, json.dumps({'error': f'{error}; {other}'}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, answer: http.client.HTTPResponse) -> None:
        """As it comes. HTTP 1.0: the end of the connection is the end of the stream."""
        self.send_response(answer.status)
        self.send_header('Content-Type', answer.headers.get('Content-Type', 'text/event-stream'))
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(piece)
            self.wfile.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--prefill', required=True, metavar='HOST:PORT')
    parser.add_argument('--decode', required=True, metavar='HOST:PORT')
    parser.add_argument('--port', type=int, default=8000, help='where clients come, on 127.0.0.1')
    parser.add_argument('--timeout', type=float, default=600, help='seconds that an engine may be silent')
    args = parser.parse_args()
    Proxy.prefill, Proxy.decode = Engine(args.prefill, args.timeout), Engine(args.decode, args.timeout)
    with ThreadingHTTPServer(('127.0.0.1', args.port), Proxy) as server:
        server.serve_forever()
    return 0


if __name__ == '__main__':
    sys.exit(main())
