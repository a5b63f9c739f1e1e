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
# The former is the median of 1x1 layers of MobileNet-v2 on a Xeon (0.12 to 0.24), and on a
# Neoverse-N1, whose vectors are a quarter as long (0.29 to 0.37).
VECTOR_SHARE, STORE_SHARE = {'x86_64': 0.2, 'aarch64': 0.3}, 0.6
HALF_SHARE = {'aarch64': 0.6}  # the same of f16, which is converted (0.58 to 0.65)


def predict_dot(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    form = words_of(tiled_form(group, schedule.reg.tile), schedule)
    in_tiles = ISAS[schedule.isa].rows and machine.tiles
    seen = machine.in_tiles(schedule.dtype) if in_tiles else machine.in_words()
    found = predict_outer(form.group, replace(schedule, isa=seen.isa), seen)
    arch, kind = ISAS[schedule.isa].arch, group.output.dtype
    if DTYPES[kind] > 1 and not (kind == 'f16' and arch in HALF_SHARE):
        return replace(found, moved=group.compulsory_bytes)
    share = min(group.compulsory_bytes / form.group.compulsory_bytes, 1.0)
    crossed = tuple(
        replace(b, bytes=share * b.bytes, seconds=share * b.seconds) for b in found.boundaries
    )
    less = sum(b.seconds for b in found.boundaries[1:]) - sum(b.seconds for b in crossed[1:])
    shares = HALF_SHARE if kind == 'f16' else VECTOR_SHARE
    saved = (1 - shares.get(arch, STORE_SHARE)) * found.store_s
    bound = share * found.bound_s
    return replace(
        found, moved=group.compulsory_bytes, boundaries=crossed, store_s=found.store_s - saved,
        seconds=max(found.seconds - less - saved, bound), bound_s=bound,
    )  # fmt: skip
