"""Counts of many schedules of CNNOpt's kernels at once: counts.py's formulas on whole columns.

A layer has thousands of configurations, a training set tens of thousands.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tilewright.errors import InputError
from tilewright.kernels.gpu.columns import Array, Batch, Counts, Tiling, ceil_div, reduced
from tilewright.kernels.gpu.schemas.cnnopt.counts import other_registers
from tilewright.kernels.gpu.schemas.cnnopt.join import ATOMICS, SECOND_PASS
from tilewright.kernels.gpu.schemas.cnnopt.plan import DECISIONS, Axis, plan
from tilewright.kernels.gpu.work import WARP


def count_many(batch: Batch) -> Counts:
    """[Batch] -> [Counts]"""
    group = batch.group
    missing = [name for name in DECISIONS if name not in batch.tiles]
    if missing:
        raise InputError(f'a schedule of {batch.schema} also decides {", ".join(missing)}')
    sample = plan(group, batch.schedule(0))  # says whether the schema applies, and finds the axes
    rows = sample.rows
    d = {name: np.asarray(batch.tiles[name], np.int64) for name in DECISIONS}
    (rk, ry, rx), (tk, ty, tx), (wk, wy, wx) = (
        tuple(d[f'{level}{dim}'] for dim in 'kyx') for level in 'rtw'
    )
    bk, by, bx = rk * tk * wk, ry * ty * wy, rx * tx * wx
    cb, split, join = d['cb'], d['split'], d['join']
    taps, columns = sample.taps, sample.columns
    plane_y, plane_x = slice_of(sample.y, by), slice_of(sample.x, bx)
    slice_y = np.ones_like(ry) if rows else slice_of(sample.y, ry)
    slice_x = slice_of(sample.x, rx)
    warps = wk * wy * wx
    images = int(np.prod([size for _, size in sample.images]))
    tiles = ceil_div(columns, bk) * ceil_div(sample.y.outputs, by) * ceil_div(sample.x.outputs, bx)
    pieces = ceil_div(ceil_div(sample.channels, cb), split)
    channels = pieces * cb
    inputs = ry * sample.y.taps * slice_x if rows else slice_y * slice_x
    weights = taps * rk * ry if rows else taps * rk
    unit, wide = np.where(bk % 4, 1, 4), np.where(rk % 4, 1, 4)
    result = 4.0 * bk * by * bx
    outputs = 4.0 * np.prod(group.output.shape)
    epilogue = bool(group.epilogue)
    atomics, second = (split > 1) & (join == ATOMICS), (split > 1) & (join == SECOND_PASS)
    none = np.zeros(len(batch))
    values = (
        bk, by, bx, rk, ry, rx, tk, ty, tx, wk, wy, wx,
    )  # fmt: skip
    names = ('block', 'thread', 'lanes', 'warps')
    levels = {f'{level}_{dim}': values[3 * i + j]
              for i, level in enumerate(names) for j, dim in enumerate('kyx')}  # fmt: skip
    return Counts(
        blocks=images * tiles * sample.groups * split, split=split, threads=WARP * warps,
        registers=rk * ry * rx + slice_y * slice_x + 1 + other_registers(rows),
        shared_bytes=4 * d['stages'] * cb * (plane_y * plane_x + taps * bk), stages=d['stages'],
        pieces=pieces, products=1.0 * warps * channels * taps * rk * ry * rx, matrix=none,
        reads=warps * channels * (inputs + weights / wide),
        wavefronts=1.0 * warps * channels * (_conflicts(sample.y, sample.x, d) * inputs + weights),
        copies=channels * (plane_y * plane_x / WARP + taps * bk / (unit * WARP)),
        copied=4.0 * channels * (plane_y * plane_x + taps * bk), other=none, stored=result,
        joined=np.where(atomics, result / 2, result),
        extra_kernels=np.where(atomics, 1 + epilogue, np.where(second, 1, 0)),
        extra_bytes=np.where(
            atomics, outputs * (1 + 2 * epilogue), np.where(second, outputs * (split + 1), 0.0)
        ),
        wide=none, turns=none, tiles=levels, staged_rows=plane_y, staged_columns=plane_x, depth=cb,
    )  # fmt: skip


def slice_of(axis: Axis, outputs: Array) -> Array:
    """Inputs under neighbouring outputs, as `Axis.slice`."""
    return (outputs - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1


def _conflicts(y: Axis, x: Axis, d: Mapping[str, Array]) -> Array:
    """Cycles of one read of inputs by a warp: lanes at different places of one bank.

    They depend on few numbers, which are counted once for each combination.
    """
    pitch = slice_of(x, d['rx'] * d['tx'] * d['wx'])
    keys = np.stack([d['ty'], d['tx'], d['ry'] * y.stride * pitch, d['rx'] * x.stride], 1)
    distinct, back = np.unique(keys, axis=0, return_inverse=True)
    most = []
    for ty, tx, down, across in distinct.tolist():
        places = {i * down + j * across for i in range(ty) for j in range(tx)}
        most.append(max(np.bincount([place % WARP for place in places])))
    return np.array(most)[back.reshape(-1)]


def tiling(batch: Batch) -> Tiling:
    """[Batch] -> [Tiling]"""
    p = plan(batch.group, batch.schedule(0))
    c = p.contraction
    names = {'k': c.vector, 'y': p.y.pixel, 'x': p.x.pixel}
    sizes = c.stage.sizes
    block = {
        name: np.minimum(
            batch.column(f'r{d}') * batch.column(f't{d}') * batch.column(f'w{d}'),
            sizes[name],
        )
        for d, name in names.items()
    }
    share, piece = reduced(batch, c, batch.column('cb'))
    along_x = batch.column('tx') > 1
    along_y = ~along_x & (batch.column('ty') > 1)
    lane = {
        p.x.pixel: along_x * batch.column('rx'), p.y.pixel: along_y * batch.column('ry'),
        c.vector: (~along_x & ~along_y) * batch.column('rk'),
    }  # fmt: skip
    return Tiling(
        block, {name: batch.column(f'r{d}') for d, name in names.items()}, share, piece, lane,
        np.where(batch.column('rk') % 4, 1, 4), np.ones(len(batch), int),
    )  # fmt: skip
