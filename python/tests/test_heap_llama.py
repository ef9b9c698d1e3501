# SPDX-License-Identifier: Apache-2.0
"""transformers: prompts computed in some processes are decoded in others, by way of the symmetric heap."""
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import case

setUpModule = case.own_heap_directory
MISSING = [m for m in ('torch', 'transformers', 'triton') if importlib.util.find_spec(m) is None]
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'heap_llama.py')


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install torch transformers triton')
class Llama(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.out = os.path.join(directory.name, 'tokens')

    def start(self, *args, **env):
        child = subprocess.Popen([sys.executable, *args], env={**os.environ, 'TRITON_INTERPRET': '1', **env}, start_new_session=True)
        self.addCleanup(lambda: child.poll() is None and os.killpg(child.pid, signal.SIGKILL))
        return child

    def decoded(self, *ranks):
        """By prompt: tokens, and how many the decoder fed."""
        found = {}
        for rank in ranks:
            with open(f'{self.out}-{rank}') as f:
                found.update((int(i), tuple(of)) for i, of in json.load(f).items())
        return found

    def test_decoders_say_what_one_process_says_without_computing_a_prompt(self):
        import heap_llama as llama
        run = self.start('-m', 'torch.distributed.run', '--standalone', '--nproc-per-node=4', SCRIPT, self.out, OMP_NUM_THREADS='1')
        model = llama.model()
        expected = {i: (llama.plain(model, i), llama.NEW - 1) for i in range(llama.PROMPTS + 1)}
        self.assertEqual(run.wait(240), 0)
        found = self.decoded(0, 1)
        canary = found.pop(llama.CANARY)
        self.assertNotEqual(canary, expected.pop(llama.CANARY))  # what lies in the heap is what is used
        self.assertEqual(found, expected)
        self.assertGreater(len({tuple(tokens) for tokens, _ in found.values()}), 10)  # the prompts matter

    def test_a_decoder_computes_for_itself_if_the_producer_dies_while_it_writes(self):
        import heap_llama as llama
        env = {'WORLD_SIZE': '2', 'MASTER_PORT': str(os.getpid()), 'TORCHELASTIC_RUN_ID': 'dies'}
        producer, decoder = (self.start(SCRIPT, self.out, '1', RANK=rank, **env) for rank in '10')
        self.assertEqual(producer.wait(200), -signal.SIGKILL)
        self.assertEqual(decoder.wait(200), 0)
        self.assertEqual(self.decoded(0), {0: (llama.plain(llama.model(), 0), llama.prompt(0).shape[1] + llama.NEW - 1)})


if __name__ == '__main__':
    case.main(__name__)
