"""Which numbers of a network's inputs choose rows of a table, and how many rows there are.

Goes in: a program. Comes out: input -> the rows that each of its elements chooses from. Inputs are
followed through tasks that only move elements (slices, splits, transpositions), by moving the
places of the elements instead of them. Kernels never read outside a table, whatever an index is;
this is what lets callers know that theirs was outside. Indices that a network computes are not
followed.
"""

from __future__ import annotations

import math

import numpy as np

from tilewright.graph.program import Program, Task
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Stage, read

FOLLOWED = ('i64', 'i32')
MAX_FOLLOWED = 2**22  # elements of an input
_FREE = 2**62


def index_limits(program: Program) -> dict[str, np.ndarray]:
    """input -> rows, of the input's shape; `_FREE` where an element is no index of a table."""
    # Flat, by the value whose memory it is; places count from 1 on, over all inputs.
    held: dict[str, np.ndarray] = {}
    starts, count = {}, 1
    for name in program.inputs:
        value = program.values[name]
        size = math.prod(value.shape)
        if value.dtype in FOLLOWED and count + size <= MAX_FOLLOWED:
            held[name] = np.arange(count, count + size)
            starts[name] = count
            count += size
    if not held:
        return {}
    limits = np.full(count, _FREE)
    for task in program.tasks:
        for chosen, rows in _chosen(program, task, held):
            np.minimum.at(limits, chosen[chosen > 0], rows)
        _move(program, task, held)
    found = {
        name: limits[first : first + held[name].size].reshape(program.values[name].shape)
        for name, first in starts.items()
    }
    return {name: rows for name, rows in found.items() if (rows < _FREE).any()}


def check_indices(name: str, given: np.ndarray, rows: np.ndarray) -> str:
    """What is wrong with an input whose elements choose rows; '' if nothing is."""
    wrong = (given >= rows) | (given < -rows)
    if not wrong.any():
        return ''
    place = np.unravel_index(int(wrong.argmax()), given.shape)
    at, size = ', '.join(map(str, place)), int(rows[place])
    return (
        f'input {name!r} is {given[place]} at [{at}], which chooses one of {size} rows; give '
        f'numbers from 0 to {size - 1}'
    )


def _of(program: Program, value: str, held: dict[str, np.ndarray]) -> np.ndarray | None:
    """The places of a value's elements, if it is followed."""
    root, first = program.place(value)
    shape = program.values[value].shape
    if root not in held:
        return None
    return held[root][first : first + math.prod(shape)].reshape(shape)


def _chosen(
    program: Program, task: Task, held: dict[str, np.ndarray]
) -> list[tuple[np.ndarray, int]]:
    """The places that choose rows in a task, with the rows of each table."""
    found = []
    for stage in task.group.stages:
        for access in stage.reads:
            for axis, number in access.lookups:
                index = stage.reads[number]
                value = task.operands.get(index.tensor)
                places = _of(program, value, held) if value and index.is_affine else None
                if places is not None:
                    rows = task.group.tensor(access.tensor).shape[axis]
                    found.append((places[_elements(stage, index, places.shape)].ravel(), rows))
    return found


def _elements(stage: Stage, access: Access, shape: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    """The index of every element that an affine access reads; what lies outside is padding."""
    grid = dict(
        zip(access.names, np.ogrid[tuple(slice(stage.sizes[n]) for n in access.names)], strict=True)
    )
    at = np.broadcast_arrays(
        *(
            np.asarray(e.const + sum(grid[name] * factor for name, factor in e.terms))
            for e in access.index
        )
    )
    inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(at, shape, strict=True)])
    return tuple(i[inside] for i in at)


def _move(program: Program, task: Task, held: dict[str, np.ndarray]) -> None:
    """Places of the result, where a task only moves elements that are followed."""
    group, (first_stage, *more) = task.group, task.group.stages
    if more or first_stage.expr != read(0) or group.output.dtype not in FOLLOWED:
        return
    followed = {t: _of(program, value, held) for t, value in task.operands.items()}
    known = {tensor: places for tensor, places in followed.items() if places is not None}
    if len(followed) != 1 or not known:
        return
    root, first = program.place(task.result)
    size = math.prod(program.values[root].shape)
    moved = reference(group, known).ravel()  # 0 is what lies outside
    held.setdefault(root, np.zeros(size, np.int64))[first : first + moved.size] |= moved
