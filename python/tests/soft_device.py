# SPDX-License-Identifier: Apache-2.0
"""Devices of the tests, which plugins drive: memory that no CPU may touch by its address. The soft one (libtenuto_soft.so) has functions that say where its bytes are."""
import ctypes as C
import os

BEFORE_ALLOCATE = ('count', 'properties', 'register_range', 'unregister_range', 'pin', 'unpin', 'stream_create', 'stream_destroy', 'copy', 'wait', 'stream_follow', 'word_wait',
                   'word_write', 'sum')


class Ops(C.Structure):
    _fields_ = [('size', C.c_size_t), ('abi', C.c_uint32), ('name', C.c_char_p), *((name, C.c_void_p) for name in BEFORE_ALLOCATE),
                ('allocate', C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_uint32, C.c_uint64, C.c_void_p)), ('release', C.CFUNCTYPE(None, C.c_void_p, C.c_uint32, C.c_void_p))]


class Driver(C.Structure):
    _fields_ = [('ops', C.POINTER(Ops)), ('arg', C.c_void_p)]


class Plugin(C.Structure):
    _fields_ = [('size', C.c_size_t), ('abi', C.c_uint32), ('kind', C.c_uint32), ('name', C.c_char_p), ('built_for', C.c_char_p), ('table', C.POINTER(Driver))]


def file_of(plugin):
    """By TENUTO_PLUGIN_PATH. None: it is not there, as where an installed package is tested."""
    paths = [os.path.join(d, f'libtenuto_{plugin}.so') for d in os.environ.get('TENUTO_PLUGIN_PATH', '').split(':')]
    return next(filter(os.path.exists, paths), None)


class Device:
    """Device 0 of a plugin."""

    def __init__(self, plugin):
        self.library = C.CDLL(file_of(plugin))
        self.driver, self.held = Plugin.in_dll(self.library, 'tn_plugin').table, []

    def allocate(self, size):
        """Address of new memory."""
        out = C.c_void_p()
        rc = self.driver.contents.ops.contents.allocate(C.cast(self.driver, C.c_void_p), 0, size, C.byref(out))
        if rc:
            raise MemoryError(f'{size} bytes of a device: {rc}')
        self.held.append(out.value)
        return out.value

    def stream(self):
        """A stream, as an engine has one: a number; and what destroys it."""
        ops, driver, out = self.driver.contents.ops.contents, C.cast(self.driver, C.c_void_p), C.c_void_p()
        rc = C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_uint32, C.c_void_p)(ops.stream_create)(driver, 0, C.byref(out))
        if rc:
            raise OSError(-rc, 'no stream of a device')
        return out.value, lambda: C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)(ops.stream_destroy)(driver, out)

    def release(self):
        """Gives all memory back."""
        for address in self.held:
            self.driver.contents.ops.contents.release(C.cast(self.driver, C.c_void_p), 0, address)
        self.held.clear()


class SoftDevice(Device):
    """One of each process."""

    def __init__(self):
        super().__init__('soft')
        self.library.tn_soft_bytes.restype = C.c_void_p
        self.library.tn_soft_bytes.argtypes = [C.c_void_p]
        self.library.tn_soft_copied.restype = C.c_uint64
        self.library.tn_soft_fail.argtypes = [C.c_uint64, C.c_int]

    def write(self, address, data):
        C.memmove(self.library.tn_soft_bytes(address), bytes(data), len(data))

    def read(self, address, size):
        return C.string_at(self.library.tn_soft_bytes(address), size)
