"""Images with channels innermost (NHWC), by rewriting the description.

    Out[n, k, h, w] += In[n, c, H, W] * Ker[k, c, r, s]
    Out[n, h, w, k] += In[n, H, W, c] * Ker[k, c, r, s]

Goes in: a group and the names of its tensors that lie so. Comes out: a group that computes the same
of them. Iterators stand in the order of what is written, so that loops that are left to a compiler
run along memory; no model or generator knows of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Stage

RANK = 4  # of images: [n, c, h, w]


def channels_last(group: Group, names: Collection[str]) -> Group:
    """The group with these tensors in NHWC; sums that are never stored follow the result."""
    if group.output.name in names:
        held = {t.name for t in group.with_role('inner') if len(t.shape) == RANK}
        names = {*names, *held}
    tensors = tuple(
        replace(t, dims=moved(t.dims), shape=moved(t.shape)) if t.name in names else t
        for t in group.tensors
    )
    stages = tuple(_stage(stage, names) for stage in group.stages)
    return replace(group, label=f'{group.label}-nhwc', tensors=tensors, stages=stages)


def moved(items: tuple) -> tuple:
    """(n, c, h, w) -> (n, h, w, c)"""
    first, second, *rest = items
    return (first, *rest, second)


def _access(access: Access, names: Collection[str]) -> Access:
    if access.tensor not in names:
        return access
    place = {0: 0, 1: len(access.index) - 1} | {a: a - 1 for a in range(2, len(access.index))}
    return Access(
        access.tensor,
        moved(access.index),
        tuple((place[axis], values) for axis, values in access.tables),
        tuple((place[axis], read) for axis, read in access.lookups),
    )


def _stage(stage: Stage, names: Collection[str]) -> Stage:
    write = _access(stage.write, names)
    reads = tuple(_access(access, names) for access in stage.reads)
    order = [*write.names, *(n for access in reads for n in access.names)]
    kinds = {d.name: d.kind == 'reduction' for d in stage.dims}
    dims = sorted(
        stage.dims,
        key=lambda d: (kinds[d.name], order.index(d.name) if d.name in order else len(order)),
    )
    return replace(stage, dims=tuple(dims), write=write, reads=reads)
