"""Networks that are written node by node: what transformers, recurrent networks and DLRM share.

Goes in: a `WrittenNetwork`, which says what its inputs, outputs and weights are. Comes out: weights
and inputs from a seed, a graph with the operators that exporters write, a PyTorch module.
"""

from __future__ import annotations

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np

from tilewright.errors import MissingError, SpecError
from tilewright.graph.graph import Attribute, Graph, Node, Value

OUTPUT = 'scores'


class WrittenNetwork(ABC):
    """A network by its inputs, outputs and the shapes of its weights."""

    __slots__ = ()
    name: str
    batch: int

    @property
    @abstractmethod
    def layers(self) -> tuple[str, ...]:
        """Names of its layers, for tables."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[Value, ...]: ...

    @property
    @abstractmethod
    def outputs(self) -> tuple[Value, ...]: ...

    @property
    @abstractmethod
    def weights(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight."""

    @property
    @abstractmethod
    def multiplications(self) -> int:
        """Of all products, by their definition."""

    @property
    @abstractmethod
    def choices(self) -> int:
        """How many rows there are to choose from: words of a vocabulary, rows of a table."""

    @abstractmethod
    def to_graph(self, weights: Mapping[str, np.ndarray]) -> Graph:
        """The operators that exporters write."""

    @abstractmethod
    def module(self, torch: Any, weights: Mapping[str, np.ndarray]) -> Any:
        """A torch.nn.Module of PyTorch's own layers, with copies of the weights."""

    def deviation(self, name: str) -> float:
        """Of the normal numbers that a weight is drawn from."""
        return 0.02

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inputs[0].shape

    @property
    def parameters(self) -> int:
        """Weights that training would change: statistics of a batch are not counted."""
        return sum(
            math.prod(shape)
            for name, shape in self.weights.items()
            if not name.endswith(('mean', 'variance'))
        )

    def draw_weights(
        self, seed: int = 0, drawn: Mapping[str, np.ndarray] | None = None
    ) -> dict[str, np.ndarray]:
        """Normal numbers; scales and variances are near 1.

        `drawn` are those of the same seed at other sizes, which most weights do not depend on.
        """
        made = {}
        for name, shape in self.weights.items():
            if drawn is not None and name in drawn and drawn[name].shape == shape:
                made[name] = drawn[name]
                continue
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            array = rng.standard_normal(shape, np.float32)
            array *= np.float32(self.deviation(name))
            if name.endswith(('scale', 'variance')):
                array += np.float32(1)
            made[name] = array
        return made

    def draw_inputs(self, seed: int = 0) -> dict[str, np.ndarray]:
        """Random words and rows, images, sounds, keys and values."""
        rng = np.random.default_rng([seed, 1])
        return {
            v.name: rng.integers(0, self.choices, v.shape)
            if v.dtype == 'i64'
            else rng.standard_normal(v.shape, np.float32)
            for v in self.inputs
        }

    def to_torch(self, weights: Mapping[str, np.ndarray]) -> Any:
        """A torch.nn.Module in evaluation mode; it copies the arrays."""
        try:
            torch: Any = import_module('torch')
        except ImportError:
            raise MissingError(
                "PyTorch modules of networks need PyTorch: pip install 'tilewright[torch]'"
            ) from None
        return self.module(torch, weights).eval().requires_grad_(False)


def divided(size: int, width: int) -> int:
    """A size of the published network, made smaller for tests."""
    if width < 1:
        raise SpecError(f'width is {width}; it is at least 1')
    return max(1, size // width)


def check_sizes(name: str, batch: int, size: int, what: str, most: int) -> int:
    """`size`, if there may be so many; `what` says of what."""
    if batch < 1 or not 1 <= size <= most:
        raise SpecError(
            f'{name}: batch {batch} and {size} {what}; give 1 or more, {what} to {most}'
        )
    return size


@dataclass
class GraphWriter:
    """A graph as it grows: each method adds nodes and returns the name of a value."""

    constants: dict[str, np.ndarray]
    nodes: list[Node] = field(default_factory=list)

    def node(self, op: str, name: str, *inputs: str, **attributes: Attribute) -> str:
        return self.several(op, (name,), *inputs, **attributes)[0]

    def several(
        self, op: str, outputs: tuple[str, ...], *inputs: str, **attributes: Attribute
    ) -> tuple[str, ...]:
        """A node with several outputs, named after the first."""
        self.nodes.append(Node(op, outputs[0], inputs, outputs, attributes))
        return outputs

    def number(self, name: str, value: Any, dtype: type = np.float32) -> str:
        self.constants.setdefault(name, np.asarray(value, dtype))
        return name

    def whole(self, name: str, *values: int) -> str:
        """A list of whole numbers, such as a shape or axes."""
        return self.number(name, values, np.int64)

    def linear(self, x: str, name: str, result: str = '') -> str:
        product = self.node('MatMul', f'{name}/product', x, f'{name}.weight')
        return self.node('Add', result or name, product, f'{name}.bias')

    def graph(self, network: WrittenNetwork) -> Graph:
        outputs = tuple((v.name, v.name) for v in network.outputs)
        return Graph(network.name, network.inputs, outputs, tuple(self.nodes), self.constants)


def copy_into(torch: Any, module: Any, **arrays: np.ndarray) -> Any:
    """The module, with these arrays for its parameters and buffers."""
    with torch.no_grad():
        for name, array in arrays.items():
            getattr(module, name).copy_(torch.from_numpy(np.ascontiguousarray(array)))
    return module


def loaded_linear(torch: Any, weights: Mapping[str, np.ndarray], name: str) -> Any:
    """A layer of matrix [in, out] and its bias, where there is one."""
    matrix, bias = weights[f'{name}.weight'], weights.get(f'{name}.bias')
    module = torch.nn.Linear(*matrix.shape, bias=bias is not None)
    return copy_into(torch, module, weight=matrix.T, **({} if bias is None else {'bias': bias}))
