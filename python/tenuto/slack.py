# SPDX-License-Identifier: Apache-2.0
"""Slack tables between the runs of an engine: files from which a space knows at its start how long each layer computes (docs/tables.md).

A table is of one model, as one engine runs it, on one machine: the name of its file follows from all of them. Nothing here raises for a file that cannot be
read or written, or that is broken: the engine works without. Any thread; a Tables or Setting by one at a time. A Setting writes on a thread of its own, so
that a file system that hangs does not stop the engine.
"""
from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import sys
import tempfile
import threading
import time
from typing import Any

from . import _core

KEEP_EVERY_S = 60.0
CLOSING_S = 3.0  # at the end a file that is under way is waited for no longer
_log = logging.getLogger('tenuto')


def _cpu() -> str:
    with contextlib.suppress(OSError), open('/proc/cpuinfo', encoding='utf-8', errors='replace') as file:
        for line in file:
            key, _, value = line.partition(':')
            if key.strip() in ('model name', 'CPU part'):
                return value.strip()
    return os.uname().machine


def _gpu() -> str:
    """Name and number of the GPUs that torch sees. Does not start CUDA in a process that has not done so."""
    torch = sys.modules.get('torch')
    cuda = getattr(torch, 'cuda', None)
    count = cuda.device_count() if cuda else 0
    if not count:
        return ''
    return f'{count} {_nvidia() or (cuda.get_device_name() if cuda.is_initialized() else "?")}'


def _nvidia() -> str:
    names = set()
    with contextlib.suppress(OSError):
        for gpu in os.listdir('/proc/driver/nvidia/gpus'):
            with open(f'/proc/driver/nvidia/gpus/{gpu}/information', encoding='utf-8', errors='replace') as file:
                names.update(line.partition(':')[2].strip() for line in file if line.startswith('Model'))
    return ', '.join(sorted(names))


def machine() -> str:
    """What a table depends on beside the model: the CPU and how many of them this process may use, and the GPUs."""
    return '\n'.join((_cpu(), str(len(os.sched_getaffinity(0))), _gpu()))


def fingerprint(engine: str, model: str, dtype: str, layers: int, *, revision: str = '', tp_size: int = 1, pp_size: int = 1, more: str = '') -> str:
    """What a table is of, as the adapters and tenuto.profile name it.

    engine: name of its Python module, which is imported and whose version is added; layers: of the space; more: what else makes layers slower or faster,
    such as a quantization.
    """
    version = getattr(sys.modules.get(engine), '__version__', '')
    return ' '.join(filter(None, (engine, version, model, revision, dtype.removeprefix('torch.'), f'{layers}layers', f'tp{tp_size}', f'pp{pp_size}', more)))


def default_directory() -> str:
    """$TENUTO_SLACK_DIR, else tenuto/slack in $XDG_CACHE_HOME or ~/.cache."""
    return os.environ.get('TENUTO_SLACK_DIR') or os.path.join(os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache'), 'tenuto', 'slack')


def _why(error: Exception, directory: str | None = None) -> str:
    """directory: where the tables are to lie."""
    if directory is not None and isinstance(error, (FileExistsError, NotADirectoryError)):
        return f'{directory} is no directory: set TENUTO_SLACK_DIR to one'
    return getattr(error, 'strerror', None) or str(error) or type(error).__name__


def _read(path: str) -> str:
    with open(path, encoding='utf-8', errors='surrogateescape') as file:
        return file.read()


PART_AT_MOST = 0.8  # of what all or nothing takes: else a part is not restored


PROBE_PROMPTS = 32


def worth(plan: dict[str, int], blocks: int, least: int = 0) -> int:
    """How many of the matched blocks an adapter restores, by Space.plan: the plan's part where that is clearly faster, else all or none.

    least: of which a part must have so many. Estimates are off by some per cent, and reading takes CPU that computing needs. A part that gains less on paper was slower in most trials.
    """
    restored, computed = plan['restore_all_ttft_ns'], plan['recompute_all_ttft_ns']
    if plan['ttft_ns'] <= PART_AT_MOST * min(restored, computed) and plan['restore_blocks'] >= least:
        return plan['restore_blocks']
    return blocks if restored <= computed else 0


class Probe:
    """worth(), prompt by prompt; but of prompts that are all computed, one in PROBE_PROMPTS is restored.

    Nobody learns how fast a disk is that is not read. One thread at a time.
    """

    def __init__(self) -> None:
        self._computed = 0  # prompts since one was restored

    def worth(self, plan: dict[str, int], blocks: int, least: int = 0) -> int:
        kept = worth(plan, blocks, least)
        self._computed = 0 if kept else self._computed + 1
        if self._computed < PROBE_PROMPTS:
            return kept
        self._computed = 0
        return blocks


class Tables:
    """The tables in a directory, one file per fingerprint and machine."""

    def __init__(self, directory: Any = None) -> None:
        self.directory = os.fspath(directory) if directory is not None else default_directory()
        self._kept: dict[str, str] = {}  # by path: what was written last

    def path(self, fingerprint: str) -> str:
        """fingerprint: all that the compute times depend on but the machine: model, revision, dtype, parallel sizes, engine and version."""
        readable = re.sub(r'[^A-Za-z0-9.]+', '-', fingerprint)[:80].strip('-.')
        digest = hashlib.sha256(f'{fingerprint}\n{machine()}'.encode('utf-8', 'surrogateescape')).hexdigest()
        return os.path.join(self.directory, f'{readable}-{digest[:16]}.slack')

    def restore(self, space: _core.Space, fingerprint: str) -> str | None:
        """Give the space the table of an earlier run. Returns the file's path, or None: there is none, or it cannot be used.

        A space that knows something keeps what it knows: of an attached cache it may have learned for hours from others. The log has the path either way.
        Raises Closed, OwnerGone.
        """
        path = self.path(fingerprint)
        if space.slack():
            _log.info('slack table: %s (not read: the space has a table)', path)
            return None
        try:
            space.slack(_read(path))
        except FileNotFoundError:
            _log.info('slack table: %s (new)', path)
        except (ValueError, OSError) as error:
            if isinstance(error, (_core.Closed, _core.OwnerGone)):
                raise
            _log.warning('slack table: %s (ignored: %s)', path, _why(error, self.directory))
        else:
            _log.info('slack table: %s (restored)', path)
            return path
        return None

    def keep(self, space: _core.Space, fingerprint: str) -> str | None:
        """Write the space's table, with all that it has learned, for the next start. Returns the file's path; None: nothing is known, or it cannot be
        written, which is told in a warning. The file appears as a whole or not at all, and is this user's alone. Raises Closed, OwnerGone."""
        text = space.slack()
        return self.write(fingerprint, text) if text else None

    def write(self, fingerprint: str, text: str) -> str | None:
        """What keep does with a text that Space.slack has given before."""
        path = self.path(fingerprint)
        if self._kept.get(path) == text:
            return path
        try:
            self._write(path, text)
        except (OSError, MemoryError) as error:
            _log.warning('slack table: %s (not kept: %s)', path, _why(error, self.directory))
            return None
        self._kept[path] = text
        return path

    def _write(self, path: str, text: str) -> None:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        fd, new = tempfile.mkstemp(dir=self.directory, prefix='.new-')
        try:
            with open(fd, 'w', encoding='utf-8', errors='surrogateescape') as file:
                file.write(text)
            os.rename(new, path)
        except BaseException:
            os.unlink(new)
            raise


class Setting:
    """The adapters' option `slack`.

    value: "auto": tables are restored at the start and kept; "off": neither; else the path of a slack-table file, as `tenuto profile` makes it, which is
    read here and never again, and never written. Raises ValueError (another value; no slack table), FileNotFoundError, IsADirectoryError, OSError (it
    cannot be read).
    """

    def __init__(self, value: Any = 'auto', directory: Any = None) -> None:
        if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
            raise ValueError(f'tenuto: slack: {value!r}: write auto, off, or the path of a slack-table file')
        self.value = os.fspath(value)
        if self.value not in ('auto', 'off') and os.path.isdir(self.value):
            raise IsADirectoryError(errno.EISDIR, f'tenuto: slack: {self.value!r} is a directory: write the path of a slack-table file, or auto with '
                                                  'TENUTO_SLACK_DIR set to the directory')
        if self.value not in ('auto', 'off') and not os.path.isfile(self.value):
            raise FileNotFoundError(errno.ENOENT, f'tenuto: slack: {self.value!r}: no such file (write auto, off, or the path of a slack-table file)')
        self.tables = Tables(directory) if self.value == 'auto' else None
        self._given = None if self.value in ('auto', 'off') else self._table()
        self._next: dict[str, float] = {}  # by fingerprint: when the table may be written again
        self._said: set[str] = set()
        self._writer = threading.Thread()  # that writes a file, or has written the last one

    def _table(self) -> str:
        text = _read(self.value)
        try:
            _core.Space.check_slack(text)
        except ValueError as error:
            raise ValueError(f'tenuto: slack: {self.value}: {_why(error)}') from error
        return text

    def restore(self, space: _core.Space, fingerprint: str) -> None:
        """At the start, and whenever a cache is attached anew; once per space. A table that the space does not take is one warning, and the space begins
        empty: it may be of another model, or the session only reads. Raises Closed, OwnerGone."""
        self._next[fingerprint] = time.monotonic() + KEEP_EVERY_S
        try:
            if self.tables:
                self.tables.restore(space, fingerprint)
            elif self._given is not None:
                space.slack(self._given)
                _log.info('slack table: %s (given)', self.value)
        except (_core.Closed, _core.OwnerGone):
            raise
        except (ValueError, OSError, MemoryError) as error:
            self._warn(f'{self.value} (ignored: {_why(error)})')

    def _warn(self, what: str) -> None:
        """Once: an engine that lives for weeks meets the same error at each step."""
        if what not in self._said:
            self._said.add(what)
            _log.warning('slack table: %s', what)

    def keep(self, space: _core.Space, fingerprint: str, closing: bool = False) -> None:
        """From a place that is passed often, before the space is closed with closing=True: writes every KEEP_EVERY_S, and then. Never raises: what goes wrong
        is one warning.

        A thread writes the file. While it is busy nothing else is written. closing: waits for it, up to CLOSING_S.
        """
        if not self.tables or not closing and time.monotonic() < self._next.get(fingerprint, 0.0):
            return
        if self._busy(CLOSING_S if closing else 0.0):
            if closing:
                self._warn(f'{self.tables.path(fingerprint)} (not kept: a file is written for more than {CLOSING_S:g} s)')
            return
        self._next[fingerprint] = time.monotonic() + KEEP_EVERY_S
        try:
            text = space.slack()
            if text:
                writer = threading.Thread(target=self.tables.write, args=(fingerprint, text), name='tenuto-slack', daemon=True)
                writer.start()
                self._writer = writer
        except (OSError, MemoryError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self._warn(f'{self.tables.path(fingerprint)} (not kept: {_why(error)})')
        if closing and self._busy(CLOSING_S):
            self._warn(f'{self.tables.path(fingerprint)} (perhaps not kept: it is written for more than {CLOSING_S:g} s)')

    def _busy(self, timeout: float) -> bool:
        if self._writer.is_alive():
            self._writer.join(timeout)
        return self._writer.is_alive()
