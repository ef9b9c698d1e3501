# SPDX-License-Identifier: Apache-2.0
"""The figures of `tenuto bench pipeline` in small: that those of a row, and of rows beside each other, make sense together.

A benchmark, not a test: a paced drive and compute of real length take their time (two minutes). test_pipeline.py has what
needs one run or none.
"""
import os

from cli import fail, main, tenuto, until

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


main(globals())
