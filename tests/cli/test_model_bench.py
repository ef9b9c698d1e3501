# SPDX-License-Identifier: Apache-2.0
"""The model of `tenuto replay` against `tenuto bench pipeline`: the same drive, the same compute, within 10 %.

The bench moves real bytes through the whole store, on a drive that is paced and stretched; the model does arithmetic at
the drive's own speed. Others on the machine make the bench late: it may try twice, and a machine that is overloaded
throughout is a skip that says so.
"""
import json
import os

from cli import Skip, fail, main, need, tenuto, write

# Reads and writes do not disturb each other on it: the store prepares empty segments in the background, which is no part
# of the model.
DRIVE = """tenuto-mix 1
source a drive of two halves
measured_s 0
read_bps 29000000000
write_bps 12000000000
mixed_bps 41000000000
read_latency_ns 60000
write_latency_ns 10000
"""
STRETCH = 128
TOKENS, BLOCK = 2048, 512
HITS = (50, 75)  # reading hides behind compute; and does not
TOKEN_NS = 250
LAYERS = 32
WITHIN = 0.10
TABLE = """tenuto-slack 1
model llama3-8b
gpu here
engine -
when now
how synthetic
layers 32
cells shared
inputs 1 1000000
prefixes 0
cell 1 0 * 250 0 0
cell 1000000 0 * 250000000 0 0
"""


def request(at, blocks):
    return json.dumps({"timestamp": at, "input_length": blocks * BLOCK, "output_length": 1,
                       "hash_ids": list(range(blocks))}) + "\n"


def predicted():
    """ms by (strategy, hit rate): of two requests the second finds the first one's blocks."""
    out = {}
    for hit in HITS:
        first = TOKENS // BLOCK * hit // 100
        trace = write("t.jsonl", request(0, first) + request(10 ** 6, TOKENS // BLOCK))
        t = tenuto("replay", trace, "--no-io", "--model", "llama3-8b", "--slack", "table.slack", "--device-model", "drive.model",
                   "--json").json()["ttft"]
        for row in t["rows"]:
            out[row["strategy"], hit] = 2 * row["alone_mean_ms"] - LAYERS * first * BLOCK * TOKEN_NS * 1e-6
    return out


def measured():
    r = tenuto("bench", "pipeline", "--prompt-tokens", TOKENS, "--hit-rates", ",".join(map(str, HITS)), "--writes", "off",
               "--repeat", 3, "--stretch", STRETCH, "--slack", "table.slack", "--device-model", "drive.model", "--json",
               timeout=200).json()
    return {(row["strategy"], round(100 * row["hit_rate"])): row["ttft_ms"] / STRETCH for row in r["rows"]}


def differences(model, bench):
    # What does not fit behind compute Tenuto would rather compute again; the bench restores it all, which is the
    # recurrence without writes.
    pairs = [(("load_then_compute", h), ("load_then_compute", h)) for h in HITS]
    pairs += [(("tenuto", h), ("unscheduled", h)) for h in HITS]
    said = {b: "%s at %s %%: the bench %.2f ms, the model %.2f ms" % (b + (bench[b], model[m])) for b, m in pairs}
    print("# " + "\n# ".join(said.values()))
    return [said[b] for b, m in pairs if abs(bench[b] - model[m]) > WITHIN * model[m]]


def the_model_says_what_the_pipeline_measures():
    need("replay")
    need("bench")
    write("table.slack", TABLE)
    write("drive.model", DRIVE)
    model = predicted()
    if abs(model["ideal", 50] - model["unscheduled", 50]) > 0.01 * model["ideal", 50]:
        fail("reading must hide at 50 %% of hits: %s" % model)
    bench = measured()
    wrong = differences(model, bench)
    if wrong:  # others only ever make it later: of two medians the earlier one counts
        bench = {k: min(v, bench[k]) for k, v in measured().items()}
        wrong = differences(model, bench)
    load = os.getloadavg()[0]
    if wrong and load > 2 * os.cpu_count():
        raise Skip("%s CPUs with a load of %.1f cannot pace a drive: %s" % (os.cpu_count(), load, "; ".join(wrong)))
    if wrong:
        fail("; ".join(wrong))


main(globals())
