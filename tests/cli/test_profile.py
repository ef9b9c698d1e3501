# SPDX-License-Identifier: Apache-2.0
"""`tenuto profile`: the sources of a slack table, its file, and what is refused."""
import os
import shutil
import subprocess
import sys

from cli import ENVIRONMENT, TENUTO, USAGE, fail, main, need, says, tenuto, write

HEAD = "input,prefix,layer,ns\n"
BAD = {  # what is wrong: (the line, a word of the message)
    "a word": ("64,0,0,fast", "ns"),
    "zero": ("64,0,0,0", "ns"),
    "negative": ("64,0,0,-5", "ns"),
    "not a number": ("64,0,0,nan", "ns"),
    "huge": ("64,0,0,99999999999999999999999", "ns"),
    "above an hour": ("64,0,0,3600000000001", "ns"),
    "input 0": ("0,0,0,5", "input"),
    "a negative prefix": ("64,-1,0,5", "prefix"),
    "layer 4096": ("64,0,4096,5", "layer"),
    "a cell too few": ("64,0,0", "cells"),
    "a cell too many": ("64,0,0,5,5", "cells"),
}


def timings():
    return "".join("%d,%d,%d,%d\n" % (i, p, l, 1000 * (i + p // 10) + 100 * l + r)
                   for i in (64, 256) for p in (0, 1000) for l in (0, 1, 2) for r in (-1, 0, 50000))


def every_malformed_line_is_refused_with_file_and_line():
    need("profile")
    for what, (line, word) in BAD.items():
        write("t.csv", HEAD + "64,0,0,5\n" + line + "\n")
        r = tenuto("profile", "--from", "t.csv", rc=USAGE)
        if "t.csv:3: " not in r.err or word not in r.err or r.out:
            fail("%s: %s" % (what, r))


def malformed_json_lines_are_refused_with_file_and_line():
    good = '{"input": 64, "prefix": 0, "layer": 0, "ns": 5}\n'
    for line, word in ((good[:20], "JSON"), ("[1]", "object"), (good.replace("5}", '"5"}'), "ns"),
                       (good.replace("64", "0"), "input"), (good.replace('"layer": 0, ', ""), "layer"),
                       (good.replace("5}", "1e300}"), "ns"), (good.replace("5}", "-5}"), "ns")):
        write("t.json", good + line.rstrip() + "\n")
        r = tenuto("profile", "--from", "t.json", rc=USAGE)
        if "t.json:2: " not in r.err or word not in r.err:
            fail("%s: %s" % (line, r))


def malformed_json_arrays_are_refused_with_file_and_line_or_item():
    good = '{"input": 64, "prefix": 0, "layer": 0, "ns": 5}'
    for text, where, word in (("[%s,\n7]", "item 2: ", "object"), ("[%s,\n[1]]", "item 2: ", "object"),
                              ("[%s, {}]", "item 2: ", "no input"), ("[\n%s\n", "t.json:", "JSON"), ("\n[%s]]", "t.json:2: ", "JSON")):
        write("t.json", text % good)
        says(tenuto("profile", "--from", "t.json", rc=USAGE), where, word)
    write("t.json", "[]")
    says(tenuto("profile", "--from", "t.json", rc=USAGE), "t.json: holds no timing")


def a_missing_or_doubled_column_is_named_by_line():
    write("t.csv", "input,prefix,ns\n1,2,3\n")
    says(tenuto("profile", "--from", "t.csv", rc=USAGE), "t.csv:1: ", '"layer"')
    write("t.csv", "input,prefix,layer,ns,ns\n")
    says(tenuto("profile", "--from", "t.csv", rc=USAGE), "t.csv:1: ", "twice")
    write("t.csv", HEAD)
    says(tenuto("profile", "--from", "t.csv", rc=USAGE), "t.csv: holds no timing")
    tenuto("profile", "--from", "nowhere.csv", rc=USAGE)


def a_gap_in_the_timings_is_named_by_its_lengths_and_layer():
    write("t.csv", HEAD + "64,0,0,5\n256,0,0,9\n64,0,1,5\n")
    says(tenuto("profile", "--from", "t.csv", rc=USAGE), "t.csv: ", "input 256", "layer 1")


def an_engines_timings_become_a_table_of_their_medians():
    write("t.csv", "layer,ns,engine_time,prefix,input\n" +
          "".join("%s,%s,x,%s,%s\n" % (c[2], c[3], c[1], c[0]) for c in (l.split(",") for l in timings().split())))
    r = tenuto("profile", "--from", "t.csv", "--model", "mine", "--gpu", "g", "--out", "t.slack", "--json").json()
    if (r["layers"], r["how"], r["model"], r["per_layer"]) != (3, "profiled", "mine", True):
        fail(r)
    rows = {(x["input"], x["prefix"]): x for x in r["rows"]}
    if rows[256, 1000]["total_ns"] != 3 * 356000 + 300 or rows[64, 0]["layer_ns"] != 64100:
        fail(r)
    text = open("t.slack").read()
    if "model mine\n" not in text or "cell 256 1000 2 356200 0 0\n" not in text:
        fail(text)
    lines = "".join('{"input": %s, "prefix": %s, "layer": %s, "ns": %s}\n' % tuple(l.split(",")) for l in timings().split())
    write("t.json", lines)
    again = tenuto("profile", "--from", "t.json", "--json").json()
    if again["rows"] != r["rows"]:
        fail(again)
    for array in ("[%s]" % ",".join(lines.split("\n")[:-1]), "\n [\n%s\n]\n" % ",\n".join(lines.split("\n")[:-1])):
        write("t.json", array)
        if tenuto("profile", "--from", "t.json", "--json").json()["rows"] != r["rows"]:
            fail(array)


def timings_may_say_how_many_sms_and_iocbs_a_layer_leaves():
    write("t.csv", "input,prefix,layer,iocbs,sms,ns\n64,0,0,4,8,100\n64,0,0,5,9,90\n64,0,0,6,10,110\n")
    r = tenuto("profile", "--from", "t.csv", "--out", "t.slack", "--json").json()["rows"]
    if (r[0]["total_ns"], r[0]["sm_budget"], r[0]["most_iocbs"]) != (100, 8, 4) or "cell 64 0 * 100 8 4\n" not in open("t.slack").read():
        fail(r)
    write("t.json", '{"input": 64, "prefix": 0, "layer": 0, "ns": 100, "sms": 8}\n')
    r = tenuto("profile", "--from", "t.json", "--json").json()["rows"]
    if (r[0]["sm_budget"], r[0]["most_iocbs"]) != (8, 0):
        fail(r)
    write("t.json", '{"input": 64, "prefix": 0, "layer": 0, "ns": 100, "iocbs": 65536}\n')
    says(tenuto("profile", "--from", "t.json", rc=USAGE), "iocbs 65536 is out of range (0 to 65535)")
    r = tenuto("profile", "--model", "llama3-8b", "--gpu", "h100", "--read-gbps", "25.9", "--json").json()["rows"]
    at = {(x["input"], x["prefix"]): (x["sm_budget"], x["most_iocbs"]) for x in r}
    if at[1, 65536] != (66, 2) or at[131072, 65536][0] != 2 or not at[131072, 65536][1] > 10 or at[1, 0][1]:
        fail(at)


def the_analytic_model_gives_a_table_of_known_names_only():
    r = tenuto("profile", "--model", "llama3-8b", "--gpu", "h100", "--json").json()
    half = tenuto("profile", "--model", "llama3-8b", "--gpu", "h100", "--efficiency", "0.25", "--json").json()
    at = {(x["input"], x["prefix"]): x["total_ns"] for x in r["rows"]}
    slow = {(x["input"], x["prefix"]): x["total_ns"] for x in half["rows"]}
    kv_gbps = 8192 * 131072 / at[8192, 0]
    if not 3 < kv_gbps < 5 or not 1.9 < slow[8192, 0] / at[8192, 0] < 2.1 or at[8192, 65536] < at[8192, 0]:
        fail("%s GB/s of KV; %s" % (kv_gbps, at[8192, 65536]))
    says(tenuto("profile", "--model", "llama", "--gpu", "h100", rc=USAGE), "llama3-8b")
    says(tenuto("profile", "--model", "llama3-8b", "--gpu", "h1", rc=USAGE), "h100")
    for bad in ("0", "-1", "1.5", "nan", "x"):
        tenuto("profile", "--model", "llama3-8b", "--gpu", "h100", "--efficiency", bad, rc=USAGE)


def an_option_that_would_change_nothing_is_refused():
    write("t.csv", HEAD + "64,0,0,5\n")
    analytic = ("--model", "llama3-8b", "--gpu", "h100")
    for option, why in (((*analytic, "--layers", "5"), "--synthetic"), ((*analytic, "--engine", "vllm"), "timings"),
                        (("--from", "t.csv", "--efficiency", "0.5"), "analytic"), (("--from", "t.csv", "--layers", "1"), "timings"),
                        (("--synthetic", "--efficiency", "0.5"), "analytic"),
                        (("--from", "t.csv", "--read-gbps", "29"), "analytic")):
        says(tenuto("profile", *option, rc=USAGE), option[-2], why)


def the_synthetic_kernel_is_timed_on_this_machine():
    r = tenuto("profile", "--synthetic", "--layers", "4", "--out", "s.slack", "--json").json()
    at = {(x["input"], x["prefix"]): x["layer_ns"] for x in r["rows"]}
    if r["how"] != "synthetic" or r["layers"] != 4 or not at[64, 0] < at[1024, 0] < at[4096, 65536]:
        fail(r)
    if "prefix tokens" not in tenuto("profile", "--synthetic").out:
        fail("no table")


def a_source_must_be_given_and_only_one():
    tenuto("profile", rc=USAGE)
    tenuto("profile", "--model", "llama3-8b", rc=USAGE)
    write("t.csv", HEAD + "64,0,0,5\n")
    tenuto("profile", "--from", "t.csv", "--synthetic", rc=USAGE)
    tenuto("profile", "--from", "t.csv", "--out", "/nowhere/t.slack", rc=USAGE)


def a_model_is_timed_by_the_python_package():
    write("python3", "#!/bin/sh\nshift 2\necho \"$@\"\n")
    os.chmod("python3", 0o755)
    path = os.environ["PATH"]
    os.environ["PATH"] = os.getcwd() + os.pathsep + path
    r = tenuto("profile", "--engine", "vllm", "--inputs", "1,64", "--repeat", "3", "--out", "t.slack", "--name", "m", "some/model")
    if r.out != "--engine vllm --name m --inputs 1,64 --repeat 3 --out t.slack -- some/model\n":
        fail(r)
    os.environ["PATH"] = "/nowhere"
    try:
        says(tenuto("profile", "--engine", "hf", "m", rc=ENVIRONMENT), "python3", "pip install")
    finally:
        os.environ["PATH"] = path
    for args, why in ((("m",), "--engine hf"), (("--engine", "other", "m"), "--engine hf"), (("--engine", "hf", "--json", "m"), "only"),
                      (("--engine", "hf", "--synthetic", "m"), "only"), (("--synthetic", "--dtype", "float32"), "MODEL"), (("--synthetic", "--name", "m"), "MODEL")):
        says(tenuto("profile", *args, rc=USAGE), why)



def the_environment_of_the_program_times_the_model():
    package = "env/lib/python%d.%d/site-packages" % sys.version_info[:2]
    os.makedirs("env/bin")
    os.makedirs(package)
    python = os.path.realpath(sys.executable)
    write("env/pyvenv.cfg", "home = %s\n" % os.path.dirname(python))
    os.symlink(python, "env/bin/python3")
    shutil.copy(TENUTO, "env/bin/tenuto")
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run():
        return subprocess.run(["env/bin/tenuto", "profile", "--engine", "hf", "m"], capture_output=True, text=True, env=env)
    done = run()
    if done.returncode != ENVIRONMENT or "env/bin/python3: No module named 'tenuto': `pip install`" not in done.stderr or len(done.stderr.splitlines()) != 1:
        fail(done)
    os.mkdir(package + "/tenuto")
    write(package + "/tenuto/profile.py", "import sys\n\n\ndef main():\n    print(sys.prefix, *sys.argv[1:])\n")
    done = run()
    if done.returncode or done.stdout != "%s --engine hf -- m\n" % os.path.abspath("env"):
        fail(done)


main(globals())
