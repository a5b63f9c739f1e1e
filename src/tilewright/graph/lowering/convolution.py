"""Convolutions over any number of axes, transposed ones (ops/convolution_nd.py), and spectra."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.graph import DTYPES
from tilewright.graph.lowering.build import transpose
from tilewright.graph.lowering.reader import FLOATS, NodeReader, Operator
from tilewright.graph.lowering.result import (
    Known,
    Result,
    Unsupported,
    check_elements,
    compute,
    filled,
    view,
)
from tilewright.graph.lowering.windows import AUTO_PAD, check_windows, windows
from tilewright.ops import moving
from tilewright.ops.convolution_nd import (
    convolution,
    interleave,
    transposed_taps,
    transposed_windows,
)
from tilewright.ops.integer import integer_products
from tilewright.ops.stage import MAX_TABLE, affine, var
from tilewright.ops.windows import Window

# Filters, elements of a window and windows from which on a signal is cut into frames first, and
# elements of all frames up to which that is little beside the products.
MIN_FRAMED, MAX_FRAMED = 32, 1 << 22


def convolve(
    x: Result,
    kernel: Result,
    bias: Result | None,
    over: Sequence[Window],
    groups: int,
    pad: int | None = None,
) -> Result:
    """A convolution; `over` has a window for each axis of the image behind [n, c].

    With a `pad` it is one of whole numbers, and that is what lies outside the image.
    """
    if len(over) == 1:
        if pad is None and groups == 1 and _pays_in_frames(x, kernel, over[0]):
            x, kernel, over = _framed(x, kernel, over[0])
        row = Window(1, 1, 1, 1, 0, 0, 1)
        made = convolve(_row(x), _row(kernel), bias, (row, *over), groups, pad)
        return view(made, (*made.shape[:2], made.shape[3]))
    dtype = x.dtype if pad is None else 'f32'
    group = convolution(x.shape, kernel.shape[0], over, groups, bias is not None, dtype)
    if pad is not None:
        group = integer_products(group, pad)
    operands = {'In': x, 'Ker': kernel}
    return compute(group, operands if bias is None else {**operands, 'Bias': bias})


def _pays_in_frames(x: Result, kernel: Result, window: Window) -> bool:
    """Whether a long window over one channel, as in spectra, is better copied out: with nothing
    else to add up, direct kernels read a pixel at a time, and each is used by all filters.
    """
    enough = min(kernel.shape[0], window.taps, window.out) >= MIN_FRAMED
    return x.shape[1] == 1 and enough and window.out * window.taps <= MAX_FRAMED


def _framed(x: Result, kernel: Result, window: Window) -> tuple[Result, Result, tuple[Window, ...]]:
    """The same as a convolution of one tap, whose channels are the elements of the window."""
    taps, out = window.taps, window.out
    sizes = {'n': x.shape[0], 't': taps, 'f': out}
    place = [var('n'), affine(), window.index('f', 't')]
    frames = compute(moving.move('frames', x.shape, place, sizes, dtype=x.dtype), {'In': x})
    return frames, view(kernel, (kernel.shape[0], taps, 1)), (Window(out, 1, 1, 1, 0, 0, out),)


def _row(result: Result) -> Result:
    """[n, c, w] as an image of one row."""
    n, c, w = result.shape
    return view(result, (n, c, 1, w))


def _operands(node: NodeReader) -> tuple[Result, Result, Result | None, int]:
    """Image, kernel, bias and number of groups, checked as far as both operators share it."""
    x, kernel, bias = node.input(0), node.input(1), node.optional(2)
    groups = node.int('group', 1)
    rank = len(x.shape) - 2
    if rank < 1 or len(kernel.shape) != rank + 2:
        raise ModelError(f'{list(x.shape)} and a kernel of {list(kernel.shape)} do not fit')
    if any(r is not None and r.dtype != x.dtype for r in (kernel, bias)):
        raise ModelError(f'its kernel or bias has another dtype than its image, {x.dtype}')
    if node.ints('kernel_shape', rank, 0) not in ((0,) * rank, kernel.shape[2:]):
        raise ModelError(
            f'its kernel_shape is {list(node.ints("kernel_shape", rank, 0))}, its kernel has '
            f'{list(kernel.shape[2:])}'
        )
    if groups < 1 or x.shape[1] % groups or kernel.shape[0] % groups:
        raise ModelError(
            f'its {x.shape[1]} channels and a kernel of {list(kernel.shape)} do not divide into '
            f'{groups} groups'
        )
    return x, kernel, bias, groups


def _conv(node: NodeReader) -> Result:
    x, kernel, bias, groups = _operands(node)
    if x.shape[1] // groups != kernel.shape[1] or (bias and bias.shape != (kernel.shape[0],)):
        raise ModelError(
            f'{list(x.shape)}, a kernel of {list(kernel.shape)} and {groups} groups do not fit'
        )
    over = windows(node, x.shape[2:], kernel.shape[2:])
    if 0 in x.shape:
        return filled((x.shape[0], kernel.shape[0], *(w.out for w in over)), 0, x.dtype)
    return convolve(x, kernel, bias, over, groups)


def _conv_transpose(node: NodeReader) -> Result:
    x, kernel, bias, groups = _operands(node)
    if x.shape[1] != kernel.shape[0] or (bias and bias.shape != (kernel.shape[1] * groups,)):
        raise ModelError(
            f'{list(x.shape)}, a kernel of {list(kernel.shape)} and {groups} groups do not fit'
        )
    over = _spread(node, x.shape[2:], kernel.shape[2:])
    shape = (x.shape[0], kernel.shape[1] * groups, *(w.out for w in over))
    check_elements(shape, 'the result')
    if 0 in (*x.shape, *shape):
        return filled(shape, 0, x.dtype)
    if any(max(w.out, w.stride * (w.span + w.stride)) > MAX_TABLE for w in over):
        raise Unsupported(f'to {list(shape)}, of at most {MAX_TABLE} along an axis')
    taps = compute(transposed_taps(kernel.shape, over, groups, x.dtype), {'In': kernel})
    inner, strides = transposed_windows(over), [w.stride for w in over]
    filters = math.prod((shape[1], *strides))
    dense = view(taps, (filters, x.shape[1] // groups, *(w.taps for w in inner)))
    made = convolve(x, dense, None, inner, groups)
    split = view(made, (*shape[:2], *strides, *made.shape[2:]))
    operands = {'In': split} if bias is None else {'In': split, 'Bias': bias}
    return compute(interleave(split.shape, over, bias is not None, x.dtype), operands)


def _spread(node: NodeReader, sizes: Sequence[int], taps: Sequence[int]) -> tuple[Window, ...]:
    """Windows of a transposed convolution: `out` is its output, `before` is cut off from it."""
    rank = len(sizes)
    strides, dilations = node.ints('strides', rank, 1), node.ints('dilations', rank, 1)
    pads, extra = node.ints('pads', 2 * rank, 0), node.ints('output_padding', rank, 0)
    wanted = node.ints('output_shape', rank, -1)
    auto = node.text('auto_pad', 'NOTSET', AUTO_PAD)
    check_windows({'strides': strides, 'dilations': dilations}, pads=pads, output_padding=extra)
    made = []
    for i in range(rank):
        whole = strides[i] * (sizes[i] - 1) + extra[i] + (taps[i] - 1) * dilations[i] + 1
        before, after = pads[i], pads[i + rank]
        if wanted[i] >= 0 or auto.startswith('SAME'):
            out = wanted[i] if wanted[i] >= 0 else sizes[i] * strides[i]
            total = max(0, whole - out)
            before = total // 2 if auto == 'SAME_UPPER' else total - total // 2
        else:
            out = whole - before - after if auto == 'NOTSET' else whole
            before = before if auto == 'NOTSET' else 0
        if out < 0:
            raise ModelError(f'its pads {list(pads)} leave nothing of {whole} elements')
        made.append(Window(sizes[i], taps[i], strides[i], dilations[i], before, after, out))
    return tuple(made)


def _stft(node: NodeReader) -> Result:
    """Spectra of frames, [n, frame, bin, 2]: a convolution with the waves under the window."""
    x, (step,) = node.input(0), node.whole_numbers(1)
    if len(x.shape) == 3 and x.shape[2] == 2:
        raise Unsupported('of complex numbers')
    if len(x.shape) not in (2, 3) or step < 1:
        raise ModelError(f'{list(x.shape)} in steps of {step} is not a signal, [n, length, 1]')
    count, length = x.shape[:2]
    window = node.array(2) if node.has(2) else None
    size = node.whole_numbers(3)[0] if node.has(3) else 0 if window is None else len(window)
    if not 1 <= size <= length or (window is not None and window.shape != (size,)):
        raise ModelError(f'frames of {size} of {length} elements do not fit its window')
    bins = size // 2 + 1 if node.int('onesided', 1) else size
    turns = np.outer(np.arange(bins), np.arange(size)) % size
    waves = np.exp(-2j * np.pi * turns / size) * (1 if window is None else window)
    kernel = np.concatenate([np.real(waves), np.imag(waves)])[:, None].astype(DTYPES[x.dtype])
    frames = (length - size) // step + 1
    over = Window(length, size, step, 1, 0, 0, frames)
    made = convolve(view(x, (count, 1, length)), Known(kernel), None, (over,), 1)
    return transpose(view(made, (count, 2, bins, frames)), (0, 3, 2, 1))


OPERATORS: dict[str, Operator] = {
    'Conv': Operator(_conv, FLOATS),
    'ConvTranspose': Operator(_conv_transpose, FLOATS),
    'STFT': Operator(_stft, FLOATS, (1, 2, 3), 'of real numbers'),
}
