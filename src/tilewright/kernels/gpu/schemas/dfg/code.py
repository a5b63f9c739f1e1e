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
from collections.abc import Mapping, Sequence

from tilewright.kernels.cpu.expression import number
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import device_text
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Buffer, Module, Step, tensor_buffers
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Apply, Combine, Load
from tilewright.kernels.gpu.schemas.dfg.plan import (
    NAME,
    DfgPlan,
    Roles,
    Segment,
    plan,
    reads_inside,
)
from tilewright.kernels.gpu.schemas.general import code as general
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.ops.group import Group
from tilewright.ops.stage import COMBINERS, Affine
from tilewright.schedule.gpu import GpuSchedule

UNROLLED = 32  # points of a window that are written out


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    first = GpuSchedule.of(general.NAME, threads=128)
    ahead = tuple(step for part in p.ahead for step in general.generate(part, first).steps)
    made = [Buffer(t.name, t.dims, t.shape, t.dtype) for t in (part.output for part in p.ahead)]
    return Module(group, (*tensor_buffers(group), *made), (Step.of(kernel(p)),), ahead)


def kernel(p: DfgPlan) -> Kernel:
    typed = GpuTyped()
    body = _place(p)
    for count, segment in enumerate(p.segments):
        lines = _products(p, segment, typed) if segment.roles else _points(p, segment, typed)
        body += ['BARRIER;'] if count else []
        body += ['{', *_indented([*_filled(p, segment), *lines]), '}']
    used = dict.fromkeys(
        n.tensor for s in p.segments for n in s.loads if n.level == GLOBAL
    )  # fmt: skip
    out = p.group.output.name
    return Kernel(
        f'{NAME}_{p.last.name}',
        tuple(pieces.argument(p.group.tensor(t), written=t == out) for t in (*used, out)),
        '\n'.join(body),
        (p.blocks, 1, 1),
        p.threads,
        p.shared,
        typed.helpers() if typed.functions else '',
    )


def _indented(lines: Sequence[str]) -> list[str]:
    return [f'    {line}' for line in lines]


def _place(p: DfgPlan) -> list[str]:
    """Where this block's tile begins, and where every window in shared memory does."""
    lines = pieces.decode('BLOCK_X', [(f'tile_{d}', count) for d, count in p.tiles])
    lines += [
        f'const int {_first(d)} = {scaled(f"tile_{d}", p.tile[d])};' for d, _ in p.tiles
    ]  # fmt: skip
    for name, kept in p.kept.items():
        lines.append(f'SHARED float *const {name}_kept = kept + {kept.offset};')
        terms: dict[str, int] = {}
        const = 0
        for span, stride in zip(kept.window, kept.strides, strict=True):
            const += stride * span.start.const
            for d, factor in span.start.terms:
                terms[d] = terms.get(d, 0) + stride * factor
        at = pieces.index(Affine((), const)) if not terms else total(
            [*(scaled(_first(d), s) for d, s in terms.items()), str(const)]
        )  # fmt: skip
        lines.append(f'const int {name}_first = {at};')
    return lines


def _first(dim: str) -> str:
    return f'{dim}first'


def _affine(e: Affine, names: Mapping[str, str] | None = None) -> str:
    return pieces.index(e, names)


def _filled(p: DfgPlan, segment: Segment) -> list[str]:
    """The border that readers see around what is computed."""
    kept = p.kept.get(segment.store.tensor)
    if kept is None or kept.window == segment.region.written:
        return []
    sizes = [(f'x{axis}', span.size) for axis, span in enumerate(kept.window)]
    outside = [
        f'(unsigned)(x{axis} + {span.start.const}) >= {extent}u'
        for axis, (span, extent) in enumerate(zip(kept.window, kept.tensor.shape, strict=True))
        if not span.start.terms and span.size > extent
    ]
    at = total([scaled(f'x{a}', s) for a, s in enumerate(kept.strides)])
    return [
        f'for (int at = THREAD; at < {math.prod(n for _, n in sizes)}; at += {p.threads}) {{',
        *_indented(pieces.decode('at', sizes)),
        f'    if ({" || ".join(outside)})',
        f'        {kept.tensor.name}_kept[{at}] = {_number(kept.fill or 0.0)};',
        '}',
    ]


def _number(value: float) -> str:
    return narrow(number(value, 'f32'))


class _Dims:
    """Lines that declare iterators of a segment from local positions; tests for the domain."""

    def __init__(self, p: DfgPlan, segment: Segment) -> None:
        self.p, self.segment = p, segment

    def lines(self, flat: str, dims: Sequence[str]) -> list[str]:
        """`d`: the nearest point of the domain; `d_here` beside it where it may be another one."""
        region, stage = self.segment.region, self.segment.stage
        lines = pieces.decode(flat, [(d, region.dims[d].size) for d in dims], prefix='l')
        for d in dims:
            span, size = region.dims[d], stage.sizes[d]
            start = Affine(
                tuple((_first(n), c) for n, c in span.start.terms), span.start.const
            )  # fmt: skip
            here = total([_affine(start) if start.terms or start.const else '', f'l{d}'])
            if not self._leaves(d):
                lines.append(f'const int {d} = {here};')
                continue
            lines.append(f'const int {d}here = {here};')
            low = f'{d}here < 0 ? 0 : ' if span.start.const < 0 else ''
            lines.append(f'const int {d} = {low}{d}here < {size} ? {d}here : {size - 1};')
        return lines

    def _leaves(self, dim: str) -> bool:
        return self.p.leaves(self.segment.region.dims[dim], self.segment.stage.sizes[dim])

    @property
    def here(self) -> dict[str, str]:
        """Iterators by the names of points that may be outside."""
        return {d: f'{d}here' for d in self.segment.ordered if self._leaves(d)}

    def tests(self, dims: Sequence[str]) -> list[str]:
        return [f'{d} == {d}here' for d in dims if self._leaves(d)]


def _strides(p: DfgPlan, load: Load) -> tuple[dict[str, int], int, str]:
    """(stride of every iterator, constant, what is taken off) of a tensor's element."""
    steps = p.group.tensor(load.tensor).strides
    off = ''
    if load.level != GLOBAL:
        steps, off = p.kept[load.tensor].strides, f'{load.tensor}_first'
    strides: dict[str, int] = {}
    const = 0
    for e, step in zip(load.index, steps, strict=True):
        const += step * e.const
        for name, factor in e.terms:
            strides[name] = strides.get(name, 0) + step * factor
    return {n: s for n, s in strides.items() if s}, const, off


def _pointer(load: Load) -> str:
    return load.tensor if load.level == GLOBAL else f'{load.tensor}_kept'


def _element(p: DfgPlan, segment: Segment, load: Load) -> str:
    """An element where all iterators are declared."""
    strides, const, off = _strides(p, load)
    at = total([*(scaled(n, s) for n, s in strides.items()), str(const)])
    tests = [
        f'(unsigned)({_affine(e)}) < {extent}u'
        for axis, (e, extent) in enumerate(
            zip(load.index, p.group.tensor(load.tensor).shape, strict=True)
        )
        if not reads_inside(p, segment, load, axis)
    ]
    text = f'{_pointer(load)}[{at}{f" - {off}" if off else ""}]'
    return f'({" && ".join(tests)} ? {text} : {_number(load.pad)})' if tests else text


def _finished(
    p: DfgPlan, segment: Segment, typed: GpuTyped, value: str, dims: _Dims,
    owned: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """What follows the combined `value` at one point, and its store where it is `owned`."""
    texts: dict[str, str] = {}
    lines = []
    for node in segment.graph.nodes:
        if isinstance(node, Load):
            texts[node.name] = _element(p, segment, node)
        elif isinstance(node, Combine):
            texts[node.name] = value
        elif isinstance(node, Apply):
            text = device_text(typed, node.expr, [texts[n] for n in node.inputs])
            texts[node.name] = f'value{len(lines)}'
            lines.append(f'const float value{len(lines)} = {text};')
    store = segment.store
    made = texts[store.inputs[0]]
    inside = dims.tests(segment.ordered)
    if store.level == GLOBAL:
        at = _flat(store.index, p.group.tensor(store.tensor).strides, {})
        return [*lines, f'{_only([*owned, *inside])}{store.tensor}[{at}] = {made};']
    kept = p.kept[store.tensor]
    at = _flat(store.index, kept.strides, dims.here)
    if inside:
        made = f'{" && ".join(inside)} ? {made} : {_number(kept.fill or 0.0)}'
    target = f'{store.tensor}_kept[{at} - {store.tensor}_first]'
    return [*lines, f'{_only(owned)}{target} = {made};']


def _only(tests: Sequence[str]) -> str:
    return f'if ({" && ".join(tests)}) ' if tests else ''


def _flat(index: Sequence[Affine], steps: Sequence[int], names: Mapping[str, str]) -> str:
    strides: dict[str, int] = {}
    const = 0
    for e, step in zip(index, steps, strict=True):
        const += step * e.const
        for name, factor in e.terms:
            strides[name] = strides.get(name, 0) + step * factor
    terms = [scaled(names.get(n, n), s) for n, s in strides.items()]
    return total([*terms, str(const)])


def _points(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    """One point of the region after the other, each by a thread."""
    dims, combine = _Dims(p, segment), segment.combine
    lines = [*dims.lines('unit', segment.ordered)]
    if combine:
        lines += _combined(p, segment, combine, typed)
    lines += _finished(p, segment, typed, 'value', dims)
    return [
        f'for (int unit = THREAD; unit < {segment.units}; unit += {p.threads}) {{',
        *_indented(lines),
        '}',
    ]


def _combined(p: DfgPlan, segment: Segment, combine: Combine, typed: GpuTyped) -> list[str]:
    """`value`, over all points of the reductions."""
    loads = [segment.graph.node(name) for name in combine.inputs]
    texts = [_element(p, segment, load) for load in loads if isinstance(load, Load)]
    term = device_text(typed, combine.expr, texts)
    text = typed.combine(combine.combiner, 'f32', 'value', term)
    return [
        f'float value = {_number(COMBINERS[combine.combiner])};',
        *_loops(combine),
        f'value = {narrow(text)};',
        '}' * len(combine.over),
    ]


def _loops(combine: Combine) -> list[str]:
    """Openings of the loops over reductions, short windows inside and written out."""
    found = sorted(combine.over, key=lambda one: -one[1])
    lines = []
    for place, (name, size) in enumerate(found):
        rest = math.prod(n for _, n in found[place:])
        if rest <= UNROLLED:
            lines.append('#pragma unroll')
        lines.append(f'for (int {name} = 0; {name} < {size}; {name}++) {{')
    return lines


def _products(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    """A sum of products: `tk` columns by `tp` pixels of each thread, in registers."""
    roles, combine, dims = segment.roles, segment.combine, _Dims(p, segment)
    assert roles is not None
    assert combine is not None
    tk, tp = segment.tk, segment.tp
    shares = [
        ('batch', segment.size(roles.batch)),
        ('column', segment.column_units),
        ('pixel', segment.pixel_units),
    ]
    lines = [
        *pieces.decode('unit', shares),
        *dims.lines('batch', roles.batch),
        *_operand(p, segment, dims, 'along'),
        *_operand(p, segment, dims, 'across'),
        f'float acc[{tk}][{tp}];',
        *pieces.cleared(tk, tp),
        *_loops(combine),
        *_indented(
            [
                f'float x[{tp}], y[{tk}];',
                *_values(p, segment, roles.along, 'along', 'x', 'j', tp),
                *_values(p, segment, roles.across, 'across', 'y', 'i', tk),
                *_each('i', tk),
                *_each('j', tp),
                'acc[i][j] = FMA(x[j], y[i], acc[i][j]);',
            ]
        ),
        '}' * len(combine.over),
        *_each('i', tk),
        '{',
        *_indented(_own(segment, dims, 'across')),
        *_indented(_each('j', tp)),
        '    {',
        *_indented(_indented(_own(segment, dims, 'along'))),
        *_indented(_indented(_finished(p, segment, typed, 'acc[i][j]', dims, _owned(segment)))),
        '    }',
        '}',
    ]
    return [
        f'for (int unit = THREAD; unit < {segment.units}; unit += {p.threads}) {{',
        *_indented(lines),
        '}',
    ]


def _each(name: str, count: int) -> list[str]:
    return ['#pragma unroll', f'for (int {name} = 0; {name} < {count}; {name}++)']


def _own(segment: Segment, dims: _Dims, role: str) -> list[str]:
    """Declare the iterators of pixel j, or of column i; behind the last one, the last one again."""
    if role == 'along':
        names, size, run = segment.pixels, segment.size(segment.pixels), segment.tp
        flat = f'pixel + j * {segment.pixel_units}'
    else:
        names, size, run = segment.columns, segment.size(segment.columns), segment.tk
        flat = f'column * {run} + i'
    if not names:
        return []
    lines = [f'const int {role}_own = {flat};']
    at = f'{role}_own'
    if size % run:
        at = f'{role}_one'
        lines.append(f'const int {at} = {role}_own < {size} ? {role}_own : {size - 1};')
    return [*lines, *dims.lines(at, names)]


def _owned(segment: Segment) -> list[str]:
    """What must hold for pixel j and column i to be in the region."""
    sizes = {
        'along_own': (segment.size(segment.pixels), segment.tp),
        'across_own': (segment.size(segment.columns), segment.tk),
    }
    return [f'{name} < {size}' for name, (size, run) in sizes.items() if size % run]


def _guarded(p: DfgPlan, segment: Segment, load: Load) -> list[tuple[int, Affine, int]]:
    """(axis, index, extent) of what may be outside."""
    shape = p.group.tensor(load.tensor).shape
    return [
        (axis, e, extent)
        for axis, (e, extent) in enumerate(zip(load.index, shape, strict=True))
        if not reads_inside(p, segment, load, axis)
    ]


def _load_of(roles: Roles, role: str) -> Load:
    return roles.along if role == 'along' else roles.across


def _operand(p: DfgPlan, segment: Segment, dims: _Dims, role: str) -> list[str]:
    """Where each of a thread's elements of an operand begins: what no reduction moves."""
    assert segment.roles is not None
    load = _load_of(segment.roles, role)
    name, run = ('j', segment.tp) if role == 'along' else ('i', segment.tk)
    strides, const, off = _strides(p, load)
    over = set(segment.stage.reduction)
    fixed = [scaled(n, s) for n, s in strides.items() if n not in over]
    lines = [f'int {role}_at[{run}];']
    guarded = _guarded(p, segment, load)
    lines += [f'int {role}_on{axis}[{run}];' for axis, _, _ in guarded]
    body = [
        *_own(segment, dims, role),
        f'{role}_at[{name}] = {total([*fixed, str(const)])}{f" - {off}" if off else ""};',
    ]
    for axis, e, _ in guarded:
        part = Affine(tuple((n, c) for n, c in e.terms if n not in over), e.const)
        body.append(f'{role}_on{axis}[{name}] = {_affine(part)};')
    return [*lines, *_each(name, run), '{', *_indented(body), '}']


def _values(
    p: DfgPlan, segment: Segment, load: Load, role: str, to: str, name: str, run: int
) -> list[str]:
    """The elements of an operand at one point of the reductions."""
    strides, _, _ = _strides(p, load)
    over = set(segment.stage.reduction)
    step = total([scaled(n, s) for n, s in strides.items() if n in over])
    text = f'{_pointer(load)}[{role}_at[{name}] + {step}]'
    tests = []
    for axis, e, extent in _guarded(p, segment, load):
        part = Affine(tuple((n, c) for n, c in e.terms if n in over))
        tests.append(f'(unsigned)({role}_on{axis}[{name}] + {_affine(part)}) < {extent}u')
    if tests:
        text = f'{" && ".join(tests)} ? {text} : {_number(load.pad)}'
    return [*_each(name, run), f'    {to}[{name}] = {text};']
