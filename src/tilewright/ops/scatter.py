"""The gradient of a table whose rows were looked up, without scattered writes.

    Out[j, a] = Table[Indices[j], a]            Grad[x, a] = sum of Up[j, a] over Indices[j] = x

Goes in: the stage of such a lookup and its tensors. Comes out: the tensors to compute, in order. By
the definition every row of the table is compared with every lookup, for each of its elements. Here
the lookups are compared with each other once, which is a matrix of zeros and ones, and a product
with it adds up what belongs to one row, for each lookup:

    Same[i, j] = Indices[i] = Indices[j]        Rows[i, a] = sum over j of Same[i, j] Up[j, a]
    Seen[x]    = the first j with Indices[j] = x, or how many there are
    Grad[x, a] = Rows[Seen[x], a], or 0 where x was not looked up

Every sum has one order, so that results are the same every time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

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


def _fresh(name: str, taken: Mapping[str, int]) -> str:
    while name in taken:
        name += 'x'
    return name
