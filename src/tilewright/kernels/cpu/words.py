"""Loops in words: what the words of every schema are made of.

Goes in: a group and a schedule. Comes out: lines of text, outermost loop first, indented as loops
are nested.
"""

from __future__ import annotations

from tilewright.kernels.cpu.nest import part_extents
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Level, Schedule

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
_DEPTH = {'d': ('output plane', 'output planes'), 't': ('filter plane', 'filter planes')}


def quantity(group: Group, name: str, count: int) -> str:
    """'8 output channels (k)'; for operators without words '8 of j'."""
    known = {'conv1d': _CONVOLUTION, 'conv2d': _CONVOLUTION, 'conv3d': _CONVOLUTION | _DEPTH}
    words = known.get(group.main.name, {}).get(name)
    if words is None:
        return f'{count} of {name}'
    return f'{count} {words[count != 1]} ({name})'


def loop_line(group: Group, level: Level, name: str, around: int) -> str:
    """One loop over tiles of a level."""
    tile = level.tile[name]
    one = quantity(group, name, 1).removeprefix('1 of ').removeprefix('1 ')
    what = f'block of {quantity(group, name, tile)}' if tile > 1 else one
    last = f', the last {around % tile}' if around % tile else ''
    return f'for each {what} of {around} ({level.name}: {-(-around // tile)} times{last}):'


def steps_text(count: int) -> str:
    return f'{count} step' if count == 1 else f'{count} steps'


def behind(group: Group) -> str:
    """' through bias, relu': the stages that results pass on their way."""
    names = ', '.join(stage.name for stage in group.epilogue)
    return f' through {names}' if names else ''


def nest_lines(group: Group, schedule: Schedule) -> list[str]:
    """Loops over the tiles of all levels, and plain loops over the innermost tile."""
    part = part_extents(group.main, schedule)
    lines, depth, largest = [], 0, dict(part)
    for level in reversed(schedule.levels):
        for name in level.order:
            if level.tile[name] < largest[name]:
                lines.append('  ' * depth + loop_line(group, level, name, largest[name]))
                largest[name] = level.tile[name]
                depth += 1
    inside = ' x '.join(
        quantity(group, d, largest[d]) for d in schedule.reg.order if largest[d] > 1
    )
    lines.append(
        '  ' * depth + f"plain loops over {inside or 'one point'}, in the compiler's hands"
    )
    return lines
