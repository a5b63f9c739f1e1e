"""The space of the attention schema: few schedules, each of which is priced.

Goes in: a group, an instruction set, a thread count. Comes out: schedules that differ in the block
of rows and keys, in how the work is cut between threads, and in whether anything is packed.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.kernels.cpu.isa.micro import in_place, registers_needed, rows_fit
from tilewright.kernels.cpu.space import Cut, even_cuts
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.attention import COLUMN, KEY, ROW, Attention, read_attention
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Level, Schedule

CUTS = 3  # cuts between threads that are priced
KEYS = (128, 256, 512, 1024)  # of a block
TILES = (1, 2, 4, 8)  # micro-kernels of a block, one below the other
FEW_ROWS = 16  # of up to so many, reading in place is tried


def attention_choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    """[Group, ISA, threads] -> schedules."""
    form, row = read_attention(group), ISAS[isa]
    rows, keys = form.sizes[ROW], form.sizes[KEY]
    vectors = min(tile_vectors(row), -(-max(form.sizes[COLUMN], keys) // row.lanes))
    width = vectors * row.lanes
    high = tile_height(rows, vectors, row)
    blocks = sorted({min(k, -(-keys // width) * width) // width * width or width for k in KEYS})
    tall = sorted({min(t, -(-rows // high)) for t in TILES})
    for cut in even_cuts(form.values, threads, (*form.stack, ROW))[:CUTS]:
        for count in blocks:
            for tiles in tall:
                yield made(form, isa, (high, width), (tiles * high, count), cut)
        if rows <= FEW_ROWS:
            for count in blocks:
                yield made(form, isa, (1, width), (1, count), cut, direct=True)


def tile_vectors(isa: Isa) -> int:
    """Vectors of a micro-kernel's row: two, which leave most registers to rows. Where four numbers
    of a row are loaded at once and multiplied by lanes, four: rows need registers of their own.
    """
    return 4 if isa.by_lane and rows_fit(isa, 1, 4) else 2


def tile_height(rows: int, vectors: int, isa: Isa) -> int:
    """Rows of a micro-kernel: as many as registers hold, dealt out so that few are left over."""
    fits = [h for h in range(1, isa.registers) if registers_needed(h, vectors) <= isa.registers]
    most = max([h for h in fits if in_place(isa, h, vectors)] or fits)
    return -(-rows // -(-rows // most))


def made(
    form: Attention, isa: str, tile: tuple[int, int], block: tuple[int, int], cut: Cut,
    direct: bool = False,
) -> Schedule:  # fmt: skip
    """The schedule of these decisions: rows x columns of a tile, rows x keys of a block."""
    stage = form.values
    order = tuple(stage.sizes)
    reg = dict.fromkeys(stage.sizes, 1) | {ROW: tile[0], COLUMN: tile[1]}
    columns = -(-stage.sizes[COLUMN] // tile[1]) * tile[1]
    near = dict.fromkeys(stage.sizes, 1) | {ROW: block[0], KEY: block[1], COLUMN: columns}
    levels = (Level.of('reg', order, reg), Level.of('l1', order, near))
    options = (('direct', int(direct)),)
    return Schedule('attention', isa, COLUMN, levels, cut, '', options)
