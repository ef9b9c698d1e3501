# SPDX-License-Identifier: Apache-2.0
"""tenuto.hf with pages in memory of a device, on a machine without a GPU: the soft device has the pages of stages, and its stream, which is late, moves what the model
computes (on the CPU) to them and from them. No CPU may touch these pages.
"""
import contextlib
import errno
import importlib.util
import os
import types
import unittest
import unittest.mock

os.environ.setdefault('TN_SOFT_LATE_NS', '2000000')  # before each copy, by chance: who does not wait for the device is mostly earlier

import soft_device
from case import Case, main

MISSING = [m for m in ('torch', 'transformers') if importlib.util.find_spec(m) is None]
if not MISSING:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.cache_utils import DynamicCache

    import tenuto
    from tenuto import hf

    GPU = torch.device('cuda', 0)

    class SoftPages(hf.Pages):
        """tensor: what the device sees of them, for shapes and addresses."""

        stream = None

        def __init__(self, prefixes, blocks, space, device):
            g, self.device, self.blocks, pages = space.geometry, device, blocks, blocks * space.geometry.pages_per_block
            size = blocks * g.block_bytes
            self.address = self.stream.device.allocate(size)
            self.stream.device.register(self.address, size)
            memory = space.cache.memory(types.SimpleNamespace(__cuda_array_interface__={
                'shape': (size,), 'typestr': '|u1', 'data': (self.address, False), 'version': 3}), driver='soft', stage_bytes=size)
            self.pool = memory.pool(g, npages=pages, order=tenuto.POOL_PLANES_PAGES)
            self.tensor = torch.empty((g.layers, 2, pages, g.planes[0][1], g.page_tokens, prefixes.head_dim), dtype=prefixes.dtype, device='meta')

    class SoftStage(hf.Stage):
        """put and take: what the stage of a GPU does, by copies of the stream. The host waits in take alone, since the model computes there."""

        def _planes(self, layer):
            """Addresses of the pages of both planes, and their bytes."""
            pages = next(p for p, user in self.prefixes._kept if p.pool is self.pool)
            step = pages.tensor[0, 0].numel() * pages.tensor.itemsize
            return [pages.address + (2 * layer + plane) * step for plane in range(2)], self.tensor[0, 0].numel() * self.tensor.itemsize

        def _on_host(self, call):
            there, self.tensor = self.tensor, torch.empty(self.tensor.shape, dtype=self.tensor.dtype)
            try:
                return call(self.tensor)
            finally:
                self.tensor = there

        def put(self, layer, k, v, first):
            def work(tensor):
                super(SoftStage, self).put(layer, k, v, first)
                for plane, address in enumerate(addresses):
                    SoftPages.stream.put(address, tensor[layer, plane].contiguous().view(torch.uint8).numpy().tobytes())

            addresses, _ = self._planes(layer)
            self._on_host(work)

        def take(self, layer, blocks):
            def work(tensor):
                for plane, address in enumerate(addresses):
                    tensor[layer, plane] = torch.frombuffer(bytearray(SoftPages.stream.get(address, size)), dtype=tensor.dtype).view(tensor[layer, plane].shape)
                return super(SoftStage, self).take(layer, blocks)

            addresses, size = self._planes(layer)
            return self._on_host(work)

    class SoftPrefixes(hf.Prefixes):
        """Of a model whose ids lie on the device."""

        def stage(self, blocks, space=None, device=None):
            return super().stage(blocks, space, GPU)

    class Passes(torch.nn.Module):
        """A model, and how many forward passes it was asked for."""

        def __init__(self, model):
            super().__init__()
            self.model, self.forward, self.asked = model, model.forward, 0
            self.config = model.config

        def __call__(self, *args, **kwargs):
            self.asked += 1
            return self.model(*args, **kwargs)


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install .[hf]')
@unittest.skipUnless(soft_device.file_of('soft'), 'TENUTO_PLUGIN_PATH has no libtenuto_soft.so')
class Gpu(Case):
    pages = None if MISSING else hf.Pages  # before it is replaced

    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        torch.set_num_threads(1)
        config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
        self.model = LlamaForCausalLM(config).eval()
        self.device = soft_device.SoftDevice()
        self.addCleanup(self.device.release)
        SoftPages.stream = stream = soft_device.Stream(self.device)
        self.addCleanup(stream.close)
        for where, name, stand_in in ((hf, 'Pages', SoftPages), (hf, 'Stage', SoftStage), (tenuto._streams, 'current', lambda device: contextlib.nullcontext(stream))):
            patch = unittest.mock.patch.object(where, name, stand_in)
            patch.start()
            self.addCleanup(patch.stop)
        self.cache = self.open(policy='lru', host_bytes=16 << 20)
        self.store = SoftPrefixes(self.cache, config, 'm', plan='off', slack='off')
        self.addCleanup(self.store.close)
        self.addCleanup(self.device.hold, 0)
        self.ids = torch.randint(512, (1, 1100), generator=torch.Generator().manual_seed(1))

    def forward(self, kv, begin, end):
        with torch.no_grad():
            return self.model(input_ids=self.ids[:, begin:end], **hf.past(self.model, kv), use_cache=True, logits_to_keep=1).logits

    def computed(self, n, end):
        """Keys and values of the first tokens in the passes of a prefill that has restored n of 512, without a cache."""
        kv = DynamicCache(config=self.model.config)
        if n:
            self.forward(kv, 0, 512)
            kv.crop(n)
        self.forward(kv, n, end)
        return kv

    def same(self, kv, right):
        for layer, other in zip(kv.layers, right.layers):
            self.assertTrue(torch.equal(layer.keys, other.keys) and torch.equal(layer.values, other.values))

    def saved(self, end):
        """The whole blocks of the first tokens are computed and saved."""
        kv = DynamicCache(config=self.model.config)
        saving = self.store.saving(self.ids[:, :end], kv)
        self.forward(kv, 0, end)
        result = saving.finish()
        self.assertEqual(result.stored + result.host_only, end // 256, result)
        return kv

    def test_layers_are_given_while_the_stream_stands_and_saved_once_it_was_there(self):
        kv = DynamicCache(config=self.model.config)
        saving = self.store.saving(self.ids[:, :512], kv)
        self.device.hold(1)
        self.forward(kv, 0, 512)
        saving.save.commit()  # which takes all layers: the host has waited for none
        with self.assertRaises(tenuto.Timeout):
            saving.save.end(0.05)
        self.assertEqual(self.store.match(self.ids), 0)
        self.device.hold(0)
        result = saving.save.end()
        self.assertEqual(result.stored + result.host_only, 2, result)
        self.same(self.store.restore(self.ids)[0], kv)

    def test_the_stream_waits_for_layers_and_the_host_for_the_last_one(self):
        right = self.saved(512)
        kv, n = self.store.restore(self.ids, lazy=True)
        loading, waits = kv.layers[0]._loading, []
        loading.load = unittest.mock.Mock(wraps=loading.load)
        loading.load.wait.side_effect = lambda *layer: (waits.append(layer), unittest.mock.DEFAULT)[1]
        self.forward(kv, n, 600)
        self.assertEqual((n, [call.args[1] for call in loading.load.stream_wait.call_args_list], waits), (512, [0, 1, 2], [(None,)]))
        self.forward(right, 512, 600)
        self.same(kv, right)

    def failing(self):
        """A prefix whose load fails in the middle, and a model that goes on behind it."""
        self.saved(512)
        self.addCleanup(self.device.fail, 0, 0)
        self.device.fail(0, -errno.EIO)  # half of what the load copies is there

    def test_what_was_computed_on_a_load_that_failed_is_computed_again_and_nothing_of_it_is_found(self):
        self.failing()
        model, found = Passes(self.model), []

        class Saving(hf.Saving):
            def abort(self):
                found.append(self.stage.prefixes.match(ids))
                super().abort()
                found.append(self.stage.prefixes.match(ids))

        ids = self.ids
        with unittest.mock.patch.object(hf, 'Saving', Saving):
            kv, n = self.store.prefill(model, ids)
        self.assertEqual((model.asked, found), (2, [512, 512]))  # all layers of the first pass but one were computed on pages that never came
        self.assertLess(n, 512)
        right = self.computed(n, 1024)
        self.same(kv, right)
        kv, n = self.store.restore(ids)
        self.assertEqual(n, 1024)
        self.same(kv, right)

    def test_a_save_behind_a_load_that_failed_is_aborted_whatever_its_caller_does(self):
        self.failing()
        kv, n = self.store.restore(self.ids, lazy=True)
        saving = self.store.saving(self.ids, kv, n)
        with self.assertRaises(hf.Shorter):
            self.forward(kv, n, 1024)
        good = [layer for layer in kv.layers if layer.get_seq_length() == 1024 and layer.keys is not None]
        self.assertEqual(len(good), 3)
        saving._give(3, good[0].keys, good[0].values)
        self.assertEqual(saving.finish().stored, 0)
        self.assertEqual(self.store.match(self.ids), 512)

    def test_of_a_stream_without_words_the_host_waits(self):
        for name, answer in (('wait', False), ('done', None)):
            patch = unittest.mock.patch.object(tenuto._streams.Streams, name, lambda *args, answer=answer: answer)
            patch.start()
            self.addCleanup(patch.stop)
        right = self.saved(512)
        kv, n = self.store.restore(self.ids, lazy=True)
        self.forward(kv, n, 600)
        self.forward(right, 512, 600)
        self.same(kv, right)

    def test_times_of_layers_are_those_of_the_gpu(self):
        marks = []

        class Mark:
            """The stream takes a millisecond from each mark to the next, and is late until somebody waits for it."""

            def __init__(self):
                self.ms, self.reached = len(marks), False
                marks.append(self)

            def query(self):
                return self.reached

            def synchronize(self):
                self.reached = True

            def elapsed_time(self, end):
                assert end.reached, 'the mark was not reached'
                return float(end.ms - self.ms)

        kv = DynamicCache(config=self.model.config)
        saving = self.store.saving(self.ids[:, :512], kv)
        saving._space = unittest.mock.Mock()
        with unittest.mock.patch.object(hf, '_reached', lambda like: hf.Reached(GPU, Mark())):
            self.forward(kv, 0, 512)
        saving._space.observe.assert_not_called()
        saving.finish()
        self.assertEqual([call.args for call in saving._space.observe.call_args_list], [(512, 0, i, 1000000) for i in range(3)])

    def test_an_abort_saves_nothing_of_what_the_gpu_has_not_written(self):
        kv = DynamicCache(config=self.model.config)
        saving = self.store.saving(self.ids[:, :512], kv)
        self.device.hold(1)
        self.forward(kv, 0, 512)
        saving.abort()
        self.device.hold(0)
        self.assertEqual(self.store.match(self.ids), 0)

    def test_pages_of_a_gpu_are_used_again(self):
        first, second = self.store.stage(2, device=GPU), self.store.stage(3, device=GPU)
        pools = (first.pool, second.pool)
        self.assertIsNot(*pools)
        del first
        third = self.store.stage(1, device=GPU)
        self.assertIs(third.pool, pools[0])
        self.assertEqual((third.pages, third.tensor.shape[2]), (16, 16))
        del second
        self.assertIs(self.store.stage(3, device=GPU).pool, pools[1])
        fourth = self.store.stage(4, device=GPU)  # what is too small is given back
        self.assertNotIn(fourth.pool, pools)
        self.assertEqual(len(self.store._kept), 2)
        self.store.close()
        self.assertEqual(self.store._kept, [])

    def test_without_a_driver_blocks_go_by_way_of_host_memory(self):
        class Pages(type(self).pages):
            def __init__(self, prefixes, blocks, space, device):
                if device == GPU:
                    raise tenuto.NotFound(2, 'no plugin libtenuto_cuda.so')
                super().__init__(prefixes, blocks, space, device)

        with unittest.mock.patch.object(hf, 'Pages', Pages), self.assertLogs('tenuto', 'WARNING') as log:
            for _ in range(2):
                self.assertEqual(self.store.stage(1, device=GPU).tensor.device.type, 'cpu')
        self.assertEqual(len(log.output), 1)
        self.assertIn('cuda:0 by way of host memory: ', log.output[0])
        self.assertIn('libtenuto_cuda.so', log.output[0])


if __name__ == '__main__':
    main(__name__)
