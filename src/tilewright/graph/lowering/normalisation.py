"""Normalisations: by known statistics, or by those of a part of the tensor itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import merged, pointwise
from tilewright.graph.lowering.reader import FLOATS, NodeReader, Operator, axis_of
from tilewright.graph.lowering.result import Result, Unsupported, compute, view
from tilewright.ops.functions import X, add, mul, sub
from tilewright.ops.normalise import (
    batch_moments,
    batch_norm,
    by_moments,
    channel_norm,
    inverse_deviation,
    lrn,
    row_moments,
    row_norm,
)
from tilewright.ops.reduction import reduce
from tilewright.ops.stage import Expr, call, const, read


def _batch_norm(node: NodeReader) -> Result | tuple[Result, ...]:
    x = node.input(0)
    if not node.int('spatial', 1):
        raise Unsupported('with statistics of each pixel (spatial=0)')
    if len(x.shape) < 2:
        raise ModelError(f'{list(x.shape)} has no channels')
    scale, bias, mean, variance = (node.input(i) for i in range(1, 5))
    if any(r.shape != (x.shape[1],) for r in (scale, bias, mean, variance)):
        raise ModelError(f'its statistics do not fit the {x.shape[1]} channels of {list(x.shape)}')
    if node.int('training_mode', 0):
        return _by_batch(node, x, scale, bias, mean, variance)
    factor, shift, result = batch_norm(node.float('epsilon', 1e-5))
    shape = (x.shape[1], *(1 for _ in x.shape[2:]))
    by = view(pointwise('factor', factor, [scale, variance], x.dtype), shape)
    plus = pointwise('shift', shift, [bias, variance, mean, scale], x.dtype)
    return pointwise('batchnorm', result, [x, by, view(plus, shape)], x.dtype)


def _by_batch(
    node: NodeReader, x: Result, scale: Result, bias: Result, mean: Result, variance: Result
) -> tuple[Result, ...]:
    """By the statistics of this batch; then the running ones, moved towards them."""
    if 0 in x.shape:
        raise ModelError(f'{list(x.shape)} has no elements to normalise')
    images = view(x, (*x.shape[:2], math.prod(x.shape[2:])))
    of_mean, of_power = batch_moments(images.shape, x.dtype)
    now = compute(of_mean, {'In': images})
    power = compute(of_power, {'In': images, 'Mean': now})
    shape = (x.shape[1], *(1 for _ in x.shape[2:]))
    expr = by_moments(node.float('epsilon', 1e-5))
    factors = [view(r, shape) for r in (now, power, scale, bias)]
    kept = node.float('momentum', 0.9)
    blend = add(mul(const(kept), X), mul(const(1.0 - kept), read(1)))
    return (
        pointwise('batchnorm', expr, [x, *factors], x.dtype),
        pointwise('running', blend, [mean, now], x.dtype),
        pointwise('running', blend, [variance, power], x.dtype),
    )


def _by_channels(node: NodeReader, groups: int, word: str) -> Result:
    """Over groups of channels and their pixels, with a scale and a bias for each channel."""
    x, scale, bias = node.input(0), node.input(1), node.input(2)
    if len(x.shape) < 3 or 0 in x.shape[1:]:
        raise ModelError(f'{list(x.shape)} is not an image; give [n, c, ..]')
    n, c = x.shape[:2]
    if groups < 1 or c % groups:
        raise ModelError(f'its {c} channels do not divide into {groups} groups')
    # Before opset 21 groups had one scale each; where both fit they are the same.
    if scale.shape != bias.shape or scale.shape not in ((c,), (groups,)):
        raise ModelError(f'its scale has shape {list(scale.shape)}; it must be [{c}]')
    if not n:
        return x
    split = view(x, (n, groups, c // groups, math.prod(x.shape[2:])))
    epsilon = node.float('epsilon', 1e-5)
    group = channel_norm(word, split.shape, scale.shape[0], epsilon, x.dtype)
    return view(compute(group, {'In': split, 'Scale': scale, 'Bias': bias}), x.shape)


def _instance_norm(node: NodeReader) -> Result:
    x = node.input(0)
    return _by_channels(node, x.shape[1] if len(x.shape) > 1 else 0, 'instancenorm')


def _group_norm(node: NodeReader) -> Result:
    return _by_channels(node, node.int('num_groups'), 'groupnorm')


def _rows(node: NodeReader) -> tuple[Result, int]:
    """[rows, everything from the axis on], and the axis."""
    x = node.input(0)
    axis = axis_of(node.int('axis', -1), len(x.shape))
    if 0 in x.shape:
        raise ModelError(f'{list(x.shape)} has no elements to normalise')
    return merged(x, x.shape[:axis], x.shape[axis:]), axis


def _factor(node: NodeReader, number: int, axis: int) -> Result:
    """A scale or bias over the dimensions from the axis on, as a list."""
    x, factor = node.input(0), node.input(number)
    inside = x.shape[axis:]
    if factor.shape not in (inside, inside[len(inside) - len(factor.shape) :]):
        raise Unsupported(f'with factors of {list(factor.shape)} for {list(inside)}')
    if factor.shape != inside:
        factor = pointwise('expand', X, [factor], factor.dtype, inside)
    return merged(factor, inside)


def _row_norm(node: NodeReader, word: str, centred: bool) -> tuple[Result, Result, int]:
    """The result, the rows that it was made from, and the axis at which they begin."""
    rows, axis = _rows(node)
    present = [i for i in (1, 2) if node.has(i)] if centred else [1]
    factors = {
        name: _factor(node, i, axis) for name, i in zip(('Scale', 'Bias'), present, strict=False)
    }
    epsilon = node.float('epsilon', 1e-5)
    group = row_norm(word, rows.shape, len(factors), epsilon, centred, rows.dtype)
    return view(compute(group, {'In': rows, **factors}), node.input(0).shape), rows, axis


def _layer_norm(node: NodeReader) -> Result | tuple[Result, ...]:
    out, rows, axis = _row_norm(node, 'layernorm', centred=True)
    if len(node.outputs) == 1:
        return out
    shape = (*out.shape[:axis], *(1 for _ in out.shape[axis:]))
    mean, power = (compute(group, {'In': rows}) for group in row_moments(rows.shape, rows.dtype))
    root = inverse_deviation(node.float('epsilon', 1e-5))
    inverse = pointwise('inverse_deviation', root, [power], rows.dtype)
    return out, view(mean, shape), view(inverse, shape)


def _rms_norm(node: NodeReader) -> Result:
    return _row_norm(node, 'rmsnorm', centred=False)[0]


def _reduced(word: str, x: Result, axes: Sequence[int], before: Expr, after: Expr | None) -> Result:
    """A sum over axes, which stay with one element each."""
    group = reduce(word, x.shape, axes, 'sum', before, after, x.dtype)
    kept = [1 if i in axes else size for i, size in enumerate(x.shape)]
    return view(compute(group, {'In': x}), kept)


def _mean_variance(node: NodeReader) -> Result:
    """(x - mean) / deviation over axes that are named; the standard divides by it + 1e-9."""
    x = node.input(0)
    rank = len(x.shape)
    named = node.raw('axes', (0, 2, 3))
    if not isinstance(named, tuple) or 0 in x.shape:
        raise ModelError(f'its axes are {named!r}; they must be whole numbers')
    axes = sorted(axis_of(int(a), rank) for a in named)
    share = mul(X, const(1.0 / math.prod(x.shape[i] for i in axes)))
    mean = _reduced('mean', x, axes, X, share)
    off = pointwise('off', sub(X, read(1)), [x, mean], x.dtype)
    power = _reduced('power', off, axes, mul(X, X), share)
    expr = call('div', X, add(call('sqrt', read(1)), const(1e-9)))
    return pointwise('normalise', expr, [off, power], x.dtype)


def _lp_norm(node: NodeReader) -> Result:
    x = node.input(0)
    axis, power = axis_of(node.int('axis', -1), len(x.shape)), node.int('p', 2)
    if power not in (1, 2) or 0 in x.shape:
        raise Unsupported(f'with p {power} of {list(x.shape)}')
    before, after = (call('abs', X), None) if power == 1 else (mul(X, X), call('sqrt', X))
    norm = _reduced(f'l{power}', x, [axis], before, after)
    safe = call('where', call('eq', read(1), const(0.0)), const(1.0), read(1))
    return pointwise('normalise', call('div', X, safe), [x, norm], x.dtype)


def _lrn(node: NodeReader) -> Result:
    """By the squares of neighbouring channels (AlexNet Sec. 3.3, scaled as ONNX does)."""
    x, size = node.input(0), node.int('size')
    if len(x.shape) < 3 or 0 in x.shape[1:] or not 1 <= size <= 2 * x.shape[1] + 1:
        raise ModelError(f'{list(x.shape)} over {size} channels; give an image and 1 or more')
    if not x.shape[0]:
        return x
    alpha, beta, bias = (
        node.float('alpha', 1e-4), node.float('beta', 0.75), node.float('bias', 1.0)
    )  # fmt: skip
    return compute(lrn(x.shape, size, alpha, beta, bias, x.dtype), {'In': x})


OPERATORS: dict[str, Operator] = {
    'BatchNormalization': Operator(_batch_norm, FLOATS),
    'InstanceNormalization': Operator(_instance_norm, FLOATS),
    'GroupNormalization': Operator(_group_norm, FLOATS),
    'LayerNormalization': Operator(_layer_norm, FLOATS),
    'RMSNormalization': Operator(_rms_norm, FLOATS),
    'MeanVarianceNormalization': Operator(_mean_variance, FLOATS),
    'LpNormalization': Operator(_lp_norm, FLOATS),
    'LRN': Operator(_lrn, FLOATS),
}
