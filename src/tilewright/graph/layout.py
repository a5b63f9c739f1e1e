"""Which values lie in blocks of channels (NCHWc): decided over the whole program, by cost.

    conv -> y [n, c, h, w];  conv(y) -> z       becomes       conv -> y [n, c/8, h, w, 8];  ..

Goes in: a program, `cost`, which says how many seconds a group takes, and the size of a block.
Comes out: a program that computes the same. Inputs and results of the program keep the layout that
callers know. A value that is written in one piece may be blocked; whoever cannot read it so, or
does so at a higher price than a conversion, reads a plain copy, which is made once for all of them.
Values are looked at one after the other, again until none changes: a value changes if its producer,
its readers and its conversion together cost less then. Groups are blocked by rewriting their
description (ops/blocked.py), so that every kernel that can be generated may be chosen for them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tilewright.errors import SpecError
from tilewright.graph.fuse import Cost
from tilewright.graph.graph import Value
from tilewright.graph.program import Program, Task
from tilewright.ops.blocked import blocked
from tilewright.ops.chain import is_chained
from tilewright.ops.elementwise import copy
from tilewright.ops.group import Group

BLOCK = 8
ROUNDS = 4


def assign_layouts(program: Program, cost: Cost, block: int = BLOCK) -> Program:
    """[Program] -> [Program] with some values in blocks of `block` channels."""
    state = _State(program, cost, block)
    for _ in range(ROUNDS):
        changed = [value for value in state.candidates if state.reconsider(value)]
        if not changed:
            break
    return _rewritten(state) if state.chosen else program


@dataclass
class _State:
    """A program, and the values that are blocked so far."""

    program: Program
    cost: Cost
    block: int
    chosen: set[str] = field(default_factory=set)
    _prices: dict[tuple[str, frozenset[str]], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        program = self.program
        apart = {*program.views, *program.views.values(), *program.inside}
        apart |= {holder for holder, _ in program.inside.values()}
        self.makers = {t.result: t for t in program.tasks if not t.writes_part}
        self.candidates = [
            name
            for name in self.makers
            if name not in apart and not program.is_output(name) and self._fits(name)
        ]

    def _fits(self, name: str) -> bool:
        value = self.program.values[name]
        return len(value.shape) == 4 and value.dtype == 'f32' and value.shape[1] % self.block == 0

    def reconsider(self, value: str) -> bool:
        """Change the layout of one value if that costs less; whether it did."""
        before = self._around(value)
        self.chosen ^= {value}
        if self._around(value) < before:
            return True
        self.chosen ^= {value}
        return False

    def _around(self, value: str) -> float:
        """Seconds of all that a value's layout decides."""
        maker = self.makers[value]
        readers = self.program.readers.get(value, ())
        return self.price(maker) + sum(map(self.price, readers)) + self.conversion(value)

    def conversion(self, value: str) -> float:
        """Seconds of the plain copy of a value, if somebody reads one."""
        if not any(value in self.copied(t) for t in self.program.readers.get(value, ())):
            return 0.0
        return self.cost(from_blocks(self.program.values[value].shape, self.block))

    def price(self, task: Task) -> float:
        return self._price(task, self.direct(task))

    def direct(self, task: Task) -> frozenset[str]:
        """The blocked values that a task writes, and those that it reads as they are."""
        values = {task.result, *task.operands.values()} & self.chosen
        every = frozenset(values)
        if self._price(task, every) < math.inf:
            return every
        return frozenset({task.result} & self.chosen)

    def copied(self, task: Task) -> set[str]:
        """The blocked values of which a task reads a plain copy."""
        return (set(task.operands.values()) & self.chosen) - self.direct(task)

    def _price(self, task: Task, values: frozenset[str]) -> float:
        key = (task.name, values)
        if key not in self._prices:
            group = blocked_group(task, values, self.block)
            self._prices[key] = math.inf if group is None else self.cost(group)
        return self._prices[key]


def blocked_group(task: Task, values: frozenset[str], block: int) -> Group | None:
    """A task's group with these of its values in blocks; None where that cannot be.

    Kernels of a chain keep its inner tensors in a layout of their own, made from plain rows.
    """
    bound = {**task.operands, task.group.output.name: task.result}
    wanted = {tensor: block for tensor, value in bound.items() if value in values}
    if not wanted:
        return task.group
    if is_chained(task.group):
        return None
    try:
        return blocked(task.group, wanted)
    except SpecError:
        return None


def from_blocks(shape: tuple[int, ...], block: int) -> Group:
    """The conversion of a blocked value to a plain one of this shape."""
    return blocked(copy(shape), {'In': block})


def _rewritten(state: _State) -> Program:
    program, block = state.program, state.block
    values: dict[str, Value] = dict(program.values)
    for name in state.chosen:
        n, c, *rest = program.values[name].shape
        values[name] = replace(values[name], shape=(n, c // block, *rest, block))
    tasks: list[Task] = []
    plain: dict[str, str] = {}  # blocked value -> its plain copy
    for task in program.tasks:
        for name in sorted(state.copied(task) - plain.keys()):
            plain[name] = _fresh(f'{name}/plain', values)
            values[plain[name]] = replace(program.values[name], name=plain[name])
            group = from_blocks(program.values[name].shape, block)
            origin = state.makers[name].origin
            tasks.append(Task(plain[name], group, {'In': name}, plain[name], origin))
        tasks.append(_task(state, task, plain))
    return replace(program, tasks=tuple(tasks), values=values)


def _task(state: _State, task: Task, plain: Mapping[str, str]) -> Task:
    group = blocked_group(task, state.direct(task), state.block)
    assert group is not None, 'a layout that cannot be was not chosen'
    copied = state.copied(task)
    operands = {t: plain[v] if v in copied else v for t, v in task.operands.items()}
    return replace(task, group=group, operands=operands)


def _fresh(name: str, taken: Mapping[str, Value]) -> str:
    while name in taken:
        name += '_'
    return name
