"""What the schema of normalised rows decides before it writes a line.

Goes in: a group on [rows, length] whose stages are sums along a row, numbers made of them, and at
last the row by these: layer and RMS normalisation of bf16. Comes out: a plan. Rows are cut between
threads. What elements are divided by is a number of the row: they are multiplied by its inverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.half_vectors import MOST_LANES, MOVES
from tilewright.kernels.cpu.schema import Work
from tilewright.machine.isa import ISAS, tile_isa
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Expr, Stage, read, var
from tilewright.schedule.schedule import Level, Schedule

LOADED = ('bf16', 'f32')  # what elements may be


@dataclass(frozen=True)
class RowsPlan:
    """The group with names for its two dimensions."""

    group: Group
    schedule: Schedule

    @property
    def row(self) -> str:
        return self.group.stages[-1].dims[0].name

    @property
    def along(self) -> str:
        return self.group.stages[-1].dims[1].name

    @property
    def length(self) -> int:
        return self.group.stages[-1].sizes[self.along]


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on a machine with tiles."""
    last = group.stages[-1]
    other = f'{group.label} is not rows by sums along them'
    if group.is_sequential or len(last.dims) != 2 or last.combiner is not None:
        return other
    row, along = (d.name for d in last.dims)
    if not any(s.combiner for s in group.stages) or group.output.dtype not in LOADED:
        return other
    for stage in group.stages:
        if not stage.is_affine:
            return other
        shapes = {_shape(a, row, along) for a in stage.reads}
        kept = _shape(stage.write, row, along)
        given = {
            _shape(a, row, along) for a in stage.reads if group.tensor(a.tensor).role != 'inner'
        }
        if (
            None in shapes
            or 'row' in given
            or [d.name for d in stage.dims] not in ([row], [row, along])
        ):
            return other
        if stage.combiner not in (None, 'sum') or kept != ('row' if stage is not last else 'all'):
            return other
        if bool(stage.combiner) != (stage is not last and along in stage.sizes):
            return other
    inputs = (*group.with_role('input'), *group.with_role('constant'))
    if any(t.dtype not in LOADED for t in inputs):
        return f'{[t.name for t in inputs]} of {group.label} are not bf16 or f32'
    if group.half != 'bf16':
        return f'{group.label} has no bf16'
    return ''


def _shape(access: Access, row: str, along: str) -> str | None:
    """Whether an access is that of all elements, of a number of each row or of each column."""
    if access.tables or access.lookups:
        return None
    known = {(var(row), var(along)): 'all', (var(row),): 'row', (var(along),): 'column'}
    return known.get(access.index)


def plan_rows(group: Group, schedule: Schedule) -> RowsPlan:
    """[Group, Schedule] -> [RowsPlan]"""
    why = why_not(group)
    if why:
        raise ScheduleError(f'{why}; the schema of rows cannot compute it')
    if not ISAS[schedule.isa].rows or ISAS[schedule.isa].arch not in MOVES:
        raise ScheduleError(f'{group.label}: {schedule.isa} does not round to bf16 on vectors')
    plan = RowsPlan(group, schedule)
    if any(d != plan.row for d, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: only rows can be cut between threads')
    return plan


def row_choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    """[Group, ISA, threads] -> the schedule, with as many threads as there are rows for."""
    name = isa if ISAS[isa].rows else tile_isa(isa)
    if not name:
        return
    row, along = group.stages[-1].dims
    ways = min(threads, row.size)
    reg = Level.of('reg', (row.name, along.name), {row.name: 1, along.name: along.size})
    cut = ((row.name, ways),) if ways > 1 else ()
    yield Schedule('normal_rows', name, along.name, (reg,), cut, '', (), 'bf16', 'f32')


def row_work(group: Group, _schedule: Schedule) -> Work:
    """Elements that are loaded and computed in vectors, by every stage along rows."""
    last = group.stages[-1]
    passes = sum(1 for s in group.stages if len(s.dims) == len(last.dims))
    vectors = passes * last.points / MOST_LANES
    return Work(group.flops, group.compulsory_bytes, 2.0 * vectors)


def row_lines(group: Group, schedule: Schedule) -> list[str]:
    """The loops in words."""
    p = plan_rows(group, schedule)
    lines = ['for each row:']
    lines += [
        f'  {stage.name}: {"sum along it" if stage.combiner else "of its numbers"}'
        for stage in group.stages[:-1]
    ]
    return [*lines, f'  {group.stages[-1].name}: {p.length} elements']


@dataclass(frozen=True, slots=True)
class Formula:
    """An expression over what is read; `inverses` are numbers of the row by name, each with what it
    is the inverse of, over the same reads.
    """

    expr: Expr
    reads: tuple[Access, ...]
    inverses: tuple[tuple[str, Expr], ...] = ()


def by_inverses(stage: Stage, scalars: set[str]) -> Formula:
    """A stage's expression with products where it divided by numbers of the row."""
    found: list[tuple[str, Expr]] = []
    reads = list(stage.reads)
    alone = {i for i, a in enumerate(reads) if a.tensor in scalars}

    def swap(expr: Expr) -> Expr:
        if expr.op == 'div' and expr.args[1].args and set(expr.args[1].reads()) <= alone:
            name = f'inverse_{len(found)}'
            found.append((name, expr.args[1]))
            reads.append(Access(name, (var(stage.dims[0].name),)))
            inverse = read(len(reads) - 1)
            return Expr('mul', (swap(expr.args[0]), inverse))
        return replace(expr, args=tuple(map(swap, expr.args)))

    made = swap(stage.expr)
    return Formula(made, tuple(reads), tuple(found))
