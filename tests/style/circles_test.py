#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""circles.py must be able to fail: it gets circles, made up or compiled. Prints TAP.

  circles_test.py [COMPILER [ARGUMENT...]]
"""
import contextlib
import io
import os
import shutil
import subprocess
import sys
import tempfile
from unittest import mock

import circles
import style
import style_test


def complaints(files):
    """What circles.py says of a module: file -> 'defined ... > needed ...'."""
    symbols = {file: tuple(set(part.split()) for part in text.split('>')) for file, text in files.items()}
    return list(circles.complaints(symbols))


def a_tree_is_no_circle():
    assert complaints({'a.c': 'a > b c printf', 'b.c': 'b > c', 'c.c': 'c > printf'}) == []


def a_file_that_needs_its_own_symbol_is_no_circle():
    assert complaints({'a.c': 'a > a'}) == []


def two_files_that_use_each_other_are_named_with_a_symbol_per_step():
    found = complaints({'a.c': 'a > b', 'b.c': 'b > a c', 'c.c': 'c > '})
    assert len(found) == 1
    assert '2 files use each other: a.c, b.c\n' in found[0]
    assert 'a.c uses b of b.c, b.c uses a of a.c:' in found[0]


def a_circle_goes_through_other_files():
    assert 'a.c uses b of b.c, b.c uses c of c.c, c.c uses a of a.c:' in \
        complaints({'a.c': 'a > b', 'b.c': 'b > c', 'c.c': 'c > a'})[0]


def of_a_large_circle_the_shortest_way_round_is_told():
    found = complaints({'a.c': 'a > b', 'b.c': 'b > c', 'c.c': 'c > a d', 'd.c': 'd > c', 'top.c': 'top > a'})
    assert len(found) == 1
    assert '4 files use each other: a.c, b.c, c.c, d.c\n' in found[0]
    assert 'c.c uses d of d.c, d.c uses c of c.c:' in found[0]


def two_circles_are_two_complaints():
    found = complaints({'a.c': 'a > b', 'b.c': 'b > a', 'c.c': 'c > d a', 'd.c': 'd > c'})
    assert [f.split('\n')[0] for f in found] == ['2 files use each other: a.c, b.c', '2 files use each other: c.c, d.c']


def read(text):
    done = subprocess.CompletedProcess([], 0, stdout=text.encode())
    with mock.patch('subprocess.run', return_value=done):
        return circles.read_symbols('nm', 'x.a')


def what_nm_prints_is_understood_of_thin_and_of_whole_archives():
    thin = read('/b/x.a[/b/x.a.p/src_io_a.c.o]: tn_a T 0 8\n/b/x.a[/b/x.a.p/src_io_a.c.o]: tn_b U         \n')
    whole = read('/b/x.a[src_io_a.c.o]: tn_a D 0 8\n/b/x.a[src_io_a.c.o]: tn_b w\n')
    assert thin == whole == {'src_io_a.c.o': ({'tn_a'}, {'tn_b'})}


def fails(function, *args):
    try:
        function(*args)
    except SystemExit as end:
        return str(end)
    return None


def what_nm_does_not_see_is_no_silent_pass():
    assert 'no file of src/' in fails(circles.by_module, {'src_io_a.c.o': (set(), set())}, ['src/io/b.c'])
    with mock.patch.object(circles, 'read_symbols', return_value={}):
        assert 'no symbols' in fails(run_on, {'sched/a.c': A})


CC = sys.argv[1:] or ['cc']
A = 'int tn_b(void);\nint tn_a(void);\nint tn_a(void) { return tn_b(); }\n'
B = 'int tn_a(void);\nint tn_b(void);\nint tn_b(void) { return 1; }\n'
B_BACK = B.replace('return 1', 'return tn_a()')
B_TABLE = B + 'extern int (*const tn_table[])(void);\nint (*const tn_table[])(void) = {tn_a};\n'


def run_on(sources, modules='0 base\n1 sched tree\n'):
    """circles.py's status and output for a library of these sources, file -> text, in src/."""
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as root:
        objects = []
        for name, text in sources.items():
            path = os.path.join(root, 'src', name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'w', encoding='utf-8') as f:
                f.write(text)
            objects.append(os.path.join(root, f'src_{name.replace("/", "_")}.o'))
            subprocess.run([*CC, '-c', '-fvisibility=hidden', '-fPIC', '-o', objects[-1], path], check=True)
        library = os.path.join(root, 'x.a')
        subprocess.run(['ar', 'rcs', library, *objects], check=True)
        for table, text in (('modules.txt', modules), ('exceptions.txt', '')):
            with open(os.path.join(root, table), 'w', encoding='utf-8') as f:
                f.write(text)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = circles.report(style.Tree(root, tables=root), library)
    return status, out.getvalue()


def a_compiled_circle_of_hidden_symbols_fails_and_is_named():
    status, out = run_on({'sched/a.c': A, 'sched/b.c': B_BACK})
    assert status == 1
    assert 'not ok 1 - sched' in out
    assert 'src/sched: 2 files use each other: a.c, b.c' in out
    assert 'a.c uses tn_b of b.c, b.c uses tn_a of a.c' in out


def a_circle_through_a_table_of_functions_fails():
    assert 'b.c uses tn_a of a.c' in run_on({'sched/a.c': A, 'sched/b.c': B_TABLE})[1]


def a_compiled_tree_passes():
    assert run_on({'sched/a.c': A, 'sched/b.c': B}) == (0, '1..1\nok 1 - sched: its files are a tree\n')


def files_of_two_modules_are_no_circle_of_one():
    assert run_on({'sched/a.c': A, 'base/b.c': B_BACK})[0] == 0


def a_module_that_is_not_called_a_tree_is_not_looked_at():
    assert run_on({'sched/a.c': A, 'sched/b.c': B_BACK, 'base/c.c': 'int tn_c;\n'}, '0 base tree\n1 sched\n') == \
        (0, '1..1\nok 1 - base: its files are a tree\n')


def without_nm_it_is_skipped():
    with mock.patch.object(shutil, 'which', return_value=None):
        status, out = run_on({'sched/a.c': A, 'sched/b.c': B_BACK})
    assert status == 0 and out.startswith('1..0 # SKIP nm')


if __name__ == '__main__':
    if not shutil.which('nm') or not shutil.which('ar'):
        print(circles.SKIP)
        sys.exit(0)
    sys.exit(style_test.run(sys.modules['__main__']))
