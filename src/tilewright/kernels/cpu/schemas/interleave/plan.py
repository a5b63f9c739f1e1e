"""What the interleave schema decides: the input of a network of bf16, converted.

    Out[n, y, x, c] = In[n, c, y - top, x - left]        at most four channels, zeros outside

Goes in: a group with that stage alone, and a schedule. Comes out: an `InterleavePlan`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.space import even_cuts, register_order, whole_tile
from tilewright.machine.isa import ISAS, tile_isa
from tilewright.ops.group import Group
from tilewright.ops.stage import read
from tilewright.schedule.schedule import Level, Schedule

MOST = 4  # channels, each of which is picked from its plane for every vector of pixels


@dataclass(frozen=True)
class InterleavePlan:
    """Everything that is decided before a line is written: where the image begins in the result."""

    group: Group
    schedule: Schedule
    top: int
    left: int


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can."""
    if _border(group) is None:
        return f'{group.label} does not make pixels of at most {MOST} planes of float32'
    return ''


def _border(group: Group) -> tuple[int, int] | None:
    """Rows and columns in front of the image; None of other groups."""
    stage = group.main
    given = [t for t in group.tensors if t.role == 'input']
    if len(group.stages) > 1 or stage.combiner or stage.expr != read(0) or stage.pad_value:
        return None
    if not stage.is_affine or len(given) != 1 or len(stage.write.index) != 4:
        return None
    if (given[0].dtype, group.output.dtype) != ('f32', 'bf16') or len(given[0].shape) != 4:
        return None
    names = [e.names for e in stage.write.index]
    if any(len(e.terms) != 1 or e.terms[0][1] != 1 or e.const for e in stage.write.index):
        return None
    image = stage.reads[0].index
    if [e.names for e in image] != [names[a] for a in (0, 3, 1, 2)]:
        return None
    if any(len(e.terms) != 1 or e.terms[0][1] != 1 for e in image):
        return None
    if image[0].const or image[1].const or image[2].const > 0 or image[3].const > 0:
        return None
    (images, _, _, channels), shape = group.output.shape, given[0].shape
    if channels > MOST or (images, channels) != shape[:2]:
        return None
    if -image[3].const > group.output.shape[2]:  # a border that is wider than the result
        return None
    return -image[2].const, -image[3].const


def plan_interleave(group: Group, schedule: Schedule) -> InterleavePlan:
    """[Group, Schedule] -> [InterleavePlan]"""
    border = _border(group)
    if border is None:
        raise ScheduleError(why_not(group))
    row = group.main.write.index[1].names[0]
    if any(name != row for name, _ in schedule.parallel) or not ISAS[schedule.isa].rows:
        raise ScheduleError(f'{group.label}: only {row} is cut between threads, for bf16')
    return InterleavePlan(group, schedule, *border)


def interleave_choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    """Rows cut between threads."""
    if not tile_isa(isa) or why_not(group):
        return
    stage = group.main
    tile = dict.fromkeys(stage.sizes, 1)
    order = register_order(stage)
    levels = (Level.of('reg', order, tile), Level.of('l1', order, whole_tile(stage, tile)))
    cut = even_cuts(stage, threads, (stage.write.index[1].names[0],))[0]
    yield Schedule(
        'interleave', tile_isa(isa), '', levels, cut, dtype='bf16', accumulation='f32'
    )  # fmt: skip
