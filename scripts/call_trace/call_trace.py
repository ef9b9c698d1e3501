#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The way of a load and of a save through the files of src/, as docs/files.md shows it.

  call_trace.py [--build DIR] [--dir DIR] [--runs N]

Builds the library with -pg, runs calls.c (two saves, a flush and a load of 16 blocks) under uftrace, and prints which file called
which file, in the order of the first calls, with the function that was called: for a save into host memory, for a save to
disk, and for a load from disk.

The rule. A border is an ordered pair of files below src/ of which the first called a function of the second, between the
caller's first call of the operation and the return of its last one, on any thread. It counts once, however often it is crossed. Calls into
src/base and into system libraries do not count; inline functions belong to the file that they are compiled into. Calls that the owner makes in
each of its turns, whatever there is to do, are no part of the way: pairs that occur in all turns between begin and end are counted
apart. The store's own work is no part either: log groups, durability, preparing space, and the threads of a file that do that. Threads
race, so one run has a few pairs that another one lacks: what counts is what occurs in more than half of N runs. A pair of which the other
order occurs, too, wherever, is marked "back and forth".
"""
import argparse
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(ROOT, 'scripts'))

import scratch  # noqa: E402

TURN = 'tn_core_step'
STORE_ITSELF = ('tn_store_step', 'tn_store_complete', 'tn_store_allocate')
FILE_THREAD = 'ioengine/posix.c'  # the first file of a thread that reserves space and asks for a file's state
HOST_BYTES = 64 << 20
# name, bytes of host memory, first and last call
SPANS = (('save into host memory', HOST_BYTES, 'tn_save_begin', 'tn_save_end'), ('save to disk', 0, 'tn_save_begin', 'tn_save_end'),
         ('load from disk', 0, 'tn_load_begin', 'tn_load_end'))


def run(*args, **kw):
    return subprocess.run(args, check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kw).stdout


def build(directory):
    run('scripts/build.sh', directory, '-Dtests=false', '-Dc_args=-pg', '-Dc_link_args=-pg', cwd=ROOT)
    program = os.path.join(directory, 'calls')
    run('cc', '-std=gnu17', '-g', '-pg', '-no-pie', '-I' + os.path.join(ROOT, 'include'), os.path.join(HERE, 'calls.c'),
        os.path.join(directory, 'libtenuto-core.a'), '-o', program, '-luring', '-lxxhash', '-lpthread', '-lm')
    return program


def files_of(program, addresses):
    """address -> file below src/, or None"""
    out = subprocess.run(['addr2line', '-a', '-i', '-e', program], input='\n'.join(sorted(addresses)), check=True,
                         stdout=subprocess.PIPE, text=True).stdout.split('\n')
    names = {}
    for line in out:
        match = re.search(r'/src/([^/:]+/[^/:]+\.[ch]):', line)
        if line.startswith('0x'):
            address = format(int(line, 16), 'x')
        elif match:  # what was inlined at the function's begin comes first, the function itself last
            names[address] = match.group(1)
    return names


def read(data):
    """(time, thread, is an entry, function, address), in the order of time"""
    records = []
    for line in run('uftrace', 'dump', '-d', data).split('\n'):
        match = re.match(r'(\d+\.\d+)\s+(\d+): \[(entry|exit ?)\] (\S+)\(([0-9a-f]+)\) depth', line)
        if match:
            records.append((float(match[1]), match[2], match[3] == 'entry', match[4], match[5]))
    records.sort(key=lambda r: r[0])
    return records


def crossings(records, files, begin, end):
    """([(caller, callee, function)], each pair of files once, of the calls between two times; the pairs of each of the owner's turns)"""
    stacks, found, turns = {}, {}, {}
    for time, thread, entry, function, address in records:
        stack = stacks.setdefault(thread, [])
        if not entry:
            if stack:
                stack.pop()
            continue
        file = files.get(address)
        caller = next((f for f in reversed(stack) if f), None)
        skip = file is None or file.startswith('base/')
        if function in STORE_ITSELF or (stack and stack[-1] is STORE_ITSELF) or (file == FILE_THREAD and not any(stack)):
            stack.append(STORE_ITSELF)
            continue
        stack.append(None if skip else file)
        if not begin <= time <= end:
            continue
        if function == TURN:
            turns.setdefault(thread, []).append(set())
        if not skip and caller and caller != file:
            found.setdefault((caller, file), function)
            if thread in turns:
                turns[thread][-1].add((caller, file))
    return [(a, b, f) for (a, b), f in found.items()], [t for of_thread in turns.values() for t in of_thread]


def often(ways):
    """Pairs that more than half of the runs have"""
    return {pair for pair in set().union(*ways) if sum(pair in way for way in ways) * 2 > len(ways)}


def trace(program, directory, host_bytes):
    """The records of read(), the file of each address, and the times at which each function was last entered and left"""
    with scratch.directory(directory) as where:
        data = os.path.join(where, 'data')
        run('uftrace', 'record', '--no-libcall', '-d', data, program, where, str(host_bytes), cwd=where)  # cwd: gmon.out is written there
        records = read(data)
    when = {(function, entry): time for time, _, entry, function, _ in records}
    return records, files_of(program, {r[4] for r in records}), when


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--build', default=os.path.join(ROOT, 'build-trace'))
    parser.add_argument('--dir', default='/var/tmp', help='where the store of the program lies')
    parser.add_argument('--runs', type=int, default=5)
    args = parser.parse_args()
    for tool in ('uftrace', 'addr2line', 'cc'):
        if not shutil.which(tool):
            sys.exit(f'{tool} is not there: install it (on Debian: apt-get install uftrace binutils gcc)')
    program = build(os.path.abspath(args.build))
    for name, host_bytes, first, last in SPANS:
        ways, everything = [], []
        for _ in range(args.runs):
            records, files, when = trace(program, args.dir, host_bytes)
            way, in_turns = crossings(records, files, when[first, True], when[last, False])
            always = set.intersection(*in_turns[1:-1])  # the span may begin or end within a turn
            ways.append({w[:2]: w[2] for w in way if w[:2] not in always})
            everything.append({w[:2] for w in way})
        functions = {pair: function for way in reversed(ways) for pair, function in way.items()}
        pairs = often(ways)
        all_pairs = often(everything)
        modules = {(os.path.dirname(a), os.path.dirname(b)) for a, b in pairs if os.path.dirname(a) != os.path.dirname(b)}
        both = {pair for pair in pairs if pair[::-1] in all_pairs}
        print(f'{name}: {len(pairs)} borders of files, {len(modules)} of modules, {len(both | {b[::-1] for b in both}) // 2} back and forth '
              f'({len(all_pairs) - len(pairs)} more in each turn; {", ".join(str(len(w)) for w in ways)} in {args.runs} runs)')
        for a, b in sorted(pairs, key=list(functions).index):
            print(f'  {a} -> {b}: {functions[a, b]}{"  (back and forth)" if (a, b) in both else ""}')


if __name__ == '__main__':
    main()
