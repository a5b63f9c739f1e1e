"""Pieces that kernel schemas are assembled from, each a function that returns lines of CUCL.

decode        a flat number into iterators, outermost first
dealt         work that threads take in turns
element       an access as a reference to an argument
guards        the bounds that an access may violate, as C tests
epilogue_lines, epilogue_arrays   what the pointwise stages behind the main one read at a store
aligned       whether neighbours may be stored at once
result, stored   where a sum goes, and storing neighbours at once
cleared, joined   a thread's sums: set to zero; added up over the blocks that share a tile
last_block    go on in the block that comes last to a tile
pipelined, asked, slot   the loop over pieces of both operands, copied ahead in shared memory
cut, multiplied   operands of matrix instructions in fp32 precision, and their three products
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewright.kernels.cpu.pointwise import Epilogue, access_strides
from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu.language import Array
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Affine


def decode(flat: str, sizes: Sequence[tuple[str, int]], prefix: str = '') -> list[str]:
    """Declare an iterator for each (name, size), innermost last, from the number `flat`."""
    lines, step = [], 1
    for position, (name, size) in enumerate(reversed(sizes)):
        text = flat if step == 1 else f'{flat} / {step}'
        if size == 1:
            text = '0'
        elif position < len(sizes) - 1:
            text = f'({text}) % {size}' if step > 1 else f'{text} % {size}'
        lines.append(f'const int {prefix}{name} = {text};')
        step *= size
    return lines[::-1]


def dealt(name: str, first: str, total: int, step: int, body: Sequence[str]) -> list[str]:
    """Items first, first + step, ... below `total`, where `first` is below `step`: unrolled."""
    return [
        '#pragma unroll',
        f'EACH_TURN({name}, {first}, {total}, {step}) {{',
        *(f'    {line}' for line in body),
        '}',
    ]


def aligned(group: Group, access: Access, along: str, run: int) -> bool:
    """Whether `run` neighbours along a dimension, from a multiple of `run` on, begin where a store
    of that many may: side by side, and every other dimension and the offset a multiple away.
    """
    strides, const = access_strides(group, access)
    others = [stride for name, stride in strides.items() if name != along]
    return strides[along] == 1 and not any(n % run for n in (const, *others))


def index(expression: Affine, names: Mapping[str, str] | None = None) -> str:
    """An affine index in C; iterators may go by other names."""
    known = names or {}
    return total(
        [
            *(scaled(known.get(n, n), c) for n, c in expression.terms),
            str(expression.const) if expression.const else '',
        ]
    )


def element(group: Group, access: Access) -> str:
    """An access as a reference to its argument: `@In[n=n, c=c, h=2 * h + r + -1, w=...]`."""
    return _reference(group.tensor(access.tensor), access)


def result(group: Group) -> str:
    """The element of the result that the main stage's sum at the current iterators becomes."""
    return _reference(group.output, group.main.write)


def _reference(tensor: Tensor, access: Access) -> str:
    places = zip(tensor.dims, access.index, strict=True)
    return f'@{tensor.name}[{", ".join(f"{d}={index(e)}" for d, e in places)}]'


def leaves(expression: Affine, extent: int, sizes: Mapping[str, int]) -> bool:
    """Whether an index may leave its dimension."""
    return expression.const < 0 or expression.const + expression.extent(sizes) > extent


def guards(group: Group, access: Access, sizes: Mapping[str, int]) -> list[str]:
    """C tests that hold where an access is inside its tensor; none where it always is."""
    shape = group.tensor(access.tensor).shape
    return [
        f'(unsigned)({index(e)}) < {extent}u'
        for e, extent in zip(access.index, shape, strict=True)
        if leaves(e, extent, sizes)
    ]


def argument(tensor: Tensor, written: bool = False) -> Array:
    return Array(tensor.name, tensor.dims, tensor.shape, tensor.dtype, written=written)


def epilogue_lines(epilogue: Epilogue) -> list[str]:
    """Where each operand of the epilogue is read, over the main stage's iterators."""
    return [
        f'const int {item.name}_at = '
        f'{total([*(scaled(d, s) for d, s in item.strides), str(item.const)])};'
        for item in epilogue.operands
    ]


def epilogue_arrays(group: Group, epilogue: Epilogue) -> list[Array]:
    """Arguments for the operands, each under the operand's own name."""
    return [
        Array(item.name, tensor.dims, tensor.shape, tensor.dtype)
        for item in epilogue.operands
        for tensor in (group.tensor(item.tensor),)
    ]


def cleared(columns: int, rows: int, name: str = 'acc') -> list[str]:
    """Set all sums of a thread to zero."""
    return [
        '#pragma unroll',
        f'for (int i = 0; i < {columns}; i++)',
        '#pragma unroll',
        f'    for (int j = 0; j < {rows}; j++)',
        f'        {name}[i][j] = 0.0f;',
    ]


def as_floats(whole: bool) -> str:
    """Two neighbouring sums of a thread as they are moved; whole numbers by their bits."""
    if whole:
        return 'BITS_FLOAT((unsigned)acc[i][j]), BITS_FLOAT((unsigned)acc[i][j + 1])'
    return 'acc[i][j], acc[i][j + 1]'


def joined(
    columns: int, rows: int, threads: int, tiles: int, splits: int, whole: bool = False
) -> list[str]:
    """Leave this block's sums in `partial`; go on in the block that comes last, with all of them.

    Parts are added in a fixed order; sums that are `whole` numbers are moved as the bits of floats.
    The counter of the tile is set back, so that nothing has to be zeroed between calls; shared
    memory must have an array `arrived`.
    """
    tile = columns * rows * threads
    loops = [
        '#pragma unroll',
        f'for (int i = 0; i < {columns}; i++)',
        '#pragma unroll',
        f'    for (int j = 0; j < {rows}; j += 2)',
    ]
    place = f'((i * {rows} + j) / 2 * {threads} + THREAD) * 2'
    parts = [f'from[{place}]', f'from[{place} + 1]']
    parts = [f'(int)FLOAT_BITS({part})' for part in parts] if whole else parts
    return [
        f'GLOBAL float *const mine = @partial + (BLOCK_Z * {tiles} + tile) * {tile};',
        *loops,
        f'        STORE2(GLOBAL, mine + {place}, {as_floats(whole)});',
        *last_block(splits),
        *cleared(columns, rows),
        f'for (int part = 0; part < {splits}; part++) {{',
        f'    const GLOBAL float *const from = @partial + (part * {tiles} + tile) * {tile};',
        *(f'    {line}' for line in loops),
        '        {',
        f'            acc[i][j] += {parts[0]};',
        f'            acc[i][j + 1] += {parts[1]};',
        '        }',
        '}',
    ]


def last_block(splits: int) -> list[str]:
    """Continue only in the block that comes last to a tile; it sets the counter back."""
    return [
        'DEVICE_FENCE;',
        'BARRIER;',
        'if (THREAD == 0)',
        '    arrived[0] = (float)ATOMIC_COUNT(@counter + tile);',
        'BARRIER;',
        f'if (arrived[0] != {float(splits - 1)!r}f)',
        '    return;',
        'DEVICE_FENCE;',
        'if (THREAD == 0)',
        '    @counter[tile=tile] = 0;',
    ]


def indented(lines: Iterable[str], by: int = 1) -> list[str]:
    return [f'{"    " * by}{line}' for line in lines]


def pipelined(
    ahead: int,
    arrived: Sequence[str],
    copies: Sequence[str],
    alone: Sequence[str],
    multiplied: Sequence[str],
    behind: Sequence[str] = (),
) -> list[str]:
    """The loop over pieces: copy the one that is needed `ahead`, multiply the one that is here.

    arrived   waits for the piece that is multiplied now; `alone`, where none is ahead: for the copy
              of this very turn
    behind    at the end of a turn
    """
    return [
        f'for (int now = begin - {ahead}; now < end; now++) {{',
        *indented(arrived),
        *indented(asked(ahead, copies)),
        *indented([] if ahead else alone),
        '    if (now >= begin) {',
        *indented(multiplied, 2),
        '    }',
        *indented(behind),
        '}',
    ]


def asked(ahead: int, copies: Sequence[str]) -> list[str]:
    """Ask for the piece that is `ahead` of this one."""
    return [
        f'const int next = now + {ahead};',
        'if (next < end) {',
        *indented(copies),
        '}',
        'COPY_COMMIT;',
    ]


def slot(piece: str, stages: int) -> str:
    """Which buffer of shared memory a piece lies in."""
    return f'{piece} % {stages}' if stages > 1 else '0'


def stored(target: str, values: Sequence[str]) -> str:
    """Store one, two or four neighbours from `target` on."""
    if len(values) == 1:
        return f'{target} = {values[0]};'
    if len(values) == 2:
        return f'STORE2(GLOBAL, &{target}, {", ".join(values)});'
    return f'STORE4(GLOBAL, &{target}, FLOAT4({", ".join(values)}));'


def cut(name: str, place: str, value: str) -> list[str]:
    """A float into its upper 11 bits of fraction and the rest, both exact: high_x, low_x."""
    return [
        '{',
        f'    const float whole = {value};',
        '    const unsigned high = FLOAT_BITS(whole) & 0xffffe000u;',
        f'    high_{name}[{place}] = high;',
        f'    low_{name}[{place}] = FLOAT_BITS(whole - BITS_FLOAT(high));',
        '}',
    ]


def fragments(
    depth: int, down: int, across: int, x: Callable[[int], str], y: Callable[[int], str]
) -> list[str]:
    """The head of the loop over a piece's depth, and what a lane holds of both operands there, cut
    into parts: `x(q)` of column block j, `y(q)` of row block i, by the number of a register.
    """
    lines = [
        '#pragma unroll',
        f'for (int e = 0; e < {depth}; e += 8) {{',
        f'    unsigned high_x[{across}][2], low_x[{across}][2];',
        f'    unsigned high_y[{down}][4], low_y[{down}][4];',
        '#pragma unroll',
        f'    for (int j = 0; j < {across}; j++) {{',
    ]
    for q in range(2):
        lines += cut('x', f'j][{q}', x(q))
    lines += ['    }', '#pragma unroll', f'    for (int i = 0; i < {down}; i++) {{']
    for q in range(4):
        lines += cut('y', f'i][{q}', y(q))
    return [*lines, '    }']


PRODUCTS = (('low_y', 'high_x'), ('high_y', 'low_x'), ('high_y', 'high_x'))


def multiplied(
    down: int, across: int, names: Sequence[str] = ('acc', 'acc', 'acc'), fresh: bool = False
) -> list[str]:  # fmt: skip
    """acc += y x for `down` x `across` tiles of 16 columns and 8 rows, smallest products first;
    `names` of the sums that each of the three products of parts goes to. With `fresh` matrix units
    begin at zero, and what they make of eight depths is added to the sums in fp32.
    """
    if fresh:
        return _multiplied_anew(down, across)
    lines = []
    for (y, x), to in zip(PRODUCTS, names, strict=True):
        sums = ', '.join(f'{to}[2 * i{a}][2 * j{b}]' for a in ('', ' + 1') for b in ('', ' + 1'))
        lines += [
            '#pragma unroll',
            f'for (int i = 0; i < {down}; i++)',
            '#pragma unroll',
            f'    for (int j = 0; j < {across}; j++)',
            f'        MMA_TF32({sums}, {y}[i], {x}[j]);',
        ]
    return lines


def _multiplied_anew(down: int, across: int) -> list[str]:
    """Sums of one row of tiles at a time, so that few registers hold what is not added yet."""
    each = ['#pragma unroll', f'    for (int j = 0; j < {across}; j++)']
    lines = [
        '#pragma unroll',
        f'for (int i = 0; i < {down}; i++) {{',
        f'    float fresh[{across}][4];',
        *each,
        '        fresh[j][0] = fresh[j][1] = fresh[j][2] = fresh[j][3] = 0.0f;',
    ]
    sums = ', '.join(f'fresh[j][{q}]' for q in range(4))
    for y, x in PRODUCTS:
        lines += [*each, f'        MMA_TF32({sums}, {y}[i], {x}[j]);']
    lines += [each[0], f'{each[1]} {{']
    for q in range(4):
        lines.append(f'        acc[2 * i + {q // 2}][2 * j + {q % 2}] += fresh[j][{q}];')
    return [*lines, '    }', '}']


def added(columns: int, rows: int) -> list[str]:
    """acc += fresh, which begins at zero again."""
    return [
        '#pragma unroll',
        f'for (int i = 0; i < {columns}; i++)',
        '#pragma unroll',
        f'    for (int j = 0; j < {rows}; j++) {{',
        '        acc[i][j] += fresh[i][j];',
        '        fresh[i][j] = 0.0f;',
        '    }',
    ]
