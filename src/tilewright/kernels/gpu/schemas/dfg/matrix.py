"""Sums of products in the dfg schema by matrix instructions: columns by pixels of a warp.

Goes in: a plan and a segment with `depths`. Comes out: its lines. An instruction multiplies 16
columns by 8 pixels over 8 depths; lane 4 g + t holds columns g and g + 8 and pixels 2 t and 2 t + 1
of a result, depths t and t + 4 of the operands (PTX ISA, mma.m16n8k8).

    for every piece of the reduction                   once, where nothing is copied
        for every step of eight depths
            x   of tp / 8 pixels, from wherever they lie, cut into a high and a low part
            y   of tk / 16 columns, 16 bytes a lane where they are packed (fragments.py), cut
            acc += y x, three products each            kernels/gpu/pieces.py
    acc[i][j] -> what follows -> store, two neighbours at once where they are aligned
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.kernels.cpu.writer import total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.schemas.dfg.fragments import (
    COLUMNS,
    DEPTHS,
    PER_COLUMN,
    WORDS,
    Depths,
    Fragments,
    behind_test,
)
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, Load
from tilewright.kernels.gpu.schemas.dfg.plan import DfgPlan
from tilewright.kernels.gpu.schemas.dfg.products import (
    in_pieces,
    in_turns,
    operand,
    own,
    owned,
    piece_begin,
    tests_of,
)
from tilewright.kernels.gpu.schemas.dfg.segment import PIXELS, Segment
from tilewright.kernels.gpu.schemas.dfg.text import (
    Domain,
    each,
    indented,
    only,
    origin,
    place,
    result_of,
    steps,
    sum_text,
)
from tilewright.kernels.gpu.typed import GpuTyped

WRITTEN = 96  # matrix instructions that are written out for one turn of a loop
MOST_UNROLLED = 4
PAIR = 2
FEW = 2  # matrix instructions of a step, below which each waits for the one before


def matrix_products(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    """All units of a segment, each by a warp."""
    depths = segment.depths
    assert depths is not None
    lines = [
        *matrix_unit(p, segment),
        *matrix_operands(p, segment),
        *in_pieces(p, segment, accumulated(p, segment, depths)),
        *matrix_stored(p, segment, typed),
    ]
    return in_turns(p, segment, lines)


def matrix_unit(p: DfgPlan, segment: Segment) -> list[str]:
    """Which share `unit` is, and its sums, which are zero."""
    sizes = [
        ('batch', segment.size(segment.batch)),
        ('column', segment.column_units),
        ('pixel', segment.pixel_units),
    ]
    down, across = segment.tk // COLUMNS, segment.tp // PIXELS
    lines = [*pieces.decode('unit', sizes), *Domain(p, segment).lines('batch', segment.batch)]
    for name in dict.fromkeys(_sums(segment)):
        cleared = [
            line.replace('acc[', f'{name}[') for line in pieces.cleared(2 * down, 2 * across)
        ]
        lines += [f'float {name}[{2 * down}][{2 * across}];', *cleared]
    return lines


def _sums(segment: Segment) -> tuple[str, str, str]:
    """Sums of the three products of parts: apart where a warp has too few to begin another while
    one is under way.
    """
    few = segment.tk // COLUMNS * (segment.tp // PIXELS) <= FEW
    return ('acc_low', 'acc_mixed', 'acc') if few else ('acc', 'acc', 'acc')


def matrix_operands(p: DfgPlan, segment: Segment) -> list[str]:
    """Where this lane's elements of both operands begin."""
    item = segment.fragments
    down, across = segment.tk // COLUMNS, segment.tp // PIXELS
    pixel = f'pixel * {segment.tp} + j * {PIXELS} + lane / 4'
    return [
        *operand(p, segment, 'along', pixel, across),
        *(
            _weights(p, segment, item)
            if item
            else operand(p, segment, 'across', _column(segment), 2 * down)
        ),
    ]


def _column(segment: Segment) -> str:
    return f'column * {segment.tk} + i / 2 * {COLUMNS} + i % 2 * 8 + lane / 4'


def _weights(p: DfgPlan, segment: Segment, item: Fragments) -> list[str]:
    """Where the fragments of this lane begin, for its first column and step."""
    assert segment.roles is not None
    load = segment.roles.across
    at = place(p, segment, load)
    start = origin(segment.region.dims[item.column].start) or '0'
    begin = sum_text(at.steps, at.const, {item.column: f'({start})'}, at.off)
    mine = f'column * {segment.tk * item.depths.steps * PER_COLUMN} + lane * 4'
    return [*piece_begin(p, load, 'across'), f'const int weights_at = {begin} + {mine};']


def unrolled(segment: Segment) -> int:
    """Steps of a loop that are written out, and whose operands are asked for at once."""
    each_step = 3 * (segment.tk // COLUMNS) * (segment.tp // PIXELS)
    return max(1, min(MOST_UNROLLED, WRITTEN // each_step))


def accumulated(p: DfgPlan, segment: Segment, d: Depths) -> list[str]:
    """All steps of a piece."""
    if d.joint:
        return [
            f'#pragma unroll {unrolled(segment)}',
            f'for (int step = 0; step < {d.steps}; step++) {{',
            *indented(_step(p, segment, d, 'step')),
            '}',
        ]
    lines = []
    for name, size in d.window:
        lines += [f'for (int {name} = 0; {name} < {size}; {name}++) {{']
    count = d.depth // DEPTHS
    flat = '0'
    for name, size in d.window:
        flat = name if flat == '0' else f'({flat}) * {size} + {name}'
    at = 'inner_step' if flat == '0' else f'({flat}) * {count} + inner_step'
    return [
        *lines,
        f'#pragma unroll {min(unrolled(segment), count)}',
        f'for (int inner_step = 0; inner_step < {count}; inner_step++) {{',
        *indented(_step(p, segment, d, at)),
        '}' * (1 + len(d.window)),
    ]


def _step(p: DfgPlan, segment: Segment, d: Depths, number: str) -> list[str]:
    """Eight depths: both operands, cut, and their products."""
    roles, item = segment.roles, segment.fragments
    assert roles is not None
    down, across = segment.tk // COLUMNS, segment.tp // PIXELS
    lines = [
        f'unsigned high_x[{across}][2], low_x[{across}][2];',
        f'unsigned high_y[{down}][4], low_y[{down}][4];',
    ]
    if item:
        lines += _packed_columns(p, segment, item, number)
    for half in range(2):
        body = [
            *_depth(d, f'lane % 4 + {4 * half}'),
            *_read(p, segment, roles.along, 'along', 'j', across,
                   lambda text, half=half: pieces.cut('x', f'j][{half}', text)),
        ]  # fmt: skip
        if not item:
            body += _read(p, segment, roles.across, 'across', 'i', 2 * down,
                          lambda text, half=half: pieces.cut(
                              'y', f'i / 2][i % 2 + {2 * half}', _if_there(d, text)))  # fmt: skip
        lines += ['{', *indented(body), '}']
    return [*lines, *pieces.multiplied(down, across, _sums(segment))]


def _if_there(d: Depths, text: str) -> str:
    """Zero behind the last depth, where only one of the operands may be anything."""
    test = 'inside' if d.joint and d.points % DEPTHS else behind_test(d)
    return f'({test} ? {text} : 0.0f)' if test else text


def _depth(d: Depths, inner: str) -> list[str]:
    """Declare the reductions at one depth of this lane; behind the last one, the last again."""
    if not d.joint:
        lines = [f'const int depth = inner_step * {DEPTHS} + {inner};']
        begin = 'begin + depth' if d.chunks > 1 else 'depth'
        return [*lines, f'const int {d.chunk} = {begin};']
    lines = [f'int point = step * {DEPTHS} + {inner};']
    if d.points % DEPTHS:
        lines += [
            f'const bool inside = point < {d.points};',
            f'point = inside ? point : {d.points - 1};',
        ]
    return [*lines, *pieces.decode('point', d.over)]


def _read(
    p: DfgPlan, segment: Segment, load: Load, role: str, name: str, run: int,
    used: Callable[[str], list[str]],
) -> list[str]:  # fmt: skip
    """The elements of an operand at one depth of this lane, each `used`."""
    at, over, d = place(p, segment, load), set(segment.stage.reduction), segment.depths
    assert d is not None
    # Pieces begin at the depth that they begin with.
    names = {d.chunk: 'depth'} if load.name in p.staged and not d.joint else {}
    step = sum_text({n: s for n, s in at.steps.items() if n in over}, 0, names)
    text = f'{at.pointer}[{role}_at[{name}] + moved]'
    tests = tests_of(at, over, role, name)
    if tests:
        text = f'({" && ".join(tests)} ? {text} : 0.0f)'
    return [
        '{',
        f'    const int moved = {step};',
        *indented(each(name, run)),
        '    {',
        *indented(used(text), 2),
        '    }',
        '}',
    ]


def _packed_columns(p: DfgPlan, segment: Segment, item: Fragments, number: str) -> list[str]:
    """This lane's part of the packed operand, 16 bytes for every 16 columns."""
    d = item.depths
    assert segment.roles is not None
    pointer = place(p, segment, segment.roles.across).pointer
    space = 'GLOBAL' if pointer == item.tensor.name else 'SHARED'
    terms = ['weights_at', f'i * {d.steps * WORDS}', f'({number}) * {WORDS}']
    if d.chunks > 1 and item.load.name not in p.staged:
        strides = (p.early.get(item.load.name) or item.tensor).strides
        terms.append(f'piece * {strides[item.piece_axis]}')
    body = [f'const float4 four = LOAD4({space}, {pointer} + {total(terms)});']
    for q in range(4):
        body += pieces.cut('y', f'i][{q}', f'four.{"xyzw"[q]}')
    return [*each('i', segment.tk // COLUMNS), '{', *indented(body), '}']


def matrix_stored(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    """Every sum of a lane through what follows it: pixels outside, so that each is found once."""
    run = PAIR if in_pairs(p, segment) else 1
    down, across = segment.tk // COLUMNS, segment.tp // PIXELS
    result = [result_of(p, segment, typed, f'acc[i][j + {one}]') for one in range(run)]
    pixel = f'pixel * {segment.tp} + j / 2 * {PIXELS} + lane % 4 * 2 + j % 2'
    test = only([*owned(p, segment), *result[0].tests])
    target = f'{result[0].pointer} + {result[0].at}'
    if run == 1:
        body = [*result[0].lines, f'{test}{result[0].pointer}[{result[0].at}] = {result[0].value};']
    else:
        space = 'GLOBAL' if segment.store.level == GLOBAL else 'SHARED'
        body = [
            'float next;',
            *_next_pixel(p, segment, [*result[1].lines, f'next = {result[1].value};']),
            *result[0].lines,
            f'{test}STORE2({space}, {target}, {result[0].value}, next);',
        ]
    return [
        *_joined(segment),
        '#pragma unroll',
        f'for (int j = 0; j < {2 * across}; j += {run}) {{',
        *indented(own(p, segment, 'along', pixel)),
        *indented(each('i', 2 * down)),
        '    {',
        *indented(own(p, segment, 'across', _column(segment)), 2),
        *indented(body, 2),
        '    }',
        '}',
    ]


def _joined(segment: Segment) -> list[str]:
    """The three sums of products as one, smallest first."""
    low, mixed, acc = _sums(segment)
    if low == acc:
        return []
    down, across = segment.tk // COLUMNS, segment.tp // PIXELS
    at = '[i][j]'
    return [
        *each('i', 2 * down),
        *each('j', 2 * across),
        f'    {acc}{at} += {low}{at} + {mixed}{at};',
    ]


def _next_pixel(p: DfgPlan, segment: Segment, lines: Sequence[str]) -> list[str]:
    """Lines at the next pixel, which is in the same row."""
    inner = segment.pixels[-1]
    names = [inner, *([f'{inner}here'] if inner in Domain(p, segment).outside else [])]
    return [
        '{',
        *(f'    const int before_{name} = {name};' for name in names),
        '    {',
        *(f'        const int {name} = before_{name} + 1;' for name in names),
        *indented(lines, 2),
        '    }',
        '}',
    ]


def in_pairs(p: DfgPlan, segment: Segment) -> bool:
    """Whether two neighbouring pixels are neighbours where they are stored, and aligned."""
    inner, store = segment.pixels[-1], segment.store
    span, size = segment.region.dims[inner], segment.stage.sizes[inner]
    kept = p.kept.get(store.tensor)
    strides = kept.strides if kept else p.tensor(store.tensor).strides
    found, const = steps(store.index, strides)
    starts = [span.start.const, *(c * p.tile[d] for d, c in span.start.terms)]
    if kept:
        begins = [s.start for s in kept.window]
        offset, first = steps(begins, strides)
        const -= first
        starts += [step * p.tile[d] for d, step in offset.items()]
    others = [step for name, step in found.items() if name != inner]
    even = (span.size, size, const, *starts, *others)
    return found.get(inner) == 1 and not any(n % PAIR for n in even)
