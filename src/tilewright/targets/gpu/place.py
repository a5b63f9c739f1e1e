"""Where everything lies on a device: one arena for values and scratch, fixed before anything runs.

Goes in: a program, its tasks in the order of their levels (`by_levels`), and the module of every
task. Comes out: a `Placement`. Kernels that do not wait for each other run side by side (order.py),
so that lives are counted in levels, the length of the longest way from the inputs, and not in
tasks: branches of equal depth get memory of their own. Two lives that do not share a level must not
meet when tasks run one after the other either, which is why the order matters.
Offsets are those of graph/memory.py. What a carried input is next lies where the input does, if one
kernel alone reads that element by element and writes it. Results and inputs lie in the arena as
well and are copied from there, so that addresses never change and a call is one CUDA graph.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import ModelError
from tilewright.graph.levels import levels_of, successors
from tilewright.graph.memory import Life, offsets_of
from tilewright.graph.program import Program
from tilewright.kernels.gpu.module import Buffer, Module
from tilewright.ops.dtypes import DTYPES

ALIGNMENT = 512  # bytes: what every device asks of a part of its memory, and a sector of L2
VECTOR = 16  # bytes that kernels move at once


@dataclass(frozen=True)
class Placement:
    """Bytes of the arena, and where in it things begin.

    values    value that has memory of its own -> its first byte; constants are not among them
    scratch   for every task: buffer of its module -> its first byte
    levels    of every task
    replaced  value -> the input whose memory it is written to
    """

    arena_bytes: int
    values: Mapping[str, int]
    scratch: tuple[Mapping[str, int], ...]
    levels: tuple[int, ...]
    replaced: Mapping[str, str]


def duties(module: Module) -> dict[str, str]:
    """buffer -> what it is for, of all that a module has.

    value     a tensor that is given or made by every call
    constant  a tensor that kernels of a call read
    packing   a constant that only kernels ahead read, so that nobody needs it afterwards
    prepared  made ahead, once
    zeroed    zeros between calls
    scratch   written and read by one call
    """
    roles = {t.name: t.role for t in module.group.tensors}
    running = {buffer for step in module.steps for _, buffer in step.buffers}
    made = {
        buffer
        for step in module.ahead
        for name, buffer in step.buffers
        if step.kernel.array(name).written
    }
    found = {}
    for buffer in module.buffers:
        role = roles.get(buffer.name)
        if role in ('input', 'output'):
            duty = 'value'
        elif role == 'constant':
            duty = 'constant' if buffer.name in running else 'packing'
        elif buffer.name in made:
            duty = 'prepared'
        else:
            duty = 'zeroed' if buffer.zeroed else 'scratch'
        found[buffer.name] = duty
    return found


def place(program: Program, modules: Sequence[Module]) -> Placement:
    """[Program, module of every task] -> [Placement]"""
    levels = levels_of(program, late=True)
    if list(levels) != sorted(levels):
        raise ModelError(
            f'{program.name}: tasks of levels {levels} cannot share memory by level; sort them by '
            f'`by_levels` first'
        )
    last = max(levels, default=0) + 1
    replaced = _replaced(program, modules)
    lives: dict[str, Life] = {}

    def needed(name: str, size: int, first: int, until: int) -> None:
        known = lives.get(name)
        low, high = (first, until) if known is None else (known.first, known.last)
        lives[name] = Life(min(low, first), max(high, until), _rounded(size))

    for name in program.inputs:
        needed(name, value_bytes(program, name), 0, last)
    for level, task in zip(levels, program.tasks, strict=True):
        for value in (task.result, *task.operands.values()):
            root, _ = program.place(value)
            if root not in program.constants and root not in replaced:
                needed(root, value_bytes(program, root), level, level)
    for _, value in program.outputs:
        root, _ = program.place(value)
        if root in lives:
            needed(root, value_bytes(program, root), last, last)
    named: list[dict[str, str]] = []
    for number, (level, module) in enumerate(zip(levels, modules, strict=True)):
        kinds = duties(module)
        own = {b.name: f'{number} {b.name}' for b in module.buffers if kinds[b.name] == 'scratch'}
        for buffer in module.buffers:
            if buffer.name in own:
                needed(own[buffer.name], buffer_bytes(buffer), level, level)
        named.append(own)
    offsets = offsets_of(lives)
    scratch = tuple({name: offsets.pop(key) for name, key in own.items()} for own in named)
    total = max((offsets_end(lives, scratch, named, offsets)), default=0)
    offsets |= {value: offsets[name] for value, name in replaced.items()}
    return Placement(total, offsets, scratch, levels, replaced)


def _replaced(program: Program, modules: Sequence[Module]) -> dict[str, str]:
    """The successors that one kernel writes, which is also the only one to read what they replace:
    several kernels of a task may keep sums in its result.
    """
    found = successors(program)
    for task, module in zip(program.tasks, modules, strict=True):
        if task.result in found:
            old = {t for t, v in task.operands.items() if program.place(v)[0] == found[task.result]}
            touching = [
                step for step in module.steps
                if any(buffer in {*old, task.group.output.name} for _, buffer in step.buffers)
            ]  # fmt: skip
            if len(touching) != 1:
                del found[task.result]
    return found


def offsets_end(
    lives: Mapping[str, Life],
    scratch: Sequence[Mapping[str, int]],
    named: Sequence[Mapping[str, str]],
    offsets: Mapping[str, int],
) -> list[int]:
    """The end of everything that has a place."""
    ends = [at + lives[name].bytes for name, at in offsets.items()]
    for places, own in zip(scratch, named, strict=True):
        ends += [at + lives[own[name]].bytes for name, at in places.items()]
    return ends


def is_aligned(program: Program, values: Sequence[str]) -> bool:
    """Whether all of these begin where kernels may move several elements at once."""
    for value in values:
        root, element = program.place(value)
        if element * DTYPES[program.values[root].dtype] % VECTOR:
            return False
    return True


def value_bytes(program: Program, value: str) -> int:
    kind = program.values[value]
    if kind.dtype not in DTYPES:
        raise ModelError(f'{value!r} is {kind.dtype}; kernels know {", ".join(DTYPES)}')
    return math.prod(kind.shape) * DTYPES[kind.dtype]


def buffer_bytes(buffer: Buffer) -> int:
    return math.prod(buffer.sizes) * DTYPES[buffer.dtype]


def _rounded(size: int) -> int:
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT
