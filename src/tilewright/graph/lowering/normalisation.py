"""Normalisations: by known statistics, or by those of a part of the tensor itself.

Instance, group and layer normalisation are one thing on different views of their input, [r, x] or
[n, g, k, x]: the mean over the last dimensions, then the mean square of what differs from it, then

    Out = (In - Mean) / sqrt(Variance + epsilon) * Scale + Bias
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import (
    build,
    label_of,
    merged,
    names_of,
    pointwise,
    reduce,
)
from tilewright.graph.lowering.elementwise import add, mul, sub
from tilewright.graph.lowering.given import FLOATS, Given, Operator, axis_of
from tilewright.graph.lowering.result import Result, Unsupported, view
from tilewright.ops.stage import Access, Affine, Dim, Expr, Stage, affine, call, const, read, var

X = read(0)


def _batch_norm(given: Given) -> Result:
    x = given.input(0)
    if given.int('training_mode', 0):
        raise Unsupported('in training mode')
    if not given.int('spatial', 1):
        raise Unsupported('with statistics of each pixel (spatial=0)')
    if len(x.shape) < 2:
        raise ModelError(f'{list(x.shape)} has no channels')
    scale, bias, mean, variance = (given.input(i) for i in range(1, 5))
    if any(r.shape != (x.shape[1],) for r in (scale, bias, mean, variance)):
        raise ModelError(f'its statistics do not fit the {x.shape[1]} channels of {list(x.shape)}')
    # Two numbers for each channel: known ahead where the statistics are.
    deviation = call('sqrt', add(read(1), const(given.float('epsilon', 1e-5))))
    factor = pointwise('factor', call('div', X, deviation), [scale, variance], x.dtype)
    shift = pointwise(
        'shift', sub(X, call('div', mul(read(2), read(3)), deviation)),
        [bias, variance, mean, scale], x.dtype,
    )  # fmt: skip
    shape = (x.shape[1], *(1 for _ in x.shape[2:]))
    expr = add(mul(X, read(1)), read(2))
    return pointwise('batchnorm', expr, [x, view(factor, shape), view(shift, shape)], x.dtype)


def _moments(lines: Sequence[Dim], over: Sequence[Dim], centred: bool) -> list[Stage]:
    """Stages that write 'Mean' (if centred) and 'Power', the mean square around it, of a line."""
    count = math.prod(d.size for d in over)
    domain = (*lines, *(Dim(d.name, d.size, 'reduction') for d in over))
    here = tuple(var(d.name) for d in lines)
    everywhere = (*here, *(var(d.name) for d in over))
    given, share = Access('In', everywhere), mul(X, const(1.0 / count))

    def mean(word: str, out: str, expr: Expr, *reads: Access) -> list[Stage]:
        total = f'{out}Sum'
        return [
            Stage(word, domain, Access(total, here), reads, expr, 'sum'),
            Stage(f'{word}_mean', tuple(lines), Access(out, here), (Access(total, here),), share),
        ]

    if not centred:
        return mean('squares', 'Power', mul(X, X), given)
    off = sub(X, read(1))
    return [
        *mean('sum', 'Mean', X, given),
        *mean('squares', 'Power', mul(off, off), given, Access('Mean', here)),
    ]


def _normalise(
    x: Result,
    rank: int,
    factors: Sequence[tuple[Result, tuple[Affine, ...]]],
    epsilon: float,
    word: str,
    centred: bool = True,
) -> Result:
    """x by the moments over its dimensions from `rank` on; then times, and plus, the factors.

    A factor is a tensor and its indices, by the iterators d0 d1 ..
    """
    names = [f'd{i}' for i in range(len(x.shape))]
    dims = [Dim(d, size) for d, size in zip(names, x.shape, strict=True)]
    here = tuple(map(var, names))
    line = here[:rank]
    reads = [Access('In', here), Access('Power', line)]
    expr = X
    if centred:
        reads.append(Access('Mean', line))
        expr = sub(expr, read(2))
    expr = call('div', expr, call('sqrt', add(read(1), const(epsilon))))
    operands = {'In': x}
    for name, (factor, index) in zip(('Scale', 'Bias'), factors, strict=False):
        operands[name] = factor
        reads.append(Access(name, index))
        expr = call('mul' if name == 'Scale' else 'add', expr, read(len(reads) - 1))
    stages = _moments(dims[:rank], dims[rank:], centred)
    stages.append(Stage('normalise', tuple(dims), Access('Out', here), tuple(reads), expr))
    return build(f'{label_of(word, x.shape)}@{rank}', operands, stages, x.dtype)


def _by_channels(given: Given, groups: int, word: str) -> Result:
    """Over groups of channels and their pixels, with a scale and a bias for each channel."""
    x, scale, bias = given.input(0), given.input(1), given.input(2)
    if len(x.shape) < 3 or 0 in x.shape:
        raise ModelError(f'{list(x.shape)} is no image; give [n, c, ..]')
    n, c = x.shape[:2]
    if groups < 1 or c % groups:
        raise ModelError(f'its {c} channels do not divide into {groups} groups')
    # Before opset 21 groups had one scale each; where both fit they are the same.
    each = affine(('d1', c // groups), ('d2', 1)) if scale.shape == (c,) else var('d1')
    if scale.shape != bias.shape or scale.shape not in ((c,), (groups,)):
        raise ModelError(f'its scale has shape {list(scale.shape)}; it must be [{c}]')
    split = view(x, (n, groups, c // groups, math.prod(x.shape[2:])))
    factors = [(scale, (each,)), (bias, (each,))]
    return view(_normalise(split, 2, factors, given.float('epsilon', 1e-5), word), x.shape)


def _instance_norm(given: Given) -> Result:
    x = given.input(0)
    return _by_channels(given, x.shape[1] if len(x.shape) > 1 else 0, 'instancenorm')


def _group_norm(given: Given) -> Result:
    return _by_channels(given, given.int('num_groups'), 'groupnorm')


def _rows(given: Given) -> tuple[Result, int]:
    """[rows, everything from the axis on], and the axis."""
    x = given.input(0)
    axis = axis_of(given.int('axis', -1), len(x.shape))
    if 0 in x.shape:
        raise ModelError(f'{list(x.shape)} has no elements to normalise')
    return merged(x, x.shape[:axis], x.shape[axis:]), axis


def _factor(given: Given, number: int, axis: int) -> tuple[Result, tuple[Affine, ...]]:
    """A scale or bias over the dimensions from the axis on, as a list, and its index."""
    x, factor = given.input(0), given.input(number)
    inside = x.shape[axis:]
    if factor.shape not in (inside, inside[len(inside) - len(factor.shape) :]):
        raise Unsupported(f'with factors of {list(factor.shape)} for {list(inside)}')
    if factor.shape == inside:
        return merged(factor, inside), (var('d1'),)
    spread = pointwise('expand', X, [factor], factor.dtype, inside)
    return merged(spread, inside), (var('d1'),)


def _layer_norm(given: Given) -> Result | tuple[Result, ...]:
    rows, axis = _rows(given)
    x, epsilon = given.input(0), given.float('epsilon', 1e-5)
    factors = [_factor(given, i, axis) for i in (1, 2) if given.has(i)]
    out = view(_normalise(rows, 1, factors, epsilon, 'layernorm'), x.shape)
    if len(given.node.outputs) == 1:
        return out
    shape = (*x.shape[:axis], *(1 for _ in x.shape[axis:]))
    dims = [Dim('d0', rows.shape[0]), Dim('d1', rows.shape[1])]
    stages = _moments(dims[:1], dims[1:], centred=True)
    mean = build(label_of('mean', rows.shape), {'In': rows}, stages[:2], x.dtype)
    root = call('div', const(1.0), call('sqrt', add(X, const(epsilon))))
    power = build(label_of('power', rows.shape), {'In': rows}, stages, x.dtype)
    inverse = pointwise('inverse_deviation', root, [power], x.dtype)
    return out, view(mean, shape), view(inverse, shape)


def _rms_norm(given: Given) -> Result:
    rows, axis = _rows(given)
    factors = [_factor(given, 1, axis)]
    epsilon = given.float('epsilon', 1e-5)
    made = _normalise(rows, 1, factors, epsilon, 'rmsnorm', centred=False)
    return view(made, given.input(0).shape)


def _mean_variance(given: Given) -> Result:
    """(x - mean) / deviation over axes that are named; the standard divides by it + 1e-9."""
    x = given.input(0)
    rank = len(x.shape)
    named = given.node.attributes.get('axes', (0, 2, 3))
    if not isinstance(named, tuple) or 0 in x.shape:
        raise ModelError(f'its axes are {named!r}; they must be whole numbers')
    axes = sorted(axis_of(int(a), rank) for a in named)
    kept = [1 if i in axes else size for i, size in enumerate(x.shape)]
    share = mul(X, const(1.0 / math.prod(x.shape[i] for i in axes)))
    mean = view(reduce('mean', x, axes, 'sum', X, share), kept)
    off = pointwise('off', sub(X, read(1)), [x, mean], x.dtype)
    power = view(reduce('power', off, axes, 'sum', mul(X, X), share), kept)
    expr = call('div', X, add(call('sqrt', read(1)), const(1e-9)))
    return pointwise('normalise', expr, [off, power], x.dtype)


def _lp_norm(given: Given) -> Result:
    x = given.input(0)
    axis, power = axis_of(given.int('axis', -1), len(x.shape)), given.int('p', 2)
    if power not in (1, 2) or 0 in x.shape:
        raise Unsupported(f'with p {power} of {list(x.shape)}')
    before, after = (call('abs', X), None) if power == 1 else (mul(X, X), call('sqrt', X))
    kept = [1 if i == axis else size for i, size in enumerate(x.shape)]
    norm = view(reduce(f'l{power}', x, [axis], 'sum', before, after), kept)
    safe = call('where', call('eq', read(1), const(0.0)), const(1.0), read(1))
    return pointwise('normalise', call('div', X, safe), [x, norm], x.dtype)


def _lrn(given: Given) -> Result:
    """By the squares of neighbouring channels (AlexNet Sec. 3.3, scaled as ONNX does)."""
    x, size = given.input(0), given.int('size')
    if len(x.shape) < 3 or 0 in x.shape or not 1 <= size <= 2 * x.shape[1] + 1:
        raise ModelError(f'{list(x.shape)} over {size} channels; give an image and 1 or more')
    alpha, beta, bias = (
        given.float('alpha', 1e-4), given.float('beta', 0.75), given.float('bias', 1.0)
    )  # fmt: skip
    names = names_of(x.shape)
    dims = tuple(Dim(d, s) for d, s in zip(names, x.shape, strict=True))
    here = tuple(map(var, names))
    near = affine((names[1], 1), ('j', 1), const=-((size - 1) // 2))
    place = (here[0], near, *here[2:])
    base = add(const(bias), mul(const(alpha / size), X))
    stages = [
        Stage('squares', (*dims, Dim('j', size, 'reduction')), Access('Sum', here),
              (Access('In', place),), mul(X, X), 'sum'),
        Stage('scale', dims, Access('Out', here), (Access('Sum', here), Access('In', here)),
              mul(read(1), call('pow', base, const(-beta)))),
    ]  # fmt: skip
    return build(f'{label_of("lrn", x.shape)}size{size}', {'In': x}, stages, x.dtype)


OPERATORS: dict[str, Operator] = {
    'BatchNormalization': Operator(_batch_norm, FLOATS, (), 'by given statistics'),
    'InstanceNormalization': Operator(_instance_norm, FLOATS),
    'GroupNormalization': Operator(_group_norm, FLOATS),
    'LayerNormalization': Operator(_layer_norm, FLOATS),
    'RMSNormalization': Operator(_rms_norm, FLOATS),
    'MeanVarianceNormalization': Operator(_mean_variance, FLOATS),
    'LpNormalization': Operator(_lp_norm, FLOATS),
    'LRN': Operator(_lrn, FLOATS),
}
