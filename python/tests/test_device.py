# SPDX-License-Identifier: Apache-2.0
"""Memory of a device through Python: on the soft device, and by the CUDA plugin on a library that stands in for libcuda. No CPU may touch a byte of it: a process that
does dies.
"""
import ctypes
import os
import subprocess
import sys
import time
import unittest

import tenuto
import soft_device
from case import SEED, Case, content, main

os.environ['TN_SOFT_COPY_NS'] = '5000000'  # a stream of an engine that did not wait would be earlier
LAYERS, PAGES, PAGE_SHAPE, PAGE = 3, 8, (4, 2, 8), 128
WHOLE = LAYERS * 2 * PAGES * PAGE
OWNER = '''
import sys, tenuto
with tenuto.Cache(host_bytes=16 << 20, serve=sys.argv[1]) as cache:
    print('ready', flush=True)
    sys.stdin.read()
'''


class CudaArray:
    """As an array of cupy, numba or torch: pages of 16-bit elements at an address of a device."""

    def __init__(self, address, shape, strides=None, typestr='<V2', device=None, readonly=False):
        self.__cuda_array_interface__ = {'shape': tuple(shape), 'strides': strides, 'data': (address, readonly), 'typestr': typestr, 'version': 3}
        if device is not None:
            self.__dlpack_device__ = lambda: (2, device)


@unittest.skipUnless(soft_device.file_of('soft'), 'TENUTO_PLUGIN_PATH has no libtenuto_soft.so')
class Device(Case):
    def setUp(self):
        super().setUp()
        self.device = soft_device.SoftDevice()
        self.geometry = tenuto.Geometry(LAYERS, tenuto.kv_planes(2, 8, 16), 4, 2)
        self.addCleanup(self.device.release)  # after the cache is closed

    def space(self, cache, name='m'):
        space = cache.space(name, self.geometry)
        return space, space.keys(range(PAGES * 4))

    def goes_and_comes(self, cache, arrays, axes, address, size=WHOLE):
        """Random bytes are saved from pages in an order of their own, overwritten, and loaded."""
        data, pages = content(axes, size), [6, 7, 0, 1, 4, 5, 2, 3]
        self.device.write(address, data)
        pool = cache.pool(self.geometry, arrays, axes, driver='soft')
        space, keys = self.space(cache, axes)
        result = space.save(keys, pool, pages).finish()
        self.assertEqual(result.stored + result.host_only, 4, result)
        self.device.write(address, bytes(size))
        self.assertEqual(space.load(keys, pool, pages).finish(), 4)
        self.assertEqual(self.device.read(address, size), data)
        return pool

    def test_tensors_of_each_layer(self):
        address = self.device.allocate(WHOLE)
        arrays = [CudaArray(address + i * WHOLE // LAYERS, (2, PAGES, *PAGE_SHAPE)) for i in range(LAYERS)]
        for options in ({}, {'path': self.dir, 'disk_bytes': 32 << 20, 'host_bytes': 0}):
            with tenuto.Cache(**{'path': None, 'host_bytes': 16 << 20, **options}) as cache:
                pool = self.goes_and_comes(cache, arrays, 'pn', address)
                self.assertEqual(pool.memory.ranges[0][2], 0)

    def test_strides_and_a_device_that_is_named(self):
        address = self.device.allocate(WHOLE)
        step = PAGE * 2 * LAYERS  # a page of all layers and planes, one after the other
        arrays = CudaArray(address, (PAGES, LAYERS, 2, *PAGE_SHAPE), (step, 2 * PAGE, PAGE, 32, 16, 2), device=0)
        self.goes_and_comes(self.open(host_bytes=16 << 20), arrays, 'nlp', address)

    def test_a_device_tier(self):
        address = self.device.allocate(WHOLE)
        array = CudaArray(address, (LAYERS, 2, PAGES, *PAGE_SHAPE), device=0)
        cache = self.open(host_bytes=16 << 20, device_bytes=1 << 20, device_driver='soft', device=0)
        self.goes_and_comes(cache, array, 'lpn', address)
        self.assertEqual(cache.stats()['loaded_device_bytes'], WHOLE)
        with self.assertRaisesRegex(tenuto.Error, 'there is no driver'):
            tenuto.Cache(host_bytes=16 << 20, device_bytes=1 << 20)
        with self.assertRaisesRegex(tenuto.Error, 'on device 77'):
            tenuto.Cache(host_bytes=16 << 20, device_bytes=1 << 20, device_driver='soft', device=77)

    def test_an_address(self):
        address = self.device.allocate(WHOLE)
        array = tenuto.strided(address, (LAYERS, 2, PAGES, *PAGE_SHAPE), None, 2, device=0)
        self.assertEqual((array.device, array.pointer), (0, address))
        cache = self.open(host_bytes=16 << 20)
        self.goes_and_comes(cache, array, 'lpn', address)

    def test_numbers_in_memory_of_a_device_are_refused(self):
        numbers = CudaArray(self.device.allocate(64), (8,), typestr='<i8')
        numbers.__dlpack__ = None  # as those have that are taken for numbers
        with self.assertRaisesRegex(TypeError, 'tokens: an array in the memory of device 0: give one in host memory'):
            self.open(host_bytes=16 << 20).space('m', self.geometry).keys(numbers)

    def test_a_cache_of_another_process(self):
        address, socket = self.device.allocate(WHOLE), os.path.join(self.dir, 'socket')
        with subprocess.Popen([sys.executable, '-c', OWNER, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
            owner.stdout.readline()
            with tenuto.attach(socket) as cache:
                self.goes_and_comes(cache, tenuto.strided(address, (LAYERS, 2, PAGES, *PAGE_SHAPE), None, 2, device=0), 'lpn', address)
            owner.stdin.close()

    def test_a_memory_and_pools_in_it(self):
        address, cache = self.device.allocate(WHOLE), self.open(host_bytes=16 << 20)
        memory = cache.memory(CudaArray(address, (WHOLE,), typestr='|u1'), driver='soft', stage_bytes=1 << 16)
        self.assertEqual(memory.ranges, ((address, WHOLE, 0),))
        data = content(SEED, WHOLE)
        self.device.write(address, data)
        space, keys = self.space(cache)
        pools = (memory.pool(self.geometry, npages=PAGES, order=tenuto.POOL_PLANES_PAGES),
                 memory.pool(self.geometry, CudaArray(address, (LAYERS, 2, PAGES, *PAGE_SHAPE)), 'lpn'))
        self.assertEqual(space.save(keys, pools[0], range(PAGES)).finish().failed, 0)
        self.device.write(address, bytes(WHOLE))
        self.assertEqual(space.load(keys, pools[1], range(PAGES)).finish(), 4)
        self.assertEqual(self.device.read(address, WHOLE), data)

    def test_a_device_that_is_late(self):
        address, cache = self.device.allocate(WHOLE), self.open(host_bytes=16 << 20)
        pool = self.goes_and_comes(cache, CudaArray(address, (LAYERS, 2, PAGES, *PAGE_SHAPE)), 'lpn', address)
        space, keys = self.space(cache, 'lpn')
        self.device.write(address, bytes(WHOLE))
        self.device.library.tn_soft_hold(1)
        with space.load(keys, pool, range(PAGES)) as load:
            with self.assertRaises(tenuto.Timeout):
                load.wait(0, 0.05)
            self.assertEqual(self.device.read(address, WHOLE), bytes(WHOLE))  # and no layer has been told
            self.device.library.tn_soft_hold(0)
            self.assertEqual([load.wait(i) for i in range(LAYERS)], [4] * LAYERS)
            self.assertNotEqual(self.device.read(address, WHOLE), bytes(WHOLE))

    def test_a_stream_waits_for_a_layer_and_raises_the_event_of_a_save(self):
        address, cache = self.device.allocate(WHOLE), self.open(host_bytes=16 << 20)
        pool = self.goes_and_comes(cache, CudaArray(address, (LAYERS, 2, PAGES, *PAGE_SHAPE)), 'lpn', address)
        space, keys = self.space(cache, 'lpn')
        stream, destroy = self.device.stream()
        self.addCleanup(destroy)
        event = cache.event()
        word = ctypes.c_uint64.from_address(event.address)
        self.addCleanup(self.device.library.tn_soft_hold, 0)
        self.device.library.tn_soft_hold(1)
        load = space.load(keys[:32], pool, range(4))
        save = space.save(space.keys([1000, 1001] * 8), pool, range(4, PAGES))
        for layer in range(LAYERS):  # as an engine computes: nobody waits on the host
            load.stream_wait(stream, layer)
            event.stream_raise(pool, stream, layer + 1)
            save.layer(layer, event, layer + 1)
        save.commit()
        time.sleep(0.05)
        self.assertEqual((word.value, load.poll(0)), (0, None))
        self.device.library.tn_soft_hold(0)
        raised = 0
        while raised < LAYERS:
            raised = word.value
            self.assertTrue(raised == 0 or load.poll(raised - 1) is not None, 'the stream did not wait')
        result = save.finish()
        self.assertEqual((word.value, result.stored + result.host_only), (LAYERS, 2))
        self.assertEqual(load.finish(), 2)
        with self.assertRaises(tenuto.Error):
            load.stream_wait(stream)
        with self.assertRaisesRegex(IndexError, 'layer 3 of 3'):
            space.load(keys[:16], pool, range(2)).stream_wait(stream, LAYERS)

    def test_no_stream_waits_for_pages_in_host_memory(self):
        cache = self.open(host_bytes=16 << 20)
        space, keys = self.space(cache)
        pool = cache.memory(bytearray(WHOLE)).pool(self.geometry, npages=PAGES, order=tenuto.POOL_PLANES_PAGES)
        with self.assertRaisesRegex(tenuto.Error, 'the pool is in host memory'):
            space.load(keys[:16], pool, range(2)).stream_wait(0)
        with self.assertRaisesRegex(tenuto.Error, 'the pool is in host memory'):
            cache.event().stream_raise(pool, 0, 1)

    def test_a_copy_that_fails_is_a_miss_and_the_next_load_is_good(self):
        address, cache = self.device.allocate(WHOLE), self.open(host_bytes=16 << 20)
        pool = self.goes_and_comes(cache, CudaArray(address, (LAYERS, 2, PAGES, *PAGE_SHAPE)), 'lpn', address)
        space, keys = self.space(cache, 'lpn')
        copied = self.device.library.tn_soft_copied()
        self.device.library.tn_soft_fail(0, -5)
        self.assertEqual(space.load(keys, pool, range(PAGES)).finish(), 0)
        self.assertEqual(space.load(keys, pool, range(PAGES)).finish(), 4)
        self.assertGreaterEqual(self.device.library.tn_soft_copied(), copied + WHOLE)

    def test_how_bytes_go_to_the_disk_is_chosen(self):
        address = self.device.allocate(WHOLE)
        array = CudaArray(address, (LAYERS, 2, PAGES, *PAGE_SHAPE))
        for transfer in ('auto', 'bounce'):
            with self.subTest(transfer):
                self.goes_and_comes(self.open(instance=transfer, transfer=transfer), array, 'lpn', address)
        cache = self.open(instance='direct', transfer='direct', transfer_streams=2)
        with self.assertRaisesRegex(tenuto.NotFound, 'no plugin gds'):
            cache.memory(array, driver='soft')
        with self.assertRaisesRegex(tenuto.InvalidValue, 'transfer "straight": must be'):
            self.open(instance='none', transfer='straight')

    def test_what_does_not_fit_is_said(self):
        address, cache = self.device.allocate(WHOLE), self.open(host_bytes=16 << 20)
        array = CudaArray(address, (WHOLE,), typestr='|u1')
        for error, text, arrays, options in (
                (tenuto.NotFound, 'no plugin other: libtenuto_other.so', [array], {'driver': 'other'}),
                (tenuto.Error, 'plugin cuda|driver cuda', [array], {}),
                (tenuto.InvalidValue, 'driver soft', [CudaArray(address + (1 << 40), (64,), typestr='|u1')], {'driver': 'soft'}),
                (ValueError, 'arrays in device 0, host memory: one memory has those of one device', [array, bytearray(64)], {'driver': 'soft'}),
                (ValueError, 'arrays in device 0, device 1: ', [array, CudaArray(address, (64,), device=1)], {'driver': 'soft'}),
                (BufferError, 'read-only', [CudaArray(address, (64,), readonly=True)], {'driver': 'soft'}),
                (ValueError, 'without a typestr', [CudaArray(address, (64,), typestr='<')], {'driver': 'soft'}),
                (ValueError, 'runs backwards|below 0', [CudaArray(address, (64,), (-2,))], {'driver': 'soft'})):
            with self.subTest(text), self.assertRaisesRegex(error, text):
                cache.memory(*arrays, **options)
        with self.assertRaisesRegex(ValueError, 'device -1: its number from 0 on'):
            tenuto.strided(address, (8,), None, 8, device=-1)
        with self.assertRaisesRegex(TypeError, 'a range of a device is'):
            tenuto._core.Memory(cache, [(address, WHOLE)], (), driver='soft')
        with self.assertRaisesRegex(TypeError, 'of a device a driver is wanted'):
            tenuto._core.Memory(cache, [(address, WHOLE, 0)], ())


@unittest.skipUnless(soft_device.file_of('cuda'), 'TENUTO_PLUGIN_PATH has no libtenuto_cuda.so')
class Cuda(Case):
    def test_bytes_go_to_the_device_and_back_by_the_driver_of_that_name(self):
        device, geometry, cache = soft_device.Device('cuda'), tenuto.Geometry(LAYERS, tenuto.kv_planes(2, 8, 16), 4, 2), self.open(host_bytes=16 << 20)
        self.addCleanup(device.release)
        data, address = content('cuda', WHOLE), device.allocate(WHOLE)
        there = cache.pool(geometry, CudaArray(address, (LAYERS, 2, PAGES, *PAGE_SHAPE)), 'lpn')
        for before, after, pages in ((bytearray(data), there, (6, 7, 0, 1, 4, 5, 2, 3)), (there, bytearray(WHOLE), range(PAGES))):
            space = cache.space('to' if after is there else 'from', geometry)
            keys, pools = space.keys(range(PAGES * 4)), [p if p is there else cache.memory(p).pool(geometry, npages=PAGES, order=tenuto.POOL_PLANES_PAGES) for p in (before, after)]
            self.assertEqual(space.save(keys, pools[0], pages).finish().failed, 0)
            self.assertEqual(space.load(keys, pools[1], pages).finish(), 4)
        self.assertEqual(after, data)


if __name__ == '__main__':
    main(__name__)
