"""A 1x1 convolution before a sliding producer: the rows that a tile needs, in a thread's cache.

Goes in: the first of three parts, how many rows of its result a tile needs, how many channels at a
time, an instruction set. Comes out: a plan, and the C function that computes these rows.

    for some channels: 1x1 -> rows of them -> depthwise (rows.py) -> strips
    all of them: strips -> 1x1

What lies between the first two parts is as small as wanted, whatever the tile: a near cache holds
it. The image is read again for every so many channels.

Lanes lie along the pixels, which are neighbours in the image and in the result: nothing is copied
before the sums or transposed behind them, which pays where sums are short, as they are here. Rows
that neighbouring tiles share are computed again. A region always has all of its rows: at the edges
of the image it is moved inside.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.operand import odd_lines
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.vector_epilogue import (
    VectorEpilogue,
    broadcast,
    plan_vector_epilogue,
    renamed,
    vector_type,
    write_functions,
)
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.stage import Access


@dataclass(frozen=True)
class ExpandPlan:
    """Everything about the rows that is decided before a line is written.

    part     the convolution, rows and columns joined
    width    pixels of a row
    rows     of a region; its planes are `pitch` floats apart
    held     channels of a region
    vectors  of `lanes` pixels that are computed together, for `columns` channels
    """

    part: Group
    image: Access
    weights: Access
    width: int
    rows: int
    held: int
    pitch: int
    lanes: int
    vectors: int
    columns: int
    epilogue: VectorEpilogue

    @property
    def channels(self) -> tuple[str, int]:
        """The iterator along the channels of the result, and how many there are."""
        name = self.part.main.write.index[1].names[0]
        return name, self.part.main.sizes[name]

    @property
    def summed(self) -> tuple[str, int]:
        """The iterator that is summed over, and how many points it has."""
        name = self.image.index[1].names[0]
        return name, self.part.main.sizes[name]

    @property
    def counts(self) -> dict[int, int]:
        """Channels that are computed together -> how often."""
        whole, rest = divmod(self.channels[1], self.columns)
        return {n: times for n, times in ((self.columns, whole), (rest, 1)) if n and times}

    @property
    def block(self) -> int:
        """Pixels that are computed together; the last block ends where the region does."""
        return self.vectors * self.lanes

    @property
    def blocks(self) -> int:
        return -(-self.rows * self.width // self.block)

    @property
    def region_floats(self) -> int:
        return abi.aligned(self.held * self.pitch)

    @property
    def regions(self) -> int:
        """Regions of a tile, one after the other."""
        return -(-self.channels[1] // self.held)

    @property
    def packed_floats(self) -> int:
        return self.channels[1] * self.summed[1]

    def first_row(self, step: int, low: int, row: str) -> str:
        """A C expression: where a region begins, for a tile from `row`, the first of which reads
        from row `low`.
        """
        last = self.part.output.shape[-1] // self.width - self.rows
        return f'max_long(0, min_long({row} * {step} + ({low}), {last}))'


def why_not_expanded(part: Group) -> str:
    """Why a part cannot be computed some rows at a time, before a sliding one; '' where it can."""
    flat = flatten(part)
    stage, roles = flat.main, {t.name: t.role for t in flat.tensors}
    summed = [d for d in stage.reduction if stage.sizes[d] > 1]
    image = [a for a in stage.reads if roles[a.tensor] == 'input']
    if not stage.is_product_sum or len(stage.reads) != 2 or len(image) != 1 or len(summed) != 1:
        return f'{part.label} is no product of an image with weights'
    index = [[t for t in e.terms if stage.sizes[t[0]] > 1] for e in image[0].index]
    written = [e.terms for e in stage.write.index]
    if len(written) != 3 or any(len(terms) != 1 for terms in written):
        return f'{part.label} does not write rows and columns as one'
    if len(index) != 3 or index[1] != [(summed[0], 1)] or [index[2]] != [[*written[2]]]:
        return f'{part.label} slides over its image, or reads a part of its channels'
    pixels = written[2][0][0]
    if any(item.stride(pixels) for item in plan_vector_epilogue(flat).operands):
        return f'{part.label} adds a tensor that changes along rows or columns'
    return ''


def block_of(isa: Isa, pixels: int) -> tuple[int, int, int]:
    """(lanes, vectors, channels) that are computed together, of regions of so many pixels: as
    square as registers allow, since so many loads serve the most multiply-adds.
    """
    lanes = 1 << (min(pixels, isa.lanes).bit_length() - 1)
    vectors = min(4 if isa.registers >= 32 else 3, pixels // lanes)
    return lanes, vectors, (isa.registers - vectors - 1) // vectors


def plan_expand(part: Group, rows: int, isa: str, held: int = 0) -> ExpandPlan:
    """[first part] -> [ExpandPlan]; ScheduleError where it cannot be. `held`: channels of a region,
    in whole blocks; 0: all.
    """
    why = why_not_expanded(part)
    if why:
        raise ScheduleError(f'{why}; without a vector dimension it can be chained')
    flat, width = flatten(part), part.output.shape[-1]
    size, channels = rows * width, flat.output.shape[1]
    lanes, vectors, columns = block_of(ISAS[isa], size)
    if lanes < 2:
        raise ScheduleError(f'{part.label}: a region of {size} pixels has no vectors')
    columns = min(columns, channels)
    if held < 0 or (held < channels and held % columns):
        raise ScheduleError(
            f'{part.label}: channels={held} of a region are not made of whole blocks of {columns}; '
            f'choose a multiple of it, or 0 for all'
        )
    image, weights = sorted(
        flat.main.reads, key=lambda access: flat.tensor(access.tensor).role != 'input'
    )
    return ExpandPlan(
        flat, image, weights, width, rows, min(held or channels, channels),
        odd_lines(abi.aligned(size)), lanes, vectors, columns, plan_vector_epilogue(flat),
    )  # fmt: skip


def write_weights(writer: Writer, p: ExpandPlan, source: str, place: int) -> None:
    """In tw_pack: for each block of channels, those of every summand side by side."""
    (channel, count), (summand, summands) = p.channels, p.summed
    strides, const = access_strides(p.part, p.weights)
    writer.open('')
    writer.line(f'const float *b = {source};')
    writer.line(f'float *to = packed + {place};')
    writer.open(f'for (long first = 0; first < {count}; first += {p.columns})')
    writer.open(f'for (long {summand} = 0; {summand} < {summands}; {summand}++)')
    end = f'min_long(first + {p.columns}, {count})'
    writer.open(f'for (long {channel} = first; {channel} < {end}; {channel}++)')
    place_text = total([scaled(d, strides.get(d, 0)) for d in (channel, summand)] + [str(const)])
    writer.line(f'*to++ = b[{place_text}];')
    writer.close(4)


def write_expand(writer: Writer, p: ExpandPlan) -> None:
    """`expand(image, weights, operands.., out, first, end)`: a region of channels from `first` to
    `end`, from the rows that begin at `image`.
    """
    own = Writer()
    own.lines += vector_type(p.lanes)
    write_functions(own, replace(p.epilogue, functions=()), p.lanes)
    for count in p.counts:
        _write_block(own, p, count)
    operands = p.epilogue.operands
    pointers = ''.join(f', const float *{item.name}' for item in operands)
    own.open(
        'static __attribute__((noinline)) void expand(const float *image, const float *weights'
        f'{pointers}, float *out, long first, long end)'
    )
    own.open(f'for (long block = 0; block < {p.blocks}; block++)')
    last = p.rows * p.width - p.block
    own.line(f'const long x = min_long(block * {p.block}, {last});')
    channel, summands = p.channels[0], p.summed[1]
    own.line('long k = first;')
    places = ''.join(
        f', {item.name} + {total([scaled("k", item.stride(channel)), str(item.const)])}'
        for item in operands
    )
    for count in p.counts:
        own.line(
            f'for (; k + {count} <= end; k += {count})' if count == p.columns else 'if (k < end)'
        )
        own.line(
            f'    expand_{count}(image + x, weights + k * {summands}{places}, '
            f'out + (k - first) * {p.pitch} + x);'
        )
    own.close(2)
    own.line()
    writer.lines += renamed(own.lines, 'expand')


def _write_block(writer: Writer, p: ExpandPlan, count: int) -> None:
    """A block of pixels of `count` channels: sums, epilogue, stores."""
    pointers = ''.join(f', const float *{item.name}' for item in p.epilogue.operands)
    writer.open(
        f'static inline __attribute__((always_inline)) void expand_{count}(const float *image, '
        f'const float *weights{pointers}, float *out)'
    )
    writer.line(f'row_v {", ".join(f"s{k}_{v}" for k in range(count) for v in range(p.vectors))};')
    writer.open('')
    _write_step(writer, p, count, '0', '=')
    writer.close()
    writer.open(f'for (long c = 1; c < {p.summed[1]}; c++)')
    _write_step(writer, p, count, 'c', '+=')
    writer.close()
    channel = p.channels[0]
    for k in range(count):
        writer.open('')
        for item in p.epilogue.operands:
            at = total([item.name, str(k * item.stride(channel))])
            writer.line(f'const row_v {item.name}_v = {broadcast(f"*({at})")};')
        for v in range(p.vectors):
            writer.open('')
            writer.line(f'const row_v value = s{k}_{v};')
            place = total(['out', str(k * p.pitch + v * p.lanes)])
            writer.line(f'*(row_v *)({place}) = {p.epilogue.expression};')
            writer.close()
        writer.close()
    writer.close()
    writer.line()


def _write_step(writer: Writer, p: ExpandPlan, count: int, at: str, how: str) -> None:
    """One summand: lines of the next pixels are asked for, planes being far apart."""
    strides, _ = access_strides(p.part, p.image)
    writer.line(f'const float *row = image + {scaled(at, strides[p.summed[0]])};')
    writer.line(f'__builtin_prefetch(row + {2 * p.block - 1});')
    for v in range(p.vectors):
        writer.line(f'const row_v x{v} = *(const row_v *)(row + {v * p.lanes});')
    for k in range(count):
        place = total([scaled(at, count), str(k)])
        writer.line(f'const row_v w{k} = {broadcast(f"weights[{place}]")};')
        for v in range(p.vectors):
            writer.line(f's{k}_{v} {how} x{v} * w{k};')
        writer.line('IN_ORDER;')
