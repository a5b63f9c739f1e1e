"""Operators beside convolution: what their descriptions compute, against PyTorch in float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.errors import SpecError
from tilewright.ops.elementwise import copy, elementwise
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.group import Group
from tilewright.ops.moving import transpose
from tilewright.ops.normalise import lrn, softmax
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.ops.pooling import average_pool, max_pool, window_counts
from tilewright.ops.reference import reference
from tilewright.ops.slices import into_slice
from tilewright.ops.windows import windows

torch = pytest.importorskip('torch', reason='PyTorch is the oracle here')
functional = torch.nn.functional


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape)


def same(group: Group, want, **arrays: np.ndarray) -> None:
    got = reference(group, arrays)
    assert got.shape == tuple(want.shape)
    np.testing.assert_allclose(got, want.numpy(), rtol=1e-12, atol=1e-14)


WINDOWS = list(itertools.product((2, 3, (2, 3)), (1, 2, (3, 2)), (0, 1), (False, True)))


@pytest.mark.parametrize('size', [(7, 9), (8, 6)])
def test_pooling(size: tuple[int, int]) -> None:
    """Every window, stride, padding and rounding; what counts in a mean."""
    x = noise(2, 3, *size)
    given = torch.from_numpy(x)
    for window, stride, pad, ceil in WINDOWS:
        over = windows(size, window, stride, pad, ceil=ceil)
        want = functional.max_pool2d(given, window, stride, pad, ceil_mode=ceil)
        same(max_pool(x.shape, over), want, In=x)
        for counted in (False, True):
            counts = window_counts(over, counted)
            more = {} if isinstance(counts, int) else {'Count': counts}
            want = functional.avg_pool2d(given, window, stride, pad, ceil, counted)
            same(average_pool(x.shape, over, counts), want, In=x, **more)


def test_pooling_with_dilation() -> None:
    x = noise(1, 2, 11, 12)
    want = functional.max_pool2d(torch.from_numpy(x), 3, 2, 1, 2, True)
    same(max_pool(x.shape, windows((11, 12), 3, 2, 1, 2, ceil=True)), want, In=x)


@pytest.mark.parametrize('channels', [1, 4, 9])
@pytest.mark.parametrize('size', [1, 3, 5])
def test_lrn(channels: int, size: int) -> None:
    x = noise(2, channels, 4, 5)
    want = functional.local_response_norm(torch.from_numpy(x), size, 0.3, 0.6, 2.0)
    same(lrn(x.shape, size, alpha=0.3, beta=0.6, bias=2.0), want, In=x)


def test_softmax_along_every_axis() -> None:
    for shape in ((7,), (3, 8), (2, 3, 4, 5)):
        x = 30 * noise(*shape)  # exponentials that overflow unless the maximum is taken off
        for axis in range(len(shape)):
            want = functional.softmax(torch.from_numpy(x), axis)
            same(softmax(shape, axis), want, In=x)


def test_functions_broadcast() -> None:
    for first, second in (((2, 3, 4, 5), (3, 1, 1)), ((4, 1), (1, 5)), ((6,), (1,))):
        a, b = noise(*first), noise(*second)
        for name in ('add', 'sub', 'mul', 'div'):
            want = getattr(torch, name)(torch.from_numpy(a), torch.from_numpy(b))
            same(elementwise(name, first, second), want, In0=a, In1=b)
    a, b = np.abs(noise(3, 4)), noise(3, 4)
    want = torch.pow(torch.from_numpy(a), torch.from_numpy(b))
    same(elementwise('pow', a.shape, b.shape), want, In0=a, In1=b)


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_activations(name: str) -> None:
    x = 4 * noise(2, 3, 4, 5)
    given = torch.from_numpy(x)
    want = {
        'relu': functional.relu,
        'relu6': functional.relu6,
        'leaky_relu': functional.leaky_relu,
        'sigmoid': torch.sigmoid,
        'tanh': torch.tanh,
        'silu': functional.silu,
    }[name](given)
    same(elementwise(ACTIVATIONS[name], x.shape, name=name), want, In=x)


def test_other_layouts() -> None:
    x = noise(2, 3, 4, 5)
    for order in itertools.permutations(range(4)):
        same(transpose(x.shape, order), torch.from_numpy(x).permute(order), In=x)


def test_fully_connected_layers() -> None:
    x, kernel, bias = noise(3, 7), noise(5, 7), noise(5)
    want = functional.linear(*map(torch.from_numpy, (x, kernel, bias)))
    same(fully_connected(n=3, c=7, k=5, bias=True), want, In=x, Ker=kernel, Bias=bias)
    relu = fully_connected(n=3, c=7, k=5, bias=True, activation='relu')
    same(relu, functional.relu(want), In=x, Ker=kernel, Bias=bias)
    plain = functional.linear(torch.from_numpy(x), torch.from_numpy(kernel))
    same(fully_connected(n=3, c=7, k=5), plain, In=x, Ker=kernel)


def test_concatenation_writes_slices() -> None:
    """Branches of 2, 3 and 4 channels: each writes its own, and zeros are left beside it."""
    branches = [noise(2, channels, 4, 5) for channels in (2, 3, 4)]
    total, offset = np.zeros((2, 9, 4, 5)), 0
    for x in branches:
        group = into_slice(copy(x.shape), 1, offset, 9)
        total += reference(group, {'In': x})
        offset += x.shape[1]
    np.testing.assert_array_equal(total, np.concatenate(branches, axis=1))


@pytest.mark.parametrize(
    ('make', 'part'),
    [
        (lambda: windows((2, 4), 5), 'spans 5 along an axis of 2'),
        (lambda: windows((2, 4), (2, 2, 2)), 'give one, or 2'),
        (lambda: elementwise('add', (2, 3), (4, 3)), 'do not broadcast'),
        (lambda: elementwise('cosine', (2,)), 'unknown function'),
        (lambda: elementwise('add'), 'at least one input'),
        (lambda: transpose((2, 3), (0, 0)), 'each of 2 dimensions once'),
        (lambda: fully_connected(c=0, k=3), 'at least 1'),
        (lambda: into_slice(copy((1, 3)), 1, 2, 4), 'do not fit'),
        (lambda: into_slice(copy((1, 3)), 2, 0, 4), 'axis 2'),
    ],
)
def test_bad_numbers_are_one_sentence(make, part: str) -> None:
    with pytest.raises(SpecError, match=part):
        make()
