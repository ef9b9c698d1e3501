# SPDX-License-Identifier: Apache-2.0
"""The soft device of the tests (libtenuto_soft.so): memory that no CPU may touch by its address. The device's own functions say where its bytes are."""
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


def directory():
    """Where the plugin is, by TENUTO_PLUGIN_PATH. None: it is not there, as where an installed package is tested."""
    found = [d for d in os.environ.get('TENUTO_PLUGIN_PATH', '').split(':') if os.path.exists(os.path.join(d, 'libtenuto_soft.so'))]
    return found[0] if found else None


class SoftDevice:
    """Device 0: one of each process."""

    def __init__(self):
        self.library = C.CDLL(os.path.join(directory(), 'libtenuto_soft.so'))
        self.library.tn_soft_bytes.restype = C.c_void_p
        self.library.tn_soft_bytes.argtypes = [C.c_void_p]
        self.library.tn_soft_copied.restype = C.c_uint64
        self.library.tn_soft_fail.argtypes = [C.c_uint64, C.c_int]
        self.driver, self.held = Plugin.in_dll(self.library, 'tn_plugin').table, []

    def allocate(self, size):
        """Address of new memory."""
        out = C.c_void_p()
        rc = self.driver.contents.ops.contents.allocate(C.cast(self.driver, C.c_void_p), 0, size, C.byref(out))
        if rc:
            raise MemoryError(f'{size} bytes of the soft device: {rc}')
        self.held.append(out.value)
        return out.value

    def release(self):
        """Gives all memory back."""
        for address in self.held:
            self.driver.contents.ops.contents.release(C.cast(self.driver, C.c_void_p), 0, address)
        self.held.clear()

    def write(self, address, data):
        C.memmove(self.library.tn_soft_bytes(address), bytes(data), len(data))

    def read(self, address, size):
        return C.string_at(self.library.tn_soft_bytes(address), size)
