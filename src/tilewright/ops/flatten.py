"""Neighbouring dimensions that every tensor walks as one, joined by rewriting the description.

    Out[n, k, h, w] += In[n, c, h, w] * Ker[k, c]   ->   Out[n, k, hw] += In[n, c, hw] * Ker[k, c]

A 1x1 convolution with stride 1 is a matrix product over pixels; rows and columns matter to nobody.
Joined, register tiles have one remainder in the image instead of one in every row. Memory is the
same byte for byte, so buffers, verification and callers keep the description they have; schedules
tile the dimensions of the joined one. No model or generator knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Affine, Dim, Stage, var

Axes = dict[str, int]  # tensor -> the first of two neighbouring axes that become one
Pairs = dict[str, tuple[str, str]]  # stage -> its two iterators that become one


def tiled_form(group: Group, names: Iterable[str]) -> Group:
    """The description whose main dimensions are `names`: the group, or the group flattened."""
    if set(names) == set(group.main.sizes):
        return group
    flat = flatten(group)
    return flat if set(names) == set(flat.main.sizes) else group


@lru_cache(maxsize=256)
def flatten(group: Group) -> Group:
    """The same computation with neighbouring parallel dimensions joined where all tensors agree.

    Two axes of the result become one if, in every stage, the iterators over them index neighbouring
    axes of the same extents, or nothing at all, in every tensor: no window, stride or padding.
    A group in which nothing can be joined is returned as it is.
    """
    if group.is_sequential:
        return group
    joined, axis = _without_points(group), 0
    given = len(joined.main.dims)
    while axis + 1 < len(joined.tensor(joined.main.write.tensor).shape):
        found = _closure(joined, axis)
        if found is None:
            axis += 1
        else:
            joined = _joined(joined, *found)
    return joined if len(joined.main.dims) < given else group


def _without_points(group: Group) -> Group:
    """The group without reductions of one point, such as the window of a 1x1 convolution.

    One reduction stays, since a sum has to be over something.
    """
    stage = group.main
    used = set(stage.expr.iterators())
    single = [d for d in stage.reduction if stage.sizes[d] == 1 and d not in used]
    if len(single) == len(stage.reduction):
        single = single[1:]

    def strip(access: Access) -> Access:
        index = (
            Affine(tuple((n, c) for n, c in e.terms if n not in single), e.const)
            for e in access.index
        )
        return replace(access, index=tuple(index))

    lean = replace(
        stage,
        dims=tuple(d for d in stage.dims if d.name not in single),
        reads=tuple(map(strip, stage.reads)),
    )
    return replace(group, stages=tuple(lean if s is stage else s for s in group.stages))


def _closure(group: Group, axis: int) -> tuple[Axes, Pairs] | None:
    """What has to be joined with axes `axis`, `axis + 1` of the main result; None if some cannot.

    Grown to a fixed point: a joined axis pair joins two iterators of every stage that touches the
    tensor, and joined iterators join axes of every tensor that they index.
    """
    axes: Axes = {group.main.write.tensor: axis}
    pairs: Pairs = {}
    while True:
        before = len(axes), len(pairs)
        for stage in group.stages:
            for access in stage.accesses:
                if access.tensor in axes:
                    pair = _pair(group, stage, access, axes[access.tensor])
                    if pair is None or pairs.setdefault(stage.name, pair) != pair:
                        return None
            for access in stage.accesses:
                place = _place(access, pairs.get(stage.name))
                if place is None:
                    continue
                if place < 0 or axes.setdefault(access.tensor, place) != place:
                    return None
        if (len(axes), len(pairs)) == before:
            return axes, pairs


def _pair(group: Group, stage: Stage, access: Access, axis: int) -> tuple[str, str] | None:
    """The iterators that walk the whole of axes `axis` and `axis + 1`, one each."""
    names = []
    shape = group.tensor(access.tensor).shape
    if {axis, axis + 1} & _indirect(access):
        return None
    for expression, extent in zip(access.index[axis : axis + 2], shape[axis:], strict=False):
        if expression.const or [c for _, c in expression.terms] != [1]:
            return None
        name = expression.names[0]
        if stage.sizes[name] != extent or name not in stage.parallel:
            return None
        if name in stage.expr.iterators():
            return None
        names.append(name)
    return (names[0], names[1]) if len(set(names)) == 2 else None


def _indirect(access: Access) -> set[int]:
    """Axes that are found through a table or another tensor."""
    return {axis for axis, _ in (*access.tables, *access.lookups)}


def _place(access: Access, pair: tuple[str, str] | None) -> int | None:
    """The axis that the first of `pair` indexes: None if neither occurs, -1 if they cannot join."""
    if pair is None or not set(pair) & set(access.names):
        return None
    where = [[i for i, e in enumerate(access.index) if name in e.names] for name in pair]
    if {*where[0], *where[1]} & _indirect(access):
        return -1
    if len(where[0]) == len(where[1]) == 1 and where[1][0] == where[0][0] + 1:
        return where[0][0]
    return -1


def _joined(group: Group, axes: Axes, pairs: Pairs) -> Group:
    tensors = tuple(_join_tensor(t, axes[t.name]) if t.name in axes else t for t in group.tensors)
    stages = tuple(
        _join_stage(s, pairs[s.name], axes) if s.name in pairs else s for s in group.stages
    )
    return replace(group, tensors=tensors, stages=stages)


def _join_tensor(tensor: Tensor, axis: int) -> Tensor:
    dims, shape = list(tensor.dims), list(tensor.shape)
    dims[axis : axis + 2] = [dims[axis] + dims[axis + 1]]
    shape[axis : axis + 2] = [shape[axis] * shape[axis + 1]]
    return replace(tensor, dims=tuple(dims), shape=tuple(shape))


def _join_stage(stage: Stage, pair: tuple[str, str], axes: Axes) -> Stage:
    name = ''.join(pair)
    while name in stage.sizes:
        name += '_'

    def join(access: Access) -> Access:
        if access.tensor not in axes:
            return access
        axis = axes[access.tensor]

        def moved(pairs: tuple) -> tuple:
            return tuple((a - (a > axis), other) for a, other in pairs)

        joined = (*access.index[:axis], var(name), *access.index[axis + 2 :])
        return Access(access.tensor, joined, moved(access.tables), moved(access.lookups))

    dims = [
        Dim(name, d.size * stage.sizes[pair[1]]) if d.name == pair[0] else d
        for d in stage.dims
        if d.name != pair[1]
    ]
    return replace(
        stage, dims=tuple(dims), write=join(stage.write), reads=tuple(map(join, stage.reads))
    )
