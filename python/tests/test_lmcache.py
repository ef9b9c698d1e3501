# SPDX-License-Identifier: Apache-2.0
"""The connector for LMCache without LMCache: the calls that its native connector adapter makes, as that adapter makes them.

lmcache_calls.json is what lmcache_calls.py has read out of the installed package; where LMCache is installed it must still say the same.
"""
import json
import mmap
import os
import random
import select
import signal
import subprocess
import sys
import time
import unittest

import case
import lmcache_calls
from tenuto import _core
from tenuto.lmcache import TenutoConnector

SIZE = 20000
HERE = os.path.dirname(os.path.abspath(__file__))


def key(i, model='org/model', rank=0, group=0, salt=''):
    """As LMCache writes it."""
    return f'{model}@{rank:08x}@{group:x}@{i:064x}' + (f'@{salt}' if salt else '')


def views(n, size=SIZE, seed=None):
    return [memoryview(bytearray(case.content((seed, i), size) if seed is not None else size)) for i in range(n)]


class Connector(case.Case):
    def connector(self, **params):
        if not {'store', 'socket'} & set(params):
            params = {'path': self.dir, 'disk_bytes': '32MiB', **params}
        connector = TenutoConnector(**params)
        self.addCleanup(connector.close)
        return connector

    def answer(self, connector, number):
        """The completion of a request; every other one is taken for lost."""
        poller = select.poll()
        poller.register(connector.event_fd(), select.POLLIN)
        while True:
            self.assertTrue(poller.poll(120000), 'no completion')
            for one in connector.drain_completions():
                self.assertEqual(one[0], number)
                return one[1:]

    def put(self, connector, keys, buffers):
        ok, error, good = self.answer(connector, connector.submit_batch_set(keys, buffers))
        self.assertIsNone(good)
        self.assertEqual(ok, not error)
        return ok

    def get(self, connector, keys, buffers):
        ok, error, good = self.answer(connector, connector.submit_batch_get(keys, buffers))
        self.assertEqual((ok, error), (all(good), ''))
        return good

    def there(self, connector, keys):
        ok, error, good = self.answer(connector, connector.submit_batch_exists(keys))
        self.assertEqual((ok, error), (True, ''))
        return good


class Objects(Connector):
    def test_what_was_set_comes_back_also_after_a_restart(self):
        first = self.connector()
        keys, given = [key(i, rank=i) for i in range(20)], views(20, seed='a')
        self.assertEqual(self.there(first, keys), [False] * 20)
        self.assertTrue(self.put(first, keys, given))
        for life in range(2):
            got = views(22)
            self.assertEqual(self.there(first, keys), [True] * 20)
            asked = [key(99)] + keys[:10] + [key(98)] + keys[10:]
            self.assertEqual(self.get(first, asked, got), [False] + [True] * 10 + [False] + [True] * 10)
            self.assertEqual([bytes(v) for v in got[1:11] + got[12:]], [bytes(v) for v in given])
            if life == 0:
                first.close()
                first = self.connector()

    def test_every_part_of_a_key_counts(self):
        c = self.connector()
        same = [key(1), key(1, model='org/other'), key(1, rank=1), key(1, group=1), key(1, salt='s'), key(1, salt='t'), key(2)]
        for i, one in enumerate(same):
            self.assertEqual(self.there(c, same), [True] * i + [False] * (len(same) - i))
            self.assertTrue(self.put(c, [one], views(1, seed=i)))
        got = views(len(same))
        self.assertEqual(self.get(c, same, got), [True] * len(same))
        self.assertEqual([bytes(v) for v in got], [case.content((i, 0), SIZE) for i in range(len(same))])

    def test_no_tenant_and_salt_are_those_of_another(self):
        cache = self.open()
        pairs = [('', ''), ('', 'b'), ('b', ''), ('a', 'b'), ('a/b', ''), ('', 'a/b'), ('a', 'b/c'), ('a/b', 'c'), ('a/b/c', ''), ('', 'a/b/c'), ('/a', ''), ('/a/b', ''),
                 ('/a', 'b'), ('', '/b'), ('//b', ''), ('/', ''), ('/', '/'), ('//', ''), ('%2F', ''), ('/%2F', ''), ('', '%2F'), ('%', 'b'), ('%25', 'b'), ('', '/' * 1000)]
        clients = {}
        for tenant, _ in pairs:
            if tenant not in clients:
                clients[tenant] = client = _core.ObjectClient(tenant=tenant)
                self.addCleanup(client.close)
                client.bind(cache)
        for i, (tenant, salt) in enumerate(pairs):
            with self.subTest(tenant=tenant, salt=salt):
                self.assertEqual(self.there(clients[tenant], [key(1, salt=salt)]), [False])
                self.assertTrue(self.put(clients[tenant], [key(1, salt=salt)], views(1, seed=i)))
        for i, (tenant, salt) in enumerate(pairs):
            got = views(1)
            self.assertEqual(self.get(clients[tenant], [key(1, salt=salt)], got), [True])
            self.assertEqual(bytes(got[0]), case.content((i, 0), SIZE))

    def test_a_tenant_without_a_salt_is_as_it_is(self):
        """An owner's rules name tenants."""
        path = os.path.join(self.dir, 's')
        cache = self.open()
        cache.serve(path, [{'uid': os.getuid(), 'tenants': ['a/b', '/a%2Fb/c']}])
        said = self.python('''
import select, sys
from tenuto import _core
cache = _core.Cache._attach(sys.argv[1].encode())
for tenant, salt in ('a/b', ''), ('a/b', '@c'), ('a', ''), ('a/b', '@d'):
    client = _core.ObjectClient(tenant=tenant)
    client.bind(cache)
    client.submit_batch_set(['m@0@0@aa' + salt], [bytearray(512)])
    select.select([client.event_fd()], [], [], 60)
    print(client.drain_completions()[0][1])
    client.close()
cache.close()
''', path)
        self.assertEqual(said.split(), ['True', 'True', 'False', 'False'])

    def test_what_is_no_key_is_a_miss(self):
        c = self.connector()
        wrong = ['', 'model', 'model@0', 'model@0@0', 'model@0@0@', '@0@0@aa', 'model@@0@aa', 'model@0@@aa', 'model@0@0@@salt']
        self.assertFalse(self.put(c, wrong + [key(1)], views(len(wrong) + 1, seed='w')))
        self.assertEqual(self.there(c, wrong + [key(1)]), [False] * len(wrong) + [True])
        self.assertEqual(self.get(c, wrong + [key(1)], views(len(wrong) + 1)), [False] * len(wrong) + [True])

    def test_sizes_are_found_again(self):
        """A look-up does not say the size; a get with another size is a miss."""
        sizes = [1, 70001, 4096, 1 << 20]
        c = self.connector()
        for i, size in enumerate(sizes):
            self.assertTrue(self.put(c, [key(i)], views(1, size, seed='s')))
        c.close()
        c = self.connector()
        self.assertEqual(self.there(c, [key(i) for i in range(5)]), [True] * 4 + [False])
        for i, size in enumerate(sizes):
            got = views(1, size)
            self.assertEqual(self.get(c, [key(i)], views(1, size + 1)), [False])
            self.assertEqual(self.get(c, [key(i)], got), [True])
            self.assertEqual(bytes(got[0]), case.content(('s', 0), size))

    def test_a_delete_takes_what_it_names(self):
        c = self.connector()
        keys = [key(i) for i in range(6)]
        self.put(c, keys, views(6, seed='d'))
        self.assertEqual(self.answer(c, c.submit_batch_delete(keys[1:3] + [key(9)])), (True, '', [True, True, False]))
        self.assertEqual(self.there(c, keys), [True, False, False, True, True, True])
        self.assertTrue(self.put(c, keys[1:3], views(2, seed='anew')))
        got = views(6)
        self.assertEqual(self.get(c, keys, got), [True] * 6)
        self.assertEqual(bytes(got[1]), case.content(('anew', 0), SIZE))
        self.assertEqual(c.counts()['dropped'], 2)

    def test_wherever_an_object_lies(self):
        """More remainders than a memory can have pools, addresses that are no multiples of anything, and some that are."""
        draw, memory = random.Random(case.SEED), memoryview(mmap.mmap(-1, 8 << 20))
        spots, at = [], 0
        for i in range(60):
            at += draw.choice([0, 1, 77, 4096, 5000]) if i < 40 else -at % 4096
            spots.append(memory[at:at + SIZE])
            at += SIZE
        for i, spot in enumerate(spots):
            spot[:] = case.content(i, SIZE)
        c = self.connector(stage_bytes='128KiB')
        keys = [key(i) for i in range(60)]
        self.assertTrue(self.put(c, keys, spots))
        for spot in spots:
            spot[:] = bytes(SIZE)
        self.assertEqual(self.get(c, keys, spots), [True] * 60)
        self.assertEqual([bytes(spot) for spot in spots], [case.content(i, SIZE) for i in range(60)])

    def test_a_damaged_object_is_a_miss_and_no_other(self):
        c = self.connector()
        keys = [key(i) for i in range(8)]
        self.put(c, keys, views(8, seed='f'))
        c.close()
        path = os.path.join(self.dir, 'default', 'tenuto.store')
        with open(path, 'r+b') as f:
            whole = f.read()
            at = whole.index(case.content(('f', 3), SIZE)[:64]) + 100
            f.seek(at)
            f.write(bytes([whole[at] ^ 1]))
        c = self.connector()
        got = views(8)
        self.assertEqual(self.get(c, keys, got), [i != 3 for i in range(8)])
        self.assertEqual([bytes(v) for i, v in enumerate(got) if i != 3], [case.content(('f', i), SIZE) for i in range(8) if i != 3])


class Lives(Connector):
    def test_without_a_cache_nothing_is_found_and_nothing_waits(self):
        c = self.connector(socket=os.path.join(self.dir, 'none'), retry_s=0.05)
        self.assertEqual(self.answer(c, c.submit_batch_set([key(1)], views(1)))[0], False)
        self.assertEqual(self.there(c, [key(1)]), [False])
        self.assertEqual(self.get(c, [key(1)], views(1)), [False])
        self.assertEqual(self.answer(c, c.submit_batch_delete([key(1)])), (True, '', [False]))

    def test_closed_with_requests_under_way(self):
        c, given, got = self.connector(), views(32, 200000, seed='c'), views(32, 200000)
        for i in range(8):
            c.submit_batch_set([key(i * 32 + k) for k in range(32)], given)
            c.submit_batch_get([key(i * 32 + k) for k in range(32)], got)
            c.submit_batch_exists([key(k) for k in range(32)])
        c.close()
        for view in given + got:
            view.release()
        c.close()
        with self.assertRaises(_core.Closed):
            c.submit_batch_exists([key(1)])

    def test_the_cache_may_be_closed_first(self):
        cache, client = self.open(), _core.ObjectClient()
        self.addCleanup(client.close)
        client.bind(cache)
        with self.assertRaises(_core.InvalidValue):
            client.bind(cache)
        number = client.submit_batch_set([key(1)], views(1))
        cache.close()
        self.answer(client, number)
        self.assertEqual(self.there(client, [key(1)]), [False])
        self.assertFalse(client.gone)

    def test_a_forked_child_has_no_part_in_it(self):
        c = self.connector()
        self.put(c, [key(1)], views(1, seed='k'))
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                c.submit_batch_exists([key(1)])
            except _core.Forked:
                c.close()
                code = 0
            finally:
                os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 0)
        self.assertEqual(self.there(c, [key(1)]), [True])

    OWNER = 'import sys; sys.path.insert(0, sys.argv[2])\n' \
            'from tenuto.lmcache import TenutoConnector\n' \
            'c = TenutoConnector(path=sys.argv[1], disk_bytes="32MiB"); print("open", flush=True); sys.stdin.read(); c.close()'

    def owner(self):
        one = subprocess.Popen([sys.executable, '-P', '-c', self.OWNER, self.dir, HERE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(one.__exit__, None, None, None)
        self.addCleanup(one.kill)
        self.assertEqual(one.stdout.readline(), 'open\n')
        return one

    def test_another_process_owns_it_dies_and_comes_back(self):
        first = self.owner()
        with self.assertRaises(_core.Busy):
            self.connector()
        c = self.connector(store=self.dir, retry_s=0.05)
        keys, given, got = [key(i) for i in range(4)], views(4, seed='o'), views(4)
        self.assertTrue(self.put(c, keys, given))
        self.assertEqual(self.get(c, keys, got), [True] * 4)
        self.assertEqual([bytes(v) for v in got], [bytes(v) for v in given])
        first.stdin.close()  # in order: what was saved is on disk
        self.assertEqual(first.wait(60), 0)
        self.assertEqual(self.there(c, keys), [False] * 4)
        second = self.owner()
        self.until(lambda: self.there(c, keys) == [True] * 4)
        self.assertEqual(self.get(c, keys, got), [True] * 4)
        second.send_signal(signal.SIGKILL)
        second.wait(60)
        self.assertEqual(self.get(c, keys, got), [False] * 4)
        self.assertFalse(self.put(c, keys, given))

    def until(self, holds):
        end = time.monotonic() + 120
        while not holds():
            self.assertLess(time.monotonic(), end, 'it never holds')
            time.sleep(0.02)


class Arguments(Connector):
    def test_what_cannot_be_is_said_at_once(self):
        c = self.connector()
        with self.assertRaises(ValueError):
            c.submit_batch_set([key(1), key(2)], views(1))
        with self.assertRaises(BufferError):
            c.submit_batch_get([key(1)], [b'read only'])
        with self.assertRaises(TypeError):
            c.submit_batch_exists([b'no text'])
        with self.assertRaises(TypeError):
            c.submit_batch_set([key(1)], ['no buffer'])
        self.assertEqual(self.there(c, []), [])
        self.assertEqual(self.get(c, [key(1)], [memoryview(bytearray())]), [False])

    def test_options(self):
        for wrong in ({}, {'path': '/x', 'store': '/y'}, {'path': '/x', 'disk_byte': 1}, {'store': self.dir, 'threads': 0}, {'store': self.dir, 'load_timeout_s': -1}):
            with self.assertRaises(ValueError, msg=wrong):
                TenutoConnector(**wrong)


class Interface(Connector):
    """What LMCache calls, with how many arguments."""

    with open(os.path.join(HERE, 'lmcache_calls.json')) as f:
        CALLS = json.load(f)

    def test_all_that_lmcache_calls_is_there(self):
        c = self.connector()
        takes = {'submit_batch_set': ([], []), 'submit_batch_get': ([], []), 'submit_batch_exists': ([],), 'submit_batch_delete': ([],)}
        for name, arguments in self.CALLS['client'].items():
            if name != 'close':
                getattr(c, name)(*takes.get(name, ()))
            self.assertEqual(len(takes.get(name, ())), arguments, name)
        self.assertLessEqual(set(self.CALLS['required']), set(dir(c)))

    def test_lmcache_calls_nothing_else(self):
        try:
            found = lmcache_calls.read()
        except ImportError:
            raise unittest.SkipTest('LMCache is not installed here: tests/engines/install.sh installs it') from None
        self.assertEqual(found, self.CALLS)


if __name__ == '__main__':
    case.main(__name__)
