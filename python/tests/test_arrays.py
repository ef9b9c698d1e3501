# SPDX-License-Identifier: Apache-2.0
"""An engine's arrays, in every order and from every protocol; those that do not fit are refused with a word that says why."""
import array
import ctypes
import gc
import mmap
import struct

import tenuto
from case import Case, content, main

LAYERS, TOKENS, HEADS, DIM, PAGES = 3, 4, 2, 8, 6
PLANE = TOKENS * HEADS * DIM * 2  # bytes of a page
PAGE_SHAPE = (TOKENS, HEADS, DIM)


def geometry(order=tenuto.NHD, bits=16, pages_per_block=2):
    return tenuto.Geometry(LAYERS, tenuto.kv_planes(HEADS, DIM, bits), TOKENS, pages_per_block, order)


def shaped(data, shape, format='H'):
    return memoryview(data).cast('B').cast(format, shape)


class Tensor:
    """What has __dlpack__ and no buffer protocol, as a tensor has."""

    def __init__(self, data, shape, device=1, code=1, bits=16):
        self.data, self.held = data, (ctypes.c_char * len(data)).from_buffer(data)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.device, self.code, self.bits = device, code, bits

    def __dlpack__(self, **options):
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        head = struct.pack('=QiiiBBHQQQ', ctypes.addressof(self.held), self.device, 0, len(self.shape), self.code, self.bits, 1,
                           ctypes.addressof(self.shape), 0, 0)
        self.managed = ctypes.create_string_buffer(head + bytes(16))
        return new(ctypes.addressof(self.managed), b'dltensor', None)


class Orders(Case):
    def setUp(self):
        super().setUp()
        self.cache = self.open()

    def page(self, layer, plane, page):
        return content((layer, plane, page), PLANE)

    def round_trip(self, geometry, make, axes):
        """Two blocks of 2 pages are saved from pages 0 to 3 and loaded to 2 to 5 of zeroed arrays. make() -> (arrays, bytes of (layer, plane, page))."""
        space = self.cache.space('m', geometry, kv_dtype=axes)
        arrays, at = make()
        for layer in range(LAYERS):
            for plane in range(2):
                for page in range(4):
                    at(layer, plane, page)[:] = self.page(layer, plane, page)
        keys = space.keys(range(4 * TOKENS))
        self.assertEqual(space.save(keys, self.cache.pool(geometry, arrays, axes), range(4)).finish().stored, 2)
        for layer in range(LAYERS):
            for plane in range(2):
                for page in range(PAGES):
                    at(layer, plane, page)[:] = bytes(PLANE)
        pool = self.cache.pool(geometry, arrays, axes)
        self.assertEqual(pool.npages, PAGES)
        self.assertEqual(space.load(keys, pool, [2, 3, 4, 5]).finish(), 2)
        for layer in range(LAYERS):
            for plane in range(2):
                for page in range(4):
                    self.assertEqual(bytes(at(layer, plane, page + 2)), self.page(layer, plane, page), (layer, plane, page))
                    self.assertEqual(bytes(at(layer, plane, 0)), bytes(PLANE))

    def test_planes_of_pages_per_layer(self):
        def make():
            data = [bytearray(2 * PAGES * PLANE) for _ in range(LAYERS)]
            return ([shaped(d, (2, PAGES, *PAGE_SHAPE)) for d in data],
                    lambda layer, plane, page: memoryview(data[layer])[(plane * PAGES + page) * PLANE:][:PLANE])
        self.round_trip(geometry(), make, 'pn')

    def test_pages_of_planes_per_layer(self):
        def make():
            data = [bytearray(2 * PAGES * PLANE) for _ in range(LAYERS)]
            return ([shaped(d, (PAGES, 2, *PAGE_SHAPE)) for d in data],
                    lambda layer, plane, page: memoryview(data[layer])[(page * 2 + plane) * PLANE:][:PLANE])
        self.round_trip(geometry(), make, 'np')

    def test_an_array_per_layer_and_plane(self):
        def make():
            data = [[bytearray(PAGES * PLANE) for _ in range(2)] for _ in range(LAYERS)]
            return ([[shaped(d, (PAGES, *PAGE_SHAPE)) for d in pair] for pair in data],
                    lambda layer, plane, page: memoryview(data[layer][plane])[page * PLANE:][:PLANE])
        self.round_trip(geometry(), make, 'n')

    def test_one_array_across_layers(self):
        def make():
            data = bytearray(PAGES * LAYERS * 2 * PLANE)
            return (shaped(data, (PAGES, LAYERS, 2, *PAGE_SHAPE)),
                    lambda layer, plane, page: memoryview(data)[((page * LAYERS + layer) * 2 + plane) * PLANE:][:PLANE])
        self.round_trip(geometry(), make, 'nlp')

    def test_heads_outside_tokens_and_an_mmap(self):
        def make():
            data = mmap.mmap(-1, LAYERS * 2 * PAGES * PLANE)
            return (shaped(data, (LAYERS, 2, PAGES, HEADS, TOKENS, DIM)),
                    lambda layer, plane, page: memoryview(data)[((layer * 2 + plane) * PAGES + page) * PLANE:][:PLANE])
        self.round_trip(geometry(tenuto.HND), make, 'lpn')

    def test_tensors_with_dlpack_and_memory_of_tenuto(self):
        def make():
            data = tenuto.Buffer(LAYERS * 2 * PAGES * PLANE)
            whole = (ctypes.c_char * len(memoryview(data))).from_buffer(data)
            size = 2 * PAGES * PLANE
            tensors = [Tensor((ctypes.c_char * size).from_buffer(whole, i * size), (2, PAGES, *PAGE_SHAPE)) for i in range(LAYERS)]
            return tensors, lambda layer, plane, page: memoryview(data)[((layer * 2 + plane) * PAGES + page) * PLANE:][:PLANE]
        self.round_trip(geometry(), make, 'pn')

    def test_pointers_with_strides(self):
        """Pages 64 bytes apart, and planes that are pieces of one array."""
        step = PLANE + 64

        def make():
            data = bytearray(LAYERS * 2 * PAGES * step)
            held = (ctypes.c_char * len(data)).from_buffer(data)
            start = ctypes.addressof(held)
            shape, inner = (PAGES, *PAGE_SHAPE), (HEADS * DIM, DIM, 1)
            pairs = [[tenuto.strided(start + (2 * layer + plane) * PAGES * step, shape, (step // 2, *inner), 2, owner=held) for plane in range(2)]
                     for layer in range(LAYERS)]
            return pairs, lambda layer, plane, page: memoryview(data)[((layer * 2 + plane) * PAGES + page) * step:][:PLANE]
        self.round_trip(geometry(), make, 'n')

    def test_arrays_are_saved_and_loaded_without_a_pool(self):
        g = geometry(pages_per_block=1)
        space = self.cache.space('direct', g)
        data, back = content('direct', LAYERS * 2 * 3 * PLANE), bytearray(LAYERS * 2 * 3 * PLANE)
        shape = (LAYERS, 2, 3, *PAGE_SHAPE)
        keys = space.keys(range(3 * TOKENS))
        self.assertEqual(space.save(keys, shaped(data, shape)).finish().stored, 3)
        self.assertEqual(space.load(keys, shaped(back, shape)).finish(), 3)
        self.assertEqual(back, data)

    def test_pools_over_one_memory(self):
        g, data = geometry(), bytearray(LAYERS * 2 * PAGES * PLANE)
        memory = self.cache.memory(data)
        first = memory.pool(g, shaped(data, (LAYERS, 2, PAGES, *PAGE_SHAPE)), 'lpn')
        second = memory.pool(g, npages=PAGES, order=tenuto.POOL_PLANES_PAGES)
        self.assertEqual((first.npages, second.npages), (PAGES, PAGES))
        with self.assertRaisesRegex(ValueError, 'does not lie in this memory'):
            memory.pool(g, shaped(bytearray(data), (LAYERS, 2, PAGES, *PAGE_SHAPE)), 'lpn')


class Refused(Case):
    def refuse(self, text, arrays, axes='lpn', error=ValueError, g=None):
        cache = self.open()
        with self.assertRaisesRegex(error, text):
            cache.pool(g or geometry(), arrays, axes)
        cache.close()

    def test_a_wrong_element_type(self):
        data = bytearray(LAYERS * 2 * PAGES * PLANE * 2)
        self.refuse('elements of 32 bits, plane 0 of the geometry of 16', shaped(data, (LAYERS, 2, PAGES, *PAGE_SHAPE), 'f'))

    def test_a_wrong_shape(self):
        data = bytearray(LAYERS * 2 * PAGES * PLANE)
        self.refuse('dimension 0 .l. is 2, the geometry says 3', shaped(data, (2, LAYERS, PAGES, *PAGE_SHAPE)))
        self.refuse('page of the array has shape', shaped(data, (LAYERS, 2, PAGES, HEADS, TOKENS, DIM)))
        self.refuse('bytes .shape', shaped(bytearray(LAYERS * 2 * PAGES * 64), (LAYERS, 2, PAGES, 32)))
        self.refuse('1 arrays for 3 layers', [shaped(data, (2, 3 * PAGES, *PAGE_SHAPE))], 'pn')
        self.refuse('too few dimensions', shaped(data, (len(data) // 2,)))
        self.refuse('letters of l, p and n', shaped(data, (len(data) // 2,)), 'xyz')
        self.refuse('a sequence by layers', shaped(data, (len(data) // 2,)), 'pn', TypeError)
        self.refuse('is a sequence', [shaped(data, (len(data) // 2,))], 'lpn', TypeError)
        self.refuse('has no bytes', tenuto.strided(4096, (LAYERS, 2, 0, *PAGE_SHAPE), None, 2))

    def test_arrays_that_are_not_contiguous(self):
        data = bytearray(2 * LAYERS * 2 * PAGES * PLANE)
        held = (ctypes.c_char * len(data)).from_buffer(data)
        shape = (LAYERS, 2, PAGES, *PAGE_SHAPE)
        every_other = (4 * PAGES * PLANE // 2, 2 * PAGES * PLANE // 2, PLANE, 2 * HEADS * DIM, 2 * DIM, 2)
        self.refuse('not contiguous', tenuto.strided(ctypes.addressof(held), shape, every_other, 2, owner=held))
        self.refuse('runs backwards', [[memoryview(data)[::-1]] * 2] * LAYERS, 'n')

    def test_arrays_that_differ(self):
        different = [shaped(bytearray(2 * n * PLANE), (2, n, *PAGE_SHAPE)) for n in (PAGES, PAGES, PAGES + 1)]
        self.refuse('different numbers of pages', different, 'pn')

    def test_what_cannot_be_written_and_what_is_no_array(self):
        self.refuse('', shaped(bytes(LAYERS * 2 * PAGES * PLANE), (LAYERS, 2, PAGES, *PAGE_SHAPE)), error=BufferError)
        self.refuse('an array is wanted', 5, error=TypeError)
        self.refuse('an array is wanted', [None] * LAYERS, 'pn', TypeError)

    def test_a_tensor_of_an_accelerator_that_no_driver_is_for(self):
        tensor = Tensor(bytearray(LAYERS * 2 * PAGES * PLANE), (LAYERS, 2, PAGES, *PAGE_SHAPE), device=10)
        self.refuse("an accelerator's memory", tensor, error=tenuto.Error)


class Lives(Case):
    def test_memory_of_a_pool_cannot_go(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        with self.assertRaises(BufferError):
            kv.extend(b'more')
        self.stored(space, kv, pool)
        del pool
        gc.collect()
        kv.extend(b'more')

    def test_a_load_keeps_its_memory(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        load = space.load(keys, pool, range(4))
        del pool
        with self.assertRaises(BufferError):
            kv.extend(b'more')
        self.assertEqual(load.finish(), 4)
        kv.extend(b'more')

    def test_a_storage_that_was_freed_under_a_tensor_is_an_exception(self):
        class Storage:
            at = 4096

            def data_ptr(self):
                return self.at

        class Torch(Tensor):
            storage = Storage()

            def untyped_storage(self):
                return self.storage

        cache = self.open()
        g = tenuto.Geometry.raw(1, 4096)
        space = cache.space('torch', g)
        tensor = Torch(bytearray(4 * 4096), (4, 4096), bits=8)
        pool = cache.pool(g, [[tensor]], 'n')
        self.assertEqual(space.save(space.keys([1]), pool, [0]).finish().stored, 1)
        Torch.storage.at = 0
        for begin in (space.save, space.load):
            with self.assertRaisesRegex(BufferError, 'has moved or was freed'):
                begin(space.keys([1]), pool, [0])

    def test_integer_arrays_of_any_width_name_pages_and_tokens(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        for code in 'bBhHiIlLqQ':
            self.assertEqual(space.keys(array.array(code, range(4))), keys)
            self.assertEqual(space.load(keys, pool, array.array(code, range(8, 12))).finish(), 4)
        self.assertEqual(space.keys(Tensor(bytearray(struct.pack('=4q', 0, 1, 2, 3)), (4,), code=0, bits=64)), keys)
        self.assertEqual(space.keys(memoryview(array.array('i', range(8)))[::2].tolist()), space.keys([0, 2, 4, 6]))
        for wrong in (array.array('i', [-1] * 4), array.array('d', range(4)), 3.5, array.array('q', [1 << 40] * 4)):
            with self.assertRaises((ValueError, TypeError)):
                space.keys(wrong)

    def test_shards_are_cut_anew(self):
        two = tenuto.Geometry(1, tenuto.kv_planes(2, 4, 16), 3, 1)
        one = two.resliced(2, 1)
        self.assertEqual(one.planes[0][1], 4)
        rank = [content(r, two.object_bytes) for r in range(2)]
        whole = bytearray(one.object_bytes)
        tenuto.reslice(two, 2, 1, 0, rank, whole)
        for r in range(2):
            back = bytearray(two.object_bytes)
            tenuto.reslice(one, 1, 2, r, [whole], back)
            self.assertEqual(back, rank[r])
        with self.assertRaises(ValueError):
            tenuto.reslice(two, 2, 1, 0, rank, bytearray(3))
        self.assertEqual(tenuto.Geometry.from_bytes(two.to_bytes()), two)
        with self.assertRaises(tenuto.Error):
            tenuto.Geometry.from_bytes(two.to_bytes()[:-1] + b'?')


if __name__ == '__main__':
    main(__name__)
