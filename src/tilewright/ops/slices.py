"""Results that are slices of larger tensors: how concatenations are computed without copies.

    Out[n, k, h, w] = ...   ->   Out[n, k + 64, h, w] = ...   with Out as wide as all branches

Every branch of a concatenation writes its channels into the one result; the offset is a constant in
an affine write, so that the reference and all generators follow by themselves. What cannot write in
place (a tensor that others read as well) is copied by `ops.elementwise.copy` in the same way.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.errors import SpecError
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.stage import Access, Affine, Stage


def into_slice(group: Group, axis: int, offset: int, extent: int) -> Group:
    """The group with a result of `extent` along `axis`, of which it writes a slice at `offset`.

    The rest of the result is left as it is.
    """
    shape = group.output.shape
    if not 0 <= axis < len(shape):
        raise SpecError(f'{group.label}: axis {axis} is none of the {len(shape)} of the result')
    if offset < 0 or offset + shape[axis] > extent:
        raise SpecError(
            f'{group.label}: {shape[axis]} elements at {offset} do not fit a result of {extent}'
        )
    moved = {stage.write.tensor for stage in parts(group)[-1].stages}
    tensors = tuple(
        replace(t, shape=(*t.shape[:axis], extent, *t.shape[axis + 1 :])) if t.name in moved else t
        for t in group.tensors
    )

    def move(access: Access) -> Access:
        if access.tensor not in moved:
            return access
        at = access.index[axis]
        index = (
            *access.index[:axis],
            Affine(at.terms, at.const + offset),
            *access.index[axis + 1 :],
        )
        return replace(access, index=index)

    def move_all(stage: Stage) -> Stage:
        return replace(stage, write=move(stage.write), reads=tuple(map(move, stage.reads)))

    return replace(
        group,
        label=f'{group.label}@{axis}:{offset}/{extent}',
        tensors=tensors,
        stages=tuple(map(move_all, group.stages)),
    )


def out_of_slice(group: Group, tensor: str, axis: int, offset: int, extent: int) -> Group | None:
    """The group that reads an operand as the slice at `offset` of one with `extent` along `axis`.

    None where it reads beyond the operand, whose neighbours would be read instead.
    """
    given = group.tensor(tensor)
    for stage in group.stages:
        for access in stage.reads:
            if access.tensor != tensor:
                continue
            at = access.index[axis]
            indirect = {a for a, _ in (*access.tables, *access.lookups)}
            last = at.const + at.extent(stage.sizes)
            if axis in indirect or at.const < 0 or last > given.shape[axis]:
                return None

    def moved(access: Access) -> Access:
        if access.tensor != tensor:
            return access
        at = access.index[axis]
        index = list(access.index)
        index[axis] = Affine(at.terms, at.const + offset)
        return replace(access, index=tuple(index))

    shape = (*given.shape[:axis], extent, *given.shape[axis + 1 :])
    return replace(
        group,
        label=f'{group.label}<{axis}:{offset}/{extent}',
        tensors=tuple(replace(t, shape=shape) if t.name == tensor else t for t in group.tensors),
        stages=tuple(replace(s, reads=tuple(map(moved, s.reads))) for s in group.stages),
    )
