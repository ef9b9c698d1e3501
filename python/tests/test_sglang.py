# SPDX-License-Identifier: Apache-2.0
"""The storage backend for SGLang without SGLang: the calls that its cache controller makes, on host pools that say where their pages lie as SGLang's do.

sglang_calls.json is what sglang_calls.py has read out of the installed package; where SGLang is installed it must still say the same.
"""
import enum
import inspect
import json
import os
import random
import signal
import subprocess
import sys
import time
import types
import unittest
import unittest.mock

import case
import sglang_calls

HERE = os.path.dirname(os.path.abspath(__file__))
with open(os.path.join(HERE, 'sglang_calls.json')) as f:
    CALLS = json.load(f)


class Indices(list):
    """As much of a tensor of indices as is used."""

    def __getitem__(self, at):
        return Indices(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)

    def tolist(self):
        return list(self)


class Result:
    def __init__(self, kv_hit_pages, extra_pool_hit_pages, restorable_prefix_pages=None):
        self.pages, self.extra, self.restorable = kv_hit_pages, extra_pool_hit_pages, restorable_prefix_pages


def stand_in():
    """The modules that the backend imports, with the names that it uses."""
    storage = types.ModuleType('sglang.srt.mem_cache.hicache_storage')
    storage.HiCacheStorage = type('HiCacheStorage', (), {})
    storage.PoolName = enum.Enum('PoolName', {'KV': 'kv', 'SWA': 'swa'}, type=str)
    storage.PoolName.__str__ = lambda self: self.value
    storage.PoolHitPolicy = enum.Enum('PoolHitPolicy', {'ALL_PAGES': 'all_pages', 'TRAILING_PAGES': 'trailing_pages', 'BLOCK_GROUPS': 'block_groups'}, type=str)
    storage.PoolTransferResult = Result
    torch = types.ModuleType('torch')
    torch.arange = lambda first, end: Indices(range(first, end))
    for name in ('sglang', 'sglang.srt', 'sglang.srt.mem_cache'):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[storage.__name__], sys.modules['torch'] = storage, torch
    return storage


try:
    INSTALLED, CONFIGURATION = sglang_calls.read(), sglang_calls.configuration()
except ImportError:
    INSTALLED = CONFIGURATION = None
SGLANG = stand_in()

from tenuto import _core  # noqa: E402
from tenuto.sglang import MEANS, SGLANGS, TenutoStorage  # noqa: E402
from tenuto.sglang.pages import pages_of  # noqa: E402

PAGE, LAYERS, TOKEN = 4, 3, 512  # tokens; bytes of K, and of V, of a token and layer


class HostPool:
    """Memory laid out as MHA's host pool has it."""

    def __init__(self, layout='page_first_direct', pages=40, latent=False):
        self.layout, self.page_size, self.size, self.dtype, self.kinds = layout, PAGE, pages * PAGE, 'torch.bfloat16', 1 if latent else 2
        self.bytes = self.kinds * LAYERS * self.size * TOKEN
        self.memory = bytearray(self.bytes)
        self.view = _core.View(self.memory, True)

    def segments(self, page):
        """(offset, bytes) of what a page has."""
        half = LAYERS * self.size * TOKEN
        if self.layout == 'layer_first':
            return [(kind * half + (layer * self.size + page * PAGE) * TOKEN, PAGE * TOKEN) for layer in range(LAYERS) for kind in range(self.kinds)]
        return [(kind * half + page * PAGE * LAYERS * TOKEN, PAGE * LAYERS * TOKEN) for kind in range(self.kinds)]

    def get_page_buffer_meta(self, indices):
        if self.layout == 'nowhere':
            raise ValueError(f'Unsupported layout: {self.layout}')
        assert len(indices) % PAGE == 0
        found = [s for i in indices.tolist()[::PAGE] for s in self.segments(i // PAGE)]
        return [self.view.pointer + at for at, _ in found], [size for _, size in found]

    def put(self, page, seed):
        for n, (at, size) in enumerate(self.segments(page)):
            self.memory[at:at + size] = case.content((seed, n), size)

    def holds(self, page, seed):
        return all(self.memory[at:at + size] == case.content((seed, n), size) for n, (at, size) in enumerate(self.segments(page)))

    def wipe(self):
        self.memory[:] = bytes(self.bytes)


def config(extra, **more):
    values = {**dict.fromkeys(CALLS['config']), 'tp_rank': 0, 'tp_size': 1, 'pp_rank': 0, 'pp_size': 1, 'attn_cp_rank': 0, 'attn_cp_size': 1, 'dp_rank': 0, 'dcp_size': 1,
              'dcp_rank': 0, 'is_mla_model': False, 'should_split_heads': False, 'model_name': 'org/model', 'extra_config': extra}
    return types.SimpleNamespace(**{**values, **more})


def keys(n, seed=1):
    return [f'{seed * 1000 + i:064x}' for i in range(n)]


def tokens(pages):
    return Indices(p * PAGE + t for p in pages for t in range(PAGE))


class Backend(case.Case):
    def backend(self, pool=None, rank=0, ranks=1, latent=False, **options):
        if not {'store', 'socket', 'path'} & set(options):
            options['path'] = self.dir
        if 'path' in options:
            os.makedirs(options['path'], exist_ok=True)
            options.setdefault('disk_bytes', '32MiB')
        extra = {'backend_name': 'tenuto', 'module_path': 'tenuto.sglang', 'class_name': 'TenutoStorage', 'interface_v1': 1, 'prefetch_threshold': 16, **options}
        b = TenutoStorage(config(extra, tp_rank=rank, tp_size=ranks, is_mla_model=latent), {})
        self.addCleanup(b.close)
        b.pool = pool or HostPool(latent=latent)
        b.register_mem_pool_host(b.pool)
        return b

    def save(self, b, names, first=0):
        for i in range(len(names)):
            b.pool.put(first + i, names[i])
        self.assertEqual(b.batch_set_v1(names, tokens(range(first, first + len(names))), None), [True] * len(names))

    def load(self, b, names, pages):
        """How many pages came; they have the right bytes."""
        b.pool.wipe()
        good = b.batch_get_v1(names, tokens(pages), None)
        self.assertEqual(len(good), len(names))
        for name, page, ok in zip(names, pages, good):
            self.assertTrue(not ok or b.pool.holds(page, name))
        return sum(good)


class TestPages(Backend):
    def test_pages_come_back_in_any_layout(self):
        for layout in ('page_first', 'page_first_direct', 'layer_first'):
            with self.subTest(layout):
                b = self.backend(HostPool(layout), path=os.path.join(self.dir, layout))
                names = keys(20)
                self.save(b, names)
                self.assertEqual(b.batch_exists(names + keys(3, 2)), 20)
                order = random.Random(case.SEED).sample(range(20, 40), 20)
                self.assertEqual(self.load(b, names, order), 20)

    def test_a_page_that_is_missing_ends_the_prefix(self):
        b = self.backend()
        names = keys(9)
        self.save(b, names[:4])
        self.save(b, names[5:], first=4)
        self.assertEqual(b.batch_exists(names), 4)
        self.assertEqual(self.load(b, names, range(9)), 4)
        self.assertTrue(b.exists(names[6]))
        self.assertFalse(b.exists(names[4]))

    def test_large_segments_become_several_objects(self):
        first = ([1 << 20, 1 << 30], [3 << 20, 3 << 20])
        second = ([(1 << 20) + (3 << 20), (1 << 30) + (3 << 20)], first[1])
        p = pages_of(first, second, 10)
        self.assertEqual((p.geometry.layers, p.geometry.object_bytes, len(p.geometry.planes)), (6, 1 << 20, 1))
        self.assertEqual(p.ranges, [(1 << 20, 30 << 20), (1 << 30, 30 << 20)])
        self.assertEqual(p.base, [0, 1 << 20, 2 << 20, 30 << 20, 31 << 20, 32 << 20])

    def test_planes_of_different_sizes(self):
        first = ([0x10000, 0x80000, 0x14000, 0x82000], [4096, 2048, 4096, 2048])
        second = ([0x11000, 0x80800, 0x15000, 0x82800], first[1])
        p = pages_of(first, second, 4)
        self.assertEqual((p.geometry.layers, [p.geometry.page_bytes(i) for i in range(2)], p.strides), (2, [4096, 2048], [4096, 2048]))
        self.assertEqual(p.page_bytes, 2 * (4096 + 2048))

    def test_a_layout_that_cannot_be_used_says_so(self):
        with self.assertRaisesRegex(ValueError, 'page_first_direct'):
            self.backend(HostPool('nowhere'))


class TestPrefixes(Backend):
    def put(self, b, names, first, before):
        for i in range(len(names)):
            b.pool.put(first + i, names[i])
        return b.batch_set_v1(names, tokens(range(first, first + len(names))), types.SimpleNamespace(prefix_keys=before))

    def test_memory_of_a_gpu_is_refused(self):
        """HiCache gives none: it moves pages to its host memory itself."""
        pool, page = HostPool(), types.SimpleNamespace(device='cuda:0')
        pool.device = 'cuda:0'
        with self.assertRaisesRegex(ValueError, 'pool kv lies on cuda:0: host memory is wanted. HiCache moves'):
            self.backend(pool)
        pool.device = 'cpu'
        b = self.backend(pool, path=os.path.join(self.dir, 'other'))
        for what, call in (('a page lies', lambda: b.set('key', page)), ('a page is wanted', lambda: b.get('key', page))):
            with self.assertRaisesRegex(ValueError, f'{what} on cuda:0: host memory is wanted'):
                call()
        self.save(b, keys(2))
        self.assertEqual(self.load(b, keys(2), range(2)), 2)

    def test_pages_whose_beginning_is_not_there_are_not_stored(self):
        b = self.backend()
        names = keys(12)
        self.put(b, names[4:8], 4, names[:4])
        self.assertEqual([b.exists(n) for n in names[4:8]], [False] * 4)
        self.put(b, names[:4], 0, [])
        self.put(b, names[4:8], 4, names[:4])
        self.put(b, names[8:], 8, names[:8])
        self.assertEqual(b.batch_exists(names), 12)

    def test_a_pool_whose_trailing_pages_are_enough_needs_no_beginning(self):
        b, swa = self.backend(), HostPool('layer_first')
        b.register_mem_host_pool_v2(swa, SGLANG.PoolName.SWA)
        names = keys(8)
        transfer = types.SimpleNamespace(name=SGLANG.PoolName.SWA, keys=names[6:], host_indices=tokens([1, 2]), hit_policy=SGLANG.PoolHitPolicy.TRAILING_PAGES)
        b.batch_set_v2([transfer], types.SimpleNamespace(prefix_keys=names[:6]))
        swa.wipe()
        self.assertEqual(b.batch_get_v2([transfer]), {SGLANG.PoolName.SWA: [True, True]})

    def test_sglang_is_told_once_that_it_does_not_say_what_is_before(self):
        b = self.backend()
        with self.assertNoLogs('tenuto.sglang', 'WARNING'):
            self.put(b, keys(2), 0, [])
        with self.assertLogs('tenuto.sglang', 'WARNING') as logs:
            for seed in range(2, 5):
                self.put(b, keys(2, seed), 0, None)
        self.assertEqual(len(logs.output), 1)
        self.assertIn('hicache_storage_pass_prefix_keys', logs.output[0])


class TestPools(Backend):
    def test_each_pool_has_pages_of_its_own(self):
        b, swa = self.backend(), HostPool('layer_first')
        b.register_mem_host_pool_v2(swa, SGLANG.PoolName.SWA)
        names = keys(8)
        self.save(b, names)
        transfer = types.SimpleNamespace(name=SGLANG.PoolName.SWA, keys=names[6:], host_indices=tokens([1, 2]), hit_policy=SGLANG.PoolHitPolicy.TRAILING_PAGES)
        for page, name in zip((1, 2), names[6:]):
            swa.put(page, ('swa', name))
        self.assertEqual(b.batch_set_v2([transfer]), {SGLANG.PoolName.SWA: [True, True]})
        r = b.batch_exists_v2(names, [transfer])
        self.assertEqual((r.pages, r.restorable), (8, [8]))
        r = b.batch_exists_v2(names[:7], [transfer])
        self.assertEqual((r.pages, r.restorable), (0, []))
        swa.wipe()
        self.assertEqual(b.batch_get_v2([transfer]), {SGLANG.PoolName.SWA: [True, True]})
        self.assertTrue(swa.holds(1, ('swa', names[6])) and swa.holds(2, ('swa', names[7])))
        every = types.SimpleNamespace(name=SGLANG.PoolName.SWA, keys=None, hit_policy=SGLANG.PoolHitPolicy.ALL_PAGES)
        self.assertEqual(b.batch_exists_v2(names, [every]).pages, 0)

    def test_ranks_have_shares_of_their_own_and_latent_pages_are_one(self):
        for latent in (False, True):
            with self.subTest(latent=latent):
                path = os.path.join(self.dir, str(latent))
                first = self.backend(path=path, ranks=2, latent=latent, retry_s=0.05)
                second = self.backend(path=path, rank=1, ranks=2, latent=latent, retry_s=0.05)
                names = keys(6)
                self.save(first, names)
                self.assertEqual(second.batch_exists(names), 6 if latent else 0)
                self.assertEqual(self.load(second, names, range(6)), 6 if latent else 0)

    def test_another_model_finds_nothing(self):
        b, names = self.backend(), keys(5)
        self.save(b, names)
        other = TenutoStorage(config({'store': self.dir}, model_name='org/other'), {})
        self.addCleanup(other.close)
        other.register_mem_pool_host(HostPool())
        self.assertEqual(other.batch_exists(names), 0)


    def test_another_configuration_finds_nothing(self):
        b, names = self.backend(), keys(5)
        self.save(b, names)

        def found(pool=None, **set):
            def leaf(name):
                if name not in set:
                    raise ValueError(f'{name!r} is not a config leaf')
                return set[name]

            context = types.ModuleType('sglang.srt.runtime_context')
            context.get_context = lambda: types.SimpleNamespace(config_leaf=leaf)
            with unittest.mock.patch.dict(sys.modules, {context.__name__: context}):
                other = TenutoStorage(config({'store': self.dir}), {})
            self.addCleanup(other.close)
            other.register_mem_pool_host(pool or HostPool())
            return other.batch_exists(names)

        self.assertEqual(found(), 5)
        for name in MEANS:
            self.assertEqual(found(**{name: 'other'}), 0, name)
        on_device = HostPool()
        on_device.device_pool = types.SimpleNamespace(dtype='torch.float8_e4m3fn')
        self.assertEqual(found(on_device), 0)


class TestEnds(Backend):
    def test_pages_are_there_after_a_restart(self):
        b, names = self.backend(), keys(12)
        self.save(b, names)
        b.close()
        b = self.backend()
        self.assertEqual(self.load(b, names, range(12)), 12)

    def test_an_owner_that_is_killed_means_misses_until_it_is_back(self):
        code = 'import sys, tenuto\nc = tenuto.Cache(sys.argv[1], disk_bytes=32 << 20)\nc.serve(sys.argv[2])\nprint(flush=True)\nsys.stdin.read()'
        socket, names = os.path.join(self.dir, 'socket'), keys(4)

        def own():
            p = subprocess.Popen([sys.executable, '-P', '-c', code, self.dir, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.addCleanup(p.wait)
            self.addCleanup(p.kill)
            self.addCleanup(p.stdin.close)
            self.addCleanup(p.stdout.close)
            p.stdout.readline()
            return p

        def until(found):
            end = time.monotonic() + 60
            while b.batch_exists(names) != found:
                self.assertLess(time.monotonic(), end)
                time.sleep(0.01)

        owner = own()
        b = self.backend(socket=socket, retry_s=0.05)
        self.save(b, names)
        b.store.cache.flush()
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        until(0)
        self.assertEqual(self.load(b, names, range(4)), 0)
        self.assertEqual(b.batch_set_v1(names, tokens(range(4)), None), [False] * 4)
        own()
        until(4)
        self.assertEqual(self.load(b, names, range(4)), 4)

    def test_clear_drops_what_the_model_has(self):
        b, names = self.backend(), keys(4)
        self.save(b, names)
        b.clear()
        self.assertEqual(b.batch_exists(names), 0)

    def test_options_are_checked(self):
        for options, says in (({'disk': 1}, 'no such option: disk'), ({'path': self.dir, 'socket': 'y'}, 'exactly one'), ({'load_timeout_s': 'soon'}, 'soon')):
            with self.subTest(options), self.assertRaisesRegex(ValueError, says):
                self.backend(**{'path': self.dir, **options})


class TestCalls(unittest.TestCase):
    def test_every_method_takes_what_sglang_gives(self):
        for name, arguments in CALLS['methods'].items():
            if name not in ('get_stats', 'on_host_pools_registered'):
                self.assertIn(name, vars(TenutoStorage))
                self.assertEqual(list(inspect.signature(getattr(TenutoStorage, name)).parameters)[1:], arguments, name)
        inherited = {'get_stats', 'on_host_pools_registered', 'describe_l3_object_layout'}
        self.assertLessEqual(set(CALLS['called']) - inherited, set(dir(TenutoStorage)))

    def test_sglang_calls_nothing_else(self):
        if INSTALLED is None:
            raise unittest.SkipTest('SGLang is not installed here')
        self.assertEqual(INSTALLED, CALLS)
        self.assertIn('interface_v1', SGLANGS)
        self.assertLessEqual(set(MEANS), CONFIGURATION)


if __name__ == '__main__':
    case.main(__name__)
