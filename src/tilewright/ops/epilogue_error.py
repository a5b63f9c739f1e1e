"""What stages behind a sum do to its error: a share of the largest sum becomes one of the results.

Goes in: a group, and the largest error of its main stage as a share of the largest sum. Comes out:
the largest error of the group's output as a share of the largest output.

An error budget is about outputs. A rectifier or a residual leaves the share as it is. `tanh` does
not: where sums reach 300, outputs end at 1, and an error that was 1e-6 of 300 is 3e-4 of what comes
out. So the epilogue is evaluated, in float64, over all sums that are expected,

    share = max |f(x + e, z) - f(x, z)| / max |f(x, z)|     over |x| <= X and some z
    X = s sqrt(2 ln n)    the largest of n normal sums with standard deviation s
    e = error X

Nothing is known of data when a schedule is chosen. Operands are taken to have a root mean square of
one, so that a sum of c r s products has s = sqrt(c r s); s = 1 is looked at too, since thresholds
matter more to small sums. What else a stage reads, z (a bias, a residual, a gate), is normal and
independent of the sum: a residual that is made to cancel it is no such thing.

The steepest place of f is looked for by cutting the steepest cells of a grid again and again, down
to the width e: a step is found as well as a slope, and a `where` that is continuous is no step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from tilewright.ops.evaluate import evaluate
from tilewright.ops.group import Group

# Smaller growth is within what predictions of errors are uncertain by, and counts as none: smooth
# rectifiers (silu, gelu, mish) are somewhat steeper than 1 in places.
GENTLE = 1.25
# Errors that occur are up to so many times the expected ones (docs/winograd.md).
MARGIN = 1.5
CELLS = 128  # of a grid
KEPT = 8  # cells that are cut again
DRAWS = 16  # values of other operands

Function = Callable[[np.ndarray, np.ndarray], np.ndarray]  # sums, numbers of draws -> outputs


def final_error(group: Group, error: float) -> float:
    """[Group, share of the largest sum] -> [share of the largest output]; inf if nothing is known.

    Where the epilogue makes errors grow, with a margin for those that are larger than expected.
    """
    if not group.epilogue or not 0 < error < math.inf:
        return error
    # A power of two: shares that are nearly equal need one evaluation.
    grown = growth(group, 2.0 ** math.ceil(math.log2(error)))
    return error if grown <= GENTLE else MARGIN * grown * error


@lru_cache(maxsize=1024)
def growth(group: Group, error: float) -> float:
    """How many times as large a share of the largest output an error is, at least 1."""
    if any(s.combiner or set(s.expr.iterators()) or not s.is_affine for s in group.epilogue):
        return math.inf
    main = group.main
    terms = math.prod(main.sizes[d] for d in main.reduction)
    reach = math.sqrt(2 * math.log(max(group.tensor(main.write.tensor).size, 2)))
    f = _function(group)
    return max(1.0, *(_share(f, scale * reach, error) / error for scale in (1, math.sqrt(terms))))


def _function(group: Group) -> Function:
    """The output at sums x, with draw number `draw` of all that else is read."""
    normal = NormalDist()
    quantiles = np.array([normal.inv_cdf((i + 0.5) / DRAWS) for i in range(DRAWS)])
    made = {group.main.write.tensor, *(stage.write.tensor for stage in group.epilogue)}
    others = dict.fromkeys(
        a.tensor for stage in group.epilogue for a in stage.reads if a.tensor not in made
    )
    # Odd steps visit every quantile once, each tensor in another order.
    order = np.arange(DRAWS)
    drawn = {
        name: quantiles[(2 * number + 1) * order % DRAWS] for number, name in enumerate(others)
    }

    def f(x: np.ndarray, draw: np.ndarray) -> np.ndarray:
        values = {name: found[draw] for name, found in drawn.items()}
        values[group.main.write.tensor] = x
        for stage in group.epilogue:
            operands = [values[a.tensor] for a in stage.reads]
            result = evaluate(stage.expr, operands, group.read_dtypes(stage), {})
            values[stage.write.tensor] = np.broadcast_to(result.astype(np.float64), x.shape)
        found = values[group.output.name]
        return np.where(np.isfinite(found), found, np.nan)

    return f


def _share(f: Function, most: float, error: float) -> float:
    """The largest change of f over `error * most` as a share of its largest value, up to `most`."""
    with np.errstate(all='ignore'):
        low = np.full(DRAWS, -most)
        width, draw = 2 * most, np.arange(DRAWS)
        step = error * most
        largest = _most(f(*_edges(low, width, draw)))
        while width > step:
            x, which = _edges(low, width, draw)
            change = np.nan_to_num(np.abs(np.diff(f(x, which), axis=1)))
            width /= CELLS
            place = np.argsort(change, axis=None)[::-1][:KEPT]
            row, cell = np.unravel_index(place, change.shape)
            low, draw = low[row] + cell * width, draw[row]
        x, which = _edges(low, max(width, step), draw)
        worst = max(_most(f(x + sign * step, which) - f(x, which)) for sign in (-1, 1))
    return worst / largest if largest else 0.0


def _edges(low: np.ndarray, width: float, draw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Grids from each `low` over a width, and the draws that they belong to."""
    x = low[:, None] + width / CELLS * np.arange(CELLS + 1)
    return x, np.broadcast_to(draw[:, None], x.shape)


def _most(values: np.ndarray) -> float:
    return float(np.max(np.nan_to_num(np.abs(values)), initial=0.0))
