#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ranks_test.py EXAMPLE: runs it twice in one directory: all blocks of the second request come, and of the first one when the cache is warm."""
import subprocess
import sys
import tempfile

with tempfile.TemporaryDirectory(dir='/var/tmp') as d:
    for warm in (0, 4):
        run = subprocess.run([sys.argv[1], d], capture_output=True, text=True, timeout=120)
        want = f'request 1: {warm} of 4 blocks came, right on all ranks\nrequest 2: 4 of 4 blocks came, right on all ranks\n'
        if run.returncode != 0 or run.stdout != want or run.stderr != f'owns the cache in {d}, and serves it at {d}/tenuto.sock\n':
            sys.exit(f'exit {run.returncode}\n{run.stdout}{run.stderr}')
