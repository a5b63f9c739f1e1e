"""A learned model: trees over features of schedules (CNNOpt Sec. 4.1).

Goes in: schedules of a problem and a machine. Comes out: scores, the lowest for the schedule that
is predicted to be fastest. How a model is trained is in the lab (tilewright_lab/train/forest.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array, Batch
from tilewright.rank.features import NAMES, matrix_of
from tilewright.rank.trees import Ensemble


@dataclass(frozen=True)
class LearnedModel:
    """Trees and what they were learned from. `header` holds plain values (JSON) only:

    recipe, features, feature_version, machine, kinds, rows, problems, data_sha256, seed,
    validation (scores of grouped cross-validation, where it was done)
    """

    time: Ensemble | None = field(repr=False)
    rank: Ensemble | None = field(repr=False)
    header: Mapping[str, Any]

    @property
    def features(self) -> list[int]:
        return [NAMES.index(name) for name in self.header['features']]

    def scores(self, batches: Sequence[Batch], machine: GpuMachine) -> list[Array]:
        """Scores of schedules that compete, lowest first; only their order means something."""
        found = [matrix_of(batch, machine) for batch in batches]
        x, base = np.concatenate([x for x, _ in found]), np.concatenate([b for _, b in found])
        scores = self.scores_of(x, base)
        return np.split(scores, np.cumsum([len(batch) for batch in batches])[:-1])

    def scores_of(self, x: Array, base: Array) -> Array:
        """The same for features that are there already (`features.matrix_of`)."""
        x = x[:, self.features]
        parts = []
        if self.time is not None:
            parts.append(self.time(x) + (base if self.header['recipe']['analytical'] else 0.0))
        if self.rank is not None:
            parts.append(self.rank(x))
        return parts[0] if len(parts) == 1 else np.sum([_standard(part) for part in parts], 0)

    def seconds(self, batch: Batch, machine: GpuMachine) -> Array | None:
        """Predicted times; None where the model ranks only."""
        if self.time is None:
            return None
        x, base = matrix_of(batch, machine)
        start = base if self.header['recipe']['analytical'] else 0.0
        return np.exp(self.time(x[:, self.features]) + start)


def _standard(values: Array) -> Array:
    return (values - values.mean()) / max(float(values.std()), 1e-12)
