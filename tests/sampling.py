"""Which combinations of parameters `make test` runs, and which are left to `make test-all`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import pytest


def covering(*axes: Iterable) -> list:
    """Every combination of one value from each axis, for `parametrize`.

    Not `slow` are only as many as it takes for each value of each axis to occur: combination t has
    value t of every axis, and shorter axes start again. The combinations say little more than these
    where the axes have little to do with each other.
    """
    values = [list(axis) for axis in axes]
    quick = {tuple(t % len(axis) for axis in values) for t in range(max(map(len, values)))}
    return [
        pytest.param(
            *(axis[place] for axis, place in zip(values, places, strict=True)),
            marks=[] if places in quick else [pytest.mark.slow],
        )
        for places in itertools.product(*(range(len(axis)) for axis in values))
    ]


def first(count: int, values: Iterable) -> list:
    """All values, of which only the first `count` are not `slow`."""
    return [
        pytest.param(value, marks=[pytest.mark.slow] if place >= count else [])
        for place, value in enumerate(values)
    ]
