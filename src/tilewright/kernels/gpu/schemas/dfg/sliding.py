"""Windows that slide in the dfg schema: rows and columns of outputs of a thread, in registers.

Goes in: a plan and a segment with a `Slide`. Comes out: its lines.

    x[..][..]   what all outputs of a thread read of the image, once; fours where they are aligned
    w[..]       the other operands, which outputs of a thread share
    acc[i][j]   combined over the window, from registers alone
    acc[i][j] -> what follows -> store

The last outputs of a row or column that is no multiple of a thread's share are computed by two
threads, which store the same.
"""

from __future__ import annotations

from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import device_text
from tilewright.kernels.gpu.schemas.dfg.graph import Load
from tilewright.kernels.gpu.schemas.dfg.plan import DfgPlan
from tilewright.kernels.gpu.schemas.dfg.products import in_turns, piece_begin
from tilewright.kernels.gpu.schemas.dfg.segment import FOUR, Segment
from tilewright.kernels.gpu.schemas.dfg.text import (
    Domain,
    Place,
    each,
    element,
    finished,
    float_text,
    indented,
    origin,
    place,
    sum_text,
)
from tilewright.kernels.gpu.schemas.dfg.windows import SlidAxis, Slide
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.ops.stage import COMBINERS, Affine


def slid(p: DfgPlan, segment: Segment, typed: GpuTyped) -> list[str]:
    """All strips of a segment, each by a thread."""
    slide, combine = segment.slide, segment.combine
    assert slide is not None
    assert combine is not None
    rows, columns = slide.rows, slide.columns
    outer = segment.ordered[:-2]
    loads = [n for n in map(segment.graph.node, combine.inputs) if isinstance(n, Load)]
    taps = [axis for axis in (rows, columns) if axis.tap]
    term = device_text(typed, combine.expr, [
        'x[i * {} + {}][j * {} + {}]'.format(rows.step, scaled(rows.tap, rows.reach) or '0',
                                            columns.step, scaled(columns.tap, columns.reach) or '0')
        if load is slide.image else f'w{number}[tap]'
        for number, load in enumerate(loads)
    ])  # fmt: skip
    step = narrow(typed.combine(combine.combiner, 'f32', 'acc[i][j]', term))
    tap = total([scaled(rows.tap, columns.taps) if rows.tap else '', columns.tap]) or '0'
    fixed = [d for d, _ in combine.over if d not in (rows.tap, columns.tap)]
    lines = [
        *pieces.decode('unit', [(f'strip_{d}', count) for d, count in segment.strips]),
        *_domain(p, segment, outer),
        *_start(segment, rows),
        *_start(segment, columns),
        *(f'const int {d} = 0;' for d in fixed),
        *_image(p, segment, slide),
    ]
    for number, load in enumerate(loads):
        if load is not slide.image:
            lines += [
                f'float w{number}[{slide.taps}];',
                *_over(taps),
                f'    w{number}[{tap}] = {element(p, segment, load)};',
            ]
    lines += [
        f'float acc[{rows.run}][{columns.run}];',
        *each('i', rows.run),
        *each('j', columns.run),
        '{',
        f'    acc[i][j] = {float_text(COMBINERS[combine.combiner])};',
        *indented(_over(taps)),
        '    {',
        f'        const int tap = {tap};',
        f'        acc[i][j] = {step};',
        '    }',
        '}',
        *each('i', rows.run),
        *each('j', columns.run),
        '{',
        *indented(
            [
                f'const int {rows.dim} = first_{rows.dim} + i;',
                f'const int {columns.dim} = first_{columns.dim} + j;',
                *finished(p, segment, typed, 'acc[i][j]'),
            ]
        ),
        '}',
    ]
    return in_turns(p, segment, lines)


def _over(taps: list[SlidAxis]) -> list[str]:
    return [line for axis in taps for line in each(axis.tap, axis.taps)]


def _domain(p: DfgPlan, segment: Segment, outer: tuple[str, ...]) -> list[str]:
    """Iterators of the dimensions that no thread has several of."""
    sizes = [segment.region.dims[d].size for d in outer]
    lines = [f'const int plane = {_flat([f"strip_{d}" for d in outer], sizes)};']
    return [*lines, *Domain(p, segment).lines('plane', outer)] if outer else []


def _flat(names: list[str], sizes: list[int]) -> str:
    text = ''
    for name, size in zip(names, sizes, strict=True):
        text = f'({text}) * {size} + {name}' if text else name
    return text


def _start(segment: Segment, axis: SlidAxis) -> list[str]:
    """The first output of a thread along an axis."""
    span = segment.region.dims[axis.dim]
    at = scaled(f'strip_{axis.dim}', axis.run)
    if span.size % axis.run:
        most = span.size - axis.run
        at = f'({at} < {most} ? {at} : {most})'
    return [f'const int first_{axis.dim} = {total([origin(span.start), at])};']


def _stride(at: Place, axis: SlidAxis) -> int:
    """Floats between neighbours of the image along an axis; one of a single element has none."""
    return at.steps.get(axis.dim, 0) // axis.step


def _image(p: DfgPlan, segment: Segment, slide: Slide) -> list[str]:
    """x: what a thread reads of the image."""
    rows, columns, at = slide.rows, slide.columns, place(p, segment, slide.image)
    names = {axis.dim: f'first_{axis.dim}' for axis in (rows, columns)}
    fixed = {n: s for n, s in at.steps.items() if n not in (rows.tap, columns.tap)}
    down, across = (_stride(at, axis) for axis in (rows, columns))
    lines = [
        *piece_begin(p, slide.image, 'along'),
        f'const int image_at = {sum_text(fixed, at.const, names, at.off)};',
        f'float x[{rows.span}][{columns.span}];',
    ]
    for number, e, _ in at.guards:
        part = Affine(
            tuple((n, c) for n, c in e.terms if n not in (rows.tap, columns.tap)), e.const
        )
        lines.append(f'const int on{number} = {pieces.index(part, names)};')
    body = []
    alone = list(range(columns.span))
    for group in fours(p, segment, slide):
        space = 'GLOBAL' if at.pointer == p.tensor(slide.image.tensor).name else 'SHARED'
        used = [n for n in group if n < columns.span]
        alone = [n for n in alone if n not in used]
        value = f'LOAD4({space}, {at.pointer} + image_at + y * {down} + {group[0]})'
        tests = _tests(at, slide, str(group[0]))
        pad = float_text(at.pad)
        if tests:
            value = f'{" && ".join(tests)} ? {value} : FLOAT4({pad}, {pad}, {pad}, {pad})'
        body += ['{', f'    const float4 four = {value};']
        body += [f'    x[y][{n}] = four.{"xyzw"[n - group[0]]};' for n in used]
        body.append('}')
    for n in alone:
        value = f'{at.pointer}[image_at + y * {down} + {n * across}]'
        tests = _tests(at, slide, str(n))
        if tests:
            value = f'{" && ".join(tests)} ? {value} : {float_text(at.pad)}'
        body.append(f'x[y][{n}] = {value};')
    return [*lines, *each('y', rows.span), '{', *indented(body), '}']


def _tests(at: Place, slide: Slide, column: str) -> list[str]:
    """Whether the element in row y and a column is inside the image."""
    moved = {slide.rows.axis: 'y', slide.columns.axis: column}
    return [
        f'(unsigned)({total([f"on{axis}", moved.get(axis, "")])}) < {extent}u'
        for axis, _, extent in at.guards
    ]


def fours(p: DfgPlan, segment: Segment, slide: Slide) -> list[list[int]]:
    """Columns of a thread's rows that are loaded at once. In shared memory the last of them may be
    behind what is needed, as rows there are whole fours.
    """
    image, columns = slide.image, slide.columns
    at = place(p, segment, image)
    across = _stride(at, columns)
    span = segment.region.dims[columns.dim]
    others = [s for n, s in at.steps.items() if n not in (columns.dim, columns.tap)]
    shared = at.pointer != p.tensor(image.tensor).name
    if across != 1 or span.size % columns.run or any(s % FOUR for s in others):
        return []
    if (columns.step * columns.run) % FOUR:
        return []
    index = image.index[columns.axis]
    begins = [span.start, *([_window(p, image)[columns.axis]] if shared else [])]
    moved = [c * p.tile[d] for e in begins for d, c in e.terms]
    if any(n % FOUR for n in moved):
        return []
    first = index.const + columns.step * span.start.const
    if shared:
        first -= _window(p, image)[columns.axis].const
        rest = [
            stride * e.const
            for axis, (stride, e) in enumerate(
                zip(_strides(p, image), _window(p, image), strict=True)
            )
            if axis != columns.axis
        ]
        if any(n % FOUR for n in rest):
            return []
    elif any(axis == columns.axis for axis, _, _ in at.guards) and _extent(p, image, slide) % FOUR:
        return []
    start = -first % FOUR
    whole = range(start, columns.span, FOUR)
    found = [list(range(n, n + FOUR)) for n in whole]
    return [g for g in found if shared or g[-1] < columns.span]


def _extent(p: DfgPlan, image: Load, slide: Slide) -> int:
    return p.tensor(image.tensor).shape[slide.columns.axis]


def _window(p: DfgPlan, image: Load) -> list[Affine]:
    item = p.staged[image.name] if image.name in p.staged else p.kept[image.tensor]
    return [span.start for span in item.window]


def _strides(p: DfgPlan, image: Load) -> tuple[int, ...]:
    item = p.staged[image.name] if image.name in p.staged else p.kept[image.tensor]
    return item.strides
