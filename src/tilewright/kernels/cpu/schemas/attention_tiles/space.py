"""The space of attention in tiles: few schedules, each of which is priced.

Goes in: a group, an instruction set, a thread count. Comes out: schedules that differ in the block
of rows and keys and in how the work is cut between threads; none without tiles.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilewright.kernels.cpu.schemas.attention.space import CUTS, made
from tilewright.kernels.cpu.schemas.attention_tiles.plan import WHOLE
from tilewright.kernels.cpu.space import even_cuts
from tilewright.machine.isa import ISAS, tile_isa
from tilewright.ops.attention import KEY, ROW, read_attention
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule

KEYS = (128, 256, 512)  # of a block
TILES = (1, 2)  # micro-kernels of a block, one below the other


def tiled_attention_choices(
    group: Group, isa: str, threads: int, _levels: int
) -> Iterator[Schedule]:
    """[Group, ISA, threads] -> schedules."""
    row = isa if ISAS[isa].rows else tile_isa(isa)
    if not row:
        return
    form = read_attention(group)
    rows, keys = form.sizes[ROW], form.sizes[KEY]
    high = -(-rows // -(-rows // (2 * ISAS[row].rows)))
    blocks = sorted({min(count, -(-keys // WHOLE) * WHOLE) for count in KEYS})
    tall = sorted({min(t, -(-rows // high)) for t in TILES})
    for cut in even_cuts(form.values, threads, (*form.stack, ROW))[:CUTS]:
        for count in blocks:
            for tiles in tall:
                found = made(form, row, (high, WHOLE), (tiles * high, count), cut)
                yield replace(
                    found, schema='attention_tiles', dtype='bf16', accumulation='f32', options=()
                )
