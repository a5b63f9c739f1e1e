"""The GPU design space: what a block takes, what a machine allows, schedules drawn from the rest.

Goes in: a group, a machine and the name of a schema. Comes out: legal schedules, all of them or a
seeded sample, and how many each limit excluded. Registers are estimated here (the compiler's own
count decides later, `GpuMachine.fits`): operands and sums by the schema's plan, the rest measured.

tilewright_lab/collect/cnnopt_space.py has the complete space of CNNOpt's kernels under that paper's
conventions.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.precision import precise
from tilewright.kernels.gpu.schemas.cnnopt import plan as cnnopt_plan
from tilewright.kernels.gpu.schemas.patch import code as patch
from tilewright.kernels.gpu.schemas.patch import plan as patch_plan
from tilewright.kernels.gpu.schemas.patch import warp as patch_warp
from tilewright.kernels.gpu.schemas.tiled import code as tiled
from tilewright.kernels.gpu.schemas.winograd import plan as winograd_plan
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

# Registers beside operands and sums: addresses, bounds, counters. Medians over some thousand
# kernels compiled for sm_90.
OTHER_REGISTERS = {'tiled': 35, 'patch': 45, 'rs': 20, 's': 24, 'general': 30}
MIXED_REGISTERS = 30  # of a warpgroup's patch in TF32 and bf16, which keeps two steps of pixels
LARGEST_WASTE = 2.0  # a tile may compute at most this much more than the result has
LARGEST_CODE = 2048  # instructions of one piece; more take seconds to compile, and leave caches
CUT_CODE = 40  # of those, for the 64 pixels of a warpgroup's step: reads, cuts, three products
MOST_PARTS = 4096  # blocks beyond which a reduction is not split further
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


@dataclass(frozen=True, slots=True)
class Need:
    """What a schedule's main kernel takes: of a block, and how many blocks and tiles there are.

    computed   products that are computed over those that the group has: the cost of partial tiles
    code       instructions of one piece, as far as it is written out
    """

    threads: int
    shared_bytes: int
    registers: int  # of a thread
    blocks: int
    split: int
    computed: float
    code: int = 0

    def broken(self, machine: GpuMachine) -> str | None:
        """The first limit of a machine that is exceeded; registers are handed out in eights."""
        registers = -(-self.registers // 8) * 8
        for name, need, limit in (
            ('threads', self.threads, machine.threads_per_block),
            ('shared memory', self.shared_bytes, machine.shared_bytes_per_block),
            ('registers a thread', self.registers, machine.registers_per_thread),
            ('registers a block', registers * self.threads, machine.registers),
        ):
            if need > limit:
                return name
        return None


def need(group: Group, schedule: GpuSchedule) -> Need:
    """[Group, GpuSchedule] -> [Need]; raises ScheduleError where the schema refuses."""
    if schedule.schema not in _NEEDS:
        raise ScheduleError(
            f'{schedule.schema!r} has no space; choose one of {", ".join(sorted(_NEEDS))}'
        )
    return _NEEDS[schedule.schema](group, schedule)


def _cnnopt(group: Group, schedule: GpuSchedule) -> Need:
    p = cnnopt_plan.plan(group, schedule)
    blocks = p.grid[0] * p.grid[1]
    padded = blocks * math.prod(p.block) / math.prod(group.main.sizes[d] for d in _parallel(group))
    return Need(
        p.threads, 4 * p.shared_floats, p.operands + OTHER_REGISTERS[schedule.schema],
        blocks * p.split, p.split, padded * p.iterations * p.cb / p.channels,
    )  # fmt: skip


def _parallel(group: Group) -> tuple[str, ...]:
    return group.main.parallel


def _tiled(group: Group, schedule: GpuSchedule) -> Need:
    p = tiled.plan(group, schedule)
    wide, long = p.pitch
    columns, rows = p.own
    # Matrix instructions read fragments of both operands, each cut into two parts.
    fragments = (p.tp // 8 * 2 + p.tk // 16 * 4) * 2 if p.matrix else p.tk + p.tp
    depth = p.depth / (p.window_points * p.channels)
    return Need(
        p.threads, 4 * p.stages * p.kb * (wide + long),
        columns * rows + fragments + OTHER_REGISTERS['tiled'], p.tiles * p.split, p.split,
        depth * p.tiles * p.bk * p.bp / (p.points * p.columns * p.groups),
        p.kb * p.tk * p.tp if not p.matrix else p.kb // 8 * _matrix_code(p.tk, p.tp),
    )  # fmt: skip


def _matrix_code(tk: int, tp: int) -> int:
    """Instructions of a warp for one step of eight depths: reads, cuts, three products of each."""
    across, down = tp // 8, tk // 16
    return 3 * across * down + 8 * (2 * across + 4 * down)


def _patch(group: Group, schedule: GpuSchedule) -> Need:
    module, p = patch.generate(group, schedule), patch.plan(group, schedule)
    main = module.steps[0].kernel
    tk, tp = schedule['tk'], schedule['tp']
    steps = p.depth // 8
    if p.wide:
        other = MIXED_REGISTERS if p.mixed else OTHER_REGISTERS['patch']
        registers = tk * tp // 128 + (32 if p.mixed else 16) * (tp // 64) + other
        code = (steps if steps <= patch_plan.UNROLLED else 4) * (tp // 64) * CUT_CODE
    else:
        registers = tk * tp // 32 + (tp // 8 * 2 + tk // 16 * 4) * 2 + OTHER_REGISTERS['patch']
        written = steps if p.window_points <= patch_warp.UNROLLED else p.kb // 8
        code = (4 if p.joint else written) * _matrix_code(tk, tp)
    sizes = p.sizes | ({} if p.strip is None else {patch_plan.STRIP: p.strip.pixels})
    tiles = zip(p.tile, p.grid, strict=True)
    waste = math.prod(count * extent / sizes[d] for (d, extent), (_, count) in tiles)
    return Need(
        main.threads, main.shared_bytes, registers, math.prod(main.grid), schedule['split'], waste,
        code,
    )  # fmt: skip


def _winograd(group: Group, schedule: GpuSchedule) -> Need:
    """Of the products: the transforms need less, and nothing that could be decided."""
    p = winograd_plan.plan(group, schedule)
    return need(p.product, p.schedule)


def _general(group: Group, schedule: GpuSchedule) -> Need:
    points = math.prod(group.main.sizes[d] for d in group.main.parallel)
    threads = schedule['threads']
    blocks = -(-points // max(threads, 1))
    return Need(threads, 0, OTHER_REGISTERS['general'], blocks, 1, blocks * threads / points)


_NEEDS: dict[str, Callable[[Group, GpuSchedule], Need]] = {
    'general': _general,
    'patch': _patch,
    'rs': _cnnopt,
    's': _cnnopt,
    'strip': _patch,
    'tiled': _tiled,
    'winograd': _winograd,
}

_POWERS = (1, 2, 4, 8, 16, 32)
_LANES = tuple(
    (k, y, cnnopt_plan.WARP // k // y)
    for k in _POWERS
    for y in (1, 2, 4)
    if k * y <= cnnopt_plan.WARP
)
# What may be decided, name by name; lanes of a warp are decided together.
_REGISTER_TILES: Mapping[str, Sequence] = {
    'rk': (1, 2, 4, 8), 'ry': (1, 2, 3, 4, 7), 'rx': (1, 2, 3, 4, 6, 7, 8, 14, 16),
    'lanes': _LANES, 'wk': (1, 2, 4), 'wy': (1, 2, 4, 7), 'wx': (1, 2, 4),
    'cb': (1, 2, 4, 8), 'stages': (1, 2, 3), 'split': SPLITS, 'join': (0, 1, 2),
}  # fmt: skip
CHOICES: dict[tuple[str, str], Mapping[str, Sequence]] = {
    ('general', 'fma'): {'threads': (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024)},
    ('rs', 'fma'): _REGISTER_TILES,
    ('s', 'fma'): _REGISTER_TILES,
    ('tiled', 'fma'): {
        'bk': (16, 32, 64, 96, 128), 'bp': (16, 32, 64, 96, 128, 256), 'tk': (4, 8, 12, 16),
        'tp': (4, 8, 12, 16), 'kb': (4, 8, 16, 32), 'stages': (1, 2, 3, 4), 'split': SPLITS,
        'joint': (0, 1),
    },
    ('tiled', 'mma_tf32x3'): {
        'bk': (16, 32, 64, 96, 128), 'bp': (16, 32, 48, 64, 96, 128, 256), 'tk': (16, 32, 64),
        'tp': (16, 32, 48, 64), 'kb': (8, 16, 32, 64), 'stages': (1, 2, 3, 4), 'split': SPLITS,
        'joint': (0, 1),
    },
    ('patch', 'mma_tf32x3'): {
        'bn': (1,), 'bh': (1, 2, 3, 4, 6, 7, 8, 9, 14, 16), 'bw': (4, 7, 8, 9, 14, 16, 27, 28, 32),
        'bk': (16, 32, 64, 96, 128), 'tk': (16, 32, 64), 'tp': (8, 16, 24, 32, 48, 64),
        'kb': (1, 2, 3, 4, 8, 16, 32), 'stages': (1, 2, 3, 4), 'split': SPLITS, 'joint': (0, 1),
    },
    ('patch', 'wgmma_tf32x3'): {
        'bn': (1,), 'bh': (1, 2, 3, 4, 6, 7, 8, 9, 14, 16, 28),
        'bw': (4, 7, 8, 9, 14, 16, 27, 28, 32), 'columns': (16, 32, 48, 64, 96, 128, 192, 256),
        'tp': (64, 128, 192, 256), 'kb': (1, 2, 3, 4, 8, 16, 32), 'stages': (1, 2, 3, 4),
        'split': SPLITS, 'joint': (0, 1),
    },
}  # fmt: skip


def all_schedules(schema: str, intrinsic: str = 'fma') -> Iterator[GpuSchedule]:
    """Every combination of choices, legal or not, in a fixed order."""
    choices = CHOICES[schema, intrinsic]
    for values in itertools.product(*choices.values()):
        yield _schedule(schema, intrinsic, dict(zip(choices, values, strict=True)))


def _schedule(schema: str, intrinsic: str, values: Mapping) -> GpuSchedule:
    numbers = dict(values)
    if 'columns' in numbers:  # all columns of a block belong to each warpgroup
        numbers['bk'] = numbers['tk'] = numbers.pop('columns')
    if 'lanes' in numbers:
        numbers |= dict(zip(('tk', 'ty', 'tx'), numbers.pop('lanes'), strict=True))
        numbers = {name: numbers[name] for name in cnnopt_plan.DECISIONS}
        numbers['join'] *= numbers['split'] > 1  # where nothing is joined, one way stands for all
    return GpuSchedule.of(schema, intrinsic, **numbers)


def excluded(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> str | None:
    """Why a schedule is not in the space: limits of the machine, errors, waste; None if it is."""
    if not machine.has(schedule.intrinsic):
        return 'instructions'
    if not precise(group, schedule):
        return 'precision'
    try:
        wanted = need(group, schedule)
    except ScheduleError:
        return 'the schema'
    limit = wanted.broken(machine)
    if limit is None and wanted.code > LARGEST_CODE:
        limit = 'code size'
    if limit is None and wanted.computed > LARGEST_WASTE:
        limit = 'waste'
    if limit is None and wanted.split > 1 and wanted.blocks > MOST_PARTS:
        limit = 'too many parts'
    return limit


def draw(
    group: Group, machine: GpuMachine, schema: str, intrinsic: str, count: int, seed: int
) -> tuple[list[GpuSchedule], Counter[str]]:
    """(distinct schedules of the space, how many others each limit excluded), the same for a seed.

    Fewer than `count` where the space is small or nearly all of it excluded.
    """
    choices = CHOICES[schema, intrinsic]
    random = Random(f'{seed} {schema} {intrinsic} {group.label}')
    found: dict[GpuSchedule, None] = {}
    reasons: Counter[str] = Counter()
    seen: set[GpuSchedule] = set()
    size = math.prod(len(values) for values in choices.values())
    for _ in range(min(200 * count, 20 * size)):
        if len(found) >= count or len(seen) == size:
            break
        values = {name: random.choice(options) for name, options in choices.items()}
        schedule = _schedule(schema, intrinsic, values)
        if schedule in seen:
            continue
        seen.add(schedule)
        reason = excluded(group, schedule, machine)
        if reason is None:
            found[schedule] = None
        else:
            reasons[reason] += 1
    return list(found), reasons
