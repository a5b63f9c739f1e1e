"""What a lowering takes and gives: values that are named, known, seen otherwise, or to be computed.

    Named(value)         an input of the network, or what an earlier node computed
    Known(array)         known now
    View(of, shape)      the memory of another, with other sizes
    Computed(parts)      what groups write: one group, or several that each write their part

A lowering is a function from results to results; it names nothing and changes nothing, and results
nest: `view(compute(..), shape)`. What depends on known arrays alone is computed at once, by the
reference of the group that would have been generated, so that constants fold wherever they occur,
inside a lowering too. graph/lower.py gives names to what remains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.graph import DTYPES, Value, dtype_of
from tilewright.graph.lowering.types import MAX_ELEMENTS
from tilewright.ops.group import Group, Tensor
from tilewright.ops.reference import reference
from tilewright.ops.stage import Stage

# What is known is computed ahead if that takes no more work than this, and no more memory than this
# or than what it is made from: constants that only grow stay work for the network.
FOLD_POINTS, FOLD_ELEMENTS, FOLD_TURN = 2**27, 2**20, 2**13
MAX_FILLED = 2**26


class Unsupported(Exception):  # noqa: N818
    """A node is understood, but not supported; `str` completes 'Resize ..', as in 'of mode cubic'.

    Raised by lowerings; graph/lower.py collects all of a network.
    """


@dataclass(frozen=True, eq=False)
class Named:
    value: Value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> str:
        return self.value.dtype


@dataclass(frozen=True, eq=False)
class Known:
    array: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    @property
    def dtype(self) -> str:
        return dtype_of(self.array)


@dataclass(frozen=True, eq=False)
class View:
    of: Named | Computed
    shape: tuple[int, ...]

    @property
    def dtype(self) -> str:
        return self.of.dtype


@dataclass(frozen=True, eq=False)
class Part:
    """A group and what its tensors are."""

    group: Group
    operands: Mapping[str, Result]


@dataclass(frozen=True, eq=False)
class Computed:
    parts: tuple[Part, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].group.output.shape

    @property
    def dtype(self) -> str:
        return self.parts[0].group.output.dtype


Result: TypeAlias = Named | Known | View | Computed


def compute(group: Group, operands: Mapping[str, Result]) -> Result:
    """What the group computes: known where all that it reads is, and it is not too much work."""
    return join([Part(group, operands)])


def join(parts: Sequence[Part]) -> Result:
    """What several groups compute that write parts of one tensor, all of it between them."""
    bound = tuple(_bound(part) for part in parts)
    for part in bound:
        check_elements(part.group.output.shape, part.group.label)
    result = Computed(bound)
    arrays = [r.array for part in bound for r in part.operands.values() if isinstance(r, Known)]
    if len(arrays) < sum(len(part.operands) for part in bound):
        return result
    work = sum(_work(stage) for part in bound for stage in part.group.stages)
    room = max(FOLD_ELEMENTS, sum(map(elements_held, arrays)))
    if work > FOLD_POINTS or math.prod(result.shape) > room:
        return result
    array = np.zeros(result.shape, DTYPES[result.dtype])
    for part in bound:
        own = {t: r.array for t, r in part.operands.items() if isinstance(r, Known)}
        with np.errstate(all='ignore'):  # files may hold any bits for a number
            store(array, part.group, reference(part.group, own))
    return Known(array)


def _work(stage: Stage) -> int:
    """Points, and what the reference spends on each turn of a loop over a window, or on a step."""
    shared = {n for a in stage.reads for e in a.index if len(e.terms) > 1 for n in e.names}
    turns = math.prod(
        d.size
        for d in stage.dims
        if d.kind == 'sequential' or (d.kind == 'reduction' and d.name in shared)
    )
    return stage.points + FOLD_TURN * turns


def elements_held(array: np.ndarray) -> int:
    """Elements in memory: one value that is repeated is held once."""
    return math.prod(n for n, step in zip(array.shape, array.strides, strict=True) if step)


def _bound(part: Part) -> Part:
    """The part with tensors of their operands' dtypes, constant exactly where these are known.

    Tables of which rows are looked up are read where they are: a copy in the order of a kernel
    would gain nothing, and they may be most of a model.
    """
    tables = {a.tensor for stage in part.group.stages for a in stage.reads if a.lookups}

    def bound(tensor: Tensor) -> Tensor:
        operand = part.operands.get(tensor.name)
        if operand is None:
            return tensor
        packed = isinstance(operand, Known) and tensor.name not in tables
        role = 'constant' if packed else 'input'
        return replace(tensor, role=role, dtype=operand.dtype)

    tensors = tuple(map(bound, part.group.tensors))
    return Part(replace(part.group, tensors=tensors), part.operands)


def store(target: np.ndarray, group: Group, result: np.ndarray) -> None:
    """Put what a group computed into the array that it writes, or the part of it that it writes."""
    where = part_written(group)
    with np.errstate(invalid='ignore', over='ignore'):
        target[where] = result[where].astype(target.dtype)


def part_written(group: Group) -> tuple[np.ndarray, ...]:
    """The index of the elements that a group writes of its output."""
    last = group.stages[-1]
    places = []
    for expression in last.write.index:
        at = np.array([expression.const])
        for name, coefficient in expression.terms:
            at = (at[:, None] + coefficient * np.arange(last.sizes[name])).ravel()
        places.append(at)
    return np.ix_(*places)


def view(result: Result, shape: Sequence[int]) -> Result:
    """The same elements in the same order, with other sizes."""
    sizes = tuple(int(size) for size in shape)
    if math.prod(sizes) != math.prod(result.shape):
        raise ModelError(f'{list(result.shape)} cannot be seen as {list(sizes)}')
    if sizes == result.shape:
        return result
    if isinstance(result, Known):
        return Known(result.array.reshape(sizes))
    base = result.of if isinstance(result, View) else result
    return base if base.shape == sizes else View(base, sizes)


def known(array: np.ndarray | Sequence, dtype: str | None = None) -> Known:
    """An array that is known; of this dtype, if one is named."""
    made = np.asarray(array, DTYPES[dtype] if dtype else None)
    return Known(made)


def filled(shape: Sequence[int], value: float | np.ndarray, dtype: str) -> Known:
    """A known array of one value, held once."""
    check_elements(shape, 'a constant', MAX_FILLED)
    return Known(np.broadcast_to(np.asarray(value, DTYPES[dtype]), tuple(shape)))


def check_elements(shape: Sequence[int], what: str, limit: int = MAX_ELEMENTS) -> None:
    """Raise unless a tensor of this shape may be made; empty ones too have sizes within limits."""
    if math.prod(max(1, size) for size in shape) > limit:
        raise ModelError(
            f'{what} would have shape {list(shape)}, {math.prod(shape)} elements; '
            f'the limit is {limit}'
        )
