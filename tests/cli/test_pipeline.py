# SPDX-License-Identifier: Apache-2.0
"""`tenuto bench pipeline` in small: what it prints, and that the figures make sense together."""
import json
import os
import pty
import re
import signal
import subprocess
import time

from cli import ENVIRONMENT, ROOT, TENUTO, USAGE, fail, main, rest_of_terminal, says, tenuto, until

SIZE = ("--layers", "4", "--prompt-tokens", "1024")
SMALL = (*SIZE, "--repeat", "2")
ONCE = (*SIZE, "--repeat", "1")  # where no figure is compared with another run's
STRATEGIES = ["recompute", "load_then_compute", "unscheduled", "tenuto", "ideal"]
KEYS = ["strategy", "hit_rate", "writes", "ttft_ms", "ttft_p99_ms", "compute_ms", "bubble_ms", "read_gbps", "write_gbps",
        "cpu_seconds"]


def rows_of(result):
    return {(r["strategy"], r["hit_rate"], r["writes"]): r for r in result["rows"]}


def every_strategy_has_a_row_for_each_hit_rate_with_and_without_writes():
    r = tenuto("bench", "pipeline", *ONCE, "--hit-rates", "0,50,100", "--json", timeout=400).json()
    rows = rows_of(r)
    if len(rows) != len(r["rows"]) or set(rows) != {(s, h, w) for s in STRATEGIES for h in (0, .5, 1) for w in (False, True)}:
        fail("rows: %s" % sorted(rows))
    for row in r["rows"]:
        if [k for k in KEYS if k not in row]:
            fail("keys missing: %s" % row)
    if r["service"] != "order" or r["share"]["service"] != "share" or set(rows_of(r["share"])) != set(rows):
        fail("the drive that serves side by side: %s" % r.get("share"))
    for key in ("crossover", "crossover_with_writes"):
        if sorted(r[key]) != sorted(STRATEGIES[1:]) or not all(0 <= v <= 1 for v in r[key].values()):
            fail("%s: %s" % (key, r[key]))


def times_and_bytes_of_a_row_fit_together():
    r = tenuto("bench", "pipeline", *SMALL, "--hit-rates", "0,75", "--service", "order", "--json", timeout=400).json()
    s = r["settings"]
    for row in r["rows"]:
        if abs(row["ttft_ms"] - row["compute_ms"] - row["bubble_ms"]) > 1e-6 * row["ttft_ms"]:  # every run computes as long
            fail("TTFT is not compute and bubble: %s" % row)
        if row["ttft_p99_ms"] < row["ttft_ms"] or row["bubble_ms"] < 0:
            fail(str(row))
        reads = row["strategy"] != "recompute" and row["hit_rate"] > 0
        if reads != (row["read_gbps"] > 0):
            fail("read: %s" % row)
        if row["write_gbps"] > 0 and not row["writes"]:
            fail("written: %s" % row)
    rows = rows_of(r)
    if rows["recompute", 0, False]["compute_ms"] <= rows["load_then_compute", .75, False]["compute_ms"]:
        fail("restoring saves no compute")
    if not sum(row["write_gbps"] for row in r["rows"]) > 0:
        fail("the write load wrote nothing")
    # Of one run: a median of speeds and one of times belong to different runs.
    r = tenuto("bench", "pipeline", *ONCE, "--hit-rates", "75", "--writes", "off", "--service", "order", "--json").json()
    expected = .75 * s["blocks"] * s["block_bytes"]
    for strategy in STRATEGIES[1:]:
        row = rows_of(r)[strategy, .75, False]
        moved = row["read_gbps"] * row["ttft_ms"] * 1e6
        if not 0.999999 * expected <= moved <= 1.01 * expected:  # the ideal reads headers, too
            fail("%s: %.0f bytes were read, expected %.0f" % (strategy, moved, expected))


def a_crossover_below_the_lowest_hit_rate_lies_between_none_and_it():
    r = tenuto("bench", "pipeline", *ONCE, "--hit-rates", "50", "--writes", "off", "--service", "order", "--json").json()
    share = rows_of(r)["load_then_compute", .5, False]["bubble_share"]
    if share < 0.05 or abs(r["crossover"]["load_then_compute"] - .5 * .05 / share) > 1e-6:
        fail("%s at %s" % (r["crossover"], share))


def compute_that_spins_takes_the_time_it_should():
    def spins():
        r = tenuto("bench", "pipeline", *SMALL, "--hit-rates", "0", "--writes", "off", "--compute", "spin", "--service", "order",
                   "--json").json()
        for row in r["rows"]:
            if row["ttft_ms"] < row["compute_ms"] * 0.999:
                fail(str(row))
        row = rows_of(r)["recompute", 0, False]
        return row["cpu_seconds"] > 0.00002 * row["compute_ms"]  # ten times what one that sleeps uses
    until(spins, "run that spins")  # on a busy machine others may have the CPU for most of a run


def small_restores_have_quantiles_and_with_writes_a_backlog_that_ends():
    r = tenuto("bench", "pipeline", *SMALL, "--mode", "restores", "--restores", "20", "--json").json()
    if [(row["strategy"], row["writes"]) for row in r["rows"]] != [(s, w) for s in ("tenuto", "unscheduled") for w in (False, True)]:
        fail(str(r["rows"]))
    for row in r["rows"]:
        if row["restores"] != 20 or not 0 < row["p50_ms"] <= row["p99_ms"] <= row["max_ms"]:
            fail(str(row))
        if row["writes"] != ("drain_ms" in row and row["write_gbps"] > 0 and row["drain_ms"] > 0):
            fail(str(row))
    if not all(r[key][s] > 0 for key in ("ratio_p50", "ratio_p99") for s in ("tenuto", "unscheduled")):
        fail(str(r))


def learning_gives_each_table_a_time_for_each_request():
    r = tenuto("bench", "pipeline", *SMALL, "--mode", "learn", "--requests", "12", "--json").json()
    if [row["table"] for row in r["rows"]] != ["right", "times_3", "a_third", "none"]:
        fail(str(r["rows"]))
    for row in r["rows"]:
        if len(row["ttft_ms"]) != 12 or len(row["restored_blocks"]) != 12 or not min(row["ttft_ms"]) > 0:
            fail(str(row))
        if not 0 <= row["near_after"] <= 12 or not all(0 <= n <= hit for n, hit in zip(row["restored_blocks"], r["hit_blocks"])):
            fail(str(row))


def a_split_restores_no_more_than_hits():
    r = tenuto("bench", "pipeline", *SMALL, "--mode", "split", "--hit-rates", "25,100", "--json").json()
    for row in r["rows"]:
        if not 0 <= row["restored_rate"] <= row["hit_rate"]:
            fail(str(row))
        # The later a token, the longer it computes. To compute everything is a plan, too.
        least = (1 - row["restored_rate"]) * row["recompute_ttft_ms"]
        if not least <= row["estimated_ttft_ms"] <= 1.000001 * row["recompute_ttft_ms"]:
            fail("no plan would take so long: %s" % row)
        if row["split_ttft_ms"] < least:
            fail("not as planned: %s" % row)


def the_report_is_one_page_with_charts_and_nothing_is_left_behind():
    os.mkdir("d")
    out = tenuto("bench", "pipeline", *ONCE, "--hit-rates", "0,100", "--dir", "d", "--report", "r.html", timeout=400).out
    if "crossover" not in out or "ideal" not in out:
        fail(out)
    with open("r.html") as f:
        page = f.read()
    if page.count("<figure>") != 4 or "Bubble against hit rate" not in page or "src=" in page:
        fail("charts: %d" % page.count("<figure>"))
    if os.listdir("d"):
        fail("left: %s" % os.listdir("d"))


def a_real_directory_is_measured_beside_compute_of_real_length():
    os.mkdir("d")
    full = {}
    for more, stretch in ((["--dir", "d"], 1), (["--dir", "d", "--stretch", "3"], 3),
                          (["--dir", "d", "--device-model", "solidigm-d7-ps1010-pair", "--service", "order"], 16)):
        r = tenuto("bench", "pipeline", *SMALL, "--hit-rates", "0", "--writes", "off", *more, "--json").json()
        if r["settings"]["stretch"] != stretch:
            fail("%s: %s" % (more, r["settings"]))
        full[stretch] = rows_of(r)["ideal", 0, False]["ttft_ms"]
    if any(abs(full[n] - n * full[1]) > 0.01 * full[n] for n in full):
        fail(str(full))


def decisions_of_the_scheduler_are_written_as_json_lines():
    tenuto("bench", "pipeline", *SMALL, "--hit-rates", "100", "--writes", "on", "--service", "order", "--explain", "x.jsonl")
    with open("x.jsonl") as f:
        lines = [json.loads(line) for line in f]
    if {"read", "write"} - {line["chosen"] for line in lines}:
        fail("%d lines" % len(lines))
    runs = {(line["run"], line["arm"]) for line in lines}
    if len(runs) != 2 or {arm for _, arm in runs} != {"tenuto, 16 of 16 blocks, with writes"}:
        fail(runs)


def every_field_and_reason_of_a_decision_is_explained():
    tenuto("bench", "pipeline", *SMALL, "--hit-rates", "100", "--writes", "on", "--repeat", "1", "--service", "order", "--explain",
           "x.jsonl")
    with open("x.jsonl") as f:
        words = set(json.loads(f.readline()))
    with open(os.path.join(ROOT, "src", "sched", "sched.c")) as f:
        words |= set(re.findall(r'\[TN_REASON_\w+\] = "([^"]+)"', f.read()))
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
    long = (*SMALL, "--mode", "restores", "--restores", "20000", "--device-model", "solidigm-d7-ps1010-pair")
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
                       (("--service", "fast"), "fast"), (("--service", "share", "--dir", "."), "--device-model"),
                       (("--service", "both", "--mode", "split"), "mode table"),
                       (("--mode", "split", "--writes", "on"), "--writes and --mode split")):
        says(tenuto("bench", "pipeline", *args, rc=USAGE), text)


main(globals())
