#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The driver on QEMU's NVMe controllers, behind its IOMMU: boots a kernel with the guest program (guest.c) in an initramfs, and hands on what it prints.

Usage: run.py GUEST WORKDIR. The kernel is Debian's, downloaded into WORKDIR and not installed. Skipped, with the reason, where QEMU or the kernel is not there.
"""
import fcntl
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / 'scripts'))

import scratch  # noqa: E402

MODULES = ['virt/lib/irqbypass', 'drivers/vfio/vfio', 'drivers/vfio/vfio_iommu_type1', 'drivers/vfio/vfio_virqfd', 'drivers/vfio/pci/vfio-pci-core',
           'drivers/vfio/pci/vfio-pci']
INIT = '''#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
for m in {modules}; do /bin/busybox insmod /modules/$m.ko; done
drives=
for d in /sys/bus/pci/devices/*; do
    read -r class <$d/class
    [ "$class" = 0x010802 ] || continue
    drives="$drives ${{d##*/}}"
    read -r vendor <$d/vendor
    read -r device <$d/device
    echo "${{vendor#0x}} ${{device#0x}}" >/sys/bus/pci/drivers/vfio-pci/new_id 2>/dev/null
done
{long}/guest {seed} $drives
echo "# guest ended with $?"
/bin/busybox poweroff -f
'''
LONG = os.environ.get('TN_SOAK', '0') not in ('', '0')
TIMEOUT_S = 600 if LONG else 250


def skip(why):
    print(f'1..0 # SKIP {why}')
    sys.exit(0)


def kernel(work):
    """(image, modules directory) of Debian's kernel, unpacked in the working directory."""
    root = work / 'kernel'
    lock = open(work / 'lock', 'w') # one download for all tests that run at a time
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not list(root.glob('boot/vmlinuz-*')):
        depends = subprocess.run(['apt-cache', 'depends', 'linux-image-amd64'], capture_output=True, text=True)
        names = [line.split()[1] for line in depends.stdout.splitlines() if 'Depends: linux-image' in line]
        if not names:
            skip('apt knows no linux-image-amd64: the package lists are missing')
        got = subprocess.run(['apt-get', '-q', 'download', names[0]], cwd=work, capture_output=True, text=True)
        packages = list(work.glob('linux-image-*.deb'))
        if got.returncode or not packages:
            skip(f'{names[0]} cannot be downloaded: {(got.stderr.strip().splitlines() or ["no reason given"])[-1]}')
        subprocess.run(['dpkg', '-x', packages[0], root], check=True)
        packages[0].unlink()
    return next(root.glob('boot/vmlinuz-*')), next(root.glob('lib/modules/*')) / 'kernel'


def libraries(program):
    """What the loader would open for it, and the loader."""
    out = subprocess.run(['ldd', program], capture_output=True, text=True, check=True).stdout
    return [pathlib.Path(word) for line in out.splitlines() for word in line.split() if word.startswith('/')]


def initramfs(guest, modules, work, seed):
    with scratch.directory(work) as tmp:
        tree = pathlib.Path(tmp)
        (tree / 'bin').mkdir()
        (tree / 'modules').mkdir()
        shutil.copy(shutil.which('busybox'), tree / 'bin/busybox')
        shutil.copy(guest, tree / 'guest')
        for library in libraries(guest):
            (tree / library.relative_to('/').parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(library, tree / library.relative_to('/'))
        for m in MODULES:
            shutil.copy(modules / f'{m}.ko', tree / 'modules')
        (tree / 'init').write_text(INIT.format(modules=' '.join(m.split('/')[-1] for m in MODULES), seed=seed, long='TN_SOAK=1 ' if LONG else ''))
        (tree / 'init').chmod(0o755)
        return packed(tree, work / 'initramfs')


def packed(tree, out):
    """The tree as an initramfs."""
    names = '\n'.join(str(p.relative_to(tree)) for p in sorted(tree.rglob('*')))
    out.write_bytes(subprocess.run(['cpio', '-o', '-H', 'newc', '--quiet'], input=names.encode(), cwd=tree, check=True, stdout=subprocess.PIPE).stdout)
    return out


class Qmp:
    """The machine's monitor."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(path))
        self.answers = self.socket.makefile('r')
        self.answers.readline()
        self.ask('qmp_capabilities')

    def wait(self, *names):
        """The first answer that has one of these, which is then returned with it; (None, None): the machine has ended."""
        for line in self.answers:
            answer = json.loads(line)
            for name in names:
                if name in answer:
                    return name, answer[name]
        return None, None

    def ask(self, command, **arguments):
        """What is returned; an error is told of."""
        self.socket.sendall(json.dumps({'execute': command, 'arguments': arguments}).encode())
        kind, answer = self.wait('return', 'error')
        if kind != 'return':
            print(f'# {command}: {answer}')
            return None
        return answer


def drive(work, name, options):
    image = work / f'{name}.img'
    image.unlink(missing_ok=True)
    with open(image, 'wb') as f:
        f.truncate(64 << 20)
    return ['-drive', f'file={image},if=none,id={name},format=raw,cache=unsafe', '-device', f'nvme,drive={name},serial={name},{options}']


def main():
    guest, work = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    seed = os.environ.get('TN_SEED', '1')
    for tool in ('qemu-system-x86_64', 'busybox', 'cpio', 'apt-get', 'dpkg'):
        if not shutil.which(tool):
            skip(f'{tool} is not there (make setup)')
    work.mkdir(parents=True, exist_ok=True)
    image, modules = kernel(work)
    command = ['qemu-system-x86_64', '-M', 'q35,kernel-irqchip=split', '-accel', 'tcg', '-cpu', 'max', '-m', '1G', '-nographic', '-no-reboot',
               '-device', 'intel-iommu,intremap=on,caching-mode=on',
               *drive(work, 'small', 'max_ioqpairs=8,mdts=5,logical_block_size=512'),
               *drive(work, 'large', 'max_ioqpairs=2,mdts=7,logical_block_size=4096,physical_block_size=4096'),
               '-kernel', image, '-initrd', initramfs(guest, modules, work, seed), '-append', 'console=ttyS0 quiet intel_iommu=on no_timer_check panic=1']
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace', timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as e:
        print((e.stdout or b'').decode(errors='replace'))
        print(f'not ok 1 - the machine did not end in {TIMEOUT_S} s\n1..1')
        return 1
    lines = [line.strip() for line in run.stdout.splitlines()]
    print('\n'.join(line for line in lines if line.startswith(('ok ', 'not ok ', '# ', '1..'))))
    if not any(line.startswith('1..') for line in lines):
        print('\n'.join(f'# {line}' for line in lines[-20:]))
        print(f'not ok 1 - the guest did not come to its end: {run.stderr.strip()[-200:]}\n1..1')
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
