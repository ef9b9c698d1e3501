# SPDX-License-Identifier: Apache-2.0
"""What every peer's process does: worker.run(PeerClass) reads ROLE DIR BLOCKS BLOCK_BYTES OPTIONS (JSON) from the command line and prints one JSON object.

A peer class has __init__(directory, blocks, block_bytes, memory, options), save(indices) and load(indices), which return the indices that succeeded,
look_up(indices), which returns how many are there (None: it has no index), and close(). Block i lies at memory[i * block_bytes].

Roles: save (a line "begins" comes before, when the memory is filled and the clock starts); load (look-ups, single blocks, all blocks, every byte compared); gone (save, the directory is removed, load again in the same process).
"""
import gc
import json
import mmap
import os
import random
import resource
import shutil
import sys
import time

LOOKED_UP = 512
SINGLE = 64


def content(i, size):
    return random.Random(i + 1).randbytes(size)


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(call, *args):
    seconds, used = time.perf_counter(), cpu()
    result = call(*args)
    return result, time.perf_counter() - seconds, cpu() - used


def batches(indices, n=16):
    """A submission of every block would leave a peer one worker for all: 16 submissions."""
    step = max(1, (len(indices) + n - 1) // n)
    return [indices[i:i + step] for i in range(0, len(indices), step)]


def compare(memory, size, indices, loaded):
    """How blocks ended: right, wrong (said to be loaded, other bytes), missed."""
    ends = {'right': 0, 'wrong': 0, 'missed': 0}
    for i in indices:
        if i not in loaded:
            ends['missed'] += 1
        else:
            ends['right' if memory[i * size:(i + 1) * size] == content(i, size) else 'wrong'] += 1
    return ends


def attempt(call, *args):
    """Of a call on a damaged store: its result, or the error that the user gets."""
    try:
        return list(call(*args)), None
    except Exception as e:  # noqa: BLE001: whatever the peer raises is the finding
        return [], f'{type(e).__name__}: {e}'[:200]


def save(peer, memory, size, every, answer):
    for i in every:
        memory[i * size:(i + 1) * size] = content(i, size)
    os.write(answer, b'begins\n')
    (done, error), seconds, used = timed(attempt, peer.save, every)
    return {'saved': len(set(done)), 'error': error, 'seconds': seconds, 'cpu': used}


def load(peer, memory, size, every):
    out, n = {}, len(every)
    memory[:] = bytes(len(memory))
    asked = [every[i % n] for i in range(LOOKED_UP)]
    looks = []
    for _ in range(9):
        found, seconds, _ = timed(attempt_count, peer, asked)
        looks.append(seconds)
    out['found'], out['look_up'] = found, None if found is None else sorted(looks)[len(looks) // 2]
    singles, random_order = [], random.Random(1).sample(every, min(SINGLE, n))
    for i in random_order:
        _, seconds, _ = timed(attempt, peer.load, [i])
        singles.append(seconds)
    out['single'] = sorted(singles)
    drop(peer.directory)
    memory[:] = bytes(len(memory))
    (done, error), out['seconds'], out['cpu'] = timed(attempt, peer.load, every)
    out |= {'error': error, 'ends': compare(memory, size, every, set(done))}
    return out


def attempt_count(peer, asked):
    try:
        return peer.look_up(asked)
    except Exception:  # noqa: BLE001: a look-up in a damaged store
        return 0


def drop(directory):
    """No file of the store in the page cache."""
    for where, _, names in os.walk(directory):
        for name in names:
            try:
                fd = os.open(os.path.join(where, name), os.O_RDONLY)
            except OSError:
                continue
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)


def run(peer_class):
    role, directory, blocks, size, options = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), json.loads(sys.argv[5])
    # What a peer prints while it starts is not the result.
    answer = os.dup(1)
    os.dup2(2, 1)
    # Of huge pages, for every peer: a virtual disk may have a descriptor for each contiguous piece of memory, and few of them. Of requests into pages of
    # 4 KiB it then has one or two under way at once, whatever a peer submits, and what is measured is which pages a process got.
    memory = mmap.mmap(-1, blocks * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory[:] = bytes(len(memory))
    every = list(range(blocks))
    out = {}
    try:
        peer = peer_class(directory, blocks, size, memory, options)
    except Exception as e:  # noqa: BLE001: a store that does not open
        out = {'error': f'does not open: {type(e).__name__}: {e}'[:200], 'ends': {'right': 0, 'wrong': 0, 'missed': blocks}, 'saved': 0}
    else:
        peer.directory = directory
        gc.disable()
        if role in ('save', 'gone'):
            out = save(peer, memory, size, every, answer)
        if role == 'gone':
            shutil.rmtree(directory, ignore_errors=True)
            memory[:] = bytes(len(memory))
            done, error = attempt(peer.load, every)
            out = {'error': error, 'ends': compare(memory, size, every, set(done))}
        if role == 'load':
            out = load(peer, memory, size, every)
        try:
            peer.close()
        except Exception as e:  # noqa: BLE001: of a damaged store
            out['close'] = f'{type(e).__name__}: {e}'[:200]
    os.write(answer, json.dumps(out).encode() + b'\n')
    os._exit(0)
