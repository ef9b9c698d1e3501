# SPDX-License-Identifier: Apache-2.0
"""`tenuto demo` from end to end, `tenuto store` and `tenuto bench store` in small."""
import glob
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import time

from cli import DEADLINE, ENVIRONMENT, OK, PROBLEM, TENUTO, Skip, fail, main, need, says, tenuto, until, write


def the_demo_recovers_from_its_kill_with_everything_verified():
    need("demo")
    os.mkdir("tmp")
    r = tenuto("demo", "--json", "--dir", "tmp", timeout=120).json()
    if r["corrupt_objects"] or not r["recovered_blocks"] or not r["hit_blocks"]:
        fail(str(r))
    if r["verified_objects"] != 8 * r["hit_blocks"] or not r["recompute"][0]["recompute_s"] > 0:
        fail(str(r))
    if os.listdir("tmp"):
        fail("left: %s" % os.listdir("tmp"))


def interrupted_demo(*signals):
    """Sends the signals 1 ms apart while blocks are being written: exit 3, and nothing is left."""
    need("demo")
    os.mkdir("tmp")
    p = subprocess.Popen([TENUTO, "demo", "--json", "--dir", "tmp"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until(lambda: glob.glob("tmp/*/*/*"), "store")
    for s in signals:
        p.send_signal(s)
        time.sleep(0.001)
    out, err = p.communicate(timeout=DEADLINE)
    if p.returncode != ENVIRONMENT or err != "tenuto demo: interrupted\n" or not json.loads(out)["interrupted"]:
        fail("%s %s %s" % (p.returncode, out, err))
    if os.listdir("tmp"):
        fail("left: %s" % os.listdir("tmp"))


def an_interrupted_demo_exits_3_with_what_it_has_and_leaves_nothing():
    interrupted_demo(signal.SIGINT)


def a_signal_sent_twice_as_timeout_does_still_leaves_nothing():
    interrupted_demo(*[signal.SIGTERM] * 4)


def a_store_is_described_verified_and_checked():
    need("store")
    write("t.jsonl", tenuto("workload", "--requests", "60").out)
    os.mkdir("d")
    tenuto("replay", "t.jsonl", "--geometry", "4x16KiB", "--capacity-blocks", "100", "--dir", "d", "--policy", "lru")
    device = tenuto("store", "info", "d", "--json").json()["devices"][0]
    if not device["clean"] or device["in_use"] or not 0 < device["blocks"] <= 100:
        fail(str(device))
    out = tenuto("store", "info", "d").out
    if "closed in order" not in out or not re.search(r"^capacity +[\d.]+ MiB$", out, re.M):
        fail(out)
    blocks, most = device["blocks"], device["estimated_capacity_blocks"]
    if most < 100 or not 0.9 < device["estimated_used_bytes"] / (blocks * (64 << 10)) < 1.5:
        fail(str(device))
    if not re.search(r"^used +about [\d.]+ [KM]iB; %d of about %d blocks$" % (blocks, most), out, re.M):
        fail(out)
    v = tenuto("store", "verify", "d", "--json").json()
    if v["blocks"] != device["blocks"] or v["objects"] != 4 * v["blocks"] or v["corrupt_objects"]:
        fail(str(v))
    c = tenuto("store", "check", "d", "--json").json()
    if c["problems"] or c["blocks"] != device["blocks"]:
        fail(str(c))
    if "bad:     nothing" not in tenuto("store", "verify", "d").out:
        fail("the good is not called good")
    tenuto("store", "check", "d")


def store_info_shows_the_capacity_by_device_and_in_all():
    need("store")
    write("t.jsonl", tenuto("workload", "--requests", "20").out)
    os.mkdir("d")
    os.mkdir("e")
    tenuto("replay", "t.jsonl", "--geometry", "4x1MiB", "--capacity-blocks", "100", "--dir", "d", "--dir", "e")
    r = tenuto("store", "info", "d", "e", "--json").json()
    each = [d["segments"] * d["segment_bytes"] for d in r["devices"]]
    if r["capacity_bytes"] != sum(each) or [d["capacity_bytes"] for d in r["devices"]] != each or not sum(each) >= 400 << 20:
        fail(str(r))
    for dirs in (("d", "e"), ("e", "d")):
        rows = re.findall(r"^capacity +([\d.]+) MiB; all 2 devices: ([\d.]+) MiB$", tenuto("store", "info", *dirs).out, re.M)
        if len(rows) != 2 or any(abs(2 * float(one) - float(both)) > 1 for one, both in rows):
            fail(rows)


def a_damaged_object_is_found_by_verify():
    need("store")
    write("t.jsonl", tenuto("workload", "--requests", "60").out)
    os.mkdir("d")
    tenuto("replay", "t.jsonl", "--geometry", "4x16KiB", "--capacity-blocks", "100", "--dir", "d", "--policy", "lru")
    device = tenuto("store", "info", "d", "--json").json()["devices"][0]
    half = device["segment_bytes"] // 2  # behind the segment's headers lie the slots
    with open(device["path"], "r+b") as f:
        for at in range(device["index_bytes"] + half, device["file_bytes"], 2 * half):
            f.seek(at + 100)
            b = f.read(1)
            f.seek(at + 100)
            f.write(bytes([b[0] ^ 1]))
    j = tenuto("store", "verify", "d", "--json", rc=PROBLEM).json()
    if not j["corrupt_objects"] + j["corrupt_blocks"]:
        fail(str(j))
    r = tenuto("store", "verify", "d", rc=PROBLEM)
    found = re.findall(r"^tenuto store verify: problem: (\S+): slot \d+ \(data from byte (\d+) on\), block [0-9a-f]{32}: "
                       r"wrong checksum of (\d+) of its 4 objects", r.err, re.M)
    if sum(int(n) for _, _, n in found) != j["corrupt_objects"] or {path for path, _, _ in found} != {device["path"]}:
        fail("%s does not name what %s counts" % (r, j))
    if "checked: %d objects of %d blocks" % (j["objects"], j["blocks"]) not in r.out \
            or "bad:     %d object" % j["corrupt_objects"] not in r.out:
        fail(str(r))


def the_index_is_made_anew_from_headers():
    need("store")
    write("t.jsonl", tenuto("workload", "--requests", "60").out)
    os.mkdir("d")
    tenuto("replay", "t.jsonl", "--geometry", "4x16KiB", "--capacity-blocks", "300", "--dir", "d", "--policy", "lru")
    before = tenuto("store", "info", "d", "--json").json()["devices"][0]["blocks"]
    after = tenuto("store", "check", "d", "--rebuild", "--json").json()["blocks"]
    if before != after or not before:
        fail("%s blocks before, %s after" % (before, after))
    if tenuto("store", "verify", "d", "--json").json()["blocks"] != before:
        fail("verify finds another number")


def a_rebuilt_index_says_that_evicted_blocks_are_back_and_a_cache_keeps_to_its_capacity():
    need("store")
    write("t.jsonl", tenuto("workload", "--requests", "60").out)
    os.mkdir("d")
    replay = ("replay", "t.jsonl", "--geometry", "4x16KiB", "--capacity-blocks", "40", "--dir", "d", "--policy", "lru", "--verify")
    tenuto(*replay)
    said = " ".join(tenuto("store", "check", "d", "--rebuild").out.split())
    after, before = (int(n) for n in re.match(r"(\d+) blocks in the index \((\d+) before\)", said).groups())
    if not before <= 40 < after or "evicted" not in said or "store verify" not in said:
        fail(said)
    if tenuto("store", "verify", "d", "--json").json()["blocks"] != after:
        fail("verify finds another number")
    if tenuto(*replay, "--json").json()["blocks_held"] > 40:
        fail("the cache holds more than its capacity")


def a_rebuild_does_not_count_a_lost_directory_as_repaired():
    need("store")
    write("t.jsonl", tenuto("workload", "--requests", "60").out)
    for d in "ab":
        os.mkdir(d)
    tenuto("replay", "t.jsonl", "--geometry", "4x16KiB", "--capacity-blocks", "300", "--dir", "a", "--dir", "b", "--policy", "lru")
    shutil.rmtree("b/default")
    j = tenuto("store", "check", "a", "b", "--rebuild", "--json", rc=PROBLEM).json()
    if j["problems"] != 1 or j["repaired"] != 0 or not j["blocks"]:
        fail(str(j))


def a_directory_without_a_store_is_named():
    need("store")
    os.mkdir("d")
    for v in ("info", "verify", "check"):
        says(tenuto("store", v, "d", rc=2), "d")


def the_benchmark_of_the_store_gives_a_row_for_each_size_and_direction():
    need("demo")
    r = tenuto("bench", "store", "--object", "32KiB", "--object", "128KiB", "--total", "16MiB", "--pairs", "2", "--no-tmpfs",
               "--json").json()
    rows = {(row["object_bytes"], row["op"]) for row in r["rows"]}
    if rows != {(s << 10, op) for s in (32, 128) for op in ("read", "write")}:
        fail(str(rows))
    if not all(row["gbps"] > 0 and row["cpu_s_per_gb"] > 0 for row in r["rows"]):
        fail(json.dumps(r))


def the_benchmark_beside_fio_gives_ratios_with_intervals():
    need("demo")
    if not shutil.which("fio"):
        raise Skip("no fio")
    r = tenuto("bench", "store", "--vs-fio", "--object", "128KiB", "--total", "16MiB", "--pairs", "3", "--no-tmpfs",
               "--json").json()
    for row in r["rows"]:
        if not (row["fio_gbps"] > 0 and row["ratio_ci"][0] <= row["ratio"] <= row["ratio_ci"][1]
                and row["fio_cpu_s_per_gb"] > 0):
            fail(json.dumps(row))
        if not (131072 <= row["fio_best_request_bytes"] <= 4 << 20 and row["fio_best_depth"] > 0 and row["fio_best_gbps"] > 0
                and row["best_ratio_ci"][0] <= row["best_ratio"] <= row["best_ratio_ci"][1]):
            fail(json.dumps(row))
        if any(len(row[runs]) != 3 for runs in ("runs", "fio_runs", "fio_best_runs")):
            fail(json.dumps(row))
        of_rounds = statistics.median(a[0] / b[0] for a, b in zip(row["runs"], row["fio_runs"]))
        if abs(row["ratio"] - of_rounds) > 1e-9:
            fail("not the median of the rounds' ratios, %s: %s" % (of_rounds, json.dumps(row)))
    r = tenuto("bench", "store", "--vs-fio", "--object", "128KiB", "--total", "16MiB", "--pairs", "1", "--no-tmpfs")
    if "ratio: the median over the rounds" not in r.out:
        fail(str(r))


main(globals())
