"""What the schema of narrow weights decides: what the outer products of their float32 form do.

Goes in: a group that sums up products with a constant operand of f16 or bf16, and a schedule of its
float32 form. Comes out: an `OuterPlan` whose panels are of 16 bits. A micro-kernel widens a vector
of weights as it loads it, so that memory moves half the bytes and sums are those of float32.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.schemas.outer import space
from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan, plan_outer
from tilewright.kernels.cpu.schemas.outer.words import outer_lines
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule


def has_narrow(isa: str) -> bool:
    """Whether an instruction set's micro-kernels widen weights as they load them."""
    return ISAS[isa].arch == 'x86_64'


def narrow_weights(group: Group) -> str:
    """The constant factor of 16 bits, where it is the only tensor that is not float32."""
    others = [t for t in group.tensors if t.dtype != 'f32']
    factors = {access.tensor for access in group.main.reads}
    alone = len(others) == 1 and others[0].role == 'constant' and others[0].name in factors
    return others[0].name if group.half and alone else ''


def widened(group: Group) -> Group:
    """The same with weights of float32."""
    tensors = tuple(
        replace(t, dtype='f32') if t.name == narrow_weights(group) else t for t in group.tensors
    )
    return replace(group, tensors=tensors)


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on x86."""
    if not narrow_weights(group):
        return f'{group.label} has no weights of 16 bits beside values of 32'
    return space.why_not(widened(group))


def plan_narrow(group: Group, schedule: Schedule) -> OuterPlan:
    """[Group, Schedule] -> [OuterPlan]"""
    if not has_narrow(schedule.isa):
        raise ScheduleError(f'{group.label}: {schedule.isa} has no kernels with weights of 16 bits')
    reason = why_not(group)
    if reason:
        raise ScheduleError(reason)
    stored = group.tensor(narrow_weights(group))
    made = plan_outer(widened(group), schedule)
    if made.contraction.b.tensor != stored.name:
        raise ScheduleError(f'{group.label}: {stored.name} does not lie in panels')
    return replace(made, stored=stored.dtype)


def draw_narrow(
    group: Group, isa: str, random: Random, levels: int, most_threads: int
) -> Schedule | None:
    """Any schedule of the float32 form."""
    if not has_narrow(isa) or why_not(group):
        return None
    drawn = space.draw_outer(widened(group), isa, random, levels, most_threads)
    return replace(drawn, schema='narrow') if drawn else None


def narrow_lines(group: Group, schedule: Schedule) -> list[str]:
    return outer_lines(widened(group), schedule)
