# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python package share: a directory and a cache per test, other processes, TAP output.

Standard library only. PYTHONPATH names the package to test: that of a build directory, or none for one that is installed.
"""
import os
import random
import subprocess
import sys
import unittest
from unittest import mock

import tenuto
from tenuto import _scratch

LAYERS, OBJECT = 4, 8192
SEED = int(os.environ.get('TN_SEED') or 1)


def content(seed, n):
    """n bytes that depend on the seed."""
    return random.Random(f'{SEED} {seed}').randbytes(n)


def own_heap_directory():
    """As setUpModule: the sockets of this program's heaps lie in a directory that goes with it."""
    directory = _scratch.make()
    unittest.addModuleCleanup(_scratch.remove, directory)
    patch = mock.patch.dict(os.environ, XDG_RUNTIME_DIR=directory)
    patch.start()
    unittest.addModuleCleanup(patch.stop)


class Case(unittest.TestCase):
    """A directory on disk, and a cache in it with a space and a pool of raw blocks when asked for."""

    def setUp(self):
        self.dir = _scratch.make()
        self.addCleanup(_scratch.remove, self.dir)

    def open(self, path=None, **options):
        cache = tenuto.Cache(self.dir if path is None else path, disk_bytes=options.pop('disk_bytes', 32 << 20), **options)
        self.addCleanup(cache.close)
        return cache

    def raw(self, cache, npages=16, model='toy', **identity):
        """A space of raw blocks, and memory for some of them with its pool: block i is page i."""
        geometry = tenuto.Geometry.raw(LAYERS, OBJECT)
        space = cache.space(model, geometry, **identity)
        kv = bytearray(npages * geometry.block_bytes)
        return space, kv, cache.memory(kv).pool(geometry, npages=npages)

    def stored(self, space, kv, pool, n=4):
        """n blocks in the cache, which lie in the first pages. Returns their keys."""
        size = n * space.geometry.block_bytes
        kv[:size] = content('stored', size)
        keys = space.keys(range(n))
        result = space.save(keys, pool, range(n)).finish()
        self.assertEqual(result.stored + result.existing + result.host_only, n, result)
        return keys

    def python(self, code, *args, rc=0, timeout=120, **more):
        """Another interpreter; its output. A death by signal never passes."""
        done = subprocess.run([sys.executable, '-P', '-c', code, *args], capture_output=True, text=True, timeout=timeout, **more)
        self.assertEqual(done.returncode, rc, f'{done.stdout}\n{done.stderr}')
        self.assertNotIn('Traceback', done.stderr)
        return done.stdout


class _Tap(unittest.TestResult):
    def __init__(self):
        super().__init__()
        self.number, self.told = 0, None

    def _say(self, line):
        self.number += 1
        print(line, flush=True)

    @staticmethod
    def _name(test):
        return test.id().split('.')[-1].removeprefix('test_')

    def addSuccess(self, test):
        self._say(f'ok {self.number + 1} - {self._name(test)}')

    def addSkip(self, test, reason):
        self._say(f'ok {self.number + 1} - {self._name(test)} # SKIP {reason}')

    def _bad(self, test, error):
        print('# ' + self._exc_info_to_string(error, test).strip().replace('\n', '\n# '))
        self._say(f'not ok {self.number + 1} - {self._name(test)}')

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self._bad(test, err)

    def addError(self, test, err):
        super().addError(test, err)
        self._bad(test, err)


    def addSubTest(self, test, subtest, err):
        """A part that failed is told; its test is counted once, by the first of them."""
        super().addSubTest(test, subtest, err)
        if err and test is not self.told:
            self.told = test
            self._bad(test, err)
        elif err:
            print('# ' + self._exc_info_to_string(err, test).strip().replace('\n', '\n# '))


def main(name):
    """Runs the tests of a module, or those whose names are arguments."""
    module = sys.modules[name]
    suite = unittest.defaultTestLoader.loadTestsFromModule(module)
    chosen = [t for group in suite for t in group if not sys.argv[1:] or any(a in t.id() for a in sys.argv[1:])]
    print(f'# TN_SEED={SEED}\n1..{len(chosen)}')
    result = _Tap()
    unittest.TestSuite(chosen).run(result)
    sys.exit(0 if result.wasSuccessful() and result.number == len(chosen) else 1)
