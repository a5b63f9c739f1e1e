"""Spaces of GPU schedules to search: values of each decision, and steps from one to the next.

Goes in: a group and a machine. Comes out: a `Space` for search/gpu/tune.py that draws and changes
schedules of every schema that has a table here. What is legal is not repeated: a schedule is what
its generator accepts, what the machine has instructions for, what is precise, and what fits it.
Draws avoid what cannot be good: blocks for less than half of the multiprocessors, or thousands of
them whose sums have to be joined.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import SCHEMAS, generate
from tilewright.kernels.gpu.precision import precise
from tilewright.kernels.gpu.schemas.winograd import plan as winograd_plan
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.bounds import compute_gflops
from tilewright.model.gpu.time import COSTS
from tilewright.ops.group import Group
from tilewright.ops.winograd import geometry
from tilewright.schedule.gpu import GpuSchedule

# Names of decisions that are taken together -> their values, neighbours beside each other.
Table = Mapping[tuple[str, ...], Sequence[tuple[int, ...]]]
Kind = tuple[str, str]

LEAST_THREADS = 64
FEW_BLOCKS, MANY_JOINED = 0.5, 24  # blocks, as a multiple of the multiprocessors
WARP = 32
# With fewer tiles, some images of a network at batch 1, a product for each of 36 points is thin:
# its weights are read for two blocks of pixels.
MANY_TILES = 512
REACHED = 1 / 3  # of a machine's peak, by direct convolutions of many pixels
# What a decision is where a schedule does not name it.
UNSAID = {'queue': 1, 'gap': 0, 'late': 0, 'bulk': 0}
_WAYS = [(1, 0, 0), (1, 0, 1), (2, 0, 0), (2, 1, 1), (3, 1, 1), (4, 1, 1)]  # stages, late, bulk
_SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# How often a schema is drawn, where it applies; the others once.
_WEIGHTS: dict[Kind, float] = {
    ('patch', 'mma_tf32x3'): 3.0, ('patch', 'wgmma_tf32x3'): 2.0, ('patch', 'wgmma_tf32_bf16'): 3.0,
    ('tiled', 'mma_tf32x3'): 2.0, ('general', 'fma'): 0.05,
    ('strip', 'wgmma_tf32_bf16'): 2.0, ('rs', 'fma'): 0.5, ('s', 'fma'): 0.5,
    ('winograd', 'wgmma_tf32_bf16'): 3.0, ('winograd', 'mma_tf32x3'): 2.0,
}  # fmt: skip


def _each(**values: Sequence[int]) -> dict[tuple[str, ...], list[tuple[int, ...]]]:
    """Decisions on their own."""
    return {(name,): [(v,) for v in sorted(set(list_))] for name, list_ in values.items()}


def _tiled(matrix: bool) -> Table:
    thread = (16, 32, 64) if matrix else (4, 8)
    return _each(
        bk=(16, 32, 64, 128), bp=(16, 32, 64, 128, 256), tk=thread, tp=thread,
        kb=(8, 16, 32) if matrix else (4, 8, 16, 32), stages=(2, 3, 4), split=_SPLITS,
        joint=(0, 1),
    )  # fmt: skip


def _parts(size: int, *further: int) -> list[int]:
    """Extents of a tile along a dimension: shares of it, and usual numbers that are not larger."""
    shares = [-(-size // n) for n in (1, 2, 3, 4, 6, 8)]
    return [n for n in (*shares, *further) if n <= size]


def _patch(group: Group) -> Table:
    sizes = group.main.sizes
    channels = sizes.get('c', 1)
    few = [n for n in (2, 3, 4, 6) if n <= channels] or [1]
    depths = [(n, 0) for n in (8, 16, 32) if n <= channels] + [(n, 1) for n in few]
    splits = [n for n in _SPLITS if n <= max(channels // 2, 1)]
    return {
        **_each(
            bk=(16, 32, 64, 128, 256),
            bn=[n for n in (1, 2, 4, 8, 16, 32, 64) if n <= sizes.get('n', 1)],
            bh=_parts(sizes.get('h', 1), 1, 2, 3, 4, 5, 6, 7, 8, 14, 16),
            bw=_parts(sizes.get('w', 1), 2, 4, 7, 8, 14, 16, 24, 28, 32, 64),
            tk=(16, 32, 64), tp=(8, 16, 24, 32, 40, 48, 56, 64), stages=(1, 2, 3), split=splits,
        ),
        ('kb', 'joint'): depths,
    }  # fmt: skip


def _patch_of_warpgroups(group: Group) -> Table:
    """All columns of a block belong to each warpgroup, 64 pixels to each of its tiles."""
    table = dict(_patch(group))
    for name in ('bk', 'tk', 'tp', 'stages'):
        del table[name,]
    columns = (16, 32, 48, 64, 96, 128, 192, 256)
    gaps = (0, 2, 4, 8) if group.main.sizes.get('n', 1) > 1 else (0,)
    return {
        **table,
        ('bk', 'tk'): [(n, n) for n in columns],
        **_each(tp=(64, 128, 192, 256), stages=(1, 2, 3, 4), queue=(1, 2), gap=gaps),
    }


def _patch_of_two_precisions(group: Group) -> Table:
    """As `_patch_of_warpgroups`; pieces in flight are asked for late and in bulk."""
    table = dict(_patch_of_warpgroups(group))
    del table['stages',]
    return {**table, ('stages', 'late', 'bulk'): _WAYS}


def _strip(table: Table) -> Table:
    """The same with pixels of a block through rows and images instead of an extent along each."""
    boxes = {('bn',), ('bh',), ('bw',), ('gap',)}
    kept = {names: values for names, values in table.items() if names not in boxes}
    return {**_each(bp=(64, 128, 192, 256, 320, 384, 448, 512)), **kept}


def _cnnopt() -> Table:
    lanes = [
        (k, y, WARP // (k * y)) for k in (1, 2, 4, 8, 16, 32) for y in (1, 2, 4, 8) if k * y <= WARP
    ]
    warps = [
        (k, y, x) for k in (1, 2, 4) for y in (1, 2, 4) for x in (1, 2, 4) if 2 <= k * y * x <= 16
    ]
    return {
        **_each(
            rk=(1, 2, 4, 8), ry=(1, 2, 4, 7), rx=(1, 2, 4, 7, 8), cb=(1, 2, 4, 8), stages=(1, 2),
            split=_SPLITS, join=(0, 1, 2),
        ),
        ('tk', 'ty', 'tx'): lanes,
        ('wk', 'wy', 'wx'): warps,
    }  # fmt: skip


def _depthwise() -> Table:
    return _each(
        th=(1, 2, 4, 8), tw=(1, 2, 4, 8), bh=(1, 2, 4, 8, 16), bw=(4, 8, 16, 32, 64),
        bp=(1, 2, 4, 8, 16), shared=(0, 1),
    )  # fmt: skip


def winograd_pays(group: Group, machine: GpuMachine) -> bool:
    """Whether winograd applies, and may win: there are many of the largest tiles, and the products
    that they save would take longer, at what direct kernels reach of the machine's peak, than all
    that is written between kernels and read again, and two more launches.
    """
    if winograd_plan.why_not(group):
        return False
    m = max(winograd_plan.TILES)
    if group.main.sizes['n'] * geometry(group, m).ph * geometry(group, m).pw < MANY_TILES:
        return False
    peak = max(compute_gflops(machine, i) for i in winograd_plan.PRODUCTS if machine.has(i))
    saved = group.flops * (1 - 1 / geometry(group, m).saving) / (REACHED * peak)
    between = winograd_plan.product_group(group, m).tensors
    moved = 2 * sum(t.bytes for t in between if t.role != 'constant')
    return (saved - moved / machine.global_gbps) / 1e9 > 2 * COSTS.launch_s


def _winograd(group: Group) -> dict[Kind, Table]:
    """The size of a tile, and tables of the products: rows without a window, many blocks."""
    size, splits = _each(m=winograd_plan.TILES), (1, 2, 3, 4)
    plain = {('joint',): [(0,)]}
    depths = [n for n in (8, 16, 32) if n <= max(group.main.sizes['c'], 8)]
    return {
        ('winograd', 'fma'): {**size, **_tiled(False), **_each(split=splits), **plain},
        ('winograd', 'mma_tf32x3'): size | plain | _each(
            bk=(16, 32, 64, 128, 256), bp=(32, 64, 128, 256), tk=(16, 32, 64),
            tp=(16, 32, 64), kb=depths, stages=(1, 2, 3, 4), split=splits,
        ),
        ('winograd', 'wgmma_tf32_bf16'): size | plain | {
            ('bk', 'tk'): [(n, n) for n in (32, 48, 64, 96, 128, 192, 256)],
            ('stages', 'late', 'bulk'): _WAYS,
            **_each(
                bp=(64, 128, 192, 256, 384, 512), tp=(64, 128), kb=depths, split=splits,
                queue=(1, 2),
            ),
        },
    }  # fmt: skip


def tables(group: Group, machine: GpuMachine, algorithm: str = 'auto') -> dict[Kind, Table]:
    """(schema, intrinsic) -> its table, for those that the machine has instructions for.

    With algorithm 'winograd' its own are there wherever it applies, with 'direct' nowhere.
    """
    if algorithm == 'winograd':
        fast = not winograd_plan.why_not(group)
    else:
        fast = algorithm == 'auto' and winograd_pays(group, machine)
    made: dict[Kind, Table] = {
        ('tiled', 'fma'): _tiled(False),
        ('rs', 'fma'): _cnnopt(),
        ('s', 'fma'): _cnnopt(),
        ('depthwise', 'fma'): _depthwise(),
        ('general', 'fma'): _each(threads=(64, 128, 256)),
        ('tiled', 'mma_tf32x3'): _tiled(True),
        ('patch', 'mma_tf32x3'): _patch(group),
        ('patch', 'wgmma_tf32x3'): _patch_of_warpgroups(group),
        ('patch', 'wgmma_tf32_bf16'): _patch_of_two_precisions(group),
        ('strip', 'mma_tf32x3'): _strip(_patch(group)),
        ('strip', 'wgmma_tf32_bf16'): _strip(_patch_of_two_precisions(group)),
        **(_winograd(group) if fast else {}),
    }
    return {
        (schema, intrinsic): table
        for (schema, intrinsic), table in made.items()
        if schema in SCHEMAS and machine.has(intrinsic)
    }


@dataclass(frozen=True)
class Moves:
    """The space of one group on one machine. What was found legal, or not, is remembered."""

    group: Group
    machine: GpuMachine
    tables: Mapping[Kind, Table]
    _seen: dict[str, tuple[bool, int]] = field(default_factory=dict)

    def _look(self, schedule: GpuSchedule) -> tuple[bool, int]:
        """(whether it is legal, the blocks of its largest kernel)."""
        if schedule.digest not in self._seen:
            self._seen[schedule.digest] = self._generated(schedule)
        return self._seen[schedule.digest]

    def _generated(self, schedule: GpuSchedule) -> tuple[bool, int]:
        if not self.machine.has(schedule.intrinsic) or not precise(self.group, schedule):
            return False, 0
        try:
            module = generate(self.group, schedule)
            for kernel in module.kernels:
                self.machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)
        except ScheduleError:
            return False, 0
        enough = all(step.kernel.threads >= LEAST_THREADS for step in module.steps)
        # Transforms have a thread for each tile, whatever is decided.
        decided = [
            step.kernel
            for step in module.steps
            if not step.kernel.name.startswith(winograd_plan.NAME)
        ]
        return enough, max(math.prod(kernel.grid) for kernel in decided)

    def legal(self, schedule: GpuSchedule) -> bool:
        """Whether it can be generated and fits, and gives a block enough threads."""
        return self._look(schedule)[0]

    def draw(self, rng: random.Random) -> GpuSchedule | None:
        kinds = list(self.tables)
        kind = rng.choices(kinds, [_WEIGHTS.get(kind, 1.0) for kind in kinds])[0]
        tiles: dict[str, int] = {}
        for names, values in self.tables[kind].items():
            tiles |= zip(names, rng.choice(values), strict=True)
        schedule = GpuSchedule.of(*kind, **tiles)
        legal, blocks = self._look(schedule)
        if not legal or rng.random() > self._promise(blocks, tiles.get('split', 1)):
            return None
        return schedule

    def _promise(self, blocks: int, split: int) -> float:
        """How readily a draw is taken: blocks that leave the machine idle are rarely the best."""
        if split > 1 and blocks > MANY_JOINED * self.machine.multiprocessors:
            return 0.0
        return 0.1 if blocks < FEW_BLOCKS * self.machine.multiprocessors else 1.0

    def neighbours(self, schedule: GpuSchedule) -> list[GpuSchedule]:
        """One decision a step up or down; a block's tiles also with a thread's or each other."""
        table = self.tables.get((schedule.schema, schedule.intrinsic))
        if table is None:
            return []
        now = UNSAID | dict(schedule.tiles)
        now = {name: now[name] for names in table for name in names}
        steps = {
            names: [dict(zip(names, v, strict=True)) for v in _beside(values, names, now)]
            for names, values in table.items()
        }
        changes = [change for found in steps.values() for change in found]
        for a, b in (('bk', 'tk'), ('bp', 'tp'), ('bw', 'tp'), ('bk', 'bp'), ('bh', 'bw'),
                     ('bk', 'split'), ('rk', 'rx'), ('th', 'tw')):  # fmt: skip
            for first in steps.get((a,), ()):
                changes += [first | second for second in steps.get((b,), ())]
        found = (
            GpuSchedule.of(schedule.schema, schedule.intrinsic, **(now | change))
            for change in changes
        )
        return [s for s in found if self.legal(s)]


def _beside(
    values: Sequence[tuple[int, ...]], names: tuple[str, ...], now: Mapping[str, int]
) -> list[tuple[int, ...]]:
    """The next values below and above; of decisions that are taken together, all others."""
    here = tuple(now[name] for name in names)
    if len(names) > 1 and names != ('bk', 'tk'):
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

    With algorithm 'winograd' that schema alone, where it applies.
    """
    found = {
        kind: table
        for kind, table in tables(group, machine, algorithm).items()
        if (schemas is None or kind[0] in schemas) and _applies(group, machine, kind, table)
    }
    fast = {kind: table for kind, table in found.items() if kind[0] == winograd_plan.NAME}
    return Moves(group, machine, fast if fast and algorithm == 'winograd' else found)


def _applies(group: Group, machine: GpuMachine, kind: Kind, table: Table) -> bool:
    """Whether any of some fixed draws of one schema is legal: some are for other operators."""
    space, rng = Moves(group, machine, {kind: table}), random.Random(0)
    for _ in range(400):
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
