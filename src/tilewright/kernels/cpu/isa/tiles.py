"""Micro-kernels of tiles (AMX): registers of 16 rows of 16 words, an instruction for 16 x 16 sums.

Goes in: a `MicroKernel` whose row of the table has `rows`. Comes out: the C function, and what the
functions of a file share (`prologue`). A kernel of M tiles of pixels and V of lanes keeps M x V
tiles of sums; for `deep` words of every pixel it loads V tiles of weights and M of the image:

    tileloadd b, stride, tmm4 ; tileloadd a, stride, tmm6 ; tdpbusd tmm4, tmm6, tmm0 ; ...

A tile of the image has a pixel in every row, wherever they lie, as long as they are evenly spaced:
images are read in place or from copies whose channels are innermost. A tile of weights is `deep`
rows of words of 16 channels, which is how panels lie. So a file needs no transposition at all.

Instructions are written as macros. On x86-64 they are those of the processor; in portable C they
are their definition (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2), which
runs everywhere, stops where shapes do not agree, as a processor would, and is what tests use.

One of the eight registers stays free. Registers are renamed, and two hardware threads of a core
share what they are renamed to: on a core whose other thread was busy, layers with all eight in use
took 1.4 times as long as with seven, and elsewhere as long.

Tiles have shapes, which belong to the thread: a function loads its own where another's are loaded.
Linux hands out the state of tiles to processes that ask for it (`tiles_begin`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.contraction import Contraction
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.machine.isa import ISAS, TILE_ROWS, Isa

REGISTERS = 8
LEAST_ROWS = 8  # what multiplying a tile of fewer rows takes
AHEAD_BYTES = 8192  # how far ahead weights are asked for: they are used once in a pass over them
MOST_SUMS = 4  # tiles of sums; the others hold what is multiplied
MACROS = (
    'TILE_CONFIG', 'TILE_ZERO', 'TILE_LOAD', 'TILE_STORE', 'TILE_DOT', 'TILE_AHEAD', 'TILE_NEXT',
)  # fmt: skip
DOTS = {'u8': 'tdpbusd', 'i8': 'tdpbssd', 'bf16': 'tdpbf16ps'}


@dataclass(frozen=True, slots=True)
class Piece:
    """A tile of pixels: `rows` of them from the place `first`, evenly spaced in `a` and `acc`."""

    first: int
    rows: int
    step: int
    apart: int


def pieces(pixels: Sequence[int], acc: Sequence[int]) -> list[Piece]:
    """Pixels in as few tiles as there can be, none much smaller than the others of its run."""
    found: list[Piece] = []
    first = 0
    while first < len(pixels):
        last = first + 1
        step = apart = TILE_ROWS
        if last < len(pixels):
            step, apart = pixels[last] - pixels[first], acc[last] - acc[first]
        while last < len(pixels) and (
            pixels[last] - pixels[last - 1] == step and acc[last] - acc[last - 1] == apart
        ):
            last += 1
        left, tiles = last - first, -(-(last - first) // TILE_ROWS)
        for number in range(tiles):
            rows = -(-left // (tiles - number))
            found.append(Piece(first, rows, step, apart))
            first, left = first + rows, left - rows
    return found


def row_tiles(extents: Sequence[int]) -> int:
    """The most tiles that a register tile of these pixels takes."""
    return math.prod(extents[:-1]) * -(-extents[-1] // TILE_ROWS) if extents else 1


def fits(tiles: int, vectors: int) -> bool:
    """Whether registers hold so many tiles of pixels times so many of lanes."""
    return tiles * vectors <= MOST_SUMS


def depth(contraction: Contraction) -> tuple[int, bool]:
    """(words that a tile multiplies at once, whether they are points of a window).

    Words of the loop, as many as divide it, so that nothing is read beyond a pixel. Where a pixel
    is one word, neighbours along a row of the window lie side by side and are taken instead.
    """
    sizes = contraction.stage.sizes
    size = sizes[contraction.loop] if contraction.loop else 1
    if size > 1 or not contraction.unrolled:
        return _divisor(size), False
    inner = contraction.unrolled[-1]
    steps = [e.coefficient(inner) for e in contraction.a.index if inner in e.names]
    return (_divisor(sizes[inner]), True) if steps == [1] else (1, False)


def _divisor(size: int) -> int:
    return next(d for d in range(min(size, TILE_ROWS), 0, -1) if size % d == 0)


def tile_step_cycles(
    isa: Isa, extents: Sequence[int], vectors: int, deep: int, line_cycles: float
) -> float:
    """Cycles of one word of every pixel: rows are multiplied one by one, whatever they hold, but
    no tile in less than `LEAST_ROWS`, and rows of all tiles are loaded, those of weights in
    `line_cycles` each.
    """
    tiles = row_tiles(extents)
    pixels = math.prod(extents)
    loads = pixels / isa.loads_per_cycle + vectors * deep * line_cycles
    return max(max(pixels, LEAST_ROWS * tiles) * vectors, loads) / deep


@dataclass(frozen=True, slots=True)
class Shape:
    """Which registers hold what: those of weights and of the image by number.

    Tiles of the image take turns in one register, which the processor renames. A second one gains
    nothing, and fewer in use are faster where two hardware threads share what they are renamed to.
    """

    found: list[Piece]
    weights: list[int]
    image: list[int]

    @classmethod
    def of(cls, kernel: micro.MicroKernel) -> Shape:
        found = pieces(kernel.pixels, kernel.acc)
        sums = len(found) * kernel.vectors
        sizes = sorted({piece.rows for piece in found})
        room = REGISTERS - sums
        if not fits(len(found), kernel.vectors) or room < 1 + len(sizes):
            raise ScheduleError(
                f'{kernel.name}: {len(found)} x {kernel.vectors} tiles of sums; {kernel.isa} '
                f'holds {MOST_SUMS}: choose a smaller register tile'
            )
        weights = list(range(sums, sums + min(kernel.vectors, room - len(sizes))))
        own = {rows: sums + len(weights) + i for i, rows in enumerate(sizes)}
        image = [own[piece.rows] for piece in found]
        return cls(found, weights, image)

    def config(self, kernel: micro.MicroKernel) -> list[int]:
        """The 64 bytes that say which rows and columns every tile has."""
        rows, bytes_ = [0] * 16, [0] * 16
        for m, v in itertools.product(range(len(self.found)), range(kernel.vectors)):
            number = m * kernel.vectors + v
            rows[number], bytes_[number] = self.found[m].rows, 4 * kernel.lanes
        for number in self.weights:
            rows[number], bytes_[number] = kernel.deep, 4 * kernel.lanes
        for piece, number in zip(self.found, self.image, strict=True):
            rows[number], bytes_[number] = piece.rows, 4 * kernel.deep
        wide = [byte for size in bytes_ for byte in (size & 255, size >> 8)]
        return [1, *[0] * 15, *wide, *rows]


def emit(kernel: micro.MicroKernel) -> str:
    """[MicroKernel] -> [C function]"""
    _check(kernel)
    shape, vectors, width = Shape.of(kernel), kernel.vectors, kernel.vectors * kernel.lanes
    config = ', '.join(map(str, shape.config(kernel)))
    body = [
        f'static const unsigned char own[64] __attribute__((aligned(64))) = {{{config}}};',
        'if (*shape != own) {',
        '    TILE_CONFIG(own);',
        '    *shape = own;',
        '}',
    ]
    sums = [
        (m * vectors + v, f'acc + {kernel.acc[piece.first] + v * kernel.lanes}', 4 * piece.apart)
        for m, piece in enumerate(shape.found)
        for v in range(vectors)
    ]
    body.append('if (resume) {')
    body += [f'    TILE_LOAD({number}, {place}, {step});' for number, place, step in sums]
    body.append('} else {')
    body += [f'    TILE_ZERO({number});' for number, _, _ in sums]
    body.append('}')
    steps = kernel.steps[:: kernel.deep] if kernel.taps else kernel.steps
    body.append(f'static const long steps[] = {{{", ".join(map(str, steps))}}};')
    step = kernel.a_step if kernel.taps else kernel.deep
    body.append(f'for (long i = 0; i < count; i += {1 if kernel.taps else kernel.deep}) {{')
    body.append(f'    for (long s = 0; s < {len(steps)}; s++) {{')
    body.append('        const float *from = a + steps[s];')
    inner, loaded = [], -1
    turns = len(shape.weights) >= vectors
    order = itertools.product(range(len(shape.found)), range(vectors))
    if turns:
        inner += [
            f'TILE_LOAD({shape.weights[v]}, b + {v * kernel.lanes}, {4 * width});'
            for v in range(vectors)
        ]
    for m, v in order:
        piece, image = shape.found[m], shape.image[m]
        weights = shape.weights[v % len(shape.weights)]
        if loaded != m:
            place = f'from + {kernel.pixels[piece.first]}'
            inner.append(f'TILE_LOAD({image}, {place}, {4 * piece.step});')
            loaded = m
        if not turns:
            inner.append(f'TILE_LOAD({weights}, b + {v * kernel.lanes}, {4 * width});')
        inner.append(f'TILE_DOT({m * vectors + v}, {image}, {weights});')
    if kernel.fetch:
        lines = kernel.fetch // LINE_FLOATS
        body.append(f'        TILE_NEXT(next, {lines}, {4 * kernel.fetch_apart});')
        body.append(f'        next += {LINE_FLOATS};')
    elif kernel.b_ahead:
        body.append(f'        TILE_AHEAD(b, {4 * kernel.deep * width});')
    body += [f'        {line}' for line in inner]
    if kernel.behind:
        body.append(f'        finish(f, {kernel.behind});')
    body.append(f'        b += {kernel.deep * width};')
    body += ['    }', f'    a += {step};', '}']
    if kernel.behind:
        body.append('finish(f, f->left);')
    body += [f'TILE_STORE({number}, {place}, {step});' for number, place, step in sums]
    return micro.function(kernel, body)


def _check(kernel: micro.MicroKernel) -> None:
    """ScheduleError where words that are multiplied at once do not lie side by side."""
    deep = kernel.deep
    if not 1 <= deep <= TILE_ROWS:
        raise ScheduleError(f'{kernel.name}: {deep} words in a tile; 1 to {TILE_ROWS} have room')
    apart = kernel.a_step != 1 and deep > 1
    if kernel.taps:
        runs = [kernel.steps[i : i + deep] for i in range(0, len(kernel.steps), deep)]
        apart = any(run != tuple(range(run[0], run[0] + deep)) for run in runs)
    if apart:
        raise ScheduleError(f'{kernel.name}: {deep} words of a pixel do not lie side by side')


def prologue(isa: str, dtype: str) -> str:
    """Instructions on tiles as macros, and what a thread does before the first and behind the last:
    `tiles_begin`, `tiles_end`.
    """
    text = _PLAIN.replace('@products@', _PRODUCTS[dtype])
    if ISAS[isa].arch == 'x86_64':
        text = _X86.replace('@dot@', DOTS[dtype]).replace('@ahead@', str(AHEAD_BYTES))
    # Kernels of other numbers may stand in the same file, in exported C.
    return ''.join(f'#undef {name}\n' for name in MACROS) + text


_X86 = """\
#define TILE_CONFIG(from) \\
    __asm__ volatile("ldtilecfg %0" : : "m"(*(const unsigned char (*)[64])(from)))
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, from, step) \\
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(from), "r"((long)(step)) : "memory")
#define TILE_STORE(t, to, step) \\
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(to), "r"((long)(step)) : "memory")
#define TILE_DOT(c, a, b) __asm__ volatile("@dot@ %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

#define TILE_NEXT(from, lines, apart) \\
    for (long j = 0; j < (lines); j++) \\
    __builtin_prefetch((const char *)(from) + j * (apart), 0, 2)
#define TILE_AHEAD(from, bytes) TILE_NEXT((const char *)(from) + @ahead@, (bytes) / 64, 64)

/* arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA): given to a process once and for all. */
static void tiles_begin(void)
{
    static int asked;
    if (__atomic_load_n(&asked, __ATOMIC_RELAXED))
        return;
    long answer = 158;
    __asm__ volatile("syscall" : "+a"(answer) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    __atomic_store_n(&asked, 1, __ATOMIC_RELAXED);
}

static inline void tiles_end(void)
{
    __asm__ volatile("tilerelease" ::);
}
"""

_PLAIN = """\
#define TILE_CONFIG(from) tile_config(from)
#define TILE_ZERO(t) memset(tile_state[t].data, 0, sizeof tile_state[t].data)
#define TILE_LOAD(t, from, step) tile_load(&tile_state[t], from, step)
#define TILE_STORE(t, to, step) tile_store(&tile_state[t], to, step)
#define TILE_NEXT(from, lines, apart) (void)(from)
#define TILE_AHEAD(from, bytes)
#define TILE_DOT(c, a, b) tile_dot(&tile_state[c], &tile_state[a], &tile_state[b])

typedef struct {
    long rows, bytes;
    unsigned char data[16][64];
} tile;
static __thread tile tile_state[8];

static void tile_config(const unsigned char *from)
{
    if (from[0] != 1)
        __builtin_trap();
    for (long t = 0; t < 8; t++) {
        tile_state[t].rows = from[48 + t];
        tile_state[t].bytes = from[16 + 2 * t] + 256 * from[17 + 2 * t];
        if (tile_state[t].rows > 16 || tile_state[t].bytes > 64)
            __builtin_trap();
        TILE_ZERO(t);
    }
}

static void tile_load(tile *t, const void *from, long step)
{
    if (!t->rows || !t->bytes)
        __builtin_trap();
    memset(t->data, 0, sizeof t->data);
    for (long r = 0; r < t->rows; r++)
        memcpy(t->data[r], (const char *)from + r * step, t->bytes);
}

static void tile_store(const tile *t, void *to, long step)
{
    if (!t->rows || !t->bytes)
        __builtin_trap();
    for (long r = 0; r < t->rows; r++)
        memcpy((char *)to + r * step, t->data[r], t->bytes);
}

static void tile_dot(tile *c, const tile *a, const tile *b)
{
    if (a->rows != c->rows || b->bytes != c->bytes || a->bytes != 4 * b->rows || !a->bytes)
        __builtin_trap();
    for (long m = 0; m < c->rows; m++)
        for (long k = 0; k < b->rows; k++)
            for (long n = 0; n < c->bytes / 4; n++) {
                const unsigned char *x = a->data[m] + 4 * k, *y = b->data[k] + 4 * n;
                unsigned char *to = c->data[m] + 4 * n;
@products@
            }
}

static void tiles_begin(void)
{
}

static inline void tiles_end(void)
{
    memset(tile_state, 0, sizeof tile_state);
}
"""

_BYTES = """\
                int sum;
                memcpy(&sum, to, 4);
                for (long j = 0; j < 4; j++)
                    sum += ({kind} char)x[j] * (signed char)y[j];
                memcpy(to, &sum, 4);"""

# Subnormal numbers are zeros, and products are added one behind the other, rounded once each.
_PRODUCTS = {
    'u8': _BYTES.format(kind='unsigned'),
    'i8': _BYTES.format(kind='signed'),
    'bf16': """\
                float sum;
                memcpy(&sum, to, 4);
                for (long j = 0; j < 2; j++) {
                    const unsigned p = (x[2 * j] | (unsigned)x[2 * j + 1] << 8) << 16;
                    const unsigned q = (y[2 * j] | (unsigned)y[2 * j + 1] << 8) << 16;
                    const unsigned given[] = {p & 0x7f800000u ? p : 0, q & 0x7f800000u ? q : 0};
                    float of[2];
                    memcpy(of, given, 8);
                    sum = (float)((double)of[0] * of[1] + sum);
                }
                memcpy(to, &sum, 4);""",
}
