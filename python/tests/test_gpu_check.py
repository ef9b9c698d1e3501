# SPDX-License-Identifier: Apache-2.0
"""scripts/gpu-check: what it does without a GPU, its test form, its time limits, and what it packs."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import types
import unittest
import zipfile

import tenuto
from case import Case, main

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
GPU_CHECK = os.path.join(ROOT, 'scripts', 'gpu-check')
MISSING = [m for m in ('torch', 'transformers') if importlib.util.find_spec(m) is None]
BUILD = os.path.join(ROOT, 'build')
WHEEL = os.environ.get('TN_WHEEL')
HANGS = '''
import argparse, subprocess, sys, time
parser = argparse.ArgumentParser()
for name in ('--out', '--seconds', '--pack'):
    parser.add_argument(name)
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'], stdout=subprocess.DEVNULL)
with open(parser.parse_args().out, 'w') as file:
    file.write('{"what": "begun", "child": %d}\\n{"what": "ha' % child.pid)
    file.flush()
    time.sleep(100)
'''


def module():
    """The program, as a module."""
    loader = importlib.machinery.SourceFileLoader('gpu_check', GPU_CHECK)
    made = importlib.util.module_from_spec(importlib.util.spec_from_loader('gpu_check', loader))
    loader.exec_module(made)
    return made


class GpuCheck(Case):
    def program(self, *args, rc=0, **more):
        done = subprocess.run([sys.executable, GPU_CHECK, *args], capture_output=True, text=True, timeout=280, cwd=self.dir, **more)
        self.assertEqual(done.returncode, rc, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def file(self, *path, text='', mode=0o755):
        path = os.path.join(self.dir, *path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    @unittest.skipIf(shutil.which('nvidia-smi'), 'there may be a GPU')
    def test_without_a_gpu_it_says_what_it_would_do(self):
        for args in (('--dry-run',), (), (self.dir, '--part', 'copies')):
            said = self.program(*args, rc=77)
            self.assertIn('GPU: none here', said)
            self.assertIn('copies: bench-cuda-copies', said)
            self.assertEqual('beside: ' in said, '--part' not in args)

    def test_what_it_would_do_with_one(self):
        self.file('bin', 'nvidia-smi', text='#!/bin/sh\necho "NVIDIA H100 80GB HBM3, 580.159.04, 81559 MiB"\n')
        env = {**os.environ, 'PATH': f'{self.dir}/bin:{os.environ["PATH"]}'}
        self.assertIn('GPU: NVIDIA H100 80GB HBM3, driver 580.159.04', self.program('--dry-run', env=env))
        self.assertIn('a directory of gpu-check --pack is wanted', self.program(rc=2, env=env))

    def packed(self):
        """A directory as --pack makes it, with this package, and programs that stand in for those of a build."""
        self.file('pack', 'bin', 'test-cuda-device', text='#!/bin/sh\necho "{\\"check\\": \\"copy\\", \\"ok\\": true}"\n')
        self.file('pack', 'bin', 'bench-cuda-copies', text='#!/bin/sh\necho a line; echo "{\\"gb_per_s\\": 12.5}"; echo "{\\"gb_per_s\\": 13}"\n')
        self.file('pack', 'bin', 'tenuto', text='#!/bin/sh\n[ "$1 $2" = "bench device" ] && echo "{\\"ratio\\": 0.95}"\n')
        self.file('pack', 'bin', 'test-gds-device', text='#!/bin/sh\necho "{\\"gds\\": \\"$(basename $2)\\"}"; exit 77\n')
        self.file('pack', 'revision', text='abc')
        os.mkdir(os.path.join(self.dir, 'pack', 'wheel'))
        with zipfile.ZipFile(os.path.join(self.dir, 'pack', 'wheel', 'tenuto-0-cp311-abi3-linux.whl'), 'w') as wheel:
            for top, _, names in os.walk(os.path.dirname(tenuto.__file__)):
                for name in names:
                    wheel.write(os.path.join(top, name), os.path.relpath(os.path.join(top, name), os.path.dirname(os.path.dirname(tenuto.__file__))))

    @unittest.skipIf(MISSING, f'{" and ".join(MISSING)} missing: pip install .[hf]')
    def test_all_parts_in_the_test_form(self):
        self.packed()
        self.program('pack', '--small', '--cpu', '--out', 'out')
        with open(os.path.join(self.dir, 'out', 'gpu.json'), encoding='utf-8') as file:
            told = json.load(file)
        rows = {name: [row['what'] for row in part['rows']] for name, part in told['parts'].items()}
        self.assertEqual({part['status'] for part in told['parts'].values()}, {0})
        self.assertEqual(list(rows), ['correctness', 'copies', 'first_token', 'beside'])
        self.assertEqual(told['revision'], 'abc')
        self.assertEqual(told['parts']['correctness']['rows'][0], {'what': 'test-cuda-device', 'good': True, 'status': 0, 'checks': ['copy'], 'bad': [], 'other': [], 'error': ''})
        self.assertEqual([row for row in told['parts']['copies']['rows'] if row['what'] in ('bench-cuda-copies', 'tenuto') and 'good' not in row],
                         [{'what': 'bench-cuda-copies', 'told': {'gb_per_s': 12.5}}, {'what': 'bench-cuda-copies', 'told': {'gb_per_s': 13}}, {'what': 'tenuto', 'told': {'ratio': 0.95}}])
        self.assertEqual([rows['correctness'].count(what) for what in ('tensors', 'tenuto.hf', 'streams', 'vLLM connector')], [12, 1, 2, 2])
        self.assertEqual([r for r in told['parts']['correctness']['rows'] if r['what'] == 'cufile'], [{'what': 'cufile', 'status': 77, 'told': [{'gds': 'libtenuto_gds.so'}], 'error': ''}])
        self.assertEqual(rows['copies'].count('objects'), 5)
        self.assertEqual([rows['first_token'].count(what) for what in ('run', 'summary', 'crossover', 'logits')], [14, 4, 2, 2])
        self.assertEqual(rows['beside'], ['matrix_product', 'copy_in_memory', 'end'])
        for part in told['parts'].values():
            self.assertNotIn(False, [row.get('good') for row in part['rows']])

    def test_a_part_that_hangs_is_ended_and_what_it_had_is_kept(self):
        program = module()
        program.ROOT = self.dir
        self.file('bench', 'gpu', 'hangs.py', text=HANGS)
        args = types.SimpleNamespace(out=self.dir, directory=None, cpu=False, small=False)
        with contextlib.redirect_stdout(io.StringIO()):
            told = program.run(program.Part('hangs', 2, 'nothing'), args, dict(os.environ), self.dir)
        self.assertEqual(told['status'], 'timeout')
        self.assertLess(told['seconds'], 60)
        self.assertEqual([row['what'] for row in told['rows']], ['begun'])
        with self.assertRaises(ProcessLookupError):  # its children, too
            for _ in range(500):
                os.kill(told['rows'][0]['child'], 0)
                with open(f'/proc/{told["rows"][0]["child"]}/stat', encoding='ascii') as file:
                    if file.read().split()[2] == 'Z':  # of nobody who waits for it
                        raise ProcessLookupError

    def test_what_cannot_be_packed_is_said(self):
        self.file('build', 'a', 'test-cuda-device')
        self.assertIn('bench-cuda-copies is not in', self.program('--pack', 'new', '--build', 'build', rc=1))
        self.assertIn('is not empty', self.program('--pack', 'build', rc=1))
        program, path = module(), self.file('newer', text='GLIBC_2.17 GLIBC_2.38')
        with self.assertRaisesRegex(SystemExit, 'wants glibc 2.38'):
            program.check_glibc(path)

    @unittest.skipUnless(WHEEL, 'no wheel: scripts/python_test.sh has one')
    def test_a_pack_has_all_that_a_machine_needs(self):
        if not os.path.exists(os.path.join(BUILD, 'tests', 'cuda', 'bench-cuda-copies')):
            raise unittest.SkipTest('the programs for a GPU are not built: make build')
        self.assertIn('MiB', self.program('--pack', 'pack', '--wheel', WHEEL))
        self.assertLessEqual({'bench-cuda-copies', 'tenuto', 'test-cuda-device'}, set(os.listdir(os.path.join(self.dir, 'pack', 'bin'))))
        self.assertIn('libtenuto_cuda.so', os.listdir(os.path.join(self.dir, 'pack', 'plugin')))
        if not MISSING:  # the wheel is the one that runs
            said = self.program('pack', '--small', '--cpu', '--part', 'beside', '--out', 'out')
            self.assertIn('passed', said)


if __name__ == '__main__':
    main(__name__)
