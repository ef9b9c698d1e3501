# SPDX-License-Identifier: Apache-2.0
"""The backend redis of the transfer agent, and a remote tier over it: against Redis, Valkey, a cluster of two, and a server that answers as it is told."""
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from unittest import mock

import tenuto
from case import Case, content, main
from redis_servers import Scripted, Server, cluster, programs
from tenuto import xfer
from test_remote import BLOCKS, Node

PROGRAMS = programs()


class Agents(Case):
    """An agent with the backend; objects are read and written whole."""

    def agent(self, port, options=''):
        agent = xfer.Agent('one', backends=['memory', f'redis,port={port}{options}'], listen='none')
        self.addCleanup(agent.close)
        return agent

    def move(self, agent, op, array, key, offset=0, timeout=20):
        self.devices = getattr(self, 'devices', 0) + 1
        agent.register([(0, 0, self.devices, key)], xfer.OBJECT)
        agent.register(array)
        (at, n, _), = xfer.sections_of(array)
        with getattr(agent, op)(agent.list([(at, n, 0)]), agent.list([(offset, n, self.devices)], segment=xfer.OBJECT)) as request:
            request.post(timeout)
            try:
                request.wait()
            finally:
                request.cancel(10)

    def put(self, agent, key, data, **more):
        self.move(agent, 'write', bytearray(data), key, **more)

    def get(self, agent, key, n, offset=0, **more):
        out = bytearray(n)
        self.move(agent, 'read', out, key, offset, **more)
        return bytes(out)

    def fails(self, code, call, *args, **more):
        with self.assertRaises(tenuto.Error) as caught:
            call(*args, **more)
        self.assertEqual(caught.exception.errno, code, caught.exception)
        return str(caught.exception)


class RedisNode(Node):
    """Nodes whose remote tier is the server at self.port."""

    def node(self, name, secret='cluster', prefix='kv', **options):
        path, file = os.path.join(self.dir, name), os.path.join(self.dir, secret + '.secret')
        os.makedirs(path, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), 'w') as f:
            f.write(f'the secret of {secret}, which is long enough\n')
        return self.open(path, host_bytes=16 << 20, cluster_secret_file=file, remote=f'redis,port={self.port},prefix={prefix},tries=1', offload='always', **options)

    def loaded(self, name, prefix='kv'):
        """How many blocks another node finds, how many of them it loads, and the bytes."""
        cache = self.node(name, prefix=prefix)
        space, kv, pool = self.raw(cache)
        keys = space.keys(range(BLOCKS))
        found = self.found(space, keys)
        good = space.load(keys, pool, range(BLOCKS), timeout=5).finish()
        cache.close()
        shutil.rmtree(os.path.join(self.dir, name))
        return found, good, bytes(kv[:good * space.geometry.block_bytes])


class Real:
    """Of each server that is here."""
    program = None

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = tempfile.mkdtemp(prefix='tenuto-redis-')
        cls.addClassCleanup(shutil.rmtree, cls.directory, True)

    def setUp(self):
        super().setUp()
        self.server = self.started()
        self.port = self.server.port

    def started(self, *options):
        server = Server(self.program, self.directory, *options)
        self.addCleanup(server.close)
        return server


class RealAgents(Real, Agents):
    @unittest.skipUnless(os.environ.get('XFER_KINDS'), 'XFER_KINDS names no test-xfer: meson sets it')
    def test_redis_does_what_all_backends_do(self):
        if self.program != next(iter(PROGRAMS.values())):
            self.skipTest('one server is enough')
        done = subprocess.run([os.environ['XFER_KINDS'], 'redis'], capture_output=True, text=True, timeout=200, env={**os.environ, 'REDIS_PORT': str(self.port)})
        self.assertEqual(done.returncode, 0, (done.stdout + done.stderr)[-3000:])

    def test_what_was_written_is_read_whole_and_in_ranges(self):
        agent = self.agent(self.port)
        for n in (1, 4096, 20 << 20):
            data = content(n, n)
            self.put(agent, f'whole/{n}', data)
            self.assertEqual(self.get(agent, f'whole/{n}', n), data)
            self.assertEqual(self.get(agent, f'whole/{n}', n - n // 3, n // 3), data[n // 3:])
        self.assertEqual(agent.query([(0, 0, 1, 'whole/4096'), (0, 0, 2, 'none')], xfer.OBJECT), [4096, None])

    def test_what_is_short_or_missing_or_there_is_told_apart(self):
        agent, first = self.agent(self.port), self.agent(self.port, ',if_absent=1')
        self.put(first, 'key', bytes(100))
        self.fails(errno.EEXIST, self.put, first, 'key', bytes(100))
        self.fails(errno.ENODATA, self.get, agent, 'key', 101)
        self.fails(errno.ENOENT, self.get, agent, 'none', 101)
        self.put(agent, 'key', bytes(101))
        self.assertEqual(self.get(agent, 'key', 101), bytes(101))

    def test_a_ttl_ends_what_was_written(self):
        self.put(self.agent(self.port, ',ttl=100'), 'key', b'x')
        self.assertIn(self.server.ask('TTL', 'key'), range(90, 101))

    def test_the_password_comes_from_the_environment(self):
        port = self.started('--requirepass', 'of the test').port
        self.assertIn('NOAUTH', self.fails(errno.EACCES, self.put, self.agent(port), 'key', b'x'))
        for password, code in (('of the test', 0), ('wrong', errno.EACCES)):
            with mock.patch.dict(os.environ, REDISCLI_AUTH=password):
                agent = self.agent(port)
            if code:
                self.assertIn('REDISCLI_AUTH', self.fails(code, self.put, agent, 'key', b'x'))
            else:
                self.put(agent, 'key', b'x')

    def test_a_full_server_says_so(self):
        server = self.started('--maxmemory', '4mb', '--maxmemory-policy', 'noeviction')
        agent = self.agent(server.port)
        with self.assertRaises(tenuto.Error) as caught:
            for i in range(8):
                self.put(agent, f'key/{i}', bytes(1 << 20))
        self.assertEqual(caught.exception.errno, errno.ENOSPC)
        self.assertIn('OOM', str(caught.exception))

    def test_a_write_that_is_cancelled_half_sent_leaves_the_agent_of_use(self):
        agent = self.agent(self.port)
        self.put(agent, 'before', b'x')  # the connections are there
        self.server.process.process.send_signal(signal.SIGSTOP)
        self.fails(errno.ETIMEDOUT, self.put, agent, 'large', bytes(64 << 20), timeout=0.3)  # more than the sockets hold
        self.server.process.process.send_signal(signal.SIGCONT)
        self.put(agent, 'key', b'after')
        self.assertEqual(self.get(agent, 'key', 5), b'after')
        self.fails(errno.ENOENT, self.get, agent, 'large', 1)

    def test_a_cluster_is_followed_by_its_redirects(self):
        a, b = cluster(self.program, self.directory)
        self.addCleanup(a.close)
        self.addCleanup(b.close)
        agent = self.agent(a.port)
        data = {f'key/{i}': content(i, 3000) for i in range(16)}
        for key, value in data.items():
            self.put(agent, key, value)
        sizes = [s.ask('DBSIZE') for s in (a, b)]
        self.assertEqual(sum(sizes), len(data))
        self.assertTrue(all(sizes), sizes)  # both were used
        for key, value in data.items():
            self.assertEqual(self.get(agent, key, 3000), value)
        # One slot on its way from a to b: what a has no more, b is asked for.
        key = next(k for k in data if a.ask('CLUSTER', 'KEYSLOT', k) < 8192)
        slot, ids = a.ask('CLUSTER', 'KEYSLOT', key), [s.ask('CLUSTER', 'MYID').decode() for s in (a, b)]
        b.ask('CLUSTER', 'SETSLOT', slot, 'IMPORTING', ids[0])
        a.ask('CLUSTER', 'SETSLOT', slot, 'MIGRATING', ids[1])
        a.ask('MIGRATE', '127.0.0.1', b.port, key, 0, 5000)
        self.assertEqual(self.get(agent, key, 3000), data[key])


class RealNodes(Real, RedisNode):
    def test_what_a_node_saved_is_found_by_another_after_its_disk_was_wiped(self):
        _, data = self.saved('a')
        self.assertEqual(self.loaded('b'), (BLOCKS, BLOCKS, data))

    def test_a_server_that_was_killed_costs_a_moment_and_then_nothing(self):
        keys, _ = self.saved('a')
        cache = self.node('b')
        space, kv, pool = self.raw(cache)
        self.assertEqual(self.found(space, keys), BLOCKS)
        self.server.kill()
        begin = time.monotonic()
        self.assertEqual(space.load(keys, pool, range(BLOCKS), timeout=5).finish(), 0)
        self.assertEqual(self.found(space, space.keys(range(100, 100 + BLOCKS))), 0)
        self.assertLess(time.monotonic() - begin, 3)
        here = self.stored(space, kv, pool, BLOCKS)
        self.assertEqual(space.load(here, pool, range(8, 8 + BLOCKS)).finish(), BLOCKS)

    def test_a_server_that_stands_still_costs_no_more_than_a_deadline(self):
        keys, data = self.saved('a')
        cache = self.node('b')
        space, kv, pool = self.raw(cache)
        self.assertEqual(self.found(space, keys), BLOCKS)
        self.server.process.process.send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        load = space.load(keys, pool, range(BLOCKS), timeout=0.3)
        self.assertEqual(load.wait(0), 0)
        self.assertLess(time.monotonic() - begin, 1)
        self.server.process.process.send_signal(signal.SIGCONT)
        load.finish()  # by then nothing writes to the pages any more
        self.assertEqual(space.load(keys, pool, range(BLOCKS), timeout=9).finish(), BLOCKS)
        self.assertEqual(bytes(kv[:len(data)]), data)

    def test_a_full_server_keeps_no_node_from_its_disk(self):
        self.server.ask('CONFIG', 'SET', 'maxmemory', 1)
        cache = self.node('a')
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool, BLOCKS)
        cache.flush()
        self.assertEqual(space.load(keys, pool, range(8, 8 + BLOCKS)).finish(), BLOCKS)
        self.assertEqual(cache.stats()['remote_blocks'], 0)

    def test_what_the_server_has_evicted_is_a_miss(self):
        _, data = self.saved('a')
        self.server.ask('CONFIG', 'SET', 'maxmemory-policy', 'allkeys-random')
        self.server.ask('CONFIG', 'SET', 'maxmemory', 1)
        try:
            self.server.ask('SET', 'more', b'x' * 1000)
        except RuntimeError:
            pass  # it has thrown out all it had
        self.assertEqual(self.server.ask('DBSIZE'), 0)
        self.assertEqual(self.loaded('b'), (0, 0, b''))

    def test_what_is_not_the_block_is_a_miss_and_never_other_bytes(self):
        keys, data = self.saved('a')
        one = keys[2 * tenuto.KEY_BYTES:3 * tenuto.KEY_BYTES]
        name = b''.join(one[i:i + 8][::-1] for i in (0, 8)).hex().encode()
        names = self.server.ask('KEYS', 'kv/*')
        path, = (n for n in names if n.endswith(b'/' + name))
        good, other = self.server.ask('GET', path), self.server.ask('GET', next(n for n in names if n != path))
        flipped = [good[:at] + bytes([good[at] ^ 1]) + good[at + 1:] for at in (70, len(good) - 1)]
        for i, bad in enumerate([other, good[:-1], b'', *flipped]):
            self.server.ask('SET', path, bad)
            with self.subTest(i):
                found, loaded, bytes_loaded = self.loaded('b')
                self.assertIn(found, (2, BLOCKS))
                self.assertEqual((loaded, bytes_loaded), (2, data[:len(data) // 2]))


class ScriptedTest(Agents):
    def scripted(self, script):
        server = Scripted(script)
        self.addCleanup(server.close)
        return server

    def test_redirects_that_lead_nowhere_end(self):
        server = self.scripted(lambda words: b'-MOVED 1 127.0.0.1:%d\r\n' % server.port)
        self.fails(errno.EIO, self.get, self.agent(server.port), 'key', 1)
        self.assertLess(len(server.commands), 12)

    def test_a_redirect_without_a_host_stays_at_the_host(self):
        other = self.scripted(lambda words: b'$1\r\nx\r\n')
        server = self.scripted(lambda words: b'-MOVED 1 :%d\r\n' % other.port)
        self.assertEqual(self.get(self.agent(server.port), 'key', 1), b'x')

    def test_the_command_that_is_asked_elsewhere_says_so(self):
        other = self.scripted(lambda words: b'+OK\r\n' if words == [b'ASKING'] else b'$1\r\nx\r\n')
        server = self.scripted(lambda words: b'-ASK 1 127.0.0.1:%d\r\n' % other.port)
        agent = self.agent(server.port)
        for _ in range(2):
            self.assertEqual(self.get(agent, 'key', 1), b'x')
        self.assertEqual([words[0] for words in other.commands], [b'ASKING', b'GETRANGE'] * 2)
        self.assertEqual(len(server.commands), 2)  # the slot is still its own

    def test_what_may_pass_is_tried_again(self):
        answers = [b'-LOADING the dataset\r\n', b'-TRYAGAIN\r\n', b'$1\r\nx\r\n']
        server = self.scripted(lambda words: answers.pop(0))
        self.assertEqual(self.get(self.agent(server.port), 'key', 1), b'x')
        self.assertFalse(answers)

    def test_answers_that_are_none_end_the_connection_and_not_the_program(self):
        for answer in (b'HTTP/1.1 400 Bad Request\r\n\r\n', b'*2\r\n$1\r\na\r\n$1\r\nb\r\n', b'$2\r\nxy\r\n', b':3\r\n', b'$-1\r\n', b'$999999\r\n' + bytes(200000)):
            server = self.scripted(lambda words: answer)
            with self.subTest(answer[:8]):
                self.fails(errno.EIO, self.get, self.agent(server.port, ',tries=1'), 'key', 1)

    def test_a_server_that_says_nothing_costs_the_deadline(self):
        server = self.scripted(lambda words: None)
        agent, begin = self.agent(server.port), time.monotonic()
        self.fails(errno.ETIMEDOUT, self.get, agent, 'key', 1, timeout=0.2)
        self.assertLess(time.monotonic() - begin, 2)
        server.script = lambda words: b'$1\r\nx\r\n' * len(server.commands)  # the late answer is not taken for the next one's
        self.assertEqual(self.get(agent, 'key', 1), b'x')

    def test_a_parameter_that_is_wrong_is_named(self):
        for spec, word in (('redis,port=x', 'port'), ('redis,port=0', 'port=0'), ('redis,host=', 'host'), ('redis,password=x', 'password'), ('redis,connections=9', '8')):
            with self.assertRaises(tenuto.Error) as caught:
                xfer.Agent('one', backends=['memory', spec], listen='none')
            self.assertEqual(caught.exception.errno, errno.EINVAL)
            self.assertIn(word, str(caught.exception))


for _name, _program in PROGRAMS.items():
    for _base in (RealAgents, RealNodes):
        _class = f'{_name.capitalize()}{_base.__name__[4:]}Test'
        globals()[_class] = type(_class, (_base,), {'program': _program})
del RealAgents, RealNodes, Node, Agents, RedisNode, _base

if __name__ == '__main__':
    main(__name__)
