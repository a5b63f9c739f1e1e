"""Texts that segments of the dfg schema are written with: iterators, elements, stores.

Goes in: a plan and a segment. Comes out: lines of CUCL. An iterator `h_` of a point that may lie
outside the stage's domain is the nearest one inside; the point itself is `h_here` then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.kernels.cpu.expression import number
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import device_text
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Apply, Combine, Load
from tilewright.kernels.gpu.schemas.dfg.plan import DfgPlan, reads_inside
from tilewright.kernels.gpu.schemas.dfg.segment import Segment
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.ops.stage import Affine


def indented(lines: Sequence[str], by: int = 1) -> list[str]:
    return [f'{"    " * by}{line}' for line in lines]


def each(name: str, count: int) -> list[str]:
    return ['#pragma unroll', f'for (int {name} = 0; {name} < {count}; {name}++)']


def only(tests: Sequence[str]) -> str:
    return f'if ({" && ".join(tests)}) ' if tests else ''


def float_text(value: float) -> str:
    return narrow(number(value, 'f32'))


def first(dim: str) -> str:
    """The variable that holds where the block's tile begins."""
    return f'{dim}first'


def origin(start: Affine) -> str:
    """Where a span begins, '' for 0."""
    text = pieces.index(start, {n: first(n) for n in start.names})
    return '' if text == '0' else text


def steps(index: Sequence[Affine], strides: Sequence[int]) -> tuple[dict[str, int], int]:
    """(step of every iterator, constant) of an element, in floats."""
    found: dict[str, int] = {}
    const = 0
    for e, stride in zip(index, strides, strict=True):
        const += stride * e.const
        for name, factor in e.terms:
            found[name] = found.get(name, 0) + stride * factor
    return {n: s for n, s in found.items() if s}, const


def sum_text(
    found: Mapping[str, int], const: int, names: Mapping[str, str] | None = None, off: str = ''
) -> str:  # fmt: skip
    known = names or {}
    text = total([*(scaled(known.get(n, n), s) for n, s in found.items()), str(const)])
    return f'{text} - {off}' if off else text


@dataclass(frozen=True, slots=True)
class Place:
    """Where elements of a load lie: `pointer[steps of iterators + const - off]`.

    guards   (axis, index, extent) of what may be outside the tensor
    """

    pointer: str
    steps: Mapping[str, int]
    const: int
    off: str
    guards: tuple[tuple[int, Affine, int], ...]
    pad: float


def early_name(p: DfgPlan, load: Load) -> str:
    """The pointer to a constant that was copied before all else."""
    return f'early{list(p.early).index(load.name)}'


def place(p: DfgPlan, segment: Segment, load: Load) -> Place:
    tensor = p.tensor(load.tensor)
    pointer, off, strides = tensor.name, '', tensor.strides
    if load.name in p.staged:
        role = 'along' if segment.roles and load is segment.roles.along else 'across'
        pointer, off, strides = f'{role}_piece', f'{role}_first', p.staged[load.name].strides
    elif load.name in p.early:
        pointer, off = early_name(p, load), f'{early_name(p, load)}_first'
        strides = p.early[load.name].strides
    elif load.level != GLOBAL:
        pointer, off = f'{tensor.name}_kept', f'{tensor.name}_first'
        strides = p.kept[tensor.name].strides
    guards = tuple(
        (axis, e, extent)
        for axis, (e, extent) in enumerate(zip(load.index, tensor.shape, strict=True))
        if not reads_inside(p, segment, load, axis)
    )
    return Place(pointer, *steps(load.index, strides), off, guards, load.pad)


def element(p: DfgPlan, segment: Segment, load: Load) -> str:
    """An element where all iterators are declared."""
    at = place(p, segment, load)
    text = f'{at.pointer}[{sum_text(at.steps, at.const, off=at.off)}]'
    tests = [f'(unsigned)({pieces.index(e)}) < {extent}u' for _, e, extent in at.guards]
    return f'({" && ".join(tests)} ? {text} : {float_text(at.pad)})' if tests else text


@dataclass(frozen=True, slots=True)
class Domain:
    """Iterators of a segment: their declarations, and tests for points outside the domain."""

    p: DfgPlan
    segment: Segment

    def lines(self, flat: str, dims: Sequence[str]) -> list[str]:
        """Declare iterators from a number that counts the points of the region."""
        region, stage = self.segment.region, self.segment.stage
        lines = pieces.decode(flat, [(d, region.dims[d].size) for d in dims], prefix='l')
        for d in dims:
            span, size = region.dims[d], stage.sizes[d]
            here = total([origin(span.start), f'l{d}'])
            if not self._leaves(d):
                lines.append(f'const int {d} = {here};')
                continue
            low = f'{d}here < 0 ? 0 : ' if span.start.const < 0 else ''
            lines += [
                f'const int {d}here = {here};',
                f'const int {d} = {low}{d}here < {size} ? {d}here : {size - 1};',
            ]
        return lines

    def _leaves(self, dim: str) -> bool:
        return self.p.leaves(self.segment.region.dims[dim], self.segment.stage.sizes[dim])

    @property
    def outside(self) -> list[str]:
        return [d for d in self.segment.ordered if self._leaves(d)]


@dataclass(frozen=True, slots=True)
class Result:
    """What becomes of a sum at one point: lines that compute `value`, and the place that it goes
    to, where the tests hold.
    """

    lines: tuple[str, ...]
    value: str
    pointer: str
    at: str
    tests: tuple[str, ...]


def result_of(p: DfgPlan, segment: Segment, typed: GpuTyped, value: str) -> Result:
    """What follows the combined `value` at one point."""
    texts: dict[str, str] = {}
    lines: list[str] = []
    combined = segment.combine.inputs if segment.combine else ()
    for node in segment.graph.nodes:
        if isinstance(node, Load) and node.name not in combined:
            texts[node.name] = element(p, segment, node)
        elif isinstance(node, Combine):
            texts[node.name] = value
        elif isinstance(node, Apply):
            text = device_text(typed, node.expr, [texts[n] for n in node.inputs])
            texts[node.name] = f'value{len(lines)}'
            lines.append(f'const float value{len(lines)} = {text};')
    store = segment.store
    made, outside = texts[store.inputs[0]], Domain(p, segment).outside
    inside = [f'{d} == {d}here' for d in outside]
    if store.level == GLOBAL:
        at = sum_text(*steps(store.index, p.tensor(store.tensor).strides))
        return Result(tuple(lines), made, store.tensor, at, tuple(inside))
    kept = p.kept[store.tensor]
    names = {d: f'{d}here' for d in outside}
    at = sum_text(*steps(store.index, kept.strides), names, f'{store.tensor}_first')
    if inside:
        made = f'{" && ".join(inside)} ? {made} : {float_text(kept.fill or 0.0)}'
    return Result(tuple(lines), made, f'{store.tensor}_kept', at, ())


def finished(
    p: DfgPlan, segment: Segment, typed: GpuTyped, value: str, owned: Sequence[str] = ()
) -> list[str]:
    """What follows the combined `value` at one point, and its store where it is `owned`."""
    made = result_of(p, segment, typed, value)
    test = only([*owned, *made.tests])
    return [*made.lines, f'{test}{made.pointer}[{made.at}] = {made.value};']
