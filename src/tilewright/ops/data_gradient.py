"""The data gradient of a convolution as a convolution: other weights, and the usual names.

    Grad[n c h w] += Up[n k h+r w+s] * Back[k c r s]     as derived (ops/adjoint.py)
    Grad[n k h w] += Up[n c h+r w+s] * Turned[k c r s]   as ops/convolution.py describes them

Goes in: the group that reverses the weights, and the one that sums. Comes out: both with channels
exchanged in the copy, so that whatever computes convolutions (Winograd) computes their gradients;
None for what is no such pair.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Affine, Dim, var

ORDER = ('n', 'k', 'h', 'w', 'c', 'r', 's')
OTHER = {'k': 'c', 'c': 'k'}


def as_convolution(copy: Group, group: Group) -> tuple[Group, Group] | None:
    """(the copy of the weights, the sums) in the form of a convolution with stride 1."""
    stage = group.stages[0]
    names = {d.name for d in stage.dims}
    if len(group.stages) > 1 or not stage.is_product_sum or names != set(ORDER):
        return None
    image, weights = stage.reads
    plain = (
        weights.tensor == copy.output.name
        and weights.index == tuple(map(var, ('k', 'c', 'r', 's')))
        and stage.write.index == tuple(map(var, ('n', 'c', 'h', 'w')))
        and image.index[:2] == (var('n'), var('k'))
        and image.is_affine
    )
    if not plain:
        return None
    sizes = {OTHER.get(d.name, d.name): d for d in stage.dims}
    turned = replace(
        stage,
        dims=tuple(replace(sizes[name], name=name) for name in ORDER),
        write=_renamed(stage.write),
        reads=(_renamed(image), Access(weights.tensor, tuple(map(var, ('k', 'c', 'r', 's'))))),
    )
    shape = _exchanged(copy.output.shape)
    tensors = tuple(
        replace(t, shape=shape) if t.name == weights.tensor
        else replace(t, dims=tuple(OTHER.get(d, d) for d in t.dims))
        for t in group.tensors
    )  # fmt: skip
    return _copied(copy), replace(group, tensors=tensors, stages=(turned,))


def _copied(copy: Group) -> Group:
    """The copy with its first two axes exchanged; iterators keep the order of the result."""
    stage = copy.stages[0]
    (source,) = stage.reads
    first, second, *rest = stage.dims
    dims = (Dim(first.name, second.size), Dim(second.name, first.size), *rest)
    index = _exchanged(source.index)
    made = replace(stage, dims=dims, reads=(replace(source, index=index),))
    out = replace(copy.output, shape=_exchanged(copy.output.shape))
    tensors = tuple(out if t.role == 'output' else t for t in copy.tensors)
    return replace(copy, label=f'{copy.label}-turned', tensors=tensors, stages=(made,))


def _exchanged(items: tuple) -> tuple:
    return (items[1], items[0], *items[2:])


def _renamed(access: Access) -> Access:
    index = (
        Affine(tuple((OTHER.get(n, n), factor) for n, factor in e.terms), e.const)
        for e in access.index
    )
    return replace(access, index=tuple(index))
