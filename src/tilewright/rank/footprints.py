"""What blocks and threads of GPU schedules touch of each tensor, from tiles and access maps.

Goes in: a `Batch`. Comes out: a `Tiling`, how many outputs of the main stage a block and a thread
have along each iterator, the reduction of one piece, and which way neighbouring lanes lie; and from
it a `Footprint` for each buffer: elements, lines of memory, uses, strides. Everything is an array
with a number for each schedule. Formulas speak of iterators and affine indices alone, so that they
hold for every operator and schema:

    elements    prod over the tensor's axes of min(extent, points of the axis' iterators, size), the
                extent of an index sum(c_i i) + const over a tile t being sum(c_i (t_i - 1)) + 1
    lines       runs of elements side by side, each in whole lines of 128 bytes
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.gpu.schemas.cnnopt import plan as cnnopt_plan
from tilewright.kernels.gpu.schemas.depthwise import plan as depthwise_plan
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Stage
from tilewright.rank.counts import Array, Batch

LINE_BYTES = 128
Sizes = Mapping[str, Array]


@dataclass(frozen=True)
class Tiling:
    """By iterator of the main stage, an array each; iterators that are not named count as 1.

    block    outputs of a block            thread   outputs of a thread
    share    of the reduction, what one block computes
    piece    of the reduction, what is in shared memory (or in one thread's hands) at once
    lane     outputs between neighbouring lanes; 0 along the others
    vector   elements of the widest load   lanes    threads that share the reduction of an output
    """

    block: Sizes
    thread: Sizes
    share: Sizes
    piece: Sizes
    lane: Sizes
    vector: Array
    lanes: Array


def tiling_of(batch: Batch) -> Tiling:
    """[Batch] -> [Tiling]"""
    return _TILINGS.get(batch.schema, _points)(batch)


def _column(batch: Batch, name: str, default: int = 1) -> Array:
    column = batch.tiles.get(name)
    return np.full(len(batch), default) if column is None else np.asarray(column)


def _up(n: Array | int, by: Array) -> Array:
    return -(-n // np.maximum(by, 1))


def _whole(stage: Stage, names: Sequence[str], rows: int) -> dict[str, Array]:
    return {name: np.full(rows, stage.sizes[name]) for name in names}


def _boxed(count: Array, dims: Sequence[tuple[str, int]]) -> dict[str, Array]:
    """The box around so many neighbouring points, the last dimension fastest."""
    found = {}
    for name, size in reversed(dims):
        found[name] = np.clip(count, 1, size)
        count = _up(count, np.full(len(count), size))
    return found


def _contraction(group: Group) -> Contraction:
    return contract(group, vector_candidates(group)[0])


def _reduced(batch: Batch, c: Contraction, depth: Array) -> tuple[Sizes, Sizes]:
    """(share, piece) where pieces are `depth` channels under whole windows."""
    rows, sizes = len(batch), c.stage.sizes
    windows = _whole(c.stage, (*c.outer, *c.unrolled), rows)
    if not c.loop:
        return windows, windows
    share = _up(sizes[c.loop], _column(batch, 'split'))
    return windows | {c.loop: share}, windows | {c.loop: np.minimum(depth, share)}


def _tiled(batch: Batch) -> Tiling:
    c = _contraction(batch.group)
    sizes = c.stage.sizes
    pixels = [(d, sizes[d]) for d in c.pixels]
    bk, bp, tk, tp = (_column(batch, name) for name in ('bk', 'bp', 'tk', 'tp'))
    matrix = batch.intrinsic != 'fma'
    share, piece = _reduced(batch, c, _column(batch, 'kb'))
    if not matrix:
        own_k, own_p = tk, tp
    else:
        own_k, own_p = np.maximum(tk // 8, 1), np.maximum(tp // 4, 1)
    return Tiling(
        {c.vector: np.minimum(bk, sizes[c.vector]), **_boxed(bp, pixels)},
        {c.vector: own_k, **_boxed(own_p, pixels)}, share, piece,
        {c.pixels[-1]: np.ones(len(batch), int)} if c.pixels else {},
        np.full(len(batch), 4), np.ones(len(batch), int),
    )  # fmt: skip


def _patch(batch: Batch) -> Tiling:
    c = _contraction(batch.group)
    sizes = c.stage.sizes
    tile = {d: np.minimum(_column(batch, f'b{d.rstrip("_")}'), sizes[d]) for d in c.pixels}
    bk, tk, tp = (_column(batch, name) for name in ('bk', 'tk', 'tp'))
    wide = batch.intrinsic.startswith('wgmma')
    columns = np.maximum(tk // (2 if wide else 8), 1)
    pixels = np.maximum(tp // (64 if wide else 4), 1)
    share, piece = _reduced(batch, c, _column(batch, 'kb'))
    return Tiling(
        {c.vector: np.minimum(bk, sizes[c.vector]), **tile},
        {c.vector: columns, **_boxed(pixels, [(d, sizes[d]) for d in c.pixels])}, share, piece,
        {c.pixels[-1]: np.ones(len(batch), int)}, np.full(len(batch), 4),
        np.ones(len(batch), int),
    )  # fmt: skip


def _cnnopt(batch: Batch) -> Tiling:
    p = cnnopt_plan.plan(batch.group, batch.schedule(0))
    c = p.contraction
    names = {'k': c.vector, 'y': p.y.pixel, 'x': p.x.pixel}
    sizes = c.stage.sizes
    block = {
        name: np.minimum(
            _column(batch, f'r{d}') * _column(batch, f't{d}') * _column(batch, f'w{d}'),
            sizes[name],
        )
        for d, name in names.items()
    }
    share, piece = _reduced(batch, c, _column(batch, 'cb'))
    along_x = _column(batch, 'tx') > 1
    along_y = ~along_x & (_column(batch, 'ty') > 1)
    lane = {
        p.x.pixel: along_x * _column(batch, 'rx'), p.y.pixel: along_y * _column(batch, 'ry'),
        c.vector: (~along_x & ~along_y) * _column(batch, 'rk'),
    }  # fmt: skip
    return Tiling(
        block, {name: _column(batch, f'r{d}') for d, name in names.items()}, share, piece, lane,
        np.where(_column(batch, 'rk') % 4, 1, 4), np.ones(len(batch), int),
    )  # fmt: skip


def _depthwise(batch: Batch) -> Tiling:
    p = depthwise_plan.plan(batch.group, batch.schedule(0))
    stage, rows = p.stage, len(batch)
    th, tw = _column(batch, 'th'), _column(batch, 'tw')
    block = {
        p.rows.out: np.minimum(th * _column(batch, 'bh'), p.rows.outputs),
        p.columns.out: np.minimum(tw * _column(batch, 'bw'), p.columns.outputs),
        **_boxed(_column(batch, 'bp'), p.planes),
    }
    reduction = _whole(stage, stage.reduction, rows)
    fours = (p.columns.extent % 4 == 0) & (tw * p.columns.stride % 4 == 0)
    return Tiling(
        block, {p.rows.out: th, p.columns.out: tw}, reduction, reduction,
        {p.columns.out: tw}, np.where(fours, 4, 1), np.ones(rows, int),
    )  # fmt: skip


def _points(batch: Batch) -> Tiling:
    """One thread, or some lanes, for each point in the order of the result: the general schema."""
    stage, rows = batch.group.main, len(batch)
    length = math.prod(stage.sizes[d] for d in stage.reduction)
    lanes = np.minimum(_column(batch, 'lanes'), length)
    threads = _column(batch, 'threads', 0) + _column(batch, 'side', 0) * _column(batch, 'rows', 0)
    points = [(d, stage.sizes[d]) for d in stage.write.names]
    reduction = _whole(stage, stage.reduction, rows)
    last = stage.write.names[-1] if stage.write.names else ''
    inner = stage.reduction[-1] if stage.reduction else ''
    shared = (lanes > 1) & bool(inner)
    lane = {name: side for name, side in ((last, ~shared * 1), (inner, shared * 1)) if name}
    piece = {
        name: _up(size, np.where(shared, lanes, 1)) if name == inner else size
        for name, size in reduction.items()
    }
    return Tiling(
        _boxed(_up(threads, lanes), points), {}, reduction, piece, lane, np.ones(rows, int), lanes
    )


_TILINGS: dict[str, Callable[[Batch], Tiling]] = {
    'tiled': _tiled, 'patch': _patch, 'rs': _cnnopt, 's': _cnnopt, 'depthwise': _depthwise,
}  # fmt: skip


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
