# SPDX-License-Identifier: Apache-2.0
"""Malformed traces: a clear error with file and line, exit code 2, never a crash."""
import gzip
import json
import os
import subprocess

from cli import ENVIRONMENT, LINE, TENUTO, USAGE, Skip, fail, main, need, says, tenuto, write

BAD = {  # what is wrong: (the line, a word of the message)
    "not JSON": ("hello", "JSON"),
    "cut off": (LINE[:40], "JSON"),
    "two objects": (LINE.strip() + LINE, "JSON"),
    "an array": ("[1, 2]", "object"),
    "NaN": (LINE.replace('"timestamp": 0', '"timestamp": NaN'), "JSON"),
    "infinite": (LINE.replace('"timestamp": 0', '"timestamp": 1e999'), "JSON"),
    "negative time": (LINE.replace('"timestamp": 0', '"timestamp": -1'), "timestamp"),
    "absurd time": (LINE.replace('"timestamp": 0', '"timestamp": 1e300'), "timestamp"),
    "time as text": (LINE.replace('"timestamp": 0', '"timestamp": "0"'), 'timestamp must be a number, not "0"'),
    "time with a fraction": (LINE.replace('"timestamp": 0', '"timestamp": 61.114'), "timestamp 61.114: seconds or ms?"),
    "a whole time written with a fraction": (LINE.replace('"timestamp": 0', '"timestamp": 0.0'), "timestamp 0.0: seconds or ms?"),
    "no input_length": (LINE.replace('"input_length": 1025, ', ""), "input_length"),
    "no hash_ids": ('{"timestamp": 0, "input_length": 1025, "output_length": 500}', "hash_ids"),
    "input_length 0": (LINE.replace("1025", "0"), "input_length"),
    "input_length negative": (LINE.replace("1025", "-1025"), "input_length"),
    "input_length 2^63": (LINE.replace("1025", "9223372036854775808"), "JSON"),
    "input_length 2^63-1": (LINE.replace("1025", "9223372036854775807"), "input_length"),
    "input_length a fraction": (LINE.replace("1025", "1025.5"), "input_length must be a whole number, not 1025.5"),
    "output_length as text": (LINE.replace("500", '"many"'), 'output_length must be a whole number, not "many"'),
    "block_size 0": (LINE.replace('"timestamp"', '"block_size": 0, "timestamp"'), "block_size 0 is out of range"),
    "block_size as text": (LINE.replace('"timestamp"', '"block_size": "16", "timestamp"'), 'block_size must be a whole number, not "16"'),
    "output_length negative": (LINE.replace("500", "-1"), "output_length"),
    "too few ids": (LINE.replace("[0, 1, 2]", "[0, 1]"), "hash_ids"),
    "too many ids": (LINE.replace("[0, 1, 2]", "[0, 1, 2, 3]"), "hash_ids"),
    "a negative id": (LINE.replace("[0, 1, 2]", "[0, 1, -2]"), "hash_ids[2]"),
    "an id as text": (LINE.replace("[0, 1, 2]", '[0, "1", 2]'), "hash_ids[1]"),
    "an id twice": (LINE.replace("[0, 1, 2]", "[0, 1, 0]"), "twice"),
    "ids no array": (LINE.replace("[0, 1, 2]", "7"), "hash_ids"),
    "a field twice": (LINE.replace('"timestamp": 0', '"timestamp": 0, "timestamp": 1'), "JSON"),
    "a NUL byte": (LINE.replace("500", "5\0"), "JSON"),
    "not UTF-8": (LINE.replace("timestamp", "timest\udcffmp"), "JSON"),
}


def put(name, text):
    with open(name, "wb") as f:
        f.write(text.encode("utf-8", "surrogateescape"))


def every_malformed_line_is_refused_with_file_and_line():
    need("replay")
    for what, (line, word) in BAD.items():
        for before in (0, 3):
            put("t.jsonl", LINE * before + line + "\n" + LINE)
            r = tenuto("replay", "t.jsonl", "--no-io", "--json", rc=USAGE)
            if "t.jsonl:%d: " % (before + 1) not in r.err or word not in r.err or r.out:
                fail("%s: %s" % (what, r))


def a_truncated_file_names_its_last_line():
    need("replay")
    write("t.jsonl", (LINE * 10)[:-25])
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "t.jsonl:10: ")


def a_byte_order_mark_is_named_with_file_and_line():
    need("replay")
    write("t.jsonl", "\ufeff" + LINE)
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "tenuto replay: t.jsonl:1: ", "byte order mark")


def an_empty_file_is_an_error():
    need("replay")
    for text in ("", "\n", " \n\n"):
        write("t.jsonl", text)
        says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "t.jsonl: holds no request")


def a_blank_last_line_is_fine_but_not_one_in_between():
    need("replay")
    write("t.jsonl", LINE + "\n\n")
    tenuto("replay", "t.jsonl", "--no-io")
    write("t.jsonl", LINE + "\n" + LINE)
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "t.jsonl:2: ")


def a_file_that_cannot_be_read_is_named():
    need("replay")
    says(tenuto("replay", "absent.jsonl", "--no-io", rc=USAGE), "absent.jsonl")
    os.mkdir("d")
    says(tenuto("replay", "d", "--no-io", rc=USAGE), "d:")
    write("t.jsonl", LINE)
    os.chmod("t.jsonl", 0)
    if os.access("t.jsonl", os.R_OK):
        raise Skip("root reads everything")
    says(tenuto("replay", "t.jsonl", "--no-io", rc=ENVIRONMENT), "t.jsonl")


def a_bad_line_beyond_the_limit_does_not_matter():
    need("replay")
    write("t.jsonl", LINE * 2 + "rubbish\n")
    r = tenuto("replay", "t.jsonl", "--no-io", "--limit", "2", "--json").json()
    if r["requests"] != 2:
        fail(str(r))


def arrivals_that_go_backwards_are_accepted_and_noted():
    need("replay")
    write("t.jsonl", LINE.replace('"timestamp": 0', '"timestamp": 9') + LINE)
    says(tenuto("replay", "t.jsonl", "--no-io"), "t.jsonl:2", "1 requests")


def a_trace_can_come_from_standard_input():
    need("replay")
    r = tenuto("replay", "-", "--no-io", "--json", stdin=LINE * 3).json()
    if r["requests"] != 3 or r["hit_blocks"] != 6:
        fail(str(r))


def blocks_of(tokens, at, length, **more):
    """A line of a trace whose blocks have so many tokens; at: None for no timestamp."""
    line = {} if at is None else {"timestamp": at}
    return json.dumps({**line, "input_length": length, "hash_ids": list(range(-(-length // tokens))), **more}) + "\n"


def counted(*more, stdin=""):
    return tenuto("replay", "-" if stdin else "t.jsonl", "--no-io", "--json", *more, stdin=stdin).json()


def blocks_of_other_sizes_are_taken_from_the_option_or_from_the_trace():
    need("replay")
    for tokens in (1, 16, 100, 1024):
        text = "".join(blocks_of(tokens, at, 521) for at in (0, 5))
        r = counted("--block-tokens", tokens, stdin=text)
        n = -(-521 // tokens)
        # An incomplete last block is a hit, too, since the next prompt is the same.
        if (r["block_tokens"], r["blocks"], r["hit_blocks"]) != (tokens, 2 * n, n):
            fail(str(r))
        if counted(stdin="".join(blocks_of(tokens, at, 521, block_size=tokens) for at in (0, 5)))["blocks"] != 2 * n:
            fail("block_size %d" % tokens)
    if counted(stdin=LINE)["block_tokens"] != 512:
        fail("the default")


def block_sizes_that_contradict_each_other_are_refused_with_both():
    need("replay")
    write("t.jsonl", blocks_of(16, 0, 521, block_size=16) + blocks_of(32, 0, 521, block_size=32))
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "t.jsonl:2: ", "block_size 32", "16 tokens per block in the first request")
    says(tenuto("replay", "t.jsonl", "--no-io", "--block-tokens", "32", rc=USAGE), "t.jsonl:1: ", "block_size 16", "32", "--block-tokens")
    write("t.jsonl", LINE + blocks_of(16, 0, 521, block_size=16))
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "t.jsonl:2: ", "block_size 16", "512")
    write("t.jsonl", blocks_of(16, 0, 521))
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "33 hash_ids", "521", "2 blocks of 512 tokens", "--block-tokens")


def a_models_blocks_are_those_of_the_trace():
    need("replay")
    write("t.jsonl", "".join(blocks_of(16, at, 521) for at in (0, 5)))
    small = tenuto("replay", "t.jsonl", "--no-io", "--json", "--model", "llama3-8b", "--block-tokens", "16", "--gpu", "h100").json()
    large = tenuto("replay", "-", "--no-io", "--json", "--model", "llama3-8b", "--gpu", "h100", stdin=LINE * 2).json()
    if small["block_bytes"] * 32 != large["block_bytes"]:
        fail("%s %s" % (small, large))


def times_in_seconds_are_taken_when_asked_for():
    need("replay")
    write("t.jsonl", "".join(blocks_of(512, at, 521) for at in (0.25, 0.5, 1.0)))
    said = "t.jsonl:1: timestamp 0.25: seconds or ms? only whole numbers are taken for ms: give --timestamp-unit s, or ms"
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), said)
    run = ("replay", "t.jsonl", "--geometry", "2x4KiB", "--json", "--speed", "1", "--timestamp-unit")
    if not tenuto(*run, "s").json()["wall_seconds"] >= 0.75:
        fail("it ended before its last request arrived")
    tenuto(*run, "ms")
    says(tenuto(*run, "h", rc=USAGE), "--timestamp-unit", "'h'")
    write("t.jsonl", LINE.replace('"timestamp": 0', '"timestamp": 1e13'))
    says(tenuto("replay", "t.jsonl", "--no-io", "--timestamp-unit", "s", rc=USAGE), "t.jsonl:1: timestamp", "s)")


def a_trace_needs_no_times_unless_arrivals_matter():
    need("replay")
    write("t.jsonl", blocks_of(512, None, 521) * 3)
    if counted()["hit_blocks"] != 4:
        fail(str(counted()))
    tenuto("replay", "t.jsonl", "--no-io", "--report", "r.html")
    says(tenuto("replay", "t.jsonl", "--speed", "1", rc=USAGE), "t.jsonl: its requests have no timestamp", "--speed")
    says(tenuto("replay", "t.jsonl", "--no-io", "--model", "llama3-8b", "--gpu", "h100", rc=USAGE), "no timestamp", "--gpu")
    write("t.jsonl", LINE + blocks_of(512, None, 521))
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "t.jsonl:2: no timestamp, but the first request has one")
    write("t.jsonl", blocks_of(512, None, 521) + LINE)
    says(tenuto("replay", "t.jsonl", "--no-io", rc=USAGE), "t.jsonl:2: timestamp 0, but the first request has none")


def a_trace_may_be_compressed_by_gzip():
    need("replay")
    text = "".join(blocks_of(512, i, 521 + i) for i in range(2000)).encode()
    put("plain.jsonl", text.decode())
    half = len(text) // 2
    for packed in (gzip.compress(text), gzip.compress(text[:half]) + gzip.compress(text[half:])):  # of two members, too, as cat makes them
        with open("t.jsonl.gz", "wb") as f:
            f.write(packed)
        figures = [tenuto("replay", name, "--no-io", "--json").json() for name in ("t.jsonl.gz", "plain.jsonl")]
        if len({(r["requests"], r["blocks"], r["hit_blocks"]) for r in figures}) != 1 or figures[0]["requests"] != 2000:
            fail(str(figures))
    with open("t.jsonl.gz", "rb") as f:
        done = subprocess.run([TENUTO, "replay", "-", "--no-io", "--json"], stdin=f, capture_output=True, text=True, check=True)
    if json.loads(done.stdout)["requests"] != 2000:
        fail(done.stdout)


def compressed_data_that_are_damaged_or_cut_off_are_told():
    need("replay")
    packed = bytearray(gzip.compress("".join(blocks_of(512, i, 521 + i) for i in range(2000)).encode()))
    with open("t.gz", "wb") as f:
        f.write(packed[:len(packed) // 2])
    says(tenuto("replay", "t.gz", "--no-io", rc=USAGE), "t.gz:", "compressed data end too early")
    packed[-6] ^= 1  # of the checksum at the end
    with open("t.gz", "wb") as f:
        f.write(packed)
    says(tenuto("replay", "t.gz", "--no-io", rc=USAGE), "t.gz:", "compressed data are damaged")


main(globals())
