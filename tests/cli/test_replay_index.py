# SPDX-License-Identifier: Apache-2.0
"""`tenuto replay --no-io` on the recorded trace: the exact figures of the traces' README."""
import os
import re

from cli import LINE, fail, main, need, shared_trace, tenuto, write

KEYS = {"requests", "blocks", "hit_blocks", "hit_rate", "distinct_blocks", "blocks_written", "blocks_admission_rejected",
        "bytes_read", "bytes_written", "verified_objects", "corrupt_objects", "read_gbps", "write_gbps", "cpu_seconds",
        "wall_seconds", "policy", "capacity_blocks"}


def hits(policy, capacity):
    more = ["--capacity-blocks", capacity] if capacity else []
    r = tenuto("replay", shared_trace(), "--no-io", "--policy", policy, "--json", *more).json()
    if r["policy"] != policy or r["capacity_blocks"] != capacity:
        fail(str(r))
    return r["hit_blocks"]


def expect(policy, rows):
    need("replay")
    for capacity, value in rows.items():
        got = hits(policy, capacity)
        if got != value:
            fail("%s at %s: %s hits, must be %s" % (policy, capacity, got, value))


def the_trace_has_the_counts_of_its_readme():
    need("replay")
    r = tenuto("replay", shared_trace(), "--no-io", "--json").json()
    want = {"requests": 12031, "blocks": 288500, "distinct_blocks": 182790, "hit_blocks": 105710, "capacity_blocks": None}
    for k, v in want.items():
        if r[k] != v:
            fail("%s is %s, must be %s" % (k, r[k], v))
    if KEYS - set(r):
        fail("missing: %s" % (KEYS - set(r)))
    if abs(r["hit_rate"] - 105710 / 288500) > 1e-9:
        fail("hit_rate %s" % r["hit_rate"])


def without_a_capacity_every_policy_hits_all_that_comes_again():
    expect("lru", {None: 105710})
    expect("default", {None: 105710})


def the_hits_of_lru_are_exact():
    expect("lru", {1000: 12847, 5000: 32260, 10000: 61046, 20000: 83035, 50000: 102290})


def the_hits_of_s3fifo_are_exact():
    expect("s3fifo", {1000: 16086, 5000: 41753, 10000: 58228, 20000: 72541})


def the_hits_of_belady_are_exact():
    expect("belady", {1000: 55019, 5000: 98448, 10000: 105710, 20000: 105710})


def the_default_policy_beats_the_simple_ones_at_every_size():
    need("replay")
    for capacity, least in {1000: 20000, 5000: 43000, 10000: 67000, 20000: 87000}.items():
        r, lru = (tenuto("replay", shared_trace(), "--no-io", "--policy", p, "--capacity-blocks", capacity, "--json").json()
                  for p in ("default", "lru"))
        if r["hit_blocks"] < least:
            fail("%s hits at %s, must be at least %s" % (r["hit_blocks"], capacity, least))
        if r["blocks_written"] > 0.94 * lru["blocks_written"]:
            fail("%s blocks written at %s, LRU %s" % (r["blocks_written"], capacity, lru["blocks_written"]))


def points(page, title):
    """x of the points of each line of a chart."""
    chart = page[page.index("<h2>%s</h2>" % title):]
    chart = chart[:chart.index("</figure>")]
    return [[float(p.split(",")[0]) for p in line.split()] for line in re.findall(r'points="([^"]*)"', chart)]


def requests_at_one_time_are_one_point_of_the_report():
    need("replay")
    lines = tenuto("workload", "--requests", "200").out.splitlines()

    def at(times):
        write("t.jsonl", "".join(re.sub(r'"timestamp": \d+', '"timestamp": %d' % t, line) + "\n" for line, t in zip(lines, times)))
        tenuto("replay", "t.jsonl", "--no-io", "--report", "r.html")
        with open("r.html") as f:
            return f.read()

    for times in ([i // 50 * 1000 for i in range(200)], [1000 * (i ^ 7) for i in range(200)]):
        for x in points(at(times), "Hit rate over time"):
            if len(x) < 4 or any(b <= a for a, b in zip(x, x[1:])):
                fail("%s" % x)
    for x in points(at([5] * 200), "Hit rate over the requests"):
        if len(x) < 90 or any(b <= a for a, b in zip(x, x[1:])):
            fail("%s" % x)


def an_error_leaves_no_empty_report():
    need("replay")
    write("t.jsonl", "hello\n")
    tenuto("replay", "t.jsonl", "--no-io", "--report", "r.html", rc=2)
    if os.path.exists("r.html"):
        fail("r.html is there")


def a_report_is_one_page_that_loads_nothing():
    need("replay")
    write("t.jsonl", tenuto("workload", "--requests", "200").out)
    tenuto("replay", "t.jsonl", "--no-io", "--capacity-blocks", "200", "--report", "r.html")
    with open("r.html") as f:
        text = f.read()
    if re.search(r"(src|href|url\()\s*=?\s*[\"']?\s*(https?:)?//", text) or "<script" in text or "@import" in text:
        fail("the page loads something")
    for word in ("</html>", "hit rate", "Belady", "S3-FIFO", "never read back", "prefers-color-scheme", "<svg"):
        if word not in text:
            fail("no '%s' in the page" % word)
    if "nan" in re.sub("[A-Za-z]+nan|nan[A-Za-z]+", "", text) or "inf," in text:
        fail("a figure is no number")


def a_name_of_a_trace_cannot_break_the_page():
    need("replay")
    write("<b>&\".jsonl", LINE)
    tenuto("replay", "<b>&\".jsonl", "--no-io", "--report", "r.html")
    with open("r.html") as f:
        if "<b>&" in f.read():
            fail("the name is not escaped")


main(globals())
