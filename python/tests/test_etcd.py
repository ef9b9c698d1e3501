# SPDX-License-Identifier: Apache-2.0
"""Metadata of agents in etcd: published with a lease, looked up, taken back, and gone when its agent is dead."""
import errno
import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from binascii import b2a_base64
from unittest import mock

import tenuto
from case import Case, main
from s3_servers import etcd, free_ports
from tenuto import xfer

SIZE = 8192
NIXL = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'nixl')
PUBLISHER = '''
import sys, tenuto.xfer as xfer
agent = xfer.Agent(sys.argv[1])
kv = bytearray(sys.argv[1].encode() * %d)[:%d]
agent.register(kv)
agent.directory(sys.argv[2])
agent.publish()
print(xfer.sections_of(kv)[0][0], flush=True)
sys.stdin.read()
''' % (SIZE, SIZE)


def base64(text):
    return b2a_base64(text.encode(), newline=False).decode()


def call(endpoint, path, **ask):
    """What etcd's gateway answers."""
    request = urllib.request.Request(f'{endpoint}/v3/{path}', json.dumps(ask).encode())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return json.load(answer)


@unittest.skipUnless(shutil.which('etcd'), 'etcd is missing: make setup installs it (etcd-server)')
class EtcdTest(Case):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix='tenuto-etcd-')
        cls.addClassCleanup(shutil.rmtree, cls.directory, True)
        cls.server, cls.endpoint = etcd(cls.directory)
        cls.addClassCleanup(lambda: cls.server.close())
        os.environ['no_proxy'] = '*'

    def agent(self, name, spec=''):
        agent = xfer.Agent(name)
        self.addCleanup(agent.close)
        agent.directory(f'etcd,endpoints={self.endpoint},ttl_s=2{spec}')
        return agent

    def refused(self, code, call, *args, **more):
        with self.assertRaises(tenuto.Error) as caught:
            call(*args, **more)
        self.assertEqual(caught.exception.errno, code, caught.exception)
        return str(caught.exception)

    def until_gone(self, agent, peer, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                agent.lookup(peer)
            except tenuto.NotFound:
                return True
            time.sleep(0.05)
        return False

    def publisher(self, name):
        process = subprocess.Popen([sys.executable, '-P', '-c', PUBLISHER, name, f'etcd,endpoints={self.endpoint},ttl_s=2'], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.stdin.close)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process, int(process.stdout.readline())

    def test_what_one_process_published_another_uses(self):
        _, address = self.publisher('decode-0')
        here = bytearray(SIZE)
        agent = self.agent('prefill-0')
        agent.lookup('decode-0')
        agent.register(here)
        with agent.read(agent.list([(xfer.sections_of(here)[0][0], SIZE, 0)]), agent.list([(address, SIZE, 0)], peer='decode-0')) as request:
            request.post(10)
            request.wait()
        self.assertEqual(here, (b'decode-0' * SIZE)[:SIZE])

    def test_an_entry_outlives_its_lease_as_long_as_its_agent_lives_and_no_longer(self):
        process, _ = self.publisher('mortal')
        agent = self.agent('watcher')
        time.sleep(2.5)
        agent.lookup('mortal')
        process.send_signal(signal.SIGKILL)
        process.wait()
        agent.lookup('mortal')
        self.assertTrue(self.until_gone(agent, 'mortal', 6), 'the entry of a dead agent stays')

    def test_an_agent_that_ends_takes_its_entries_along(self):
        agent, other = self.agent('short'), self.agent('long')
        agent.publish()
        other.lookup('short')
        agent.close()
        self.refused(errno.ENOENT, other.lookup, 'short')

    def test_entries_have_labels_and_are_taken_back_one_by_one(self):
        agent, other = self.agent('two-labels'), self.agent('reader')
        kv = bytearray(3 * SIZE)
        at = xfer.sections_of(kv)[0][0]
        agent.register([(at, SIZE, 0), (at + SIZE, 2 * SIZE, 0)], xfer.DRAM)
        agent.publish('some', [(at, SIZE, 0)], xfer.DRAM)
        agent.publish('all')
        other.lookup('two-labels', 'some')
        self.assertEqual(other.peer('two-labels').sections, 1)
        other.lookup('two-labels', 'all')
        self.assertEqual(other.peer('two-labels').sections, 2)
        agent.unpublish('some')
        agent.unpublish('some')
        self.refused(errno.ENOENT, other.lookup, 'two-labels', 'some')
        other.lookup('two-labels', 'all')

    def test_what_is_published_again_replaces_what_was(self):
        agent, other = self.agent('twice'), self.agent('reader-2')
        agent.publish()
        kv = bytearray(SIZE)
        agent.register(kv)
        agent.publish()
        other.lookup('twice')
        self.assertEqual(other.peer('twice').sections, 1)

    def test_metadata_of_many_sections_goes_through(self):
        agent, other = self.agent('many'), self.agent('reader-3')
        kv = bytearray(5000 * 64)
        at = xfer.sections_of(kv)[0][0]
        agent.register([(at + 64 * i, 32, 0) for i in range(5000)], xfer.DRAM)
        agent.publish()
        other.lookup('many')
        self.assertEqual(other.peer('many').sections, 5000)

    def test_what_etcd_refuses_is_told_in_its_words(self):
        agent = self.agent('large')
        kv = bytearray(60000 * 64)
        at = xfer.sections_of(kv)[0][0]
        agent.register([(at + 64 * i, 32, 0) for i in range(60000)], xfer.DRAM)
        self.assertIn('larger than max', self.refused(errno.E2BIG, agent.publish))

    def test_entries_come_back_after_etcd_has_lost_them(self):
        with tempfile.TemporaryDirectory() as directory:
            server, endpoint = etcd(directory)
            self.addCleanup(server.close)
            agent, other = xfer.Agent('back'), xfer.Agent('reader-4')
            self.addCleanup(agent.close)
            self.addCleanup(other.close)
            for a in (agent, other):
                a.directory(f'etcd,endpoints={endpoint},ttl_s=2')
            agent.publish()
            # As if the agent could not reach etcd for longer than its lease.
            lease, = call(endpoint, 'lease/leases')['leases']
            call(endpoint, 'lease/revoke', ID=lease['ID'])
            self.refused(errno.ENOENT, other.lookup, 'back')
            end = time.monotonic() + 10
            while time.monotonic() < end:
                try:
                    other.lookup('back')
                    return
                except tenuto.NotFound:
                    time.sleep(0.05)
            self.fail('the entry does not come back')

    def test_a_server_that_is_not_there_costs_no_more_than_the_deadline(self):
        agent = xfer.Agent('alone')
        self.addCleanup(agent.close)
        agent.directory('etcd,endpoints=http://127.0.0.1:%d' % free_ports(1)[0])
        begin = time.monotonic()
        with self.assertRaises(tenuto.Error) as caught:
            agent.publish(timeout=0.5)
        self.assertIn(caught.exception.errno, (errno.ECONNREFUSED, errno.ETIMEDOUT))
        self.assertLess(time.monotonic() - begin, 1.5)

    def test_another_endpoint_answers_in_the_place_of_one_that_does_not(self):
        agent = xfer.Agent('elsewhere')
        self.addCleanup(agent.close)
        agent.directory(f'etcd,endpoints=http://127.0.0.1:{free_ports(1)[0]};{self.endpoint},ttl_s=2')
        agent.publish()
        self.agent('reader-5').lookup('elsewhere')

    def test_an_entry_that_is_no_metadata_is_refused(self):
        agent, other = self.agent('named'), self.agent('reader-6')
        agent.publish()
        where = '/tenuto/agents/%s/metadata'
        call(self.endpoint, 'kv/put', key=base64(where % 'garbage'), value=base64('garbage'))
        self.refused(errno.EBADMSG, other.lookup, 'garbage')
        value = call(self.endpoint, 'kv/range', key=base64(where % 'named'))['kvs'][0]['value']
        call(self.endpoint, 'kv/put', key=base64(where % 'liar'), value=value)
        self.assertIn('agent liar holds the metadata of agent named', self.refused(errno.EBADMSG, other.lookup, 'liar'))
        self.assertIsNone(other.peer('named'))  # nor was it loaded

    def test_a_value_that_is_no_base64_is_refused(self):
        class Gateway(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers['Content-Length']))
                body = json.dumps({'kvs': [{'value': self.server.value}]}).encode()
                self.send_response(200)
                self.send_header('Content-Length', str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Gateway)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        agent = xfer.Agent('reader-of-base64')
        self.addCleanup(agent.close)
        agent.directory(f'etcd,endpoints=http://127.0.0.1:{server.server_port}')
        for server.value in ('=', 'A===', '====', '========', 'AAAA' + 4 * ' ', 4 * ' ' + 'AAAA', 'AAAAA', '????'):
            self.assertIn('base64', self.refused(errno.EBADMSG, agent.lookup, 'anybody'), server.value)

    def test_agents_of_the_module_nixl_find_each_other(self):
        sys.path.insert(0, NIXL)
        self.addCleanup(sys.path.remove, NIXL)
        from nixl._api import nixl_agent
        os.environ['NIXL_ETCD_ENDPOINTS'] = self.endpoint
        self.addCleanup(os.environ.pop, 'NIXL_ETCD_ENDPOINTS')
        prefill, decode = nixl_agent('nixl-prefill'), nixl_agent('nixl-decode')
        for agent in (prefill, decode):
            self.addCleanup(agent.agent._agent.close)
        decode.fetch_remote_metadata('nixl-prefill')  # waits until it is there
        kv = bytearray(2 * SIZE)
        at = xfer.sections_of(kv)[0][0]
        descs = prefill.register_memory([(at, SIZE, 0, ''), (at + SIZE, SIZE, 0, '')], 'DRAM')
        prefill.send_local_metadata()
        self.until(lambda: decode.check_remote_metadata('nixl-prefill', descs.trim()))
        prefill.send_partial_agent_metadata(prefill.get_reg_descs([(at, SIZE, 0, '')], 'DRAM'), label='one')
        prefill.invalidate_local_metadata()
        for label in ('metadata', 'one'):
            self.refused(errno.ENOENT, decode.agent._agent.lookup, 'nixl-prefill', label)

    def test_errors_of_etcd_in_the_module_nixl(self):
        sys.path.insert(0, NIXL)
        self.addCleanup(sys.path.remove, NIXL)
        from nixl import _bindings as bind
        from nixl._api import nixl_agent
        with mock.patch.dict(os.environ, NIXL_ETCD_ENDPOINTS=self.endpoint, NIXL_ETCD_NAMESPACE='/elsewhere'):
            agent = nixl_agent('nixl-errors')
        with mock.patch.dict(os.environ, NIXL_ETCD_ENDPOINTS=f'http://127.0.0.1:{free_ports(1)[0]}'):
            lost = nixl_agent('nixl-lost')
        lost.agent._directory.fetch_s = 0.3
        for one in (agent, lost):
            self.addCleanup(one.agent._agent.close)
        kv = bytearray(SIZE)
        descs = agent.register_memory([(xfer.sections_of(kv)[0][0], SIZE, 0, '')], 'DRAM')
        self.assertRaises(bind.nixlInvalidParamError, agent.send_partial_agent_metadata, descs)
        agent.send_partial_agent_metadata(descs, label='some')
        key = base64('/elsewhere/nixl-errors/some')
        self.assertEqual(int(call(self.endpoint, 'kv/range', key=key)['count']), 1)
        agent.invalidate_local_metadata()
        self.assertNotIn('count', call(self.endpoint, 'kv/range', key=key))
        self.assertRaises(bind.nixlRemoteDisconnectError, lost.send_local_metadata)
        with self.assertLogs('nixl', 'ERROR') as told:
            lost.fetch_remote_metadata('nobody')
            self.until(lambda: told.output)
        self.assertFalse(lost.check_remote_metadata('nobody'))

    def until(self, condition):
        end = time.monotonic() + 10
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.02)

    def test_bad_parameters_are_named(self):
        agent = xfer.Agent('bad')
        self.addCleanup(agent.close)
        self.assertIn('directory', self.refused(errno.ENOENT, agent.publish))
        for spec, word in (('etcd,ttl_s=0', 'ttl_s=0'), ('etcd,colour=red', 'colour'), ('etcd,endpoints=etcd:2379', 'etcd:2379'), ('etcd,x', 'key=value')):
            self.assertIn(word, self.refused(errno.EINVAL, agent.directory, spec))
        self.refused(errno.ENOENT, agent.directory, 'nowhere')
        agent.directory(f'etcd,endpoints={self.endpoint}')
        self.refused(errno.EEXIST, agent.directory, f'etcd,endpoints={self.endpoint}')
        self.refused(errno.EINVAL, agent.publish, 'a/b')
        self.refused(errno.EINVAL, agent.lookup, '')


main(__name__)
