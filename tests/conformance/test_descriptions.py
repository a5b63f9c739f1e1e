"""Operators that networks need beside convolution: what they compute, against PyTorch and numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.errors import SpecError
from tilewright.ops import moving
from tilewright.ops.convolution_nd import conv
from tilewright.ops.group import Group
from tilewright.ops.normalise import log_softmax
from tilewright.ops.pooling_nd import (
    average_pool,
    global_pool,
    lp_pool,
    max_pool,
    max_pool_indices,
)
from tilewright.ops.products import gemm, product
from tilewright.ops.reduction import arg, cumulative_sum, reduce
from tilewright.ops.reference import reference
from tilewright.ops.resize import resize, resize_weights, taps
from tilewright.ops.statistics import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    lp_normalise,
    statistics,
)
from tilewright.ops.transposed import conv_transpose

torch = pytest.importorskip('torch', reason='PyTorch is the oracle here')
functional = torch.nn.functional


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng([7, *shape]).standard_normal(shape)


def same(group: Group, want, **arrays: np.ndarray) -> None:
    got, want = reference(group, arrays), np.asarray(want)
    assert got.shape == want.shape, group.label
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11, err_msg=group.label)


REDUCTIONS = {
    'sum': np.sum,
    'mean': np.mean,
    'max': np.max,
    'min': np.min,
    'prod': np.prod,
    'l1': lambda a, axis, keepdims: np.abs(a).sum(axis, keepdims=keepdims),
    'l2': lambda a, axis, keepdims: np.sqrt((a * a).sum(axis, keepdims=keepdims)),
    'sum_square': lambda a, axis, keepdims: (a * a).sum(axis, keepdims=keepdims),
    'log_sum': lambda a, axis, keepdims: np.log(a.sum(axis, keepdims=keepdims)),
    'log_sum_exp': lambda a, axis, keepdims: np.log(np.exp(a).sum(axis, keepdims=keepdims)),
}


@pytest.mark.parametrize('kind', REDUCTIONS)
def test_reductions(kind: str) -> None:
    x = np.abs(noise(3, 4, 5)) if kind == 'log_sum' else noise(3, 4, 5)
    for axes, keep in itertools.product(((0,), (1,), (-1,), (0, 2), (0, 1, 2)), (True, False)):
        want = REDUCTIONS[kind](x, axis=axes, keepdims=keep)
        same(reduce(kind, x.shape, axes, keepdims=keep), want, In=x)


def test_reductions_of_whole_numbers_are_exact() -> None:
    x = np.random.default_rng(0).integers(-(2**61), 2**61, (3, 4))
    for kind in ('max', 'min'):
        got = reference(reduce(kind, x.shape, (1,), dtype='i64'), {'In': x})
        assert np.array_equal(got, REDUCTIONS[kind](x, axis=1, keepdims=True))
    small = x % 1000
    got = reference(reduce('prod', x.shape, (1,), keepdims=False, dtype='i64'), {'In': small})
    assert np.array_equal(got, small.prod(1))


def test_log_sum_exp_does_not_overflow() -> None:
    x = np.array([[1000.0, 1000.0], [-np.inf, 0.0], [-np.inf, -np.inf], [np.inf, 1.0]])
    got = reference(reduce('log_sum_exp', x.shape, (1,), keepdims=False), {'In': x})
    assert np.array_equal(got, [1000.0 + np.log(2.0), 0.0, -np.inf, np.inf])


def test_places_of_extremes() -> None:
    x = np.random.default_rng(1).integers(0, 3, (3, 4, 5)).astype(float)
    for axis in range(3):
        same(arg('max', x.shape, axis, keepdims=False), x.argmax(axis), In=x)
        same(arg('min', x.shape, axis, keepdims=False), x.argmin(axis), In=x)
        last = x.shape[axis] - 1 - np.flip(x, axis).argmax(axis)
        same(arg('max', x.shape, axis, keepdims=False, last=True), last, In=x)
        same(cumulative_sum(x.shape, axis), x.cumsum(axis), In=x)
    x[1, 2, 3] = np.nan
    same(arg('max', x.shape, 2, keepdims=False), x.argmax(2), In=x)


def test_slices_and_borders() -> None:
    x = noise(3, 4, 5)
    same(moving.slice_(x.shape, (2, 0, 4), (-1, 2, -2), (3, 2, 3)), x[::-1, ::2, ::-2], In=x)
    widths = ((1, 2), (0, 3), (2, 1))
    for mode in moving.BORDERS:
        more = {'constant_values': 1.5} if mode == 'constant' else {}
        want = np.pad(x, widths, mode=mode, **more)
        same(moving.pad(x.shape, (1, 0, 2), (2, 3, 1), mode, 1.5), want, In=x)
    cropped = np.pad(x[1:, :1], ((0, 2), (0, 0), (2, 1)))
    same(moving.pad(x.shape, (-1, 0, 2), (2, -3, 1)), cropped, In=x)
    with pytest.raises(SpecError, match='not inside'):
        moving.slice_((4,), (2,), (1,), (3,))


def test_gathering() -> None:
    x, index = noise(3, 4, 5), np.array([[0, 2], [3, -1], [1, 1]])
    same(moving.gather(x.shape, 1, index), np.take(x, index, 1), In=x)
    same(moving.gather(x.shape, 0, np.array(2)), x[2], In=x)
    same(moving.gather_dynamic(x.shape, 1, index.shape), np.take(x, index, 1), In=x, Indices=index)
    outside = np.array([7, -9])
    want = np.take(x, [3, 0], 1)
    same(moving.gather_dynamic(x.shape, 1, (2,)), want, In=x, Indices=outside)
    along = np.random.default_rng(2).integers(0, 4, (3, 6, 5))
    want = np.take_along_axis(x, along, 1)
    same(moving.gather_elements(x.shape, 1, along.shape), want, In=x, Indices=along)
    pairs = np.array([[0, 1], [2, 3], [1, 0]])
    same(moving.gather_nd(x.shape, pairs.shape), x[pairs[:, 0], pairs[:, 1]], In=x, Indices=pairs)
    one = np.array([[1], [3], [0]])
    want = x[np.arange(3), one[:, 0]]
    same(moving.gather_nd(x.shape, one.shape, batch_dims=1), want, In=x, Indices=one)


def test_repeating_and_blocks() -> None:
    x = noise(3, 4, 5)
    same(moving.expand((3, 1, 5), (2, 3, 4, 5)), np.broadcast_to(x[:, :1], (2, 3, 4, 5)),
         In=x[:, :1])  # fmt: skip
    same(moving.tile(x.shape, (2, 1, 3)), np.tile(x, (2, 1, 3)), In=x)
    same(moving.fill((3, 4), 2.5), np.full((3, 4), 2.5))
    y = noise(2, 8, 3, 5)
    want = functional.pixel_shuffle(torch.from_numpy(y), 2)
    same(moving.depth_to_space(y.shape, 2, 'CRD'), want, In=y)
    deep = y.reshape(2, 2, 2, 2, 3, 5).transpose(0, 3, 4, 1, 5, 2).reshape(2, 2, 6, 10)
    same(moving.depth_to_space(y.shape, 2), deep, In=y)
    same(moving.space_to_depth(deep.shape, 2), y, In=deep)


@pytest.mark.parametrize('size', [(14, 18), (5, 4), (7, 12)])
def test_resizing(size: tuple[int, int]) -> None:
    x = noise(2, 3, 7, 9)
    given = torch.from_numpy(x)

    def check(want, **options) -> None:
        axes = [None, None, taps(7, size[0], **options), taps(9, size[1], **options)]
        same(resize(x.shape, axes), want, In=x, **resize_weights(axes))

    for mode, word in (('linear', 'bilinear'), ('cubic', 'bicubic')):
        for corners in (False, True):
            want = functional.interpolate(given, size, mode=word, align_corners=corners)
            coordinate = 'align_corners' if corners else 'half_pixel'
            check(want, mode=mode, coordinate=coordinate)
        want = functional.interpolate(given, size, mode=word, antialias=True)
        if mode == 'linear':
            check(want, mode=mode, antialias=True, exclude_outside=True)
    want = functional.interpolate(given, size, mode='nearest')
    check(want, coordinate='asymmetric', nearest='floor')


def test_normalisations() -> None:
    x = noise(2, 6, 5, 4)
    given = torch.from_numpy(x)
    scale, bias, mean, var = noise(6), noise(6) + 1, noise(6) - 1, np.abs(noise(6)) + 0.1
    s, b, m, v = map(torch.from_numpy, (scale, bias, mean, var))
    own = {'In': x, 'Scale': scale, 'Bias': bias}
    want = functional.batch_norm(given, m, v, s, b, eps=1e-3)
    same(batch_norm(x.shape, 1e-3), want, **own, Mean=mean, Var=var)
    same(instance_norm(x.shape), functional.instance_norm(given, weight=s, bias=b), **own)
    same(group_norm(x.shape, 3), functional.group_norm(given, 3, s, b), **own)
    for axis in range(4):
        shape, over = x.shape[axis:], tuple(range(axis, 4))
        weight, shift = noise(*shape), noise(*shape) - 1
        want = functional.layer_norm(
            given, shape, torch.from_numpy(weight), torch.from_numpy(shift)
        )
        same(layer_norm(x.shape, axis), want, In=x, Scale=weight, Bias=shift)
        same(statistics(x.shape, axis), x.mean(over, keepdims=True), In=x)
        inverse = 1 / np.sqrt(x.var(over, keepdims=True) + 1e-5)
        same(statistics(x.shape, axis, result='inverse'), inverse, In=x)
        same(log_softmax(shape=x.shape, axis=axis), functional.log_softmax(given, axis), In=x)
        for p in (1, 2):
            same(lp_normalise(x.shape, axis, p), functional.normalize(given, p, axis), In=x)


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
        own = [(v,) * rank for v in (window, stride, pad, pad, dilation)]
        want, places = largest(given, window, stride, pad, dilation, ceil, return_indices=True)
        same(max_pool(x.shape, *own, ceil=ceil), want, In=x)
        same(max_pool_indices(x.shape, *own, ceil=ceil, planes=True), places, In=x)
        for counted in (False, True) if dilation == 1 else ():
            want = mean(given, window, stride, pad, ceil, counted)
            same(average_pool(x.shape, *own, ceil=ceil, count_include_pad=counted), want, In=x)
    over = tuple(range(2, 2 + rank))
    same(global_pool(x.shape), x.mean(over, keepdims=True), In=x)
    same(global_pool(x.shape, 'max'), x.max(over, keepdims=True), In=x)
    want = (np.abs(x) ** 3).sum(over, keepdims=True) ** (1 / 3)
    same(global_pool(x.shape, 'lp', p=3), want, In=x)


def test_norms_of_windows() -> None:
    x = noise(2, 3, 9, 11)
    want = functional.lp_pool2d(torch.from_numpy(np.abs(x)), 2, (2, 3), (2, 1))
    same(lp_pool(x.shape, (2, 3), (2, 1)), want, In=x)


@pytest.mark.parametrize('rank', IMAGES)
@pytest.mark.parametrize('groups', [1, 2, 4])
def test_convolutions_of_any_rank(rank: int, groups: int) -> None:
    shape = (IMAGES[rank][0], 4, *IMAGES[rank][2:])
    x = noise(*shape)
    kernel, bias = noise(8, 4 // groups, *(3,) * rank), noise(8)
    for stride, pad, dilation in ((1, 0, 1), (2, 1, 1), (3, 2, 2)):
        own = [(v,) * rank for v in (stride, pad, pad, dilation)]
        group = conv(shape, kernel.shape, *own, groups=groups, bias=True, activation='relu')
        want = getattr(functional, f'conv{rank}d')(
            *map(torch.from_numpy, (x, kernel, bias)), stride, pad, dilation, groups
        )
        same(group, functional.relu(want), In=x, Ker=kernel, Bias=bias)


@pytest.mark.parametrize('rank', IMAGES)
@pytest.mark.parametrize('groups', [1, 2])
def test_transposed_convolutions(rank: int, groups: int) -> None:
    """Pieces write every element exactly once, and what PyTorch does."""
    shape = (IMAGES[rank][0], 4, *IMAGES[rank][2:])
    x, kernel, bias = noise(*shape), noise(4, 2, *(3,) * rank), noise(2 * groups)
    for (stride, pad, dilation), biased in itertools.product(
        ((1, 0, 1), (2, 1, 1), (3, 2, 2), (4, 0, 1)), (True, False)
    ):
        for extra in {0, stride - 1}:
            own = [(v,) * rank for v in (stride, pad, pad, extra, dilation)]
            want = getattr(functional, f'conv_transpose{rank}d')(
                torch.from_numpy(x), torch.from_numpy(kernel),
                torch.from_numpy(bias) if biased else None, stride, pad, extra, groups, dilation,
            ).numpy()  # fmt: skip
            got, written = np.zeros(want.shape), np.zeros(want.shape, int)
            for piece in conv_transpose(shape, kernel.shape, *own, groups=groups, bias=biased):
                arrays = {'In': x, 'Bias': bias}
                if piece.kernel is not None:
                    arrays['Ker'] = reference(piece.kernel, {'Ker': kernel})
                names = {t.name for t in piece.group.tensors}
                part = reference(piece.group, {k: v for k, v in arrays.items() if k in names})
                mask = written_by(piece.group)
                got, written = got + np.where(mask, part, 0.0), written + mask
            assert (written == 1).all()
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def written_by(group: Group) -> np.ndarray:
    """Which elements of the result the last stage writes."""
    stage = group.stages[-1]
    places = [
        sorted({e.const + sum(c * i for c, i in zip([c for _, c in e.terms], point, strict=True))
                for point in itertools.product(*(range(stage.sizes[n]) for n in e.names))})
        for e in stage.write.index
    ]  # fmt: skip
    mask = np.zeros(group.output.shape, int)
    mask[np.ix_(*places)] = 1
    return mask


def test_products() -> None:
    for a, b in (
        ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((7, 1, 3, 4), (2, 4, 5)),
        ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4,)),
    ):  # fmt: skip
        A, B = noise(*a), noise(*b)
        for roles in (('input', 'input'), ('input', 'constant'), ('constant', 'input')):
            same(product(a, b, roles=roles), np.matmul(A, B), A=A, B=B)
    for turned, other in itertools.product((False, True), (False, True)):
        A, B = noise(*((4, 3) if turned else (3, 4))), noise(*((5, 4) if other else (4, 5)))
        for shape in (None, (5,), (1,), (3, 1), (3, 5), ()):
            bias = {} if shape is None else {'Bias': noise(*shape)}
            want = 0.5 * (A.T if turned else A) @ (B.T if other else B)
            want = want + 0.7 * bias.get('Bias', 0.0)
            group = gemm(
                3, 5, 4, trans_a=turned, trans_b=other, alpha=0.5, beta=0.7, bias_shape=shape
            )
            same(group, want, A=A, B=B, **bias)
