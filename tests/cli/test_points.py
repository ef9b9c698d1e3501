# SPDX-License-Identifier: Apache-2.0
"""The static trace points of the library (USDT): those that docs/statistics.md lists, each one a nop. LIBTENUTO names the library."""
import os
import re
import shutil
import struct
import subprocess

from cli import ROOT, Skip, fail, main

LIBRARY = os.path.abspath(os.environ.get("LIBTENUTO", os.path.join(ROOT, "build", "libtenuto.so")))
NOPS = {62: [b"\x90"], 183: [b"\x1f\x20\x03\xd5"]}  # by e_machine: x86-64, AArch64


def points():
    """(name, address, semaphore, number of arguments) of each place that has one."""
    if not shutil.which("readelf"):
        raise Skip("readelf is not there (package binutils)")
    text = subprocess.run(["readelf", "-n", "-W", LIBRARY], capture_output=True, text=True, check=True, timeout=60).stdout
    found = re.findall(r"Provider: tenuto\s+Name: (\S+)\s+Location: (\S+), Base: \S+, Semaphore: (\S+)\s+Arguments:([^\n]*)", text)
    if not found:
        raise Skip("the library was built without sys/sdt.h (package systemtap-sdt-dev)")
    return [(name, int(at, 16), int(semaphore, 16), len(re.findall(r"-?\d+(?:@|f@)", arguments))) for name, at, semaphore, arguments in found]


def the_documents_list_each_point_with_its_arguments():
    with open(os.path.join(ROOT, "docs", "statistics.md")) as f:
        table = f.read().split("## Trace points")[1]
    listed = {name: len(arguments.split(",")) for name, arguments in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.M)}
    there = {name: arguments for name, _, _, arguments in points()}
    if listed != there:
        fail("listed, and not so: %s; so, and not listed: %s" % (set(listed.items()) - set(there.items()), set(there.items()) - set(listed.items())))


def a_point_costs_a_nop_alone():
    all_points = points()
    with open(LIBRARY, "rb") as f:
        data = f.read()
    machine, = struct.unpack_from("<H", data, 18)
    if data[4] != 2 or machine not in NOPS:
        raise Skip("an unknown machine: %d" % machine)
    at, = struct.unpack_from("<Q", data, 32)
    size, n = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, at + i * size) for i in range(n)]
    for name, address, semaphore, _ in all_points:
        offset = [s[2] + address - s[3] for s in segments if s[0] == 1 and s[3] <= address < s[3] + s[5]]
        if semaphore or not offset or not any(data.startswith(nop, offset[0]) for nop in NOPS[machine]):
            fail("%s at %#x: semaphore %#x, %s" % (name, address, semaphore, data[offset[0]:offset[0] + 4] if offset else "nowhere"))


main(globals())
