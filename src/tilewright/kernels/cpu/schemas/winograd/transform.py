"""Winograd's transforms in C: straight-line code from the matrices, and the loops around it.

Goes in: a `Geometry` and the buffers' strides. Comes out: C functions.

    transform_input    image -> V[t][c][tile]    two passes of vectors: down the rows of the image,
                                                 whose columns are contiguous as they lie; then
                                                 across, over the phases x = m * tile + i, so that
                                                 neighbouring tiles are neighbours in a vector
    transform_output   M[t][tile][k] -> rows[y][x][k], vectors over k

What a matrix does to a vector of values is written by linear.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernels.cpu.schemas.winograd.linear import combination, linear
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import Isa
from tilewright.ops.winograd import Geometry
from tilewright.ops.winograd_matrices import Part, Transform

LINE = 16  # floats of a cache line: buffers that are walked together start this far out of step


@dataclass(frozen=True, slots=True)
class TileBuffers(ABC):
    """How one thread holds V, whatever the transforms; in floats.

    tiles       most tiles of a block
    columns     most columns of tiles that leave together
    lanes       fp32 lanes of the input transform (a power of two)
    """

    tiles: int
    columns: int
    lanes: int

    @property
    def tile_step(self) -> int:
        """From one tile of V to the next."""
        return 1

    @property
    def channel_step(self) -> int:
        """From one channel of V to the next."""
        return self.tiles

    @property
    @abstractmethod
    def v_stride(self) -> int:
        """From one point of V to the next."""

    @property
    @abstractmethod
    def work_floats(self) -> int:
        """What the input transform needs beside."""


@dataclass(frozen=True, slots=True)
class Buffers(TileBuffers):
    """Strides and sizes of one thread's scratch, in floats.

    V[point][channel][tile]; `columns` are those of a block.
    """

    shape: Geometry

    @property
    def v_stride(self) -> int:
        """From a point of V to the next: a vector may be written past the last tile."""
        return -(-(self.shape.c * self.tiles + self.lanes) // LINE) * LINE + LINE

    def positions(self, f: Transform) -> int:
        """Tiles of whole vectors, and the overlap of tiles: positions of each phase modulo m."""
        whole = -(-self.columns // self.lanes) * self.lanes + (f.t - 1) // f.m
        return -(-whole // 4) * 4

    def reach(self, f: Transform) -> int:
        """Inputs of a row of tiles, with what vectors read behind the last."""
        return -(-(f.m * self.positions(f) + f.r + self.lanes) // LINE) * LINE

    @property
    def line(self) -> int:
        """One transformed row of the image."""
        across = self.shape.across
        return across.stride * max(self.reach(part.f) for part in across.parts)

    @property
    def spreads(self) -> bool:
        """Whether elements that are a stride apart are picked out of lines in registers."""
        return self.lanes > 4 and self.shape.across.stride <= 2

    @property
    def residue_floats(self) -> int:
        """Every stride-th element of a line."""
        stride = self.shape.across.stride
        return self.line // stride if stride > 1 and not self.spreads else 0

    @property
    def work_floats(self) -> int:
        """A row of zeros, the transformed rows, a residue of one of them."""
        return self.line * (1 + self.shape.down.t) + self.residue_floats


@dataclass(frozen=True, slots=True)
class Products:
    """Where products lie in M.

    place          of the first
    index_step     from one tile (times the points that share a weight) to the next
    weight_step    from one weight to the next
    """

    place: int
    index_step: int
    weight_step: int

    @property
    def shared(self) -> int:
        """Points that share a weight."""
        return 1


@dataclass(frozen=True, slots=True)
class Class(Products):
    """Points whose weights are shared by equally many: one part of the rows, one of the columns."""

    down: Part
    across: Part

    @property
    def shared(self) -> int:
        return self.down.shared * self.across.shared

    @property
    def weights(self) -> int:
        return self.down.kinds * self.across.kinds


def classes_of(shape: Geometry, tiles: int, width: int) -> tuple[tuple[Class, ...], int]:
    """The classes of points, and the floats of M for one panel of `width` output channels.

    Products that are alone with their weight lie tile by tile, as the output transform reads them;
    others as the micro-kernel makes them.
    """
    pairs = [(down, across) for down in shape.down.parts for across in shape.across.parts]
    alone = sum(d.kinds * a.kinds for d, a in pairs if d.shared * a.shared == 1)
    tile = odd_lines(alone * width) if alone else 0
    found, first, place = [], 0, tiles * tile
    for down, across in pairs:
        shared, weights = down.shared * across.shared, down.kinds * across.kinds
        if shared == 1:
            found.append(Class(first, tile, width, down, across))
            first += weights * width
        else:
            step = odd_lines(shared * tiles * width)
            found.append(Class(place, width, step, down, across))
            place += weights * step
    return tuple(found), place


def odd_lines(floats: int) -> int:
    """An odd number of cache lines that holds so many floats: such strides use every set."""
    return (-(-floats // LINE) | 1) * LINE


def write_input(writer: Writer, buffers: Buffers, strides: tuple[int, ...]) -> None:
    """`transform_input`; `strides` are those of the image (n, c, rows, columns), in floats."""
    shape = buffers.shape
    down, across = shape.down, shape.across
    _write_down(writer, buffers, 'vec', f'transform_down_{buffers.lanes}')
    _write_down(writer, buffers, 'float', 'transform_down_1')
    _write_across(writer, buffers)
    writer.open(
        'static __attribute__((noinline)) void transform_input(const float *restrict image, '
        'float *restrict v, float *restrict work, long n, long n_end, long ph, long ph_end, '
        'long pw, long pw_end)'
    )
    writer.line('const long columns = pw_end - pw;')
    writer.line(f'const long from = pw * {across.step} - {shape.pad_left};')
    writer.line('const long low = max_long(from, 0);')
    reach = f'from + columns * {across.step} + {across.length} - {across.step}'
    writer.line(f'const long count = max_long(min_long({reach}, {shape.width}) - low, 0);')
    writer.line(f'float *const lines = work + {buffers.line};')
    writer.line(f'float *const spare = lines + {down.t * buffers.line};')
    writer.line('float *const inside = lines + (low - from);')
    writer.line(f'memset(work, 0, {buffers.work_floats} * sizeof(float));')
    writer.open(f'for (long c = 0; c < {shape.c}; c++)')
    writer.line('long row = 0;')
    writer.open('for (long b = n; b < n_end; b++)')
    writer.line(f'const float *plane = image + b * {strides[0]} + c * {strides[1]} + low;')
    writer.open('for (long p = ph; p < ph_end; p++, row++)')
    for a in range(down.length):
        writer.line(f'const long y{a} = p * {down.step} + {a - shape.pad_top};')
        writer.line(
            f'const float *r{a} = (unsigned long)y{a} < {shape.height}ul ? '
            f'plane + y{a} * {strides[2]} : work;'
        )
    # The next channel lies far away: its rows, but for those that the last tiles share, come now.
    writer.open(f'for (long x = 0; x < count; x += {LINE})')
    for a in range(max(down.length - down.step, 0), down.length):
        writer.line(f'__builtin_prefetch(r{a} + x + {strides[1]});')
    writer.close()
    rows = ', '.join(f'r{a}' for a in range(down.length))
    vector = f'transform_down_{buffers.lanes}({rows}, inside, '
    writer.line('long x = 0;')
    writer.line(f'for (; x + {buffers.lanes} <= count; x += {buffers.lanes})')
    writer.line(f'    {vector}x);')
    writer.line(f'if (x < count && count >= {buffers.lanes})')
    writer.line(f'    {vector}count - {buffers.lanes});')
    writer.line('else')
    writer.line('    for (; x < count; x++)')
    writer.line(f'        transform_down_1({rows}, inside, x);')
    for part in down.parts:
        writer.open(f'for (long i = 0; i < {part.f.t}; i++)')
        writer.line(f'const float *line = lines + (i + {part.first}) * {buffers.line};')
        point = f'(i + {part.first})' if part.shared == 1 else str(part.first)
        writer.line(f'float *to = v + {point} * {across.t * buffers.v_stride};')
        at = f'c * {part.shared * buffers.tiles} + '
        at += 'row * columns' if part.shared == 1 else f'(row * {part.shared} + i) * columns'
        writer.line(f'transform_across(line, spare, to, {at}, columns, {part.shared});')
        writer.close()
    writer.close(4)
    writer.line()


def _write_down(writer: Writer, buffers: Buffers, kind: str, name: str) -> None:
    """The first pass, for a vector or for a single column at x of the image."""
    down = buffers.shape.down
    rows = ', '.join(f'const float *r{a}' for a in range(down.length))
    writer.open(
        f'static inline __attribute__((always_inline)) void {name}({rows}, float *line, long x)'
    )
    for a in range(down.length):
        writer.line(f'const {kind} x{a} = *(const {kind} *)(r{a} + x);')
    outputs = [f'y{i}' for i in range(down.t)]
    for line in linear(down.bt, [f'x{a}' for a in range(down.length)], outputs, kind, ''):
        writer.line(line)
    for i, output in enumerate(outputs):
        writer.line(f'*({kind} *)(line + {i * buffers.line} + x) = {output};')
    writer.close()
    writer.line()


def _write_across(writer: Writer, buffers: Buffers) -> None:
    """The second pass: one transformed row of a row of tiles, into the points of that row of V.

    `at` counts tiles and channels of V before these, `shared` the rows that share their weights.
    """
    across = buffers.shape.across
    writer.open(
        'static inline __attribute__((always_inline)) void transform_across('
        'const float *restrict line, float *restrict spare, float *restrict v, long at, '
        'long columns, const long shared)'
    )
    writer.line('(void)spare;')
    for part in across.parts:
        first = f'v + shared * {part.first * buffers.v_stride}'
        if part.shared > 1:  # the transform is the identity: inputs in order
            count = f'columns * {part.f.m}'
            _write_residue(writer, buffers, part, f'{first} + at * {part.shared}', count)
            continue
        source, stride = 'line', across.stride
        if buffers.spreads:
            source = f'line + {part.residue}' if part.residue else 'line'
        elif stride > 1:
            source, stride = 'spare', 1
            count = f'columns * {part.f.m} + {part.f.t - part.f.m}'
            _write_residue(writer, buffers, part, source, count)
        writer.open('')
        writer.line(f'float *const to = {first} + at;')
        _write_part(writer, buffers, part.f, source, stride)
        writer.close()
    writer.close()
    writer.line()


def _write_residue(writer: Writer, buffers: Buffers, part: Part, to: str, count: str) -> None:
    """to[x] = line[stride * x + residue] for x < count, and whole vectors past it."""
    stride, lanes = buffers.shape.across.stride, buffers.lanes
    if stride == 1:
        writer.line(f'for (long x = 0; x < {count}; x += {lanes})')
        writer.line(f'    *(vec *)({to} + x) = *(const vec *)(line + x);')
    elif stride == 2:
        picks = ', '.join(str(2 * lane) for lane in range(lanes))
        writer.open(f'for (long x = 0; x < {count}; x += {lanes})')
        for name, place in (('low', part.residue), ('high', part.residue + lanes)):
            writer.line(f'const vec {name} = *(const vec *)(line + 2 * x + {place});')
        writer.line(f'*(vec *)({to} + x) = __builtin_shufflevector(low, high, {picks});')
        writer.close()
    else:
        writer.line(f'for (long x = 0; x < {count}; x++)')
        writer.line(f'    ({to})[x] = line[x * {stride} + {part.residue}];')


def _write_part(writer: Writer, buffers: Buffers, f: Transform, source: str, stride: int) -> None:
    """A transform of inputs that are `stride` apart in `source`, over tiles that are m apart."""
    m = f.m
    writer.open(f'for (long q = 0; q < columns; q += {buffers.lanes})')
    if buffers.lanes > 4:
        _write_picked(writer, buffers.lanes, f, source, stride)
    elif m == 1:
        for b in range(f.t):
            writer.line(f'const vec x{b} = *(const vec *)({source} + {b} + q);')
    else:
        for first in range(0, f.t, 4):
            _write_turned(writer, source, first, min(4, f.t - first), m)
    outputs = [f'y{j}' for j in range(f.t)]
    for line in linear(f.bt, [f'x{b}' for b in range(f.t)], outputs, 'vec', ''):
        writer.line(line)
    for j, output in enumerate(outputs):
        writer.line(f'*(vec *)(to + shared * {j * buffers.v_stride} + q) = {output};')
    writer.close()


def _write_picked(writer: Writer, lanes: int, f: Transform, source: str, stride: int) -> None:
    """x[b] = inputs m * (q + lane) + b of all lanes, picked out of vectors in registers.

    Inputs that take part in a tile again lie m further on: they are loaded from there.
    """
    m = f.m
    for shift in range(-(-f.t // m)):
        for number in range(m):
            place = f'{source} + (q + {shift}) * {m * stride} + {number * lanes * stride}'
            name = f'i{shift}_{number}'
            writer.line(f'const vec {name} = {_spread(place, lanes, stride)};')
        for b in range(shift * m, min((shift + 1) * m, f.t)):
            at = [divmod(m * lane + b - shift * m, lanes) for lane in range(lanes)]
            inputs = [f'i{shift}_{number}' for number in range(m)]
            writer.line(f'const vec x{b} = {_picked(inputs, at, lanes)};')


def _spread(place: str, lanes: int, stride: int) -> str:
    """A vector of every stride-th element from `place` on."""
    if stride == 1:
        return f'*(const vec *)({place})'
    picks = ', '.join(str(2 * lane) for lane in range(lanes))
    pair = f'*(const vec *)({place}), *(const vec *)({place} + {lanes})'
    return f'__builtin_shufflevector({pair}, {picks})'


def _picked(inputs: list[str], at: list[tuple[int, int]], lanes: int) -> str:
    """A C expression for lane `at[n][1]` of vector `at[n][0]` in each lane n: two vectors at a time
    to where they belong, then one of both for each lane.
    """
    if len(inputs) == 1:
        return inputs[0]
    merged = ''
    for first in range(0, len(inputs), 2):
        pair = inputs[first], inputs[min(first + 1, len(inputs) - 1)]
        here = [number - first if 0 <= number - first < 2 else -1 for number, _ in at]
        picks = [n * lanes + lane if n >= 0 else -1 for n, (_, lane) in zip(here, at, strict=True)]
        text = f'__builtin_shufflevector({", ".join((*pair, *map(str, picks)))})'
        if merged:
            either = [lane + lanes * (n >= 0) for lane, n in enumerate(here)]
            text = f'__builtin_shufflevector({", ".join((merged, text, *map(str, either)))})'
        merged = text
    return merged


def _write_turned(writer: Writer, source: str, first: int, count: int, m: int) -> None:
    """x[first .. first + count) of four neighbouring tiles at q, transposed in registers."""
    for e in range(4):
        place = f'{source} + (q + {e}) * {m} + {first}'
        writer.line(f'const vec l{first}_{e} = *(const vec *)({place});')
    for half, picks in ((0, '0, 4, 1, 5'), (1, '2, 6, 3, 7')):
        if count <= 2 * half:
            continue
        for a in (0, 2):
            pair = f'l{first}_{a}, l{first}_{a + 1}'
            writer.line(f'const vec p{first}_{half}{a} = __builtin_shufflevector({pair}, {picks});')
        for odd, last in ((0, '0, 1, 4, 5'), (1, '2, 3, 6, 7')):
            if 2 * half + odd < count:
                pair = f'p{first}_{half}0, p{first}_{half}2'
                writer.line(
                    f'const vec x{first + 2 * half + odd} = '
                    f'__builtin_shufflevector({pair}, {last});'
                )


def write_output(
    writer: Writer,
    shape: Geometry,
    vectors: int,
    isa: Isa,
    classes: Sequence[Class],
    pitch: int,
) -> None:
    """`transform_output_vN`: tiles of a row, from M to `rows`, `pitch` floats from row to row.

    They are `columns` tiles from `first` of row `row` of a block that is `all` tiles wide. The
    half-transformed tile stays in registers where they suffice; else it goes through an array,
    since compilers spill more than that.
    """
    down, across = shape.down, shape.across
    width = vectors * isa.lanes
    held = down.t * across.m + 8 <= isa.registers
    writer.open(
        f'static __attribute__((noinline)) void transform_output_v{vectors}('
        f'const float *restrict m, float *restrict rows, long row, long all, long first, '
        f'long columns)'
    )
    for number, item in enumerate(classes):
        for i in range(item.down.shared):
            index = f'(row * {item.down.shared} + {i}) * all + first'
            step = item.across.shared * item.index_step
            writer.line(f'const float *m{number}_{i} = m + {item.place} + ({index}) * {step};')
    writer.open('for (long p = 0; p < columns; p++)')
    writer.open(f'for (long lane = 0; lane < {width}; lane += {isa.lanes})')
    writer.line(f'float *to = rows + p * {across.m * width} + lane;')
    if not held:
        writer.line(f'lanes_t half[{across.m}][{down.t}];')
    for part in down.parts:
        here = [(n, item) for n, item in enumerate(classes) if item.down == part]
        looped = part.shared == 1 and not held
        if looped:
            writer.open(f'for (long i = 0; i < {part.f.t}; i++)')
        for i in range(1 if looped else part.f.t):
            at = 'i' if looped else str(i)
            prefix = '' if looped else f'c{part.first + i}'
            loaded = []
            for number, item in here:
                for j in range(item.across.f.t):
                    loaded.append(f'{prefix}m{item.across.first + j}')
                    place = _product(number, item, at, j)
                    writer.line(f'const lanes_t {loaded[-1]} = *(const lanes_t *)({place});')
            names = [f'{prefix}a{x}' for x in range(across.m)]
            for line in linear(across.at, loaded, names, 'lanes_t', prefix):
                writer.line(line)
            if not held:
                row = f'i + {part.first}' if looped else str(part.first + i)
                for x, name in enumerate(names):
                    writer.line(f'half[{x}][{row}] = {name};')
        if looped:
            writer.close()
    if not held:
        writer.open(f'for (long x = 0; x < {across.m}; x++, to += {width})')
    for x in range(across.m if held else 1):
        inputs = [f'c{i}a{x}' if held else f'half[x][{i}]' for i in range(down.t)]
        outputs = [f'r{x}y{y}' for y in range(down.m)]
        for line in linear(down.at, inputs, outputs, 'lanes_t', f'r{x}'):
            writer.line(line)
        for y, output in enumerate(outputs):
            writer.line(f'*(lanes_t *)(to + {y * pitch + x * width}) = {output};')
    if not held:
        writer.close()
    writer.close(3)
    writer.line()


def _product(number: int, item: Class, i: str, j: int) -> str:
    """Where M has the product of row i of the class's down part and column j of its across part."""
    step = item.across.shared * item.index_step
    pointer = f'm{number}_{i if item.down.shared > 1 else 0} + p * {step} + lane'
    row = '' if item.down.shared > 1 else f' + {i} * {item.across.kinds * item.weight_step}'
    column = j * (item.index_step if item.across.shared > 1 else item.weight_step)
    return f'{pointer}{row} + {column}'


def write_filter(writer: Writer, shape: Geometry) -> None:
    """`transform_filter`: G g G^T of one filter, in double, one weight every `step` floats."""
    down, across = shape.down, shape.across
    for name, f in (('g_down', down), ('g_across', across)):
        kept = [f.g[p.first + i * p.shared] for p in f.parts for i in range(p.kinds)]
        rows = ', '.join('{' + ', '.join(repr(float(x)) for x in row) + '}' for row in kept)
        writer.line(f'static const double {name}[{f.kinds}][{f.r}] = {{{rows}}};')
    writer.line()
    writer.open('static void transform_filter(const float *filter, float *to, long step)')
    writer.line(f'double half[{down.kinds}][{across.r}];')
    writer.open(f'for (long i = 0; i < {down.kinds}; i++)')
    writer.open(f'for (long s = 0; s < {across.r}; s++)')
    writer.line('half[i][s] = 0.0;')
    writer.line(f'for (long r = 0; r < {down.r}; r++)')
    writer.line(f'    half[i][s] += g_down[i][r] * filter[r * {across.r} + s];')
    writer.close(2)
    writer.open(f'for (long i = 0; i < {down.kinds}; i++)')
    writer.open(f'for (long j = 0; j < {across.kinds}; j++)')
    writer.line('double sum = 0.0;')
    writer.line(f'for (long s = 0; s < {across.r}; s++)')
    writer.line('    sum += half[i][s] * g_across[j][s];')
    writer.line(f'to[(i * {across.kinds} + j) * step] = (float)sum;')
    writer.close(3)
    writer.line()


def write_filters(writer: Writer, shape: Geometry, lanes: int) -> None:
    """`transform_filters`: G g G^T of the filters of some output channels, one in each lane.

    For all input channels; a weight of the next one lies `width` floats on, the next weight `step`.
    """
    down, across = shape.down, shape.across
    taps = down.r * across.r
    rows, columns = (
        [f.g[p.first + i * p.shared] for p in f.parts for i in range(p.kinds)]
        for f in (down, across)
    )
    apart = shape.c * taps
    writer.open(
        'static void transform_filters(const float *filters, float *to, long lanes, long width, '
        'long step)'
    )
    writer.open(f'for (long c = 0; c < {shape.c}; c++)')
    writer.line(f'float taps[{taps}][{lanes}] __attribute__((aligned(64)));')
    writer.line(f'const float *from = filters + c * {taps};')
    writer.line('long lane = 0;')
    writer.open('for (; lane + 4 <= lanes; lane += 4)')
    writer.line('long x = 0;')
    writer.line(f'for (; x + 4 <= {taps}; x += 4)')
    writer.line(f'    transpose4(from + lane * {apart} + x, {apart}, taps[x] + lane, {lanes}, 4);')
    writer.line(f'for (; x < {taps}; x++)')
    writer.line('    for (long i = lane; i < lane + 4; i++)')
    writer.line(f'        taps[x][i] = from[i * {apart} + x];')
    writer.close()
    writer.line(f'for (; lane < {lanes}; lane++)')
    writer.line(f'    for (long x = 0; x < {taps}; x++)')
    writer.line(f'        taps[x][lane] = lane < lanes ? from[lane * {apart} + x] : 0.0f;')
    writer.line('float *at = to + c * width;')
    for i, row in enumerate(rows):
        for s in range(across.r):
            terms = [(x, f'*(const lanes_t *)taps[{r * across.r + s}]') for r, x in enumerate(row)]
            writer.line(f'const lanes_t half_{i}_{s} = {combination(terms)};')
        for j, column in enumerate(columns):
            terms = [(x, f'half_{i}_{s}') for s, x in enumerate(column)]
            place = f'{i * across.kinds + j} * step'
            writer.line(f'*(lanes_t *)(at + {place}) = {combination(terms)};')
    writer.close(2)
    writer.line()
