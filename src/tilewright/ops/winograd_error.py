"""What F(m, r) costs in accuracy, from its matrices alone: prices an algorithm before it is timed.

Goes in: m, the filter's sizes, the number of input channels. Comes out: the expected largest error
of a result as a share of the largest result, in fp32.

Worst-case bounds multiply norms (Barabasz et al. 2020, "Error analysis and improving the accuracy
of Winograd convolution", Theorem 2: |A^T| |G| |B^T| times a linear factor) and are off by orders of
magnitude, as Vincent et al. 2017 note for the growth of the Vandermonde condition number. What is
wanted here is the size of the error that occurs. So the bound's norms are replaced by second
moments: roundings are independent, of variance rho^2 relative to what is rounded, data have
independent entries. With

    v_t, w_t   second moments of V_t and U_t: products of the squared row norms of B^T and of G
    kappa(x)   roundings in a sum of x terms, relative to the whole sum: sum_{k=2..x} k / x

an output (a, b) of a tile has the error variance

    rho^2 C sum_t A[a, i]^2 A[b, j]^2 v_t w_t (
        kappa(B_i) + kappa(B_j)          input transform, two passes
        + 1                              weights, rounded once (they are transformed in float64)
        + (C + 1) / 2                    sum over C channels in order
        + kappa(A_a) + kappa(A_b))       output transform

and the variance C r s of a result. Errors and results have about as many standard deviations to
their maximum, so that the ratio of maxima is the ratio of standard deviations, at the worst (a, b).
What the stages behind the convolution make of that ratio is found by ops/epilogue_error.py.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from tilewright.ops.epilogue_error import final_error
from tilewright.ops.group import Group
from tilewright.ops.winograd import Tile, applies, geometry
from tilewright.ops.winograd_matrices import Transform

UNIT = 2.0**-24
# Mean square of a rounding error relative to the rounded number, over logarithmically distributed
# significands: (u^2 / 3) * integral of x^-3 over [1, 2] / ln 2.
VARIANCE = UNIT**2 / 3 * (3 / 8) / math.log(2)
DEFAULT_LIMIT = 1e-4


def _kappa(matrix: np.ndarray) -> np.ndarray:
    """Roundings of each row's sum, relative to the square of the whole sum."""
    terms = np.maximum((matrix != 0).sum(axis=1), 1)
    return (terms + 1) / 2 - 1 / terms


@lru_cache(maxsize=256)
def _moments(f: Transform) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """(v_t w_t, A^2, kappa of B, kappa of A) along one direction."""
    bt, g, at = f.array('bt'), f.array('g'), f.array('at')
    return (bt**2).sum(axis=1) * (g**2).sum(axis=1), at**2, _kappa(bt), _kappa(at)


def transform_error(
    down: Transform, across: Transform, channels: float, product: float = 0.0
) -> float:
    """Expected largest error over largest result for two transforms and `channels` additions.

    product   deviation of each product of points from the right one, as a share of it
    """
    moments, weights, kappas, kept = zip(*map(_moments, (down, across)), strict=True)
    energy = np.outer(moments[0], moments[1])
    inner = kappas[0][:, None] + kappas[1][None, :] + 1 + (channels + 1) / 2
    inner = inner + product**2 / VARIANCE
    through = np.einsum('ai,bj,ij->ab', weights[0], weights[1], energy * inner)
    plain = np.einsum('ai,bj,ij->ab', weights[0], weights[1], energy)
    total = through + plain * (kept[0][:, None] + kept[1][None, :])
    return math.sqrt(VARIANCE * float(total.max()) / (down.r * across.r))


def direct_error(channels: int, r: int, s: int) -> float:
    """The same for the direct algorithm: one sum of channels * r * s products in order."""
    return math.sqrt(VARIANCE * (channels * r * s + 1) / 2)


def predicted_error(group: Group, m: Tile) -> float:
    """Expected largest error of F(m, r) over the largest output of this group, epilogue included;
    inf if illegal.
    """
    if applies(group, m):
        return math.inf
    shape = geometry(group, m)
    return final_error(group, transform_error(shape.down, shape.across, shape.c))
