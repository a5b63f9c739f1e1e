"""The loops of the Strassen schema in words, as code.py writes them, and what people call it."""

from __future__ import annotations

from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.strassen.plan import blocks_of, levels_of
from tilewright.kernels.cpu.words import behind, loop_line, quantity
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.strassen import PRODUCTS
from tilewright.schedule.schedule import Schedule


def strassen_title(_group: Group, schedule: Schedule) -> str:
    """'Strassen, 49 products for 64'"""
    levels = levels_of(schedule)
    return f'Strassen, {PRODUCTS**levels} products for {8**levels}'


def strassen_lines(group: Group, schedule: Schedule) -> list[str]:
    """Blocks that are added, multiplied, and added again."""
    group, levels = tiled_form(group, schedule.reg.tile), levels_of(schedule)
    block = blocks_of(group, schedule.vector, levels)
    c, (reg, l1, l2, l3) = contract(block, schedule.vector), schedule.levels
    inside, lines, depth = part_extents(block.main, schedule), [], 0

    def say(text: str) -> None:
        lines.append('  ' * depth + text)

    def loops(level, names: tuple[str, ...]) -> None:
        nonlocal depth
        for name in names:
            if level.tile[name] < inside[name]:
                say(loop_line(group, level, name, inside[name]))
                inside[name] = level.tile[name]
                depth += 1

    loops(l3, (*c.pixels, c.vector))
    outside = depth
    loops(l2, (c.loop,))
    say(f'add up blocks of {c.a.tensor}: each dimension is cut into {1 << levels}')
    say(f'for each of {PRODUCTS**levels} products')
    depth += 1
    loops(l1, (c.vector,))
    loops(reg, (c.pixels[-1],))
    row, vector = c.pixels[-1], c.vector
    say(
        f'micro-kernel: {quantity(group, row, reg.tile[row])} x '
        f'{quantity(group, vector, reg.tile[vector])}, loop over '
        f'{quantity(group, c.loop, min(l1.tile[c.loop], block.main.sizes[c.loop]))}'
    )
    depth = outside
    say('add up products and store the results' + behind(group))
    return lines
