"""The state of a graph that is being drawn: what there is, and how operands and data are chosen.

Goes in: a random generator. Rows of the operators' table ask for operands, constants and numbers;
`apply` adds a node, computed by the oracle at once. Comes out: a `Net`. Everything follows from the
seed: no clock, no set order, no state outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

import numpy as np

from . import oracle
from .graphs import OPSET, Net, Node

T = TypeVar('T')
FLOATS = ('float32', 'float64')
WHOLE = ('int64', 'int32', 'int16', 'int8', 'uint64', 'uint32', 'uint16', 'uint8')
NUMBERS = (*FLOATS, *WHOLE)
ANY = (*NUMBERS, 'bool')
MOST_ELEMENTS = 600
LARGEST = 1e4  # of a float: beyond it sums lose what they are to be compared by
SIZES = (1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 8)
ODD_SIZES = (7, 9, 16, 17)
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40)


class MisfitError(Exception):
    """This operator cannot take this value, or what came out cannot be used."""


@dataclass(frozen=True)
class Step:
    """A node that a row wants: its inputs, attributes and number of outputs."""

    inputs: Sequence[str]
    attributes: Mapping[str, object] = field(default_factory=dict)
    outputs: int = 1


@dataclass(frozen=True)
class Row:
    """An operator: the element types of its first input, and how its node is drawn around one."""

    op: str
    dtypes: tuple[str, ...]
    make: Callable[[Draw, str], Step]


class Draw:
    """A graph that grows."""

    def __init__(self, rng: Random, special: bool = False, opset: int = OPSET) -> None:
        self.rng = rng
        self.opset = opset
        self.special = special  # whether NaN and infinities may occur
        self.nodes: list[Node] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.values: dict[str, np.ndarray] = {}
        self.by: dict[str, int] = {}
        self.count = 0

    # -- choices

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def pick(self, items: Sequence[T]) -> T:
        return items[self.rng.randrange(len(items))]

    def int(self, low: int, high: int) -> int:
        return self.rng.randint(low, high)

    def some(self, items: Sequence[T], least: int = 1) -> list[T]:
        """A few of these, each once, in any order."""
        return self.rng.sample(list(items), self.int(min(least, len(items)), len(items)))

    def size(self) -> int:
        return self.pick(ODD_SIZES) if self.chance(0.04) else self.pick(SIZES)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        if rank is None:
            rank = self.pick((0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 4, 5))
        while True:
            shape = tuple(self.size() for _ in range(rank))
            if math.prod(shape) <= MOST_ELEMENTS // 2:
                return shape

    def dtype(self) -> str:
        """Mostly float32, which has the fast kernels."""
        chosen = self.rng.random()
        if chosen < 0.72:
            return 'float32'
        if chosen < 0.79:
            return 'float64'
        if chosen < 0.86:
            return 'int64'
        return self.pick(ANY)

    # -- data

    def data(self, shape: Sequence[int], dtype: str, how: str = 'any') -> np.ndarray:
        """Distinct floats, no two closer than the grid; small whole numbers; truth values.

        how: 'any' in (-2, 2), 'positive' in (0.25, 2), 'unit' in (-0.9, 0.9), 'above' in (1.1, 3)
        """
        rng = np.random.default_rng(self.rng.getrandbits(64))
        count = math.prod(shape)
        if dtype == 'bool':
            return rng.integers(0, 2, shape).astype(bool)
        if dtype in WHOLE:
            low = 0 if dtype[0] == 'u' or how in ('positive', 'above') else -4
            return np.asarray(rng.integers(low + (how != 'any'), 6, shape)).astype(dtype)
        low, high = {
            'any': (-2.0, 2.0), 'positive': (0.25, 2.0), 'unit': (-0.9, 0.9), 'above': (1.1, 3.0),
        }[how]  # fmt: skip
        grid = (rng.permutation(count) + rng.uniform(0.2, 0.8)) / max(count, 1)
        made = np.asarray(low + (high - low) * grid.reshape(shape)).astype(dtype)
        if self.special and how == 'any':
            chosen = rng.random(shape) < 0.15
            made = np.where(chosen, rng.choice(SPECIAL, shape), made).astype(dtype)
        return made

    def constant(self, array: np.ndarray) -> str:
        """A constant; one that is equal already serves mostly again."""
        array = np.asarray(array)
        for name, held in self.constants.items():
            same = held.shape == array.shape and held.dtype == array.dtype
            if same and np.array_equal(held, array) and self.chance(0.7):
                return name
        name = self.fresh('c')
        self.constants[name] = self.values[name] = array
        return name

    def numbers(self, values: Sequence[int], dtype: str = 'int64') -> str:
        """Whole numbers that are known ahead: axes, pads, shapes."""
        return self.constant(np.array(values, dtype))

    def listed(
        self,
        x: str,
        name: str,
        numbers: Sequence[int],
        since: int,
        attributes: Mapping[str, object],
    ) -> Step:
        """A node with a list of numbers, which was an attribute before this opset."""
        if self.opset < since:
            return Step([x], {**attributes, name: list(numbers)})
        return Step([x, self.numbers(numbers)], attributes)

    def given(self, array: np.ndarray) -> str:
        name = self.fresh('x')
        self.inputs[name] = self.values[name] = array
        return name

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f'{letter}{self.count}'

    # -- operands

    def operand(self, shape: Sequence[int], dtype: str, how: str = 'any', scale: float = 1) -> str:
        """A value of this type: one that is computed already, a constant, or a new input."""
        shape = tuple(shape)
        if how == 'any' and scale == 1 and self.chance(0.45):
            fitting = [
                n for n, a in self.values.items()
                if a.shape == shape and a.dtype == dtype and n not in self.constants
            ]  # fmt: skip
            if fitting:
                return self.pick(fitting)
        array = self.data(shape, dtype, how)
        if scale != 1 and dtype in FLOATS:
            array = (array * scale).astype(dtype)
        return self.given(array) if self.chance(0.25) else self.constant(array)

    def weight(self, shape: Sequence[int], dtype: str, terms: int) -> str:
        """A factor of a sum of so many terms, of a size that keeps the sum of order one."""
        return self.operand(shape, dtype, 'any', 1 / math.sqrt(max(1, terms)))

    def partner(self, shape: Sequence[int], dtype: str, how: str = 'any') -> str:
        """An operand that broadcasts with a shape, now and then one that makes it larger."""
        kind = self.rng.random()
        wanted = tuple(shape)
        if kind < 0.3:
            return self.operand(wanted, dtype, how)
        if kind < 0.45:
            return self.operand((), dtype, how)
        wanted = tuple(1 if self.chance(0.4) else s for s in wanted)
        if kind < 0.75:
            return self.operand(wanted[self.int(0, len(wanted)) :], dtype, how)
        grown = tuple(self.size() if s == 1 and self.chance(0.3) else s for s in wanted)
        if self.chance(0.2) and len(grown) < 5:
            grown = (self.pick((1, 2)), *grown)
        return self.operand(grown, dtype, how)

    # -- nodes

    def apply(self, op: str, step: Step) -> tuple[str, ...]:
        """Add a node; comes out: its outputs. `MisfitError` where it cannot be used."""
        outputs = tuple(self.fresh('v') for _ in range(step.outputs))
        node = Node(op, tuple(step.inputs), outputs, step.attributes, self.opset)
        try:
            made, by = oracle.step(node, self.values, self.constants)
        except oracle.OracleError as error:
            raise MisfitError(str(error)) from None
        for array in made.values():
            self.check(array)
        self.nodes.append(node)
        self.values |= made
        self.by[by] = self.by.get(by, 0) + 1
        return outputs

    def check(self, array: np.ndarray) -> None:
        if not 0 < array.size <= MOST_ELEMENTS or array.ndim > 6:
            raise MisfitError(f'{array.shape} has no elements, or too many')
        if str(array.dtype) not in ANY:
            raise MisfitError(f'{array.dtype} is not supported')
        plain = array.dtype.kind == 'f' and not self.special
        if plain and (not np.isfinite(array).all() or np.abs(array).max() > LARGEST):
            raise MisfitError('too large')
        # Small types and those without sign wrap around, which is defined; others should not.
        wide = array.dtype.kind == 'i' and array.dtype.itemsize > 2
        if wide and (np.abs(array.astype(np.float64)) > 1e6).any():
            raise MisfitError('too large')

    def mark(self) -> tuple:
        return (
            len(self.nodes), dict(self.inputs), dict(self.constants), dict(self.values), self.count,
        )  # fmt: skip

    def rewind(self, mark: tuple) -> None:
        length, self.inputs, self.constants, self.values, self.count = (
            mark[0], dict(mark[1]), dict(mark[2]), dict(mark[3]), mark[4],
        )  # fmt: skip
        del self.nodes[length:]

    def net(self, outputs: Sequence[str]) -> Net:
        return Net(
            tuple(self.nodes), dict(self.inputs), dict(self.constants), tuple(outputs),
            dict(self.values),
        ).pruned()  # fmt: skip
