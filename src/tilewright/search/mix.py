"""The fastest mix of two types within a loss: an integer program.

    min   sum_i (t_i + x_i (s_i - t_i)) + sum_(i,j) (c_ij y_ij + d_ij z_ij)
    with  sum_i l_i x_i <= allowed,   y_ij >= x_i - x_j,   z_ij >= x_j - x_i,   x_i in {0, 1}

Goes in: for each part its seconds as floats (t) and as integers (s) and what integers lose (l), the
seconds of what passes from part i to part j, from integers to floats (c) and from floats to
integers (d). Comes out: which parts are integers. Solved by HiGHS (CasADi's own copy of it is
missing on Arm).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.errors import MissingError


@dataclass(frozen=True, slots=True)
class MixProblem:
    """`crossings` are pairs of parts with the seconds that it takes to pass from the first to the
    second: from integers to floats, and from floats to integers.
    """

    floats_s: tuple[float, ...]
    integers_s: tuple[float, ...]
    losses: tuple[float, ...]
    crossings: tuple[tuple[int, int, float, float], ...]

    def seconds(self, integers: Sequence[bool]) -> float:
        """What a mix is predicted to take."""
        parts = sum(
            s if x else t
            for t, s, x in zip(self.floats_s, self.integers_s, integers, strict=True)
        )  # fmt: skip
        passed = sum(
            to_floats if integers[i] else to_integers
            for i, j, to_floats, to_integers in self.crossings
            if integers[i] != integers[j]
        )
        return parts + passed

    def solve(self, allowed: float) -> tuple[bool, ...]:
        """The fastest mix whose losses add up to at most `allowed`."""
        parts, pairs = len(self.losses), len(self.crossings)
        gains = np.subtract(self.integers_s, self.floats_s)
        cost = np.concatenate(
            [gains, [c for *_, there, back in self.crossings for c in (there, back)]]
        )
        # HiGHS compares with absolute tolerances: both rows are of order one.
        cost = cost / max(np.abs(cost).max(), 1e-30)
        weights = np.minimum(np.divide(self.losses, max(allowed, 1e-300)), 2.0)
        rows = np.zeros((1 + 2 * pairs, parts + 2 * pairs))
        rows[0, :parts] = weights
        for number, (i, j, *_) in enumerate(self.crossings):
            for sign in (0, 1):
                way = 2 * number + sign
                row = rows[1 + way]
                row[i], row[j], row[parts + way] = 1 - 2 * sign, 2 * sign - 1, -1
        limits = np.concatenate([[1.0], np.zeros(2 * pairs)])
        found = _least(cost, rows, limits, parts)
        made = tuple(bool(x > 0.5) for x in found[:parts])
        return made if self.loss(made) <= allowed * (1 + 1e-6) else (False,) * parts

    def loss(self, integers: Sequence[bool]) -> float:
        return sum(loss for loss, x in zip(self.losses, integers, strict=True) if x)


def _least(cost: np.ndarray, rows: np.ndarray, limits: np.ndarray, whole: int) -> np.ndarray:
    """The x from 0 to 1 with rows x <= limits and the least cost; the first `whole` are 0 or 1."""
    try:
        import highspy
    except ImportError:
        raise MissingError(
            'highspy is not installed, by which a mix of types is solved; pip install highspy'
        ) from None
    program = highspy.Highs()
    program.setOptionValue('output_flag', False)
    columns = np.arange(len(cost), dtype=np.int32)
    program.addVars(len(cost), np.zeros(len(cost)), np.ones(len(cost)))
    program.changeColsCost(len(cost), columns, cost)
    kinds = np.full(whole, highspy.HighsVarType.kInteger)
    program.changeColsIntegrality(whole, columns[:whole], kinds)
    for row, limit in zip(rows, limits, strict=True):
        used = columns[row != 0]
        program.addRow(-highspy.kHighsInf, limit, len(used), used, row[used])
    program.run()
    return np.asarray(program.getSolution().col_value)
