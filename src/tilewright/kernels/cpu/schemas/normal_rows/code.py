"""The schema of normalised rows: every sum and the result in one pass over the row, on vectors.

Goes in: a plan (plan.py). Comes out: C with the ABI of kernels/cpu/abi.py.

    for each row
      sums along it           four vectors of them at a time, whose additions do not wait for each
                              other; lanes joined at the end, and what is no whole vector
      numbers of the row      such as its mean, and inverses of what it is divided by
      the result              computed in float32 and rounded once
"""

from __future__ import annotations

from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES, Typed
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.half_vectors import HalfValue
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.pointwise import typed_text
from tilewright.kernels.cpu.schemas.normal_rows.plan import Formula, RowsPlan, by_inverses
from tilewright.kernels.cpu.vector_epilogue import VectorTexts, broadcast
from tilewright.kernels.cpu.writer import Writer
from tilewright.machine.isa import ISAS
from tilewright.ops.stage import Stage

TOGETHER = 4  # vectors of sums


def generate(p: RowsPlan) -> str:
    """[RowsPlan] -> [C source]"""
    body, typed, vectors = Writer(), Typed(), VectorTexts()
    places = abi.constant_places(p.group, '', 0)
    _write_pack(body, p, places)
    _write_part(body, p, places, (typed, vectors))
    made = vectors.epilogue('value')
    value = HalfValue(made, p.group.output.dtype, ISAS[p.schedule.isa].arch)
    writer = Writer()
    abi.write_head(writer, p.group, p.schedule)
    writer.lines += ['#include <stdint.h>', '']
    write_functions(writer, [name for name in typed.functions if name not in made.functions])
    value.write_functions(writer)
    writer.lines += body.lines
    return writer.text()


def _write_pack(writer: Writer, p: RowsPlan, places: dict[str, int]) -> None:
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    if not places:
        writer.line('(void)constants, (void)packed;')
    floats = 0
    for number, tensor in enumerate(p.group.with_role('constant')):
        writer.line(f'memcpy(packed + {places[tensor.name]}, constants[{number}], {tensor.bytes});')
        floats = places[tensor.name] + abi.aligned(tensor.size)
    writer.close()
    writer.line()
    abi.write_sizes(writer, p.schedule.threads, 0, floats)


def _write_part(
    writer: Writer, p: RowsPlan, places: dict[str, int], texts: tuple[Typed, VectorTexts]
) -> None:
    typed, _ = texts
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(p.group.with_role('input'))}
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    nest = Nest(p.group.stages[-1], p.schedule, writer)
    nest.open_parts()
    low, high = nest.at(p.row)
    writer.open(f'for (long row = {low}; row < {high}; row++)')
    for tensor in p.group.tensors:
        if tensor.role == 'inner':
            continue
        kind = C_TYPES[tensor.dtype]
        base = inputs.get(tensor.name) or f'(args->packed + {places.get(tensor.name, 0)})'
        const = '' if tensor.role == 'output' else 'const '
        if tensor.role == 'output':
            base = 'args->out'
        step = ''
        if tensor.size == p.group.output.size and len(tensor.shape) > 1:
            step = f' + row * {p.length}'
        writer.line(
            f'{const}{kind} *restrict {_pointer(tensor.name)} = ({const}{kind} *){base}{step};'
        )
    scalars: set[str] = set()
    for stage in p.group.stages:
        if stage.combiner:
            _write_sum(writer, p, stage, scalars, texts)
        elif stage is p.group.stages[-1]:
            formula = by_inverses(stage, scalars)
            for name, denominator in formula.inverses:
                reads = [_scalar(a.tensor, scalars) for a in stage.reads]
                text = typed_text(typed, denominator, reads)
                writer.line(f'const float {_value(name)} = 1.0f / {text};')
            known = scalars | {name for name, _ in formula.inverses}
            _write_result(writer, p, formula, known, texts)
        else:
            reads = [_scalar(a.tensor, scalars) for a in stage.reads]
            text = typed_text(typed, stage.expr, reads)
            writer.line(f'const float {_value(stage.write.tensor)} = {text};')
        scalars.add(stage.write.tensor)
    writer.close(2)


def _pointer(tensor: str) -> str:
    return f'{tensor}_p'


def _value(tensor: str) -> str:
    return f'{tensor}_s'


def _scalar(tensor: str, scalars: set[str]) -> str:
    """A number of the row: computed, or read."""
    return _value(tensor) if tensor in scalars else f'{_pointer(tensor)}[0]'


def _texts(p: RowsPlan, formula: Formula, scalars: set[str], at: str, whole: bool) -> list[str]:
    """What an expression reads: vectors from `at` on, or the number there."""
    found = []
    for access in formula.reads:
        name = access.tensor
        if len(access.index) == 1 and p.along not in access.names:
            text = _scalar(name, scalars)
            found.append(f'({broadcast(text)})' if whole else text)
            continue
        dtype = p.group.tensor(name).dtype
        place = f'{_pointer(name)} + {at}'
        if whole:
            found.append(f'take_{dtype}({place})')
        else:
            found.append(f'bf16_float(*({place}))' if dtype == 'bf16' else f'*({place})')
    return found


def _write_sum(
    writer: Writer, p: RowsPlan, stage: Stage, scalars: set[str], texts: tuple[Typed, VectorTexts]
) -> None:
    typed, vectors = texts
    lanes, name = ISAS[p.schedule.isa].lanes, _value(stage.write.tensor)
    step, length = TOGETHER * lanes, p.length
    formula = Formula(stage.expr, stage.reads)
    writer.line(f'float {name} = 0.0f;')
    writer.open('')
    writer.line(f'row_v sums[{TOGETHER}] = {{{", ".join(["zero_v"] * TOGETHER)}}};')
    writer.line('long x = 0;')
    writer.line(f'for (; x + {step} <= {length}; x += {step})')
    writer.line(f'    for (long u = 0; u < {TOGETHER}; u++)')
    made = vectors.text(stage.expr, _texts(p, formula, scalars, f'x + {lanes} * u', True))
    writer.line(f'        sums[u] += {made};')
    writer.line(f'for (; x + {lanes} <= {length}; x += {lanes})')
    made = vectors.text(stage.expr, _texts(p, formula, scalars, 'x', True))
    writer.line(f'    sums[0] += {made};')
    writer.line(f'for (; x < {length}; x++)')
    one = typed_text(typed, stage.expr, _texts(p, formula, scalars, 'x', False))
    writer.line(f'    {name} += {one};')
    writer.line('const row_v joined = (sums[0] + sums[1]) + (sums[2] + sums[3]);')
    if ISAS[p.schedule.isa].arch == 'x86_64':
        writer.line(f'{name} += _mm512_reduce_add_ps((__m512)joined);')
    else:
        writer.line(f'for (int lane = 0; lane < {lanes}; lane++)')
        writer.line(f'    {name} += joined[lane];')
    writer.close()


def _write_result(
    writer: Writer,
    p: RowsPlan,
    formula: Formula,
    scalars: set[str],
    texts: tuple[Typed, VectorTexts],
) -> None:
    typed, vectors = texts
    lanes, out, dtype = ISAS[p.schedule.isa].lanes, p.group.output.name, p.group.output.dtype
    writer.line('long x = 0;')
    writer.line(f'for (; x + {lanes} <= {p.length}; x += {lanes})')
    made = vectors.text(formula.expr, _texts(p, formula, scalars, 'x', True))
    writer.line(f'    put_{dtype}({_pointer(out)} + x, {made});')
    writer.line(f'for (; x < {p.length}; x++)')
    one = typed_text(typed, formula.expr, _texts(p, formula, scalars, 'x', False))
    one = f'float_bf16({one})' if dtype == 'bf16' else one
    writer.line(f'    {_pointer(out)}[x] = {one};')
