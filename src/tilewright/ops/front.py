"""Element-wise work in front of a sum of products: normalisation and activation of its image.

    scale(x) -> relu -> X;  X -> conv 1x1 -> Out      becomes      scale|relu|conv 1x1 -> Out

Goes in: two groups, one behind the other, or one group that was joined here. Comes out: the group
with the stages of both, and the part of it that decides schedules. What comes before the products
is computed as their image is copied, so that X is never stored: each element once for every copy,
and other operands must not change along the rows that are copied. Windows are left alone: they may
be computed by other algorithms, which do not copy.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ops.compose import Composed, put_behind
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Stage


def put_in_front(producer: Group, consumer: Group, tensor: str) -> Composed | None:
    """The consumer, whose input `tensor` is the producer's output, with the producer before it.

    The consumer keeps its names. None where the two do not fit together.
    """
    source, image = producer.output, consumer.tensor(tensor)
    if source.shape != image.shape or image.role != 'input':
        return None
    if not consumer.is_plain or consumer.stages[0] is not consumer.main:
        return None
    if any(a.tensor == tensor for s in consumer.epilogue for a in s.reads):
        return None
    made = put_behind(producer, consumer, tensor, (), '|')
    return made if has_front(made.group) else None


def has_front(group: Group) -> bool:
    """Whether a group is a sum of products, and the stages before it are such a front."""
    main = group.main
    before = group.stages[: group.stages.index(main)]
    if not before or not group.is_plain or not main.is_product_sum or main.pad_value != 0:
        return False
    image = before[-1].write.tensor
    others = [a for a in main.reads if a.tensor != image]
    if len(main.reads) != 2 or len(others) != 1:
        return False
    if group.tensor(others[0].tensor).role != 'constant':
        return False
    access = next(a for a in main.reads if a.tensor == image)
    shape = group.tensor(image).shape
    written = {s.write.tensor for s in before}
    channels = set(access.index[1].names) if len(access.index) > 2 else set(main.parallel)
    return (
        not _slides(main, access)
        and not channels & set(main.parallel)
        and all(_is_element_wise(group, s, shape, written) for s in before)
        and len({a.tensor for s in before for a in s.reads if _is_image(group, a)}) == 1
    )


def without_front(group: Group) -> Group:
    """The products alone: what the front makes is an input. Other groups as they are."""
    if not has_front(group):
        return group
    at = group.stages.index(group.main)
    image = group.stages[at - 1].write.tensor
    stages = group.stages[at:]
    touched = {a.tensor for s in stages for a in s.accesses}
    tensors = tuple(
        replace(t, role='input') if t.name == image else t
        for t in group.tensors
        if t.name in touched
    )
    storage = tuple((n, level) for n, level in group.storage if n in touched and n != image)
    return Group(group.label.rsplit('|', 1)[-1], tensors, stages, storage)


def _slides(stage: Stage, access: Access) -> bool:
    """Whether a window slides over the image, or leaves it."""
    return any(sum(stage.sizes[n] > 1 for n in e.names) > 1 or e.const < 0 for e in access.index)


def _is_image(group: Group, access: Access) -> bool:
    return group.tensor(access.tensor).role == 'input'


def _is_element_wise(group: Group, stage: Stage, shape: tuple[int, ...], written: set[str]) -> bool:
    """Whether a stage computes element by element, from the image and constants of its channels."""
    whole = tuple(Affine(((d.name, 1),)) for d in stage.dims)
    if stage.combiner is not None or stage.write.index != whole:
        return False
    if tuple(d.size for d in stage.dims) != shape:
        return False
    for access in stage.reads:
        if access.tensor in written or _is_image(group, access):
            # A slice is read at the same indices, and is part of a larger tensor.
            if access.index != whole or group.tensor(access.tensor).shape != shape:
                return False
        elif not _by_channel(stage, access):
            return False
    return True


def _by_channel(stage: Stage, access: Access) -> bool:
    """Whether an operand changes along the second axis at most: not along rows of the image."""
    free = {d.name for axis, d in enumerate(stage.dims) if axis != 1 and d.size > 1}
    return access.is_affine and not free & set(access.names) and len(stage.dims) > 2
