# SPDX-License-Identifier: Apache-2.0
"""`tenuto bench device` on the soft device, whose plugin lies in TENUTO_PLUGIN_PATH: pages in memory that no CPU may touch."""
from cli import USAGE, fail, main, says, tenuto

QUICK = ["bench", "device", "--dir", ".", "--total", "16MiB", "--object", "64KiB", "--layers", "8", "--rounds", "2"]
SIDES = ["%s_tier_%s_memory" % (tier, memory) for tier in ("host", "disk") for memory in ("host", "device")]


def each_side_has_a_rate_of_each_round():
    r = tenuto(*QUICK, "--driver", "soft", "--json").json()
    for side in SIDES:
        for figure in ("save_gbs", "load_gbs", "load_cpu_s_per_gb"):
            if len(r[side][figure]) != 2 or min(r[side][figure]) <= 0:
                fail("%s %s: %s" % (side, figure, r[side]))


def the_table_has_a_row_of_each_side_or_says_why_not_and_compares_them():
    r = tenuto(*QUICK, "--driver", "soft")
    for word in ("host tier, host memory", "host tier, device memory", "disk tier, device against host", "load CPU s/GB", "2 rounds"):
        if word not in r.out:
            fail(str(r))
    if ("disk, direct, device memory" in r.out) == ("Nothing took the direct way: " in r.out):
        fail(str(r))


def a_driver_or_a_device_that_is_not_there_is_named():
    says(tenuto(*QUICK, "--driver", "nosuch", rc=USAGE), "libtenuto_nosuch.so")
    says(tenuto(*QUICK, "--driver", "soft", "--device", "7", rc=USAGE), "--device 7", "1 devices")
    says(tenuto("bench", "device", "--total", "1MiB", rc=USAGE), "--total")


main(globals())
