"""How the tiled schema brings its operands to shared memory, piece by piece.

Goes in: a `TiledPlan`. Comes out: lines of CUCL: which rows a thread gathers, the copies of a
piece, and what comes before the products (ops/front.py), applied to what has arrived.
"""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.cpu.front import Front
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.language import Array
from tilewright.kernels.gpu.schemas.tiled.plan import TiledPlan
from tilewright.ops.stage import Affine


def loader_lines(p: TiledPlan) -> list[str]:
    """The rows that this thread gathers: where each begins, and what its bounds depend on."""
    group, access = p.group, p.contraction.a
    strides, const = access_strides(group, access)
    rows = dict(p.rows)
    outer = {*rows, *p.contraction.batch}
    lines = []
    for i in range(_rows_per_thread(p)):
        lines += [
            f'const int row{i} = first_row + {_gathered(p, i)};',
            *pieces.decode(f'row{i}', p.rows, prefix=f'r{i}_'),
        ]
        terms = [
            scaled(f'r{i}_{d}' if d in rows else d, s) for d, s in strides.items() if d in outer
        ]
        lines.append(f'const int base{i} = {total([*terms, str(const)])};')
        for number, expression in _bounded(p):
            fixed = Affine(
                tuple((n, k) for n, k in expression.terms if n in outer), expression.const
            )
            lines.append(f'const int at{i}_{number} = {_row_part(fixed, rows, f"r{i}_")};')
    return lines


def copies(p: TiledPlan) -> list[str]:
    """Copy piece `next` of both operands into its buffer."""
    c = p.contraction
    strides, _ = access_strides(p.group, c.a)
    slot = pieces.slot('next', p.stages)
    wide, long = p.pitch
    lines = [
        f'SHARED float *const to_a = a_tile + {slot} * {p.kb * long};',
        f'SHARED float *const to_b = b_tile + {slot} * {p.kb * wide};',
    ]
    loop = c.loop or '_none'
    step = strides.get(c.loop, 0)
    windows = [scaled(n, strides[n]) for n, _ in p.windows if strides.get(n)]
    rows = _rows_per_thread(p)
    here, depths = _own_depths(p)
    column = [_gathered(p, i) for i in range(rows)]
    if not p.joint:
        lines += depth_lines(p, f'next * {p.kb}', loop)
        lines.append(f'const int channel = {loop} + {here};')
        ragged = p.channels % p.kb
        for i in range(rows):
            lines.append(f'const bool inside{i} = {_inside(p, i)};')
            start = total([f'base{i}', *windows, scaled('channel', step)])
            lines.append(f'const GLOBAL float *const from{i} = @{p.image} + ({start});')
            for d in depths:
                there = f'inside{i}' + (f' && channel + {d} < {p.channels}' if ragged else '')
                lines.append(
                    f'COPY1(to_a + ({here} + {d}) * {long} + {column[i]}, '
                    f'{_safe(p, f"from{i} + {d * step}", there)}, {there});'
                )
    else:
        for d in depths:
            lines.append('{')
            inner = [f'const int e = next * {p.kb} + {here} + {d};', *depth_lines(p, 'e', loop)]
            for i in range(rows):
                there = f'{_inside(p, i)} && window < {p.window_points}'
                start = total([f'base{i}', *windows, scaled(loop, step)])
                inner += [
                    f'const bool inside{i} = {there};',
                    f'COPY1(to_a + ({here} + {d}) * {long} + {column[i]}, '
                    f'{_safe(p, f"@{p.image} + ({start})", f"inside{i}")}, inside{i});',
                ]
            lines += [f'    {line}' for line in inner] + ['}']
    return [*lines, *_weight_copies(p)]


def changed(p: TiledPlan, front: Front, wait: Sequence[str]) -> list[str]:
    """Wait for the copies of piece `now`, and apply what comes before the products to them.

    Each thread changes what it copied itself, which it sees without a barrier; numbers are read
    while copies are under way. What the copies filled up with zeros stays zero: padding lies behind
    the front, and weights of channels beyond the last are zeros, which an infinity must not meet.
    """
    c = p.contraction
    loop = c.loop or '_none'
    here, depths = _own_depths(p)
    ragged = p.channels % p.kb
    lines = [
        *depth_lines(p, f'now * {p.kb}', loop),
        f'SHARED float *const piece = a_tile + {pieces.slot("now", p.stages)} * '
        f'{p.kb * p.pitch[1]};',
        f'const int channel = {loop} + {here};',
    ]
    for d in depths:
        there = f'channel + {d} < {p.channels}'
        at = pieces.index(c.a.index[1], {c.loop: f'(channel + {d})'})
        for number in front.numbers:
            element = f'{number.argument}[{number.place({1: at})}]'
            known = f'{there} ? {element} : 0.0f' if ragged else element
            lines.append(f'const float {number.name}_{d} = {known};')
    lines += wait
    for i in range(_rows_per_thread(p)):
        for d in depths:
            tests = [*([f'channel + {d} < {p.channels}'] if ragged else []), *_in_bounds(p, i)]
            place = f'piece[({here} + {d}) * {p.pitch[1]} + {_gathered(p, i)}]'
            lines += [
                f'if ({" && ".join(tests)}) {{' if tests else '{',
                *(f'    const float {n.name} = {n.name}_{d};' for n in front.numbers),
                f'    const float value = {place};',
                f'    {place} = {front.expression};',
                '}',
            ]
    return lines


def front_arrays(p: TiledPlan) -> list[Array]:
    """Arguments for the numbers of what comes before the products."""
    return [
        Array(number.argument, tensor.dims, tensor.shape)
        for number in (p.front.numbers if p.front else ())
        for tensor in (p.group.tensor(number.tensor),)
    ]


def depth_lines(p: TiledPlan, e: str, loop: str) -> list[str]:
    """Declare `window`, its iterators and the channel of depth `e`."""
    period = p.channels if p.joint else p.per_window * p.kb
    lines = [
        f'const int window = {f"{e} / {period}" if p.window_points > 1 or p.joint else "0"};',
        f'const int {loop} = {e} - window * {period};',
    ]
    return [*lines, *(pieces.decode('window', p.windows) if p.windows else [])]


def _row_part(expression: Affine, rows: dict[str, int], prefix: str) -> str:
    """The part of an index that rows and batch decide: what stays the same all the way down."""
    terms = [scaled(f'{prefix}{n}' if n in rows else n, c) for n, c in expression.terms]
    return total([*terms, str(expression.const) if expression.const else ''])


def _rows_per_thread(p: TiledPlan) -> int:
    return max(1, p.bp // p.threads)


def _bounded(p: TiledPlan) -> list[tuple[int, Affine]]:
    """(axis, index) of the gathered operand wherever it may leave the tensor."""
    shape = p.group.tensor(p.contraction.a.tensor).shape
    return [
        (number, expression)
        for number, (expression, extent) in enumerate(
            zip(p.contraction.a.index, shape, strict=True)
        )
        if pieces.leaves(expression, extent, p.sizes)
    ]


def _inside(p: TiledPlan, i: int) -> str:
    """Whether row `i` of this thread reads inside the tensor at the current window point."""
    tests = [f'row{i} < {p.points}'] if p.points % p.bp else []
    return ' && '.join([*tests, *_in_bounds(p, i)]) or 'true'


def _in_bounds(p: TiledPlan, i: int) -> list[str]:
    """C tests of the same, for a row that there is."""
    shape = p.group.tensor(p.contraction.a.tensor).shape
    windows, tests = dict(p.windows), []
    for number, expression in _bounded(p):
        terms = [scaled(n, k) for n, k in expression.terms if n in windows]
        tests.append(f'(unsigned)({total([f"at{i}_{number}", *terms])}) < {shape[number]}u')
    return tests


def _own_depths(p: TiledPlan) -> tuple[str, range]:
    """(the first depth of a piece that this thread copies, those behind it as offsets)."""
    here = f'THREAD / {p.bp}' if p.threads > p.bp else '0'
    return here, range(0, p.kb, max(p.threads // p.bp, 1))


def _gathered(p: TiledPlan, i: int) -> str:
    """The number of row `i` of this thread in the block's tile."""
    return f'THREAD % {p.bp}' if p.threads >= p.bp else f'THREAD + {i * p.threads}'


def _safe(p: TiledPlan, address: str, there: str) -> str:
    """An address that may be formed even where nothing is read."""
    return address if there == 'true' else f'({there}) ? {address} : @{p.image}'


def _weight_copies(p: TiledPlan) -> list[str]:
    """Fours of the packed operand, consecutive threads side by side."""
    fours = p.kb * p.bk // 4
    per_row = p.bk // 4
    width = p.column_tiles * p.bk
    lines = [
        f'const GLOBAL float *const from_b = @{p.packed.name} + '
        f'(group * {p.depth} + next * {p.kb}) * {width} + first_column;'
    ]
    for first in range(0, fours, p.threads):
        index = f'(THREAD + {first})'
        copy = (
            f'COPY4(to_b + {index} / {per_row} * {p.pitch[0]} + {index} % {per_row} * 4, '
            f'from_b + {index} / {per_row} * {width} + {index} % {per_row} * 4, true);'
        )
        partial = first + p.threads > fours
        lines.append(f'if ({index} < {fours}) {copy}' if partial else copy)
    return lines
