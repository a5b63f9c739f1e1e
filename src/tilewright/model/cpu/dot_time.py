"""The time of a schedule of integer products: that of the outer products of its words.

Goes in: a group, a schedule with schema 'dot', a machine. Comes out: a `Prediction`. A word is as
large as a float, and a multiply-add of words is one instruction; what differs is the peak, which
machines know for their integer products, and the result, whose elements are smaller than words:
less crosses every boundary, and where they are narrowed on vectors they are stored faster.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu.schemas.dot.plan import words_of
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import predict_outer
from tilewright.model.cpu.prediction import Prediction
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

# Of what storing an element of 32 bits takes, for one of 8: narrowed on vectors, or by compilers.
# The former is the median of 1x1 layers of MobileNet-v2 on a Xeon (0.12 to 0.24).
VECTOR_SHARE, STORE_SHARE = 0.2, 0.6


def predict_dot(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    form = words_of(tiled_form(group, schedule.reg.tile), schedule)
    in_tiles = ISAS[schedule.isa].rows and machine.tiles
    seen = machine.in_tiles(schedule.dtype) if in_tiles else machine.in_words()
    found = predict_outer(form.group, schedule, seen)
    if DTYPES[group.output.dtype] > 1:
        return replace(found, moved=group.compulsory_bytes)
    share = min(group.compulsory_bytes / form.group.compulsory_bytes, 1.0)
    crossed = tuple(
        replace(b, bytes=share * b.bytes, seconds=share * b.seconds) for b in found.boundaries
    )
    less = sum(b.seconds for b in found.boundaries[1:]) - sum(b.seconds for b in crossed[1:])
    on_vectors = ISAS[schedule.isa].arch in ('x86_64', 'aarch64')
    saved = (1 - (VECTOR_SHARE if on_vectors else STORE_SHARE)) * found.store_s
    bound = share * found.bound_s
    return replace(
        found, moved=group.compulsory_bytes, boundaries=crossed, store_s=found.store_s - saved,
        seconds=max(found.seconds - less - saved, bound), bound_s=bound,
    )  # fmt: skip
