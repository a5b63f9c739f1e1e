"""What the Strassen schema decides before it writes a line.

Goes in: a group that sums up products with constant weights, and a schedule with schema 'strassen'
over the dimensions of one block of the product (`ops.strassen.block_group`), with the option levels
(how often operands are cut in two). Comes out: a `StrassenPlan`, or a ScheduleError that says why
the schedule is not legal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi, operand
from tilewright.kernels.cpu.contraction import (
    Contraction,
    check_plain,
    contract,
    vector_candidates,
    why_no_products,
)
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.nest import every
from tilewright.kernels.cpu.schemas.outer.plan import Ahead, OuterPlan, plan_outer
from tilewright.machine.isa import ISAS
from tilewright.ops.flatten import flatten, tiled_form
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.strassen import MOST_LEVELS, PRODUCTS, block_group, predicted_error
from tilewright.schedule.schedule import Schedule

LEAST_ROWS = 16  # of a block: below, weights that grow cost more than products that are saved


@dataclass(frozen=True)
class StrassenPlan:
    """Everything that the generator decides before it writes a line.

    `block` is the plan of one block's product, whose operand lies in V, [row][product][term], for a
    piece of the sum, and whose accumulators are a register tile.
    """

    group: Group
    schedule: Schedule
    levels: int
    block: OuterPlan

    @property
    def row(self) -> str:
        """The pixel dimension that is cut in two."""
        return self.block.contraction.pixels[-1]

    @property
    def vector(self) -> str:
        return self.block.contraction.vector

    @property
    def loop(self) -> str:
        return self.block.contraction.loop

    @property
    def parts(self) -> int:
        """Blocks that a dimension is cut into."""
        return 1 << self.levels

    @property
    def products(self) -> int:
        return PRODUCTS**self.levels

    @property
    def sizes(self) -> dict[str, int]:
        """Of one block."""
        return self.block.group.main.sizes

    @property
    def rows(self) -> int:
        """Rows of a block that are computed with one set of sums of the left operand."""
        return self.schedule.levels[-1].tile[self.row]

    @property
    def tiles(self) -> int:
        """Register tiles in that many rows."""
        return -(-self.rows // self.schedule.reg.tile[self.row])

    @property
    def piece(self) -> int:
        """Terms of a sum between two visits of it."""
        return self.schedule.levels[1].tile[self.loop]

    @property
    def columns(self) -> int:
        """Columns of a block that are computed together."""
        return self.schedule.levels[-1].tile[self.vector]

    @property
    def v_step(self) -> int:
        """From one product's left operand to the next, of the same row."""
        return abi.aligned(self.piece)

    @property
    def v_floats(self) -> int:
        """Left operands of all products."""
        return abi.aligned(self.rows * self.block.operand.strides[self.row])

    @property
    def tile_floats(self) -> int:
        """Sums of one register tile."""
        return abi.aligned(self.schedule.reg.tile[self.row] * self.block.panels.width)

    @property
    def panel_floats(self) -> int:
        """Sums of all register tiles of one panel, those of all products side by side."""
        return self.tiles * self.products * self.tile_floats

    @property
    def m_floats(self) -> int:
        """Sums of all products, for the columns that are computed together."""
        return -(-self.columns // self.block.panels.width) * self.panel_floats

    @property
    def whole_vectors(self) -> bool:
        """Whether every piece of the sum is made of whole vectors."""
        lanes = ISAS[self.schedule.isa].lanes
        return self.piece % lanes == 0 and self.sizes[self.loop] % lanes == 0

    @property
    def scratch_floats(self) -> int:
        """Stores that transpose look up to three rows behind the last one."""
        results = self.parts**2 * self.tile_floats + abi.aligned(3 * self.block.panels.width)
        return self.v_floats + self.m_floats + results

    @property
    def packed_floats(self) -> int:
        """All sums of the weights."""
        return self.products * self.block.panels.floats


def why_not(group: Group) -> str:
    """Why no schedule can compute a group; '' where one can."""
    flat = flatten(group)
    found = vector_candidates(flat)
    if not found:
        return f'no dimension of {group.label} indexes constant weights and the result alone'
    return why_no_products(group) or why_no_blocks(flat, contract(flat, found[0]), 1)


def why_no_blocks(group: Group, c: Contraction, levels: int, least_rows: int = LEAST_ROWS) -> str:
    """Why a product cannot be cut in two so often; '' where it can."""
    if group.stages[0] is not group.main:
        return f'{group.label} changes its input first'
    if c.batch or c.columns or not c.pixels or c.reduction != (c.loop,):
        return f'{group.label} is no product of two matrices'
    if operand.reads_outside(group, c):
        return f'{group.label} reads outside its input'
    if operand.in_place(group, c).strides.get(c.loop) != 1:
        return f'{group.label}: the terms of a sum do not lie side by side in its input'
    sizes, parts = c.stage.sizes, 1 << levels
    odd = [d for d in (c.vector, c.loop) if sizes[d] % parts]
    if odd:
        return f'{group.label}: {odd[0]}={sizes[odd[0]]} is no multiple of {parts}'
    if sizes[c.pixels[-1]] < least_rows * parts:
        return f'{group.label}: {c.pixels[-1]} has fewer than {least_rows} rows for each block'
    return ''


def levels_of(schedule: Schedule) -> int:
    found = dict(schedule.options).get('levels', 0)
    if not 1 <= found <= MOST_LEVELS:
        raise ScheduleError(
            f'a schedule of the strassen schema needs the option levels, from 1 to {MOST_LEVELS}; '
            f'not {found}'
        )
    return found


def blocks_of(group: Group, vector: str, levels: int, least_rows: int = LEAST_ROWS) -> Group:
    """The group of one block; ScheduleError where there is none."""
    candidates = vector_candidates(group)
    if vector not in candidates:
        raise ScheduleError(
            f'{group.label}: vector dimension {vector!r} is not one of {candidates}'
        )
    c = contract(group, vector)
    reason = why_no_blocks(group, c, levels, least_rows)
    if reason:
        raise ScheduleError(f'strassen: {reason}; use the direct algorithm')
    return block_group(group, (c.pixels[-1], c.vector, c.loop), levels)


def block_stage(group: Group, schedule: Schedule) -> Stage:
    """The product of one block, whose dimensions a schedule tiles."""
    flat = tiled_form(group, schedule.reg.tile)
    return blocks_of(flat, schedule.vector, levels_of(schedule)).main


def schedule_error(group: Group, schedule: Schedule) -> float:
    """Expected largest error over the largest output."""
    flat = tiled_form(group, schedule.reg.tile)
    return predicted_error(flat, contract(flat, schedule.vector).loop, levels_of(schedule))


def plan_strassen(group: Group, schedule: Schedule) -> StrassenPlan:
    """[Group, Schedule] -> [StrassenPlan]"""
    check_plain(group)
    levels = levels_of(schedule)
    smaller = blocks_of(group, schedule.vector, levels)
    c = contract(smaller, schedule.vector)
    _check_levels(smaller, schedule, c)
    # Sums go into buffers of their own, so that the plan of a block knows of one level alone.
    inner = replace(
        schedule, schema='outer', options=(), levels=(schedule.reg, schedule.levels[-1])
    )
    plan = plan_outer(smaller, inner)
    isa, row, high = ISAS[schedule.isa], c.pixels[-1], schedule.reg.tile[c.pixels[-1]]
    if not micro.in_place(isa, high, plan.panels.vectors):
        raise ScheduleError(
            f'{group.label}: register tiles of {high} rows x {plan.panels.vectors} vectors leave '
            f'no registers for numbers of each row on {isa.name}'
        )
    rows, piece = (schedule.levels[1].tile[d] for d in (row, c.loop))
    # Rows of a product are far apart, so that filling V touches few pages at a time.
    row_floats = operand.odd_lines(PRODUCTS**levels * abi.aligned(piece))
    left_over = -group.main.sizes[row] % (1 << levels)
    extents = {e[-1] for e in plan.pixel_extents}
    extents |= {e - d for e in extents for d in range(1, left_over + 1) if e > d}
    if row in every(schedule):
        extents = set(range(1, high + 1))
    ones = (1,) * (len(c.pixels) - 1)
    tiles = -(-rows // high)
    plan = replace(
        plan,
        operand=operand.Operand({c.loop: 1, row: row_floats}, (0,), 0, (), {}),
        pixel_extents=tuple((*ones, e) for e in sorted(extents)),
        ahead=Ahead(row, '', high, 0, -(-plan.panels.width // tiles)),
    )
    return StrassenPlan(group, schedule, levels, plan)


def _check_levels(group: Group, schedule: Schedule, c: Contraction) -> None:
    """ScheduleError where levels are not those of this schema."""
    varying = set(every(schedule)) - {c.pixels[-1]}
    if varying:
        raise ScheduleError(f'{group.label}: {sorted(varying)} may not vary, only {c.pixels[-1]}')
    names = [level.name for level in schedule.levels]
    if names != ['reg', 'l1', 'l2', 'l3'] or schedule.pack:
        raise ScheduleError(
            f'{group.label}: the strassen schema has the levels reg, l1, l2, l3 and no pack level, '
            f'not {names} and {schedule.pack!r}'
        )
    sizes, row = group.main.sizes, c.pixels[-1]
    reg, l1, l2, l3 = (level.tile for level in schedule.levels)
    if set(reg) != set(sizes):
        raise ScheduleError(f'{group.label}: the schedule tiles {sorted(reg)}, not {sizes}')
    if any(t[d] > 1 for t in (reg, l1, l2, l3) for d in c.pixels[:-1]):
        raise ScheduleError(f'{group.label}: only {row} of {c.pixels} has tiles')
    whole = l3[c.loop] == sizes[c.loop] and reg[c.loop] == 1
    if not whole or l1[c.loop] != l2[c.loop] or l1[c.vector] != reg[c.vector]:
        raise ScheduleError(
            f'{group.label}: {c.loop} is whole at l3 and has one tile for l1 and l2, and '
            f'{c.vector} one for reg and l1'
        )
    if l1[row] != l3[row] or l2[c.vector] != l3[c.vector]:
        raise ScheduleError(
            f'{group.label}: {row} has one tile for all caches, and {c.vector} one for l2 and l3'
        )
    if l3[c.vector] % reg[c.vector] or (l3[row] % reg[row] and l3[row] < sizes[row]):
        raise ScheduleError(
            f'{group.label}: tiles of {c.vector} and {row} are not made of whole register tiles'
        )
