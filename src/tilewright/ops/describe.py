"""Groups from stages: what every description in this package is made of.

Goes in: stages, and the shapes of what they read. Comes out: a `Group`, whose other tensors follow
from what the stages touch. Operands are inputs; whoever knows that one of them is constant changes
its role.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.errors import SpecError
from tilewright.ops.group import Group, Tensor
from tilewright.ops.parts import parts
from tilewright.ops.stage import Dim, Stage

Shape = Sequence[int]


def group_of(
    label: str,
    stages: Sequence[Stage],
    shapes: Mapping[str, Shape],
    dtype: str = 'f32',
    dtypes: Mapping[str, str] | None = None,
) -> Group:
    """The group of these stages, whose last one writes the output.

    Shapes of what is written follow from the indices. All tensors are of `dtype`, except those that
    `dtypes` names.
    """
    dims, written, kinds = {}, {}, dtypes or {}
    for stage in stages:
        for item in (*stage.reads, stage.write):
            dims[item.tensor] = tuple('_'.join(e.names) or 'one' for e in item.index)
        written[stage.write.tensor] = tuple(
            e.const + e.extent(stage.sizes) for e in stage.write.index
        )
    last = stages[-1].write.tensor
    tensors = [
        Tensor(name, dims[name], tuple(shape), dtype=kinds.get(name, dtype))
        for name, shape in shapes.items()
    ]
    for name, shape in written.items():
        role = 'output' if name == last else 'inner'
        tensors.append(Tensor(name, dims[name], shape, role, kinds.get(name, dtype)))
    group = Group(label, tuple(tensors), tuple(stages))
    held = [s.write.tensor for part in parts(group) for s in part.stages[:-1]]
    return replace(group, storage=tuple((name, 'register') for name in held))


def typed(group: Group, dtype: str) -> Group:
    """The group on elements of this dtype."""
    if dtype == 'f32':
        return group
    tensors = tuple(replace(t, dtype=dtype) for t in group.tensors)
    return replace(group, tensors=tensors, label=f'{group.label}-{dtype}')


def names_of(shape: Shape) -> tuple[str, ...]:
    """Names of dimensions: n c h w for four, as images have them, else d0 d1 .."""
    return tuple('nchw') if len(shape) == 4 else tuple(f'd{i}' for i in range(len(shape)))


def dims_of(shape: Shape) -> tuple[Dim, ...]:
    """The domain of a tensor, element by element."""
    return tuple(Dim(d, size) for d, size in zip(names_of(shape), shape, strict=True))


def label_of(word: str, *shapes: Shape) -> str:
    return f'{word}-{",".join("x".join(map(str, shape)) for shape in shapes)}'


def broadcast(shapes: Sequence[Shape]) -> tuple[int, ...]:
    """The shape that all of these broadcast to, as in numpy."""
    rank, sizes = max(map(len, shapes)), []
    for axis in range(-rank, 0):
        found = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(found) > 1:
            raise SpecError(f'shapes {[list(s) for s in shapes if s]} do not broadcast')
        sizes.append(found.pop() if found else 1)
    return tuple(sizes)
