# SPDX-License-Identifier: Apache-2.0
"""tenuto.heap.remote: a process without the heap writes into it by a transfer agent."""
import ctypes
import errno
import os
import signal
import subprocess
import sys
import threading
import unittest
from unittest import mock

import case

import tenuto
from tenuto import _core, heap, xfer
from tenuto.heap import remote

setUpModule = case.own_heap_directory

PRODUCER = '''
import errno, os, signal, sys
import tenuto
from tenuto import xfer
from tenuto.heap import remote, replicas
agent = xfer.Agent('producer', backends={backends})
print(agent.metadata().hex(), flush=True)
agent.load(bytes.fromhex(sys.stdin.readline()))
producer = remote.Producer(agent, 'owner')
def refused(code, *args, **more):
    try:
        producer.put(*args, **more)
    except tenuto.Error as error:
        assert error.errno == code, error
        return True
kv = bytearray(bytes(range(256)) * 400)
producer.put('a', kv)
producer.put(b'twice', kv[:5000], preferred_segment=1, flags=replicas(2))
assert refused(errno.EEXIST, 'a', kv)
assert refused(errno.EINVAL, 'b', kv, preferred_segment=7)
assert refused(errno.EFBIG, 'b', bytearray(1 << 20))
print('done', flush=True)
sys.stdin.readline()
agent.write = lambda *args: os.kill(os.getpid(), signal.SIGKILL)     # with a plan, and perhaps half of the bytes
producer.put('half', kv)
'''


class Remote(unittest.TestCase):
    def run_with(self, backends):
        env = {'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_PORT': str(os.getpid()), 'TORCHELASTIC_RUN_ID': self.id()}
        with mock.patch.dict(os.environ, env):
            cache = heap.NanoKVCache(1 << 19, page_bytes=4096)
        self.addCleanup(cache.close)
        agent = xfer.Agent('owner', backends=backends)
        self.addCleanup(agent.close)
        owner, stop = remote.Owner(cache, agent), threading.Event()
        self.addCleanup(owner.close)
        child = subprocess.Popen([sys.executable, '-P', '-c', PRODUCER.format(backends=backends)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (child.kill(), child.wait(), child.stdin.close(), child.stdout.close()))
        agent.load(bytes.fromhex(child.stdout.readline()))
        print(agent.metadata().hex(), file=child.stdin, flush=True)
        server = threading.Thread(target=lambda: [owner.serve(.05) for _ in iter(stop.is_set, True)])
        server.start()
        self.addCleanup(server.join)
        self.addCleanup(stop.set)
        return cache, child, owner

    def check(self, backends):
        cache, child, owner = self.run_with(backends)
        self.assertEqual(child.stdout.readline(), 'done\n')
        self.assertEqual(bytes(cache.get('a')), bytes(range(256)) * 400)
        self.assertEqual(bytes(cache.get('twice')), (bytes(range(256)) * 400)[:5000])
        self.assertEqual(sum(cache.stats(rank)['ready_count'] for rank in (0, 1)), 3)
        self.assertEqual(cache.stats()['unverified_reads'], 0)
        used = sum(cache.stats(rank)['heap_used'] for rank in (0, 1))
        print(file=child.stdin, flush=True)
        self.assertEqual(child.wait(60), -signal.SIGKILL)
        for _ in range(1000):
            if not owner._plans and sum(cache.stats(rank)['heap_used'] for rank in (0, 1)) == used:
                break
            threading.Event().wait(.02)
        self.assertEqual((owner._plans, sum(cache.stats(rank)['heap_used'] for rank in (0, 1))), ({}, used))
        self.assertRaises(tenuto.NotFound, cache.get, 'half')

    def test_a_producer_without_the_heap_writes_into_it(self):
        self.check(None)

    def test_the_same_by_ucx(self):
        try:
            xfer.Agent('probe', backends=['ucx'], listen='none').close()
        except tenuto.Error as error:
            self.skipTest(str(error))
        self.check(['ucx'])

    def test_an_owner_that_does_not_answer_is_told_of_as_such(self):
        with xfer.Agent('alone') as agent, xfer.Agent('silent') as silent:
            agent.load(silent.metadata())
            with self.assertRaises(tenuto.Error) as caught:
                remote.Producer(agent, 'silent').put('a', bytearray(8), timeout=.2)
            self.assertEqual(caught.exception.errno, errno.ETIMEDOUT)


def wait_until(true):
    for _ in range(500):
        if true():
            return
        threading.Event().wait(.02)
    raise AssertionError('still not so after 10 s')


class Messages(unittest.TestCase):
    """An owner and producers of one process, which send what a producer sends, step by step."""

    def heap(self, **options):
        env = {'RANK': '0', 'WORLD_SIZE': '1'}
        with mock.patch.dict(os.environ, env):
            cache = heap.NanoKVCache(1 << 19, page_bytes=4096, **options)
        self.addCleanup(cache.close)
        return cache

    def setUp(self):
        self.cache = self.heap(reclaim_s=1)
        self.owners_agent = self.agent('owner')
        self.owner = remote.Owner(self.cache, self.owners_agent)
        self.addCleanup(self.owner.close)

    def agent(self, name):
        agent = xfer.Agent(name)
        self.addCleanup(agent.close)
        return agent

    def peer(self, name):
        """An agent that knows the owner, and is known to it."""
        agent = self.agent(name)
        agent.load(self.owners_agent.metadata())
        self.owners_agent.load(agent.metadata())
        return agent

    def ask(self, agent, kind, number, want=b''):
        """(errno, address) that the owner answers."""
        agent.notify('owner', remote._HEAD.pack(kind, number) + want)
        while not self.owner.serve(10):
            pass
        while not (notes := agent.notifications()):
            agent.event_wait(agent.event(), .01)
        (_, note), = notes
        answered, code, address = remote._ANSWER.unpack_from(note)
        self.assertEqual(answered, number)
        return code, address

    def open(self, agent, number, key=b'k', nbytes=4096):
        return self.ask(agent, b'O', number, remote._WANT.pack(nbytes, -1, 0) + key)

    def used(self):
        return self.cache.stats()['heap_used']

    def test_a_producer_whose_plan_has_ended_does_not_end_that_of_another_one(self):
        slow, other = self.peer('slow'), self.peer('other')
        code, place = self.open(slow, 1)
        self.assertEqual(code, 0)
        ctypes.memset(place, 1, 4096)
        wait_until(lambda: self.cache.stats()['reclaims'] == 1)
        code, place = self.open(other, 2)
        self.assertEqual(code, 0)
        ctypes.memset(place, 2, 100)
        self.assertEqual(self.ask(slow, b'W', 1), (errno.ESTALE, 0))
        self.assertRaises(tenuto.Error, self.cache.get, 'k')  # half of it
        ctypes.memset(place, 2, 4096)
        self.assertEqual(self.ask(other, b'W', 2), (0, 0))
        self.assertEqual(bytes(self.cache.get('k')), b'\2' * 4096)
        wait_until(lambda: self.used() == 4096)

    def test_a_plan_that_took_too_long_goes_when_its_process_opens_the_key_again(self):
        self.cache.open_for_write('k', 4096)
        wait_until(lambda: self.cache.stats()['reclaims'] == 1)
        self.assertEqual(self.used(), 4096)  # for this process may still write there
        self.cache.open_for_write('k', 4096)
        wait_until(lambda: self.used() == 4096)
        self.cache.abandon('k')
        wait_until(lambda: self.used() == 0)

    def test_a_put_that_ends_while_bytes_may_move_keeps_its_plan_until_they_do_not(self):
        agent, moving, serving = self.peer('slow'), [True], threading.Event()
        producer = remote.Producer(agent, 'owner')

        class Moving:
            """A request that does not end, and tells the owner nothing: of a real one nobody knows when it ends."""
            def __init__(self, request):
                self.request, self.release = request, request.release

            def post(self, timeout, notification):
                self.request.post(timeout, None if moving else notification)

            def wait(self):
                self.request.wait()
                if moving:
                    raise tenuto.Timeout(errno.ETIMEDOUT, 'the deadline')

            def cancel(self, timeout):
                if moving:
                    raise tenuto.Busy(errno.EBUSY, 'bytes may still move')

        server = threading.Thread(target=lambda: [self.owner.serve(.05) for _ in iter(serving.is_set, True)])
        server.start()
        self.addCleanup(server.join)
        self.addCleanup(serving.set)
        write = agent.write
        with mock.patch.object(agent, 'write', lambda *lists: Moving(write(*lists))), mock.patch.object(agent, 'notify', wraps=agent.notify) as notify:
            self.assertRaises(tenuto.Timeout, producer.put, 'k', bytearray(4096))
            self.assertEqual(len(self.owner._plans), 1)
            self.assertEqual([call.args[1][:1] for call in notify.mock_calls], [b'O'])
            moving.clear()
            producer.put('k', bytearray(b'2') * 4096)
        self.assertEqual(bytes(self.cache.get('k')), b'2' * 4096)
        wait_until(lambda: self.used() == 4096 and not self.owner._plans)

    def test_a_put_that_is_answered_too_late_leaves_no_plan(self):
        producer = remote.Producer(self.peer('hasty'), 'owner')
        self.assertRaises(tenuto.Timeout, producer.put, 'k', bytearray(4096), timeout=.05)
        while self.owner.serve(.2):
            pass
        wait_until(lambda: self.used() == 0)
        self.assertEqual(self.owner._plans, {})

    def test_a_plan_ends_when_its_producer_is_lost_though_messages_go_on(self):
        lost = self.peer('lost')
        self.assertEqual(self.open(lost, 1)[0], 0)
        lost.close()
        with mock.patch.object(self.owners_agent, 'notifications', return_value=[('busy', remote._HEAD.pack(b'G', 2))]):
            wait_until(lambda: self.owner.serve(0) and not self.owner._plans)
        wait_until(lambda: self.used() == 0)

    def test_a_plan_ends_when_its_producer_starts_anew_under_the_same_name(self):
        first = self.peer('again')
        self.assertEqual(self.open(first, 1)[0], 0)
        first.close()
        second = self.peer('again')
        self.owner.serve(.01)
        self.assertEqual(self.owner._plans, {})
        self.assertEqual(self.open(second, 1)[0], 0)
        self.owner.serve(.01)
        self.assertEqual(len(self.owner._plans), 1)

    def test_a_plan_that_its_producer_cannot_be_told_ends(self):
        producer = self.peer('full')
        with mock.patch.object(self.owners_agent, 'notify', side_effect=tenuto.Again(errno.EAGAIN, 'too much waits to be sent')):
            producer.notify('owner', remote._HEAD.pack(b'O', 1) + remote._WANT.pack(4096, -1, 0) + b'k')
            while not self.owner.serve(10):
                pass
        self.assertEqual(self.owner._plans, {})
        wait_until(lambda: self.used() == 0)

    def test_an_array_with_gaps_or_in_another_order_is_refused(self):
        agent = self.peer('strided')
        producer, line = remote.Producer(agent, 'owner'), memoryview(bytearray(range(16)))
        columns_first = _core.View(pointer=xfer.sections_of(line)[0][0], shape=(4, 4), strides=(1, 4), owner=line)
        for wrong in (line[::2], line[::-1], columns_first, [line, line], [], memoryview(b'')):
            with mock.patch.object(agent, 'notify') as notify, self.assertRaises((TypeError, ValueError), msg=repr(wrong)):
                producer.put('k', wrong, timeout=.05)
            notify.assert_not_called()


if __name__ == '__main__':
    case.main(__name__)
