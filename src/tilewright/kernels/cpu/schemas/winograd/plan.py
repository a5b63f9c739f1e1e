"""What the Winograd schema decides before it writes a line.

Goes in: a convolution's group and a schedule with schema 'winograd' over the dimensions of the
batched product (`ops.winograd.matmul_stage`), with the options m (outputs of a tile) and run (most
tiles that a micro-kernel takes). Comes out: a `PointsPlan`, or a ScheduleError that says why the
schedule is not legal. Other transforms make plans of the same kind (schemas/fft).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.contraction import check_plain
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.nest import every, tile_sets
from tilewright.kernels.cpu.pointwise import Epilogue, typed_epilogue
from tilewright.kernels.cpu.schemas.winograd.transform import (
    Buffers,
    Products,
    TileBuffers,
    classes_of,
)
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.tiles import Axis, TileGeometry
from tilewright.ops.winograd import applies, geometry, matmul_stage
from tilewright.schedule.schedule import Schedule

BLOCK = ('n', 'ph', 'pw')
# Floats of output rows that wait for their transposition where vectors have four lanes: a quarter
# of an L1. With wider ones it is as many pixels: long rows of results are worth more than the
# first cache (docs/winograd.md).
STRETCH = 4096
# Buffers, what is multiplied, and the floats of the products of one panel.
Held = tuple[TileBuffers, tuple[Products, ...], int]


@dataclass(frozen=True)
class PointsPlan:
    """Everything that is decided before a line is written, for any transforms."""

    group: Group
    schedule: Schedule
    shape: TileGeometry[Axis]
    stage: Stage
    buffers: TileBuffers
    epilogue: Epilogue
    lanes: int
    vectors: int
    tail_vectors: int
    panels: int
    blocks: tuple[int, ...]
    classes: tuple[Products, ...]
    panel_floats: int

    @property
    def width(self) -> int:
        """Lanes of a whole panel of k."""
        return self.vectors * self.lanes

    @property
    def k_block(self) -> int:
        """Panels of k whose products are held at once."""
        return -(-min(self.schedule.levels[2].tile['k'], self.shape.k) // self.width)

    @property
    def stretch(self) -> int:
        """Tiles of a row that leave together: as many as keep their outputs small beside M."""
        return min(self.buffers.columns, stretch_tiles(self.shape, self.width, self.lanes))

    @property
    def row_pitch(self) -> int:
        """From one row of outputs of a stretch of tiles to the next."""
        return self.stretch * self.shape.across.m * self.width

    @property
    def group_floats(self) -> int:
        """Transformed weights of one group of channels."""
        padded = (self.panels - 1) * self.width + self.tail_vectors * self.lanes
        return padded * self.shape.weights * self.shape.c

    @property
    def moving(self) -> bool:
        """Whether weights are transformed in every call."""
        return self.group.tensor(self.group.main.reads[1].tensor).role != 'constant'

    @property
    def weight_floats(self) -> int:
        """All transformed weights."""
        return self.shape.g * self.group_floats

    @property
    def packed_weights(self) -> int:
        return 0 if self.moving else self.weight_floats

    @property
    def v_floats(self) -> int:
        return self.shape.t * self.buffers.v_stride

    @property
    def m_floats(self) -> int:
        return self.k_block * self.panel_floats

    @property
    def row_floats(self) -> int:
        """Rows of one stretch; a transposition looks behind the last pixel, as far as a block."""
        return self.shape.down.m * self.row_pitch + max(4, self.lanes) * self.width

    @property
    def scratch_floats(self) -> int:
        parts = (self.v_floats, self.m_floats, self.row_floats, self.buffers.work_floats)
        own = sum(abi.aligned(part) for part in parts)
        return own + (abi.aligned(self.weight_floats) if self.moving else 0)


def option(schedule: Schedule, name: str) -> int:
    options = dict(schedule.options)
    if name not in options:
        raise ScheduleError(f'a schedule of the {schedule.schema} schema needs the option {name!r}')
    return options[name]


def tile(schedule: Schedule) -> tuple[int, int]:
    """(rows, columns) of outputs of a tile: the options m and, where it differs, mw."""
    m = option(schedule, 'm')
    return m, dict(schedule.options).get('mw', m)


def product(group: Group, schedule: Schedule) -> Stage:
    """The batched product, whose dimensions a schedule tiles."""
    return matmul_stage(group, tile(schedule))


def check(group: Group, schedule: Schedule) -> Stage:
    """Raise ScheduleError where the schedule is not legal for this schema."""
    reason = applies(group, tile(schedule))
    if reason:
        raise ScheduleError(f'winograd: {reason}; use the direct algorithm')
    stage = product(group, schedule)
    check_levels(group, schedule, stage)
    return stage


def check_levels(group: Group, schedule: Schedule, stage: Stage) -> None:
    """Raise ScheduleError where levels are not those of a product at points."""
    check_plain(group)
    run, lanes = option(schedule, 'run'), ISAS[schedule.isa].lanes
    names = [level.name for level in schedule.levels]
    if names != ['reg', 'l1', 'l2', 'l3'] or schedule.vector != 'k' or schedule.pack:
        raise ScheduleError(
            f'{group.label}: the {schedule.schema} schema has the levels reg, l1, l2, l3, the '
            f'vector dimension k and no pack level, not {names}, {schedule.vector!r}, '
            f'{schedule.pack!r}'
        )
    tiles = [level.tile for level in schedule.levels]
    if set(tiles[0]) != set(stage.sizes):
        raise ScheduleError(
            f'{group.label}: the schedule tiles {sorted(tiles[0])}, not {stage.sizes}'
        )
    reg, whole = tiles[0], stage.sizes
    if reg['k'] % lanes:
        raise ScheduleError(
            f'{group.label}: register tile k={reg["k"]} is not a multiple of the {lanes} lanes of '
            f'{schedule.isa}'
        )
    wide = [d for d in reg if d != 'k' and reg[d] > 1]
    if wide or tiles[1]['t'] > 1 or tiles[3].get('g', 1) > 1:
        raise ScheduleError(
            f'{group.label}: the register tile must be 1 but in k (it is not in {wide}), and so '
            f'must t at l1 and g at every level; tiles are flattened by the option run'
        )
    if any(tiles[2][d] < whole[d] for d in ('t', 'c')) or tiles[1]['c'] < whole['c']:
        raise ScheduleError(f'{group.label}: c from l1 on and t from l2 on must be whole')
    if any(tiles[1][d] != tiles[3][d] for d in BLOCK) or tiles[1]['k'] != tiles[2]['k']:
        raise ScheduleError(
            f'{group.label}: n, ph and pw have one tile for all caches, and k one for l1 and l2'
        )
    if tiles[3]['k'] < whole['k'] or (tiles[1]['k'] % reg['k'] and tiles[1]['k'] < whole['k']):
        raise ScheduleError(
            f'{group.label}: k={tiles[1]["k"]} at l1 is not a multiple of the register tile '
            f'{reg["k"]}, or k={tiles[3]["k"]} at l3 is not the whole {whole["k"]}'
        )
    need = micro.registers_needed(run, reg['k'] // lanes)
    if run < 1 or need > ISAS[schedule.isa].registers:
        raise ScheduleError(
            f'{group.label}: runs of {run} tiles x {reg["k"] // lanes} vectors need {need} '
            f'registers; {schedule.isa} has {ISAS[schedule.isa].registers}'
        )
    bad = [d for d, _ in schedule.parallel if d not in (*BLOCK, 'g', 'k')]
    if bad:
        raise ScheduleError(f'{group.label}: {bad} cannot be cut between threads')


def split_runs(tiles: int, most: int) -> tuple[int, ...]:
    """A block's tiles in runs of at most `most`, about equal and even: loads come in pairs."""
    sizes = []
    left = -(-tiles // most)
    while tiles:
        size = -(-tiles // left)
        size = min(size + size % 2, most, tiles)
        sizes.append(size)
        tiles, left = tiles - size, left - 1
        left = max(left, -(-tiles // most))
    return tuple(sizes)


def stretch_tiles(shape: TileGeometry[Axis], width: int, lanes: int = 4) -> int:
    """Tiles in a row whose outputs, for one panel, fit the stretch; a multiple of four.

    Whole vectors of four pixels then leave at once whatever m is.
    """
    each = shape.down.m * shape.across.m * width
    return max(STRETCH * lanes // 4 // each // 4, 1) * 4


def transform_lanes(isa_lanes: int, columns: int) -> int:
    """Lanes of the input transform: no wider than a row of tiles can use, at least four."""
    lanes = isa_lanes
    while lanes > 4 and lanes // 2 >= columns:
        lanes //= 2
    return lanes


def plan_winograd(group: Group, schedule: Schedule) -> PointsPlan:
    """[Group, Schedule] -> [PointsPlan]"""
    stage = check(group, schedule)
    shape, lanes = geometry(group, tile(schedule)), ISAS[schedule.isa].lanes

    def hold(tiles: int, columns: int, width: int) -> Held:
        buffers = Buffers(tiles, columns, transform_lanes(lanes, columns), shape)
        return buffers, *classes_of(shape, tiles, width)

    return plan_points(group, schedule, shape, stage, hold)


def plan_points(
    group: Group, schedule: Schedule, shape: TileGeometry[Axis], stage: Stage,
    hold: Callable[[int, int, int], Held],
) -> PointsPlan:  # fmt: skip
    """[Group, Schedule] -> [PointsPlan]; `hold` says how so many tiles, and columns of them, are
    held for panels of so many output channels.
    """
    lanes = ISAS[schedule.isa].lanes
    width = schedule.reg.tile['k']
    vectors = width // lanes
    panels = -(-shape.k // width)
    tail = -(-(shape.k - (panels - 1) * width) // lanes)
    sets = tile_sets(stage, schedule, 1)
    for name in every(schedule):  # kernels for many sizes have blocks of all of them
        if name in BLOCK:
            sets[name] = {*range(1, schedule.levels[1].tile[name] + 1)}
    blocks = sorted({a * b * c for a, b, c in itertools.product(*(sets[d] for d in BLOCK))})
    buffers, classes, panel_floats = hold(max(blocks), max(sets['pw']), width)
    return PointsPlan(
        group, schedule, shape, stage, buffers, typed_epilogue(group), lanes, vectors, tail, panels,
        tuple(blocks), classes, panel_floats,
    )  # fmt: skip
