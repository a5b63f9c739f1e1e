"""Lines that share sets of a cache would be predicted to stay in it."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tilewright.model.cpu.cache_sets import crowded, overflows

SETS, WAYS = 64, 8
COUNTS = st.tuples(st.integers(1, 40), st.integers(1, 40))
APART = st.tuples(st.integers(0, 300), st.integers(0, 300))


def by_hand(count: tuple[int, int], apart: tuple[int, int]) -> Counter[int]:
    """Lines of every set."""
    return Counter(
        (p * apart[0] + r * apart[1]) % SETS for p in range(count[0]) for r in range(count[1])
    )


@given(COUNTS, APART)
def test_lines_in_sets_that_overflow_are_counted(
    count: tuple[int, int], apart: tuple[int, int]
) -> None:
    held = by_hand(count, apart)
    expected = sum(lines for lines in held.values() if lines > WAYS)
    assert crowded(count[0], apart[0], count[1], apart[1], SETS, WAYS) == expected


@given(COUNTS, APART)
def test_a_cache_overflows_if_its_used_sets_have_too_few_ways(
    count: tuple[int, int], apart: tuple[int, int]
) -> None:
    assert overflows(SETS, WAYS, count, apart) == (
        count[0] * count[1] > WAYS * len(by_hand(count, apart))
    )


def test_planes_a_power_of_two_apart_share_sets() -> None:
    assert overflows(SETS, WAYS, (16, 1), (64, 1))  # all in one set
    assert not overflows(SETS, WAYS, (16, 1), (65, 1))  # each in its own
    assert crowded(16, 32, 1, 1, SETS, WAYS) == 0  # eight in each of two
    assert crowded(18, 32, 1, 1, SETS, WAYS) == 18
