"""What the Winograd schema of f16 decides before it writes a line.

Goes in: the group of a convolution in NHWC and a schedule over the dimensions of the products at
points (`ops.tiles.product_stage`), with the options

    m      outputs of a tile, each way          run     tiles that a micro-kernel takes at most
    block  tiles that are transformed at once,  words   words of channels added in registers
           at most

Comes out: a `HalfTilesPlan`, or a ScheduleError that says why the schedule is not legal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.half_epilogue import (
    LANES,
    HalfEpilogue,
    plan_half_epilogue,
    why_no_epilogue,
)
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.schemas.winograd.plan import option, split_runs
from tilewright.kernels.cpu.space import Cut, cuts_up_to, even_cuts
from tilewright.machine.isa import ISAS, half_isa
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.tiles import product_stage
from tilewright.ops.winograd import Geometry
from tilewright.ops.winograd_half import half_error, half_geometry, half_sizes, why_not_half
from tilewright.schedule.schedule import Level, Schedule

SCHEMA = 'winograd_half'
STEPS = 4  # words of channels of an iteration of a micro-kernel: a vector of eight f16
RUNS = (32,)  # words that are added in registers
BLOCKS = (12, 24, 36, 52)  # tiles that are transformed at once
FREE = ('n', 'k', 'ph', 'pw')  # what may be cut between threads
# Roundings that an epilogue may add in f16: sums are off by many.
ROUNDINGS = 4


@dataclass(frozen=True)
class HalfTilesPlan:
    """Everything that is decided before a line is written."""

    group: Group
    schedule: Schedule
    shape: Geometry
    stage: Stage
    epilogue: HalfEpilogue

    @property
    def depth(self) -> int:
        """Channels of the image, of which these are some from `first` on."""
        return self.group.tensor(self.group.main.reads[0].tensor).shape[3]

    @property
    def first(self) -> int:
        return self.group.main.reads[0].index[3].const

    @property
    def width(self) -> int:
        """Output channels of a panel."""
        return self.schedule.reg.tile['k']

    @property
    def vectors(self) -> int:
        return self.width // LANES

    @property
    def panels(self) -> int:
        return -(-self.shape.k // self.width)

    @property
    def groups(self) -> int:
        """Groups of channels, each in whole vectors and panels where there are several."""
        return self.group.main.sizes.get('g', 1)

    @property
    def channels(self) -> int:
        """Input channels of a sum, in whole vectors."""
        return -(-self.shape.c // LANES) * LANES

    @property
    def block(self) -> int:
        return option(self.schedule, 'block')

    @property
    def tiles(self) -> int:
        return self.shape.n * self.shape.ph * self.shape.pw

    @property
    def k_ways(self) -> int:
        """Threads that share the panels."""
        return dict(self.schedule.parallel).get('k', 1)

    @property
    def tile_ways(self) -> int:
        """Threads that share the tiles, whichever of their dimensions the schedule cuts."""
        return self.schedule.threads // self.k_ways

    @property
    def sizes(self) -> dict[int, int]:
        """Tiles of a block -> how many such blocks the thread with the most tiles has."""
        tiles = -(-self.tiles // self.tile_ways)
        size, more = divmod(tiles, -(-tiles // self.block))
        return {size + 1: more, size: -(-tiles // self.block) - more}

    @property
    def run(self) -> int:
        """Iterations of a micro-kernel whose products are added in registers."""
        return option(self.schedule, 'words') // STEPS

    @property
    def pitch(self) -> int:
        """f16 from one transformed tile to the next; a line more where sets of a cache would be the
        same ones again and again.
        """
        channels = self.groups * self.channels
        return channels + (32 if channels % 256 == 0 else 0)

    @property
    def runs(self) -> dict[int, tuple[int, ...]]:
        """Number of tiles of a block -> how micro-kernels share them."""
        most = option(self.schedule, 'run')
        return {count: split_runs(count, most) for count in range(1, self.block + 1)}

    @property
    def weight_halves(self) -> int:
        return self.panels * self.shape.t * self.channels * self.width

    @property
    def input_halves(self) -> int:
        """V: transformed tiles of a block."""
        return self.shape.t * self.block * self.pitch

    @property
    def product_halves(self) -> int:
        """M: products of a block with a panel."""
        return self.shape.t * self.block * self.width

    @property
    def scratch_floats(self) -> int:
        return abi.aligned(self.input_halves // 2) + abi.aligned(self.product_halves // 2)


def product(group: Group, schedule: Schedule) -> Stage:
    """The products at points, whose dimensions a schedule tiles."""
    return product_stage(half_geometry(group, option(schedule, 'm')))


def title(group: Group, schedule: Schedule) -> str:
    return f'Winograd {half_geometry(group, option(schedule, "m")).name} in f16'


def predicted_error(group: Group, schedule: Schedule) -> float:
    """What a result is expected to be off by."""
    return half_error(group, option(schedule, 'm'), 2 * option(schedule, 'words'))


def plan_winograd_half(group: Group, schedule: Schedule) -> HalfTilesPlan:
    """[Group, Schedule] -> [HalfTilesPlan]"""
    reason = why_not_half(group) or why_no_epilogue(group, 'k')
    if reason:
        raise ScheduleError(f'Winograd in f16: {reason}; use the direct algorithm')
    m, run = option(schedule, 'm'), option(schedule, 'run')
    if m not in half_sizes(group):
        raise ScheduleError(
            f'{group.label}: tiles of m={m} outputs; choose one of {half_sizes(group)}'
        )
    shape, isa = half_geometry(group, m), ISAS[schedule.isa]
    stage = product_stage(shape)
    if isa.dtype != 'f16':
        raise ScheduleError(f'{group.label}: {schedule.isa} has no arithmetic of f16')
    if set(schedule.reg.tile) != set(stage.sizes) or schedule.reg.tile['k'] % LANES:
        raise ScheduleError(f'{group.label}: k has to be tiled by vectors of {LANES}')
    if any(size > 1 for d, size in schedule.reg.tile.items() if d != 'k'):
        raise ScheduleError(
            f'{group.label}: only k is tiled; tiles are flattened by the option run'
        )
    if any(name not in FREE for name, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: only {", ".join(FREE)} are cut between threads')
    need = registers_needed(run, schedule.reg.tile['k'] // LANES, isa.weight_registers)
    if run < 1 or need > isa.registers:
        raise ScheduleError(
            f'{group.label}: runs of {run} tiles x {schedule.reg.tile["k"]} channels need {need} '
            f'registers; {schedule.isa} has {isa.registers}'
        )
    if 'g' in group.main.sizes and group.main.sizes['k'] % schedule.reg.tile['k']:
        raise ScheduleError(
            f'{group.label}: panels of {schedule.reg.tile["k"]} channels reach over its groups'
        )
    words, block = option(schedule, 'words'), option(schedule, 'block')
    if words < STEPS or words % STEPS or block < 1:
        raise ScheduleError(
            f'{group.label}: words={words} has to be a multiple of {STEPS}, block={block} at '
            f'least 1'
        )
    epilogue = plan_half_epilogue(group, 'k', starts=False, most=ROUNDINGS)
    return HalfTilesPlan(group, schedule, shape, stage, epilogue)


def winograd_half_schedule(
    group: Group, isa: str, m: int, run: int, vectors: int, block: int, words: int, cut: Cut = ()
) -> Schedule:
    """The schedule of these decisions."""
    stage = product_stage(half_geometry(group, m))
    order, reg = tuple(stage.sizes), dict.fromkeys(stage.sizes, 1) | {'k': LANES * vectors}
    whole = {d: -(-size // reg[d]) * reg[d] for d, size in stage.sizes.items()}
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole))
    options = (('block', block), ('m', m), ('run', run), ('words', words))
    return Schedule(
        SCHEMA, half_isa(isa), 'k', levels, cut, options=options, dtype='f16', accumulation='f16'
    )


def register_tiles(group: Group, isa: str) -> list[tuple[int, int]]:
    """(run, vectors): the longest run of tiles for each number of vectors of output channels."""
    row, most = ISAS[half_isa(isa)], -(-group.main.sizes['k'] // LANES)
    found = []
    # With one vector multiply-adds wait for each other: only where there is no second one, or where
    # panels of more would reach over groups.
    grouped = 'g' in group.main.sizes
    wide = [v for v in (2, 3) if v <= most and not (grouped and most % v)]
    for vectors in wide or [1]:
        runs = [
            r for r in range(1, row.registers)
            if registers_needed(r, vectors, row.weight_registers) < row.registers
        ]  # fmt: skip
        found.append((max(runs), vectors))
    return found


def winograd_half_choices(group: Group, isa: str, threads: int) -> Iterator[Schedule]:
    """Schedules worth pricing: sizes of tiles, register tiles, blocks, runs, cuts."""
    if not half_isa(isa) or why_not_half(group) or why_no_epilogue(group, 'k'):
        return
    for m in half_sizes(group):
        stage = product_stage(half_geometry(group, m))
        # Tiles are cut alike whichever of their dimensions is: one of each number of threads.
        cuts = {dict(c).get('k', 1): c for c in reversed(even_cuts(stage, threads, FREE))}
        for cut in list(cuts.values())[:3]:
            for run, vectors in register_tiles(group, isa):
                if dict(cut).get('k', 1) * vectors * LANES > stage.sizes['k'] + LANES:
                    continue
                for block in BLOCKS:
                    for words in RUNS:
                        yield winograd_half_schedule(
                            group, isa, m, run, vectors, block, words, cut
                        )  # fmt: skip


def draw_winograd_half(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Any legal decisions."""
    if not half_isa(isa) or why_not_half(group) or why_no_epilogue(group, 'k'):
        return None
    m = random.choice(half_sizes(group))
    run, vectors = random.choice(register_tiles(group, isa))
    stage = product_stage(half_geometry(group, m))
    cut = random.choice(cuts_up_to(stage, most_threads, FREE))
    return winograd_half_schedule(
        group, isa, m, random.randint(1, run), vectors, random.randint(1, 16),
        STEPS * random.randint(1, 8), cut,
    )  # fmt: skip
