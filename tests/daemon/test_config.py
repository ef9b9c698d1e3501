# SPDX-License-Identifier: Apache-2.0
"""The configuration of tenutod: what it takes, and what it says of what it does not take."""
import os
import re
import sys

from daemon import ROOT, Daemon, asked
from cli import ENVIRONMENT, PROBLEM, USAGE, fail, main, write

# What is wrong: the file, the line that is told, and words of the message: what is there, and what to write.
BAD = {
    "a unit that is none": ("host_bytes: 64Gb\n", 1, ["host_bytes", "'64Gb'", "GiB"]),
    "a size that is none": ("# c\nhost_bytes: lots\n", 2, ["host_bytes", "'lots'", "write a size such as 64GiB"]),
    "a size without its unit": ("host_bytes: 64\n", 1, ["host_bytes", "'64' is 64 bytes", "64GiB"]),
    "a size beyond 64 bits": ("host_bytes: 99999999999999999999\n", 1, ["host_bytes", "too large"]),
    "a size beyond its limit": ("host_bytes: 1GiB\nheader_cache_bytes: 1\n", 2, ["header_cache_bytes", "'1'", "4KiB to 1TiB"]),
    "a negative number": ("max_ops: -1\n", 1, ["max_ops", "'-1'", "from 1 to 4096"]),
    "a number beyond its limit": ("host_bytes: 1GiB\n\nmax_ops: 5000\n", 3, ["max_ops", "'5000'", "from 1 to 4096"]),
    "a time that is none": ("durability_ms: 1s\n", 1, ["durability_ms", "'1s'", "number of ms", "never"]),
    "a time that has an end": ("lock_timeout_ms: never\n", 1, ["lock_timeout_ms", "'never'", "number of ms"]),
    "a name that is none": ("host_byte: 1GiB\n", 1, ["'host_byte'", "did you mean host_bytes"]),
    "a name far from any": ("xyzzy: 1\n", 1, ["'xyzzy'", "--print-config"]),
    "a choice that is none": ("policy: lruu\n", 1, ["policy", "'lruu'", "default, lru, fifo or s3fifo", "did you mean lru?"]),
    "a switch that is none": ("read_only: yes\n", 1, ["read_only", "'yes'", "true or false"]),
    "a socket without a path": ("socket: tenuto.sock\n", 1, ["socket", "'tenuto.sock'", "/run/tenuto/tenuto.sock"]),
    "a socket's path that is too long": ("socket: /%s\n" % ("x" * 200), 1, ["socket", "107 bytes"]),
    "an address without a port": ("listen: 127.0.0.1\n", 1, ["listen", "'127.0.0.1'", "127.0.0.1:9470"]),
    "an address by name": ("listen: localhost:9470\n", 1, ["listen", "'localhost:9470'", "numeric"]),
    "an address without brackets": ("listen: '::1:9470'\n", 1, ["listen", "'::1:9470'", "[::1]:9470"]),
    "a port beyond 65535": ("listen: 127.0.0.1:99999\n", 1, ["listen", "'127.0.0.1:99999'"]),
    **{"slack: %s" % v: ("host_bytes: 1GiB\nslack: %s\n" % v, 2, ["slack", "'%s'" % v, "absolute path", "or off"])
       for v in ("rel/dir", "auto", "on", "true")},
    "plugins in a relative directory": ("host_bytes: 1GiB\nplugins: kv/plugins\n", 2, ["plugins", "'kv/plugins'", "absolute path", "or off"]),
    "clients that are no list": ("clients: all\n", 1, ["clients", "list of rules"]),
    "a client that is a word": ("clients:\n  - root\n", 2, ["clients", "uid: 1000"]),
    "a client who is anybody": ("clients:\n  - {tenants: [a]}\n", 2, ["neither uid nor token_file"]),
    "a client's name that is none": ("clients:\n  - uid: 1\n    tenant: [a]\n", 3, ["'tenant'", "did you mean tenants"]),
    "a client's setting twice": ("clients:\n  - uid: 1\n    tenants: [a]\n    uid: 2\n", 4, ["uid", "line 2", "leave one"]),
    "a client's tenants twice": ("clients:\n  - uid: 1\n  - {uid: 1, tenants: [a], tenants: [b]}\n", 3, ["tenants", "line 3", "leave one"]),
    "a client's uid that is none": ("clients:\n  - uid: me\n", 2, ["uid", "'me'", "write a number"]),
    "a client's quota that is none": ("clients:\n  - {uid: 1, disk_quota: much}\n", 2, ["disk_quota", "'much'", "64GiB"]),
    "tenants that are no list": ("clients:\n  - {uid: 1, tenants: a}\n", 2, ["tenants", "[team-a, team-b]"]),
    "no tenants at all": ("clients:\n  - {uid: 1, tenants: []}\n", 2, ["tenants", "empty list"]),
    "no value": ("host_bytes:\n", 1, ["host_bytes", "no value"]),
    "a list for a value": ("host_bytes: [1, 2]\n", 1, ["host_bytes", "one value"]),
    "a relative path": ("dirs:\n  - /a\n  - b/c\n", 3, ["dirs", "'b/c'", "absolute"]),
    "a drive without its nvme:": ("dirs: [0000:03:00.0]\n", 1, ["dirs", "'0000:03:00.0'", "nvme:0000:03:00.0"]),
    "a path that is a list": ("dirs:\n  - /a\n  - [b]\n", 3, ["dirs", "path"]),
    "too many paths": ("dirs:\n" + "".join("  - /d%d\n" % i for i in range(17)), 18, ["dirs", "'/d16'", "at most 16"]),
    "a setting twice": ("host_bytes: 1GiB\nworkers: 1\nhost_bytes: 2GiB\n", 3, ["host_bytes", "line 1"]),
    "a list of all": ("- host_bytes\n", 1, ["NAME: VALUE"]),
    "a word": ("\nhello\n", 2, ["NAME: VALUE"]),
    "a name that is a list": ("? [a]\n: 1\n", 1, ["NAME: VALUE"]),
    "a tab": ("host_bytes: 1GiB\n\tworkers: 1\n", 2, ["no YAML", "NAME: VALUE"]),
    "an open quote": ("instance: \"a\n", 2, ["no YAML"]),
    "no UTF-8": ("instance: \udcff\n", 1, ["no YAML"]),
    "a zero byte": ("instance: \"a\\0b\"\n", 1, ["instance", "zero byte"]),
    "two documents": ("host_bytes: 1GiB\n---\nworkers: 1\n", 2, ["second document"]),
}


def put(text):
    with open("c.yaml", "w", encoding="utf-8", errors="surrogateescape") as f:
        f.write(text)
    return "c.yaml"


def printed(*args):
    return asked(*args, "--print-config").stdout


def settings(text):
    return dict(re.findall(r"^(\w+): *(.*)$", text, re.M))


def the_printed_defaults_are_read_as_the_defaults():
    defaults = printed()
    if printed("--config", write("d.yaml", defaults)) != defaults:
        fail("another configuration")
    names = settings(defaults)
    if len(names) < 20 or names["listen"] != '"127.0.0.1:9470"':
        fail(defaults)
    for name in names:
        if not re.search(r"^# .*\n%s:" % name, defaults, re.M):
            fail("%s has no comment" % name)


def other_settings_are_read_as_they_are_printed():
    ours = put('dirs: ["/a b", "/c\\"\\\\\\u00e4"]\ninstance: \'x: "y"\'\nhost_bytes: 64GiB\ndisk_bytes: 500MB\nread_only: true\n'
               "write_bytes_per_day: 3TB\noffload_lag_ms: never\ndurability_ms: 0\npolicy: s3fifo\nscheduler: none\nmax_blocks: 5M\n"
               "io_engine: posix\nexecutors: 3\nlisten: '[::1]:1'\nlog_level: debug\n"
               "clients:\n  - {uid: 7, tenants: [a, 'b: c'], host_quota: 4095B, disk_quota: 1GiB, max_priority: 3, max_memory: 32GiB}\n  - {token_file: /t, read_only: true}\n")
    once = printed("--config", ours)
    if printed("--config", write("again.yaml", once)) != once:
        fail(once)
    now, defaults = settings(once), settings(printed())
    changed = {n for n in now if now[n] != defaults[n]}
    if 'tenants:\n      - "a"\n      - "b: c"\n' not in once or "uid: 7" not in once or "max_memory: 32GiB" not in once or "host_quota: 4095B\n" not in once or 'token_file: "/t"' not in once:
        fail(once)
    if len(changed) != 16 or now["disk_bytes"] != "500000000B" or now["host_bytes"] != "64GiB" or now["offload_lag_ms"] != "never":
        fail(once)


def options_come_before_the_file():
    ours = put("dirs: [/a, /b]\nhost_bytes: 1GiB\ndisk_bytes: 1GiB\nlisten: off\nworkers: 7\n")
    now = settings(printed("--config", ours, "--dir", "/c", "--host-bytes", "2GiB", "--disk-bytes", "3GiB", "--listen", "127.0.0.1:1"))
    if now["host_bytes"] != "2GiB" or now["disk_bytes"] != "3GiB" or now["listen"] != '"127.0.0.1:1"' or now["workers"] != "7":
        fail(str(now))
    once = printed("--config", ours, "--dir", "/c")
    if '- "/c"' not in once or "/a" in once:
        fail(once)


def a_mistake_is_told_with_file_line_value_and_what_to_write():
    for what, (text, line, words) in BAD.items():
        err = asked("--config", put(text), "--check-config", rc=USAGE).stderr
        if not err.startswith("tenutod: c.yaml:%d: " % line):
            fail("%s: line %d is not told: %s" % (what, line, err))
        for word in words:
            if word not in err:
                fail("%s: '%s' is not in: %s" % (what, word, err))
        if err.count("\n") != 1:
            fail("%s: more than one line: %s" % (what, err))


def a_mistake_of_an_option_is_told_with_what_to_write():
    for args, words in ((["--listen", "x"], ["--listen", "'x'", "127.0.0.1:9470"]), (["--host-bytes", "1X"], ["--host-bytes", "'1X'"]),
                        (["--hostbytes", "1"], ["did you mean --host-bytes"]), (["operand"], ["unexpected 'operand'"])):
        err = asked(*args, "--check-config", rc=USAGE).stderr
        for word in words:
            if word not in err:
                fail("%s: %s" % (args, err))


def a_file_that_cannot_be_read_is_named():
    for path, rc in (("absent.yaml", USAGE), (".", USAGE)):
        if path not in asked("--config", path, "--check-config", rc=rc).stderr:
            fail(path)
    with open("huge.yaml", "w") as f:
        f.write("# " + "x" * (2 << 20))
    asked("--config", "huge.yaml", "--check-config", rc=USAGE)
    if os.geteuid():
        os.chmod(put("workers: 1\n"), 0)
        asked("--config", "c.yaml", "--check-config", rc=ENVIRONMENT)


def help_fits_80_columns_and_the_version_is_told():
    text = asked("--help").stdout
    if not text.startswith("usage: tenutod [options]\n") or max(map(len, text.splitlines())) > 80:
        fail(text)
    if not re.fullmatch(r"tenutod \d+\.\d+\.\d+\n", asked("--version").stdout):
        fail("no version")


def what_the_settings_name_must_be_there_when_the_file_is_checked():
    here = os.getcwd()
    os.makedirs("kv/default", exist_ok=True)
    write("token", "a secret\n")
    write("empty", "")
    write("open", "a secret that others can read")
    write("short", "fifteen letters\n")
    write("long", "x" * 4097)
    for name in ("empty", "short", "long"):
        os.chmod(name, 0o600)
    write("secret", "a secret that nobody else reads")
    os.chmod("open", 0o640)
    os.chmod("secret", 0o600)
    good = "dirs: [%s/kv]\nsocket: %s/s\nclients:\n  - {token_file: %s/token}\n" % (here, here, here)
    asked("--config", put(good), "--check-config")
    if os.listdir("kv") != ["default"] or os.listdir("kv/default"):
        fail("something was made")
    for text, words in ((good.replace("/kv", "/absent"), ["dirs", "/absent", "make it"]),
                        (good.replace("/kv", "/token"), ["dirs", "/token'", "directory"]),
                        (good.replace("/s\n", "/absent/s\n"), ["socket", "/absent'", "directory"]),
                        (good.replace("/token}", "/absent}"), ["token_file", "/absent"]),
                        (good.replace("/token}", "/empty}"), ["token_file", "/empty", "first line"]),
                        (good + "hints_token_file: %s/absent\n" % here, ["hints_token_file", "/absent"]),
                        (good.replace("/kv]", "/kv, %s/kv/../kv]" % here), ["c.yaml:1: ", "dirs", "given twice"]),
                        (good.replace("/s\n", "/token\n"), ["c.yaml:2: ", "socket", "/token'", "no socket"]),
                        (good + "cluster_secret_file: %s/absent\n" % here, ["c.yaml:5: ", "/absent'", "openssl rand"]),
                        (good + "cluster_secret_file: %s/empty\n" % here, ["/empty", "0 bytes", "16 to 4096"]),
                        (good + "cluster_secret_file: %s/short\n" % here, ["c.yaml:5: ", "/short", "15 bytes"]),
                        (good + "cluster_secret_file: %s/long\n" % here, ["/long", "4097 bytes"]),
                        (good + "instance: ../x\n", ["c.yaml:5: ", "instance", "'../x'"])):
        err = asked("--config", put(text), "--check-config", rc=USAGE).stderr
        for word in ["c.yaml:", *words]:
            if word not in err:
                fail("'%s' is not in: %s" % (word, err))
    if "chmod 0600" not in asked("--config", put(good + "cluster_secret_file: %s/open\n" % here), "--check-config", rc=ENVIRONMENT).stderr:
        fail("a secret that others can read")
    err = asked("--config", put(good + "remote: absent,bucket=kv,secret_key=hidden\n"), "--check-config", rc=USAGE).stderr
    if "c.yaml:5: remote: absent" not in err or "hidden" in err:
        fail("a remote that cannot be tried is not told: %s" % err)
    several = asked("--config", put(good + "remote:\n  - s3,bucket=kv\n  - s3,bucket=b,prefix=x\n"), "--print-config").stdout
    if 'remote:\n  - "s3,bucket=kv"\n  - "s3,bucket=b,prefix=x"\n' not in several or asked("--config", put(several), "--print-config").stdout != several:
        fail("remotes are not printed as a list: %s" % several)
    for value, word in (("[]", "an empty list"), ("[[a]]", "no text"), ('["%s"]' % ("x" * 5000), "write less")):
        if word not in asked("--config", put(good + "remote: %s\n" % value), "--check-config", rc=USAGE).stderr:
            fail("remote: %.20s is taken" % value)
    if os.geteuid():
        os.chmod("kv/default", 0o555)
        err = asked("--config", put(good), "--check-config", rc=ENVIRONMENT).stderr
        if "kv/default" not in err or "Permission denied" not in err:
            fail(err)
        asked("--config", put(good + "read_only: true\n"), "--check-config")


def a_remote_that_would_not_serve_is_told_when_the_file_is_checked():
    plugins = os.path.join(os.path.dirname(os.path.dirname(os.environ["TENUTOD"])), "plugins", "s3")
    if not os.path.exists(os.path.join(plugins, "libtenuto_s3.so")):
        return  # built without libcurl
    sys.path.insert(0, os.path.join(ROOT, "python", "tests"))
    from s3_servers import Faulty
    store = Faulty()
    try:
        text = put("host_bytes: 64MiB\nsocket: off\nplugins: %s\nremote: s3,bucket=kv-cache,endpoint=%s,access_key=a,secret_key=hidden,tries=1\n" %
                   (plugins, store.endpoint))
        asked("--config", text, "--check-config")
        for fault, words in (("403:RequestTimeTooSkewed", ["c.yaml:4: remote: s3", "clock"]), ("403:ExpiredToken", ["HTTP 403 ExpiredToken"]),
                             ("404:NoSuchBucket", ["bucket"]), ("507", ["full"]), ("500", ["HTTP 500"])):
            store.all_fail(fault)
            err = asked("--config", text, "--check-config", rc=USAGE if fault[0:3] == "404" else ENVIRONMENT).stderr
            for word in words:
                if word not in err or "hidden" in err:
                    fail("'%s' is not in, or a secret is: %s" % (word, err))
    finally:
        store.close()


def what_cannot_start_is_told_when_the_file_is_checked():
    here = os.getcwd()
    os.makedirs("kv/default", exist_ok=True)
    err = asked("--config", put("dirs: [%s/kv]\nhost_bytes: 32TiB\n" % here), "--check-config", rc=USAGE).stderr
    for word in ("c.yaml:2: ", "host_bytes", "32.00 TiB", "memory"):
        if word not in err:
            fail("'%s' is not in: %s" % (word, err))
    err = asked("--config", put("dirs: [%s/kv]\ndisk_bytes: 60000TiB\n" % here), "--check-config", rc=USAGE).stderr
    if "c.yaml:2: " not in err or "disk_bytes" not in err or "file system" not in err:
        fail(err)
    for args in (["--check-config"], ["--listen", "off", "--socket", "off"]):
        err = asked("--dir", here + "/absent", *args, rc=USAGE).stderr
        if "%s/absent" % here not in err or "make it, or correct the path" not in err:
            fail(err)
    with open("kv/default/tenuto.store", "wb") as f:
        f.write(b"no store" * 4096)
    ours = put("dirs: [%s/kv]\n" % here)
    err = asked("--config", ours, "--check-config", rc=PROBLEM).stderr
    if "c.yaml:1: " not in err or "tenuto.store" not in err:
        fail(err)
    asked("--config", ours, "--listen", "off", "--socket", "off", rc=PROBLEM)
    os.remove("kv/default/tenuto.store")
    with Daemon("--config", ours, "--disk-bytes", "64MiB") as d:
        asked("--config", ours, "--check-config")
        d.end()
    asked("--config", ours, "--check-config")


def a_directory_of_plugins_that_others_may_write_is_refused():
    here = os.getcwd()
    os.mkdir("plugins", 0o755)
    ours = put("host_bytes: 1MiB\nplugins: %s/plugins\n" % here)
    asked("--config", ours, "--check-config")
    os.chmod("plugins", 0o777)
    err = asked("--config", ours, "--check-config", rc=ENVIRONMENT).stderr
    for word in ("c.yaml:2: ", "plugins", "%s/plugins'" % here, "everyone", "chmod go-w"):
        if word not in err:
            fail("'%s' is not in: %s" % (word, err))
    with Daemon("--config", ours) as d:  # serves without them
        d.end()
        if "/plugins' may be written by everyone" not in d.err or "only plugins that were installed" not in d.err:
            fail(d.err)


def a_raw_drive_stands_in_the_place_of_a_directory():
    drives = put("dirs: [nvme:ffff:ff:1f.7, %s]\n" % os.getcwd())
    if "nvme:ffff:ff:1f.7" not in printed("--config", drives):
        fail("the drive is not printed")
    for args in (["--check-config"], ["--listen", "off", "--socket", "off"]):
        err = asked("--config", drives, *args, rc=USAGE).stderr
        if "ffff:ff:1f.7" not in err or "`tenuto doctor` lists" not in err:
            fail(err)
    err = asked("--config", put("dirs: ['nvme:']\n"), "--listen", "off", "--socket", "off", rc=USAGE).stderr
    if "nvme:: no address of a drive" not in err or "nvme:0000:03:00.0" not in err:
        fail(err)


def a_cache_that_could_hold_nothing_is_refused():
    for text in ("", "# nothing\n", "workers: 1\n", "dirs: []\n"):
        err = asked("--config", put(text), "--check-config", rc=USAGE).stderr
        if "neither dirs nor host_bytes" not in err or "host_bytes: 64GiB" not in err:
            fail(err)
    asked("--config", put("host_bytes: 1GiB\n"), "--check-config")


def a_file_that_was_cut_off_anywhere_never_crashes_it():
    whole = printed().encode()
    for n in range(0, len(whole), 97):
        with open("cut.yaml", "wb") as f:
            f.write(whole[:n])
        err = asked("--config", "cut.yaml", "--check-config", rc=USAGE).stderr
        if "cut.yaml:" not in err and "neither dirs" not in err:
            fail(err)


def an_alias_is_what_it_names():
    if settings(printed("--config", put("host_bytes: &x 1GiB\ndisk_bytes: *x\n")))["disk_bytes"] != "1GiB":
        fail("no alias")


def the_documents_name_every_setting():
    with open(os.path.join(ROOT, "docs", "deploy.md")) as f:
        text = f.read()
    for name in settings(printed()):
        if "`%s`" % name not in text:
            fail("docs/deploy.md does not name %s" % name)


main(globals())
