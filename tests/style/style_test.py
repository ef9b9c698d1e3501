#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The style rules must be able to fail: each is shown a small made-up project that breaks it. Prints TAP."""
import inspect
import os
import sys
import tempfile

import csource
import style

SPDX = '/* SPDX-License-Identifier: Apache-2.0 */\n'
MODULES = '0 base\n1 layout\n1 io\n2 block tree\n2 ioengine\nheader 0 types.h\nheader 1 layout.h\nheader 5 cache.h\n' \
    'outside cli public +lab\noutside bench public\noutside lab internal\noutside sim internal -ioengine\n'
with open(os.path.join(style.HERE, 'words.txt'), encoding='utf-8') as listed:
    WORDS = listed.read()  # the project's own list of phrases


def complaints(rule, files, exceptions='', library=None):
    """What a rule says about a project of these files."""
    with tempfile.TemporaryDirectory() as root:
        tables = os.path.join(root, 'build-tables')
        builds = {os.path.dirname(f) + '/meson.build': f"lib_sources += files('{os.path.basename(f)}')\n"
                  for f in files if f.startswith('src/') and f.endswith('.c') and not f.endswith('_test.c')}
        for name, text in {**files, **builds, 'build-tables/modules.txt': MODULES,
                           'build-tables/words.txt': WORDS, 'build-tables/exceptions.txt': exceptions}.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'w', encoding='utf-8') as f:
                f.write(text)
        tree = style.Tree(root, library=library, tables=tables)
        return list(style.RULES[rule](tree))


def includes(name, path):
    return complaints('ranks', {name: SPDX + f'#include "{path}"\n', 'cli/cli.h': SPDX, 'src/io/io.h': SPDX,
                                'bench/bench.h': SPDX, 'lab/lab.h': SPDX})


def a_module_may_include_itself_and_what_lies_below():
    assert includes('src/block/a.c', 'base/x.h') == []
    assert includes('src/block/a.c', 'block/x.h') == []
    assert includes('src/block/a_test.c', 'tn_test.h') == []


def a_module_may_not_include_its_equals_or_what_lies_above():
    assert 'io has rank 1, layout has 1' in includes('src/layout/a.c', 'io/io.h')[0]
    assert 'ioengine has rank 2, base has 0' in includes('src/base/a.c', 'ioengine/x.h')[0]
    assert includes('src/block/a_test.c', 'ioengine/x.h')


def an_unknown_module_or_file_is_refused():
    assert 'not in tests/style/modules.txt' in complaints('ranks', {'src/new/a.c': SPDX})[0]
    assert includes('src/block/a.c', 'x.h')
    assert includes('src/block/a.c', 'tenuto/types.h')


def the_outside_sees_only_the_public_headers():
    assert includes('cli/a.c', 'cli.h') == []
    assert includes('cli/a.c', 'base/x.h')
    assert includes('cli/a.c', '../bench/bench.h') == []
    assert includes('sim/a.c', 'block/x.h') == []
    assert includes('sim/a_test.c', 'ioengine/x.h') == []
    assert includes('sim/a.c', 'ioengine/x.h')


def the_headers_of_a_directory_outside_are_for_those_that_the_table_names_and_for_tests():
    for name in ('lab/a.c', 'cli/a.c', 'src/block/a_test.c'):
        assert includes(name, 'lab/lab.h') == []
    for name in ('src/block/a.c', 'bench/a.c', 'sim/a.c'):
        assert 'neither its own file' in includes(name, 'lab/lab.h')[0]
    assert includes('lab/a.c', 'block/x.h') == []
    assert includes('cli/a.c', 'lab/x.h')


def a_path_around_the_table_is_refused():
    assert includes('cli/a.c', '../src/io/io.h')


def includes_public(name, path):
    return complaints('public', {name: SPDX + f'#include <{path}>\n'})


def a_module_may_include_public_headers_up_to_its_own_rank():
    assert includes_public('src/layout/a.c', 'tenuto/types.h') == []
    assert includes_public('src/layout/a.h', 'tenuto/layout.h') == []
    assert includes_public('src/layout/a.c', 'layout.h') == []
    assert 'a.c:2: may not include <tenuto/layout.h>: layout.h has rank 1, base has 0' in \
        includes_public('src/base/a.c', 'tenuto/layout.h')[0]
    assert 'cache.h has rank 5, block has 2' in includes_public('src/block/a_test.c', 'tenuto/cache.h')[0]
    assert includes_public('sim/a.c', 'tenuto/cache.h') == []


def a_public_header_has_a_rank_and_includes_no_higher_one():
    assert includes_public('include/tenuto/cache.h', 'tenuto/layout.h') == []
    assert 'layout.h has rank 1, types.h has 0' in includes_public('include/tenuto/types.h', 'tenuto/layout.h')[0]
    assert 'new.h has no rank' in includes_public('include/tenuto/new.h', 'tenuto/types.h')[0]


def a_header_that_needs_another_first_is_refused():
    good = SPDX + '#include <stddef.h>\nsize_t f(void);\n'
    assert complaints('headers', {'include/tenuto/a.h': '#ifndef A_H\n#define A_H\n' + good + '#endif\n'}) == []
    bad = SPDX + '#ifndef A_H\n#define A_H\nsize_t f(void);\n#endif\n'
    assert len(complaints('headers', {'include/tenuto/a.h': bad})) == 2


def a_header_that_is_c_only_is_refused():
    bad = SPDX + '#ifndef A_H\n#define A_H\nint f(int class);\n#endif\n'
    found = complaints('headers', {'include/tenuto/a.h': bad})
    assert len(found) == 1 and 'c++17' in found[0]


def symbols(header, version_map, exported, exceptions=''):
    real, style.exported = style.exported, lambda library: set(exported)
    try:
        return complaints('symbols', {'include/tenuto/a.h': header, 'src/tenuto.map': version_map}, exceptions)
    finally:
        style.exported = real


def map_of(*names):
    return 'T {\n\tglobal:\n' + ''.join(f'\t\t{n};\n' for n in names) + '\tlocal:\n\t\t*;\n};\n'


DOC = '/** tn_a - does it */\nTN_API int tn_a(void);\n'


def a_symbol_must_be_declared_documented_mapped_and_there():
    assert symbols(DOC, map_of('tn_a'), ['tn_a']) == []
    assert 'needs a comment' in symbols('TN_API int tn_a(void);\n', map_of('tn_a'), ['tn_a'])[0]
    assert 'needs a comment' in symbols('/** other - x */\nTN_API int tn_a(void);\n', map_of('tn_a'), ['tn_a'])[0]
    assert 'not in src/tenuto.map' in symbols(DOC, map_of(), ['tn_a'])[0]
    assert 'no public header' in symbols('', map_of('tn_a'), ['tn_a'])[0]
    assert len(symbols(DOC, map_of('tn_a'), [])) == 2
    assert 'not sorted' in symbols(DOC + DOC.replace('tn_a', 'tn_b'), map_of('tn_b', 'tn_a'), ['tn_a', 'tn_b'])[0]


def an_unbuilt_header_is_excused_only_while_it_is():
    entry = 'unbuilt include/tenuto/a.h\n'
    assert symbols(DOC, map_of(), [], entry) == []
    assert 'no longer needed' in symbols(DOC, map_of('tn_a'), ['tn_a'], entry)[0]


def banned(name, line, exceptions=''):
    return complaints('banned', {name: SPDX + line + '\n'}, exceptions)


def a_banned_call_is_found_and_a_mention_is_not():
    assert 'src/base/a.c:2: strcpy is banned' in banned('src/base/a.c', 'strcpy(a, b);')[0]
    assert banned('tests/a.c', 'x = atoi (s);')
    assert 'let_go is no name' in banned('src/base/a.c', 'let_go(a);')[0] and banned('src/base/a.c', 'a->look(b); begin_look(d);') == []
    assert banned('src/base/a.c', '/* strcpy(a, b) */ char *s = "strcpy(a)"; ops->system(x); tn_rand(1);') == []


def the_library_does_not_print_exit_or_allocate_by_itself():
    for call in ('printf', 'exit', 'malloc'):
        assert banned('src/block/a.c', call + '(1);')
        assert banned('src/block/a_test.c', call + '(1);') == []
        assert banned('cli/a.c', call + '(1);') == []


def the_core_does_not_read_the_clock_and_the_engines_may():
    assert banned('src/block/a.c', 'clock_gettime(0, &ts);')
    assert banned('src/ioengine/a.c', 'clock_gettime(0, &ts);') == []


def the_core_names_no_tier():
    for code in ('tn_store_flush(s, f, a);', 'tn_host_slots(h);', 'int t = TN_TIER_DISK;', '#include "tier/host/host.h"', 'x = TN_STORE_REFUSED;'):
        assert 'names a tier' in complaints('tiers', {'src/core/a.c': SPDX + code + '\n'})[0]
        assert complaints('tiers', {'src/front/a.c': SPDX + code + '\n', 'src/core/a_test.c': SPDX + code + '\n'}) == []
    assert complaints('tiers', {'src/core/a.c': SPDX + '#include "tier/tier.h"\nt->ops->destroy(t);\n'}) == []


def what_waits_for_the_file_system_is_for_opening_and_closing():
    for call in ('tn_io_allocate', 'fsync'):
        assert 'running cache' in banned('src/store/segment.c', call + '(1);')[0]
        assert banned('src/store/superblock.c', call + '(1);') == []
        assert banned('src/ioengine/file.c', call + '(1);') == []


def an_exception_excuses_and_must_go_when_it_is_not_needed():
    assert banned('src/base/a.c', 'strcpy(a, b);', 'banned src/base/a.c strcpy\n') == []
    assert 'no longer needed' in banned('src/base/a.c', 'f();', 'banned src/base/a.c strcpy\n')[0]


def long_function(lines):
    return SPDX + 'static int\nf(struct x *(*g)(void), int b)\n{\n' + '\ta();\n' * (lines - 3) + '}\n'


def functions_and_files_that_do_not_fit_are_found():
    assert complaints('length', {'src/base/a.c': long_function(70)}) == []
    assert 'f has 71 lines' in complaints('length', {'src/base/a.c': long_function(71)})[0]
    assert complaints('length', {'src/base/a.c': SPDX + '\n' * 799}) == []
    assert '801 lines' in complaints('length', {'src/base/a.c': SPDX + '\n' * 800})[0]


def the_ratchet_only_turns_one_way():
    entry = 'function-lines src/base/a.c f 80\n'
    assert complaints('length', {'src/base/a.c': long_function(80)}, entry) == []
    assert 'f has 81' in complaints('length', {'src/base/a.c': long_function(81)}, entry)[0]
    assert 'no longer needed at 80' in complaints('length', {'src/base/a.c': long_function(79)}, entry)[0]
    assert len(complaints('length', {'src/base/a.c': long_function(79)}, entry)) == 1
    assert len(complaints('length', {'src/base/a.c': long_function(60)}, entry)) == 1


def functions_are_found_whatever_surrounds_them():
    text = ('struct s { int a; };\nstatic const int t[] = { 1, 2 };\nextern "C" {\n#define M(x) { x\n'
            'static const struct ops o = {\n\t.f = g,\n};\nint one(int a)\n{\n\tif (a) {\n\t\treturn 1;\n\t}\n\treturn 0;\n}\n'
            'int two(void) { return 2; }\n}\n__attribute__((noinline)) static void *three(\n\tint a)\n{\n}\n')
    assert [(n, lines) for n, _, lines in csource.functions(text)] == [('one', 7), ('two', 1), ('three', 4)]


def text(name, body):
    return complaints('text', {name: body})


def licence_open_ends_machine_paths_and_empty_names_are_found():
    assert text('src/base/a.c', SPDX + '/* fine */\n') == []
    assert 'SPDX' in text('src/base/a.c', '/* no licence */\n')[0]
    assert 'finish it' in text('docs/a.md', 'TO' + 'DO: more\n')[0]
    assert 'one machine' in text('docs/a.md', 'see /wo' + 'rk/x\n')[0]
    assert 'says nothing' in text('src/base/utils.c', SPDX)[0]
    assert 'says nothing' in text('src/base/io_util.h', SPDX)[0]
    assert 'blanks' in text('src/base/a.c', SPDX + 'int a; \n')[0]
    assert 'no end' in text('src/base/a.c', SPDX + 'int a;')[0]


def words(name, body):
    return complaints('words', {name: body})


def phrases_that_the_list_names_are_found_in_comments_and_documents():
    assert words('src/base/a.c', '/* 8 bytes per 16 regions, one\n * per device */\n') == []
    assert 'a.c:2: "bytes a 16": write "per"' in words('src/base/a.c', '\n/* 8 bytes a 16 regions */\n')[0]
    assert 'a.h:2: "one a device"' in words('src/base/a.h', '\nint a; // one a device\n')[0]
    assert 'a.md:1' in words('docs/a.md', 'One file a device.\n')[0]
    assert 'a.md:1: "GB/s a core"' in words('docs/a.md', 'XXH3 does 15 GB/s a core.\n')[0]
    assert 'write alternately' in words('src/base/a.c', '/* Reads and writes run in\n * turns. */\n')[0]


def a_phrase_is_found_across_lines():
    found = words('src/base/a.h', '/*\n * It takes 8 bytes\n * a slot.\n */\n')
    assert len(found) == 1 and 'a.h:2: "bytes a slot"' in found[0]


def what_programs_print_and_quoted_code_may_have_any_words():
    assert words('src/base/a.c', 'const char *s = "8 bytes a slot /* one a device */";\n') == []
    assert words('docs/a.md', '`8 bytes a slot`\n```\n8 bytes a slot\n```\n') == []
    assert words('tests/a.py', '# 8 bytes a slot\n') == []


def documents(files, exceptions=''):
    return complaints('documents', files, exceptions)


def a_document_that_is_too_long_is_found_and_the_readme_has_less():
    assert documents({'README.md': 'word\n' * 1500, 'docs/a.md': 'word\n' * 5000}) == []
    assert 'README.md: 1501 words' in documents({'README.md': 'word\n' * 1501})[0]
    assert 'docs/a.md: 5001 words' in documents({'docs/a.md': 'word\n' * 5001})[0]
    assert documents({'docs/results/a.md': 'word\n' * 5001}) == []


def a_long_line_is_found_unless_it_is_code_a_table_or_a_link():
    line = 'word ' * 25
    assert documents({'docs/a.md': f'```\n{line}\n```\n|{line}|\n* [{line}](a.md)\n'}) == []
    assert 'a.md:2: longer' in documents({'docs/a.md': f'\n{line}\n'})[0]
    assert 'CHANGELOG.md:1' in documents({'CHANGELOG.md': line + '\n'})[0]
    assert documents({'docs/a.md': line + '\n'}, 'long-lines docs/a.md 1\n') == []
    assert 'a.md:2' in documents({'docs/a.md': f'{line}\n{line}\n'}, 'long-lines docs/a.md 1\n')[1]
    assert 'no longer needed at 2' in documents({'docs/a.md': line + '\n'}, 'long-lines docs/a.md 2\n')[0]
    assert 'no longer needed' in documents({'docs/a.md': 'short\n'}, 'long-lines docs/a.md 1\n')[0]


def a_link_that_leads_nowhere_is_found():
    there = {'docs/b.md': '# What waits, for `what`?\n'}
    assert documents({**there, 'docs/a.md': '[b](b.md#what-waits-for-what) [c](https://example.org) `[d](d.md)`\n'}) == []
    assert 'a.md:2: docs/c.md is not there' in documents({**there, 'docs/a.md': '\n[c](c.md)\n'})[0]
    assert 'b.md has no heading #no' in documents({**there, 'docs/a.md': '[b](b.md#no)\n'})[0]
    assert 'src/base/a.c: docs/c.md is not there' in documents({'src/base/a.c': '/* docs/c.md says why */\n'})[0]


def run(module):
    """Runs the functions of a module that take nothing and whose names are sentences. Prints TAP; the exit status."""
    tests = [f for n, f in vars(module).items() if callable(f) and '_' in n and f.__module__ == module.__name__
             and f.__code__.co_argcount == 0 and not f.__code__.co_flags & inspect.CO_VARARGS]
    failed = 0
    print(f'1..{len(tests)}')
    for i, test in enumerate(tests, 1):
        try:
            test()
            print(f'ok {i} - {test.__name__}')
        except AssertionError as error:
            failed = 1
            line = error.__traceback__.tb_next.tb_lineno
            print(f'not ok {i} - {test.__name__}\n# {os.path.basename(module.__file__)}:{line}')
    return failed


if __name__ == '__main__':
    sys.exit(run(sys.modules['__main__']))
