"""Joined dimensions: the same addresses, the same results, and only where all tensors agree."""

import itertools

import numpy as np
import pytest

from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.ops.blocked import blocked
from tilewright.ops.convolution import conv2d
from tilewright.ops.flatten import flatten, tiled_form
from tilewright.ops.group import Group, Tensor
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Dim, Stage, call, read, var

POINTWISE = conv2d(n=2, c=5, h=4, w=3, k=6, r=1, s=1, bias=True, activation='relu')
UNCHANGED = {
    'window': conv2d(c=4, h=6, w=6, k=8, r=3, s=3),
    'row of a window': conv2d(c=4, h=6, w=6, k=8, r=1, s=3),
    'stride': conv2d(c=4, h=6, w=6, k=8, r=1, s=1, stride=2),
    'padding': conv2d(c=4, h=6, w=6, k=8, r=1, s=1, pad=1),
    'depthwise': conv2d(c=4, h=6, w=6, k=4, r=3, s=3, pad=1, groups=4),
    'product': matmul(m=4, n=6, k=5),
}


def scaled_rows(dims: tuple[str, ...], shape: tuple[int, ...]) -> Group:
    """A sum over c, then a product with a tensor over some of the pixel dimensions."""
    image = (Dim('h', 4), Dim('w', 3))
    summed = Stage(
        'sum',
        (*image, Dim('c', 5, 'reduction')),
        Access('Acc', (var('h'), var('w'))),
        (Access('In', (var('c'), var('h'), var('w'))), Access('Ker', (var('c'),))),
        call('mul', read(0), read(1)),
        'sum',
    )
    scaled = Stage(
        'scale',
        image,
        Access('Out', (var('h'), var('w'))),
        (Access('Acc', (var('h'), var('w'))), Access('Scale', tuple(map(var, dims)))),
        call('mul', read(0), read(1)),
    )
    tensors = (
        Tensor('In', ('c', 'h', 'w'), (5, 4, 3)),
        Tensor('Ker', ('c',), (5,), 'constant'),
        Tensor('Scale', dims, shape),
        Tensor('Acc', ('h', 'w'), (4, 3), 'inner'),
        Tensor('Out', ('h', 'w'), (4, 3), 'output'),
    )
    return Group('scaled', tensors, (summed, scaled))


def addresses(group: Group, access: Access, names: tuple[str, ...]) -> list[int]:
    """Addresses of an access over all points of `names`, in row-major order, others at zero."""
    strides, const = access_strides(group, access)
    ranges = (range(group.main.sizes[d]) for d in names)
    return [
        const + sum(strides.get(d, 0) * i for d, i in zip(names, point, strict=True))
        for point in itertools.product(*ranges)
    ]


def test_pixels_of_a_pointwise_convolution_are_one_dimension():
    flat = flatten(POINTWISE)
    assert flat.main.sizes == {'n': 2, 'k': 6, 'hw': 12, 'c': 5}
    assert [t.size for t in flat.tensors] == [t.size for t in POINTWISE.tensors]
    assert flat.flops == POINTWISE.flops
    for before, after in zip(POINTWISE.main.accesses, flat.main.accesses, strict=True):
        for name in ('n', 'k', 'c'):
            assert addresses(POINTWISE, before, (name,)) == addresses(flat, after, (name,))
        assert addresses(POINTWISE, before, ('h', 'w')) == addresses(flat, after, ('hw',))


@pytest.mark.parametrize('group', [POINTWISE, scaled_rows(('h', 'w'), (4, 3))])
def test_the_reference_is_the_same(group):
    random, flat = np.random.default_rng(0), flatten(group)
    assert flat.main.sizes != group.main.sizes
    arrays = {
        t.name: random.standard_normal(t.shape).astype(np.float32)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }
    shaped = {name: array.reshape(flat.tensor(name).shape) for name, array in arrays.items()}
    want = reference(group, arrays)
    assert np.allclose(reference(flat, shaped).reshape(want.shape), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize('name', UNCHANGED)
def test_what_cannot_be_joined_stays_as_it_is(name):
    assert flatten(UNCHANGED[name]) == UNCHANGED[name]


@pytest.mark.parametrize(('dims', 'shape'), [(('h',), (4,)), (('w', 'h'), (3, 4))])
def test_an_epilogue_that_tells_rows_from_columns_keeps_them_apart(dims, shape):
    assert flatten(scaled_rows(dims, shape)).main.sizes == {'h': 4, 'w': 3, 'c': 5}


def test_blocked_tensors_are_joined_in_front_of_their_blocks():
    group = blocked(conv2d(c=8, h=4, w=3, k=8, r=1, s=1), {'In': 4, 'Out': 8})
    assert flatten(group).main.sizes == {'n': 1, 'kb': 1, 'hw': 12, 'kl': 8, 'cb': 2, 'cl': 4}


def test_flattening_again_changes_nothing():
    flat = flatten(POINTWISE)
    assert flatten(flat) is flat


def test_a_schedule_finds_the_form_that_it_tiles():
    assert tiled_form(POINTWISE, POINTWISE.main.sizes) is POINTWISE
    assert tiled_form(POINTWISE, ('c', 'hw', 'k', 'n')) == flatten(POINTWISE)
    assert tiled_form(POINTWISE, ('i', 'j')) is POINTWISE
