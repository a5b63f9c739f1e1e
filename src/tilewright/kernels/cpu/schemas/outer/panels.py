"""The packed operand of an outer product: panels of weights, and what packs them.

Goes in: what outer_plan.py decided. Comes out: C functions, and where constants lie.

    [batch and column dims][panel of V vectors][reductions][V * lanes]

The last panel is only as wide as the problem needs, its lanes beyond the problem zero (MOpt Sec. 6,
"Packing"). Weights are packed once; an operand that changes with every call is packed by each
thread, as far as its part needs it, before anything else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.contraction import Contraction
from tilewright.kernels.cpu.isa.micro import BLOCK, WEIGHT_TYPES
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.outer.store import by_pixels
from tilewright.kernels.cpu.transpose import TRANSPOSE
from tilewright.kernels.cpu.writer import Writer, scaled, total

if TYPE_CHECKING:
    from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan


PIECE = 32  # points of a run that are transposed for all lanes before the next: two lines of each


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


@dataclass(frozen=True, slots=True)
class _Run:
    """Reductions that follow each other in the packed operand and in panels alike, as one."""

    name: str
    size: int
    stride: int
    pitch: int  # steps of a panel from one point to the next


def _runs(p: OuterPlan, strides: Mapping[str, int]) -> list[_Run]:
    """The reductions in the order of panels, neighbours joined where the operand allows it."""
    sizes, found, pitch = p.group.main.sizes, list[_Run](), 1
    for name in reversed(p.contraction.reduction):
        stride, size = strides.get(name, 0), sizes[name]
        if found and stride == found[0].stride * found[0].size:
            found[0] = replace(found[0], size=found[0].size * size)
        else:
            found.insert(0, _Run(name, size, stride, pitch))
        pitch *= size
    return found


def turned_run(p: OuterPlan) -> _Run | None:
    """The run along which the operand is contiguous, where panels are a transposition of it."""
    strides, _ = access_strides(p.group, p.contraction.b)
    along = [r for r in _runs(p, strides) if r.stride == 1 and r.size >= BLOCK]
    return along[0] if along and strides.get(p.contraction.vector) != 1 else None


def write_panels(writer: Writer, p: OuterPlan) -> None:
    """A C function that packs panels in every call: columns `from` to `end`, ranges of the rest.

    Where lanes are neighbours in the operand, they are copied; else blocks of 4 x 4 are transposed,
    `PIECE` points at a time, so that lines that were read are used whole.
    """
    c, panels, sizes = p.contraction, p.panels, p.group.main.sizes
    strides, const = access_strides(p.group, c.b)
    along, runs = turned_run(p), _runs(p, strides)
    if along is not None and not by_pixels(p):
        writer.lines += [*TRANSPOSE.splitlines(), '']
    ranges = ''.join(f', long {d}_from, long {d}_end' for d in p.loose)
    writer.open(
        f'static void pack_panels(const float *restrict b, float *restrict panels, long from, '
        f'long end{ranges})'
    )
    loose = '0'
    for name in p.loose:
        writer.open(f'for (long {name} = {name}_from; {name} < {name}_end; {name}++)')
        loose = name if loose == '0' else f'({loose} * {sizes[name]} + {name})'
    width, last, each = panels.width, panels.count - 1, strides.get(c.vector, 0)
    writer.open(f'for (long panel = from / {width}; panel * {width} < end; panel++)')
    writer.line(f'const long width = panel < {last} ? {width} : {panels.tail_width};')
    writer.line(f'const long lanes = min_long(width, {panels.size} - panel * {width});')
    start = total([scaled(loose, panels.floats), f'panel * {width * panels.points}'])
    writer.line(f'float *to = panels + {start};')
    others = [run for run in runs if run != along]
    if along is not None:
        writer.open(f'for (long first = 0; first < {along.size}; first += {PIECE})')
        writer.line(f'const long end_of = min_long(first + {PIECE}, {along.size});')
    for run in others:
        writer.open(f'for (long {run.name} = 0; {run.name} < {run.size}; {run.name}++)')
    steps = total([scaled(run.name, run.pitch) for run in others])
    shifts = [*(scaled(d, strides[d]) for d in p.loose if d in strides), str(const)]
    shifts += [scaled(run.name, run.stride) for run in others]
    writer.line(f'const float *rows = b + {total([*shifts, scaled(f"panel * {width}", each)])};')
    writer.line(f'float *step = to + ({steps}) * width;')
    if along is None:
        writer.open('for (long lane = 0; lane < lanes; lane++)')
        writer.line(f'step[lane] = rows[{scaled("lane", each)}];')
        writer.close()
        writer.open('for (long lane = lanes; lane < width; lane++)')
        writer.line('step[lane] = 0.0f;')
        writer.close(1 + len(others))
    else:
        writer.line(f'const long pitch = {along.pitch} * width;')
        writer.lines += [
            '    ' * writer.depth + line
            for line in f"""\
long lane = 0;
for (; lane + 4 <= lanes; lane += 4) {{
    long x = first;
    for (; x + 4 <= end_of; x += 4)
        transpose4(rows + lane * {each} + x, {each}, step + x * pitch + lane, pitch, 4);
    for (; x < end_of; x++)
        for (long i = lane; i < lane + 4; i++)
            step[x * pitch + i] = rows[i * {each} + x];
}}
for (; lane < width; lane++)
    for (long x = first; x < end_of; x++)
        step[x * pitch + lane] = lane < lanes ? rows[lane * {each} + x] : 0.0f;""".splitlines()
        ]
        writer.close(len(others) + 1)
    writer.close(1 + len(p.loose) + 1)
    writer.line()


def constant_offsets(p: OuterPlan) -> dict[str, int]:
    """Where each constant that is not the packed operand lies behind the panels, in floats."""
    return abi.constant_places(p.group, p.contraction.b.tensor, p.packed_floats)
