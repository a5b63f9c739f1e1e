"""What a lowering reads: a node's attributes, and what its inputs are.

Attributes come from files and may be anything; the accessors return values of the kind that was
asked for, and say in one sentence what is wrong with others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.graph import Node
from tilewright.graph.lowering.result import Known, Result, Unsupported

FLOATS = ('f32', 'f64')
WHOLE = ('i64', 'i32', 'i16', 'i8', 'u64', 'u32', 'u16', 'u8')
NUMBERS = (*FLOATS, *WHOLE)
ANY = (*NUMBERS, 'bool')


@dataclass(frozen=True)
class NodeReader:
    """A node and its inputs; one that is left out is None."""

    node: Node
    inputs: tuple[Result | None, ...]

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def outputs(self) -> tuple[str, ...]:
        return self.node.outputs

    def raw(self, name: str, default: object = None) -> object:
        """An attribute as the file has it."""
        return self.node.attributes.get(name, default)

    def has(self, number: int) -> bool:
        return number < len(self.inputs) and self.inputs[number] is not None

    def input(self, number: int) -> Result:
        """An input that must be there."""
        found = self.inputs[number] if number < len(self.inputs) else None
        if found is None:
            raise ModelError(f'it needs an input {number}, and has {len(self.inputs)}')
        return found

    def optional(self, number: int) -> Result | None:
        return self.input(number) if self.has(number) else None

    def all(self) -> tuple[Result, ...]:
        """Every input, none of which may be left out."""
        return tuple(self.input(number) for number in range(max(1, len(self.inputs))))

    def array(self, number: int) -> np.ndarray:
        """The value of an input that has to be known; `Operator.known` lists it."""
        found = self.input(number)
        if not isinstance(found, Known):
            raise Unsupported(f'with an input {number} that is not known before it runs')
        return found.array

    def whole_numbers(self, number: int) -> tuple[int, ...]:
        """The known elements of an input, as whole numbers."""
        array = self.array(number)
        if array.dtype.kind not in 'iu' or array.ndim > 1:
            raise ModelError(
                f'its input {number} is {array.dtype}{list(array.shape)}; it must be a list of '
                f'whole numbers'
            )
        return tuple(int(v) for v in array.ravel())

    def axes(self, number: int, rank: int) -> tuple[int, ...] | None:
        """The known axes that an optional input lists, counted from 0."""
        if not self.has(number):
            return None
        axes = tuple(axis_of(a, rank) for a in self.whole_numbers(number))
        if len(set(axes)) != len(axes):
            raise ModelError(f'its axes {axes} name one of {rank} dimensions twice')
        return axes

    def int(self, name: str, default: int | None = None) -> int:
        value = self._attribute(name, default)
        if not isinstance(value, int):
            raise ModelError(f'its {name} is {value!r}; it must be a whole number')
        return value

    def float(self, name: str, default: float) -> float:
        value = self._attribute(name, default)
        if not isinstance(value, int | float):
            raise ModelError(f'its {name} is {value!r}; it must be a number')
        return float(value)

    def text(self, name: str, default: str, allowed: Sequence[str] = ()) -> str:
        """A word; one that is not allowed is unsupported."""
        value = self._attribute(name, default)
        if not isinstance(value, str):
            raise ModelError(f'its {name} is {value!r}; it must be a word')
        if allowed and value not in allowed:
            raise Unsupported(f'with {name} {value!r}')
        return value

    def ints(self, name: str, count: int, default: int) -> tuple[int, ...]:
        """So many whole numbers; `default` each where the attribute is left out."""
        value = self.raw(name, (default,) * count)
        if (
            not isinstance(value, tuple)
            or len(value) != count
            or not all(isinstance(v, int) for v in value)
        ):
            raise ModelError(f'its {name} is {value!r}; it must be {count} whole numbers')
        return tuple(int(v) for v in value)

    def _attribute(self, name: str, default: object) -> object:
        value = self.raw(name, default)
        if value is None:
            raise ModelError(f'it needs the attribute {name}')
        return value


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from 0; negative ones count from the end."""
    if not -rank <= axis < rank:
        raise ModelError(f'axis {axis} is none of {rank} dimensions')
    return axis % rank


Lowering: TypeAlias = Callable[[NodeReader], 'Result | tuple[Result, ...]']


@dataclass(frozen=True)
class Operator:
    """How an operator is lowered.

    lower   a function of what the node says; several results where the operator has several outputs
    dtypes  of its first input, that it is generated for
    known   inputs that decide shapes: they have to be known before the network runs
    forms   for docs/operators.md: what is supported, where that is not all
    converts  whether known arrays may have any dtype
    """

    lower: Lowering
    dtypes: tuple[str, ...] = FLOATS
    known: tuple[int, ...] = ()
    forms: str = ''
    converts: bool = False
