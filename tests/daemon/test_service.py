# SPDX-License-Identifier: Apache-2.0
"""tenutod as a service: its states, signals, log lines, sockets, units."""
import fcntl
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

from daemon import DEADLINE, ROOT, TENUTOD, Daemon, asked, get, until
from cli import ENVIRONMENT, OK, TENUTO, USAGE, Skip, fail, main, tenuto, write

HOST = ("--host-bytes", "4MiB")
UNITS = os.environ.get("TENUTOD_UNITS", os.path.dirname(TENUTOD))


def a_service_tells_systemd_when_it_is_ready_and_when_it_stops():
    for sig in (signal.SIGTERM, signal.SIGINT):
        with Daemon(*HOST) as d:
            if d.get("/readyz")[0] != 200 or d.get("/healthz")[0] != 200:
                fail("not ready")
            d.end(sig)
            ready, stopping = d.states.index("READY=1"), d.states.index("STOPPING=1")
            if not ready < stopping:
                fail(str(d.states))


def what_it_stored_is_sound_after_the_end_and_after_a_kill():
    os.mkdir("kv")
    disk = ("--dir", "kv", "--disk-bytes", "64MiB")
    for how, rc in ((signal.SIGTERM, OK), (signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, OK)):
        with Daemon(*disk) as d:
            d.end(how, rc=rc)
        tenuto("store", "check", "kv")


def before_the_cache_is_open_it_lives_and_is_not_ready():
    os.mkdir("kv")
    config = write("c.yaml", "dirs: [%s]\ndisk_bytes: 64MiB\nlock_timeout_ms: 10000\n" % os.path.abspath("kv"))
    with Daemon("--config", config) as owner:
        with Daemon("--config", config, wait="STATUS=opening the cache") as second:
            health, ready, metrics = second.get("/healthz"), second.get("/readyz"), second.get("/metrics")
            if health[0] != 200 or ready[0] != 503 or metrics[0] != 503 or "opening" not in ready[2]:
                fail("%s %s %s" % (health, ready, metrics))
            err = second.end(None, rc=ENVIRONMENT)
            if "READY=1" in second.states or str(owner.process.pid) not in err:
                fail(err)
        owner.end()


def a_signal_while_it_opens_ends_it_once_it_has_opened():
    os.mkdir("kv")
    config = write("c.yaml", "dirs: [%s]\ndisk_bytes: 64MiB\nlock_timeout_ms: 60000\n" % os.path.abspath("kv"))
    with Daemon("--config", config) as owner, Daemon("--config", config, wait="STATUS=opening the cache") as second:
        second.send(signal.SIGTERM)
        owner.end()
        second.end(None)


def a_signal_while_it_waits_for_the_socket_ends_it_before_it_opens():
    os.mkdir("kv")
    path = os.path.abspath("socket")
    config = write("c.yaml", "dirs: [%s]\ndisk_bytes: 64MiB\nlock_timeout_ms: 600000\nsocket: %s\n" % (os.path.abspath("kv"), path))
    with Daemon(*HOST, "--socket", path) as owner:
        for sig in (signal.SIGTERM, signal.SIGINT):
            with Daemon("--config", config, wait=None) as d:
                d.wait_for_line("waits up to")
                d.end(sig)
                if "SIG%s: ends" % sig.name[3:] not in d.err or "STOPPING=1" not in d.states or os.listdir("kv"):
                    fail("%s %s" % (d.err, d.states))
        owner.end()


def other_users_attach_by_the_rules_of_the_file():
    if os.geteuid() != 0:
        raise Skip("another user takes root")
    os.chmod(".", 0o755)
    path = os.path.abspath("socket")
    text = "host_bytes: 4MiB\nsocket: %s\nclients:\n  - uid: 0\n" % path
    config = write("c.yaml", text + "  - {uid: 65534, tenants: [a]}\n")

    def as_nobody(*command):
        return subprocess.run(command, user=65534, group=65534, extra_groups=[], capture_output=True, text=True, timeout=DEADLINE, check=False)

    def refused_as_nobody(words):
        got = as_nobody(TENUTO, "status", "--once", path)
        if got.returncode == 0 or words not in got.stderr:
            fail(got.stdout + got.stderr)

    try:
        reaches = as_nobody(TENUTO, "--version").returncode == 0 and as_nobody("ls", os.getcwd()).returncode == 0
    except PermissionError:
        reaches = False
    if not reaches:
        raise Skip("another user does not get to these directories")
    with Daemon("--config", config) as d:
        got = as_nobody(TENUTO, "status", "--once", path)
        if got.returncode != 0 or "of the tenants that this user may see" not in got.stdout:
            fail(got.stdout + got.stderr)
        tenuto("status", "--once", path)
        write("c.yaml", text)
        d.send(signal.SIGHUP)
        d.wait("READY=1", 2)
        refused_as_nobody("user 65534 may not attach")
        tenuto("status", "--once", path)
        d.end()


def rules_that_are_read_again_count_whatever_the_file_says_of_the_socket():
    path = os.path.abspath("socket")
    text = "host_bytes: 4MiB\nsocket: %s\nclients: [{uid: %d}]\n"
    config = write("c.yaml", text % (path, os.geteuid()))
    with Daemon("--config", config) as d:
        tenuto("status", "--once", path)
        write("c.yaml", text % ("off", os.geteuid() + 1))
        d.send(signal.SIGHUP)
        d.wait("READY=1", 2)
        d.wait_for_line("c.yaml:2: socket has changed")
        d.wait_for_line("log_level is info, 1 rules for clients")
        if "may not attach" not in tenuto("status", "--once", path, rc=ENVIRONMENT).err:
            fail("the old rules count")
        write("c.yaml", (text % (path, 1)).replace("{uid: 1}", "{token_file: /absent}"))
        d.send(signal.SIGHUP)
        d.wait_for_line("the rules stay as they were")
        d.wait("READY=1", 3)
        if d.end().count("rules for clients") != 1:
            fail("rules that do not count are counted: %s" % d.err)
    write("c.yaml", "host_bytes: 4MiB\nsocket: off\n")
    with Daemon("--config", config) as d:
        d.send(signal.SIGHUP)
        d.wait("READY=1", 2)
        if "rules" in d.end():
            fail(d.err)


def on_sighup_the_log_level_changes_and_the_rest_is_named_with_its_line():
    config = write("c.yaml", "host_bytes: 4MiB\nlog_level: error\n")
    with Daemon("--config", config) as d:
        if d.err:
            fail("not only errors: " + d.err)
        write("c.yaml", "log_level: info\n# more\nhost_bytes: 8MiB\n")
        d.send(signal.SIGHUP)
        d.wait("READY=1", 2)
        d.wait_for_line("log_level is info")
        if "RELOADING=1" not in d.states or not any(s.startswith("MONOTONIC_USEC=") for s in d.states):
            fail(str(d.states))
        write("c.yaml", "log_level: info\nhost_bytes: 8MiB\npolicy: lru\n")
        d.send(signal.SIGHUP)
        d.wait_for_line("c.yaml:2: host_bytes has changed")
        d.wait_for_line("c.yaml:3: policy has changed")
        d.wait("READY=1", 3)
        write("c.yaml", "log_level: error\nhost_bytes: 4MiB\n")
        d.send(signal.SIGHUP)
        d.wait("READY=1", 4)
        last = d.end().splitlines()[-1]
        if "log_level is info" not in last:
            fail("more than errors: " + d.err)


def a_mistake_on_sighup_changes_nothing():
    config = write("c.yaml", "host_bytes: 4MiB\n")
    with Daemon("--config", config) as d:
        for text, told in (("log_level: errror\n", "c.yaml:1: log_level: 'errror'"), ("log_level: [\n", "c.yaml:2: "),
                           ("log_level: error\n", "neither dirs nor host_bytes")):
            write("c.yaml", text)
            d.send(signal.SIGHUP)
            d.wait_for_line(told)
        os.unlink("c.yaml")
        d.send(signal.SIGHUP)
        d.wait_for_line("c.yaml: No such file")
        d.wait_for_line("stay as they were", 4)
        if d.get("/readyz")[0] != 200 or "the cache is closed" not in d.end():
            fail(d.err)


def lines_have_priorities_in_the_journal_alone():
    with Daemon(*HOST) as d:
        for line in d.end().splitlines():
            if not line.startswith("tenutod: "):
                fail(line)
    # The variable of a stream that is not stderr says nothing.
    with Daemon(*HOST, env={"JOURNAL_STREAM": "1:2"}) as d:
        if "<6>" in d.end():
            fail(d.err)
    script = 'exec env JOURNAL_STREAM=$(stat -L -c %d:%i /proc/self/fd/2) "$@"'
    with Daemon(*HOST, wrap=("sh", "-c", script, "sh")) as d:
        for line in d.end().splitlines():
            if not re.match(r"<[36]>\w", line):
                fail(line)


def processes_attach_at_its_socket_and_find_one_owner():
    path = os.path.abspath("attach.sock")
    first = Daemon("--host-bytes", "64MiB", "--socket", path)
    first.wait_for_line("processes attach at " + path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.settimeout(DEADLINE)
        s.connect(path)
        s.send(b"no greeting of this version")
        if b"greeting" not in s.recv(65536):
            fail("a stranger is not told why it is refused")
    second = Daemon("--host-bytes", "64MiB", "--socket", path, wait=None)
    second.end(None, rc=3)
    second.wait_for_line("another process serves there")
    os.mkdir("kv")
    config = write("c.yaml", "dirs: [%s]\nlock_timeout_ms: 1\nsocket: %s\n" % (os.path.abspath("kv"), path))
    third = Daemon("--config", config, wait=None)
    if "another process serves there" not in third.end(None, rc=3) or os.listdir("kv"):
        fail("a store was opened before the socket was found taken: %s" % third.err)
    first.end()
    if os.path.exists(path):
        fail("the socket is still there after the end")


def an_address_in_use_is_told():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        err = asked(*HOST, "--listen", "127.0.0.1:%d" % s.getsockname()[1], rc=ENVIRONMENT).stderr
        if "in use" not in err or "listen: 127.0.0.1:" not in err:
            fail(err)


def a_directory_that_is_not_there_is_told():
    err = asked("--dir", "absent", "--listen", "off", rc=USAGE).stderr
    if "absent" not in err:
        fail(err)


def without_an_address_there_is_no_server():
    with Daemon(*HOST, "--listen", "off") as d:
        if "http" in d.end():
            fail(d.err)


def pages_take_get_and_head_alone():
    with Daemon(*HOST) as d:
        for path in ("/metrics", "/healthz", "/readyz"):
            whole, head, post = d.get(path), d.get(path, method="HEAD"), d.get(path, method="POST", data=b"x" * 100000)
            if whole[0] != 200 or head[0] != 200 or head[2] or head[1]["Content-Length"] != str(len(whole[2].encode())) and path != "/metrics":
                fail("%s: %s" % (path, head))
            if post[0] != 405 or post[1]["Allow"] != "GET, HEAD":
                fail("%s: %s" % (path, post))
        if d.get("/metrics")[1]["Content-Type"] != "text/plain; version=0.0.4; charset=utf-8":
            fail(str(d.get("/metrics")[1]))
        for path in ("/", "/metrics/", "/../metrics", "/metricsx"):
            if d.get(path)[0] != 404:
                fail(path)
        d.end()


def it_ends_in_order_while_it_is_asked():
    with Daemon(*HOST) as d:
        seen = set()

        def ask():
            try:
                while True:
                    seen.add(get(d.port, "/metrics")[0])
            except OSError:
                pass
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for t in threads:
            t.start()
        until(lambda: 200 in seen, "answer")
        d.end()
        for t in threads:
            t.join()
        if not seen <= {200, 503}:
            fail(str(seen))


def connect(port, source):
    return socket.create_connection(("127.0.0.1", port), source_address=(source, 0))


def connections_that_never_finish_a_request_do_not_keep_others_out():
    with Daemon(*HOST) as d:
        for sources in (["127.0.0.1"], ["127.0.0.%d" % (i + 1) for i in range(60)]):
            slow = [connect(d.port, source) for source in sources for _ in range(40 // len(sources) + 1)]
            for s in slow:
                try:
                    s.send(b"GET /healthz HTTP/1.1\r\n")  # and no end of the headers
                except OSError:
                    pass  # one too many
            began = time.monotonic()
            if d.get("/healthz")[0] != 200 or d.get("/metrics")[0] != 200 or time.monotonic() - began > 8:  # before their time is over
                fail("no answer while they wait")
            for s in slow:
                s.close()
        d.end()


def a_request_has_ten_seconds_whatever_it_sends():
    with Daemon(*HOST) as d, connect(d.port, "127.0.0.1") as s:
        s.settimeout(0.2)
        began = time.monotonic()
        while time.monotonic() < began + DEADLINE:
            try:
                s.send(b"G")
                if not s.recv(1):
                    break
            except socket.timeout:
                continue
            except OSError:
                break
        if time.monotonic() >= began + DEADLINE:
            fail("a byte now and then keeps it for ever")
        d.end()


def a_connection_is_for_one_request():
    with Daemon(*HOST) as d, connect(d.port, "127.0.0.1") as s:
        s.settimeout(DEADLINE)
        s.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = b""
        while True:
            some = s.recv(4096)
            if not some:
                break
            answer += some
        if b"Connection: close" not in answer or not answer.endswith(b"ready\n"):
            fail(str(answer))
        d.end()


def lines_that_nobody_takes_are_lost_and_counted_and_hold_up_nothing():
    changed = "".join("%s: 7\n" % name for name in ("max_ops", "max_op_blocks", "io_depth", "workers", "executors", "max_blocks",
                                                    "lock_timeout_ms", "offload_lag_ms", "durability_ms"))
    with Daemon("--config", write("c.yaml", "host_bytes: 4MiB\n"), reads=False) as d:
        fcntl.fcntl(d.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        write("c.yaml", "host_bytes: 4MiB\n" + changed)
        for n in range(60):  # of ten lines each; a pipe of 4 KiB and what waits for it are full then
            d.send(signal.SIGHUP)
            d.wait("READY=1", 2 + n)
        lost = d.metrics()["tenutod_log_lost_lines_total"][0]
        if not 100 < lost < 600 or d.get("/healthz")[0] != 200:
            fail("%s lines were lost" % lost)
        d.read()
        d.wait_for_line("log lines are missing here: nobody took them")
        told = sum(map(int, re.findall(r"warning: (\d+) log lines are missing", d.err)))
        if told != lost or d.metrics()["tenutod_log_lost_lines_total"][0] != lost:
            fail("%s were lost, and %s are told" % (lost, told))
        d.end()
    with Daemon("--config", "c.yaml", reads=False) as d:
        fcntl.fcntl(d.process.stderr, fcntl.F_SETPIPE_SZ, 4096)
        for n in range(60):
            d.send(signal.SIGHUP)
            d.wait("READY=1", 2 + n)
            write("c.yaml", "host_bytes: %dMiB\n" % n)
        d.send(signal.SIGTERM)  # still nobody reads
        if d.process.wait(DEADLINE) != 0:
            fail("ended with %s" % d.process.returncode)
        d.read()


def a_store_is_sound_when_stderr_was_closed_and_its_lines_count_as_lost():
    os.mkdir("kv")
    with Daemon("--dir", "kv", "--disk-bytes", "64MiB", wrap=("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")) as d:
        for fd in range(3):
            if os.readlink("/proc/%d/fd/%d" % (d.process.pid, fd)) != "/dev/null":
                fail("descriptor %d is %s" % (fd, os.readlink("/proc/%d/fd/%d" % (d.process.pid, fd))))
        until(lambda: d.metrics()["tenutod_log_lost_lines_total"][0] >= 3, "lines that are counted")
        d.end()
    tenuto("store", "check", "kv")
    with Daemon("--dir", "kv") as d:
        if "damaged" in d.end() or "repaired" in d.err:
            fail(d.err)


def a_file_of_the_configuration_that_hangs_keeps_no_signal_waiting():
    write("token", "a secret\n")
    os.mkfifo("fifo")
    good = "host_bytes: 4MiB\nclients: [{token_file: %s/token}]\n" % os.getcwd()
    with Daemon("--config", write("c.yaml", good)) as d:
        write("c.yaml", good.replace("/token}", "/fifo}"))
        d.send(signal.SIGHUP)
        d.wait_for_line("fifo: must be a regular file; the rules stay as they were")
        d.wait("READY=1", 2)
        os.rename("fifo", "c.yaml")  # the configuration itself: nobody ever writes it
        d.send(signal.SIGHUP)
        d.wait("RELOADING=1", 2)
        d.send(signal.SIGHUP)
        d.wait_for_line("the configuration is still being read")
        if "the cache is closed" not in d.end():
            fail(d.err)
    os.mkfifo("fifo")
    write("d.yaml", good.replace("/token}", "/fifo}"))
    if "fifo: must be a regular file" not in asked("--config", "d.yaml", "--check-config", rc=USAGE).stderr:
        fail("a FIFO is taken for a token")
    asked("--config", "d.yaml", "--listen", "off", rc=USAGE)


def blocks_sighup(pid):
    with open("/proc/%d/status" % pid) as f:
        return int(re.search(r"^SigBlk:\s*(\w+)$", f.read(), re.M)[1], 16) >> signal.SIGHUP - 1 & 1


def sighup_before_it_is_ready_does_not_end_it():
    os.mkfifo("c.yaml")
    with Daemon("--config", "c.yaml", wait=None) as d:
        until(lambda: blocks_sighup(d.process.pid), "start")
        d.send(signal.SIGHUP)
        write("c.yaml", "host_bytes: 4MiB\n")
        os.unlink("c.yaml")
        write("c.yaml", "host_bytes: 4MiB\nlog_level: debug\n")
        d.wait("READY=1")
        d.wait_for_line("log_level is debug")  # it was not forgotten either
        d.end()
    os.unlink("c.yaml")
    os.mkfifo("c.yaml")
    with Daemon("--config", "c.yaml", wait=None) as d:  # SIGTERM need not wait: nothing is open
        d.end(signal.SIGTERM, rc=-signal.SIGTERM)


def it_removes_its_own_socket_only():
    path = os.path.abspath("attach.sock")
    with Daemon(*HOST, "--socket", path) as first:
        os.unlink(path)
        with Daemon(*HOST, "--socket", path) as second:
            first.end()
            if tenuto("status", path, "--once", "--json").json()["pid"] != second.process.pid:
                fail("another owner")
            second.end()
            if os.path.lexists(path):
                fail("its own socket is left")


def a_directory_that_is_given_twice_is_told_with_both_names():
    os.mkdir("d")
    os.symlink("d", "l")
    here = os.getcwd()
    for more, rc in ((["--check-config"], USAGE), (["--listen", "off"], USAGE)):
        err = asked("--dir", here + "/d", "--dir", here + "/l", "--disk-bytes", "128MiB", "--socket", "off", *more, rc=rc).stderr
        if here + "/d" not in err or here + "/l" not in err or "same" not in err or "leave one of them out" not in err:
            fail(err)


def systemds_socket_is_used_for_the_metrics():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        port = s.getsockname()[1]
        script = 'exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=$1 "$2" --host-bytes 4MiB 3<&%d' % s.fileno()
        with Daemon("--listen", "off", wrap=("sh", "-c", script, "sh", "metrics"), pass_fds=[s.fileno()]) as d:
            if get(port, "/readyz")[0] != 200:
                fail("no answer")
            if "metrics are at the socket that systemd gives" not in d.end() or "http:" in d.err:
                fail(d.err)
        script = script.replace("--host-bytes", "--listen off --host-bytes")
        with Daemon("--listen", "off", wrap=("sh", "-c", script, "sh", "other"), pass_fds=[s.fileno()]) as d:
            d.wait_for_line("gives a socket 'other'")
            d.end()


def systemds_socket_is_used_to_attach():
    path = os.path.abspath("given.sock")
    script = 'exec env LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=$1 "$2" --host-bytes 4MiB "$3" "$4" 3<&%d'
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as s:
        s.bind(path)
        s.listen()
        for _ in range(2):  # systemd keeps it for the next life
            with Daemon(wrap=("sh", "-c", script % s.fileno(), "sh", "attach"), pass_fds=[s.fileno()]) as d:
                if tenuto("status", path, "--once", "--json").json()["pid"] != d.process.pid:
                    fail("another owner")
                d.end()
                if not os.path.exists(path) or os.listdir(d.run_dir):
                    fail("the socket of systemd is gone, or there is another one")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.bind(path + "2")
        s.listen()
        with Daemon(wrap=("sh", "-c", script % s.fileno(), "sh", "attach"), pass_fds=[s.fileno()], wait=None) as d:
            if "ListenSequentialPacket" not in d.end(None, rc=USAGE):
                fail(d.err)


def by_default_it_serves_in_the_runtime_directory():
    with Daemon(*HOST) as d:
        path = os.path.join(d.run_dir, "tenuto.sock")
        d.wait_for_line("processes attach at " + path)
        if tenuto("status", path, "--once", "--json").json()["pid"] != d.process.pid:
            fail("another owner")
        with Daemon(*HOST, env={"RUNTIME_DIRECTORY": d.run_dir}, wait=None) as second:
            if "another process serves there" not in second.end(None, rc=ENVIRONMENT):
                fail(second.err)
        if "XDG_RUNTIME_DIR" not in asked("--help").stdout + asked("--print-config").stdout:
            fail("the documents do not say where")
        d.end()
        if os.path.exists(path):
            fail("the socket is still there after the end")


def the_units_are_what_systemd_takes():
    if not shutil.which("systemd-analyze"):
        raise Skip("systemd-analyze is not there (package systemd)")
    for path in (os.path.join(UNITS, "tenutod.service"), os.path.join(ROOT, "daemon", "systemd", "tenutod.socket"),
                 os.path.join(ROOT, "daemon", "systemd", "tenutod-metrics.socket")):
        with open(path) as f:
            text = f.read()
        if path.endswith(".service") and "/tenutod --config" not in text:
            fail(text)
        write(os.path.basename(path), re.sub(r"^ExecStart=\S+", "ExecStart=" + TENUTOD, text, flags=re.M))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", "./tenutod.service", "./tenutod.socket", "./tenutod-metrics.socket"],
                          capture_output=True, text=True, timeout=60)
    if done.returncode or done.stderr.strip() or done.stdout.strip():
        fail("%s %s%s" % (done.returncode, done.stdout, done.stderr))
    write("broken.service", open("tenutod.service").read().replace("NoNewPrivileges", "NoSuchSetting"))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", "./broken.service"], capture_output=True, text=True, timeout=60)
    if "NoSuchSetting" not in done.stderr + done.stdout:
        fail("a mistake is not seen")


main(globals())
