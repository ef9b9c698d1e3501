# SPDX-License-Identifier: Apache-2.0
"""Pictures of what the programs print with --json (`pip install tenuto[plot]` for matplotlib).

    python -m tenuto.plot hits RUN.json ... -o hits.png          tenuto replay --json, a run per file: hit rate against capacity
    python -m tenuto.plot bubble TABLE.json -o bubble.png        tenuto bench pipeline --json: what the GPU waits against hit rate
    python -m tenuto.plot bandwidth LINES -o bandwidth.png       tenuto status --json, some lines: bytes per second over time

'-' is standard input. The suffix of the picture says its format. hits(), bubble() and bandwidth() draw into axes of the caller's own; series_of_hits() and its
like are the numbers alone, for other tools.
"""
from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Series = dict[str, list[tuple[float, float]]]

LOADED, SAVED = 'tenuto_loaded_bytes_total', 'tenuto_saved_bytes_total'


def _field(of: Mapping[str, Any], name: str, what: str) -> Any:
    if name not in of:
        raise ValueError(f"this is no output of {what} with --json: it has no '{name}'")
    return of[name]


def series_of_hits(runs: Iterable[Mapping[str, Any]]) -> Series:
    """Of runs of tenuto replay: by policy (and number of ranks, if there are several) points of capacity in blocks and hit rate, 0 to 1."""
    out: Series = {}
    for run in runs:
        name = str(_field(run, 'policy', 'tenuto replay'))
        if run.get('ranks', 1) > 1:
            name += f", {run['ranks']} ranks"
        out.setdefault(name, []).append((float(_field(run, 'capacity_blocks', 'tenuto replay')), float(_field(run, 'hit_rate', 'tenuto replay'))))
    return {name: sorted(points) for name, points in out.items()}


def series_of_bubble(table: Mapping[str, Any]) -> Series:
    """Of a table of tenuto bench pipeline: by strategy, and with or without writes, points of hit rate, 0 to 1, and what the GPU waits, in ms."""
    out: Series = {}
    for row in _field(table, 'rows', 'tenuto bench pipeline'):
        name = f"{_field(row, 'strategy', 'tenuto bench pipeline')}{', with writes' if row.get('writes') else ''}"
        out.setdefault(name, []).append((float(row['hit_rate']), float(_field(row, 'bubble_ms', 'tenuto bench pipeline'))))
    return {name: sorted(points) for name, points in out.items()}


def _sum(metrics: Mapping[str, float], name: str) -> float:
    return sum(v for k, v in metrics.items() if k == name or k.startswith(name + '{'))


def series_of_bandwidth(lines: Iterable[Mapping[str, Any]]) -> Series:
    """Of lines of tenuto status: points of seconds since the first line, and GB/s between a line and the one before; loads by tier, and saves."""
    out: Series = {}
    first = before = None
    for line in lines:
        at, metrics = float(_field(line, 'time', 'tenuto status')), _field(line, 'metrics', 'tenuto status')
        now = {'loads, ' + k.split('"')[1]: v for k, v in metrics.items() if k.startswith(LOADED + '{')}
        now['saves'] = _sum(metrics, SAVED)
        if before is not None and at > before[0]:
            for name, value in now.items():
                rate = max(0.0, value - before[1].get(name, 0.0)) / (at - before[0]) / 1e9  # an owner that began anew counts from 0
                out.setdefault(name, []).append((at - first, rate))
        first, before = (at if first is None else first), (at, now)
    return out


def _draw(series: Series, axes: Any, title: str, x: str, y: str) -> Any:
    if not series:
        raise ValueError('there is nothing to draw: no run, or one line alone')
    if axes is None:
        axes = _figure().add_subplot()
    for name, points in series.items():
        axes.plot([p[0] for p in points], [p[1] for p in points], marker='o' if len(points) < 50 else None, label=name)
    axes.set(title=title, xlabel=x, ylabel=y)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    return axes


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # no pyplot: no window, and nothing global
    except ImportError as e:
        raise ImportError('tenuto.plot needs matplotlib: pip install matplotlib, or tenuto[plot]') from e
    return Figure(figsize=(8, 5), layout='constrained')


def hits(runs: Iterable[Mapping[str, Any]], axes: Any = None) -> Any:
    """Hit rate against capacity; the axes, of a new figure if none are given."""
    return _draw(series_of_hits(runs), axes, 'Hit rate against capacity', 'blocks on disk', 'hit rate')


def bubble(table: Mapping[str, Any], axes: Any = None) -> Any:
    """What the GPU waits against hit rate; the axes, of a new figure if none are given."""
    return _draw(series_of_bubble(table), axes, 'What the GPU waits for KV', 'hit rate', 'ms')


def bandwidth(lines: Iterable[Mapping[str, Any]], axes: Any = None) -> Any:
    """Bytes per second over time; the axes, of a new figure if none are given."""
    return _draw(series_of_bandwidth(lines), axes, 'Bytes of loads and saves', 's', 'GB/s')


def _read(names: Sequence[str]) -> list[Any]:
    """All JSON values of the files, whether one fills a file or each has a line."""
    out, decoder = [], json.JSONDecoder()
    for name in names:
        if name == '-':
            text = sys.stdin.read()
        else:
            with open(name, encoding='utf-8') as f:
                text = f.read()
        at = 0
        while text[at:].strip():
            at += len(text[at:]) - len(text[at:].lstrip())
            try:
                value, at = decoder.raw_decode(text, at)
            except ValueError as e:
                raise ValueError(f'{name}: this is no JSON: {e}') from e
            out.append(value)
    return out


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='python -m tenuto.plot', description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('picture', choices=['hits', 'bubble', 'bandwidth'])
    parser.add_argument('files', nargs='+', metavar='FILE')
    parser.add_argument('-o', '--out', required=True, metavar='FILE.png', help='where to; .svg, .pdf and others by their suffix')
    args = parser.parse_args(argv)
    try:
        values = _read(args.files)
        if args.picture == 'bubble' and len(values) != 1:
            raise ValueError(f'{len(values)} tables were given: a picture has one')
        draw = {'hits': hits, 'bandwidth': bandwidth, 'bubble': lambda v: bubble(v[0])}[args.picture]
        draw(values).figure.savefig(args.out)
    except (OSError, ValueError, ImportError) as e:
        print(f'tenuto.plot: {e}', file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main())
