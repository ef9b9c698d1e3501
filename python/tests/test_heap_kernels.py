# SPDX-License-Identifier: Apache-2.0
"""tenuto.heap.kernels: under Triton's interpreter on the heap of several processes, and compiled for a GPU that is not here."""
import errno
import importlib.util
import os
import subprocess
import sys
import time
import unittest
from unittest import mock

import case

import tenuto
from tenuto import heap

setUpModule = case.own_heap_directory
MISSING = [m for m in ('torch', 'triton') if importlib.util.find_spec(m) is None]
if not MISSING:
    import torch

# Rank 1: each kernel into the heap of rank 0.
PRODUCER = '''
import torch
from tenuto.heap import NanoKVCache, kernels, replicas
with NanoKVCache(1 << 20, page_bytes=4096) as cache:
    values = (torch.arange(2 * 40 * 16) % 251).float().view(40, 2, 16).transpose(0, 1)     # rows that do not follow each other
    plan = cache.open_for_write('written', values.numel() * 2 + 6, preferred_segment=0)
    kernels.write(cache, plan, values, dtype=torch.bfloat16)
    kernels.write(cache, plan, torch.tensor([1, 2, 3], dtype=torch.int16), offset=values.numel() * 2)
    kernels.commit(cache, 'written')
    some = torch.arange(5001, dtype=torch.uint8)
    plan = cache.open_for_write('copied', 5001, preferred_segment=1, flags=replicas(2))
    assert len(plan.places) == 2
    kernels.copy(cache, plan, some)
    kernels.commit(cache, 'copied')
    for key in 'abc':
        cache.put(key, bytes(8192), preferred_segment=0)
    for key in 'abc':
        cache.remove(key)
    assert kernels.put(cache, 'put', torch.arange(1000, dtype=torch.int64), preferred_segment=0)
    assert kernels.put(cache, 'put', torch.zeros(1000, dtype=torch.int64), preferred_segment=0)    # the second one of the key
    assert not kernels.put(cache, 'too large', torch.zeros(1 << 16, dtype=torch.uint8), preferred_segment=0)
    into = torch.zeros(600, dtype=torch.int64)
    assert kernels.read(cache, 'of 0', into) == 4800
    assert torch.equal(into, torch.arange(600))
'''

# Rank 1: into the heap of rank 0 without the master, while rank 0 does the same.
RIVAL = '''
import torch
from tenuto.heap import NanoKVCache, kernels
with NanoKVCache(1 << 20, page_bytes=4096) as cache:
    cache.put('ready', b'1', preferred_segment=1)
    for i in range(100):
        assert kernels.put(cache, f'1 {i}', torch.full((512,), 1000 + i), preferred_segment=0), i
'''

# Rank 1, which may write into its own heap alone.
LIMITED = '''
import torch
import tenuto
from tenuto.heap import NanoKVCache, kernels
with NanoKVCache(1 << 20, token={token}) as cache:
    try:
        kernels.put(cache, 'not allowed', torch.arange(10), preferred_segment=0)
        raise AssertionError('it was let write')
    except tenuto.Denied:
        pass
    cache.put('own', bytes(4096), preferred_segment=1)
    cache.remove('own')
    assert kernels.put(cache, 'allowed', torch.arange(10), preferred_segment=1)
'''

# Compiled without a GPU; prints the PTX of all kernels.
COMPILED = '''
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tenuto.heap import kernels as k
TYPES = {'values': '*fp32', 'source': '*i64', 'into': '*i64', 'name': '*i64', 'heap_bases': '*i64', 'result': '*i32', 'invalid': '*i32', 'rank': 'i32',
         'query': '*bf16', 'out': '*fp32', 'weight': '*fp32', 'scale': 'fp32', 'dst_rank': 'i32', 'owner': 'i32', 'size_class': 'i32', 'n_pages': 'i32'}
for kernel in (k.write_kernel, k.copy_kernel, k.commit_kernel, k.read_kernel, k.attend_kernel, k.put_kernel):
    constants = {n: {'TYPE': triton.language.bfloat16, 'BLOCK': 1024, 'GROUP': 4, 'WIDTH': 64, 'ROWS': 32}[n] for n in kernel.arg_names if n.isupper()}
    signature = {n: 'constexpr' if n in constants else TYPES.get(n, 'i64') for n in kernel.arg_names}
    done = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget('cuda', 90, 32))
    print('KERNEL', kernel.fn.__name__)
    print(done.asm['ptx'])
'''


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install torch triton')
class Kernels(unittest.TestCase):
    @property
    def kernels(self):
        from tenuto.heap import kernels
        return kernels

    def env(self, rank, size=2):
        return {'RANK': str(rank), 'WORLD_SIZE': str(size), 'MASTER_PORT': str(os.getpid()), 'TORCHELASTIC_RUN_ID': self.id(), 'TRITON_INTERPRET': '1'}

    def python(self, code, rank, size=2):
        child = subprocess.Popen([sys.executable, '-P', '-c', code], env={**os.environ, **self.env(rank, size)})
        self.addCleanup(child.kill)
        return child

    def cache(self, size=2, **options):
        heap.NanoKVCache._made = 0
        with mock.patch.dict(os.environ, self.env(0, size)):
            cache = heap.NanoKVCache(1 << 20, page_bytes=4096, **options)
        self.addCleanup(cache.close)
        return cache

    def wait_for(self, what):
        deadline = time.monotonic() + 200
        while time.monotonic() < deadline:
            try:
                return what()
            except (tenuto.NotFound, tenuto.Again):
                time.sleep(.01)
        raise AssertionError('it does not come')

    def test_what_kernels_of_one_process_write_another_reads(self):
        cache = self.cache()
        cache.put('of 0', torch.arange(600), preferred_segment=0)
        child = self.python(PRODUCER, 1)
        written = self.wait_for(lambda: cache.get('written'))
        values = (torch.arange(2 * 40 * 16) % 251).float().view(40, 2, 16).transpose(0, 1).to(torch.bfloat16)
        self.assertTrue(torch.equal(written[:-6].view(torch.bfloat16).view(2, 40, 16), values))
        self.assertEqual(written[-6:].view(torch.int16).tolist(), [1, 2, 3])
        copied = self.wait_for(lambda: cache.get('copied'))
        self.assertTrue(torch.equal(copied, torch.arange(5001, dtype=torch.uint8)))
        self.assertEqual(child.wait(200), 0)
        self.assertEqual((cache.get_location('copied').owner_rank, cache.stats(1)['ready_count']), (0, 1))
        put = self.wait_for(lambda: cache.get('put'))
        self.assertTrue(torch.equal(put.view(torch.int64), torch.arange(1000)))
        deadline = time.monotonic() + 20
        while cache.stats()['ready_count'] != 4 and time.monotonic() < deadline:
            time.sleep(.01)
        self.assertEqual(cache.stats()['ready_count'], 4)  # the second object of a key went
        self.assertTrue(torch.equal(cache.get('put').view(torch.int64), torch.arange(1000)))
        self.assertEqual(cache.stats()['ann_ring_depth'], 0)

    def test_a_kernel_does_not_put_where_the_token_does_not_let_it_write(self):
        cache = self.cache(need_tokens=True)
        cache.put('some', bytes(4096), preferred_segment=0)
        cache.remove('some')  # a free extent
        child = self.python(LIMITED.format(token=cache.make_token(1, read=[0, 1], write=[1])), 1)
        self.assertEqual(child.wait(200), 0)
        self.wait_for(lambda: cache.get('allowed'))

    def test_kernels_of_two_processes_never_claim_the_same_extent(self):
        cache = self.cache()
        for i in range(200):  # free extents
            cache.put(f'{i}', bytes(4096), preferred_segment=0)
        self.assertEqual(cache.evict_until_below(0), 200)
        child = self.python(RIVAL, 1)
        self.wait_for(lambda: cache.get_location('ready'))
        for i in range(100):
            self.assertTrue(self.kernels.put(cache, f'0 {i}', torch.full((512,), i), preferred_segment=0))
        self.assertEqual(child.wait(200), 0)
        for rank in range(2):
            for i in range(100):
                found = self.wait_for(lambda: cache.get(f'{rank} {i}'))
                self.assertEqual(set(found.view(torch.int64).tolist()), {1000 * rank + i})
        self.assertEqual((cache.stats()['ready_count'], cache.stats()['heap_used']), (200, 200 * 4096))

    @unittest.skipIf(importlib.util.find_spec('iris') is None, 'iris missing: pip install tokenspeed-iris')
    def test_functions_of_iris_work_on_the_same_heap_bases(self):
        cache = self.cache()
        cache.put('of 0', torch.arange(600), preferred_segment=0)
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'heap_iris.py')
        child = subprocess.Popen([sys.executable, script], env={**os.environ, **self.env(1)})
        self.addCleanup(child.kill)
        self.assertTrue(torch.equal(self.wait_for(lambda: cache.get('doubled')).view(torch.int64), torch.arange(0, 1200, 2)))
        self.assertEqual(child.wait(200), 0)

    def test_attention_to_an_object_in_place_is_that_to_its_copy(self):
        cache = self.cache(1)
        generator = torch.Generator().manual_seed(case.SEED)
        for length, kind in ((1, torch.float32), (32, torch.float32), (77, torch.bfloat16)):
            kv = torch.randn(2, 3, length, 16, generator=generator).to(kind)
            cache.put(f'kv {length}', kv)
            query = torch.randn(3, 2, 16, generator=generator)
            with cache.hold(f'kv {length}'):
                meta = cache.get_location(f'kv {length}')
                got, weight = self.kernels.attend(cache, meta, query, keys=0, values=kv.nbytes // 2, length=length, scale=.25, dtype=kind)
            scores = query @ kv[0].float().mT * .25
            torch.testing.assert_close(got, scores.softmax(-1) @ kv[1].float(), rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(weight, scores.logsumexp(-1), rtol=1e-5, atol=1e-5)
        self.assertRaisesRegex(ValueError, 'the object has', self.kernels.attend, cache, meta, query, keys=0, values=kv.nbytes // 2 + 2, length=77, scale=1, dtype=kind)
        self.assertRaisesRegex(ValueError, 'powers of two', self.kernels.attend, cache, meta, query[:, :, :15], keys=0, values=0, length=1, scale=1)
        self.assertEqual(cache.stats()['bytes_rx'], 0)

    def test_what_is_wrong_is_refused(self):
        cache = self.cache(1)
        values = torch.zeros(4, 8)
        plan = cache.open_for_write('a', values.nbytes)
        self.assertRaisesRegex(ValueError, '128 bytes at offset 4', self.kernels.write, cache, plan, values, offset=4)
        self.assertRaisesRegex(ValueError, 'stride 1', self.kernels.write, cache, plan, values.t())
        self.assertRaisesRegex(ValueError, 'contiguous', self.kernels.copy, cache, plan, values.t())
        self.assertRaisesRegex(ValueError, 'rank 1', self.kernels.put, cache, 'b', values, preferred_segment=1)
        cache.abandon('a')
        cache._plans[b'a'] = plan
        with self.assertRaises(tenuto.Error) as caught:
            self.kernels.commit(cache, 'a')
        self.assertEqual(caught.exception.errno, errno.ESTALE)
        self.assertRaises(tenuto.NotFound, cache.get, 'a')
        self.assertRaises(tenuto.InvalidValue, cache.open_for_write, 'twice', 8, flags=heap.replicas(2))
        cache.put('long', bytes(100))
        self.assertRaisesRegex(ValueError, '100 bytes, the tensor 8', self.kernels.read, cache, 'long', torch.zeros(8, dtype=torch.uint8))
        self.assertEqual(cache.stats()['leases'], 0)

    def test_kernels_compile_for_a_gpu_with_the_orders_that_the_heap_needs(self):
        done = subprocess.run([sys.executable, '-P', '-c', COMPILED], capture_output=True, text=True, timeout=120,
                              env={k: v for k, v in os.environ.items() if k != 'TRITON_INTERPRET'})
        self.assertEqual(done.returncode, 0, done.stderr)
        ptx = dict(part.split('\n', 1) for part in done.stdout.split('KERNEL ')[1:])
        self.assertIn('atom.global.release.sys.cas.b64', ptx['commit_kernel'])
        self.assertIn('ld.global.cg', ptx['copy_kernel'])
        self.assertIn('st.global.cg', ptx['copy_kernel'])
        self.assertIn('atom.global.sys.acq_rel.add.u64', ptx['read_kernel'])
        self.assertIn('atom.global.acq_rel.sys.cas.b64', ptx['put_kernel'])
        self.assertNotIn('relaxed', ptx['commit_kernel'])
        self.assertNotIn('exch.b64', ptx['commit_kernel'])  # READY is never an exchange


if __name__ == '__main__':
    os.environ['TRITON_INTERPRET'] = '1'  # before triton is imported
    case.main(__name__)
