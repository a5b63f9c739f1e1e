"""The time of a schedule of integer products: that of the outer products of its words.

Goes in: a group, a schedule with schema 'dot', a machine. Comes out: a `Prediction`. A word is as
large as a float, and a multiply-add of words is one instruction; what differs is the peak, which
machines know for their integer products.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.kernels.cpu.schemas.dot.plan import words_of
from tilewright.machine.machine import Machine
from tilewright.model.cpu.outer_time import predict_outer
from tilewright.model.cpu.prediction import Prediction
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def predict_dot(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    form = words_of(tiled_form(group, schedule.reg.tile), schedule)
    found = predict_outer(form.group, schedule, machine.in_words())
    return replace(found, moved=group.compulsory_bytes)
