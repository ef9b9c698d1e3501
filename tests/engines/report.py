# SPDX-License-Identifier: Apache-2.0
"""The table of scenarios in a document, between two marks. A row stays, with its date, until its scenario runs again."""
import re
import time

HEAD = "| scenario | | day | what came out |\n|---|---|---|---|\n"


def _cells(line):
    return [c.strip() for c in line.strip("|\n ").split("|", 3)]


def _cell(text):
    """What a document keeps of it: the first line, and of paths the last name. All of it is on the terminal."""
    line = (text.strip().splitlines() or [""])[0].replace("|", "/")
    return re.sub(r"(?<![\w.:/])/(?:[\w.+-]+/)+", "", line)[:400]


def put(path, marks, title, scenarios, told):
    """`told`: scenario -> (holds or FAILED, what came out) of this run; `scenarios`: all that there are, in order."""
    with open(path, encoding="utf-8") as f:
        before, rest = f.read().split(marks[0])
    old, after = rest.split(marks[1])
    rows = {cells[0]: cells[1:] for cells in map(_cells, old.splitlines()) if len(cells) == 4 and cells[0] in scenarios}
    rows |= {name: [ok, time.strftime("%Y-%m-%d"), _cell(text)] for name, (ok, text) in told.items()}
    lines = "".join(f"| {name} | {' | '.join(rows[name])} |\n" for name in scenarios if name in rows)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"{before}{marks[0]}\n{title}:\n\n{HEAD}{lines}{marks[1]}{after}")
