"""FFT convolution without a compiler: its programs, its points, its error model and its choice.

A wrong count or twiddle would make kernels wrong or slow; a wrong error model would let `auto`
break the budget.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.errors import InputError, SpecError
from tilewright.kernels.cpu.schemas.fft.plan import plan_fft
from tilewright.machine.gpu import known_gpu
from tilewright.machine.known import known_machine
from tilewright.model.cpu.fft_time import predict_fft
from tilewright.model.cpu.prediction import bound_times
from tilewright.ops.convolution import conv2d
from tilewright.ops.core import core
from tilewright.ops.fft import SIZES, FftGeometry, geometry, tiles_of
from tilewright.ops.fft_error import GROWTH, predicted_error, transform_error
from tilewright.ops.fft_programs import packed, points, results, unpacked
from tilewright.ops.winograd_error import direct_error
from tilewright.search.cpu.choose import choose
from tilewright.targets.gpu.choose import search

MACHINE = known_machine('i9-10980xe')
GPU = known_gpu('h200')
LARGE = conv2d(c=64, h=56, w=56, k=64, r=7, s=7, pad=3)


@pytest.mark.parametrize('n', [12, 16, 20, 28, 36])
def test_programs_are_the_transform(n):
    """Prime factors 2, 3, 5 and 7."""
    fourier = np.fft.fft(np.eye(n))
    inner = [part for row in fourier[1 : n // 2] for part in (row.real, row.imag)]
    real = np.array([fourier[0].real, *inner, fourier[n // 2].real])
    np.testing.assert_allclose(packed(n).matrix, real, atol=1e-12)
    np.testing.assert_allclose(unpacked(n, n - 4).matrix, real.T[: n - 4], atol=1e-12)
    whole = points(n, is_real=False).matrix
    both = np.block([[fourier.real, -fourier.imag], [fourier.imag, fourier.real]])
    np.testing.assert_allclose(whole[1::3], both[:n], atol=1e-12)
    np.testing.assert_allclose(whole[2::3], both[n:], atol=1e-12)
    np.testing.assert_allclose(whole[0::3], both[:n] + both[n:], atol=1e-12)


def test_programs_take_no_more_operations_than_split_radix():
    """4 n log2 n - 6 n + 8 for n complex inputs (Yavne 1968), and two sums for three products."""
    for n in (16, 32, 64):
        most = 4 * n * math.log2(n) - 6 * n + 8
        assert points(n, is_real=False).operations - n <= most
        assert packed(n).operations <= most / 2


@pytest.mark.parametrize('n', SIZES)
def test_roundings_grow_as_the_error_model_says(n):
    made = (
        packed(n), points(n, is_real=False), results(n, n, is_real=False), unpacked(n, n),
    )  # fmt: skip
    found = sum(program.kappa for program in made)
    assert found == pytest.approx(4 * GROWTH * math.log2(n), rel=0.15)


def by_programs(shape: FftGeometry, image: np.ndarray, filters: np.ndarray, dtype) -> np.ndarray:
    """One tile by the matrices of the programs, every pass rounded to a dtype: k x m x m."""
    n, m = shape.down.length, shape.down.m
    full = np.fft.fft2(filters, (n, n)).conj()
    rows = np.einsum('jy,cyx->cjx', packed(n).matrix.astype(dtype), image.astype(dtype))

    def row(spectrum: np.ndarray, real: np.ndarray, scale: float) -> np.ndarray:
        a, b = spectrum.real, spectrum.imag
        triples = np.stack([a, b - a, a + b], axis=-1) * scale
        picked = [
            triples[..., e, :1] / 2 if single else triples[..., e, :]
            for e, single in zip(range(triples.shape[-2]), real, strict=True)
        ]
        return np.concatenate(picked, axis=-1).astype(dtype)

    half = n // 2
    scale = 2 / n**2
    kept = []
    for slot, f in ((0, 0), (n - 1, half)):
        v = np.einsum('px,cx->cp', points(n, is_real=True).matrix.astype(dtype), rows[:, slot])
        ends = np.isin(np.arange(half + 1), (0, half))
        u = row(full[:, :, f, : half + 1], ends, scale)
        back = results(n, m, is_real=True).matrix.astype(dtype)
        kept.append((slot, np.einsum('xp,kp->kx', back, np.einsum('kcp,cp->kp', u, v))))
    for f in range(1, half):
        pair = np.concatenate([rows[:, 2 * f - 1], rows[:, 2 * f]], axis=1)
        v = np.einsum('px,cx->cp', points(n, is_real=False).matrix.astype(dtype), pair)
        u = row(full[:, :, f], np.zeros(n, bool), scale)
        back = results(n, m, is_real=False).matrix.astype(dtype)
        made = np.einsum('xp,kp->kx', back, np.einsum('kcp,cp->kp', u, v))
        kept += [(2 * f - 1, made[:, :m]), (2 * f, made[:, m:])]
    columns = np.stack([made for _, made in sorted(kept, key=lambda item: item[0])], axis=1)
    return np.einsum('yj,kjx->kyx', unpacked(n, m).matrix.astype(dtype), columns)


def test_a_tile_is_the_correlation():
    """In double the algorithm is exact: programs, order of points and weights fit together."""
    rng = np.random.default_rng(3)
    shape = geometry(conv2d(c=3, h=16, w=16, k=2, r=7, s=7), 10)
    image, filters = rng.standard_normal((3, 16, 16)), rng.standard_normal((2, 3, 7, 7))
    windows = np.lib.stride_tricks.sliding_window_view(image, (7, 7), axis=(1, 2))
    want = np.einsum('cyxrs,kcrs->kyx', windows, filters)
    np.testing.assert_allclose(by_programs(shape, image, filters, np.float64), want, atol=1e-12)


def test_points_are_three_halves_of_a_tile():
    shape = geometry(LARGE, 14)
    assert shape.t == 2 * 29 + 9 * 60 == 598
    assert shape.saving == pytest.approx(56 * 56 * 49 / (16 * 598))
    assert all(geometry(LARGE, m).t < 1.5 * (m[0] + 6) * (m[1] + 6) for m in tiles_of(LARGE))


def test_long_filters_are_more_accurate_than_the_direct_sum():
    for taps in (7, 11, 31):
        shape = geometry(conv2d(c=64, h=56, w=56, k=64, r=taps, s=taps), 33 - taps)
        assert transform_error(shape, 64) < direct_error(64, taps, taps)


def test_what_is_behind_a_convolution_counts():
    behind = conv2d(c=64, h=56, w=56, k=64, r=11, s=11, pad=5, activation='tanh')
    plain = conv2d(c=64, h=56, w=56, k=64, r=11, s=11, pad=5, activation='relu')
    assert predicted_error(behind, 14) > 50 * predicted_error(plain, 14)
    assert core(behind) == behind
    assert core(plain) != plain


def test_nothing_else_is_predicted_to_be_as_fast_for_large_filters():
    """Its best time is below what no direct kernel can beat: so `auto` takes it."""
    best = choose(LARGE, MACHINE, 1, 2, 'fft')[0]
    assert best.prediction == predict_fft(LARGE, best.schedule, MACHINE)
    assert plan_fft(LARGE, best.schedule).shape.name.startswith('FFT')
    direct = bound_times(LARGE.flops, LARGE.compulsory_bytes, MACHINE, 1)
    assert best.prediction.seconds < max(direct.values())
    assert best.prediction.seconds < choose(LARGE, MACHINE, 1, 1, 'winograd')[0].prediction.seconds


def test_a_gpu_looks_at_it_beside_the_direct_algorithm():
    """The first choice is predicted to be the fastest; what is not much slower is measured too."""
    found = search(conv2d(c=128, h=28, w=28, k=128, r=9, s=9, pad=4), GPU, 2, 1e-4, trials=48)
    schemas = [choice.schedule.schema for choice in found]
    assert 'fft' in schemas
    assert found[0].predicted_s == min(choice.predicted_s for choice in found)


def test_the_budget_is_kept():
    with pytest.raises(InputError, match=r'no FFT algorithm for .* stays below an error of 1e-08'):
        choose(LARGE, MACHINE, 1, 1, 'fft', 1e-8)


def test_what_it_does_not_compute_is_said():
    with pytest.raises(SpecError, match='stride 2x2, not 1; use the direct algorithm'):
        geometry(conv2d(c=4, h=20, w=20, k=4, r=7, s=7, stride=2), 10)
    with pytest.raises(SpecError, match='needs transforms of 15; there are 12, 16'):
        geometry(LARGE, 9)
