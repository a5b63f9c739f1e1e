"""One call of an ATen operator in an exported PyTorch program, and how nodes are made of it.

Goes in: a node of torch.fx with the shapes and dtypes that PyTorch found. Comes out: `Call`, by
which the functions of aten_*.py read arguments by their names in the operator's schema and emit
nodes with the semantics of ONNX. Values carry their type, so that PyTorch's promotion of dtypes
becomes Cast nodes here, and operators further on see equal dtypes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from onnx.helper import np_dtype_to_tensor_dtype

from tilewright.graph.graph import DTYPES, Node, Value, fresh_name

FLOATS = ('f32', 'f64', 'f16')
_TORCH = {
    'float32': 'f32', 'float64': 'f64', 'float16': 'f16', 'int64': 'i64', 'int32': 'i32',
    'int16': 'i16', 'int8': 'i8', 'uint8': 'u8', 'bool': 'bool',
}  # fmt: skip


class UnsupportedError(Exception):
    """This call cannot be translated; the text is what is special about it, or ''."""


def dtype_name(dtype: Any) -> str:
    """Our name of a dtype of PyTorch."""
    word = str(dtype).removeprefix('torch.')
    if word not in _TORCH:
        raise UnsupportedError(f'on {word}')
    return _TORCH[word]


def type_of(name: str, tensor: Any) -> Value:
    """The type of a tensor, fake or real."""
    sizes = tuple(tensor.shape)
    if not all(isinstance(size, int) for size in sizes):
        raise UnsupportedError(f'with open sizes {list(map(str, sizes))}')
    return Value(name, sizes, dtype_name(tensor.dtype))


@dataclass
class Emitter:
    """The graph so far: nodes, constants and names taken."""

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def fresh(self, name: str) -> str:
        return fresh_name(name, self.taken)

    def constant(self, array: np.ndarray, name: str = 'constant') -> str:
        made = self.fresh(name)
        self.constants[made] = np.ascontiguousarray(array).reshape(array.shape)
        return made


@dataclass(frozen=True)
class Call:
    """A node of the exported program: its arguments by name, and the type of its result.

    `values` is what nodes before it gave: a value, or a tuple of values.
    """

    emitter: Emitter
    node: Any
    arguments: Mapping[str, Any]
    values: Mapping[Any, Any]

    def __getitem__(self, name: str) -> Any:
        """An argument as it is: a number, a list, None, or a node of torch.fx."""
        return self.arguments[name]

    def has(self, name: str) -> bool:
        return self.arguments.get(name) is not None

    @property
    def result(self) -> Value:
        """The type of the only or the first result."""
        found = self.node.meta['val']
        if isinstance(found, list | tuple):
            found = found[0]
        return type_of(self.node.name, found)

    def result_of(self, number: int) -> Value:
        return type_of(self.node.name, self.node.meta['val'][number])

    def used(self, number: int) -> bool:
        """Whether anyone reads the result of this number."""
        return any(user.args[1] == number for user in self.node.users if user.op != 'output')

    def value(self, name: str) -> Value:
        """A tensor argument."""
        return self.typed(self.arguments[name])

    def typed(self, argument: Any) -> Value:
        found = self.values[argument]
        if not isinstance(found, Value):
            raise UnsupportedError('on a list of tensors')
        return found

    def emit(self, op: str, *inputs: Value | str | None, **attributes: Any) -> str:
        """A node with one output; comes out: its name. Inputs that are None are left out."""
        return self.emit_many(op, 1, *inputs, **attributes)[0]

    def emit_many(
        self, op: str, count: int, *inputs: Value | str | None, **attributes: Any
    ) -> list[str]:
        names = [v.name if isinstance(v, Value) else v or '' for v in inputs]
        while names and not names[-1]:
            names.pop()
        outputs = [self.emitter.fresh(self.node.name) for _ in range(count)]
        given = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
        # A node is named after its first output.
        self.emitter.nodes.append(Node(op, outputs[0], tuple(names), tuple(outputs), given))
        return outputs

    def made(self, op: str, like: Value, *inputs: Value | str | None, **attributes: Any) -> Value:
        """A node whose output has the type of `like`."""
        return Value(self.emit(op, *inputs, **attributes), like.shape, like.dtype)

    def done(self, op: str, *inputs: Value | str | None, **attributes: Any) -> Value:
        """The node that computes the result of this call."""
        return self.made(op, self.result, *inputs, **attributes)

    def constant(self, values: Any, dtype: str = 'i64') -> str:
        return self.emitter.constant(
            np.asarray(values, DTYPES[dtype]), f'{self.node.name}.constant'
        )

    def number(self, value: Any, dtype: str) -> Value:
        """A number as a value of one element."""
        return Value(self.constant(value, dtype), (), dtype)

    def cast(self, value: Value, dtype: str) -> Value:
        if value.dtype == dtype:
            return value
        code = int(np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype])))
        return Value(self.emit('Cast', value, to=code), value.shape, dtype)

    def operand(self, name: str, dtype: str) -> Value:
        """An argument that is a tensor or a number, in a dtype."""
        argument = self.arguments[name]
        if isinstance(argument, bool | int | float):
            return self.number(argument, dtype)
        return self.cast(self.value(name), dtype)

    def reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        if tuple(shape) == value.shape:
            return value
        name = self.emit('Reshape', value, self.constant(list(shape)), allowzero=1)
        return Value(name, tuple(shape), value.dtype)

    def common_dtype(self, *names: str) -> str:
        """The dtype to which PyTorch promotes arguments before it compares them."""
        torch: Any = import_module('torch')
        given = [self.arguments[name] for name in names]
        metas = [g.meta['val'] if hasattr(g, 'meta') else g for g in given]
        return dtype_name(torch.result_type(*metas))


Handler = Callable[[Call], 'Value | tuple[Value | None, ...]']


def axis_of(dim: int, rank: int) -> int:
    return dim % rank if rank else 0


def axes_of(dims: int | Sequence[int] | None, rank: int) -> list[int]:
    """Axes counted from the front, in order; all of them for None or an empty list."""
    if dims is None or dims == []:
        return list(range(rank))
    return sorted(axis_of(d, rank) for d in ([dims] if isinstance(dims, int) else dims))


def spread(numbers: int | Sequence[int], count: int) -> tuple[int, ...]:
    """As many numbers as there are axes: PyTorch takes one for all."""
    listed = [numbers] if isinstance(numbers, int) else list(numbers)
    return tuple(int(n) for n in (listed * count if len(listed) == 1 else listed))
