# SPDX-License-Identifier: Apache-2.0
"""Help, verbs and options, numbers on the command line, exit codes."""
import ctypes
import errno
import fcntl
import glob
import json
import os
import pty
import re
import shutil
import struct
import subprocess
import termios

from cli import LINE, OK, ENVIRONMENT, PROBLEM, TENUTO, USAGE, Skip, fail, main, need, rest_of_terminal, says, tenuto, until, verbs, write

NESTED = {"store": ["info", "verify", "check", "flush", "format"], "bench": ["store", "pipeline", "mix", "submit", "match", "layers", "session", "device", "heap", "xfer", "nvme"],
          "xfer": ["backends", "info", "listen", "put", "get"]}


def all_verbs():
    for v in verbs():
        yield [v]
        for sub in NESTED.get(v, []):
            if sub in tenuto(v, "--help").out:
                yield [v, sub]


def every_verb_has_help_that_goes_to_stdout():
    for v in all_verbs():
        r = tenuto(*v, "--help")
        if not r.out.startswith("usage: tenuto " + " ".join(v)) or r.err:
            fail(str(r))
        if (v[-1] not in NESTED or len(v) > 1) and "--help" not in r.out:
            fail(str(r))


def on_terminal(columns, *args):
    """The output on a terminal of so many columns."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    p = subprocess.Popen([TENUTO, *args], stdin=subprocess.DEVNULL, stdout=its, stderr=subprocess.DEVNULL)
    os.close(its)
    text = rest_of_terminal(ours)
    p.wait()
    return text.decode().replace("\r", "").splitlines()


def help_fits_80_columns():
    for v in [[]] + list(all_verbs()):
        for line in tenuto(*v, "--help").out.splitlines():
            if len(line) > 80 or line != line.rstrip():
                fail("%s: '%s'" % (v, line))


def a_table_is_as_narrow_as_the_terminal_and_loses_nothing():
    wide = tenuto("doctor").out
    if len(max(wide.splitlines(), key=len)) <= 80:
        fail("nothing to break: %s" % wide)
    for columns in (60, 80):
        lines = on_terminal(columns, "doctor")
        for line in lines:
            if len(line) > columns or line != line.rstrip():
                fail("'%s'" % line)

        def letters(text):  # a path that is wider than its column is cut; sizes change meanwhile
            return sorted(re.sub(r"[\s\d.-]", "", text))
        if letters("\n".join(lines)) != letters(wide):
            fail("%s\n%s" % ("\n".join(lines), wide))


def every_verb_refuses_an_option_that_it_does_not_have():
    for v in all_verbs():
        if v[-1] not in NESTED or len(v) > 1:
            says(tenuto(*v, "--no-such-option", rc=USAGE), "no-such-option")


def every_message_begins_with_the_program_and_the_verb():
    write("t.jsonl", LINE)
    for args in (["replay", "absent"], ["replay", "t.jsonl", "--policy", "mru"], ["replay", "t.jsonl", "--model", "gpt-7"],
                 ["replay", "t.jsonl", "--dir", "absent"], ["store info", "absent"], ["store verify", "."], ["doctor", "absent"],
                 ["replay", "--no-such"], ["bench store", "--object", "5000"], ["demo", "--dir", "absent"]):
        done = subprocess.run([TENUTO] + args[0].split() + args[1:], capture_output=True, text=True)
        if not done.returncode or not done.stderr.startswith("tenuto %s: " % args[0]):
            fail("%s: %s" % (args, done.stderr))


def no_arguments_print_the_verbs_and_are_a_usage_error():
    says(tenuto(rc=USAGE), "usage: tenuto", "replay")


def an_unknown_verb_or_option_names_the_nearest():
    says(tenuto("reply", rc=USAGE), "no verb 'reply'", "'replay'")
    says(tenuto("replay", "--capacity-block", "5", "x", rc=USAGE), "--capacity-blocks")
    says(tenuto("replay", "--polciy", "lru", "x", rc=USAGE), "--policy")
    if "did you mean" in tenuto("xyzzy", rc=USAGE).err:
        fail("nothing is near to xyzzy")


def the_version_is_printed():
    if not tenuto("--version").out.startswith("tenuto "):
        fail("no version")


def a_number_that_is_not_wholly_understood_is_refused():
    write("t.jsonl", LINE)
    bad_counts = ["0", "-1", "1.5", "1e3", "0x10", " 5", "5 ", "5x", "5KiB", "", "NaN", "inf", "9223372036854775808",
                  "18446744073709551616", "99999999999999999999999", "5kk", "+5"]
    for v in bad_counts:
        says(tenuto("replay", "t.jsonl", "--no-io", "--capacity-blocks", v, rc=USAGE), "--capacity-blocks")
    for v in ["1.5", "1.k", ".5k", "1.0005k", "0.5.5k", "1.00000000000000000000k"]:
        says(tenuto("replay", "t.jsonl", "--no-io", "--capacity-blocks", v, rc=USAGE), "--capacity-blocks", v)
    if "1,500 " not in tenuto("replay", "t.jsonl", "--no-io", "--capacity-blocks", "1.50k").out:
        fail("1.50k are not 1,500")
    for v in ["0", "NaN", "nan", "inf", "-1", "1e999", "", "1x", "0x1p3", "1.2.3"]:
        says(tenuto("replay", "t.jsonl", "--speed", v, rc=USAGE), "--speed")
    for v in ["8", "8x", "x16KiB", "0x16KiB", "8x0", "8x16Kib", "8x16 KiB", "8x-1", "-8x16KiB", "8x9223372036854775808",
              "4097x16KiB", "8x2GiB", "8x16KiB1"]:
        says(tenuto("replay", "t.jsonl", "--geometry", v, rc=USAGE), "--geometry")
    for v in ["foo", "8", "x16KiB", "8x", "8x-1", "8xKiB"]:
        says(tenuto("replay", "t.jsonl", "--geometry", v, rc=USAGE), "LAYERSxBYTES, e.g. 8x16KiB")
    says(tenuto("replay", "t.jsonl", "--geometry", "8x16", rc=USAGE), "8x16KiB", "8x16B")
    says(tenuto("replay", "t.jsonl", "--geometry", "8x5000", "--no-io"), "8x5000", "4096")


def a_missing_argument_or_operand_is_named():
    says(tenuto("replay", rc=USAGE), "missing TRACE.jsonl")
    says(tenuto("replay", "a", "b", rc=USAGE), "unexpected 'b'")
    says(tenuto("replay", "a", "--limit", rc=USAGE), "--limit needs an argument")
    says(tenuto("replay", "a", "--json=yes", rc=USAGE), "--json takes no argument")
    says(tenuto("replay", "a", "-x", rc=USAGE), "-x")


TAKE_DIRECTORY = ("replay t.jsonl --dir {}", "store info {}", "store verify {}", "store check {}", "demo --dir {}",
                  "bench store --dir {}", "bench pipeline --dir {}", "bench mix {}", "bench submit --dir {}", "bench session --dir {}",
                  "bench layers --dir {}", "doctor {}")
READ_FILE = ("replay {}", "replay t.jsonl --no-io --model llama3-8b --slack {}", "replay t.jsonl --no-io --model llama3-8b --gpu h100 --device-model {}", "profile --from {}",
             "bench pipeline --slack {}", "bench pipeline --device-model {}", "bench mix . --device-model {}")
WRITE_FILE = ("replay t.jsonl --report {}", "replay t.jsonl --explain {}", "profile --model llama3-8b --gpu h100 --out {}",
              "bench pipeline --report {}", "bench pipeline --explain {}")


def with_path(template, path, rc):
    says(tenuto(*template.format(path).split(), rc=rc), path)


def a_path_that_is_not_there_or_is_not_what_it_should_be_is_a_usage_error_of_every_verb():
    write("t.jsonl", LINE)
    os.mkdir("directory")
    for template in TAKE_DIRECTORY:
        for path in ("absent", "absent/x", "t.jsonl", "t.jsonl/x"):
            with_path(template, path, USAGE)
    for template in READ_FILE:
        for path in ("absent", "absent/x", "t.jsonl/x", "directory"):
            with_path(template, path, USAGE)
    for template in WRITE_FILE:
        for path in ("absent/x", "t.jsonl/x", "directory"):
            with_path(template, path, USAGE)
    if sorted(os.listdir(".")) != ["directory", "t.jsonl"] or os.listdir("directory"):
        fail("left: %s %s" % (os.listdir("."), os.listdir("directory")))


def what_store_tools_are_given_is_told_once_and_with_what_is_wrong():
    os.makedirs("kv/default")
    os.mkdir("empty")
    write("kv/default/tenuto.store", "no store" * 8192)
    for verb in ("info", "verify", "check", "flush"):
        says(tenuto("store", verb, "kv", "./kv/", rc=USAGE), "./kv/ is given twice")
        says(tenuto("store", verb, "kv", rc=PROBLEM), "kv/default/tenuto.store", "not a store")
    if os.geteuid() == 0:
        return
    os.chmod("kv/default/tenuto.store", 0)
    err = tenuto("store", "info", "kv", rc=ENVIRONMENT).err
    if err.count("tenuto.store") != 1 or "Permission denied" not in err:
        fail(err)


def only_a_few_verbs_have_no_json():
    without = [v for v in all_verbs() if (v[-1] not in NESTED or len(v) > 1) and "--json" not in tenuto(*v, "--help").out]
    if without != [["workload"], ["events"], ["store", "format"], ["volume"]] + [["xfer", v] for v in ("info", "listen", "put", "get")]:
        fail("docs/program.md says which have no --json; it is %s" % without)


def a_disk_without_room_is_told_before_anything_runs_and_keeps_nothing():
    os.mkdir("d")
    for verb in ("demo --dir d", "bench store --dir d --no-tmpfs", "bench submit --dir d", "bench mix d"):
        script = 'mount -t tmpfs -o size=8m none d 2>/dev/null || exit 77; "$0" %s; rc=$?; ls d; exit $rc' % verb
        done = subprocess.run(["unshare", "-m", "sh", "-c", script, TENUTO], capture_output=True, text=True, timeout=60)
        if done.returncode == 77 or "unshare" in done.stderr:
            raise Skip("no right to mount")
        if done.returncode != ENVIRONMENT or not re.search("needs|no free space", done.stderr) or done.stdout:
            fail("%s: exit code %s\n%s%s" % (verb, done.returncode, done.stderr, done.stdout))


def a_directory_in_which_nothing_can_be_made_keeps_what_it_holds():
    os.mkdir("d")
    for verb in ("demo", "bench store --no-tmpfs", "bench pipeline", "bench submit", "bench layers", "bench session"):
        script = 'echo mine >d/keep; %s "$0" %s --dir d; rc=$?; cat d/keep; exit $rc'
        if os.geteuid():
            os.chmod("d", 0o755)
            run, script = [], script % ("chmod 555 d;", verb)
        else:
            run, script = ["unshare", "-m"], "mount -t tmpfs -o nr_inodes=2 none d 2>/dev/null || exit 77; " + script % ("", verb)
        done = subprocess.run([*run, "sh", "-c", script, TENUTO], capture_output=True, text=True, timeout=60)
        if done.returncode == 77 or "unshare" in done.stderr:
            raise Skip("no right to mount")
        if done.returncode != ENVIRONMENT or "cannot make a directory in d: " not in done.stderr or done.stdout != "mine\n":
            fail("%s: exit code %s\n%s%s" % (verb, done.returncode, done.stderr, done.stdout))


def the_meaning_of_options_together_is_checked():
    write("t.jsonl", LINE)
    says(tenuto("replay", "t.jsonl", "--policy", "mru", "--no-io", rc=USAGE), "mru", "lru", "s3fifo", "belady")
    says(tenuto("replay", "t.jsonl", "--policy", "belady", rc=USAGE), "--no-io")
    for more in (["--dir", "."], ["--verify"], ["--speed", "2"], ["--io-engine", "auto"]):
        says(tenuto("replay", "t.jsonl", "--no-io", *more, rc=USAGE), "tenuto replay: %s and --no-io" % more[0])
    says(tenuto("replay", "t.jsonl", "--no-io", "--policy", "belady", "--host-blocks", "3", rc=USAGE), "--host-blocks", "belady")
    # 2^31 blocks of 2^39 bytes: in 64 bits the product is 0, which would mean no host memory
    says(tenuto("replay", "t.jsonl", "--geometry", "4096x128MiB", "--capacity-blocks", "1", "--host-blocks", "2147483648",
                rc=USAGE), "host_bytes")
    says(tenuto("replay", "t.jsonl", "--model", "llama3-8b", "--geometry", "8x16KiB", rc=USAGE), "--model")
    says(tenuto("replay", "t.jsonl", "--model", "gpt-7", "--no-io", rc=USAGE), "gpt-7", "llama3-8b")


def forbid(call):
    """Makes a system call of io_uring fail with EPERM in this process, as a sandbox does."""
    number = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427}[call]
    code = struct.pack("=" + "HBBI" * 4, 0x20, 0, 0, 0, 0x15, 0, 1, number, 0x06, 0, 0, 0x00050000 | errno.EPERM, 0x06, 0, 0, 0x7fff0000)
    text = ctypes.create_string_buffer(code, len(code))
    program = ctypes.create_string_buffer(struct.pack("@HP", 4, ctypes.addressof(text)))
    libc = ctypes.CDLL(None)
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, program):
        os._exit(77)


def doctor_says_which_call_of_io_uring_a_sandbox_forbids():
    for call in ("io_uring_setup", "io_uring_enter", "io_uring_register"):
        done = subprocess.run([TENUTO, "doctor", "--json"], capture_output=True, text=True, preexec_fn=lambda: forbid(call))
        if done.returncode == 77:
            raise Skip("no seccomp")
        found = [c for c in json.loads(done.stdout)["findings"] if c["name"] == "io_uring"][0]
        if found["state"] != "no" or call not in found["value"]:
            fail("%s: %s" % (call, found))


def a_result_that_cannot_be_written_is_an_error():
    if not os.path.exists("/dev/full"):
        raise Skip("no /dev/full")
    write("t.jsonl", LINE)
    with open("/dev/full", "w") as full:
        for args in (["--help"], ["replay", "t.jsonl", "--no-io", "--json"]):
            done = subprocess.run([TENUTO] + args, stdout=full, stderr=subprocess.PIPE, text=True)
            if done.returncode != ENVIRONMENT or "cannot write" not in done.stderr:
                fail("%s: %s %s" % (args, done.returncode, done.stderr))


def a_generated_workload_is_the_same_for_the_same_seed():
    a = tenuto("workload", "--requests", "50", "--seed", "7").out
    if a != tenuto("workload", "--requests=50", "--seed=7").out or a == tenuto("workload", "--requests", "50").out:
        fail("the seed does not decide")
    if len(a.splitlines()) != 50:
        fail("not 50 requests")


def the_installed_program_runs_wherever_it_is_and_has_the_library_once():
    build = os.path.dirname(os.path.dirname(TENUTO))
    if not shutil.which("meson") or not os.path.exists(os.path.join(build, "meson-private")):
        raise Skip("needs meson, and the program in its build directory")
    done = subprocess.run(["meson", "install", "-C", build, "--no-rebuild", "--destdir", os.getcwd()], capture_output=True, text=True)
    if done.returncode:
        fail(done.stdout + done.stderr)
    found = glob.glob("**/bin/tenuto", recursive=True)
    os.rename(found[0].split(os.sep)[0], "moved")
    env = {k: v for k, v in os.environ.items() if k != "LD_LIBRARY_PATH"}
    for program in glob.glob("moved/**/bin/tenuto", recursive=True):
        done = subprocess.run(["ldd", program], capture_output=True, text=True, env=env)
        if done.returncode or "libtenuto" in done.stdout:
            fail(done.stdout + done.stderr)
        done = subprocess.run([program, "replay", "-", "--no-io", "--json"], input=LINE, capture_output=True, text=True, env=env)
        if done.returncode or json.loads(done.stdout)["requests"] != 1:
            fail(done.stdout + done.stderr)
    if not glob.glob("moved/**/libtenuto.so", recursive=True):
        fail("there is no library to link with")


def streams_that_are_closed_are_held_and_still_take_nothing():
    """No other file gets their numbers, and a result that nobody got is no success."""
    closed = ("sh", "-c", 'exec "$@" >&-', "sh", TENUTO)
    done = subprocess.run([*closed, "workload"], stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    if done.returncode != ENVIRONMENT or "cannot write the result: Bad file descriptor" not in done.stderr:
        fail("%d %s" % (done.returncode, done.stderr))
    os.mkdir("empty")
    with subprocess.Popen([TENUTO, "status", "empty"], preexec_fn=lambda: os.closerange(0, 3)) as p:
        held = ["/proc/%d/fd/%d" % (p.pid, fd) for fd in range(3)]
        try:
            until(lambda: all(map(os.path.lexists, held)), "descriptors that are held")
            if {os.readlink(h) for h in held} != {"/dev/null"}:
                fail(str([os.readlink(h) for h in held]))
        finally:
            p.terminate()


def a_look_up_benchmark_gives_json():
    r = tenuto("bench", "match", "--entries", "20k", "--keys", "64", "--rounds", "20", "--json").json()
    if not (r["entries"] == 20000 and 0 < r["ns_per_key_p50"] <= r["ns_per_key_p99"] <= r["ns_per_key_max"]):
        fail(str(r))


def the_nvme_benchmark_gives_every_round_of_every_row():
    r = tenuto("bench", "nvme", "--rounds", "3", "--commands", "2000", "--object", "64KiB", "--total", "4MiB", "--json").json()
    rows = {k: v for k, v in r.items() if isinstance(v, list)}
    if len(rows) != 29 or not all(len(v) == 3 and min(v) > 0 for v in rows.values()):
        fail(str(r))
    out = tenuto("bench", "nvme", "--rounds", "3", "--commands", "2000", "--object", "64KiB", "--total", "4MiB").out
    for text in ("the driver alone, 256 deep", "controller on another CPU", "checks everything", "of memcpy", "PRP", "doorbell"):
        if text not in out:
            fail(out)
    says(tenuto("bench", "nvme", "--object", "5000", rc=USAGE), "--object", "4096")
    says(tenuto("bench", "nvme", "--total", "1MiB", rc=USAGE), "--total")


main(globals())
