"""What blocks and threads of GPU schedules touch of each tensor, from tiles and access maps.

Goes in: a `Batch`, and its schema's `Tiling`: how many outputs of the main stage a block and a
thread have along each iterator, the reduction of one piece, and which way neighbouring lanes lie.
Comes out: a `Footprint` for each buffer: elements, lines of memory, uses, strides. Everything is an
array with a number for each schedule. Formulas speak of iterators and affine indices alone, so that
they hold for every operator and schema:

    elements    prod over the tensor's axes of min(extent, points of the axis' iterators, size), the
                extent of an index sum(c_i i) + const over a tile t being sum(c_i (t_i - 1)) + 1
    lines       runs of elements side by side, each in whole lines of 128 bytes
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from tilewright.kernels.gpu.columns import Array, Batch, Sizes, Tiling, point_tiling
from tilewright.kernels.gpu.registry import schema_named
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Stage

LINE_BYTES = 128


def tiling_of(batch: Batch) -> Tiling:
    """[Batch] -> [Tiling]"""
    return (schema_named(batch.schema).tiling or point_tiling)(batch)


@dataclass(frozen=True)
class Footprint:
    """One buffer as the main kernel sees it; arrays, or plain numbers where schedules agree.

    bytes          of the tensor
    block_bytes    distinct bytes that a block touches      lines     lines of memory of these
    uses           accesses of a block for each element that it touches
    passes         bytes that all blocks touch over those of the tensor
    thread_bytes   distinct bytes of a thread in one step of the reduction
    thread_uses    its products for each of these elements
    lane_stride    elements between what neighbouring lanes touch
    step_stride    elements between two steps of the innermost reduction
    """

    bytes: Array = field(repr=False)
    block_bytes: Array = field(repr=False)
    lines: Array = field(repr=False)
    uses: Array = field(repr=False)
    passes: Array = field(repr=False)
    thread_bytes: Array = field(repr=False)
    thread_uses: Array = field(repr=False)
    lane_stride: Array = field(repr=False)
    step_stride: Array = field(repr=False)


FIELDS = tuple(Footprint.__dataclass_fields__)
BUFFERS = ('input', 'weights', 'beside', 'result')


def footprints(batch: Batch, tiling: Tiling, blocks: Array) -> dict[str, Footprint]:
    """The four buffers of a group: the main stage's operand that moves, its constant one, all that
    other stages read (added up), and the result.
    """
    group, stage, rows = batch.group, batch.group.main, len(batch)
    none = Footprint(*(np.zeros(rows) for _ in FIELDS))
    first, second = _operands(group)
    beside = [
        _footprint(group.tensor(a.tensor), a, other, tiling, blocks, rows)
        for other in group.stages
        if other is not stage
        for a in other.reads
        if group.tensor(a.tensor).role in ('input', 'constant')
    ]
    own = [
        none if a is None else _footprint(group.tensor(a.tensor), a, stage, tiling, blocks, rows)
        for a in (first, second)
    ]
    added = Footprint(*(
        sum((getattr(one, name) for one in beside), np.zeros(rows)) for name in FIELDS
    ))  # fmt: skip
    last = group.stages[-1]
    result = _footprint(group.output, last.write, last, tiling, blocks, rows)
    return dict(zip(BUFFERS, (*own, added, result), strict=True))


def _operands(group: Group) -> tuple[Access | None, Access | None]:
    """(what moves, what is constant) of the main stage, the largest of each."""
    reads = sorted(group.main.reads, key=lambda a: -group.tensor(a.tensor).size)
    constant = [a for a in reads if group.tensor(a.tensor).role == 'constant']
    moving = [a for a in reads if group.tensor(a.tensor).role != 'constant']
    if not constant and len(moving) > 1:
        moving, constant = moving[:1], moving[1:]
    return (moving[0] if moving else None), (constant[0] if constant else None)


def _footprint(
    tensor: Tensor, access: Access, stage: Stage, tiling: Tiling, blocks: Array, rows: int
) -> Footprint:
    one = np.ones(rows, int)
    reductions = set(stage.reduction)
    share = {name: tiling.share.get(name, one * stage.sizes[name]) for name in reductions}
    sizes = {d: np.minimum(tiling.block.get(d, one), stage.sizes[d]) for d in stage.parallel}
    thread = {d: np.minimum(tiling.thread.get(d, one), stage.sizes[d]) for d in stage.parallel}
    width = DTYPES[tensor.dtype]
    elements, lines = touched(tensor, access, sizes | share, width)
    points = _product({**sizes, **share}.values(), rows)
    mine, _ = touched(tensor, access, thread | dict.fromkeys(reductions, one), width)
    strides = dict(zip(range(len(tensor.shape)), tensor.strides, strict=True))

    def stride(name: str) -> int:
        return sum(e.coefficient(name) * strides[axis] for axis, e in enumerate(access.index))

    lane = sum((step * stride(name) for name, step in tiling.lane.items()), np.zeros(rows))
    inner = stage.reduction[-1] if stage.reduction else ''
    return Footprint(
        np.full(rows, float(tensor.bytes)), width * elements, lines, points / elements,
        blocks * elements / tensor.size, width * mine, _product(thread.values(), rows) / mine,
        lane, np.full(rows, float(stride(inner) if inner else 0)),
    )  # fmt: skip


def _product(values: Iterable[Array], rows: int) -> Array:
    found = np.ones(rows)
    for value in values:
        found = found * value
    return found


def touched(tensor: Tensor, access: Access, sizes: Sizes, width: int) -> tuple[Array, Array]:
    """(distinct elements, lines of memory) of an access over a tile."""
    rows = len(next(iter(sizes.values())))
    elements, run, outer = np.ones(rows), np.ones(rows), np.ones(rows)
    joined = np.ones(rows, bool)  # whether all axes behind this one are covered
    for axis in reversed(range(len(tensor.shape))):
        index = access.index[axis]
        extent = sum((c * (sizes[n] - 1) for n, c in index.terms), np.zeros(rows)) + 1
        points = _product([sizes[n] for n in index.names], rows)
        here = np.minimum(np.minimum(extent, points), tensor.shape[axis])
        elements = elements * here
        run, outer = np.where(joined, run * here, run), np.where(joined, outer, outer * here)
        joined = joined & (here == tensor.shape[axis])
    return elements, outer * np.ceil(run * width / LINE_BYTES)
