"""Which combinations of parameters `make test` runs, and which are left to `make test-all`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

import pytest

from tilewright import zoo
from tilewright.machine.isa import ISAS
from tilewright_lab.simulate.emulate import cannot_run

T = TypeVar('T')


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


# Networks of the zoo: `make test` has a plain one, and one each with residuals, with branches, and
# with depthwise layers.
FEW = ('squeezenet', 'resnet18', 'inception_v1', 'mobilenet_v2')
NETWORKS = [pytest.param(name, marks=[pytest.mark.slow] * (name not in FEW)) for name in zoo.NAMES]


# Whether a test with the fixture `isa` runs the cases whose turn it is, or those that are left.
TURNS = [pytest.param(True, id='in turn'), pytest.param(False, id='rest', marks=pytest.mark.slow)]


def taken(cases: Sequence[T], isa: str, in_turn: bool) -> list[T]:
    """The cases that an instruction set runs: each is run by one of them in `make test`.

    Every set that can run here has at least one; `make test-all` runs all cases on all sets.
    """
    runnable = [name for name in ISAS if not cannot_run(name)]
    place = runnable.index(isa)
    mine = set(range(place, len(cases), len(runnable))) or {place % len(cases)}
    return [case for number, case in enumerate(cases) if (number in mine) == in_turn]
