# SPDX-License-Identifier: Apache-2.0
"""Scratch directories: what one run needs on disk. What a killed run leaves, the next one in the same place removes.

lab/scratch.h has the rules, and `tenuto` follows the same: the name, the lock, the file that marks the directory, and this user as the owner of both.
Standard library only: programs and tests of the sources use this file without the package.
"""
from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator

NAME = 'tenuto-scratch-'
MARK = '.tenuto-scratch'
_locks: dict[str, int] = {}  # descriptors that hold the locks of this process


def _ours(fd: int) -> bool:
    try:
        mark = os.stat(MARK, dir_fd=fd, follow_symlinks=False)
    except OSError:
        return False
    return os.fstat(fd).st_uid == mark.st_uid == os.geteuid() and stat.S_ISREG(mark.st_mode)


def _reclaim(path: str) -> None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _ours(fd):
            remove(path)
    except OSError:
        pass
    finally:
        os.close(fd)


def make(base: str | None = None) -> str:
    """A new directory in base (TMPDIR, else /var/tmp), locked until it is removed or this process ends, after those of killed runs are removed."""
    base = base or os.environ.get('TMPDIR') or ('/var/tmp' if os.access('/var/tmp', os.W_OK) else '/tmp')
    for name in os.listdir(base):
        if name.startswith(NAME):
            _reclaim(os.path.join(base, name))
    path = tempfile.mkdtemp(prefix=NAME, dir=base)
    _locks[path] = fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
    except OSError:
        return path
    # After the lock: another run that comes in between sees no mark.
    os.close(os.open(MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd))
    return path


def remove(path: str) -> None:
    """Removes the directory and what is in it; the mark last, so that a removal that is killed half-way is taken up by the next run."""
    with contextlib.suppress(OSError):
        with os.scandir(path) as entries:
            names = [e for e in entries if e.name != MARK]
        for e in names:
            if e.is_dir(follow_symlinks=False):
                shutil.rmtree(e.path, ignore_errors=True)
            else:
                os.unlink(e.path)
        shutil.rmtree(path, ignore_errors=True)
    if path in _locks:
        os.close(_locks.pop(path))


@contextlib.contextmanager
def directory(base: str | None = None) -> Iterator[str]:
    """make() and remove() around a block."""
    path = make(base)
    try:
        yield path
    finally:
        remove(path)
