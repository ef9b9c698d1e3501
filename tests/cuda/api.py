#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The plugin's own declarations of CUDA's driver API are those of cuda.h, wherever one is found.

Usage: api.py SOURCE ROOT COMPILER... Searched are the include directories of nvcc, of the system, and of the package nvidia-cuda-runtime of PyPI.
Skipped (77) where there is no cuda.h of 12.8 or later.
"""
import glob
import pathlib
import shutil
import subprocess
import sys
import sysconfig

WANTED = ('cuda.h', 'cudaTypedefs.h')


def places():
    nvcc = shutil.which('nvcc')
    if nvcc:
        told = subprocess.run([nvcc, '--dryrun', '-x', 'cu', '-c', '/dev/null', '-o', '/dev/null'], stderr=subprocess.PIPE, text=True, check=False).stderr
        for line in told.splitlines():
            if line.startswith('#$ TOP='):
                yield pathlib.Path(line[len('#$ TOP='):].strip(), 'include')
    yield pathlib.Path('/usr/include')
    yield pathlib.Path('/usr/local/cuda/include')
    yield from map(pathlib.Path, glob.glob(sysconfig.get_paths()['purelib'] + '/nvidia/*/include'))


def main():
    source, root, *compiler = sys.argv[1:]
    found = next((p for p in places() if all((p / name).is_file() for name in WANTED)), None)
    if not found:
        print('skipped: no cuda.h (nvcc, Debian nvidia-cuda-dev, PyPI nvidia-cuda-runtime), so that plugins/cuda/api.h is compared with nothing')
        return 77
    version = next((int(line.split()[2]) for line in (found / 'cuda.h').read_text().splitlines() if line.startswith('#define CUDA_VERSION')), 0)
    if version < 12080:
        print(f'skipped: {found} is of {version}, older than 12.8')
        return 77
    print(f'{found}: {version}', flush=True)
    return subprocess.run([*compiler, '-std=gnu17', '-fsyntax-only', '-Wall', '-Werror', '-I', root, '-isystem', str(found), source],
                          check=False).returncode != 0


if __name__ == '__main__':
    sys.exit(main())
