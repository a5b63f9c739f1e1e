"""Spaces of GPU schedules to search: values of each decision, and steps from one to the next.

Goes in: a group and a machine. Comes out: a `Space` for search/gpu/tune.py that draws and changes
schedules of every schema that has a table (kernels/gpu/schema.py). What is legal is not repeated: a
schedule is what its generator accepts, what the machine has instructions for, what is precise, and
what fits it. Draws avoid what cannot be good: blocks for less than half of the multiprocessors, or
thousands of them whose sums have to be joined.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.precision import precise
from tilewright.kernels.gpu.registry import GPU_SCHEMAS, schema_named
from tilewright.kernels.gpu.schema import DIRECT, GpuSchema, Table
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.bounds import compute_gflops
from tilewright.model.gpu.time import COSTS
from tilewright.ops.chain import is_chained
from tilewright.ops.front import has_front, without_front
from tilewright.ops.group import Group
from tilewright.ops.integer import is_integer_products
from tilewright.schedule.gpu import GpuSchedule

Kind = tuple[str, str]  # schema, intrinsic

LEAST_THREADS = 64
FEW_BLOCKS, MANY_JOINED = 0.5, 24  # blocks, as a multiple of the multiprocessors
FRONTED = 4.0  # times that schemas which apply a front are drawn more often
FIXED_DRAWS = 400  # of a schema, until it counts as one for other operators
REACHED = 1 / 3  # of a machine's peak, by direct convolutions of many pixels
LATER = 0.5  # of a launch: what the second and third kernel of a graph were seen to cost


def pays(schema: GpuSchema, group: Group, machine: GpuMachine) -> bool:
    """Whether the algorithm of a schema applies, and may win: there is much to save, and the
    products that it saves would take longer, at what direct kernels reach of the machine's peak,
    than all that is written between kernels and read again, and its further launches.
    """
    found = schema.shortcut(group) if schema.shortcut else None
    if found is None or not found.many:
        return False
    peak = max(compute_gflops(machine, i) for i in found.intrinsics if machine.has(i))
    saved = found.saved_flops / (REACHED * peak)
    moved = found.moved_bytes / machine.global_gbps
    return (saved - moved) / 1e9 > LATER * found.launches * COSTS.launch_s


def _is_wanted(schema: GpuSchema, group: Group, machine: GpuMachine, algorithm: str) -> bool:
    if schema.shortcut is None:
        return True
    if algorithm == schema.algorithm:
        return schema.shortcut(group) is not None
    return algorithm == 'auto' and pays(schema, group, machine)


def _has_types(schema: GpuSchema, group: Group) -> bool:
    """Whether a schema is searched for what a group multiplies."""
    if is_integer_products(group):
        return schema.integers
    return schema.whole or schema.half == bool(group.half)


def tables(group: Group, machine: GpuMachine, algorithm: str = 'auto') -> dict[Kind, Table]:
    """(schema, intrinsic) -> its table, for those that the machine has instructions for.

    With the name of an algorithm its schemas are there wherever it applies, with 'direct' nowhere.
    Those whose table is empty are not. Multiply-adds come first, other algorithms than the direct
    one last.
    """
    found = [
        (schema, intrinsic, schema.table)
        for schema in GPU_SCHEMAS.values()
        if schema.table is not None
        and _has_types(schema, group)
        and _is_wanted(schema, group, machine, algorithm)
        for intrinsic in schema.intrinsics
        if machine.has(intrinsic)
    ]
    found.sort(key=lambda one: (one[0].shortcut is not None, one[1] != 'fma'))
    made = {(schema.name, kind): table(group, kind) for schema, kind, table in found}
    return {kind: values for kind, values in made.items() if values}


@dataclass(frozen=True)
class Moves:
    """The space of one group on one machine. What was found legal, or not, is remembered.

    checked  whether all neighbours are legal; otherwise `legal` says it of those that matter
    """

    group: Group
    machine: GpuMachine
    tables: Mapping[Kind, Table]
    checked: bool = True
    _seen: dict[GpuSchedule, tuple[bool, int]] = field(default_factory=dict)
    _kernels: dict[int, str] = field(default_factory=dict)

    def _look(self, schedule: GpuSchedule) -> tuple[bool, int]:
        """(whether it is legal, the blocks of its largest kernel)."""
        if schedule not in self._seen:
            self._seen[schedule] = self._generated(schedule)
        return self._seen[schedule]

    def _generated(self, schedule: GpuSchedule) -> tuple[bool, int]:
        if not self.machine.has(schedule.intrinsic) or not precise(self.group, schedule):
            return False, 0
        try:
            module = generate(self._decided(schedule), schedule)
            for kernel in module.kernels:
                self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
        except ScheduleError:
            return False, 0
        # Decisions for one stage of a chain change nothing where it has no such stage: of schedules
        # with the same kernels one is enough.
        if is_chained(self.group):
            text = hash(tuple((k.body, k.threads, k.grid) for k in module.kernels))
            if self._kernels.setdefault(text, schedule.digest) != schedule.digest:
                return False, 0
        enough = all(step.kernel.threads >= LEAST_THREADS for step in module.steps)
        fixed = schema_named(schedule.schema).fixed
        decided = [step.kernel for step in module.steps if not fixed(step.kernel)]
        return enough, max(math.prod(kernel.grid) for kernel in decided)

    def _decided(self, schedule: GpuSchedule) -> Group:
        """What the schedule decides: a front that is a kernel of its own is the same for all."""
        applied = schema_named(schedule.schema).front
        return self.group if applied else without_front(self.group)

    def legal(self, schedule: GpuSchedule) -> bool:
        """Whether it can be generated and fits, and gives a block enough threads."""
        return self._look(schedule)[0]

    def draw(self, rng: random.Random) -> GpuSchedule | None:
        kinds = list(self.tables)
        kind = rng.choices(kinds, [self._weight(kind) for kind in kinds])[0]
        tiles: dict[str, int] = {}
        for names, values in self.tables[kind].items():
            tiles |= zip(names, rng.choice(values), strict=True)
        schedule = GpuSchedule.of(*kind, **tiles)
        legal, blocks = self._look(schedule)
        if not legal or rng.random() > self._promise(schedule, blocks):
            return None
        return schedule

    def _weight(self, kind: Kind) -> float:
        """How often a kind is drawn; what needs a kernel more for a front is rarely the best."""
        schema = schema_named(kind[0])
        often = FRONTED if schema.front and has_front(self.group) else 1.0
        return often * schema.intrinsics[kind[1]]

    def _promise(self, schedule: GpuSchedule, blocks: int) -> float:
        """How readily a draw is taken: blocks that leave the machine idle are rarely the best, nor
        many that share a sum, unless it would be too long for matrix instructions else.
        """
        tiles = dict(schedule.tiles)
        split = tiles.get('split', 1)
        if split > 1 and blocks > MANY_JOINED * self.machine.multiprocessors:
            half = GpuSchedule.of(
                schedule.schema, schedule.intrinsic, **(tiles | {'split': split // 2})
            )
            return 0.0 if precise(self.group, half) else 1.0
        return 0.1 if blocks < FEW_BLOCKS * self.machine.multiprocessors else 1.0

    def neighbours(self, schedule: GpuSchedule) -> list[GpuSchedule]:
        """One decision a step up or down; a block's tiles also with a thread's or each other."""
        table = self.tables.get((schedule.schema, schedule.intrinsic))
        if table is None:
            return []
        schema = schema_named(schedule.schema)
        now = {**schema.unsaid, **dict(schedule.tiles)}
        now = {name: now[name] for names in table for name in names}
        steps = {
            names: [dict(zip(names, v, strict=True)) for v in _beside(values, names, now)]
            for names, values in table.items()
        }
        changes = [change for found in steps.values() for change in found]
        for a, b in schema.pairs:
            for first in steps.get((a,), ()):
                changes += [first | second for second in steps.get((b,), ())]
        found = (
            GpuSchedule.of(schedule.schema, schedule.intrinsic, **(now | change))
            for change in changes
        )
        return [s for s in found if not self.checked or self.legal(s)]


def _beside(
    values: Sequence[tuple[int, ...]], names: tuple[str, ...], now: Mapping[str, int]
) -> list[tuple[int, ...]]:
    """The next values below and above; of decisions that are taken together, all others, unless
    they are one number under several names.
    """
    here = tuple(now[name] for name in names)
    if any(len(set(value)) > 1 for value in values):
        return [v for v in values if v != here]
    below, above = [v for v in values if v < here], [v for v in values if v > here]
    return [*([max(below)] if below else []), *([min(above)] if above else [])]


def moves(
    group: Group,
    machine: GpuMachine,
    schemas: Sequence[str] | None = None,
    algorithm: str = 'auto',
) -> Moves:
    """The space of a group: all schemas that apply, or those named; general where none does.

    With the name of an algorithm its schemas alone, where it applies.
    """
    found = {
        kind: table
        for kind, table in tables(group, machine, algorithm).items()
        if (schemas is None or kind[0] in schemas) and _applies(group, machine, kind, table)
    }
    asked = {
        kind: table
        for kind, table in found.items()
        if algorithm != DIRECT and schema_named(kind[0]).algorithm == algorithm
    }
    return Moves(group, machine, asked or found)


def _applies(group: Group, machine: GpuMachine, kind: Kind, table: Table) -> bool:
    """Whether any of some fixed draws of one schema is legal: some are for other operators."""
    space, rng = Moves(group, machine, {kind: table}), random.Random(0)
    for _ in range(FIXED_DRAWS):
        tiles: dict[str, int] = {}
        for names, values in table.items():
            tiles |= zip(names, rng.choice(values), strict=True)
        if space.legal(GpuSchedule.of(*kind, **tiles)):
            return True
    return False


def schedule_text(schedule: GpuSchedule) -> str:
    """'tiled mma_tf32x3 bk64 bp128 ...': one line that a person can compare."""
    tiles = ' '.join(f'{name}{value}' for name, value in schedule.tiles)
    return f'{schedule.schema} {schedule.intrinsic} {tiles}'.strip()
