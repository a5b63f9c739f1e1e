"""The loops of a thread over windows in NHWC, in C: rows of the result, tile by tile.

Goes in: a plan of windows over every channel alone, of f16 (schemas/windows) or of bf16
(schemas/wide), and functions by the columns of a tile. Comes out: C lines that give every tile the
rows of its window: those outside the image are a row of the number that changes nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.pointwise import Operand, access_strides
from tilewright.kernels.cpu.writer import Writer, scaled, total

if TYPE_CHECKING:
    from tilewright.kernels.cpu.schemas.wide.plan import WidePlan
    from tilewright.kernels.cpu.schemas.windows.plan import WindowsPlan


def write_rows(
    writer: Writer, p: WindowsPlan | WidePlan, kind: str, names: Mapping[tuple, str],
    operands: Sequence[Operand], moves: Callable[[Operand], bool] = lambda item: True,
) -> None:  # fmt: skip
    """The loops, and the end of `tw_part`; `kind` is the C type of the image. `source`, `weights`,
    `border` and the operands are declared in front of them; operands that do not move are passed
    as they are.
    """
    group, down, across, depth = p.group, p.down, p.across, p.image.shape[3]
    result = C_TYPES[group.output.dtype]
    nest = Nest(group.main, p.schedule, writer)
    nest.open_parts()
    (low, high), (first, last) = nest.at(down.out), nest.at(p.channel)
    writer.open(f'for (long image = 0; image < {group.main.sizes[p.batch]}; image++)')
    writer.open(f'for (long line = {low}; line < {high}; line++)')
    writer.line(f'const {kind} *rows[{down.taps}];')
    writer.open(f'for (long r = 0; r < {down.taps}; r++)')
    writer.line(f'const long y = line * {down.stride} + r * {down.dilation} - {down.before};')
    row = f'source + (image * {down.extent} + y) * {across.extent * depth}'
    if p.leaves:
        row = f'(unsigned long)y < {down.extent}ul ? {row} : border'
    writer.line(f'rows[r] = {row};')
    writer.close()
    strides, const = access_strides(group, group.main.write)
    pixel = {p.batch: 'image', down.out: 'line', across.out: 'pixel'}

    def place_of(steps: Mapping[str, int], start: int) -> str:
        return total([*(scaled(pixel[d], s) for d, s in steps.items() if d in pixel), str(start)])

    given = ''.join(
        f', {item.name} + {place_of(dict(item.strides), item.const)}' if moves(item)
        else f', {item.name}'
        for item in operands
    )  # fmt: skip
    weights = ', weights' if p.weights else ''
    for columns, run in itertools.groupby(p.tiles, key=lambda tile: tile.columns):
        alike = list(run)
        count, start = len(columns), alike[0]
        end, at = alike[-1].first + count, f'{start.base * depth}'
        writer.open(f'for (long pixel = {start.first}; pixel < {end}; pixel += {count})')
        if len(alike) > 1:
            at = f'(pixel - {start.first}) * {across.stride * depth} + {start.base * depth}'
        to = f'({result} *)args->out + {place_of(strides, const)}'
        writer.line(f'{names[columns]}(rows, {at}{weights}, {to}, {first}, {last}{given});')
        writer.close()
    writer.close(3)
