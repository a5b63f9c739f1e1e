"""Which pixels a block of the patch schema has, and where they lie: boxes of an image, or strips.

A box is an extent along every pixel dimension. A strip is `bp` pixels that follow each other in the
order of the result, through rows and images: small images and odd widths leave no rest, at the end
of the last strip alone. Its patch is whole rows of the input, halo included, numbered through all
images as if each had `padded` rows:

    row of a pixel   image * padded + row in the image * step of the window

Each function returns lines of CUCL.
"""

from __future__ import annotations

from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.schemas.patch.plan import PatchPlan, Strip


def begun(p: PatchPlan) -> list[str]:
    """Where this block's tile begins."""
    lines = [
        *pieces.decode('BLOCK_X', p.grid, prefix='tile_'),
        *(f'const int first_{d} = tile_{d} * {extent};' for d, extent in p.tile),
    ]
    if p.strip is None or p.pixels_are_rows:
        return lines
    last = f'min(first_strip + {p.pixels}, {p.strip.pixels}) - 1'
    return [
        *lines,
        *_row('first_row', 'first_strip', p.strip),
        f'const int last_strip = {last};',
        *_row('last_row', 'last_strip', p.strip),
    ]


def _row(name: str, pixel: str, strip: Strip) -> list[str]:
    """The row of the patch, through all images, that a pixel's window begins in."""
    number = f'{pixel} / {strip.width}'
    image, row = f'{number} / {strip.height}', f'{number} % {strip.height}'
    return [f'const int {name} = {image} * {strip.padded} + {row} * {strip.step};']


def place(p: PatchPlan) -> tuple[list[str], str]:
    """(lines, where the window of `pixel` begins in the patch)."""
    step = {axis.pixel: axis.step * axis.stride for axis in p.axes}
    if p.pixels_are_rows:
        return [], f'pixel * {p.row_pitch}'
    if p.strip is not None:
        s, (down, across) = p.strip, p.axes
        lines = [
            f'const int my_strip = min(first_strip + pixel, {s.pixels - 1});',
            *_row('my_row', 'my_strip', s),
            f'const int my_column = my_strip % {s.width};',
        ]
        return lines, f'(my_row - first_row) * {down.stride} + {scaled("my_column", across.step)}'
    spot = total([scaled(f'my_{d}', step.get(d, 0)) for d, _ in p.tile]) or '0'
    chosen = f'pixel < {p.pixels} ? {spot} : 0' if p.bp > p.pixels else spot
    return pieces.decode('pixel', list(p.tile), prefix='my_'), chosen


def coordinates(p: PatchPlan) -> list[str]:
    """The place of `pixel` in the result, over the main stage's iterators; others are skipped."""
    if p.strip is not None:
        sizes = [(d, p.sizes[d]) for d in p.contraction.pixels]
        tests = [f'strip < {p.strip.pixels}'] if p.strip.pixels % p.pixels else []
        lines = ['const int strip = first_strip + pixel;', *pieces.decode('strip', sizes)]
    else:
        tests = [f'pixel < {p.pixels}'] if p.bp > p.pixels else []
        tests += [f'{d} < {p.sizes[d]}' for d, extent in p.tile if p.sizes[d] % extent]
        lines = [
            *pieces.decode('pixel', list(p.tile), prefix='my_'),
            *(f'const int {d} = first_{d} + my_{d};' for d, _ in p.tile),
        ]
    return [*lines, *([f'if (!({" && ".join(tests)}))', '    continue;'] if tests else [])]


def copied(p: PatchPlan) -> list[str]:
    """The places of a channel that this thread copies: where each is in memory, if anywhere."""
    if p.pixels_are_rows:
        return []
    group, c = p.group, p.contraction
    strides, const = access_strides(group, c.a)
    batch = [scaled(d, strides[d]) for d, _ in p.batch if strides.get(d)]
    fixed = const - sum(axis.const * axis.memory for axis in p.axes)
    lines = []
    for i in range(p.places):
        number = f'THREAD % {p.lanes} + {i * p.lanes}'
        lines.append(f'const int place{i} = {number if p.unit == 1 else f"({number}) * {p.unit}"};')
        found, tests, terms = _of_strip(p, i) if p.strip else _of_box(p, i)
        tests = [f'place{i} < {p.plane}'] * (p.lanes * p.places > p.copied) + tests
        lines += [
            *found,
            f'const bool inside{i} = {" && ".join(tests) or "true"};',
            f'const int from{i} = inside{i} ? {total([*terms, *batch, str(fixed)])} : 0;',
        ]
    return lines


def row_copies(p: PatchPlan) -> list[str]:
    """Copy piece `next` of rows: four channels of a pixel at a time."""
    assert p.strip is not None
    tensor, across = p.contraction.a.tensor, p.kb // 4
    strides, const = access_strides(p.group, p.contraction.a)
    batch = [scaled(d, strides[d]) for d, _ in p.batch if strides.get(d)]
    tests = [f'row < {p.strip.pixels}'] if p.strip.pixels % p.pixels else []
    tests += [f'channel < {p.channels}'] if p.channels % p.kb else []
    there = ' && '.join(tests) or 'true'
    where = total([scaled('row', p.strip.image), 'channel', *batch, str(const)])
    source = f'@{tensor} + {where}' if not tests else f'there ? @{tensor} + {where} : @{tensor}'
    return pieces.dealt(
        'chunk', 'THREAD', p.bp * across, p.threads,
        [
            f'const int row = first_strip + chunk / {across};',
            f'const int channel = next * {p.kb} + chunk % {across} * 4;',
            *([f'const bool there = {there};'] if tests else []),
            f'COPY4(to_a + chunk / {across} * {p.row_pitch} + chunk % {across} * 4, {source}, '
            f'{"there" if tests else "true"});',
        ],
    )  # fmt: skip


def _of_box(p: PatchPlan, i: int) -> tuple[list[str], list[str], list[str]]:
    """(lines, tests, terms of the address) of place i."""
    lines = pieces.decode(
        f'place{i}', [(str(a.number), a.extent) for a in p.axes], prefix=f'place{i}_'
    )
    spot = total([scaled(f'place{i}_{a.number}', a.stride) for a in p.axes])
    lines.append(f'const int spot{i} = {spot if p.spread else f"place{i}"};')
    tests, terms = [], []
    for axis in p.axes:
        name = f'at{i}_{axis.number}'
        where = total([scaled(f'first_{axis.pixel}', axis.step), f'place{i}_{axis.number}'])
        lines.append(f'const int {name} = {total([where, str(axis.const)])};')
        terms.append(scaled(name, axis.memory))
        if axis.guarded:
            tests.append(f'(unsigned){name} < {axis.size}u')
    return lines, tests, terms


def _of_strip(p: PatchPlan, i: int) -> tuple[list[str], list[str], list[str]]:
    """As `_of_box`; rows behind the last pixel's window are not read."""
    assert p.strip is not None
    s, (down, across) = p.strip, p.axes
    lines = [
        f'const int row{i} = first_row + place{i} / {across.extent};',
        f'const int image{i} = row{i} / {s.padded};',
        f'const int at{i}_{down.number} = {total([f"row{i} % {s.padded}", str(down.const)])};',
        f'const int at{i}_{across.number} = '
        f'{total([f"place{i} % {across.extent}", str(across.const)])};',
        f'const int spot{i} = place{i};',
    ]
    tests = [f'row{i} < last_row + {s.window}']
    tests += [f'(unsigned)at{i}_{a.number} < {a.size}u' for a in p.axes if a.guarded]
    terms = [scaled(f'at{i}_{a.number}', a.memory) for a in p.axes]
    return lines, tests, [scaled(f'image{i}', s.image), *terms]
