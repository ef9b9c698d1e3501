# SPDX-License-Identifier: Apache-2.0
"""`tenuto bench mix`: what it prints, which file it leaves, and its errors."""
import os
import signal
import subprocess

from cli import DEADLINE, ENVIRONMENT, ROOT, TENUTO, USAGE, Skip, fail, main, says, tenuto, until, write

MODEL = os.path.join(ROOT, "share", "devices", "solidigm-d7-p5810.model")
QUICK = ["--seconds", "1", "--size", "8MiB"]


def a_measured_directory_has_its_mix_and_nothing_else():
    r = tenuto("bench", "mix", ".", *QUICK, "--json").json()
    if os.listdir(".") != ["tenuto.mix"] or not r["stored"]:
        fail(str((r, os.listdir("."))))
    with open("tenuto.mix", encoding="ascii") as f:
        lines = f.read().split("\n")
    if lines[0] != "tenuto-mix 1":
        fail(str(lines))
    for key in ("read_bps", "write_bps", "mixed_bps", "read_latency_ns", "write_latency_ns", "measured_s"):
        if r[key] <= 0 or "%s %d" % (key, r[key]) not in lines:
            fail("%s: %s, %s" % (key, r, lines))


def the_table_names_reads_writes_and_both():
    r = tenuto("bench", "mix", ".", *QUICK)
    for word in ("read", "write", "both", "latency us", "Stored in ./tenuto.mix"):
        if word not in r.out:
            fail(str(r))


def a_model_is_never_faster_than_described_and_stores_nothing():
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "."
    before = os.listdir(base)
    r = tenuto("bench", "mix", base, *QUICK, "--json", "--device-model", MODEL, "--stretch", "20").json()
    if r["stored"] or "tenuto.mix" in set(os.listdir(base)) - set(before):
        fail(str(r))
    # On a busy machine one kind may be alone for a while: both together are no faster than the faster of them.
    for key, of in (("read_bps", "read_bps"), ("write_bps", "write_bps"), ("mixed_bps", "read_bps")):
        if r[key] > r["model"][of] / 20 * 1.001:
            fail("%s: %s" % (key, r))
    if r["read_latency_ns"] < r["model"]["read_latency_ns"] * 20:
        fail(str(r))


def what_cannot_be_measured_is_told_and_nothing_is_left():
    says(tenuto("bench", "mix", rc=USAGE), "missing DIR")
    says(tenuto("bench", "mix", "absent", *QUICK, rc=USAGE), "absent")
    says(tenuto("bench", "mix", ".", "--device-model", "absent", rc=USAGE), "--device-model absent", "share/devices/*.model")
    write("bad.model", "tenuto-mix 1\nread_bps fast\n")
    says(tenuto("bench", "mix", ".", "--device-model", "bad.model", rc=USAGE), "bad.model:2", "read_bps")
    says(tenuto("bench", "mix", ".", "--size", "1TiB", rc=ENVIRONMENT), "--size")
    says(tenuto("bench", "mix", ".", "--seconds", "0", rc=USAGE), "--seconds")
    says(tenuto("bench", "mix", ".", "--stretch", "4", rc=USAGE), "--stretch", "--device-model")
    if os.listdir(".") != ["bad.model"]:
        fail(str(os.listdir(".")))


def a_directory_that_may_not_be_written_is_told():
    if os.geteuid() == 0:
        raise Skip("root may write anywhere")
    os.mkdir("ro", 0o500)
    says(tenuto("bench", "mix", "ro", *QUICK, rc=ENVIRONMENT), "ro", "EACCES")


def open_files(pid):
    found = []
    for f in os.listdir("/proc/%d/fd" % pid):
        try:
            found.append(os.readlink("/proc/%d/fd/%s" % (pid, f)))
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def an_interrupt_ends_it_and_leaves_nothing():
    p = subprocess.Popen([TENUTO, "bench", "mix", ".", "--seconds", "300", "--size", "8MiB"], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
    until(lambda: any("tenuto.mix" in f for f in open_files(p.pid)), "temporary file")
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=DEADLINE)
    if p.returncode != ENVIRONMENT or "interrupted" not in err or out or os.listdir("."):
        fail("%s: %s %s" % (p.returncode, out, err))


main(globals())
