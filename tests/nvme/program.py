#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The program on a raw namespace: boots QEMU as run.py does, with `tenuto` and the cache's tests in the initramfs, and runs format, the tests, demo
and replay there. TAP.

Usage: program.py WORKDIR TENUTO TEST... The trace of the replay is TN_TRACE, or shared/traces/conversation.jsonl beside the checkout; without
it that part is skipped.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import run as base

TIMEOUT_S = 170
REQUESTS = 600
INIT = '''#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /tmp
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
/bin/busybox mkdir -p /dev/shm
/bin/busybox mount -t tmpfs none /dev/shm
for m in {modules}; do /bin/busybox insmod /modules/$m.ko; done
drives=
for d in /sys/bus/pci/devices/*; do
    read -r class <$d/class
    [ "$class" = 0x010802 ] || continue
    drives="$drives ${{d##*/}}"
done
set -- $drives
began() {{ read -r at rest </proc/uptime; echo "begin $1 $at"; }}
ended() {{ rc=$?; read -r at rest </proc/uptime; echo "end $1 $rc $at"; }}
began refused; /tenuto store format --nvme $1 2>&1; ended refused
for d in $drives; do
    read -r vendor </sys/bus/pci/devices/$d/vendor
    read -r device </sys/bus/pci/devices/$d/device
    echo "${{vendor#0x}} ${{device#0x}}" >/sys/bus/pci/drivers/vfio-pci/new_id 2>/dev/null
done
began doctor; /tenuto doctor / 2>&1; ended doctor
began foreign; /tenuto store format --nvme $2 2>&1; ended foreign
began forced; /tenuto store format --nvme $2 --force-serial large 2>&1; ended forced
began format; /tenuto store format --nvme $1 2>&1; ended format
export TN_TEST_NVME=nvme:$1 CMOCKA_MESSAGE_OUTPUT=TAP TN_SEED={seed}
for t in {tests}; do
    began $t; /$t 2>&1; ended $t
done
unset TN_TEST_NVME
/tenuto store format --nvme $1
began demo; /tenuto demo --nvme $1 --requests 60 --json 2>&1; ended demo
if [ -f /trace.jsonl ]; then
    began replay; /tenuto replay --dir nvme:$1 --dir nvme:$2 --verify --limit {requests} --geometry {geometry} --capacity-blocks {capacity} --json /trace.jsonl 2>&1; ended replay
    began info; /tenuto store info nvme:$1 nvme:$2 2>&1; ended info
    began verify; /tenuto store verify nvme:$1 nvme:$2 2>&1; ended verify
    began check; /tenuto store check nvme:$1 nvme:$2 2>&1; ended check
fi
/bin/busybox poweroff -f
'''
GEOMETRY = '2x4KiB'
CAPACITY_BLOCKS = 20000


def trace():
    given = os.environ.get('TN_TRACE')
    path = pathlib.Path(given) if given else pathlib.Path(__file__).resolve().parents[2].parent / 'shared/traces/conversation.jsonl'
    return path if path.is_file() else None


def initramfs(programs, tests, modules, work, seed):
    with tempfile.TemporaryDirectory(dir=work) as tmp:
        tree = pathlib.Path(tmp)
        for d in ('bin', 'modules'):
            (tree / d).mkdir()
        shutil.copy(shutil.which('busybox'), tree / 'bin/busybox')
        for program in programs:
            subprocess.run(['strip', '-o', tree / program.name, program], check=True)
            for library in base.libraries(program):
                (tree / library.relative_to('/').parent).mkdir(parents=True, exist_ok=True)
                shutil.copy(library, tree / library.relative_to('/'))
        for m in base.MODULES:
            shutil.copy(modules / f'{m}.ko', tree / 'modules')
        if trace():
            with open(trace(), 'rb') as f:
                (tree / 'trace.jsonl').write_bytes(b''.join(line for line, _ in zip(f, range(REQUESTS))))
        (tree / 'init').write_text(INIT.format(modules=' '.join(m.split('/')[-1] for m in base.MODULES), seed=seed, tests=' '.join(tests),
                                               requests=REQUESTS, geometry=GEOMETRY, capacity=CAPACITY_BLOCKS))
        (tree / 'init').chmod(0o755)
        names = '\n'.join(str(p.relative_to(tree)) for p in sorted(tree.rglob('*')))
        out = work / 'program-initramfs'
        out.write_bytes(subprocess.run(['cpio', '-o', '-H', 'newc', '--quiet'], input=names.encode(), cwd=tree, check=True, stdout=subprocess.PIPE).stdout)
        return out


def drive(work, name, options, content=b''):
    image = work / f'program-{name}.img'
    image.unlink(missing_ok=True)
    with open(image, 'wb') as f:
        f.truncate(4 << 30)
        f.write(content)
    return ['-drive', f'file={image},if=none,id={name},format=raw,cache=unsafe', '-device', f'nvme,drive={name},serial={name},{options}']


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

    out = [('format says how to bind a drive that is not bound', of('refused', 3, 'driver_override')),
           ('doctor says that both drives can be used', of('doctor', 0, r'raw NVMe +yes +0000.*\n.*raw NVMe +yes +0000')),
           ('a drive with a partition table is not taken', of('foreign', 1, 'serial number large')),
           ('unless its serial number is given', of('forced', 0)),
           ('an empty drive is made ready', of('format', 0))]
    out += [(f'{t} on a raw namespace', of(t, 0, r'(?m)^ok ')) for t in tests]
    out += [('demo on a raw namespace, killed in the middle: no wrong byte', of('demo', 0, r'"corrupt_objects": 0\b', r'"recovered_blocks": [1-9]'))]
    if not trace():
        return out + [('replay of the conversation trace # SKIP there is no such file: TN_TRACE names it', None)]
    return out + [(f'replay of {REQUESTS} requests on two namespaces: no wrong byte',
                   of('replay', 0, r'"wrong_objects": 0\b', fr'"requests": {REQUESTS}\b')),
                  ('store info tells of both', of('info', 0, '(?s)1 of 2.*2 of 2')),
                  ('store verify finds nothing bad', of('verify', 0, 'nothing')),
                  ('store check finds no problem', of('check', 0, '0 problems'))]


def main():
    work = pathlib.Path(sys.argv[1]).resolve()
    programs = [pathlib.Path(p).resolve() for p in sys.argv[2:]]
    tests = [p.name for p in programs[1:]]
    for tool in ('qemu-system-x86_64', 'busybox', 'cpio', 'apt-get', 'dpkg', 'strip'):
        if not shutil.which(tool):
            base.skip(f'{tool} is not there (make setup)')
    work.mkdir(parents=True, exist_ok=True)
    image, modules = base.kernel(work)
    table = bytes(510) + b'\x55\xaa'
    command = ['qemu-system-x86_64', '-M', 'q35,kernel-irqchip=split', '-accel', 'tcg,thread=multi', '-smp', '2', '-cpu', 'max', '-m', '3G', '-nographic',
               '-no-reboot', '-device', 'intel-iommu,intremap=on,caching-mode=on',
               *drive(work, 'small', 'max_ioqpairs=8,mdts=5,logical_block_size=512'),
               *drive(work, 'large', 'max_ioqpairs=2,mdts=7,logical_block_size=4096,physical_block_size=4096', table),
               '-kernel', image, '-initrd', initramfs(programs, tests, modules, work, os.environ.get('TN_SEED', '1')),
               '-append', 'console=ttyS0 quiet intel_iommu=on panic=1']
    try:
        run = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors='replace', timeout=TIMEOUT_S)
        output = run.stdout
    except subprocess.TimeoutExpired as e:
        output = (e.stdout or b'').decode(errors='replace')
        print(f'# the machine did not end in {TIMEOUT_S} s')
    output = output.replace('\r', '')
    (work / 'program.log').write_text(output)
    ran = steps(output)
    results = judge(ran, tests)
    for name, (_, _, seconds) in ran.items():
        print(f'# {name}: {seconds:.1f} s')
    for i, (name, wrong) in enumerate(results, 1):
        print(f'{"not ok" if wrong else "ok"} {i} - {name}')
        if wrong:
            print('\n'.join(f'# {line}' for line in wrong.splitlines()))
    print(f'1..{len(results)}')
    return any(wrong for _, wrong in results)


if __name__ == '__main__':
    sys.exit(main())
