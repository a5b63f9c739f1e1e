"""A model compiled for a target with some of the passes, and run.

Goes in: a `Net`, a target, passes. Comes out: its outputs by name. Targets are those of
`tilewright.compile`, and two that take milliseconds and check what lies before code generation:

    numpy       passes and memory plan of the CPU: every task by the reference, on values that lie
                at their planned places in one arena full of poison
    numpy-gpu   passes, placement and waiting of GPUs: tasks in the latest order that waiting allows

Two styles. 'searched' is what users get. 'quick' leaves the search for schedules out, which takes
longer than everything else: on the CPU any legal schedule, drawn by the group's digest so that a
kernel is found in the cache when its group comes again, and on GPUs a dozen trials or the general
schema.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from random import Random
from typing import Any
from unittest import mock

import numpy as np

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.graph import passes as passes_table
from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.result import store
from tilewright.graph.memory import plan
from tilewright.graph.program import Program
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.recurrence.space import recurrence_choices
from tilewright.kernels.cpu.space import random_schedule
from tilewright.machine import compiler as build
from tilewright.machine.isa import host_isas
from tilewright.machine.measure import load_machine
from tilewright.network import compile as stages
from tilewright.ops.dtypes import DTYPES as BYTES
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime import pool
from tilewright.runtime.cpu.network import Network
from tilewright.runtime.gpu import hosted
from tilewright.schedule.choice import Choice
from tilewright.schedule.schedule import Schedule
from tilewright.targets.cpu import kernels
from tilewright.targets.cpu.choose import is_legal
from tilewright.targets.cpu.cost import CpuCost
from tilewright.targets.cpu.kernels import build_all, distinct
from tilewright.targets.gpu import choose
from tilewright.targets.gpu.order import Touched, waits
from tilewright.targets.gpu.place import value_bytes

from .graphs import Net

PASSES = passes_table.PASSES
TARGETS = ('numpy', 'numpy-gpu', 'cpu', 'host', 'opencl', 'cuda')
# None: all of them; then none; each alone; all but each.
VARIANTS: tuple[tuple[str, ...] | None, ...] = (
    None,
    (),
    *((name,) for name in PASSES),
    *(tuple(other for other in PASSES if other != name) for name in PASSES),
)
THREADS = 2
POISON = 0xA5

Passes = Collection[str] | None
Arrays = Mapping[str, np.ndarray]


def passes_text(passes: Passes) -> str:
    """'all', 'none', 'fuse', 'all but fuse'."""
    if passes is None:
        return 'all'
    left_out = [name for name in PASSES if name not in passes]
    if not passes or not left_out:
        return 'none' if not passes else 'all'
    return f'all but {left_out[0]}' if len(left_out) == 1 else ','.join(passes)


def passes_named(text: str) -> tuple[str, ...] | None:
    """What `passes_text` wrote."""
    if text in ('all', 'none'):
        return None if text == 'all' else ()
    if text.startswith('all but '):
        return tuple(name for name in PASSES if name != text[8:])
    return tuple(text.split(','))


def run(
    net: Net,
    target: str,
    passes: Passes,
    style: str = 'quick',
    schemas: Counter[str] | None = None,
    **options: Any,
) -> dict[str, np.ndarray]:
    """[Net] -> outputs by name. `schemas` counts those of a CPU's kernels; options are those of
    `tilewright.compile`, for style 'searched'.
    """
    if target in PSEUDO:
        return PSEUDO[target](net, passes)
    with quickly(target, style):
        if target == 'cpu' and style == 'quick':
            compiled: Any = _drawn_kernels(net, passes)
        else:
            if target == 'cpu':
                options = {'threads': THREADS} | options
            compiled = tw.compile(net.proto(), target=target, passes=passes, **options)
        if schemas is not None:
            schemas.update(kernel.schedule.schema for kernel in compiled.kernels.values())
        outputs = {
            name: np.full(net.values[name].shape, 77, net.values[name].dtype)
            for name in net.outputs
        }
        try:
            found = dict(compiled.run(dict(net.inputs), outputs))
            again = compiled.run(dict(net.inputs))
        finally:
            close = getattr(compiled, 'close', None)
            if close is not None:
                close()
    for name, array in found.items():
        if not np.array_equal(array, again[name], equal_nan=array.dtype.kind == 'f'):
            raise AssertionError(f'{name} differs between two runs on the same data')
    return found


@contextlib.contextmanager
def quickly(target: str, style: str) -> Iterator[None]:
    """Compiles without optimising, and searches little: results have to be right, not fast."""
    patch = mock.patch.object
    flags = tuple('-O1' if word == '-O3' else word for word in build.BASE_FLAGS)
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch(build, 'BASE_FLAGS', flags))
        for module in (kernels, pool):  # a process takes longer to start than to search
            stack.enter_context(patch(module, 'usable_cores', return_value=1))
        if target == 'host':
            stack.enter_context(patch(hosted, 'FLAGS', ('-O0', '-w', '-lm')))
        if target != 'cpu':
            stack.enter_context(patch(choose, 'TRIALS', 12))
        if target != 'cpu' and style == 'quick':
            stack.enter_context(patch(choose, 'has_products', return_value=False))
        yield


@cache
def _machine() -> Any:
    return load_machine(measure=False)[0]


def _drawn_kernels(net: Net, passes: Passes) -> Network:
    cost = CpuCost(_machine(), THREADS)
    program = stages.prepare(net.proto(), None, passes, cost)
    choices = {
        digest: Choice(_drawn_schedule(group), 1e-6, 1e-9)
        for digest, group in distinct(program).items()
    }
    return Network(program, plan(program), build_all(program, choices), THREADS)


def _drawn_schedule(group: Group) -> Schedule:
    """Any legal schedule; the same one whenever this group comes."""
    rng, isa = Random(group.digest), host_isas()[0]
    if group.is_sequential:
        return rng.choice(list(recurrence_choices(group, isa, THREADS, 1)))
    if group.main.is_product_sum:
        for _ in range(3):
            with contextlib.suppress(ScheduleError):
                drawn = random_schedule(group, isa, rng, most_threads=THREADS)
                if is_legal(group, drawn):
                    return drawn
    return general_schedule(group, isa, rng.randint(1, THREADS), 1)


def _on_numpy(net: Net, passes: Passes) -> dict[str, np.ndarray]:
    cost = CpuCost(_machine(), THREADS)
    program = stages.prepare(net.proto(), None, passes, cost)
    memory = plan(program)
    arena = np.full(memory.arena_bytes, POISON, np.uint8)
    held: dict[tuple[str, str], np.ndarray] = {('arena', ''): arena}
    held |= {('constant', n): _bytes(a).copy() for n, a in program.constants.items()}
    held |= {('input', n): _bytes(net.inputs[n]).copy() for n in program.inputs}
    for name, value in program.outputs:
        size = value_bytes(program, value)
        held['output', name] = np.full(size, POISON, np.uint8)

    def of(value: str) -> np.ndarray:
        place, kind = memory.places[value], program.values[value]
        end = place.offset + math.prod(kind.shape) * BYTES[kind.dtype]
        part = held[place.kind, place.name][place.offset : end]
        return part.view(DTYPES[kind.dtype]).reshape(kind.shape)

    for task in program.tasks:
        _compute(task, of)
    copied = {name: of(value).copy() for name, value in memory.copies}
    return {
        name: copied[name] if name in copied else _typed(held['output', name], program, value)
        for name, value in program.outputs
    }


def _typed(memory: np.ndarray, program: Program, value: str) -> np.ndarray:
    kind = program.values[value]
    return memory.view(DTYPES[kind.dtype]).reshape(kind.shape)


def _bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _compute(task: Any, of: Any) -> None:
    with np.errstate(all='ignore'):
        arrays = {tensor: of(value) for tensor, value in task.operands.items()}
        store(of(task.result), task.group, reference(task.group, arrays))


class _Bare:
    """A module without buffers of its own, as far as placing asks."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.buffers = self.steps = self.ahead = ()


def _on_numpy_gpu(net: Net, passes: Passes) -> dict[str, np.ndarray]:
    from tilewright.graph.levels import by_levels
    from tilewright.machine.gpu import known_gpu
    from tilewright.targets.gpu.cost import GpuCost
    from tilewright.targets.gpu.place import place

    cost = GpuCost(known_gpu('h200'))
    program = by_levels(stages.prepare(net.proto(), None, passes, cost, passes_table.GPU_PASSES))
    modules: Sequence[Any] = [_Bare(task.group) for task in program.tasks]
    placed = place(program, modules)
    arena = np.full(placed.arena_bytes, POISON, np.uint8)
    constants = {name: _bytes(array) for name, array in program.constants.items()}

    def span(value: str) -> tuple[int, int] | None:
        root, element = program.place(value)
        kind = program.values[value]
        if root in constants:
            return None
        first = placed.values[root] + element * BYTES[kind.dtype]
        return first, first + math.prod(kind.shape) * BYTES[kind.dtype]

    def of(value: str) -> np.ndarray:
        root, element = program.place(value)
        kind, at = program.values[value], span(value)
        if at is None:
            first = element * BYTES[kind.dtype]
            end = first + math.prod(kind.shape) * BYTES[kind.dtype]
            return constants[root][first:end].view(DTYPES[kind.dtype]).reshape(kind.shape)
        return arena[at[0] : at[1]].view(DTYPES[kind.dtype]).reshape(kind.shape)

    touched = [
        Touched(
            tuple(filter(None, map(span, task.operands.values()))),
            tuple(filter(None, (span(task.result),))),
        )
        for task in program.tasks
    ]
    for name in program.inputs:
        of(name)[...] = net.inputs[name]
    before, left = waits(touched), set(range(len(program.tasks)))
    while left:
        chosen = max(n for n in left if not left & set(before[n]))
        _compute(program.tasks[chosen], of)
        left.remove(chosen)
    return {name: of(value).copy() for name, value in program.outputs}


PSEUDO = {'numpy': _on_numpy, 'numpy-gpu': _on_numpy_gpu}
