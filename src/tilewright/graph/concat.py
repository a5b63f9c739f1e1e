"""Concatenations and slices without copies.

    conv -> a;  copy a -> c[0:64];  copy b -> c[64:96]     a and b lie inside c: no task is left
    copy x[64:96] -> y                                     y lies inside x

Goes in: a program in which concatenations, splits and slices are tasks that copy boxes. Comes out:
one with fewer of them. A box that is one run of memory is a place (`Program.inside`); whoever
writes or reads it does so there, with the group that it has. Other boxes (channels of a batch) are
written in place by the group itself, with an offset in its indices (`ops.slices.into_slice`). What
is left is copied.

Concatenations are taken from the last to the first: where one is the beginning of a later one, as
in DenseNet, its parts lie there already, side by side, and so it lies there itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tilewright.graph.program import Program, Task
from tilewright.ops.group import Group, row_major_strides
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import Access, read


@dataclass(frozen=True, slots=True)
class Box:
    """A part of a tensor: where it begins and its sizes."""

    start: tuple[int, ...]
    sizes: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        return self.sizes == self.shape

    @property
    def is_run(self) -> bool:
        """Whether its elements are one run of memory: whole behind the first axis that counts."""
        counts = [axis for axis, size in enumerate(self.sizes) if size > 1]
        behind = range(counts[0] + 1 if counts else len(self.sizes), len(self.sizes))
        return all(self.sizes[axis] == self.shape[axis] for axis in behind)

    @property
    def element(self) -> int:
        """The number of its first element in the tensor."""
        return sum(
            at * step for at, step in zip(self.start, row_major_strides(self.shape), strict=True)
        )

    @property
    def cut(self) -> list[int]:
        """The axes along which it is not all of the tensor."""
        return [axis for axis, size in enumerate(self.sizes) if size < self.shape[axis]]


@dataclass(frozen=True, slots=True)
class Copy:
    """A task that only moves: the box that it reads, and the box that it writes."""

    task: Task
    source: str
    read: Box
    write: Box

    @property
    def keeps_axes(self) -> bool:
        """Whether an axis of one box is that of the other: an image of one channel lies in memory
        as one whose channels are last, and its axes are others.
        """
        return self.read.sizes == self.write.sizes


def copy_of(task: Task) -> Copy | None:
    """The boxes of a task that copies, or None for one that does anything else."""
    group = task.group
    if len(group.stages) != 1 or len(task.operands) != 1:
        return None
    stage = group.stages[0]
    if stage.combiner is not None or stage.expr != read(0):
        return None
    given, made = stage.reads[0], stage.write
    tensor = group.tensor(given.tensor)
    if tensor.dtype != group.output.dtype:
        return None
    read_box, write_box = _box(group, given), _box(group, made)
    if read_box is None or write_box is None:
        return None
    # The same iterators in the same order, but for those of one point.
    orders = [
        [e.names[0] for e in access.index if e.names and stage.sizes[e.names[0]] > 1]
        for access in (given, made)
    ]
    if orders[0] != orders[1]:
        return None
    return Copy(task, task.operands[given.tensor], read_box, write_box)


def _box(group: Group, access: Access) -> Box | None:
    """The box that an access walks through in order, element by element; None for any other walk.

    A table of positions may permute or repeat them, even where it is as long as its axis.
    """
    if not access.is_affine:
        return None
    stage, shape = group.stages[0], group.tensor(access.tensor).shape
    sizes = []
    for expression, extent in zip(access.index, shape, strict=True):
        if any(c != 1 for _, c in expression.terms):
            return None
        if len(expression.terms) > 1 or expression.const < 0:
            return None
        sizes.append(expression.extent(stage.sizes))
        if expression.const + sizes[-1] > extent:
            return None
    return Box(tuple(e.const for e in access.index), tuple(sizes), shape)


class _Places:
    """A program on its way: places that were found, copies that are not needed any more."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.inside = dict(program.inside)
        self.gone: set[int] = set()

    def place(self, value: str) -> tuple[str, int]:
        base, offset = self.program.base(value), 0
        while base in self.inside:
            base, step = self.inside[base]
            offset += step
        return base, offset

    def put(self, value: str, holder: str, element: int, *copies: Copy) -> None:
        self.inside[value] = (holder, element)
        self.gone |= {id(copy.task) for copy in copies}

    def result(self) -> Program:
        tasks = tuple(t for t in self.program.tasks if id(t) not in self.gone)
        return replace(self.program, tasks=tasks, inside=self.inside)


def concat(program: Program) -> Program:
    """[Program] -> [Program] with fewer copies."""
    writers: dict[str, list[Task]] = {}
    for task in program.tasks:
        writers.setdefault(task.result, []).append(task)
    state = _Places(program)
    for target in reversed(writers):
        copies = [copy for task in writers[target] if (copy := copy_of(task))]
        if copies and len(copies) == len(writers[target]) and _together(state, target, copies):
            continue
        for copy in copies:
            if not _slice(state, copy):
                _place(state, copy)
    return _write_slices(state.result())


def _together(state: _Places, target: str, copies: Sequence[Copy]) -> bool:
    """Put the result inside what holds all of its parts already, in the same order."""
    program = state.program
    if program.is_output(target) or target in state.inside:
        return False
    if not all(copy.read.is_run and copy.write.is_run for copy in copies):
        return False
    if sum(math.prod(c.write.sizes) for c in copies) != math.prod(program.values[target].shape):
        return False
    found = set()
    for copy in copies:
        holder, element = state.place(copy.source)
        found.add((holder, element + copy.read.element - copy.write.element))
    holder, element = found.pop()
    if found or element < 0 or holder == target:
        return False
    state.put(target, holder, element, *copies)
    return True


def _slice(state: _Places, copy: Copy) -> bool:
    """Put a result that is a run of what it is copied from inside that."""
    target = copy.task.result
    if not copy.write.is_whole or not copy.read.is_run or copy.task.writes_part:
        return False
    if state.program.is_output(target) or target in state.inside:
        return False
    state.put(target, state.program.base(copy.source), copy.read.element, copy)
    return True


def _place(state: _Places, copy: Copy) -> None:
    """Put what is copied as a whole into a run of the result there from the start."""
    program, target = state.program, copy.task.result
    source = program.base(copy.source)
    if not copy.read.is_whole or not copy.write.is_run or source in state.inside:
        return
    if source in program.inputs or source in program.constants or program.is_output(source):
        return
    if state.place(target)[0] != source:
        state.put(source, target, copy.write.element, copy)


def _write_slices(program: Program) -> Program:
    """Let producers write their slices themselves, where these are not runs of memory."""
    makers: dict[str, list[int]] = {}
    for number, task in enumerate(program.tasks):
        makers.setdefault(task.result, []).append(number)
    held = {holder for holder, _ in program.inside.values()}
    tasks: list[Task | None] = list(program.tasks)
    for number, task in enumerate(program.tasks):
        copy = copy_of(task)
        if copy is None or not copy.read.is_whole or len(copy.write.cut) != 1:
            continue
        if not copy.keeps_axes:
            continue
        source, axis = copy.source, copy.write.cut[0]
        if len(makers.get(source, ())) != 1 or len(program.readers[program.base(source)]) != 1:
            continue
        if program.is_output(source) or source in program.inside or source in held:
            continue
        maker = tasks[makers[source][0]]
        if maker is None or maker.writes_part:
            continue
        group = into_slice(maker.group, axis, copy.write.start[axis], copy.write.shape[axis])
        tasks[makers[source][0]] = replace(maker, group=group, result=task.result, writes_part=True)
        tasks[number] = None
    return program.with_tasks(tuple(task for task in tasks if task is not None))
