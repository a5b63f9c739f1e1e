"""Usable sizes and boundary bandwidths from invented curves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tilewright.machine.curve import (
    Point,
    boundary_bandwidths,
    sweep_sizes,
    with_usable_sizes,
)
from tilewright.machine.machine import Cache

KIB, MIB = 1 << 10, 1 << 20


def caches(l3_bytes: int = 32 * MIB, cores: int = 2) -> tuple[Cache, ...]:
    return (
        Cache('l1', 32 * KIB, 64, 8, 1, 32 * KIB),
        Cache('l2', 1 * MIB, 64, 16, 1, 1 * MIB),
        Cache('l3', l3_bytes, 64, 16, cores, l3_bytes),
    )


def steps(*levels: tuple[float, float], memory: float) -> Callable[[int], float]:
    """A bandwidth that is `rate` up to each `capacity`, and `memory` beyond."""

    def rate(size: int) -> float:
        return next((rate for capacity, rate in levels if size <= capacity), memory)

    return rate


def sampled(
    one: Callable[[int], float], every: Callable[[int], float], of: tuple[Cache, ...]
) -> list[Point]:
    return [(s, one(s), every(s)) for s in sweep_sizes(of, 4 * of[-1].bytes)]


def usable(found: tuple[Cache, ...]) -> list[int]:
    return [cache.usable_bytes for cache in found]


def test_sizes_hit_every_cache_and_the_end() -> None:
    odd = (Cache('l1', 48 * KIB, 64, 12, 1, 1), Cache('l2', 1280 * KIB, 64, 10, 1, 1))
    sizes = sweep_sizes(odd, 5 * MIB)
    assert {48 * KIB, 1280 * KIB, 5 * MIB, 8 * KIB, 12 * KIB, 4 * MIB} <= set(sizes)
    assert list(sizes) == sorted(set(sizes))
    assert all(size % 4096 == 0 for size in sizes)
    assert (sizes[0], sizes[-1]) == (8 * KIB, 5 * MIB)


def test_truthful_machine() -> None:
    of = caches()
    one = steps((32 * KIB, 200), (MIB, 80), (32 * MIB, 30), memory=10)
    # Two cores: twice the rate, and each has half of the L3.
    every = steps((32 * KIB, 400), (MIB, 160), (16 * MIB, 60), memory=16)
    curve = sampled(one, every, of)
    found = with_usable_sizes(of, curve)
    assert usable(found) == [32 * KIB, MIB, 32 * MIB]
    assert boundary_bandwidths(found, curve) == ((200, 80, 30, 10), (400, 160, 60, 16))


@pytest.mark.parametrize(('really', 'expected'), [(6, 6), (8, 8), (13, 12)])
def test_an_l3_that_lies(really: int, expected: int) -> None:
    of = caches()
    one = steps((32 * KIB, 200), (MIB, 80), (really * MIB, 30), memory=10)
    every = steps((32 * KIB, 400), (MIB, 160), (really * MIB / 2, 60), memory=16)
    curve = sampled(one, every, of)
    found = with_usable_sizes(of, curve)
    assert usable(found) == [32 * KIB, MIB, expected * MIB]
    assert found[2].bytes == 32 * MIB  # the report is kept beside it
    assert boundary_bandwidths(found, curve) == ((200, 80, 30, 10), (400, 160, 60, 16))


def test_the_lesser_of_one_core_and_all_counts() -> None:
    of = caches()
    one = steps((32 * KIB, 200), (MIB, 80), (24 * MIB, 30), memory=10)
    every = steps((32 * KIB, 400), (MIB, 160), (4 * MIB, 60), memory=16)
    assert with_usable_sizes(of, sampled(one, every, of))[2].usable_bytes == 8 * MIB


def test_one_core_that_sees_no_step_leaves_it_to_all() -> None:
    """On big servers one core reads memory nearly as fast as the L3."""
    of = caches()
    one = steps((32 * KIB, 200), (MIB, 80), (32 * MIB, 14), memory=12)
    every = steps((32 * KIB, 400), (MIB, 160), (8 * MIB, 60), memory=16)
    assert with_usable_sizes(of, sampled(one, every, of))[2].usable_bytes == 16 * MIB


def test_an_l3_that_is_not_there_counts_as_what_is_inside_it() -> None:
    of = caches()
    one = steps((32 * KIB, 200), (MIB, 80), memory=10)
    every = steps((32 * KIB, 400), (MIB, 160), memory=16)
    curve = sampled(one, every, of)
    found = with_usable_sizes(of, curve)
    assert usable(found) == [32 * KIB, MIB, 2 * MIB]  # two cores' L2
    assert boundary_bandwidths(found, curve) == ((200, 80, 10, 10), (400, 160, 16, 16))


def test_inner_caches_lose_at_most_half() -> None:
    of = caches()
    one = steps((12 * KIB, 200), (768 * KIB, 80), (32 * MIB, 30), memory=10)
    found = with_usable_sizes(of, sampled(one, one, of))
    assert usable(found)[:2] == [16 * KIB, 768 * KIB]


def test_a_gentle_slope_behind_l2_leaves_the_report() -> None:
    of = caches()
    one = steps((32 * KIB, 80), (512 * KIB, 48), (MIB, 42), (32 * MIB, 37), memory=10)
    assert with_usable_sizes(of, sampled(one, one, of))[1].usable_bytes == MIB


def test_disturbed_points_change_nothing() -> None:
    of = caches()
    one = steps((32 * KIB, 200), (MIB, 80), (32 * MIB, 30), memory=10)
    every = steps((32 * KIB, 400), (MIB, 160), (16 * MIB, 60), memory=16)
    curve = sampled(one, every, of)
    hurt = {16 * KIB, 256 * KIB, 4 * MIB, 6 * MIB}
    noisy = [(s, a / 3, b / 4) if s in hurt else (s, a, b) for s, a, b in curve]
    found = with_usable_sizes(of, noisy)
    assert found == with_usable_sizes(of, curve)
    assert boundary_bandwidths(found, noisy) == boundary_bandwidths(found, curve)


def test_all_cores_are_never_slower_than_one_nor_outer_faster_than_inner() -> None:
    of = caches()
    one = steps((32 * KIB, 100), (MIB, 80), (32 * MIB, 30), memory=10)
    every = steps((32 * KIB, 50), (MIB, 40), (16 * MIB, 20), memory=5)
    curve = sampled(one, every, of)
    alone, together = boundary_bandwidths(with_usable_sizes(of, curve), curve)
    assert alone == together == (100, 80, 30, 10)


def test_one_core_and_two_caches() -> None:
    of = (Cache('l1', 32 * KIB, 64, 8, 1, 1), Cache('l2', 512 * KIB, 64, 8, 1, 1))
    one = steps((32 * KIB, 100), (512 * KIB, 40), memory=8)
    curve = sampled(one, one, of)
    found = with_usable_sizes(of, curve)
    assert usable(found) == [32 * KIB, 512 * KIB]
    assert boundary_bandwidths(found, curve) == ((100, 40, 8), (100, 40, 8))


def test_a_sweep_cut_short_uses_its_last_point_for_memory() -> None:
    of = caches()
    one = steps((32 * KIB, 200), (MIB, 80), (8 * MIB, 30), memory=10)
    curve = [(s, one(s), one(s)) for s in sweep_sizes(of, 32 * MIB)]
    found = with_usable_sizes(of, curve)
    assert found[2].usable_bytes == 8 * MIB
    assert boundary_bandwidths(found, curve)[0] == (200, 80, 30, 10)
