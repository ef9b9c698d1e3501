# SPDX-License-Identifier: Apache-2.0
"""Published block events: what a cache holds under its engine's names, a follower's prefix tree has, whoever starts again and whatever is lost."""
import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import tenuto
from case import Case, main
from s3_servers import free_ports
from tenuto import TIER_DISK, TIER_HOST

OWNER = '''
import os, sys, tenuto
cache = tenuto.Cache(sys.argv[1], disk_bytes=64 << 20, host_bytes=16 << 20)
cache.publish(sys.argv[3])
cache.serve(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
cache.close()
'''


def hashes(first, n):
    """vLLM's block hashes have 32 bytes."""
    return [hashlib.sha256(b'%d' % i).digest() for i in range(first, first + n)]


class Events(Case):
    def setUp(self):
        super().setUp()
        self.live, self.replay = (f'tcp://127.0.0.1:{port}' for port in free_ports(2))
        self.spec = f'zmq,endpoint={self.live},replay={self.replay}'

    def follow(self, tree, spec=None, **options):
        subscriber = tenuto.Subscriber(spec or self.spec, tree, **options)
        self.addCleanup(subscriber.close)
        return subscriber

    def until(self, what, text=''):
        end = time.monotonic() + 20
        while not what():
            self.assertLess(time.monotonic(), end, text() if callable(text) else text)
            time.sleep(0.005)

    def saved(self, space, kv, pool, first=0, n=4, **names):
        """n blocks that the engine calls by their hashes."""
        keys = space.keys(range(first + n))[first * tenuto.KEY_BYTES:]
        called = hashes(first, n)
        self.assertTrue(space.name_blocks(keys, b''.join(called), 32, 16, hashes(first - 1, 1)[0] if first else None, **names))
        space.save(keys, pool, [i % 16 for i in range(n)], parent=space.keys(range(first))[-tenuto.KEY_BYTES:] if first else None).finish()
        return keys, called


class PublishTest(Events):
    def test_a_follower_finds_the_prefix_that_was_saved_with_its_tier(self):
        cache = self.open(host_bytes=16 << 20)
        cache.publish(self.spec)
        tree = tenuto.PrefixTree(1000, 2)
        told = []
        subscriber = self.follow(tree, cache=1, on_event=lambda *event: told.append(event))
        space, kv, pool = self.raw(cache)
        keys, called = self.saved(space, kv, pool, 0, 4)
        self.until(lambda: tree.find(called)[1][1] == 4, lambda: f'{tree.find(called)} {subscriber.state()} {cache.publish_stats()}')
        cache.flush()
        self.until(lambda: tree.find(called)[1] == (0, 4, 4, 4))
        self.until(lambda: sum(event[4] == TIER_DISK for event in told) >= 4)  # blocks in a better tier count for the disk, too
        self.assertEqual(tree.find(called)[0], (0, 0, 0, 0))
        self.assertEqual(tree.find(called[:2] + hashes(50, 1) + called[2:])[1][1], 2)
        self.assertEqual(tree.find(called[1:])[1][2], 3)
        self.assertEqual([(kind, name, parent, tier, tokens) for _, kind, name, parent, tier, _, tokens, _ in told if tier == TIER_DISK],
                         [('stored', called[i], called[i - 1] if i else None, TIER_DISK, 16) for i in range(4)])
        space.drop_blocks(keys[2 * tenuto.KEY_BYTES:])
        self.until(lambda: tree.find(called)[1] == (0, 2, 2, 2))
        state = subscriber.state()
        self.assertTrue(state['connected'] and state['current'] and state['complete'], state)
        self.assertEqual((state['gaps'], state['bad']), (0, 0), state)

    def test_blocks_without_a_name_are_told_to_nobody(self):
        cache = self.open(host_bytes=16 << 20)
        cache.publish(self.spec)
        tree = tenuto.PrefixTree(100, 1)
        self.follow(tree)
        space, kv, pool = self.raw(cache)
        self.stored(space, kv, pool, 4)
        self.until(lambda: cache.publish_stats()['unnamed'] >= 4)
        _, called = self.saved(space, kv, pool, 4, 2)
        self.until(lambda: tree.find(called)[0][1] == 2)
        self.assertEqual(tree.stats()['blocks'], 2)

    def test_a_late_follower_has_what_an_early_one_has(self):
        cache = self.open(host_bytes=16 << 20)
        cache.publish(self.spec + ',buffer=2')
        trees = [tenuto.PrefixTree(1000, 1), tenuto.PrefixTree(1000, 1)]
        first = self.follow(trees[0])
        space, kv, pool = self.raw(cache, 16)
        for i in range(10):
            _, called = self.saved(space, kv, pool, 8 * i, 8)
            self.until(lambda: trees[0].find(called)[0][1] == 8, first.state)
        late = self.follow(trees[1])
        self.until(lambda: trees[0].digest(0) == trees[1].digest(0) and late.state()['current'], late.state)
        self.assertEqual(trees[1].digest(0)[1], 80)
        self.assertTrue(late.state()['complete'])
        self.assertEqual(late.state()['snapshots'], 1)

    def test_what_cannot_be_published_is_said(self):
        cache = self.open()
        for spec, wrong in (('zmq,endpoint=nowhere', 'nowhere'), ('zmq', 'endpoint'), ('zmq,endpoint=tcp://127.0.0.1:5557,colour=red', 'colour'),
                            ('zmq,endpoint=tcp://127.0.0.1:5557,tokens=5000', '5000'), ('none,endpoint=x', 'libtenuto_none')):
            with self.assertRaises(tenuto.Error) as raised:
                cache.publish(spec)
            self.assertIn(wrong, str(raised.exception))
        with self.assertRaises(tenuto.NotFound):
            cache.publish_stats()
        cache.publish(self.spec)
        with self.assertRaises(tenuto.Error) as raised:
            cache.publish(self.spec)
        self.assertEqual(raised.exception.errno, errno.EEXIST)
        space, _, _ = self.raw(cache)
        for bad in ((b'x' * 31, 32, 16), (b'', 32, 16), (b'x' * 33, 33, 16)):
            with self.assertRaises(ValueError):
                space.name_blocks(space.keys(range(1)), *bad)


    def test_a_follower_may_be_closed_by_its_own_event(self):
        cache = self.open(host_bytes=16 << 20)
        cache.publish(self.spec)
        told = []

        def close(*event):
            told.append(event)
            followers.pop().close()
        followers = [tenuto.Subscriber(self.spec, tenuto.PrefixTree(1000, 1), on_event=close)]
        space, kv, pool = self.raw(cache, 16)
        self.until(lambda: not followers or followers[0].state()['current'])
        self.saved(space, kv, pool)
        self.until(lambda: told)
        time.sleep(0.2)
        self.assertEqual(len(told), 1)

    def test_the_figures_of_a_publisher_end_before_it_does(self):
        cache = self.open()
        cache.publish(self.spec + ',interval_ms=2000')
        closing = threading.Thread(target=cache.close)
        closing.start()
        time.sleep(0.3)
        self.assertTrue(closing.is_alive())
        with self.assertRaises(tenuto.Error):
            cache.publish_stats()
        closing.join()


class HintTest(Case):
    def test_hints_move_blocks_and_say_nothing_of_them(self):
        cache = self.open(host_bytes=16 << 20)
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool, 4)
        cache.flush()
        space.hint('demote', keys)
        Events.until(self, lambda: cache.stats()['host_blocks'] == 0, cache.stats)
        space.hint('prefetch', keys, 10)
        Events.until(self, lambda: cache.stats()['host_blocks'] == 4, cache.stats)
        space.hint('pin', space.keys(range(50, 54)), 10)
        with self.assertRaises(ValueError):
            space.hint('promote', keys, 10)
        with self.assertRaises(tenuto.Again):
            for _ in range(100):
                space.hint('pin', keys, 60)


class RestartTest(Events):
    """The publisher is another process."""

    def owner(self):
        self.socket = os.path.join(self.dir, 'owner.sock')
        process = subprocess.Popen([sys.executable, '-P', '-c', OWNER, self.dir, self.socket, self.spec], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end, process)
        self.assertEqual(process.stdout.readline(), 'ready\n')
        return process

    @staticmethod
    def end(process):
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()

    def test_a_process_that_has_attached_names_blocks_and_the_tree_survives_the_owners_death(self):
        owner = self.owner()
        tree = tenuto.PrefixTree(1000, 1)
        subscriber = self.follow(tree)
        cache = tenuto.attach(self.socket)
        space, kv, pool = self.raw(cache)
        keys, called = self.saved(space, kv, pool, 0, 8)
        self.until(lambda: tree.find(called)[0][1] == 8, subscriber.state)
        cache.flush()
        cache.close()
        owner.send_signal(signal.SIGKILL)
        self.until(lambda: not subscriber.state()['connected'])
        self.assertEqual(tree.find(called)[0][1], 8)
        self.assertFalse(subscriber.state()['current'])
        self.end(owner)

        self.owner()
        self.until(lambda: subscriber.state()['current'], subscriber.state)
        self.assertEqual(tree.stats()['blocks'], 0)  # the blocks are there, and have no names yet
        cache = tenuto.attach(self.socket)
        self.addCleanup(cache.close)
        space, kv, pool = self.raw(cache)
        self.assertEqual(space.match(keys).blocks, 8)
        self.assertTrue(space.name_blocks(keys, b''.join(called), 32, 16))
        self.until(lambda: tree.find(called)[0] == (0, 0, 8, 8), lambda: f'{tree.find(called)} {subscriber.state()}')


if __name__ == '__main__':
    main(__name__)
