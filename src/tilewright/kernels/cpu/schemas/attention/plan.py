"""What the attention schema decides before it writes a line.

Goes in: an attention group (ops/attention.py) and a schedule with schema 'attention', whose levels
tile the last product. Comes out: a plan, or a ScheduleError that says why the schedule is not
legal.

    reg   i   rows of a micro-kernel, v its columns, in both products
    l1    i   rows of a block, j keys of a block: their scores are in a thread's near cache
    option direct   0: keys and columns are packed into panels, products by micro-kernels
                    1: they are read in place, row by row: for a few rows, which packing would cost
                       more than it gains
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.machine.isa import ISAS
from tilewright.ops.attention import (
    COLUMN,
    DEPTH,
    KEY,
    ROW,
    Attention,
    read_attention,
    why_no_attention,
)
from tilewright.ops.group import Group
from tilewright.ops.stage import Access
from tilewright.schedule.schedule import Schedule

SPARE = 16  # floats between rows of scores, so that they do not fall on the same lines of a cache


@dataclass(frozen=True, slots=True)
class Strides:
    """Where an operand lies: elements from a point of an iterator to the next, and the first."""

    of: dict[str, int]
    const: int

    def __getitem__(self, name: str) -> int:
        return self.of.get(name, 0)


@dataclass(frozen=True)
class AttentionPlan:
    """Everything that is decided before a line is written; lengths are in floats.

    high, width   rows and columns of a micro-kernel
    rows, keys    of a block
    """

    group: Group
    schedule: Schedule
    form: Attention
    direct: bool
    lanes: int
    high: int
    width: int
    rows: int
    keys: int

    def size(self, name: str) -> int:
        return self.form.sizes[name]

    def strides(self, access: Access) -> Strides:
        return Strides(*access_strides(self.group, access))

    @property
    def key_panels(self) -> int:
        return -(-self.size(KEY) // self.width)

    @property
    def tail(self) -> int:
        """Columns of the last panel of the second product, in whole vectors."""
        panels = -(-self.size(COLUMN) // self.width)
        rest = self.size(COLUMN) - (panels - 1) * self.width
        return -(-rest // self.lanes) * self.lanes

    @property
    def full_panels(self) -> int:
        """Panels of the second product before the last one."""
        return -(-self.size(COLUMN) // self.width) - 1

    @property
    def columns(self) -> int:
        """Floats of a row of results: whole vectors."""
        return self.full_panels * self.width + self.tail

    @property
    def pitch(self) -> int:
        """Floats from one row of scores to the next."""
        return self.keys + SPARE

    @property
    def buffers(self) -> tuple[tuple[str, int], ...]:
        """What a thread works in, in this order."""
        panels = () if self.direct else (
            ('k_panels', abi.aligned(self.key_panels * self.width * self.size(DEPTH))),
            ('v_panels', abi.aligned(self.size(KEY) * self.columns)),
        )  # fmt: skip
        return (
            *panels,
            ('q_rows', abi.aligned(self.rows * self.size(DEPTH))),
            ('scores', abi.aligned(self.rows * self.pitch)),
            ('sums', abi.aligned(self.rows * self.columns)),
            ('peaks', abi.aligned(self.rows)),
            ('totals', abi.aligned(self.rows)),
        )

    @property
    def scratch_floats(self) -> int:
        return sum(size for _, size in self.buffers)

    @property
    def packed_by(self) -> tuple[str, ...]:
        """Stacked iterators that choose keys and columns, which are packed once for each."""
        used = {*self.form.keys.names, *self.form.columns.names}
        return tuple(d for d in self.form.stack if d in used)

    @property
    def sharing(self) -> tuple[str, ...]:
        """Stacked iterators whose points share keys and columns."""
        return tuple(d for d in self.form.stack if d not in self.packed_by)


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can."""
    why = why_no_attention(group)
    if why:
        return why
    form = read_attention(group)
    used = {a.tensor for s in (form.scores, form.values) for a in s.accesses}
    other = [t for t in used if group.tensor(t).dtype != 'f32']
    return f'{other} of {group.label} are not f32' if other else ''


def plan_attention(group: Group, schedule: Schedule) -> AttentionPlan:
    """[Group, Schedule] -> [AttentionPlan]"""
    why = why_not(group)
    if why:
        raise ScheduleError(f'{why}; the attention schema cannot compute it')
    form, isa = read_attention(group), ISAS[schedule.isa]
    stage, label = form.values, group.label
    reg = schedule.reg.tile
    if set(reg) != set(stage.sizes) or len(schedule.levels) < 2:
        raise ScheduleError(
            f'{label}: the schedule tiles {sorted(reg)} in {len(schedule.levels)} levels; the last '
            f'product has {sorted(stage.sizes)}, and a block of rows and keys needs a second level'
        )
    block = schedule.levels[1].tile
    high, width, direct = reg[ROW], reg[COLUMN], bool(dict(schedule.options).get('direct', 0))
    if width % isa.lanes or block[KEY] % width or block[ROW] % high:
        raise ScheduleError(
            f'{label}: blocks of {block[ROW]} rows and {block[KEY]} keys are not whole tiles of '
            f'{high} x {width}, or these not whole vectors of {isa.lanes}'
        )
    need = registers_needed(high, width // isa.lanes)
    if not direct and need > isa.registers:
        raise ScheduleError(
            f'{label}: a tile of {high} x {width} needs {need} registers; {isa.name} has '
            f'{isa.registers}: choose a smaller one'
        )
    bad = [d for d, _ in schedule.parallel if d not in (*form.stack, ROW)]
    if bad:
        raise ScheduleError(f'{label}: {bad} cannot be cut between threads')
    return AttentionPlan(
        group, schedule, form, direct, isa.lanes, high, width, block[ROW], block[KEY]
    )
