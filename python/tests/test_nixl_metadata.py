# SPDX-License-Identifier: Apache-2.0
"""How agents of the module nixl find each other: pushed to a listener, fetched from it, and in a TCPStore. test_etcd.py has etcd."""
import importlib.util
import os
import sys
import time
import unittest
from unittest import mock

os.environ['TORCH_CPP_LOG_LEVEL'] = 'FATAL'  # of a store that is not there
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'nixl'))
from nixl import _bindings as bind
from nixl import _metadata
from nixl._api import nixl_agent, nixl_agent_config

from case import Case, content, main
from s3_servers import free_ports
from tenuto import xfer

SIZE, HOST = 65536, '127.0.0.1'
SECRET = 'sixteen bytes and more'


class Agents(Case):
    def environment(self, **values):
        patch = mock.patch.dict(os.environ, values)
        patch.start()
        self.addCleanup(patch.stop)

    def agent(self, name, port=0):
        agent = nixl_agent(name, nixl_agent_config(enable_listen_thread=port > 0, listen_port=port))
        self.addCleanup(agent.agent._agent.close)
        return agent

    def memory(self, agent, seed, size=SIZE):
        kv = bytearray(content(seed, size))
        self.addCleanup(len, kv)  # held: NIXL's calls know an address alone
        (address, _, _), = xfer.sections_of(kv)
        return kv, agent.register_memory([(address, size, 0, '')], 'DRAM')

    def until(self, condition, seconds=10):
        end = time.monotonic() + seconds
        while not condition():
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)

    def read(self, agent, kv, mine, peer, theirs, whole):
        handle = agent.initialize_xfer('READ', mine.trim(), theirs, peer, b'read')
        state = agent.transfer(handle)
        while state == 'PROC':
            state = agent.check_xfer_state(handle)
        self.assertEqual(kv, whole)
        handle.release()


class ListenerTest(Agents):
    def test_two_agents_meet_at_one_listener(self):
        self.environment(TENUTO_XFER_SECRET=SECRET)
        port, = free_ports(1)
        target, initiator = self.agent('target', port), self.agent('initiator')
        (kv, mine), (there, theirs) = self.memory(initiator, 'a'), self.memory(target, 'b')
        initiator.fetch_remote_metadata('target', HOST, port)
        initiator.send_local_metadata(HOST, port)
        self.until(lambda: target.check_remote_metadata('initiator'))
        target.send_notif('initiator', target.get_serialized_descs(theirs.trim()))
        found = {}
        self.until(lambda: found.update(initiator.get_new_notifs()) or found)
        self.until(lambda: initiator.check_remote_metadata('target'))
        self.read(initiator, kv, mine, 'target', initiator.deserialize_descs(found['target'][0]), there)
        self.until(lambda: target.check_remote_xfer_done('initiator', b'read'))
        self.assertEqual(target.notifs, {'initiator': []})
        initiator.invalidate_local_metadata(HOST, port)
        self.until(lambda: not target.check_remote_metadata('initiator'))

    def test_metadata_of_several_notifications_and_of_some_sections(self):
        self.environment(TENUTO_XFER_SECRET=SECRET)
        port, = free_ports(1)
        target, initiator = self.agent('target', port), self.agent('initiator')
        kv = bytearray(10000 * 16)
        (address, _, _), = xfer.sections_of(kv)
        rows = [(address + i * 16, 8, 0, '') for i in range(10000)]
        descs = initiator.register_memory(rows, 'DRAM')
        few = initiator.get_reg_descs(rows[:3], 'DRAM')
        initiator.send_partial_agent_metadata(few, ip_addr=HOST, port=port)
        self.until(lambda: target.check_remote_metadata('initiator', few.trim()))
        self.assertFalse(target.check_remote_metadata('initiator', descs.trim()))
        self.assertGreater(len(initiator.get_agent_metadata()), 2 * _metadata.PUSH_BYTES)
        initiator.send_local_metadata(HOST, port)
        self.until(lambda: target.check_remote_metadata('initiator', descs.trim()))

    def test_who_lacks_the_secret_is_refused(self):
        port, = free_ports(1)
        with mock.patch.dict(os.environ, TENUTO_XFER_SECRET=SECRET):
            self.agent('target', port)
        other = self.agent('other')
        for call in (other.send_local_metadata, other.invalidate_local_metadata):
            self.assertRaises(bind.nixlNotSupportedError, call, HOST, port)
        self.assertRaises(bind.nixlNotSupportedError, other.fetch_remote_metadata, 'target', HOST, port)
        self.environment(TENUTO_XFER_SECRET=SECRET[::-1])
        self.assertRaises(bind.nixlNotAllowedError, self.agent('wrong').send_local_metadata, HOST, port)
        self.assertRaises(bind.nixlRemoteDisconnectError, self.agent('lost').send_local_metadata, HOST, free_ports(1)[0])

    def test_an_agent_that_has_ended_has_nothing_to_forget(self):
        self.environment(TENUTO_XFER_SECRET=SECRET)
        port, = free_ports(1)
        agent = self.agent('one')
        agent.invalidate_local_metadata(HOST, port)
        with self.assertRaises(bind.nixlRemoteDisconnectError):
            agent.send_local_metadata(HOST, port)

    def test_who_does_not_listen_takes_no_push(self):
        agent = self.agent('one')
        push = _metadata.PUSH + b'L' + agent.get_agent_metadata()
        agent.send_notif('one', push)
        self.assertEqual(agent.get_new_notifs(), {'one': [push]})

    def test_half_a_push_of_a_sender_that_is_gone_is_dropped(self):
        self.environment(TENUTO_XFER_SECRET=SECRET)
        port, = free_ports(1)
        target, gone, initiator = self.agent('target', port), self.agent('gone'), self.agent('initiator')
        for agent in (gone, initiator):
            agent.add_remote_agent(target.get_agent_metadata())
        gone.send_notif('target', _metadata.PUSH + b'M' + bytes(1000))
        parts = target.agent._pushes._parts
        self.until(lambda: target.get_new_notifs() == {} and 'gone' in parts)
        with mock.patch.object(_metadata, 'PUSH_S', 0.0):
            initiator.send_local_metadata(HOST, port)
            self.until(lambda: target.check_remote_metadata('initiator'))
        self.assertEqual(parts, {})

    def test_a_push_that_is_broken_loads_nothing(self):
        self.environment(TENUTO_XFER_SECRET=SECRET)
        port, = free_ports(1)
        target, initiator = self.agent('target', port), self.agent('initiator')
        initiator.add_remote_agent(target.get_agent_metadata())
        metadata = initiator.get_agent_metadata()
        for broken in (b'L' + metadata[:-1], b'L', b'', b'F', b'M' + metadata, b'L' + metadata):
            initiator.send_notif('target', _metadata.PUSH + broken)
        initiator.send_notif('target', b'end')
        found = {}
        with self.assertLogs('nixl', 'ERROR'):
            self.until(lambda: found.update(target.get_new_notifs()) or found)
        self.assertEqual(found, {'initiator': [b'end']})
        self.assertFalse(target.check_remote_metadata('initiator'))


@unittest.skipIf(importlib.util.find_spec('torch') is None, 'torch is missing')
class TcpStoreTest(Agents):
    @classmethod
    def setUpClass(cls):
        from torch.distributed import TCPStore
        cls.store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)

    def setUp(self):
        super().setUp()
        self.environment(NIXL_TCPSTORE_ENDPOINT=f'{HOST}:{self.store.port}')

    def test_agents_find_each_other(self):
        one, two = self.agent('store-1'), self.agent('store-2')
        (kv, mine), (there, theirs) = self.memory(one, 'a'), self.memory(two, 'b')
        one.fetch_remote_metadata('store-2')  # waits until it is there
        time.sleep(0.1)
        self.assertFalse(one.check_remote_metadata('store-2'))
        two.send_local_metadata()
        self.assertTrue(self.store.check(['nixl/agents/metadata/store-2/NULL_AGENT']))
        self.until(lambda: one.check_remote_metadata('store-2', theirs.trim()))
        self.read(one, kv, mine, 'store-2', theirs.trim(), there)
        two.invalidate_local_metadata()
        self.assertFalse(self.store.check(['nixl/agents/metadata/store-2/NULL_AGENT']))

    def test_some_sections_under_a_label(self):
        one, two = self.agent('label-1'), self.agent('label-2')
        (_, first), (_, second) = self.memory(two, 'a'), self.memory(two, 'b')
        self.assertRaises(bind.nixlInvalidParamError, two.send_partial_agent_metadata, first)
        two.send_partial_agent_metadata(first, label='first')
        one.fetch_remote_metadata('label-2', label='first')
        self.until(lambda: one.check_remote_metadata('label-2', first.trim()))
        self.assertFalse(one.check_remote_metadata('label-2', second.trim()))

    def test_a_store_that_is_not_there(self):
        self.environment(NIXL_TCPSTORE_ENDPOINT=f'{HOST}:{free_ports(1)[0]}', NIXL_TCPSTORE_TIMEOUT_MS='500')
        agent = self.agent('alone')
        self.assertRaises(bind.nixlBackendError, agent.send_local_metadata)
        with self.assertLogs('nixl', 'ERROR') as told:
            agent.fetch_remote_metadata('nobody')
            self.until(lambda: told.output)

    def test_an_entry_that_never_comes_is_told(self):
        self.environment(NIXL_TCPSTORE_TIMEOUT_MS='300')
        agent = self.agent('waits')
        with self.assertLogs('nixl', 'ERROR') as told:
            agent.fetch_remote_metadata('nobody')
            self.until(lambda: told.output)
        self.assertIn('nixl/agents/metadata/nobody/NULL_AGENT', told.output[0])
        self.assertFalse(agent.check_remote_metadata('nobody'))

    def test_bad_values_are_named(self):
        for bad in ('', 'host', ':1', 'host:', 'host:0', 'host:70000', 'host:1x'):
            with mock.patch.dict(os.environ, NIXL_TCPSTORE_ENDPOINT=bad):
                if bad:
                    self.assertRaisesRegex(RuntimeError, 'HOST:PORT', nixl_agent, 'bad')
                else:
                    self.assertRaises(bind.nixlInvalidParamError, self.agent('none').send_local_metadata)
        with mock.patch.dict(os.environ, NIXL_ETCD_ENDPOINTS='http://127.0.0.1:1'):
            self.assertRaisesRegex(RuntimeError, 'mutually exclusive', nixl_agent, 'both')


if __name__ == '__main__':
    main(__name__)
