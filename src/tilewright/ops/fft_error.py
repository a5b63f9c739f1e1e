"""What convolution by Fourier's transform costs in accuracy, from its programs alone.

Goes in: tiles and the number of input channels. Comes out: the expected largest error of a result
as a share of the largest result, in fp32, in the manner of ops/winograd_error.py: roundings are
independent, of variance rho^2 relative to what is rounded, data have independent entries.

A transform and its inverse keep the mean square of what they transform but for a factor, of errors
as of values, and spread it over all results. So relative variances add up, whatever the tile:

    kappa_in    both passes of inputs, the sums a + b of Karatsuba's products included
    2           weights, rounded once (they are transformed in float64); twice, as the rest of this
    C + 1       sum over C channels in order, (C + 1) / 2: a part of a complex product is the
                difference of two sums, each as large as itself, and has the errors of both
    kappa_out   both passes back, the differences included

    error = rho sqrt(kappa_in + 2 + C + 1 + kappa_out)

Of each pass the programs have about GROWTH log2 n roundings (`LinearProgram.kappa` counts them;
together they are within 15% of that). Growth with log n is Gentleman & Sande's (1966; Higham 2002,
Sec. 24.1). The direct sum has C r s / 2 in place of all that: a long filter is computed more
accurately this way.
"""

from __future__ import annotations

import math

from tilewright.ops.epilogue_error import final_error
from tilewright.ops.fft import FftGeometry, applies, geometry
from tilewright.ops.group import Group
from tilewright.ops.tiles import Tile
from tilewright.ops.winograd_error import VARIANCE

GROWTH = 1.3


def transform_error(shape: FftGeometry, channels: float, product: float = 0.0) -> float:
    """Expected largest error over largest result for `channels` additions.

    product   deviation of each product of points from the right one, as a share of it
    """
    passes = 2 * GROWTH * math.log2(shape.down.length * shape.across.length)
    return math.sqrt(VARIANCE * (passes + 2 + channels + 1) + 2 * product**2)


def predicted_error(group: Group, m: Tile) -> float:
    """Expected largest error over the largest output of this group, epilogue included; inf if
    illegal.
    """
    if applies(group, m):
        return math.inf
    shape = geometry(group, m)
    return final_error(group, transform_error(shape, shape.c))
