#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The files of a module form a tree, as the modules do: no file uses a file that uses it, directly or through others.

  circles.py [--root DIR] LIBRARY.a

nm tells which symbols each object file of the static library defines, and which it needs from others. Symbols of hidden
visibility count like exported ones, static ones do not. Looks at the modules that modules.txt calls a tree. Prints TAP,
one case per module; a failing case names the files of each circle, and the shortest way round with a symbol per step.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

import style

NEEDED = 'Uwv'  # nm's letters of symbols that another file defines, or may define
SKIP = '1..0 # SKIP nm is not there: install binutils'  # with status 0: meson takes 77 of a TAP program as an error


def read_symbols(nm, library):
    """object file -> (global symbols that it defines, those that it needs)"""
    symbols = {}
    text = subprocess.run([nm, '-A', '-P', '-g', library], stdout=subprocess.PIPE, check=True).stdout.decode()
    for path, name, letter in re.findall(r'^.*\[(.*)\]: (\S+) (\S)', text, re.M):
        defines, needs = symbols.setdefault(os.path.basename(path), (set(), set()))
        (needs if letter in NEEDED else defines).add(name)
    return symbols


def by_module(symbols, sources):
    """module -> file -> what read_symbols says of it. The object file of src/a/b.c is named src_a_b.c.o."""
    source = {s.replace('/', '_') + '.o': s for s in sources}
    modules = {}
    for name, both in symbols.items():
        if name not in source:
            sys.exit(f'{name}: no file of src/ is compiled to it')
        _, module, file = source[name].split('/', 2)
        modules.setdefault(module, {})[file] = both
    return modules


def uses(files):
    """file -> each other file that it uses -> a symbol that it needs of the other file"""
    owner = {symbol: file for file, (defines, _) in files.items() for symbol in defines}
    return {file: {owner[s]: s for s in sorted(needs) if owner.get(s, file) != file}
            for file, (_, needs) in files.items()}


def ways(graph, start):
    """file -> the shortest way to it from start, each file using the next one; of start itself: round a circle"""
    found, queue = {}, [[start]]
    for way in queue:
        for file in sorted(graph[way[-1]]):
            if file not in found:
                found[file] = way + [file]
                queue.append(found[file])
    return found


def circles(graph):
    """(all files that use each other, the shortest way round among them), for each such set"""
    way = {file: ways(graph, file) for file in graph}
    seen = set()
    for file in sorted(graph):
        if file in way[file] and file not in seen:
            files = sorted(other for other in way[file] if file in way[other])
            seen.update(files)
            yield files, min((way[f][f] for f in files), key=len)


def complaints(files):
    """What is wrong with a module of these files."""
    graph = uses(files)
    for circle, way in circles(graph):
        steps = ', '.join(f'{a} uses {graph[a][b]} of {b}' for a, b in zip(way, way[1:]))
        yield f'{len(circle)} files use each other: {", ".join(circle)}\n' \
              f'  {steps}: move what they share to a file below them, or return it'


def report(tree, library):
    """Prints TAP; the exit status."""
    nm = shutil.which('nm') or shutil.which('llvm-nm')
    if not nm:
        print(SKIP)
        return 0
    modules = by_module(read_symbols(nm, library), tree.sources('src'))
    if not modules:
        sys.exit(f'{library}: {nm} finds no symbols')
    names = [m for m in tree.trees if m in modules]
    failed = 0
    print(f'1..{len(names)}')
    for i, name in enumerate(names, 1):
        found = list(complaints(modules[name]))
        for c in found:
            print(f'# src/{name}: ' + c.replace('\n', '\n# '), file=sys.stderr)
        print(f'{"not ok" if found else "ok"} {i} - {name}: its files are a tree')
        failed += bool(found)
    return 1 if failed else 0


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--root', default=os.path.dirname(os.path.dirname(style.HERE)))
    p.add_argument('library')
    args = p.parse_args()
    return report(style.Tree(args.root), args.library)


if __name__ == '__main__':
    sys.exit(main())
