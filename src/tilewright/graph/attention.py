"""Attention found in a program: product, scale and mask, softmax, product become one task.

    q k^T -> s;  s * c + mask -> t;  softmax(t) -> w;  w v -> y      becomes      attention -> y

Goes in: a program as it was lowered, one operator a task, whatever the exporter: ONNX's own
Attention, PyTorch's scaled_dot_product_attention and the nodes that exporters write for either are
the same tasks here. Comes out: a program that computes the same, in which nobody stores the square
matrix of scores. Operators before and behind it that only move elements (rows cut into queries,
keys and values, heads in and out of rows, keys turned) go into the indices of what it reads and
writes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from tilewright.graph.program import Program, Task
from tilewright.ops.attention import join
from tilewright.ops.compose import placed
from tilewright.ops.group import Group, Tensor, row_major_strides
from tilewright.ops.normalise import softmax
from tilewright.ops.stage import Access, Affine, Stage, read, var

MOST_BETWEEN = 8  # element-wise operators between the product and the softmax


def join_attention(program: Program) -> Program:
    """[Program] -> [Program] in which every attention is one task."""
    softened = [t for t in program.tasks if _softmax_of(t.group) is not None]
    if not softened:
        return program
    links = _Links.of(program)
    gone: set[str] = set()
    made: dict[str, Task] = {}  # result of the task in whose place it runs -> the joined task
    for task in softened:
        found = _found(links, task)
        if found is not None:
            gone |= {t.result for t in found.tasks}
            joined = _turned(links, found)
            made[joined.result] = joined
            gone.add(joined.result)
    tasks = tuple(
        made.get(t.result, t) for t in program.tasks if t.result in made or t.result not in gone
    )
    return program.with_tasks(_read(program, tasks))


@dataclass(frozen=True)
class _Links:
    """Who writes a value, and who reads it: nobody else sees those of `alone`."""

    program: Program
    makers: dict[str, Task]

    @classmethod
    def of(cls, program: Program) -> _Links:
        makers = {t.result: t for t in program.tasks if not t.writes_part}
        return cls(program, makers)

    def reader(self, value: str) -> Task | None:
        """The only task that reads a value, under its own name and once; None if there are more."""
        program = self.program
        readers = program.readers.get(value, ())
        if len(readers) != 1 or program.is_output(value) or value in program.views.values():
            return None
        return readers[0] if list(readers[0].operands.values()).count(value) == 1 else None


@dataclass(frozen=True)
class _Found:
    """The tasks of one attention, in their order, and the task that computes all of them."""

    tasks: tuple[Task, ...]
    joined: Task


def _softmax_of(group: Group) -> bool | None:
    """Whether a softmax along the last axis is guarded; None for anything else."""
    shape = group.output.shape
    if len(shape) < 2 or len(group.stages) != 3:
        return None
    for guarded in (False, True):
        if group.digest == softmax(shape, len(shape) - 1, guarded=guarded).digest:
            return guarded
    return None


def _found(links: _Links, task: Task) -> _Found | None:
    """The attention around a softmax."""
    last = links.reader(task.result)
    if last is None or last.writes_part:
        return None
    weights = next(t for t, value in last.operands.items() if value == task.result)
    for before in _before(links, task.operands['In'], task, ()):
        first, *_between = before
        pairs = [
            (later.group, next(t for t, v in later.operands.items() if v == earlier.result))
            for earlier, later in itertools.pairwise(before)
        ]
        guarded = bool(_softmax_of(task.group))
        made = join(first.group, pairs, last.group, weights, guarded)
        if made is None:
            continue
        group, names = made
        operands = {
            new: member.operands[old]
            for member, own in zip((*before, last), names, strict=True)
            for old, new in own.items()
        }
        origin = tuple(n for t in (*before, task, last) for n in t.origin)
        joined = Task(task.name, group, operands, last.result, origin)
        return _Found((*before, task, last), joined)
    return None


def _before(
    links: _Links, value: str, reader: Task, behind: tuple[Task, ...]
) -> Iterator[tuple[Task, ...]]:
    """Chains of tasks that end in a value: a product, then element-wise tasks."""
    task = links.makers.get(value)
    if task is None or links.reader(value) is not reader or len(behind) > MOST_BETWEEN:
        return
    if len(task.group.stages) != 1:
        return
    if task.group.main.is_product_sum:
        yield (task, *behind)
    elif task.group.main.combiner is None:
        for operand in task.operands.values():
            yield from _before(links, operand, task, (task, *behind))


def _turned(links: _Links, found: _Found) -> Task:
    """The task with moves before it and an exchange of axes behind it taken into its indices."""
    task = found.joined
    for tensor in ('Q', 'K', 'V'):
        while (moved := _moved(links, task, tensor)) is not None:
            task = moved
    mover = links.reader(task.result)
    if mover is None or not _is_exchange(mover.group) or mover.writes_part:
        return task
    return replace(
        task, group=_writing(task.group, mover.group), result=mover.result,
        origin=(*task.origin, *mover.origin),
    )  # fmt: skip


def _moved(links: _Links, task: Task, tensor: str) -> Task | None:
    """The task that reads what its operand was moved from; None where that was computed."""
    value = task.operands[tensor]
    mover = links.makers.get(value)
    if mover is not None and _is_move(mover.group):
        source, stage = mover.operands['In'], mover.group.stages[0]
        names, index = [d.name for d in stage.dims], stage.reads[0].index
        group = _reading(task.group, tensor, mover.group.tensor('In').shape, names, index)
        return replace(task, group=group, operands={**task.operands, tensor: source})
    base = links.program.views.get(value, '')
    mover = links.makers.get(base)
    if mover is None or not _is_move(mover.group):
        return None
    shape = links.program.values[base].shape
    seen = _split(links.program.values[value].shape, shape)
    if seen is None:
        return None
    group = _reading(task.group, tensor, shape, *seen)
    return replace(task, group=group, operands={**task.operands, tensor: base})


def _split(view: tuple[int, ...], base: tuple[int, ...]) -> tuple[list[str], list[Affine]] | None:
    """Names for the axes of a view, and where it reads its base, if it only splits axes of it."""
    names, index, at = [f'a{n}' for n in range(len(view))], [], 0
    for size in base:
        first, product = at, 1
        while product < size and at < len(view):
            product *= view[at]
            at += 1
        if product != size:
            return None
        steps = row_major_strides(view[first:at])
        index.append(Affine(tuple(zip(names[first:at], steps, strict=True))))
    return (names, index) if math.prod(view[at:]) == 1 else None


def _is_move(group: Group) -> bool:
    """Whether a group only takes elements of a float32 tensor, at affine places inside it."""
    stage = group.stages[0]
    if len(group.stages) > 1 or stage.combiner or stage.expr != read(0) or not stage.is_affine:
        return False
    if any(t.dtype != 'f32' or t.role == 'constant' for t in group.tensors):
        return False
    return stage.write.index == tuple(var(d.name) for d in stage.dims) and all(
        e.const >= 0 and e.const + e.extent(stage.sizes) <= size
        for e, size in zip(stage.reads[0].index, group.tensor('In').shape, strict=True)
    )


def _is_exchange(group: Group) -> bool:
    """Whether a group only puts axes of a float32 tensor in another order."""
    if not _is_move(group):
        return False
    reads = group.stages[0].reads[0].index
    names = [d.name for d in group.stages[0].dims]
    return sorted(e.names for e in reads) == sorted((n,) for n in names) and all(
        e == var(e.names[0]) for e in reads
    )


def _reading(
    group: Group, tensor: str, shape: tuple[int, ...], names: Sequence[str],
    index: Sequence[Affine],
) -> Group:  # fmt: skip
    """The group with another tensor of this shape in the place of `tensor`.

    Its element at `index`, over iterators of these names, one for each axis of `tensor`, is that of
    `tensor` there.
    """
    source = Tensor(tensor, tuple(f'x{n}' for n in range(len(shape))), shape)

    def through(access: Access) -> Access:
        if access.tensor != tensor:
            return access
        place = dict(zip(names, access.index, strict=True))
        return replace(access, index=tuple(placed(e, place) for e in index))

    def moved(given: Stage) -> Stage:
        return replace(given, reads=tuple(map(through, given.reads)))

    tensors = tuple(source if t.name == tensor else t for t in group.tensors)
    return replace(group, tensors=tensors, stages=tuple(map(moved, group.stages)))


def _writing(group: Group, mover: Group) -> Group:
    """The group that writes what the mover would make of its result."""
    stage, last = mover.stages[0], group.stages[-1]
    axes = [e.names[0] for e in stage.reads[0].index]
    at = tuple(last.write.index[axes.index(d.name)] for d in stage.dims)
    output = replace(mover.output, name=group.output.name)
    tensors = tuple(output if t.role == 'output' else t for t in group.tensors)
    written = replace(last, write=replace(last.write, index=at))
    return replace(group, tensors=tensors, stages=(*group.stages[:-1], written))


def _read(program: Program, tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """The tasks without those whose results nobody reads any more."""
    before = {program.place(v)[0] for t in program.tasks for v in t.operands.values()}
    kept: list[Task] = []
    wanted = {program.place(value)[0] for _, value in program.outputs}
    for task in reversed(tasks):
        place = program.place(task.result)[0]
        if place in wanted or place not in before:
            kept.append(task)
            wanted |= {program.place(value)[0] for value in task.operands.values()}
    return tuple(reversed(kept))
