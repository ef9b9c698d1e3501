# SPDX-License-Identifier: Apache-2.0
"""`tenuto bench pipeline`: one run, what it writes, and how it is told to stop. pipeline_bench.py has its figures."""
import json
import os
import pty
import re
import signal
import subprocess
import time

from cli import ENVIRONMENT, ROOT, TENUTO, USAGE, fail, main, rest_of_terminal, says, tenuto

ONCE = ("--layers", "4", "--prompt-tokens", "1024", "--repeat", "1")


def a_run_gives_its_rows_and_every_decision_of_the_scheduler_with_words_that_are_explained():
    r = tenuto("bench", "pipeline", *ONCE, "--hit-rates", "100", "--writes", "on", "--service", "order", "--json", "--explain", "x.jsonl").json()
    rows = {row["strategy"]: row for row in r["rows"]}
    if len(rows) != 5 or not all(row["ttft_ms"] >= row["compute_ms"] > 0 for row in rows.values()):
        fail(r["rows"])
    with open("x.jsonl") as f:
        lines = [json.loads(line) for line in f]
    if {"read", "write"} - {line["chosen"] for line in lines}:
        fail("%d lines" % len(lines))
    arms = {(line["run"], line["arm"]) for line in lines}
    if len(arms) != 1 or {arm for _, arm in arms} != {"tenuto, 16 of 16 blocks, with writes"}:
        fail(arms)
    with open(os.path.join(ROOT, "src", "sched", "sched.c")) as f:
        words = set(lines[0]) | set(re.findall(r'\[TN_REASON_\w+\] = "([^"]+)"', f.read()))
    with open(os.path.join(ROOT, "docs", "explain.md")) as f:
        page = f.read()
    missing = [w for w in words if "`%s`" % w not in page]
    if len(words) < 20 or missing:
        fail("%d words, not explained: %s" % (len(words), missing))


def a_slack_table_names_its_model_and_gpu():
    tenuto("profile", "--model", "llama3-8b", "--gpu", "a100", "--out", "a.slack")
    says(tenuto("bench", "pipeline", "--model", "glm4-9b", "--slack", "a.slack", rc=USAGE), "is of llama3-8b", "glm4-9b")
    r = tenuto("bench", "pipeline", *ONCE, "--hit-rates", "0", "--writes", "off", "--slack", "a.slack", "--json").json()
    if r["settings"]["gpu"] != "a100":
        fail(r["settings"])


def a_prompt_is_made_of_whole_blocks_and_a_longer_one_is_told():
    args = ("bench", "pipeline", "--layers", "4", "--repeat", "1", "--hit-rates", "0", "--writes", "off", "--service", "order", "--json")
    says(tenuto(*args, "--prompt-tokens", "200"), "--prompt-tokens 200: runs 256 tokens, as a block has 64")
    if "--prompt-tokens" in tenuto(*args, "--prompt-tokens", "256").err:
        fail("nothing to tell")


def dollars_are_those_of_the_gpus_time_and_of_the_restored_blocks():
    args = ("bench", "pipeline", *ONCE, "--hit-rates", "50", "--writes", "off", "--service", "order", "--price", "gpu=7,ssd=3600")
    r = tenuto(*args, "--json").json()
    gb = {"recompute": 0}
    for row in r["rows"]:
        held = gb.get(row["strategy"], 8 * r["settings"]["block_bytes"] * 1e-9)
        want = (7 + 3600 * held) * row["ttft_ms"] / r["settings"]["stretch"] / 3.6e6 / 1024 * 1e6
        if abs(row["dollars_per_mtoken"] - want) > 1e-6 * want:
            fail("%s instead of %s: %s" % (row["dollars_per_mtoken"], want, row))
    out = tenuto(*args).out
    if "$/Mtok" not in out or "for 4 of 32 layers, not stretched, at $7 an hour for the GPU, always busy, and $3600 per GB of SSD" not in out:
        fail(out)


def interrupted(sig, group, *args):
    """Runs it on a terminal, in a directory d. Sends the signal when the progress says that a run is under way."""
    os.mkdir("d")
    ours, its = pty.openpty()
    p = subprocess.Popen([TENUTO, "bench", "pipeline", *args, "--dir", "d"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=its, start_new_session=True)
    os.close(its)
    shown = b""
    while b"run 1 of " not in shown:
        shown += os.read(ours, 65536)
    if not os.listdir("d"):
        fail("nothing was there to be removed: %s" % shown)
    began = time.monotonic()
    os.killpg(p.pid, sig) if group else p.send_signal(sig)
    shown += rest_of_terminal(ours)
    rc, took = p.wait(), time.monotonic() - began
    if rc != ENVIRONMENT or took > 60 or b"interrupted" not in shown or b"%" not in shown:
        fail("exit code %s after %.1f s: %s" % (rc, took, shown))
    if os.listdir("d"):
        fail("left: %s" % os.listdir("d"))
    os.rmdir("d")


def an_interrupt_ends_a_run_under_way_and_removes_its_directory():
    long = (*ONCE, "--mode", "restores", "--restores", "20000", "--device-model", "solidigm-d7-ps1010-pair")
    interrupted(signal.SIGINT, True, *long)  # as a terminal's ^C
    interrupted(signal.SIGTERM, False, *long)


def what_makes_no_sense_is_refused_with_the_value():
    for args, text in ((("--hit-rates", "0,101"), "0,101"), (("--hit-rates", "50,40"), "must rise"),
                       (("--hit-rates", "x"), "x"), (("--compute", "think"), "think"), (("--mode", "x"), "x"), (("--writes", "some"), "some"),
                       (("--layers", "33"), "33"), (("--model", "nobody"), "nobody"), (("--prompt-tokens", "1M"), "1 GiB"),
                       (("--mode", "split", "--report", "r.html"), "--report and --mode split"),
                       (("--mode", "restores", "--hit-rates", "50"), "--hit-rates and --mode restores"),
                       (("--mode", "restores", "--requests", "3"), "--requests and --mode restores"),
                       (("--mode", "restores", "--compute", "spin"), "--compute and --mode restores"),
                       (("--restores", "2"), "--restores and --mode table"),
                       (("--price", "gpu=free"), "gpu: 'free'"), (("--mode", "learn", "--price", "gpu=1"), "--price and --mode learn"),
                       (("--service", "fast"), "fast"), (("--service", "share", "--dir", "."), "--device-model"),
                       (("--service", "both", "--mode", "split"), "mode table"),
                       (("--mode", "split", "--writes", "on"), "--writes and --mode split")):
        says(tenuto("bench", "pipeline", *args, rc=USAGE), text)


main(globals())
