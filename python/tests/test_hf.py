# SPDX-License-Identifier: Apache-2.0
"""transformers: a prompt of 4,096 tokens computed and saved, restored by a new process that goes on: every logit has the same bits."""
import importlib.util
import os
import subprocess
import sys
import unittest

from case import Case, main

HERE = os.path.dirname(os.path.abspath(__file__))
MISSING = [m for m in ('torch', 'transformers') if importlib.util.find_spec(m) is None]


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install .[hf]')
class Transformers(Case):
    def process(self, *command):
        return self.run_with(os.environ, *command).stdout

    def run_with(self, env, *command):
        done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=900, env=env)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done

    def test_a_new_process_restores_prefixes_bit_for_bit(self):
        self.assertIn('done', self.process(os.path.join(HERE, 'hf_process.py'), 'save', self.dir))
        self.assertIn('done', self.process(os.path.join(HERE, 'hf_process.py'), 'restore', self.dir))

    def test_a_prefix_is_restored_only_where_the_table_of_an_earlier_start_says_so(self):
        env, tokens = {**os.environ, 'TENUTO_SLACK_DIR': os.path.join(self.dir, 'slack')}, set()
        for role, told in (('learn', 'new'), ('slow', 'restored'), ('fast', 'restored')):
            done = self.run_with(env, os.path.join(HERE, 'hf_plan.py'), role, self.dir)
            self.assertRegex(done.stderr, rf'slack table: {self.dir}/slack/transformers-.*-plan-float32-3layers-.*\.slack \({told}\)')
            tokens.add(done.stdout)
        self.assertEqual(len(tokens), 1, tokens)

    def test_the_demo(self):
        said = self.process('-m', 'tenuto.demo', '--tokens', '600', '--layers', '2', '--threads', '1')
        self.assertIn('the same', said)


if __name__ == '__main__':
    main(__name__)
