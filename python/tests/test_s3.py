# SPDX-License-Identifier: Apache-2.0
"""The backend s3 of the transfer agent: against SeaweedFS, and against a server that fails as it is told."""
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import tenuto
from case import Case, content, main
from s3_servers import ACCESS_KEY, SECRET_KEY, Faulty, seaweedfs, weed_program
from tenuto import xfer

BUCKET = 'bucket'
NIXL = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'nixl')
PART = 5 << 20


class Store(Case):
    """An agent with the backend, and requests on bytes and keys."""
    endpoint = None
    options = ''

    def setUp(self):
        super().setUp()
        os.environ.update(AWS_ENDPOINT_URL=self.endpoint, AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY, AWS_REGION='us-east-1', no_proxy='*')
        self.agent = self.open_agent()
        self.devices = 0

    def open_agent(self, options=''):
        agent = xfer.Agent('one', backends=['memory', f's3,bucket={BUCKET},multipart_bytes={PART}{self.options}{options}'], listen='none')
        self.addCleanup(agent.close)
        return agent

    def objects(self, agent, keys):
        """A device number per key."""
        numbers = range(self.devices + 1, self.devices + 1 + len(keys))
        self.devices += len(keys)
        agent.register([(0, 0, n, key) for n, key in zip(numbers, keys)], xfer.OBJECT)
        return list(numbers)

    def request(self, op, array, runs, agent=None):
        """A request that moves an array from or to [(key, offset, bytes)], one behind the other."""
        agent = agent or self.agent
        keys = sorted({key for key, _, _ in runs})
        device = dict(zip(keys, self.objects(agent, keys)))
        agent.register(array)
        (at, _, _), = xfer.sections_of(array)
        here = []
        for _, _, n in runs:
            here.append((at, n, 0))
            at += n
        local = agent.list(here)
        remote = agent.list([(offset, n, device[key]) for key, offset, n in runs], segment=xfer.OBJECT)
        return getattr(agent, op)(local, remote)

    def move(self, op, array, runs, timeout=20, agent=None):
        with self.request(op, array, runs, agent) as request:
            request.post(timeout)
            request.wait()
            return request.results()

    def put(self, key, data, **more):
        return self.move('write', bytearray(data), [(key, 0, len(data))], **more)

    def get(self, key, n, offset=0, **more):
        out = bytearray(n)
        self.move('read', out, [(key, offset, n)], **more)
        return bytes(out)

    def fails(self, code, op, runs, n=None, timeout=20, agent=None):
        """A request that fails; its results."""
        with self.request(op, bytearray(n or sum(r[2] for r in runs)), runs, agent) as request:
            request.post(timeout)
            with self.assertRaises(tenuto.Error) as caught:
                request.wait()
            self.assertEqual(caught.exception.errno, code, caught.exception)
            request.cancel(10)
            return request.results()

    def told(self, op, runs, timeout=20, agent=None):
        """What a request that fails says."""
        with self.request(op, bytearray(sum(r[2] for r in runs)), runs, agent) as request:
            request.post(timeout)
            with self.assertRaises(tenuto.Error) as caught:
                request.wait()
            request.cancel(10)
            return str(caught.exception)


@unittest.skipUnless(weed_program(), 'SeaweedFS is missing: make setup installs it')
class RealTest(Store):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix='tenuto-s3-')
        cls.addClassCleanup(shutil.rmtree, cls.directory, True)
        server, cls.endpoint = seaweedfs(cls.directory, BUCKET)
        cls.addClassCleanup(server.close)

    @unittest.skipUnless(os.environ.get('XFER_KINDS'), 'XFER_KINDS names no test-xfer: meson sets it')
    def test_s3_does_what_all_backends_do(self):
        done = subprocess.run([os.environ['XFER_KINDS'], 's3'], capture_output=True, text=True, timeout=200)
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])

    def test_what_was_written_is_read_whole_and_in_ranges(self):
        for n in (1, 4096, 6 << 20):
            data = content(n, n)
            self.assertEqual(self.put(f'whole/{n}', data), [(0, n)])
            self.assertEqual(self.get(f'whole/{n}', n), data)
            for first, last in ((0, n // 2), (n // 3, n), (n - 1, n)):
                if first < last:
                    self.assertEqual(self.get(f'whole/{n}', last - first, first), data[first:last])

    def test_keys_may_have_any_bytes(self):
        for key in ('a b', 'a+b%20c', 'q?x=1&y', 'ä/ö', 'dots/.hidden', "it's (one)*!"):
            self.put(key, key.encode())
            self.assertEqual(self.get(key, len(key.encode())), key.encode())

    def test_a_query_says_what_exists_and_how_long_it_is(self):
        self.put('known', bytes(1234))
        self.assertEqual(self.agent.query([(0, 0, 1, 'known'), (0, 0, 2, 'unknown')], xfer.OBJECT), [1234, None])

    def test_each_descriptor_has_its_own_status(self):
        data = content('own', 3000)
        self.put('own', data)
        results = self.fails(errno.ENODATA, 'read', [('own', 0, 1000), ('own', 2500, 1000), ('missing', 0, 1000)])
        self.assertEqual(results, [(0, 1000), (errno.ENODATA, 500), (errno.ENOENT, 0)])

    def test_the_reason_is_that_of_the_descriptor_that_is_named(self):
        for names in ('gone/a', 'gone/b'), ('gone/b', 'gone/a'):
            with self.assertRaises(tenuto.Error) as caught:
                self.move('read', bytearray(2000), [(name, 0, 1000) for name in names])
            self.assertIn('descriptor 0', str(caught.exception))
            self.assertIn(names[0], str(caught.exception))
            self.assertNotIn(names[1], str(caught.exception))

    def test_many_objects_go_in_one_request(self):
        n, size = 64, 5000
        data = content('many', n * size)
        runs = [(f'many/{i}', 0, size) for i in range(n)]
        self.move('write', bytearray(data), runs)
        out = bytearray(n * size)
        self.move('read', out, runs)
        self.assertEqual(out, data)

    def test_an_object_is_written_from_several_places(self):
        data = content('places', 6 << 20)
        half, runs = 3 << 20, [('places', 3 << 20, 3 << 20), ('places', 0, 3 << 20)]
        self.move('write', bytearray(data[half:] + data[:half]), runs)
        self.assertEqual(self.get('places', len(data)), data)

    def test_a_part_of_an_object_cannot_be_written(self):
        with self.assertRaises(tenuto.Error) as caught:
            self.request('write', bytearray(10), [('part', 5, 10)])
        self.assertEqual(caught.exception.errno, errno.ENOTSUP)
        self.assertIn('bytes from 5 on of object part', str(caught.exception))

    def test_an_object_that_is_there_stays_when_asked(self):
        agent = self.open_agent(',if_absent=1')
        for n in (100, 6 << 20):
            key = f'once/{n}'
            self.put(key, b'a' * n, agent=agent)
            self.fails(errno.EEXIST, 'write', [(key, 0, n)], agent=agent)
            self.assertEqual(self.get(key, n), b'a' * n)

    def test_wrong_credentials_are_refused(self):
        agent = self.open_agent(',secret_key=another')
        self.fails(errno.EACCES, 'read', [('whole', 0, 1)], agent=agent)
        with self.assertRaises(tenuto.Error) as caught:
            agent.query([(0, 0, 1, 'whole')], xfer.OBJECT)
        self.assertEqual(caught.exception.errno, errno.EACCES)

    def test_the_caller_is_told_what_the_store_said(self):
        for options, words in ((',secret_key=another', ('HTTP 403 SignatureDoesNotMatch', 'check secret_key')), (',access_key=another', ('HTTP 403 InvalidAccessKeyId', 'check access_key')),
                               ('', ('HTTP 404 NoSuchKey', 'no such object'))):
            with self.subTest(options):
                agent = self.open_agent(options)
                told = self.told('read', [('a/missing', 0, 1)], agent=agent)
                for word in (f'object a/missing of {self.endpoint}/{BUCKET}', *words):
                    self.assertIn(word, told)

    def test_a_request_may_be_posted_again(self):
        data = bytearray(content('again', 6 << 20))
        with self.request('write', data, [('again', 0, len(data))]) as request:
            for i in range(2):
                data[i] ^= 1
                request.post(20)
                request.wait()
        self.assertEqual(self.get('again', len(data)), data)

    def test_a_write_in_parts_that_is_cancelled_leaves_nothing(self):
        n = 40 << 20
        with self.request('write', bytearray(n), [('cancelled', 0, n)]) as request:
            request.post(20)
            time.sleep(0.03)
            begin = time.monotonic()
            request.cancel(5)
            self.assertLess(time.monotonic() - begin, 1)
            self.assertEqual(request.status().error, errno.ECANCELED)
        self.assertEqual(self.agent.query([(0, 0, 1, 'cancelled')], xfer.OBJECT), [None])


class FaultTest(Store):
    options = ',tries=3'

    @classmethod
    def setUpClass(cls):
        cls.server = Faulty()
        cls.addClassCleanup(cls.server.close)
        cls.endpoint = cls.server.endpoint

    def stored(self, key, n=1000):
        data = content(key, n)
        self.server.objects[f'/{BUCKET}/{key}'] = data
        return data

    def test_an_answer_that_is_not_the_bytes_asked_for_is_an_error(self):
        for fault in ('less', 'more', 'whole', 'wrong', 'short', 'reset'):
            with self.subTest(fault):
                self.stored(f'answer.{fault}')
                self.fails(errno.ENODATA if fault == 'less' else errno.EIO, 'read', [(f'answer.{fault}', 100, 800)])

    def test_refusals_are_told_and_not_tried_again(self):
        for fault, code in (('403', errno.EACCES), ('404', errno.ENOENT), ('412', errno.EEXIST), ('416', errno.ENODATA), ('400', errno.EINVAL), ('507', errno.ENOSPC)):
            with self.subTest(fault):
                self.assertEqual(self.fails(code, 'read', [(f'refused.{fault}', 0, 10)]), [(code, 0)])
                self.assertEqual(self.fails(code, 'write', [(f'refused.{fault}', 0, 10)]), [(code, 0)])
                self.assertEqual(self.server.methods(f'refused.{fault}'), ['GET', 'PUT'])

    def test_the_caller_is_told_what_failed(self):
        for op in ('read', 'write'):
            for key, words in (('told.403', ('HTTP 403 Told', 'access_key')), ('told.404', ('HTTP 404', 'no such object')), ('told.507', ('HTTP 507', 'is full')),
                               ('told.500', ('HTTP 500', 'log')), ('told.reset', ('connection broke',))):
                with self.subTest(key, op=op):
                    self.stored(key)
                    told = self.told(op, [(key, 0, 1000)])
                    for word in (f'object {key} of {self.endpoint}/{BUCKET}', *words):
                        self.assertIn(word, told)
        self.assertIn('HTTP 500', self.told('write', [('parts.part500', 0, 2 * PART + 1)]))
        self.stored('two.short')
        self.assertIn('object two.short', self.told('read', [('two.short', 0, 400), ('two.short', 400, 400)]))
        with self.assertRaisesRegex(tenuto.Error, 'object asked.403 of .*HTTP 403'):
            self.agent.query([(0, 0, 1, 'asked.403')], xfer.OBJECT)

    def test_a_deadline_while_tries_go_on_tells_why_they_failed(self):
        agent = self.open_agent(',tries=100')
        with self.assertRaisesRegex(tenuto.Timeout, 'object tells.503 of .*HTTP 503'):
            self.put('tells.503', b'x', timeout=0.4, agent=agent)

    def test_faults_on_purpose_over_objects(self):
        def faulty(options):
            agent = xfer.Agent('faulty', backends=[f'faulty,over=s3,bucket={BUCKET},tries=2,{options}'], listen='none')
            self.addCleanup(agent.close)
            return agent
        self.assertIn('on purpose', self.told('write', [('purpose', 0, 1000)], agent=faulty('fail=100')))
        self.assertEqual(self.server.methods('purpose'), [])
        data, runs = self.stored('purpose'), [('purpose', 500, 100), ('purpose', 0, 100), ('purpose', 200, 100)]
        results = self.fails(errno.EIO, 'read', runs, agent=faulty('truncate=100'))
        self.assertEqual(sorted(results), [(0, 100), (0, 100), (errno.EIO, 50)])
        out = bytearray(300)
        self.move('read', out, runs, agent=faulty('reorder=1,delay=100,delay_us=1000'))
        self.assertEqual(out, data[500:600] + data[:100] + data[200:300])
        self.assertIn('HTTP 403', self.told('read', [('purpose.403', 0, 10)], agent=faulty('reorder=1')))
        with self.assertRaisesRegex(tenuto.Error, 'colour'):
            xfer.Agent('faulty', backends=['faulty,over=s3,bucket=b-1,colour=red'], listen='none')

    def test_what_failed_of_a_whole_write_is_not_written_alone(self):
        unit = PART // 10
        # Pieces are of 4 MiB at most: the descriptors of one of the two have failed together.
        for name, units in (('first', (2, 2, 5)), ('last', (8, 1, 1))):
            for fault, tries in (('403x1', 1), ('403', 1), ('503x3', 3)):
                with self.subTest(name, fault=fault):
                    key = f'whole-{name}.{fault}'
                    runs = [(key, sum(units[:i]) * unit, n * unit) for i, n in enumerate(units)]
                    code = errno.EIO if fault[0] == '5' else errno.EACCES
                    self.assertEqual(self.fails(code, 'write', runs), [(code, 0)] * 3)
                    self.assertEqual(self.server.methods(key), ['PUT'] * tries)
                    self.assertNotIn(f'/{BUCKET}/{key}', self.server.objects)

    def test_failures_that_pass_are_tried_again(self):
        for fault in ('500x2', '503x1', '429x1', 'shortx1', 'resetx1', '409x1'):
            with self.subTest(fault):
                data = self.stored(f'passes.{fault}')
                self.assertEqual(self.get(f'passes.{fault}', 1000), data)
                self.put(f'written.{fault}', data)
                self.assertEqual(self.server.objects[f'/{BUCKET}/written.{fault}'], data)

    def test_failures_that_stay_end_after_the_tries(self):
        self.fails(errno.EIO, 'read', [('stays.500', 0, 10)])
        self.assertEqual(len(self.server.methods('stays.500')), 3)

    def test_no_try_begins_behind_the_deadline(self):
        agent = self.open_agent(',tries=100')
        begin = time.monotonic()
        with self.assertRaises(tenuto.Timeout):
            self.put('late.503', b'x', timeout=0.6, agent=agent)
        self.assertLess(time.monotonic() - begin, 1.5)
        time.sleep(0.5)
        times = [t for _, path, t in self.server.requests if path.endswith('late.503')]
        self.assertTrue(1 < len(times) < 8, times)
        self.assertLess(max(times), begin + 0.65)

    def test_a_deadline_ends_a_request_that_gets_no_answer_and_costs_no_cpu(self):
        with self.request('read', bytearray(1000), [('none.slow', 0, 1000)]) as request:
            request.post(0.5)
            cpu, begin = time.process_time(), time.monotonic()
            with self.assertRaises(tenuto.Timeout):
                request.wait()
            request.cancel(5)
            self.assertLess(time.monotonic() - begin, 1.5)
            self.assertLess(time.process_time() - cpu, 0.1)

    def test_nothing_is_written_behind_a_cancel(self):
        self.stored('drips.drip')
        out = bytearray(1000)
        with self.request('read', out, [('drips.drip', 0, 1000)]) as request:
            request.post(30)
            end = time.monotonic() + 10
            while not any(out) and time.monotonic() < end:
                time.sleep(0.01)
            request.cancel(5)
            self.assertEqual(request.status().state, xfer.ENDED)
            seen = bytes(out)
            moved = request.results()[0][1]
            self.assertTrue(self.server.ended.wait(10), 'the connection was not closed')
            self.assertEqual(bytes(out), seen)
            self.assertLess(moved, 1000)

    def test_a_write_in_parts_that_fails_is_aborted(self):
        for fault in ('part500', 'complete200'):
            with self.subTest(fault):
                self.fails(errno.EIO, 'write', [(f'parts.{fault}', 0, 2 * PART + 1)])
                end = time.monotonic() + 5
                while 'DELETE' not in self.server.methods(f'parts.{fault}') and time.monotonic() < end:
                    time.sleep(0.01)
                self.assertEqual(self.server.methods(f'parts.{fault}').count('DELETE'), 1)

    def test_parts_are_put_together_in_their_order(self):
        data = content('ordered', 3 * PART + 5)
        self.put('ordered', data)
        self.assertEqual(self.server.objects[f'/{BUCKET}/ordered'], data)
        self.assertEqual(self.server.methods('ordered').count('PUT'), 4)

    def test_the_module_nixl_has_it_as_obj(self):
        sys.path.insert(0, NIXL)
        self.addCleanup(sys.path.remove, NIXL)
        from nixl._api import nixl_agent, nixl_agent_config
        agent = nixl_agent('obj', nixl_agent_config(backends=['UCX']))
        self.addCleanup(agent.agent._agent.close)
        self.assertIn('OBJ', agent.get_plugin_list())
        agent.create_backend('OBJ', {'bucket': BUCKET, 'endpoint_override': self.server.endpoint.removeprefix('http://'), 'scheme': 'http', 'access_key': 'a', 'secret_key': 'b'})
        kv = bytearray(content('obj', 1000))
        at = xfer.sections_of(kv)[0][0]
        agent.register_memory([(at, 1000, 0, '')], 'DRAM')
        agent.register_memory([(0, 600, 1, 'nixl-key'), (0, 400, 2, '')], 'OBJ')
        handle = agent.initialize_xfer('WRITE', agent.get_xfer_descs([(at, 600, 0), (at + 600, 400, 0)], 'DRAM'), agent.get_xfer_descs([(0, 600, 1), (0, 400, 2)], 'OBJ'), 'obj')
        state = agent.transfer(handle)
        while state == 'PROC':
            state = agent.check_xfer_state(handle)
        self.assertEqual((state, agent.query_xfer_backend(handle)), ('DONE', 'OBJ'))
        handle.release()
        self.assertEqual(self.server.objects[f'/{BUCKET}/nixl-key'] + self.server.objects[f'/{BUCKET}/2'], kv)
        self.assertEqual(agent.query_memory([(0, 0, 3, 'nixl-key'), (0, 0, 4, 'none')], 'OBJ', 'OBJ'), [{'size': '600'}, None])

    def test_112000_descriptors_of_an_object_are_one_range(self):
        n, size = 112000, 16
        data = self.stored('many', n * size)
        out = bytearray(n * size)
        self.agent.register(out)
        (at, _, _), = xfer.sections_of(out)
        device, = self.objects(self.agent, ['many'])
        # From the last to the first: no two neighbours follow each other.
        local = self.agent.list([(at + i * size, size, 0) for i in reversed(range(n))] + [(at, 0, 0)])
        remote = self.agent.list([(i * size, size, device) for i in reversed(range(n))] + [(5, 0, device)], segment=xfer.OBJECT)
        with self.agent.read(local, remote) as request:
            request.post(20)
            request.wait()
            self.assertEqual(request.status().pieces, n)
        self.assertEqual(out, data)
        self.assertEqual(self.server.methods('many'), ['GET'])

    def test_nobody_listens(self):
        agent = self.open_agent(',endpoint=http://127.0.0.1:1')
        self.fails(errno.ECONNREFUSED, 'read', [('nobody', 0, 1)], agent=agent)

    def test_a_session_token_is_sent(self):
        agent = self.open_agent(',session_token=a-token')
        self.put('token', b'x', agent=agent)
        fields = [f for f in self.server.fields if f.get('x-amz-security-token') == 'a-token']
        self.assertEqual(len(fields), 1)
        self.assertIn('x-amz-security-token', fields[0]['Authorization'])

    def tls(self):
        """(server, its certificate)."""
        pem = os.path.join(self.dir, 'pem')
        made = subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-keyout', pem + '.key', '-out', pem + '.crt', '-days', '2', '-subj', '/CN=localhost',
                               '-addext', 'subjectAltName=DNS:localhost'], capture_output=True)
        if made.returncode:
            self.skipTest('no openssl')
        with open(pem, 'wb') as out:
            for part in ('.key', '.crt'):
                with open(pem + part, 'rb') as f:
                    out.write(f.read())
        server = Faulty(pem)
        self.addCleanup(server.close)
        return server, pem + '.crt'

    def test_a_process_may_end_while_bytes_move(self):
        server, certificate = self.tls()
        server.objects[f'/{BUCKET}/k'] = bytes(100000)
        self.python('''if 1:
            import ctypes, os, sys, time
            from tenuto import xfer
            ended = []
            for i in range(24):
                child = os.fork()
                if child == 0:
                    out = bytearray(6400000)
                    agent = xfer.Agent('ends', backends=['memory', 's3,bucket=%s,endpoint=' + sys.argv[1] + ',ca_file=' + sys.argv[2]], listen='none')
                    agent.register(out)
                    agent.register([(0, 0, 1, 'k')], xfer.OBJECT)
                    at = xfer.sections_of(out)[0][0]
                    local = agent.list([(at + 100000 * k, 100000, 0) for k in range(64)])
                    remote = agent.list([(0, 100000, 1)] * 64, segment=xfer.OBJECT)
                    request = agent.read(local, remote)
                    request.post(60)
                    time.sleep(0.01 + 0.003 * i)
                    ctypes.CDLL(None).exit(0)
                ended.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            assert not any(ended), ended
            ''' % BUCKET, server.endpoint, certificate)

    def test_a_certificate_that_nobody_believes_is_refused(self):
        server, certificate = self.tls()
        self.fails(errno.EACCES, 'write', [('tls', 0, 10)], agent=self.open_agent(f',endpoint={server.endpoint}'))
        self.assertEqual(server.requests, [])
        trusting = self.open_agent(f',endpoint={server.endpoint},ca_file={certificate}')
        self.put('tls', b'trusted', agent=trusting)
        self.assertEqual(server.objects[f'/{BUCKET}/tls'], b'trusted')
        self.assertEqual(server.fields[-1]['x-amz-content-sha256'], 'UNSIGNED-PAYLOAD')

    def test_bad_parameters_are_named(self):
        for spec, word in (('', 'bucket='), (',bucket=UPPER', 'UPPER'), (',bucket=b-1,endpoint=ftp://x', 'ftp://x'), (',bucket=b-1,tries=0', 'tries=0'),
                           (',bucket=b-1,connections=9999', '9999'), (',bucket=b-1,colour=red', 'colour'), (',bucket=b-1,multipart_bytes=1', 'multipart_bytes=1'),
                           (',bucket=b-1,if_absent=2', 'if_absent=2')):
            with self.subTest(spec), self.assertRaises(tenuto.Error) as caught:
                xfer.Agent('two', backends=['s3' + spec], listen='none')
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertIn(word, str(caught.exception))
        os.environ.pop('AWS_SECRET_ACCESS_KEY')
        with self.assertRaisesRegex(tenuto.Error, 'AWS_SECRET_ACCESS_KEY'):
            xfer.Agent('two', backends=[f's3,bucket={BUCKET}'], listen='none')

    def test_a_child_does_not_keep_connections_open(self):
        self.stored('fork.drip', 10000)
        self.server.ended.clear()
        self.python('''if 1:
            import os, sys, time
            from tenuto import xfer
            out = bytearray(10000)
            agent = xfer.Agent('forks', backends=['memory', 's3,bucket=%s'], listen='none')
            agent.register(out)
            agent.register([(0, 0, 1, 'fork.drip')], xfer.OBJECT)
            request = agent.read(agent.list([(xfer.sections_of(out)[0][0], 10000, 0)]), agent.list([(0, 10000, 1)], segment=xfer.OBJECT))
            request.post(60)
            while not any(out):
                time.sleep(0.01)
            if os.fork() == 0:
                os.closerange(0, 3)
                time.sleep(5)
            os._exit(0)
            ''' % BUCKET)
        self.assertTrue(self.server.ended.wait(3), 'the child keeps the connection')


main(__name__)
