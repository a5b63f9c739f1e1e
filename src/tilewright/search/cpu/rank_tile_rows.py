"""Products of rows with constant weights in tiles: one schedule for each cut between threads.

    for rows that stay in the second cache
      for each panel of weights
        for a piece of it that fills half of the first cache
          for each register tile of rows                  sums of the panel stay near

Goes in: a group in words whose rows lie in place, a machine in its tiles. Comes out: schedules,
best first; none where a group is something else. A register tile loads as much as it multiplies,
so that two of its four tiles have to come from the first cache: weights, which all rows share. What
a cut moves decides between cuts that are equally even: weights come from memory, and are read once
where each thread has its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.isa import tiles
from tilewright.kernels.cpu.operand import rows_in_place
from tilewright.kernels.cpu.schemas.outer.space import assemble
from tilewright.kernels.cpu.space import Cut, thread_cuts
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank_outer import even

NEAR_SHARE = 0.5  # of the first cache, for a piece of a panel
ROWS_SHARE = 0.6  # of the second cache, for the rows that panels are multiplied with
EVEN = 1.1  # threads of a cut that may have so much more to do than in the mean
WORD = 4


def rank_tile_rows(group: Group, machine: Machine, threads: int) -> list[Schedule]:
    """[Group in words, Machine in tiles] -> [Schedule of the schema 'outer']."""
    contraction = contract(group, vector_candidates(group)[0])
    stage, isa = group.main, ISAS[machine.isa]
    if not _applies(group, contraction, isa) or len(machine.caches) < 2:
        return []
    (row,), vector, loop = contraction.pixels, contraction.vector, contraction.loop
    sizes, deep = stage.sizes, tiles.depth(contraction)[0]
    width = isa.lanes * min(2, -(-sizes[vector] // isa.lanes))
    reg = dict.fromkeys(sizes, 1) | {row: even(sizes[row], 2 * isa.rows), vector: width}
    near, second = (machine.capacity_bytes(number, threads) / WORD for number in (0, 1))
    piece = even(sizes[loop], max(deep, int(NEAR_SHARE * near) // width))
    piece = min(-(-piece // deep) * deep, sizes[loop])
    found: list[Cut] = []
    while not found:  # fewer threads where there are not enough register tiles for all
        found = _best_first(thread_cuts(stage, threads), group, contraction, reg)
        threads -= 1
    made = []
    for cut in found:
        ways = dict(cut)
        rows = -(-sizes[row] // ways.get(row, 1))
        held = even(rows, max(reg[row], int(ROWS_SHARE * second) // sizes[loop]))
        held = -(-held // reg[row]) * reg[row]
        first = {row: held, vector: width, loop: piece}
        whole = {row: held, vector: width, loop: sizes[loop]}
        third = {**whole, vector: sizes[vector]}
        levels = (first, whole, *[third] * (len(machine.caches) - 2))
        order = (row, vector, loop)
        made.append(
            assemble(group, machine.isa, vector, reg, levels, (order,) * len(levels), cut, '')
        )
    return made


def _applies(group: Group, contraction: Contraction, isa: Isa) -> bool:
    """Whether a group is a product of many rows, in place, with constant weights."""
    constant = group.tensor(contraction.b.tensor).role == 'constant'
    plain = len(contraction.pixels) == 1 and contraction.reduction == (contraction.loop,)
    if not constant or not plain or contraction.batch or contraction.columns:
        return False
    many = group.main.sizes[contraction.pixels[0]] > isa.rows
    return many and rows_in_place(group, contraction)


def _best_first(cuts: Iterable[Cut], group: Group, c: Contraction, reg: dict[str, int]) -> list[Cut]:
    """Cuts that leave every thread something: even ones, then those that move least."""
    sizes, image, weights = group.main.sizes, group.tensor(c.a.tensor), group.tensor(c.b.tensor)
    ranked = []
    for cut in cuts:
        ways, uneven = dict(cut), 1.0
        for name, count in cut:
            units = -(-sizes[name] // reg[name])
            uneven *= count * -(-units // count) / units if count <= units else math.inf
        moved = ways.get(c.vector, 1) * image.size + ways.get(c.pixels[0], 1) * weights.size
        if uneven < math.inf and set(ways) <= {c.vector, *c.pixels}:
            ranked.append(((uneven > EVEN, moved, uneven, cut), cut))
    return [cut for _, cut in sorted(ranked)]
