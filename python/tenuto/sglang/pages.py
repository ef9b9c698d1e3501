# SPDX-License-Identifier: Apache-2.0
"""Where the pages of a host pool of SGLang lie: pure, over addresses, so that it needs neither SGLang nor torch.

A page of SGLang is a block of Tenuto. It lies in some segments of equal shape on every page: K and V of all layers (page_first and its relatives), or of each
layer (layer_first). The pool itself says where, for two of its pages.
"""
from dataclasses import dataclass

from tenuto import _core

PIECE = 1 << 20  # largest object


@dataclass
class Pages:
    """`ranges`: (address, bytes) of the memory; `base`, `strides`: as _core.Pool wants them; `flat`: where the segments begin in a flat page, in bytes."""
    geometry: _core.Geometry
    npages: int
    ranges: list
    base: list
    strides: list
    flat: list
    page_bytes: int


def _split(segments):
    """Segments of at most PIECE bytes, all as often divided, in the order in which they come."""
    parts = 1
    while any(size % parts or size // parts > PIECE for _, size, _ in segments):
        parts += 1
        if parts > max(size for _, size, _ in segments):
            raise ValueError(f"tenuto: pages with segments of {sorted({s for _, s, _ in segments})} bytes cannot be divided alike")
    return [(at + i * (size // parts), size // parts, stride) for at, size, stride in segments for i in range(parts)]


def _period(segments):
    """After how many segments sizes and strides repeat: the planes of a layer."""
    shape = [s[1:] for s in segments]
    for n in range(1, 9):
        if len(shape) % n == 0 and all(s == shape[i % n] for i, s in enumerate(shape)):
            return n
    raise NotImplementedError(f"tenuto: pages lie in {len(shape)} segments of too many sizes")


def pages_of(first, second, npages):
    """first, second: (addresses, sizes) of the segments of page 0 and page 1; npages: how many there are. Raises ValueError, NotImplementedError."""
    if len(first[0]) != len(first[1]) or list(first[1]) != list(second[1]) or not first[0]:
        raise ValueError("tenuto: the pool's pages are not alike")
    whole = [(a, size, b - a) for a, size, b in zip(first[0], first[1], second[0])]
    for at, size, stride in whole:
        if stride < size:
            raise NotImplementedError(f"tenuto: pages of {size} bytes at a distance of {stride}: they are not in order")
    segments = _split(whole)
    planes = _period(segments)
    geometry = _core.Geometry(len(segments) // planes, [(_core.PLANE_K, 1, size, 8) for _, size, _ in segments[:planes]], 1, 1)
    spans = sorted((at, at + stride * (npages - 1) + size) for at, size, stride in whole)
    merged = [list(spans[0])]
    for begin, end in spans[1:]:
        if begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    starts, ranges = [], []
    for begin, end in merged:
        starts.append((begin, end, sum(size for _, size in ranges)))
        ranges.append((begin, end - begin))
    base = [next(offset + at - begin for begin, end, offset in starts if begin <= at < end) for at, _, _ in segments]
    flat, total = [0] * len(segments), 0
    for i in sorted(range(len(segments)), key=lambda i: segments[i][0]):
        flat[i] = total
        total += segments[i][1]
    return Pages(geometry, npages, ranges, base, [stride for _, _, stride in segments[:planes]], flat, total)
