"""What the CPU does with a memory plan, told to the checker of graph/proof.py.

Goes in: a program, its `Memory`, and, where kernels are there, what they need beside. Comes out:
nothing, or a `PlanError`. Tasks run one after the other, results that need it are copied, and the
caller then finds results in its own arrays, its inputs and our constants as they were.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.memory import Memory, Place
from tilewright.graph.program import Program, Task
from tilewright.graph.proof import Access, Block, Event, Region, chain, prove
from tilewright.ops.group import Group

LINE = 64  # bytes: where kernels want packed constants and scratch memory to begin
_NOWHERE = Place('', '', 0)
ITEM_BYTES = {name: np.dtype(kind).itemsize for name, kind in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Beside:
    """What the kernel of one task has beside its values, in bytes.

    kernel   whatever tells kernels apart: what one packs of the same constants is the same
    packed   where its packed constants begin in the memory of all of them
    """

    kernel: Hashable
    scratch_bytes: int
    packed: int
    packed_bytes: int


@dataclass(frozen=True, slots=True)
class Rooms:
    """The memory for what kernels have beside values, and what each task has of it."""

    scratch_bytes: int
    packed_bytes: int
    tasks: Sequence[Beside]


def prove_memory(program: Program, memory: Memory, rooms: Rooms | None = None) -> None:
    """Raise PlanError unless the tasks of a program, run with this plan, compute what they mean."""
    told = _Told(program, memory, rooms)
    prove(program.name, *told.story())


def value_bytes(program: Program, value: str) -> int:
    kind = program.values[value]
    return math.prod(kind.shape) * ITEM_BYTES[kind.dtype]


def first_byte(program: Program, value: str) -> tuple[str, int]:
    """(the value whose memory this is in the end, at which byte of it)."""
    root, element = program.place(value)
    return root, element * ITEM_BYTES[program.values[root].dtype] if element else 0


def box(group: Group) -> Region:
    """What a group writes of its output, of which others write the rest: `Task.writes_part`."""
    stage, tensor = group.stages[-1], group.output
    item = tensor.bytes // tensor.size
    start, levels = 0, []
    for expression, stride in zip(stage.write.index, tensor.strides, strict=True):
        start += expression.const * stride * item
        levels += [
            (coefficient * stride * item, stage.sizes[name])
            for name, coefficient in expression.terms
            if stage.sizes[name] > 1
        ]
    return _region(start, item, levels)


def read_box(group: Group, name: str) -> Region | None:
    """What a group reads of an operand of which it reads a slice alone; None: all of it, or, where
    every read is outside, nothing.
    """
    tensor = group.tensor(name)
    low, high = list(tensor.shape), [0] * len(tensor.shape)
    for stage in group.stages:
        for access in stage.reads:
            if access.tensor != name:
                continue
            if not access.is_affine:
                return None
            for axis, e in enumerate(access.index):
                low[axis] = min(low[axis], max(e.const, 0))
                last = e.const + e.extent(stage.sizes)
                high[axis] = max(high[axis], min(last, tensor.shape[axis]))
    if all(a == 0 for a in low) and tuple(high) == tensor.shape:
        return None
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return None
    item = tensor.bytes // tensor.size
    steps = [stride * item for stride in tensor.strides]
    levels = [(s, b - a) for s, a, b in zip(steps, low, high, strict=True) if b - a > 1]
    return _region(sum(s * a for s, a in zip(steps, low, strict=True)), item, levels)


def _region(start: int, item: int, levels: list[tuple[int, int]]) -> Region:
    """Runs of bytes as few as there are: what lies behind each other is one."""
    run, left = item, []
    for step, count in sorted(levels):
        if step == run and not left:
            run *= count
        elif left and step == left[-1][0] * left[-1][1]:
            left[-1] = left[-1][0], left[-1][1] * count
        else:
            left.append((step, count))
    return Region(start, run, tuple(reversed(left)))


class _Told:
    """The blocks so far; events are made from the plan, one for each task and copy."""

    def __init__(self, program: Program, memory: Memory, rooms: Rooms | None) -> None:
        self.program, self.memory, self.rooms = program, memory, rooms
        self.known: dict[str, Access] = {}
        self.blocks = [Block('the arena', memory.arena_bytes)]
        self.numbers: dict[tuple[str, str], int] = {('arena', ''): 0}
        for name in program.inputs:
            self._block('input', name, f'input {name!r}', value_bytes(program, name))
        for name, value in program.outputs:
            self._block('output', name, f'output {name!r}', value_bytes(program, value))
        if rooms is not None:
            self._block('scratch', '', 'the scratch memory', rooms.scratch_bytes)
            self._block('packed', '', 'the packed constants', rooms.packed_bytes)

    def _block(self, kind: str, name: str, words: str, size: int) -> None:
        self.numbers[kind, name] = len(self.blocks)
        self.blocks.append(Block(words, size))

    def story(self) -> tuple[list[Block], list[Event]]:
        """All blocks, and everything that happens in a call."""
        given = [self._at(name, 'input', name) for name in self.program.inputs]
        given += [self._constant(name) for name in self._read_in_place()]
        packed = self._packed()
        events = [Event('the call', (), [*given, *dict.fromkeys(packed)], ())]
        for number, task in enumerate(self.program.tasks):
            events.append(self._task(number, task, packed[number : number + 1]))
        copied = {}
        for name, value in self.memory.copies:
            size = value_bytes(self.program, value)
            copied[name] = self._own(('result', name), 'output', name, 0, size)
            events.append(
                Event(
                    f'the copy to {name!r}', [self._planned(value)], [copied[name]],
                    chain(len(events)),
                )
            )  # fmt: skip
        results = [
            copied.get(name) or self._at(value, 'output', name)
            for name, value in self.program.outputs
        ]
        kept = [*results, *given, *dict.fromkeys(packed)]
        events.append(Event('the caller', kept, (), chain(len(events))))
        return self.blocks, events

    def _read_in_place(self) -> dict[str, None]:
        """Constants that kernels read, or callers get, as they are; others are packed."""
        values = [
            task.operands[tensor.name]
            for task in self.program.tasks
            for tensor in task.group.tensors
            if tensor.role == 'input'
        ]
        values += [value for _, value in self.program.outputs]
        roots = (self.program.place(value)[0] for value in values)
        return dict.fromkeys(root for root in roots if root in self.program.constants)

    def _constant(self, name: str) -> Access:
        self._block('constant', name, f'constant {name!r}', value_bytes(self.program, name))
        return self._at(name, 'constant', name)

    def _planned(self, value: str) -> Access:
        """A value where the plan has it; tasks that read the same one share what comes out."""
        if value not in self.known:
            place = self.memory.places.get(value, _NOWHERE)
            self.known[value] = self._at(value, place.kind, place.name, place.offset)
        return self.known[value]

    def _at(self, value: str, kind: str, name: str, at: int = 0) -> Access:
        """A value at a byte of a block."""
        root, first = first_byte(self.program, value)
        typed = self.program.values[value]
        item = ITEM_BYTES[typed.dtype]
        block, region = self.numbers.get((kind, name), -1), Region(0, math.prod(typed.shape) * item)
        return Access(root, first, block, at, region, item, repr(value))

    def _own(self, value: Hashable, kind: str, name: str, at: int, size: int) -> Access:
        """Bytes that are no value of the program."""
        words = {'output': repr(name), 'scratch': 'its scratch memory', 'packed': 'its constants'}
        align = 1 if kind == 'output' else LINE
        return Access(value, 0, self.numbers[kind, name], at, Region(0, size), align, words[kind])

    def _packed(self) -> list[Access]:
        """The packed constants of every task, written ahead; equal ones are the same."""
        if self.rooms is None:
            return []
        found: list[Access] = []
        for task, beside in zip(self.program.tasks, self.rooms.tasks, strict=True):
            names = (
                self.program.base(task.operands[tensor.name])
                for tensor in task.group.tensors
                if tensor.role == 'constant'
            )
            key = (beside.kernel, *names)
            found.append(self._own(key, 'packed', '', beside.packed, beside.packed_bytes))
        return found

    def _task(self, number: int, task: Task, packed: Sequence[Access]) -> Event:
        """Behind the task before it; `packed` are its constants, where they are known."""
        reads = []
        for tensor in task.group.tensors:
            if tensor.role == 'input':
                read = self._planned(task.operands[tensor.name])
                part = read_box(task.group, tensor.name)  # a slice of a value that is in the making
                reads.append(read._replace(region=part) if part else read)
        result = self._planned(task.result)
        writes = [result._replace(region=box(task.group)) if task.writes_part else result]
        if self.rooms is not None:
            size = self.rooms.tasks[number].scratch_bytes
            writes.append(self._own(('scratch', number), 'scratch', '', 0, size))
        return Event(f'task {task.name!r}', [*reads, *packed], writes, (number,))
