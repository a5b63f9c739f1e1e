"""The core of a group: what decides its schedule, and what tuned results are stored under.

Goes in: a group. Comes out: the same without what stands around its sum of products. A bias, an
activation or a residual behind a convolution, or a normalisation before it, does not decide how it
is scheduled, so that it is searched and timed once; nor does storing f16 in 8 bits. The exceptions
are an epilogue behind which errors of Winograd count for more (ops/epilogue_error.py), such as
`tanh`, and on a GPU what comes before the products, which few schemas can apply.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ops import epilogue_error
from tilewright.ops.chain import is_chained
from tilewright.ops.fft import why_not_filter
from tilewright.ops.front import has_front, without_front
from tilewright.ops.group import Group
from tilewright.ops.stored import as_stored
from tilewright.ops.winograd import applies
from tilewright.ops.winograd_error import UNIT


def core(group: Group, *, front: bool = False) -> Group:
    """What decides the schedule of a group: a sum of products without what is around it, with a
    result of its own where it writes a part of a larger one. `front`: what comes before decides.

    Where several stages reduce and share tiles, or take turns, all of them decide.
    """
    if is_chained(group) or group.is_sequential:
        return group
    group = as_stored(group if front else without_front(group))[0]
    main = group.main
    if not main.is_product_sum:
        return _alone(group)
    if not (group.stages[0] is main or has_front(group)):
        return group
    if group.stages[-1] is main:
        return _alone(group)
    if _grows(group):
        return group
    before = group.stages[: group.stages.index(main)]
    touched = {access.tensor for stage in (*before, main) for access in stage.reads}
    stored = group.output.dtype
    result = replace(group.tensor(main.write.tensor), name='Out', role='output', dtype=stored)
    if 'Out' in touched:
        return group
    tensors = (*(t for t in group.tensors if t.name in touched), result)
    stage = replace(main, write=replace(main.write, tensor='Out'))
    label = group.label.split('+', 1)[0]
    return _alone(Group(label, tensors, (*before, stage)))


def _alone(group: Group) -> Group:
    """The group with a result as large as what it writes: branches that are joined write into one
    tensor, each a part of it (graph/concat.py).
    """
    *before, stage = group.stages
    result = group.output
    sizes = stage.write.extents(stage.sizes)
    shared = {a.tensor for one in before for a in (one.write, *one.reads)}
    if sizes == result.shape or result.name in shared:
        return group
    index = tuple(replace(e, const=0) for e in stage.write.index)
    tensors = tuple(replace(t, shape=sizes) if t is result else t for t in group.tensors)
    write = replace(stage.write, index=index)
    label = group.label.partition('@')[0]
    return Group(label, tensors, (*before, replace(stage, write=write)), group.storage)


def _grows(group: Group) -> bool:
    """Whether errors of Winograd or FFT count for more behind the epilogue, so that it decides."""
    possible = any(not applies(group, m) for m in ((2, 2), (1, 2), (2, 1)))
    return (possible or not why_not_filter(group)) and (
        epilogue_error.growth(group, UNIT) > epilogue_error.GENTLE
    )
