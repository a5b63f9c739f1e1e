"""A learned model: trees over features of schedules (CNNOpt Sec. 4.1).

Goes in: schedules of a problem and a machine. Comes out: scores, the lowest for the schedule that
is predicted to be fastest. How a model is trained is in the lab (tilewright_lab/train/forest.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.rank.counts import Array, Batch
from tilewright.rank.features import NAMES, matrix_of, problem_of
from tilewright.rank.trees import Ensemble

PARTS = ('time', 'plain', 'rank', 'within', 'beside')
TIMES = ('time', 'plain')  # that say a time; the others order schedules of one problem
PLANES = 'depthwise'  # the kind of kernels that only depthwise convolutions have
_FROM_BASE = ('time', 'beside')  # what is added to the analytical time
FARTHEST = 3.0  # deviations from the middle at which a linear correction ends


@dataclass(frozen=True)
class LearnedModel:
    """Trees of the error of the analytical time, of the time itself, of the order, and of both
    times less the mean of their problem, as far as a recipe has them
    (tilewright_lab/train/forest.py), and what they were learned from. `header` holds plain values
    (JSON) only.

    linear has a row each of middles, deviations and slopes of the features, where a model of
    another machine was corrected by some rows. The header has

    recipe, features, feature_version, machine, kinds, rows, problems, data_sha256, seed,
    validation (scores of grouped cross-validation, where it was done), pointwise (whether 1x1
    convolutions were among the problems)
    """

    time: Ensemble | None = field(default=None, repr=False)
    plain: Ensemble | None = field(default=None, repr=False)
    rank: Ensemble | None = field(default=None, repr=False)
    linear: Array | None = field(default=None, repr=False)
    within: Ensemble | None = field(default=None, repr=False)
    beside: Ensemble | None = field(default=None, repr=False)
    header: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_times(self) -> bool:
        return any(getattr(self, kind) is not None for kind in TIMES)

    @property
    def features(self) -> list[int]:
        return [NAMES.index(name) for name in self.header['features']]

    @property
    def ranked_kinds(self) -> frozenset[str]:
        """Kinds of kernels whose order it knows better than the analytical model, by its own
        validation; all that it has seen where nothing was validated.
        """
        told = self.header.get('validation', {}).get('kinds', {})
        if not told:
            return frozenset(self.header['kinds'])
        return frozenset(
            kind
            for kind in self.header['kinds']
            if kind in told and told[kind]['learned'] <= told[kind]['analytical']
        )

    def resembles(self, group: Group) -> bool:
        """Whether problems like this one were learned from: in float32, without stages before the
        products, and 1x1 or without a sum over channels only where there were such.
        """
        planes = 'c' not in group.main.reduction
        pointwise = not planes and problem_of(group)['r'] == problem_of(group)['s'] == 1
        return not (
            has_front(group)
            or group.half
            or (planes and PLANES not in self.header['kinds'])
            or (pointwise and not self.header.get('pointwise', False))
        )

    def scores(self, batches: Sequence[Batch], machine: GpuMachine) -> list[Array]:
        """Scores of schedules that compete, lowest first; only their order means something."""
        found = [matrix_of(batch, machine) for batch in batches]
        x, base = np.concatenate([x for x, _ in found]), np.concatenate([b for _, b in found])
        scores = self.scores_of(x, base)
        return np.split(scores, np.cumsum([len(batch) for batch in batches])[:-1])

    def scores_of(self, x: Array, base: Array) -> Array:
        """The same for features that are there already (`features.matrix_of`)."""
        columns = x[:, self.features]
        found = {kind: self._answer(kind, columns, base) for kind in PARTS if getattr(self, kind)}
        if len(found) == 1:
            return next(iter(found.values()))
        weights = self.header['recipe'].get('weights', {})
        return np.sum([weights.get(kind, 1) * standard(s) for kind, s in found.items()], 0)

    def comparable(self, x: Array, base: Array) -> Array:
        """Scores that may be compared between lists of one problem, as a search that goes on asks:
        logarithms of seconds, but for a number that is the same for all of a problem. Trees that
        only rank have no part in them; where there are no others, `scores_of`.
        """
        kinds = [kind for kind in PARTS if kind != 'rank' and getattr(self, kind)]
        return self._mean(kinds, x, base) if kinds else self.scores_of(x, base)

    def _mean(self, kinds: Sequence[str], x: Array, base: Array) -> Array:
        weights = self.header['recipe'].get('weights', {})
        shares = [weights.get(kind, 1) for kind in kinds]
        found = [self._answer(kind, x[:, self.features], base) for kind in kinds]
        return np.average(found, axis=0, weights=shares)

    def _answer(self, kind: str, columns: Array, base: Array) -> Array:
        found = getattr(self, kind)(columns) + (base if kind in _FROM_BASE else 0.0)
        return found if kind not in TIMES or self.linear is None else found + self._line(columns)

    def _line(self, columns: Array) -> Array:
        """A correction of the logarithms that is linear in the features, as far as the rows that it
        was learned from went.
        """
        assert self.linear is not None
        middle, spread, slope = self.linear
        return np.clip((columns - middle) / spread, -FARTHEST, FARTHEST) @ slope

    def log_seconds(self, x: Array, base: Array) -> Array:
        """Predicted times, comparable between lists; raises InputError where it ranks only."""
        kinds = [kind for kind in TIMES if getattr(self, kind)]
        if not kinds:
            raise InputError('a model that only ranks knows no times; train one that has them')
        return self._mean(kinds, x, base)

    def seconds(self, batch: Batch, machine: GpuMachine) -> Array | None:
        """Predicted times; None where the model ranks only."""
        return np.exp(self.log_seconds(*matrix_of(batch, machine))) if self.has_times else None


def standard(values: Array) -> Array:
    """Values with mean 0 and deviation 1."""
    return (values - values.mean()) / max(float(values.std()), 1e-12)
