# SPDX-License-Identifier: Apache-2.0
"""Devices of the tests, which plugins drive: memory that no CPU may touch by its address. The soft one (libtenuto_soft.so) has functions that say where its bytes are."""
import ctypes as C
import os

BEFORE_ALLOCATE = ('count', 'properties', 'register_range', 'unregister_range', 'pin', 'unpin', 'stream_create', 'stream_destroy', 'copy', 'wait', 'stream_follow', 'word_wait',
                   'word_write', 'sum')


class Ops(C.Structure):
    _fields_ = [('size', C.c_size_t), ('abi', C.c_uint32), ('name', C.c_char_p), *((name, C.c_void_p) for name in BEFORE_ALLOCATE),
                ('allocate', C.CFUNCTYPE(C.c_int, C.c_void_p, C.c_uint32, C.c_uint64, C.c_void_p)), ('release', C.CFUNCTYPE(None, C.c_void_p, C.c_uint32, C.c_void_p))]


class Range(C.Structure):
    _fields_ = [('address', C.c_void_p), ('bytes', C.c_uint64), ('fd_offset', C.c_uint64), ('fd', C.c_int32), ('device', C.c_uint32)]


class Piece(C.Structure):
    _fields_ = [('device', C.c_void_p), ('other', C.c_void_p), ('bytes', C.c_uint64)]


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
        self.hold, self.fail = self.library.tn_soft_hold, self.library.tn_soft_fail

    def write(self, address, data):
        C.memmove(self.library.tn_soft_bytes(address), bytes(data), len(data))

    def read(self, address, size):
        return C.string_at(self.library.tn_soft_bytes(address), size)

    def register(self, address, size):
        """What an engine's copies name."""
        ranged = Range(address=address, bytes=size)
        self._call('register_range', C.addressof(ranged), None, C.c_size_t(0))

    def _call(self, name, *args):
        out = C.CFUNCTYPE(C.c_int, C.c_void_p, *(type(a) if isinstance(a, C._SimpleCData) else C.c_void_p for a in args))
        rc = out(getattr(self.driver.contents.ops.contents, name))(C.cast(self.driver, C.c_void_p), *args)
        assert rc == 0, (name, rc)

    def copy(self, stream, to, source, size):
        """Within the device. The event of it."""
        piece, event = Piece(to, source, size), C.c_uint64()
        self._call('copy', stream, C.c_int(WITHIN), C.addressof(piece), C.c_uint32(1), C.addressof(event))
        return event

    def synchronize(self, stream, event):
        self._call('wait', stream, event, C.c_uint64(FOREVER))


class FakeCuda(Device):
    """Device 0 of the libcuda of the tests (tests/cuda/fake_cuda.h), by its own calls where an engine makes them: so its streams are none of the plugin's."""

    def __init__(self):
        super().__init__('cuda')
        self.cuda = C.CDLL('libcuda.so.1')
        self.cuda.fake_cuda_engine_stream.restype = C.c_void_p
        for call in (self.cuda.fake_cuda_peek, self.cuda.fake_cuda_poke):
            call.argtypes = [C.c_void_p, C.c_void_p, C.c_uint64]
        self.hold = lambda held: self.cuda.fake_cuda_hold(C.c_bool(held))
        self.cuda.fake_cuda_slow(C.c_uint64(int(os.environ.get('TN_SOFT_LATE_NS', 0))))

    def write(self, address, data):
        self.cuda.fake_cuda_poke(address, bytes(data), len(data))

    def read(self, address, size):
        out = C.create_string_buffer(size)
        self.cuda.fake_cuda_peek(address, out, size)
        return out.raw

    def register(self, address, size):
        pass

    def stream(self):
        made = self.cuda.fake_cuda_engine_stream(0)
        return made, lambda: self.cuda.fake_cuda_engine_stream_end(C.c_void_p(made))

    def _call(self, name, *args):
        call, status = C.c_void_p(), C.c_uint()
        rc = self.cuda.cuGetProcAddress_v2(name.encode(), C.byref(call), 12000, C.c_uint64(0), C.byref(status))
        self.cuda.fake_cuda_current(0)
        rc = rc or C.CFUNCTYPE(C.c_int, *(type(a) for a in args))(call.value)(*args)
        self.cuda.fake_cuda_current(-1)
        assert rc == 0, (name, rc)

    def copy(self, stream, to, source, size):
        self._call('cuMemcpyAsync', C.c_uint64(to), C.c_uint64(source), C.c_size_t(size), C.c_void_p(stream))

    def synchronize(self, stream, event):
        self._call('cuStreamSynchronize', C.c_void_p(stream))


WITHIN, FOREVER = 2, (1 << 64) - 1  # of a driver
SCRATCH = 8 << 20


class Stream:
    """A stream of a device as an engine has one, by the names that torch has. What it computes are copies within the device, and they are late.

    put: bytes get to an address once the stream is there; nobody waits. get: the bytes that the address has then; the host waits.
    """

    def __init__(self, device):
        self.device, (self.cuda_stream, self._destroy) = device, device.stream()
        self.scratch, self.used = device.allocate(SCRATCH), 64
        device.register(self.scratch, SCRATCH)

    def synchronize(self):
        self.device.synchronize(self.cuda_stream, self.device.copy(self.cuda_stream, self.scratch, self.scratch + 32, 32))

    def close(self):
        self.synchronize()
        self._destroy()

    def place(self, size):
        """Memory of the device for what is on its way. What had it before is over."""
        if self.used + size > SCRATCH:
            self.synchronize()
            self.used = 64
        self.used += size
        return self.scratch + self.used - size

    def put(self, address, data):
        at = self.place(len(data))
        self.device.write(at, data)
        self.device.copy(self.cuda_stream, address, at, len(data))

    def get(self, address, size):
        at = self.place(size)
        self.device.synchronize(self.cuda_stream, self.device.copy(self.cuda_stream, at, address, size))
        return self.device.read(at, size)
