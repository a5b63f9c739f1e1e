"""Sums of products in the dfg schema: columns by pixels of a thread, in registers.

Goes in: a plan and a segment with roles. Comes out: its lines.

    for every piece of the reduction                   once, where nothing is copied
        copy the next piece of an operand into shared memory
        for every point of the piece
            x[j] = along, of tp pixels                 lanes read neighbours
            y[i] = across, of tk columns               lanes read the same, in fours where it is
                                                       packed
            acc[i][j] += x[j] * y[i]
    acc[i][j] -> what follows -> store
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import padded
from tilewright.kernels.gpu.schemas.dfg.graph import Combine, Load
from tilewright.kernels.gpu.schemas.dfg.plan import DfgPlan
from tilewright.kernels.gpu.schemas.dfg.segment import FOUR, Roles, Segment
from tilewright.kernels.gpu.schemas.dfg.storage import Staged, is_packed
from tilewright.kernels.gpu.schemas.dfg.text import (
    Domain,
    Place,
    each,
    finished,
    float_text,
    indented,
    origin,
    place,
    sum_text,
)
from tilewright.kernels.gpu.typed import GpuTyped
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.stage import Affine

UNROLLED = 32  # points of a window that are written out
# Products that are written out for one turn of a loop: compilers load ahead for all of them, into
# registers.
WRITTEN = 320


def products(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    """All units of a segment, each by a thread."""
    roles, combine = segment.roles, segment.combine
    assert roles is not None
    assert combine is not None
    lines = [
        *pieces.decode(
            'unit',
            [
                ('batch', segment.size(roles.batch)),
                ('column', segment.column_units),
                ('pixel', segment.pixel_units),
            ],
        ),
        *Domain(p, segment).lines('batch', roles.batch),
        *operand(p, segment, 'along', _flat(segment, 'along')),
        *operand(p, segment, 'across', _flat(segment, 'across')),
        f'float acc[{segment.tk}][{segment.tp}];',
        *pieces.cleared(segment.tk, segment.tp),
        *in_pieces(p, segment, _accumulated(p, segment, roles, combine)),
        *_stored(p, segment, typed),
    ]
    return in_turns(p, segment, lines)


def in_turns(p: DfgPlan, segment: Segment, lines: Sequence[str]) -> list[str]:
    """Lines for each `unit` of a segment, by threads, or warps, in turns."""
    one, of = ('warp', p.threads // WARP) if segment.depths else ('THREAD', p.threads)
    head = []
    if segment.depths:
        head = [f'const int lane = THREAD % {WARP}, warp = THREAD / {WARP};']
    if segment.chunks == 1:
        return [
            *head,
            *_copied_once(p, segment),
            f'for (int unit = {one}; unit < {segment.units}; unit += {of}) {{',
            *indented(lines),
            '}',
        ]
    # All threads copy, and wait for each other: those without a share repeat the last one.
    mine = total([scaled('turn', of), one])
    return [
        *head,
        f'for (int turn = 0; turn < {segment.turns(p.threads)}; turn++) {{',
        f'    const int mine = {mine};',
        f'    const int unit = mine < {segment.units} ? mine : {segment.units - 1};',
        *indented(lines),
        '}',
    ]


def _staged(p: DfgPlan, segment: Segment) -> dict[str, Staged]:
    """Role -> what is copied for it."""
    roles = segment.roles
    loads = {'along': roles.along, 'across': roles.across} if roles else {}
    return {r: p.staged[load.name] for r, load in loads.items() if load.name in p.staged}


def _copied_once(p: DfgPlan, segment: Segment) -> list[str]:
    """Operands of which all is in shared memory at once."""
    lines = []
    for role, item in _staged(p, segment).items():
        lines += [f'SHARED const float *const {role}_piece = kept + {item.offset};']
        lines += ['{', '    const int from = 0;', *indented(copied(p, item, segment.depth)), '}']
    return [*lines, 'COPY_COMMIT;', 'COPY_WAIT(0);', 'BARRIER;'] if lines else []


def _accumulated(p: DfgPlan, segment: Segment, roles: Roles, combine: Combine) -> list[str]:
    tk, tp = segment.tk, segment.tp
    loops, count = _loops(segment, roles, combine)
    return [
        *loops,
        *indented(
            [
                f'float x[{tp}], y[{tk}];',
                *_values(p, segment, roles.along, 'along', 'x', 'j', tp),
                *_values(p, segment, roles.across, 'across', 'y', 'i', tk),
                *each('i', tk),
                *each('j', tp),
                'acc[i][j] = FMA(x[j], y[i], acc[i][j]);',
            ]
        ),
        '}' * count,
    ]


def _loops(segment: Segment, roles: Roles, combine: Combine) -> tuple[list[str], int]:
    """Openings of the loops over reductions, and how many there are: windows are written out."""
    order = sorted(combine.over, key=lambda one: (one[0] != roles.chunk, -one[1]))
    lines, each_point = [], segment.tk * segment.tp
    for position, (name, size) in enumerate(order):
        points = math.prod(n for _, n in order[position:])
        inner = math.prod(n for _, n in order[position + 1 :])
        if name != roles.chunk and points <= UNROLLED and points * each_point <= WRITTEN:
            lines.append('#pragma unroll')
        else:
            lines.append(f'#pragma unroll {max(min(WRITTEN // (each_point * inner), 8), 1)}')
        if name == roles.chunk and segment.staged:
            end = 'left' if size % segment.depth else str(segment.depth)
            lines += [
                f'for (int step = 0; step < {end}; step++) {{',
                f'    const int {name} = begin + step;',
            ]
        else:
            lines.append(f'for (int {name} = 0; {name} < {size}; {name}++) {{')
    return lines, len(order)


def in_pieces(p: DfgPlan, segment: Segment, inner: Sequence[str]) -> list[str]:
    """What is done with each piece of the reduction, around the copies of operands."""
    if segment.chunks == 1:
        head = ['const int begin = 0;'] if segment.staged and not segment.depths else []
        return [*head, *inner]
    roles = segment.roles
    assert roles is not None
    staged = _staged(p, segment)
    size, depth, chunks = segment.stage.sizes[roles.chunk], segment.depth, segment.chunks
    two = any(item.buffers == 2 for item in staged.values())

    def copies(chunk: str) -> list[str]:
        lines = [f'const int from = {scaled(f"({chunk})", depth)};']
        for item in staged.values():
            lines += copied(p, item, depth, chunk)
        return lines

    lines = [f'const int begin = {scaled("piece", depth)};']
    if size % depth:
        lines.append(f'const int left = begin + {depth} < {size} ? {depth} : {size} - begin;')
    for role, item in staged.items():
        half = f' + piece % 2 * {padded(item.floats)}' if item.buffers == 2 else ''
        lines.append(f'SHARED const float *const {role}_piece = kept + {item.offset}{half};')
    if two:
        lines += [f'if (piece + 1 < {chunks}) {{', *indented(copies('piece + 1')), '}']
        lines += ['COPY_COMMIT;', 'COPY_WAIT(1);']
    else:
        lines += ['{', *indented(copies('piece')), '}', 'COPY_COMMIT;', 'COPY_WAIT(0);']
    return [
        *(['{', *indented(copies('0')), '}', 'COPY_COMMIT;'] if two else []),
        f'for (int piece = 0; piece < {chunks}; piece++) {{',
        *indented([*lines, 'BARRIER;', *inner, 'BARRIER;']),
        '}',
    ]


def copied(p: DfgPlan, item: Staged, depth: int, chunk: str = '0') -> list[str]:
    """A piece of an operand from global to shared memory, zeros where there is nothing."""
    four = FOUR if is_copied_in_fours(p, item, depth) else 1
    sizes = [(f'x{axis}', span.size) for axis, span in enumerate(item.window)]
    sizes[-1] = (sizes[-1][0], sizes[-1][1] // four)
    count = math.prod(n for _, n in sizes)
    lines = pieces.decode('at', sizes)
    tests = []
    to = [scaled('x' + str(a), s) for a, s in enumerate(item.strides)]
    last = len(sizes) - 1
    to[last] = scaled(f'x{last}', item.strides[last] * four)
    if item.buffers == 2:
        to.append(f'({chunk}) % 2 * {padded(item.floats)}')
    for axis, (span, extent) in enumerate(zip(item.window, item.tensor.shape, strict=True)):
        own = scaled(f'x{axis}', four if axis == last else 1)
        moved = f'({chunk})' if axis == item.counts else scaled('from', item.moves[axis])
        lines.append(f'const int y{axis} = {total([origin(span.start), moved, own])};')
        if p.leaves(span, extent) or (item.moves[axis] and _runs_over(p, item, axis, depth)):
            tests.append(f'(unsigned)y{axis} < {extent}u')
    at = total([scaled(f'y{a}', s) for a, s in enumerate(item.tensor.strides)])
    there = ' && '.join(tests) or 'true'
    source = f'there ? {at} : 0' if tests else at
    lines += [
        *([f'const bool there = {there};'] if tests else []),
        f'COPY{four}(kept + {item.offset} + {total(to)}, {item.tensor.name} + ({source}), '
        f'{"there" if tests else "true"});',
    ]
    return [
        f'for (int at = THREAD; at < {count}; at += {p.threads}) {{',
        *indented(lines),
        '}',
    ]


def _runs_over(p: DfgPlan, item: Staged, axis: int, depth: int) -> bool:
    """Whether the last piece reaches behind the end of an axis."""
    segment, span = next(s for s in p.segments if item.load in s.loads), item.window[axis]
    end = span.start.at(p.ends) + item.moves[axis] * (segment.chunks - 1) * depth + span.size
    return end > item.tensor.shape[axis]


def is_copied_in_fours(p: DfgPlan, item: Staged, depth: int) -> bool:
    """Whether rows of the window, of the tensor and of shared memory all begin at fours."""
    span = item.window[-1]
    starts = [span.start.const, *(c * p.tile[d] for d, c in span.start.terms)]
    others = [*item.strides[:-1], item.tensor.shape[-1], span.size, item.moves[-1] * depth]
    return item.strides[-1] == 1 and not any(n % FOUR for n in (*starts, *others))


def _flat(segment: Segment, role: str) -> str:
    """Which pixel is a thread's pixel j, which column its column i."""
    return f'pixel + j * {segment.pixel_units}' if role == 'along' else f'column * {segment.tk} + i'


def own(p: DfgPlan, segment: Segment, role: str, flat: str) -> list[str]:
    """Declare the iterators of a pixel or a column; behind the last one, the last one again."""
    if role == 'along':
        names, size, run = segment.pixels, segment.size(segment.pixels), segment.tp
    else:
        names, size, run = segment.columns, segment.size(segment.columns), segment.tk
    if not names:
        return []
    lines = [f'const int {role}_own = {flat};']
    at = f'{role}_own'
    if size % run:
        at = f'{role}_one'
        lines.append(f'const int {at} = {role}_own < {size} ? {role}_own : {size - 1};')
    return [*lines, *Domain(p, segment).lines(at, names)]


def reads_fours(p: DfgPlan, segment: Segment) -> bool:
    """Whether a thread's columns lie side by side, from a multiple of four on."""
    roles = segment.roles
    if roles is None or not is_packed(segment, roles.across) or segment.tk % FOUR:
        return False
    if roles.across.name in p.staged:
        return True
    start = segment.region.dims[roles.columns[0]].start
    return not any(n % FOUR for n in (start.const, *(c * p.tile[d] for d, c in start.terms)))


def operand(
    p: DfgPlan, segment: Segment, role: str, flat: str, run: int | None = None
) -> list[str]:  # fmt: skip
    """Where each of a thread's elements of an operand begins: what no reduction moves."""
    roles = segment.roles
    assert roles is not None
    load = roles.along if role == 'along' else roles.across
    name = 'j' if role == 'along' else 'i'
    run = run or (segment.tp if role == 'along' else segment.tk)
    at = place(p, segment, load)
    over = set(segment.stage.reduction)
    fixed = {n: s for n, s in at.steps.items() if n not in over}
    lines = piece_begin(p, load, role)
    if role == 'across' and reads_fours(p, segment):
        (column,) = roles.columns
        begin = total([origin(segment.region.dims[column].start), f'column * {run}'])
        fixed[column] = 1
        text = sum_text(fixed, at.const, {column: begin}, at.off)
        return [*lines, f'const int across_at = {text};']
    lines.append(f'int {role}_at[{run}];')
    lines += [f'int {role}_on{axis}[{run}];' for axis, _, _ in at.guards]
    body = [
        *own(p, segment, role, flat),
        f'{role}_at[{name}] = {sum_text(fixed, at.const, off=at.off)};',
    ]
    for axis, e, _ in at.guards:
        part = Affine(tuple((n, c) for n, c in e.terms if n not in over), e.const)
        body.append(f'{role}_on{axis}[{name}] = {pieces.index(part)};')
    return [*lines, *each(name, run), '{', *indented(body), '}']


def piece_begin(p: DfgPlan, load: Load, role: str) -> list[str]:
    """Where the piece of a tensor begins that is in shared memory."""
    if load.name not in p.staged:
        return []
    return [f'const int {role}_first = {first_of(p.staged[load.name])};']


def first_of(item: Staged) -> str:
    """Where what is copied would begin in memory, if all of the tensor were there."""
    starts = zip(item.strides, (span.start for span in item.window), strict=True)
    return total([scaled(f'({origin(e)})', s) for s, e in starts if origin(e)]) or '0'


def _values(
    p: DfgPlan, segment: Segment, load: Load, role: str, to: str, name: str, run: int
) -> list[str]:
    """The elements of an operand at one point of the reductions."""
    at, over = place(p, segment, load), set(segment.stage.reduction)
    relative = {segment.roles.chunk: 'step'} if segment.roles and load.name in p.staged else {}
    step = sum_text({n: s for n, s in at.steps.items() if n in over}, 0, relative)
    if role == 'across' and reads_fours(p, segment):
        space = 'SHARED' if load.name in p.staged else 'GLOBAL'
        lines = [f'for (int i = 0; i < {run}; i += 4) {{']
        lines += [
            f'    const float4 four = LOAD4({space}, {at.pointer} + across_at + i + {step});',
            *(f'    {to}[i + {q}] = four.{"xyzw"[q]};' for q in range(FOUR)),
            '}',
        ]
        return ['#pragma unroll', *lines]
    text = f'{at.pointer}[{role}_at[{name}] + {step}]'
    tests = tests_of(at, over, role, name)
    if tests:
        text = f'{" && ".join(tests)} ? {text} : {float_text(load.pad)}'
    return [*each(name, run), f'    {to}[{name}] = {text};']


def tests_of(at: Place, over: set[str], role: str, name: str) -> list[str]:
    tests = []
    for axis, e, extent in at.guards:
        part = Affine(tuple((n, c) for n, c in e.terms if n in over))
        tests.append(f'(unsigned)({role}_on{axis}[{name}] + {pieces.index(part)}) < {extent}u')
    return tests


def _stored(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    """Every sum of a thread through what follows it."""
    return [
        *each('i', segment.tk),
        '{',
        *indented(own(p, segment, 'across', _flat(segment, 'across'))),
        *indented(each('j', segment.tp)),
        '    {',
        *indented(own(p, segment, 'along', _flat(segment, 'along')), 2),
        *indented(finished(p, segment, typed, 'acc[i][j]', owned(p, segment)), 2),
        '    }',
        '}',
    ]


def owned(p: DfgPlan, segment: Segment) -> list[str]:
    """Tests that a sum is one of the region, and this thread's."""
    sizes = {
        'along_own': (segment.size(segment.pixels), segment.tp),
        'across_own': (segment.size(segment.columns), segment.tk),
    }
    tests = [f'{name} < {size}' for name, (size, run) in sizes.items() if size % run]
    if segment.chunks > 1 and segment.units % (p.threads // segment.unit_threads):
        tests.append(f'mine < {segment.units}')
    return tests
