# SPDX-License-Identifier: Apache-2.0
"""vLLM's connector with pages in memory of a device: the engine of vllm_engine.py, which computes by a stream of the device. Each copy of the device is late, and no CPU
may touch its memory."""
import contextlib
import errno
import os
import subprocess
import sys
import types
import unittest
import unittest.mock

os.environ.setdefault("TN_SOFT_LATE_NS", "1000000")  # before each copy, by chance: who does not wait for the device is mostly earlier

import soft_device
from case import main
from tenuto.vllm.store import Config
from test_vllm_engine import EngineCase
from vllm_engine import BYTES, KNOWN, SIZE, Engine

OWNER = """
import sys, tenuto
with tenuto.Cache(host_bytes=16 << 20, serve=sys.argv[1]) as cache:
    print("ready", flush=True)
    sys.stdin.read()
"""


class Tensor:
    """A layer's pages in memory of the soft device."""

    def __init__(self, stream, blocks):
        self.stream, self.bytes = stream, blocks * BYTES
        self.address = stream.device.allocate(self.bytes)
        stream.device.register(self.address, self.bytes)
        self.shape, self.device = (blocks, SIZE, BYTES // SIZE), types.SimpleNamespace(type="cuda", index=0)

    def stride(self):
        return (BYTES, BYTES // SIZE, 1)

    def element_size(self):
        return 1

    def data_ptr(self):
        return self.address

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: self.address, nbytes=lambda: self.bytes)

    def get(self, i):
        return self.stream.get(self.address + i * BYTES, KNOWN)

    def put(self, i, data):
        self.stream.put(self.address + i * BYTES, data)


class OnADevice(EngineCase):
    def setUp(self):
        if not soft_device.file_of(self.driver):
            self.skipTest(f"TENUTO_PLUGIN_PATH has no libtenuto_{self.driver}.so")
        super().setUp()
        self.device = self.device()
        self.addCleanup(self.device.release)
        self.stream = soft_device.Stream(self.device)
        self.addCleanup(self.stream.close)  # after the engine is closed
        self.addCleanup(self.device.hold, 0)
        patch = unittest.mock.patch("tenuto._streams.current", lambda device: contextlib.nullcontext(self.stream))
        patch.start()
        self.addCleanup(patch.stop)

    def on_device(self, **options):
        e = self.engine(host_bytes="8MiB", tensor=lambda blocks: Tensor(self.stream, blocks), **options)
        e.worker.driver = self.driver
        return e

    def wipe(self, e):
        """No page has what it had: a load that is not waited for is seen."""
        for tensor in e.tensors.values():
            self.device.write(tensor.address, bytes(tensor.bytes))

    def test_prefixes_come_back(self):
        for layerwise in (True, False):
            with self.subTest(layerwise=layerwise):
                e = self.on_device(store=f"kv{layerwise}", layerwise=layerwise)
                for blocks, found in ((4, 0), (5, 4), (5, 5)):  # the rest is computed on what the stream has waited for
                    self.assertEqual(e.run(*[(seed, blocks) for seed in range(8)]), [found] * 8)
                    self.wipe(e)
                self.assertEqual((e.wrong, e.said), (0, []))

    def test_prefixes_come_back_from_another_process(self):
        socket = os.path.join(self.dir, "owner")
        with subprocess.Popen([sys.executable, "-c", OWNER, socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
            owner.stdout.readline()
            e = Engine(Config({"socket": socket}), tensor=lambda blocks: Tensor(self.stream, blocks))
            e.worker.driver = self.driver
            found = [e.run((1, blocks)) for blocks in (4, 6, 6)]
            e.close()
            owner.stdin.close()
        self.assertEqual((found, e.wrong, e.said), ([[0], [4], [6]], 0, []))

    def test_a_load_begins_once_the_stream_has_left_its_pages(self):
        e = self.on_device()
        e.run((1, 4))
        r = e.begin(1, 4)
        for _ in range(20):
            for tensor in e.tensors.values():
                tensor.put(r.pages[0], bytes(KNOWN))  # of a step before
        e.step([r])
        self.assertEqual((r.found, e.wrong), (4, 0))

    def test_a_step_is_launched_while_the_device_stands(self):
        """Nobody waits on the host for what the step computes, and a save is over only once the stream was there."""
        e = self.on_device()
        r = e.begin(1, 1)
        self.device.hold(1)
        _, ended = e.step([r])
        self.assertEqual((ended, len(e.worker.saves), e.worker._poll_save(*next(iter(e.worker.saves.items())), 0.05)), ([r], 1, False))
        self.device.hold(0)
        e.settle()
        self.assertEqual((e.counts()["save_stored_blocks"], e.run((1, 1)), e.wrong), (1, [1], 0))

    def late_load(self, e):
        """A step whose load copies nothing before all of its layers were asked for. What its stream has read of each layer then, and what is right."""
        self.wipe(e)
        r, read = e.begin(1, 4), {}
        settle, end = e.worker.streams.settle, e.worker.end_step

        def settled():
            settle()
            self.device.hold(1)

        def ended():
            self.assertEqual([load.parts[0][0].poll(layer) for load in e.worker.loads for layer in range(2)], [None] * 2)
            for name, tensor in e.tensors.items():  # as a kernel does
                read[name] = self.stream.place(KNOWN)
                self.device.copy(self.stream.cuda_stream, read[name], tensor.address + r.pages[3] * BYTES, KNOWN)
            self.device.hold(0)
            end()

        with unittest.mock.patch.object(e.worker.streams, "settle", settled), unittest.mock.patch.object(e.worker, "end_step", ended):
            e.step([r])
        self.stream.synchronize()
        self.assertEqual((r.found, e.wrong), (4, 0))
        return [self.device.read(at, KNOWN) for at in read.values()], [tensor.get(r.pages[3]) for tensor in e.tensors.values()]

    def test_the_stream_waits_for_the_layers_of_a_load_and_the_host_at_the_end_of_the_step(self):
        e = self.on_device()
        e.run((1, 4))
        for _ in range(10):  # a stream that does not wait is earlier than the load every other time
            read, right = self.late_load(e)
            self.assertEqual(read, right)


class Soft(OnADevice):
    """The soft device, whose copies can be made to fail."""

    driver, device = "soft", soft_device.SoftDevice

    def test_nothing_is_kept_of_a_step_whose_load_has_failed(self):
        """The words have risen, and the step has computed on pages that never came."""
        e = self.on_device()
        e.run((1, 4))
        r = e.begin(1, 8)
        self.assertEqual(r.found, 4)
        self.addCleanup(self.device.fail, 0, 0)
        self.device.fail(0, -errno.EIO)  # half of what the load copies is there
        step, ended = e.step([r])
        self.assertEqual((step.early, step.late, ended), ([], [], []))
        self.assertLess(r.num_computed_tokens, 4 * SIZE)
        space = e.worker.spaces[0]
        self.assertEqual(space.match(space.keys_from_hashes(b"".join(r.block_hashes), 32)).blocks, 4)  # what was there is, and nothing that this step has computed
        left = [r]
        while left:
            _, ended = e.step(left)
            left = [other for other in left if other not in ended]
        e.settle()
        self.assertEqual((e.run((1, 8)), e.wrong), ([8], 0))


class Cuda(OnADevice):
    """The plugin of CUDA on the tests' libcuda: torch's streams are none of the plugin's, either."""

    driver, device = "cuda", soft_device.FakeCuda


del OnADevice  # no tests of its own


if __name__ == "__main__":
    main(__name__)
