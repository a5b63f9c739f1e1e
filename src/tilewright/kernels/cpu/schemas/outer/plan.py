"""What the outer-product schema decides before it writes a line.

Goes in: a group whose main stage is a sum of products, and a schedule with schema 'outer'.
Comes out: a `OuterPlan`, or a ScheduleError that says why the schedule is not legal.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi, operand
from tilewright.kernels.cpu.bounded import NearValue
from tilewright.kernels.cpu.contraction import Contraction, check_plain, contract, vector_candidates
from tilewright.kernels.cpu.front import Front, plan_cpu_front
from tilewright.kernels.cpu.half_vectors import HalfValue
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.nest import Nest, every, part_extents, tile_sets
from tilewright.kernels.cpu.pointwise import Epilogue, Operand, access_strides, typed_epilogue
from tilewright.kernels.cpu.schemas.outer.finish import Finished, read_finish
from tilewright.kernels.cpu.schemas.outer.panels import Panels
from tilewright.kernels.cpu.schemas.outer.store import straight
from tilewright.kernels.cpu.transpose import Quick
from tilewright.kernels.cpu.whole_vectors import WholeValue
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level, Schedule

LARGE_BYTES = 1 << 20  # of a thread's panels, which no second cache keeps from call to call
FAR_BYTES = 1 << 15  # of all panels: in a network, other kernels push them out of near caches
# Of tiles in a call, for what follows the last call's sums to be computed in them: with 8 and fewer
# 1x1 layers of ResNet-50 took up to 1.6 times as long as with it in a loop of its own.
LEAST_STEPS = 12
LEAST_TILES = 4  # that share a piece of the panels, for it to be worth asking for ahead
TURN_CYCLES = 6  # to transpose a block of 4 x 4, beside storing it


@dataclass(frozen=True, slots=True)
class Ahead:
    """What register tiles ask for while they compute: the piece of the panels that comes next.

    A piece serves all tiles of the pixel dimension `dim` from `start` on, `tile` pixels each, and
    every tile asks for its share of the next one, which lies `distance` floats behind: `floats` in
    an iteration. Else the first tile would wait for memory, and all others for nothing. Kernels for
    many sizes are told how many floats, since tiles vary in number: `most` of them, else 0.

    Micro-kernels of tiles ask for lines that lie `apart` floats from each other, each the next of a
    stream of its own, which together are the next panel: caches follow every stream and bring what
    comes behind it, and have more under way the more there are.
    """

    dim: str
    start: str
    tile: int
    distance: int
    floats: int
    most: int = 0
    shares: int = 1
    apart: int = 0


@dataclass(frozen=True)
class OuterPlan:
    """Everything that the generator decides before it writes a line.

    `sums` and `result` are C types of accumulators and of what is stored; what stands in buffers
    and panels is as large as a float. `whole` is what follows sums of whole numbers or f16, on
    vectors, and `near` the same where the last operand of the epilogue says that they are small;
    `stored` is what weights of floats are in panels. `run`, where it is not 0, is how many
    iterations of the loop a call of a micro-kernel has at most. With `finish` micro-kernels store
    results themselves; with `done` those of whole rows of pixels do (isa/neon_done.py). Those of
    tiles have `deep` and `taps` (`MicroKernel`). Sums that are `persistent` are those of a tile of
    the level `kept`, or of a thread's part.
    """

    group: Group
    schedule: Schedule
    contraction: Contraction
    panels: Panels
    operand: operand.Operand
    front: Front | None
    epilogue: Epilogue
    lane: str
    persistent: bool
    pixel_extents: tuple[tuple[int, ...], ...]
    acc_strides: dict[str, int]
    acc_floats: int
    out_strides: dict[str, int]
    out_const: int
    quick: Quick | None
    sums: str = 'float'
    result: str = 'float'
    whole: WholeValue | HalfValue | None = None
    near: NearValue | None = None
    stored: str = 'f32'
    ahead: Ahead | None = None
    run: int = 0
    finish: Finished | None = None
    done: Finished | None = None
    deep: int = 0
    taps: bool = False
    kept: str = ''

    def turned(self, extents: tuple[int, ...], vectors: int) -> bool:
        """Whether tiles of these extents have pixels across vectors, so that stores turn nothing.

        A row that is not a multiple of four is computed up to the next one, where sums are so short
        that this costs less than transposing.
        """
        isa, run = self.schedule.isa, extents[-1] if extents else 0
        if self.quick is None or not ISAS[isa].turns or self.panels.size % micro.BLOCK:
            return False
        if self.contraction.pixels[-1] != self.lane or self.operand.strides.get(self.lane) != 1:
            return False
        if run % micro.BLOCK == 0:
            return True
        whole = blocks(run)
        alone = math.prod(extents) == run and not self.persistent and bool(self.schedule.pack)
        fits = micro.registers_needed(whole, vectors) <= ISAS[isa].registers
        return alone and fits and self.panels.points * (whole - run) < TURN_CYCLES * whole / 2

    @property
    def behind(self) -> bool:
        """Whether what follows sums is computed behind the next tile's (behind.py): in tiles, whose
        sums are whole, and all of whose lanes are stored. In few steps there is nothing to hide in.
        """
        c, panels = self.contraction, self.panels
        if not self.deep or panels.points < LEAST_STEPS * self.deep:
            return False
        if self.whole is None or self.persistent or self.near or c.outer:
            return False
        if len(c.pixels) != 1 or not c.loop or self.run or self.moving:
            return False
        return panels.size % panels.width == 0 and self.out_strides.get(c.vector) == 1

    @property
    def functions(self) -> tuple[str, ...]:
        """Functions that are called before or behind the sums."""
        before = self.front.functions if self.front else ()
        return tuple(dict.fromkeys((*before, *self.epilogue.functions)))

    @property
    def moving(self) -> bool:
        """Whether panels are packed in every call."""
        return self.group.tensor(self.contraction.b.tensor).role != 'constant'

    @property
    def panel_floats(self) -> int:
        """Floats of all panels."""
        sizes = self.group.main.sizes
        return math.prod(sizes[d] for d in self.loose) * self.panels.floats

    @property
    def stream_ahead(self) -> int:
        """Floats of panels to ask for ahead, where a few rows read them once and wait for memory:
        prefetchers stop at the end of a page.
        """
        few = self.ahead is None and not self.schedule.pack and not self.moving
        large = 4 * self.panel_floats > LARGE_BYTES * self.schedule.threads
        rows = few and large and operand.rows_in_place(self.group, self.contraction)
        return ISAS[self.schedule.isa].stream_bytes // 4 if rows else 0

    @property
    def packed_floats(self) -> int:
        """Floats of panels that are packed once, ahead of all calls."""
        if self.moving:
            return 0
        return self.panel_floats if self.stored == 'f32' else -(-self.panel_floats // 2)

    @property
    def loose(self) -> tuple[str, ...]:
        """Dimensions that choose a run of panels: batch and further columns."""
        return (*self.contraction.batch, *self.contraction.columns)

    @property
    def scratch_floats(self) -> int:
        """Floats that a thread works in: the copied tile, accumulators, panels that it packs."""
        tiles = 2 if self.behind else 1
        own = abi.aligned(self.operand.size + 16) + abi.aligned(tiles * self.acc_floats)
        return own + (abi.aligned(self.panel_floats) if self.moving else 0)


def blocks(pixels: int) -> int:
    """Pixels rounded up to whole blocks."""
    return -(-pixels // micro.BLOCK) * micro.BLOCK


def check(group: Group, schedule: Schedule) -> Contraction:
    """Raise ScheduleError where the schedule is not legal for this schema."""
    check_plain(group, front=True)
    candidates = vector_candidates(group, moving=True)
    if schedule.vector not in candidates:
        raise ScheduleError(
            f'{group.label}: vector dimension {schedule.vector!r} is not one of {candidates}; '
            f'use the general schema'
        )
    if len(schedule.levels) < 2:
        raise ScheduleError(
            f'{group.label}: the schedule has only the level reg; the outer schema needs a cache '
            f'level around it'
        )
    if schedule.pack == schedule.reg.name:
        raise ScheduleError(
            f"{group.label}: pack='reg' would copy inside the micro-kernel; pack at a cache level"
        )
    contraction = contract(group, schedule.vector)
    stage, reg, lanes = group.main, schedule.reg.tile, ISAS[schedule.isa].lanes
    if set(reg) != set(stage.sizes):
        raise ScheduleError(f'{group.label}: the schedule tiles {sorted(reg)}, not {stage.sizes}')
    if reg[schedule.vector] % lanes:
        raise ScheduleError(
            f'{group.label}: register tile {schedule.vector}={reg[schedule.vector]} is not a '
            f'multiple of the {lanes} lanes of {schedule.isa}'
        )
    wide = [
        d for d in stage.sizes if reg[d] > 1 and d not in (*contraction.pixels, schedule.vector)
    ]
    if wide:
        raise ScheduleError(f'{group.label}: only pixel dimensions have register tiles, not {wide}')
    tail = len(stage.reduction)
    if tail and set(schedule.reg.order[-tail:]) != set(stage.reduction):
        raise ScheduleError(f'{group.label}: reductions must be innermost in the register band')
    for level in schedule.levels[1:]:
        tile = level.tile
        width, size = reg[schedule.vector], stage.sizes[schedule.vector]
        if tile[schedule.vector] % width and tile[schedule.vector] < size:
            raise ScheduleError(
                f'{group.label}: tile {schedule.vector}={tile[schedule.vector]} of {level.name} '
                f'is neither a multiple of the register tile {width} nor the whole {size}'
            )
        cut = [d for d in contraction.unrolled if tile[d] < stage.sizes[d]]
        if cut:
            raise ScheduleError(f'{group.label}: {level.name} cuts {cut}, which are unrolled')
    bad = [d for d, _ in schedule.parallel if d not in stage.parallel]
    if bad:
        raise ScheduleError(f'{group.label}: {bad} cannot be cut between threads')
    if not schedule.pack and operand.reads_outside(group, contraction):
        raise ScheduleError(f'{group.label} reads outside its input: it must pack it')
    if not schedule.pack and group.stages[0] is not group.main:
        raise ScheduleError(f'{group.label} changes its input first: it must pack it')
    return contraction


def plan_outer(group: Group, schedule: Schedule) -> OuterPlan:
    """[Group, Schedule] -> [OuterPlan]"""
    contraction = check(group, schedule)
    stage, reg = group.main, schedule.reg.tile
    lanes = ISAS[schedule.isa].lanes
    panels = Panels.of(contraction, lanes, reg[schedule.vector] // lanes)
    lane = operand.lane_of(contraction, schedule)
    part = part_extents(stage, schedule)
    if schedule.pack:
        source = operand.buffer_of(contraction, schedule, part)
    else:
        source = operand.in_place(group, contraction)
    sets = tile_sets(stage, schedule)
    for dim in every(schedule):  # kernels for many sizes have the tails of all of them
        if dim in contraction.pixels:
            sets[dim] = {*range(1, reg[dim] + 1)}
    pixel_extents = tuple(itertools.product(*(sorted(sets[d]) for d in contraction.pixels)))
    tiled = [
        d
        for d in stage.reduction
        if d not in contraction.unrolled and schedule.levels[1].tile[d] < stage.sizes[d]
    ]
    persistent = bool(tiled)
    kept = kept_level(stage, schedule) if persistent and ISAS[schedule.isa].rows else None
    held = {d: min(size, kept.tile[d]) for d, size in part.items()} if kept else part
    acc_strides, acc_floats = _accumulators(contraction, panels, held, reg, persistent, lane)
    out_strides, out_const = access_strides(group, stage.write)
    plan = OuterPlan(
        group, schedule, contraction, panels, source, plan_cpu_front(group), typed_epilogue(group),
        lane, persistent, pixel_extents, acc_strides, acc_floats, out_strides, out_const,
        straight(group, schedule.vector, lane, out_strides),
        ahead=_ahead(group, schedule, contraction, panels), kept=kept.name if kept else '',
    )  # fmt: skip
    return replace(plan, done=_done(plan))


def kept_level(stage: Stage, schedule: Schedule) -> Level | None:
    """The nearest level whose tiles have whole sums, so that those of one tile alone are kept; None
    where it is the part of a thread, or sizes vary.
    """
    if every(schedule):
        return None
    for level in schedule.levels[2:]:
        if all(level.tile[d] >= stage.sizes[d] for d in stage.reduction):
            return level
    return None


def _done(p: OuterPlan) -> Finished | None:
    """What micro-kernels do behind their sums; None where they cannot, or sums are not complete."""
    c, near = p.contraction, p.schedule.levels[1].tile
    whole = not c.loop or near[c.loop] >= p.group.main.sizes[c.loop]
    if p.quick is None or p.persistent or c.outer or not whole or p.schedule.dtype != 'f32':
        return None
    pitch = p.out_strides.get(c.vector)

    def is_bias(item: Operand) -> bool:
        along = item.stride(c.vector) == 1 and not any(item.stride(d) for d in c.pixels)
        return along and item.dtype == 'f32'

    def is_more(item: Operand) -> bool:
        return (item.stride(c.vector), item.stride(p.lane), item.dtype) == (pitch, 1, 'f32')

    return read_finish(p.group, p.epilogue.operands, is_bias, is_more)


def _ahead(
    group: Group, schedule: Schedule, contraction: Contraction, panels: Panels
) -> Ahead | None:
    """What to ask for ahead of its use; None where few tiles share a piece, or panels are so small
    that caches keep them.
    """
    constant = group.tensor(contraction.b.tensor).role == 'constant'
    many_sizes, sizes = bool(every(schedule)), group.main.sizes
    if not constant or contraction.outer:
        return None
    if schedule.pack and (many_sizes or not _far(schedule, panels)):
        return None
    if many_sizes and ISAS[schedule.isa].rows:
        return None
    vectors, rows = panels.vectors, math.prod(schedule.reg.tile[d] for d in contraction.pixels)
    if not micro.in_place(ISAS[schedule.isa], rows, vectors):
        return None
    if not schedule.pack and not operand.rows_in_place(group, contraction):
        return None
    nest = Nest(group.main, schedule, Writer())
    nest.open_parts()
    loops: list[tuple[str, str, int]] = []  # outermost first: dimension, first index, extent
    for level in reversed(schedule.levels):
        inside = group.main.parallel if level is schedule.reg else level.order
        for name in (d for d in nest.loops(level) if d in inside):
            loops.append((name, nest.start(name), nest.extent(name)))
            nest.open_loop(level, name)
    shared = None
    along = loops[-1][0] if loops else ''
    while along in contraction.pixels and loops and loops[-1][0] == along:
        shared = loops.pop()
    if shared is None or not loops or loops[-1][0] not in (contraction.vector, contraction.loop):
        return None
    name, start, extent = shared
    tiles = -(-extent // schedule.reg.tile[name])
    if tiles < LEAST_TILES:
        return None
    points, each = panels.points, math.prod(sizes[d] for d in contraction.unrolled)
    if loops[-1][0] == contraction.loop:
        points = schedule.levels[1].tile[contraction.loop] * each
    floats = -(-panels.width * each // tiles)
    most = -(-panels.width * each // LEAST_TILES) if many_sizes else 0
    high = schedule.reg.tile[name]
    return Ahead(name, start, high, points * panels.width, floats, most, tiles)


def _far(schedule: Schedule, panels: Panels) -> bool:
    """Whether tiles that are copied wait for panels, which come from a far cache or from memory.

    Only where micro-kernels of copies can ask for what comes next: those that broadcast.
    """
    isa = ISAS[schedule.isa]
    large = 4 * panels.floats >= FAR_BYTES
    return large and schedule.dtype == 'f32' and not isa.by_lane and not isa.rows


def _accumulators(
    contraction: Contraction, panels: Panels, part: dict[str, int], reg: dict[str, int],
    keep: bool, lane: str,
) -> tuple[dict[str, int], int]:  # fmt: skip
    """Strides and size of the accumulators: one register tile, or the whole part of a thread.

    Stores transpose four pixels of `lane` at a time and so look up to three behind the last one.
    """
    if keep:
        extents = {d: part[d] for d in contraction.stage.parallel if d != contraction.vector}
        step = -(-part[contraction.vector] // panels.lanes) * panels.lanes
    else:
        extents, step = {d: reg[d] for d in contraction.pixels}, panels.width
    strides: dict[str, int] = {}
    for name in reversed(extents):
        strides[name] = step
        step *= extents[name]
    return strides, step + 3 * strides.get(lane, 0)
