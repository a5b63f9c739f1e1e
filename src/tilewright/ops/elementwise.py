"""Element by element: functions of tensors that broadcast, copies, other orders of dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import SpecError
from tilewright.ops.convolution import _whole
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import ACTIVATIONS, check_activation
from tilewright.ops.stage import FUNCTIONS, Access, Affine, Dim, Expr, Stage, call, read, var


def elementwise(
    function: str | Expr, *shapes: Sequence[int], dims: Sequence[str] | None = None
) -> Group:
    """Out = function(In0, In1, ..): one of `FUNCTIONS`, or an expression that reads the inputs.

    Shapes broadcast as in numpy. The inputs are called In0, In1, .., a single one In.
    """
    given = [tuple(_whole('a size', size, 1) for size in shape) for shape in shapes]
    if not given:
        raise SpecError('an element-wise operator needs the shape of at least one input')
    if isinstance(function, str):
        if function not in FUNCTIONS:
            raise SpecError(f'unknown function {function!r}; known: {", ".join(FUNCTIONS)}')
        expr = call(function, *(read(i) for i in range(len(given))))
    else:
        expr = function
    sizes = _broadcast(given)
    names = _names(sizes, dims)
    domain = tuple(Dim(d, size) for d, size in zip(names, sizes, strict=True))
    inputs, reads = [], []
    for number, shape in enumerate(given):
        name = f'In{number}' if len(given) > 1 else 'In'
        own = names[len(names) - len(shape) :]
        index = (
            var(d) if size > 1 or sizes[names.index(d)] == 1 else Affine(())
            for d, size in zip(own, shape, strict=True)
        )
        inputs.append(Tensor(name, own, shape))
        reads.append(Access(name, tuple(index)))
    word = function if isinstance(function, str) else 'expression'
    stage = Stage(word, domain, Access('Out', tuple(map(var, names))), tuple(reads), expr)
    label = f'{word}-{",".join("x".join(map(str, shape)) for shape in given)}'
    return Group(label, (*inputs, Tensor('Out', names, sizes, 'output')), (stage,))


def activate(name: str, shape: Sequence[int], *, dims: Sequence[str] | None = None) -> Group:
    """Out = activation(In)."""
    check_activation(name)
    return _renamed(elementwise(ACTIVATIONS[name], shape, dims=dims), name)


def copy(shape: Sequence[int], *, dims: Sequence[str] | None = None) -> Group:
    """Out = In; with `ops.slices.into_slice` one branch of a concatenation."""
    return _renamed(elementwise(read(0), shape, dims=dims), 'copy')


def transpose(
    shape: Sequence[int], order: Sequence[int], *, dims: Sequence[str] | None = None
) -> Group:
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
        Tensor('In', names, sizes),
        Tensor('Out', tuple(turned), tuple(sizes[i] for i in order), 'output'),
    )
    label = f'transpose-{"x".join(map(str, sizes))}to{"".join(map(str, order))}'
    return Group(label, tensors, (stage,))


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
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


def _renamed(group: Group, name: str) -> Group:
    stage = group.stages[0]
    renamed = Stage(name, stage.dims, stage.write, stage.reads, stage.expr)
    label = group.label.replace('expression', name, 1)
    return Group(label, group.tensors, (renamed,))
