#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program on a raw namespace: boots QEMU as run.py does, with `tenuto` and the cache's tests in the initramfs, and runs there (program_init.sh) format and
its refusals, also of drives that are in use, the tests, demo and replay. TAP.

Usage: program.py WORKDIR TENUTO TEST... --long TEST... Those after --long run in the long form only (TN_SOAK=1). The trace of the replay is TN_TRACE, or
shared/traces/conversation.jsonl beside the checkout; without it that part is skipped.
"""
import collections
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import threading
import time

import run as base

TIMEOUT_S = 21600 if base.LONG else 350
TEST_S = 3600 if base.LONG else 100
REQUESTS = 600
GEOMETRY = '2x4KiB'
CAPACITY_BLOCKS = 20000
NVME_MODULES = ['nvme', 'ext4', 'crc32c_generic', 'linear']
SECTOR = 512


def trace():
    given = os.environ.get('TN_TRACE')
    path = pathlib.Path(given) if given else pathlib.Path(__file__).resolve().parents[2].parent / 'shared/traces/conversation.jsonl'
    return path if path.is_file() else None


def with_needed(names, modules):
    """Files of these modules, each after those that it needs."""
    files = {p.stem.replace('-', '_'): p for p in modules.rglob('*.ko')}
    order = []

    def add(name):
        path = files[name.replace('-', '_')]
        needed = re.search(rb'\0depends=([^\0]*)\0', path.read_bytes())
        for other in needed.group(1).decode().split(',') if needed else []:
            if other:
                add(other)
        if path not in order:
            order.append(path)

    for name in names:
        add(name)
    return order


def initramfs(programs, tests, modules, work, seed):
    nvme = with_needed(NVME_MODULES, modules)
    settings = {'VFIO_MODULES': ' '.join(m.split('/')[-1] for m in base.MODULES), 'NVME_MODULES': ' '.join(m.stem for m in nvme), 'TESTS': ' '.join(tests),
                'SEED': seed, 'TEST_SECONDS': TEST_S, 'REQUESTS': REQUESTS, 'GEOMETRY': GEOMETRY, 'CAPACITY_BLOCKS': CAPACITY_BLOCKS}
    with base.scratch.directory(work) as tmp:
        tree = pathlib.Path(tmp)
        for d in ('bin', 'modules'):
            (tree / d).mkdir()
        shutil.copy(shutil.which('busybox'), tree / 'bin/busybox')
        for program in programs:
            subprocess.run(['strip', '-o', tree / program.name, program], check=True)
            for library in base.libraries(program):
                (tree / library.relative_to('/').parent).mkdir(parents=True, exist_ok=True)
                shutil.copy(library, tree / library.relative_to('/'))
        for m in [modules / f'{m}.ko' for m in base.MODULES] + nvme:
            shutil.copy(m, tree / 'modules')
        if trace():
            with open(trace(), 'rb') as f:
                (tree / 'trace.jsonl').write_bytes(b''.join(line for line, _ in zip(f, range(REQUESTS))))
        (tree / 'settings').write_text(''.join(f'{name}="{value}"\n' for name, value in settings.items()))
        shutil.copy(pathlib.Path(__file__).resolve().parent / 'program_init.sh', tree / 'init')
        (tree / 'init').chmod(0o755)
        return base.packed(tree, work / 'program-initramfs')


def image(work, name, size, content=b''):
    path = work / f'program-{name}.img'
    path.unlink(missing_ok=True)
    with open(path, 'wb') as f:
        f.truncate(size)
        f.write(content)
    return ['-drive', f'file={path},if=none,id={name},format=raw,cache=unsafe']


def drive(work, name, options, content=b''):
    return [*image(work, name, 4 << 30, content), '-device', f'nvme,drive={name},serial={name},{options}']


def used_drive(work):
    """Three partitions. It is one of those that can have several paths, so its disk's name in sysfs is none of the controller's."""
    parts = b''.join(struct.pack('<B3xB3xII', 0, 0x83, 2048 + i * 32768, 32768) for i in range(3))
    table = bytes(446) + parts + bytes(16) + b'\x55\xaa'
    return [*image(work, 'used', 64 << 20, table), '-device', 'nvme-subsys,id=paths', '-device', 'nvme,serial=used,subsys=paths', '-device', 'nvme-ns,drive=used']


def steps(output):
    """{name: (exit status, output, seconds)} of what ran in the machine."""
    found = {}
    for name, at, text, rc, to in re.findall(r'begin (\S+) ([\d.]+)$(.*?)^end \1 (\d+) ([\d.]+)$', output, re.S | re.M):
        found[name] = (int(rc), text, float(to) - float(at))
    return found


def judge(ran, tests):
    """[(name, None or what is wrong)]"""
    def of(name, status, *words):
        rc, text, _ = ran.get(name, (None, 'did not come to its end', 0))
        if rc == status and all(re.search(w, text) for w in words):
            return None
        return f'exit status {rc}, {status} and {" ".join(words)} expected: {text.strip()[-1500:]}'

    out = [('format says how to bind a drive that is not bound', of('refused', 3, 'no driver has it', 'driver_override')),
           ('a drive of the kernel is not taken, and how to bind it is said', of('claim-driver', 3, r'driver nvme has it, as /dev/nvme\d+n1:', 'driver_override')),
           ('one with a file system that is mounted neither, whatever serial number is given', of('claim-mounted', 3, r'/dev/nvme\d+n1p1 is mounted at /mnt')),
           ('one that is mounted where this process does not see it neither', of('claim-held', 3, r'/dev/nvme\d+n1 is in use: somebody has it open')),
           ('doctor says that it is mounted', of('claim-doctor', 0, r'raw NVMe: /dev/nvme\d+n1p1 is mounted at /mnt: take another drive')),
           ('a cache does not open on it', of('claim-cache', 3, r'/dev/nvme\d+n1p1 is mounted at /mnt: take another drive')),
           ('one with swap space neither', of('claim-swap', 3, r'/dev/nvme\d+n1p2 is swap space')),
           ('one that is part of a RAID neither', of('claim-raid', 3, r'/dev/nvme\d+n1p3 is part of /dev/md0')),
           ('one that holds btrfs, which may be mounted without its saying so, neither', of('claim-btrfs', 3, r'/dev/nvme\d+n1p2 holds btrfs, in use or not')),
           ('one that holds a label of ZFS neither', of('claim-zfs', 3, r'/dev/nvme\d+n1p3 holds ZFS, in use or not')),
           ('once it is used no more it is one of the kernel', of('claim-free', 3, 'driver nvme has it', 'driver_override')),
           ('bound as is said, doctor says that all can be used', of('doctor', 0, r'(raw NVMe +yes +0000.*\n.*){2}raw NVMe +yes +0000')),
           ('partitions are not written over', of('used', 1, 'serial number used')),
           ('a drive with a partition table is not taken', of('foreign', 1, 'serial number large')),
           ('unless its serial number is given', of('forced', 0)),
           ('an empty drive is made ready', of('format', 0))]
    out += [(f'{t} on a raw namespace', of(t, 0, r'(?m)^ok |^1\.\.0 # SKIP')) for t in tests]
    out += [('demo on a raw namespace, killed in the middle: no wrong byte', of('demo', 0, r'"corrupt_objects": 0\b', r'"recovered_blocks": [1-9]'))]
    if not trace():
        return out + [('replay of the conversation trace # SKIP there is no such file: TN_TRACE names it', None)]
    return out + [(f'replay of {REQUESTS} requests on two namespaces: no wrong byte',
                   of('replay', 0, r'"wrong_objects": 0\b', fr'"requests": {REQUESTS}\b')),
                  ('store info tells of both', of('info', 0, '(?s)1 of 2.*2 of 2')),
                  ('store verify finds nothing bad', of('verify', 0, 'nothing')),
                  ('store check finds no problem', of('check', 0, '0 problems'))]


def tell(ran, tests):
    """What ran on the namespace, and why what did not."""
    total = on_it = 0
    reasons = collections.Counter()
    for name in tests:
        text = ran.get(name, (0, '', 0))[1]
        cases, caches = len(re.findall(r'^ok ', text, re.M)), sum(map(int, re.findall(r'^# namespace: (\d+) caches', text, re.M)))
        why = re.findall(r'^(?:1\.\.0 )?# SKIP (?:\w+: )?(.*)$', text, re.M)
        reasons.update(why)
        total += cases - min(len(why), cases)
        on_it += caches
        print(f'# {name}: {cases - min(len(why), cases)} ran, {len(why)} skipped; {caches} caches on the namespace')
    print(f'# {len(tests)} programs: {total} tests ran, {sum(reasons.values())} skipped; {on_it} caches on the namespace')
    for why, n in reasons.most_common():
        print(f'# skipped {n}: {why}')


def boot(command, log, path):
    """Until the machine has switched itself off. Returns the number of commands that its controllers have done."""
    commands = 0
    path.unlink(missing_ok=True)
    command = [*command, '-qmp', f'unix:{path},server=on,wait=off', '-action', 'shutdown=pause']
    with open(log, 'wb') as out, subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT) as vm:
        timer = threading.Timer(TIMEOUT_S, vm.kill)
        timer.start()
        while not path.exists() and vm.poll() is None:
            time.sleep(0.1)
        if path.exists():
            qmp = base.Qmp(path)
            while (event := qmp.wait('event')[1]) not in ('SHUTDOWN', None):
                pass
            if event:
                commands = count(qmp.ask('query-blockstats'))
            else:
                print(f'# the machine did not end in {TIMEOUT_S} s')
        vm.kill()
        timer.cancel()
    return commands


def count(drives):
    """Tells of the reads and writes that QEMU's controllers have counted (they count no others), and returns how many. Nothing here injects a fault."""
    commands = total = 0
    for d in drives:
        if d['device'] in ('small', 'large', 'used'):
            n = [d['stats'][f'{kind}_operations'] for kind in ('rd', 'wr')]
            commands += sum(n)
            total += d['stats']['rd_bytes'] + d['stats']['wr_bytes']
            print(f'# drive {d["device"]}: {n[0]} reads, {n[1]} writes')
    print(f'# {commands} commands, {total} bytes moved, 0 injected faults')
    return commands


def main():
    work = pathlib.Path(sys.argv[1]).resolve()
    given = sys.argv[2:]
    split = given.index('--long') if '--long' in given else len(given)
    programs = [pathlib.Path(p).resolve() for p in given[:split] + (given[split + 1:] if base.LONG else [])]
    tests = [p.name for p in programs[1:]]
    for tool in ('qemu-system-x86_64', 'busybox', 'cpio', 'apt-get', 'dpkg', 'strip'):
        if not shutil.which(tool):
            base.skip(f'{tool} is not there (make setup)')
    work.mkdir(parents=True, exist_ok=True)
    kernel, modules = base.kernel(work)
    table = bytes(510) + b'\x55\xaa'
    command = ['qemu-system-x86_64', '-M', 'q35,kernel-irqchip=split', '-accel', 'tcg,thread=multi', '-smp', '2', '-cpu', 'max', '-m', '3G', '-nographic',
               '-no-reboot', '-device', 'intel-iommu,intremap=on,caching-mode=on',
               *drive(work, 'small', 'max_ioqpairs=8,mdts=5,logical_block_size=512'),
               *drive(work, 'large', 'max_ioqpairs=2,mdts=7,logical_block_size=4096,physical_block_size=4096', table),
               *used_drive(work),
               '-kernel', kernel, '-initrd', initramfs(programs, tests, modules, work, os.environ.get('TN_SEED', '1')),
               '-append', 'console=ttyS0 quiet intel_iommu=on no_timer_check panic=1']
    log = work / 'program.log'  # can be watched
    commands = boot(command, log, work / 'program-qmp')
    ran = steps(log.read_text(errors='replace').replace('\r', ''))
    results = judge(ran, tests) + [('the machine ends, and its controllers have done commands', None if commands else 'none')]
    for name, (_, _, seconds) in ran.items():
        print(f'# {name}: {seconds:.1f} s')
    tell(ran, tests)
    for i, (name, wrong) in enumerate(results, 1):
        print(f'{"not ok" if wrong else "ok"} {i} - {name}')
        if wrong:
            print('\n'.join(f'# {line}' for line in wrong.splitlines()))
    print(f'1..{len(results)}')
    return any(wrong for _, wrong in results)


if __name__ == '__main__':
    sys.exit(main())
