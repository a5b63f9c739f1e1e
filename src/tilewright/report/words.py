"""Schedules in words: the loops around the micro-kernel, as the generated code runs them.

Goes in: a group and a schedule. Comes out: lines of text. The order of the loops, and the place
where the input is copied, follow codegen/cpu: nest.py, outer.py, winograd.py, stencil.py.
"""

from __future__ import annotations

import math

from tilewright.kernels.cpu.contraction import Contraction, contract
from tilewright.kernels.cpu.nest import part_extents
from tilewright.kernels.cpu.operand import reads_outside
from tilewright.kernels.cpu.schemas.stencil.cover import stencil
from tilewright.kernels.cpu.schemas.winograd.plan import tile
from tilewright.machine.isa import ISAS
from tilewright.model.cpu.traffic import footprint
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.winograd import geometry, matmul_stage
from tilewright.report.machine_page import bytes_text
from tilewright.schedule.schedule import Level, Schedule

# A level and its loops: (dimension, what it is cut from).
Band = tuple[Level, list[tuple[str, int]]]
# (one, several) of each dimension of a convolution; other operators go by their iterators' names.
_CONVOLUTION = {
    'n': ('image', 'images'),
    'g': ('group', 'groups'),
    'k': ('output channel', 'output channels'),
    'c': ('input channel', 'input channels'),
    'h': ('output row', 'output rows'),
    'w': ('output column', 'output columns'),
    'hw': ('output pixel', 'output pixels'),
    'r': ('filter row', 'filter rows'),
    's': ('filter column', 'filter columns'),
    'ph': ('row of tiles', 'rows of tiles'),
    'pw': ('column of tiles', 'columns of tiles'),
    't': ('point', 'points'),
}


def scheduled_stage(group: Group, schedule: Schedule) -> Stage:
    """The stage whose dimensions the schedule tiles: Winograd's is the product of its tiles."""
    if schedule.schema == 'winograd':
        return matmul_stage(group, tile(schedule))
    return tiled_form(group, schedule.reg.tile).main


def quantity(group: Group, name: str, count: int) -> str:
    """'8 output channels (k)'; for operators without words '8 of j'."""
    words = _CONVOLUTION.get(name) if group.main.name == 'conv2d' else None
    if words is None:
        return f'{count} of {name}'
    return f'{count} {words[count != 1]} ({name})'


def thread_line(group: Group, schedule: Schedule) -> str:
    """How the work is cut between threads."""
    if schedule.threads == 1:
        return 'one thread does everything'
    stage = scheduled_stage(group, schedule)
    part = part_extents(stage, schedule)
    cuts = ' and '.join(
        f'{quantity(group, d, stage.sizes[d])} in {ways}, at most {part[d]} each'
        for d, ways in schedule.parallel
    )
    return f'{schedule.threads} threads: cut {cuts}'


def summary(group: Group, schedule: Schedule) -> str:
    """One line for tables: cut, register tile, and the tiles of each cache that cut something."""
    parts = [' '.join(f'{d}/{ways}' for d, ways in schedule.parallel) or 'one thread']
    if schedule.options:
        parts.insert(0, f'{schedule.schema} ' + ' '.join(f'{n}{v}' for n, v in schedule.options))
    outer = part_extents(scheduled_stage(group, schedule), schedule)
    bands = []
    for level in reversed(schedule.levels):
        names = [d for d in level.order if level.tile[d] < outer[d]]
        if level.name == 'reg' and schedule.schema != 'general':
            names = [d for d in level.order if level.tile[d] > 1]
        if names:
            bands.append(f'{level.name} ' + ' '.join(f'{d}{level.tile[d]}' for d in names))
        outer = {d: min(outer[d], level.tile[d]) for d in outer}
    return ' | '.join([*parts, *bands])


def loop_lines(group: Group, schedule: Schedule) -> list[str]:
    """The nest, outermost line first, indented as it is nested."""
    group = tiled_form(group, schedule.reg.tile)
    lines = [thread_line(group, schedule)]
    if schedule.schema == 'general':
        return [*lines, *_general_lines(group, schedule)]
    if schedule.schema == 'winograd':
        return [*lines, *_winograd_lines(group, schedule)]
    if schedule.schema == 'stencil':
        return [*lines, *_stencil_lines(group, schedule)]
    contraction = contract(group, schedule.vector)
    part = part_extents(group.main, schedule)
    bands = _bands(group, schedule, part)
    copy_after = _copy_after(contraction, schedule, bands)
    depth = 0
    if schedule.pack and copy_after == 0:
        lines.append(_copy_line(group, contraction, schedule, part))
    for level, loops in bands:
        for name, around in loops:
            lines.append('  ' * depth + _loop(group, level, name, around))
            depth += 1
            if schedule.pack and depth == copy_after:
                lines.append('  ' * depth + _copy_line(group, contraction, schedule, part))
        if level.name != 'reg':
            lines.append('  ' * depth + _resident(group, level, part))
    indent = '  ' * depth
    lines += [indent + text for text in _micro_lines(group, contraction, schedule)]
    return lines


def _bands(group: Group, schedule: Schedule, part: dict[str, int]) -> list[Band]:
    """Loops that run more than once, by level; the micro-kernel has the innermost reductions."""
    largest, bands = dict(part), []
    for level in reversed(schedule.levels):
        loops = []
        for name in level.order:
            inside = level.name == 'reg' and name in group.main.reduction
            if level.tile[name] < largest[name] and not inside:
                loops.append((name, largest[name]))
                largest[name] = level.tile[name]
        bands.append((level, loops))
    return bands


def _copy_after(contraction: Contraction, schedule: Schedule, bands: list[Band]) -> int:
    """The number of loops outside the copy of the input: down to the last that moves it."""
    names = [level.name for level in schedule.levels]
    opened = moving = 0
    for level, loops in bands:
        if not schedule.pack or names.index(level.name) < names.index(schedule.pack):
            break
        for name, _ in loops:
            opened += 1
            if name in contraction.a.names:
                moving = opened
    return moving


def _loop(group: Group, level: Level, name: str, around: int) -> str:
    tile = level.tile[name]
    what = f'block of {quantity(group, name, tile)}' if tile > 1 else _single(group, name)
    last = f', the last {around % tile}' if around % tile else ''
    return f'for each {what} of {around} ({level.name}: {-(-around // tile)} times{last}):'


def _single(group: Group, name: str) -> str:
    return quantity(group, name, 1).removeprefix('1 of ').removeprefix('1 ')


def _copy_line(
    group: Group, contraction: Contraction, schedule: Schedule, part: dict[str, int]
) -> str:
    index = [level.name for level in schedule.levels].index(schedule.pack)
    tile = {d: min([part[d], *(v.tile[d] for v in schedule.levels[index:])]) for d in part}
    extents = contraction.a.extents(tile)
    shape = ' x '.join(map(str, extents))
    size = bytes_text(4 * math.prod(extents))
    padded = ', with its padding,' if reads_outside(group, contraction) else ''
    return f'copy a tile of {contraction.a.tensor}, {shape} ({size}){padded} into a buffer'


def _resident(group: Group, level: Level, part: dict[str, int]) -> str:
    """Bytes of each tensor in one tile, lines and padding not counted."""
    clipped = {d: min(size, part[d]) for d, size in level.tiles}
    sizes = ', '.join(
        f'{a.tensor} {bytes_text(4 * float(footprint(a, clipped)))}' for a in group.main.accesses
    )
    return f'[tile in {level.name.upper()}: {sizes}]'


def _micro_lines(group: Group, contraction: Contraction, schedule: Schedule) -> list[str]:
    reg, sizes, isa = schedule.reg.tile, group.main.sizes, ISAS[schedule.isa]
    pixels = math.prod(reg[d] for d in contraction.pixels)
    vectors = reg[schedule.vector] // isa.lanes
    shape = ' x '.join(
        quantity(group, d, reg[d])
        for d in (*contraction.pixels, schedule.vector)
        if reg[d] > 1 or d == schedule.vector
    )
    lines = [
        f'micro-kernel: {shape}, {pixels * vectors} accumulators in {isa.registers} '
        f'{schedule.isa} registers'
    ]
    inner = schedule.levels[1].tile
    steps = math.prod(sizes[d] for d in contraction.unrolled)
    if contraction.outer:
        names = ' and '.join(quantity(group, d, inner[d]) for d in contraction.outer)
        lines.append(f'  called for each of {names}')
    if contraction.loop:
        count = quantity(
            group, contraction.loop, min(inner[contraction.loop], sizes[contraction.loop])
        )
        lines.append(f'  inside: loop over {count}, {_steps(steps)} unrolled')
    else:
        lines.append(f'  inside: {_steps(steps)} unrolled')
    behind = ', '.join(stage.name for stage in group.epilogue)
    cut = any(inner[d] < sizes[d] for d in contraction.reduction)
    lines.append(
        ('once the sums are complete, ' if cut else '')
        + 'store the results'
        + (f' through {behind}' if behind else '')
    )
    return lines


def _steps(count: int) -> str:
    return f'{count} step' if count == 1 else f'{count} steps'


def _general_lines(group: Group, schedule: Schedule) -> list[str]:
    """The general schema has no micro-kernel: loops, and a plain nest over the innermost tile."""
    part = part_extents(group.main, schedule)
    lines, depth, largest = [], 0, dict(part)
    for level in reversed(schedule.levels):
        for name in level.order:
            if level.tile[name] < largest[name]:
                lines.append('  ' * depth + _loop(group, level, name, largest[name]))
                largest[name] = level.tile[name]
                depth += 1
    inside = ' x '.join(
        quantity(group, d, largest[d]) for d in schedule.reg.order if largest[d] > 1
    )
    lines.append(
        '  ' * depth + f"plain loops over {inside or 'one point'}, in the compiler's hands"
    )
    return lines


def _stencil_lines(group: Group, schedule: Schedule) -> list[str]:
    """Planes, tiles of rows, strips of vectors, and what a tile does."""
    shape, part, reg = stencil(group), part_extents(group.main, schedule), schedule.reg
    isa, lanes = ISAS[schedule.isa], dict(schedule.options)['lanes']
    lines: list[str] = []
    for name in (*shape.outer, shape.down.name, shape.across.name):
        if name and reg.tile[name] < part[name]:
            lines.append('  ' * len(lines) + _loop(group, reg, name, part[name]))
    vectors = min(reg.tile[shape.across.name], -(-shape.across.size // lanes) * lanes) // lanes
    rows = min(reg.tile[shape.down.name], part[shape.down.name]) if shape.down.name else 1
    loops = ' and '.join(quantity(group, d, group.main.sizes[d]) for d in shape.loops)
    behind = ', '.join(s.name for s in group.epilogue)
    inside = [
        f'tile: {rows} x {vectors} vectors of {lanes} lanes, {rows * vectors} accumulators in '
        f'{isa.registers} {schedule.isa} registers',
        *([f'  inside: loop over {loops}'] if loops else []),
        f'  {_steps(shape.taps)} unrolled; {shape.a.tensor} is read in place, vectors across an '
        f'edge are shifted',
        'store the results' + (f' through {behind}' if behind else ''),
    ]
    return [*lines, *('  ' * len(lines) + text for text in inside)]


def _winograd_lines(group: Group, schedule: Schedule) -> list[str]:
    """Blocks of tiles, transformed, multiplied point by point, and transformed back."""
    options = dict(schedule.options)
    stage, shape = scheduled_stage(group, schedule), geometry(group, tile(schedule))
    reg, l1, l2, l3 = schedule.levels
    part = part_extents(stage, schedule)
    lines, depth = [], 0

    def loops(level: Level, inside: dict[str, int], names: tuple[str, ...]) -> None:
        nonlocal depth
        for name in level.order:
            if name in names and level.tile[name] < inside[name]:
                lines.append('  ' * depth + _loop(group, level, name, inside[name]))
                depth += 1

    def say(text: str) -> None:
        lines.append('  ' * depth + text)

    loops(l3, part, tuple(part))
    down, across = shape.down, shape.across
    say(
        f'transform tiles of {down.length} x {across.length} inputs, one for '
        f'{down.m} x {across.m} outputs '
        f'({shape.saving:.2f} times fewer products)'
    )
    loops(l2, l3.tile, ('k',))
    outside = depth
    loops(l1, l2.tile, ('t',))
    loops(reg, l1.tile, ('k',))
    say(
        f'micro-kernels: at most {options["run"]} tiles x {quantity(group, "k", reg.tile["k"])}, '
        f'loop over {quantity(group, "c", stage.sizes["c"])}'
    )
    depth = outside
    behind = ', '.join(s.name for s in group.epilogue)
    say('transform back and store the results' + (f' through {behind}' if behind else ''))
    return lines
