# SPDX-License-Identifier: Apache-2.0
"""tenuto.profile: a model is timed in its engine, and the next start has the table."""
import importlib.util
import json
import os
import resource
import subprocess
import sys
import unittest

import tenuto
from case import Case, main
from tenuto import profile, slack

MISSING = [m for m in ('torch', 'transformers') if importlib.util.find_spec(m) is None]
LLAMA = {'model_type': 'llama', 'architectures': ['LlamaForCausalLM'], 'hidden_size': 64, 'intermediate_size': 128, 'num_hidden_layers': 3,
         'num_attention_heads': 4, 'num_key_value_heads': 2, 'vocab_size': 128, 'max_position_embeddings': 256, 'dtype': 'bfloat16'}


class Profile(Case):
    def setUp(self):
        super().setUp()
        self.model = os.path.join(self.dir, 'model')
        self.tables = os.path.join(self.dir, 'slack')
        os.mkdir(self.model)
        with open(os.path.join(self.model, 'config.json'), 'w', encoding='utf-8') as file:
            json.dump(LLAMA, file)

    def run_it(self, *args, rc=0, engine='hf', before='', **more):
        """before: what Python does first."""
        env = {**os.environ, 'TENUTO_SLACK_DIR': self.tables, 'HF_HUB_OFFLINE': '1', 'OMP_NUM_THREADS': '1', **more}
        run = ['-c', f'import runpy, sys; {before}; runpy.run_module("tenuto.profile", run_name="__main__", alter_sys=True)'] if before else ['-m', 'tenuto.profile']
        done = subprocess.run([sys.executable, '-P', *run, '--engine', engine, *args], capture_output=True, text=True, timeout=900, env=env)
        self.assertEqual(done.returncode, rc, done.stderr)
        return done

    def refused(self, rc, why, *args, **more):
        """As one line, and nothing is timed."""
        done = self.run_it(*args, rc=rc, **more)
        self.assertRegex(done.stderr, f'^tenuto.profile: .*{why}.*\n$')


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install .[hf]')
class Transformers(Profile):
    def test_the_next_start_has_the_table(self):
        out = os.path.join(self.dir, 'table')
        done = self.run_it(self.model + '/config.json', '--inputs', '1,8,64', '--prefixes', '0,100', '--repeat', '2', '-o', out)
        self.assertIn('6 of 6: 64 tokens behind 100: ', done.stderr)
        self.assertIn(f'the next start of hf with the model name {self.model} uses the table', done.stderr)
        import transformers  # noqa: F401 # its version is in the name
        name = slack.fingerprint('transformers', self.model, LLAMA['dtype'], LLAMA['num_hidden_layers'], more='sdpa 1threads')
        tables = slack.Tables(self.tables)
        self.assertEqual(done.stdout.strip(), tables.path(name))
        cache = tenuto.Cache(host_bytes=1 << 20)
        self.addCleanup(cache.close)
        space = cache.space(self.model, tenuto.Geometry.raw(LLAMA['num_hidden_layers'], 4096))
        with self.assertLogs('tenuto', 'INFO') as log:
            self.assertEqual(tables.restore(space, name), tables.path(name))
        self.assertIn(f'{tables.path(name)} (restored)', log.output[0])
        text = space.slack()
        with open(out, encoding='utf-8') as file:
            self.assertEqual(file.read(), text)
        self.assertRegex(text, 'engine transformers [0-9.]+\n(.*\n)?when .*\nhow profiled\nlayers 3\ncells layered\ninputs 1 8 64\nprefixes 0 100\n')
        self.assertEqual(sum(line.startswith('cell ') for line in text.splitlines()), 3 * 2 * 3)

    def test_lengths_that_the_model_does_not_take_are_refused(self):
        for args, why in ((('--inputs', '200', '--prefixes', '100'), '200 input tokens behind 100 are more than the 256 positions'), (('--inputs', '0'), 'rising numbers'),
                          (('--inputs', '8,4'), 'rising numbers'), (('--prefixes', 'x'), 'rising numbers'), (('--repeat', '0'), 'from 1 to 1000')):
            done = self.run_it(self.model + '/config.json', *args, rc=2)
            self.assertIn(why, done.stderr)
        self.assertFalse(os.path.exists(self.tables))

    def test_the_engines_name_for_the_model_finds_the_table(self):
        import torch
        import transformers
        from tenuto.hf import Prefixes
        out = os.path.join(self.dir, 'table')
        config = transformers.AutoConfig.from_pretrained(self.model, attn_implementation='sdpa')
        cache = tenuto.Cache(host_bytes=1 << 24)
        self.addCleanup(cache.close)
        cwd = os.getcwd()
        self.addCleanup(os.chdir, cwd)
        os.chdir(self.dir)
        for args, name in ((('--name', 'my-model'), 'my-model'), ((), self.model)):
            self.run_it('model/config.json', *args, '--inputs', '1,8', '--prefixes', '0', '--repeat', '1', '-o', out)
            for setting in (out, 'auto'):
                os.environ['TENUTO_SLACK_DIR'] = self.tables
                self.addCleanup(os.environ.pop, 'TENUTO_SLACK_DIR', None)
                threads = torch.get_num_threads()
                torch.set_num_threads(1)
                self.addCleanup(torch.set_num_threads, threads)
                with self.assertLogs('tenuto', 'INFO') as log:
                    Prefixes(cache, config, name, dtype=torch.bfloat16, slack=setting, tenant=setting)
                self.assertRegex(log.output[0], 'restored|given')
        with self.assertLogs('tenuto', 'WARNING') as log:
            Prefixes(cache, config, 'other', dtype=torch.bfloat16, slack=out)
        self.assertRegex(log.output[0], 'space\'s model is other: .*model line')

    def test_a_model_that_cannot_be_had_is_one_line(self):
        self.refused(3, 'some/model: neither a directory nor to be had', 'some/model')
        with open(self.model + '/config.json', 'w', encoding='utf-8') as file:
            file.write('{')
        self.refused(2, 'config.json: ', self.model + '/config.json')
        with open(self.model + '/config.json', 'w', encoding='utf-8') as file:
            json.dump(LLAMA, file)
        with open(self.model + '/model.safetensors', 'w', encoding='utf-8') as file:
            file.write('{')
        self.refused(2, f'{self.model}: .*header', self.model)


class Mistakes(Profile):
    def test_paths_that_are_not_there_are_refused(self):
        config, none = self.model + '/config.json', os.path.join(self.dir, 'none')
        for model, args, why in ((none, (), 'no such directory'), ('./none', (), 'no such directory'), ('some/none/', (), 'no such directory'),
                                 (none + '/config.json', (), 'no such file'), (self.dir, (), 'no config.json'), (__file__, (), 'a file: give the directory'),
                                 (self.model, (), f'no weights .*give {config}'), (config, ('--out', none + '/t.slack'), 'no such directory'),
                                 (config, ('--out', self.dir), 'a directory: give a file')):
            with self.subTest(model=model, args=args):
                self.refused(2, why, model, *args)
        self.refused(2, f'{config} is no directory: set TENUTO_SLACK_DIR', config, TENUTO_SLACK_DIR=config)
        for name in ('', 'two\nlines', ' blank'):
            self.assertIn('the name that the engine uses', self.run_it('--name', name, config, rc=2).stderr)

    def test_an_engine_that_is_not_installed_is_one_line(self):
        for engine, module, why in (('vllm', 'vllm', 'pip install vllm'), ('hf', 'torch', r'pip install .\[hf\]'), ('hf', 'transformers', r'pip install .\[hf\]')):
            with self.subTest(module=module):
                self.refused(3, why, self.model + '/config.json', engine=engine, before=f'sys.modules["{module}"] = None')


class Tables(Case):
    def test_the_median_of_each_layer_counts(self):
        runs = iter([9, 9, 9, 4, 7, 5, 1, 8, 2])

        def run(n, prefix):
            t = next(runs)
            return [t, 10 * t]
        prepared = []
        rows = profile.profile([64], [0], 8, prepared.append, run)
        self.assertEqual((prepared, rows[64, 0][0], len(rows[64, 0])), ([0], [9, 90], 8))
        self.assertEqual(profile.median_cell(rows[64, 0], 1), 50)

    def test_a_table_that_cannot_be_written_whole_leaves_the_old_one(self):
        out = os.path.join(self.dir, 'table')
        profile.write_whole('an old table', out)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with self.assertRaises(OSError):
                profile.write_whole('x' * 100000, out)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        with open(out, encoding='utf-8') as file:
            self.assertEqual(file.read(), 'an old table')
        self.assertEqual([name for name in os.listdir(self.dir) if name.startswith('table')], ['table'])
        profile.write_whole('on standard output', os.devnull)
        self.assertFalse(os.path.isfile(os.devnull))


if __name__ == '__main__':
    main(__name__)
