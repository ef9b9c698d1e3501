#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The style rules that can be tests. Prints TAP; a failing rule names file, line and what to do.

  style.py [--root DIR] [--library libtenuto.so] [--cc "gcc ..."] [RULE...]
  style.py --prune          lower or remove the entries of exceptions.txt that are no longer needed

Rules: see RULES below. headers, symbols and thread_locals need a compiler or a built library; the others only read.
"""
import argparse
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys

import csource

FILE_LINES = 800
FUNCTION_LINES = 70
DOCUMENT_WORDS = 5000
README_WORDS = 1500
THREAD_LOCAL_BYTES = 576
PT_TLS = 7
DOCUMENT_COLUMNS = 120
SOURCE = ('.c', '.h', '.cu', '.cuh')
HERE = os.path.dirname(os.path.abspath(__file__))

# Why they are banned: no bound (strcpy, alloca), no error (ato*), hidden state (strtok, rand), a shell (system, popen).
BANNED = set('''strcpy strcat sprintf vsprintf strncpy gets strtok atoi atol atoll atof rand srand random srandom alloca
    system popen tmpnam mktemp'''.split())
# Names that say nothing of what is done, or to what.
VAGUE = set('look tell through let_go'.split())
# The library never prints and never exits, and takes memory through the seam of base.
BANNED_IN_LIBRARY = set('''printf vprintf fprintf vfprintf puts putchar fputs perror exit _exit quick_exit
    malloc calloc realloc strdup strndup asprintf'''.split())
# The core is a state machine that a simulation can step: it gets the time as an argument and never waits.
BANNED_IN_CORE = set('''clock_gettime gettimeofday time nanosleep usleep sleep
    pthread_mutex_lock pthread_cond_wait pthread_cond_timedwait'''.split())
CORE = ('src/layout/', 'src/sched/', 'src/block/', 'src/policy/', 'src/store/', 'src/tier/')
SEAMS = {'src/base/alloc.c'}
# These take as long as the file system likes. The owner of a running cache never waits for a file system: it sends
# requests (src/io/io.h). Only code that opens and closes a cache calls these functions.
SLOW = set('''tn_io_open tn_io_close tn_io_stat tn_io_allocate tn_io_unlink open openat fopen stat fstat statx statvfs
    fallocate ftruncate fsync fdatasync unlink rename mkdir flock'''.split())
OWNERS = ('src/store/', 'src/tier/', 'src/core/', 'src/front/', 'src/ring/')
OPENING = {'src/store/' + f for f in ('superblock.c', 'set.c', 'store.c', 'admin.c')} | {
    'src/front/cache.c', 'src/core/engine.c', 'src/front/memory.c',
    # Attaching, and threads of their own: neither the owner nor a caller of loads and saves waits for them.
    'src/front/attach.c', 'src/front/serve.c', 'src/front/served.c', 'src/front/served_memory.c', 'src/front/shared_file.c', 'src/front/find.c', 'src/core/open.c',
    'src/ring/requests.c',
    # A catalogue, which its caller reads and writes.
    'src/front/volume.c'}


class Tree:
    """The project's files, its module table, its exceptions."""

    def __init__(self, root, library=None, cc='cc', tables=HERE):
        self.root, self.library, self.cc, self.tables = root, library, shlex.split(cc), tables
        self.files = sorted(self._list())
        self.ranks, self.trees, self.headers, self.outside = self._modules()
        self.exceptions = self._exceptions()
        self.used = {}

    def _list(self):
        """What git would commit; without git, everything but build directories."""
        git = subprocess.run(['git', '-C', self.root, 'ls-files', '-co', '--exclude-standard', '-z'],
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
        if git.returncode == 0:
            names = git.stdout.decode().split('\0')
            return [n for n in names if n and os.path.isfile(os.path.join(self.root, n))]
        found = []
        for path, dirs, files in os.walk(self.root):
            dirs[:] = [d for d in dirs if d != '.git' and not d.startswith('build') and d != '__pycache__']
            found += [os.path.relpath(os.path.join(path, f), self.root) for f in files]
        return found

    def read(self, name):
        with open(os.path.join(self.root, name), encoding='utf-8', errors='surrogateescape') as f:
            return f.read()

    def sources(self, *tops):
        return [f for f in self.files if f.endswith(SOURCE) and (not tops or f.split('/')[0] in tops)]

    def _table(self, name):
        for line in self.read(os.path.join(self.tables, name)).split('\n'):
            words = line.split('#')[0].split()
            if words:
                yield words

    def _modules(self):
        ranks, trees, headers, outside = {}, [], {}, {}
        for words in self._table('modules.txt'):
            if words[0] == 'outside':
                outside[words[1]] = (words[2], {w[1:] for w in words[3:] if w[0] == '-'}, {w[1:] for w in words[3:] if w[0] == '+'})
            elif words[0] == 'header':
                headers[words[2]] = int(words[1])
            else:
                ranks[words[1]] = int(words[0])
                trees += [words[1]] * ('tree' in words[2:])
        return ranks, trees, headers, outside

    def _exceptions(self):
        """(kind, path, ...) -> the number excused, 0 for kinds without one."""
        out = {}
        for words in self._table('exceptions.txt'):
            number = int(words.pop()) if words[0].endswith('-lines') else 0
            out[tuple(words)] = number
        return out

    def excused(self, *key, number=0):
        """Whether the list allows this number; remembers the number that was needed, for stale()."""
        self.used[key] = max(number, self.used.get(key, 0))
        return key in self.exceptions and number <= self.exceptions[key]

    def stale(self, *kinds):
        """Entries of these kinds that excuse nothing, or more than there is."""
        for key, number in self.exceptions.items():
            if key[0] in kinds and self.used.get(key) != number and self.used.get(key, -1) < number:
                yield (f'tests/style/exceptions.txt: "{" ".join(key)}" is no longer needed'
                       f'{" at " + str(number) if key in self.used else ""}: run tests/style/style.py --prune')


def in_library(tree, name):
    """Whether a file of src/ goes into the library: listed in a lib_sources, or a header that no test is behind."""
    if not name.startswith('src/'):
        return False
    if name.endswith('.h'):
        return '#include "tn_test' not in tree.read(name)
    folder, _, base = name.rpartition('/')
    build = tree.read(folder + '/meson.build') if folder + '/meson.build' in tree.files else ''
    lists = re.findall(r'^\s*lib_sources \+= files\((.*?)\)', build, re.S | re.M)
    return any(f"'{base}'" in names for names in lists)


def _module_include(tree, name, path, allowed, why, beside_src):
    """Complaint about one quoted include of a file, or None. allowed(module) says yes or no; beside_src: of which
    directories outside src/ the file may include DIR/FILE."""
    head = path.split('/')[0] if '/' in path else None
    if head in tree.ranks:
        return None if allowed(head) else f'may not include "{path}": {why(head)}'
    if head in beside_src and path in tree.files:
        return None
    if head is None and not in_library(tree, name):
        return None  # test headers and sim/ are on the include path of tests
    beside = os.path.normpath(os.path.join(os.path.dirname(name), path))
    tops = [n.split('/')[0] for n in (beside, name)]
    if beside in tree.files and (tops[0] == tops[1] != 'src' or all(tree.outside.get(t, ('',))[0] == 'public' for t in tops)):
        return None
    if head == 'tenuto':
        return f'includes "{path}": public headers are included as <{path}>'
    return f'includes "{path}", which is neither its own file nor MODULE/FILE of src/'


def rule_ranks(tree):
    """modules include only what lies below them"""
    shared = set().union(*(plus for _, _, plus in tree.outside.values()))
    for name in tree.sources('src', *tree.outside):
        parts = name.split('/')
        if parts[0] == 'src' and len(parts) > 2:
            mod = parts[1]
            if mod not in tree.ranks:
                yield f'{name}: module {mod} is not in tests/style/modules.txt'
                continue
            allowed = lambda m, mod=mod: m == mod or tree.ranks[m] < tree.ranks[mod]
            why = lambda m, mod=mod: f'{m} has rank {tree.ranks[m]}, {mod} has {tree.ranks[mod]}'
            beside_src = set() if in_library(tree, name) else shared
        elif parts[0] in tree.outside:
            access, minus, plus = tree.outside[parts[0]]
            beside_src = plus | {parts[0]}
            if name.endswith('_test.c'):
                minus = ()  # a test of sim/ may compare it with the real thing
            allowed = lambda m, a=access, x=minus: a == 'internal' and m not in x
            why = lambda m, top=parts[0]: f'{top}/ may not see src/{m} (tests/style/modules.txt)'
        else:
            continue
        text = tree.read(name)
        for line, path, system in csource.includes(text):
            complaint = None if system else _module_include(tree, name, path, allowed, why, beside_src)
            if complaint:
                yield f'{name}:{line}: {complaint}'


def rule_public(tree):
    """modules, and public headers themselves, include no public header of a higher rank"""
    for name in tree.sources('src', 'include'):
        parts = name.split('/')
        public = parts[0] == 'include'
        who, ranks = (parts[-1], tree.headers) if public else (parts[1], tree.ranks)
        if who not in ranks:
            if public:
                yield f'{name}: {who} has no rank in tests/style/modules.txt'
            continue
        for line, path, _ in csource.includes(tree.read(name)):
            folder, _, header = path.partition('/')
            rank = tree.headers.get(header, 0) if folder == 'tenuto' else 0
            if rank > ranks[who]:
                yield f'{name}:{line}: may not include <{path}>: {header} has rank {rank}, {who} has {ranks[who]}'


def _compile(cc, std, lang, include, code, extra=()):
    run = subprocess.run(cc + ['-std=' + std, '-x', lang, '-fsyntax-only', '-Wall', '-Wextra', '-Werror', '-pedantic',
                               *extra, '-I', include, '-'], input=code.encode(), stderr=subprocess.PIPE, check=False)
    return run.stderr.decode().strip() if run.returncode else None


def rule_headers(tree):
    """each public header compiles alone, as C11 and as C++17"""
    cxx = os.environ.get('CXX') or next((c for c in ('g++', 'clang++', 'c++') if shutil.which(c)), None)
    include = os.path.join(tree.root, 'include')
    if not cxx:
        yield 'no C++ compiler found: run scripts/setup.sh'
    for name in tree.sources('include'):
        code = f'#include <{name[len("include/"):]}>\n'
        for cc, std, lang in ((tree.cc, 'c11', 'c'), (shlex.split(cxx or 'false'), 'c++17', 'c++')):
            error = _compile(cc, std, lang, include, code * 2)
            if error and cc != ['false']:
                yield f'{name} as {std}:\n' + error


def exported(library):
    out = subprocess.run(['nm', '-D', '--defined-only', library], stdout=subprocess.PIPE, check=True).stdout.decode()
    return {w[2].split('@')[0] for w in map(str.split, out.splitlines()) if len(w) == 3 and w[1] != 'A'}


def rule_symbols(tree):
    """exported symbols are declared, documented and in the version map, and the other way round"""
    names, listed = exported(tree.library), csource.map_symbols(tree.read('src/tenuto.map'))
    declared = {}
    if listed != sorted(set(listed)):
        yield 'src/tenuto.map: the names are not sorted, or one is there twice'
    for header in tree.sources('include'):
        missing = False
        for name, comment in csource.api(tree.read(header)):
            declared[name] = header
            if not csource.is_kernel_doc(comment, name):
                yield f'{header}: {name} needs a comment "/** {name} - what it does" right before it'
            missing |= name not in names
            if name not in names and ('unbuilt', header) not in tree.exceptions:
                yield f'{header}: {name} is declared, but the library does not have it'
        if missing:
            tree.excused('unbuilt', header)
    for name in sorted(names - set(declared)):
        yield f'{name} is exported, but no public header declares it with TN_API'
    for name in sorted(names - set(listed)):
        yield f'{name} is exported, but not in src/tenuto.map'
    for name in sorted(set(listed) - names):
        yield f'src/tenuto.map: {name} is listed, but the library does not have it'
    yield from tree.stale('unbuilt')


def rule_thread_locals(tree):
    """the library's thread-local memory fits into what a process has left for libraries that it opens late"""
    with open(tree.library, 'rb') as f:
        header = f.read(64)
        offset, size, count = struct.unpack_from('<Q', header, 32)[0], *struct.unpack_from('<HH', header, 54)
        f.seek(offset)
        segments = [f.read(size) for _ in range(count)]
    memory = sum(struct.unpack_from('<Q', s, 40)[0] for s in segments if struct.unpack_from('<I', s)[0] == PT_TLS)
    if memory > THREAD_LOCAL_BYTES:
        yield f'{memory} bytes of thread-local memory, {THREAD_LOCAL_BYTES} at most: Python opens the library after others, and fails with "cannot allocate memory in static TLS block"'


def rule_banned(tree):
    """no banned function is called"""
    for name in tree.sources():
        banned = dict.fromkeys(BANNED, 'banned') | dict.fromkeys(VAGUE, 'no name of a function: say what it does, and to what')
        if in_library(tree, name) and name not in SEAMS:
            banned.update(dict.fromkeys(BANNED_IN_LIBRARY, 'banned in the library'))
            if name.startswith(CORE):
                banned.update(dict.fromkeys(BANNED_IN_CORE, 'banned in the core, which must be deterministic'))
            if name.startswith(OWNERS) and name not in OPENING:
                banned.update(dict.fromkeys(SLOW, 'banned where a running cache would wait for the file system'))
        for line, call in csource.calls(tree.read(name)):
            if call in banned and not tree.excused('banned', name, call):
                yield f'{name}:{line}: {call} is {banned[call]}'
    yield from tree.stale('banned')


def rule_tiers(tree):
    """the core knows tiers by their interface alone"""
    tier = re.compile(r'\b(?:tn_(?:store|host|disk|slab|headers)_\w+|tn_\w+_tier_(?:maker|create)|TN_STORE_\w+|'
                      r'TN_TIER_(?:DEVICE|HOST|DISK|REMOTE))\b|"(?:store|tier/\w+)/\w+\.h"')
    for name in tree.sources('src'):
        if not name.startswith('src/core/') or name.endswith('_test.c'):
            continue
        for i, line in enumerate(tree.read(name).split('\n'), 1):
            for found in tier.findall(line):
                yield f'{name}:{i}: {found} names a tier: ask the row, and a tier by its calls (src/tier/tier.h)'


def rule_length(tree):
    """files and functions fit"""
    for name in tree.files:
        if not name.endswith(SOURCE + ('.py', '.sh')):
            continue
        text = tree.read(name)
        lines = text.count('\n')
        if lines > FILE_LINES and not tree.excused('file-lines', name, number=lines):
            yield f'{name}: {lines} lines, at most {FILE_LINES}: a second thing moved in, give it its own file'
        if not name.endswith(SOURCE):
            continue
        for func, at, length in csource.functions(text):
            if length > FUNCTION_LINES and not tree.excused('function-lines', name, func, number=length):
                yield f'{name}:{at}: {func} has {length} lines, at most {FUNCTION_LINES}'
    yield from tree.stale('file-lines', 'function-lines')


def rule_text(tree):
    """licence line, no open ends, no machine's paths, no files named for nothing"""
    open_end = re.compile(r'\b(?:TO' + r'DO|FIX' + r'ME|X' + r'XX)\b')
    machine = re.compile(r'(?<![\w.])/(?:wo' + r'rk|ho' + r'me/\w+)/')
    vague = re.compile(r'(?:^|[/_-])(?:utils?|helpers?|misc|common)(?:\.\w+)?$')
    for name in tree.files:
        path = os.path.join(tree.root, name)
        if vague.search(name):
            yield f'{name}: the name says nothing; name the file for what is in it'
        with open(path, 'rb') as f:
            raw = f.read()
        if b'\0' in raw or '/corpus/' in name or name == 'LICENSE':
            continue
        text = raw.decode('utf-8', 'replace')
        code = name.endswith(SOURCE + ('.py', '.sh')) or name == 'Makefile' or raw.startswith(b'#!')
        if code and 'SPDX-License-Identifier: Apache-2.0' not in '\n'.join(text.split('\n')[:3]):
            yield f'{name}:1: begin with the line SPDX-License-Identifier: Apache-2.0 in a comment'
        if raw and not raw.endswith(b'\n') and code:
            yield f'{name}: the last line has no end'
        for number, line in enumerate(text.split('\n'), 1):
            if open_end.search(line):
                yield f'{name}:{number}: finish it, or say plainly what is not there'
            if machine.search(line):
                yield f'{name}:{number}: a path of one machine'
            if code and line != line.rstrip():
                yield f'{name}:{number}: blanks at the end of the line'


def _prose(name, text):
    """(offset, text) of prose: the comments of a C source, a document without quoted code."""
    if name.endswith(SOURCE):
        return csource.comments(text)
    return [(0, re.sub(r'^```.*?^```|`[^`\n]*`', lambda m: re.sub(r'[^\n]', '`', m.group()), text, flags=re.S | re.M))]


def rule_words(tree):
    """comments and documents avoid the phrases of words.txt"""
    phrases = []
    for line in tree.read(os.path.join(tree.tables, 'words.txt')).split('\n'):
        if line.strip() and line[0] != '#':
            phrase, _, instead = line.partition(' => ')
            phrases.append((re.compile(phrase.replace(' ', r'\s+(?:\*\s+)?')), instead))
    for name in tree.files:
        if not name.endswith(SOURCE + ('.md',)):
            continue
        text = tree.read(name)
        for start, prose in _prose(name, text):
            for phrase, instead in phrases:
                for m in phrase.finditer(prose):
                    number = text.count('\n', 0, start + m.start()) + 1
                    yield f'{name}:{number}: "{" ".join(m.group().replace("*", " ").split())}": write {instead}'


def _documents(tree):
    """Documents for people: those beside the README, and those of docs/. What was measured on one day lies deeper."""
    return [f for f in tree.files if f.endswith('.md') and (f.count('/') == 0 or f.startswith('docs/') and f.count('/') == 1)]


def _long_lines(text):
    """Numbers of the lines that are too long: neither quoted code nor a table, nor a link that is alone in its line."""
    prose = re.sub(r'^```.*?^```', lambda m: re.sub(r'[^\n]', '', m.group()), text, flags=re.S | re.M)
    return [i for i, line in enumerate(prose.split('\n'), 1) if len(line) > DOCUMENT_COLUMNS and line[0] != '|'
            and not re.fullmatch(r'\s*(?:[-*] )?(?:\[[^\]]*\]\([^)\s]*\)|<?https?://\S+)[.,:;]?', line)]


def _anchors(text):
    """What a link may name in a document: its headings, as the forges make anchors of them."""
    prose = re.sub(r'^```.*?^```', '', text, flags=re.S | re.M)
    heads = [h.strip().lower().replace(' ', '-') for h in re.findall(r'^#+ (.*)$', prose, flags=re.M)]
    return {re.sub(r'[^\w-]', '', h) for h in heads}


def _broken_links(tree, name, text):
    prose = re.sub(r'^```.*?^```|`[^`\n]*`', lambda m: re.sub(r'[^\n]', '', m.group()), text, flags=re.S | re.M)
    for m in re.finditer(r'\]\(([^)\s]+)\)', prose):
        number, (path, _, anchor) = prose.count('\n', 0, m.start()) + 1, m.group(1).partition('#')
        if re.match(r'[a-z]+:', path):
            continue
        target = os.path.normpath(os.path.join(os.path.dirname(name), path)) if path else name
        if not os.path.exists(os.path.join(tree.root, target)):
            yield f'{name}:{number}: {target} is not there'
        elif anchor and anchor not in _anchors(tree.read(target)):
            yield f'{name}:{number}: {target} has no heading #{anchor}'


def rule_documents(tree):
    """documents fit, and what names one leads to it"""
    for name in _documents(tree):
        text = tree.read(name)
        words, most = len(text.split()), README_WORDS if name == 'README.md' else DOCUMENT_WORDS
        if words > most:
            yield f'{name}: {words} words, at most {most}: it answers a second question, which has a document of its own'
        long = _long_lines(text)
        if long and not tree.excused('long-lines', name, number=len(long)):
            yield from (f'{name}:{i}: longer than {DOCUMENT_COLUMNS} columns' for i in long)
        yield from _broken_links(tree, name, text)
    for name in tree.sources():
        for path in re.findall(r'\bdocs/[\w-]+\.md\b', tree.read(name)):
            if path not in tree.files:
                yield f'{name}: {path} is not there'
    yield from tree.stale('long-lines')


RULES = {'ranks': rule_ranks, 'public': rule_public, 'headers': rule_headers, 'symbols': rule_symbols, 'thread_locals': rule_thread_locals,
         'banned': rule_banned, 'tiers': rule_tiers, 'length': rule_length, 'text': rule_text, 'words': rule_words, 'documents': rule_documents}


def prune(tree):
    """Rewrites exceptions.txt so that no entry excuses more than is there. Never adds one. unbuilt needs a library."""
    for rule in (rule_banned, rule_length, rule_documents) + ((rule_symbols,) if tree.library else ()):
        for _ in rule(tree):
            pass
    out = []
    for line in tree.read(os.path.join(tree.tables, 'exceptions.txt')).split('\n'):
        words = line.split('#')[0].split()
        if words and (words[0] != 'unbuilt' or tree.library):
            numbered = words[0].endswith('-lines')
            key = tuple(words[:-1] if numbered else words)
            if key not in tree.used:
                continue
            if numbered:
                line = ' '.join(key) + ' ' + str(min(int(words[-1]), tree.used[key]))
        out.append(line)
    with open(os.path.join(tree.tables, 'exceptions.txt'), 'w', encoding='utf-8') as f:
        f.write('\n'.join(out))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument('--root', default=os.path.dirname(os.path.dirname(HERE)))
    p.add_argument('--library')
    p.add_argument('--cc', default='cc')
    p.add_argument('--prune', action='store_true')
    p.add_argument('rules', nargs='*', choices=[*RULES, []], metavar='RULE')
    args = p.parse_args()
    tree = Tree(args.root, args.library, args.cc)
    if args.prune:
        return prune(tree)
    rules = args.rules or [r for r in RULES if args.library or r not in ('symbols', 'thread_locals')]
    print(f'1..{len(rules)}')
    failed = 0
    for i, rule in enumerate(rules, 1):
        complaints = list(RULES[rule](tree))
        for c in complaints:
            print('# ' + c.replace('\n', '\n# '), file=sys.stderr)
        print(f'{"not ok" if complaints else "ok"} {i} - {rule}: {RULES[rule].__doc__}')
        failed += bool(complaints)
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
