"""A 1x1 convolution before a sliding producer: the rows that a tile needs, in a thread's cache.

Goes in: the first of three parts, how many rows of its result a tile needs, an instruction set.
Comes out: a plan of the outer schema for so many rows, and the C function that computes them.

    1x1 -> rows of all channels -> depthwise (rows.py) -> strips -> 1x1

Rows that neighbouring tiles share are computed again. A region always has all of its rows: at the
edges of the image it is moved inside, so that its tiles have the same extents wherever it lies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi, operand
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.schemas.outer.code import write_kernels, write_nest
from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan, plan_outer
from tilewright.kernels.cpu.schemas.outer.space import register_tiles
from tilewright.kernels.cpu.space import register_order, whole_tile
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Stage
from tilewright.schedule.schedule import Level, Schedule

_ATTRIBUTE = re.compile(r'__attribute__\(\((?:[^()]|\([^()]*\))*\)\)')
_DEFINED = re.compile(r'^(?:static|typedef)\b[^(\[;=]*?\b(\w+)\s*[(\[;=]')


@dataclass(frozen=True)
class ExpandPlan:
    """`outer` computes `rows` rows of one image; planes of the result are `pitch` floats apart."""

    part: Group
    outer: OuterPlan
    rows: int
    pitch: int

    @property
    def width(self) -> int:
        """Of a row."""
        return self.part.output.shape[-1]

    @property
    def region_floats(self) -> int:
        return abi.aligned(self.outer.group.output.size)

    @property
    def scratch_floats(self) -> int:
        return self.region_floats + self.outer.scratch_floats


def why_not_expanded(part: Group) -> str:
    """Why a part cannot be computed some rows at a time, before a sliding one; '' where it can."""
    flat = flatten(part)
    if not vector_candidates(flat) or len(part.output.shape) != 4:
        return f'{part.label} is no product of an image with weights'
    joined = flat.main.write.index
    image = [a for a in flat.main.reads if flat.tensor(a.tensor).role == 'input']
    if len(joined) != 3 or len(image) != 1 or image[0].index[-1] != joined[-1]:
        return f'{part.label} slides over its image'
    if any(len(a.index) > 2 for s in flat.epilogue for a in s.reads
           if flat.tensor(a.tensor).role != 'inner'):  # fmt: skip
        return f'{part.label} adds a tensor of its size'
    return ''


def region(part: Group, rows: int) -> Group:
    """The part for `rows` rows of one image, whose result lies in planes of its own."""
    flat = flatten(part)
    size = rows * part.output.shape[-1]
    made = {s.write.tensor for s in flat.stages}

    def resized(tensor: Tensor) -> Tensor:
        if tensor.name not in made:
            return tensor
        return replace(tensor, shape=(1, tensor.shape[1], operand.odd_lines(size)))

    def cut(stage: Stage) -> Stage:
        names = [e.names[0] if e.names else '' for e in stage.write.index]
        sizes = {names[0]: 1, names[-1]: size}
        dims = tuple(replace(d, size=sizes.get(d.name, d.size)) for d in stage.dims)
        return replace(stage, dims=dims)

    tensors, stages = tuple(map(resized, flat.tensors)), tuple(map(cut, flat.stages))
    return Group(f'{part.label}, {rows} rows', tensors, stages)


def best_shapes(contraction: Contraction, isa: Isa) -> list[dict[str, int]]:
    """Register tiles that waste least of the image and of the last panel, large ones first."""
    sizes = contraction.stage.sizes

    def waste(tile: dict[str, int]) -> tuple[float, int]:
        share, accumulators = 1.0, 1
        for d in (*contraction.pixels, contraction.vector):
            share *= -(-sizes[d] // tile[d]) * tile[d] / sizes[d]
            accumulators *= tile[d]
        return share - 0.01 * accumulators / isa.lanes, -accumulators

    return sorted(register_tiles(contraction, isa), key=waste)


def plan_expand(part: Group, rows: int, isa: str) -> ExpandPlan:
    """[first part] -> [ExpandPlan]; ScheduleError where it cannot be."""
    why = why_not_expanded(part)
    if why:
        raise ScheduleError(f'{why}; without a vector dimension it can be chained')
    group = region(part, rows)
    vector = vector_candidates(group)[0]
    contraction = contract(group, vector)
    reg = best_shapes(contraction, ISAS[isa])[0]
    order = register_order(group.main)
    inner = dict.fromkeys(group.main.sizes, 1) | reg
    levels = (Level.of('reg', order, inner), Level.of('l1', order, whole_tile(group.main, inner)))
    outer = plan_outer(group, Schedule('outer', isa, vector, levels, (), 'l1'))
    return ExpandPlan(part, outer, rows, group.output.shape[-1])


def write_expand(writer: Writer, p: ExpandPlan, places: dict[str, int], at: int) -> None:
    """`expand(source, packed, out, scratch)`: a region, from the rows that begin at `source`.

    Constants lie at `places`, weights at `at`, where `packed` points.
    """
    own, outer = Writer(), p.outer
    image = outer.group.tensor(outer.contraction.a.tensor)
    operand.write_pack(own, outer.operand, image)
    write_kernels(own, outer)
    own.open(
        'static __attribute__((noinline)) void expand(const float *source, const float *packed, '
        'float *out, float *scratch)'
    )
    own.line('const tw_args own = {.packed = packed, .out = out, .scratch = (char *)scratch};')
    own.line('const tw_args *args = &own;')
    own.line('const long part = 0;')
    write_nest(
        own, outer, lambda tensor: f'args->packed + ({places[tensor] - at})',
        'pack_tile(source, buffer, from, extent);',
    )  # fmt: skip
    own.close()
    own.line()
    writer.lines += _apart(own.lines)


def _apart(lines: list[str]) -> list[str]:
    """The lines with names of their own for all that they define, beside another kernel's."""
    plain = (_ATTRIBUTE.sub('', line) for line in lines)
    names = {found[1] for line in plain if (found := _DEFINED.match(line))} - {'expand'}
    word = re.compile(rf'\b({"|".join(sorted(names))})\b')
    return [word.sub(r'expand_\1', line) for line in lines]


def first_row(p: ExpandPlan, step: int, low: int, row: str) -> str:
    """A C expression: where a region begins, for a tile from `row`, whose first output reads row
    `low`.
    """
    last = p.part.output.shape[-2] - p.rows
    return f'max_long(0, min_long({row} * {step} + ({low}), {last}))'


def image_strides(part: Group) -> tuple[int, int]:
    """(from image to image, from row to row) of what the part reads."""
    tensor = next(t for t in part.tensors if t.role == 'input')
    return tensor.strides[0], tensor.strides[-2]
