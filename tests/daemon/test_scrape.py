# SPDX-License-Identifier: Apache-2.0
"""The metrics of tenutod: for promtool, for a Prometheus server that scrapes them, for the dashboard, for the documents."""
import json
import os
import re
import subprocess

from daemon import ROOT, Daemon, until
from prometheus import Prometheus, program
from cli import fail, main, write

WORDS = {"and", "avg", "by", "clamp_max", "histogram_quantile", "increase", "instance", "job", "le", "max", "min", "on", "or", "rate",
         "sum", "time", "without"}


def a_cache():
    os.makedirs("kv", exist_ok=True)
    return Daemon("--dir", "kv", "--disk-bytes", "64MiB", "--host-bytes", "4MiB", "--config",
                  write("c.yaml", "write_bytes_per_day: 1TB\n"))


def promtool_finds_nothing_to_say():
    promtool = program("promtool")
    with a_cache() as d:
        text = d.get("/metrics")[2]
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
        if done.returncode or done.stdout or done.stderr:
            fail("%s %s" % (done.stdout, done.stderr))
        done = subprocess.run([promtool, "check", "metrics"], input=text.replace("_total", "_count"), capture_output=True, text=True)
        if not done.returncode:
            fail("promtool takes anything")
        d.end()


def what_only_rises_is_a_counter_and_has_total_in_its_name():
    with a_cache() as d:
        text = d.get("/metrics")[2]
        for name, kind in re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M):
            if (kind == "counter") != name.endswith("_total") or (kind == "histogram") != ("%s_bucket{" % name in text):
                fail("%s is a %s" % (name, kind))
            if not re.search(r"^# HELP %s [A-Z1].*\.$" % name, text, re.M) or len(re.findall(r"^# TYPE %s " % name, text, re.M)) != 1:
                fail("%s has no help, or several" % name)
        d.end()


def a_prometheus_server_scrapes_all_of_it():
    program("prometheus")
    with a_cache() as d, Prometheus(d.port) as p:
        until(lambda: p.samples("up") and p.samples("up")[0][1] == 1 and p.samples("tenuto_capacity_blocks"), "scrape")
        names = d.metrics()
        target = p.ask("targets")["activeTargets"][0]
        if target["health"] != "up" or target["lastError"]:
            fail(str(target))
        known = {m["__name__"] for m, _ in p.samples('{__name__=~"tenutod?_.*"}')}
        if known != set(names):
            fail("only one of them knows %s" % (known ^ set(names)))
        if p.samples("tenuto_device_capacity_bytes")[0][1] != names["tenuto_device_capacity_bytes"][0] or \
                p.samples("tenuto_build_info")[0][0]["version"] == "" or \
                [m["health"] for m, v in p.samples("tenuto_device_health") if v] != ["healthy"]:
            fail(str(p.samples('{__name__=~"tenutod?_.*"}')))
        types = {n: m[0]["type"] for n, m in p.ask("metadata").items() if n.startswith("tenuto")}
        text = d.get("/metrics")[2]
        if types != dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.M)):
            fail(str(types))
        d.end()
        until(lambda: p.samples("up") and p.samples("up")[0][1] == 0, "scrape that fails")


def dashboard():
    with open(os.path.join(ROOT, "share", "grafana", "tenuto.json")) as f:
        return json.load(f)


def expressions(board):
    found = [(p["title"], t["expr"]) for p in board["panels"] for t in p.get("targets", [])]
    return found + [("variable " + v["name"], v["query"]["query"]) for v in board["templating"]["list"] if v["type"] == "query"]


def the_dashboard_asks_for_nothing_that_is_not_told():
    with a_cache() as d:
        text = d.get("/metrics")[2]
        d.end()
    samples = re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.M)
    labels = {}
    for name, of_sample in samples:
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', of_sample))
    asked = set()
    for title, expression in expressions(dashboard()):
        names = re.findall(r"\btenuto_\w+", expression)
        if not names:
            fail("%s asks for nothing: %s" % (title, expression))
        for name in names:
            if name not in labels:
                fail("%s: there is no %s" % (title, name))
        asked.update(names)
        some = set().union(*(labels[n] for n in names))
        bare = re.sub(r'"[^"]*"|\$\w+|\[[^]]*\]', "", expression)
        for word in re.findall(r"[a-z_]\w*", bare):
            if word not in WORDS | some | set(names) | {"label_values"}:
                fail("%s: '%s' is no label of %s" % (title, word, names))
    for name in ("tenuto_hit_blocks_total", "tenuto_load_seconds_bucket", "tenuto_offload_waiting_bytes", "tenuto_device_health",
                 "tenuto_admission_rejected_blocks_total", "tenuto_evicted_blocks_total", "tenuto_device_written_bytes_total",
                 "tenuto_write_budget_bytes_per_second"):
        if name not in asked:
            fail("no panel shows %s" % name)


def what_the_dashboard_asks_for_is_promql():
    """Prometheus itself parses each expression."""
    program("prometheus")
    with a_cache() as d, Prometheus(d.port) as p:
        until(lambda: p.samples("tenuto_blocks"), "scrape")
        for title, expression in expressions(dashboard()):
            if title.startswith("variable"):
                continue
            plain = expression.replace("$__rate_interval", "5s").replace("$instance", ".*")
            if p.ask("query", query=plain) is None:
                fail("%s: Prometheus does not take %s" % (title, plain))
        d.end()


def panels_lie_beside_each_other():
    taken = set()
    for p in dashboard()["panels"]:
        at = p["gridPos"]
        if at["x"] + at["w"] > 24:
            fail("%s is too wide" % p["title"])
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        if taken & cells:
            fail("%s lies over another panel" % p["title"])
        taken |= cells


def the_documents_name_every_metric():
    with a_cache() as d:
        names = {re.sub(r"_(bucket|sum|count)$", "", n) if "_seconds_" in n and not n.endswith("_total") else n for n in d.metrics()}
        d.end()
    with open(os.path.join(ROOT, "docs", "deploy.md")) as f:
        text = f.read()
    for name in sorted(names):
        if "`%s`" % name not in text:
            fail("docs/deploy.md does not name %s" % name)


main(globals())
