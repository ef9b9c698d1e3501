# SPDX-License-Identifier: Apache-2.0
"""A plugin outside the tree: Tenuto is installed into a directory, plugin.c is built against what lies there alone, and the installed `tenuto doctor`
shows it. Arguments: plugin.c, the build directory, the command of meson."""
import json
import os
import shlex
import subprocess
import sys
import tempfile

SOURCE, BUILD = sys.argv[1:3]
MESON = sys.argv[3:]


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
    plugin = os.path.join(plugins, "libtenuto_example.so")
    run(os.environ.get("CC", "cc").split()[-1], "-std=c11", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *shlex.split(flags), SOURCE, "-o", plugin)
    out = run(find(root, "tenuto"), "doctor", "--json", TENUTO_PLUGIN_PATH=plugins)
    found = {f["name"]: f for f in json.loads(out)["findings"]}
    assert found["plugin example"]["state"] == "yes" and plugin in found["plugin example"]["value"], out
    assert found["example device 0"]["value"].startswith("Example, 1.0 GiB"), out
