"""A ranker from outside: one registration, and searches order GPU schedules by it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine, known_gpu
from tilewright.ops.group import Group
from tilewright.rank import rankers
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu import ranked

NAME = 'few-decisions'
GROUP = tw.conv2d(c=16, h=14, w=14, k=32, r=3, s=3, pad=1)


@dataclass(frozen=True)
class FewDecisions:
    """Prefers schedules whose decisions add up to little: no good model, but a distinct one."""

    group: Group
    machine: GpuMachine

    def __call__(self, schedules: Sequence[GpuSchedule]) -> np.ndarray:
        return np.array([float(sum(value for _, value in s.tiles)) for s in schedules])

    def learned(self, tried: object) -> FewDecisions:
        return self


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(ranked, 'LOOKED_AT', 60)
    rankers.register(NAME, FewDecisions)
    yield
    rankers.RANKERS.unregister(NAME)


def test_candidates_come_in_the_order_of_a_registered_ranker(registered):
    plan = tw.optimize(GROUP, 'h200', 3, False, target='cuda', model=NAME)
    scores = FewDecisions(GROUP, known_gpu('h200'))([c.schedule for c in plan.candidates])
    assert list(scores) == sorted(scores)
    assert all(c.prediction.seconds > 0 for c in plan.candidates)
    assert 'best schedule' in plan.explain()


def test_a_registered_ranker_is_listed(registered):
    with pytest.raises(InputError, match=f'choose one of .*{NAME}'):
        rankers.ranker_for('oracle', GROUP, known_gpu('h200'), 'search')


def test_names_of_the_package_are_taken():
    with pytest.raises(InputError, match="there is a model 'forest' already"):
        rankers.register('forest', FewDecisions)
