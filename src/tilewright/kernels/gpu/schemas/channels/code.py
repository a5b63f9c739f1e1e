"""The channels schema: a sum of products of f16, bf16 or 8-bit numbers whose depth is contiguous in
the image.

Goes in: a group whose main stage is a sum of products with a constant operand, an image with its
channels last (graph/half.py), and a schedule. Comes out: a module. The roles of dimensions are
those of kernels/cpu/contraction.py; for a convolution

    rows      n h w, flattened      gathered; padding becomes zeros in shared memory
    columns   k                     packed ahead, piece by piece as they lie in shared memory
    depth     r s c                 in pieces of `kb`, through `stages` buffers of shared memory

Sixteen bytes, eight channels of a half type, are copied at once (eight bytes where there are only
four). A row of a piece is `kb` elements, 32, 64 or 128 bytes; chunk i of row r, which has c chunks,
lies at i ^ (r / (8 / c) % c), so that eight rows are read from different banks: what PTX calls
swizzling of as many bytes. Decisions of a schedule:

    bp bk          rows and columns of a block
    tp tk          of a warp (`mma_half`, 16 x 8 x 16) or of a warpgroup (`wgmma_half`; tk is bk)
                   (`mma_int8` and `wgmma_int8`: bytes, twice as deep)
    kb stages      depth of a piece, pieces in shared memory
    split          blocks that share a tile's depth
    queue          2: a piece is handed to a warpgroup's matrix units before the last one has ended
    bulk           1: one thread asks for the whole of a piece's columns
    near           1: rows stay in the first cache, for windows that overlap
    cluster        1: blocks that share a tile's depth run together, on Hopper, and each adds up
                   its share of the tile from the shared memory of all; 0: they leave their sums in
                   memory, and the last one adds them up

Sums are of float32, those of 8-bit numbers are whole and exact: they are moved as the bits of
floats. An image of u8 is padded with its zero point, from sixteen bytes that the packing of weights
leaves. At the end they pass through shared memory, so that every thread has eight
neighbours of a row: what the epilogue reads and writes is moved sixteen bytes at a time (store.py),
and is rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import half, pieces
from tilewright.kernels.gpu.epilogue import helpers
from tilewright.kernels.gpu.language import BEGINS, ENDS, Array, Kernel
from tilewright.kernels.gpu.module import Module
from tilewright.kernels.gpu.product import module_of, pack_kernel, workspace
from tilewright.kernels.gpu.schemas.channels.plan import (
    CHUNK_BYTES,
    STEP_WORDS,
    WARPGROUP,
    WORD_BYTES,
    ChannelsPlan,
    plan,
)
from tilewright.kernels.gpu.schemas.channels.store import Store
from tilewright.kernels.gpu.work import WARP
from tilewright.ops.group import Group
from tilewright.ops.stage import Affine
from tilewright.schedule.gpu import GpuSchedule


def generate(group: Group, schedule: GpuSchedule) -> Module:
    """[Group, GpuSchedule] -> [Module]"""
    p = plan(group, schedule)
    sums = [] if p.cluster else workspace(p.split, p.tiles, p.bk * p.bp)
    arrays = [p.packed, *_padding(p), *sums]
    return module_of(p, arrays, _pack_kernel(p), [main_kernel(p, sums)])


def _padding(p: ChannelsPlan) -> list[Array]:
    """Sixteen bytes that stand for places outside the image, where those are not zero."""
    name = f'{p.contraction.a.tensor}_padding'
    return [Array(name, ('word',), (CHUNK_BYTES // WORD_BYTES,))] if p.pad else []


def _pack_kernel(p: ChannelsPlan) -> Kernel:
    """Some weights a word, where the matrix units will look for them; zeros behind the last."""
    c, packed = p.contraction, p.packed
    mask, bits = ('0xffffu', 16) if p.item == 2 else ('0xffu', 8)
    padding = [
        f'if (flat < {array.elements})\n'
        f'    {array.name}[flat] = BITS_FLOAT({(p.pad & 0xFF) * 0x01010101:#x}u);'
        for array in _padding(p)
    ]
    body = [
        *padding,
        *pieces.decode('flat', list(zip(packed.dims, packed.sizes, strict=True))),
        *(pieces.decode('g_', p.batch) if p.batch else []),
        f'const int {c.vector} = tile * {p.bk} + row;',
        f'const int chunk = word / 4 ^ {p.turned("row")};',
        f'const int depth = chunk * {p.chunk} + word % 4 * {p.per_word};',
        f'const int unit = piece * {p.units} + depth / {p.unit};',
        *_window(p),
        'unsigned bits = 0u;',
        f'for (int q = 0; q < {p.per_word}; q++) {{',
        f'    const int {c.loop} = channel + depth % {p.unit} + q;',
        f'    const bool there = {c.vector} < {p.columns} && unit < {p.depth};',
        f'    const unsigned item = there ? (unsigned){pieces.element(p.group, c.b)} : 0u;',
        f'    bits |= (item & {mask}) << q * {bits};',
        '}',
        f'{packed.name}[flat] = BITS_FLOAT(bits);',
    ]
    kernel = pack_kernel('channels_pack', p, replace(packed, written=True), body)
    written = tuple(replace(array, written=True) for array in _padding(p))
    return replace(kernel, args=(*kernel.args, *written)) if written else kernel


def _window(p: ChannelsPlan) -> list[str]:
    """The window point and the first channel of `unit`."""
    per_point = p.channels // p.unit
    if p.window_points == 1:
        return [f'const int channel = unit * {p.unit};', *_decoded(p)]
    return [
        f'const int window = unit / {per_point};',
        f'const int channel = (unit - window * {per_point}) * {p.unit};',
        *_decoded(p),
    ]


def _decoded(p: ChannelsPlan) -> list[str]:
    return pieces.decode('window' if p.window_points > 1 else '0', p.windows) if p.windows else []


def main_kernel(p: ChannelsPlan, sums: Sequence[Array]) -> Kernel:
    group, store = p.group, Store.of(p)
    args = [
        pieces.argument(group.tensor(p.contraction.a.tensor)),
        p.packed,
        *_padding(p),
        *pieces.epilogue_arrays(group, p.epilogue),
        *sums,
        pieces.argument(group.output, written=True),
    ]
    shared = [('tiles', p.shared_floats)]
    shared += [('full', 2 * p.stages)] * p.bulk + [('arrived', 4)] * bool(sums) + store.shared
    body = [
        *_place(p),
        *_loader(p),
        *_accumulate(p, store),
        ENDS,
        *(pieces.joined(*p.sums, p.threads, p.tiles, p.split, p.whole) if sums else []),
        *_staged(p, store),
        *store.lines(),
        *(['CLUSTER_BARRIER;'] if p.cluster else []),  # others may still read what is here
    ]
    family = 'int8' if p.whole else 'half'
    needs = {f'wgmma_{family}_{p.kind}/{p.bk}'} if p.wide else {f'mma_{family}'}
    asked = {'device_fence': bool(sums), 'bulk_copy': p.bulk, 'cluster': p.cluster}
    needs |= {need for need, is_needed in asked.items() if is_needed}
    return Kernel(
        f'channels_{group.main.name}', tuple(args), '\n'.join(body),
        (p.row_tiles, p.column_tiles * p.groups, p.split), p.threads, tuple(shared),
        '\n'.join([half.CONVERSIONS.get(p.kind, ''), helpers(group, p.epilogue)]),
        frozenset(needs), cluster=p.split if p.cluster else 1,
    )  # fmt: skip


def _place(p: ChannelsPlan) -> list[str]:
    """Which tile this block owns, and which part of it this team."""
    across, share = p.bp // p.tp, -(-p.iterations // p.split)
    rows, _ = p.tile_floats
    lines = [
        f'const int first_row = BLOCK_X * {p.bp};',
        f'const int group = {f"BLOCK_Y / {p.column_tiles}" if p.groups > 1 else "0"};',
        f'const int column_tile = BLOCK_Y - group * {p.column_tiles};',
        f'const int first_column = column_tile * {p.bk};',
        *(pieces.decode('group', p.batch) if p.batch else []),
        f'const int lane = THREAD % {WARP}, owner = THREAD / {p.team};',
        f'const int own_row = owner % {across} * {p.tp};',
        f'const int own_column = owner / {across} * {p.tk};',
        f'SHARED float *const a_tile = tiles, *const b_tile = tiles + {p.stages * rows};',
    ]
    if p.split == 1:
        return [*lines, f'const int begin = 0, end = {p.iterations};']
    return [
        *lines,
        *([] if p.cluster else [f'const int tile = BLOCK_Y * {p.row_tiles} + BLOCK_X;']),
        f'const int begin = min(BLOCK_Z * {share}, {p.iterations});',
        f'const int end = min(begin + {share}, {p.iterations});',
    ]


def _own_rows(p: ChannelsPlan) -> range:
    """Rows that a thread copies a unit of, apart by as many as all threads copy at once."""
    return range(p.bp * p.units // p.threads)


def _loader(p: ChannelsPlan) -> list[str]:
    """Where the rows that this thread copies begin in the image, and their place in it."""
    strides, const = access_strides(p.group, p.contraction.a)
    apart = p.threads // p.units
    rows = dict(p.rows)
    lines = [f'const int own_unit = THREAD % {p.units}, copied = THREAD / {p.units};']
    for i in _own_rows(p):
        names = {d: f'p{i}_{d}' for d in rows}
        fixed = [
            scaled(names.get(d, d), strides[d]) for d in (*rows, *dict(p.batch)) if d in strides
        ]
        # Chunks of rows that are multiples of eight apart are ordered alike.
        regular = i and apart % 8 == 0
        to = (
            f'to0 + {i * apart * p.words}'
            if regular
            else p.place(f'(copied + {i * apart})', 'own_unit')
        )
        lines += [
            f'const int row{i} = first_row + copied + {i * apart};',
            *pieces.decode(f'row{i}', p.rows, prefix=f'p{i}_'),
            f'const int from{i} = {total([*fixed, str(const) if const else ""])};',
            f'const int to{i} = {to};',
            *(
                f'const int at{i}_{axis} = {_row_part(e, names, rows)};'
                for axis, e in _bounded(p)
            ),
        ]  # fmt: skip
    return lines


def _row_part(expression: Affine, names: dict[str, str], rows: dict[str, int]) -> str:
    """The part of an index that rows decide: what stays the same all the way down."""
    terms = [scaled(names[n], c) for n, c in expression.terms if n in rows]
    return total([*terms, str(expression.const) if expression.const else ''])


def _bounded(p: ChannelsPlan) -> list[tuple[int, Affine]]:
    """(axis, index) of the image wherever it may leave the tensor."""
    a = p.contraction.a
    shape = p.group.tensor(a.tensor).shape
    return [
        (axis, e)
        for axis, (e, extent) in enumerate(zip(a.index, shape, strict=True))
        if pieces.leaves(e, extent, p.sizes)
    ]


def _copies(p: ChannelsPlan) -> list[str]:
    """Copy a unit of each of this thread's rows, of piece `next`."""
    a = p.contraction.a
    strides, _ = access_strides(p.group, a)
    shape = p.group.tensor(a.tensor).shape
    windows = dict(p.windows)
    moved = total([*(scaled(d, strides[d]) for d in windows if d in strides), 'channel'])
    rows, _ = p.tile_floats
    slot = pieces.slot('next', p.stages)
    copy = 'COPY2' if p.unit < p.chunk else 'COPY4_NEAR' if p.near else 'COPY4'
    padding = next((array.name for array in _padding(p)), '')
    outside = f'@{padding}' if padding else f'(const GLOBAL float *)@{a.tensor}'
    lines = [
        f'SHARED float *const to_a = a_tile + {slot} * {rows};',
        f'const int unit = next * {p.units} + own_unit;',
        *_window(p),
        f'const int moved = {moved};',
    ]
    for i in _own_rows(p):
        tests = [f'row{i} < {p.points}'] if p.points % p.bp else []
        tests += [f'unit < {p.depth}'] if p.depth % p.units else []
        for axis, e in _bounded(p):
            inner = [scaled(n, k) for n, k in e.terms if n in windows]
            tests.append(f'(unsigned)({total([f"at{i}_{axis}", *inner])}) < {shape[axis]}u')
        address = f'(const GLOBAL float *)(@{a.tensor} + from{i} + moved)'
        if not tests:
            lines.append(f'{copy}(to_a + to{i}, {address}, true);')
            continue
        lines += [
            f'const bool there{i} = {" && ".join(tests)};',
            f'{copy}(to_a + to{i}, there{i} ? {address} : {outside}, '
            f'{"true" if padding else f"there{i}"});',
        ]
    return lines


def _copies_of_columns(p: ChannelsPlan) -> list[str]:
    """Copy the packed columns of piece `next`; in bulk one thread does."""
    columns, slot = p.tile_floats[1], pieces.slot('next', p.stages)
    piece = f'((group * {p.column_tiles} + column_tile) * {p.iterations} + next) * {columns}'
    lines = [
        f'SHARED float *const to_b = b_tile + {slot} * {columns};',
        f'const GLOBAL float *const from_b = @{p.packed.name} + {piece};',
    ]
    if p.bulk:
        full = f' + next % {p.stages} * 2' if p.stages > 1 else ''
        return [*lines, f'BULK_COPY(to_b, from_b, {columns}, full{full});']
    return [
        *lines,
        *pieces.dealt(
            'four', 'THREAD * 4', columns, 4 * p.threads,
            ['COPY4(to_b + four, from_b + four, true);'],
        ),
    ]  # fmt: skip


def _accumulate(p: ChannelsPlan, store: Store) -> list[str]:
    """The loop over pieces: one is multiplied while later ones are copied.

    A later piece takes the place of one that all have done with: with a queue of two that is the
    one before the last, whose products have ended when the last one's were waited for. Columns were
    packed ahead, so that the first of them are asked for before the kernels that this one follows
    have ended; so is what the epilogue reads of constants.
    """
    tiles, own = p.sums
    lines = [f'{"int" if p.whole else "float"} acc[{tiles}][{own}];', *pieces.cleared(tiles, own)]
    columns = _copies_of_columns(p)
    first = [
        f'for (int next = begin; next < min(begin + {p.ahead}, end); next++) {{',
        *pieces.indented(columns),
        '}',
    ] if p.ahead else []  # fmt: skip
    if p.bulk:
        begun = [f'BULK_BEGIN(full + {2 * stage});' for stage in range(p.stages)]
        first = ['if (THREAD == 0) {', *pieces.indented([*begun, *first]), '}']
        columns = ['if (THREAD == 0) {', *pieces.indented(columns), '}']
    lines += [*first, *store.first(constant=True), BEGINS, *(['BARRIER;'] if p.bulk else [])]
    lines += store.first(constant=False)
    used = f'(now - begin) / {p.stages}'
    slot = f' + now % {p.stages} * 2' if p.stages > 1 else ''
    arrived = [
        f'COPY_WAIT({max(p.ahead - 1, 0)});',
        *(['SHARED_TO_MATRIX;'] if p.wide else []),
        *([f'BULK_WAIT(full{slot}, {used});'] if p.bulk else []),
        'BARRIER;',
    ]
    rows = _copies(p)
    asked = pieces.asked(p.ahead, [*rows, *columns])
    if not p.ahead:
        turn = [
            *asked,
            *arrived,
            *_multiply(p),
            *(['MATRIX_WAIT(0);'] if p.wide else []),
            'BARRIER;',
        ]
        loop = ['for (int now = begin; now < end; now++) {', *pieces.indented(turn), '}']
        return [*lines, *loop]
    ended = [f'MATRIX_WAIT({p.queue - 1});'] if p.wide else []
    inside = [*arrived, *_multiply(p)]
    inside += [*ended, *asked] if p.queue > 1 else [*asked, *ended]
    return [
        *lines,
        f'for (int now = begin - {p.ahead}; now < begin; now++) {{',
        *pieces.indented(pieces.asked(p.ahead, rows)),
        '}',
        'for (int now = begin; now < end; now++) {',
        *pieces.indented(inside),
        '}',
        *(['MATRIX_WAIT(0);'] if p.queue > 1 else []),
    ]


def _multiply(p: ChannelsPlan) -> list[str]:
    """The products of one piece, eight words of each row at a time."""
    rows, columns = p.tile_floats
    slot = pieces.slot('now', p.stages)
    word, tiles, steps = p.words, p.sums[0], p.words // STEP_WORDS
    family = 'INT8' if p.whole else 'HALF'
    if p.wide:
        return [
            f'const SHARED float *const a = a_tile + {slot} * {rows} + own_row * {word};',
            f'const SHARED float *const b = b_tile + {slot} * {columns};',
            'MATRIX_BEGIN;',
            '#pragma unroll',
            f'for (int step = 0; step < {steps}; step++)',
            '#pragma unroll',
            f'    for (int i = 0; i < {tiles}; i++)',
            f'        WGMMA_{family}_{p.kind.upper()}({p.bk}, {2 * word}, acc[i], '
            f'a + i * {64 * word}, b, step);',
            'MATRIX_COMMIT;',
        ]
    across = p.tk // 8
    chunk = '((2 * step + {0}) ^ turn) * 4'
    lines = [
        f'const int turn = {p.turned("(lane / 4)")};',
        f'const SHARED unsigned *const a = (const SHARED unsigned *)a_tile + {slot} * {rows} + '
        f'(own_row + lane / 4) * {word} + lane % 4;',
        f'const SHARED unsigned *const b = (const SHARED unsigned *)b_tile + {slot} * {columns} + '
        f'(own_column + lane / 4) * {word} + lane % 4;',
        '#pragma unroll',
        f'for (int step = 0; step < {steps}; step++) {{',
        f'    unsigned x[{tiles}][4], y[{across}][2];',
        '#pragma unroll',
        f'    for (int i = 0; i < {tiles}; i++)',
        '#pragma unroll',
        '        for (int q = 0; q < 4; q++)',
        f'            x[i][q] = a[(i * 16 + q % 2 * 8) * {word} + {chunk.format("q / 2")}];',
        '#pragma unroll',
        f'    for (int j = 0; j < {across}; j++)',
        '#pragma unroll',
        '        for (int q = 0; q < 2; q++)',
        f'            y[j][q] = b[j * {8 * word} + {chunk.format("q")}];',
        '#pragma unroll',
        f'    for (int i = 0; i < {tiles}; i++)',
        '#pragma unroll',
        f'        for (int j = 0; j < {across}; j++)',
        f'            MMA_{p.kind.upper()}(acc[i][4 * j], acc[i][4 * j + 1], acc[i][4 * j + 2], '
        f'acc[i][4 * j + 3], x[i], y[j]);',
        '}',
    ]
    return lines


def _staged(p: ChannelsPlan, store: Store) -> list[str]:
    """The block's sums into shared memory, [row][column]: lane 4 g + t has rows g and g + 8 of
    sixteen and columns 2 t and 2 t + 1 of eight.
    """
    tiles, own = p.sums
    warps = WARPGROUP // WARP
    row = f'own_row + i * 64 + THREAD / {WARP} % {warps} * 16' if p.wide else 'own_row + i * 16'
    return [
        # Parts of a split that have no piece have committed nothing where none is asked for ahead.
        *(['COPY_COMMIT;', 'COPY_WAIT(0);'] if store.joint else []),
        'BARRIER;',
        '#pragma unroll',
        f'for (int i = 0; i < {tiles}; i++)',
        '#pragma unroll',
        f'    for (int j = 0; j < {own}; j += 2) {{',
        f'        const int row = {row} + lane / 4 + j / 2 % 2 * 8;',
        '        const int column = own_column + j / 4 * 8 + lane % 4 * 2;',
        f'        STORE2(SHARED, tiles + row * {p.pitch} + column, {pieces.as_floats(p.whole)});',
        '    }',
        'CLUSTER_BARRIER;' if p.cluster else 'BARRIER;',
    ]
