# SPDX-License-Identifier: Apache-2.0
"""NIXL's POSIX plugin: transfers between registered memory and one file, O_DIRECT. It has no keys and no index: this program gives every block its place. options: of
the plugin."""
import ctypes
import os
import time

import worker
from nixl._api import nixl_agent, nixl_agent_config

TIMEOUT = 60.0


class Peer:
    def __init__(self, directory, blocks, size, memory, options):
        self.size = size
        self.at = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.fd = os.open(os.path.join(directory, 'blocks'), os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o600)
        self.agent = nixl_agent('peers', nixl_agent_config(backends=[]))
        self.agent.create_backend('POSIX', options)
        self.agent.register_memory([(self.at, blocks * size, 0, 'm')], 'DRAM', backends=['POSIX'])
        self.agent.register_memory([(0, blocks * size, self.fd, 'f')], 'FILE', backends=['POSIX'])

    def _move(self, what, indices):
        memory = self.agent.get_xfer_descs([(self.at + i * self.size, self.size, 0) for i in indices], 'DRAM')
        file = self.agent.get_xfer_descs([(i * self.size, self.size, self.fd) for i in indices], 'FILE')
        handle = self.agent.initialize_xfer(what, memory, file, 'peers', backends=['POSIX'])
        state, end = self.agent.transfer(handle), time.monotonic() + TIMEOUT
        while state not in ('DONE', 'ERR'):
            if time.monotonic() > end:
                raise TimeoutError(f'a transfer had not ended after {TIMEOUT:.0f} s')
            time.sleep(0.00005)
            state = self.agent.check_xfer_state(handle)
        self.agent.release_xfer_handle(handle)
        if state == 'ERR':
            raise OSError('transfer: ERR')
        return indices

    def save(self, indices):
        return self._move('WRITE', indices)

    def load(self, indices):
        return self._move('READ', indices)

    def look_up(self, indices):
        return None

    def close(self):
        os.close(self.fd)


if __name__ == '__main__':
    worker.run(Peer)
