# SPDX-License-Identifier: Apache-2.0
"""An object store behind the tiers of a cache: what one node saved another finds."""
import hashlib
import os
import shutil
import tempfile
import time
import unittest

import soft_device
import tenuto
from case import LAYERS, OBJECT, Case, main
from s3_servers import ACCESS_KEY, SECRET_KEY, Faulty, seaweedfs, weed_program

BUCKET, BLOCKS = 'blocks', 4


class Node(Case):
    """endpoint: of a store of objects."""

    @classmethod
    def setUpClass(cls):
        os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)

    def node(self, name, secret='cluster', prefix='kv', **options):
        """A cache of its own disk, with a store that others have, too."""
        path, file = os.path.join(self.dir, name), os.path.join(self.dir, secret + '.secret')
        os.makedirs(path, exist_ok=True)
        with open(os.open(file, os.O_WRONLY | os.O_CREAT, 0o600), 'w') as f:
            f.write(f'the secret of {secret}, which is long enough\n')
        return self.open(path, host_bytes=16 << 20, cluster_secret_file=file,
                         remote=f's3,bucket={BUCKET},endpoint={self.endpoint},prefix={prefix},tries=1', offload='always', **options)

    def uploaded(self, cache, n):
        end = time.monotonic() + 10
        while cache.stats()['remote_blocks'] < n:
            self.assertLess(time.monotonic(), end, cache.stats())
            time.sleep(0.01)

    def found(self, space, keys, timeout=5):
        """What a look-up says once the store has answered."""
        query = tenuto.match_begin([space], keys, timeout=timeout)
        while not (match := query.poll()):
            time.sleep(0.001)
        return match.blocks

    def saved(self, name, **options):
        """Blocks that a node has saved, also to the store, before its disk was wiped: keys and bytes."""
        cache = self.node(name, **options)
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool, BLOCKS)
        cache.flush()
        self.uploaded(cache, BLOCKS)
        cache.close()
        shutil.rmtree(os.path.join(self.dir, name))
        return keys, bytes(kv[:BLOCKS * space.geometry.block_bytes])


@unittest.skipUnless(weed_program(), 'SeaweedFS is missing: make setup installs it')
class RealTest(Node):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.directory = tempfile.mkdtemp(prefix='tenuto-remote-')
        cls.addClassCleanup(shutil.rmtree, cls.directory, True)
        server, cls.endpoint = seaweedfs(cls.directory, BUCKET)
        cls.addClassCleanup(server.close)

    def test_what_a_node_saved_is_found_by_another_after_its_disk_was_wiped(self):
        keys, data = self.saved('a')
        cache = self.node('b')
        space, kv, pool = self.raw(cache)
        self.assertEqual(space.keys(range(BLOCKS)), keys)
        self.assertEqual(space.match(keys).blocks, 0)  # nobody has asked the store yet
        self.assertEqual(self.found(space, keys), BLOCKS)
        self.assertEqual(space.load(keys, pool, range(BLOCKS), timeout=5).finish(), BLOCKS)
        self.assertEqual(bytes(kv[:len(data)]), data)

    def test_two_nodes_that_save_the_same_block_both_have_it(self):
        keys, data = self.saved('a', prefix='both')
        again, other = self.saved('b', prefix='both')  # its objects are there already
        self.assertEqual((again, other), (keys, data))

    def test_a_node_with_another_secret_finds_nothing(self):
        self.saved('a', prefix='secret')
        cache = self.node('b', secret='other', prefix='secret')
        space, _, _ = self.raw(cache)
        self.assertEqual(self.found(space, space.keys(range(BLOCKS))), 0)


class CudaArray:
    """Bytes of a device, as arrays of cupy and torch say it."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {'shape': (size,), 'strides': None, 'data': (address, False), 'typestr': '|u1', 'version': 3}


ATTACHED = '''
import hashlib, sys, time, tenuto
cache = tenuto.attach(sys.argv[1])
geometry = tenuto.Geometry.raw(int(sys.argv[2]), int(sys.argv[3]))
space, kv = cache.space('toy', geometry), bytearray(16 * geometry.block_bytes)
pool, keys = cache.memory(kv).pool(geometry, npages=16), space.keys(range(4))
query = tenuto.match_begin([space], keys, timeout=5)
while not query.poll():
    time.sleep(0.001)
print(space.load(keys, pool, range(4), timeout=5).finish(), hashlib.sha256(kv[:4 * geometry.block_bytes]).hexdigest())
'''


class SlowObjects(dict):
    """Each answer takes two seconds."""

    def get(self, *args):
        time.sleep(2)
        return super().get(*args)


class FaultyTest(Node):
    def setUp(self):
        super().setUp()
        self.server = Faulty()
        self.endpoint = self.server.endpoint
        self.addCleanup(lambda: self.server and self.server.close())

    def path(self, key):
        """Of the block's object in the store."""
        name = b''.join(key[i:i + 8][::-1] for i in (0, 8)).hex()
        return next(p for p in self.server.objects if p.endswith('/' + name))

    def test_what_is_not_the_block_is_a_miss_and_never_other_bytes(self):
        keys, data = self.saved('a')
        one = [keys[i * tenuto.KEY_BYTES:(i + 1) * tenuto.KEY_BYTES] for i in range(BLOCKS)]
        path, objects = self.path(one[2]), self.server.objects
        good, other = objects[path], objects[self.path(one[0])]
        flipped = {at: good[:at] + bytes([good[at] ^ 1]) + good[at + 1:] for at in (0, 70, 110, 5000, len(good) - 1)}
        wrongs = {'another block': other, 'truncated': good[:-1], 'half a header': good[:64], 'no bytes': b'', **flipped}
        for what, bad in wrongs.items():
            objects[path] = bad
            with self.subTest(what):
                cache = self.node('b')
                space, kv, pool = self.raw(cache)
                self.assertIn(self.found(space, keys), (2, BLOCKS))
                good_blocks = space.load(keys, pool, range(BLOCKS), timeout=5).finish()
                self.assertEqual(good_blocks, 2)
                self.assertEqual(bytes(kv[:len(data) // 2]), data[:len(data) // 2])
                cache.close()
                shutil.rmtree(os.path.join(self.dir, 'b'))

    def test_a_damaged_object_is_replaced_by_who_saves_its_block_again(self):
        keys, _ = self.saved('a')
        path, objects = self.path(keys[2 * tenuto.KEY_BYTES:3 * tenuto.KEY_BYTES]), self.server.objects
        good = dict(objects)
        objects[path] = good[path][:-1] + bytes([good[path][-1] ^ 1])
        cache = self.node('b')
        space, kv, pool = self.raw(cache)
        self.assertEqual(self.found(space, keys), BLOCKS)
        self.assertEqual(space.load(keys, pool, range(BLOCKS), timeout=5).finish(), 2)
        self.stored(space, kv, pool, BLOCKS)
        self.uploaded(cache, BLOCKS)
        self.assertEqual(objects, good)

    def test_a_process_that_attaches_finds_them_too(self):
        _, data = self.saved('a')
        self.node('b', serve=os.path.join(self.dir, 'socket'))
        out = self.python(ATTACHED, os.path.join(self.dir, 'socket'), str(LAYERS), str(OBJECT))
        self.assertEqual(out.split(), [str(BLOCKS), hashlib.sha256(data).hexdigest()])

    def test_a_slow_store_costs_no_more_than_a_deadline(self):
        keys, data = self.saved('a')
        cache = self.node('b')
        space, kv, pool = self.raw(cache)
        self.assertEqual(self.found(space, keys), BLOCKS)
        self.server.server.objects = SlowObjects(self.server.objects)
        begin = time.monotonic()
        self.assertEqual(self.found(space, space.keys(range(50, 54)), timeout=0.3), 0)
        load = space.load(keys, pool, range(BLOCKS), timeout=0.3)
        self.assertEqual([load.wait(layer) for layer in range(LAYERS)], [0] * LAYERS)
        self.assertLess(time.monotonic() - begin, 1.8)
        load.finish()  # by then nothing writes to the pages any more
        self.assertEqual(space.load(keys, pool, range(BLOCKS), timeout=9).finish(), BLOCKS)
        self.assertEqual(bytes(kv[:len(data)]), data)

    @unittest.skipUnless(soft_device.file_of('soft'), 'TENUTO_PLUGIN_PATH has no libtenuto_soft.so')
    def test_pages_of_a_device_get_what_was_brought_into_host_memory_first(self):
        keys, data = self.saved('a')
        device = soft_device.SoftDevice()
        self.addCleanup(device.release)  # after the cache is closed
        cache = self.node('b')
        space, _, _ = self.raw(cache)
        address = device.allocate(16 * space.geometry.block_bytes)
        pool = cache.memory(CudaArray(address, 16 * space.geometry.block_bytes), driver='soft').pool(space.geometry, npages=16)
        self.assertEqual(self.found(space, keys), BLOCKS)
        self.assertEqual(space.load(keys, pool, range(BLOCKS), timeout=5).finish(), 0)
        self.assertEqual(self.found(space, keys), BLOCKS)
        space.prefetch(keys, timeout=5)
        end = time.monotonic() + 5
        while space.match(keys).host_blocks < BLOCKS and time.monotonic() < end:
            time.sleep(0.01)
        self.assertEqual(space.load(keys, pool, range(BLOCKS), timeout=5).finish(), BLOCKS)
        self.assertEqual(device.read(address, len(data)), data)

    def test_whatever_the_store_does_it_costs_a_deadline_and_no_wrong_byte(self):
        keys, data = self.saved('a')
        for fault in ('500', '503:SlowDown', '403:ExpiredToken', '403:RequestTimeTooSkewed', '507', 'drip', 'short', 'wrong', 'reset'):
            with self.subTest(fault):
                cache = self.node('b')
                space, kv, pool = self.raw(cache)
                self.assertEqual(self.found(space, keys), BLOCKS)
                self.server.all_fail(fault)
                begin = time.monotonic()
                load = space.load(keys, pool, range(BLOCKS), timeout=0.3)
                self.assertEqual([load.wait(layer) for layer in range(LAYERS)], [0] * LAYERS)
                self.assertEqual(self.found(space, space.keys(range(500, 504)), timeout=0.3), 0)
                self.assertLess(time.monotonic() - begin, 3)
                mine = space.keys(range(600, 600 + BLOCKS))  # what this node has itself is there all the same
                space.save(mine, pool, range(8, 8 + BLOCKS)).finish()
                self.assertEqual(space.load(mine, pool, range(8, 8 + BLOCKS), timeout=5).finish(), BLOCKS)
                self.server.all_fail(None)
                load.finish()
                cache.close()
                shutil.rmtree(os.path.join(self.dir, 'b'))

    def test_a_store_that_is_gone_costs_a_moment_and_then_nothing(self):
        keys, data = self.saved('a')
        cache = self.node('b')
        space, kv, pool = self.raw(cache)
        self.assertEqual(self.found(space, keys), BLOCKS)
        self.server.server.objects = None  # connections that are there break, too
        self.server.close()
        self.server = None
        begin = time.monotonic()
        self.assertEqual(space.load(keys, pool, range(BLOCKS), timeout=5).finish(), 0)
        for _ in range(5):
            self.assertEqual(self.found(space, space.keys(range(100, 100 + BLOCKS))), 0)
        self.assertLess(time.monotonic() - begin, 3)
        here = self.stored(space, kv, pool, BLOCKS)
        self.assertEqual(space.load(here, pool, range(8, 8 + BLOCKS)).finish(), BLOCKS)


if __name__ == '__main__':
    main(__name__)
