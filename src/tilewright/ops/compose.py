"""Two groups, one behind the other, as one: what fusion is made of.

    append    conv2d -> Out | Out, Skip -> add -> relu    the consumer's element-wise stages become
                                                          the epilogue of the producer
    prepend   scale -> X | X -> sum over a window         the producer's expression moves into the
                                                          reads of the consumer

Both return the group and the new names of tensors, or None where the result would not be computed
in as few parts (ops/parts.py), so that nothing would be saved.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.ops.group import Group, Tensor
from tilewright.ops.integer import can_follow, is_integer_products
from tilewright.ops.parts import parts
from tilewright.ops.stage import Access, Affine, Expr, Stage, substituted
from tilewright.ops.stored import stored_stage


@dataclass(frozen=True, slots=True)
class Composed:
    """The joined group; `names` maps the inputs and constants of either group to its tensors."""

    group: Group
    producer_names: Mapping[str, str]
    consumer_names: Mapping[str, str]


def append(producer: Group, consumer: Group, tensor: str) -> Composed | None:
    """The producer with the consumer, whose input `tensor` is the producer's output, as epilogue.

    The consumer has to be element by element and to read `tensor` where it writes; the result keeps
    the producer's names, and the name of its output. None where that cannot be.
    """
    source, made = producer.output, consumer.tensor(tensor)
    if (source.shape, source.dtype) != (made.shape, made.dtype) or made.role != 'input':
        return None
    if any(stage.combiner is not None for stage in consumer.stages):
        return None
    if consumer.output.shape != source.shape:
        return None
    # Schemas for sums of products have float32 at affine indices alone, or whole numbers.
    plain = producer.is_plain and consumer.is_plain
    plain |= is_integer_products(producer) and all(map(can_follow, consumer.stages))
    stored = bool(producer.half) and _is_stored(consumer)
    plain |= stored
    if producer.main.is_product_sum and not plain:
        return None
    taken = {t.name for t in producer.tensors}
    value = fresh('Acc0', taken)
    names = {tensor: value, consumer.output.name: source.name}
    for item in consumer.tensors:
        if item.name not in names:
            names[item.name] = fresh(item.name, taken)
    kept = 'f32' if stored else source.dtype  # a value is rounded once, where it is stored
    held = replace(source, name=value, role='inner', dtype=kept)
    tensors = (
        *(t for t in producer.tensors if t.name != source.name),
        *(
            replace(t, name=names[t.name])
            for t in consumer.tensors
            if t.role != 'output' and t.name != tensor
        ),
        held,
        replace(consumer.output, name=source.name, dims=_dims(source, consumer.output)),
    )
    first = tuple(_with_tensors(s, {source.name: value}) for s in producer.stages)
    used = {s.name for s in first}
    second = tuple(
        replace(_with_tensors(s, names), name=fresh(s.name, used)) for s in consumer.stages
    )
    inner = {names[t.name] for t in consumer.with_role('inner')}
    storage = (*producer.storage, *((name, 'register') for name in (value, *sorted(inner))))
    label = producer.label + ''.join(f'+{s.name}' for s in consumer.stages)
    joined = Group(label, tensors, (*first, *second), storage)
    made_of = parts(joined)
    if len(made_of) != len(parts(producer)) or made_of[-1].epilogue[-1:] != second[-1:]:
        return None
    given = {t.name: t.name for t in producer.tensors if t.role in ('input', 'constant')}
    return Composed(joined, given, _given(consumer, names, tensor))


def _is_stored(group: Group) -> bool:
    """Whether a group quantises its input, and does nothing else."""
    return len(group.stages) == 1 and stored_stage(group.main, group.output.dtype) is not None


def prepend(producer: Group, consumer: Group, tensor: str) -> Composed | None:
    """The consumer with the producer's element-wise stages moved into its reads.

    Every access to `tensor` must stay inside it: a border is filled behind the producer, not before
    it. What a single stage makes is computed as often as the consumer reads it, several stages only
    if that is once. For consumers that the general schema computes; sums of products stay what they
    are.
    """
    source, made = producer.output, consumer.tensor(tensor)
    if (source.shape, source.dtype) != (made.shape, made.dtype) or made.role != 'input':
        return None
    if any(stage.combiner is not None for stage in producer.stages):
        return None
    if len(producer.stages) > 1 and not _reads_once(consumer, tensor):
        return None
    stage = _as_one_stage(producer)
    if stage is None or consumer.main.is_product_sum or not can_follow(stage):
        return None
    whole = tuple(Affine(((d.name, 1),)) for d in stage.dims)
    if stage.write.index != whole or any(
        not _inside(producer, stage, access) for access in stage.reads
    ):
        return None
    taken = {t.name for t in consumer.tensors}
    names = {
        t.name: fresh(t.name, taken) for t in producer.tensors if t.role in ('input', 'constant')
    }
    moved = _with_tensors(stage, names)
    stages = []
    for reader in consumer.stages:
        changed = _through(consumer, reader, tensor, moved)
        if changed is None:
            return None
        stages.append(changed)
    given = (replace(t, name=names[t.name]) for t in producer.tensors if t.name in names)
    tensors = (*given, *(t for t in consumer.tensors if t.name != tensor))
    label = f'{producer.label}>{consumer.label}'
    joined = Group(label, tensors, tuple(stages), consumer.storage)
    if len(parts(joined)) != len(parts(consumer)):
        return None
    kept = {t.name: t.name for t in consumer.tensors}
    return Composed(joined, names, _given(consumer, kept, tensor))


def put_behind(
    producer: Group,
    consumer: Group,
    tensor: str,
    storage: tuple[tuple[str, str], ...],
    between: str,
) -> Composed:
    """The stages of both, one behind the other; the consumer keeps its names, and its `tensor` is
    the producer's output, an inner tensor. Labels are joined by `between`.
    """
    source = producer.output
    taken = {t.name for t in consumer.tensors}
    names = {t.name: fresh(t.name, taken) for t in producer.tensors if t.name != source.name}
    names[source.name] = tensor
    used = {s.name for s in consumer.stages}
    before = tuple(
        replace(_with_tensors(s, names), name=fresh(s.name, used)) for s in producer.stages
    )
    own = tuple(
        replace(t, name=names[t.name], role='inner' if t is source else t.role)
        for t in producer.tensors
    )
    rest = tuple(t for t in consumer.tensors if t.name != tensor)
    levels = ((names[name], level) for name, level in producer.storage)
    joined = Group(
        f'{producer.label}{between}{consumer.label}',
        (*own, *rest),
        (*before, *consumer.stages),
        (*levels, *storage, *consumer.storage),
    )
    given = {t.name: names[t.name] for t in producer.tensors if t.role in ('input', 'constant')}
    kept = {t.name: t.name for t in rest if t.role in ('input', 'constant')}
    return Composed(joined, given, kept)


def as_one(group: Group, names: Sequence[str]) -> Group | None:
    """The group with several inputs of one shape, which are the same value, as the first of them.

    None where their shapes or dtypes differ.
    """
    first, *others = (group.tensor(name) for name in names)
    if any((t.shape, t.dtype, t.role) != (first.shape, first.dtype, first.role) for t in others):
        return None
    gone = {t.name: first.name for t in others}
    return replace(
        group,
        tensors=tuple(t for t in group.tensors if t.name not in gone),
        stages=tuple(_with_tensors(s, gone) for s in group.stages),
    )


def fresh(name: str, taken: set[str]) -> str:
    """The name, numbered where it is taken; it is taken afterwards."""
    base = name.rstrip('0123456789') or name
    number, free = 0, name
    while free in taken:
        free, number = f'{base}{number}', number + 1
    taken.add(free)
    return free


def _given(group: Group, names: Mapping[str, str], tensor: str) -> dict[str, str]:
    return {
        t.name: names[t.name]
        for t in group.tensors
        if t.role in ('input', 'constant') and t.name != tensor
    }


def _dims(source: Tensor, output: Tensor) -> tuple[str, ...]:
    return source.dims if source.shape == output.shape else output.dims


def _with_tensors(stage: Stage, names: Mapping[str, str]) -> Stage:
    """The stage with other names of tensors; itself where it has none of them, which is usual."""
    if not any(access.tensor in names for access in stage.accesses):
        return stage

    def rename(access: Access) -> Access:
        return replace(access, tensor=names.get(access.tensor, access.tensor))

    return replace(stage, write=rename(stage.write), reads=tuple(map(rename, stage.reads)))


def _inside(group: Group, stage: Stage, access: Access) -> bool:
    shape = group.tensor(access.tensor).shape
    return access.is_affine and all(
        e.const >= 0 and e.const + e.extent(stage.sizes) <= extent
        for e, extent in zip(access.index, shape, strict=True)
    )


def _as_one_stage(group: Group) -> Stage | None:
    """Element-wise stages as one: what each makes stands in the expressions of those behind it."""
    made = group.stages[-1]
    for stage in reversed(group.stages[:-1]):
        if stage.write.index != tuple(Affine(((d.name, 1),)) for d in stage.dims):
            return None
        found = _through(group, made, stage.write.tensor, stage)
        if found is None:
            return None
        made = found
    return made


def _reads_once(group: Group, tensor: str) -> bool:
    """Whether each element of a tensor is read at most once, as far as counting tells."""
    points = [
        math.prod(stage.sizes.values())
        for stage in group.stages
        for access in stage.reads
        if access.tensor == tensor
    ]
    return sum(points) <= math.prod(group.tensor(tensor).shape)


def _through(group: Group, reader: Stage, tensor: str, producer: Stage) -> Stage | None:
    """The reader with every read of `tensor` replaced by the producer's expression."""
    if not any(a.tensor == tensor for a in reader.reads):
        return reader
    if any(a.lookups for a in reader.reads):
        return None
    reads: list[Access] = []
    texts: list[Expr] = []
    for access in reader.reads:
        if access.tensor != tensor:
            texts.append(Expr('read', value=_numbered(reads, access)))
            continue
        if not _inside(group, reader, access):
            return None
        place = dict(zip((d.name for d in producer.dims), access.index, strict=True))
        own = [Expr('read', value=_numbered(reads, _moved(a, place))) for a in producer.reads]
        texts.append(substituted(producer.expr, own))
    return replace(reader, reads=tuple(reads), expr=substituted(reader.expr, texts))


def _numbered(reads: list[Access], access: Access) -> int:
    if access not in reads:
        reads.append(access)
    return reads.index(access)


def _moved(access: Access, place: Mapping[str, Affine]) -> Access:
    return replace(access, index=tuple(placed(e, place) for e in access.index))


def placed(expression: Affine, place: Mapping[str, Affine]) -> Affine:
    """An affine index with an affine index in the place of every iterator."""
    terms: dict[str, int] = {}
    const = expression.const
    for name, coefficient in expression.terms:
        inner = place[name]
        const += coefficient * inner.const
        for term, factor in inner.terms:
            terms[term] = terms.get(term, 0) + coefficient * factor
    return Affine(tuple(terms.items()), const)
