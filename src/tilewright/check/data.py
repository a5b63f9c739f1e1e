"""Random inputs that a network can be tried on.

Goes in: a program, lowered but otherwise as the model has it, and a seed. Comes out: arrays by
name: floats of the standard normal distribution, truth values, whole numbers of 8 bits over their
whole range and others from -4 to 4. Whole numbers that are used as indices, directly or through
other tasks on whole numbers, stay within what they look up, and divisors are no zeros: frameworks
do not agree on what either would mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.graph.graph import DTYPES, Value
from tilewright.graph.program import Program, Task
from tilewright.ops.dtypes import is_float, limits

SMALL = 4
_DIVISIONS = ('div', 'mod', 'fmod')


@dataclass(frozen=True, slots=True)
class Range:
    """The least whole number, and the one behind the largest."""

    low: int
    high: int


def random_inputs(program: Program, seed: int) -> dict[str, np.ndarray]:
    """[Program, seed] -> inputs by name"""
    return random_arrays([program.values[name] for name in program.inputs], ranges(program), seed)


def random_arrays(
    inputs: Iterable[Value], known: Mapping[str, Range], seed: int
) -> dict[str, np.ndarray]:
    """Arrays of these types; whole numbers within the ranges that are known."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for value in inputs:
        kind = np.dtype(DTYPES[value.dtype])
        if kind.kind == 'f':
            made = rng.standard_normal(value.shape)
        elif kind.kind == 'b':
            made = rng.integers(0, 2, value.shape)
        else:
            chosen = known.get(value.name) or _plain(value.dtype)
            made = rng.integers(chosen.low, chosen.high, value.shape)
        arrays[value.name] = np.asarray(made).astype(kind)
    return arrays


def ranges(program: Program) -> dict[str, Range]:
    """input -> its range, for whole numbers that a lookup or a division reads in the end."""
    reached: dict[str, set[str]] = {name: {name} for name in program.inputs}
    extents: dict[str, int] = {}
    divisors: set[str] = set()
    for task in program.tasks:
        sources = {
            tensor: reached.get(program.place(value)[0], set())
            for tensor, value in task.operands.items()
            if not is_float(program.values[value].dtype)
        }
        everything = set().union(*sources.values())
        for tensor, extent in _lookups(task):
            for name in sources.get(tensor, everything):
                extents[name] = min(extent, extents.get(name, extent))
        if any(f in _DIVISIONS for s in task.group.stages for f in s.expr.functions()):
            divisors |= everything
        if not is_float(program.values[task.result].dtype):
            reached.setdefault(program.place(task.result)[0], set()).update(everything)
    found = {}
    for name in program.inputs:
        low, high = limits(dtype) if (dtype := _whole(program, name)) else (0, 0)
        if name in extents:
            found[name] = Range(0, min(extents[name], high + 1))
        elif name in divisors and dtype:
            found[name] = Range(max(low, 1), SMALL + 1)
    return found


def _whole(program: Program, name: str) -> str:
    """The dtype of an input that holds whole numbers; '' for others."""
    dtype = program.values[name].dtype
    return dtype if np.dtype(DTYPES[dtype]).kind in 'iu' else ''


def _plain(dtype: str) -> Range:
    low, high = limits(dtype)
    return Range(low, high + 1) if high < 256 else Range(max(low, -SMALL), SMALL + 1)


def _lookups(task: Task) -> Iterable[tuple[str, int]]:
    """(tensor that holds indices, size of the axis that they are for)"""
    for stage in task.group.stages:
        for access in stage.reads:
            shape = task.group.tensor(access.tensor).shape
            for axis, read in access.lookups:
                yield stage.reads[read].tensor, shape[axis]
