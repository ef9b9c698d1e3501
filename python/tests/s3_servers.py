# SPDX-License-Identifier: Apache-2.0
"""Servers for the tests of the plugins s3 and etcd: SeaweedFS, etcd, and an HTTP server that fails as it is told. Standard library only."""
import contextlib
import glob
import http.server
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request

ACCESS_KEY, SECRET_KEY = 'tenuto', 'secret of the tests'.replace(' ', '-')


def free_ports(n):
    """Ports that were free a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(n)]
        for s in sockets:
            s.bind(('127.0.0.1', 0))
        return [s.getsockname()[1] for s in sockets]


def weed_program():
    """SeaweedFS, where scripts/setup.sh puts it; None: it is missing."""
    cache = os.environ.get('TENUTO_CACHE') or os.path.join(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'tenuto')
    found = sorted(glob.glob(os.path.join(cache, 'seaweedfs-*', 'bin', 'weed')))
    return shutil.which('weed') or (found[-1] if found else None)


class Process:
    """A server that was begun: its log is kept, and it ends with close."""

    def __init__(self, args, directory):
        self.log = open(os.path.join(directory, 'log'), 'w+')
        self.process = subprocess.Popen(args, stdout=self.log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=directory)

    def until_it_answers(self, url, statuses, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            try:
                with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
                    status = answer.status
            except urllib.error.HTTPError as e:
                status = e.code
                e.close()
            except OSError:
                status = 0
            if status in statuses:
                return
            time.sleep(0.05)
        self.log.seek(0)
        raise AssertionError(f'{url} does not answer: {self.log.read()[-2000:]}')

    def close(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.log.close()


def seaweedfs(directory, bucket):
    """(server, endpoint) of a store with one bucket. server.filer: where its objects are files, /buckets/BUCKET/KEY, without credentials."""
    master, master_rpc, volume, volume_rpc, filer, filer_rpc, s3, s3_rpc = free_ports(8)
    config = os.path.join(directory, 's3.json')
    with open(config, 'w') as f:
        json.dump({'identities': [{'name': 'test', 'credentials': [{'accessKey': ACCESS_KEY, 'secretKey': SECRET_KEY}],
                                   'actions': ['Admin', 'Read', 'Write', 'List']}]}, f)
    options = {'dir': directory, 'ip': '127.0.0.1', 'ip.bind': '127.0.0.1', 'master.port': master, 'master.port.grpc': master_rpc, 'master.telemetry': 'false',
               'master.electionTimeout': '100ms', 'master.heartbeatInterval': '50ms', 'master.volumeSizeLimitMB': 1024, 'volume.port': volume, 'volume.port.grpc': volume_rpc, 'volume.max': 20,
               'filer': 'true', 'filer.port': filer, 'filer.port.grpc': filer_rpc, 's3': 'true', 's3.port': s3, 's3.port.grpc': s3_rpc, 's3.config': config,
               's3.iam': 'false', 's3.port.iceberg': 0, 's3.port.lance': 0}
    server = Process([weed_program(), 'server', *(f'-{k}={v}' for k, v in options.items())], directory)
    try:
        server.filer = f'http://127.0.0.1:{filer}'
        server.until_it_answers(f'{server.filer}/', [200])
        # A bucket is a directory of the filer; no request has to be signed for it.
        request = urllib.request.Request(f'{server.filer}/buckets/{bucket}/', method='POST')
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10).close()
        server.until_it_answers(f'http://127.0.0.1:{s3}/{bucket}/none', [403])
    except BaseException:
        server.close()
        raise
    return server, f'http://127.0.0.1:{s3}'


def etcd(directory):
    """(server, endpoint) of an etcd of one member."""
    client, peer = free_ports(2)
    url, peers = f'http://127.0.0.1:{client}', f'http://127.0.0.1:{peer}'
    server = Process([shutil.which('etcd'), '--data-dir', os.path.join(directory, 'etcd'), '--listen-client-urls', url, '--advertise-client-urls', url,
                      '--listen-peer-urls', peers, '--initial-advertise-peer-urls', peers, '--initial-cluster', f'default={peers}', '--unsafe-no-fsync',
                      '--log-level', 'error'], directory)
    try:
        server.until_it_answers(url + '/health', [200])
    except BaseException:
        server.close()
        raise
    return server, url


class Faulty:
    """A store of objects in memory, which fails as the key says: see _Handler. requests: (method, path, time) of all that arrived. all_fail(fault): all
    keys do so, as with a fault of a key's; NUMBER:CODE is a status with the store's code; None: no more."""

    def __init__(self, certificate=None):
        self.server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), _Handler)
        self.server.daemon_threads, self.server.handle_error = True, lambda *args: None  # clients that are gone
        self.server.objects, self.server.requests, self.server.counts, self.server.fields = {}, [], {}, []
        self.server.ended, self.server.release = threading.Event(), threading.Event()
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.endpoint = f'http{"s" if certificate else ""}://localhost:{self.server.server_port}'
        self.server.all_fail = None
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))
        self.thread.start()
        self.objects, self.requests, self.fields, self.ended, self.release = (self.server.objects, self.server.requests, self.server.fields, self.server.ended,
                                                                              self.server.release)

    def all_fail(self, fault):
        self.server.all_fail = fault

    def methods(self, key):
        return [method for method, path, _ in list(self.requests) if path.split('?')[0].endswith('/' + key)]

    def close(self):
        self.release.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class _Handler(http.server.BaseHTTPRequestHandler):
    """Key NAME.FAULT: 403, 404, 412, 416, 500, 503: that status, always; 500x2: twice, then well; slow: no answer; drip: a byte each 50 ms; short: the body ends early;
    shortx1: so once; less: fewer bytes than were asked; more: more; whole: no range; wrong: another range; reset: in mid-answer, always; resetx1: once. Of writes in
    parts: part500: part 2 fails; complete200: success that has failed."""
    protocol_version = 'HTTP/1.1'
    disable_nagle_algorithm = True  # head and body go one by one

    def log_message(self, *args):
        pass

    def _fault(self):
        if self.server.all_fail:
            return self.server.all_fail
        path = self.path.split('?')[0]
        fault = path.rsplit('.', 1)[1] if '.' in path else ''
        name, _, times = fault.partition('x')
        if times:
            self.server.counts[path] = self.server.counts.get(path, 0) + 1
            if self.server.counts[path] > int(times):
                return ''
        return name

    def _answer(self, status, body=b'', **fields):
        self.send_response(status)
        for k, v in fields.items():
            self.send_header(k.replace('_', '-'), v)
        self.send_header('Content-Length', fields.pop('length', len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _reset(self):
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')
        self.close_connection = True
        self.connection.close()

    def _begin(self):
        body = self.rfile.read(int(self.headers.get('Content-Length') or 0))
        self.server.requests.append((self.command, self.path, time.monotonic()))
        self.server.fields.append(dict(self.headers))
        fault = self._fault()
        if fault == 'slow':
            self.server.release.wait(30)
        if fault[:3].isdigit():
            self._answer(int(fault[:3]), b'<Error><Code>%s</Code></Error>' % (fault[4:] or 'Told').encode())
            return None, body
        return fault, body

    def do_GET(self):
        fault, _ = self._begin()
        if fault is None:
            return
        data = self.server.objects.get(self.path)
        if data is None:
            self._answer(404)
            return
        first, last = (int(x) for x in self.headers['Range'].removeprefix('bytes=').split('-'))
        body = data[first:last + 1]
        if not body:
            self._answer(416)
            return
        if fault == 'less':
            body = body[:-1]
        elif fault == 'more':
            body += b'!'
        elif fault == 'wrong':
            first += 1
        self.send_response(200 if fault == 'whole' else 206)
        if fault != 'whole':
            self.send_header('Content-Range', f'bytes {first}-{first + len(body) - 1}/{len(data)}')
        self.send_header('Content-Length', len(body))
        self.end_headers()
        if fault == 'drip':
            with contextlib.suppress(OSError):
                for i in range(len(body)):
                    self.wfile.write(body[i:i + 1])
                    time.sleep(0.05)
            self.server.ended.set()
        elif fault in ('short', 'reset'):
            self.wfile.write(body[:len(body) // 2])
            self.close_connection = True
            if fault == 'reset':
                self._reset()
        else:
            self.wfile.write(body)

    def do_HEAD(self):
        fault, _ = self._begin()
        if fault is None:
            return
        data = self.server.objects.get(self.path)
        self.send_response(404 if data is None else 200)
        self.send_header('Content-Length', len(data or b''))
        self.end_headers()

    def do_PUT(self):
        fault, body = self._begin()
        if fault is None:
            return
        path, _, query = self.path.partition('?')
        if fault == 'part500' and 'partNumber=2&' in query:
            self._answer(500)
        elif fault == 'reset':
            self._reset()
        elif self.headers['If-None-Match'] == '*' and path in self.server.objects:
            self._answer(412)
        else:
            self.server.objects[self.path if query else path] = body
            self._answer(200, ETag=f'"{hash(body) & 0xffffffff:x}"')

    def do_POST(self):
        fault, _ = self._begin()
        if fault is None:
            return
        path, _, query = self.path.partition('?')
        if query == 'uploads=':
            self._answer(200, b'<R><UploadId>an id+/&amp;</UploadId></R>')
        elif fault == 'complete200':
            self._answer(200, b'<?xml version="1.0"?><Error><Code>Told</Code></Error>')
        else:
            parts = [(k, v) for k, v in self.server.objects.items() if k.startswith(path + '?partNumber=')]
            parts.sort(key=lambda part: int(part[0].split('partNumber=')[1].split('&')[0]))
            self.server.objects[path] = b''.join(v for _, v in parts)
            self._answer(200, b'<CompleteMultipartUploadResult></CompleteMultipartUploadResult>')

    def do_DELETE(self):
        self._begin()
        self._answer(204)
