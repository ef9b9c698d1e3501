# SPDX-License-Identifier: Apache-2.0
"""Plugins of a wheel lie beside its library: the library finds them there, and so does its `tenuto`, in whatever directory both were installed."""
import json
import os
import subprocess
import sys
import unittest

import tenuto
from case import Case, main

PACKAGE = os.path.dirname(os.path.realpath(tenuto.__file__))
LIBRARY = os.path.join(PACKAGE, 'libtenuto.so')
PROGRAM = os.path.join(sys.prefix, 'bin', 'tenuto')


@unittest.skipUnless(os.path.exists(LIBRARY) and os.path.exists(PROGRAM), 'this package is not from a wheel')
class Plugins(Case):
    def setUp(self):
        super().setUp()
        self.environment = {k: v for k, v in os.environ.items() if k != 'TENUTO_PLUGIN_PATH'}

    def test_the_library_finds_what_lies_beside_it(self):
        # The directory first, then its plugins; of an entry only the beginning is looked at.
        code = ('import ctypes, sys; lib = ctypes.CDLL(sys.argv[1]); info = ctypes.create_string_buffer(16384); n = lib.tn_plugin_list(info, 8); '
                'print(n, info.raw[48:560].rstrip(bytes(1)).split(bytes(1))[0].decode())')
        n, path = self.python(code, LIBRARY, env=self.environment).split()
        self.assertEqual(os.path.realpath(path), PACKAGE)
        self.assertGreaterEqual(int(n), 2)

    def test_the_program_finds_the_same(self):
        done = subprocess.run([PROGRAM, 'doctor', '--json', self.dir], env=self.environment, capture_output=True, text=True, timeout=60, check=True)
        found = {f['name']: f for f in json.loads(done.stdout)['findings']}
        for name in ('plugin gds', 'plugin cuda'):
            self.assertIn(name, found, done.stdout)
            self.assertNotEqual(found[name]['state'], 'no', found[name])


if __name__ == '__main__':
    main(__name__)
