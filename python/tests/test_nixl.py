# SPDX-License-Identifier: Apache-2.0
"""The module nixl of python/nixl, as engines call NIXL's: two processes, prepared lists, notifications, strings, exceptions."""
import os
import subprocess
import sys
import time
import unittest
import unittest.mock

from nixl import _bindings as bind
from nixl._api import nixl_agent, nixl_agent_config
from nixl._bindings import nixlXferTelemetry

from case import Case, content, main
import tenuto
from tenuto import xfer

BLOCK, COUNT = 4096, 32
SIZE = BLOCK * COUNT

# A prefill engine: gives its metadata, waits for the notification that its blocks were read.
PREFILL = '''
import sys, time
from nixl._api import nixl_agent, nixl_agent_config
from tenuto import xfer
agent = nixl_agent('prefill', nixl_agent_config(backends=['UCX']))
kv = bytearray(bytes(range(256)) * %d)
(address, size, _), = xfer.sections_of(kv)
agent.register_memory(agent.get_reg_descs([(address, size, 0, '')], 'DRAM'))
print(agent.get_agent_metadata().hex(), address, flush=True)
until = time.monotonic() + 30
while time.monotonic() < until:
    for sender, messages in agent.get_new_notifs().items():
        print(sender, b' '.join(messages).decode(), flush=True)
        sys.stdin.readline()
        sys.exit()
    time.sleep(0.001)
''' % (SIZE // 256)


class NixlTest(Case):
    def agent(self, name='one', **config):
        agent = nixl_agent(name, nixl_agent_config(**config))
        self.addCleanup(agent.agent._agent.close)
        return agent

    def memory(self, agent, seed='kv'):
        kv = bytearray(content(seed, SIZE))
        self.addCleanup(len, kv)  # held: NIXL's calls know an address alone
        (address, size, _), = xfer.sections_of(kv)
        agent.register_memory([(address, size, 0, '')], 'DRAM')
        return kv, address

    def rows(self, address):
        return [(address + i * BLOCK, BLOCK, 0) for i in range(COUNT)]

    def raises(self, status, call, *args, **more):
        with self.assertRaises(bind.EXCEPTIONS[status]) as caught:
            call(*args, **more)
        self.assertTrue(str(caught.exception).startswith(f'NIXL_ERR_{status}'), caught.exception)

    def test_ucx_is_memory_and_the_plugin_where_it_is(self):
        """Both are named to the agent, memory first; either is UCX to who asks."""
        agent = self.agent()
        try:
            xfer.Agent('probe', backends=['ucx'], listen='none').close()
            ours = ['memory', 'ucx']
        except tenuto.Error:
            ours = ['memory']
        self.assertEqual(agent.agent._order([agent.backends['UCX']]), ours)
        self.assertEqual(agent.agent._order([]), ours)
        _, a = self.memory(agent)
        handle = agent.initialize_xfer('WRITE', agent.get_xfer_descs(self.rows(a), 'DRAM'), agent.get_xfer_descs(self.rows(a), 'DRAM'), 'one', b'',
                                       backends=['UCX'])
        self.assertEqual(agent.query_xfer_backend(handle), 'UCX')
        agent.release_xfer_handle(handle)

    def test_ucx_tls_without_shared_memory_leaves_memory_out(self):
        def backends(agent):
            return agent.agent._order([agent.backends['UCX']])

        has_ucx = 'ucx' in backends(self.agent())
        for tls, memory in (('tcp', False), ('tcp,self', False), ('^sm', False), ('^shm,rc', False), ('all', True), ('tcp,cma', True), ('^tcp', True)):
            with self.subTest(tls), unittest.mock.patch.dict(os.environ, UCX_TLS=tls):
                if memory or has_ucx:
                    self.assertEqual('memory' in backends(self.agent()), memory)
                else:
                    self.raises('NOT_FOUND', nixl_agent, 'two')

    def test_sglang_makes_an_agent_of_its_own_below(self):
        agent, config = self.agent(backends=[]), bind.nixlAgentConfig()
        config.useProgThread, config.syncMode = True, bind.NIXL_THREAD_SYNC_RW
        agent.agent = bind.nixlAgent('one', config)
        agent.plugin_list = agent.agent.getAvailPlugins()
        self.assertEqual(agent.plugin_list, agent.get_plugin_list())
        agent.create_backend('POSIX')
        path = os.path.join(self.dir, 'page')
        self.assertEqual(agent.query_memory([(0, 0, 0, path)], 'POSIX', 'FILE'), [None])

    def test_loopback(self):
        agent = self.agent(capture_telemetry=True)
        here, a = self.memory(agent, 'here')
        there, b = self.memory(agent, 'there')
        handle = agent.initialize_xfer('WRITE', agent.get_xfer_descs(self.rows(a), 'DRAM'), agent.get_xfer_descs(self.rows(b), 'DRAM'), 'one', b'hello')
        self.raises('NOT_POSTED', agent.check_xfer_state, handle)
        self.raises('NOT_POSTED', agent.get_xfer_telemetry, handle)
        state = agent.transfer(handle)
        while state == 'PROC':
            state = agent.check_xfer_state(handle)
        self.assertEqual((state, here), ('DONE', there))
        telemetry = agent.get_xfer_telemetry(handle)
        self.assertIsInstance(telemetry, nixlXferTelemetry)
        self.assertEqual((telemetry.totalBytes, telemetry.descCount), (SIZE, COUNT))
        self.assertEqual(agent.get_new_notifs(), {'one': [b'hello']})
        agent.transfer(handle, b'other')
        self.assertTrue(agent.check_remote_xfer_done('one', b'oth'))
        self.assertFalse(agent.check_remote_xfer_done('one', b'oth'))
        self.assertEqual(agent.query_xfer_backend(handle), 'UCX')
        self.assertEqual(handle.request().results(0, 2), [(0, BLOCK)] * 2)
        self.assertIn('memory: chosen', handle.request().explain())
        agent.release_xfer_handle(handle)
        handle.release()
        self.raises('INVALID_PARAM', agent.transfer, handle)

    def test_files(self):
        agent = self.agent(backends=['UCX', 'POSIX'])
        here, a = self.memory(agent)
        path = os.path.join(self.dir, 'kv')
        self.assertEqual(agent.query_memory([(0, 0, 0, path)], 'POSIX', 'FILE'), [None])
        registered = agent.register_memory([(0, SIZE, 5, 'rw,create:' + path)], 'FILE')
        handle = agent.initialize_xfer('WRITE', agent.get_xfer_descs(self.rows(a), 'DRAM'),
                                       agent.get_xfer_descs([(i * BLOCK, BLOCK, 5) for i in range(COUNT)], 'FILE'), 'one')
        agent.transfer(handle)
        while agent.check_xfer_state(handle) != 'DONE':
            pass
        self.assertEqual(agent.query_xfer_backend(handle), 'POSIX')
        handle.release()
        with open(path, 'rb') as f:
            self.assertEqual(f.read(), here)
        found, = agent.query_memory([(0, 0, 0, path)], 'POSIX', 'FILE')
        self.assertEqual((found['size'], found['mode']), (str(SIZE), str(os.stat(path).st_mode)))
        agent.deregister_memory(registered)

    def test_a_decode_engine_reads_from_a_prefill_engine(self):
        child = subprocess.Popen([sys.executable, '-P', '-c', PREFILL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.stdin.close)
        metadata, address = child.stdout.readline().split()
        agent = self.agent('decode')
        kv, a = self.memory(agent)
        name = agent.add_remote_agent(bytes.fromhex(metadata))
        self.assertEqual(name, b'prefill')
        self.assertTrue(agent.check_remote_metadata(name))
        self.assertFalse(agent.check_remote_metadata(name, agent.get_xfer_descs([(4096, 1, 0)], 'DRAM')))
        agent.make_connection(name)
        local = agent.prep_xfer_dlist('NIXL_INIT_AGENT', self.rows(a), 'DRAM')
        remote = agent.prep_xfer_dlist(name, self.rows(int(address)), 'DRAM')
        half = list(range(0, COUNT, 2))
        handle = agent.make_prepped_xfer('READ', local, half, remote, half, notif_msg=b'request-17:1')
        state = agent.transfer(handle)
        while state == 'PROC':
            state = agent.check_xfer_state(handle)
        self.assertEqual(child.stdout.readline().split(), ['decode', 'request-17:1'])
        wanted = bytes(range(256)) * (BLOCK // 256)
        for i in half:
            self.assertEqual(kv[i * BLOCK:(i + 1) * BLOCK], wanted)
        self.assertNotEqual(kv[BLOCK:2 * BLOCK], wanted)
        child.kill()
        child.wait()
        with self.assertRaises(bind.nixlRemoteDisconnectError):
            while True:
                agent.transfer(handle)
        end = time.monotonic() + 10
        while agent.check_remote_metadata(name):  # vLLM fetches metadata anew when it is gone
            self.assertLess(time.monotonic(), end)
        agent.remove_remote_agent(name)
        agent.remove_remote_agent('nobody')
        for made in (handle, local, remote):
            made.release()

    def test_what_is_wrong_raises_as_there(self):
        agent = self.agent()
        _, a = self.memory(agent)
        good, short = agent.get_xfer_descs([(a, 64, 0)], 'DRAM'), agent.get_xfer_descs([(a, 32, 0)], 'DRAM')
        bad = agent.get_xfer_descs([(4096, 64, 0)], 'DRAM')
        self.raises('NOT_FOUND', agent.initialize_xfer, 'WRITE', good, good, 'nobody')
        self.raises('NOT_FOUND', agent.initialize_xfer, 'WRITE', bad, good, 'one')
        self.raises('INVALID_PARAM', agent.initialize_xfer, 'WRITE', good, short, 'one')
        with self.assertRaises(KeyError):
            agent.initialize_xfer('MOVE', good, good, 'one')
        local, remote = agent.prep_xfer_dlist('', good), agent.prep_xfer_dlist('one', good)
        self.raises('INVALID_PARAM', agent.make_prepped_xfer, 'READ', local, [0, 0], remote, [0])
        self.raises('INVALID_PARAM', agent.make_prepped_xfer, 'READ', local, [1], remote, [0])
        self.raises('INVALID_PARAM', agent.make_prepped_xfer, 'READ', remote, [0], local, [0])
        local.release()
        remote.release()
        self.raises('MISMATCH', agent.add_remote_agent, b'what?')
        self.raises('INVALID_PARAM', agent.add_remote_agent, agent.get_agent_metadata())
        self.raises('NOT_FOUND', agent.send_notif, 'nobody', b'x')
        self.raises('INVALID_PARAM', agent.create_backend, 'UCX')
        self.raises('NOT_FOUND', agent.create_backend, 'GPUNETIO')
        self.raises('NOT_FOUND', agent.deregister_memory, agent.get_reg_descs([(4096, 64, 0, '')], 'DRAM'))
        self.raises('NOT_SUPPORTED', agent.register_memory, [(4096, 64, 0, '')], 'VRAM')
        self.raises('INVALID_PARAM', agent.send_local_metadata)
        self.raises('NOT_SUPPORTED', agent.send_local_metadata, '127.0.0.1')
        self.raises('NOT_SUPPORTED', agent.prep_mem_view, good)

    def test_lists_survive_as_bytes(self):
        agent = self.agent()
        for descs in (agent.get_xfer_descs(self.rows(4096), 'DRAM'), agent.get_reg_descs([(4096, 64, 3, 'name')], 'FILE')):
            self.assertEqual(agent.deserialize_descs(agent.get_serialized_descs(descs)), descs)
        self.assertIsNone(agent.get_xfer_descs([(1, 2)], 'DRAM'))
        self.assertEqual(agent.get_reg_descs([(4096, 64, 3, 'name')], 'FILE').trim()[0], (4096, 64, 3))


if __name__ == '__main__':
    main(__name__)
