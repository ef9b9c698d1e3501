# SPDX-License-Identifier: Apache-2.0
"""What all parts of gpu-check share: the device that is measured with its clock, and the lines of a result.

A mark is a point of the device's current stream: a CUDA event, or on CPUs, where calls return when all is computed, the time. Needs torch.
"""
import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time

import torch

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts'))


class Device:
    """cpu: the test form, in which tensors of the CPU stand for those of a GPU."""

    def __init__(self, cpu):
        self.cuda, self.name = not cpu, 'cpu' if cpu else 'cuda'

    def mark(self):
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin, end):
        """Between two marks; waits for the second one."""
        if not self.cuda:
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1e3

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def free(self):
        if self.cuda:
            torch.cuda.empty_cache()

    def timed(self, call):
        """Seconds that a call takes on the device, by marks around it."""
        begin = self.mark()
        call()
        return self.seconds(begin, self.mark())


class Part:
    """One part of gpu-check: its arguments, its time, its rows. Each row goes to the file as soon as it is there."""

    def __init__(self, description):
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument('--out', required=True, help='file that gets a line of JSON per row')
        parser.add_argument('--seconds', type=float, required=True, help='after so many no more is begun')
        parser.add_argument('--pack', help='directory with the programs that gpu-check --pack has put there')
        parser.add_argument('--small', action='store_true', help='the test form: sizes of a test')
        parser.add_argument('--cpu', action='store_true', help='the test form: tensors of the CPU')
        self.args = parser.parse_args()
        self.small, self.device = self.args.small, Device(self.args.cpu)
        self.begun, self.good = time.monotonic(), True

    def left(self):
        """Seconds."""
        return self.args.seconds - (time.monotonic() - self.begun)

    def row(self, what, **values):
        with open(self.args.out, 'a', encoding='utf-8') as file:
            file.write(json.dumps({'what': what, **values}) + '\n')
        print(f'  {what}: ' + ', '.join(f'{k} {_text(v)}' for k, v in values.items()), flush=True)

    def check(self, what, good, **values):
        """A row that says whether something holds; one that does not fails the part."""
        self.good = self.good and bool(good)
        self.row(what, good=bool(good), **values)

    def program(self, name, *args, before=(), limit, **more):
        """Runs a program of the pack, with the libraries that were packed for it; before: words in front of it; more: of its environment.

        Returns its exit status ("timeout": it had none after so many seconds), what it has printed as JSON, and the end of what it has said as errors.
        """
        path = [os.path.join(self.args.pack, 'lib'), *filter(None, [os.environ.get('LD_LIBRARY_PATH')])]
        try:
            done = subprocess.run([*before, os.path.join(self.args.pack, 'bin', name), *args], capture_output=True, timeout=limit, check=False,
                                  env={**os.environ, 'LD_LIBRARY_PATH': ':'.join(path), **more})
            status = done.returncode
        except subprocess.TimeoutExpired as error:
            done, status = error, 'timeout'
        return status, documents((done.stdout or b'').decode(errors='replace')), (done.stderr or b'').decode(errors='replace')[-500:]

    @contextlib.contextmanager
    def guarded(self, what):
        """What fails is a row, and what follows is tried all the same."""
        try:
            yield
        except Exception as error:
            self.check(what, False, error=f'{type(error).__name__}: {error}'[:500])

    def end(self):
        self.row('end', seconds=time.monotonic() - self.begun)
        sys.exit(0 if self.good else 1)


def documents(text):
    """One document of JSON, or one per line; other lines, such as those of a sanitizer, are left out."""
    with contextlib.suppress(ValueError):
        return [json.loads(text)]
    out = []
    for line in text.splitlines():
        with contextlib.suppress(ValueError):
            out.append(json.loads(line))
    return out


def _text(value):
    return f'{value:.4g}' if isinstance(value, float) else str(value)


def median(values):
    return statistics.median(values) if values else None
