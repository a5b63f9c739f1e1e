"""The time of a schedule of bf16 products in tiles: that of the outer products of its words.

Goes in: a group, a schedule with schema 'tiles', a machine. Comes out: a `Prediction`. A word is as
large as a float and holds two numbers; the peak is that of bf16 in tiles. What differs is the
result, whose elements are half as large: half crosses every boundary.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu.schemas.half.words import words_of
from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.dot_time import STORE_SHARE, VECTOR_SHARE
from tilewright.model.cpu.outer_time import predict_outer
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.strip_time import shared_bytes
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def predict_tiles(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    form = words_of(tiled_form(group, schedule.reg.tile))
    seen = machine if machine.isa == schedule.isa else machine.in_tiles('bf16')
    found = predict_outer(form.group, schedule, seen)
    share = min(group.compulsory_bytes / form.group.compulsory_bytes, 1.0)
    crossed = tuple(
        replace(b, bytes=share * b.bytes, seconds=share * b.seconds) for b in found.boundaries
    )
    less = sum(b.seconds for b in found.boundaries[1:]) - sum(b.seconds for b in crossed[1:])
    if DTYPES[group.output.dtype] == 4:
        less = 0.0
    # Rounded on vectors, as bytes are narrowed (dot_time.py).
    saved = (1 - VECTOR_SHARE.get(ISAS[schedule.isa].arch, STORE_SHARE)) * found.store_s
    bound = share * found.bound_s
    return replace(
        found, flops_done=group.flops, moved=group.compulsory_bytes, boundaries=crossed,
        store_s=found.store_s - saved, bound_s=bound,
        seconds=max(found.seconds - less - saved + _waits(group, schedule, machine), bound),
    )  # fmt: skip


def _waits(group: Group, schedule: Schedule, machine: Machine) -> float:
    """Seconds for what other threads have, where channels are cut between them."""
    ways = dict(schedule.parallel).get(schedule.vector, 1)
    beyond = machine.bandwidth_gbps(min(2, len(machine.caches)), schedule.threads)
    return shared_bytes(group, ways) / (1e9 * beyond / schedule.threads)
