"""The core of a group: what decides its schedule, and what tuned results are stored under.

Goes in: a group. Comes out: the same without what stands around its sum of products. A bias, an
activation or a residual behind a convolution, or a normalisation before it, does not decide how it
is scheduled, so that it is searched and timed once. The exception is an epilogue behind which
errors of Winograd count for more (ops/epilogue_error.py), such as `tanh`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ops import epilogue_error
from tilewright.ops.chain import is_chained
from tilewright.ops.front import without_front
from tilewright.ops.group import Group
from tilewright.ops.winograd import applies
from tilewright.ops.winograd_error import UNIT


def core(group: Group) -> Group:
    """What decides the schedule of a group: a sum of products without what is around it.

    Where several stages reduce and share tiles, all of them decide.
    """
    if is_chained(group):
        return group
    group = without_front(group)
    main = group.main
    if not main.is_product_sum or group.stages[0] is not main or len(group.stages) == 1:
        return group
    if _grows(group):
        return group
    touched = {access.tensor for access in main.reads}
    result = replace(group.tensor(main.write.tensor), name='Out', role='output')
    if 'Out' in touched:
        return group
    tensors = (*(t for t in group.tensors if t.name in touched), result)
    stage = replace(main, write=replace(main.write, tensor='Out'))
    label = group.label.split('+', 1)[0]
    return Group(label, tensors, (stage,))


def _grows(group: Group) -> bool:
    """Whether errors of Winograd count for more behind the epilogue, so that it decides as well."""
    return any(not applies(group, m) for m in ((2, 2), (1, 2), (2, 1))) and (
        epilogue_error.growth(group, UNIT) > epilogue_error.GENTLE
    )
