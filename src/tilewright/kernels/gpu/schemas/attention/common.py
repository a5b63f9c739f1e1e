"""Lines that kernels of attention share: loops, what stands between the products, places."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.kernels.cpu.writer import scaled, total
from tilewright.kernels.gpu import half, pieces
from tilewright.kernels.gpu.schemas.attention.plan import KEYS, ROWS, AttentionPlan
from tilewright.kernels.gpu.typed import GpuTyped, narrow
from tilewright.ops.attention import COLUMN, KEY, ROW
from tilewright.ops.dtypes import HALVES, computed


def each(name: str, count: int, body: Sequence[str]) -> list[str]:
    """An unrolled loop."""
    return [
        '#pragma unroll',
        f'for (int {name} = 0; {name} < {count}; {name}++) {{',
        *pieces.indented(body),
        '}',
    ]


def tiles(p: AttentionPlan) -> tuple[int, int, int]:
    """Tiles of rows, of keys and of columns of a warp."""
    return p.own // ROWS, p.keys // p.sharing // KEYS, p.columns // KEYS


def between(p: AttentionPlan, typed: GpuTyped, score: str) -> list[str]:
    """`value` of a score at i and j, by the stages between the product and the softmax."""
    values, lines, last = {p.form.scores.write.tensor: score}, [], score
    names = {d: d for d in (*p.form.stack, ROW, KEY)}
    for number, stage in enumerate(p.form.between):
        reads = []
        for access in stage.reads:
            if access.tensor in values:
                reads.append((values[access.tensor], 'f32'))
                continue
            strides, const = p.strides(access)
            at = total([*(scaled(d, strides[d]) for d in names), str(const)])
            dtype = p.dtype(access)
            reads.append((typed.loaded(f'{access.tensor}[{at}]', dtype), computed(dtype)))
        text, dtype = typed.text(stage.expr, reads, names)
        last = values[stage.write.tensor] = f'value_{number}'
        lines.append(f'const float {last} = {narrow(typed.convert(text, dtype, "f32"))};')
    return [*lines, f'value = {last};']


def place_of(p: AttentionPlan, row: str, column: str) -> str:
    """An element of the result."""
    write = p.form.values.write
    strides, const = p.strides(write)
    stack = (scaled(d, strides[d]) for d in p.form.stack)
    own = (scaled(row, strides[ROW]), scaled(column, strides[COLUMN]))
    return f'{write.tensor}[{total([*stack, *own, str(const)])}]'


def stored_at(p: AttentionPlan, target: str, values: Sequence[str]) -> str:
    """Store neighbours of the result from `target` on."""
    dtype = p.dtype(p.form.values.write)
    if dtype not in HALVES:
        return pieces.stored(target, values)
    return half.store(values, f'&{target}', dtype)[0]
