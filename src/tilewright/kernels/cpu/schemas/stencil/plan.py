"""What the stencil schema decides before it writes a line.

Goes in: a group that `cover.stencil` describes (a depthwise convolution above all) and a schedule
with schema 'stencil' and the option `lanes`. Comes out: a `StencilPlan`, or a ScheduleError that
says why the schedule is not legal.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import check_plain
from tilewright.kernels.cpu.nest import every
from tilewright.kernels.cpu.schemas.stencil.cover import (
    MOST_STATEMENTS,
    Rows,
    Stencil,
    Strip,
    cover_columns,
    cover_rows,
    crossed,
    every_columns,
    every_rows,
    statements,
    stencil,
)
from tilewright.kernels.cpu.vector_epilogue import VectorEpilogue, plan_vector_epilogue
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

QUAD = 4  # weights in a register of which multiply-adds take one lane


@dataclass(frozen=True)
class StencilPlan:
    """Everything that the generator decides before it writes a line."""

    group: Group
    schedule: Schedule
    shape: Stencil
    lanes: int
    rows: tuple[Rows, ...]
    strips: tuple[Strip, ...]
    epilogue: VectorEpilogue

    @property
    def by_lane(self) -> bool:
        """Whether multiply-adds can take a lane of a register as their factor."""
        return ISAS[self.schedule.isa].by_lane

    @property
    def by_pointer(self) -> bool:
        """Whether rows are read through pointers of their own, those in the padding from zeros."""
        return self.rows[0].moves

    @property
    def padded(self) -> int:
        """Floats of one packed filter: whole registers, so that they can be loaded."""
        return -(-self.shape.taps // QUAD) * QUAD

    @property
    def crossed(self) -> bool:
        """Whether lanes of sums are in the order CROSSED (cover.py)."""
        return crossed(ISAS[self.schedule.isa], self.lanes, self.shape.across.step)

    @property
    def pitch(self) -> int:
        """From one row of the input to the next."""
        number = self.shape.down_axis
        return self.group.tensor(self.shape.a.tensor).strides[number] if number >= 0 else 0


def option(schedule: Schedule, name: str) -> int:
    options = dict(schedule.options)
    if name not in options:
        raise ScheduleError(f'a schedule of the stencil schema needs the option {name!r}')
    return options[name]


def plan_stencil(group: Group, schedule: Schedule) -> StencilPlan:
    """What will be generated; ScheduleError where the schedule is not legal for this schema."""
    check_plain(group)
    shape = stencil(group)
    label, sizes = group.label, group.main.sizes
    if schedule.vector != shape.across.name:
        raise ScheduleError(
            f'{label}: the vector dimension is {schedule.vector!r}; rows lie along '
            f'{shape.across.name}'
        )
    lanes, most = option(schedule, 'lanes'), ISAS[schedule.isa].lanes
    if lanes < 2 or lanes > most or lanes & (lanes - 1):
        raise ScheduleError(
            f'{label}: lanes={lanes} is not a vector of {schedule.isa}; choose a power of two '
            f'from 2 to {most}'
        )
    if schedule.pack:
        raise ScheduleError(f'{label}: pack={schedule.pack!r}; a stencil reads its input in place')
    reg = schedule.reg.tile
    if set(reg) != set(sizes):
        raise ScheduleError(f'{label}: the schedule does not tile {sorted(sizes)}')
    if reg[shape.across.name] % lanes:
        raise ScheduleError(
            f'{label}: register tile {shape.across.name}={reg[shape.across.name]} is not a '
            f'multiple of {lanes} lanes'
        )
    for name in shape.outer:
        if reg[name] != 1:
            raise ScheduleError(f'{label}: register tile {name}={reg[name]} must be 1')
    for level in schedule.levels:
        cut = [d for d in group.main.reduction if level.tile[d] < sizes[d]]
        if level.name != 'reg':
            cut += [d for d in group.main.parallel if level.tile[d] < sizes[d]]
        if cut:
            raise ScheduleError(
                f'{label}: level {level.name} cuts {cut}; only rows and vectors are blocked'
            )
    bad = [d for d, _ in schedule.parallel if d not in (*shape.outer, shape.down.name)]
    if bad:
        raise ScheduleError(f'{label}: {bad} cannot be cut between threads')
    tile, vectors = reg.get(shape.down.name, 1), reg[shape.across.name] // lanes
    rows = cover_rows(shape.down, tile)
    strips = cover_columns(shape.across, lanes, vectors)
    varying = every(schedule)
    if shape.down.name in varying and not shape.loops:
        rows = every_rows(shape.down, tile)
    if shape.across.name in varying:
        at_every = every_columns(shape.across, lanes, vectors)
        strips = at_every if statements(shape, rows, at_every) <= MOST_STATEMENTS else strips
    written = statements(shape, rows, strips)
    if written > MOST_STATEMENTS:
        raise ScheduleError(
            f'{label}: {written} multiply-adds would be written out, the limit is '
            f'{MOST_STATEMENTS}; choose smaller register tiles'
        )
    epilogue = plan_vector_epilogue(group)
    return StencilPlan(group, schedule, shape, lanes, rows, strips, epilogue)
