# SPDX-License-Identifier: Apache-2.0
"""tenuto.hf on nodes that have a store of objects in common: what one has computed another restores."""
import os
import time
import unittest

import tenuto
from case import main
from remote_nodes import Nodes

try:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tenuto._ask import ask, near
    from tenuto.hf import Prefixes, past
    MISSING = None
except ImportError as error:
    MISSING = f'{error.name} is missing: pip install .[hf]'


@unittest.skipIf(MISSING, MISSING)
class Transformers(Nodes):
    def setUp(self):
        super().setUp()
        torch.manual_seed(1)
        config = LlamaConfig(vocab_size=512, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
        self.model, self.ids = LlamaForCausalLM(config).eval(), torch.randint(512, (1, 1025))

    def node(self, name, **more):
        path = os.path.join(self.dir, name)
        os.makedirs(path)
        cache = tenuto.Cache(path, disk_bytes=64 << 20, host_bytes=16 << 20, **self.common)
        self.addCleanup(cache.close)
        return cache, Prefixes(cache, self.model.config, 'm', plan='off', slack='off', **{'remote_timeout': 10, **more})

    def logits(self, kv):
        """Behind the prompt, of what a cache has of it."""
        with torch.no_grad():
            return self.model(input_ids=self.ids[:, kv.get_seq_length():], **past(self.model, kv), use_cache=True).logits

    def saved(self):
        """A node computes the prompt."""
        cache, store = self.node('a')
        kv, restored = store.prefill(self.model, self.ids)
        self.assertEqual(restored, 0)
        cache.flush()
        self.uploaded(4)
        return self.logits(kv)

    def test_a_prompt_of_another_node_is_restored_and_one_that_was_changed_computed(self):
        right = self.saved()
        kv, restored = self.node('b')[1].prefill(self.model, self.ids)
        self.assertEqual(restored, 1024)
        self.assertTrue(torch.equal(self.logits(kv), right))
        self.change()
        _, store = self.node('c')
        self.assertEqual(store.restore(self.ids)[1], 0)
        self.assertTrue(torch.equal(self.logits(store.prefill(self.model, self.ids)[0]), right))

    def test_blocks_that_are_here_in_all_shares_are_known_from_those_that_are_not(self):
        """A restore to a GPU takes them, if the others come too late."""
        cache, store = self.node('a', shares='canonical')
        store.prefill(self.model, self.ids)
        cache.flush()
        self.uploaded(8)  # of two heads each
        _, store = self.node('b', shares='canonical')
        self.assertEqual(store.restore(self.ids[:, :513])[1], 512)
        spaces, keys = store.space_of(self.ids.shape[-1]).all, store.keys(self.ids)
        ask(spaces, keys, 10)
        self.assertEqual((len(spaces), tenuto.match_all(spaces, keys).blocks, near(spaces, keys)), (2, 4, 2))

    def test_a_store_that_does_not_answer_is_waited_for_until_the_deadline(self):
        self.saved()
        self.slow(1.5)
        _, store = self.node('b', remote_timeout=0.2)
        begin = time.monotonic()
        self.assertEqual(store.restore(self.ids)[1], 0)
        self.assertLess(time.monotonic() - begin, 1.2)


if __name__ == '__main__':
    main(__name__)
