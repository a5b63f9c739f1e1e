"""Storing a register tile: out of the accumulators, through the epilogue, into the result.

Accumulators lie pixel by pixel with vector lanes innermost. Where the result has the lanes' own
dimension innermost (a matrix product, a blocked tensor) rows are written as they are; where it has
pixels innermost (NCHW), 4 x 4 blocks are transposed on the way: straight into the result where all
lanes of a tile are stored and what follows the sum is simple, else through rows of a small buffer.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tilewright.kernels.cpu import whole_avx2
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.half_vectors import HalfValue
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import Operand as EpilogueOperand
from tilewright.kernels.cpu.transpose import TRANSPOSE, Quick, quick_epilogue
from tilewright.kernels.cpu.whole_neon import (
    LANES,
    read_lines,
    store_lines,
    together,
    write_neon_vectors,
)
from tilewright.kernels.cpu.whole_vectors import (
    WholeValue,
    vector_operands,
    write_four,
    write_vectors,
)
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group

if TYPE_CHECKING:
    from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan

# By the C type of what is stored.
RESULT_BYTES = {name: DTYPES[dtype] for dtype, name in C_TYPES.items()}


def straight(group: Group, vector: str, lane: str, out: Mapping[str, int]) -> Quick | None:
    """How 4 x 4 blocks go straight into rows of pixels of the result, if they can."""
    if not lane or out.get(vector) == 1 or out.get(lane) != 1:
        return None
    return quick_epilogue(group, vector, lane)


def write_store(
    writer: Writer, p: OuterPlan, variants: Sequence[tuple[tuple[int, ...], int]]
) -> None:
    """One row function, and one store function that calls it row by row for each of `variants`,
    pixels and vectors of register tiles.
    """
    if p.finish:
        write_fetch(writer, p)
        return
    if isinstance(p.whole, HalfValue):
        write_half_vectors(writer, p, p.whole)
    elif isinstance(p.whole, WholeValue) and _on_neon(p):
        write_neon_vectors(writer, p.whole, _vectors(p), p.near.value if p.near else None)
    elif p.whole:
        write_whole_vectors(writer, p, p.whole)
    elif not by_pixels(p):
        _write_lane_row(writer, p)
    elif variants:
        writer.lines += TRANSPOSE.splitlines()
        writer.line()
        if p.quick is not None:
            p.quick.write(writer)
        _write_pixel_row(writer, p)
    for extents, vectors in variants:
        _write_tile_store(writer, p, extents, vectors)
    write_fetch(writer, p)


def write_fetch(writer: Writer, p: OuterPlan) -> None:
    """Ask for the lines that a full register tile will be stored to: the ends of each of its rows.

    Without it every store to a line that is not in the first cache waits for it; Y0 of MOpt's
    table, which writes most for what it computes, took 20% more on a Neoverse-N1.
    """
    reg = p.schedule.reg.tile
    sizes = {d: reg[d] for d in (*p.contraction.pixels, p.contraction.vector)}
    along = [d for d in sizes if p.out_strides.get(d) == 1]
    length = sizes[along[0]] if along else 1
    across = [d for d in sizes if d not in along and sizes[d] > 1]
    read = fetched(p)
    operands = ''.join(f', const {C_TYPES[item.dtype]} *{item.name}' for item in read)
    writer.open(f'static inline void fetch_result(const {p.result} *out{operands})')
    for d in across:
        writer.open(f'for (long {d}_row = 0; {d}_row < {sizes[d]}; {d}_row++)')
    rows = {'out': (p.out_strides, ', 1')} | {i.name: (dict(i.strides), '') for i in read}
    line = LINE_FLOATS if p.result == 'float' else 64 // RESULT_BYTES[p.result]
    ends = [*range(line, length - 1, line), length - 1]
    for name, (strides, mode) in rows.items():
        row = total([scaled(f'{d}_row', strides.get(d, 0)) for d in across])
        writer.line(f'__builtin_prefetch({name} + {row}{mode});')
        if length > line // 2:
            for place in ends:
                writer.line(f'__builtin_prefetch({name} + {row} + {place}{mode});')
    writer.close(len(across) + 1)
    writer.line()


def fetched(p: OuterPlan) -> tuple[EpilogueOperand, ...]:
    """Operands of the epilogue that are as large as the result, such as a residual.

    They lie as far away as the result does, and wait for nobody to ask for them.
    """
    along = [d for d, stride in p.out_strides.items() if stride == 1]
    found = tuple(i for i in p.epilogue.operands if along and i.stride(along[0]) == 1)
    if p.sums == p.result == 'float' and not p.deep:
        return found
    # Several operands have one number for each channel, which stay near.
    return tuple(i for i in found if any(i.stride(d) for d in p.contraction.pixels))


def by_pixels(p: OuterPlan) -> bool:
    """Whether rows of the result are rows of pixels, so that tiles are transposed."""
    return bool(p.lane) and p.out_strides.get(p.contraction.vector) != 1


def _head(p: OuterPlan, name: str, extra: str) -> str:
    operands = ''.join(
        f', const {C_TYPES[item.dtype]} *{item.name}' for item in p.epilogue.operands
    )
    return (
        f'static inline __attribute__((always_inline)) void {name}(const float *acc, '
        f'{p.result} *restrict out, long lanes{operands}{extra})'
    )


def _sum(p: OuterPlan, array: str, place: str) -> str:
    """An accumulator; whole numbers lie where floats are declared, `sums` may alias them."""
    return f'{array}[{place}]' if p.sums == 'float' else f'((const {p.sums} *){array})[{place}]'


def _write_operand_indices(writer: Writer, p: OuterPlan, lane: str, pixel: str) -> None:
    for item in p.epilogue.operands:
        place = total(
            [scaled(lane, item.stride(p.contraction.vector)), scaled(pixel, item.stride(p.lane))]
        )
        writer.line(f'const long {item.name}_at = {place};')


def _write_pixel_row(writer: Writer, p: OuterPlan) -> None:
    """Rows of pixels: for every lane, the epilogue over `pixels` neighbours."""
    out_lane = p.out_strides.get(p.contraction.vector, 0)
    out_pixel = p.out_strides.get(p.lane, 0)
    pitch = -(-max(e[p.contraction.pixels.index(p.lane)] for e in p.pixel_extents) // 4) * 4
    first = _finishes_first(p)
    writer.open(_head(p, 'store_row', ', long step, long pixels'))
    if first:
        writer.open('for (long pixel = 0; pixel < pixels; pixel++)')
        writer.line('float *restrict sums = (float *)acc + pixel * step;')
        writer.open('for (long lane = 0; lane < lanes; lane++)')
        writer.line('const float value = sums[lane];')
        _write_operand_indices(writer, p, 'lane', '0')
        writer.line(f'sums[lane] = {p.epilogue.expression};')
        writer.close(2)
    writer.open('for (long lane = 0; lane < lanes; lane += 4)')
    writer.line(f'float rows[4 * {pitch}];')
    writer.line('for (long pixel = 0; pixel < pixels; pixel += 4)')
    writer.line(f'    transpose4(acc + pixel * step + lane, step, rows + pixel, {pitch}, 4);')
    writer.open('for (long j = 0; j < min_long(4, lanes - lane); j++)')
    writer.line(f'{p.result} *restrict to = out + (lane + j) * {out_lane};')
    writer.open('for (long pixel = 0; pixel < pixels; pixel++)')
    writer.line(f'const {p.sums} value = {_sum(p, "rows", f"j * {pitch} + pixel")};')
    if not first:
        _write_operand_indices(writer, p, '(lane + j)', 'pixel')
    made = 'value' if first else p.epilogue.expression
    writer.line(f'to[{scaled("pixel", out_pixel) or "0"}] = {made};')
    writer.close(4)
    writer.line()


def _finishes_first(p: OuterPlan) -> bool:
    """Whether the epilogue is applied to sums before they are transposed: lanes are whole vectors
    there, where a row of pixels is seldom, which counts for functions of many instructions.
    """
    along = any(item.stride(p.lane) for item in p.epilogue.operands)
    slow = p.quick is None and bool(p.epilogue.functions)
    return slow and p.sums == p.result == 'float' and not along


def _write_lane_row(writer: Writer, p: OuterPlan) -> None:
    """Rows of lanes: for every pixel, the epilogue over the lanes of its vectors."""
    out_lane = p.out_strides.get(p.contraction.vector, 0)
    out_pixel = p.out_strides.get(p.lane, 0)
    writer.open(_head(p, 'store_row', ', long step, long pixels'))
    writer.open('for (long pixel = 0; pixel < pixels; pixel++)')
    if _beside(p):
        writer.line(f'#pragma GCC unroll {p.panels.vectors}')
    writer.open('for (long lane = 0; lane < lanes; lane++)')
    writer.line(f'const {p.sums} value = {_sum(p, "acc", "pixel * step + lane")};')
    _write_operand_indices(writer, p, 'lane', 'pixel')
    place = total([scaled('lane', out_lane), scaled('pixel', out_pixel)])
    writer.line(f'out[{place}] = {p.epilogue.expression};')
    writer.close(3)
    writer.line()


def _beside(p: OuterPlan) -> bool:
    """Whether the vectors of a row go through the epilogue side by side: functions are long chains
    of multiply-adds, of which one vector fills a fraction of the units. GELU took 34 cycles for a
    vector instead of 58 on a Neoverse-N1, whose window holds two of them.
    """
    narrow = ISAS[p.schedule.isa].by_lane and p.panels.vectors > 1
    return narrow and bool(p.epilogue.functions) and not by_pixels(p)


def write_half_vectors(writer: Writer, p: OuterPlan, value: HalfValue) -> None:
    """One vector of sums, of which `count` lanes are stored: all on vectors, or one by one."""
    vector, operands, lanes = p.contraction.vector, p.epilogue.operands, p.panels.lanes
    value.write_functions(writer)
    writer.open(_head(p, 'store_vector', '').replace('long lanes', 'unsigned long count'))
    for first in range(0, lanes, value.lanes):
        writer.open(f'if (count >= {first + value.lanes})')
        value.write_block(writer, operands, vector, first)
        writer.close()
    whole = f'count / {value.lanes} * {value.lanes}'
    writer.open(f'for (unsigned long lane = {whole}; lane < count; lane++)')
    writer.line('const float value = acc[lane];')
    for item in operands:
        writer.line(f'const long {item.name}_at = {scaled("lane", item.stride(vector)) or 0};')
    writer.line(f'out[lane] = {p.epilogue.expression};')
    writer.close(2)
    writer.line()


def write_whole_vectors(writer: Writer, p: OuterPlan, value: WholeValue) -> None:
    """One vector of sums that are whole numbers, of which `count` lanes are stored; and four."""
    vector, operands, lanes = p.contraction.vector, p.epilogue.operands, p.panels.lanes
    write_vectors(writer, p.schedule.isa, [value.dtype, *(item.dtype for item in operands)])
    head = _head(p, 'store_vector', '').replace('long lanes', 'unsigned long count')
    reads = ['const whole_v value = *(const whole_v *)acc;', *vector_operands(operands, vector)]
    writer.open(head)
    writer.lines += [f'    {line}' for line in reads]
    writer.line(f'put_{value.dtype}(out, {value.made(last=True)}, count);')
    writer.close()
    writer.line()
    if _narrows_on_avx2(p):
        whole_avx2.write_rounded(writer, value, operands, vector)
    if not stores_fours(p.panels.vectors, p.panels.lanes, value):
        return
    write_four(writer, value)
    writer.open(
        head.replace('store_vector', 'rounded').replace('void', '__m512i')
        .replace(f'{p.result} *restrict out, unsigned long count', 'const unsigned long count')
    )  # fmt: skip
    writer.lines += [f'    {line}' for line in reads]
    writer.line(f'return {value.rounded()};')
    writer.close()
    order = ', '.join(str(4 * (i % 4) + i // 4) for i in range(15, -1, -1))
    for vectors in range(2, p.panels.vectors + 1):
        writer.open(head.replace('store_vector', f'store_{vectors}'))
        for v, name in enumerate('abcd'[:vectors]):
            places = ''.join(
                f', {item.name} + {v * lanes * item.stride(vector)}' for item in operands
            )
            valid = 'count' if v + 1 == vectors else str(lanes)
            writer.line(f'const __m512i {name} = rounded(acc + {v * lanes}, {valid}{places});')
        given = ', '.join('abcd'[min(v, vectors - 1)] for v in range(4))
        writer.line(f'const __m512i order = _mm512_set_epi32({order});')
        writer.line(f'const __m512i all = _mm512_permutexvar_epi32(order, four({given}));')
        writer.line(f'const __mmask64 mask = -1ull >> ({5 - vectors} * {lanes} - count);')
        writer.line('_mm512_mask_storeu_epi8(out, mask, all);')
        writer.close()
        writer.line()


def _narrows_on_avx2(p: OuterPlan) -> bool:
    """Whether vectors of a tile are narrowed four at once, whichever pixels they belong to."""
    lanes = whole_avx2.LANES
    return p.panels.lanes == lanes and isinstance(p.whole, WholeValue) and p.whole.in_fours


def stores_fours(vectors: int, lanes: int, value: WholeValue | HalfValue) -> bool:
    """Whether so many vectors of a pixel, two to four, are narrowed and stored at once."""
    return value.in_fours and lanes == 16 and 2 <= vectors <= 4


def _write_whole_stores(
    writer: Writer, p: OuterPlan, points: list[dict[str, int]], strides: Mapping[str, int],
    run: int, vectors: int, fours: bool,
) -> None:  # fmt: skip
    """Every vector of a tile; how many lanes the last panel has is known, so that copies are."""
    lanes, last = p.panels.lanes, p.panels.size - (p.panels.count - 1) * p.panels.width
    width, vector = lanes * vectors, p.contraction.vector
    cut = width - lanes < last < width
    for tail in (True, False) if cut else (False,):
        writer.open(f'if (lanes < {width})' if tail else '')
        if _narrows_on_avx2(p):
            count = last - (vectors - 1) * lanes if tail else lanes
            stored = _stored_vectors(p, points, strides, run, (vectors, count))
            writer.lines += [f'        {line}' for line in whole_avx2.store_lines(stored)]
            if tail:
                writer.line('return;')
            writer.close()
            continue
        at_once = fours and vectors > 1
        name, starts = (f'store_{vectors}', [0]) if at_once else ('store_vector', range(vectors))
        for v, at in itertools.product(starts, points):
            ends = at_once or v + 1 == vectors
            count = last - (vectors - 1) * lanes if tail and ends else lanes
            places = {'acc': dict(strides), 'out': dict(p.out_strides)}
            places |= {item.name: dict(item.strides) for item in p.epilogue.operands}
            texts = []
            for item, steps in places.items():
                first = sum(steps.get(d, 0) * i for d, i in at.items())
                first += v * lanes * (1 if item == 'acc' else steps.get(vector, 0))
                pixel = scaled('pixel', steps.get(p.lane, 0))
                texts.append(f'{item} + {total([str(first), pixel])}')
            writer.line(f'for (long pixel = 0; pixel < {run}; pixel++)')
            writer.line(f'    {name}({", ".join([*texts[:2], str(count), *texts[2:]])});')
        if tail:
            writer.line('return;')
        writer.close()


def _stored_vectors(
    p: OuterPlan, points: list[dict[str, int]], strides: Mapping[str, int], run: int,
    width: tuple[int, int],
) -> list[whole_avx2.StoredVector]:  # fmt: skip
    """The vectors of a tile, pixel by pixel; so many for each, and lanes of the last of them."""
    vectors, count = width
    lanes, vector, found = p.panels.lanes, p.contraction.vector, []
    for at, pixel, v in itertools.product(points, range(run), range(vectors)):
        point = {**at, p.lane: pixel} if p.lane else at

        def place(steps: Mapping[str, int], point: Mapping[str, int] = point) -> int:
            return sum(steps.get(d, 0) * i for d, i in point.items())

        operands = tuple(
            f'{item.name} + {place(dict(item.strides)) + v * lanes * item.stride(vector)}'
            for item in p.epilogue.operands
        )
        sums = f'acc + {place(strides) + v * lanes}'
        to = place(p.out_strides) + v * lanes * p.out_strides.get(vector, 0)
        valid = count if v + 1 == vectors else lanes
        found.append(whole_avx2.StoredVector(sums, to, valid, operands))
    return found


def _on_neon(p: OuterPlan) -> bool:
    return ISAS[p.schedule.isa].arch == 'aarch64'


def _vectors(p: OuterPlan) -> tuple[EpilogueOperand, ...]:
    """The operands that are vectors: the last is a number where sums may be small."""
    return p.epilogue.operands[: -1 if p.near else None]


def _write_neon_stores(
    writer: Writer, p: OuterPlan, value: WholeValue, points: list[dict[str, int]],
    strides: Mapping[str, int], run: int, vectors: int,
) -> None:  # fmt: skip
    """Every vector of a tile, up to four of a pixel at once; what belongs to channels alone is
    read before the first pixel.
    """
    last = p.panels.size - (p.panels.count - 1) * p.panels.width
    width = LANES * vectors
    cut = width - LANES < last < width
    for tail in (True, False) if cut else (False,):
        writer.open(f'if (lanes < {width})' if tail else '')
        for run_of in together(vectors):
            ends = run_of[-1] + 1 == vectors
            count = last - (vectors - 1) * LANES if tail and ends else LANES
            if p.near:
                writer.open(f'if (*{p.epilogue.operands[-1].name})')
                _write_neon_run(
                    writer, p, (p.near.value, True), points, strides, run, (run_of, count)
                )
                writer.close()
            writer.open('else' if p.near else '')
            _write_neon_run(writer, p, (value, False), points, strides, run, (run_of, count))
            writer.close()
        if tail:
            writer.line('return;')
        writer.close()


def _write_neon_run(
    writer: Writer, p: OuterPlan, made: tuple[WholeValue, bool], points: list[dict[str, int]],
    strides: Mapping[str, int], run: int, which: tuple[list[int], int],
) -> None:  # fmt: skip
    (value, near), (run_of, count) = made, which
    items, vector = _vectors(p), p.contraction.vector
    fixed = [i for i in items if not any(i.stride(d) for d in p.contraction.pixels)]
    for item in fixed:
        for line in read_lines(item, item.name, vector, run_of, count):
            writer.line(line)
    for at in points:
        places = {'acc': dict(strides), 'out': dict(p.out_strides)}
        places |= {item.name: dict(item.strides) for item in items}
        texts = {}
        for name, steps in places.items():
            first = sum(steps.get(d, 0) * i for d, i in at.items())
            pixel = scaled('pixel', steps.get(p.lane, 0))
            texts[name] = f'({name} + {total([str(first), pixel])})'
        writer.line('#pragma GCC unroll 1')  # registers hold the vectors of one pixel
        writer.open(f'for (long pixel = 0; pixel < {run}; pixel++)')
        for item in items:
            if item not in fixed:
                for line in read_lines(item, texts[item.name], vector, run_of, count):
                    writer.line(line)
        sums = {v: f'*(const whole_v *)({texts["acc"]} + {LANES * v})' for v in run_of}
        for line in store_lines(value, items, sums, texts['out'], count, near):
            writer.line(line)
        writer.close()


def _write_tile_store(writer: Writer, p: OuterPlan, extents: tuple[int, ...], vectors: int) -> None:
    names = p.contraction.pixels
    width = p.panels.lanes * vectors
    name = f'store_p{"x".join(map(str, extents))}_v{vectors}'
    head = _head(p, name, '').replace('inline __attribute__((always_inline))', '')
    writer.open(head.replace('static  void', 'static __attribute__((noinline)) void'))
    sizes = dict(zip(names, extents, strict=True))
    others = [d for d in names if d != p.lane]
    turned = p.turned(extents, vectors)
    if p.persistent:
        strides = p.acc_strides
    else:
        strides, step = {}, width
        for d in reversed(names):
            strides[d] = step
            step *= sizes[d]
    step = strides[p.lane] if p.lane else width
    run = sizes[p.lane] if p.lane else 1
    points = [
        dict(zip(others, point, strict=True))
        for point in itertools.product(*(range(sizes[d]) for d in others))
    ]
    if isinstance(p.whole, WholeValue) and _on_neon(p):
        _write_neon_stores(writer, p, p.whole, points, strides, run, vectors)
        writer.close()
        writer.line()
        return
    if p.whole:
        fours = stores_fours(p.panels.vectors, p.panels.lanes, p.whole)
        _write_whole_stores(writer, p, points, strides, run, vectors, fours)
        writer.close()
        writer.line()
        return
    if p.quick is not None:
        writer.line('(void)lanes;') if turned else writer.open(f'if (lanes >= {width})')
        for at in points:
            _write_straight(writer, p, p.quick, at, strides, run, (width, turned))
        if turned:
            writer.close()
            writer.line()
            return
        writer.line('return;')
        writer.close()
    if p.sums != 'float' or _beside(p):  # loops over a number that is known become vectors
        writer.open(f'if (lanes >= {width})')
        for at in points:
            writer.line(_row_call(p, at, strides, step, run, str(width)))
        writer.line('return;')
        writer.close()
    for at in points:
        writer.line(_row_call(p, at, strides, step, run, 'lanes'))
    writer.close()
    writer.line()


def _row_call(
    p: OuterPlan, at: dict[str, int], strides: Mapping[str, int], step: int, run: int, lanes: str
) -> str:
    """The call that stores one row of pixels of a tile."""
    acc = sum(strides[d] * i for d, i in at.items())
    out = sum(p.out_strides.get(d, 0) * i for d, i in at.items())
    operands = ''.join(
        f', {item.name} + {sum(item.stride(d) * i for d, i in at.items())}'
        for item in p.epilogue.operands
    )
    return f'store_row(acc + {acc}, out + {out}, {lanes}{operands}, {step}, {run});'


def _write_straight(
    writer: Writer, p: OuterPlan, quick: Quick, at: dict[str, int], strides: dict[str, int],
    run: int, kind: tuple[int, bool],
) -> None:  # fmt: skip
    """One row of pixels of a tile, all of whose lanes are stored: 4 x 4 blocks, straight out."""
    vector, (width, turned) = p.contraction.vector, kind
    acc = sum(strides[d] * i for d, i in at.items())
    out = sum(p.out_strides.get(d, 0) * i for d, i in at.items())
    step, pitch = strides[p.lane], p.out_strides.get(vector, 0)
    for lane in range(0, width, 4):
        for pixel in range(0, run, 4):
            places = {}
            for item in quick.epilogue.operands:
                here = sum(item.stride(d) * i for d, i in at.items())
                here += lane * item.stride(vector) + pixel * item.stride(p.lane)
                places[item.name] = f'{item.name} + {here}'
            block = (
                f'acc + {acc + pixel * step + lane}, {step}, '
                f'out + {out + lane * pitch + pixel}, {pitch}, {min(4, run - pixel)}'
            )
            writer.line(quick.call(block, places, turned))
