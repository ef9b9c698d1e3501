# SPDX-License-Identifier: Apache-2.0
"""From an engine's arrays to memories and pools: which bytes they cover, where each layer's and plane's first page is, and whether they fit."""
from __future__ import annotations

from typing import Any, NamedTuple

from . import _core


class Range(NamedTuple):
    """Bytes of a memory, and where they begin in it."""
    address: int
    bytes: int
    offset: int


def extent(view: _core.View) -> tuple[int, int]:
    """First byte of an array and the first behind it."""
    if any(s < 0 for s in view.strides):
        raise ValueError(f'an array with strides {view.strides} runs backwards')
    if 0 in view.shape:
        raise ValueError(f'an array of shape {view.shape} has no bytes')
    last = sum((n - 1) * s for n, s in zip(view.shape, view.strides))
    return view.pointer, view.pointer + last + view.itemsize


def ranges_of(views: list[_core.View]) -> list[Range]:
    """The bytes of several arrays, those that overlap taken together."""
    out: list[list[int]] = []
    for first, end in sorted(extent(v) for v in views):
        if out and first < out[-1][1]:
            out[-1][1] = max(out[-1][1], end)
        else:
            out.append([first, end])
    placed, offset = [], 0
    for first, end in out:
        placed.append(Range(first, end - first, offset))
        offset += end - first
    return placed


def register(cache: Any, make: Any, views: list[_core.View], ranges: list[Range], stage_bytes: int, driver: str | None) -> Any:
    """A memory of views that lie on one device, or in host memory."""
    devices = {v.device for v in views}
    if len(devices) > 1:
        where = ', '.join(sorted('host memory' if d is None else f'device {d}' for d in devices))
        raise ValueError(f'arrays in {where}: one memory has those of one device. Register the others with another call')
    device = devices.pop() if devices else None
    if device is None:
        return make(cache, [r[:2] for r in ranges], views, stage_bytes)
    return make(cache, [(*r[:2], device) for r in ranges], views, stage_bytes, driver or 'cuda')


def memory(cache: Any, make: Any, arrays: Any, stage_bytes: int, driver: str | None) -> Any:
    views = [_core.View(a, True) for a in arrays]
    return register(cache, make, views, ranges_of(views), stage_bytes, driver)


def _is_array(arrays: Any) -> bool:
    return isinstance(arrays, _core.View) or hasattr(arrays, '__dlpack__') or not isinstance(arrays, (list, tuple))


def _flatten(arrays: Any, depth: int, what: tuple[str, ...], where: str = 'arrays') -> list[Any]:
    """The arrays of nested sequences, so many levels deep."""
    if depth == 0:
        if not _is_array(arrays):
            raise TypeError(f'{where} is a sequence, but axes name all of its dimensions')
        return [arrays]
    if _is_array(arrays):
        raise TypeError(f'{where} is an array: a sequence by {what[0]} is wanted, or another letter in axes')
    return [a for i, item in enumerate(arrays) for a in _flatten(item, depth - 1, what[1:], f'{where}[{i}]')]


def _check_page(geometry: _core.Geometry, plane: int, view: _core.View, lead: int) -> None:
    """Whether what follows the axes is one contiguous page of the plane."""
    shape, strides = view.shape[lead:], view.strides[lead:]
    _, heads, head_dim, elem_bits = geometry.planes[plane]
    raw = geometry.page_tokens == 1 and heads == 1 and elem_bits == 8
    if elem_bits != 8 * view.itemsize and view.itemsize != 1 and not raw:
        raise ValueError(f'the array has elements of {8 * view.itemsize} bits, plane {plane} of the geometry of {elem_bits}')
    expected = view.itemsize
    for n, s in zip(reversed(shape), reversed(strides)):
        if n > 1 and s != expected:
            raise ValueError(f'a page of the array is not contiguous: shape {shape} with strides {strides} bytes')
        expected *= n
    if expected != geometry.page_bytes(plane):
        raise ValueError(f'a page of the array has {expected} bytes (shape {shape}), one of plane {plane} of the geometry {geometry.page_bytes(plane)}')
    tokens = geometry.page_tokens
    wanted = (heads, tokens, head_dim) if geometry.page_order == _core.HND else (tokens, heads, head_dim)
    if len(shape) == 3 and view.itemsize * 8 == elem_bits and shape != wanted:
        raise ValueError(f'a page of the array has shape {shape}, one of plane {plane} of the geometry {wanted}')


class _Layout(NamedTuple):
    npages: int
    base: list[int]  # addresses, by layer x planes + plane
    strides: list[int]


def _layout(geometry: _core.Geometry, views: list[_core.View], axes: str) -> _Layout:
    """Addresses of the first pages, and how far pages lie apart."""
    layers, planes = geometry.layers, len(geometry.planes)
    outside = [n for letter, n in (('l', layers), ('p', planes)) if letter not in axes]
    count = 1
    for n in outside:
        count *= n
    if len(views) != count:
        raise ValueError(f'{len(views)} arrays for {layers} layers and {planes} planes with axes {axes!r}: {count} are wanted')
    for view in views:
        extent(view)
    found: dict[tuple[int, int], tuple[int, int, int]] = {}
    for i, view in enumerate(views):
        if len(view.shape) < len(axes):
            raise ValueError(f'array {i} has shape {view.shape}: too few dimensions for axes {axes!r}')
        at = {letter: (view.shape[d], view.strides[d]) for d, letter in enumerate(axes)}
        for letter, n in (('l', layers), ('p', planes)):
            if letter in at and at[letter][0] != n:
                raise ValueError(f'array {i} has shape {view.shape}: dimension {axes.index(letter)} ({letter}) is {at[letter][0]}, the geometry says {n}')
        inner = i % planes if 'p' not in axes else 0
        outer = (i // (planes if 'p' not in axes else 1)) if 'l' not in axes else 0
        for layer in range(layers) if 'l' in at else (outer,):
            for plane in range(planes) if 'p' in at else (inner,):
                address = view.pointer + layer * at.get('l', (0, 0))[1] + plane * at.get('p', (0, 0))[1]
                found[layer, plane] = (address, at['n'][0], at['n'][1])
        for plane in range(planes) if 'p' in at else (inner,):
            _check_page(geometry, plane, view, len(axes))
    return _regular(found, layers, planes, [geometry.page_bytes(p) for p in range(planes)])


def _regular(found: dict[tuple[int, int], tuple[int, int, int]], layers: int, planes: int, page_bytes: list[int]) -> _Layout:
    """One number of pages for all, one stride per plane."""
    npages = {n for _, n, _ in found.values()}
    if len(npages) != 1:
        raise ValueError(f'the arrays have different numbers of pages: {sorted(npages)}')
    n = npages.pop()
    strides = []
    for plane in range(planes):
        steps = {found[layer, plane][2] for layer in range(layers)} if n > 1 else {page_bytes[plane]}
        if len(steps) != 1:
            raise ValueError(f'the arrays have different strides from page to page for plane {plane}: {sorted(steps)} bytes')
        strides.append(steps.pop())
    return _Layout(n, [found[layer, plane][0] for layer in range(layers) for plane in range(planes)], strides)


def _place(address: int, ranges: list[Range]) -> int:
    for r in ranges:
        if r.address <= address < r.address + r.bytes:
            return r.offset + address - r.address
    raise ValueError(f'an array at {address:#x} does not lie in this memory')


def _views(arrays: Any, axes: str, writable: bool) -> list[_core.View]:
    if sorted(axes) != sorted(set(axes)) or not set(axes) <= set('lpn') or 'n' not in axes:
        raise ValueError(f'axes {axes!r}: letters of l, p and n, each once, n among them')
    what = tuple(name for letter, name in (('l', 'layers'), ('p', 'planes')) if letter not in axes)
    return [_core.View(a, writable) for a in _flatten(arrays, len(what), what)]


def pool(cache: Any, make: Any, geometry: _core.Geometry, arrays: Any, axes: str, stage_bytes: int = 0, writable: bool = True,
         driver: str | None = None) -> _core.Pool:
    views = _views(arrays, axes, writable)
    layout = _layout(geometry, views, axes)
    ranges = ranges_of(views)
    held = register(cache, make, views, ranges, stage_bytes, driver)
    return _core.Pool(held, geometry, layout.npages, [_place(a, ranges) for a in layout.base], layout.strides)


def table(raw: bytes, columns: int) -> memoryview | list[Any]:
    """Rows of 64-bit numbers; none: an empty list, because no view has 0 rows."""
    return memoryview(raw).cast('Q', (len(raw) // (8 * columns), columns)) if raw else []


def share(make: Any, geometry: _core.Geometry, arrays: Any, axes: str, tp_size: int, tp_rank: int, kv_heads: int | None) -> Any:
    """What another process has to know of a pool over arrays."""
    views = _views(arrays, axes, False)
    layout = _layout(geometry, views, axes)
    ranges = ranges_of(views)
    devices = {v.device for v in views}
    if len(devices) > 1:
        raise ValueError('the arrays of one pool lie in host memory, or on one device')
    if kv_heads is None:
        if tp_size != 1:
            raise ValueError(f'kv_heads of the whole model is wanted for tp_size {tp_size}')
        kv_heads = next((heads for kind, heads, _, _ in geometry.planes if kind in (_core.PLANE_K, _core.PLANE_V)), 1)
    return make(geometry, [r[:2] for r in ranges], layout.npages, [_place(a, ranges) for a in layout.base], layout.strides, tp_size, tp_rank, kv_heads, devices.pop())


def pool_in(held: Any, geometry: _core.Geometry, arrays: Any, axes: str) -> _core.Pool:
    """A pool over arrays that lie in a memory that is registered already."""
    layout = _layout(geometry, _views(arrays, axes, False), axes)
    ranges, offset = [], 0
    for address, size, *_ in held.ranges:
        ranges.append(Range(address, size, offset))
        offset += size
    return _core.Pool(held, geometry, layout.npages, [_place(a, ranges) for a in layout.base], layout.strides)


def pool_for(space: Any, keys: Any, arrays: Any, pages: Any, axes: str, writable: bool) -> tuple[_core.Pool, Any]:
    """A pool for one load or save of arrays, and its pages."""
    if pages is None:
        pages = range(memoryview(keys).nbytes // _core.KEY_BYTES * space.geometry.pages_per_block)
    return pool(space.cache, _core.Memory, space.geometry, arrays, axes, writable=writable), pages
