# SPDX-License-Identifier: Apache-2.0
"""The model of `tenuto replay` against `tenuto bench pipeline`: the same drive, the same compute, within 10 %.

The bench moves real bytes through the whole store, on a drive that is paced and stretched; the model does arithmetic at
the drive's own speed. Others on the machine make the bench late: it may try twice, and a machine that is overloaded
throughout is a skip that says so.
"""
import json
import os

from cli import Skip, fail, main, need, slack_table, tenuto, write


def drive(read, write, mixed):
    return "\n".join(["tenuto-mix 1", "source a drive", "measured_s 0", "read_bps %d000000000" % read, "write_bps %d000000000" % write,
                      "mixed_bps %d000000000" % mixed, "read_latency_ns 60000", "write_latency_ns 10000", ""])


# Reads and writes do not disturb each other on it: the store prepares empty segments in the background, which is no part
# of the model.
APART = drive(29, 12, 41)
# Reads and writes slow each other down: a strategy that does one after the other gains.
SHARED = drive(29, 12, 12)
# Writes slow reads down to 18, whatever the numbers in flight, because the model does not know these numbers.
SLOWED = drive(29, 8, 26)
STRETCH = 64
TOKENS, BLOCK = 2048, 512
HITS = (50, 75)  # reading hides behind compute at the first rate, and does not at the second
TOKEN_NS = 250
LAYERS = 32
WITHIN = 0.10


def request(at, blocks, first=0):
    return json.dumps({"timestamp": at, "input_length": blocks * BLOCK, "output_length": 1,
                       "hash_ids": list(range(first, first + blocks))}) + "\n"


def model(requests):
    trace = write("t.jsonl", "".join(requests))
    rows = tenuto("replay", trace, "--no-io", "--model", "llama3-8b", "--slack", "table.slack", "--device-model", "drive.model",
                  "--json").json()["ttft"]["rows"]
    return {r["strategy"]: r for r in rows}


def predicted(hits, writes):
    """ms by (strategy, hit rate) of a request that finds the first one's blocks; with writes, after a long prompt whose saves are still being written.

    Before it comes a small restore, as in the bench: it tells the scheduler how long restores take.
    """
    out = {}
    for hit in hits:
        first = TOKENS // BLOCK * hit // 100
        before = [request(0, first), request(1000, 1, 5000), request(2000, 1, 5000)]
        if writes:
            before.append(request(10 ** 6, 128, 1000))
        without, rows = model(before), model(before + [request(10 ** 6 + 1, TOKENS // BLOCK)])
        for s, r in rows.items():
            if writes and r["backlog_end_bytes"] < 1 << 30 and s not in ("recompute", "ideal"):
                fail("%s wrote all there was to write: %s" % (s, r))
            bubble = r["bubble_mean_ms"] * (len(before) + 1) - without[s]["bubble_mean_ms"] * len(before)
            compute = (r["compute_seconds"] - without[s]["compute_seconds"]) * 1e3
            out[s, hit] = bubble + compute
    return out


def measured(hits, writes, stretch, repeat):
    r = tenuto("bench", "pipeline", "--prompt-tokens", TOKENS, "--hit-rates", ",".join(map(str, hits)), "--writes", writes,
               "--repeat", repeat, "--stretch", stretch, "--slack", "table.slack", "--device-model", "drive.model", "--service", "order",
               "--json", timeout=400).json()
    return {(row["strategy"], round(100 * row["hit_rate"])): row["ttft_ms"] / stretch for row in r["rows"]}


def differences(model, bench, pairs):
    said = {b: "%s at %s %%: the bench %.2f ms, the model %.2f ms" % (b + (bench[b], model[m])) for b, m in pairs}
    print("# " + "\n# ".join(said.values()))
    return [said[b] for b, m in pairs if abs(bench[b] - model[m]) > WITHIN * model[m]]


def hold(model, pairs, measure):
    """pairs: (figure of the bench, figure of the model)."""
    bench = measure()
    wrong = differences(model, bench, pairs)
    if wrong:  # other processes only make a time longer: of two medians the shorter one counts
        bench = {k: min(v, bench[k]) for k, v in measure().items()}
        wrong = differences(model, bench, pairs)
    load = os.getloadavg()[0]
    if wrong and load > 2 * os.cpu_count():
        raise Skip("%s CPUs with a load of %.1f cannot pace a drive: %s" % (os.cpu_count(), load, "; ".join(wrong)))
    if wrong:
        fail("; ".join(wrong))


def tables(text):
    need("replay")
    need("bench")
    write("table.slack", slack_table(TOKEN_NS))
    write("drive.model", text)


def same(*rows):
    return [(r, r) for r in rows]


def the_model_says_what_the_pipeline_measures():
    tables(APART)
    said = predicted(HITS, False)
    if abs(said["ideal", 50] - said["unscheduled", 50]) > 0.01 * said["ideal", 50]:
        fail("reading must hide at 50 %% of hits: %s" % said)
    # Blocks whose reading does not hide behind compute Tenuto would compute again. The bench restores all of them, which
    # is the recurrence without writes.
    hold(said, same(*[("load_then_compute", h) for h in HITS]) + [(("tenuto", h), ("unscheduled", h)) for h in HITS],
         lambda: measured(HITS, "off", STRETCH, 3))


def with_writes_reads_come_first():
    tables(SHARED)
    said = predicted(HITS[:1], True)
    if not said["unscheduled", 50] > 1.3 * said["tenuto", 50]:
        fail("the writes must be in the way: %s" % said)
    hold(said, same(("tenuto", 50)), lambda: measured(HITS[:1], "on", STRETCH, 2))


def with_writes_reads_are_as_slow_as_the_drive_says():
    tables(SLOWED)
    said = predicted(HITS[1:], True)
    if not said["unscheduled", 75] > 1.3 * said["ideal", 75]:
        fail("the writes must be in the way: %s" % said)
    hold(said, same(("unscheduled", 75), ("load_then_compute", 75)), lambda: measured(HITS[1:], "on", STRETCH, 2))


main(globals())
