# SPDX-License-Identifier: Apache-2.0
"""Plugins outside the tree: Tenuto is installed into a directory, plugin.c and plugin_xfer.c are built against what lies there alone, and the installed
`tenuto` opens them. Arguments: both sources, the build directory, the command of meson."""
import json
import os
import shlex
import subprocess
import sys
import tempfile

DEVICE, BACKEND, BUILD = sys.argv[1:4]
MESON = sys.argv[4:]


def run(*command, **env):
    return subprocess.run(command, env=dict(os.environ, **env), capture_output=True, text=True, check=True).stdout


def find(root, name):
    return next(os.path.join(at, name) for at, dirs, files in os.walk(root) if name in files)


with tempfile.TemporaryDirectory(dir="/var/tmp") as top:
    root, plugins = os.path.join(top, "root"), os.path.join(top, "plugins")
    os.mkdir(plugins, 0o755)
    run(*MESON, "install", "-C", BUILD, "--no-rebuild", "--quiet", "--destdir", root, "--tags", "devel,runtime")
    config = find(root, "tenuto.pc")
    flags = run("pkg-config", "--cflags", "tenuto", PKG_CONFIG_LIBDIR=os.path.dirname(config), PKG_CONFIG_SYSROOT_DIR=root)
    assert root in flags, flags
    tenuto = find(root, "tenuto")
    for source, name in (DEVICE, "example"), (BACKEND, "copy"):
        run(os.environ.get("CC", "cc").split()[-1], "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *shlex.split(flags), source,
            "-o", os.path.join(plugins, f"libtenuto_{name}.so"))
    out = run(tenuto, "doctor", "--json", TENUTO_PLUGIN_PATH=plugins)
    found = {f["name"]: f for f in json.loads(out)["findings"]}
    for name in "example", "copy":
        finding = found[f"plugin {name}"]
        assert finding["state"] == "yes" and os.path.join(plugins, f"libtenuto_{name}.so") in finding["value"], out
    assert found["example device 0"]["value"].startswith("Example, 1.0 GiB"), out
    out = run(tenuto, "xfer", "backends", "--json", TENUTO_PLUGIN_PATH=plugins)
    assert any(b["name"] == "copy" and b["segments"] == "DRAM" for b in json.loads(out)), out
    run(tenuto, "bench", "xfer", "--backend", "copy", "--check", "--num_iter", "2", "--total_buffer_size", "8MiB", TENUTO_PLUGIN_PATH=plugins)
    refused = subprocess.run([tenuto, "bench", "xfer", "--backend", "copy,x=1"], env=dict(os.environ, TENUTO_PLUGIN_PATH=plugins), capture_output=True, text=True)
    assert refused.returncode and "x is no parameter" in refused.stderr, refused
