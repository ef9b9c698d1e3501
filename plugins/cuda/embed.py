#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles the kernels for all GPUs from sm_80 on, and writes them as an array of C.

Usage: embed.py NVCC SOURCE OUT.c INCLUDE... Machine code for sm_80, sm_90 and sm_100, as far as this nvcc knows them, and PTX of compute_80, which
drivers translate for every later GPU.
"""
import pathlib
import subprocess
import sys
import tempfile

CODE = ('80', '90', '100')
PTX = '80'


def architectures(nvcc):
    known = subprocess.run([nvcc, '--list-gpu-arch'], stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    pairs = [(a, f'sm_{a}') for a in CODE if f'compute_{a}' in known] + [(PTX, f'compute_{PTX}')]
    return [word for arch, code in pairs for word in ('-gencode', f'arch=compute_{arch},code={code}')]


def main():
    nvcc, source, out, *rest = sys.argv[1:]
    include = [word for path in rest for word in ('-I', path)]
    with tempfile.TemporaryDirectory() as folder:
        fatbin = pathlib.Path(folder, 'kernels.fatbin')
        done = subprocess.run([nvcc, '-fatbin', '-std=c++17', '--Werror', 'all-warnings', *architectures(nvcc), *include, source, '-o', str(fatbin)])
        if done.returncode:
            sys.exit(done.returncode)
        image = fatbin.read_bytes()
    rows = [', '.join(map(str, image[i:i + 32])) for i in range(0, len(image), 32)]
    pathlib.Path(out).write_text('/* Made by embed.py: the kernels of kernels.cu. */\n#include "driver.h"\n\n'
                                 'const unsigned char tn_cuda_kernels[] __attribute__((aligned(16))) = {\n\t' + ',\n\t'.join(rows) +
                                 f',\n}};\nconst size_t tn_cuda_kernels_bytes = {len(image)};\n')


if __name__ == '__main__':
    main()
