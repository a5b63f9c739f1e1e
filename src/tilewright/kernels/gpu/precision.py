"""How far the results of a schedule are off, before anything is measured.

Goes in: a group and a schedule. Comes out: the expected largest error of a result, as a share of
the largest result: of sums by matrix units (kernels/gpu/matrix_units.py), or what a schema says of
itself. Parts of a split are added in fp32, so that only the longest of them counts.
"""

from __future__ import annotations

import math
import sys

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.matrix_units import cut_off, parts_of
from tilewright.kernels.gpu.registry import schema_named
from tilewright.ops.dtypes import HALVES
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

LARGEST_ERROR = 1e-4  # tighter than Boda's 1e-3: plain TF32 products do not pass
MARGIN = 1.4  # errors with transforms were up to as many times the expected ones


def sum_error(group: Group, schedule: GpuSchedule) -> float:
    """[Group, GpuSchedule] -> [share of the largest result]; 0 for multiply-adds in fp32."""
    schema = schema_named(schedule.schema)
    if schema.error is not None:
        return schema.error(group, schedule)
    parts = parts_of(schedule.intrinsic)
    if parts is None:
        return 0.0
    # What one sum of a chain is off by, the next one multiplies: shares of results add up.
    sums = [s for s in group.stages if s.is_product_sum] if schema.whole else [group.main]
    split = dict(schedule.tiles).get('split', 1)
    terms = (math.prod(s.sizes[name] for name in s.reduction) for s in sums)
    most = _at_once(group, schedule)
    return sum(parts.left_out + cut_off(parts, min(math.ceil(n / split), most)) for n in terms)


def _at_once(group: Group, schedule: GpuSchedule) -> int:
    """Terms that matrix units add up before they begin anew."""
    at_once = schema_named(schedule.schema).at_once
    if at_once is None or not dict(schedule.tiles).get('fresh'):
        return sys.maxsize
    return at_once(group, schedule)


def refined(group: Group, schedule: GpuSchedule, tolerance: float) -> GpuSchedule | None:
    """A schedule whose sums are expected to be right by a tolerance: itself, or the same one whose
    matrix units begin their sums anew; None where neither is.
    """
    if precise(group, schedule, tolerance):
        return schedule
    if schedule.intrinsic == 'fma' or schema_named(schedule.schema).at_once is None:
        return None
    tiles = {**dict(schedule.tiles), 'fresh': 1}
    anew = GpuSchedule.of(schedule.schema, schedule.intrinsic, **tiles)
    try:
        return anew if precise(group, anew, tolerance) else None
    except ScheduleError:
        return None  # its registers do not hold what is not added yet


def half_error(group: Group) -> float:
    """What rounding to f16 or bf16 may add to an error: of a result and of what it is made of, for
    each sum of products, since an attention rounds the weights between its two.
    """
    sums = sum(stage.is_product_sum for stage in group.stages)
    return 2 * max(sums, 1) * HALVES.get(group.output.dtype, 0.0)


def precise(group: Group, schedule: GpuSchedule, tolerance: float = LARGEST_ERROR) -> bool:
    """Whether a schedule is expected to be right by a tolerance, as runtime/verify.py has it.

    Additions that cut are off in proportion to the sum. What else a schema does, such as
    transforms, is not: its error is as large where a result is small, which is compared with the
    root mean square of all of them; the largest of n normal results is sqrt(2 ln n) times that.
    """
    error = sum_error(group, schedule)
    if schema_named(schedule.schema).error is not None:
        error *= MARGIN * math.sqrt(2 * math.log(max(math.prod(group.output.shape), 2)))
    return error <= tolerance
