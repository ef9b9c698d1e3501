# SPDX-License-Identifier: Apache-2.0
"""tenuto.hf with a stand-in for a GPU, on a machine without one: host memory that is written only when somebody waits for it."""
import importlib.util
import unittest
import unittest.mock

from case import Case, main

MISSING = [m for m in ('torch', 'transformers') if importlib.util.find_spec(m) is None]
if not MISSING:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.cache_utils import DynamicCache

    import tenuto
    from tenuto import hf

    GPU, PUT = torch.device('cuda', 0), hf.Stage.put

    class LatePages(hf.Pages):
        """Of a GPU by name, and host memory."""

        def __init__(self, prefixes, blocks, space, device):
            super().__init__(prefixes, blocks, space, hf.CPU)
            self.device = device

    class LateStage(hf.Stage):
        """put: what it copies is there once its event was waited for, or was asked for `asked` times."""

        def __init__(self, *args):
            super().__init__(*args)
            self.event, self.asked = None, 1 << 30

        def put(self, *args):
            self.event = LateEvent(lambda: PUT(self, *args), self.asked)

        def put_event(self):
            return self.event

    class LateEvent:
        def __init__(self, work, asked):
            self.work, self.asked = work, asked

        def synchronize(self):
            if self.work:
                self.work()
            self.work = None

        def query(self):
            self.asked -= 1
            if self.asked <= 0:
                self.synchronize()
            return not self.work


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install .[hf]')
class Gpu(Case):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        torch.set_num_threads(1)
        config = LlamaConfig(vocab_size=512, hidden_size=64, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2)
        self.model = LlamaForCausalLM(config).eval()
        self.cache = self.open(policy='lru')
        self.store = hf.Prefixes(self.cache, config, 'm', plan='off', slack='off')
        self.ids = torch.randint(512, (1, 700), generator=torch.Generator().manual_seed(1))

    def late(self):
        for name, stand_in in (('Pages', LatePages), ('Stage', LateStage)):
            patch = unittest.mock.patch.object(hf, name, stand_in)
            patch.start()
            self.addCleanup(patch.stop)

    def save(self, asked):
        """Computes and saves a prompt; the layers that the cache was given before finish()."""
        kv, given = DynamicCache(config=self.model.config), []
        saving = self.store.saving(self.ids[:, :512], kv)
        saving.stage.asked = asked
        save = saving.save
        saving.save = unittest.mock.Mock(wraps=save, ended=False)
        saving.save.layer.side_effect = lambda index: (given.append(index), save.layer(index))[1]
        with torch.no_grad():
            self.model(input_ids=self.ids[:, :512], **hf.past(self.model, kv), use_cache=True)
        early = list(given)
        result = saving.finish()
        self.assertEqual(given, [0, 1, 2, 3])
        self.assertEqual(result.stored + result.host_only, 2, result)
        return early, kv

    def same(self, kv):
        restored, n = self.store.restore(self.ids)
        self.assertEqual(n, 512)
        for layer, right in zip(restored.layers, kv.layers):
            self.assertTrue(torch.equal(layer.keys, right.keys) and torch.equal(layer.values, right.values))

    def test_layers_are_saved_once_the_gpu_has_written_them(self):
        self.late()
        early, kv = self.save(1 << 30)
        self.assertEqual(early, [])  # the GPU is late until it is waited for
        self.same(kv)

    def test_layers_are_saved_behind_compute_as_the_gpu_gets_there(self):
        self.late()
        early, kv = self.save(2)
        self.assertEqual(early, [0, 1, 2])
        self.same(kv)

    def test_times_of_layers_are_those_of_the_gpu(self):
        self.late()
        marks = []

        class Mark(LateEvent):
            """The stream takes a millisecond from each mark to the next."""

            def __init__(self):
                super().__init__(lambda: None, 1 << 30)
                self.ms = len(marks)
                marks.append(self)

            def elapsed_time(self, end):
                assert not end.work, 'the mark was not reached'
                return float(end.ms - self.ms)

        kv = DynamicCache(config=self.model.config)
        saving = self.store.saving(self.ids[:, :512], kv)
        saving._space = unittest.mock.Mock()
        with torch.no_grad(), unittest.mock.patch.object(hf, '_reached', lambda like: hf.Reached(GPU, Mark())):
            self.model(input_ids=self.ids[:, :512], **hf.past(self.model, kv), use_cache=True)
        saving._space.observe.assert_not_called()
        saving.finish()
        self.assertEqual([call.args for call in saving._space.observe.call_args_list], [(512, 0, i, 1000000) for i in range(3)])

    def test_an_abort_saves_nothing_of_what_the_gpu_has_not_written(self):
        self.late()
        kv = DynamicCache(config=self.model.config)
        saving = self.store.saving(self.ids[:, :512], kv)
        with torch.no_grad():
            self.model(input_ids=self.ids[:, :512], **hf.past(self.model, kv), use_cache=True)
        saving.abort()
        self.assertEqual(self.store.match(self.ids), 0)

    def test_pages_of_a_gpu_are_used_again(self):
        self.late()
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
        class Pages(hf.Pages):
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
