"""The gradient of a table whose rows were looked up, without scattered writes.

    Out[j, a] = Table[Indices[j], a]            Grad[x, a] = sum of Up[j, a] over Indices[j] = x

Goes in: the stage of such a lookup and its tensors. Comes out: the tensors to compute, in order. By
the definition every row of the table is compared with every lookup, for each of its elements. Here
the lookups are compared with each other once, which is a matrix of zeros and ones, and a product
with it adds up what belongs to one row, for each lookup:

    Same[i, j] = Indices[i] = Indices[j]        Rows[i, a] = sum over j of Same[i, j] Up[j, a]
    Seen[x]    = the first j with Indices[j] = x, or how many there are
    Grad[x, a] = Rows[Seen[x], a], or 0 where x was not looked up

Every sum has one order, so that results are the same every time. `rows_at_once` goes back to the
definition, in one group, for targets with a kernel that follows the list (`scattered` tells it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.ops.describe import group_of
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import (
    Access,
    Affine,
    Dim,
    Expr,
    Stage,
    call,
    const,
    index,
    read,
    var,
    whole,
)

LARGE = 1 << 16  # comparisons of the definition from which on this is shorter


def looked_up(at: Expr, extent: int) -> Expr:
    """Where a lookup leads: negative ones count from the end, others to the nearest."""
    at = call('where', call('lt', at, whole(0)), call('add', at, whole(extent)), at)
    return call('min', call('max', at, whole(0)), whole(extent - 1))


def by_rows(
    stage: Stage, number: int, tensors: Mapping[str, Tensor], up: str, grad: str
) -> list[Group]:
    """The groups of Same, Rows, Seen, At and the gradient `grad`; none where that is longer.

    `up` is the gradient of what the stage writes, `number` the read of the table.
    """
    table = stage.reads[number]
    if stage.combiner is not None or stage.expr != read(number) or len(table.lookups) != 1:
        return []
    ((axis, by),) = table.lookups
    shape, at = tensors[table.tensor].shape, stage.reads[by]
    extent = shape[axis]
    plain = [e.names for i, e in enumerate(table.index) if i != axis and e != Affine(())]
    others = [names[0] for names in plain if len(names) == 1]
    indices = tensors[at.tensor]
    j = at.index[0].names[0] if len(at.index) == 1 and at.index[0].names else ''
    count = math.prod(indices.shape)
    fits = (
        at.is_affine and table.tables == () and at.index == (var(j),) and len(others) == len(plain)
        and all(e in (var(n) for n in others) for e in table.index if e != Affine(()))
        and {*others, j} == {d.name for d in stage.dims} and len({*others, j}) == len(stage.dims)
    )  # fmt: skip
    if not fits or count > extent or count * math.prod(shape) < LARGE:
        return []
    sizes, dtype = stage.sizes, tensors[table.tensor].dtype
    i, x = (_fresh(name, sizes) for name in ('i', 'x'))
    here = looked_up(read(0), extent)
    rows = [Dim(n, sizes[n]) for n in others]
    columns = tuple(var(n) for n in others)
    given = {at.tensor: indices.shape}
    kinds = {at.tensor: indices.dtype, 'Seen': 'i32', 'At': 'i32'}
    same = call('where', call('eq', here, looked_up(read(1), extent)), const(1.0), const(0.0))
    first = call('where', call('eq', here, index(x)), index(j), whole(count))
    found = call('where', call('lt', read(0), whole(count)), read(1), const(0.0))
    places = tuple(var(x) if place == axis else e for place, e in enumerate(table.index))
    product = Stage(
        'rows', (Dim(i, count), *rows, Dim(j, count, 'reduction')),
        Access('Rows', (var(i), *columns)),
        # Same is symmetric: read this way, neighbouring lookups lie side by side.
        (Access('Same', (var(j), var(i))), Access(up, stage.write.index)),
        call('mul', read(0), read(1)), 'sum',
    )  # fmt: skip
    shapes = {'Same': (count, count), up: tensors[up].shape}
    return [
        group_of(
            f'same-{count}',
            [Stage('same', (Dim(i, count), Dim(j, count)), Access('Same', (var(i), var(j))),
                   (Access(at.tensor, (var(i),)), at), same)],
            given, dtype, kinds,
        ),
        group_of(f'rows-{count}', [product], shapes, dtype),
        group_of(
            f'seen-{extent}',
            [Stage('seen', (Dim(x, extent), Dim(j, count, 'reduction')), Access('Seen', (var(x),)),
                   (at,), first, 'min')],
            given, dtype, kinds,
        ),
        group_of(
            f'at-{extent}',
            [Stage('at', (Dim(x, extent),), Access('At', (var(x),)), (Access('Seen', (var(x),)),),
                   call('min', read(0), whole(count - 1)))],
            {'Seen': (extent,)}, dtype, kinds,
        ),
        group_of(
            f'{stage.name}_grad-{table.tensor}-' + 'x'.join(map(str, shape)),
            [Stage(f'{stage.name}_grad', (Dim(x, extent), *rows), Access(grad, places),
                   (Access('Seen', (var(x),)),
                    Access('Rows', (Affine(()), *columns), (), ((0, 2),)),
                    Access('At', (var(x),))), found)],
            {'Seen': (extent,), 'Rows': (count, *(sizes[n] for n in others)), 'At': (extent,)},
            dtype, kinds,
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scattered:
    """Out[row, ..] = sum over `place` of (number = row ? read `added` : 0)."""

    row: str
    place: str
    number: Expr
    added: int


def scattered(stage: Stage) -> Scattered | None:
    """How a stage sums rows that a list names; None where it does not."""
    expr = stage.expr
    if stage.combiner != 'sum' or len(stage.reduction) != 1 or expr.op != 'where':
        return None
    test, value, other = expr.args
    if test.op != 'eq' or value.op != 'read' or other != const(0.0):
        return None
    number, at = test.args
    rows = [d for d in stage.parallel if at == index(d)]
    added = int(value.value)
    moved = {name for access in stage.reads for name in access.names}
    if len(rows) != 1 or list(number.iterators()) or rows[0] in moved:
        return None
    alike = all(
        a.is_affine and set(a.names) <= {*stage.reduction}
        for n, a in enumerate(stage.reads)
        if n != added
    )
    return Scattered(rows[0], stage.reduction[0], number, added) if alike else None


def rows_at_once(seen: Group, rows: Group, grad: Group) -> Group:
    """The definition, from the groups of Seen, Rows and the gradient that `by_rows` made."""
    (by,) = seen.main.reads
    (j,) = seen.main.reduction
    (x,) = seen.main.parallel
    up = rows.main.reads[1]
    here, _ = seen.main.expr.args[0].args
    kept = [d for d in grad.main.dims if d.name != x]
    sizes = seen.main.sizes
    stage = Stage(
        grad.main.name, (Dim(x, sizes[x]), *kept, Dim(j, sizes[j], 'reduction')), grad.main.write,
        (by, up), call('where', call('eq', here, index(x)), read(1), const(0.0)),
        'sum',
    )  # fmt: skip
    tensors = {t.name: t for t in (*seen.tensors, *rows.tensors)}
    return group_of(
        grad.label, [stage], {a.tensor: tensors[a.tensor].shape for a in (by, up)},
        grad.output.dtype, {by.tensor: tensors[by.tensor].dtype},
    )  # fmt: skip


def _fresh(name: str, taken: Mapping[str, int]) -> str:
    while name in taken:
        name += 'x'
    return name
