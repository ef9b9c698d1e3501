# SPDX-License-Identifier: Apache-2.0
"""transformers, canonical shares: what TP 1, 2 and 4 have saved, TP 1, 2, 4 and 8 restore, and a model that is fed these bytes gives the same logits, bit for bit."""
import importlib.util
import unittest

from case import SEED, Case, main

MISSING = [m for m in ('torch', 'transformers') if importlib.util.find_spec(m) is None]
TOKENS, CUT = 100, 96  # blocks of 32 tokens


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install .[hf]')
class CanonicalShares(Case):
    def setUp(self):
        super().setUp()
        self.cache = self.open()

    def model(self, kv_heads):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM
        torch.manual_seed(SEED)
        return LlamaForCausalLM(LlamaConfig(vocab_size=128, hidden_size=128, intermediate_size=64, num_hidden_layers=2, num_attention_heads=8,
                                            num_key_value_heads=kv_heads)).eval()

    def rank(self, config, name, size, rank, **more):
        from tenuto.hf import Prefixes
        return Prefixes(self.cache, config, name, tp_rank=rank, tp_size=size, page_tokens=16, pages_per_block=2, slack='off', **{'shares': 'canonical', **more})

    @staticmethod
    def heads(kv, first, n):
        """Some heads of a transformers cache."""
        from transformers.cache_utils import Cache, DynamicLayer
        layers = [DynamicLayer() for _ in kv.layers]
        for mine, layer in zip(layers, kv.layers):
            mine.update(layer.keys[:, first:first + n].contiguous(), layer.values[:, first:first + n].contiguous())
        return Cache(layers=layers)

    @staticmethod
    def joined(kvs):
        import torch
        from transformers.cache_utils import Cache, DynamicLayer
        layers = [DynamicLayer() for _ in kvs[0].layers]
        for i, layer in enumerate(layers):
            layer.update(torch.cat([kv.layers[i].keys for kv in kvs], 1), torch.cat([kv.layers[i].values for kv in kvs], 1))
        return Cache(layers=layers)

    def rest(self, model, ids, kv):
        import torch
        from tenuto.hf import past
        with torch.no_grad():
            return model(input_ids=ids[:, CUT:], **past(model, kv), use_cache=True).logits

    def sizes(self, kv_heads):
        import torch
        from tenuto.hf import past
        from transformers.cache_utils import DynamicCache
        model = self.model(kv_heads)
        ids = torch.randint(128, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
        kv = DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=ids[:, :CUT], **past(model, kv), use_cache=True)
        expected = self.rest(model, ids, self.heads(kv, 0, kv_heads))
        for wrote in (1, 2, 4):
            name = f'{kv_heads} heads of TP {wrote}'
            for i in range(wrote):
                store = self.rank(model.config, name, wrote, i)
                self.assertEqual(store.match(ids), CUT if i > wrote - max(1, wrote // kv_heads) else 0)  # a replica of the last rank finds all
                result = store.save(ids[:, :CUT], self.heads(kv, i * kv_heads // wrote, max(1, kv_heads // wrote)))
                self.assertEqual(sum(result), 0 if i % max(1, wrote // kv_heads) else CUT // 32, result)
            for reads in (1, 2, 4, 8):
                shares = []
                for i in range(reads):
                    mine, n = self.rank(model.config, name, reads, i).restore(ids, lazy=bool(i % 2))
                    self.assertEqual(n, CUT)
                    wanted = self.heads(kv, i * kv_heads // reads, max(1, kv_heads // reads))
                    for layer, whole in zip(mine.layers, wanted.layers):
                        if i % 2:
                            layer._fetch()
                        self.assertTrue(torch.equal(layer.keys, whole.keys) and torch.equal(layer.values, whole.values), (name, reads, i))
                    if i % max(1, reads // kv_heads) == 0:
                        shares.append(mine)
                self.assertTrue(torch.equal(self.rest(model, ids, self.joined(shares)), expected), (name, reads))

    def test_each_size_restores_what_each_size_has_saved_and_logits_are_the_same(self):
        self.sizes(8)

    def test_and_where_ranks_have_the_same_heads(self):
        self.sizes(2)

    def test_bytes_that_differ_in_a_bit_give_other_logits(self):
        import torch
        from tenuto.hf import past
        from transformers.cache_utils import DynamicCache
        model = self.model(4)
        ids = torch.randint(128, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
        kv = DynamicCache(config=model.config)
        with torch.no_grad():
            model(input_ids=ids[:, :CUT], **past(model, kv), use_cache=True)
        before = self.rest(model, ids, self.heads(kv, 0, 4))
        kv.layers[0].values[0, 3, 5, 7] += 1
        self.assertFalse(torch.equal(self.rest(model, ids, self.heads(kv, 0, 4)), before))

    def test_a_prompt_is_computed_and_restored_by_prefill(self):
        import torch
        model = self.model(4)
        ids = torch.randint(128, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
        kv, n = self.rank(model.config, 'prefill', 1, 0).prefill(model, ids)
        expected = self.rest(model, ids, kv)
        again, restored = self.rank(model.config, 'prefill', 1, 0).prefill(model, ids)
        self.assertEqual((n, restored), (0, CUT))
        self.assertTrue(torch.equal(self.rest(model, ids, again), expected))
        self.assertEqual(self.rank(model.config, 'prefill', 4, 3).match(ids), CUT)
        self.assertEqual(self.rank(model.config, 'prefill', 1, 0, shares='rank').match(ids), 0)

    def test_what_is_generated_is_found_by_ranks_of_another_size(self):
        import torch
        model = self.model(4)
        ids = torch.randint(128, (1, TOKENS), generator=torch.Generator().manual_seed(SEED))
        store = self.rank(model.config, 'generated', 1, 0)
        kv, _ = store.prefill(model, ids)
        answer = store.answer(ids, kv)
        said = model.generate(ids, past_key_values=kv, streamer=answer, max_new_tokens=70, min_new_tokens=70, do_sample=False, pad_token_id=0)
        answer.close()
        self.assertEqual(self.rank(model.config, 'generated', 4, 2).match(said), 160)

    def test_what_cannot_be_shared_is_refused(self):
        import torch
        config = self.model(4).config
        with self.assertRaisesRegex(ValueError, "shares: 'all': rank or canonical"):
            self.rank(config, 'refused', 1, 0, shares='all')
        with self.assertRaisesRegex(ValueError, 'stored_tp is 2: canonical shares are of every TP size'):
            self.rank(config, 'refused', 1, 0).restore(torch.zeros((1, 40), dtype=int), stored_tp=2)
        config.num_key_value_heads = 3
        with self.assertRaisesRegex(ValueError, '3 KV heads cannot be divided among 2'):
            self.rank(config, 'refused', 2, 0)
        with self.assertRaisesRegex(ValueError, 'give a most_tp that 3 divides'):
            self.rank(config, 'refused', 3, 0)
        self.rank(config, 'refused', 3, 0, most_tp=3)


if __name__ == '__main__':
    main(__name__)
