"""Work of planning that must not grow with filters, strides and rows: counted, not timed."""

from __future__ import annotations

import itertools

import pytest

from tilewright.kernels.cpu.schemas.stencil import cover as stencil_cover
from tilewright.kernels.cpu.schemas.stencil.cover import Axis, cover_columns
from tilewright.kernels.cpu.schemas.winograd import linear as winograd_linear
from tilewright.kernels.cpu.schemas.winograd.linear import operations
from tilewright.kernels.cpu.schemas.winograd.space import ONE_OR_MORE
from tilewright.ops import winograd, winograd_matrices
from tilewright.ops.convolution import conv2d
from tilewright.ops.winograd import MOST_POINTS, applies, geometry
from tilewright.ops.winograd_matrices import transform
from tilewright.search.cpu.rank_winograd import tiles_within


def spectrogram(taps: int, stride: int):
    """A 1-D convolution as networks for audio begin with: one channel, a long window."""
    return conv2d(c=1, h=1, w=4_000, k=258, r=1, s=taps, stride=(1, stride))


@pytest.fixture
def calls(monkeypatch):
    """Counts calls of functions by their names."""
    counted: dict[str, int] = {}

    def count(module, name: str) -> None:
        original = getattr(module, name)

        def wrapped(*args):
            counted[name] = counted.get(name, 0) + 1
            return original(*args)

        monkeypatch.setattr(module, name, wrapped)
        counted[name] = 0

    return counted, count


@pytest.mark.parametrize(('taps', 'stride'), [(64, 1), (64, 8), (64, 32), (400, 160)])
def test_wide_filters_are_refused_before_any_matrix_is_made(monkeypatch, taps, stride):
    def never(*args, **more):
        raise AssertionError(f'F{args} was made')

    monkeypatch.setattr(winograd, 'transform', never)
    group = spectrogram(taps, stride)
    assert all(applies(group, (1, m)) for m in ONE_OR_MORE)
    assert tiles_within(group, 1e-4) == ()


@pytest.mark.parametrize(
    ('taps', 'stride'), [((3, 3), 1), ((11, 11), 4), ((16, 16), 8), ((1, 24), 8), ((7, 5), 3)]
)
def test_tiles_have_few_points(taps, stride):
    group = conv2d(c=3, h=99, w=99, k=4, r=taps[0], s=taps[1], stride=stride)
    for m in itertools.product(ONE_OR_MORE, ONE_OR_MORE):
        if not applies(group, m):
            shape = geometry(group, m)
            assert max(shape.down.t, shape.across.t) <= MOST_POINTS


def test_each_transform_is_proved_once(calls):
    """One proof for each tile and for each of its phases, which have at most two lengths."""
    counted, count = calls
    transform.cache_clear()
    geometry.cache_clear()
    count(winograd_matrices, 'check')
    tiles_within(spectrogram(21, 8), 1e-4)
    first = counted['check']
    assert 0 < first <= 3 * len(ONE_OR_MORE)
    tiles_within(spectrogram(21, 8), 1e-4)
    assert counted['check'] == first


def test_lines_are_compared_only_with_those_of_the_same_numbers(calls):
    counted, count = calls
    f = transform(7, 16, stride=8)
    count(winograd_linear, '_mirrored')
    count(winograd_linear, '_opposed')
    operations(f.bt)
    operations(f.at)
    every = f.t * (f.t - 1) // 2
    assert f.t == MOST_POINTS
    assert 0 < counted['_mirrored'] + counted['_opposed'] < every / 2


def test_strips_inside_a_row_are_made_once(calls):
    counted, count = calls
    count(stencil_cover, '_strip')
    taps = tuple(range(-20, 33))
    axis = Axis('w', 20_000, 20_000, 1, ('s',), tuple((i,) for i in range(53)), taps)
    found = cover_columns(axis, 8, 4)
    assert max(strip.times for strip in found) > 600
    assert counted['_strip'] == len(found) < 10
