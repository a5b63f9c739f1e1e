"""A network as work: tasks, each a group on named values, in the order in which they run.

Goes in: what lowering makes of a graph (graph/lower.py). Comes out: what fusion, layouts, the
memory plan and executors work on. Here operators are gone: a task is a `Group`, a view is another
shape of the same memory.

    Task('conv1', conv2d(..), {'In': 'x', 'Ker': 'w1', 'Bias': 'b1'}, 'y')
    views: {'flat': 'y'}          the memory of y, read with the shape of flat
    constants: {'w1': array, ..}
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.graph import Value
from tilewright.ops.group import Group


@dataclass(frozen=True)
class Task:
    """One group and the values that its tensors are; `origin` names the nodes it computes.

    `writes_part` says that other tasks write the rest of the result: a concatenation in place.
    """

    name: str
    group: Group
    operands: Mapping[str, str]
    result: str
    origin: tuple[str, ...] = ()
    writes_part: bool = False

    def __post_init__(self) -> None:
        wanted = {t.name for t in self.group.tensors if t.role in ('input', 'constant')}
        if set(self.operands) != wanted:
            raise ModelError(
                f'task {self.name} binds {sorted(self.operands)}, its group has {sorted(wanted)}'
            )


@dataclass(frozen=True)
class Program:
    """Tasks over values.

    inputs     values that callers give; outputs: pairs (the name callers use, the value)
    views      value -> the value whose memory it is, row by row; views of views do not occur
    inside     value -> (the value that holds its memory, at which element): slices, and branches of
               concatenations that write in place. Neither of the two is a view
    values     the type of every value, views, inputs and constants included
    constants  arrays that are known now; tasks on them alone have been folded away
    carried    input -> the output (the name callers use) that it is in the next call: state, which
               a device may keep and change in place
    in_order   whether the order of tasks is meant, and not only what they read: then none comes
               earlier because what it reads is there (graph/levels.py)
    behind     name of a task -> that of one that it waits for, whatever it reads
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[tuple[str, str], ...]
    tasks: tuple[Task, ...]
    values: Mapping[str, Value]
    constants: Mapping[str, np.ndarray]
    views: Mapping[str, str] = field(default_factory=dict)
    inside: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    carried: Mapping[str, str] = field(default_factory=dict)
    in_order: bool = False
    behind: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_places()
        self._check_carried()
        given = {*self.inputs, *self.constants}
        spans: dict[str, list[tuple[int, int]]] = {}
        for value in (*self.inputs, *self.constants):
            self._write(value, spans)
        whole: set[str] = set()
        for task in self.tasks:
            for tensor, value in task.operands.items():
                if not self._is_written(value, spans):
                    raise ModelError(f'task {task.name} reads {value!r} before it is computed')
                self._check_type(task, tensor, value)
            self._check_type(task, task.group.output.name, task.result)
            if task.result in self.views or task.result in whole:
                raise ModelError(f'task {task.name} writes {task.result!r}, which exists already')
            root, _ = self.place(task.result)
            if root in given:
                raise ModelError(f'task {task.name} writes {root!r}, which is given')
            if not task.writes_part:
                whole.add(task.result)
            self._write(task.result, spans)
        for _, value in self.outputs:
            if not self._is_written(value, spans):
                raise ModelError(f'{self.name}: output {value!r} is computed by no task')

    def _check_type(self, task: Task, tensor: str, value: str) -> None:
        want, have = task.group.tensor(tensor), self._type(value)
        if want.shape != have.shape or want.dtype != have.dtype:
            raise ModelError(
                f'task {task.name}: {tensor} is {want.dtype}{list(want.shape)}, '
                f'{value!r} is {have.dtype}{list(have.shape)}'
            )

    def _check_places(self) -> None:
        """Every value lies inside the memory that holds it. Places are counted in elements, so
        that what shares memory has one dtype.
        """
        for value in (*self.inputs, *self.constants):
            if value in self.views or value in self.inside:
                raise ModelError(f'{value!r} is given, and cannot lie in the memory of another')
        inputs = set(self.inputs)
        for value, array in self.constants.items():
            if value in inputs or array.size != self._size(value):
                raise ModelError(f'constant {value!r} is not what its type says')
        for value, base in self.views.items():
            if base in self.views:
                raise ModelError(f'{value!r} is a view of {base!r}, which is a view itself')
            self._check_same_dtype(value, base)
            if self._size(value) != self._size(base):
                raise ModelError(f'{value!r} is a view of {base!r}, which has another size')
        for value, (holder, offset) in self.inside.items():
            if value in self.views or holder in self.views:
                raise ModelError(f'{value!r} lies inside {holder!r}, and one of them is a view')
            self._check_same_dtype(value, holder)
            size, room = self._size(value), self._size(holder)
            if not isinstance(offset, int) or offset < 0 or offset + size > room:
                raise ModelError(f'{value!r} does not fit {holder!r} at element {offset}')
            seen = {value}
            while holder in self.inside:
                if holder in seen:
                    raise ModelError(f'{value!r} lies inside itself')
                seen.add(holder)
                holder = self.inside[holder][0]

    def _check_carried(self) -> None:
        named, inputs = dict(self.outputs), set(self.inputs)
        for name, output in self.carried.items():
            if name not in inputs or output not in named:
                raise ModelError(f'{name!r} is carried on as {output!r}; one of them is not there')
            one, other = self._type(name), self._type(named[output])
            if (one.shape, one.dtype) != (other.shape, other.dtype):
                raise ModelError(f'{name!r} is carried on as {output!r}, which has another type')

    def _check_same_dtype(self, value: str, holder: str) -> None:
        one, other = (self._type(name).dtype for name in (value, holder))
        if one != other:
            raise ModelError(f'{value!r} is {one} and lies in the memory of {holder!r}, {other}')

    def _type(self, value: str) -> Value:
        if value not in self.values:
            raise ModelError(f'{self.name}: {value!r} has no type; every value needs one')
        return self.values[value]

    def _size(self, value: str) -> int:
        return math.prod(self._type(value).shape)

    def _write(self, value: str, spans: dict[str, list[tuple[int, int]]]) -> None:
        root, first = self.place(value)
        spans.setdefault(root, []).append((first, first + self._size(value)))

    def _is_written(self, value: str, spans: Mapping[str, Sequence[tuple[int, int]]]) -> bool:
        """Whether these spans, by the value whose memory they are in, cover all of a value."""
        root, at = self.place(value)
        end = at + self._size(value)
        for first, behind in sorted(spans.get(root, ())):
            if first <= at:
                at = max(at, behind)
        return root in spans and at >= end

    def packed(self, task: Task) -> Iterator[str]:
        """The constants that a task's kernel packs ahead of time, in the group's order."""
        for tensor in task.group.with_role('constant'):
            name = self.base(task.operands[tensor.name])
            if name not in self.constants:
                raise ModelError(
                    f'task {task.name} packs {name!r} ahead of time, which is not a constant'
                )
            yield name

    def place(self, value: str) -> tuple[str, int]:
        """(the value whose memory this is in the end, at which element of it)."""
        base, offset = self.base(value), 0
        while base in self.inside:
            base, step = self.inside[base]
            offset += step
        return base, offset

    def base(self, value: str) -> str:
        """The value whose memory this one is: itself, unless it is a view."""
        return self.views.get(value, value)

    @cached_property
    def readers(self) -> dict[str, tuple[Task, ...]]:
        """base value -> the tasks that read it or a view of it, in order."""
        found: dict[str, list[Task]] = {}
        for task in self.tasks:
            for base in dict.fromkeys(map(self.base, task.operands.values())):
                found.setdefault(base, []).append(task)
        return {value: tuple(tasks) for value, tasks in found.items()}

    def is_output(self, value: str) -> bool:
        """Whether callers see the memory of this value."""
        return self.place(value)[0] in self._seen

    @cached_property
    def _seen(self) -> frozenset[str]:
        """The values whose memory callers see."""
        return frozenset(self.place(name)[0] for _, name in self.outputs)

    def with_tasks(self, tasks: tuple[Task, ...]) -> Program:
        return replace(self, tasks=tasks)
