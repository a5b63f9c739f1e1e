"""Element by element: a function of tensors that broadcast, and copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilewright.errors import SpecError
from tilewright.ops.convolution import whole_number
from tilewright.ops.describe import Shape, broadcast, dims_of, group_of, label_of
from tilewright.ops.dtypes import dtype_of
from tilewright.ops.group import Group
from tilewright.ops.stage import FUNCTIONS, Access, Affine, Expr, Stage, call, read, var


def elementwise(
    function: str | Expr,
    *shapes: Shape,
    dtypes: Sequence[str] | None = None,
    roles: Sequence[str] | None = None,
    out: str | None = None,
    name: str | None = None,
    shape: Shape = (),
) -> Group:
    """Out = function(In0, In1, ..): one of `FUNCTIONS`, or an expression that reads the inputs.

    Shapes broadcast as in numpy. The inputs are called In0, In1, .., a single one In.
    dtypes, roles  of the inputs: float32 that changes from call to call, where not given
    out            the dtype of the result; the expression's own (ops/dtypes.py) where not given
    name           what the stage is called, in place of the function
    shape          of the result, where that is more than the inputs broadcast to
    """
    given = [tuple(whole_number('a size', size, 1) for size in own) for own in shapes]
    if not given and not shape:
        raise SpecError('an element-wise operator needs the shape of at least one input')
    if isinstance(function, str):
        if function not in FUNCTIONS or function == 'cast':
            raise SpecError(f'unknown function {function!r}; known: {", ".join(FUNCTIONS)}')
        expr = call(function, *(read(i) for i in range(len(given))))
    else:
        expr = function
    kinds = _each('dtypes', dtypes, 'f32', len(given))
    sizes = broadcast([*given, tuple(shape)])
    domain = dims_of(sizes)
    called = [f'In{i}' for i in range(len(given))] if len(given) > 1 else ['In'] * len(given)
    reads = tuple(
        Access(tensor, tuple(
            Affine(()) if size == 1 and d.size > 1 else var(d.name)
            for d, size in zip(domain[len(domain) - len(own) :], own, strict=True)
        ))
        for tensor, own in zip(called, given, strict=True)
    )  # fmt: skip
    word = name or (function if isinstance(function, str) else 'expression')
    stage = Stage(word, domain, Access('Out', tuple(var(d.name) for d in domain)), reads, expr)
    group = group_of(
        label_of(word, *(given or [sizes])), [stage], dict(zip(called, given, strict=True)),
        out or dtype_of(expr, kinds), dict(zip(called, kinds, strict=True)),
    )  # fmt: skip
    if roles is None:
        return group
    parts = dict(zip(called, _each('roles', roles, 'input', len(given)), strict=True))
    tensors = tuple(replace(t, role=parts.get(t.name, t.role)) for t in group.tensors)
    return replace(group, tensors=tensors)


def copy(shape: Shape, dtype: str = 'f32') -> Group:
    """Out = In; with `ops.slices.into_slice` one branch of a concatenation."""
    return elementwise(read(0), shape, dtypes=[dtype], out=dtype, name='copy')


def _each(what: str, given: Sequence[str] | None, default: str, count: int) -> tuple[str, ...]:
    if given is not None and len(given) != count:
        raise SpecError(f'{len(given)} {what} for {count} inputs; give one for each')
    return tuple(given or [default] * count)
