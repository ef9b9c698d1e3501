#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Headers that host and device share compile for the device, without a warning; needs no GPU.

Usage: compile.py ARCH SOURCE HEADER... -- INCLUDE... Each TN_HD function of the headers must be called by the kernels of SOURCE, by itself or by way of
others: what nobody calls nvcc would not translate. Skipped (77), with the reason, where there is no nvcc.
"""
import pathlib
import re
import shutil
import subprocess
import sys

NAMES = re.compile(r'\btn_\w+')


def functions(headers):
    """{name of a TN_HD function: names that it uses}; those of which host and device have their own count once."""
    found = {}
    for header in headers:
        for name, body in re.findall(r'^TN_HD [^(]*?(tn_\w+)\([^{]*\n\{\n(.*?)^\}', header.read_text(), re.S | re.M):
            found.setdefault(name, set()).update(NAMES.findall(body))
    return found


def never_called(source, found):
    called, ahead = set(), NAMES.findall(source.read_text())
    while ahead:
        name = ahead.pop()
        if name in found and name not in called:
            called.add(name)
            ahead += found[name]
    return sorted(set(found) - called)


def main():
    arch, source, *rest = sys.argv[1:]
    split = rest.index('--')
    found = functions(map(pathlib.Path, rest[:split]))
    missing = never_called(pathlib.Path(source), found)
    if not found or missing:
        print(f'of {len(found)} functions no kernel calls: {" ".join(missing)}')
        return 1
    if not shutil.which('nvcc'):
        print(f'skipped: there is no nvcc, so that {len(found)} functions are not compiled for {arch}')
        return 77
    include = [word for path in rest[split + 1:] for word in ('-I', path)]
    print(f'{len(found)} functions for {arch}', flush=True)
    return subprocess.run(['nvcc', f'-arch={arch}', '-std=c++17', '--Werror', 'all-warnings', *include, '-ptx', source, '-o', '/dev/null']).returncode != 0


if __name__ == '__main__':
    sys.exit(main())
