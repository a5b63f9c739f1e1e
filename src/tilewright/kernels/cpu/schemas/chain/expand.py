"""A 1x1 convolution before a sliding producer: the rows that a tile needs, in a thread's cache.

Goes in: the first of three parts, how many rows of its result a tile needs, an instruction set.
Comes out: a plan, and the C function that computes these rows.

    1x1 -> rows of all channels -> depthwise (rows.py) -> strips -> 1x1

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
from tilewright.machine.isa import ISAS
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.stage import Access


@dataclass(frozen=True)
class ExpandPlan:
    """Everything about the rows that is decided before a line is written.

    part     the convolution, rows and columns joined
    width    pixels of a row
    rows     of a region; its planes are `pitch` floats apart
    vectors  of `lanes` pixels that are computed together, for `columns` channels
    """

    part: Group
    image: Access
    weights: Access
    width: int
    rows: int
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
        return abi.aligned(self.channels[1] * self.pitch)

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


def plan_expand(part: Group, rows: int, isa: str) -> ExpandPlan:
    """[first part] -> [ExpandPlan]; ScheduleError where it cannot be."""
    why = why_not_expanded(part)
    if why:
        raise ScheduleError(f'{why}; without a vector dimension it can be chained')
    flat, kind, width = flatten(part), ISAS[isa], part.output.shape[-1]
    size = rows * width
    lanes = 1 << (min(size, kind.lanes).bit_length() - 1)
    if lanes < 2:
        raise ScheduleError(f'{part.label}: a region of {size} pixels has no vectors')
    # As square as registers allow: so many loads serve the most multiply-adds.
    vectors = min(4 if kind.registers >= 32 else 3, size // lanes)
    columns = (kind.registers - vectors - 1) // vectors
    image, weights = sorted(
        flat.main.reads, key=lambda access: flat.tensor(access.tensor).role != 'input'
    )
    return ExpandPlan(
        flat, image, weights, width, rows, odd_lines(abi.aligned(size)), lanes, vectors,
        min(columns, flat.output.shape[1]), plan_vector_epilogue(flat),
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
    """`expand(image, weights, operands.., out)`: a region, from the rows that begin at `image`."""
    own = Writer()
    own.lines += vector_type(p.lanes)
    write_functions(own, replace(p.epilogue, functions=()), p.lanes)
    for count in p.counts:
        _write_block(own, p, count)
    operands = p.epilogue.operands
    pointers = ''.join(f', const float *{item.name}' for item in operands)
    own.open(
        'static __attribute__((noinline)) void expand(const float *image, const float *weights'
        f'{pointers}, float *out)'
    )
    own.open(f'for (long block = 0; block < {p.blocks}; block++)')
    last = p.rows * p.width - p.block
    own.line(f'const long x = min_long(block * {p.block}, {last});')
    channel, summands = p.channels[0], p.summed[1]
    done = 0
    for count, times in p.counts.items():
        own.open(f'for (long k = {done}; k < {done + count * times}; k += {count})')
        places = ''.join(
            f', {item.name} + {total([scaled("k", item.stride(channel)), str(item.const)])}'
            for item in operands
        )
        own.line(
            f'expand_{count}(image + x, weights + k * {summands}{places}, out + k * {p.pitch} + x);'
        )
        own.close()
        done += count * times
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
    places = [(k, v) for k in range(count) for v in range(p.vectors)]
    for k, v in places:
        writer.line(f'row_v s{k}_{v} = zero_v;')
    summand, summands = p.summed
    strides, _ = access_strides(p.part, p.image)
    writer.open(f'for (long c = 0; c < {summands}; c++)')
    writer.line(f'const float *row = image + c * {strides[summand]};')
    for v in range(p.vectors):
        writer.line(f'const row_v x{v} = *(const row_v *)(row + {v * p.lanes});')
    for k in range(count):
        writer.line(f'const row_v w{k} = {broadcast(f"weights[c * {count} + {k}]")};')
        for v in range(p.vectors):
            writer.line(f's{k}_{v} += x{v} * w{k};')
    writer.close()
    channel = p.channels[0]
    for k, v in places:
        writer.open('')
        writer.line(f'const row_v value = s{k}_{v};')
        for item in p.epilogue.operands:
            at = total([item.name, str(k * item.stride(channel))])
            writer.line(f'const row_v {item.name}_v = {broadcast(f"*({at})")};')
        place = total(['out', str(k * p.pitch + v * p.lanes)])
        writer.line(f'*(row_v *)({place}) = {p.epilogue.expression};')
        writer.close()
    writer.close()
    writer.line()
