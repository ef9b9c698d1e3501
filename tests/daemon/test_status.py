# SPDX-License-Identifier: Apache-2.0
"""`tenuto status` beside a tenutod: what it shows, its names, what it does when the owner ends."""
import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios

from daemon import DEADLINE, ROOT, Daemon, until
from cli import ENVIRONMENT, PROBLEM, TENUTO, USAGE, Skip, fail, main, rest_of_terminal, says, tenuto, write

SOCKET = "s"


def a_daemon(*more):
    os.makedirs("kv", exist_ok=True)
    return Daemon("--dir", "kv", "--disk-bytes", "64MiB", "--host-bytes", "4MiB", "--socket", os.path.abspath(SOCKET), *more)


def metric_names(text):
    """Of samples with their labels, but for the buckets of histograms; of the cache, not of tenutod itself."""
    return {line.rsplit(" ", 1)[0] for line in text.splitlines() if line.startswith("tenuto_") and "_bucket{" not in line}


def without_sessions(names):
    return {n for n in names if "pid=" not in n}


def it_has_the_names_of_the_metrics_and_of_the_dashboard():
    with open(os.path.join(ROOT, "share", "grafana", "tenuto.json")) as f:
        panels = json.load(f)["panels"]
    config = write("c.yaml", "write_bytes_per_day: 1TB\n")
    with a_daemon("--config", config) as d:
        told = tenuto("status", SOCKET, "--once", "--json").json()
        screen = tenuto("status", SOCKET, "--once").out
        of_server = metric_names(d.get("/metrics")[2])
        d.end()
    if without_sessions(told["metrics"]) != without_sessions(of_server):
        fail("only one of them knows %s" % (without_sessions(told["metrics"]) ^ without_sessions(of_server)))
    if not isinstance(told["written_bytes"], int):
        fail("bytes are whole: %s" % told["written_bytes"])
    if told["pid"] != d.process.pid or told["budget_bytes_per_day"] != 10**12 or told["metrics"]["tenuto_sessions"] != 1:
        fail(str(told))
    own = "{session=\"0\",pid=\"%d\"}" % d.process.pid
    if "tenuto_session_loads_total" + own not in told["metrics"] or len([n for n in told["metrics"] if n.startswith("tenuto_session_loads")]) != 2:
        fail(str(sorted(told["metrics"])))
    bare = {re.sub(r"\{.*", "", n) for n in told["metrics"]} | {n + "_bucket" for n in (re.sub(r"\{.*", "", k) for k in told["latencies"])}
    for p in panels:
        for t in p.get("targets", []):
            for name in re.findall(r"\btenuto_\w+", t["expr"]):
                if name not in bare:
                    fail("%s of the board is not in the status" % name)
            if "tenuto_device_written_bytes" in t["expr"] and "tenuto_device_meta_written_bytes" not in t["expr"]:
                fail("the index wears a disk, too: %s" % t["expr"])
    titles = {p["title"] for p in panels}
    rows = re.findall(r"^([A-Z][^:\n]*?)(?:: (?:host|disk))?(?:  .*)$", screen.split("\n\nDevice")[0].split("\n\n", 1)[1], re.M)
    if len(rows) < 16 or not {r.strip() for r in rows} <= titles:
        fail("rows that are no panels: %s\n%s" % ({r.strip() for r in rows} - titles, screen))


def it_ends_in_order_when_it_is_interrupted():
    with a_daemon() as d:
        for sig in (signal.SIGINT, signal.SIGTERM):
            p = subprocess.Popen([TENUTO, "status", SOCKET], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            line = p.stdout.readline()
            if not re.match(r"hits -, loads 0.00 GB/s .* attached [12], .* devices not healthy 0$", line):
                fail(line)
            p.send_signal(sig)
            if p.wait(DEADLINE) != 0 or p.stderr.read():
                fail("%s %s" % (p.returncode, p.stderr.read()))
            p.stdout.close()
            p.stderr.close()
        until(lambda: d.metrics()["tenuto_sessions"] == [0], "session that ends")
        if d.metrics()["tenuto_attached_total"] != [2]:
            fail(str(d.metrics()["tenuto_attached_total"]))
        d.end()


def when_the_owner_ends_it_says_so_and_shows_the_next_one():
    first = a_daemon()
    p = subprocess.Popen([TENUTO, "status", SOCKET, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if json.loads(p.stdout.readline())["pid"] != first.process.pid:
        fail("another owner")
    first.end(signal.SIGKILL, rc=-signal.SIGKILL)
    if "waits until tenutod or another owner does" not in p.stderr.readline():
        fail("it does not say that the owner is gone")
    with a_daemon() as second:
        while json.loads(p.stdout.readline())["pid"] != second.process.pid:
            pass
        p.send_signal(signal.SIGINT)
        if p.wait(DEADLINE) != 0:
            fail("ended with %d" % p.returncode)
        second.end()
    p.stdout.close()
    p.stderr.close()


def on_a_terminal_it_draws_a_screen_that_fits():
    with a_daemon() as d:
        here, there = os.openpty()
        fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 60, 0, 0))
        p = subprocess.Popen([TENUTO, "status", SOCKET], stdout=there, stderr=there)
        os.close(there)
        text = b""
        while b"\033[J" not in text:
            text += os.read(here, 65536)
        p.send_signal(signal.SIGINT)
        text += rest_of_terminal(here)
        if p.wait(DEADLINE) != 0:
            fail(text.decode())
        screen = text.split(b"\033[J")[0].split(b"\033[H")[-1].decode().replace("\033[K", "").splitlines()
        if not screen[0].startswith("Tenuto ") or len(screen) > 11 or max(map(len, screen)) > 60:
            fail("%s" % screen)
        d.end()


def tools_that_are_given_the_directory_ask_its_owner():
    says(tenuto("status", ".", "--once", rc=ENVIRONMENT), "no store in .")
    with a_daemon() as d:
        if tenuto("status", "kv", "--once", "--json").json()["pid"] != d.process.pid:
            fail("another owner")
        owner = tenuto("store", "info", "kv", "--json").json()["owner"]
        if owner["pid"] != d.process.pid or owner["devices"][0]["health"] != "healthy" or owner["attached"] < 1:
            fail(str(owner))
        if "as process %d says" % d.process.pid not in tenuto("store", "info", "kv").out:
            fail("info does not say what the owner says")
        flushes = d.metrics()["tenuto_flush_seconds_count"][0]
        tenuto("store", "flush", "kv")
        if d.metrics()["tenuto_flush_seconds_count"][0] != flushes + 1:
            fail("nobody flushed")
        for verb in ("verify", "check"):
            says(tenuto("store", verb, "kv", rc=ENVIRONMENT), "in use by process %d" % d.process.pid, "tenuto status kv")
        d.end()
    if os.path.lexists("kv/default/tenuto.socket") or tenuto("store", "info", "kv", "--json").json()["owner"] is not None:
        fail("something of the owner is left")
    says(tenuto("store", "flush", "kv", rc=ENVIRONMENT), "nobody serves the store")
    tenuto("store", "verify", "kv")


def a_signal_that_is_ignored_at_the_start_stays_ignored():
    def ignore():
        for sig in (signal.SIGHUP, signal.SIGINT):
            signal.signal(sig, signal.SIG_IGN)

    os.mkdir("empty")
    with subprocess.Popen([TENUTO, "status", "empty"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=ignore) as p:
        p.stderr.readline()
        with open("/proc/%d/status" % p.pid) as f:
            ignored = int(re.search(r"^SigIgn:\s*(\w+)$", f.read(), re.M)[1], 16)
        p.send_signal(signal.SIGHUP)
        p.send_signal(signal.SIGINT)
        p.send_signal(signal.SIGTERM)
        if p.wait(DEADLINE) != 0 or not all(ignored >> sig - 1 & 1 for sig in (signal.SIGHUP, signal.SIGINT)):
            fail("ended with %d; ignored: %#x" % (p.returncode, ignored))


def a_flush_is_of_one_store():
    for name in ("a", "b", "two", "more", "empty"):
        os.mkdir(name)
    size = ("--disk-bytes", "64MiB")
    with Daemon("--dir", "a", *size) as a, Daemon("--dir", "b", *size) as b, Daemon("--dir", "two", "--dir", "more", *size) as two:
        for dirs, rc, words in ((("a", "b"), PROBLEM, "belongs to another store"), (("more", "a"), PROBLEM, "belongs to another store"),
                                (("a", "empty"), ENVIRONMENT, "store of 1 devices"), (("empty", "a"), ENVIRONMENT, "store of 1 devices"),
                                (("a", "nvme:0000:03:00.0"), USAGE, "directories alone")):
            r = tenuto("store", "flush", *dirs, rc=rc)
            if words not in r.err or r.out:
                fail(str(r))
        for dirs in (("a",), ("b",), ("two", "more"), ("more",)):
            if "everything is durable" not in tenuto("store", "flush", *dirs).out:
                fail(str(dirs))
        for d in (a, b, two):
            d.end()


def a_place_that_can_have_no_owner_is_refused_and_one_without_a_store_is_told():
    for more in ([], ["--once"]):
        says(tenuto("status", write("file", "x"), *more, rc=USAGE), "file: is no socket")
    os.mkdir("empty")
    p = subprocess.Popen([TENUTO, "status", "empty"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    line = p.stderr.readline()
    if "no store in empty yet" not in line:
        fail(line)
    p.send_signal(signal.SIGINT)
    if p.wait(DEADLINE) != 0 or p.stderr.read():
        fail("ended with %d" % p.returncode)
    p.stderr.close()


def a_link_that_a_killed_owner_left_leads_nobody_astray():
    with a_daemon() as d:
        d.end(signal.SIGKILL, rc=-signal.SIGKILL)
    if not os.path.lexists("kv/default/tenuto.socket"):
        fail("no link was left: this test shows nothing")
    says(tenuto("status", "kv", "--once", rc=ENVIRONMENT), "nobody serves")
    os.mkdir("other")
    with Daemon("--dir", "other", "--disk-bytes", "64MiB", "--socket", os.path.abspath(SOCKET)) as d:
        says(tenuto("status", "kv", "--once", rc=ENVIRONMENT), "serves another one")
        tenuto("store", "check", "kv")
        if tenuto("status", "other", "--once", "--json").json()["pid"] != d.process.pid:
            fail("another owner")
        with Daemon("--dir", "kv", "--socket", "off") as unserved:  # the old link is still there
            says(tenuto("store", "check", "kv", rc=ENVIRONMENT), "in use by process %d" % unserved.process.pid, "works beside it")
            unserved.end()
        d.end()
    with a_daemon() as d:
        if tenuto("status", "kv", "--once", "--json").json()["pid"] != d.process.pid:
            fail("another owner")
        d.end()


def benchmarks_run_in_the_cache_of_a_live_owner_and_leave_nothing_there():
    with a_daemon() as d:
        layers = tenuto("bench", "layers", "--socket", SOCKET, "--total", "4MiB", "--rounds", 3, "--blocks", 2, "--layers", 4, "--json").json()
        match = tenuto("bench", "match", "--socket", "kv", "--keys", 64, "--rounds", 5, "--json").json()
        if len(layers["first_ms"]) != 3 or match["keys"] != 64 or match["ns_per_key_p50"] <= 0:
            fail("%s %s" % (layers, match))
        m = d.metrics()
        if m["tenuto_loads_total"][0] < 6 or m["tenuto_match_seconds_count"] != [5] or m["tenuto_hit_blocks_total"] != [5 * 64]:
            fail("the owner was not asked: %s" % m)
        if m["tenuto_blocks"] != [0]:
            fail("blocks stay in the owner's cache: %s" % m["tenuto_blocks"])
        says(tenuto("bench", "layers", "--socket", SOCKET, "--cold", rc=USAGE), "--cold")
        says(tenuto("bench", "match", "--socket", "absent", "--keys", 8, "--rounds", 1, rc=USAGE), "absent")
        d.end()


def as_nobody(*args, rc=0):
    """`tenuto status` of another user."""
    return tenuto("status", *args, rc=rc, user=65534, group=65534, extra_groups=[])


def another_user_sees_what_the_rules_let_it_see_and_else_is_told_why_not():
    if os.geteuid() != 0:
        raise Skip("other users take root")
    os.chmod(".", 0o755)
    try:
        as_nobody("--help")
    except PermissionError:
        raise Skip("other users may not run this build") from None
    path = os.path.abspath(SOCKET)
    with a_daemon() as d:
        says(as_nobody(path, "--once", rc=ENVIRONMENT), "user", "rule")
        d.end()
    write("token", "a secret\n")
    write("other", "a guess\n")
    for name in ("token", "other"):
        os.chmod(name, 0o644)
    config = write("c.yaml", "clients:\n  - {uid: 65534, token_file: token, tenants: [team-a]}\n  - {uid: 65534}\n  - {uid: 0}\n")
    with a_daemon("--config", config) as d:
        told = as_nobody(path, "--once", "--json", "--token-file", "token").json()
        if not told["tenants_only"] or "pid" in told or told["metrics"].get("tenuto_loads_total") != 0:
            fail(str(told))
        if [n for n in told["metrics"] if n.startswith("tenuto_device") or "session" in n or "evicted" in n]:
            fail("a tenant sees what others do: %s" % sorted(told["metrics"]))
        screen = as_nobody(path, "--once", "--token-file", "token").out
        if "of the tenants that this user may see" not in screen or "Device" in screen or "Process" in screen:
            fail(screen)
        told = as_nobody(path, "--once", "--json").json()  # by the second rule
        if told["tenants_only"] or "pid" in told or not [n for n in told["metrics"] if "tenuto_device_blocks" in n]:
            fail(str(told))
        screen = as_nobody(path, "--once").out
        if "without what the owner's user alone may see" not in screen or "healthy" not in screen or "Process" in screen:
            fail(screen)
        as_nobody(path, "--once", "--token-file", "other")
        says(as_nobody(path, "--once", "--token-file", "absent", rc=USAGE), "absent")
        if tenuto("status", path, "--once", "--json").json()["pid"] != d.process.pid:
            fail("the owner's user does not see all")
        d.end()


def without_an_owner_it_says_where_it_looked():
    says(tenuto("status", "absent", "--once", rc=USAGE), "absent", "socket")
    says(tenuto("status", "absent", rc=USAGE), "absent", "socket")
    env = {k: v for k, v in os.environ.items() if k not in ("XDG_RUNTIME_DIR", "RUNTIME_DIRECTORY")}
    here = os.getcwd()
    if os.path.exists("/run/tenuto/tenuto.sock"):
        raise Skip("somebody serves a cache on this machine")
    says(tenuto("status", "--once", rc=ENVIRONMENT, env={**env, "XDG_RUNTIME_DIR": here}), "tenuto.sock")
    write("c.yaml", "host_bytes: 4MiB\nsocket: %s/tenuto.sock\n" % here)
    with Daemon("--config", "c.yaml") as d:
        if tenuto("status", "--once", "--json", env={**env, "XDG_RUNTIME_DIR": here}).json()["pid"] != d.process.pid:
            fail("another cache")
        d.end()


main(globals())
