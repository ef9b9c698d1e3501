# SPDX-License-Identifier: Apache-2.0
"""What NIXL's tests check and what its users miss, on the module nixl: each behaviour once."""
import collections
import contextlib
import mmap
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
import unittest
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'nixl'))
import nixl._agent
from nixl import _bindings as bind
from nixl import _telemetry, _utils
from nixl._api import nixl_agent, nixl_agent_config, nixl_thread_sync_t

import tenuto
from case import Case, content, main
from tenuto import xfer

BLOCK, COUNT = 4096, 16
SIZE = BLOCK * COUNT

# Another agent with a buffer; does what each line says.
PEER = '''
import sys
from nixl._api import nixl_agent, nixl_agent_config
from tenuto import xfer
agent = nixl_agent(sys.argv[1], nixl_agent_config())
kv = bytearray(b'%%c' %% int(sys.argv[2]) * %d)
(address, size, _), = xfer.sections_of(kv)
descs = agent.register_memory([(address, size, 0, '')], 'DRAM')
print(agent.get_agent_metadata().hex(), address, flush=True)
for line in sys.stdin:
    print(eval(line), flush=True)
''' % SIZE


# Reads from a peer, once as it runs and once as it is stopped; a process of its own, because UCX reads its variables once.
READER = '''
import os, signal, sys
from nixl import _bindings as bind
from nixl._api import nixl_agent, nixl_agent_config
from tenuto import xfer
metadata, address, pid, size = bytes.fromhex(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), %d
agent = nixl_agent('reader', nixl_agent_config())
kv = bytearray(size)
(here, _, _), = xfer.sections_of(kv)
agent.register_memory([(here, size, 0, '')], 'DRAM')
agent.add_remote_agent(metadata)
handle = agent.initialize_xfer('READ', agent.get_xfer_descs([(here, size, 0)], 'DRAM'), agent.get_xfer_descs([(address, size, 0)], 'DRAM'), 'peer')

def read():
    state = agent.transfer(handle)
    while state != 'DONE':
        state = agent.check_xfer_state(handle)
    return kv == bytes([7]) * size

print(handle.request().status().backend, read(), flush=True)
kv[:] = bytes(size)
os.kill(pid, signal.SIGSTOP)
while open(f'/proc/{pid}/stat').read().rsplit(')', 1)[1].split()[0] != 'T':
    pass
try:
    print(read())
except bind.nixlBackendError as error:
    print('deadline' if 'timed out' in str(error) else error)
while not handle.released:
    try:
        handle.release()
    except bind.nixlRepostActiveError:
        pass
before = bytes(kv)
os.kill(pid, signal.SIGCONT)
agent.check_remote_metadata('peer')
print(kv == before)
''' % SIZE


@contextlib.contextmanager
def environment(**values):
    """These variables; None: without it."""
    with mock.patch.dict(os.environ):
        for name, value in values.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        yield


class BehavioursTest(Case):
    def agent(self, name='one', spec=None, **config):
        """spec: of Tenuto's backend that is UCX to this agent."""
        if spec is None:
            agent = nixl_agent(name, nixl_agent_config(**config))
        else:
            with mock.patch.object(nixl._agent, 'open_backend', lambda a, _type, _params: a.backend_add(spec) or [spec.split(',')[0]]):
                agent = nixl_agent(name, nixl_agent_config(**config))
        self.addCleanup(agent.agent._agent.close)
        return agent

    def memory(self, agent, size=SIZE, seed='kv'):
        kv = bytearray(content(seed, size))
        self.addCleanup(len, kv)  # held: NIXL's calls know an address alone
        (address, _, _), = xfer.sections_of(kv)
        agent.register_memory([(address, size, 0, '')], 'DRAM')
        return kv, address

    def loop(self, agent, size=SIZE, **more):
        """A request that writes one buffer of an agent to another one, and these."""
        here, a = self.memory(agent, size, 'here')
        there, b = self.memory(agent, size, 'there')
        handle = agent.initialize_xfer('WRITE', agent.get_xfer_descs([(a, size, 0)], 'DRAM'), agent.get_xfer_descs([(b, size, 0)], 'DRAM'), agent.name, **more)
        return handle, here, there

    def done(self, agent, handle):
        end = time.monotonic() + 20
        state = agent.transfer(handle)
        while state == 'PROC':
            self.assertLess(time.monotonic(), end)
            state = agent.check_xfer_state(handle)
        self.assertEqual(state, 'DONE')

    def raises(self, status, call, *args, **more):
        with self.assertRaises(bind.EXCEPTIONS[status]) as caught:
            call(*args, **more)
        self.assertTrue(str(caught.exception).startswith(f'NIXL_ERR_{status}'), caught.exception)
        return str(caught.exception)

    def ended(self, status, agent, handle):
        """Polls until the request raises."""
        end = time.monotonic() + 20
        with self.assertRaises(bind.EXCEPTIONS[status]):
            while time.monotonic() < end:
                agent.check_xfer_state(handle)

    def peer(self, name='peer', byte=7):
        child = subprocess.Popen([sys.executable, '-P', '-c', PEER, name, str(byte)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                 env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        for clean in (child.stdout.close, child.wait, child.kill, child.stdin.close):
            self.addCleanup(clean)
        metadata, address = child.stdout.readline().split()
        return child, bytes.fromhex(metadata), int(address)

    def ask(self, child, expression):
        child.stdin.write(expression + '\n')
        child.stdin.flush()
        return child.stdout.readline().strip()

    # ---- plugins and backends

    def test_plugins_that_are_there_and_that_are_not(self):
        agent = self.agent(backends=[])
        self.assertLessEqual({'UCX', 'POSIX'}, set(agent.get_plugin_list()))
        for missing in ('GPUNETIO', 'LIBFABRIC', 'GDS_MT', 'Mooncake', 'UVX'):
            self.assertNotIn(missing, agent.get_plugin_list())
            self.assertEqual((agent.get_plugin_mem_types(missing), agent.get_plugin_params(missing)), ([], {}))
            self.assertEqual((agent.get_backend_mem_types(missing), agent.get_backend_params(missing)), ([], {}))
            self.raises('NOT_FOUND', agent.create_backend, missing)
        self.assertEqual(agent.get_plugin_mem_types('POSIX'), ['DRAM_SEG', 'FILE_SEG'])
        self.assertIn('use_uring', agent.get_plugin_params('POSIX'))

    def test_a_config_that_names_a_missing_backend_goes_on_without(self):
        agent = self.agent(backends=['GDS_MT', 'POSIX'])
        self.assertEqual(list(agent.backends), ['POSIX'])

    def test_all_are_instantiated_only_without_a_config(self):
        with environment(AWS_DEFAULT_BUCKET='bucket', AWS_ACCESS_KEY_ID='a', AWS_SECRET_ACCESS_KEY='b', AWS_REGION='r'):
            agent = nixl_agent('all', instantiate_all=True)
        self.addCleanup(agent.agent._agent.close)
        self.assertEqual(sorted(agent.backends), sorted(agent.plugin_list))
        self.assertEqual(list(nixl_agent('few', nixl_agent_config(backends=['POSIX']), instantiate_all=True).backends), ['POSIX'])

    def test_a_backend_is_made_once(self):
        agent = self.agent(backends=['POSIX'])
        self.raises('INVALID_PARAM', agent.create_backend, 'POSIX')
        self.assertEqual(list(agent.backends), ['POSIX'])

    def test_parameters_of_a_backend_are_those_it_was_made_with(self):
        agent = self.agent(backends=[])
        agent.create_backend('POSIX', {'use_posix_aio': 'true'})
        self.assertEqual(agent.get_backend_params('POSIX')['use_posix_aio'], 'true')
        self.assertEqual(agent.get_plugin_params('POSIX')['use_posix_aio'], 'false')
        self.raises('INVALID_PARAM', agent.agent.getBackendParams, 7)

    def test_a_name_is_wanted(self):
        self.assertRaises(ValueError, nixl_agent, '')

    def test_thread_modes_go_to_the_agent(self):
        modes = []
        made = bind.nixlAgent

        def spy(name, config):
            modes.append(config.syncMode)
            return made(name, config)

        with mock.patch.object(bind, 'nixlAgent', spy):
            for listen in (False, True):
                nixl_agent('mode', nixl_agent_config(enable_listen_thread=listen, listen_port=0))
            nixl_agent('mode', nixl_agent_config(sync_mode=nixl_thread_sync_t.NIXL_THREAD_SYNC_RW))
        self.assertEqual(modes, [bind.NIXL_THREAD_SYNC_NONE, bind.NIXL_THREAD_SYNC_STRICT, bind.NIXL_THREAD_SYNC_RW])
        self.assertRaises(TypeError, nixl_agent_config, sync_mode=1)

    # ---- memory

    def test_registered_and_given_back_repeatedly(self):
        agent = self.agent()
        kv, a = self.memory(agent)
        for _ in range(50):
            agent.deregister_memory(agent.get_reg_descs([(a, SIZE, 0, '')], 'DRAM'))
            agent.register_memory([(a, SIZE, 0, '')], 'DRAM')
        agent.register_memory([(a, SIZE, 0, '')], 'DRAM')  # twice: counted
        descs = agent.get_reg_descs([(a, SIZE, 0, '')], 'DRAM')
        agent.deregister_memory(descs)
        agent.prep_xfer_dlist('', [(a, 1, 0)], 'DRAM').release()
        agent.deregister_memory(descs)
        self.raises('NOT_FOUND', agent.deregister_memory, descs)
        self.raises('NOT_FOUND', agent.prep_xfer_dlist, '', [(a, 1, 0)], 'DRAM')

    def test_no_list_is_no_registration(self):
        self.raises('INVALID_PARAM', self.agent().register_memory, [(1, 2, 3)], 'DRAM')

    def test_query_of_files_that_exist_mixed_and_none(self):
        agent = self.agent(backends=['POSIX'])
        paths = [os.path.join(self.dir, name) for name in ('a', 'b', 'c')]
        for path in paths[::2]:
            with open(path, 'wb') as f:
                f.write(b'x' * 100)
        self.assertEqual(agent.query_memory(agent.get_reg_descs([], 'FILE'), 'POSIX'), [])
        found = agent.query_memory([(0, 0, 0, path) for path in paths] + [(0, 0, 0, 'ro:' + paths[0])], 'POSIX', 'FILE')
        self.assertIsNone(found[1])
        for one, path in ((found[0], paths[0]), (found[2], paths[2]), (found[3], paths[0])):
            stat = os.stat(path)
            self.assertEqual(one, {'size': '100', 'mode': str(stat.st_mode), 'mtime': str(int(stat.st_mtime))})
        self.assertRaises(ValueError, agent.query_memory, [(0, 0, 0, paths[0])], 'UCX', 'FILE')

    def test_files_by_descriptor_and_by_path(self):
        agent = self.agent(backends=['POSIX'])
        kv, a = self.memory(agent)
        path = os.path.join(self.dir, 'file')
        for bad in ('ro:' + path, 'rw:' + path, 'rw,direct:' + path):
            self.raises('BACKEND', agent.register_memory, [(0, SIZE, 3, bad)], 'FILE')
        self.raises('NOT_SUPPORTED', agent.register_memory, [(0, SIZE, 3, 'rw,create,sync:' + path)], 'FILE')
        self.assertFalse(os.path.exists(path))
        with self.assertRaises(bind.nixlBackendError):
            agent.register_memory([(0, SIZE, 999, 'any text')], 'FILE')
        # What LMCache does: a descriptor for writing alone, whose meta is any text, then one for reading alone.
        for flags, operation in ((os.O_WRONLY | os.O_CREAT, 'WRITE'), (os.O_RDONLY, 'READ')):
            fd = os.open(path, flags)
            descs = agent.register_memory([(0, SIZE, fd, 'text')], 'FILE')
            handle = agent.initialize_xfer(operation, agent.get_xfer_descs([(a, SIZE, 0)], 'DRAM'), descs.trim(), 'one')
            self.done(agent, handle)
            handle.release()
            agent.deregister_memory(descs)
            os.close(fd)
            self.assertEqual(kv, content('kv', SIZE))
            kv[:] = bytes(SIZE) if operation == 'WRITE' else kv
        self.assertFalse(os.path.exists('text'))
        fd = os.open(path, os.O_WRONLY)
        self.addCleanup(os.close, fd)
        descs = agent.register_memory([(0, SIZE, fd, '')], 'FILE')
        handle = agent.initialize_xfer('READ', agent.get_xfer_descs([(a, SIZE, 0)], 'DRAM'), descs.trim(), 'one')
        with self.assertRaises(bind.nixlBackendError):
            self.done(agent, handle)
        handle.release()

    # ---- lists

    def test_lists_from_tuples_and_arrays_and_what_is_none(self):
        agent = self.agent(backends=[])
        xfers, regs = bind.nixlXferDList(bind.DRAM_SEG), bind.nixlRegDList(bind.DRAM_SEG)
        for call, other, good, bad in ((agent.get_xfer_descs, regs, (1, 2, 3), (1, 2, 3, 4)), (agent.get_reg_descs, xfers, (1, 2, 3, 'm'), (1, 2, 3))):
            self.assertIsNone(call([bad], 'DRAM'))
            self.assertIsNone(call([good]))
            self.assertIsNone(call(other))
            self.assertRaises(KeyError, call, [good], 'V-RAM')
            self.assertEqual(call([good], 'cpu').getType(), bind.DRAM_SEG)
            self.assertEqual(call([good], 'DRAM').descCount(), 1)
        self.assertRaises(TypeError, bind.nixlXferDList, bind.DRAM_SEG, [5])
        self.assertRaises(ValueError, bind.nixlXferDList, bind.DRAM_SEG, [(1, 2)])

    def test_a_list_is_changed_compared_and_pickled(self):
        descs = [(1000, 105, 0), (2000, 30, 0), (1010, 20, 0)]
        made = bind.nixlXferDList(bind.DRAM_SEG, descs)
        self.assertEqual(pickle.loads(pickle.dumps(made)), made)
        self.assertEqual((made.descCount(), made.getType(), made.index(descs[1])), (3, bind.DRAM_SEG, 1))
        with self.assertRaises(bind.nixlNotFoundError):
            made.index((1, 2, 3))
        made.remDesc(1)
        self.assertEqual(list(made), [descs[0], descs[2]])
        made[0] = (1, 2, 3)
        made.addDesc((4, 5, 6))
        made.append((7, 8, 9))
        self.assertEqual((made[0], made.descCount()), ((1, 2, 3), 4))
        self.assertNotEqual(made, bind.nixlXferDList(bind.VRAM_SEG, list(made)))
        made.clear()
        self.assertTrue(made.isEmpty())
        self.assertTrue(bind.nixlXferDList(bind.DRAM_SEG, 5).isEmpty())

    def test_bytes_that_are_no_list(self):
        agent = self.agent(backends=[])
        packed = agent.get_serialized_descs(agent.get_xfer_descs([(4096, 64, 0)], 'DRAM'))
        for bad in (b'', b'X', b'R\0{', packed[:-1], packed[:5] + bytes([packed[5] ^ 1]) + packed[6:], pickle.dumps([1]), b'R\xff[]'):
            self.raises('MISMATCH', agent.deserialize_descs, bad)

    def test_112000_descriptors(self):
        agent = self.agent()
        kv, a = self.memory(agent, 1 << 20)
        there, b = self.memory(agent, 1 << 20, 'there')
        rows = [(a + i * 8, 8, 0) for i in range(112000)]
        self.assertLess(len(agent.get_serialized_descs(agent.get_xfer_descs(rows, 'DRAM'))), 65536)
        local, remote = agent.prep_xfer_dlist('', rows, 'DRAM'), agent.prep_xfer_dlist('one', [(b + i * 8, 8, 0) for i in range(112000)], 'DRAM')
        handle = agent.make_prepped_xfer('WRITE', local, range(112000), remote, range(112000))
        self.done(agent, handle)
        self.assertEqual(kv[:896000], there[:896000])
        for made in (handle, local, remote):
            made.release()

    def test_strided_lists(self):
        try:
            import numpy
        except ImportError:
            self.skipTest('numpy is missing')
        agent = self.agent()
        kv, a = self.memory(agent)
        there, b = self.memory(agent, seed='there')
        sides = [agent.prep_xfer_dlist(name, numpy.array([[at, 64, 0, BLOCK, COUNT]]), 'DRAM') for name, at in (('NIXL_INIT_AGENT', a), ('one', b))]
        handle = agent.make_prepped_xfer('READ', sides[0], numpy.array([1, 3], numpy.int32), sides[1], numpy.array([2, 3], numpy.int32))
        self.done(agent, handle)
        self.assertEqual((kv[BLOCK:BLOCK + 64], kv[3 * BLOCK:3 * BLOCK + 64]), (there[2 * BLOCK:2 * BLOCK + 64], there[3 * BLOCK:3 * BLOCK + 64]))
        self.assertRaises(ValueError, agent.prep_xfer_dlist, '', numpy.array([[a, 64, 0, BLOCK, COUNT]]))
        self.assertEqual(agent.get_xfer_descs(numpy.array([[1, 2, 3]]), 'DRAM')[0], (1, 2, 3))
        self.assertEqual(agent.get_reg_descs(numpy.array([[1, 2, 3]]), 'DRAM')[0], (1, 2, 3, b''))
        self.assertIsNone(agent.get_xfer_descs(numpy.array([[1, 2, 3, 4]]), 'DRAM'))
        for made in (handle, *sides):
            made.release()

    def test_operations_are_read_and_write(self):
        agent, empty = self.agent(backends=[]), bind.nixlXferDList(bind.DRAM_SEG)
        self.assertRaises(KeyError, agent.initialize_xfer, 'WR', empty, empty, 'nobody')
        self.assertRaises(KeyError, agent.make_prepped_xfer, 'RD', None, [], None, [])

    # ---- transfers

    def test_a_request_is_posted_again(self):
        agent = self.agent()
        handle, here, there = self.loop(agent, notif_msg=b'first')
        for i in range(20):
            here[i] ^= 0xff
            self.done(agent, handle)
            self.assertEqual(here, there)
        self.assertEqual(agent.get_new_notifs(), {'one': [b'first'] * 20})
        handle.release()

    def test_no_bytes_of_a_file_and_of_memory(self):
        agent = self.agent(backends=['UCX', 'POSIX'])
        kv, a = self.memory(agent)
        path = os.path.join(self.dir, 'file')
        agent.register_memory([(0, SIZE, 3, 'rw,create:' + path)], 'FILE')
        for kind, device, at in (('DRAM', 0, a), ('FILE', 3, 0)):
            handle = agent.initialize_xfer('WRITE', agent.get_xfer_descs([(a, 0, 0)], 'DRAM'), agent.get_xfer_descs([(at, 0, device)], kind), 'one', b'nothing')
            self.done(agent, handle)
            handle.release()
        self.assertEqual(agent.get_new_notifs(), {'one': [b'nothing'] * 2})

    def test_a_short_read_is_an_error(self):
        agent = self.agent(backends=['POSIX'])
        kv, a = self.memory(agent)
        path = os.path.join(self.dir, 'short')
        with open(path, 'wb') as f:
            f.write(bytes(SIZE - 1))
        agent.register_memory([(0, SIZE, 3, 'rw,create:' + path)], 'FILE')
        handle = agent.initialize_xfer('READ', agent.get_xfer_descs([(a, SIZE, 0)], 'DRAM'), agent.get_xfer_descs([(0, SIZE, 3)], 'FILE'), 'one')
        with self.assertRaises(bind.nixlBackendError):
            agent.transfer(handle)
            while True:
                agent.check_xfer_state(handle)
        with open(path, 'ab') as f:  # good ones go on to be good
            f.write(b'x')
        self.done(agent, handle)
        self.assertEqual(kv, bytes(SIZE - 1) + b'x')
        handle.release()

    def test_the_deadline_that_nixl_does_not_have(self):
        agent = self.agent(spec='faulty,over=memory,drop=100')
        handle, _, _ = self.loop(agent)
        with environment(TENUTO_XFER_TIMEOUT_S='0.05'):
            self.assertEqual(agent.transfer(handle), 'PROC')
        self.ended('BACKEND', agent, handle)
        handle.release()
        handle, _, _ = self.loop(agent)
        with environment(TENUTO_XFER_TIMEOUT_S='0'):
            self.assertEqual(agent.transfer(handle), 'PROC')
        time.sleep(0.2)
        self.assertEqual(agent.check_xfer_state(handle), 'PROC')
        handle.release()
        for bad in ('soon', '-1', 'nan'):
            with environment(TENUTO_XFER_TIMEOUT_S=bad):
                handle, _, _ = self.loop(agent)
                self.assertIn(bad, self.raises('INVALID_PARAM', agent.transfer, handle))
                handle.release()

    def test_threads_that_take_notifications_at_once_get_each_once_and_in_order(self):
        agent, taken, errors, ended = self.agent(), [[] for _ in range(4)], [], threading.Event()

        class Slow(collections.deque):
            def popleft(self):
                time.sleep(.001)  # another thread may come between the look and this
                return super().popleft()

        def take(into):
            try:
                while not ended.is_set():
                    into += (int(note) for notes in agent.get_new_notifs().values() for note in notes)
            except Exception as error:
                errors.append(error)

        agent.agent._waiting = Slow()
        threads = [threading.Thread(target=take, args=(into,)) for into in taken]
        for thread in threads:
            thread.start()
        for number in range(100):
            agent.send_notif('one', b'%d' % number)
        end = time.monotonic() + 20
        while sum(map(len, taken)) < 100 and not errors and time.monotonic() < end:
            time.sleep(.01)
        ended.set()
        for thread in threads:
            thread.join()
        self.assertEqual(errors, [])
        self.assertEqual(sorted(number for into in taken for number in into), list(range(100)))
        for into in taken:
            self.assertEqual(into, sorted(into))

    def test_without_the_variable_the_deadline_is_two_minutes(self):
        with environment(TENUTO_XFER_TIMEOUT_S=None):
            self.assertEqual(nixl._agent._timeout(), 120.0)

    def test_a_request_in_flight_is_not_posted_again_and_is_ended_by_its_release(self):
        agent = self.agent(spec='faulty,over=memory,drop=100')
        handle, _, there = self.loop(agent)
        before = bytes(there)
        self.assertEqual(agent.transfer(handle), 'PROC')
        self.raises('REPOST_ACTIVE', agent.transfer, handle)
        agent.release_xfer_handle(handle)
        self.assertTrue(handle.released)
        self.assertEqual(there, before)
        for call in (agent.check_xfer_state, agent.transfer, agent.query_xfer_backend):
            self.raises('INVALID_PARAM', call, handle)
        handle.release()

    def test_a_release_that_cannot_end_it_says_so(self):
        agent = self.agent(spec='faulty,over=memory,linger_us=500000')
        handle, _, _ = self.loop(agent)
        self.assertEqual(agent.transfer(handle), 'PROC')
        with mock.patch.object(nixl._agent, 'ABORT_S', 0.02):
            self.raises('REPOST_ACTIVE', handle.release)
        self.assertFalse(handle.released)
        end = time.monotonic() + 20
        while not handle.released:
            self.assertLess(time.monotonic(), end)
            with contextlib.suppress(bind.nixlRepostActiveError):
                handle.release()

    def test_telemetry(self):
        for enable, asked, there in ((None, False, False), (None, True, True), ('y', False, True), ('no', True, False)):
            with self.subTest(enable=enable, asked=asked), environment(NIXL_TELEMETRY_ENABLE=enable):
                agent = self.agent(capture_telemetry=asked)
                handle, _, _ = self.loop(agent)
                before = time.time_ns() // 1000
                self.done(agent, handle)
                if there:
                    found = agent.get_xfer_telemetry(handle)
                    self.assertEqual((found.totalBytes, found.descCount), (SIZE, 1))
                    self.assertGreaterEqual(found.startTime, before)
                    self.assertGreater(found.postDuration, 0)
                    self.assertGreaterEqual(found.xferDuration, found.postDuration)
                else:
                    self.raises('NO_TELEMETRY', agent.get_xfer_telemetry, handle)
                self.assertEqual(agent.estimate_xfer_cost(handle)[1:], (0, 'ANALYTICAL_BACKEND'))
                handle.release()

    def events(self, name):
        """What a reader of NIXL's finds in an agent's file, and takes out."""
        with open(os.path.join(self.dir, name), 'r+b') as f, mmap.mmap(f.fileno(), 0) as ring:
            written, read, version, again, places, mask = _telemetry.HEADER.unpack_from(ring)
            self.assertEqual((version, again, mask, len(ring)), (4, 4, places - 1, 40 + 16 * places))
            found = []
            while read != written:
                number, value = struct.unpack_from('=I4xQ', ring, 40 + 16 * read)
                found.append((_telemetry.NAMES[number], value))
                read = (read + 1) & mask
            struct.pack_into('=Q', ring, 8, read)
            return found

    def test_telemetry_events_in_the_file_that_nixls_readers_map(self):
        with environment(NIXL_TELEMETRY_ENABLE='y', NIXL_TELEMETRY_DIR=self.dir, NIXL_TELEMETRY_BUFFER_SIZE='16'):
            agent = self.agent('told')
            handle, _, _ = self.loop(agent)
            self.assertEqual(self.events('told'), [('agent_memory_registered', SIZE)] * 2)
            self.done(agent, handle)
            agent.check_xfer_state(handle)
            telemetry = agent.get_xfer_telemetry(handle)
            self.assertEqual(self.events('told'), [('agent_xfer_post_time', telemetry.postDuration), ('agent_xfer_time', telemetry.xferDuration),
                                                   ('agent_tx_bytes', SIZE), ('agent_tx_requests_num', 1)])
            self.raises('NOT_FOUND', agent.initialize_xfer, 'READ', agent.get_xfer_descs([(4096, 1, 0)], 'DRAM'), agent.get_xfer_descs([(4096, 1, 0)], 'DRAM'), 'told')
            self.assertEqual(self.events('told'), [('agent_err_not_found', 1)])
            for _ in range(20):  # three times 4 events find a place: those that are lost are counted
                self.done(agent, handle)
            found = self.events('told')
            self.done(agent, handle)
            found += self.events('told')
            self.assertIn('agent_telemetry_events_dropped', dict(found))
            self.assertEqual(sum(value if name == 'agent_telemetry_events_dropped' else 1 for name, value in found), 84)
            self.assertEqual(self.events('told'), [])
            handle.release()

    def test_a_request_that_fails_is_one_event(self):
        with environment(NIXL_TELEMETRY_ENABLE='y', NIXL_TELEMETRY_DIR=self.dir, TENUTO_XFER_TIMEOUT_S='0.02'):
            agent = self.agent('fails', spec='faulty,over=memory,drop=100')
            handle, _, _ = self.loop(agent)
            agent.transfer(handle)
            for _ in range(3):
                self.ended('BACKEND', agent, handle)
            self.assertEqual(self.events('fails')[2:], [('agent_err_backend', 1)])
            handle.release()

    def test_bad_settings_of_telemetry_are_named(self):
        for name, text in (('NIXL_TELEMETRY_BUFFER_SIZE', '100'), ('NIXL_TELEMETRY_BUFFER_SIZE', 'x'), ('NIXL_TELEMETRY_ENABLE', 'perhaps')):
            with environment(**{'NIXL_TELEMETRY_ENABLE': 'y', 'NIXL_TELEMETRY_DIR': self.dir, name: text}):
                self.assertRaisesRegex(RuntimeError, text, nixl_agent, 'x')

    # ---- notifications

    def test_notifications_alone_empty_to_oneself_and_as_text(self):
        agent, other = self.agent(), self.agent('other')
        other.add_remote_agent(agent.get_agent_metadata())
        agent.send_notif('one', b'')
        agent.send_notif(b'one', 'text')
        self.assertEqual(agent.get_new_notifs(), {'one': [b'', b'text']})
        self.assertEqual(agent.get_new_notifs(), {})
        for message in (b'alpha', b'n\0', b''):
            other.send_notif('one', message, 'UCX')
        end = time.monotonic() + 10
        while len(agent.update_notifs().get('other', [])) < 3:
            self.assertLess(time.monotonic(), end)
        self.assertTrue(agent.check_remote_xfer_done(b'other', b'lph', tag_is_prefix=False))
        self.assertFalse(agent.check_remote_xfer_done('other', b'lph'))
        self.assertTrue(agent.check_remote_xfer_done('other', b''))
        self.assertEqual(agent.notifs, {'other': [b'']})
        self.raises('NOT_FOUND', agent.send_notif, 'nobody', b'')
        self.assertRaises(KeyError, agent.send_notif, 'other', b'', 'GDS')

    # ---- metadata and peers

    def test_metadata_that_is_cut_changed_partial_and_of_oneself(self):
        agent, other = self.agent(), self.agent('other')
        _, a = self.memory(other)
        _, b = self.memory(other, seed='second')
        whole = other.get_agent_metadata()
        for bad in (b'', whole[:-1], whole[:30] + bytes([whole[30] ^ 1]) + whole[31:]):
            self.raises('MISMATCH', agent.add_remote_agent, bad)
        self.assertFalse(agent.check_remote_metadata('other'))
        self.assertEqual(agent.add_remote_agent(other.get_partial_agent_metadata(other.get_reg_descs([(a, SIZE, 0, '')], 'DRAM'))), b'other')
        one, second = (agent.get_xfer_descs([(at, SIZE, 0)], 'DRAM') for at in (a, b))
        self.assertEqual((agent.check_remote_metadata('other', one), agent.check_remote_metadata(b'other', second)), (True, False))
        agent.add_remote_agent(whole)
        self.assertTrue(agent.check_remote_metadata('other', second))
        self.raises('INVALID_PARAM', other.add_remote_agent, whole)
        agent.remove_remote_agent(b'other')
        agent.remove_remote_agent('other')
        self.assertFalse(agent.check_remote_metadata('other'))
        self.raises('NOT_FOUND', agent.prep_xfer_dlist, 'other', one)

    def test_a_request_of_a_peer_that_was_removed(self):
        agent, other = self.agent(), self.agent('other')
        _, a = self.memory(agent)
        _, b = self.memory(other)
        agent.add_remote_agent(other.get_agent_metadata())
        handle = agent.initialize_xfer('READ', agent.get_xfer_descs([(a, SIZE, 0)], 'DRAM'), agent.get_xfer_descs([(b, SIZE, 0)], 'DRAM'), b'other')
        agent.remove_remote_agent('other')
        self.raises('NOT_FOUND', agent.transfer, handle)
        handle.release()

    def test_a_peer_dies_and_comes_back_under_its_name(self):
        agent = self.agent()
        kv, a = self.memory(agent)
        local = agent.get_xfer_descs([(a, SIZE, 0)], 'DRAM')
        handles = []
        for byte in (1, 2):
            child, metadata, address = self.peer(byte=byte)
            self.assertEqual(agent.add_remote_agent(metadata), b'peer')
            handle = agent.initialize_xfer('READ', local, agent.get_xfer_descs([(address, SIZE, 0)], 'DRAM'), 'peer', b'read')
            self.done(agent, handle)
            self.assertEqual(kv, bytes([byte]) * SIZE)
            handles.append(handle)
            if byte == 1:
                child.kill()
                child.wait()
                end = time.monotonic() + 10
                while agent.check_remote_metadata('peer'):
                    self.assertLess(time.monotonic(), end)
                self.raises('REMOTE_DISCONNECT', agent.transfer, handle)
        self.raises('NOT_FOUND', agent.transfer, handles[0])
        self.done(agent, handles[1])
        while (got := self.ask(child, 'agent.get_new_notifs()')) == '{}':
            pass
        self.assertIn("'one': [b'read'", got)
        for handle in handles:
            handle.release()

    def stopped_peer(self, **values):
        """(backend, whether the first read was right, what the second one said, whether no byte came late)."""
        with environment(TENUTO_XFER_TIMEOUT_S='1', **values):
            child, metadata, address = self.peer(byte=7)
            out = self.python(READER, metadata.hex(), str(address), str(child.pid), env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path)})
        return out.split()

    def test_a_peer_that_is_stopped(self):
        """Its memory is still read on one machine. UCX needs its help, and the deadline ends the request."""
        self.assertEqual(self.stopped_peer(UCX_TLS=None), ['memory', 'True', 'True', 'True'])
        try:
            xfer.Agent('probe', backends=['ucx'], listen='none').close()
        except tenuto.Error:
            return
        self.assertEqual(self.stopped_peer(UCX_TLS='tcp'), ['ucx', 'True', 'deadline', 'True'])

    # ---- threads and the calls by their C++ names

    def test_agents_of_several_threads(self):
        failed = []

        def work(i):
            try:
                agent = self.agent(f'thread-{i}', backends=['UCX', 'POSIX'])
                for _ in range(5):
                    handle, here, there = self.loop(agent)
                    self.done(agent, handle)
                    self.assertEqual(here, there)
                    handle.release()
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failed, [])

    def test_the_calls_of_nixlAgent(self):
        config = bind.nixlAgentConfig(False, False)
        config.captureTelemetry = True
        one, two = bind.nixlAgent('bound-1', config), bind.nixlAgent('bound-2', config)
        self.addCleanup(one._agent.close)
        self.addCleanup(two._agent.close)
        size = 256
        backends = [agent.createBackend('UCX', {}) for agent in (one, two)]
        addresses = [_utils.malloc_passthru(size) for _ in range(2)]
        for address in addresses:
            self.addCleanup(_utils.free_passthru, address)
        _utils.ba_buf(addresses[0], size)
        lists = [bind.nixlRegDList(bind.DRAM_SEG) for _ in range(2)]
        for agent, made, address, backend in zip((one, two), lists, addresses, backends):
            made.addDesc((address, size, 0, 'meta'))
            self.assertEqual(agent.registerMem(made, [backend]), bind.NIXL_SUCCESS)
        self.assertEqual(one.loadRemoteMD(two.getLocalMD()), b'bound-2')
        self.assertEqual(one.checkRemoteMD('bound-2', lists[1].trim()), bind.NIXL_SUCCESS)
        self.assertEqual(one.makeConnection('bound-2', []), bind.NIXL_SUCCESS)
        handle = one.createXferReq(bind.NIXL_WRITE, lists[0].trim(), lists[1].trim(), 'bound-2', 'n\0t', [backends[0]])
        status = one.postXferReq(handle)
        while status == bind.NIXL_IN_PROG:
            status = one.getXferStatus(handle)
        self.assertEqual((status, one.queryXferBackend(handle)), (bind.NIXL_SUCCESS, backends[0]))
        found, end = {}, time.monotonic() + 10
        while not found:
            self.assertLess(time.monotonic(), end)
            found = two.getNotifs(found)
        self.assertEqual(found, {'bound-1': [b'n\0t']})
        _utils.verify_transfer(*addresses, size)
        self.assertEqual(one.getXferTelemetry(handle).totalBytes, size)
        one.releaseXferReq(handle)
        sides = one.prepXferDlist(lists[0].trim()), one.prepXferDlist('bound-2', lists[1].trim())
        handle = one.makeXferReq(bind.NIXL_READ, sides[0], [0], sides[1], [0])
        one.releaseXferReq(handle)
        for side in sides:
            one.releasedDlistH(side)
        self.assertEqual(one.invalidateRemoteMD('bound-2'), bind.NIXL_SUCCESS)
        self.assertEqual(one.invalidateRemoteMD('bound-2'), bind.NIXL_ERR_NOT_FOUND)
        for agent, made in zip((one, two), lists):
            self.assertEqual(agent.deregisterMem(made), bind.NIXL_SUCCESS)
        with self.assertRaises(AssertionError):
            _utils.ba_buf(addresses[1], size // 2)
            _utils.ba_buf(addresses[0], size)
            import ctypes
            ctypes.memset(addresses[1], 1, 1)
            _utils.verify_transfer(*addresses, size)


if __name__ == '__main__':
    main(__name__)
