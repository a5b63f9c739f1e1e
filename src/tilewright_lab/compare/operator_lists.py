"""Networks as operator lists: every operator with its inputs by name, in the order of execution.

Goes in: operators, each a kind and its numbers (tilewright_lab/compare/boda_networks.py has
AlexNet, Network-in-Network and Inception-v1). Comes out: an `OperatorList`: groups, tensors, seeded
weights, and what every tensor should hold, in float64, by our reference
(tilewright_lab/peers/torch_oracle.py: by PyTorch).

A concatenation is no operator: its branches write slices of one tensor (ops/slices.py). Nor is the
flattening before a fully connected layer: the same memory is read as another shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import SpecError
from tilewright.ops.convolution import conv2d
from tilewright.ops.elementwise import activate, elementwise
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.group import Group
from tilewright.ops.normalise import lrn, softmax
from tilewright.ops.pooling import average_pool2d, max_pool2d
from tilewright.ops.reference import reference
from tilewright.ops.slices import into_slice

KINDS: dict[str, Callable[..., Group]] = {
    'conv2d': conv2d,
    'fully_connected': fully_connected,
    'max_pool2d': max_pool2d,
    'average_pool2d': average_pool2d,
    'lrn': lrn,
    'softmax': softmax,
    'activate': activate,
    'add': lambda shape: elementwise('add', shape, shape),
}
Weights = Mapping[str, Mapping[str, np.ndarray]]  # operator -> constant -> values
Arrays = Mapping[str, np.ndarray]  # tensor of the list -> values


@dataclass(frozen=True)
class Operator:
    """One operator of a list.

    numbers   what its kind takes, by name
    inputs    tensors of the list, in the order of the group's inputs
    output    the tensor that it writes; with `place` = (offset, extent), channels of it
    """

    name: str
    kind: str
    numbers: tuple[tuple[str, Any], ...]
    inputs: tuple[str, ...]
    output: str
    place: tuple[int, int] | None = None

    @cached_property
    def whole(self) -> Group:
        """What is computed, with a result of its own."""
        return KINDS[self.kind](**dict(self.numbers))

    @cached_property
    def group(self) -> Group:
        """What is computed, where it is stored."""
        if self.place is None:
            return self.whole
        return into_slice(self.whole, 1, *self.place)


@dataclass(frozen=True)
class OperatorList:
    """Operators in order; `inputs` are (name, shape) of what is given, `output` is the result."""

    name: str
    inputs: tuple[tuple[str, tuple[int, ...]], ...]
    operators: tuple[Operator, ...]
    output: str

    def __post_init__(self) -> None:
        names = [operator.name for operator in self.operators]
        if len(set(names)) < len(names):
            raise SpecError(f'{self.name}: an operator is named twice among {names}')
        written = dict.fromkeys((name for name, _ in self.inputs), 0)
        for operator in self.operators:
            taken = operator.group.with_role('input')
            if len(taken) != len(operator.inputs):
                raise SpecError(
                    f'{self.name}: {operator.name} takes {len(taken)} inputs, but is given '
                    f'{list(operator.inputs)}'
                )
            for tensor, source in zip(taken, operator.inputs, strict=True):
                if source not in written:
                    raise SpecError(
                        f'{self.name}: {operator.name} reads {source} before it is written'
                    )
                if math.prod(self.shapes[source]) != tensor.size:
                    raise SpecError(
                        f'{self.name}: {operator.name} takes {tensor.shape}, but {source} is '
                        f'{self.shapes[source]}'
                    )
            if self.shapes[operator.output] != operator.group.output.shape:
                raise SpecError(f'{self.name}: {operator.output} is written in two shapes')
            count = written.get(operator.output, 0) + operator.whole.output.size
            written[operator.output] = count
        for name, count in written.items():
            if count not in (0, math.prod(self.shapes[name])):
                raise SpecError(
                    f'{self.name}: {count} elements are written to {name}, which has '
                    f'{math.prod(self.shapes[name])}; every element is written once'
                )

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor of the list with its shape, in the order of first use."""
        made = dict(self.inputs)
        for operator in self.operators:
            made.setdefault(operator.output, operator.group.output.shape)
        return made

    @property
    def flops(self) -> int:
        return sum(operator.whole.flops for operator in self.operators)

    def random_inputs(self, seed: int) -> dict[str, np.ndarray]:
        """Normal noise of order one."""
        return {
            name: np.random.default_rng([seed, number]).standard_normal(shape, np.float32)
            for number, (name, shape) in enumerate(self.inputs)
        }

    def random_weights(self, seed: int) -> dict[str, dict[str, np.ndarray]]:
        """Weights that keep values of order one behind every layer (He et al., ICCV'15, Eq. 10).

        A sum of `fan_in` products of unit size with weights of variance 2 / fan_in has twice unit
        size, of which rectification leaves half.
        """
        weights: dict[str, dict[str, np.ndarray]] = {}
        for number, operator in enumerate(self.operators):
            rng = np.random.default_rng([seed, number])
            for tensor in operator.group.with_role('constant'):
                values = rng.standard_normal(tensor.shape, np.float32)
                fan_in = math.prod(tensor.shape[1:])
                size = math.sqrt(2 / fan_in) if len(tensor.shape) > 1 else 0.1
                weights.setdefault(operator.name, {})[tensor.name] = values * np.float32(size)
        return weights


def reference_values(
    network: OperatorList, inputs: Arrays, weights: Weights
) -> Iterator[tuple[str, np.ndarray]]:
    """(tensor, float64 values) of every tensor that is complete, by our reference."""

    def answer(operator: Operator, given: list[np.ndarray]) -> np.ndarray:
        group = operator.whole
        arrays = dict(weights.get(operator.name, {}))
        for tensor, values in zip(group.with_role('input'), given, strict=True):
            arrays[tensor.name] = values.reshape(tensor.shape)
        return reference(group, arrays)

    return values_by(network, inputs, answer)


def values_by(
    network: OperatorList,
    inputs: Arrays,
    answer: Callable[[Operator, list[np.ndarray]], np.ndarray],
) -> Iterator[tuple[str, np.ndarray]]:
    """(tensor, values) of every tensor, once it is complete; `answer` computes one operator."""
    values = {name: np.asarray(array, np.float64) for name, array in inputs.items()}
    left = dict.fromkeys(network.shapes, 0)
    for operator in network.operators:
        left[operator.output] += 1
    for operator in network.operators:
        result = answer(operator, [values[name] for name in operator.inputs])
        name = operator.output
        if operator.place is None:
            values[name] = result
        else:
            offset, _ = operator.place
            target = values.setdefault(name, np.zeros(network.shapes[name]))
            target[:, offset : offset + result.shape[1]] = result
        left[name] -= 1
        if not left[name]:
            yield name, values[name]
