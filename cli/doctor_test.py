# SPDX-License-Identifier: Apache-2.0
"""`tenuto doctor` reports on any machine and never fails: without /sys and /proc, where io_uring is
forbidden, in a directory that cannot be written to. Arguments: the program, the library's directory."""
import ctypes
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

TENUTO, LIBDIR = sys.argv[1:3]
ENV = dict(os.environ, LD_LIBRARY_PATH=LIBDIR)
count = failed = 0


def doctor(*args, wrap=(), **kw):
    return subprocess.run([*wrap, TENUTO, "doctor", *args], capture_output=True, text=True, env=ENV, timeout=60, **kw)


def check(name, ok, detail=""):
    global count, failed
    count += 1
    failed += not ok
    print(f"{'ok' if ok else 'not ok'} {count} - {name}")
    if not ok:
        print("# " + str(detail).replace("\n", "\n# "))


def forbid_io_uring():
    """A seccomp filter as containers have it: io_uring_setup (425 everywhere) gives EPERM."""
    code = [(0x20, 0, 0, 0), (0x15, 0, 1, 425), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *c) for c in code))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filters)))
    libc = ctypes.CDLL(None, use_errno=True)
    word = ctypes.c_ulong
    assert libc.prctl(38, word(1), word(0), word(0), word(0)) == 0  # no new privileges
    assert libc.prctl(22, word(2), program, word(0), word(0)) == 0


def findings(run):
    return {f["name"]: f for f in json.loads(run.stdout)["findings"]}


run = doctor("--json")
found = findings(run)
check("json_has_every_topic_with_its_remedy", run.returncode == 0 and all(
    n in found for n in ("kernel", "io_uring", "O_DIRECT", "atomic writes", "hugepages", "shared hugepages", "NVMe", "IOMMU", "VFIO",
                         "CUDA", "GPUDirect Storage")) and
    all(f["todo"] or f["state"] == "yes" for f in found.values()), run.stdout + run.stderr)
run = doctor()
check("the_table_is_printed", run.returncode == 0 and "io_uring" in run.stdout and not run.stderr, run.stdout + run.stderr)
run = doctor("--json", preexec_fn=forbid_io_uring)
check("where_io_uring_is_forbidden_it_says_so", run.returncode == 0 and findings(run)["io_uring"]["state"] == "no",
      run.stdout + run.stderr)
hide = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /sys && mount -t tmpfs none /proc || exit 77; exec "$@"', "sh")
with open(TENUTO, "rb") as program:
    asan = b"__asan_init" in program.read()
# AddressSanitizer's runtime reads its very options from /proc/self/environ and looks for leaks through /proc/self/task.
run = doctor("--json", wrap=hide) if os.geteuid() == 0 and not asan else None
if run is None or run.returncode == 77:
    print(f"# SKIP {'AddressSanitizer needs /proc' if asan else 'no right to mount'}: not tried without /sys and /proc")
else:
    check("without_sys_and_proc_it_still_reports", run.returncode == 0 and "kernel" in findings(run), run.stdout + run.stderr)
with tempfile.TemporaryDirectory(dir="/var/tmp") as plugins:
    with open(os.path.join(plugins, "libtenuto_text.so"), "w") as f:
        f.write("text")
    ENV["TENUTO_PLUGIN_PATH"] = plugins
    run = doctor("--json")
    found = findings(run)
    check("a_plugin_that_is_refused_is_told_with_its_reason", found["plugin text"]["state"] == "no" and plugins in found["plugin text"]["value"]
          and "no ELF file" in found["plugin text"]["todo"] and found["plugins"]["value"].startswith("0 "), run.stdout + run.stderr)
    shutil.copy(os.path.join(LIBDIR, "plugins", "gds", "libtenuto_gds.so"), plugins)
    run = doctor("--json")
    gds = findings(run)["plugin gds"]
    check("a_file_transport_is_told_with_what_it_lacks", gds["state"] in ("yes", "partly") and gds["value"].startswith("file transport for Tenuto")
          and (gds["state"] == "yes" or "cuf" in gds["todo"].lower()), run.stdout + run.stderr)
    os.chmod(plugins, 0o777)
    run = doctor("--json")
    check("a_directory_that_others_may_write_is_told", any(f["name"] == "plugin directory" and plugins in f["value"] and "chmod go-w" in f["todo"]
          for f in json.loads(run.stdout)["findings"]), run.stdout + run.stderr)
    ENV["TENUTO_PLUGIN_PATH"] = "plugins"
    run = doctor("--json")
    check("a_relative_directory_of_plugins_is_told", run.returncode == 0 and "'plugins' is no absolute path" in findings(run)["plugins"]["todo"],
          run.stdout + run.stderr)
    del ENV["TENUTO_PLUGIN_PATH"]
run = doctor("--json", "/proc")
check("a_directory_that_cannot_be_written_to_is_a_finding",
      run.returncode == 0 and findings(run)["O_DIRECT"]["state"] == "no", run.stdout + run.stderr)
check("a_missing_directory_is_a_usage_error", doctor("/nonexistent").returncode == 2)
run = doctor("/etc/passwd")
check("a_file_is_no_directory", run.returncode == 2 and "is not a directory" in run.stderr, run.stderr)
print(f"1..{count}")
sys.exit(failed > 0)
