#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The lines of src/ and lab/ by module, without tests, as docs/decisions.md shows them.

  count_lines.py [--files] [ROOT]

Counts the .c and .h files. A file is a test, and does not count, if its name ends in _test.c, or says _rig (what several tests share)
or _contract (what every engine is asked). Lines that are blank, and lines that hold nothing but a comment, are counted apart from
lines of code. With --files: each file, too.
"""
import os
import re
import sys

TEST = re.compile(r'(_test\.c|_rig\.[ch]|_contract\w*\.[ch])$')
MODULE = '{:<16}{:>7}{:>10}{:>8}{:>8}'


def is_test(name):
    return TEST.search(name) or TEST.search('_' + name)


def count(path):
    """[lines of code, comment lines, blank lines]"""
    lines, inside = [0, 0, 0], False
    with open(path, encoding='utf-8') as f:
        for line in f:
            text = line.strip()
            begins = text.startswith('/*') and not inside
            if not text and not inside:
                lines[2] += 1
            elif inside or begins or text.startswith('//'):
                end = text.find('*/')
                inside = (inside or begins) and end < 0
                lines[0 if begins and 0 <= end < len(text) - 2 else 1] += 1
            else:
                lines[0] += 1
                inside = '/*' in text and '*/' not in text[text.rindex('/*'):]
    return lines


def main():
    args = [a for a in sys.argv[1:] if a != '--files']
    root = args[0] if args else os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    modules, files = {}, {}
    for top in ('src', 'lab'):
        for at, _, names in os.walk(os.path.join(root, top)):
            for name in names:
                if name.endswith(('.c', '.h')) and not is_test(name):
                    path = os.path.join(at, name)
                    files[os.path.relpath(path, root)] = count(path)
    for path, lines in files.items():
        sums = modules.setdefault(os.path.dirname(path), [0, 0, 0])
        for i in range(3):
            sums[i] += lines[i]
    modules['all'] = [sum(lines[i] for lines in files.values()) for i in range(3)]
    print(MODULE.format('', 'code', 'comments', 'blank', 'all'))
    for module, lines in modules.items() if '--files' not in sys.argv else sorted({**files, **modules}.items()):
        print(MODULE.format(module, *lines, sum(lines)))


if __name__ == '__main__':
    main()
