"""Sizes that vary: which axes of which inputs, between which bounds, in which steps.

    shapes={'x': (range(1, 9), 3, range(64, 641, 32), range(64, 641, 32))}

Goes in: `shapes=` with ranges among its numbers. Comes out: `Ranges`: one `Axis` for each size that
varies by itself. A *point* is one size for each of them; equal ranges of different inputs are the
same size, as the words and the mask of a sentence are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.errors import ArrayError, ModelError

Point = tuple[int, ...]
Box = tuple[range, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """A size that varies, and where it occurs: (input, position in its shape)."""

    sizes: range
    places: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        name, position = self.places[0]
        return f'{name}[{position}] = {range_text(self.sizes)}'


def range_text(sizes: range) -> str:
    """'64 to 640 in steps of 32'"""
    steps = '' if sizes.step == 1 else f' in steps of {sizes.step}'
    return f'{sizes[0]} to {sizes[-1]}{steps}' if len(sizes) > 1 else str(sizes[0])


def wrong(axis: Axis, size: int) -> str:
    """Why a size is none of an axis, and what to do."""
    sizes = axis.sizes
    if not sizes[0] < size < sizes[-1]:
        return f'outside of {range_text(sizes)}; compile the model for a range that holds it'
    below = sizes[(size - sizes[0]) // sizes.step]
    return (
        f'between two sizes of {range_text(sizes)}; resize or pad the input to {below} or '
        f'{below + sizes.step}, or compile the model for smaller steps'
    )


@dataclass(frozen=True, slots=True)
class Ranges:
    """The axes that vary, and the shapes of inputs: numbers, or the number of an axis as 'i'."""

    axes: tuple[Axis, ...]
    shapes: tuple[tuple[str, tuple[int | str, ...]], ...]

    @property
    def box(self) -> Box:
        return tuple(axis.sizes for axis in self.axes)

    @property
    def largest(self) -> Point:
        return tuple(axis.sizes[-1] for axis in self.axes)

    def at(self, point: Point) -> dict[str, tuple[int, ...]]:
        """Shapes of the inputs at a point."""
        return {
            name: tuple(point[int(size)] if isinstance(size, str) else size for size in shape)
            for name, shape in self.shapes
        }

    def point_of(self, network: str, shapes: Mapping[str, Sequence[int]]) -> Point:
        """The point that these inputs have; an ArrayError where it lies outside."""
        found: list[int] = []
        for axis in self.axes:
            seen = {}
            for name, position in axis.places:
                shape = shapes.get(name)
                if shape is not None and position < len(shape):
                    seen[name, position] = shape[position]
            if not seen:
                name, position = axis.places[0]
                raise ArrayError(
                    f'{network}: input {name!r} is missing or has no axis {position}; it takes '
                    f'{self}'
                )
            (name, position), size = next(iter(seen.items()))
            other = next((item for item in seen.items() if item[1] != size), None)
            if other is not None:
                raise ArrayError(
                    f'{network}: axis {position} of {name!r} has size {size}, axis {other[0][1]} '
                    f'of {other[0][0]!r} {other[1]}; these sizes vary together'
                )
            if size not in axis.sizes:
                raise ArrayError(
                    f'{network}: axis {position} of {name!r} has size {size}, {wrong(axis, size)}'
                )
            found.append(size)
        return tuple(found)

    def __str__(self) -> str:
        return ', '.join(
            f'{name}[{",".join(self._size_text(size) for size in shape)}]'
            for name, shape in self.shapes
        )

    def _size_text(self, size: int | str) -> str:
        return str(size) if isinstance(size, int) else slice_text(self.axes[int(size)].sizes)

    def to_json(self) -> dict:
        return {
            'axes': [
                [axis.sizes.start, axis.sizes.stop, axis.sizes.step, [list(p) for p in axis.places]]
                for axis in self.axes
            ],
            'shapes': [[name, list(shape)] for name, shape in self.shapes],
        }

    @classmethod
    def from_json(cls, data: Mapping) -> Ranges:
        axes = tuple(
            Axis(range(*bounds), tuple((str(name), int(at)) for name, at in places))
            for *bounds, places in data['axes']
        )
        made = cls(axes, tuple((name, tuple(shape)) for name, shape in data['shapes']))
        for axis in axes:
            _check(axis.places[0][0], axis.sizes)
        made.at(made.largest)
        return made


def slice_text(sizes: range) -> str:
    """'64:640:32', as the command line writes a range; the last size belongs to it."""
    step = '' if sizes.step == 1 else f':{sizes.step}'
    return f'{sizes[0]}:{sizes[-1]}{step}' if len(sizes) > 1 else str(sizes[0])


def find_ranges(shapes: Any) -> Ranges | None:
    """`shapes=` of a caller -> its ranges; None where every size is a number."""
    if not isinstance(shapes, Mapping) or not any(
        isinstance(size, range)
        for shape in shapes.values()
        if isinstance(shape, Sequence)
        for size in shape
    ):
        return None
    places: dict[tuple, list[tuple[str, int]]] = {}
    numbered: list[tuple[str, tuple[int | str, ...]]] = []
    for name, shape in shapes.items():
        sizes: list[int | str] = []
        seen: dict[range, int] = {}
        for position, size in enumerate(shape):
            if not isinstance(size, range):
                sizes.append(size)
                continue
            _check(name, size)
            seen[size] = seen.get(size, -1) + 1
            key = (size, seen[size])  # the second such range of an input is another size
            places.setdefault(key, []).append((name, position))
            sizes.append(str(list(places).index(key)))
        numbered.append((name, tuple(sizes)))
    axes = tuple(Axis(size, tuple(where)) for (size, _), where in places.items())
    return Ranges(axes, tuple(numbered))


def _check(name: str, sizes: range) -> None:
    if not sizes or sizes.step < 1 or sizes.start < 1:
        raise ModelError(
            f'shapes gives {name!r} the sizes {sizes!r}; a range ascends, begins at 1 or more and '
            f'holds a size'
        )


def count(box: Box) -> int:
    return math.prod(map(len, box))


def points(box: Box) -> Iterator[Point]:
    return itertools.product(*box)


def spread(box: Box, most: int) -> list[Point]:
    """At most about so many points of a box: all of them, or a grid with both ends of each axis, on
    which sizes grow by the same factor: schedules change more between 8 and 16 than up to 512.
    """
    if count(box) <= most:
        return list(points(box))
    wide = [i for i, sizes in enumerate(box) if len(sizes) > 1]
    many = {i: max(2, int(most ** (1 / len(wide)))) for i in wide}
    for i in wide:  # 5 by 4 for 20 of them
        if math.prod((many | {i: many[i] + 1}).values()) <= most:
            many[i] += 1
    return list(itertools.product(*(_some(sizes, many.get(i, 1)) for i, sizes in enumerate(box))))


def _some(sizes: range, most: int) -> list[int]:
    if len(sizes) <= most:
        return list(sizes)
    growth = (sizes[-1] / sizes[0]) ** (1 / (most - 1))
    wanted = (sizes[0] * growth**i for i in range(most))
    return sorted({sizes[round((size - sizes[0]) / sizes.step)] for size in wanted})
