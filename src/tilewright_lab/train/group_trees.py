"""Trees on the statistics of measured groups: what the graph-attention model is compared with.

Goes in: a `GroupTable`, a recipe of rank/model.py. Comes out: a `GroupTrees` that scores rows of
another table. Features, rows and starting point (the time model) are those of rank/gat.py; only
what learns differs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tilewright.rank.counts import Array
from tilewright.rank.trees import Ensemble, grow
from tilewright_lab.train.forest import GAIN, Recipe
from tilewright_lab.train.forest import RECIPES as ALL
from tilewright_lab.train.group_table import GroupTable

RECIPES: Mapping[str, Recipe] = {name: ALL[name] for name in ('forest', 'boosted', 'mixed')}


@dataclass(frozen=True)
class GroupTrees:
    """Ensembles for the time and, in some recipes, for the order."""

    time: Ensemble = field(repr=False)
    rank: Ensemble | None = field(repr=False)

    def __call__(self, table: GroupTable) -> Array:
        """Scores of all rows, lowest first; those of one group compare with each other."""
        time = table.base + self.time(table.x)
        if self.rank is None:
            return time
        return self._standard(time, table) + self._standard(self.rank(table.x), table)

    @staticmethod
    def _standard(values: Array, table: GroupTable) -> Array:
        """Within each group: mean 0, deviation 1."""
        counts = np.maximum(np.bincount(table.which, minlength=len(table.labels)), 1)
        mean = np.bincount(table.which, values, len(table.labels)) / counts
        centred = values - mean[table.which]
        spread = np.sqrt(np.bincount(table.which, centred**2, len(table.labels)) / counts)
        return centred / np.maximum(spread, 1e-12)[table.which]


def fit_trees(table: GroupTable, recipe: Recipe, seed: int) -> GroupTrees:
    """[GroupTable, Recipe] -> [GroupTrees]; rows count by best / time of their group."""
    slower, made = table.slower, {member.kind: member.settings for member in recipe.made_of}
    time = grow(
        table.x, table.log_seconds - table.base, made['time'], weights=1 / slower, seed=1000 * seed
    )
    if 'rank' not in made:
        return GroupTrees(time, None)
    rank = grow(table.x, slower**-GAIN, made['rank'], groups=table.which, seed=1000 * seed)
    return GroupTrees(time, rank)
