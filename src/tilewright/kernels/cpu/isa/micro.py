"""Micro-kernels: an outer product of P pixels and V vectors, accumulated in registers that we own.

Goes in: a `MicroKernel`, which fixes every offset. Comes out: a C function

    static void NAME(const float *a, const float *b, float *acc, long count, long resume)

that for each of `count` iterations and each unrolled step does, for p < P and v < V,
    acc[p][v] += a[steps[i] + pixels[p]] * b[(i * V + v) * lanes ...]
and then moves `a` by `a_step` and `b` behind the vectors it has read. `resume` starts from acc
instead of zero (MOpt Sec. 6, Listing 4; fixed registers because gcc spills such tiles).

Each instruction set names its emitter (machine/isa.py). A scalar reference of the same contract is
`reference_c`.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from functools import lru_cache

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.dtypes import limits
from tilewright.ops.stored import Stored
from tilewright.registry import resolve

REACH_BYTES = (1 << 31) - 1  # of an x86 displacement; AArch64 adds any 32-bit number
WEIGHT_TYPES = {'f32': 'float', 'f16': 'unsigned short', 'bf16': 'unsigned short'}
PREFETCH_CYCLES = 60  # what a load from the second-level cache takes, with room to spare


@dataclass(frozen=True, slots=True)
class Finish:
    """What a micro-kernel of f16 makes of its sums where they are complete behind one call: results
    in f16, which leave the registers once.

    out    where each pixel's results begin, in f16 from the first one's
    bias   a number for each lane, of float32, is added
    more   a number for each result, of f16, at the same places, is added behind it
    low, high   limits that results are cut off at
    stored      how they are quantised: 8-bit numbers are stored
    """

    out: tuple[int, ...]
    bias: bool = False
    more: bool = False
    low: float | None = None
    high: float | None = None
    stored: Stored | None = None


@dataclass(frozen=True, slots=True)
class MicroKernel:
    """All offsets are in floats; `b_ahead` is how far ahead vectors are asked for, 0 for never, and
    `a_ahead` whether pixels of later iterations are: not where these lie side by side, which
    hardware sees, or are in the first cache already.

    A `turned` kernel keeps blocks of 4 pixels x 4 lanes transposed: pixels are multiplied as a
    vector by the elements of `b`, and acc[at[4c + j] + 4v ..] has four pixels of lane 4v + j. Four
    neighbours of `pixels` lie side by side then. `dtype` is that of `a` and `b`, `accumulation`
    that of the sums. Small whole numbers come in words of 32 bits, several in each, which stand
    where floats do: a step adds up their products (`Isa.dots`). So do f16, two in a word: vectors
    are of 8 then, those of `b` come for the first number of a word, then for the second, and a
    call adds in f16; its sums go into acc, or are added to what is there, in `accumulation`.

    `fetch`, where it is not 0, is how many floats of what comes next an iteration asks for, on its
    way into the second cache; the function then has a further argument that says where they lie.
    Where that `varies`, it is the most that an iteration may ask for, and the function is also told
    how many bytes lie between what two iterations ask for. Kernels of tiles ask for lines that are
    `fetch_apart` floats from each other, and for those behind them in the next iteration.

    `stored` is what vectors of `b` are in memory: those of f16 or bf16 are widened as they are
    loaded, and offsets in them count such numbers.

    With `finish` there is no `acc` nor `resume`: the function is told where results lie, and what
    is added to them.

    Kernels of tiles (tiles.py) multiply `deep` words of every pixel at once. They are neighbours of
    the loop, and vectors of a step lie `deep` iterations of it together; or with `taps` of steps.
    The function is given the shapes that the tiles of its thread have. In every step it finishes
    `behind` pixels of the tile before it, whose sums are told it as well (schemas/outer/behind.py).
    """

    isa: str
    pixels: tuple[int, ...]
    vectors: int
    steps: tuple[int, ...]
    a_step: int
    acc: tuple[int, ...]
    name: str
    b_ahead: int = 0
    a_ahead: bool = True
    turned: bool = False
    dtype: str = 'f32'
    accumulation: str = 'f32'
    fetch: int = 0
    varies: bool = False
    fetch_apart: int = 0
    stored: str = 'f32'
    finish: Finish | None = None
    deep: int = 0
    taps: bool = False
    behind: int = 0

    def __post_init__(self) -> None:
        isa = ISAS[self.isa]
        if (self.dtype, self.accumulation) not in isa.numbers:
            offered = ' and '.join(f'{a} added in {b}' for a, b in isa.numbers)
            raise ScheduleError(
                f'{self.name} multiplies {self.dtype} and adds in {self.accumulation}; {self.isa} '
                f'offers {offered}'
            )
        if self.turned and not can_turn(self.isa, self.pixels):
            raise ScheduleError(
                f'{self.name}: pixels at {self.pixels} are no runs of four, which blocks are '
                f'transposed of'
            )
        if isa.rows:
            return  # which tiles.py counts
        need = registers_needed(len(self.pixels), self.vectors, isa.weight_registers)
        have = isa.registers
        if need > have:
            raise ScheduleError(
                f'a micro-kernel of {len(self.pixels)} x {self.vectors} vectors needs {need} '
                f'registers; {self.isa} has {have}: choose a smaller register tile'
            )

    @property
    def lanes(self) -> int:
        return ISAS[self.isa].lanes


def prefetches(kernel: MicroKernel) -> list[int]:
    """Offsets in floats of the lines of `a` that a later iteration will read.

    Iterations walk over channels, whose rows lie far apart: hardware sees no stream in them. Lines
    of the iteration that is at least PREFETCH_CYCLES ahead are asked for now, unless it lies beyond
    what an instruction can address (in very large images).
    """
    if not kernel.a_step or not kernel.a_ahead:
        return []
    isa = ISAS[kernel.isa]
    fmas = len(kernel.steps) * len(kernel.pixels) * kernel.vectors
    ahead = math.ceil(PREFETCH_CYCLES * isa.fma_per_cycle / fmas)
    touched = sorted({step + pixel for step in kernel.steps for pixel in kernel.pixels})
    wanted = []
    for place, following in zip(touched, [*touched[1:], math.inf], strict=True):
        # The first of every line's worth, and the last of every row.
        if not wanted or place - wanted[-1] >= LINE_FLOATS or following - place >= LINE_FLOATS:
            wanted.append(place)
    places = [ahead * kernel.a_step + place for place in wanted]
    return [place for place in places if 4 * place <= REACH_BYTES]


def vector_prefetches(kernel: MicroKernel, times: int = 1) -> list[int]:
    """Offsets in floats from `b` of the lines `b_ahead` behind those of so many iterations."""
    if not kernel.b_ahead:
        return []
    read = times * len(kernel.steps) * kernel.vectors * kernel.lanes
    return list(range(kernel.b_ahead, kernel.b_ahead + read, LINE_FLOATS))


BLOCK = 4  # pixels and lanes of a transposed block


def can_turn(isa: str, pixels: tuple[int, ...]) -> bool:
    """Whether pixels are runs of four, on an instruction set with vectors of four."""
    runs = [pixels[i : i + BLOCK] for i in range(0, len(pixels), BLOCK)]
    return ISAS[isa].turns and all(run == tuple(range(run[0], run[0] + BLOCK)) for run in runs)


def registers_needed(pixels: int, vectors: int, each: int = 1) -> int:
    """Accumulators, the vectors of one step, `each` of so many registers, and one register for what
    is broadcast.
    """
    return (pixels + each) * vectors + 1


def rows_fit(isa: Isa, rows: int, vectors: int) -> bool:
    """Whether registers hold four numbers of each row beside the sums, and two vectors: then rows
    are walked along where they lie, on an instruction set that multiplies by lanes.
    """
    return isa.by_lane and rows * vectors + rows + 2 <= isa.registers


def in_place(isa: Isa, rows: int, vectors: int) -> bool:
    """Whether rows of a matrix product are read where they lie at no more cost than from a copy:
    each number is broadcast on its own, or registers hold four of each row.
    """
    return not isa.by_lane or rows_fit(isa, rows, vectors)


def along_rows(kernel: MicroKernel) -> bool:
    """Whether iterations walk along rows, four of them with one load of each row."""
    apart = sorted(kernel.pixels)
    near = any(b - a < BLOCK for a, b in itertools.pairwise(apart))
    floats = kernel.dtype == kernel.accumulation == kernel.stored == 'f32'
    plain = kernel.steps == (0,) and kernel.a_step == 1 and not kernel.turned and not near
    return floats and plain and rows_fit(ISAS[kernel.isa], len(apart), kernel.vectors)


NAME = re.compile(r'^mk_(?P<isa>[a-z0-9]+)_p(?P<pixels>\d+(?:x\d+)*)_v(?P<vectors>\d+)$')


def micro_name(isa: str, extents: tuple[int, ...], vectors: int) -> str:
    """The grammar of kernel names: mk_<isa>_p<extents of the pixel tile>_v<vectors>."""
    return f'mk_{isa}_p{"x".join(map(str, extents))}_v{vectors}'


def parse_name(name: str) -> tuple[str, tuple[int, ...], int]:
    """The inverse of `micro_name`."""
    match = NAME.match(name)
    if not match:
        raise ScheduleError(f'{name!r} is not a micro-kernel name such as mk_neon_p2x7_v2')
    extents = tuple(int(e) for e in match['pixels'].split('x'))
    return match['isa'], extents, int(match['vectors'])


def emit(kernel: MicroKernel) -> str:
    """[MicroKernel] -> [C function]"""
    return _emitted(ISAS[kernel.isa], kernel)


@lru_cache(maxsize=1 << 12)
def _emitted(isa: Isa, kernel: MicroKernel) -> str:
    """Kept, since kernels of other sizes have most micro-kernels again."""
    return resolve(isa.emit)(kernel)


def function(kernel: MicroKernel, body: list[str]) -> str:
    """The C function around an emitter's body."""
    if kernel.finish:
        stored = kernel.finish.stored
        result = {'u8': 'uint8_t', 'i8': 'int8_t'}[stored.dtype] if stored else '_Float16'
        head = (
            f'static __attribute__((noinline)) void {kernel.name}(const float *a, const float *b, '
            f'{result} *out, long count, const float *bias, const _Float16 *more)'
        )
        return '\n'.join([head, '{', *(f'    {line}' for line in body), '}', ''])
    weight = WEIGHT_TYPES[kernel.stored]
    more = f', const {weight} *next' if kernel.fetch else ''
    more += ', long stride' if kernel.varies else ''
    more += ', const void **shape' if kernel.deep else ''
    more += ', pending *f' if kernel.behind else ''
    head = (
        f'static __attribute__((noinline)) void {kernel.name}(const float *a, const {weight} *b, '
        f'float *acc, long count, long resume{more})'
    )
    return '\n'.join([head, '{', *(f'    {line}' for line in body), '}', ''])


def asm_block(lines: list[str], operands: str, inputs: str, clobbers: list[str]) -> list[str]:
    """One `asm volatile` statement."""
    body = ['__asm__ volatile(']
    body += [f'    "{line}\\n\\t"' for line in lines]
    quoted = ', '.join(f'"{c}"' for c in clobbers)
    return [*body, f'    : {operands}', f'    : {inputs}', f'    : {quoted});']


def _c_types(kernel: MicroKernel) -> tuple[str, str, str, int]:
    """What words of `a` and `b` hold, what sums are in C, and how many products a word has."""
    dot = ISAS[kernel.isa].dot(kernel.dtype)
    if dot is None:
        return 'const float', 'const float', 'float', 1
    bits = 32 // dot.products
    sign = 'unsigned ' if kernel.dtype[0] == 'u' else 'signed '
    kind = {8: 'char', 16: 'short', 32: 'int'}[bits]
    return f'const {sign}{kind}', f'const signed {kind}', 'int', dot.products


def reference_c(kernel: MicroKernel) -> str:
    """The scalar definition of what an emitted micro-kernel computes."""
    width = kernel.lanes * kernel.vectors
    pixels, steps = ', '.join(map(str, kernel.pixels)), ', '.join(map(str, kernel.steps))
    acc = ', '.join(map(str, kernel.acc))
    if kernel.dtype == 'f16':
        return _half_reference_c(kernel)
    of_a, of_b, total, products = _c_types(kernel)
    place = 'at[p] + v'
    if kernel.turned:
        place = 'at[p / 4 * 4 + v % 4] + v / 4 * 4 + p % 4'
    return function(
        kernel,
        [
            f'static const long pixels[] = {{{pixels}}}, steps[] = {{{steps}}}, at[] = {{{acc}}};',
            f'for (long p = 0; p < {len(kernel.pixels)}; p++)',
            f'    for (long v = 0; v < {width}; v++) {{',
            f'        {total} sum = resume ? (({total} *)acc)[{place}] : 0;',
            '        for (long i = 0; i < count; i++)',
            f'            for (long s = 0; s < {len(kernel.steps)}; s++)',
            f'                for (long j = 0; j < {products}; j++)',
            f'                    sum += (({of_a} *)(a + i * {kernel.a_step} + steps[s] + '
            'pixels[p]))[j] *',
            f'                           (({of_b} *)(b + (i * {len(kernel.steps)} + s) * {width} + '
            'v))[j];',
            f'        (({total} *)acc)[{place}] = sum;',
            '    }',
        ],
    )


def _stored_c(stored: Stored) -> list[str]:
    """A number of f16 quantised: rounded once, to a whole number (kernels/cpu/half_epilogue.py)."""
    low, high = limits(stored.dtype)
    return [
        f'double made = __builtin_rint((double)sum * {stored.inverse!r} + {stored.zero});',
        f'made = made < {low} ? {low} : made > {high} ? {high} : made;',
        'out[at[p] + v] = made;',
    ]


def _half_reference_c(kernel: MicroKernel) -> str:
    """The same of f16: each product is added in f16, rounded once, the sum of a call in float32."""
    width = kernel.lanes * kernel.vectors
    pixels, steps = ', '.join(map(str, kernel.pixels)), ', '.join(map(str, kernel.steps))
    finish = kernel.finish
    acc = ', '.join(map(str, finish.out if finish else kernel.acc))
    kind = '_Float16' if kernel.accumulation == 'f16' else 'float'
    end = [
        f'{kind} *to = ({kind} *)(acc + at[p]) + v;',
        f'*to = (resume ? *to : ({kind})0) + ({kind})sum;',
    ]
    if finish:
        end = ['sum = (_Float16)((float)sum + (float)(_Float16)bias[v]);'] if finish.bias else []
        if finish.more:
            end.append('sum = (_Float16)((float)sum + (float)more[at[p] + v]);')
        if finish.low is not None:
            end.append(f'sum = sum < (_Float16){finish.low} ? (_Float16){finish.low} : sum;')
        if finish.high is not None:
            end.append(f'sum = sum > (_Float16){finish.high} ? (_Float16){finish.high} : sum;')
        end += _stored_c(finish.stored) if finish.stored else ['out[at[p] + v] = sum;']
    return function(
        kernel,
        [
            f'static const long pixels[] = {{{pixels}}}, steps[] = {{{steps}}}, at[] = {{{acc}}};',
            f'for (long p = 0; p < {len(kernel.pixels)}; p++)',
            f'    for (long v = 0; v < {width}; v++) {{',
            '        _Float16 sum = 0;',
            '        for (long i = 0; i < count; i++)',
            f'            for (long s = 0; s < {len(kernel.steps)}; s++)',
            '                for (long j = 0; j < 2; j++) {',
            f'                    const float *from = a + i * {kernel.a_step} + steps[s];',
            f'                    const float *by = b + (i * {len(kernel.steps)} + s) * {width};',
            '                    const double x = ((const _Float16 *)(from + pixels[p]))[j];',
            f'                    const double w = ((const _Float16 *)by)[j * {width} + v];',
            '                    sum = (_Float16)(x * w + (double)sum);',
            '                }',
            *(f'        {line}' for line in end),
            '    }',
        ],
    )
