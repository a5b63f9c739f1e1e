"""A group cut into groups of one stage and its epilogue: what one loop nest or one kernel computes.

    softmax:  peak | total | divide      three parts, with `Peak` and `Total` stored between them
    LRN:      squares, scale             one part: the scale is applied as a sum is stored

Generators know a main stage and pointwise stages behind it. A group of several reducing stages, or
with stages before the main one, is computed part by part; a tensor that leaves its part is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Stage


@lru_cache(maxsize=256)
def parts(group: Group) -> tuple[Group, ...]:
    """[Group] -> [groups in the order in which they run], as few as a greedy cut finds.

    The last one writes the group's output. A group that is one part already is returned as it is;
    so is one whose stages take turns, step by step.
    """
    if group.is_sequential:
        return (group,)
    cut, start = [], 0
    while start < len(group.stages):
        end = next(e for e in range(len(group.stages), start, -1) if _is_part(group, start, e))
        cut.append(group.stages[start:end])
        start = end
    if len(cut) == 1:
        return (group,)
    return tuple(_part(group, stages) for stages in cut)


def depends_on_inputs(group: Group) -> tuple[bool, ...]:
    """For each part, whether it needs an input; what does not can be computed ahead."""
    moving = {t.name for t in group.with_role('input')}
    answers = []
    for part in parts(group):
        answers.append(any(t.name in moving for t in part.with_role('input')))
        if answers[-1]:
            moving.add(part.output.name)
    return tuple(answers)


def _is_part(group: Group, start: int, end: int) -> bool:
    """Whether stages `start` to `end` are one stage with its epilogue, and nothing else leaves."""
    first, *others = group.stages[start:end]
    written = [s.write.tensor for s in group.stages[start:end]]
    leaving = {a.tensor for s in group.stages[end:] for a in s.reads}
    if any(group.tensor(t).role != 'inner' or t in leaving for t in written[:-1]):
        return False
    return all(_is_epilogue(group, first, stage, written) for stage in others)


def _is_epilogue(group: Group, first: Stage, stage: Stage, written: Sequence[str]) -> bool:
    """Whether `stage` is pointwise, over all that `first` writes, and reads its value in place."""
    if stage.combiner is not None or not any(a.tensor in written for a in stage.reads):
        return False
    target, value = group.tensor(stage.write.tensor), group.tensor(first.write.tensor)
    if target.shape != value.shape:
        return False
    for here, there in zip(stage.write.index, first.write.index, strict=True):
        one = len(here.terms) == 1 and here.terms[0][1] == 1
        one |= _same_steps(here, there)
        whole = here.extent(stage.sizes) == there.extent(first.sizes)
        if not one or not whole or here.const != there.const:
            return False
    return all(
        access.index == stage.write.index and access.is_affine
        if access.tensor in written
        else _stays_inside(group, stage, access)
        for access in stage.reads
    )


def _same_steps(here: Affine, there: Affine) -> bool:
    """Whether both walk an axis by one iterator of the same step, or stand at one place."""
    return [c for _, c in here.terms] == [c for _, c in there.terms] and len(here.terms) < 2


def _stays_inside(group: Group, stage: Stage, access: Access) -> bool:
    shape, tables = group.tensor(access.tensor).shape, dict(access.tables)
    return all(
        min(tables[axis]) >= 0 and max(tables[axis]) < extent
        if axis in tables
        else e.const >= 0 and e.const + e.extent(stage.sizes) <= extent
        for axis, (e, extent) in enumerate(zip(access.index, shape, strict=True))
    )


def _part(group: Group, stages: Sequence[Stage]) -> Group:
    written = [s.write.tensor for s in stages]
    touched = {a.tensor for s in stages for a in s.accesses}
    tensors = []
    for tensor in group.tensors:
        if tensor.name not in touched:
            continue
        role = tensor.role
        if tensor.name == written[-1]:
            role = 'output'
        elif role in ('inner', 'output') and tensor.name not in written:
            role = 'input'
        tensors.append(replace(tensor, role=role))
    storage = tuple((name, level) for name, level in group.storage if name in written[:-1])
    return Group(f'{group.label}/{stages[0].name}', tuple(tensors), tuple(stages), storage)
