"""Loop-order classes: the sets known from MOpt Sec. 4, and exhaustive checks on small problems."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tilewright.model.cpu.orders import (
    OrderClass,
    dominates,
    order_classes,
    overlapping,
    signatures,
)
from tilewright.model.cpu.traffic import volume
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.stage import Access, Dim, Stage, affine, call, read, var


def names(stage: Stage) -> set[str]:
    return {str(c) for c in order_classes(stage)}


DENSE = {
    '<{c,k,r,s},{h,n},w>',
    '<{c,k,r,s},{n,w},h>',
    '<{h,k,n,w},{c,r},s>',
    '<{h,k,n,w},{c,s},r>',
    '<{c,h,n,r,s},w,k>',
    '<{c,n,r,s,w},h,k>',
    '<{c,h,n,r,w},s,k>',
    '<{c,h,n,s,w},r,k>',
}


def test_dense_3x3_has_the_eight_classes_of_the_paper():
    assert names(conv2d(n=2, c=8, k=8, h=8, w=8, r=3, s=3).main) == DENSE


@pytest.mark.parametrize('change', [{'stride': 2}, {'dilation': 2}, {'pad': 1}])
def test_overlapping_windows_have_the_same_eight(change):
    assert names(conv2d(n=2, c=8, k=8, h=9, w=9, r=3, s=3, **change).main) == DENSE


def test_dims_of_size_one_take_part_in_no_class():
    stage = conv2d(n=1, c=8, k=8, h=8, w=8, r=3, s=3).main
    assert names(stage) == {c.replace('{h,n}', 'h').replace('{n,w}', 'w').replace(',n', '')
                            for c in DENSE}  # fmt: skip
    for found in order_classes(stage):
        assert found.idle == ('n',)
        assert sorted(found.representative()) == sorted(stage.sizes)
        assert found.representative() in found
        rotated = (*found.representative()[1:], 'n')
        assert rotated in found


def test_1x1_has_three():
    stage = conv2d(n=2, c=8, k=8, h=8, w=8, r=1, s=1).main
    assert names(stage) == {'<{c,k},{h,n,w}>', '<{h,k,n,w},c>', '<{c,h,n,w},k>'}


def test_depthwise_has_four():
    stage = conv2d(n=2, c=8, k=8, h=8, w=8, r=3, s=3, groups=8).main
    assert names(stage) == {
        '<{k,r,s},{h,n},w>', '<{k,r,s},{n,w},h>', '<{h,k,n,w},r,s>', '<{h,k,n,w},s,r>'
    }  # fmt: skip


def test_matmul_has_its_own_three():
    assert names(matmul(m=8, n=8, k=8).main) == {'<{i,j},k>', '<{i,k},j>', '<{j,k},i>'}


def test_stride_of_the_window_leaves_no_partial_reuse():
    stage = conv2d(n=2, c=8, k=8, h=9, w=9, r=3, s=3, stride=3).main
    assert overlapping(stage.reads[0], stage.sizes) == frozenset()
    assert names(stage) == {'<{c,k,r,s},{h,n,w}>', '<{h,k,n,w},{c,r,s}>', '<{c,h,n,r,s,w},k>'}


def test_groups_do_not_overlap_but_their_windows_do():
    stage = conv2d(n=2, c=8, k=8, h=8, w=8, r=3, s=3, groups=2).main
    assert overlapping(stage.reads[0], stage.sizes) == {'h', 'w', 'r', 's'}
    assert overlapping(stage.write, stage.sizes) == frozenset()
    assert len(order_classes(stage)) == 8
    assert all('g' in found.bands[0] for found in order_classes(stage))


def test_three_iterators_in_one_index():
    access = Access('A', (affine(('i', 1), ('j', 4), ('k', 16)),))
    assert overlapping(access, {'i': 4, 'j': 4, 'k': 4}) == frozenset()
    assert overlapping(access, {'i': 5, 'j': 4, 'k': 4}) == {'i', 'j', 'k'}
    assert overlapping(access, {'i': 5, 'j': 4, 'k': 1}) == {'i', 'j'}


def test_signature_of_one_order_by_hand():
    stage = conv2d(n=2, c=8, k=8, h=8, w=8, r=3, s=3).main
    out, image, kernel = signatures(stage, ('k', 'c', 'r', 's', 'n', 'h', 'w'))
    assert (out.loops, out.partial) == (frozenset('kcrsnhw'), None)
    assert (image.loops, image.partial) == (frozenset('kcrsnhw'), 'w')
    assert (kernel.loops, kernel.partial) == (frozenset('kcrs'), None)


def _small():
    return {
        'dense': conv2d(n=1, c=2, k=3, h=4, w=3, r=2, s=2).main,
        'depthwise': conv2d(n=1, c=3, k=3, h=6, w=5, r=3, s=2, groups=3).main,
        'strided': conv2d(n=2, c=3, k=4, h=11, w=1, r=3, s=1, stride=2).main,
        'dilated': conv2d(n=2, c=3, k=4, h=9, w=1, r=3, s=1, dilation=2).main,
        '1x1': conv2d(n=2, c=4, k=4, h=3, w=3, r=1, s=1).main,
        'matmul': matmul(m=7, n=6, k=8).main,
    }


@pytest.mark.parametrize(
    ('name', 'exact'),
    [
        pytest.param(name, exact, marks=[pytest.mark.slow] * (exact and name == 'dense'))
        for name in _small()
        for exact in (False, True)
    ],
)
def test_no_order_beats_the_classes_for_any_tile(name, exact):
    """All orders x all integer tiles: for each tile the best class is as good as the best order."""
    stage = _small()[name]
    grids = np.meshgrid(*(np.arange(1, d.size + 1) for d in stage.dims), indexing='ij')
    tiles = {d.name: g.ravel() for d, g in zip(stage.dims, grids, strict=True)}

    def cost(order):
        return sum(
            volume(a, order, tiles, stage.sizes, written=a is stage.write, exact=exact)
            for a in stage.accesses
        )

    classes = np.minimum.reduce([cost(c.representative()) for c in order_classes(stage)])
    idle = tuple(d.name for d in stage.dims if d.size == 1)
    active = [d.name for d in stage.dims if d.size > 1]
    best = np.minimum.reduce([cost((*idle, *p)) for p in itertools.permutations(active)])
    np.testing.assert_allclose(classes, best, rtol=1e-12)


def test_the_construction_finds_what_enumeration_finds():
    """All 5040 orders: their signatures, less the dominated ones, are those of the classes."""
    stage = conv2d(n=2, c=4, k=4, h=6, w=6, r=3, s=3).main
    found = {signatures(stage, p) for p in itertools.permutations(stage.sizes)}
    best = {a for a in found if not any(dominates(b, a) for b in found)}
    classes = order_classes(stage)
    assert {signatures(stage, c.representative()) for c in classes} == best
    for c in classes:
        orders = itertools.product(*(itertools.permutations(band) for band in c.bands))
        assert len({signatures(stage, tuple(itertools.chain(*o))) for o in orders}) == 1


def test_an_operator_defined_here_gets_classes():
    """A broadcast product Z[a,b] += X[a,t] * Y[b]: t is absent from Y, b from X, a from Y."""
    stage = Stage(
        'outer',
        (Dim('a', 4), Dim('b', 4), Dim('t', 4, 'reduction')),
        Access('Z', (var('a'), var('b'))),
        (Access('X', (var('a'), var('t'))), Access('Y', (var('b'),))),
        call('mul', read(0), read(1)),
        'sum',
    )
    # innermost t keeps Z, and with a next to it Y as well; innermost b keeps X; innermost a keeps
    # only Y, which t does too
    assert names(stage) == {'<b,a,t>', '<{a,t},b>'}


def test_class_text_and_membership():
    found = OrderClass((frozenset('ck'), frozenset('w')))
    assert str(found) == '<{c,k},w>'
    assert ('k', 'c', 'w') in found
    assert ('w', 'k', 'c') not in found
    assert ('k', 'w') not in found
    assert 'kcw' not in found
