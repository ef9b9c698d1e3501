# SPDX-License-Identifier: Apache-2.0
"""The ends of things: caches closed under their users, interpreters that end in the middle, forks, owners that die. Never a crash."""
import os
import signal
import subprocess
import sys
import threading
import time

import tenuto
from tenuto import _scratch
from case import LAYERS, Case, main

# What other processes begin with: a cache, a space, a pool, and blocks in it.
BEGIN = '''
import os, sys, threading, tenuto
cache = tenuto.Cache(sys.argv[1], disk_bytes=32 << 20)
geometry = tenuto.Geometry.raw(4, 8192)
space = cache.space('toy', geometry)
kv = bytearray(os.urandom(64 * geometry.block_bytes))
pool = cache.memory(kv).pool(geometry, npages=64)
keys = space.keys(range(16))
space.save(keys, pool, range(16)).finish()
'''


class Scratch(Case):
    def test_what_a_killed_process_leaves_the_next_one_removes_and_nothing_else(self):
        base, links = os.path.join(self.dir, 'base'), os.path.join(self.dir, 'outside')
        os.mkdir(base)
        os.mkdir(links)
        code = 'import os, sys\nfrom tenuto import _scratch\nd = _scratch.make(sys.argv[1])\nos.mkdir(d + "/store")\nos.symlink(sys.argv[2], d + "/store/link")\n' \
            'print(d, flush=True)\nsys.stdin.read()'
        runs = [subprocess.Popen([sys.executable, '-P', '-c', code, base, links], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        killed, running = (run.stdout.readline().strip() for run in runs)
        stays = [running, os.path.join(base, _scratch.NAME + 'unmarked'), os.path.join(base, 'other'), os.path.join(base, _scratch.NAME + 'link')]
        os.mkdir(stays[1])
        os.mkdir(stays[2])
        os.close(os.open(os.path.join(stays[2], _scratch.MARK), os.O_CREAT, 0o600))
        os.symlink(stays[2], stays[3])
        try:
            with _scratch.directory(base):
                self.assertTrue(os.path.isdir(killed))
            runs[0].kill()
            runs[0].wait()
            with _scratch.directory(base) as own:
                self.assertEqual(sorted(os.path.join(base, name) for name in os.listdir(base)), sorted([*stays, own]))
            self.assertEqual(sorted(os.path.join(base, name) for name in os.listdir(base)), sorted(stays))
            self.assertTrue(os.path.isdir(os.path.join(running, 'store', 'link')))
        finally:
            for run in runs:
                run.kill()
                run.communicate()


class Closed(Case):
    def test_a_close_ends_what_others_wait_for(self):
        cache = self.open()
        space, _, pool = self.raw(cache)
        save, event = space.save(space.keys([1]), pool, [0]), cache.event()
        for layer in range(LAYERS):
            save.layer(layer, event, 1)
        save.commit()
        caught, inside = [], threading.Event()

        def wait():
            inside.set()
            try:
                save.end()
            except tenuto.Error as e:
                caught.append(e)

        waiter = threading.Thread(target=wait)
        waiter.start()
        inside.wait()
        event.raise_to(1)
        cache.close()
        waiter.join(60)
        self.assertFalse(waiter.is_alive())
        self.assertTrue(all(isinstance(e, tenuto.Closed) for e in caught))

    def test_everything_of_a_closed_cache_says_closed(self):
        cache = self.open()
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        found = space.match(keys, pin=True)
        load, save = space.load(keys, pool, range(4, 8)), space.save(space.keys([50]), pool, [9])
        event = cache.event()
        cache.close()
        cache.close()
        kv.extend(b'the memory is free again')
        for call in (lambda: space.match(keys), lambda: space.keys([1]), lambda: space.load(keys, pool, range(4)), load.wait, load.poll, load.cancel,
                     save.commit, save.abort, lambda: event.raise_to(1), lambda: event.address, lambda: space.index, cache.stats, cache.flush, cache.eventfd,
                     cache.completions, cache.devices, cache.sessions, cache.snapshot, cache.event, lambda: cache.memory(kv),
                     lambda: tenuto.match_all([space], keys), lambda: cache.space('x', space.geometry), lambda: pool.memory.pool(space.geometry, npages=1)):
            with self.assertRaises(tenuto.Closed):
                call()
        found.unpin()
        pool.close()
        space.close()
        self.assertTrue(load.ended and save.ended)

    def test_objects_may_go_in_any_order(self):
        cache = tenuto.Cache(self.dir, disk_bytes=32 << 20)
        space, kv, pool = self.raw(cache)
        keys = self.stored(space, kv, pool)
        load, save = space.load(keys, pool, range(4, 8)), space.save(space.keys([50]), pool, [9])
        found = space.match(keys, pin=True)
        del cache, space, pool, load, save, found
        kv.extend(b'x')
        with self.open() as cache:
            self.assertEqual(self.raw(cache)[0].match(keys).blocks, 4)


    def test_two_threads_close_it(self):
        self.python(BEGIN + '''
import time
event = cache.event()
save = space.save(space.keys([99]), pool, [0])
for layer in range(4):
    save.layer(layer, event, 1)
save.commit()
del save  # under way, and nobody's
closers = [threading.Thread(target=cache.close) for _ in range(4)]
for t in closers:
    t.start()
time.sleep(0.1)
assert all(t.is_alive() for t in closers)
event.raise_to(1)
for t in closers:
    t.join()
''', self.dir)

    def test_what_a_close_ends_may_be_dropped_meanwhile(self):
        self.python('''
import os, sys, threading, tenuto
geometry = tenuto.Geometry.raw(4, 8192)
kv = bytearray(64 * geometry.block_bytes)
for n in range(20):
    cache = tenuto.Cache(sys.argv[1], disk_bytes=32 << 20)
    space, pool = cache.space('toy', geometry), cache.memory(kv).pool(geometry, npages=64)
    loads = [space.load(space.keys(range(16)), pool, range(16))]
    del pool  # the load has it, and closing lets go of it
    closer = threading.Thread(target=cache.close)
    closer.start()
    while not loads[0].ended:
        pass
    loads.clear()
    closer.join()
''', self.dir, env={**os.environ, 'MALLOC_PERTURB_': '165'})  # freed memory is overwritten


class Interpreters(Case):
    def test_an_interpreter_ends_with_loads_and_saves_under_way(self):
        for how in ('', 'sys.exit(0)', 'space.me = (load, save)', 'raise SystemExit'):
            self.python(BEGIN.replace("space = cache.space", "class Space(tenuto.Space): pass\nspace = (lambda *a: Space(cache, *a))") + '''
loads = [space.load(keys, pool, range(16 * i, 16 * i + 16)) for i in range(1, 4)]
load, save = loads[0], space.save(space.keys([99]), pool, [0])
save.layer(0)
keep = [cache, space, pool]
keep.append(keep)
''' + how, self.dir)
        with self.open() as cache:  # and was closed in order: all is there
            space = self.raw(cache)[0]
            self.assertEqual(space.match(space.keys(range(16))).blocks, 16)

    def test_an_interpreter_ends_while_other_threads_wait(self):
        self.python(BEGIN + '''
event = cache.event()
save = space.save(space.keys([99]), pool, [0])
for layer in range(4):
    save.layer(layer, event, 1)
save.commit()
def ender():
    try:
        save.end()
    except tenuto.Closed:
        pass
def loader():
    try:
        while True:
            space.load(keys, pool, range(16, 32)).finish()
    except tenuto.Closed:
        pass
for t in (ender, loader):
    threading.Thread(target=t, daemon=True).start()
threading.Event().wait(0.05)
event.raise_to(1)
''', self.dir)

    def test_a_fork_uses_nothing_of_its_parent(self):
        said = self.python(BEGIN + '''
load = space.load(keys, pool, range(16, 32))
sys.stdout.flush()
pid = os.fork()
if pid == 0:
    for call in (lambda: space.match(keys), lambda: space.load(keys, pool, range(16)), load.wait, cache.flush, cache.stats):
        try:
            call()
            print('nothing raised')
        except tenuto.Forked:
            pass
    del load
    cache.close()
    with tenuto.Cache(sys.argv[1], instance='child', disk_bytes=8 << 20) as own:
        own.space('toy', geometry)
    print('child')
    sys.exit(0)
print('status', os.waitpid(pid, 0)[1], 'good', load.finish())
''', self.dir)
        self.assertEqual(said.split(), ['child', 'status', '0', 'good', '16'])

    def test_a_signal_ends_a_wait(self):
        self.python(BEGIN + '''
import signal, time
event = cache.event()
save = space.save(space.keys([99]), pool, [0])
for layer in range(4):
    save.layer(layer, event, 1)
save.commit()
waits = threading.Event()
def interrupt():
    waits.wait()
    time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    waits.set()
    save.end()
    print('ended')
except KeyboardInterrupt:
    event.raise_to(1)
    assert save.end().stored == 1
''', self.dir)

    def test_import_is_light(self):
        said = self.python('''
import sys
before = set(sys.modules)
import tenuto, threading
print(*sorted({m.split('.')[0] for m in set(sys.modules) - before} & {'numpy', 'torch', 'transformers', 'asyncio', 'logging', 'matplotlib', 'json', 'ctypes'}))
assert threading.active_count() == 1
''')
        self.assertEqual(said.split(), [])


class Attached(Case):
    def setUp(self):
        super().setUp()
        self.socket = os.path.join(self.dir, 's')
        self.owner = subprocess.Popen([sys.executable, '-P', '-c', BEGIN.replace('32 << 20)', '32 << 20, max_ops=32, serve=sys.argv[2])') + '''
print('ready', flush=True)
sys.stdin.read()
''', self.dir, self.socket], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.addCleanup(self.owner.wait)
        self.addCleanup(self.owner.stdout.close)
        self.addCleanup(self.owner.stdin.close)
        self.assertEqual(self.owner.stdout.readline(), b'ready\n')

    def test_an_attached_process_makes_the_same_calls(self):
        for cache in (tenuto.attach(self.socket), tenuto.attach_store(self.dir)):
            with cache:
                space, _, pool = self.raw(cache, 16)
                keys = space.keys(range(16))
                self.assertEqual(space.match(keys, pin=True).blocks, 16)
                self.assertEqual(space.load(keys, pool, range(16)).finish(), 16)
                self.assertEqual(cache.owner()['pid'], self.owner.pid)
                for _ in range(200):  # more leases than a process can have
                    other = cache.space('toy', space.geometry)
                    lease = other.match(keys, pin=True)
                    other.close()
                    lease.unpin()
                mine = tenuto.Buffer(2 * space.geometry.block_bytes)
                shared = cache.memory(mine).pool(space.geometry, npages=2)
                result = space.save(space.keys([77]), shared, [0]).finish()
                self.assertEqual(result.stored + result.existing, 1)
                self.assertEqual(space.load(space.keys([77]), shared, [1]).finish(), 1)

    def test_an_owner_that_dies_is_an_exception_and_loads_are_misses(self):
        cache = tenuto.attach(self.socket)
        self.addCleanup(cache.close)
        space, _, pool = self.raw(cache, 16)
        keys = space.keys(range(16))
        load = space.load(keys, pool, range(16))
        load.wait()
        save = space.save(space.keys([99]), pool, [0]) if load.finish() == 16 else None
        os.kill(self.owner.pid, signal.SIGKILL)
        self.owner.wait()
        with self.assertRaises(tenuto.OwnerGone):
            while True:
                space.match(keys)
        with self.assertRaises(tenuto.OwnerGone):
            space.load(keys, pool, range(16))
        with self.assertRaises(tenuto.Error):
            save.finish()
        cache.close()
        with self.assertRaises(tenuto.Error):
            tenuto.attach(self.socket)

    def test_a_close_waits_for_what_other_threads_give_back(self):
        """The owner stands still: one thread is inside the end of an object, and another one closes the cache."""
        for what in ("held['space'] = cache.space('toy', geometry)",
                     "held['memory'] = cache.memory(tenuto.Buffer(4 * geometry.block_bytes))",
                     "held['pool'] = cache.memory(bytearray(4 * geometry.block_bytes)).pool(geometry, npages=4)",
                     "held['client'] = _core.ObjectClient(); held['client'].bind(cache)"):
            with self.subTest(what):
                said = self.python('''
import glob, os, signal, sys, threading, time, tenuto
from tenuto import _core
def stands_still():
    return all(open(path).read().rpartition(')')[2].split()[0] == 'T' for path in glob.glob(f'/proc/{sys.argv[2]}/task/*/stat'))
cache, geometry, held = tenuto.attach(sys.argv[1]), tenuto.Geometry.raw(4, 8192), {}
def drop():
    again = 'client' in held
    held.clear()
    if again:  # likely in the place of the one before
        held['client'] = _core.ObjectClient()
''' + what + '''
os.kill(int(sys.argv[2]), signal.SIGSTOP)
try:
    while not stands_still():
        time.sleep(0.001)
    if 'client' in held:
        held['client'].submit_batch_exists(['m@0@0@aa'])
        time.sleep(0.5)  # a thread of it asks the owner
    drops, closes = threading.Thread(target=drop), threading.Thread(target=cache.close)
    for t in drops, closes:
        t.start()
        time.sleep(0.2)
    print(drops.is_alive(), closes.is_alive())
finally:
    os.kill(int(sys.argv[2]), signal.SIGCONT)
drops.join()
closes.join()
for client in held.values():
    client.counts()
''', self.socket, str(self.owner.pid))
                self.assertNotEqual(said.split(), ['True', 'False'])

    def test_a_close_that_the_owner_does_not_answer_is_made_again(self):
        """Twelve seconds: calls wait ten for an owner that stands still."""
        watch = tenuto.attach(self.socket)
        self.addCleanup(watch.close)
        before = watch.owner()['sessions']
        cache = tenuto.attach(self.socket)
        space, kv, dropped = self.raw(cache)
        pool = dropped.memory.pool(space.geometry, npages=4)
        os.kill(self.owner.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.owner.pid, os.WSTOPPED)
        try:
            del dropped
            with self.assertRaises(tenuto.Timeout):
                pool.close()
            with self.assertRaises(tenuto.Timeout):
                cache.close()
            self.assertTrue(cache.closed)
            with self.assertRaises(BufferError):
                kv.extend(b'the owner may still read it')
        finally:
            os.kill(self.owner.pid, signal.SIGCONT)
        self.until(lambda: self.closes(cache))
        kv.extend(b'the memory is free again')
        cache.close()
        self.until(lambda: watch.owner()['sessions'] == before)

    @staticmethod
    def closes(cache):
        try:
            cache.close()
        except tenuto.Timeout:
            return False
        return True

    def until(self, holds):
        end = time.monotonic() + 60
        while not holds():
            self.assertLess(time.monotonic(), end, 'it never holds')
            time.sleep(0.02)

    def test_nobody_serves_there(self):
        with self.assertRaises(tenuto.NotFound):
            tenuto.attach(os.path.join(self.dir, 'none'))
        with self.assertRaises(OSError):
            tenuto.attach('x' * 200)


if __name__ == '__main__':
    main(__name__)
