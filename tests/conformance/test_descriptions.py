"""Operators that networks need beside convolution: what they compute, against PyTorch and numpy."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.errors import SpecError
from tilewright.ops import functions, moving
from tilewright.ops.convolution_nd import (
    convolution,
    interleave,
    transposed_taps,
    transposed_windows,
)
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.normalise import (
    batch_norm,
    channel_norm,
    inverse_deviation,
    log_softmax,
    row_moments,
    row_norm,
)
from tilewright.ops.pooling import (
    average_pool,
    lp_pool,
    max_pool,
    max_pool_places,
    window_counts,
)
from tilewright.ops.products import einsum, stacked_product
from tilewright.ops.ranking import SCATTERED, scatter_elements, top_places
from tilewright.ops.reduction import REDUCTIONS, arg_extreme, log_sum_exp, running
from tilewright.ops.reference import reference
from tilewright.ops.resize import Resized, interpolate, nearest
from tilewright.ops.windows import Window, windows

torch = pytest.importorskip('torch', reason='PyTorch is the oracle here')
functional = torch.nn.functional


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape)


def same(group: Group, want, **arrays: np.ndarray) -> None:
    got, want = reference(group, arrays), np.asarray(want)
    assert got.shape == want.shape, group.label
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11, err_msg=group.label)


ORACLES = {
    'sum': np.sum,
    'mean': np.mean,
    'max': np.max,
    'min': np.min,
    'prod': np.prod,
    'l1': lambda a, axis: np.abs(a).sum(axis),
    'l2': lambda a, axis: np.sqrt((a * a).sum(axis)),
    'sum_square': lambda a, axis: (a * a).sum(axis),
    'log_sum': lambda a, axis: np.log(a.sum(axis)),
}


def line(values) -> np.ndarray:
    """A single result as the line of one element that groups write."""
    return np.atleast_1d(values)


@pytest.mark.parametrize('kind', ORACLES)
def test_reductions(kind: str) -> None:
    x = np.abs(noise(3, 4, 5)) if kind == 'log_sum' else noise(3, 4, 5)
    assert set(ORACLES) == set(REDUCTIONS)
    for axes in ((0,), (1,), (2,), (0, 2), (0, 1, 2)):
        same(REDUCTIONS[kind].group(kind, x.shape, axes), line(ORACLES[kind](x, axis=axes)), In=x)
        want = line(np.log(np.exp(x).sum(axes)))
        same(log_sum_exp(x.shape, axes), want, In=x)
    single = elementwise(REDUCTIONS[kind].of_one(), x.shape)
    same(single, ORACLES[kind](x[..., None], axis=-1), In=x)


def test_reductions_of_whole_numbers_are_exact() -> None:
    x = np.random.default_rng(0).integers(-(2**61), 2**61, (3, 4))
    for kind in ('max', 'min'):
        got = reference(REDUCTIONS[kind].group(kind, x.shape, (1,), 'i64'), {'In': x})
        assert np.array_equal(got, ORACLES[kind](x, axis=1))
    small = x % 1000
    got = reference(REDUCTIONS['prod'].group('prod', x.shape, (1,), 'i64'), {'In': small})
    assert np.array_equal(got, small.prod(1))
    bytes_ = np.full((2, 100), 120, np.int8)  # their sum does not fit into what they are
    got = reference(REDUCTIONS['mean'].group('mean', (2, 100), (1,), 'i8'), {'In': bytes_})
    assert np.array_equal(got, [120, 120])


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, 0.0], [-np.inf, -np.inf], [np.inf, 1.0]])
    got = reference(log_sum_exp(x.shape, (1,)), {'In': x})
    assert np.array_equal(got, [1000.0 + np.log(2.0), 0.0, -np.inf, np.inf])


def test_places_of_extremes() -> None:
    x = np.random.default_rng(1).integers(0, 3, (3, 4, 5)).astype(float)
    for axis in range(3):
        same(arg_extreme(x.shape, axis, 'max'), x.argmax(axis), In=x)
        same(arg_extreme(x.shape, axis, 'min'), x.argmin(axis), In=x)
        last = x.shape[axis] - 1 - np.flip(x, axis).argmax(axis)
        same(arg_extreme(x.shape, axis, 'max', last=True), last, In=x)
    x[1, 2, 3] = np.nan
    same(arg_extreme(x.shape, 2, 'max'), x.argmax(2), In=x)


def test_running_sums() -> None:
    x = noise(3, 4, 5)
    for axis in range(3):
        same(running('cumsum', x.shape, axis, 'sum'), x.cumsum(axis), In=x)
        same(running('cumprod', x.shape, axis, 'prod'), x.cumprod(axis), In=x)
        back = np.flip(np.flip(x, axis).cumsum(axis), axis)
        same(running('cumsum', x.shape, axis, 'sum', reverse=True), back, In=x)
        before = running('cumsum', x.shape, axis, 'sum', exclusive=True)
        same(before, x.cumsum(axis) - x, In=x)
        behind = running('cumsum', x.shape, axis, 'sum', exclusive=True, reverse=True)
        same(behind, back - x, In=x)


def test_slices_and_borders() -> None:
    x = noise(3, 4, 5)
    kept = {0: range(2, -1, -1), 1: range(0, 4, 2), 2: range(4, -1, -2)}
    same(moving.slices(x.shape, kept), x[::-1, ::2, ::-2], In=x)
    widths = ((1, 2), (0, 3), (2, 1))
    for mode in moving.BORDERS:
        more = {'constant_values': 1.5} if mode == 'constant' else {}
        want = np.pad(x, widths, mode=mode, **more)
        same(moving.pad(x.shape, dict(enumerate(widths)), mode, 1.5), want, In=x)
    cropped = np.pad(x[1:, :1], ((0, 2), (0, 0), (2, 1)))
    same(moving.pad(x.shape, {0: (-1, 2), 1: (0, -3), 2: (2, 1)}), cropped, In=x)
    with pytest.raises(SpecError, match='use one of constant, reflect'):
        moving.pad(x.shape, {0: (1, 1)}, 'mirror')
    with pytest.raises(SpecError, match='nothing to repeat'):
        moving.pad(x.shape, {0: (-3, 1)}, 'edge')


def test_gathering() -> None:
    x, places = noise(3, 4, 5), np.array([0, 2, 3, 3, 1, 1])
    same(moving.take(x.shape, places), np.take(x, places, 1), In=x)
    same(moving.gather(x.shape, 6), np.take(x, places, 1), In=x, Indices=places)
    outside = np.array([7, -9])
    same(moving.gather(x.shape, 2), np.take(x, [3, 0], 1), In=x, Indices=outside)
    along = np.random.default_rng(2).integers(0, 4, (3, 6, 5))
    want = np.take_along_axis(x, along, 1)
    same(moving.gather_elements(x.shape, 1, along.shape), want, In=x, Indices=along)
    y, pairs = noise(2, 3, 4, 5), np.array([[[0, 1], [2, 3], [1, 0]], [[2, 2], [0, 0], [1, 3]]])
    want = np.stack([y[b, pairs[b, :, 0], pairs[b, :, 1]] for b in range(2)])
    same(moving.gather_nd(y.shape, pairs.shape), want, In=y, Indices=pairs)


def test_repeating() -> None:
    x = noise(3, 4, 5)
    wide = elementwise(functions.X, (3, 1, 5), shape=(2, 3, 4, 5))
    same(wide, np.broadcast_to(x[:, :1], (2, 3, 4, 5)), In=x[:, :1])
    same(moving.tile(x.shape, (2, 1, 3)), np.tile(x, (2, 1, 3)), In=x)


def resized(x: np.ndarray, size: tuple[int, int], kind: str, mode: str, **more) -> np.ndarray:
    """Rows, then columns, by groups of our own."""
    for axis, out in zip((2, 3), size, strict=True):
        form = Resized(x.shape[axis], out, out / x.shape[axis])
        places, weights = form.neighbours(mode, kind, **more)
        group = interpolate(kind, x.shape, axis, places)
        x = reference(group, {'In': x, 'Weight': weights})
    return x


@pytest.mark.parametrize('size', [(14, 18), (5, 4), (7, 12)])
def test_resizing(size: tuple[int, int]) -> None:
    x = noise(2, 3, 7, 9)
    given = torch.from_numpy(x)

    def check(got: np.ndarray, want) -> None:
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)

    for kind, word in (('linear', 'bilinear'), ('cubic', 'bicubic')):
        for mode, corners in (('half_pixel', False), ('align_corners', True)):
            want = functional.interpolate(given, size, mode=word, align_corners=corners)
            check(resized(x, size, kind, mode), want)
    want = functional.interpolate(given, size, mode='bilinear', antialias=True)
    check(resized(x, size, 'linear', 'half_pixel', antialias=True, exclude_outside=True), want)
    places = {
        axis: Resized(x.shape[axis], out, out / x.shape[axis]).nearest('asymmetric', 'floor')
        for axis, out in zip((2, 3), size, strict=True)
    }
    want = functional.interpolate(given, size, mode='nearest')
    same(nearest(x.shape, places), want, In=x)


def test_normalisations() -> None:
    x = noise(2, 6, 5, 4)
    given = torch.from_numpy(x)
    scale, bias, mean, var = noise(6), noise(6) + 1, noise(6) - 1, np.abs(noise(6)) + 0.1
    s, b, m, v = map(torch.from_numpy, (scale, bias, mean, var))
    factor, shift, result = batch_norm(1e-3)
    by = reference(elementwise(factor, (6,), (6,)), {'In0': scale, 'In1': var})
    plus = {'In0': bias, 'In1': var, 'In2': mean, 'In3': scale}
    add = reference(elementwise(shift, *[(6,)] * 4), plus)
    want = functional.batch_norm(given, m, v, s, b, eps=1e-3)
    channels = {'In1': by.reshape(6, 1, 1), 'In2': add.reshape(6, 1, 1)}
    same(elementwise(result, x.shape, (6, 1, 1), (6, 1, 1)), want, In0=x, **channels)
    for groups, want in (
        (6, functional.instance_norm(given, weight=s, bias=b)),
        (3, functional.group_norm(given, 3, s, b)),
    ):
        split = (2, groups, 6 // groups, 20)
        own = {'In': x.reshape(split), 'Scale': scale, 'Bias': bias}
        same(channel_norm('groupnorm', split, 6), want.reshape(split), **own)


def test_normalisations_of_rows() -> None:
    x, weight, shift = noise(6, 20), noise(20), noise(20) - 1
    given, w, b = map(torch.from_numpy, (x, weight, shift))
    want = functional.layer_norm(given, (20,), w, b)
    same(row_norm('layernorm', x.shape), want, In=x, Scale=weight, Bias=shift)
    want = functional.rms_norm(given, (20,), w, 1e-5)
    same(row_norm('rmsnorm', x.shape, 1, centred=False), want, In=x, Scale=weight)
    mean, power = row_moments(x.shape)
    same(mean, x.mean(1), In=x)
    same(power, x.var(1), In=x)
    inverse = elementwise(inverse_deviation(1e-5), (6,))
    same(inverse, 1 / np.sqrt(x.var(1) + 1e-5), In=x.var(1))
    same(log_softmax(x.shape), functional.log_softmax(given, 1), In=x)


ACTIVATIONS = {
    'elu': (functions.elu(0.7), lambda x: functional.elu(x, 0.7)),
    'selu': (functions.selu(1.6732632423543772, 1.0507009873554805), functional.selu),
    'celu': (functions.celu(1.3), lambda x: functional.celu(x, 1.3)),
    'gelu': (functions.gelu(), functional.gelu),
    'gelu_tanh': (functions.gelu(tanh=True), lambda x: functional.gelu(x, approximate='tanh')),
    'hard_sigmoid': (functions.hard_sigmoid(1 / 6, 0.5), functional.hardsigmoid),
    'hard_swish': (functions.hard_swish(), functional.hardswish),
    'swish': (functions.swish(), functional.silu),
    'softplus': (functions.softplus(), functional.softplus),
    'softsign': (functions.softsign(), functional.softsign),
    'mish': (functions.mish(), functional.mish),
    'leaky_relu': (functions.leaky_relu(0.2), lambda x: functional.leaky_relu(x, 0.2)),
    'threshold': (functions.thresholded_relu(0.3), lambda x: functional.threshold(x, 0.3, 0.0)),
    'softshrink': (functions.shrink('f64', 0.4, 0.4), lambda x: functional.softshrink(x, 0.4)),
}


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_activations_of_one_value(name: str) -> None:
    expr, oracle = ACTIVATIONS[name]
    x = 5 * noise(7, 30)
    same(elementwise(expr, x.shape), oracle(torch.from_numpy(x)), In=x)


IMAGES = {1: (2, 3, 13), 2: (2, 3, 9, 11), 3: (1, 2, 6, 7, 8)}


@pytest.mark.parametrize('rank', IMAGES)
def test_pooling_of_any_rank(rank: int) -> None:
    x = noise(*IMAGES[rank])
    given = torch.from_numpy(x)
    largest = getattr(functional, f'max_pool{rank}d')
    mean = getattr(functional, f'avg_pool{rank}d')
    for window, stride, pad, dilation, ceil in (
        (3, 1, 1, 1, False), (2, 2, 0, 1, True), (3, 2, 1, 2, True), (3, 2, 1, 1, False),
    ):  # fmt: skip
        over = windows(x.shape[2:], window, stride, pad, dilation, ceil)
        want, places = largest(given, window, stride, pad, dilation, ceil, return_indices=True)
        same(max_pool(x.shape, over), want, In=x)
        # PyTorch counts within each image, ONNX within the whole tensor.
        first = np.arange(math.prod(x.shape[:2])).reshape(*x.shape[:2], *(1 for _ in over))
        places = places.numpy() + first * math.prod(x.shape[2:])
        same(max_pool_places(x.shape, over), places, In=x, Largest=want.numpy())
        for counted in (False, True) if dilation == 1 else ():
            counts = window_counts(over, counted)
            more = {} if isinstance(counts, int) else {'Count': counts}
            want = mean(given, window, stride, pad, ceil, counted)
            same(average_pool(x.shape, over, counts), want, In=x, **more)


def test_norms_of_windows() -> None:
    x = noise(2, 3, 9, 11)
    want = functional.lp_pool2d(torch.from_numpy(np.abs(x)), 2, (2, 3), (2, 1))
    same(lp_pool(x.shape, windows((9, 11), (2, 3), (2, 1))), want, In=x)
    with pytest.raises(SpecError, match='1 or more'):
        lp_pool(x.shape, windows((9, 11), 2), 0)


@pytest.mark.parametrize('rank', [2, 3])
@pytest.mark.parametrize('groups', [1, 2, 4])
def test_convolutions_of_any_rank(rank: int, groups: int) -> None:
    shape = (IMAGES[rank][0], 4, *IMAGES[rank][2:])
    x = noise(*shape)
    kernel, bias = noise(8, 4 // groups, *(3,) * rank), noise(8)
    for stride, pad, dilation in ((1, 0, 1), (2, 1, 1), (3, 2, 2)):
        over = windows(shape[2:], 3, stride, pad, dilation)
        want = getattr(functional, f'conv{rank}d')(
            *map(torch.from_numpy, (x, kernel, bias)), stride, pad, dilation, groups
        )
        same(convolution(shape, 8, over, groups, bias=True), want, In=x, Ker=kernel, Bias=bias)


@pytest.mark.parametrize('rank', [2, 3])
@pytest.mark.parametrize('groups', [1, 2])
def test_transposed_convolutions(rank: int, groups: int) -> None:
    """Taps by residue, a dense convolution, and its results in their order."""
    # The reference holds every product at once: of three axes, small images.
    shape = (IMAGES[rank][0], 4, *IMAGES[rank][2:]) if rank == 2 else (1, 4, 2, 3, 2)
    x, kernel, bias = noise(*shape), noise(4, 2, *(3,) * rank), noise(2 * groups)
    for stride, pad, dilation in ((1, 0, 1), (2, 1, 1), (3, 2, 2), (4, 0, 1)):
        for extra in {0, stride - 1}:
            want = getattr(functional, f'conv_transpose{rank}d')(
                *map(torch.from_numpy, (x, kernel, bias)), stride, pad, extra, groups, dilation
            ).numpy()
            over = [
                Window(size, 3, stride, dilation, pad, pad, out)
                for size, out in zip(shape[2:], want.shape[2:], strict=True)
            ]
            taps = reference(transposed_taps(kernel.shape, over, groups), {'In': kernel})
            inner = transposed_windows(over)
            filters = 2 * groups * stride**rank
            dense = taps.reshape(filters, 4 // groups, *(w.taps for w in inner))
            group = convolution(shape, filters, inner, groups)
            made = reference(group, {'In': x, 'Ker': dense})
            split = made.reshape(*want.shape[:2], *(stride,) * rank, *made.shape[2:])
            same(interleave(split.shape, over, bias=True), want, In=split, Bias=bias)


def test_products() -> None:
    for a, b in (
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((7, 1, 3, 4), (2, 4, 5)),
    ):  # fmt: skip
        A, B = noise(*a), noise(*b)
        same(stacked_product(a, b), np.matmul(A, B), A=A, B=B)
    A, B = noise(3, 4, 5), noise(5, 4)
    sizes = {'a': 3, 'b': 4, 'c': 5}
    group = einsum('einsum', [A.shape, B.shape], ['abc', 'cb'], 'ba', sizes)
    same(group, np.einsum('abc,cb->ba', A, B), In0=A, In1=B)
    outer = einsum('einsum', [(3,), (4,)], ['a', 'b'], 'ab', {'a': 3, 'b': 4})
    same(outer, np.outer(A[:, 0, 0], B[0]), In0=A[:, 0, 0], In1=B[0])


@pytest.mark.parametrize('axis', [0, 1, 2])
def test_largest_along_an_axis(axis: int) -> None:
    """Of equal elements the first comes first."""
    x = np.round(noise(3, 7, 5))
    for largest in (True, False):
        want = np.argsort(-x if largest else x, axis, kind='stable').take(range(2), axis)
        same(top_places(x.shape, axis, 2, largest), want, In=x)


@pytest.mark.parametrize('how', SCATTERED)
def test_elements_written_to_positions(how: str) -> None:
    """Indices may count from the end; of several that are equal the last one holds."""
    x, updates = noise(3, 7, 5), noise(3, 4, 5)
    indices = np.random.default_rng(0).integers(-7, 7, updates.shape)
    want = x.copy()
    functions = {'add': np.add, 'mul': np.multiply, 'max': np.maximum, 'min': np.minimum}
    for i, j, k in np.ndindex(*updates.shape):
        at, value = (i, indices[i, j, k], k), updates[i, j, k]
        want[at] = value if how == 'none' else functions[how](want[at], value)
    same(scatter_elements(x.shape, 1, 4, how), want, In=x, Indices=indices, Updates=updates)
