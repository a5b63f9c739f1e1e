"""Blocked channels: the rewritten description computes the same, on re-laid data."""

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import SpecError
from tilewright.kernels.cpu.contraction import vector_candidates
from tilewright.ops.reference import reference
from tilewright.runtime.verify import random_arrays

CASES = {
    'dense': ({'c': 16, 'k': 24, 'bias': True, 'activation': 'relu'}, {'In': 8, 'Out': 8}),
    'only the output': ({'c': 3, 'k': 16, 'stride': 2}, {'Out': 4}),
    'only the input': ({'c': 8, 'k': 5}, {'In': 4}),
    'grouped': ({'c': 16, 'k': 32, 'groups': 2}, {'In': 8, 'Out': 16}),
    'depthwise': ({'c': 16, 'k': 16, 'groups': 16, 'bias': True}, {'In': 8, 'Out': 8}),
}


@pytest.mark.parametrize('case', CASES)
def test_computes_the_same(case):
    sizes, blocks = CASES[case]
    plain = tw.conv2d(h=7, w=9, r=3, s=3, pad=1, **sizes)
    group = tw.blocked(plain, blocks)
    arrays = random_arrays(plain, 1)
    relaid = {
        name: tw.to_blocked(array, blocks[name]) if name in blocks else array
        for name, array in arrays.items()
    }
    want, got = reference(plain, arrays), reference(group, relaid)
    if 'Out' in blocks:
        assert got.shape == group.output.shape
        got = tw.from_blocked(got)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


def test_layout_round_trip():
    array = np.arange(2 * 12 * 3 * 5, dtype=np.float32).reshape(2, 12, 3, 5)
    blocked = tw.to_blocked(array, 4)
    assert blocked.shape == (2, 3, 3, 5, 4)
    assert blocked[1, 2, 0, 3, 1] == array[1, 9, 0, 3]
    np.testing.assert_array_equal(tw.from_blocked(blocked), array)


def test_lanes_lie_along_the_block():
    group = tw.blocked(tw.conv2d(c=64, h=8, w=8, k=64, r=3, s=3), {'Out': 8})
    assert vector_candidates(group)[0] == 'kl'


@pytest.mark.parametrize(
    ('sizes', 'blocks', 'said'),
    [
        ({'c': 12, 'k': 16}, {'In': 8}, '12 channels'),
        ({'c': 12, 'k': 16}, {'In': 1}, 'at least 2'),
        ({'c': 12, 'k': 12, 'groups': 3}, {'In': 6}, 'do not divide'),
        ({'c': 12, 'k': 16}, {'Other': 4}, 'no tensor'),
    ],
)
def test_blocks_that_do_not_divide_are_refused(sizes, blocks, said):
    with pytest.raises(SpecError, match=said):
        tw.blocked(tw.conv2d(h=7, w=9, r=3, s=3, **sizes), blocks)
