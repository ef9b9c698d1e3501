# SPDX-License-Identifier: Apache-2.0
"""`tenuto replay` with real bytes: everything verified, bounded, warm after a restart; and what may go wrong."""
import glob
import json
import os
import pty
import random
import select
import shutil
import signal
import subprocess

from cli import DEADLINE, ENVIRONMENT, LINE, OK, PROBLEM, TENUTO, USAGE, Result, Skip, fail, main, need, rest_of_terminal, says, tenuto, until, write

LAYERS, CAPACITY = 4, 150
COMMON = ["--geometry", "4x16KiB", "--capacity-blocks", str(CAPACITY), "--verify", "--json"]


def trace(requests=200):
    need("replay")
    need("demo")  # the verb that comes with real bytes
    return write("t.jsonl", tenuto("workload", "--requests", requests).out)


def replay(*more, rc=OK, **how):
    return tenuto("replay", "t.jsonl", *COMMON, *more, rc=rc, **how)


def store_files(where="d"):
    found = [f for f in glob.glob(where + "/**", recursive=True) if os.path.isfile(f)]
    return found or fail("no store in " + where)


def damage(path, start, end, every=4096, seed=1):
    """Flips some bytes of [start, end)."""
    rng = random.Random(seed)
    with open(path, "r+b") as f:
        for at in range(start, min(end, os.path.getsize(path)), every):
            f.seek(at + rng.randrange(every // 2))
            b = f.read(1)
            if b:
                f.seek(-1, 1)
                f.write(bytes([b[0] ^ 0xFF]))


def started(*more, **how):
    """Starts a replay that takes minutes, on a terminal, and returns when it has served requests: it shows its progress then."""
    ours, its = pty.openpty()
    p = subprocess.Popen([TENUTO, "replay", "t.jsonl", "--speed", "1", *more], stdout=subprocess.PIPE, stderr=its, text=True, **how)
    os.close(its)
    p.terminal, shown = ours, b""
    try:
        while b"%" not in shown and select.select([ours], [], [], DEADLINE)[0]:
            shown += os.read(ours, 65536)
    except OSError:
        pass  # it has ended
    if b"%" in shown:
        return p
    p.kill()
    fail("it did not start: %s %s" % (shown, p.communicate()))


def ended(p, sig):
    p.send_signal(sig)
    try:
        out, _ = p.communicate(timeout=DEADLINE)
    except subprocess.TimeoutExpired:
        p.kill()
        fail("it does not end after signal %s" % sig)
    err = rest_of_terminal(p.terminal).decode()
    return Result(["(interrupted)"], subprocess.CompletedProcess([], p.returncode, out, err))


def in_mount(options, script):
    """Runs a shell script with a tmpfs on ./m in a mount namespace of its own."""
    os.makedirs("m", exist_ok=True)
    test = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs none m && umount m"], capture_output=True)
    if test.returncode:
        raise Skip("needs the right to mount")
    done = subprocess.run(["unshare", "-m", "sh", "-c", "mount -t tmpfs -o %s none m && %s" % (options, script)],
                          capture_output=True, text=True, timeout=120)
    return Result([script], done)


def every_restored_byte_is_what_was_saved():
    trace()
    r = replay().json()
    if r["corrupt_objects"] or r["wrong_objects"] or r["io_errors"]:
        fail(str(r))
    if not 0 < r["blocks_never_read_back"] < r["blocks_written"]:
        fail(str(r))
    if not r["hit_blocks"] or r["verified_objects"] != r["hit_blocks"] * LAYERS:
        fail("%(hit_blocks)s hits, %(verified_objects)s objects verified" % r)
    if r["bytes_read"] < r["hit_blocks"] * r["block_bytes"] or not r["bytes_written"] or not r["read_gbps"] > 0:
        fail(str(r))


def the_temporary_directory_is_removed():
    trace(20)
    os.mkdir("tmp")
    replay(env=dict(os.environ, TMPDIR=os.path.abspath("tmp")))
    if os.listdir("tmp"):
        fail("left: %s" % os.listdir("tmp"))


def the_capacity_is_never_exceeded_and_a_restart_is_warm():
    trace()
    os.mkdir("d")
    first = replay("--dir", "d", "--policy", "lru").json()
    if first["blocks_written"] <= CAPACITY:
        fail("nothing was evicted: %s" % first)
    again = replay("--dir", "d", "--policy", "lru").json()
    if not 0.8 * CAPACITY <= again["blocks_recovered"] <= CAPACITY:
        fail("%s blocks recovered, the capacity is %s" % (again["blocks_recovered"], CAPACITY))
    if again["corrupt_objects"]:
        fail(str(again))


def two_directories_are_both_used():
    trace()
    os.mkdir("d")
    os.mkdir("e")
    r = replay("--dir", "d", "--dir", "e").json()
    sizes = [sum(os.stat(f).st_blocks for f in store_files(w)) for w in ("d", "e")]
    if r["corrupt_objects"] or not min(sizes):
        fail("%s %s" % (r, sizes))


def every_policy_and_engine_runs():
    trace(60)
    for more in (["--policy", "lru"], ["--policy", "fifo"], ["--policy", "s3fifo"], ["--io-engine", "posix"],
                 ["--host-blocks", "40"]):
        r = replay(*more).json()
        if r["corrupt_objects"] or not r["hit_blocks"]:
            fail("%s: %s" % (more, r))
    says(replay("--io-engine", "carrier-pigeon", rc=USAGE), "carrier-pigeon")


def an_odd_object_size_is_restored_too():
    trace(60)
    r = tenuto("replay", "t.jsonl", "--geometry", "3x1001B", "--capacity-blocks", "300", "--verify", "--json").json()
    if r["corrupt_objects"] or r["verified_objects"] != 3 * r["hit_blocks"] or not r["hit_blocks"]:
        fail(str(r))


def a_report_shows_bandwidth_too():
    trace(60)
    replay("--report", "r.html")
    if "Bandwidth over time" not in open("r.html").read():
        fail("no bandwidth in the page")


def a_second_opener_is_told_who_has_the_store():
    trace()
    os.mkdir("d")
    p = started(*COMMON, "--dir", "d")
    try:
        says(replay("--dir", "d", rc=ENVIRONMENT), str(p.pid))
    finally:
        ended(p, signal.SIGINT)


def an_interrupted_replay_closes_its_store_prints_what_it_has_and_exits_3():
    trace()
    os.mkdir("d")
    r = ended(started(*COMMON, "--dir", "d", "--report", "r.html"), signal.SIGINT)
    j = r.json()
    if r.rc != ENVIRONMENT or not j["interrupted"] or not 0 < j["requests"] < 200 or \
            j["distinct_blocks"] > j["blocks"]:
        fail(str(r))
    says(r, "tenuto replay: interrupted after %d of 200 requests" % j["requests"], "no report")
    if os.path.exists("r.html"):
        fail("an empty report is left")
    replay("--dir", "d")


def an_interrupted_replay_removes_its_temporary_directory():
    trace()
    os.mkdir("tmp")
    p = started(env=dict(os.environ, TMPDIR=os.path.abspath("tmp")))
    if not glob.glob("tmp/*/*/*"):
        fail("nothing was there to be removed")
    r = ended(p, signal.SIGINT)
    if r.rc != ENVIRONMENT or "interrupted: the figures are of these" not in r.out or os.listdir("tmp"):
        fail("left %s; %s" % (os.listdir("tmp"), r))


def what_a_killed_run_leaves_the_next_one_removes_and_a_running_ones_stays():
    trace()
    os.mkdir("tmp")
    env = dict(os.environ, TMPDIR=os.path.abspath("tmp"))
    killed, running = started(env=env), None
    left = os.listdir("tmp")
    try:
        ended(killed, signal.SIGKILL)
        if os.listdir("tmp") != left:
            fail("%s had been left, and %s is there" % (left, os.listdir("tmp")))
        running = started(env=env)
        its = os.listdir("tmp")
        if set(its) & set(left) or len(its) != 1:
            fail("%s is still there: %s" % (left, its))
        tenuto("replay", "t.jsonl", "--limit", "5", env=env)
        if os.listdir("tmp") != its or not glob.glob("tmp/*/*/*"):
            fail("of a running one: %s, and now %s" % (its, os.listdir("tmp")))
    finally:
        if running:
            ended(running, signal.SIGINT)
    if os.listdir("tmp"):
        fail("left: %s" % os.listdir("tmp"))


def blocks_of_an_earlier_run_are_not_counted_as_written_or_unread():
    trace(60)
    os.mkdir("d")
    more = ["t.jsonl", "--geometry", "4x16KiB", "--policy", "lru", "--dir", "d", "--json"]
    first = tenuto("replay", *more).json()
    again = tenuto("replay", *more, "--report", "r.html").json()
    if not 0 < first["blocks_never_read_back"] < first["blocks_written"]:
        fail(str(first))
    if again["blocks_recovered"] != first["blocks_written"] or again["blocks_written"] or again["blocks_never_read_back"]:
        fail(str(again))
    if "this run began with the blocks of an earlier one" not in open("r.html").read():
        fail("the page does not say that the run began warm")


def the_seconds_that_a_speed_is_over_are_given():
    trace(60)
    for more in ([], ["--host-blocks", "40"]):
        r = replay(*more).json()
        for what in ("read", "write"):
            gbps = r["bytes_%s" % ("read" if what == "read" else "written")] * 1e-9 / r[what + "_seconds"]
            if abs(gbps - r[what + "_gbps"]) > 1e-6 * gbps or not 0 < r[what + "_seconds"] <= r["wall_seconds"]:
                fail("%s: %s" % (what, r))


def a_store_that_is_smaller_than_the_capacity_asked_for_is_told():
    trace(60)
    os.mkdir("d")
    replay("--dir", "d")
    more = ["t.jsonl", "--geometry", "4x16KiB", "--dir", "d", "--capacity-blocks", "1000000"]
    r = tenuto("replay", *more, "--json").json()
    if not CAPACITY <= r["capacity_blocks"] < 1000000 or "holds no more" not in tenuto("replay", *more).out:
        fail(str(r))


def a_store_that_is_there_keeps_its_blocks_unless_a_smaller_capacity_is_given():
    trace()
    os.mkdir("d")
    more = ["--geometry", "4x16KiB", "--policy", "lru", "--dir", "d", "--json"]
    held = tenuto("replay", "t.jsonl", *more).json()["blocks_held"]
    write("s.jsonl", LINE)
    r = tenuto("replay", "s.jsonl", *more)
    if r.json()["blocks_held"] < held or r.json()["capacity_blocks"] < held or r.err:
        fail(str(r))
    held = r.json()["blocks_held"]
    r = tenuto("replay", "s.jsonl", *more, "--capacity-blocks", "6")
    says(r, "capacity 6: %d of %d blocks were dropped" % (held - 6, held))


def requests_back_to_back_hit_what_the_one_before_saves():
    need("replay")
    write("t.jsonl", LINE * 20)
    for policy, least in {"lru": 57, "default": 38}.items():  # its policy may reject the last block: it is partial
        r = tenuto("replay", "t.jsonl", "--policy", policy, "--json").json()
        if r["hit_blocks"] < least or r["blocks_in_saving"] or r["blocks_written_twice"]:
            fail(str(r))


def bytes_written_are_of_the_blocks_written_and_of_those_written_twice():
    need("replay")
    write("t.jsonl", LINE * 20)

    def in_saving(*more):
        r = tenuto("replay", "t.jsonl", "--policy", "lru", "--json", *more).json()
        if r["bytes_written"] != (r["blocks_written"] + r["blocks_written_twice"]) * r["block_bytes"]:
            fail(str(r))
        if r["hit_blocks"] + r["blocks_in_saving"] > r["blocks"] - 3:
            fail(str(r))
        return r["blocks_in_saving"]

    if in_saving():
        fail("a request did not wait for the saves before it")
    # On a busy machine a save may end before the next request comes.
    until(lambda: in_saving("--speed", "1000"), "request that comes before the save of its blocks has ended")


def a_killed_replay_leaves_a_store_that_opens():
    trace()
    os.mkdir("d")
    ended(started(*COMMON, "--dir", "d"), signal.SIGKILL)
    r = replay("--dir", "d").json()
    if r["corrupt_objects"]:
        fail(str(r))


def a_directory_deleted_underneath_is_no_crash():
    trace()
    os.mkdir("d")
    p = started(*COMMON, "--dir", "d")
    shutil.rmtree("d")
    r = ended(p, signal.SIGINT)
    if r.rc not in (OK, PROBLEM, ENVIRONMENT):
        fail(str(r))


def a_directory_that_is_not_there_or_no_directory_is_named():
    trace(5)
    says(replay("--dir", "absent", rc=USAGE), "absent")
    write("file", "")
    r = tenuto("replay", "t.jsonl", *COMMON, "--dir", "file", rc=USAGE)
    says(r, "file")


def a_read_only_directory_is_a_clear_error():
    trace(5)
    if os.geteuid():
        os.mkdir("d", 0o500)
        says(replay("--dir", "d", rc=ENVIRONMENT), "d")
        return
    r = in_mount("ro", "%s replay t.jsonl %s --dir m" % (TENUTO, " ".join(COMMON)))
    if r.rc != ENVIRONMENT:
        fail(str(r))
    says(r, "m")


def a_report_that_cannot_be_written_is_told_before_the_run():
    trace(5)
    r = replay("--report", "absent/r.html", rc=USAGE)
    says(r, "absent/r.html")
    if r.out:
        fail("it ran first; %s" % r)


def what_is_given_to_store_info_instead_of_the_directory_is_explained():
    trace(5)
    os.mkdir("d")
    replay("--dir", "d")
    says(tenuto("store", "info", "d/default", rc=USAGE), "directory above")
    says(tenuto("store", "info", "d", "--instance", "other", rc=USAGE), "other/tenuto.store")
    says(tenuto("store", "info", "d/default/tenuto.store", rc=USAGE), "not a directory", "opened with")


def a_demo_without_room_says_so_and_shows_no_zeroes():
    need("demo")
    r = in_mount("size=40m", "%s demo --dir m" % TENUTO)
    if r.rc != ENVIRONMENT or r.out:
        fail(str(r))
    says(r, "free", "--dir")


def store_info_of_a_damaged_superblock_is_a_problem():
    trace(5)
    os.mkdir("d")
    replay("--dir", "d")
    tenuto("store", "info", "d")
    damage(store_files()[0], 0, 4096)
    if "problem" not in tenuto("store", "info", "d", rc=PROBLEM).out:
        fail("not shown")


def a_full_disk_is_a_clear_error_and_loses_nothing():
    trace()
    r = in_mount("size=22m", "fallocate -l 16m m/other && %s replay t.jsonl %s --dir m" % (TENUTO, " ".join(COMMON)))
    if r.rc not in (OK, PROBLEM, ENVIRONMENT) or not r.err:
        fail(str(r))
    if r.out and r.json()["corrupt_objects"]:
        fail(str(r))


def a_capacity_beyond_the_disk_is_refused():
    trace(5)
    says(tenuto("replay", "t.jsonl", "--capacity-blocks", "2G", "--geometry", "64x16MiB", "--json", rc=USAGE),
         "--capacity-blocks 2000000000", "disk_blocks 2000000000: a capacity of", "give less")
    says(tenuto("replay", "t.jsonl", "--geometry", "4096x1GiB", rc=USAGE), "--capacity-blocks")


def a_store_of_another_geometry_gives_no_hits_to_this_one():
    trace(40)
    os.mkdir("d")
    replay("--dir", "d")
    r = tenuto("replay", "t.jsonl", "--geometry", "4x8KiB", "--capacity-blocks", "300", "--dir", "d", "--verify",
               "--json").json()
    most = r["blocks"] - r["distinct_blocks"]  # from a cold start
    if r["wrong_objects"] or r["hit_blocks"] > most:
        fail("at most %s hits: %s" % (most, r))


def a_damaged_object_is_a_miss_and_never_wrong_bytes():
    trace()
    os.mkdir("d")
    replay("--dir", "d")
    need("store")
    device = tenuto("store", "info", "d", "--json").json()["devices"][0]
    for start in range(device["index_bytes"], device["file_bytes"], device["segment_bytes"]):
        # Behind the segment's header and block headers lie the slots.
        damage(device["path"], start + device["segment_bytes"] // 2, start + device["segment_bytes"])
    r = tenuto("replay", "t.jsonl", *COMMON, "--dir", "d", rc=PROBLEM).json()
    if r["wrong_objects"] or not r["corrupt_objects"]:
        fail(str(r))


def damage_anywhere_in_the_file_never_gives_wrong_bytes():
    trace(80)
    for seed in range(6):
        shutil.rmtree("d", ignore_errors=True)
        os.mkdir("d")
        replay("--dir", "d")
        for f in store_files():
            size = os.path.getsize(f)
            start = seed * size // 6
            damage(f, start, start + size // 6, seed=seed)
        done = subprocess.run([TENUTO, "replay", "t.jsonl", *COMMON, "--dir", "d"], capture_output=True, text=True, timeout=60)
        r = Result(["damaged", str(seed)], done)
        if r.rc not in (OK, PROBLEM) or (r.rc == PROBLEM and not r.out and not r.err):
            fail(str(r))
        if r.out and r.json()["wrong_objects"]:
            fail(str(r))


def a_file_cut_short_or_emptied_is_no_crash():
    trace(80)
    for part in (0, 1, 100, 5000, 0.3, 0.6, 0.95):
        shutil.rmtree("d", ignore_errors=True)
        os.mkdir("d")
        replay("--dir", "d")
        f = max(store_files(), key=os.path.getsize)
        os.truncate(f, int(part * os.path.getsize(f)) if isinstance(part, float) else part)
        done = subprocess.run([TENUTO, "replay", "t.jsonl", *COMMON, "--dir", "d"], capture_output=True, text=True, timeout=60)
        r = Result(["truncated", str(part)], done)
        if r.rc not in (OK, PROBLEM, ENVIRONMENT) or (r.rc != OK and not r.err and not r.out):
            fail(str(r))
        if r.out and r.json()["wrong_objects"]:
            fail(str(r))


def a_file_that_is_no_store_is_left_alone():
    trace(5)
    os.mkdir("d")
    replay("--dir", "d")
    f = max(store_files(), key=os.path.getsize)
    with open(f, "wb") as out:
        out.write(b"precious" * 100000)
    r = tenuto("replay", "t.jsonl", *COMMON, "--dir", "d", rc=PROBLEM)
    says(r, os.path.basename(f))
    with open(f, "rb") as back:
        if back.read() != b"precious" * 100000:
            fail("it was written to")


def explain_writes_every_decision_of_the_scheduler_as_a_json_line():
    trace = LINE * 60
    write("t.jsonl", trace)
    r = tenuto("replay", "t.jsonl", "--policy", "lru", "--explain", "why.jsonl", "--json").json()
    lines = [json.loads(line) for line in open("why.jsonl")]
    fields = {"time_ns", "load", "layer", "device", "slack_ns", "chosen", "bytes", "deferred_bytes", "reason"}
    if not lines or any(set(x) != fields for x in lines):
        fail(lines[:3])
    read = sum(x["bytes"] for x in lines if x["chosen"] == "read")
    if read != r["bytes_read"] or read == 0 or not any(x["chosen"] == "write" for x in lines):
        fail("%s bytes explained, %s read" % (read, r["bytes_read"]))
    if any(b["time_ns"] < a["time_ns"] for a, b in zip(lines, lines[1:])):
        fail("out of order")
    tenuto("replay", "t.jsonl", "--no-io", "--explain", "why.jsonl", rc=USAGE)
    tenuto("replay", "t.jsonl", "--explain", "nowhere/why.jsonl", rc=USAGE)


main(globals())
