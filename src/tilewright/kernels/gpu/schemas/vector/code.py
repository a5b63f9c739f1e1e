"""The vector schema: neighbouring points of the result by one thread, moved at once.

It serves what one thread a point does (general/code.py) where operands lie side by side along the
result's last dimension: pooling, depthwise convolutions and element-wise work on tensors of f16,
bf16 or 8-bit numbers with their channels last. Values of half types are computed in float32 and
rounded as they are stored, whole numbers as the group says. Decisions of a schedule:

    run       points of a thread: 2, 4 or 8
    threads   of a block
    lanes     threads of a warp that share the reduction of the points, a power of two; 1 if not
              given. Each takes every so manieth of its terms, then they exchange what they have.

Parts of a group that do not lie so are computed by the general schema.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.expression import number
from tilewright.kernels.cpu.names import safe_iterators
from tilewright.kernels.cpu.schemas.general.plan import (
    After,
    Loop,
    Piece,
    Place,
    Tables,
    affine_text,
    piece_of,
)
from tilewright.kernels.gpu import half, pieces, whole
from tilewright.kernels.gpu.language import BEGINS, ELEMENT, ENDS, Kernel
from tilewright.kernels.gpu.module import Module, Step, joined, tensor_buffers
from tilewright.kernels.gpu.point import outside_in
from tilewright.kernels.gpu.schema import RESERVED
from tilewright.kernels.gpu.schemas.general import code as general
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.kernels.gpu.work import WARP
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.dtypes import DTYPES, HALVES
from tilewright.ops.group import Group
from tilewright.ops.integer import SMALL
from tilewright.ops.parts import parts
from tilewright.ops.stage import COMBINERS, Access
from tilewright.schedule.gpu import GpuSchedule

NAME = 'vector'
RUNS = (8, 4, 2)
LANES = (1, 2, 4, 8, 16, 32)
WRITTEN_OUT = 12  # points of a window whose loads are under way at once
SHARED_FROM = 16  # terms of a reduction from which on lanes may share it
BUSY = 512  # threads of a multiprocessor from which on lanes are of no use
_OWN = frozenset({'run', 'bits'})


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module], a kernel for each part."""
    run, threads = schedule['run'], schedule['threads']
    lanes = dict(schedule.tiles).get('lanes', 1)
    if run not in RUNS or threads < 1:
        raise ScheduleError(
            f'{group.label}: {run} points of each of {threads} threads; give one of {RUNS}, and at '
            f'least one thread'
        )
    if lanes not in LANES or threads % (WARP if lanes > 1 else 1):
        raise ScheduleError(
            f'{group.label}: {lanes} lanes in a block of {threads} threads; give one of {LANES}, '
            f'and whole warps'
        )
    if not _is_served(group):
        raise ScheduleError(
            f'{group.label}: the vector schema computes f16, bf16 and 8-bit numbers alone'
        )
    return joined(group, [_one(part, run, threads, lanes) for part in parts(group)])


def _is_served(group: Group) -> bool:
    """Whether something is stored in less than a word, and all of it is moved in words."""
    kinds = {tensor.dtype for tensor in group.tensors}
    plain = not group.is_sequential and all(
        s.is_affine and not set(s.expr.iterators()) for s in group.stages
    )
    return bool(group.half) or (plain and bool(kinds & {*SMALL}) and kinds <= {'f32', *whole.KINDS})


def propose(group: Group, machine: GpuMachine) -> tuple[GpuSchedule, ...]:
    """The longest runs of a group that is one part; several are for schemas that join them. Where
    points are few and reductions long, lanes first.
    """
    alone = parts(group) == (group,)
    if not _is_served(group) or not alone or (group.main.is_product_sum and not _by_channel(group)):
        return ()
    found = [run for run in RUNS if _along(_piece(group)[0], run)]
    alone = [
        GpuSchedule.of(NAME, run=run, threads=threads)
        for run in found[:2]
        for threads in (128, 256)
    ]
    floats = _kinds(_piece(group)[0])[0] == 'f32'
    lanes = _busy_lanes(group, found[0], machine) if found and floats else 1
    shared = [
        GpuSchedule.of(NAME, run=found[0], threads=128, lanes=count)
        for count in (lanes, lanes // 2)
        if count > 1
    ]
    return (*shared, *alone[:3])


def _busy_lanes(group: Group, run: int, machine: GpuMachine) -> int:
    """Lanes until the device is busy, or each of them has two terms left."""
    stage = group.main
    points = math.prod(stage.sizes[d] for d in stage.parallel) // run
    length = math.prod(stage.sizes[d] for d in stage.reduction)
    lanes = 1
    while (
        length >= SHARED_FROM
        and 2 * lanes <= min(WARP, length // 2)
        and points * lanes < machine.multiprocessors * BUSY
    ):
        lanes *= 2
    return lanes


def _by_channel(group: Group) -> bool:
    """Whether every output has weights of its own, as depthwise convolutions have."""
    first, second = group.main.reads
    last = group.main.write.index[-1].names
    return bool(set(last) & set(first.names) & set(second.names))


def _one(group: Group, run: int, threads: int, lanes: int) -> Module:
    piece, used = _piece(group)
    loop = _along(piece, run)
    summed = piece.stage.combiner is not None and piece.reductions
    shared = lanes if summed and _kinds(piece)[0] == 'f32' else 1
    made = (
        general.kernel(safe_iterators(group, RESERVED)[0], threads)
        if loop is None
        else _kernel(group, piece, used, loop, _Deal(run, threads, shared))
    )
    return Module(group, tensor_buffers(group), (Step.of(made),))


def _piece(group: Group) -> tuple[Piece, list[str]]:
    """(a part of the group with safe names, the tensors that it touches)."""
    safe, _ = safe_iterators(group, RESERVED | _OWN)
    used: list[str] = []

    def pointer(tensor: str, access: Access) -> tuple[str, tuple[int, ...]]:
        used.append(tensor)
        return tensor, safe.tensor(tensor).strides

    return piece_of(safe, Tables(), pointer, {}, ()), used


def _computed(dtype: str) -> str:
    """The type in which numbers of a dtype are computed with."""
    return 'f32' if dtype in HALVES else dtype


def _kinds(piece: Piece) -> tuple[str, ...]:
    """Types of the sum and of what each stage behind it makes."""
    return tuple(_computed(dtype) for dtype in (piece.dtype, *(a.dtype for a in piece.after)))


def _name(piece: Piece, number_: int) -> str:
    """The array of a value: one for all where they are floats, else one of each type."""
    return 'value' if {*_kinds(piece)} == {'f32'} else f'value_{number_}'


def _along(piece: Piece, run: int) -> Loop | None:
    """The loop along which `run` points are neighbours of everything that changes with it."""
    found = [p for p in piece.parallel if piece.write.strides.get(p.name) == 1 and not p.size % run]
    if not found or piece.iterators or any(a.iterators for a in piece.after):
        return None
    name = found[0].name
    plain = all(
        not p.tables and not p.lookups and p.dtype in ('f32', *HALVES, *whole.KINDS)
        for p in piece.places
    )
    # What is summed up lies side by side; other operands may be gathered, point by point.
    summed = piece.reads if piece.stage.combiner else ()
    beside = all(is_beside(p, name, run) for p in (piece.write, *summed))
    return found[0] if plain and beside else None


def is_beside(place: Place, name: str, run: int) -> bool:
    """Whether `run` neighbours along a loop are neighbours in memory, aligned, or all the same."""
    if any(name in t.at.names for t in place.tests):
        return False
    step = place.strides.get(name, 0)
    others = [s for n, s in place.strides.items() if n != name]
    wide = min(run, 16 // DTYPES[place.dtype])
    return step == 0 or (step == 1 and not any(n % wide for n in (place.const, *others)))


@dataclass(frozen=True, slots=True)
class _Deal:
    """Points of a thread, threads of a block, and lanes that share a reduction."""

    run: int
    threads: int
    lanes: int


def _kernel(group: Group, piece: Piece, used: Sequence[str], loop: Loop, deal: _Deal) -> Kernel:
    typed, run, threads = GpuTyped.of(group), deal.run, deal.threads
    loops = outside_in(piece, [p for p in piece.parallel if p is not loop], [piece.write])
    sizes = [(p.name, p.size) for p in loops]
    points = loop.size // run * math.prod(size for _, size in sizes)
    write = f'{piece.write.pointer} + {piece.write.index({})}'
    last, dtype = _name(piece, len(piece.after)), piece.write.dtype
    store = whole.store if dtype in whole.KINDS else half.store
    stored = store([f'{last}[{q}]' for q in range(run)], write, dtype)
    body = [
        *_place(points, deal),
        *pieces.decode('point', [*sizes, ('run', loop.size // run)]),
        f'const int {loop.name} = run * {run};',
        BEGINS,
        ENDS,
        *_values(piece, typed, loop, deal),
        *(['if (lane > 0 || !visible)', '    return;'] if deal.lanes > 1 else []),
        *_after(piece, typed, loop, run),
        *stored,
    ]
    for place in piece.places:
        if place.dtype in HALVES:
            typed.functions[f'from_{place.dtype}'] = None
    safe = safe_iterators(group, RESERVED | _OWN)[0]
    return Kernel(
        f'vector_{group.main.name}', general.arguments(safe, used), '\n'.join(body),
        (-(-points * deal.lanes // threads), 1, 1), threads, (), typed.helpers(),
        frozenset({'lane_xor'} if deal.lanes > 1 else ()),
    )  # fmt: skip


def _place(points: int, deal: _Deal) -> list[str]:
    """Which points are this thread's. All lanes of a warp stay where some exchange values."""
    threads, lanes = deal.threads, deal.lanes
    uneven = points * lanes % threads != 0
    if lanes == 1:
        return [
            f'const int point = BLOCK_X * {threads} + THREAD;',
            *([f'if (point >= {points})', '    return;'] if uneven else []),
        ]
    return [
        f'const int lane = THREAD % {lanes};',
        f'const int mine = BLOCK_X * {threads // lanes} + THREAD / {lanes};',
        f'const bool visible = mine < {points};',
        f'const int point = visible ? mine : {points - 1};',
    ]


def _values(piece: Piece, typed: GpuTyped, loop: Loop, deal: _Deal) -> list[str]:
    """`value`: the sum, or whatever combines, at each of the points."""
    combiner, run = piece.stage.combiner, deal.run
    name, kind = _name(piece, 0), _kinds(piece)[0]
    lines, texts = [], []
    for count, place in enumerate(piece.reads):
        made, text = _read(place, f'x{count}', loop, run, piece.stage.pad_value)
        lines += made
        texts.append((text, _computed(place.dtype)))
    text, dtype = typed.text(piece.stage.expr, texts, {})
    term = narrow(typed.convert(text, dtype, kind))
    begun = f'{ELEMENT[kind]} {name}[{run}];'
    if combiner is None:
        return [begun, *lines, *_each(run, f'{name}[q] = {term};')]
    neutral = narrow(number(COMBINERS[combiner], kind))
    reductions = sorted(piece.reductions, key=lambda p: -abs(piece.reads[0].strides.get(p.name, 0)))

    def joined(other: str) -> str:
        return f'{name}[q] = {narrow(typed.combine(combiner, kind, f"{name}[q]", other))};'

    inside = [*lines, *_each(run, joined(term))]
    cleared = [begun, *_each(run, f'{name}[q] = {neutral};')]
    if deal.lanes == 1:
        return [*cleared, *_walked(reductions, inside)]
    sizes = [(p.name, p.size) for p in reductions]
    length = math.prod(size for _, size in sizes)
    few = length <= WRITTEN_OUT * deal.lanes
    exchanged = [
        line
        for step in LANES[1:][: LANES.index(deal.lanes)]
        for line in _each(run, joined(f'LANE_XOR({name}[q], {step // 2})'))
    ]
    return [
        *cleared,
        '#pragma unroll' if few else '#pragma unroll 4',
        f'for (int at = lane; at < {length}; at += {deal.lanes}) {{',
        *pieces.indented([*pieces.decode('at', sizes), *inside]),
        '}',
        *exchanged,
    ]


def _walked(reductions: Sequence[Loop], inside: Sequence[str]) -> list[str]:
    """All terms by one thread; the loads of inner loops are under way at once."""
    opened = []
    left = WRITTEN_OUT
    for reduction in reversed(reductions):
        whole = reduction.size <= left
        left //= reduction.size
        opened.append(
            [
                '#pragma unroll' if whole else '#pragma unroll 1',
                f'for (int {reduction.name} = 0; {reduction.name} < {reduction.size}; '
                f'{reduction.name}++) {{',
            ]
        )
    return [*(line for pair in reversed(opened) for line in pair), *inside, '}' * len(reductions)]


def _after(piece: Piece, typed: GpuTyped, loop: Loop, run: int) -> list[str]:
    """The stages behind: all of them on `value` where that is of floats, else each on its own."""
    lines: list[str] = []
    kinds, alone = _kinds(piece), _name(piece, 0) == 'value'
    for count, after in enumerate(piece.after, 1):
        made, texts = [], []
        for number_, item in enumerate(after.reads):
            if isinstance(item, Place):
                more, text = _read(item, f'e{count}_{number_}', loop, run, 0.0)
                made += more
                texts.append((text, _computed(item.dtype)))
            else:
                now = alone and item == count - 1
                texts.append(('value[q]' if now else f'value_{item}[q]', kinds[item]))
        text, dtype = typed.text(after.expr, texts, {})
        if alone and _kept(piece.after[count:], count - 1):
            made.append(f'float value_{count - 1}[{run}];')
            made += _each(run, f'value_{count - 1}[q] = value[q];')
        name, kind = _name(piece, count), kinds[count]
        made += [] if alone else [f'{ELEMENT[kind]} {name}[{run}];']
        lines += [*made, *_each(run, f'{name}[q] = {narrow(typed.convert(text, dtype, kind))};')]
    return lines


def _kept(later: Sequence[After], value: int) -> bool:
    """Whether a later stage reads an earlier value than the last one."""
    return any(item == value for after in later for item in after.reads)


def _each(run: int, text: str) -> list[str]:
    return ['#pragma unroll', f'for (int q = 0; q < {run}; q++)', f'    {text}']


def _read(place: Place, name: str, loop: Loop, run: int, pad_value: float) -> tuple[list[str], str]:
    """(lines that load an operand, its text at point `q`)."""
    if not is_beside(place, loop.name, run):
        return _gathered(place, name, loop, run, pad_value), f'{name}[q]'
    tests = [f'(unsigned)({affine_text(t.at)}) < {t.extent}u' for t in place.tests]
    moving = place.strides.get(loop.name, 0) == 1
    count = run if moving else 1
    load, kind = _loads(place.dtype)
    loads = load(name, count, f'{place.pointer} + {place.index({})}', place.dtype)
    lines = [f'{kind} {name}[{count}];']
    if tests:
        pad = narrow(number(pad_value, _computed(place.dtype)))
        lines += [
            f'if ({" && ".join(dict.fromkeys(tests))}) {{', *pieces.indented(loads), '} else {',
            *pieces.indented([f'{name}[{q}] = {pad};' for q in range(count)]), '}',
        ]  # fmt: skip
    else:
        lines += loads
    return lines, f'{name}[q]' if moving else f'{name}[0]'


def _loads(dtype: str) -> tuple[Callable[[str, int, str, str], list[str]], str]:
    """(what writes loads of neighbours, the C type that holds one of them)."""
    return (whole.load, 'int') if dtype in whole.KINDS else (half.load, 'float')


def _gathered(place: Place, name: str, loop: Loop, run: int, pad_value: float) -> list[str]:
    """Lines that load an operand whose points lie apart."""
    pad = narrow(number(pad_value, _computed(place.dtype)))
    one, kind = _loads(place.dtype)
    lines = [f'{kind} {name}[{run}];']
    for q in range(run):
        tests = [
            f'(unsigned)({affine_text(t.at)} + {q * t.at.coefficient(loop.name)}) < {t.extent}u'
            for t in place.tests
        ]
        step = q * place.strides.get(loop.name, 0)
        load = one('x', 1, f'{place.pointer} + {place.index({})} + {step}', place.dtype)[0]
        value = load.removeprefix('x[0] = ').removesuffix(';')
        chosen = f'{" && ".join(dict.fromkeys(tests))} ? {value} : {pad}' if tests else value
        lines.append(f'{name}[{q}] = {chosen};')
    return lines
