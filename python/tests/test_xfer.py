# SPDX-License-Identifier: Apache-2.0
"""tenuto.xfer: agents on arrays, files and two processes; what raises what."""
import asyncio
import errno
import os
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

import tenuto
from case import Case, content, main
from tenuto import xfer

BLOCK, COUNT = 4096, 64
SIZE = BLOCK * COUNT

PEER = '''
import sys, tenuto.xfer as xfer
agent = xfer.Agent('peer')
kv = bytearray(%d)
agent.register(kv)
(address, size, _), = xfer.sections_of(kv)
print(agent.metadata().hex(), address, flush=True)
for line in sys.stdin:
    seen = agent.event()
    got = agent.notifications()
    while not got:
        agent.event_wait(seen, 10)
        seen, got = agent.event(), agent.notifications()
    print(got[0][0], got[0][1].decode(), bytes(kv).hex(), flush=True)
''' % SIZE


def blocks(address):
    return [(address, BLOCK, 0, BLOCK, COUNT)]


class XferTest(Case):
    def test_words_on_a_failure_may_be_cut_within_a_character(self):
        """The path is told up to 200 bytes, which may end in the middle of a letter."""
        path = os.path.join(self.dir, 'x' + '\u0436' * 100)
        with open(path, 'wb') as f:
            f.write(b'x' * 100)
        agent = xfer.Agent('cut', backends=['file'], listen='none')
        memory = bytearray(BLOCK)
        agent.register(memory)
        agent.register([(0, BLOCK, 1, 'ro:' + path)], segment=xfer.FILE)
        (address, size, _), = xfer.sections_of(memory)
        request = agent.read(agent.list([(address, size, 0)], segment=xfer.DRAM), agent.list([(0, BLOCK, 1)], segment=xfer.FILE))
        request.post(10)
        with self.assertRaises(tenuto.Error) as caught:
            request.wait()
        self.assertIn('\u0436', str(caught.exception))

    def agent(self, name='one', **options):
        agent = xfer.Agent(name, **options)
        self.addCleanup(agent.close)
        return agent

    def pair(self, agent):
        """Two registered arrays, and a list of each."""
        here, there = bytearray(content('here', SIZE)), bytearray(SIZE)
        agent.register([here, there])
        (a, _, _), (b, _, _) = xfer.sections_of([here, there])
        return here, there, agent.list(blocks(a)), agent.list(blocks(b))

    def test_a_write_moves_the_bytes(self):
        agent = self.agent()
        here, there, local, remote = self.pair(agent)
        self.assertEqual(len(local), COUNT)
        with agent.write(local, remote) as request:
            self.assertEqual(request.status().state, xfer.IDLE)
            request.post(10, b'there')
            self.assertTrue(request.wait(10))
            status = request.status()
            self.assertEqual((status.state, status.bytes, status.descriptors, status.pieces, status.backend), (xfer.ENDED, SIZE, COUNT, 1, 'memory'))
            self.assertEqual(request.results(0, 2), [(0, BLOCK)] * 2)
            self.assertIn('memory: chosen', request.explain())
        self.assertEqual(here, there)
        self.assertEqual(agent.notifications(), [('one', b'there')])
        self.assertEqual(agent.stats()['tx_bytes'], SIZE)

    def test_indices_choose_blocks(self):
        agent = self.agent()
        here, there, local, remote = self.pair(agent)
        with agent.write(local, remote, [1, 3], [2, 0]) as request:
            request.post(10)
            request.wait(10)
        self.assertEqual(there[2 * BLOCK:3 * BLOCK], here[BLOCK:2 * BLOCK])
        self.assertEqual(there[:BLOCK], here[3 * BLOCK:4 * BLOCK])

    def test_files(self):
        agent = self.agent()
        here, _, local, _ = self.pair(agent)
        path = os.path.join(self.dir, 'kv')
        self.assertEqual(agent.query([(0, 0, 7, path)]), [None])
        agent.register([(0, SIZE, 7, path)], segment=xfer.FILE)
        file = agent.list([(0, BLOCK, 7, BLOCK, COUNT)], segment=xfer.FILE)
        with agent.write(local, file) as request:
            request.post(10)
            request.wait(10)
            self.assertEqual(request.status().backend, 'file')
        with open(path, 'rb') as f:
            self.assertEqual(f.read(), here)
        self.assertEqual(agent.query([(0, 0, 7, path)]), [SIZE])

    def test_another_process(self):
        agent = self.agent()
        here, _, local, _ = self.pair(agent)
        child = subprocess.Popen([sys.executable, '-P', '-c', PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.stdin.close)
        metadata, address = child.stdout.readline().split()
        peer = agent.load(bytes.fromhex(metadata))
        self.assertEqual((peer, agent.peer('peer').state), ('peer', 'loaded'))
        remote = agent.list(blocks(int(address)), peer=peer)
        with agent.write(local, remote) as request:
            request.post(10, b'written')
            request.wait(10)
            child.stdin.write('look\n')
            child.stdin.flush()
            sender, text, kv = child.stdout.readline().split()
            self.assertEqual((sender, text, bytes.fromhex(kv)), ('one', 'written', bytes(here)))
            child.kill()
            child.wait()
            seen = agent.event()
            while agent.peer('peer').state != 'lost':
                agent.event_wait(seen, 1)
                seen = agent.event()
            with self.assertRaises(tenuto.Error) as caught:
                request.post(10)
            self.assertEqual(caught.exception.errno, errno.ECONNRESET)
        self.assertIsNone(agent.peer('nobody'))

    def test_deadline_cancel_and_busy(self):
        agent = self.agent(backends=['faulty,over=memory,drop=100'])
        _, _, local, remote = self.pair(agent)
        request = agent.write(local, remote)
        with self.assertRaises(tenuto.Timeout):
            request.post(0)
        request.post(0.05)
        self.assertFalse(request.wait(0))
        with self.assertRaises(tenuto.Busy):
            request.release()
        with self.assertRaises(tenuto.Busy):
            agent.close()
        with self.assertRaises(tenuto.Timeout):
            request.wait(10)
        request.cancel(10)
        self.assertEqual(request.status().error, errno.ETIMEDOUT)
        request.post(None)
        request.cancel(10)
        self.assertEqual(request.status().error, errno.ECANCELED)
        request.release()
        with self.assertRaises(tenuto.Closed):
            request.status()

    def test_a_list_in_use_is_not_released(self):
        agent = self.agent()
        kv = bytearray(SIZE)
        agent.register(kv)
        (address, _, _), = xfer.sections_of(kv)
        runs = [(address + i % COUNT * BLOCK, 1, 0) for i in range(100000)]
        busy, failed = threading.Event(), []

        def make_requests(one):
            try:
                while not busy.is_set():
                    agent.write(one, one).release()
            except tenuto.Closed as e:
                failed.append(e)

        for _ in range(50):
            one = agent.list(runs)
            thread = threading.Thread(target=make_requests, args=(one,))
            thread.start()
            time.sleep(0.01)
            try:
                one.release()
            except tenuto.Busy:
                busy.set()
            thread.join()
            if busy.is_set():
                break
            self.assertIn('list was released', str(failed.pop()))
        self.assertTrue(busy.is_set())
        one.release()

    def test_close_while_the_last_ones_go(self):
        for _ in range(5):
            agent = xfer.Agent('one', backends=['memory'])
            kv = bytearray(SIZE)
            agent.register(kv)
            held = [agent.list(xfer.runs_of(kv)) for _ in range(20)]
            held += [agent.write(held[0], held[0]) for _ in range(20)]
            closed = threading.Event()

            def close(agent=agent, closed=closed):
                while not closed.is_set():
                    try:
                        agent.close()
                        closed.set()
                    except tenuto.Busy:
                        pass

            thread = threading.Thread(target=close)
            thread.start()
            while held:
                held.pop()
            self.assertTrue(closed.wait(10), 'the agent lost count of what it has')
            closed.set()
            thread.join()

    def test_results_beyond_the_last_one(self):
        agent = self.agent()
        _, _, local, remote = self.pair(agent)
        with agent.write(local, remote) as request:
            request.post(10)
            request.wait(10)
            with self.assertRaises(ValueError):
                request._request.results(0, 0xffffffff)

    def test_metadata_is_whole_while_sections_go(self):
        agent, other = self.agent(), self.agent('other')
        kv = [bytearray(64) for _ in range(500)]
        end = threading.Event()

        def register():
            while not end.is_set():
                agent.register(kv)
                agent.deregister(kv)

        thread = threading.Thread(target=register)
        thread.start()
        try:
            for _ in range(3000):
                metadata = agent.metadata()
                try:
                    other.load(metadata)
                except tenuto.Error as e:
                    self.fail(f'{len(metadata)} bytes: {e}')
        finally:
            end.set()
            thread.join()

    def test_asyncio(self):
        agent = self.agent(backends=['faulty,over=memory,delay=100,delay_us=20000'])
        here, there, local, remote = self.pair(agent)

        async def run():
            requests = [agent.write(local, remote, [i], [i]) for i in range(8)]
            for request in requests:
                request.post(10)
            await asyncio.gather(*(request.finish() for request in requests))
            for request in requests:
                request.release()
        asyncio.run(run())
        self.assertEqual(there[:8 * BLOCK], here[:8 * BLOCK])

    def test_a_task_that_is_cancelled_leaves_the_others_waiting(self):
        agent = self.agent(backends=['faulty,over=memory,delay=100,delay_us=100000'])
        here, there, local, remote = self.pair(agent)

        async def run():
            request = agent.write(local, remote)
            request.post(10)
            gone, kept = asyncio.ensure_future(request.finish()), asyncio.ensure_future(agent.changed(agent.event()))
            await asyncio.sleep(0)
            gone.cancel()
            await asyncio.wait_for(kept, 10)
            self.assertFalse(agent._waiters)
            await request.finish()
            request.release()
        asyncio.run(run())
        self.assertEqual(here, there)

    def test_loops_of_two_threads(self):
        """One of them reads the descriptor; both wake."""
        agent = self.agent()
        met, woken = threading.Barrier(3, timeout=10), []

        async def wait(seen):
            met.wait()
            await asyncio.wait_for(agent.changed(seen), 10)
            woken.append(seen)

        for _ in range(20):
            seen = agent.event()
            # In debug mode a loop refuses what another thread does to it.
            threads = [threading.Thread(target=asyncio.run, args=(wait(seen),), kwargs={'debug': True}) for _ in range(2)]
            for thread in threads:
                thread.start()
            met.wait()
            agent.notify('one', b'')
            for thread in threads:
                thread.join()
        self.assertEqual(len(woken), 40)

    def test_notifications_for_asyncio(self):
        agent, other = self.agent(), self.agent('other')
        other.load(agent.metadata())

        async def run():
            waiting = asyncio.ensure_future(agent.arrived())
            await asyncio.sleep(0.01)
            other.notify('one', b'come')
            self.assertEqual(await asyncio.wait_for(waiting, 10), [('other', b'come')])
        asyncio.run(run())

    def test_what_a_peer_has(self):
        agent, other = self.agent(), self.agent('other')
        kv = [bytearray(64 + i) for i in range(1500)]
        other.register(kv)
        agent.load(other.metadata())
        found = agent.peer_sections('other')
        self.assertEqual(sorted(s[1:3] for s in found), sorted(s[:2] for s in xfer.sections_of(kv)))
        self.assertEqual({(s.segment, s.device) for s in found}, {(xfer.DRAM, 0)})
        self.assertRaises(tenuto.NotFound, agent.peer_sections, 'nobody')

    def test_statistics_by_cause_here_and_of_another_agent(self):
        secret, address = b'0123456789abcdef', f'unix:@tenuto-stats-{os.getpid()}'
        agent = self.agent(backends=['faulty,over=memory,drop=100'], secret=secret, listen=address)
        _, _, local, remote = self.pair(agent)
        with agent.write(local, remote) as request:
            request.post(0.01)
            with self.assertRaises(tenuto.Timeout):
                request.wait(10)
        with agent.write(local, remote) as request:
            request.post(10)
            request.cancel(10)
        stats = agent.stats()
        self.assertEqual((stats['timed_out_requests'], stats['cancelled_requests'], stats['failed_requests']), (1, 1, 2))
        self.assertEqual(self.agent('other', secret=secret).fetch_stats(address), stats)
        with self.assertRaises(tenuto.Denied):
            self.agent('third', secret=secret[::-1]).fetch_stats(address)
        with self.assertRaises(tenuto.InvalidValue):
            self.agent('fourth').fetch_stats(address)

    def test_the_log_has_what_is_no_utf8(self):
        address, end, name = f'tenuto-log-{os.getpid()}', time.monotonic() + 10, b'peer-\xff'
        agent = self.agent(listen='unix:@' + address)
        hello = struct.pack('<I32sQI', 0xffff, bytes(32), 1, len(name)) + name  # of a version that is not ours
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect('\0' + address)
            peer.sendall(struct.pack('<II', 1, len(hello)) + hello)
            peer.recv(1)
        lines = agent.log_lines()
        while not lines:
            self.assertLess(time.monotonic(), end)
            lines = agent.log_lines()
        self.assertEqual([text for _, _, text in lines], ['agent peer-\ufffd is refused: it speaks another version of the protocol'])

    def test_a_forked_child_does_not_wait_for_the_log(self):
        agent = self.agent()
        child = os.fork()
        if child == 0:
            try:
                agent.log_lines()
            except tenuto.Forked:
                os._exit(3)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)

    def test_the_log_has_the_last_lines(self):
        agent = self.agent()
        self.assertEqual(agent.log_lines(), [])
        end = time.monotonic() + 60
        for i in range(70):
            with xfer.Agent(f'peer-{i}') as peer:
                agent.load(peer.metadata())
                agent.connect(peer.name)
            while agent.peer(peer.name).state != 'lost':
                self.assertLess(time.monotonic(), end)
        lines = agent.log_lines()
        self.assertEqual([text for _, _, text in lines], [f'agent peer-{i} is lost' for i in range(6, 70)])
        self.assertEqual(agent.log_lines(), [])
        with self.assertLogs('tenuto', 'WARNING'):
            tenuto.to_logging(*lines[0])

    def test_what_is_wrong_is_named(self):
        agent = self.agent()
        with self.assertRaisesRegex(tenuto.NotFound, 'register it'):
            agent.list([(4096, 10, 0)])
        with self.assertRaisesRegex(ValueError, '3 columns'):
            agent.list(memoryview(bytes(32)).cast('Q'))
        with self.assertRaisesRegex(tenuto.Error, 'metadata'):
            agent.load(b'none')
        with self.assertRaisesRegex(tenuto.InvalidValue, 'threads=0'):
            xfer.Agent('x', ['memory,threads=0'])
        with self.assertRaisesRegex(tenuto.NotFound, 'agent z'):
            agent.notify('z', b'')

    def test_packed_runs(self):
        flat = [(4096 + i * 128, 64, 0) for i in range(112000)]
        packed = xfer.pack(flat)
        self.assertLess(len(packed), 65536)
        self.assertEqual(xfer.unpack(packed), (xfer.DRAM, [(4096, 64, 0, 128, 112000)]))
        array = memoryview(struct.pack('6Q', 1, 2, 3, 4, 5, 6)).cast('B').cast('Q', (2, 3))
        self.assertEqual(xfer.unpack(xfer.pack(array)), (xfer.DRAM, [(1, 2, 3, 0, 1), (4, 5, 6, 0, 1)]))


if __name__ == '__main__':
    main(__name__)
