# SPDX-License-Identifier: Apache-2.0
"""tenuto.heap between processes that have their ranks as torchrun gives them."""
import errno
import os
import pickle
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import case

import tenuto
from tenuto import heap

setUpModule = case.own_heap_directory

PREFILL = '''
from tenuto.heap import NanoKVCache
import sys
with NanoKVCache(1 << 20, page_bytes=4096) as cache:
    cache.put('a', bytes(range(256)) * 40, preferred_segment=0)
    plan = cache.open_for_write('b', 5000, preferred_segment=0)
    assert plan.n_pages == 2 and plan.dst_rank == 0, plan
    view = memoryview(cache.payload(plan))
    view[:] = b'x' * 5000
    view.release()
    cache.commit('b')
    sys.stdin.read()
    assert cache.stats()['bytes_tx'] == 256 * 40
'''

READER = '''
import errno
import tenuto
from tenuto import xfer
from tenuto.heap import NanoKVCache, remote
def refused(call, *args, **more):
    try:
        call(*args, **more)
    except tenuto.Error as error:
        assert error.errno in (errno.EACCES, errno.EPERM), error
        return True
assert refused(NanoKVCache, 1 << 20)
with NanoKVCache(1 << 20, token={token}) as cache:
    assert bytes(cache.get('a')) == b'1' * 100
    assert refused(cache.remove, 'a')
    assert refused(cache.put, 'b', b'2', preferred_segment=0)
    cache.put('b', b'2', preferred_segment=1)
    assert refused(cache.get, 'b')
    assert refused(cache.make_token, 0, read=[0], write=[0])
    assert [cache.may_write(rank) for rank in (0, 1)] == [False, True]
    with xfer.Agent('owner') as agent:
        owner = remote.Owner(cache, agent)
        assert [section[:2] for section in owner._sections] == [cache.payload_of(1)]
        owner.close()
'''

DISTRIBUTED = '''
import sys
import torch.distributed as dist
from tenuto.heap import NanoKVCache
dist.init_process_group('gloo', init_method=f'file://{sys.argv[1]}/store', rank=int(sys.argv[2]), world_size=2)
with NanoKVCache(1 << 20) as cache:
    cache.put(f'of {cache.rank}', b'x', preferred_segment=1 - cache.rank)
    dist.barrier()
    assert cache.get(f'of {1 - cache.rank}').tolist() == [ord('x')]
    dist.barrier()
dist.destroy_process_group()
'''


def alone():
    return mock.patch.dict(os.environ, {'RANK': '0', 'WORLD_SIZE': '1'})


class Heap(unittest.TestCase):
    def run_two(self):
        env = {'WORLD_SIZE': '2', 'MASTER_PORT': str(os.getpid()), 'TORCHELASTIC_RUN_ID': f'test-{heap.NanoKVCache._made}'}
        made = {**os.environ, **env, 'RANK': '1'}
        code = f'from tenuto.heap import NanoKVCache\nNanoKVCache._made = {heap.NanoKVCache._made}\n{PREFILL}'
        child = subprocess.Popen([sys.executable, '-P', '-c', code], env=made, stdin=subprocess.PIPE, text=True)
        self.addCleanup(child.wait)
        self.addCleanup(child.stdin.close)
        with mock.patch.dict(os.environ, {**env, 'RANK': '0'}):
            cache = heap.NanoKVCache(1 << 20, page_bytes=4096)
        self.addCleanup(cache.close)
        return cache, child

    def wait_for(self, cache, key):
        for _ in range(10000):
            try:
                return cache.get_location(key)
            except (tenuto.NotFound, tenuto.Again):
                time.sleep(.002)
        raise AssertionError(f'{key} does not come')

    def test_one_process_writes_and_another_reads_in_place(self):
        cache, child = self.run_two()
        meta = self.wait_for(cache, 'b')
        self.assertEqual((meta.owner_rank, meta.bytes_total, meta.n_pages), (0, 5000, 2))
        with cache.hold('b') as view:
            self.assertEqual(bytes(view), b'x' * 5000)
            self.assertTrue(view.readonly)
            cache.remove('b')
            self.assertEqual(bytes(view), b'x' * 5000)
            self.assertEqual(cache.stats()['leases'], 1)
        self.assertEqual(bytes(cache.get('a')), bytes(range(256)) * 40)
        into = bytearray(10240)
        self.assertIs(cache.get('a', dst=into), into)
        self.assertEqual(into, bytes(range(256)) * 40)
        self.assertEqual(cache.device_ptr(0, 0), cache.heap_bases[0])
        child.stdin.close()
        self.assertEqual(child.wait(200), 0)
        self.assertEqual(cache.stats(1)['bytes_tx'], 10240)
        self.assertEqual(cache.stats()['bytes_rx'], 20480)

    def test_the_example_hands_kv_over_in_place(self):
        example = os.path.join(os.path.dirname(__file__), '../../examples/heap.py')
        env = {name: value for name, value in os.environ.items() if name not in ('RANK', 'WORLD_SIZE')}
        run = subprocess.run([sys.executable, example], env=env, capture_output=True, text=True, timeout=60)
        self.assertEqual((run.stdout, run.returncode), ('4 of 4 layers are right, in place\n', 0), run.stderr)

    def test_misuse_raises_what_it_is(self):
        with alone(), heap.NanoKVCache(1 << 20) as cache:
            self.assertEqual((cache.rank, cache.world_size), (0, 1))
            cache.put('a', b'1' * 100)
            self.assertRaises(tenuto.NotFound, cache.get, 'b')
            self.assertRaises(tenuto.InvalidValue, cache.commit, 'b')
            self.assertRaises(tenuto.InvalidValue, cache.put, '', b'1')
            self.assertRaises(tenuto.InvalidValue, cache.put, 'c', b'1', preferred_segment=1)
            self.assertRaises(ValueError, cache.device_ptr, 1, 0)
            self.assertRaises(ValueError, cache.put, 'c', tenuto.View(pointer=4096, shape=(8,), device=0, owner=self))
            with self.assertRaises(tenuto.Error) as caught:
                cache.put('a', b'2')
            self.assertEqual(caught.exception.errno, errno.EEXIST)
            plan = cache.open_for_write('d', 10)
            self.assertRaises(tenuto.Again, cache.get, 'd')
            payload = cache.payload(plan)
            self.assertRaises(tenuto.Busy, cache.close)
            del payload
            cache.abandon('d')
            self.assertEqual(cache.evict_until_below(0), 1)
            self.assertEqual(cache.stats()['evictions'], 1)
            child = os.fork()
            if child == 0:
                try:
                    cache.get('a')
                except tenuto.Forked:
                    os._exit(3)
                os._exit(1)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 3)
        self.assertRaises(tenuto.Closed, cache.get, 'a')

    def test_replicas_lie_at_two_ranks(self):
        cache, child = self.run_two()
        self.wait_for(cache, 'b')
        cache.put('twice', b'7' * 5000, preferred_segment=1, flags=heap.replicas(2) | heap.PIN)
        self.assertEqual(cache.get_location('twice').owner_rank, 0)  # the nearest one
        plan = cache.open_for_write('planned', 5000, preferred_segment=1, flags=heap.replicas(2))
        self.assertEqual([place.dst_rank for place in plan.places], [1, 0])
        with memoryview(cache.payload(plan)) as view:
            view[:] = b'8' * 5000
        cache.commit('planned')
        self.assertEqual([cache.stats(rank)['ready_count'] for rank in (0, 1)], [4, 2])
        with cache.hold('planned') as view:
            self.assertEqual(bytes(view), b'8' * 5000)
        self.assertEqual(cache.evict_until_below(0), 4)
        self.assertEqual(bytes(cache.get('twice')), b'7' * 5000)
        cache.remove('twice')
        self.assertEqual([cache.stats(rank)['ready_count'] for rank in (0, 1)], [0, 0])
        self.assertEqual((cache.stats()['pages'], cache.stats()['bytes_tx']), (6, 10000))
        self.assertRaises(ValueError, heap.replicas, 4)
        child.stdin.close()
        self.assertEqual(child.wait(200), 0)

    def test_a_rank_has_the_rights_of_its_token(self):
        env = {'WORLD_SIZE': '2', 'MASTER_PORT': str(os.getpid()), 'TORCHELASTIC_RUN_ID': 'tokens'}
        heap.NanoKVCache._made = 0
        with mock.patch.dict(os.environ, {**env, 'RANK': '0'}):
            cache = heap.NanoKVCache(1 << 20, page_bytes=4096, need_tokens=True)
        self.addCleanup(cache.close)
        cache.put('a', b'1' * 100, preferred_segment=0)
        token = cache.make_token(1, read=[0], write=[1])
        code = READER.format(token=token)
        child = subprocess.run([sys.executable, '-P', '-c', code], env={**os.environ, **env, 'RANK': '1'}, timeout=200)
        self.assertEqual(child.returncode, 0)
        self.assertRaises(tenuto.InvalidValue, cache.make_token, 2, read=[], write=[])

    def test_a_hold_that_arrays_outlive_ends_its_lease(self):
        with alone(), heap.NanoKVCache(1 << 20) as cache:
            cache.put('a', b'1' * 100)
            with self.assertRaises(BufferError):
                with cache.hold('a') as view:
                    outlives = pickle.PickleBuffer(view)
            self.assertEqual(cache.stats()['leases'], 0)
            outlives.release()
            view.release()

    def test_an_object_replaced_between_the_look_and_the_copy_has_its_own_length(self):
        with alone(), heap.NanoKVCache(1 << 20) as cache:
            cache.put('short', b'1' * 100)
            cache.put('long', b'2' * 200)
            short, long = cache.get_location('short'), cache.get_location('long')
            with mock.patch.object(cache, 'get_location', side_effect=[long]):
                self.assertEqual(bytes(cache.get('short')), b'1' * 100)
            with mock.patch.object(cache, 'get_location', side_effect=[short, long]):
                self.assertEqual(bytes(cache.get('long')), b'2' * 200)

    def test_ranks_without_torchrun_have_a_heap_in_common(self):
        try:
            import torch.distributed  # noqa: F401
        except ImportError:
            self.skipTest('torch is not installed')
        with tempfile.TemporaryDirectory() as directory:
            env = {k: v for k, v in os.environ.items() if k not in ('RANK', 'WORLD_SIZE', 'MASTER_PORT', 'TORCHELASTIC_RUN_ID')}
            ranks = [subprocess.Popen([sys.executable, '-P', '-c', DISTRIBUTED, directory, str(rank)], env=env) for rank in range(2)]
            for rank in ranks:
                self.addCleanup(rank.kill)
            self.assertEqual([rank.wait(200) for rank in ranks], [0, 0])

    def test_ranks_that_have_no_name_in_common_are_told(self):
        with mock.patch.dict(os.environ, {'RANK': '0', 'WORLD_SIZE': '2'}):
            for name in ('MASTER_PORT', 'TORCHELASTIC_RUN_ID'):
                os.environ.pop(name, None)
            with self.assertRaisesRegex(tenuto.InvalidValue, 'torchrun'):
                heap.NanoKVCache(1 << 20)

    def test_the_names_of_two_runs_differ(self):
        names = set()
        for run, port in (('a' * 60, '1'), ('a' * 60, '2'), ('b' + 'a' * 59, '1'), ('', '1')):
            with mock.patch.dict(os.environ, {'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_PORT': port, 'TORCHELASTIC_RUN_ID': run}):
                names.add(heap._ranks()[2])
        self.assertEqual(len(names), 4)

    def test_tensors_of_torch_go_in_and_come_out(self):
        try:
            import torch
        except ImportError:
            self.skipTest('torch is not installed')
        kv = torch.arange(3000, dtype=torch.float32).view(3, 1000)
        with alone(), heap.NanoKVCache(1 << 20) as cache:
            cache.put('kv', kv.to(torch.bfloat16))
            self.assertRaises(ValueError, cache.put, 'other', kv.t())
            out = cache.get('kv')
            self.assertTrue(torch.equal(out.view(torch.bfloat16).view(3, 1000), kv.to(torch.bfloat16)))
            dst = torch.empty(3, 1000, dtype=torch.bfloat16)
            self.assertTrue(torch.equal(cache.get('kv', dst=dst), kv.to(torch.bfloat16)))
            plan = cache.open_for_write('place', kv.nbytes)
            torch.frombuffer(cache.payload(plan), dtype=torch.float32).copy_(kv.flatten())
            cache.commit('place')
            self.assertTrue(torch.equal(cache.get('place').view(torch.float32), kv.flatten()))
            self.assertEqual(cache.heap_bases_tensor.tolist(), cache.heap_bases)


if __name__ == '__main__':
    case.main(__name__)
