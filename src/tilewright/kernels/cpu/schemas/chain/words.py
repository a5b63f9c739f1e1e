"""The loops of the chain schema in words, as nests.py and product.py write them."""

from __future__ import annotations

from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.schemas.chain.across import AcrossPlan
from tilewright.kernels.cpu.schemas.chain.plan import plan_chain, tile_regions, tiled_stage
from tilewright.kernels.cpu.schemas.outer.words import outer_lines
from tilewright.kernels.cpu.schemas.pixels.words import pixels_lines
from tilewright.kernels.cpu.words import behind, loop_line
from tilewright.machine.machine import bytes_text
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.schedule.schedule import Schedule


def chain_lines(group: Group, schedule: Schedule) -> list[str]:
    """Loops over tiles, and what is computed of every part inside them."""
    plan = plan_chain(group, schedule)
    if isinstance(plan, AcrossPlan):
        return _across_lines(group, schedule, plan)
    return (_product_lines if schedule.vector else _nest_lines)(group, schedule)


def _across_lines(group: Group, schedule: Schedule, plan: AcrossPlan) -> list[str]:
    """Those of the schema of pixels; its strips are computed, not copied."""
    first = parts(group)[0]
    options = dict(schedule.options)
    how = f', {options["rows"]} rows of {options["lanes"]} lanes at a time'
    lines = pixels_lines(plan.pixels.group, plan.pixels.schedule)
    return [
        line.replace('copy ', f'compute ({first.main.name}{behind(first)}) ').replace(
            ', as strips', f'{how}, and copy it into strips'
        )
        for line in lines
    ]


def _product_lines(group: Group, schedule: Schedule) -> list[str]:
    """Those of the outer schema; its tiles are computed, not copied."""
    *before, first, last = parts(group)
    options = dict(schedule.options)
    how = f', {options["rows"]} rows of {options["lanes"]} lanes at a time, as it is read'
    if before:
        some = f'{options["channels"]} channels at a time, ' if options.get('channels') else ''
        how += f', from rows of {before[0].main.name}{behind(before[0])}, {some}that a cache keeps'
    return [
        line.replace('copy a tile of', f'compute ({first.main.name}{behind(first)}) a tile of')
        .replace(' into a buffer', how)
        for line in outer_lines(last, schedule)
    ]  # fmt: skip


def _nest_lines(group: Group, schedule: Schedule) -> list[str]:
    stage, cut_up = tiled_stage(group), parts(group)
    part, reg = part_extents(stage, schedule), schedule.reg
    lines: list[str] = []
    for name in reg.order:
        if reg.tile[name] < part[name]:
            lines.append('  ' * len(lines) + loop_line(cut_up[-1], reg, name, part[name]))
    indent, found = '  ' * len(lines), tile_regions(group, reg.tile)
    for item in cut_up:
        shape = [span.size for span in found[item.stages[-1].name].written]
        text = f'{item.main.name}{behind(item)}: {" x ".join(map(str, shape))}'
        size = 4
        for extent in shape:
            size *= extent
        where = 'into the result' if item is cut_up[-1] else f'kept in a cache ({bytes_text(size)})'
        lines.append(f'{indent}plain loops over {text}, {where}')
    return lines
