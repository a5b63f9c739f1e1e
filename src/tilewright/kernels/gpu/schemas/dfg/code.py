"""The dfg schema in CUCL: one kernel for a whole group, printed from its data-flow graph.

Goes in: a group and a schedule (plan.py says what its decisions mean). Comes out: a module of one
kernel. A block computes, segment by segment, the regions that its tile of the result asks for;
barriers lie between segments, and what one leaves for the next stays in shared memory:

    which tile this block has
    { all points of the first region, dealt out to threads: combine, apply, store (shared) }
    BARRIER
    { .. of the last one, which is the tile: .. store (global), neighbours by neighbouring threads }

Positions outside a tensor hold the pad value of those who read them. Points outside the domain of
their stage, at the border or behind the last tile, are computed at the nearest point inside and not
stored: no thread leaves before the last barrier.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import device_text
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Buffer, Module, Step, tensor_buffers
from tilewright.kernels.gpu.schemas.dfg.fragments import Fragments, packed_lines
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Combine, Load
from tilewright.kernels.gpu.schemas.dfg.matrix import (
    accumulated,
    matrix_operands,
    matrix_products,
    matrix_stored,
    matrix_unit,
)
from tilewright.kernels.gpu.schemas.dfg.plan import NAME, DfgPlan, plan
from tilewright.kernels.gpu.schemas.dfg.products import copied, first_of, products
from tilewright.kernels.gpu.schemas.dfg.segment import Packed, Segment
from tilewright.kernels.gpu.schemas.dfg.sliding import slid
from tilewright.kernels.gpu.schemas.dfg.text import (
    Domain,
    early_name,
    element,
    finished,
    first,
    float_text,
    indented,
    origin,
    steps,
    sum_text,
)
from tilewright.kernels.gpu.schemas.general import code as general
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import COMBINERS
from tilewright.schedule.gpu import GpuSchedule

PACK_THREADS = 256


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    before = GpuSchedule.of(general.NAME, threads=128)
    ahead = [step for part in p.ahead for step in general.generate(part, before).steps]
    ahead += [Step.of(pack_kernel(p, item)) for item in p.packed]
    made = (*(part.output for part in p.ahead), *(item.tensor for item in p.packed))
    buffers = (Buffer(t.name, t.dims, t.shape, t.dtype) for t in made)
    return Module(
        group, (*tensor_buffers(group), *buffers), (Step.of(kernel(p)),), tuple(ahead)
    )  # fmt: skip


def kernel(p: DfgPlan) -> Kernel:
    typed = GpuTyped()
    body = [*_place(p), *_early(p), *(_walked(p, typed) if p.walk else _in_order(p, typed))]
    used = dict.fromkeys(n.tensor for s in p.segments for n in s.loads if n.level == GLOBAL)
    out = p.group.output.name
    return Kernel(
        f'{NAME}_{p.last.name}',
        tuple(pieces.argument(p.tensor(t), written=t == out) for t in (*used, out)),
        '\n'.join(body),
        (p.blocks, 1, 1),
        p.threads,
        p.shared,
        typed.helpers() if typed.functions else '',
        frozenset(['mma_tf32'] if any(s.depths for s in p.segments) else []),
    )


def _in_order(p: DfgPlan, typed: GpuTyped) -> list[str]:
    """One segment after the other."""
    lines = _kept(p)
    for count, segment in enumerate(p.segments):
        if count:
            lines += ['COPY_WAIT(0);'] if count == 1 and p.early else []
            lines += ['BARRIER;']
        lines += ['{', *indented(_written(p, segment, typed)), '}']
    return lines


def _walked(p: DfgPlan, typed: GpuTyped) -> list[str]:
    """All segments for each part of the last one's reduction, whose sums stay in registers."""
    walk, (*before, last) = p.walk, p.segments
    assert walk is not None
    assert last.depths is not None
    lines = [
        f'const int begin = {scaled("piece", walk.part)};',
        f'const int {first(walk.name)} = begin;',
        *_kept(p),
    ]
    for segment in before:
        lines += ['{', *indented(_written(p, segment, typed)), '}', 'BARRIER;']
    mine = f'if (unit < {last.units}) {{'
    products = [*matrix_operands(p, last), *accumulated(p, last, last.depths)]
    return [
        f'const int lane = THREAD % {WARP}, unit = THREAD / {WARP};',
        *matrix_unit(p, last),
        *(['COPY_WAIT(0);', 'BARRIER;'] if p.early else []),
        f'for (int piece = 0; piece < {walk.parts}; piece++) {{',
        *indented([*lines, mine, *indented(products), '}', 'BARRIER;']),
        '}',
        mine,
        *indented(matrix_stored(p, last, typed)),
        '}',
    ]


def _written(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    return [*_filled(p, segment), *_writer(segment)(p, segment, typed)]


def _early(p: DfgPlan) -> list[str]:
    """Copies of constants that are read later, without waiting for them."""
    lines = []
    for item in p.early.values():
        name = early_name(p, item.load)
        lines += [
            f'SHARED float *const {name} = kept + {item.offset};',
            f'const int {name}_first = {first_of(item)};',
            '{',
            '    const int from = 0;',
            *indented(copied(p, item, 0)),
            '}',
        ]
    return [*lines, 'COPY_COMMIT;'] if lines else []


def _writer(segment: Segment) -> Callable[[DfgPlan, Segment, GpuTyped], list[str]]:
    if segment.slide:
        return slid
    if segment.depths:
        return matrix_products
    return products if segment.roles else _points


def pack_kernel(p: DfgPlan, item: Packed | Fragments) -> Kernel:
    """A constant operand in the order in which it is read, zeros behind its end."""
    count = item.tensor.size
    source = p.group.tensor(item.load.tensor)
    body = [
        f'const int flat = BLOCK_X * {PACK_THREADS} + THREAD;',
        f'if (flat >= {count})',
        '    return;',
        *(
            packed_lines(item, source)
            if isinstance(item, Fragments)
            else _packed_lines(p, item, source)
        ),
    ]
    return Kernel(
        f'{NAME}_pack_{item.tensor.name}',
        (pieces.argument(source), pieces.argument(item.tensor, written=True)),
        '\n'.join(body),
        (-(-count // PACK_THREADS), 1, 1),
        PACK_THREADS,
    )


def _packed_lines(p: DfgPlan, item: Packed, source: Tensor) -> list[str]:
    own, _ = item.dims[-1]
    segment = next(s for s in p.segments if item in s.packed)
    at = sum_text(*steps(item.load.index, source.strides))
    return [
        *pieces.decode('flat', item.dims),
        f'{item.tensor.name}[flat] = {own} < {segment.stage.sizes[own]} ? {source.name}[{at}] '
        f': 0.0f;',
    ]


def _place(p: DfgPlan) -> list[str]:
    """Where this block's tile begins."""
    lines = pieces.decode('BLOCK_X', [(f'tile_{d}', count) for d, count in p.tiles])
    return [*lines, *(f'const int {first(d)} = {scaled(f"tile_{d}", p.tile[d])};'
                      for d, _ in p.tiles)]  # fmt: skip


def _kept(p: DfgPlan) -> list[str]:
    """Where every window in shared memory begins."""
    lines = []
    for name, kept in p.kept.items():
        found, const = steps([span.start for span in kept.window], kept.strides)
        begin = sum_text(found, const, {d: first(d) for d in found})
        lines += [
            f'SHARED float *const {name}_kept = kept + {kept.offset};',
            f'const int {name}_first = {begin};',
        ]
    return lines


def _filled(p: DfgPlan, segment: Segment) -> list[str]:
    """The border that readers see around what is computed."""
    kept = p.kept.get(segment.store.tensor)
    if kept is None or kept.window == segment.region.written:
        return []
    sizes = [(f'x{axis}', span.size) for axis, span in enumerate(kept.window)]
    outside = [
        f'(unsigned)({total([f"x{axis}", origin(span.start)])}) >= {extent}u'
        for axis, (span, extent) in enumerate(zip(kept.window, kept.tensor.shape, strict=True))
        if span != segment.region.written[axis]
    ]
    at = total([scaled(f'x{a}', s) for a, s in enumerate(kept.strides)])
    return [
        f'for (int at = THREAD; at < {math.prod(n for _, n in sizes)}; at += {p.threads}) {{',
        *indented(pieces.decode('at', sizes)),
        f'    if ({" || ".join(outside)})',
        f'        {kept.tensor.name}_kept[{at}] = {float_text(kept.fill or 0.0)};',
        '}',
    ]


def _points(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    """One point of the region after the other, each by a thread, or by some lanes."""
    declared = Domain(p, segment).lines('unit', segment.ordered)
    combine = segment.combine
    if segment.lanes > 1:
        assert combine is not None
        return _shared_points(p, segment, combine, typed, declared)
    value = _combined(p, segment, combine, typed) if combine else []
    return [
        f'for (int unit = THREAD; unit < {segment.units}; unit += {p.threads}) {{',
        *indented([*declared, *value, *finished(p, segment, typed, 'value')]),
        '}',
    ]


def _step(p: DfgPlan, segment: Segment, combine: Combine, typed: GpuTyped) -> str:
    """`value` combined with one point of the reductions."""
    loads = [segment.graph.node(name) for name in combine.inputs]
    texts = [element(p, segment, load) for load in loads if isinstance(load, Load)]
    term = device_text(typed, combine.expr, texts)
    return f'value = {narrow(typed.combine(combine.combiner, "f32", "value", term))};'


def _combined(p: DfgPlan, segment: Segment, combine: Combine, typed: GpuTyped) -> list[str]:
    """`value`, over all points of the reductions."""
    return [
        f'float value = {float_text(COMBINERS[combine.combiner])};',
        *(f'for (int {name} = 0; {name} < {size}; {name}++) {{' for name, size in combine.over),
        _step(p, segment, combine, typed),
        '}' * len(combine.over),
    ]


def _shared_points(
    p: DfgPlan, segment: Segment, combine: Combine, typed: GpuTyped, declared: list[str]
) -> list[str]:
    """Points whose reductions several threads share; they join in shared memory, in an order that
    is always the same.
    """
    lanes, units = segment.lanes, segment.units
    text = narrow(
        typed.combine(combine.combiner, 'f32', 'joined[THREAD]', 'joined[THREAD + step]')
    )  # fmt: skip
    return [
        f'const int lane = THREAD % {lanes}, mine = THREAD / {lanes};',
        f'const int unit = mine < {units} ? mine : {units - 1};',
        *declared,
        f'float value = {float_text(COMBINERS[combine.combiner])};',
        f'for (int at = lane; at < {segment.reduced}; at += {lanes}) {{',
        *indented(pieces.decode('at', combine.over)),
        f'    {_step(p, segment, combine, typed)}',
        '}',
        'joined[THREAD] = value;',
        'BARRIER;',
        f'for (int step = {lanes // 2}; step > 0; step /= 2) {{',
        '    if (lane < step)',
        f'        joined[THREAD] = {text};',
        '    BARRIER;',
        '}',
        f'if (lane == 0 && mine < {units}) {{',
        *indented(finished(p, segment, typed, 'joined[THREAD]')),
        '}',
    ]
