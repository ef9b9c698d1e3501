# SPDX-License-Identifier: Apache-2.0
"""Where the pages of vLLM's KV tensors lie in memory: pure, over shapes and strides, so that it needs neither vLLM nor torch.

A page is one layer of one of vLLM's blocks. It moves whole, whatever is inside: K and V side by side in one piece (vLLM on CPUs, FlashInfer), in two pieces
(FlashAttention), or the one latent vector of MLA.
"""
from dataclasses import dataclass, field

from tenuto import _core


@dataclass
class Layer:
    """One layer: `offsets` in bytes from the beginning of its storage to page 0 of each plane; `stride` from page to page. `order`: of heads and tokens in a page."""
    storage: tuple  # (address, bytes)
    offsets: tuple
    stride: int
    page_bytes: int
    order: int = _core.NHD


def layer_of(name, shape, strides, itemsize, address, storage, blocks):
    """A Layer of a tensor with so many blocks in one of its dimensions. Strides in elements. Raises ValueError, NotImplementedError."""
    at = _block_dimension(name, shape, blocks)
    step = strides[at] * itemsize
    inner = sorted((strides[d] * itemsize, shape[d]) for d in range(len(shape)) if d != at and shape[d] > 1 and strides[d] * itemsize < step)
    outer = [(strides[d] * itemsize, shape[d]) for d in range(len(shape)) if d != at and shape[d] > 1 and strides[d] * itemsize >= step]
    page = itemsize
    for stride, size in inner:
        if stride != page:
            raise NotImplementedError(f"tenuto: {name}: the bytes of a block have gaps (shape {tuple(shape)}, strides {tuple(strides)})")
        page *= size
    offsets = [address - storage[0]]
    for stride, size in outer:
        offsets = [o + i * stride for o in offsets for i in range(size)]
    if len(offsets) > 8:
        raise NotImplementedError(f"tenuto: {name}: a block lies in {len(offsets)} pieces, 8 at most (shape {tuple(shape)})")
    whole = shape[at] // blocks  # an attention kernel's blocks may be smaller than vLLM's
    if whole > 1 and page != step:
        raise NotImplementedError(f"tenuto: {name}: vLLM's blocks are {whole} of the kernel's, with gaps between them")
    return Layer(tuple(storage), tuple(offsets), step * whole, page * whole)


def order_of(name, shape, strides, blocks, heads, layout):
    """The order of heads and tokens in the pages of a tensor [blocks, heads, tokens, bytes of K and V], for canonical shares. Of one head either is the same:
    `layout`, vLLM's name of the order of dimensions, says what it is where a worker has more. Raises NotImplementedError."""
    if len(shape) != 4 or shape[0] != blocks or shape[1] != heads:
        raise NotImplementedError(f'tenuto: shares: "canonical": {name} has shape {tuple(shape)}, and [{blocks} blocks, {heads} heads, tokens, bytes] is wanted. Use a '
                                  "block_size that the attention's kernel has, or shares: rank")
    heads_first = "NH" not in str(layout) if heads == 1 else strides[1] >= strides[2] * shape[2]
    return _core.HND if heads_first else _core.NHD


def _block_dimension(name, shape, blocks):
    for d, size in enumerate(shape[:2]):
        if size >= blocks and size % blocks == 0:
            return d
    raise ValueError(f"tenuto: {name}: no dimension of {tuple(shape)} has {blocks} blocks")


@dataclass
class Group:
    """The layers that share a block table: what a space is opened for, and where a pool lies."""
    index: int
    layers: list
    block_tokens: int
    geometry: bytes
    base: list = field(default_factory=list)
    strides: list = field(default_factory=list)


def group_of(index, names, layers, block_tokens, latent, heads=0):
    """A Group of Layers. All must be alike, for a block has one geometry. `heads`: of a page; 0: not told apart. Raises ValueError, NotImplementedError."""
    first, heads = layers[0], heads or 1
    for name, layer in zip(names, layers):
        if (layer.page_bytes, layer.stride, len(layer.offsets), layer.order) != (first.page_bytes, first.stride, len(first.offsets), first.order):
            raise NotImplementedError(f"tenuto: layer {name} of group {index} has pages of another size or stride than layer {names[0]}")
    if first.page_bytes % (block_tokens * heads):
        raise ValueError(f"tenuto: group {index}: {first.page_bytes} bytes are no whole number of bytes for each of {block_tokens} tokens and {heads} heads")
    kinds = [_core.PLANE_LATENT] if latent else [_core.PLANE_K] + [_core.PLANE_V] * 7
    planes = [(kinds[p if p < len(kinds) else -1], heads, first.page_bytes // (block_tokens * heads), 8) for p in range(len(first.offsets))]
    geometry = _core.Geometry(len(layers), planes, block_tokens, 1, first.order)
    return Group(index, list(names), block_tokens, geometry.to_bytes())


def place(groups, layers_by_name):
    """The ranges of memory that all layers lie in; sets base and strides of each group."""
    storages = sorted({layer.storage for layer in layers_by_name.values()})
    starts, total = {}, 0
    for storage in storages:
        starts[storage] = total
        total += storage[1]
    for group in groups:
        layers = [layers_by_name[n] for n in group.layers]
        group.base = [starts[layer.storage] + o for layer in layers for o in layer.offsets]
        group.strides = [layers[0].stride] * len(layers[0].offsets)
    return storages
