#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults of QEMU's NVMe controllers: several queue pairs at once, a medium with errors (blkdebug), an unplug while requests are under way (QMP), and stores
whose writes and flushes are logged (blklogwrites) so that the power can be cut afterwards at any of them (replay.c).

Usage: run_faults.py GUEST REPLAY WORKDIR. Skipped, with the reason, where QEMU or the kernel is not there.
"""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

import run

MIB = 1 << 20
SECTOR = 512
VOLUME_DATA = 65536
LOGGED_BYTES = 8 * MIB
TIMEOUT_S = 250
TRIES = 4  # QEMU 7.2 sometimes crashes when a controller is unplugged that has commands under way


def image(work, name, size):
    path = work / f'{name}.img'
    path.unlink(missing_ok=True)
    with open(path, 'wb') as f:
        f.truncate(size)
    return {'driver': 'raw', 'file': {'driver': 'file', 'filename': str(path), 'cache': {'no-flush': True}}}


def error(kind, at=None, once=False):
    rule = {'event': 'none', 'iotype': kind, 'errno': 5, 'once': once}
    return rule if at is None else {**rule, 'sector': at // SECTOR}


def bad(node):
    """Where guest_bad.c expects them: in each MiB of the file at 0, and in the segments of the store at 16 MiB."""
    rules = [error('flush', once=True)]
    for i in range(4):
        rules += [error('read', VOLUME_DATA + i * MIB + 3 * SECTOR), error('write', VOLUME_DATA + i * MIB + 1033 * SECTOR)]
    store = 16 * MIB + VOLUME_DATA + MIB
    for i in range(24):
        rules += [error('read', store + i * (MIB >> 3) + 5 * SECTOR)]
    for i in range(6):
        rules += [error('write', store + i * (MIB >> 1) + 100 * 1024)]
    return {'driver': 'blkdebug', 'image': node, 'inject-error': rules}


def logged(node, log):
    log.write_bytes(b'')
    return {'driver': 'blklogwrites', 'file': node, 'log': {'driver': 'file', 'filename': str(log)}, 'log-sector-size': SECTOR,
            'log-super-update-interval': 1}


def controller(name, node, options):
    return ['-blockdev', json.dumps({**node, 'node-name': name}), '-device', f'nvme,drive={name},serial={name},{options}']


def machine(guest, work, seed, qmp, logs):
    kernel, modules = run.kernel(work.parent)
    large = 'logical_block_size=4096,physical_block_size=4096'
    return ['qemu-system-x86_64', '-M', 'q35,kernel-irqchip=split', '-accel', 'tcg', '-cpu', 'max', '-m', '1G', '-nographic', '-no-reboot',
            '-qmp', f'unix:{qmp},server=on,wait=off', '-global', 'ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off',
            '-device', 'intel-iommu,intremap=on,caching-mode=on',
            *controller('small', image(work, 'small', 64 * MIB), 'max_ioqpairs=8,mdts=5,logical_block_size=512'),
            *controller('large', image(work, 'large', 64 * MIB), f'max_ioqpairs=2,mdts=7,{large}'),
            *controller('bad', bad(image(work, 'bad', 64 * MIB)), 'max_ioqpairs=2,logical_block_size=512'),
            *controller('log512', logged(image(work, 'log512', LOGGED_BYTES), logs[0]), 'max_ioqpairs=2,logical_block_size=512'),
            *controller('log4096', logged(image(work, 'log4096', LOGGED_BYTES), logs[1]), f'max_ioqpairs=2,{large}'),
            '-device', 'pcie-root-port,id=slot1,slot=1,chassis=1',
            *controller('hot', image(work, 'hot', 64 * MIB), 'max_ioqpairs=2,bus=slot1,id=pulled'),
            '-kernel', str(kernel), '-initrd', str(run.initramfs(guest, modules, work, seed)),
            '-append', 'console=ttyS0 quiet intel_iommu=on no_timer_check panic=1']


def unplug(path):
    """Asks QEMU for it; the device's end is an event, which need not be waited for: the guest sees it."""
    qmp = run.Qmp(path)
    qmp.ask('device_del', id='pulled')
    return qmp


def boot(command, qmp):
    """The lines that the guest printed, and how QEMU ended."""
    lines, held = [], []
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors='replace') as vm:
        timer = threading.Timer(TIMEOUT_S, vm.kill)
        timer.start()
        for line in vm.stdout:
            lines.append(line.strip())
            if lines[-1] == '# unplug it now':
                held.append(unplug(qmp))
            if lines[-1].startswith('1..'):  # the kernel would wait for the controller that is gone
                vm.kill()
        timer.cancel()
    return lines, vm.returncode


def main():
    guest, replay, work = (pathlib.Path(p).resolve() for p in sys.argv[1:4])
    work = work / 'faults'
    seed = os.environ.get('TN_SEED', '1')
    for tool in ('qemu-system-x86_64', 'busybox', 'cpio', 'apt-get', 'dpkg'):
        if not shutil.which(tool):
            run.skip(f'{tool} is not there (make setup)')
    work.mkdir(parents=True, exist_ok=True)
    logs = [work / 'log512', work / 'log4096']
    qmp = work / 'qmp'
    for _ in range(TRIES):
        qmp.unlink(missing_ok=True)
        began = time.monotonic()
        lines, status = boot(machine(guest, work, seed, qmp, logs), qmp)
        if status != -signal.SIGSEGV:
            break
        print('# QEMU itself crashed', flush=True)
    said = [line for line in lines if line.startswith(('ok ', 'not ok ', '# '))]
    tests = sum(line.startswith(('ok ', 'not ok ')) for line in said)
    print('\n'.join(said))
    if not any(line.startswith('1..') for line in lines):
        print('\n'.join(f'# {line}' for line in [*lines[-20:], f'QEMU ended with status {status}']))
        print(f'not ok {tests + 1} - the guest did not come to its end\n1..{tests + 1}')
        return 1
    print(f'# the guest took {time.monotonic() - began:.0f} s', flush=True)
    for log, block in zip(logs, (512, 4096)):
        tests += 1
        r = subprocess.run([replay, log, str(LOGGED_BYTES), str(block), seed], capture_output=True, text=True)
        print('\n'.join(f'# {line}' for line in (r.stdout + r.stderr).splitlines()))
        print(f'{"ok" if r.returncode == 0 else "not ok"} {tests} - power cuts of the store that lived on blocks of {block}')
    print(f'1..{tests}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
