"""How far a sum of TF32 products in three parts is off, before anything is measured.

Goes in: a group and a schedule. Comes out: the expected largest error of a result, as a share of
the largest result. Each operand is cut into two parts of 11 bits, exactly; what is left out, and
what the matrix units cut off the lower parts, is some 2^-21 of a product and does not grow with the
sum. What grows is that these units add without rounding: each addition of eight terms, three for
each of the products of parts, cuts up to 2^-23 off the sum so far, 2^-24 in the mean and always
towards zero. A sum of signed numbers is in the mean less than half of what it becomes at most, so
`TERM` is 0.4 * 3 / 8 * 2^-24 for three products of eight depths. On an H200, 263 kernels with 27 to
2,304 terms were off by 0.72 to 1.25 of this; of a training set's schedules ten were wrong by a
tolerance of 1e-4, all of them with 12,544 terms or more.

Where the two smaller products are of bf16 (kernels/gpu/schemas/patch/mixed.py), their factors are
rounded to 8 bits: what is left out is some 2^-20 of a product, again without growing, and as they
add sixteen depths at once the sum is cut four times for sixteen depths instead of six.

Parts of a split are added in fp32, so that only the longest of them counts.

Winograd's transforms amplify errors of the products at its points, by a factor of 32 for F(4, 3)
(ops/winograd_error.py), but not all of this. What an addition cuts off in the mean is proportional
to the sum so far, and a sum of shares of every channel's product is still what the transforms make
a convolution of: that part comes through as it is. Amplified is what cuts differ by: about as much
as roundings do, so that 3/8 of the channels count as additions in fp32 (1/4 with bf16), and
`SPREAD`, the deviation of what is left out of a product. Emulated units
(tests/unit/test_gpu_space.py) are off by 0.6 to 1.4 of this.
"""

from __future__ import annotations

import math

from tilewright.kernels.gpu.schemas.winograd import plan as winograd_plan
from tilewright.ops.epilogue_error import final_error
from tilewright.ops.group import Group
from tilewright.ops.winograd import geometry
from tilewright.ops.winograd_error import transform_error
from tilewright.schedule.gpu import GpuSchedule

LARGEST_ERROR = 1e-4  # tighter than Boda's 1e-3: plain TF32 products do not pass
ADDITIONS = 3 / 8  # of a matrix unit for each term
TERM = 0.4 * ADDITIONS * 2**-24
CUT = 2**-21
SPREAD = 2**-22
MARGIN = 1.4  # errors with transforms were up to as many times the expected ones
# How names of such intrinsics end -> what is left out of a product, and how much that deviates by;
# additions of a matrix unit for each term.
PARTS = {'tf32x3': (CUT, SPREAD, ADDITIONS), 'tf32_bf16': (2 * CUT, 2 * SPREAD, 2 / 3 * ADDITIONS)}


def sum_error(group: Group, schedule: GpuSchedule) -> float:
    """[Group, GpuSchedule] -> [share of the largest result]; 0 for multiply-adds in fp32."""
    if schedule.schema == winograd_plan.NAME:
        return _winograd_error(group, schedule)
    _, _, kind = schedule.intrinsic.partition('mma_')
    if kind not in PARTS:
        return 0.0
    stage, (left_out, _, additions) = group.main, PARTS[kind]
    terms = math.prod(stage.sizes[name] for name in stage.reduction)
    terms = math.ceil(terms / dict(schedule.tiles).get('split', 1))
    return left_out + TERM * terms * additions / ADDITIONS


def _winograd_error(group: Group, schedule: GpuSchedule) -> float:
    """The same with transforms around the products, in fp32 as well; inf where they cannot be."""
    tiles = dict(schedule.tiles)
    if tiles.get('m') not in winograd_plan.TILES or winograd_plan.why_not(group):
        return math.inf
    shape = geometry(group, tiles['m'])
    terms = math.ceil(shape.c / tiles.get('split', 1))
    _, _, kind = schedule.intrinsic.partition('mma_')
    if kind not in PARTS:
        return final_error(group, transform_error(shape.down, shape.across, terms))
    _, spread, additions = PARTS[kind]
    amplified = transform_error(shape.down, shape.across, additions * terms, spread)
    # What is cut off a sum is a share of that sum: where an epilogue is flat, it is lost again.
    return final_error(group, amplified) + TERM * terms * additions / ADDITIONS


def precise(group: Group, schedule: GpuSchedule, tolerance: float = LARGEST_ERROR) -> bool:
    """Whether a schedule is expected to be right by a tolerance, as runtime/verify.py has it.

    Additions that cut are off in proportion to the sum. Transforms are not: their error is as large
    where a result is small, which is compared with the root mean square of all of them; the
    largest of n normal results is sqrt(2 ln n) times that.
    """
    error = sum_error(group, schedule)
    if schedule.schema == winograd_plan.NAME:
        error *= MARGIN * math.sqrt(2 * math.log(max(math.prod(group.output.shape), 2)))
    return error <= tolerance
