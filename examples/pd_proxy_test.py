#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pd_proxy.py between a client and two servers that answer as vLLM does. Prints TAP."""
import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PARAMS = {'do_remote_prefill': True, 'remote_engine_id': 'p', 'remote_block_ids': [[1, 2]]}


class Fake(BaseHTTPRequestHandler):
    """An engine: keeps the bodies that it gets, and answers with its name."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.server.bodies.append(body)
        status = 400 if body['prompt'] == 'too long' else 200
        answer = json.dumps({'by': self.server.name, 'kv_transfer_params': PARAMS}).encode()
        self.send_response(status)
        if not body.get('stream'):
            self.send_header('Content-Length', str(len(answer)))
        self.end_headers()
        for piece in (answer[:9], answer[9:]) if body.get('stream') else (answer,):
            self.wfile.write(piece)

    def log_message(self, *args):
        pass


def engine(name):
    server = ThreadingHTTPServer(('127.0.0.1', 0), Fake)
    server.name, server.bodies = name, []
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    return server


def down(server):
    server.shutdown()
    server.server_close()


def ask(port, body):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=10)
    connection.request('POST', '/v1/completions', body if isinstance(body, bytes) else json.dumps(body))
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def a_prompt_is_prefilled_and_then_decoded(port, prefill, decode):
    asked = {'prompt': 'a', 'max_tokens': 8, 'min_tokens': 3}
    status, told = ask(port, asked)
    assert (status, told['by']) == (200, 'decode'), told
    first, second = prefill.bodies.pop(), decode.bodies.pop()
    assert first['max_tokens'] == 1 and 'min_tokens' not in first and first['kv_transfer_params']['do_remote_decode'], first
    assert second == {**asked, 'kv_transfer_params': PARAMS}, second


def a_stream_is_passed_on(port, prefill, decode):
    assert ask(port, {'prompt': 'a', 'stream': True})[1]['by'] == 'decode'
    assert prefill.bodies.pop()['stream'] is False and decode.bodies.pop()['stream'] is True


def what_the_prefill_engine_refuses_is_the_clients(port, prefill, decode):
    assert ask(port, {'prompt': 'too long'})[0] == 400
    assert prefill.bodies.pop() and not decode.bodies


def a_body_that_is_no_json_is_an_error(port, prefill, decode):
    status, told = ask(port, b'{')
    assert status == 400 and 'no JSON' in told['error'], told
    assert ask(port, b'[1]')[0] == 400


def the_client_does_not_say_where_kv_comes_from(port, prefill, decode):
    down(prefill)
    asked = {'prompt': 'a', 'kv_transfer_params': {'do_remote_prefill': True, 'remote_host': 'elsewhere'}}
    assert ask(port, asked)[1]['by'] == 'decode'
    assert decode.bodies.pop() == {'prompt': 'a'}


def without_the_decode_engine_the_other_one_answers(port, prefill, decode):
    down(decode)
    asked = {'prompt': 'a', 'max_tokens': 8}
    assert ask(port, asked)[1]['by'] == 'prefill'
    assert prefill.bodies.pop() == asked


def without_both_the_client_hears_it(port, prefill, decode):
    down(prefill)
    status, told = ask(port, {'prompt': 'a'})
    assert status == 502 and told['error'].count('engine 127.0.0.1:') == 2, told


def without_the_prefill_engine_the_other_one_computes_all(port, prefill, decode):
    down(prefill)
    asked = {'prompt': 'a', 'max_tokens': 8}
    assert ask(port, asked)[1]['by'] == 'decode'
    assert decode.bodies.pop() == asked


FIRST = [a_prompt_is_prefilled_and_then_decoded, a_stream_is_passed_on, what_the_prefill_engine_refuses_is_the_clients, a_body_that_is_no_json_is_an_error,
         without_the_decode_engine_the_other_one_answers, without_both_the_client_hears_it]
SECOND = [without_the_prefill_engine_the_other_one_computes_all]
THIRD = [the_client_does_not_say_where_kv_comes_from]


def run(tests, numbers):
    prefill, decode = engine('prefill'), engine('decode')
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        port = s.getsockname()[1]
    proxy = subprocess.Popen([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), 'pd_proxy.py'), '--port', str(port),
                              *(f'--{s.name}=127.0.0.1:{s.server_port}' for s in (prefill, decode))], stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as s:
                if not s.connect_ex(('127.0.0.1', port)):
                    break
            time.sleep(0.05)
        for test in tests:
            test(port, prefill, decode)
            print(f'ok {next(numbers)} - {test.__name__}', flush=True)
    finally:
        proxy.kill()
        proxy.wait()


if __name__ == '__main__':
    print(f'1..{len(FIRST) + len(SECOND) + len(THIRD)}')
    count = iter(range(1, 100))
    run(FIRST, count)
    run(SECOND, count)
    run(THIRD, count)
