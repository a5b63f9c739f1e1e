"""Sums of whole numbers that are known to be small once weights are packed.

Goes in: a group of integer products whose sums, with a bias of every channel, are scaled and
rounded. Comes out: a `NearValue`, what follows the sum with fewer instructions, and the C that
decides as weights are packed whether it may be used. With M = 1.5 * 2^23 and integers s:

    |s| < 2^22              bits of M plus s are those of the float M + s: no conversion
    |s * scale| < 2^15      rounded it fits in 16 bits, whose narrowing saturates: no limits

Both hold in a channel where 128 times the sum of its weights' sizes, plus its bias, is so small;
the bits of M and the bias are added at once. Results are the same, number by number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.pointwise import Operand
from tilewright.kernels.cpu.whole_vectors import (
    MAGIC,
    MAGIC_BITS,
    NEAR_LIMITS,
    WholeValue,
    following,
)
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.ops.functions import add
from tilewright.ops.group import Group
from tilewright.ops.integer import requantised
from tilewright.ops.stage import Expr, const, read

START = '@start'  # for every channel what its sums begin with: its bias and the bits of M
NEAR = '@near'  # whether all of them are small
LARGEST_SUM = 1 << 22


@dataclass(frozen=True, slots=True)
class NearValue:
    """What follows sums that are small, and the operands that say so.

    start, near   operands that are computed as weights are packed
    bias, scale   constants that the group has for every channel; None: it has no bias
    alone         nothing else follows: no residual, no second rounding
    """

    value: WholeValue
    start: Operand
    near: Operand
    bias: Operand | None
    scale: Operand
    alone: bool

    @property
    def operands(self) -> tuple[Operand, Operand]:
        return self.start, self.near


def near_value(
    group: Group, operands: Sequence[Operand], taken: int, vector: str
) -> NearValue | None:
    """[Group] -> [NearValue]; None where sums are not scaled for each channel at once. `operands`
    are those of the epilogue, of which there are so many names in all.
    """
    stages, names = list(group.epilogue), list(operands)
    bias = None
    if stages and stages[0].expr == add(read(0), read(1)):
        if group.tensor(stages[0].write.tensor).dtype != 'i32' or not names:
            return None
        bias = names.pop(0)
        stages.pop(0)
    if not stages or not names or stages[0].reads[0].tensor != _before(group, bias):
        return None
    dtype, zero = group.tensor(stages[0].write.tensor).dtype, _zero(stages[0].expr)
    scale = names.pop(0)
    if dtype not in ('u8', 'i8') or zero is None:
        return None
    if stages[0].expr != requantised(const(zero), dtype):
        return None
    if any(not _of_channels(group, item, vector) for item in (bias, scale) if item):
        return None
    start = Operand(f'e{taken}', START, ((vector, 1),), 0, 'i32')
    near = Operand(f'e{taken + 1}', NEAR, (), 0, 'i32')
    first = f'(real_v)(whole_v)((bits_v)value + (bits_v){start.name}_v)'
    low = -128 if dtype == 'i8' else 0
    made = WholeValue(
        f'(({first} - {MAGIC}.0f) * {scale.name}_v)', dtype, (low, low + 255), zero, near=True
    )
    value = following(group, stages[0].write.tensor, made, names)
    if value is None:
        return None
    return NearValue(value, start, near, bias, scale, value.text == made.text)


def _before(group: Group, bias: Operand | None) -> str:
    return group.epilogue[0].write.tensor if bias else group.main.write.tensor


def _zero(expr: Expr) -> int | None:
    """The zero point of a number that is rounded, moved and cut off."""
    for op in ('cast', 'min', 'max'):
        if expr.op != op:
            return None
        expr = expr.args[0]
    if expr.op == 'round':
        return 0
    known = expr.op == 'add' and expr.args[1].op == 'const'
    return int(expr.args[1].value) if known else None


def _of_channels(group: Group, item: Operand, vector: str) -> bool:
    """Whether an operand is a constant with a number for each channel, or one for all of them."""
    moving = {d: s for d, s in item.strides if s and group.main.sizes[d] > 1}
    known = item.dtype in ('f32', 'i32') and group.tensor(item.tensor).role == 'constant'
    return known and set(moving) <= {vector}


def write_near(
    writer: Writer, group: Group, near: NearValue, channel: str, places: dict[str, int],
    sums: tuple[list[str], str], moved: int, largest: int,
) -> None:  # fmt: skip
    """C that fills `start` and `near`. `sums` are the loops over the weights of a channel and the
    address of a weight; `moved` is what the sum of weights is multiplied by, where numbers of the
    image were moved; `largest` is the size of those that words hold.
    """
    names = [t.name for t in group.with_role('constant')]
    loops, address = sums

    def item(operand: Operand) -> str:
        kind, at = C_TYPES[operand.dtype], scaled(channel, operand.stride(channel))
        source = f'((const {kind} *)constants[{names.index(operand.tensor)}])'
        return f'{source}[{total([at, str(operand.const)])}]'

    writer.open('')
    writer.line(f'int32_t *start = (int32_t *)(packed + {places[START]}), near = 1;')
    writer.open(f'for (long {channel} = 0; {channel} < {group.main.sizes[channel]}; {channel}++)')
    writer.line('long sum = 0, most = 0;')
    for loop in loops:
        writer.open(loop)
    writer.line(f'const long weight = b[{address}];')
    writer.line('sum += weight;')
    writer.line('most += weight < 0 ? -weight : weight;')
    writer.close(len(loops))
    bias = item(near.bias) if near.bias else '0'
    writer.line(f'const long first = {bias} + {moved} * sum;')
    writer.line(f'const double size = {largest} * (double)most + (first < 0 ? -first : first);')
    writer.line(f'const double factor = {item(near.scale)};')
    writer.line(f'start[{channel}] = (int32_t)((uint32_t)first + {MAGIC_BITS}u);')
    writer.line('const double made = size * (factor < 0 ? -factor : factor);')
    writer.line(f'near &= size < {LARGEST_SUM} && made < {NEAR_LIMITS};')
    writer.close()
    writer.line(f'*(int32_t *)(packed + {places[NEAR]}) = near;')
    writer.close()


def with_near(operands: tuple[Operand, ...], near: NearValue | None) -> tuple[Operand, ...]:
    return (*operands, *near.operands) if near else operands
