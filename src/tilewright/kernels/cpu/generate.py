"""[Group, Schedule] -> [C source]: the table of schemas."""

from __future__ import annotations

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.names import safe_names
from tilewright.kernels.cpu.schemas.general import code as general
from tilewright.kernels.cpu.schemas.outer import code as outer
from tilewright.kernels.cpu.schemas.stencil import code as stencil
from tilewright.kernels.cpu.schemas.winograd import code as winograd
from tilewright.machine.isa import ISAS
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

SCHEMAS = {
    'outer': outer.generate,
    'general': general.generate,
    'winograd': winograd.generate,
    'stencil': stencil.generate,
}
# A choice between two expressions becomes vectors only if neither may stop the process.
FLAGS = ('-fno-trapping-math',)


def check(group: Group, schedule: Schedule) -> None:
    """Raise ScheduleError for what no schema can generate; each schema adds its own checks."""
    if schedule.isa not in ISAS:
        raise ScheduleError(
            f'{schedule.isa!r} is not an instruction set; choose one of {", ".join(ISAS)}'
        )
    if schedule.schema != 'general':
        _check_plain(group)
    if schedule.schema not in ('general', 'outer') and group.stages[0] is not group.main:
        raise ScheduleError(f'{group.label}: stages before {group.main.name} cannot be generated')
    ordered = [d.name for d in group.main.dims if d.kind == 'sequential']
    if ordered:
        raise ScheduleError(f'{group.label}: sequential dimensions {ordered} cannot be generated')
    cut = [name for name, _ in schedule.parallel]
    if len(set(cut)) < len(cut):
        raise ScheduleError(
            f'{group.label}: parallel={schedule.parallel} cuts a dimension twice; give each '
            f'dimension one number of ways'
        )


def _check_plain(group: Group) -> None:
    """Every schema but the general one wants float32, affine indices and one part."""
    other = [t.name for t in group.tensors if t.dtype != 'f32']
    if other:
        raise ScheduleError(
            f'{group.label}: {other} are not f32, all that this schema has; use the general one'
        )
    if not group.is_plain:
        raise ScheduleError(
            f'{group.label} has tables, lookups or iterators in its expressions; use the general '
            f'schema'
        )


def generate(group: Group, schedule: Schedule) -> str:
    """The C translation unit that computes `group` by `schedule`; deterministic."""
    check(group, schedule)
    tiled = tiled_form(group, schedule.reg.tile)
    return SCHEMAS[schedule.schema](*safe_names(tiled, schedule))


def compiler_flags(schedule: Schedule) -> tuple[str, ...]:
    own = general.FLAGS if schedule.schema == 'general' else FLAGS
    return (*ISAS[schedule.isa].compiler_flags, *own)
