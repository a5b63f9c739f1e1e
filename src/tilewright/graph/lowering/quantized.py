"""Quantised operators: numbers of 8 bits with a scale and a zero point (ops/integer.py).

A real number r is stored as x = saturate(round(r / scale) + zero point), rounded half to even.
Scales and zero points belong to a tensor, to an index of one of its axes, or to blocks along it.
Where they are known ahead, as they are in files, a product of quantised tensors is one integer
group with the scales behind it; else zero points are taken off first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.build import flat, pointwise
from tilewright.graph.lowering.convolution import convolve
from tilewright.graph.lowering.elementwise import convert
from tilewright.graph.lowering.matmul import stacked
from tilewright.graph.lowering.moving import slices
from tilewright.graph.lowering.reader import NodeReader, Operator, axis_of
from tilewright.graph.lowering.result import Known, Result, Unsupported, compute, view
from tilewright.graph.lowering.types import ELEMENT_TYPES
from tilewright.graph.lowering.windows import windows
from tilewright.ops.functions import X, add, mul, sub
from tilewright.ops.integer import requantised, saturated, without_zero
from tilewright.ops.reduction import REDUCTIONS
from tilewright.ops.stage import Expr, call, cast, const, read, whole
from tilewright.ops.windows import Window

STORED = ('u8', 'i8', 'u16', 'i16')


def _along(node: NodeReader, given: Result | None, shape: Sequence[int]) -> Result | None:
    """A scale or zero point, seen so that it broadcasts to `shape`."""
    if given is None or given.shape in ((), (1,)):
        return given if given is None else view(given, ())
    axis = axis_of(node.int('axis', 1), len(shape))
    if given.shape != (shape[axis],):
        raise ModelError(
            f'a scale or zero point of {list(given.shape)} does not fit axis {axis} of '
            f'{list(shape)}'
        )
    return view(given, [size if i == axis else 1 for i, size in enumerate(shape)])


def _blocks(
    node: NodeReader, x: Result, others: Sequence[Result | None]
) -> tuple[Result, list[Result | None]]:
    """What is quantised in blocks of an axis, with two axes in its place."""
    size = node.int('block_size', 0)
    if not size:
        return x, [_along(node, r, x.shape) for r in others]
    axis = axis_of(node.int('axis', 1), len(x.shape))
    if x.shape[axis] % size:
        raise Unsupported(f'in blocks of {size}, which do not divide {x.shape[axis]}')
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    count = x.shape[axis] // size
    if any(r is not None and r.shape != (*before, count, *after) for r in others):
        raise ModelError(f'its scale does not fit {count} blocks of {list(x.shape)}')
    seen = [None if r is None else view(r, (*before, count, 1, *after)) for r in others]
    return view(x, (*before, count, size, *after)), seen


def _number(zero: Result | None, reads: list[Result]) -> Expr:
    """A zero point in an expression of floats: a number, else a further read."""
    if zero is None:
        return const(0.0)
    if isinstance(zero, Known) and zero.array.size == 1:
        return const(float(zero.array.item()))
    reads.append(zero)
    return cast(read(len(reads) - 1), 'f32')


def _dtype(node: NodeReader, zero: Result | None) -> str:
    """What a quantised result is stored as."""
    named = node.int('output_dtype', 0)
    dtype = zero.dtype if zero is not None else ELEMENT_TYPES.get(named, '') if named else 'u8'
    if dtype not in STORED:
        raise Unsupported(f'to {dtype or f"element type {named}"}')
    return dtype


def _quantize(node: NodeReader) -> Result:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    dtype = _dtype(node, zero)
    x = convert(x, 'f32')
    if scale.dtype != 'f32':
        raise Unsupported(f'with a scale of {scale.dtype}')
    seen, (scale_seen, zero_seen) = _blocks(node, x, (scale, zero))
    assert scale_seen is not None
    reads = [seen, scale_seen]
    expr = saturated(call('div', X, read(1)), _number(zero_seen, reads), dtype)
    return view(pointwise('quantize', expr, reads, dtype), x.shape)


def _dequantize(node: NodeReader) -> Result:
    x, scale, zero = node.input(0), node.input(1), node.optional(2)
    if scale.dtype != 'f32' or node.int('output_dtype', 0) not in (0, 1):
        raise Unsupported(f'with a scale of {scale.dtype}')
    seen, (scale_seen, zero_seen) = _blocks(node, x, (scale, zero))
    assert scale_seen is not None
    reads, expr = [seen, scale_seen], X
    if zero_seen is not None and not _is_zero(zero_seen):
        reads.append(zero_seen)
        expr = sub(cast(X, 'i32'), cast(read(2), 'i32'))
    made = pointwise('dequantize', mul(cast(expr, 'f32'), read(1)), reads, 'f32')
    return view(made, x.shape)


def _is_zero(zero: Result | None) -> bool:
    return zero is None or (isinstance(zero, Known) and not zero.array.any())


def _dynamic(node: NodeReader) -> tuple[Result, Result, Result]:
    """A tensor of u8 with the scale and zero point that its own extremes, and 0, ask for."""
    x = node.input(0)
    axes = tuple(range(len(flat(x).shape)))
    low, high = (
        view(compute(REDUCTIONS[kind].group(kind, flat(x).shape, axes, 'f32'), {'In': flat(x)}), ())
        for kind in ('min', 'max')
    )
    low = pointwise('least', call('min', X, const(0.0)), [low], 'f32')
    high = pointwise('largest', call('max', X, const(0.0)), [high], 'f32')
    width = cast(sub(X, read(1)), 'f32')
    scale = pointwise('scale', cast(call('div', width, const(255.0)), 'f32'), [high, low], 'f32')
    quotient = call('neg', call('div', X, read(1)))
    zero = pointwise('zero', saturated(quotient, const(0.0), 'u8'), [low, scale], 'u8')
    expr = saturated(call('div', X, read(1)), cast(read(2), 'f32'), 'u8')
    return pointwise('quantize', expr, [x, scale, zero], 'u8'), scale, zero


def _centred(x: Result, zero: Result | None) -> Result:
    """A quantised tensor minus its zero point: known weights in the smallest type, else i16."""
    if _is_zero(zero):
        return x
    if isinstance(x, Known) and isinstance(zero, Known):
        return Known(without_zero(x.array, zero.array))
    assert zero is not None
    return pointwise('centre', sub(cast(X, 'i32'), cast(read(1), 'i32')), [x, zero], 'i16')


def _sum(weights: Known, axes: tuple[int, ...], zero: Result | None) -> np.ndarray | None:
    """minus zero point times the sum of weights: what an image that keeps its zero point adds."""
    if _is_zero(zero):
        return None
    assert isinstance(zero, Known)
    return -int(zero.array.item()) * weights.array.astype(np.int64).sum(axes)


def _keeps_zero(weights: Result, zero: Result | None) -> bool:
    """Whether a zero point may stay in an image: known numbers take its place behind the sum."""
    single = zero is None or (isinstance(zero, Known) and zero.array.size == 1)
    return isinstance(weights, Known) and single


def _pad_of(zero: Result | None) -> int:
    """What stands for 0 in an image that keeps its zero point."""
    return int(zero.array.item()) if isinstance(zero, Known) else 0


def _bias(bias: Result | None, moved: np.ndarray | None) -> Result | None:
    if moved is None:
        return bias
    if bias is None:
        return Known(moved.astype(np.int32))
    if isinstance(bias, Known):
        return Known((bias.array.astype(np.int64) + moved).astype(np.int32))
    return pointwise('bias', add(X, read(1)), [bias, Known(moved.astype(np.int32))], 'i32')


def _integer_conv(
    node: NodeReader, x: Result, zero: Result | None, w: Result, w_zero: Result | None,
    bias: Result | None,
) -> Result:  # fmt: skip
    """Sums of (x - zero) * (w - w_zero), in i32."""
    rank = len(x.shape) - 2
    if w_zero is not None and len(w_zero.shape) == 1 and w_zero.shape[0] > 1:
        w_zero = view(w_zero, (w_zero.shape[0], *[1] * (len(w.shape) - 1)))
    w, pad = _centred(w, w_zero), 0
    if _keeps_zero(w, zero):
        assert isinstance(w, Known)
        bias = _bias(bias, _sum(w, tuple(range(1, len(w.shape))), zero))
        pad = _pad_of(zero)
    groups = node.int('group', 1)
    if rank < 1 or len(w.shape) != rank + 2 or groups < 1 or x.shape[1] != w.shape[1] * groups:
        raise ModelError(
            f'{list(x.shape)}, a kernel of {list(w.shape)} and {groups} groups do not fit'
        )
    if w.shape[0] % groups or 0 in (*x.shape, *w.shape):
        raise ModelError(f'a kernel of {list(w.shape)} does not divide into {groups} groups')
    over = windows(node, x.shape[2:], w.shape[2:])
    if not _keeps_zero(w, zero):
        if isinstance(w, Known) and zero is not None and not zero.shape:
            made = _moving_zero(x, zero, w.array.astype(np.int64), over, groups)
            if made is not None:
                lifted = bias and view(bias, (1, *bias.shape, *[1] * rank))
                return pointwise('bias', add(X, read(1)), [made, lifted], 'i32') if lifted else made
        x = _centred(x, zero)
    return convolve(x, w, bias, over, groups, pad)


def _moving_zero(
    x: Result, zero: Result, weights: np.ndarray, over: Sequence[Window], groups: int
) -> Result | None:
    """A convolution whose image has a zero point that only a run knows, by products of 8 bits.

        sum (x - a) w  =  sum x v  +  d sum x  -  a sum w        w = v + d, v of 8 bits

    over the taps inside the image. The sum of w is known; that of x is a further filter of ones.
    None where no d makes the weights small.
    """
    low, high = int(weights.min()), int(weights.max())
    shift = 0 if low >= -128 and high <= 127 else high - 127
    if high - low > 255 or (shift and groups > 1):
        return None
    small = (weights - shift).astype(np.int8)
    if shift:
        small = np.concatenate([small, np.ones_like(small[:1])])
    made = convolve(x, Known(small), None, over, groups, 0)
    inside = weights.sum(1)
    for window in over:  # [k, taps of this axis, ..] -> [k, .., positions of this axis]
        inside = np.tensordot(inside, _taps_inside(window), (1, 1))
    reads: list[Result] = [made, zero, Known(inside[None].astype(np.int32))]
    sums = X
    if shift:
        count = len(weights)
        reads[0] = slices(made, {1: range(count)})
        reads.append(slices(made, {1: range(count, count + 1)}))
        sums = add(X, mul(read(3), whole(shift)))
    return pointwise('zero', sub(sums, mul(cast(read(1), 'i32'), read(2))), reads, 'i32')


def _taps_inside(window: Window) -> np.ndarray:
    """[position, tap]: 1 where it lies in the image."""
    at = np.arange(window.out)[:, None] * window.stride - window.before
    at = at + np.arange(window.taps) * window.dilation
    return ((at >= 0) & (at < window.size)).astype(np.int64)


def _conv_integer(node: NodeReader) -> Result:
    zeros = [None if r is None else _scalar(r) for r in (node.optional(2), node.optional(3))]
    bias = node.optional(4)  # no input of the operator's: graph/integer.py adds it
    return _integer_conv(node, node.input(0), zeros[0], node.input(1), zeros[1], bias)


def _scalar(given: Result) -> Result:
    """A single number without axes; others as they are."""
    return view(given, ()) if given.shape in ((), (1,)) else given


def _qlinear_conv(node: NodeReader) -> Result:
    x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero = (
        r if i in (0, 3) else _scalar(r) for i, r in enumerate(node.input(i) for i in range(8))
    )
    made = _integer_conv(node, x, x_zero, w, w_zero, node.optional(8))
    if w_scale.shape:
        w_scale = view(w_scale, (w_scale.shape[0], *[1] * (len(made.shape) - 2)))
    return _requantise(made, (x_scale, w_scale, y_scale), y_zero)


def _requantise(made: Result, scales: Sequence[Result], zero: Result) -> Result:
    """Sums as a quantised tensor: times the scales of both factors over the scale of the result.

    One multiplication by a float32, as ONNX Runtime has it.
    """
    if any(r.dtype != 'f32' for r in scales):
        raise Unsupported(f'with scales of {", ".join(r.dtype for r in scales)}')
    if zero.dtype not in STORED:
        raise Unsupported(f'to {zero.dtype}')
    a, b, y = scales
    if all(isinstance(r, Known) for r in scales):
        factors = [r.array for r in scales if isinstance(r, Known)]
        with np.errstate(all='ignore'):
            product = factors[0] * factors[1] / factors[2]
        scale: Result = Known(np.asarray(product, np.float32))
    else:
        scale = pointwise('scale', call('div', mul(X, read(1)), read(2)), [a, b, y], 'f32')
    reads = [made, scale]
    return pointwise('requantize', requantised(_number(zero, reads), zero.dtype), reads, zero.dtype)


def _integer_product(
    a: Result, zero: Result | None, b: Result, b_zero: Result | None, bias: Result | None
) -> Result:
    """(a - zero) times (b - b_zero) in i32; zero points of rows of `a` and columns of `b`."""
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise Unsupported(f'of {list(a.shape)} and {list(b.shape)}')
    if zero is not None and len(zero.shape) == 1:
        zero = view(zero, (*zero.shape, 1))
    b, stands = _centred(b, b_zero), 0
    if _keeps_zero(b, zero) and len(b.shape) == 2:
        assert isinstance(b, Known)
        bias = _bias(bias, _sum(b, (0,), zero))
        stands = _pad_of(zero)
    else:
        a = _centred(a, zero)
    made = stacked(a, b, stands)
    return made if bias is None else pointwise('bias', add(X, read(1)), [made, bias], 'i32')


def _matmul_integer(node: NodeReader) -> Result:
    zeros = [None if r is None else _scalar(r) for r in (node.optional(2), node.optional(3))]
    return _integer_product(node.input(0), zeros[0], node.input(1), zeros[1], node.optional(4))


def _qlinear_matmul(node: NodeReader) -> Result:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = (
        r if i in (0, 3) else _scalar(r) for i, r in enumerate(node.input(i) for i in range(8))
    )
    if len(a_scale.shape) == 1:
        a_scale = view(a_scale, (*a_scale.shape, 1))
    made = _integer_product(a, a_zero, b, b_zero, node.optional(8))
    return _requantise(made, (a_scale, b_scale, y_scale), y_zero)


def _qlinear_add(node: NodeReader) -> Result:
    """Both real sums over the scale of the result; one factor for each where scales are known."""
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale = (node.input(i) for i in range(7))
    y_zero = node.optional(7)
    dtype = y_zero.dtype if y_zero is not None else a.dtype
    known = [r.array for r in (a_scale, b_scale, y_scale) if isinstance(r, Known)]
    zeros = [_is_zero(r) or (isinstance(r, Known) and r.array.size == 1) for r in (a_zero, b_zero)]
    if len(known) < 3 or any(array.size != 1 for array in known) or not all(zeros):
        raise Unsupported('with scales that are not known single numbers')
    first, second, result = (array.reshape(()) for array in known)
    terms = [
        mul(cast(_less(read(number), zero), 'f32'), const(float(scale / result)))
        for number, (scale, zero) in enumerate(((first, a_zero), (second, b_zero)))
    ]
    reads = [a, b]
    expr = saturated(add(*terms), _number(y_zero, reads), dtype)
    return pointwise('add', expr, reads, dtype)


def _less(stored: Expr, zero: Result) -> Expr:
    """A stored number minus a known zero point."""
    if _is_zero(zero) or not isinstance(zero, Known):
        return cast(stored, 'i32')
    return sub(cast(stored, 'i32'), whole(int(zero.array.item())))


OPERATORS: dict[str, Operator] = {
    'QuantizeLinear': Operator(_quantize, ('f32', 'i32')),
    'DequantizeLinear': Operator(_dequantize, (*STORED, 'i32')),
    'DynamicQuantizeLinear': Operator(_dynamic, ('f32',)),
    'ConvInteger': Operator(_conv_integer, ('u8', 'i8')),
    'QLinearConv': Operator(_qlinear_conv, ('u8', 'i8')),
    'MatMulInteger': Operator(_matmul_integer, ('u8', 'i8')),
    'QLinearMatMul': Operator(_qlinear_matmul, ('u8', 'i8')),
    'com.microsoft::QLinearAdd': Operator(_qlinear_add, ('u8', 'i8')),
}
