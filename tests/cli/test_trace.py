# SPDX-License-Identifier: Apache-2.0
"""Malformed traces: a clear error with file and line, exit code 2, never a crash."""
import os

from cli import ENVIRONMENT, LINE, USAGE, Skip, fail, main, need, says, tenuto, write

BAD = {  # what is wrong: (the line, a word of the message)
    "not JSON": ("hello", "JSON"),
    "cut off": (LINE[:40], "JSON"),
    "two objects": (LINE.strip() + LINE, "JSON"),
    "an array": ("[1, 2]", "object"),
    "NaN": (LINE.replace('"timestamp": 0', '"timestamp": NaN'), "JSON"),
    "infinite": (LINE.replace('"timestamp": 0', '"timestamp": 1e999'), "JSON"),
    "negative time": (LINE.replace('"timestamp": 0', '"timestamp": -1'), "timestamp"),
    "absurd time": (LINE.replace('"timestamp": 0', '"timestamp": 1e300'), "timestamp"),
    "time as text": (LINE.replace('"timestamp": 0', '"timestamp": "0"'), "timestamp"),
    "no time": (LINE.replace('"timestamp": 0, ', ""), "timestamp"),
    "no input_length": (LINE.replace('"input_length": 1025, ', ""), "input_length"),
    "no output_length": (LINE.replace('"output_length": 500, ', ""), "output_length"),
    "no hash_ids": ('{"timestamp": 0, "input_length": 1025, "output_length": 500}', "hash_ids"),
    "input_length 0": (LINE.replace("1025", "0"), "input_length"),
    "input_length negative": (LINE.replace("1025", "-1025"), "input_length"),
    "input_length 2^63": (LINE.replace("1025", "9223372036854775808"), "JSON"),
    "input_length 2^63-1": (LINE.replace("1025", "9223372036854775807"), "input_length"),
    "input_length a fraction": (LINE.replace("1025", "1025.5"), "input_length"),
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


main(globals())
