# SPDX-License-Identifier: Apache-2.0
"""Memory by address, as NIXL's tests and examples use it: the name is NIXL's."""
import ctypes

ALIGNMENT = 4096  # of files that are opened with O_DIRECT

_libc = ctypes.CDLL(None)
_libc.aligned_alloc.restype = ctypes.c_void_p
_libc.aligned_alloc.argtypes = (ctypes.c_size_t, ctypes.c_size_t)
_libc.free.argtypes = (ctypes.c_void_p,)


def malloc_passthru(size: int) -> int:
    """The address of so many bytes."""
    address = _libc.aligned_alloc(ALIGNMENT, -(-size // ALIGNMENT) * ALIGNMENT)
    if not address:
        raise MemoryError(f'{size} bytes')
    return address


def free_passthru(buf: int) -> None:
    _libc.free(buf)


def ba_buf(addr: int, size: int) -> None:
    """Fills bytes with 0xba."""
    ctypes.memset(addr, 0xba, size)


def verify_transfer(addr1: int, addr2: int, size: int) -> None:
    """Raises AssertionError where bytes differ."""
    if ctypes.string_at(addr1, size) != ctypes.string_at(addr2, size):
        raise AssertionError(f'{size} bytes at {addr1:#x} and {addr2:#x} differ')
