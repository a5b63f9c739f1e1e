"""A schedule with what the model says about it: what every ranking makes."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.model.cpu.prediction import Prediction
from tilewright.schedule.schedule import Schedule


@dataclass(frozen=True, slots=True)
class Candidate:
    """A schedule and its predicted time.

    `solver_bound_s` is the least dual of all tile problems that were solved for this group, so that
    it holds for all of them; 0 where none was solved.
    """

    schedule: Schedule
    prediction: Prediction
    solver_bound_s: float = 0.0
