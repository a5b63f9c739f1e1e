"""Normalisations: by known statistics, or by those of a part of the tensor itself; softmax.

Instance, group, layer and RMS normalisation are one thing on different views of their input,
[r, x] or [n, g, k, x]: the mean over the last dimensions, then the mean square of what differs from
it, then

    Out = (In - Mean) / sqrt(Variance + epsilon) * Scale + Bias

The mean is taken off before squares are summed, as accuracy needs it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tilewright.ops.describe import Shape, dims_of, group_of, label_of, names_of
from tilewright.ops.group import Group
from tilewright.ops.reduction import lines
from tilewright.ops.stage import (
    Access,
    Affine,
    Dim,
    Expr,
    Stage,
    affine,
    call,
    const,
    read,
    substituted,
    var,
)

X = read(0)


def batch_norm(epsilon: float) -> tuple[Expr, Expr, Expr]:
    """Factor and shift of a channel, and what is computed with both.

    factor(scale, variance), shift(bias, variance, mean, scale), result(x, factor, shift): the first
    two are known ahead where the statistics are.
    """
    deviation = call('sqrt', call('add', read(1), const(epsilon)))
    factor = call('div', X, deviation)
    shift = call('sub', X, call('div', call('mul', read(2), read(3)), deviation))
    return factor, shift, call('add', call('mul', X, read(1)), read(2))


def channel_norm(
    word: str, shape: Shape, factors: int, epsilon: float = 1e-5, dtype: str = 'f32'
) -> Group:
    """[n, groups, channels of a group, pixels] by the moments of each group of an image.

    `factors` is how many elements Scale and Bias have: one for each channel, or for each group.
    """
    _, groups, each, _ = shape
    by_channel = factors == groups * each
    index = affine(('d1', each), ('d2', 1)) if by_channel else var('d1')
    scale = ((factors,), (index,))
    return _normalise(word, shape, 2, [scale, scale], epsilon, True, dtype)


def row_norm(
    word: str,
    shape: Shape,
    factors: int = 2,
    epsilon: float = 1e-5,
    centred: bool = True,
    dtype: str = 'f32',
) -> Group:
    """[rows, length], each row by its own moments; then times Scale, and plus Bias, [length].

    factors  how many of the two there are; centred: whether the mean is taken off
    """
    scale = ((shape[1],), (var('d1'),))
    return _normalise(word, shape, 1, [scale] * factors, epsilon, centred, dtype)


def row_moments(shape: Shape, dtype: str = 'f32') -> tuple[Group, Group]:
    """[rows, length]: the mean of each row, and the mean square of what differs from it."""
    dims = _dims(shape)
    stages = _moments(dims[:1], dims[1:], centred=True)
    mean = group_of(label_of('mean', shape), stages[:2], {'In': shape}, dtype)
    return mean, group_of(label_of('power', shape), stages, {'In': shape}, dtype)


def batch_moments(shape: Shape, dtype: str = 'f32') -> tuple[Group, Group]:
    """[images, channels, pixels]: the mean of each channel, and the mean square around `Mean`."""
    n, c, x = _dims(shape)
    stages = _moments([c], [n, x], True, Access('In', tuple(var(d.name) for d in (n, c, x))))
    label = label_of('batch_mean', shape)
    mean = group_of(label, stages[:2], {'In': shape}, dtype)
    given = {'In': shape, 'Mean': shape[1:2]}
    return mean, group_of(label_of('batch_power', shape), stages[2:], given, dtype)


def by_moments(epsilon: float) -> Expr:
    """Reads: an element, its channel's mean, mean square around that, scale and bias."""
    deviation = call('sqrt', call('add', read(2), const(epsilon)))
    normal = call('div', call('sub', X, read(1)), deviation)
    return call('add', call('mul', normal, read(3)), read(4))


def epsilon_of(expr: Expr) -> float | None:
    """The number in `by_moments`; None for other expressions."""
    numbers = {float(e.value) for e in _within(expr) if e.op == 'const'}
    if len(numbers) != 1 or expr != by_moments(epsilon := numbers.pop()):
        return None
    return epsilon


def _within(expr: Expr) -> Iterator[Expr]:
    yield expr
    for one in expr.args:
        yield from _within(one)


def by_moments_adjoint(epsilon: float, count: int) -> Expr:
    """The gradient by an element of `by_moments` of a batch that the moments were taken of.

    Reads: the gradient of the result, the element, mean, mean square, scale, and the gradients by
    bias and scale, which are the sums over the `count` elements of a channel that it needs.
    """
    up, x, mean, power, scale, plus, times = (read(number) for number in range(7))
    inverse = substituted(inverse_deviation(epsilon), [power])
    share = const(1.0 / count)
    normal = call('mul', call('sub', x, mean), inverse)
    rest = call('add', plus, call('mul', normal, times))
    return call('mul', call('mul', scale, inverse), call('sub', up, call('mul', rest, share)))


def inverse_deviation(epsilon: float) -> Expr:
    return call('div', const(1.0), call('sqrt', call('add', X, const(epsilon))))


def _dims(shape: Shape) -> list[Dim]:
    return [Dim(f'd{i}', size) for i, size in enumerate(shape)]


def _normalise(
    word: str,
    shape: Shape,
    rank: int,
    factors: Sequence[tuple[Shape, tuple[Affine, ...]]],
    epsilon: float,
    centred: bool,
    dtype: str,
) -> Group:
    """In by the moments over its dimensions from `rank` on; then times, and plus, the factors.

    A factor is the shape of a tensor and its indices, by the iterators d0 d1 ..
    """
    dims = _dims(shape)
    here = tuple(var(d.name) for d in dims)
    reads = [Access('In', here), Access('Power', here[:rank])]
    expr = X
    if centred:
        reads.append(Access('Mean', here[:rank]))
        expr = call('sub', expr, read(2))
    expr = call('div', expr, call('sqrt', call('add', read(1), const(epsilon))))
    shapes = {'In': shape}
    for name, (factor, index) in zip(('Scale', 'Bias'), factors, strict=False):
        shapes[name] = factor
        reads.append(Access(name, index))
        expr = call('mul' if name == 'Scale' else 'add', expr, read(len(reads) - 1))
    stages = _moments(dims[:rank], dims[rank:], centred)
    stages.append(Stage('normalise', tuple(dims), Access('Out', here), tuple(reads), expr))
    return group_of(f'{label_of(word, shape)}@{rank}', stages, shapes, dtype)


def _moments(
    lines: Sequence[Dim], over: Sequence[Dim], centred: bool, given: Access | None = None
) -> list[Stage]:
    """Stages that write 'Mean' (if centred) and 'Power', the mean square around it, of a line.

    `given` is how the input is read: [lines, over], where it is not said.
    """
    count = math.prod(d.size for d in over)
    domain = (*lines, *(Dim(d.name, d.size, 'reduction') for d in over))
    here = tuple(var(d.name) for d in lines)
    given = given or Access('In', (*here, *(var(d.name) for d in over)))
    share = call('mul', X, const(1.0 / count))

    def mean(word: str, out: str, expr: Expr, *reads: Access) -> list[Stage]:
        total = f'{out}Sum'
        return [
            Stage(word, domain, Access(total, here), reads, expr, 'sum'),
            Stage(f'{word}_mean', tuple(lines), Access(out, here), (Access(total, here),), share),
        ]

    if not centred:
        return mean('squares', 'Power', call('mul', X, X), given)
    off = call('sub', X, read(1))
    return [
        *mean('sum', 'Mean', X, given),
        *mean('squares', 'Power', call('mul', off, off), given, Access('Mean', here)),
    ]


def lrn(
    shape: Shape,
    size: int = 5,
    alpha: float = 1e-4,
    beta: float = 0.75,
    bias: float = 1.0,
    dtype: str = 'f32',
) -> Group:
    """By the squares of neighbouring channels (AlexNet Sec. 3.3, scaled as ONNX does).

    Sum[n, c, h, w] += In[n, c + j - (size - 1) / 2, h, w]^2   over `size` channels
    Out = In * (bias + alpha / size * Sum)^-beta
    """
    names, dims = names_of(shape), dims_of(shape)
    here = tuple(map(var, names))
    near = affine((names[1], 1), ('j', 1), const=-((size - 1) // 2))
    base = call('add', const(bias), call('mul', const(alpha / size), X))
    stages = [
        Stage('squares', (*dims, Dim('j', size, 'reduction')), Access('Sum', here),
              (Access('In', (here[0], near, *here[2:])),), call('mul', X, X), 'sum'),
        Stage('scale', dims, Access('Out', here), (Access('Sum', here), Access('In', here)),
              call('mul', read(1), call('pow', base, const(-beta)))),
    ]  # fmt: skip
    return group_of(f'{label_of("lrn", shape)}size{size}', stages, {'In': shape}, dtype)


def softmax(shape: Shape, axis: int = 1, dtype: str = 'f32', guarded: bool = False) -> Group:
    """exp(In - Peak) / Total along an axis, in three stages.

    A line of -inf alone is NaN; `guarded` it is 0, as attention has it for words that see nothing.
    """
    total = read(2)
    if guarded:
        total = call('where', call('eq', total, const(0.0)), const(1.0), total)
    expr = call('div', _shifted(guarded), total)
    return _exponentials('softmax', shape, axis, expr, dtype, guarded)


def _shifted(guarded: bool = False) -> Expr:
    """exp(In - Peak)"""
    peak = read(1)
    if guarded:
        peak = call('where', call('eq', peak, const(-math.inf)), const(0.0), peak)
    return call('exp', call('sub', X, peak))


def log_softmax(shape: Shape, axis: int = 1, dtype: str = 'f32') -> Group:
    """In - Peak - log(Total) along an axis, in three stages."""
    finish = call('sub', call('sub', X, read(1)), call('log', read(2)))
    return _exponentials('logsoftmax', shape, axis, finish, dtype)


def _exponentials(
    word: str, shape: Shape, axis: int, finish: Expr, dtype: str, guarded: bool = False
) -> Group:
    """finish(In, the largest along the axis, the sum of exponentials with that taken off)."""
    form = lines(shape, (axis,))
    peak, total = Access('Peak', form.place), Access('Total', form.place)
    stages = [
        form.reduce('peak', 'Peak', X, 'max', pad=-math.inf),
        form.reduce('total', 'Total', _shifted(guarded), 'sum', peak),
        Stage('finish', dims_of(shape), Access('Out', form.source.index),
              (form.source, peak, total), finish),
    ]  # fmt: skip
    return group_of(label_of(word, shape) + f'@{axis}', stages, {'In': shape}, dtype)


def exponentials_adjoint(group: Group) -> Group | None:
    """The gradient by `In` of a softmax or its logarithm, from its result; None for other groups.

    softmax   Grad = Out (Up - Dot),         Dot = sum of Up * Out along the axis
    its log   Grad = Up - exp(Out) Dot,      Dot = sum of Up

    Shorter than what the stages give: the largest element, taken off and put back, passes nothing
    on.
    """
    first, shape = group.stages[0], group.output.shape
    if len(group.stages) != 3 or first.combiner != 'max' or len(first.reduction) != 1:
        return None
    axes = [i for i, e in enumerate(first.reads[0].index) if e.names == first.reduction]
    dtype = group.output.dtype
    if len(axes) != 1 or group.tensor('In').shape != shape:
        return None
    logarithm = group.stages == log_softmax(shape, axes[0], dtype).stages
    if not logarithm and all(
        group.stages != softmax(shape, axes[0], dtype, guarded).stages for guarded in (False, True)
    ):
        return None
    form = lines(shape, (axes[0],))
    up, out = (Access(name, form.source.index) for name in ('Up', 'Out'))
    dot, less = Access('Dot', form.place), call('sub', X, read(1))
    reads, expr = ((up, dot, out), call('mul', less, read(2)))
    if logarithm:
        expr = call('sub', X, call('mul', call('exp', read(2)), read(1)))
    terms = ((up,), X) if logarithm else ((up, out), call('mul', X, read(1)))
    stages = [
        Stage('dot', form.domain, Access('Dot', form.here), *terms, 'sum'),
        Stage('finish', dims_of(shape), Access('Grad', form.source.index), reads, expr),
    ]
    label = f'{group.label}/grad'
    return group_of(label, stages, {'Up': shape, 'Out': shape}, dtype)
