"""Winograd's algorithm as a group of stages: what kernels of it are compared with.

`lower(group, m)` has the output of the convolution `group`, by the stages of ops/winograd.py;
`matrices` are the values of its constants.
"""

from __future__ import annotations

import numpy as np

from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Dim, Stage, affine, call, read, var
from tilewright.ops.winograd import Tile, geometry, matmul_stage


def lower(group: Group, m: Tile) -> Group:
    """[Group] -> [Group]: the same output by F(m, r), stage by stage.

    Tiles reach beyond the image: the transforms read zeros there, as padding does, and write a
    tensor of whole tiles ('Whole'), of which a pointwise stage keeps the image. The transform
    matrices are constants of the new group; `matrices(group, m)` gives their values.
    """
    shape, stage = geometry(group, m), group.main
    down, across = shape.down, shape.across
    product, grouped = matmul_stage(group, m), shape.g > 1
    image, weights = stage.reads
    batch = (Dim('g', shape.g),) if grouped else ()
    at_g = (var('g'),) if grouped else ()
    channel, filter_k = image.index[1], weights.index[0]
    ph, pw = Dim('ph', shape.ph), Dim('pw', shape.pw)
    n, c, k = Dim('n', shape.n), Dim('c', shape.c), Dim('k', shape.k)
    i, j = Dim('i', down.t), Dim('j', across.t)
    reached = (shape.pw - 1) * across.step + across.length
    t_ij = affine(('i', across.t), ('j', 1))

    def sum_over(
        name: str, out: tuple[Dim, ...], over: Dim, write: Access, *reads: Access
    ) -> Stage:
        reduced = Dim(over.name, over.size, 'reduction')
        return Stage(name, (*out, reduced), write, reads, call('mul', read(0), read(1)), 'sum')

    s, x = Dim('s', across.r), Dim('x', reached)
    a, b = Dim('a', down.length), Dim('b', across.length)
    y, z = Dim('y', down.m), Dim('z', across.m)
    stages = (
        sum_over(
            'filter_rows', (i, *batch, k, c, s), Dim('r', down.r),
            Access('Gg', (var('i'), *at_g, var('k'), var('c'), var('s'))),
            Access('G_h', (var('i'), var('r'))),
            Access(weights.tensor, (filter_k, var('c'), var('r'), var('s'))),
        ),
        sum_over(
            'filter_columns', (i, j, *batch, k, c), s,
            Access('U', (t_ij, *at_g, var('k'), var('c'))),
            Access('G_w', (var('j'), var('s'))),
            Access('Gg', (var('i'), *at_g, var('k'), var('c'), var('s'))),
        ),
        sum_over(
            'input_rows', (i, n, *batch, c, ph, x), a,
            Access('Bd', (var('i'), var('n'), *at_g, var('c'), var('ph'), var('x'))),
            Access('Bt_h', (var('i'), var('a'))),
            Access(image.tensor, (
                var('n'), channel, affine(('ph', down.step), ('a', 1), const=-shape.pad_top),
                affine(('x', 1), const=-shape.pad_left),
            )),
        ),
        sum_over(
            'input_columns', (i, j, n, *batch, c, ph, pw), b,
            Access('V', (t_ij, var('n'), *at_g, var('c'), var('ph'), var('pw'))),
            Access('Bt_w', (var('j'), var('b'))),
            Access('Bd', (
                var('i'), var('n'), *at_g, var('c'), var('ph'),
                affine(('pw', across.step), ('b', 1)),
            )),
        ),
        product,
        sum_over(
            'output_rows', (y, j, n, *batch, k, ph, pw), i,
            Access('Am', (var('y'), var('j'), var('n'), *at_g, var('k'), var('ph'), var('pw'))),
            Access('At_h', (var('y'), var('i'))),
            Access('M', (t_ij, var('n'), *at_g, var('k'), var('ph'), var('pw'))),
        ),
        sum_over(
            'output_columns', (y, z, n, *batch, k, ph, pw), j,
            Access('Whole', (
                var('n'), stage.write.index[1], affine(('ph', down.m), ('y', 1)),
                affine(('pw', across.m), ('z', 1)),
            )),
            Access('At_w', (var('z'), var('j'))),
            Access('Am', (var('y'), var('j'), var('n'), *at_g, var('k'), var('ph'), var('pw'))),
        ),
        _crop(group),
        *group.epilogue,
    )  # fmt: skip
    made = {
        'Gg': (down.t, shape.g, shape.k, shape.c, across.r),
        'U': (shape.t, shape.g, shape.k, shape.c),
        'Bd': (down.t, shape.n, shape.g, shape.c, shape.ph, reached),
        'V': (shape.t, shape.n, shape.g, shape.c, shape.ph, shape.pw),
        'M': (shape.t, shape.n, shape.g, shape.k, shape.ph, shape.pw),
        'Am': (down.m, across.t, shape.n, shape.g, shape.k, shape.ph, shape.pw),
    }
    inner = []
    for name, sizes in made.items():
        access = next(v.write for v in stages if v.write.tensor == name)
        place = {'Gg': 1, 'U': 1}.get(name, 3 if name == 'Am' else 2)
        kept = sizes if grouped else (*sizes[:place], *sizes[place + 1 :])
        dims = tuple('_'.join(e.names) for e in access.index)
        inner.append(Tensor(name, dims, kept, 'inner'))
    whole = (shape.n, shape.g * shape.k, shape.ph * down.m, shape.pw * across.m)
    inner.append(Tensor('Whole', ('n', 'k', 'h', 'w'), whole, 'inner'))
    constants = [
        Tensor(name, ('row', 'column'), value.shape, 'constant')
        for name, value in matrices(group, m).items()
    ]
    storage = (*group.storage, ('V', 'cache'), ('M', 'cache'))
    return Group(
        f'{group.label}@{shape.name}',
        (*group.tensors, *constants, *inner),
        stages,
        storage,
    )


def _crop(group: Group) -> Stage:
    """Out of whole tiles, the image: what the convolution itself would have written."""
    target = group.tensor(group.main.write.tensor)
    dims = tuple(Dim(d, size) for d, size in zip('nkhw', target.shape, strict=True))
    here = tuple(var(d.name) for d in dims)
    return Stage('crop', dims, Access(target.name, here), (Access('Whole', here),), read(0))


def matrices(group: Group, m: Tile) -> dict[str, np.ndarray]:
    """The transform matrices by the names that `lower` gives them, in float64."""
    shape = geometry(group, m)
    return {
        f'{prefix}_{axis}': f.array(name)
        for prefix, name in (('G', 'g'), ('Bt', 'bt'), ('At', 'at'))
        for axis, f in (('h', shape.down), ('w', shape.across))
    }
