"""Softmax and its like along an axis, in several stages."""

from __future__ import annotations

import math

from tilewright.graph.lowering.build import build, label_of, names_of, pointwise
from tilewright.graph.lowering.given import FLOATS, Given, Operator, axis_of
from tilewright.graph.lowering.reduce import arg_extreme
from tilewright.graph.lowering.result import Result, view
from tilewright.ops.stage import Access, Dim, Expr, Stage, affine, call, const, index, read, var


def _along(given: Given, default: int = -1) -> tuple[Result, int]:
    x = given.input(0)
    return x, axis_of(given.int('axis', default), len(x.shape))


def _exponentials(x: Result, axis: int, finish: Expr, word: str) -> Result:
    """finish(x, the largest along the axis, the sum of exponentials with that taken off)."""
    if 0 in x.shape:
        return x
    names = names_of(x.shape)
    along = names[axis]
    flat = tuple(Dim(d, size) for d, size in zip(names, x.shape, strict=True))
    lines = tuple(d for d in flat if d.name != along) or (Dim('one', 1),)
    domain = (*lines, Dim(along, x.shape[axis], 'reduction'))
    everywhere, here = tuple(map(var, names)), tuple(var(d.name) for d in lines)
    place = here if len(flat) > 1 else (affine(),)
    stages = [
        Stage('peak', domain, Access('Peak', here), (Access('In', everywhere),), read(0), 'max',
              -math.inf),
        Stage('total', domain, Access('Total', here),
              (Access('In', everywhere), Access('Peak', place)),
              call('exp', call('sub', read(0), read(1))), 'sum'),
        Stage('finish', flat, Access('Out', everywhere),
              (Access('In', everywhere), Access('Peak', place), Access('Total', place)), finish),
    ]  # fmt: skip
    return build(label_of(word, x.shape) + f'@{axis}', {'In': x}, stages, x.dtype)


def _softmax(given: Given) -> Result:
    shifted = call('exp', call('sub', read(0), read(1)))
    return _exponentials(*_along(given), call('div', shifted, read(2)), 'softmax')


def _log_softmax(given: Given) -> Result:
    shifted = call('sub', read(0), read(1))
    return _exponentials(*_along(given), call('sub', shifted, call('log', read(2))), 'logsoftmax')


def _hardmax(given: Given) -> Result:
    """One where the largest is, the first of equals; else zero."""
    x, axis = _along(given)
    if 0 in x.shape:
        return x
    largest = arg_extreme(x, axis, 'max', last=False)
    spread = view(largest, [1 if i == axis else size for i, size in enumerate(x.shape)])
    here = call('eq', read(0), index(names_of(x.shape)[axis]))
    expr = call('where', here, const(1.0), const(0.0))
    return pointwise('hardmax', expr, [spread], x.dtype, x.shape)


OPERATORS: dict[str, Operator] = {
    'Softmax': Operator(_softmax, FLOATS),
    'LogSoftmax': Operator(_log_softmax, FLOATS),
    'Hardmax': Operator(_hardmax, FLOATS),
}
