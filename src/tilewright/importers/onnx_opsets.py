"""Older forms of ONNX operators, rewritten to what `OPSET` says.

Goes in: a node as a file of an older opset has it. Comes out: nodes of today, and the constants
that they need. Most changes of the standard moved an attribute to an input:

    Squeeze(x, axes=[1])     ->   Squeeze(x, [1])
    Upsample(x, scales)      ->   Resize(x, '', scales) at coordinates that it used
    Softmax(x, axis=1)       ->   the rows of Flatten(x, 1), and back to the shape of x
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from onnx.defs import SchemaError, get_schema

from tilewright.errors import ModelError
from tilewright.graph.graph import Attribute, Node

OLDEST, NEWEST = 7, 28

# operator -> (opset since which these are inputs, (attribute, number of the input, dtype) of each)
_REDUCTIONS = ('Max', 'Min', 'Mean', 'Prod', 'L1', 'L2', 'LogSum', 'LogSumExp', 'SumSquare')
_BECAME_INPUTS = {
    'Squeeze': (13, (('axes', 1, np.int64),)),
    'Unsqueeze': (13, (('axes', 1, np.int64),)),
    'Split': (13, (('split', 1, np.int64),)),
    'ReduceSum': (13, (('axes', 1, np.int64),)),
    **{f'Reduce{name}': (18, (('axes', 1, np.int64),)) for name in _REDUCTIONS},
    'Clip': (11, (('min', 1, np.float32), ('max', 2, np.float32))),
    'Pad': (11, (('pads', 1, np.int64), ('value', 2, np.float32))),
    'Slice': (10, (('starts', 1, np.int64), ('ends', 2, np.int64), ('axes', 3, np.int64))),
    'TopK': (10, (('k', 1, np.int64),)),
    'Dropout': (12, (('ratio', 1, np.float32),)),
    'Upsample': (9, (('scales', 1, np.float32),)),
}


@dataclass(frozen=True)
class Modern:
    """What a node becomes."""

    nodes: tuple[Node, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)


def unchanged(operators: Iterable[str], opset: int) -> set[str]:
    """Those of the operators that meant at `opset` what they meant at the oldest that is known."""
    if opset >= OLDEST:
        return set(operators)
    return {op for op in operators if _version(op, opset) == _version(op, OLDEST) is not None}


def _version(operator: str, opset: int) -> int | None:
    try:
        return get_schema(operator, max_inclusive_version=max(1, opset)).since_version
    except SchemaError:
        return None


def modernise(node: Node, opset: int, fresh: Callable[[str], str]) -> Modern:
    """[Node at `opset`] -> [nodes at `OPSET`]; `fresh` makes a name that nothing has yet."""
    constants: dict[str, np.ndarray] = {}
    since, moved = _BECAME_INPUTS.get(node.op, (0, ()))
    if opset < since:
        node = _to_inputs(node, moved, constants, fresh)
    rewrite = _REWRITES.get(node.op)
    nodes = rewrite(node, opset, fresh) if rewrite else (node,)
    return Modern(nodes, constants)


def _to_inputs(
    node: Node,
    moved: tuple[tuple[str, int, type], ...],
    constants: dict[str, np.ndarray],
    fresh: Callable[[str], str],
) -> Node:
    attributes, inputs = dict(node.attributes), list(node.inputs)
    for attribute, number, dtype in moved:
        value = attributes.pop(attribute, None)
        if value is None:
            continue
        try:
            array = np.array(value, dtype)
        except (TypeError, ValueError, OverflowError):
            raise ModelError(
                f'{node} has {attribute} {value!r}, which is no {np.dtype(dtype)}'
            ) from None
        name = fresh(f'{node.name}/{attribute}')
        constants[name] = array
        inputs += [''] * (number + 1 - len(inputs))
        inputs[number] = name
    return replace(node, inputs=tuple(inputs), attributes=attributes)


def _rows(node: Node, opset: int, fresh: Callable[[str], str]) -> tuple[Node, ...]:
    """Softmax and its like before 13: over all dimensions from `axis` on, taken as one."""
    if opset >= 13 or len(node.inputs) != 1:
        return (node,)
    shape, rows, done = (fresh(f'{node.name}/{word}') for word in ('shape', 'rows', 'done'))
    flat = {'axis': node.attributes.get('axis', 1)}
    return (
        Node('Shape', shape, node.inputs, (shape,)),
        Node('Flatten', rows, node.inputs, (rows,), flat),
        replace(node, inputs=(rows,), outputs=(done,), attributes={'axis': 1}),
        Node('Reshape', fresh(f'{node.name}/whole'), (done, shape), node.outputs),
    )


def _resize(node: Node, opset: int, fresh: Callable[[str], str]) -> tuple[Node, ...]:
    """Upsample, and Resize before 11: scales alone, coordinates that start at the corner."""
    if not node.inputs or (node.op == 'Resize' and opset >= 11):
        return (replace(node, op='Resize'),)
    attributes: dict[str, Attribute] = {
        'mode': node.attributes.get('mode', 'nearest'),
        'coordinate_transformation_mode': 'asymmetric',
        'nearest_mode': 'floor',
    }
    inputs = (node.inputs[0], '', *node.inputs[1:2])
    return (replace(node, op='Resize', inputs=inputs, attributes=attributes),)


def _batch_norm(node: Node, opset: int, fresh: Callable[[str], str]) -> tuple[Node, ...]:
    """Before 14 training was recognised by its further outputs."""
    if opset >= 14 or len(node.outputs) == 1:
        return (node,)
    return (replace(node, attributes={**node.attributes, 'training_mode': 1}),)


def _scan(node: Node, opset: int, fresh: Callable[[str], str]) -> tuple[Node, ...]:
    """Before 9 it had lengths, and a batch in front of everything."""
    return (node if opset >= 9 else replace(node, attributes={**node.attributes, 'batched': 1}),)


_REWRITES: dict[str, Callable[[Node, int, Callable[[str], str]], tuple[Node, ...]]] = {
    'Softmax': _rows,
    'LogSoftmax': _rows,
    'Hardmax': _rows,
    'Upsample': _resize,
    'Resize': _resize,
    'BatchNormalization': _batch_norm,
    'Scan': _scan,
}
