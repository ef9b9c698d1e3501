# SPDX-License-Identifier: Apache-2.0
"""Slack tables that tenutod keeps for the spaces of its clients. The clients are the Python package of the build directory."""
import contextlib
import os
import signal
import time

import tenuto
from daemon import Daemon, asked  # adds the directory of cli
from cli import USAGE, fail, main, until, write
from cli import tenuto as program

LAYERS = 4
TABLE = "tenuto-slack 3\nmodel -\ngpu -\nengine -\nwhen -\nhow profiled\nlayers %d\ncells shared\ninputs 64\nprefixes 0\ncell 64 0 * 5000 0 0\n" % LAYERS


def config(slack):
    os.makedirs("kv", exist_ok=True)
    write("c.yaml", "dirs: [%s/kv]\ndisk_bytes: 64MiB\nslack: %s\n" % (os.getcwd(), slack))
    return "c.yaml"


@contextlib.contextmanager
def engine(daemon, model="toy", **identity):
    """The space of an engine's session, which opens it without any table."""
    with tenuto.attach(os.path.join(daemon.run_dir, "tenuto.sock")) as cache:
        yield cache.space(model, tenuto.Geometry.raw(LAYERS, 8192), **identity)


def learn(space):
    """From compute of 2 ms per layer."""
    kv = bytearray(4 * space.geometry.block_bytes)
    pool = space.cache.memory(kv).pool(space.geometry, npages=4)
    keys = space.keys(range(4))
    space.save(keys, pool, range(4)).finish()
    for _ in range(20):
        with space.load(keys, pool, range(4), input_tokens=4096) as load:
            for layer in range(LAYERS):
                load.wait(layer)
                time.sleep(0.002)


def files():
    """Without one that is being written."""
    return sorted(n for n in os.listdir("slack") if n != ".new") if os.path.exists("slack") else []


def until_kept(text):
    """The name of the only file, which has the text."""
    until(lambda: len(files()) == 1 and open("slack/" + files()[0]).read() == text, "file with the table")
    return files()[0]


def what_engines_have_taught_is_there_at_the_next_start():
    ours = config(os.getcwd() + "/slack")
    with Daemon("--config", ours) as d:
        with engine(d, hash_seed=1) as e:
            d.wait_for_line("(new)")
            learn(e)
            time.sleep(2)  # until the last waits are taken in, and a second more
            text = e.slack()
            if "how learned" not in text:
                fail(text)
        err = d.end()
    if len(files()) != 1 or open("slack/" + files()[0]).read() != text:
        fail("%s: %s" % (files(), err))
    if os.stat("slack").st_mode & 0o777 != 0o700 or os.stat("slack/" + files()[0]).st_mode & 0o777 != 0o600:
        fail("others may read them")
    with Daemon("--config", ours) as d:
        with engine(d, hash_seed=2) as e, engine(d, model="other") as other:
            d.wait_for_line("%s/slack/%s (restored)" % (os.getcwd(), files()[0]))
            d.wait_for_line("(new)")
            until(lambda: e.slack() == text, "table of the file")
            if other.slack():
                fail("given to another model: %s" % other.slack())


def the_table_of_a_space_is_written_soon_and_what_a_client_sets_is_its_own():
    with Daemon("--config", config(os.getcwd() + "/slack")) as d:
        with engine(d) as e, engine(d, tenant="somebody") as other:
            e.slack(TABLE)
            d.wait_for_line("(new)", 2)
            until_kept(TABLE)
            if other.slack():
                fail(other.slack())
            d.send(signal.SIGKILL)
            d.process.wait()


def layered(layers, n):
    """A table of n inputs and n prefixes per layer."""
    lengths = range(1, n + 1)
    text = "tenuto-slack 2\nmodel -\ngpu -\nengine -\nwhen -\nhow profiled\nlayers %d\ncells layered\n" % layers
    text += "inputs %s\nprefixes %s\n" % ((" ".join(map(str, lengths)),) * 2)
    return text + "".join("cell %d %d %d 5\n" % (i, p, layer) for layer in range(layers) for p in lengths for i in lengths)


def tables_that_are_too_large_are_not_kept():
    big = layered(512, 7)
    with Daemon("--config", config(os.getcwd() + "/slack")) as d:
        cache = tenuto.attach(os.path.join(d.run_dir, "tenuto.sock"))
        space = cache.space("big", tenuto.Geometry.raw(512, 4096))
        d.wait_for_line("(new)")
        space.slack(big)
        time.sleep(2)
        cache.close()
        d.end()
    if files():
        fail(files())


def a_file_that_is_broken_is_one_warning():
    ours = config(os.getcwd() + "/slack")
    with Daemon("--config", ours) as d:
        with engine(d) as e:
            e.slack(TABLE)
            name = "slack/" + until_kept(TABLE)
        d.end()
    for broken in (TABLE[:-20], "", "x" * (2 << 20)):
        with open(name, "w") as f:
            f.write(broken)
        with Daemon("--config", ours) as d:
            with engine(d) as e:
                d.wait_for_line(name)
                time.sleep(1.2)
                if e.slack():
                    fail("from a broken file: %s" % e.slack())
            err = d.end()
        if err.count(name) != 1 or "(restored)" in err:
            fail(err)
    os.remove(name)
    os.mkfifo(name)
    with Daemon("--config", ours) as d:
        with engine(d) as e:
            d.wait_for_line(name)
            if e.slack():
                fail("from a FIFO")
        d.end()


def a_directory_that_cannot_be_written_is_one_warning():
    write("file", "")
    with Daemon("--config", config(os.getcwd() + "/file")) as d:
        d.wait_for_line("slack: '%s/file': Not a directory; it must be a directory" % os.getcwd())  # before any space is opened
        with engine(d) as e, engine(d, model="other") as other:
            time.sleep(1.5)
            e.slack(TABLE)
            other.slack(TABLE)
            time.sleep(1.5)
        os.unlink("file")
        with engine(d, model="third") as e:
            e.slack(TABLE)
            d.wait_for_line("slack tables are kept in '%s/file'" % os.getcwd())
        err = d.end()
    if err.count("warning: ") != 1 or "parent" in err:
        fail(err)


def where_tables_are_kept_is_told_at_the_start():
    with Daemon("--config", config(os.getcwd() + "/slack")) as d:
        d.wait_for_line("slack tables are kept in '%s/slack'" % os.getcwd())
        err = d.end()
    if err.count("slack tables are kept") != 1 or files():
        fail(err)


def the_status_says_what_a_dash_in_its_table_means():
    with Daemon("--config", config("off")) as d:
        with engine(d, model="untold"):
            screen = program("status", os.path.join(d.run_dir, "tenuto.sock"), "--once").out
        without = program("status", os.path.join(d.run_dir, "tenuto.sock"), "--once").out
        d.end()
    table = screen.partition("\nRestoring pays from so many prefix tokens on, if N tokens follow:\n")[2]
    if "untold" not in table or "unknown" not in table or "N = 512" not in table or "\n-: not known yet" not in table or "never: " in table:
        fail(screen)
    if "not known yet" in without and "untold" not in without:
        fail(without)


def a_table_that_could_not_be_written_is_written_later():
    write("blocked", "")
    with Daemon("--config", config(os.getcwd() + "/blocked")) as d:
        with engine(d) as e:
            d.wait_for_line("Not a directory")
            e.slack(TABLE)
            time.sleep(2.5)  # it was tried
            os.remove("blocked")
            d.end()
    if len(os.listdir("blocked")) != 1:
        fail("nothing was kept")


def clients_do_not_fill_the_directory():
    os.mkdir("slack")
    for i in range(1024):
        write("slack/%032x.slack" % i, "")
        os.utime("slack/%032x.slack" % i, (i + 1, i + 1))
    write("slack/notes", "not ours")
    os.utime("slack/notes", (0, 0))
    with Daemon("--config", config(os.getcwd() + "/slack")) as d:
        with engine(d) as e:
            d.wait_for_line("(new)")
            e.slack(TABLE)
            until(lambda: "%032x.slack" % 0 not in files() and len(files()) == 1025, "place for the table")
        d.end()
    gone = [i for i in range(1024) if "%032x.slack" % i not in files()]
    if len(files()) != 1025 or gone != [0] or "notes" not in files():
        fail("%d files; gone: %s" % (len(files()), gone))


def a_setting_that_cannot_be_meant_is_told_when_the_file_is_checked():
    write("file", "")
    asked("--config", config(os.getcwd() + "/slack"), "--check-config")
    asked("--config", config("off"), "--check-config")
    if files():
        fail("something was made")
    for value, word in (("some/path", "absolute"), (os.getcwd() + "/absent/slack", "parent"), (os.getcwd() + "/file", "directory")):
        err = asked("--config", config(value), "--check-config", rc=USAGE).stderr
        if "slack: " not in err or word not in err or ("parent" in err and word != "parent"):
            fail("%s: %s" % (value, err))


main(globals())
