# SPDX-License-Identifier: Apache-2.0
"""A nixl_agent that scenarios of vllm_pd.py put in the place of a decode engine's, over either module nixl. It says what it sees of transfers, and does what files ask for:

NIXL_TEST_DIR/kill     "GROUP": before the next transfer begins, its processes are killed; the file goes
NIXL_TEST_DIR/signal   "GROUP NUMBER": as soon as a transfer is under way, its processes get this signal; the file goes
NIXL_TEST_DIR/canary   all bytes are changed after they came, before the engine hears of it
"""
import ctypes
import os
import signal
import time

import numpy as np
from nixl._api import nixl_agent


def ordered(name):
    """Words of a file, which goes; none: it is not there."""
    path = os.path.join(os.environ["NIXL_TEST_DIR"], name)
    if not os.path.exists(path):
        return []
    with open(path) as f:
        words = f.read().split()
    os.unlink(path)
    return words


class Watched(nixl_agent):
    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.rows, self.landed = {}, {}

    def prep_xfer_dlist(self, agent_name, xfer_list, *args, **more):
        handle = super().prep_xfer_dlist(agent_name, xfer_list, *args, **more)
        self.rows[id(handle)] = xfer_list
        return handle

    def make_prepped_xfer(self, operation, local, local_indices, *args, **more):
        handle, rows = super().make_prepped_xfer(operation, local, local_indices, *args, **more), self.rows[id(local)]
        self.landed[id(handle)] = [rows[int(i)][:2] for i in local_indices]
        return handle

    def transfer(self, handle, notif_msg=b""):
        killed = ordered("kill")
        if killed:
            os.killpg(int(killed[0]), signal.SIGKILL)
            time.sleep(2)
            print("pd: killed before the transfer", flush=True)
        state = super().transfer(handle, notif_msg)
        print(f"pd: moved by {self.moved_by(handle)}", flush=True)
        signalled = state == "PROC" and ordered("signal")
        if signalled:
            os.killpg(int(signalled[0]), int(signalled[1]))
            print(f"pd: signal {signalled[1]} sent; the transfer is {self.state_of(handle)}", flush=True)
        return state

    def check_xfer_state(self, handle):
        state = super().check_xfer_state(handle)
        if state == "DONE" and os.path.exists(os.path.join(os.environ["NIXL_TEST_DIR"], "canary")):
            for address, size in self.landed.pop(id(handle), []):
                np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))[3::4] ^= 0x80  # the sign of each float32
        return state

    def moved_by(self, handle):
        request = getattr(handle, "request", None)
        return request().status().backend if request else self.query_xfer_backend(handle)

    def state_of(self, handle):
        try:
            return self.check_xfer_state(handle)
        except Exception as error:
            return repr(error)
