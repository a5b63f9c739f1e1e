"""The space of the Strassen schema: schedules made of decisions.

Goes in: a group in its flat form. Comes out: schedules.
"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.schemas.strassen.plan import blocks_of
from tilewright.kernels.cpu.space import Cut, register_order
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Level, Schedule


def strassen_schedule(
    group: Group, isa: str, vector: str, levels: int, reg: Mapping[str, int], rows: int,
    columns: int, deep: int, parallel: Cut = (),
) -> Schedule:  # fmt: skip
    """The schedule of these decisions, over the dimensions of one block: `rows` and `columns` that
    are computed together, `deep` terms of a sum between two visits of it.
    """
    stage = blocks_of(group, vector, levels).main
    c = contract(group, vector)
    row, loop, order = c.pixels[-1], c.loop, register_order(stage)
    near = dict(reg) | {row: rows, loop: deep}
    second = near | {vector: columns}
    tiles = (dict(reg), near, second, second | {loop: stage.sizes[loop]})
    names = ('reg', 'l1', 'l2', 'l3')
    made = tuple(Level.of(n, order, t) for n, t in zip(names, tiles, strict=True))
    return Schedule('strassen', isa, vector, made, parallel, '', (('levels', levels),))
