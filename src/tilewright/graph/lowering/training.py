"""What networks contain while they are trained: losses by classes, and dropout.

Masks of dropout follow from a counter: element i of call t has the bits of a hash of (t, i, seed),
so that a run that is continued draws what it would have drawn, on any target and with any number of
threads. The hash is 'lowbias32' (C. Wellons, 'Prospecting for Hash Functions', 2018), applied to
the counter and then to its result and the element.
"""

from __future__ import annotations

import math
from dataclasses import replace

from tilewright.errors import ModelError, SpecError
from tilewright.graph.gradient import gradients_of
from tilewright.graph.lowering import convolution, pooling
from tilewright.graph.lowering.build import pointwise
from tilewright.graph.lowering.reader import FLOATS, NodeReader, Operator
from tilewright.graph.lowering.result import Result, Unsupported, compute, view
from tilewright.ops.functions import X, mul, where
from tilewright.ops.losses import picked
from tilewright.ops.normalise import log_softmax
from tilewright.ops.reduction import reduce
from tilewright.ops.stage import Expr, call, cast, const, index, literal, read, whole

REDUCTIONS = ('mean', 'sum', 'none')


def _negative_log_likelihood(node: NodeReader) -> Result:
    return _loss(node, node.input(0))


def _softmax_cross_entropy(node: NodeReader) -> tuple[Result, ...]:
    x = node.input(0)
    if len(x.shape) < 2:
        raise ModelError(f'its scores are {list(x.shape)}; give [n, classes, ..]')
    logarithms = compute(log_softmax(x.shape, 1, x.dtype), {'In': x})
    return _loss(node, logarithms), logarithms


def _loss(node: NodeReader, scores: Result) -> Result:
    """-scores[n, label, ..], weighted, added up or averaged; labels `ignore_index` do not count."""
    labels, weights = node.input(1), node.optional(2)
    how = node.text('reduction', 'mean', REDUCTIONS)
    ignored = node.raw('ignore_index')
    if labels.shape != (scores.shape[0], *scores.shape[2:]) or 0 in scores.shape:
        raise ModelError(f'labels {list(labels.shape)} do not fit scores {list(scores.shape)}')
    n, classes = scores.shape[:2]
    pixels = math.prod(scores.shape[2:])
    flat = view(labels, (n, pixels))
    group = picked((n, classes, pixels), scores.dtype, labels.dtype)
    given = {'In': view(scores, (n, classes, pixels)), 'Labels': flat}
    chosen = compute(group, given)
    count: Result | None = None
    if weights is not None:
        count = compute(picked((classes,), scores.dtype, labels.dtype, (n, pixels)),
                        {'In': weights, 'Labels': flat})  # fmt: skip
    if isinstance(ignored, int):
        counted = where(call('eq', X, literal(ignored, labels.dtype)), const(0.0), const(1.0))
        ones = pointwise('counted', counted, [flat], scores.dtype)
        count = ones if count is None else pointwise('counted', mul(X, read(1)), [count, ones],
                                                     scores.dtype)  # fmt: skip
    losses = pointwise('loss', call('neg', X), [chosen], scores.dtype)
    if count is not None:
        losses = pointwise('loss', mul(X, read(1)), [losses, count], scores.dtype)
    if how == 'none':
        return view(losses, labels.shape)
    total = _summed(losses)
    if how == 'mean' and count is None:
        total = pointwise('mean', mul(X, const(1.0 / (n * pixels))), [total], scores.dtype)
    elif how == 'mean':
        assert count is not None
        total = pointwise('mean', call('div', X, read(1)), [total, _summed(count)], scores.dtype)
    return view(total, ())


def _summed(x: Result) -> Result:
    group = reduce('sum', x.shape, tuple(range(len(x.shape))), 'sum', None, None, x.dtype)
    return compute(group, {'In': x})


def _dropout(node: NodeReader) -> tuple[Result, Result]:
    """x * mask / (1 - ratio), and the mask: input 1 counts the calls."""
    x, counter = node.input(0), node.input(1)
    ratio, seed = node.float('ratio', 0.5), node.int('seed', 0)
    if not 0.0 <= ratio < 1.0:
        raise ModelError(f'its ratio is {ratio}; it must be at least 0 and below 1')
    if counter.shape != (1,) or counter.dtype != 'u32':
        raise ModelError(f'its counter is {counter.dtype}{list(counter.shape)}; give u32[1]')
    count = math.prod(x.shape)
    bits = _hashed(call('add', X, whole(seed * 2654435769 % 2**32)))
    bits = _hashed(call('bit_xor', bits, cast(index('d0'), 'u32')))
    mask = view(
        pointwise('mask', call('ge', bits, whole(int(ratio * 2**32))), [counter], 'bool', (count,)),
        x.shape,
    )
    kept = where(read(1), mul(X, const(1.0 / (1.0 - ratio))), const(0.0))
    return pointwise('dropout', kept, [x, mask], x.dtype), mask


def _hashed(x: Expr) -> Expr:
    """32 bits, each of which depends on all of x."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        x = cast(call('bit_xor', x, call('shr', x, whole(shift))), 'u32')
        x = x if factor == 1 else cast(mul(x, whole(factor)), 'u32')
    return x


_FORWARD = {**convolution.OPERATORS, **pooling.OPERATORS}


def _gradient(node: NodeReader) -> tuple[Result, ...]:
    """Input 0 is the gradient of what the operator `of` computes from the other inputs; the results
    are their gradients, derived from its description.
    """
    of = node.text('of', '', tuple(_FORWARD))
    up, *inputs = node.all()
    inner = replace(node.node, op=of, inputs=node.node.inputs[1:], outputs=node.node.outputs[:1])
    made = _FORWARD[of].lower(NodeReader(inner, tuple(inputs)))
    result = made[0] if isinstance(made, tuple) else made
    try:
        return tuple(gradients_of(result, view(up, result.shape), inputs))
    except SpecError as reason:
        raise Unsupported(f'of {of}: {reason}') from None


OPERATORS: dict[str, Operator] = {
    'NegativeLogLikelihoodLoss': Operator(_negative_log_likelihood, FLOATS),
    'SoftmaxCrossEntropyLoss': Operator(_softmax_cross_entropy, FLOATS),
    'tilewright::Dropout': Operator(_dropout, FLOATS),
    'tilewright::Gradient': Operator(_gradient, FLOATS),
}
