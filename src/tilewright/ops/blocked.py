"""Blocked channels (NCHWc), by rewriting the description: no generator or model knows of them.

    In[n, c, h, w]  ->  In[n, cb, h, w, cl]   with c = b*cb + cl

The iterator that indexes the channel axis is split into two, everywhere; a split axis becomes an
outer axis in its place and an inner one at the end, contiguous. Everything stays affine, so the
reference, the traffic, the loop orders and the code of the blocked group follow by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewright.errors import SpecError
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Affine, Dim, Stage

CHANNEL_AXIS = 1


def blocked(group: Group, blocks: Mapping[str, int]) -> Group:
    """The same computation on tensors whose channels (axis 1) come in blocks.

    `blocks` maps tensor names to block sizes, e.g. {'In': 8, 'Out': 8}. Inner tensors follow the
    output. Block sizes must divide the channels (of each group, in grouped convolutions).
    """
    wanted = dict(blocks)
    if not group.is_plain:
        raise SpecError(f'{group.label} has tables, lookups or other dtypes: it cannot be blocked')
    for name, block in blocks.items():
        _check_block(group.tensor(name), block)
    if group.output.name in blocks:
        for tensor in group.with_role('inner'):
            wanted[tensor.name] = blocks[group.output.name]
    stages = tuple(_split_stage(stage, wanted) for stage in group.stages)
    tensors = tuple(
        _split_tensor(t, wanted[t.name]) if t.name in wanted else t for t in group.tensors
    )
    marks = ','.join(f'{name}{block}' for name, block in sorted(blocks.items()))
    return Group(f'{group.label}@{marks}', tensors, stages, group.storage)


def to_blocked(array: np.ndarray, block: int) -> np.ndarray:
    """NCHW -> NCHWc with blocks of `block` channels."""
    n, c, *rest = array.shape
    if c % block:
        raise SpecError(f'{c} channels cannot be cut into blocks of {block}; choose a divisor')
    split = array.reshape(n, c // block, block, *rest)
    return np.ascontiguousarray(np.moveaxis(split, 2, -1))


def from_blocked(array: np.ndarray) -> np.ndarray:
    """NCHWc -> NCHW."""
    moved = np.moveaxis(array, -1, 2)
    n, outer, block, *rest = moved.shape
    return np.ascontiguousarray(moved).reshape(n, outer * block, *rest)


def _check_block(tensor: Tensor, block: int) -> None:
    if len(tensor.shape) <= CHANNEL_AXIS:
        raise SpecError(f'{tensor.name} has no channel axis to block')
    channels = tensor.shape[CHANNEL_AXIS]
    if block < 2 or channels % block:
        raise SpecError(
            f'{tensor.name} has {channels} channels, which blocks of {block} do not divide; '
            f'choose a block of at least 2 that does'
        )


def _split_tensor(tensor: Tensor, block: int) -> Tensor:
    name = tensor.dims[CHANNEL_AXIS]
    dims, shape = list(tensor.dims), list(tensor.shape)
    dims[CHANNEL_AXIS], shape[CHANNEL_AXIS] = f'{name}b', shape[CHANNEL_AXIS] // block
    return replace(tensor, dims=(*dims, f'{name}l'), shape=(*shape, block))


def _split_stage(stage: Stage, blocks: Mapping[str, int]) -> Stage:
    """Split the iterators that index blocked axes, then the axes themselves."""
    splits: dict[str, int] = {}
    for access in stage.accesses:
        if access.tensor in blocks:
            name, block = _channel_iterator(stage, access), blocks[access.tensor]
            if splits.setdefault(name, block) != block:
                raise SpecError(
                    f'stage {stage.name}: blocks of {block} and {splits[name]} over one dimension '
                    f'{name}; give both tensors the same block'
                )
    for name, block in splits.items():
        if stage.sizes[name] % block:
            raise SpecError(
                f'stage {stage.name}: dimension {name} has size {stage.sizes[name]}, which blocks '
                f'of {block} do not divide'
            )
    dims: list[Dim] = []
    for dim in stage.dims:
        if dim.name in splits:
            dims.append(replace(dim, name=f'{dim.name}b', size=dim.size // splits[dim.name]))
        else:
            dims.append(dim)
    for kind in ('parallel', 'reduction'):
        dims += [
            Dim(f'{d.name}l', splits[d.name], kind)
            for d in stage.dims
            if d.name in splits and d.kind == kind
        ]
    return replace(
        stage,
        dims=tuple(dims),
        write=_split_access(stage.write, splits, blocks),
        reads=tuple(_split_access(a, splits, blocks) for a in stage.reads),
    )


def _channel_iterator(stage: Stage, access: Access) -> str:
    names = [n for n, c in access.index[CHANNEL_AXIS].terms if c == 1]
    if len(names) != 1:
        raise SpecError(
            f'stage {stage.name}: the channels of {access.tensor} are indexed by '
            f'{access.index[CHANNEL_AXIS].names}, of which none steps by one'
        )
    return names[0]


def _split_access(access: Access, splits: Mapping[str, int], blocks: Mapping[str, int]) -> Access:
    index = [_split_affine(e, splits) for e in access.index]
    if access.tensor not in blocks:
        return Access(access.tensor, tuple(index))
    block, channel = blocks[access.tensor], index[CHANNEL_AXIS]
    outer = tuple((n, c // block) for n, c in channel.terms if c % block == 0)
    inner = tuple((n, c) for n, c in channel.terms if c % block)
    if channel.const or [c for _, c in inner] != [1]:
        raise SpecError(
            f'the channels of {access.tensor} cannot be cut into blocks of {block}: a group of '
            f'channels does not begin at a block'
        )
    index[CHANNEL_AXIS] = Affine(outer)
    return Access(access.tensor, (*index, Affine(inner)))


def _split_affine(expression: Affine, splits: Mapping[str, int]) -> Affine:
    terms: list[tuple[str, int]] = []
    for name, coefficient in expression.terms:
        if name in splits:
            terms += [(f'{name}b', coefficient * splits[name]), (f'{name}l', coefficient)]
        else:
            terms.append((name, coefficient))
    return Affine(tuple(terms), expression.const)
