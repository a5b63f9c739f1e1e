"""Where every value lies: one arena whose offsets are fixed before anything runs.

Goes in: a program. Comes out: a `Memory`. Inputs and results are the caller's own arrays where that
is possible, constants are kept apart, and everything between them shares one arena: two values may
have the same bytes if no task needs both. Offsets are found greedily, largest value first, each at
the lowest place that is free during its life (Pisarchyk and Lee, 'Efficient Memory Management for
Deep Neural Net Inference', 2020: within a few percent of the lower bound on CNNs).

Views and values inside others (`Program.place`) have no memory of their own: what holds them lives
as long as any of them.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.program import Program

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Place:
    """The first byte of a value.

    kind    'arena'; 'input' or 'output': an array of the caller; 'constant': of the program
    name    the value whose array it is; '' for the arena
    offset  in bytes, from the start of that memory
    """

    kind: str
    name: str
    offset: int


@dataclass(frozen=True)
class Memory:
    """The plan. `copies` are results that are no memory of their own: (output name, value).

    `peak_bytes` is the largest sum of what lives at one time, below which no plan can be.
    """

    arena_bytes: int
    peak_bytes: int
    places: Mapping[str, Place]
    copies: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Life:
    """The tasks between which a value's memory is needed, both included."""

    first: int
    last: int
    bytes: int

    def meets(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


def plan(program: Program) -> Memory:
    """[Program] -> [Memory]"""
    bound, copies = bound_of(program)
    lives = lifetimes(program, bound)
    offsets = offsets_of(lives)
    places = {}
    for value in program.values:
        root, element = program.place(value)
        start = element * _item_bytes(program, root)
        if root in bound:
            places[value] = Place(*bound[root], start)
        elif root in offsets:
            places[value] = Place('arena', '', offsets[root] + start)
    arena = max((offsets[root] + life.bytes for root, life in lives.items()), default=0)
    return Memory(_rounded(arena), _peak(lives), places, copies)


def lifetimes(program: Program, bound: Mapping[str, object]) -> dict[str, Life]:
    """For every value with memory in the arena, when it is needed and how many bytes."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for number, task in enumerate(program.tasks):
        for value in (task.result, *task.operands.values()):
            root, _ = program.place(value)
            if root not in bound:
                first.setdefault(root, number)
                last[root] = number
    for _, value in program.outputs:  # what is copied out at the end lives until then
        root, _ = program.place(value)
        if root in last:
            last[root] = len(program.tasks)
    return {root: Life(first[root], last[root], bytes_of(program, root)) for root in first}


def offsets_of(lives: Mapping[str, Life]) -> dict[str, int]:
    """Offsets such that no two lives that meet overlap: the largest first, each as low as it can.

    Of equally large ones the earlier comes first, so that the plan is the same every time.
    """
    offsets: dict[str, int] = {}
    placed: list[tuple[int, str, Life]] = []  # by offset
    for value in sorted(lives, key=lambda v: (-lives[v].bytes, lives[v].first, v)):
        life, at = lives[value], 0
        first, last = life.first, life.last
        for offset, _, other in placed:
            if other.first <= last and first <= other.last:
                if at + life.bytes <= offset:
                    break
                at = max(at, _rounded(offset + other.bytes))
        offsets[value] = at
        insort(placed, (at, value, life), key=lambda one: one[:2])
    return offsets


def bound_of(
    program: Program,
) -> tuple[dict[str, tuple[str, str]], tuple[tuple[str, str], ...]]:
    """root -> (kind, name) of memory outside the arena; and the results that must be copied.

    A result is written straight into the caller's array if it is all of some value's memory, and
    that is nobody else's: no input, no constant, no other result.
    """
    bound = {value: ('input', value) for value in program.inputs}
    bound |= {value: ('constant', value) for value in program.constants}
    copies = []
    for name, value in program.outputs:
        root, element = program.place(value)
        if root in bound or element or bytes_of(program, root) != bytes_of(program, value):
            copies.append((name, value))
        else:
            bound[root] = ('output', name)
    return bound, tuple(copies)


def _peak(lives: Mapping[str, Life]) -> int:
    changes: Counter[int] = Counter()
    for life in lives.values():
        changes[life.first] += _rounded(life.bytes)
        changes[life.last + 1] -= _rounded(life.bytes)
    return max(accumulate(changes[now] for now in sorted(changes)), default=0)


def _item_bytes(program: Program, value: str) -> int:
    return np.dtype(DTYPES[program.values[value].dtype]).itemsize


def bytes_of(program: Program, value: str) -> int:
    """Bytes of a value."""
    return math.prod(program.values[value].shape) * _item_bytes(program, value)


def _rounded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
