"""The float64 reference, executed from a group's description: the oracle of every test.

Goes in: a group and its arrays by tensor name. Comes out: the output array, in float64.

Each access becomes a strided view with one axis for every iterator that it uses, over a copy that
is padded so that no index falls outside. Reduction dimensions that share an index expression with
another iterator (the window of a convolution) are looped over; the rest is one einsum or reduction.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from tilewright.errors import ArrayError
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Expr, Stage

_FUNCTIONS = {
    'add': np.add,
    'sub': np.subtract,
    'mul': np.multiply,
    'div': np.divide,
    'max': np.maximum,
    'min': np.minimum,
    'neg': np.negative,
    'exp': np.exp,
    'tanh': np.tanh,
    'sigmoid': lambda x: 1.0 / (1.0 + np.exp(-x)),
    'sqrt': np.sqrt,
    'abs': np.abs,
    'pow': np.power,
}


def reference(group: Group, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """[Group, arrays] -> output in float64."""
    values = {}
    for tensor in group.tensors:
        if tensor.role in ('inner', 'output'):
            values[tensor.name] = np.zeros(tensor.shape)
            continue
        if tensor.name not in arrays:
            raise ArrayError(f'{group.label} needs {tensor.name} of shape {tensor.shape}')
        array = np.asarray(arrays[tensor.name], dtype=np.float64)
        if array.shape != tensor.shape:
            raise ArrayError(f'{tensor.name} has shape {array.shape}, expected {tensor.shape}')
        values[tensor.name] = array
    for stage in group.stages:
        _run(stage, values)
    return values[group.output.name]


def _run(stage: Stage, values: dict[str, np.ndarray]) -> None:
    padded = [_pad(values[a.tensor], a, stage) for a in stage.reads]
    looped = _looped(stage)
    inner = tuple(d for d in stage.reduction if d not in looped)
    result: np.ndarray | None = None
    for point in itertools.product(*(range(stage.sizes[d]) for d in looped)):
        fixed = dict(zip(looped, point, strict=True))
        views = [
            _view(array, access, stage, fixed)
            for array, access in zip(padded, stage.reads, strict=True)
        ]
        part = _product_sum(stage, views) if stage.is_product_sum else _reduce(stage, views, inner)
        if result is None:
            result = part
        else:
            result = result + part if stage.combiner == 'sum' else np.maximum(result, part)
    assert result is not None
    _store(values[stage.write.tensor], stage, result)


def _looped(stage: Stage) -> tuple[str, ...]:
    """Reduction dimensions that share an index expression with another iterator."""
    shared = {
        name
        for access in stage.reads
        for expression in access.index
        if len(expression.terms) > 1
        for name in expression.names
    }
    return tuple(d for d in stage.reduction if d in shared)


def _pad(array: np.ndarray, access: Access, stage: Stage) -> tuple[np.ndarray, tuple[int, ...]]:
    widths = []
    for extent, expression in zip(array.shape, access.index, strict=True):
        last = expression.const + expression.extent(stage.sizes) - 1
        widths.append((max(0, -expression.const), max(0, last - extent + 1)))
    padded = np.pad(array, widths, constant_values=stage.pad_value)
    return padded, tuple(
        e.const + before for e, (before, _) in zip(access.index, widths, strict=True)
    )


def _view(
    source: tuple[np.ndarray, tuple[int, ...]], access: Access, stage: Stage, fixed: dict[str, int]
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The values an access reads, one axis per iterator that is not fixed."""
    array, origin = source
    start = tuple(
        o + sum(c * fixed.get(n, 0) for n, c in e.terms)
        for o, e in zip(origin, access.index, strict=True)
    )
    free = tuple(n for n in access.names if n not in fixed)
    strides = tuple(
        sum(e.coefficient(n) * s for e, s in zip(access.index, array.strides, strict=True))
        for n in free
    )
    corner = array[tuple(slice(s, None) for s in start)]
    shape = tuple(stage.sizes[n] for n in free)
    return np.lib.stride_tricks.as_strided(corner, shape, strides, writeable=False), free


def _product_sum(stage: Stage, views: list) -> np.ndarray:
    letters = {d.name: chr(ord('a') + i) for i, d in enumerate(stage.dims)}
    terms = [''.join(letters[n] for n in names) for _, names in views]
    present = {n for _, names in views for n in names}
    kept = [n for n in stage.parallel if n in present]
    out = ''.join(letters[n] for n in kept)
    part = np.einsum(f'{",".join(terms)}->{out}', *(v for v, _ in views), optimize=True)
    return _spread(part, tuple(kept), stage)


def _spread(array: np.ndarray, names: tuple[str, ...], stage: Stage) -> np.ndarray:
    """One axis for every parallel dimension, in the stage's order."""
    index = tuple(slice(None) if d in names else None for d in stage.parallel)
    return np.broadcast_to(array[index], tuple(stage.sizes[d] for d in stage.parallel))


def _reduce(stage: Stage, views: list, inner: tuple[str, ...]) -> np.ndarray:
    axes = (*stage.parallel, *inner)
    operands = []
    for view, names in views:
        order = sorted(range(len(names)), key=lambda i, names=names: axes.index(names[i]))
        index = tuple(slice(None) if d in names else None for d in axes)
        operands.append(view.transpose(order)[index])
    value = np.broadcast_to(_evaluate(stage.expr, operands), tuple(stage.sizes[d] for d in axes))
    if not inner:
        return value
    over = tuple(range(len(stage.parallel), len(axes)))
    return value.sum(over) if stage.combiner == 'sum' else value.max(over)


def _evaluate(expr: Expr, operands: list[np.ndarray]) -> np.ndarray:
    if expr.op == 'read':
        return operands[int(expr.value)]
    if expr.op == 'const':
        return np.asarray(expr.value)
    return _FUNCTIONS[expr.op](*(_evaluate(a, operands) for a in expr.args))


def _store(target: np.ndarray, stage: Stage, result: np.ndarray) -> None:
    """Scatter [parallel dims] into the result, whose indices may combine iterators (g, k)."""
    index = []
    for expression in stage.write.index:
        position = np.full((1,) * len(stage.parallel), expression.const)
        for name, coefficient in expression.terms:
            axis = stage.parallel.index(name)
            shape = [1] * len(stage.parallel)
            shape[axis] = stage.sizes[name]
            position = position + coefficient * np.arange(stage.sizes[name]).reshape(shape)
        index.append(position)
    target[tuple(index)] = result
