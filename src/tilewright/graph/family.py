"""One description of a network's programs at every size of a box.

Goes in: a function that lowers the network at a point, and a box of sizes (graph/ranges.py). Comes
out: `ProgramFamily`s, each for a part of the box in which programs differ by numbers alone. A
number that varies is a polynomial of the steps along each axis, found from some points and compared
with others; so are the numbers inside labels. Constants and tables that grow are the beginnings of
the largest.

    {'dims': [['i', {'poly': [1, 1]}, 'parallel'], ['k', 768, 'reduction']], ..}     i = 1 + t

What fits no such form (a size that is halved and rounded up) is refused with a sentence; a larger
step of the range often helps. `at` makes the program of a point in milliseconds, without lowering,
and every check of construction runs on it.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.program import Program
from tilewright.graph.program_json import program_from_json, program_to_json, values_of
from tilewright.graph.ranges import Box, Point, count, points, range_text
from tilewright.ops.group import Group

MOST_PIECES = 12
FEW = 4  # points of a box that are all looked at
_NUMBER = re.compile(r'(\d+)')
# A tree's node that is none of JSON's own: a number, a word with numbers, the head of a list.
POLY, INVERSE, WORD, HEAD = 'poly', 'inverse', 'word', 'head'
_MARKS = ({POLY}, {INVERSE}, {WORD}, {HEAD, 'count'})


class _OtherShapeError(Exception):
    """Programs that differ by more than numbers."""


@dataclass(frozen=True)
class ProgramFamily:
    """Programs at the points of a box.

    body, groups   JSON in which numbers may be polynomials; tasks name groups by position
    constants      those of the largest point; smaller ones are their beginnings along each axis
    """

    box: Box
    body: Mapping
    groups: Sequence[Mapping]
    constants: Mapping[str, np.ndarray]

    def at(self, point: Point) -> Program:
        """The program of a point."""
        body, groups = self.body_at(point), dict(enumerate(self.groups_at(point)))
        shapes = {name: value.shape for name, value in values_of(body).items()}
        constants = {
            name: array[tuple(map(slice, shapes[name]))] for name, array in self.constants.items()
        }
        return program_from_json(body, groups, constants)

    def groups_at(self, point: Point) -> list[Group]:
        """The distinct groups at a point, without a program around them."""
        filling = self._filling(point)
        return [Group.from_json(filling.filled(tree)) for tree in self.groups]

    def group_at(self, number: int, point: Point) -> Group:
        """One of them."""
        return Group.from_json(self._filling(point).filled(self.groups[number]))

    def body_at(self, point: Point) -> dict:
        """The body with its numbers at a point."""
        return self._filling(point).filled(self.body)

    def _filling(self, point: Point) -> _Filling:
        if not self.holds(point):
            raise ModelError(f'{point} is not a point of {self.box}')
        return _Filling(_terms(self.box, [point])[0].tolist(), self._varying)

    @cached_property
    def _varying(self) -> frozenset[int]:
        """Identities of the parts of its trees that hold a number that varies."""
        found: set[int] = set()
        for tree in (self.body, *self.groups):
            _find_varying(tree, found)
        return frozenset(found)

    def holds(self, point: Point) -> bool:
        return all(size in sizes for size, sizes in zip(point, self.box, strict=True))

    @property
    def largest(self) -> Point:
        return tuple(sizes[-1] for sizes in self.box)


def families(lower: Callable[[Point], Program], box: Box) -> list[ProgramFamily]:
    """As few families as programs of these points allow, which cover the box."""
    known: dict[Point, Program] = {}

    whole: dict[str, np.ndarray] = {}  # constants of the points before, which most have again

    def program(point: Point) -> Program:
        if point not in known:
            made = lower(point)
            constants = {
                name: _shared(array, whole.get(name)) for name, array in made.constants.items()
            }
            whole.update({n: a for n, a in constants.items() if a.base is not whole.get(n)})
            known[point] = replace(made, constants=constants)
        return known[point]

    program(tuple(sizes[-1] for sizes in box))  # first, since it has the largest constants
    found: list[ProgramFamily] = []
    waiting = [box]
    while waiting:
        piece = waiting.pop()
        try:
            found.append(_family(program, piece))
        except _OtherShapeError as why:
            waiting += _halves(piece, program)
            if len(found) + len(waiting) > MOST_PIECES or len(waiting) == 0:
                raise ModelError(_refusal(piece, str(why))) from None
    return found


def _shared(array: np.ndarray, before: np.ndarray | None) -> np.ndarray:
    """The same array, or the beginning of it, that is there already."""
    if before is None or before.ndim != array.ndim or before.dtype != array.dtype:
        return array
    head = before if before.shape == array.shape else before[tuple(map(slice, array.shape))]
    return head if _equal(head, array) else array


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    """Bit by bit, which is also faster than with numbers that are none."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.__array_interface__ == other.__array_interface__:
        return True
    bits = f'u{one.itemsize}'
    return np.array_equal(one.view(bits), other.view(bits))


def _refusal(box: Box, why: str) -> str:
    sizes = ', '.join(range_text(s) for s in box if len(s) > 1)
    return (
        f'one network for sizes {sizes} cannot be made: {why}; give a narrower range, or one in '
        f'larger steps, such as the product of the strides'
    )


def _halves(box: Box, program: Callable[[Point], Program]) -> list[Box]:
    """Two parts of an axis along which programs have other tasks, or of the longest: its smallest
    size by itself, since 1 is often special, else halves.
    """
    low = tuple(sizes[0] for sizes in box)
    forms = [
        task_forms(program((*low[:i], sizes[-1], *low[i + 1 :]))) for i, sizes in enumerate(box)
    ]  # fmt: skip
    told = [i for i, form in enumerate(forms) if form != task_forms(program(low))]
    wide = max(told or range(len(box)), key=lambda i: len(box[i]))
    sizes = box[wide]
    if len(sizes) < 2:
        return []
    cut = 1 if sizes[0] == 1 else len(sizes) // 2
    return [(*box[:wide], part, *box[wide + 1 :]) for part in (sizes[cut:], sizes[:cut])]


def task_forms(program: Program) -> list[str]:
    """What its tasks are, without their sizes."""
    return [_NUMBER.sub('', task.group.label) for task in program.tasks]


def _family(program: Callable[[Point], Program], box: Box) -> ProgramFamily:
    """The family of a box, from its corners and points between; raises _OtherShapeError."""
    samples = _samples(box)
    programs = [program(point) for point in samples]
    counts = {len(p.tasks) for p in programs}
    if len(counts) > 1:
        raise _OtherShapeError(f'it has {" or ".join(map(str, sorted(counts)))} tasks')
    keys: dict[tuple[str, ...], int] = {}
    numbers: list[int] = []
    for tasks in zip(*(p.tasks for p in programs), strict=True):
        digests = tuple(task.group.digest for task in tasks)
        keys.setdefault(digests, len(keys))
        numbers.append(keys[digests])
    bodies = []
    for p in programs:
        order = iter(numbers)
        bodies.append(program_to_json(p, lambda task, order=order: next(order)))
    fit = _Fit(box, samples)
    firsts = [numbers.index(number) for number in range(len(keys))]
    groups = [fit.joined([p.tasks[first].group.to_json() for p in programs]) for first in firsts]
    largest = programs[samples.index(tuple(sizes[-1] for sizes in box))]
    for p in programs:
        _check_constants(p, largest)
    return ProgramFamily(box, fit.joined(bodies), groups, largest.constants)


def _check_constants(small: Program, large: Program) -> None:
    if small.constants.keys() != large.constants.keys():
        raise _OtherShapeError('it has other constants')
    for name, array in small.constants.items():
        whole = large.constants[name]
        if array is whole:
            continue
        head = whole[tuple(map(slice, array.shape))]
        if whole.ndim != array.ndim or not _equal(head, array):
            raise _OtherShapeError(f'its constant {name!r} depends on the size')


def _samples(box: Box) -> list[Point]:
    """All of a few points; else corners, a middle for squares, and one more that proves the fit.

    The last two lie powers of two below the largest, so that a box without its smallest sizes has
    the same ones, which are lowered already.
    """
    if count(box) <= FEW:
        return list(points(box))
    ends = [tuple(dict.fromkeys((sizes[0], sizes[-1]))) for sizes in box]
    found = list(itertools.product(*ends))
    for share in (0.5, 0.25):
        steps = (2 ** round(math.log2(max(1, share * len(sizes)))) for sizes in box)
        below = zip(box, steps, strict=True)
        found.append(tuple(sizes[-min(len(sizes), 1 + step)] for sizes, step in below))
    return list(dict.fromkeys(found))


def _terms(box: Box, points: Sequence[Point]) -> np.ndarray:
    """[points, terms]: products of steps along the axes; the square of a single one."""
    wide = [i for i, sizes in enumerate(box) if len(sizes) > 1]
    steps = np.array([[box[i].index(p[i]) for i in wide] for p in points], np.int64)
    steps = steps.reshape(len(points), len(wide))
    columns = [
        np.prod(steps[:, list(some)], axis=1)
        for many in range(len(wide) + 1)
        for some in itertools.combinations(range(len(wide)), many)
    ]
    if len(wide) == 1 and len(box[wide[0]]) > 2:  # two points do not tell it from the step
        columns.append(steps[:, 0] ** 2)
    return np.stack(columns, axis=1)


class _Fit:
    """Joins JSON trees of the same form into one with polynomials."""

    def __init__(self, box: Box, samples: Sequence[Point]) -> None:
        self.terms = _terms(box, samples)
        self.known: dict[tuple[int, ...], list[int] | None] = {}

    def joined(self, trees: Sequence[Any]) -> Any:
        first = trees[0]
        if all(tree == first and type(tree) is type(first) for tree in trees):
            return first
        kinds = {type(tree) for tree in trees}
        if len(kinds) > 1:
            raise _OtherShapeError('it has other operators')
        if isinstance(first, dict):
            if any(tree.keys() != first.keys() for tree in trees):
                raise _OtherShapeError('it has other values')
            return {key: self.joined([tree[key] for tree in trees]) for key in first}
        if isinstance(first, list):
            return self._list(trees)
        if isinstance(first, str):
            return self._word(trees)
        if isinstance(first, float):
            wholes = [round(1 / tree) if tree else 0 for tree in trees]
            if any(
                not whole or 1 / whole != tree for whole, tree in zip(wholes, trees, strict=True)
            ):
                raise _OtherShapeError(f'a number in it is {first:g} or {trees[-1]:g}')
            return {INVERSE: self._poly(wholes)}
        if isinstance(first, int) and not isinstance(first, bool):
            return {POLY: self._poly(trees)}
        raise _OtherShapeError(f'{first} becomes {trees[-1]}')

    def _list(self, trees: Sequence[list]) -> Any:
        counts = [len(tree) for tree in trees]
        if len(set(counts)) == 1:
            return [self.joined(items) for items in zip(*trees, strict=True)]
        longest = max(trees, key=len)
        if any(tree != longest[: len(tree)] or not _plain(tree) for tree in trees):
            raise _OtherShapeError('it has other positions')
        return {HEAD: longest, 'count': self._poly(counts)}

    def _word(self, trees: Sequence[str]) -> Any:
        parts = [_NUMBER.split(tree) for tree in trees]
        if len({tuple(p[::2]) for p in parts}) > 1:
            raise _OtherShapeError(f'it has {trees[0]!r} or {trees[-1]!r}')
        return {
            WORD: [
                parts[0][at] if at % 2 == 0 else self.joined([int(p[at]) for p in parts])
                for at in range(len(parts[0]))
            ]
        }

    def _poly(self, numbers: Sequence[int]) -> list[int]:
        key = tuple(numbers)
        if key not in self.known:
            found, *_ = np.linalg.lstsq(
                self.terms.astype(float), np.array(key, float), rcond=None
            )  # fmt: skip
            whole = np.round(found).astype(np.int64)
            exact = np.array_equal(self.terms @ whole, np.array(key, np.int64))
            self.known[key] = whole.tolist() if exact else None
        made = self.known[key]
        if made is None:
            raise _OtherShapeError(f'a size in it goes from {min(key)} to {max(key)} unevenly')
        return made


def _plain(tree: list) -> bool:
    return all(isinstance(item, int) for item in tree)


def _find_varying(tree: Any, found: set[int]) -> bool:
    """Whether a tree holds a mark; it and its parts that do are added to `found`."""
    if not isinstance(tree, dict | list):
        return False
    parts = tree.values() if isinstance(tree, dict) else tree
    varying = sum(_find_varying(part, found) for part in parts)  # all of them are looked at
    if varying or (isinstance(tree, dict) and tree.keys() in _MARKS):
        found.add(id(tree))
        return True
    return False


@dataclass(frozen=True, slots=True)
class _Filling:
    """What trees are at a point: `terms` are those of the point; parts that do not vary are shared
    by all points.
    """

    terms: list[int]
    varying: frozenset[int]

    def filled(self, tree: Any) -> Any:
        if id(tree) not in self.varying:
            return tree
        if isinstance(tree, list):
            return [self.filled(item) for item in tree]
        if tree.keys() in _MARKS:
            return self._number(tree)
        return {key: self.filled(item) for key, item in tree.items()}

    def _number(self, tree: Mapping) -> Any:
        if POLY in tree:
            return self._sum(tree[POLY])
        if INVERSE in tree:
            return 1 / self._sum(tree[INVERSE])
        if WORD in tree:
            return ''.join(str(self.filled(part)) for part in tree[WORD])
        return tree[HEAD][: self._sum(tree['count'])]

    def _sum(self, factors: Sequence[int]) -> int:
        return int(sum(a * b for a, b in zip(self.terms, factors, strict=True)))
