# SPDX-License-Identifier: Apache-2.0
"""Nodes that have a secret and a store of objects in common, for tests of adapters. The store is in memory, and fails as it is told."""
import os
import subprocess
import sys
import time

from case import Case
from s3_servers import ACCESS_KEY, SECRET_KEY, Faulty

OWNER = '''
import sys, tenuto
options = dict(a.split('=', 1) for a in sys.argv[3:])
cache = tenuto.Cache(sys.argv[1], disk_bytes=64 << 20, serve=sys.argv[2], host_bytes=16 << 20, **options)
print('ready', flush=True)
sys.stdin.read()
cache.close()
'''


class Slow(dict):
    """Objects that come after so many seconds."""

    def __init__(self, objects, seconds):
        super().__init__(objects)
        self.seconds = seconds

    def get(self, *args):
        time.sleep(self.seconds)
        return super().get(*args)


class Nodes(Case):
    """Nodes that have a secret and a store of objects in common."""

    def setUp(self):
        super().setUp()
        os.environ.update(AWS_ACCESS_KEY_ID=ACCESS_KEY, AWS_SECRET_ACCESS_KEY=SECRET_KEY)
        self.server = Faulty()
        self.addCleanup(lambda: self.server and self.server.close())
        self.secret = os.path.join(self.dir, 'secret')
        with open(os.open(self.secret, os.O_WRONLY | os.O_CREAT, 0o600), 'w') as f:
            f.write('a secret that two nodes have in common\n')
        self.common = {'cluster_secret_file': self.secret, 'remote': f's3,bucket=blocks,endpoint={self.server.endpoint},prefix=kv,tries=1', 'offload': 'always'}

    def options(self, name):
        """Of an adapter whose engine owns its node's cache."""
        path = os.path.join(self.dir, name)
        os.makedirs(path, exist_ok=True)
        return {'path': path, 'serve': path + '.sock', 'disk_bytes': '64MiB', 'host_bytes': '16MiB', **self.common}

    def attached(self, name):
        """Of one whose node's cache another process owns."""
        path = os.path.join(self.dir, name)
        os.makedirs(path, exist_ok=True)
        owner = subprocess.Popen([sys.executable, '-c', OWNER, path, path + '.sock', *(f'{k}={v}' for k, v in self.common.items())], stdin=subprocess.PIPE,
                                 stdout=subprocess.PIPE)
        self.addCleanup(lambda: (owner.communicate(), owner.wait()))
        self.assertEqual(owner.stdout.readline(), b'ready\n')
        return {'socket': path + '.sock'}

    def uploaded(self, n):
        end = time.monotonic() + 10
        while len(self.server.objects) < n:
            self.assertLess(time.monotonic(), end, f'{len(self.server.objects)} of {n} objects are in the store')
            time.sleep(0.01)

    def change(self):
        """A byte of each object's first layer, behind its header."""
        self.good = dict(self.server.objects)
        for name, data in self.good.items():
            self.server.objects[name] = data[:4096] + bytes([data[4096] ^ 1]) + data[4097:]

    def replaced(self):
        """Who has computed the blocks again puts good objects in the place of changed ones."""
        end = time.monotonic() + 10
        while self.server.objects != self.good:
            self.assertLess(time.monotonic(), end, 'the changed objects are still there')
            time.sleep(0.01)

    def slow(self, seconds):
        self.server.server.objects = self.server.objects = Slow(self.server.objects, seconds)
