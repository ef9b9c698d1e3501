# SPDX-License-Identifier: Apache-2.0
"""transformers: prompts and models whose keys and values depend on more than tokens are right, or refused with a ValueError that says what to do."""
import importlib.util
import unittest

from case import Case, main

MISSING = [m for m in ('torch', 'transformers') if importlib.util.find_spec(m) is None]
if not MISSING:
    import torch
    import transformers as T
    from transformers.cache_utils import DynamicCache, StaticCache

    from tenuto.hf import Prefixes

SMALL = {'vocab_size': 512, 'hidden_size': 64, 'intermediate_size': 64, 'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2,
         'pad_token_id': 0, 'bos_token_id': 1, 'eos_token_id': None}


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install .[hf]')
class Models(Case):
    def setUp(self):
        super().setUp()
        torch.manual_seed(0)
        torch.set_num_threads(1)

    def store(self, model, name='m', **options):
        return Prefixes(self.cache, model.config, name, dtype=model.dtype, **options)

    @property
    def cache(self):
        if not hasattr(self, '_cache'):
            self._cache = self.open(policy='lru')
        return self._cache

    @staticmethod
    def ids(n, seed=1):
        return torch.randint(3, 500, (1, n), generator=torch.Generator().manual_seed(seed))

    @staticmethod
    def said(model, ids, kv=None, **more):
        return model.generate(ids, past_key_values=kv, max_new_tokens=4, do_sample=False, **more)[0, ids.shape[1]:].tolist()

    def restored(self, model, ids, tokens):
        """Computed, saved, restored: each time the same tokens as without a cache."""
        store, plain = self.store(model), self.said(model, ids)
        for expected in (0, tokens):
            kv, n = store.prefill(model, ids)
            self.assertEqual((n, self.said(model, ids, kv)), (expected, plain))

    @staticmethod
    def phi():
        rope = {'rope_type': 'longrope', 'rope_theta': 10000.0, 'short_factor': [1.0] * 8, 'long_factor': [4.0 + i for i in range(8)],
                'original_max_position_embeddings': 512}
        return T.Phi3ForCausalLM(T.Phi3Config(**SMALL, max_position_embeddings=4096, original_max_position_embeddings=512, rope_parameters=rope)).eval()

    def test_longrope_keeps_prompts_of_either_factors_apart(self):
        model, ids = self.phi(), self.ids(1300)
        self.restored(model, ids, 1280)
        self.restored(model, ids[:, :500], 256)  # not those of the long prompt
        self.restored(model, ids[:, :600], 0)    # its whole blocks are computed alone with short factors: left out
        store = self.store(model)
        kv, n = store.prefill(model, torch.cat([ids[:, :700], self.ids(600, 2)], 1))  # a long prompt that begins as another
        self.assertEqual(n, 512)
        with torch.no_grad():
            whole = model(torch.cat([ids[:, :700], self.ids(600, 2)], 1), use_cache=True).past_key_values
        for layer, right in zip(kv.layers, whole.layers):
            torch.testing.assert_close(layer.keys, right.keys[:, :, :1280])

    def test_longrope_saves_nothing_of_mixed_factors(self):
        model, ids = self.phi(), self.ids(1024)
        for first in (400, 512):
            store, kv = self.store(model, f'mixed {first}'), DynamicCache(config=model.config)
            store.saving(ids, kv)
            with torch.no_grad(), self.assertRaisesRegex(ValueError, 'LongRoPE'):
                model(ids[:, :first], past_key_values=kv)
        with torch.no_grad():
            kv = model(ids, use_cache=True).past_key_values
        with self.assertRaisesRegex(ValueError, 'prefill'):
            store.save(ids, kv)
        with self.assertRaisesRegex(ValueError, 'LongRoPE'):
            store.save(ids[:, :500], kv)
        self.assertEqual([store.match(ids), store.match(ids[:, :500])], [0, 0])

    def test_dynamic_rope_has_a_limit(self):
        rope = {'rope_type': 'dynamic', 'rope_theta': 10000.0, 'factor': 2.0}
        model = T.LlamaForCausalLM(T.LlamaConfig(**SMALL, max_position_embeddings=600, rope_parameters=rope)).eval()
        self.restored(model, self.ids(599), 512)
        with self.assertRaisesRegex(ValueError, 'dynamic RoPE.*600'):
            self.store(model).prefill(model, self.ids(600))

    def test_images_are_named_by_extra(self):
        vision = T.CLIPVisionConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=32, patch_size=8)
        model = T.LlavaForConditionalGeneration(T.LlavaConfig(vision_config=vision, text_config=T.LlamaConfig(**SMALL), image_token_id=511,
                                                              vision_feature_layer=-1)).eval()
        store, image = self.store(model), torch.full((1, 16), 511)
        ids, early = torch.cat([self.ids(280), image, self.ids(400, 2)], 1), self.ids(600, 3)
        for call in (store.restore, store.match, lambda ids: store.prefill(model, ids), lambda ids: store.saving(ids, DynamicCache(config=model.config))):
            with self.assertRaisesRegex(ValueError, 'image_token.*extra'):
                call(ids)
        with self.assertRaisesRegex(ValueError, 'restore'):
            store.prefill(model, ids, extra=b'1')
        kv, n = store.prefill(model, early)  # text alone
        self.assertEqual((n, store.match(early)), (0, 512))
        for seed in (1, 2):
            pixels = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(seed)) * 5
            right, extra = self.said(model, ids, pixel_values=pixels), b'%d' % seed
            kv, n = store.restore(ids, extra=extra)
            self.assertEqual(n, 0)
            with torch.no_grad():
                model(ids, past_key_values=kv, pixel_values=pixels)
            self.assertEqual(store.save(ids, kv, extra=extra).stored, 2)
            kv, n = store.restore(ids, extra=extra)
            self.assertEqual((n, self.said(model, ids, kv)), (512, right))
            self.assertEqual(store.restore(ids, 256, extra=extra)[1], 0)  # it would end before the image
            self.assertEqual(store.match(ids, extra=extra + b'x'), 0)

    def test_generated_tokens_are_blocks_of_the_next_prompt(self):
        model, ids = T.LlamaForCausalLM(T.LlamaConfig(**SMALL, max_position_embeddings=4096)).eval(), self.ids(300)
        plain = model.generate(ids, max_new_tokens=120, do_sample=False)
        store = self.store(model, page_tokens=16, pages_per_block=2, plan='off')
        kv, _ = store.prefill(model, ids)
        answer = store.answer(ids, kv)
        out = model.generate(ids, past_key_values=kv, max_new_tokens=120, do_sample=False, streamer=answer)
        self.assertEqual(out.tolist(), plain.tolist())
        self.assertEqual((answer.sequence.registered, answer.sequence.duplicates), (13, 9))  # 419 tokens have keys; prefill has saved the prompt's blocks
        after = torch.cat([out, self.ids(50, 2)], 1)
        kv, n = store.prefill(model, after)
        self.assertEqual(n, 416)
        self.assertEqual(self.said(model, after, kv), self.said(model, after))
        with torch.no_grad():
            whole = model(after, use_cache=True).past_key_values
        for layer, right in zip(kv.layers, whole.layers):
            torch.testing.assert_close(layer.keys[:, :, :416], right.keys[:, :, :416])
            torch.testing.assert_close(layer.values[:, :, :416], right.values[:, :, :416])
        answer.close()
        self.assertEqual(answer.sequence.blocks, 0)

    def test_padding_and_batches_are_refused(self):
        model = T.LlamaForCausalLM(T.LlamaConfig(**SMALL)).eval()
        store, ids = self.store(model), self.ids(600)
        padded, mask = torch.cat([torch.zeros(1, 40, dtype=torch.long), ids], 1), (torch.arange(640) >= 40).long()[None]
        behind = torch.cat([ids, torch.zeros(1, 40, dtype=torch.long)], 1)
        for wrong, options in ((padded, {}), (padded, {'attention_mask': mask}), (behind, {}), (ids, {'attention_mask': mask[:, :600]})):
            with self.assertRaisesRegex(ValueError, 'padding'):
                store.prefill(model, wrong, **options)
        with self.assertRaisesRegex(ValueError, 'one sequence'):
            store.prefill(model, ids.repeat(2, 1))
        self.assertEqual(store.prefill(model, padded, attention_mask=torch.ones_like(padded))[1], 0)  # these tokens count
        self.restored(model, ids, 512)

    def test_models_that_tokens_do_not_name_are_refused_when_the_store_is_made(self):
        mla = T.DeepseekV3Config(**{**SMALL, 'num_key_value_heads': 4}, kv_lora_rank=32)
        mixed = T.Gemma3TextConfig(**{**SMALL, 'num_hidden_layers': 8}, sliding_window=64)
        for config, what in ((mla, 'kv_lora_rank'), (mixed, 'sliding_attention'), (T.MistralConfig(**SMALL, sliding_window=64), 'sliding_attention'),
                             (T.T5Config(), 'is_encoder_decoder'), (T.MambaConfig(), 'attention')):
            with self.subTest(type(config).__name__), self.assertRaisesRegex(ValueError, what):
                Prefixes(self.cache, config, 'm')
        with self.assertRaisesRegex(ValueError, 'float64'):
            Prefixes(self.cache, T.LlamaConfig(**SMALL), 'm', dtype=torch.float64)

    def test_layers_that_share_keys_with_others_have_none_of_their_own(self):
        config = T.Gemma3nTextConfig(**{**SMALL, 'num_hidden_layers': 4, 'intermediate_size': [64] * 4}, head_dim=16, vocab_size_per_layer_input=512,
                                     hidden_size_per_layer_input=16, laurel_rank=8, altup_num_inputs=2, num_kv_shared_layers=2, layer_types=['full_attention'] * 4,
                                     activation_sparsity_pattern=[0.0] * 4)
        self.restored(T.Gemma3nForCausalLM(config).eval(), self.ids(600), 512)
        self.assertEqual(Prefixes(self.cache, config, 'm').geometry.layers, 2)

    def test_a_cache_that_is_not_what_the_configuration_says_is_refused(self):
        model, ids = T.LlamaForCausalLM(T.LlamaConfig(**SMALL)).eval(), self.ids(300)
        with torch.no_grad():
            kv = model(ids, use_cache=True).past_key_values
        with self.assertRaisesRegex(ValueError, 'dtype=torch.bfloat16'):
            Prefixes(self.cache, model.config, 'm', dtype=torch.bfloat16).save(ids, kv)
        other = T.LlamaConfig(**{**SMALL, 'num_key_value_heads': 1})
        with self.assertRaisesRegex(ValueError, 'shape'):
            Prefixes(self.cache, other, 'm').save(ids, kv)
        for wrong in (StaticCache(config=model.config, max_cache_len=512), DynamicCache()):
            with self.assertRaisesRegex(ValueError, 'DynamicCache'):
                self.store(model).saving(ids, wrong)
        self.assertEqual(self.store(model).match(ids), 0)
        self.assertEqual(self.store(model).save(ids, kv).stored, 1)


if __name__ == '__main__':
    main(__name__)
