"""Element by element: functions of tensors that broadcast, copies, other orders of dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.dtypes import dtype_of
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import ACTIVATIONS, check_activation
from tilewright.ops.stage import FUNCTIONS, Access, Affine, Dim, Expr, Stage, call, read, var


def elementwise(
    function: str | Expr,
    *shapes: Sequence[int],
    dims: Sequence[str] | None = None,
    dtypes: Sequence[str] | None = None,
    roles: Sequence[str] | None = None,
    out: str | None = None,
    name: str | None = None,
) -> Group:
    """Out = function(In0, In1, ..): one of `FUNCTIONS`, or an expression that reads the inputs.

    Shapes broadcast as in numpy. The inputs are called In0, In1, .., a single one In.
    dtypes, roles  of the inputs: float32 that changes from call to call, where not given
    out            the dtype of the result; the expression's own (ops/dtypes.py) where not given
    name           what the stage is called, in place of the function
    """
    given = [tuple(_whole('a size', size, 1) for size in shape) for shape in shapes]
    if not given:
        raise SpecError('an element-wise operator needs the shape of at least one input')
    if isinstance(function, str):
        if function not in FUNCTIONS or function == 'cast':
            raise SpecError(f'unknown function {function!r}; known: {", ".join(FUNCTIONS)}')
        expr = call(function, *(read(i) for i in range(len(given))))
    else:
        expr = function
    kinds = _each('dtypes', dtypes, 'f32', len(given))
    parts = _each('roles', roles, 'input', len(given))
    sizes = broadcast(given)
    names = _names(sizes, dims)
    domain = tuple(Dim(d, size) for d, size in zip(names, sizes, strict=True))
    inputs, reads = [], []
    for number, shape in enumerate(given):
        called = f'In{number}' if len(given) > 1 else 'In'
        own = names[len(names) - len(shape) :]
        index = (
            var(d) if size > 1 or sizes[names.index(d)] == 1 else Affine(())
            for d, size in zip(own, shape, strict=True)
        )
        inputs.append(Tensor(called, own, shape, parts[number], kinds[number]))
        reads.append(Access(called, tuple(index)))
    word = name or (function if isinstance(function, str) else 'expression')
    stage = Stage(word, domain, Access('Out', tuple(map(var, names))), tuple(reads), expr)
    kind = out or dtype_of(expr, kinds)
    mark = '' if {kind, *kinds} == {'f32'} else f'@{",".join(kinds)}:{kind}'
    label = f'{word}-{",".join("x".join(map(str, shape)) for shape in given)}{mark}'
    return Group(label, (*inputs, Tensor('Out', names, sizes, 'output', kind)), (stage,))


def activate(
    name: str, shape: Sequence[int], *, dims: Sequence[str] | None = None, dtype: str = 'f32'
) -> Group:
    """Out = activation(In)."""
    check_activation(name)
    return elementwise(ACTIVATIONS[name], shape, dims=dims, dtypes=[dtype], out=dtype, name=name)


def copy(
    shape: Sequence[int], *, dims: Sequence[str] | None = None, dtype: str = 'f32',
    out: str | None = None,
) -> Group:  # fmt: skip
    """Out = In; with `ops.slices.into_slice` one branch of a concatenation.

    With another dtype `out` it converts.
    """
    name = 'copy' if out in (None, dtype) else 'convert'
    return elementwise(read(0), shape, dims=dims, dtypes=[dtype], out=out or dtype, name=name)


def transpose(
    shape: Sequence[int], order: Sequence[int], *, dims: Sequence[str] | None = None,
    dtype: str = 'f32',
) -> Group:  # fmt: skip
    """Another layout: dimension i of Out is dimension order[i] of In (NCHW to NHWC: 0, 2, 3, 1)."""
    sizes = tuple(_whole('a size', size, 1) for size in shape)
    if sorted(order) != list(range(len(sizes))):
        raise SpecError(f'order {tuple(order)} must name each of {len(sizes)} dimensions once')
    names = _names(sizes, dims)
    turned = [names[i] for i in order]
    domain = tuple(Dim(names[i], sizes[i]) for i in order)
    stage = Stage(
        'transpose', domain, Access('Out', tuple(map(var, turned))),
        (Access('In', tuple(map(var, names))),), read(0),
    )  # fmt: skip
    tensors = (
        Tensor('In', names, sizes, dtype=dtype),
        Tensor('Out', tuple(turned), tuple(sizes[i] for i in order), 'output', dtype),
    )
    label = f'transpose-{"x".join(map(str, sizes))}to{"".join(map(str, order))}'
    return Group(label if dtype == 'f32' else f'{label}@{dtype}', tensors, (stage,))


def _each(what: str, given: Sequence[str] | None, default: str, count: int) -> tuple[str, ...]:
    if given is not None and len(given) != count:
        raise SpecError(f'{len(given)} {what} for {count} inputs; give one for each')
    return tuple(given or [default] * count)


def broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that all of these broadcast to, as in numpy."""
    rank = max(map(len, shapes))
    sizes = []
    for axis in range(-rank, 0):
        found = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(found) > 1:
            raise SpecError(f'shapes {list(shapes)} do not broadcast: {sorted(found)} differ')
        sizes.append(found.pop() if found else 1)
    return tuple(sizes)


def _names(sizes: tuple[int, ...], dims: Sequence[str] | None) -> tuple[str, ...]:
    """Names of the dimensions: those given, n c h w for four, else d0 d1 .."""
    names = tuple(dims or ('nchw' if len(sizes) == 4 else [f'd{i}' for i in range(len(sizes))]))
    if len(names) != len(sizes):
        raise SpecError(f'{names} names {len(names)} of {len(sizes)} dimensions')
    return names
