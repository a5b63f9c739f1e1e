"""The time of an input that is converted to pixels of bf16: cycles for every pixel, or memory."""

from __future__ import annotations

from dataclasses import replace

from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

PIXEL_CYCLES = 3  # rounded in vectors, put together and stored


def predict_interleave(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    pixels = group.output.size / group.output.shape[-1]
    seen, moved = replace(schedule, isa=machine.isa, dtype='f32'), float(group.compulsory_bytes)
    return roofline(group, seen, machine, PIXEL_CYCLES * pixels / schedule.threads, 0.0, moved)
