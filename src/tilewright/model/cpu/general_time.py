"""The time of the general schema: what it loads, stores and computes, roughly.

Goes in: a group, a schedule with schema 'general', a machine. Comes out: a `Prediction`. Compilers
make the inner loops, which no model foresees; what counts is whether a second thread pays and that
estimates of neighbours compare. Most such groups wait for memory: every tensor crosses, once, the
boundaries inside which not all of them fit. Windows that overlap are read from the first cache.
"""

from __future__ import annotations

from tilewright.machine.isa import ISAS
from tilewright.machine.machine import Machine
from tilewright.model.cpu.prediction import Prediction
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.dtypes import SMOOTH
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Expr, Stage
from tilewright.schedule.schedule import Schedule

POINT_CYCLES = 0.5  # one load, store or plain function of a vector
SMOOTH_CYCLES = 8.0  # one exponential, logarithm, root of a vector
APART_CYCLES = 1.0  # one element that is not beside the one before
NEAR = 4  # elements that lie so far apart at most share vectors: those of windows with a stride
ROW_CYCLES = 12.0  # entering the innermost loop
_FAST = frozenset({'exp', 'sigmoid', 'tanh', 'sqrt', 'log', 'erf'})
LIBRARY_CYCLES = 40.0  # one call of a function of the C library


def predict_general(group: Group, schedule: Schedule, machine: Machine) -> Prediction:
    """[Group, Schedule, Machine] -> [Prediction]"""
    lanes = ISAS[schedule.isa].lanes
    cycles = sum(stage_cycles(group, stage, lanes) for stage in group.stages) / schedule.threads
    moved = float(group.compulsory_bytes)
    return roofline(group, schedule, machine, cycles, group.flops, moved)


def stage_cycles(group: Group, stage: Stage, lanes: int) -> float:
    """Cycles of one thread for all points of a stage."""
    lane = _lane(group, stage)
    each = _expression(stage.expr, lanes)
    for access in stage.accesses:
        step = abs(_step(group, access, lane))
        near = access.is_affine and step <= NEAR
        each += POINT_CYCLES * max(step, 1) / lanes if near else APART_CYCLES
    return stage.points * each + stage.points / stage.sizes.get(lane, 1) * ROW_CYCLES


def _lane(group: Group, stage: Stage) -> str:
    """The iterator that steps by one in what is read, or else in what is written; of a window the
    one along which results lie.
    """
    for access in (*stage.reads, stage.write):
        for name in access.names:
            if _step(group, access, name) == 1 and stage.sizes[name] > 1:
                return _along_results(group, stage, access, name) or name
    return stage.dims[-1].name if stage.dims else ''


def _along_results(group: Group, stage: Stage, access: Access, tap: str) -> str:
    """The iterator of results that are neighbours, as their windows are; '' where there is none."""
    if tap not in stage.reduction or not access.is_affine:
        return ''
    windowed = next(e for e in access.index if tap in e.names)
    for name in windowed.names:
        near = abs(_step(group, access, name)) <= NEAR
        if near and stage.sizes[name] > 1 and _step(group, stage.write, name) == 1:
            return name
    return ''


def _step(group: Group, access: Access, name: str) -> int:
    strides = group.tensor(access.tensor).strides
    return sum(e.coefficient(name) * s for e, s in zip(access.index, strides, strict=True))


def _expression(expr: Expr, lanes: int) -> float:
    inner = sum(_expression(a, lanes) for a in expr.args)
    if expr.op in _FAST:
        return inner + SMOOTH_CYCLES / lanes
    if expr.op in SMOOTH or expr.op in ('pow', 'mod', 'fmod'):
        return inner + LIBRARY_CYCLES
    return inner + (POINT_CYCLES / lanes if expr.args else 0.0)
