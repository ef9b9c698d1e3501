# SPDX-License-Identifier: Apache-2.0
"""`tenuto replay --no-io --gpu/--slack`: time to first token by arithmetic, against values worked out here."""
import json
import math
import re

from cli import PROBLEM, USAGE, fail, main, need, says, shared_trace, slack_table, tenuto, write

STRATEGIES = ["recompute", "load_then_compute", "unscheduled", "tenuto", "ideal"]
LAYERS = 32
TOKEN_NS = 1000  # of one layer, with the table below
OBJECT = 2 << 20  # 512 tokens of a layer of llama3-8b
HEADER = 4096
READ, LATENCY = 29.0, 60000  # bytes per ns, ns: the default device
TABLE = slack_table(TOKEN_NS)
USUAL = ["--no-io", "--model", "llama3-8b"]


def request(at, tokens, ids):
    return json.dumps({"timestamp": at, "input_length": tokens, "output_length": 1, "hash_ids": ids}) + "\n"


def model(trace, *more, table=True):
    if table:
        more += ("--slack", write("table.slack", TABLE))
    return tenuto("replay", trace, *USUAL, "--json", *more).json()["ttft"]


def rows(result):
    if [r["strategy"] for r in result["rows"]] != STRATEGIES:
        fail("strategies: %s" % result["rows"])
    return {r["strategy"]: r for r in result["rows"]}


def near(what, got, want, within=1e-6):
    if abs(got - want) > within * abs(want) + 1e-5:
        fail("%s is %s, must be %s" % (what, got, want))


def compute_ms(tokens):
    return LAYERS * tokens * TOKEN_NS * 1e-6


def restore_ms(tokens, blocks, gbps=READ, all_first=False):
    """The recurrence: blocks are read while the rest of the prompt is computed."""
    each = tokens * TOKEN_NS
    loaded = LATENCY + blocks * HEADER / gbps
    end = 0
    if all_first:
        return (loaded + LAYERS * (blocks * OBJECT / gbps + each)) * 1e-6
    for _ in range(LAYERS):
        loaded += blocks * OBJECT / gbps
        end = max(end, loaded) + each
    return end * 1e-6


def two_requests(second_at=1000000):
    """A prompt of 4,096 tokens, and much later the same prompt with 4,096 more."""
    return write("two.jsonl", request(0, 4096, list(range(8))) + request(second_at, 8192, list(range(16))))


def a_request_alone_takes_what_the_recurrence_says():
    need("replay")
    r = rows(model(two_requests()))
    want = {"recompute": compute_ms(8192), "load_then_compute": restore_ms(4096, 8, all_first=True),
            "unscheduled": restore_ms(4096, 8), "tenuto": restore_ms(4096, 8), "ideal": restore_ms(4096, 8)}
    for s in STRATEGIES:
        near(s + " of the first", r[s]["alone_p50_ms"], compute_ms(4096))
        near(s + " of the second", r[s]["alone_p99_ms"], want[s])
        near(s + "'s bubble", r[s]["bubble_p99_ms"], want[s] - compute_ms(8192 if s == "recompute" else 4096))
        near(s + " alone and in the queue", r[s]["ttft_p99_ms"], r[s]["alone_p99_ms"])


def requests_are_served_one_after_the_other():
    need("replay")
    t = write("t.jsonl", "".join(request(i * 100, 4096, list(range(8 * i, 8 * i + 8))) for i in range(3)))
    r = rows(model(t))["recompute"]
    each = compute_ms(4096)  # 131 ms: the later ones wait
    near("median", r["ttft_p50_ms"], 2 * each - 100)
    near("last", r["ttft_p99_ms"], 3 * each - 200)
    near("slower arrivals", rows(model(t, "--rate", "0.5"))["recompute"]["ttft_p99_ms"], each)
    near("busy", r["gpu_busy"], 1)


def writes_that_wait_are_in_the_way_only_without_a_scheduler():
    need("replay")
    bubble = []
    for at in (10 ** 6, 1):  # the first request's blocks are on disk long ago, or wait to be written
        t = write("t.jsonl", request(0, 65536, list(range(128))) + request(at, 8192, list(range(16))))
        r = rows(model(t))
        bubble.append({s: r[s]["bubble_p99_ms"] for s in STRATEGIES})
    calm, busy = bubble
    for s in ("load_then_compute", "unscheduled"):
        if busy[s] < 1.5 * calm[s]:  # while the last layer's writes wait, 6 GB/s instead of 29
            fail("%s: %s" % (s, bubble))
    blocks = r["tenuto"]["restored_blocks"]
    if not 4 < blocks <= 16:
        fail("restored %s of 16 blocks" % blocks)
    near("tenuto's wait for the writes in flight, the first time", busy["tenuto"] - calm["tenuto"], 2, 1e-3)
    near("ideal", busy["ideal"], calm["ideal"])


def waits(latency_ns):
    """ms that two restores wait, together, for the writes of a long prompt before each; and ms that reading the blocks takes."""
    write("drive.model", "tenuto-mix 1\nsource here\nmeasured_s 0\nread_bps 29000000000\nwrite_bps 12000000000\n"
          "mixed_bps 12000000000\nread_latency_ns %d\nwrite_latency_ns %d\n" % (LATENCY, latency_ns))
    total = []
    for step in (10 ** 6, 1):
        t = write("t.jsonl", "".join(request(i * step, n * 512, list(range(first, first + n)))
                                     for i, (first, n) in enumerate([(0, 128), (0, 16), (200, 128), (0, 16)])))
        r = rows(model(t, "--device-model", "drive.model"))["tenuto"]
        total.append(4 * r["bubble_mean_ms"])
    return total[1] - total[0], (LATENCY + r["restored_blocks"] / 2 * (HEADER + LAYERS * OBJECT) / READ) * 1e-6


def a_restore_waits_for_the_schedulers_quantum():
    need("replay")
    wait, reading = waits(10000)
    near("a 24th of the restore before", wait, 2 + (reading + 2) / 24, 1e-3)
    wait, reading = waits(1500000)
    near("at least two latencies of a write", wait, 2 * 3, 1e-3)
    wait, reading = waits(100000000)
    near("at most 8 ms", wait, 2 * 8, 1e-3)


def a_slow_disk_gives_back_only_what_it_can():
    need("replay")
    t = write("t.jsonl", request(0, 65536, list(range(128))) + request(10 ** 9, 65536 + 512, list(range(129))))
    r = rows(model(t, "--read-gbps", "2"))
    if not 0 < r["tenuto"]["restored_blocks"] < 128:
        fail("restored %s of 128 blocks" % r["tenuto"]["restored_blocks"])
    if r["load_then_compute"]["restored_blocks"] != 128 or r["recompute"]["restored_blocks"] != 0:
        fail("restored: %s" % {s: r[s]["restored_blocks"] for s in STRATEGIES})
    best = min(restore_ms(512 * (129 - k), k, 2) for k in range(1, 129))
    near("tenuto", r["tenuto"]["alone_p99_ms"] if r["tenuto"]["alone_p99_ms"] < compute_ms(65536)
         else r["tenuto"]["alone_p50_ms"], best)


def the_largest_rate_keeps_p90_within_the_slo():
    need("replay")
    t = write("t.jsonl", "".join(request(i * 1000, 4096, list(range(8 * i, 8 * i + 8))) for i in range(40)))
    limit = 1.5 * compute_ms(4096)
    r = rows(model(t, "--slo-ms", "%.3f" % limit))["recompute"]
    if not r["max_rate_p90_ms"] <= limit:
        fail("p90 at the largest rate: %s" % r)
    near("requests per second", r["max_requests_per_s"], r["max_rate_factor"])
    if not r["max_rate_factor"] < r["over_rate_factor"] <= 1.002 * r["max_rate_factor"] or not r["over_rate_p90_ms"] > limit:
        fail("the smallest rate that is too much: %s" % r)
    more = rows(model(t, "--rate", "%.6f" % (1.005 * r["max_rate_factor"])))["recompute"]
    if more["ttft_p90_ms"] <= limit:
        fail("a higher rate than %s keeps the SLO, too: %s" % (r["max_rate_factor"], more))


def an_slo_that_cannot_be_kept_or_broken_says_so():
    need("replay")
    r = rows(model(two_requests(), "--slo-ms", "1"))["tenuto"]
    if r["max_rate_factor"] != 0 or r["max_rate_p90_ms"] is not None:
        fail("an SLO of 1 ms: %s" % r)
    r = rows(model(two_requests(), "--slo-ms", "1000000"))["tenuto"]
    if r["max_rate_factor"] is not None or r["max_requests_per_s"] is not None:
        fail("an SLO of 1000 s: %s" % r)


def one_request_is_within_an_slo_at_any_rate_or_at_none():
    need("replay")
    t = write("t.jsonl", request(0, 4096, list(range(8))))
    for slo, want in ((compute_ms(4096) + 1, None), (compute_ms(4096) - 1, 0), (1e-9, 0), (1e9, None)):
        for r in rows(model(t, "--slo-ms", "%.9f" % slo)).values():
            if r["max_rate_factor"] != want:
                fail("an SLO of %s ms: %s" % (slo, r))
    for slo in ("0.0000000001", "1000000001", "9" * 400):
        says(tenuto("replay", t, *USUAL, "--gpu", "h100", "--slo-ms", slo, rc=USAGE), "--slo-ms", "0.000000001 to 1000000000 in plain decimals")
    says(tenuto("replay", write("empty.jsonl", ""), *USUAL, "--gpu", "h100", "--slo-ms", "1000", rc=USAGE), "no request")


def more_requests_a_second_never_make_the_first_token_sooner():
    need("replay")
    last = None
    for i in range(12):  # a slow disk, so that writes always wait
        r = rows(model(shared_trace(), "--limit", "1500", "--gpu", "h100", "--read-gbps", "1", "--rate", "%.4f" % (0.02 * 1.4 ** i),
                       table=False))
        for s in STRATEGIES if last else ():
            for p in ("ttft_p50_ms", "ttft_p90_ms", "ttft_p99_ms"):
                if r[s][p] < last[s][p]:
                    fail("%s of %s falls from %s to %s" % (p, s, last[s][p], r[s][p]))
        last = r


def the_page_shows_the_strategies():
    need("replay")
    t = write("t.jsonl", "".join(request(i * 400, 4096, list(range(8 * (i % 7), 8 * (i % 7) + 8))) for i in range(60)))
    for more in ([], ["--slo-ms", "500"], ["--slo-ms", "0.001"], ["--slo-ms", "100000000"]):
        tenuto("replay", t, *USUAL, "--gpu", "h100", "--report", "r.html", *more)
        with open("r.html") as f:
            page = f.read()
        for word in STRATEGIES + ["<table", "TTFT p50", "bubble p50", "Time to first token at ", "against the request rate",
                                  "What the GPU does", "requests per second", "D7-PS1010", "</html>"]:
            if word not in page:
                fail("no '%s' in the page with %s" % (word, more))
        if ("largest rate" in page) != bool(more) or ("asked for: " in page) != (more[1:] in (["500"], ["0.001"])):
            fail("with %s" % more)
        if "never read back</h2>" in page:
            fail("with a capacity for all blocks there is nothing to compare")
        if "//" in page.replace("http://www.w3.org", "") or "nan" in page or "inf," in page:
            fail("the page loads something, or a figure is no number")
        if page.count("<tr>") != 6 or page.count("<figure") != page.count("</figure>"):
            fail("the table has %d rows" % page.count("<tr>"))
    tenuto("replay", t, *USUAL, "--gpu", "h100", "--capacity-blocks", "30", "--report", "r.html")
    with open("r.html") as f:
        if "never read back</h2>" not in f.read():
            fail("with a capacity there is something to compare")
    at_once = "".join(request(1000, 4096, list(range(8 * i, 8 * i + 8))) for i in range(40)) + request(0, 512, [999])
    for odd in (request(0, 512, [1]), request(5, 512, [1]) + request(5, 512, [1]), at_once):
        tenuto("replay", write("t.jsonl", odd), *USUAL, "--gpu", "h100", "--report", "r.html")
        with open("r.html") as f:
            if "nan" in f.read():
                fail("a figure is no number")


def requests_of_one_rounded_time_are_spread_over_the_step():
    need("replay")
    t = write("t.jsonl", "".join(request(i // 8 * 3000, 512, [i]) for i in range(80)))
    r = model(t)
    if r["requests_spread"] != 80 or rows(r)["recompute"]["ttft_p90_ms"] > 4 * compute_ms(512):
        fail(str(r))
    if r != model(t) or r == model(t, "--seed", "2"):
        fail("the same seed must give the same, another one something else")


def blocks_in_host_memory_are_not_read():
    need("replay")
    r = rows(model(two_requests(), "--host-blocks", "100"))["load_then_compute"]
    near("read", r["read_bytes"], 0)
    near("bubble", r["bubble_p99_ms"], 0)


def odd_prompts_are_computed():
    need("replay")
    t = write("t.jsonl", request(1000, 1, [1]) + request(2000, 512, [2]) + request(3000, 512, [2])
              + request(4000, 513, [2, 3]) + request(5000, 513, [2, 3]))
    for r in model(t)["rows"]:
        if not all(math.isfinite(v) and v >= 0 for v in r.values() if isinstance(v, (int, float))):
            fail(str(r))
        if not r["ttft_p50_ms"] > 0:
            fail(str(r))


def the_recorded_trace_at_full_model_size():
    need("replay")
    result = tenuto("replay", shared_trace(), *USUAL, "--gpu", "h100", "--slo-ms", 1000, "--json", timeout=60).json()
    if result["hit_blocks"] != 105710:
        fail("hits: %s" % result["hit_blocks"])
    t = result["ttft"]
    r = rows(t)
    for s in STRATEGIES:
        if not r[s]["ttft_p50_ms"] <= r[s]["ttft_p90_ms"] <= r[s]["ttft_p99_ms"]:
            fail(str(r[s]))
        if r[s]["alone_p90_ms"] > r[s]["ttft_p90_ms"] or r[s]["max_requests_per_s"] is None:
            fail(str(r[s]))
    for better, worse in (("ideal", "tenuto"), ("tenuto", "unscheduled"), ("unscheduled", "load_then_compute"),
                          ("load_then_compute", "recompute")):
        if r[better]["ttft_p90_ms"] > r[worse]["ttft_p90_ms"]:
            fail("%s is slower than %s" % (better, worse))
        if r[better]["max_requests_per_s"] < r[worse]["max_requests_per_s"]:
            fail("%s serves less than %s" % (better, worse))
    if r["tenuto"]["bubble_share"] > 0.02 or r["recompute"]["bubble_seconds"]:
        fail("bubbles: %s" % r)


def dollars_are_the_hourly_price_of_gpu_and_cache_for_as_long_as_the_gpu_takes():
    need("replay")
    block, tokens, held = LAYERS * OBJECT, 3 * 4096, 16 * (LAYERS * OBJECT + HEADER) * 1e-9
    prices = ("--price", "gpu=4,ssd=0.5,dram=2")
    alone = {"recompute": compute_ms(4096) + compute_ms(8192), "tenuto": compute_ms(4096) + restore_ms(4096, 8),
             "load_then_compute": compute_ms(4096) + restore_ms(4096, 8, all_first=True)}
    for more, gb, dram in (((), held, 0), (("--capacity-blocks", "100"), held / 16 * 100, 0), (("--drive", "gb=7.5"), 7.5, 0),
                           (("--host-blocks", "50"), held, 50 * block * 1e-9)):
        result = model(two_requests(), *prices, *more)
        cost = result["cost"]
        near("GB of SSD with %s" % (more,), cost["ssd_gb"], gb)
        near("GB of DRAM", cost["dram_gb"], dram)
        near("without a cache", cost["hourly_without_cache"], 4)
        near("with it", cost["hourly_with_cache"], 4 + 0.5 * gb + 2 * dram)
        for s, ms in alone.items():
            hourly = 4 if s == "recompute" else 4 + 0.5 * gb + 2 * dram
            if not dram:
                near("$ of %s with %s" % (s, more), rows(result)[s]["dollars_per_mtoken"], hourly * ms / 3.6e6 / tokens * 1e6)
    cost = model(two_requests(), "--price", "ssd=0")["cost"]
    if (cost["gpu_per_hour"], cost["dram_per_gb_hour"], cost["ssd_per_gb_hour"]) != (5, 0.0088, 0):
        fail("the other prices are the published ones: %s" % cost)


def at_the_largest_rate_an_hour_is_divided_by_the_tokens_of_an_hour():
    need("replay")
    t = write("t.jsonl", "".join(request(i * 1000, 4096, list(range(8 * i, 8 * i + 8))) for i in range(40)))
    r = rows(model(t, "--slo-ms", "200"))["recompute"]
    near("$", r["max_rate_dollars_per_mtoken"], 5 / (r["max_requests_per_s"] * 3600 * 4096) * 1e6)
    r = rows(model(t, "--slo-ms", "1"))["recompute"]
    if r["max_rate_dollars_per_mtoken"] is not None:
        fail("no rate, no dollars: %s" % r)


def a_drive_lasts_until_its_rated_writes_are_used_up():
    need("replay")
    gb = 16 * (LAYERS * OBJECT + HEADER) * 1e-9
    seconds = 1000 + restore_ms(4096, 8) * 1e-3  # the second request comes after 1,000 s
    for text, capacity, rated, years, waf in ((None, gb, 1, 5, 1), ("gb=100,dwpd=3,years=4,waf=2", 100, 3, 4, 2)):
        cost = model(two_requests(), *(("--drive", text) if text else ()))["cost"]
        near("written GB", cost["written_gb"], gb)
        per_day = gb * waf / capacity * 86400 / seconds
        near("drive writes a day", cost["drive_writes_per_day"], per_day)
        near("years", cost["drive_life_years"], years * rated / per_day)
    near("half of the rate, half of the writes", model(two_requests(), "--rate", "0.5")["cost"]["drive_writes_per_day"],
         86400 / (2000 + restore_ms(4096, 8) * 1e-3), 1e-5)
    cost = model(write("t.jsonl", request(0, 100, [1])))["cost"]
    if not cost["drive_life_years"] or cost["drive_life_years"] > 5:
        fail(str(cost))


def the_text_has_dollars_with_and_without_the_cache_and_the_life_of_the_drive():
    need("replay")
    t = write("t.jsonl", request(0, 4096, list(range(8))) + "".join(request(i * 1000, 8192, list(range(16))) for i in range(1, 80)))
    out = " ".join(tenuto("replay", t, *USUAL, "--gpu", "h100", "--slo-ms", "1000").out.split())
    for word in ("$/Mtok", "without a cache", "$0.0088 per GB of DRAM, $0.000082 per GB of SSD", "At the largest rate within 1000 ms: $",
                 "drive writes a day of 1.1 GB", "(1 a day for 5 years, write amplification 1) last"):
        if word not in out:
            fail("'%s' is not in\n%s" % (word, out))
    for args, text in ((("--price", "gpu"), "'gpu' needs a number"), (("--price", "gpu=x"), "gpu: 'x' is not"), (("--price", "gpu=1,"), "'gpu=1,': something is missing behind the comma"),
                       (("--price", "ram=1"), "did you mean dram?"), (("--price", "watts=1"), "there are gpu, dram, ssd"),
                       (("--price", "ssd=1,ssd=2"), "ssd stands there twice"), (("--price", "gpu=-1"), "in plain decimals, as 0.5 or 20; 0 is free"),
                       (("--drive", "dwpd=1e9"), "dwpd: '1e9' is not a number from 0.000000001 to 1000000000 in plain decimals"),
                       (("--drive", "gb=7.68TB"), "GB without a unit: gb=7680"),
                       (("--drive", "waf=0"), "waf: '0'"), (("--drive", "gb=1"), "holds 1.1 GB: give at least gb=2")):
        says(tenuto("replay", t, *USUAL, "--gpu", "h100", *args, rc=USAGE), args[0], text)
        says(tenuto("replay", t, *USUAL, *args, rc=USAGE), args[0] + " needs to know", "--gpu")
    out = " ".join(tenuto("replay", t, *USUAL, "--gpu", "h100", "--price", "gpu=0,ssd=1").out.split())
    if "$0.0000 without a cache, $" not in out or "with it. Prices" not in out:
        fail("a share of nothing: %s" % out)


def the_life_of_the_drive_is_in_units_that_one_reads_and_a_short_trace_is_told():
    need("replay")
    t = write("t.jsonl", "".join(request(i * 1000, 8192, list(range(16 * i, 16 * i + 16))) for i in range(40)))
    for args, text in (((), "says little: give --drive gb=N and a longer trace."), (("--drive", "gb=1000"), "says little: give a longer trace."),
                       (("--capacity-blocks", "32", "--drive", "dwpd=0.1"), r"last \d+ (min|h) \d\d (s|min)\.(?! The trace)")):
        out = " ".join(tenuto("replay", t, *USUAL, "--gpu", "h100", *args).out.split())
        if text not in out and not re.search(text, out):
            fail("'%s' is not in\n%s" % (text, out))


def the_published_case_stands_beside_the_model():
    need("replay")
    p = model(two_requests(), "--gpu", "h100", table=False)["paper"]
    want = {"prefix_tokens": 65536, "block_tokens": 16, "blocks": 4096, "objects_a_layer": 8192, "object_bytes": 32768,
            "layer_bytes": 256 << 20}
    for k, v in want.items():
        if p[k] != v:
            fail("%s is %s, must be %s" % (k, p[k], v))
    if not p["source"] or p["published"]["read_gbps"] != 25.9:
        fail(str(p))
    near("ms per layer", p["model"][0]["layer_ms"], 10.3643, 1e-4)
    if not 0.9 < p["model"][0]["crossover_hit_rate"] < 1:
        fail(str(p["model"]))
    out = " ".join(tenuto("replay", "two.jsonl", *USUAL, "--gpu", "h100").out.split())
    for word in ("8192 objects of 32 KiB", "256 MiB", "25.9 GB/s", "10.4 ms", "2605.03375", "tenuto", "TTFT"):
        if word not in out:
            fail("'%s' is not in\n%s" % (word, out))
    slow = " ".join(tenuto("replay", "two.jsonl", *USUAL, "--gpu", "h100", "--read-gbps", "0.001").out.split())
    if "does not hide even behind a million" not in slow or "from 0 input tokens" in slow or "At 0.001 GB/s" not in slow:
        fail(slow)
    for other in (["--model", "llama3-70b", "--gpu", "h100"], ["--model", "llama3-8b", "--gpu", "a100"]):
        if "paper" in tenuto("replay", "two.jsonl", "--no-io", *other, "--json").json()["ttft"]:
            fail("the published case is of llama3-8b on an h100 only")


def without_the_options_nothing_changes():
    need("replay")
    if "ttft" in tenuto("replay", two_requests(), *USUAL, "--json").json():
        fail("nobody asked for it")


def the_table_has_a_column_for_the_rate_only_where_one_was_asked_for():
    need("replay")
    t = two_requests()
    for more, last in (([], "$/Mtok"), (["--slo-ms", "500"], "rate")):
        lines = tenuto("replay", t, *USUAL, "--gpu", "h100", *more).out.splitlines()
        head = [line for line in lines if line.startswith("strategy")]
        if len(head) != 1 or not head[0].endswith(last):
            fail("with %s: %s" % (more, head))
        if [line for line in lines if line != line.rstrip()]:
            fail("blanks at the end of a line with %s" % more)


def a_device_model_says_what_the_drive_does():
    need("replay")
    text = "tenuto-mix 1\nsource here\nmeasured_s 0\nread_bps 2000000000\nwrite_bps 1000000000\nmixed_bps 1000000000\n" \
           "read_latency_ns 60000\nwrite_latency_ns 10000\n"
    t = two_requests()
    d = model(t, "--device-model", write("drive.model", text))
    if d["device"] != {"source": "here", "read_gbps": 2, "write_gbps": 1, "mixed_gbps": 1, "latency_us": 60, "write_latency_us": 10}:
        fail(str(d["device"]))
    near("all loaded first", rows(d)["load_then_compute"]["alone_p99_ms"], restore_ms(4096, 8, 2, all_first=True))
    d = model(t, "--device-model", "drive.model", "--read-gbps", "4")["device"]
    if not d["source"].endswith("; scaled to 4 GB/s"):
        fail(str(d))
    if (d["read_gbps"], d["write_gbps"], d["mixed_gbps"]) != (4, 2, 2):
        fail(str(d))
    d = model(t, "--device-model", "samsung-pm9a3-u2")["device"] # one of the models that come with the program
    if (d["read_gbps"], d["write_gbps"]) != (6.5, 3.5):
        fail(str(d))
    says(tenuto("replay", t, *USUAL, "--gpu", "h100", "--device-model", "nowhere", rc=USAGE), "nowhere")
    write("bad.model", text.replace("read_bps 2000000000", "read_bps -1"))
    says(tenuto("replay", t, *USUAL, "--gpu", "h100", "--device-model", "bad.model", rc=USAGE), "bad.model:4")


def options_that_make_no_sense_are_refused():
    need("replay")
    t = two_requests()
    slack = write("table.slack", TABLE)
    gpu = USUAL + ["--gpu", "h100"]
    for bad in ("0", "-1", "nan", "inf", "1e3", "", "1000ms"):
        says(tenuto("replay", t, *gpu, "--slo-ms", bad, rc=USAGE), "--slo-ms")
        says(tenuto("replay", t, *gpu, "--rate", bad, rc=USAGE), "--rate")
        says(tenuto("replay", t, *gpu, "--read-gbps", bad, rc=USAGE), "--read-gbps")
    for option in ("--slo-ms", "--rate", "--read-gbps", "--device-model"):
        says(tenuto("replay", t, *USUAL, option, "1", rc=USAGE), option, "--gpu", "h100", "a100", "--slack")
    says(tenuto("replay", t, *USUAL, "--gpu", "h1000", rc=USAGE), "h1000", "h100", "h200", "a100")
    says(tenuto("replay", t, "--no-io", "--model", "llama", "--gpu", "h100", rc=USAGE), "llama3-8b", "qwen3-32b")
    says(tenuto("replay", t, "--no-io", "--gpu", "h100", rc=USAGE), "--model")
    says(tenuto("replay", t, "--model", "llama3-8b", "--gpu", "h100", rc=USAGE), "--no-io")
    says(tenuto("replay", t, *gpu, "--slack", slack, rc=USAGE), "--gpu", "--slack")


def tables_that_do_not_fit_are_refused():
    need("replay")
    t = two_requests()
    write("table.slack", TABLE)
    says(tenuto("replay", t, "--no-io", "--model", "llama3-70b", "--slack", "table.slack", rc=USAGE), "llama3-8b", "32 layers")
    says(tenuto("replay", t, *USUAL, "--slack", "nowhere", rc=USAGE), "nowhere")
    says(tenuto("replay", t, *USUAL, "--slack", write("bad", TABLE.replace(" 1000\n", " 0\n")), rc=USAGE), "line 11")
    tenuto("replay", t, *USUAL, "--slack", write("bad", TABLE.replace("slack 2", "slack 9")), rc=PROBLEM)


main(globals())
