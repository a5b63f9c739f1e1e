"""Products of rows with constant weights in tiles: one schedule for each cut between threads.

    for rows that stay in the second cache
      for each panel of weights                           the next one is on its way meanwhile
        for each register tile of rows                    whole sums

Goes in: a group in words whose rows lie in place, a machine in its tiles. Comes out: schedules,
best first; none where a group is something else. Sums that are cut, so that a piece of a panel
stays in the first cache, took longer: they are stored and loaded again for each piece.
What a cut between threads moves decides between those that are equally even: weights come from
memory, and are read once where each thread has its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.operand import rows_in_place
from tilewright.kernels.cpu.schemas.outer.space import assemble
from tilewright.kernels.cpu.space import Cut, thread_cuts
from tilewright.machine.isa import ISAS, Isa
from tilewright.machine.machine import Machine
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank_outer import even

ROWS_SHARE = 0.6  # of the second cache, for the rows that panels are multiplied with
EVEN = 1.1  # threads of a cut that may have so much more to do than in the mean
FAR_BYTES = 1 << 19  # of weights: in a network, near caches do not keep them
WORD = 4


def rank_tile_rows(group: Group, machine: Machine, threads: int) -> list[Schedule]:
    """[Group in words, Machine in tiles] -> [Schedule of the schema 'outer']."""
    contraction = contract(group, vector_candidates(group)[0])
    stage, isa = group.main, ISAS[machine.isa]
    if not _applies(group, contraction, isa) or len(machine.caches) < 2:
        return []
    (row,), vector, loop = contraction.pixels, contraction.vector, contraction.loop
    sizes = stage.sizes
    width = isa.lanes * min(2, -(-sizes[vector] // isa.lanes))
    reg = dict.fromkeys(sizes, 1) | {row: even(sizes[row], 2 * isa.rows), vector: width}
    second = machine.capacity_bytes(1, threads) / WORD
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
        panel = {row: held, vector: width, loop: sizes[loop]}
        band = {**panel, vector: sizes[vector]}
        levels = (panel, panel, *[band] * (len(machine.caches) - 2))
        order = (row, vector, loop)
        made.append(
            assemble(group, machine.isa, vector, reg, levels, (order,) * len(levels), cut, '')
        )
    return made


def _applies(group: Group, contraction: Contraction, isa: Isa) -> bool:
    """Whether a group is a product of many rows, in place, with weights from memory."""
    constant = group.tensor(contraction.b.tensor).role == 'constant'
    plain = len(contraction.pixels) == 1 and contraction.reduction == (contraction.loop,)
    if not constant or not plain or contraction.batch or contraction.columns:
        return False
    many = group.main.sizes[contraction.pixels[0]] > isa.rows
    far = WORD * group.tensor(contraction.b.tensor).size >= FAR_BYTES
    return many and far and rows_in_place(group, contraction)


def _best_first(
    cuts: Iterable[Cut], group: Group, c: Contraction, reg: dict[str, int]
) -> list[Cut]:
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
