#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The backend ucx over RDMA verbs: boots QEMU as tests/nvme/run.py does, makes a software RDMA device (Debian's rdma_rxe) in the guest, and runs there
(verbs_init.sh) `tenuto bench xfer --check` between two processes, and memory that is mapped and unmapped all the time. TAP.

Usage: verbs.py WORKDIR PLUGIN TENUTO CHURN. UCX is the system's. Small messages that set up the connection go by TCP on the loopback device, all others by rc_verbs.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / 'nvme'))

import program  # noqa: E402
import run as base  # noqa: E402

TIMEOUT_S = 600
MODULES = ['dummy', 'ib_uverbs', 'rdma_rxe', 'crc32_generic', 'crc32c_generic']
UCX = pathlib.Path('/usr/lib/x86_64-linux-gnu/ucx')
PROVIDER = pathlib.Path('/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so')
UCP = pathlib.Path('/usr/lib/x86_64-linux-gnu/libucp.so.0')
CRYPTO = pathlib.Path('/usr/lib/x86_64-linux-gnu/libcrypto.so.3')  # of the agent's connections, opened at run time
DRIVER = pathlib.Path('/etc/libibverbs.d/rxe.driver')
TLS, NET_DEVICES = 'rc_verbs,tcp', 'rxe0:1,lo'
CHURN_KIB = 16 << 10  # that a round of verbs_churn.c maps and unmaps


def place(tree, path, to=None):
    """A file at its own place in the tree, or elsewhere, with the libraries that it needs."""
    for source, at in [(path, to or path)] + [(library, library) for library in base.libraries(path)]:
        target = tree / str(at).lstrip('/')
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def initramfs(plugin, tenuto, churn, modules, work):
    needed = program.with_needed(MODULES, modules)
    with base.scratch.directory(work) as tmp:
        tree = pathlib.Path(tmp)
        for d in ('bin', 'modules'):
            (tree / d).mkdir()
        shutil.copy(shutil.which('busybox'), tree / 'bin/busybox')
        place(tree, plugin, '/plugins/libtenuto_ucx.so')
        place(tree, tenuto, '/tenuto')
        place(tree, churn, '/verbs-churn')
        place(tree, pathlib.Path(shutil.which('rdma')), '/rdma')
        for library in [UCP, PROVIDER, CRYPTO, *UCX.glob('*.so.0')]:
            place(tree, library)
        (tree / str(DRIVER.parent).lstrip('/')).mkdir(parents=True)
        shutil.copy(DRIVER, tree / str(DRIVER).lstrip('/'))
        for m in needed:
            shutil.copy(m, tree / 'modules')
        (tree / 'settings').write_text(f'MODULES="{" ".join(m.stem for m in needed)}"\nTLS="{TLS}"\nNET_DEVICES="{NET_DEVICES}"\n')
        shutil.copy(pathlib.Path(__file__).resolve().parent / 'verbs_init.sh', tree / 'init')
        (tree / 'init').chmod(0o755)
        return base.packed(tree, work / 'verbs-initramfs')


def held(text):
    """KiB that were pinned after each round, above those before the first one."""
    return [int(now) - int(before) for now, before in re.findall(r'round \d+: (\d+) KiB are pinned, (\d+) before', text)]


def judge(ran):
    """[(name, None or what is wrong)]"""
    def of(name):
        rc, text, _ = ran.get(name, (None, 'did not come to its end', 0))
        return None if rc == 0 else f'exit status {rc}: {text.strip()[-1500:]}'

    def sent(name):
        found = re.search(r'\d+', ran.get(name, (0, '', 0))[1])
        return int(found.group()) if found else 0

    def flat(name):
        kib = held(ran.get(name, (0, '', 0))[1])
        print(f'# KiB of unmapped memory that are still pinned, by round: {kib}')
        return None if kib and max(kib) < CHURN_KIB // 4 else f'{kib}'

    packets = sent('after') - sent('before')
    print(f'# the device has sent {packets} packets')
    return [('there is a software RDMA device', of('link')), ('bytes are written over it', of('WRITE')), ('and read', of('READ')),
            ('by packets of this device', None if packets > 16000 else f'{packets}'), ('memory that comes and goes is moved', of('churn')),
            ('and nothing of it is held', flat('churn'))]


def main():
    work, plugin, tenuto, churn = (pathlib.Path(p).resolve() for p in sys.argv[1:5])
    for tool in ('qemu-system-x86_64', 'busybox', 'cpio', 'apt-get', 'dpkg', 'rdma'):
        if not shutil.which(tool):
            base.skip(f'{tool} is not there (make setup)')
    for path in (UCX / 'libuct_ib.so.0', UCP, PROVIDER, DRIVER, CRYPTO):
        if not path.exists():
            base.skip(f'{path} is not there: it is of Debian\'s libucx0 and ibverbs-providers')
    work.mkdir(parents=True, exist_ok=True)
    kernel, modules = base.kernel(work)
    command = ['qemu-system-x86_64', '-M', 'q35', '-accel', 'tcg,thread=multi', '-smp', '2', '-cpu', 'max', '-m', '2G', '-nographic', '-no-reboot',
               '-kernel', kernel, '-initrd', initramfs(plugin, tenuto, churn, modules, work), '-append', 'console=ttyS0 quiet no_timer_check panic=1']
    log = work / 'verbs.log'  # can be watched
    with open(log, 'wb') as out:
        try:
            subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            print(f'# the machine did not end in {TIMEOUT_S} s')
    ran = program.steps(log.read_text(errors='replace').replace('\r', ''))
    results = judge(ran)
    for i, (name, wrong) in enumerate(results, 1):
        print(f'{"not ok" if wrong else "ok"} {i} - {name}')
        if wrong:
            print('\n'.join(f'# {line}' for line in wrong.splitlines()))
    print(f'1..{len(results)}')
    return any(wrong for _, wrong in results)


if __name__ == '__main__':
    sys.exit(main())
