"""The packed operand of an outer product: panels of weights, and what packs them.

Goes in: what outer_plan.py decided. Comes out: C functions, and where constants lie.

    [batch and column dims][panel of V vectors][reductions][V * lanes]

The last panel is only as wide as the problem needs, its lanes beyond the problem zero (MOpt Sec. 6,
"Packing"). Weights are packed once; an operand that changes with every call is packed by each
thread, as far as its part needs it, before anything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.contraction import Contraction
from tilewright.kernels.cpu.isa.micro import WEIGHT_TYPES
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.writer import Writer, scaled, total

if TYPE_CHECKING:
    from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan


@dataclass(frozen=True)
class Panels:
    """The packed operand: panels of `vectors` vectors along the vector dimension."""

    size: int
    lanes: int
    vectors: int
    points: int
    count: int
    tail_vectors: int

    @classmethod
    def of(cls, contraction: Contraction, lanes: int, vectors: int) -> Panels:
        sizes = contraction.stage.sizes
        size, width = sizes[contraction.vector], lanes * vectors
        count = -(-size // width)
        tail = -(-(size - (count - 1) * width) // lanes)
        points = math.prod(sizes[d] for d in contraction.reduction)
        return cls(size, lanes, vectors, points, count, tail)

    @property
    def width(self) -> int:
        return self.lanes * self.vectors

    @property
    def tail_width(self) -> int:
        return self.lanes * self.tail_vectors

    @property
    def floats(self) -> int:
        """Floats of all panels of one batch and column point."""
        return self.points * ((self.count - 1) * self.width + self.tail_width)


def write_packing(writer: Writer, p: OuterPlan) -> None:
    """tw_pack: weights into panels, other constants behind them."""
    names = [tensor.name for tensor in p.group.with_role('constant')]
    places = constant_offsets(p)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    if not p.moving:
        write_weights(writer, p, f'constants[{names.index(p.contraction.b.tensor)}]')
    elif not places:
        writer.line('(void)constants, (void)packed;')
    packed = abi.write_constants(writer, p.group, places, p.packed_floats)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, p.scratch_floats, packed)


def write_weights(writer: Writer, p: OuterPlan, source: str) -> None:
    """In tw_pack: weights into panels, at the beginning of what is packed."""
    c, panels, sizes = p.contraction, p.panels, p.group.main.sizes
    strides, const = access_strides(p.group, c.b)
    kind = WEIGHT_TYPES[p.stored]
    cast, to = ('', '') if kind == 'float' else (f'(const {kind} *)', f'({kind} *)')
    writer.line(f'const {kind} *b = {cast}{source};')
    writer.line(f'{kind} *to = {to}packed;')
    for name in p.loose:
        writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    writer.open(f'for (long panel = 0; panel < {panels.count}; panel++)')
    writer.line(
        f'const long width = panel + 1 < {panels.count} ? {panels.width} : {panels.tail_width};'
    )
    for name in c.reduction:
        writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    writer.open('for (long lane = 0; lane < width; lane++)')
    writer.line(f'const long {c.vector} = panel * {panels.width} + lane;')
    address = total([*(scaled(d, s) for d, s in strides.items()), str(const)])
    zero = '0.0f' if kind == 'float' else '0'
    writer.line(f'*to++ = {c.vector} < {panels.size} ? b[{address}] : {zero};')
    writer.close(1 + len(c.reduction) + 1 + len(p.loose))


def write_panels(writer: Writer, p: OuterPlan) -> None:
    """A C function that packs panels in every call: columns `from` to `end`, ranges of the rest.

    The longest reduction runs inside where its neighbours lie side by side, else the lanes do.
    """
    c, panels, sizes = p.contraction, p.panels, p.group.main.sizes
    strides, const = access_strides(p.group, c.b)
    ranges = ''.join(f', long {d}_from, long {d}_end' for d in p.loose)
    writer.open(
        f'static void pack_panels(const float *restrict b, float *restrict panels, long from, '
        f'long end{ranges})'
    )
    loose = '0'
    for name in p.loose:
        writer.open(f'for (long {name} = {name}_from; {name} < {name}_end; {name}++)')
        loose = name if loose == '0' else f'({loose} * {sizes[name]} + {name})'
    width, last = panels.width, panels.count - 1
    writer.open(f'for (long panel = from / {width}; panel * {width} < end; panel++)')
    writer.line(f'const long width = panel < {last} ? {width} : {panels.tail_width};')
    writer.line(f'const long lanes = min_long(width, {panels.size} - panel * {width});')
    start = total([scaled(loose, panels.floats), f'panel * {width * panels.points}'])
    writer.line(f'float *to = panels + {start};')
    address = total([*(scaled(d, s) for d, s in strides.items()), str(const)])
    step = '0'
    for name in c.reduction:
        step = name if step == '0' else f'({step} * {sizes[name]} + {name})'
    inside = c.loop if c.loop and strides.get(c.loop) == 1 else ''
    for name in c.reduction:
        if name != inside:
            writer.open(f'for (long {name} = 0; {name} < {sizes[name]}; {name}++)')
    for low, high, value in (('0', 'lanes', f'b[{address}]'), ('lanes', 'width', '0.0f')):
        writer.open(f'for (long lane = {low}; lane < {high}; lane++)')
        if value != '0.0f':
            writer.line(f'const long {c.vector} = panel * {width} + lane;')
        if inside:
            writer.open(f'for (long {inside} = 0; {inside} < {sizes[inside]}; {inside}++)')
        writer.line(f'to[{step} * width + lane] = {value};')
        writer.close(2 if inside else 1)
    writer.close(len(c.reduction) - bool(inside) + 1 + len(p.loose) + 1)
    writer.line()


def constant_offsets(p: OuterPlan) -> dict[str, int]:
    """Where each constant that is not the packed operand lies behind the panels, in floats."""
    return abi.constant_places(p.group, p.contraction.b.tensor, p.packed_floats)
