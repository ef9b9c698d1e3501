# SPDX-License-Identifier: Apache-2.0
"""A disk that is slow, for benchmarks: SlowDisk(directory, mb_s) mounts an empty ext4 there, whose reads take their time. Linux, as root.

The ext4 lies on a loop device, and that on the one file of a FUSE file system, which this program serves from memory. A read is answered when a device of so many
MB/s would have read its bytes, after all reads before it. The kernel's throttle of a cgroup is no such device: it lets a tenth of a second pass at once.
Writes are not slowed down. Reads and writes go through the kernel like those of any disk.
"""
import ctypes
import errno
import mmap
import os
import signal
import struct
import subprocess
import sys
import time

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, RELEASE, FSYNC, FLUSH, INIT, INTERRUPT, DESTROY, BATCH_FORGET = 1, 2, 3, 4, 14, 15, 16, 18, 20, 25, 26, 36, 38, 42
HEAD, MAX = struct.Struct('<IIQQIIII'), 1 << 17
LATE_S = 0.005  # of a disk that was kept busy: what answers come late is made up for by the next ones


class Server:
    """Answers the kernel's requests: node 1 is the directory, node 2 the file."""

    def __init__(self, fd, size, mb_s):
        self.fd, self.size, self.bps, self.free_at = fd, size, mb_s * 1e6, 0.0
        self.data = mmap.mmap(-1, size)

    def attr(self, node):
        mode, size = (0o40755, 0) if node == 1 else (0o100600, self.size)
        return struct.pack('<QQQQQQIIIIIIIIII', node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)

    def answer(self, opcode, node, body):
        """The bytes of an answer, or a negative errno; None: there is none."""
        if opcode in (FORGET, INTERRUPT, BATCH_FORGET):
            return None
        if opcode == INIT:
            return struct.pack('<IIIIHHIIHHI28x', 7, 31, 0, 0, 64, 48, MAX, 1, MAX // 4096, 0, 0)
        if opcode == LOOKUP:
            return struct.pack('<QQQQII', 2, 0, 3600, 3600, 0, 0) + self.attr(2) if body == b'disk\0' else -errno.ENOENT
        if opcode in (GETATTR, SETATTR):
            return struct.pack('<QII', 3600, 0, 0) + self.attr(node)
        if opcode == OPEN:
            return struct.pack('<QII', 0, 1, 0)  # nothing of it is kept in the page cache
        if opcode == READ:
            return self.read(*struct.unpack_from('<QI', body, 8))
        if opcode == WRITE:
            offset, size = struct.unpack_from('<QI', body, 8)
            self.data[offset:offset + size] = body[40:40 + size]
            return struct.pack('<II', size, 0)
        return b'' if opcode in (RELEASE, FSYNC, FLUSH, DESTROY) else -errno.ENOSYS

    def read(self, offset, size):
        now = time.monotonic()
        self.free_at = max(self.free_at, now - LATE_S if now - self.free_at < 2 * LATE_S else now) + size / self.bps
        if self.free_at > now:
            time.sleep(self.free_at - now)
        return self.data[offset:offset + size]

    def run(self):
        while True:
            try:
                request = os.read(self.fd, MAX + 4096)
            except OSError as e:
                if e.errno == errno.ENODEV:  # it was unmounted
                    return
                continue
            _, opcode, unique, node, *_ = HEAD.unpack_from(request)
            out = self.answer(opcode, node, request[HEAD.size:])
            if out is not None:
                data = out if isinstance(out, bytes) else b''
                os.writev(self.fd, [struct.pack('<IiQ', 16 + len(data), min(out, 0) if isinstance(out, int) else 0, unique), data])


class SlowDisk:
    """mb_s: of its reads, in MB/s. size: in bytes. close, or with, removes it."""

    def __init__(self, directory, mb_s, size=1 << 30):
        self.path, self.under, self.loop, self.pid, self.fd = directory, f'{directory}.slow', None, 0, -1
        os.makedirs(self.under)
        os.makedirs(self.path, exist_ok=True)
        try:
            self._mount(mb_s, size)
        except BaseException:
            self.close()
            raise

    def _mount(self, mb_s, size):
        self.fd = os.open('/dev/fuse', os.O_RDWR)
        libc = ctypes.CDLL(None, use_errno=True)
        options = f'fd={self.fd},rootmode=40000,user_id=0,group_id=0,max_read={MAX}'.encode()
        if libc.mount(b'slow_disk', os.fsencode(self.under), b'fuse', 0, options):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), self.under)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                Server(self.fd, size, mb_s).run()
            finally:
                os._exit(0)
        os.close(self.fd)
        self.loop = subprocess.run(['losetup', '-f', '--show', f'{self.under}/disk'], check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run(['mkfs.ext4', '-q', '-O', '^has_journal', '-E', 'nodiscard,lazy_itable_init=0', self.loop], check=True)
        subprocess.run(['mount', self.loop, self.path], check=True)

    def close(self):
        for command in (['umount', self.path], ['losetup', '-d', self.loop], ['umount', self.under]):
            if command[-1]:
                subprocess.run(command, check=False, stderr=subprocess.DEVNULL)
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.rmdir(self.under)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


if __name__ == '__main__':  # DIR MB_S COMMAND...: runs a command while the disk is there
    with SlowDisk(sys.argv[1], float(sys.argv[2])):
        sys.exit(subprocess.run(sys.argv[3:], check=False).returncode)
