# SPDX-License-Identifier: Apache-2.0
"""transformers: prompts computed in some processes are decoded in others, by way of the symmetric heap."""
import importlib.util
import json
import os
import signal
import tempfile
import traceback
import unittest
from unittest import mock

import case

setUpModule = case.own_heap_directory
MISSING = [m for m in ('torch', 'transformers', 'triton') if importlib.util.find_spec(m) is None]


@unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install torch transformers triton')
class Llama(unittest.TestCase):
    """The ranks are forked from this process, which has imported torch and transformers: importing them takes longer than all the rest."""

    def setUp(self):
        import heap_llama
        self.llama = heap_llama
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.out = os.path.join(directory.name, 'tokens')

    def fork(self, *args, **env):
        """A rank; its number."""
        pid = os.fork()
        if pid == 0:
            try:
                os.environ.update(env)
                signal.alarm(200)
                self.llama.main(*args)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        return pid

    def decoded(self, *ranks):
        """By prompt: tokens, and how many the decoder fed."""
        found = {}
        for rank in ranks:
            with open(f'{self.out}-{rank}') as f:
                found.update((int(i), tuple(of)) for i, of in json.load(f).items())
        return found

    def test_decoders_say_what_one_process_says_without_computing_a_prompt(self):
        from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # what torchrun runs
        llama, model = self.llama, self.llama.model()
        expected = {i: (llama.plain(model, i), llama.NEW - 1) for i in range(llama.PROMPTS + 1)}
        config = LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=4, run_id='heap', rdzv_backend='c10d', rdzv_endpoint='localhost:0', max_restarts=0,
                              monitor_interval=.05, start_method='fork')
        with mock.patch.dict(os.environ, OMP_NUM_THREADS='1'):
            elastic_launch(config, llama.main)(self.out)
        found = self.decoded(0, 1)
        canary = found.pop(llama.CANARY)
        self.assertNotEqual(canary, expected.pop(llama.CANARY))  # what lies in the heap is what is used
        self.assertEqual(found, expected)
        self.assertGreater(len({tuple(tokens) for tokens, _ in found.values()}), 10)  # the prompts matter

    def test_a_decoder_computes_for_itself_if_the_producer_dies_while_it_writes(self):
        llama = self.llama
        env = {'WORLD_SIZE': '2', 'MASTER_PORT': str(os.getpid()), 'TORCHELASTIC_RUN_ID': 'dies'}
        producer, decoder = (self.fork(self.out, 1, RANK=rank, **env) for rank in '10')
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(producer, 0)[1]), -signal.SIGKILL)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(decoder, 0)[1]), 0)
        self.assertEqual(self.decoded(0), {0: (llama.plain(llama.model(), 0), llama.prompt(0).shape[1] + llama.NEW - 1)})


if __name__ == '__main__':
    os.environ['TRITON_INTERPRET'] = '1'  # before triton is imported
    case.main(__name__)
