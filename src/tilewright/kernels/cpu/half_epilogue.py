"""What follows sums of f16 in vectors of eight: in f16 where that gives the same, else in float32.

Goes in: a group whose sums stand in vectors of eight channels of f16. Comes out: a `HalfEpilogue`:
C that takes such a vector through the pointwise stages behind the sum into the result. Conversions
between f16 and float32 take two cycles of one pipe each on common cores, so that an epilogue of
additions and maxima is done as it is (`Native`); one operation that rounds gives the same numbers
in both, and sums that are themselves off by more may have several (`most`).

A result that is quantised (ops/stored.py) is so from f16: x times the inverse of the scale is added
to a number from 1024 on, where neighbours in f16 are 1 apart, so that bits of the sum are those of
1024 and a whole number behind them, rounded half to even (`write_bytes`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.functions import INLINE
from tilewright.kernels.cpu.pointwise import Operand, plan_epilogue
from tilewright.kernels.cpu.vector_epilogue import (
    VectorEpilogue,
    plan_vector_epilogue,
    vector_type,
    write_functions,
)
from tilewright.kernels.cpu.writer import Writer
from tilewright.ops.group import Group
from tilewright.ops.stage import Expr
from tilewright.ops.stored import Stored, as_stored

LANES = 8  # f16 of a vector
KINDS = ('f32', 'f16')  # what operands and results may be
_ROUNDING = ('add', 'sub', 'mul')
# What a stage computes on vectors of f16; a maximum with NaN is NaN.
_NATIVE = {
    'add': 'vaddq_f16({}, {})',
    'sub': 'vsubq_f16({}, {})',
    'mul': 'vmulq_f16({}, {})',
    'max': 'vmaxq_f16({}, {})',
    'min': 'vminq_f16({}, {})',
    'neg': 'vnegq_f16({})',
}

HELPERS = f"""\
#include <stdint.h>
#include <arm_neon.h>

typedef _Float16 f16;
{INLINE} float16x8_t take_f16(const f16 *from) {{ return vld1q_f16((const float16_t *)from); }}
{INLINE} void put_f16(f16 *to, float16x8_t all) {{ vst1q_f16((float16_t *)to, all); }}
{INLINE} float16x8_t first_f16(const f16 *from, long count)
{{
    f16 all[{LANES}] = {{0}};
    for (long i = 0; i < count; i++)
        all[i] = from[i];
    return take_f16(all);
}}
{INLINE} void put_first_f16(f16 *to, float16x8_t all, long count)
{{
    f16 made[{LANES}];
    put_f16(made, all);
    for (long i = 0; i < count; i++)
        to[i] = made[i];
}}
"""
ONE_APART, ONE_APART_BITS = 1024, 0x6400  # f16 from here to 2048 are whole numbers
# What 8-bit numbers of a type begin at, and what narrows 16 bits to them.
BYTES = {'u8': (0, 'vqmovun_s16', 'vst1_u8'), 'i8': (256, 'vqmovn_s16', 'vst1_s8')}
_OF_FLOATS = f"""\
{INLINE} void first_f32(float *to, const float *from, long count)
{{
    for (long i = 0; i < {LANES}; i++)
        to[i] = i < count ? from[i] : 0.0f;
}}
"""


@dataclass(frozen=True, slots=True)
class Native:
    """An epilogue in f16.

    bias        the operand that sums start from, '' for none; it is rounded to f16
    rounded     operands of float32 that are constant, and rounded to f16 ahead
    expression  over `value` and vectors of the operands, `e0_v` ..
    """

    bias: str
    rounded: tuple[str, ...]
    expression: str


@dataclass(frozen=True, slots=True)
class HalfEpilogue:
    """How sums are finished; `channel` is the dimension along lanes. Results of f16 may be `stored`
    as 8-bit numbers.
    """

    operands: tuple[Operand, ...]
    native: Native | None
    vector: VectorEpilogue
    dtype: str
    channel: str
    stored: Stored | None = None

    @property
    def bias(self) -> str:
        return self.native.bias if self.native else ''

    def kind(self, item: Operand) -> str:
        """The C type of an operand as kernels see it: constants may be rounded ahead."""
        ahead = self.native and item.name in (self.native.bias, *self.native.rounded)
        return 'f16' if ahead or item.dtype == 'f16' else C_TYPES[item.dtype]

    def pointers(self) -> str:
        """The operands as parameters of a C function."""
        return ''.join(f', const {self.kind(item)} *{item.name}' for item in self.operands)

    def write_functions(self, writer: Writer) -> None:
        """What `write_result` calls."""
        writer.lines += [*HELPERS.splitlines(), '']
        if self.stored:
            write_bytes(writer, self.stored)
        if self.native:
            return
        writer.lines += vector_type(4)
        writer.lines += [*_OF_FLOATS.splitlines(), '']
        write_functions(writer, self.vector, 4)
        given = ''.join(f', row_v {item.name}_v' for item in self.operands)
        text = self.vector.expression
        writer.line(f'{INLINE} row_v finish(row_v value{given}) {{ return {text}; }}')
        writer.line()

    def write_result(
        self, writer: Writer, value: str, place: str, at: Callable[[Operand], str], whole: bool
    ) -> None:
        """C lines: a vector through what follows into `place`; all lanes of it, or `count`.

        at   where the first lane of an operand lies
        """
        writer.open('')
        if self.native:
            self._write_native(writer, value, place, at, whole)
        else:
            self._write_floats(writer, value, place, at, whole)
        writer.close()

    def _write_native(
        self, writer: Writer, value: str, place: str, at: Callable[[Operand], str], whole: bool
    ) -> None:
        assert self.native is not None
        writer.line(f'const float16x8_t value = {value};')
        for item in self.operands:
            if item.name == self.native.bias:
                continue
            text = f'vdupq_n_f16(*({at(item)}))'
            if item.stride(self.channel):
                text = take(at(item), whole or item.name in self.native.rounded)
            writer.line(f'const float16x8_t {item.name}_v = {text};')
        writer.line(self._put(place, self.native.expression, whole))

    def _write_floats(
        self, writer: Writer, value: str, place: str, at: Callable[[Operand], str], whole: bool
    ) -> None:
        for item in self.operands:
            name, here = item.name, at(item)
            if not item.stride(self.channel):
                writer.line(f'const row_v {name}_l = (float)*({here}) - zero_v;')
                writer.line(f'const row_v {name}_h = {name}_l;')
            elif item.dtype == 'f16':
                writer.line(f'const float16x8_t {name}_n = {take(here, whole)};')
                _widen(writer, name, f'{name}_n')
            else:
                if not whole:
                    writer.line(f'float {name}_n[{LANES}];')
                    writer.line(f'first_f32({name}_n, {here}, count);')
                    here = f'{name}_n'
                writer.line(f'const row_v {name}_l = *(const row_v *)({here});')
                writer.line(f'const row_v {name}_h = *(const row_v *)({here} + 4);')
        _widen(writer, 'value', value)
        for half in 'lh':
            given = ''.join(f', {item.name}_{half}' for item in self.operands)
            writer.line(f'const row_v made_{half} = finish(value_{half}{given});')
        if self.dtype == 'f16':
            made = 'vcvt_high_f16_f32(vcvt_f16_f32((float32x4_t)made_l), (float32x4_t)made_h)'
            writer.line(self._put(place, made, whole))
        elif whole:
            writer.line(f'*(row_v *)({place}) = made_l;')
            writer.line(f'*(row_v *)({place} + 4) = made_h;')
        else:
            writer.line('for (long lane = 0; lane < count; lane++)')
            writer.line(f'    ({place})[lane] = lane < 4 ? made_l[lane] : made_h[lane - 4];')

    def _put(self, place: str, made: str, whole: bool) -> str:
        kind = 'bytes' if self.stored else 'f16'
        if whole:
            return f'put_{kind}({place}, {made});'
        return f'put_first_{kind}({place}, {made}, count);'

    def write_operands(
        self, writer: Writer, inputs: Mapping[str, str], places: Mapping[str, int]
    ) -> None:
        """In tw_part: a pointer to each operand, an input or a constant that was packed."""
        for item in self.operands:
            place = inputs.get(item.tensor) or f'args->packed + {places[item.tensor]}'
            kind = self.kind(item)
            writer.line(f'const {kind} *{item.name} = (const {kind} *)({place});')

    def write_packed(self, writer: Writer, group: Group, places: dict[str, int], size: int) -> None:
        """In tw_pack: constants of the epilogue to their places, rounded where that is wanted."""
        ahead = {i.tensor: i for i in self.operands if self.kind(i) == 'f16' != i.dtype}
        for index, tensor in enumerate(group.with_role('constant')):
            if tensor.name not in {item.tensor for item in self.operands}:
                continue
            place = f'packed + {places[tensor.name]}'
            if tensor.name in ahead:
                source = f'(constants[{index}] + {ahead[tensor.name].const})[lane]'
                writer.line(f'for (long lane = 0; lane < {size}; lane++)')
                writer.line(f'    ((f16 *)({place}))[lane] = (f16){source};')
            else:
                writer.line(f'memcpy({place}, constants[{index}], {tensor.bytes});')


def take(place: str, whole: bool) -> str:
    """A vector of f16 from memory; where it is not whole, its first `count`."""
    return f'take_f16({place})' if whole else f'first_f16({place}, count)'


def write_bytes(writer: Writer, stored: Stored) -> None:
    """`put_bytes`: eight numbers of f16, quantised. What is beyond the limits saturates, as a float
    and then as its bits.
    """
    first, narrow, store = BYTES[stored.dtype]
    kind, start = C_TYPES[stored.dtype], ONE_APART + first + stored.zero
    writer.lines += f"""\
{INLINE} void put_bytes({kind} *to, float16x8_t all)
{{
    const float16x8_t made =
        vfmaq_f16(vdupq_n_f16({start}.0f), all, vdupq_n_f16((float16_t){stored.inverse!r}f));
    const int16x8_t from = vdupq_n_s16({ONE_APART_BITS + first});
    {store}(to, {narrow}(vqsubq_s16(vreinterpretq_s16_f16(made), from)));
}}
{INLINE} void put_first_bytes({kind} *to, float16x8_t all, long count)
{{
    {kind} made[{LANES}];
    put_bytes(made, all);
    for (long i = 0; i < count; i++)
        to[i] = made[i];
}}
""".splitlines()


def _widen(writer: Writer, name: str, of: str) -> None:
    writer.line(f'const row_v {name}_l = (row_v)vcvt_f32_f16(vget_low_f16({of}));')
    writer.line(f'const row_v {name}_h = (row_v)vcvt_high_f32_f16({of});')


def why_no_epilogue(group: Group, channel: str) -> str:
    """Why what follows a sum cannot be finished so; '' where it can."""
    operands = plan_epilogue(group, text=lambda _stage, _texts: 'value').operands
    if any(item.dtype not in KINDS or item.stride(channel) not in (0, 1) for item in operands):
        return f'what follows the sums of {group.label} does not lie along their channels'
    if as_stored(group)[0].output.dtype not in KINDS:
        return f'results of {group.label} are {group.output.dtype}, not f16 or f32'
    return ''


def plan_half_epilogue(group: Group, channel: str, *, starts: bool, most: int) -> HalfEpilogue:
    """[Group] -> [HalfEpilogue].

    starts  whether sums may start from a bias
    most    operations that may round in f16
    """
    operands = plan_epilogue(group, text=lambda _stage, _texts: 'value').operands
    made, stored = as_stored(group)
    native = _native(made, channel, operands, starts, most)
    return HalfEpilogue(
        operands, native, plan_vector_epilogue(made), made.output.dtype, channel, stored
    )  # fmt: skip


def _native(
    group: Group, channel: str, operands: tuple[Operand, ...], starts: bool, most: int
) -> Native | None:
    if group.output.dtype != 'f16':
        return None
    names = iter(operands)
    values = {group.main.write.tensor: 'value'}
    bias, text, count, rounded = '', 'value', 0, []
    for number, stage in enumerate(group.epilogue):
        reads, own = [], []
        for access in stage.reads:
            if access.tensor in values:
                reads.append(values[access.tensor])
                continue
            item = next(names)
            reads.append(f'{item.name}_v')
            own.append(item)
        wide = [item for item in own if item.dtype != 'f16']
        if any(not _is_by_channel(group, item, channel) for item in wide):
            return None
        if number == 0 and starts and wide and _adds_two(stage.expr, len(stage.reads)):
            bias = wide[0].name
            values[stage.write.tensor] = 'value'
            continue
        found = _operations(stage.expr)
        if found is None:
            return None
        rounded += [item.name for item in wide]
        count += found + len(wide)
        text = values[stage.write.tensor] = _text(stage.expr, reads)
    return Native(bias, tuple(rounded), text) if count <= most else None


def _adds_two(expr: Expr, reads: int) -> bool:
    return expr.op == 'add' and reads == 2 and all(a.op == 'read' for a in expr.args)


def _is_by_channel(group: Group, item: Operand, channel: str) -> bool:
    """Whether an operand is a constant with one number for each channel."""
    moving = {d for d, step in item.strides if step and group.main.sizes[d] > 1}
    constant = group.tensor(item.tensor).role == 'constant'
    return constant and moving <= {channel} and item.stride(channel) == 1


def _operations(expr: Expr) -> int | None:
    """How many operations of an expression round; None where f16 does not do it."""
    if expr.op == 'read':
        return 0
    if expr.op in ('const', 'whole'):
        with np.errstate(over='ignore'):
            return 0 if float(np.float16(expr.value)) == expr.value else None
    counts = [_operations(a) for a in expr.args]
    if expr.op not in _NATIVE or None in counts:
        return None
    return sum(c for c in counts if c) + (expr.op in _ROUNDING)


def _text(expr: Expr, reads: list[str]) -> str:
    if expr.op == 'read':
        return reads[int(expr.value)]
    if expr.op in ('const', 'whole'):
        value = float(expr.value)
        number = repr(value) if math.isfinite(value) else f'{"-" if value < 0 else ""}INFINITY'
        return f'vdupq_n_f16((float16_t)({number}))'
    return _NATIVE[expr.op].format(*(_text(a, reads) for a in expr.args))
