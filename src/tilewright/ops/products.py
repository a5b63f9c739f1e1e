"""Matrix products beside `ops.matmul`: stacks of matrices that broadcast, and Einstein sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tilewright.ops.describe import Shape, broadcast, group_of, label_of
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Dim, Stage, call, read, var


def stacked_product(a: Shape, b: Shape, dtype: str = 'f32') -> Group:
    """C = numpy.matmul(A, B): [.., m, k] times [.., k, n]; what stands before broadcasts."""
    stack = broadcast([a[:-2], b[:-2]])
    names = [f'b{i}' for i in range(len(stack))]

    def index(shape: Shape) -> tuple[Affine, ...]:
        own = names[len(names) - len(shape) :]
        whole = stack[len(stack) - len(shape) :]
        return tuple(
            var(d) if size == full else Affine(())
            for d, size, full in zip(own, shape, whole, strict=True)
        )

    dims = (*(Dim(d, s) for d, s in zip(names, stack, strict=True)), Dim('i', a[-2]))
    dims = (*dims, Dim('j', b[-1]))
    stage = Stage(
        'matmul',
        (*dims, Dim('k', a[-1], 'reduction')),
        Access('C', tuple(var(d.name) for d in dims)),
        (Access('A', (*index(a[:-2]), var('i'), var('k'))),
         Access('B', (*index(b[:-2]), var('k'), var('j')))),
        call('mul', read(0), read(1)),
        'sum',
    )  # fmt: skip
    return group_of(label_of('matmul', a, b), [stage], {'A': a, 'B': b}, dtype)


def einsum(
    label: str,
    shapes: Sequence[Shape],
    terms: Sequence[Sequence[str]],
    out: Sequence[str],
    sizes: Mapping[str, int],
    dtype: str = 'f32',
) -> Group:
    """A sum of products over named dimensions: one stage, whatever the equation.

    terms  the dimensions of each operand, out: those of the result, sizes: of all of them
    """
    reads, expr, named = [], read(0), {}
    for number, (term, shape) in enumerate(zip(terms, shapes, strict=True)):
        places = [
            var(name) if size == sizes[name] else Affine(())
            for name, size in zip(term, shape, strict=False)
        ]
        named[f'In{number}'] = shape
        reads.append(Access(f'In{number}', tuple(places) or (Affine(()),)))
        expr = call('mul', expr, read(number)) if number else expr
    parallel = [Dim(name, sizes[name]) for name in out] or [Dim('one', 1)]
    over = [Dim(name, size, 'reduction') for name, size in sizes.items() if name not in out]
    stage = Stage(
        'einsum', (*parallel, *over), Access('Out', tuple(var(d.name) for d in parallel)),
        tuple(reads), expr, 'sum' if over else None,
    )  # fmt: skip
    return group_of(label, [stage], named, dtype)
