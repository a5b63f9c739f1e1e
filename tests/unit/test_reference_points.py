"""The reference gives the same numbers whether arrays of all points are small enough or not."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ops import reference as oracle
from tilewright.ops.group import Group, Tensor
from tilewright.ops.stage import Access, Dim, Stage, Table, access, affine, call, read, var


def behind_tables(dtype: str) -> Group:
    """Rows and columns through tables, some of their positions outside the tensor, and sums of
    absolute differences, which are not an einsum.
    """
    rows, columns = (5, 0, -1, 2, 7, 9, 3), (1, 1, 4, -3, 0, 8)
    summed = (Dim(name, size, 'reduction') for name, size in (('j', 4), ('r', 2), ('c', 3)))
    stage = Stage(
        'sad', (Dim('i', 6), *summed), Access('Y', (var('i'),)),
        (
            access('X', Table(rows, affine(('i', 1), ('r', 1))), Table(columns, var('c'))),
            access('W', var('r'), var('j'), var('c')),
        ),
        call('abs', call('sub', read(0), read(1))), 'sum', 1,
    )  # fmt: skip
    tensors = (
        Tensor('X', ('a', 'b'), (8, 5), 'input', dtype),
        Tensor('W', ('r', 'j', 'c'), (2, 4, 3), 'input', dtype),
        Tensor('Y', ('i',), (6,), 'output', dtype),
    )
    return Group('sad', tensors, (stage,))


@pytest.mark.parametrize('dtype', ['f32', 'i32'])
def test_few_points_at_once_change_nothing(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    group, rng = behind_tables(dtype), np.random.default_rng(0)
    arrays = {
        t.name: rng.integers(-9, 9, t.shape).astype(np.float32 if dtype == 'f32' else np.int32)
        for t in group.tensors[:2]
    }
    whole = oracle.reference(group, arrays)
    by_hand = np.zeros(6)
    rows, columns = dict(group.main.reads[0].tables).values()
    for i in range(6):
        for r, j, c in np.ndindex(2, 4, 3):
            at = rows[i + r], columns[c]
            inside = 0 <= at[0] < 8 and 0 <= at[1] < 5
            x = arrays['X'][at] if inside else group.main.pad_value
            by_hand[i] += abs(float(x) - float(arrays['W'][r, j, c]))
    np.testing.assert_array_equal(whole, by_hand)
    monkeypatch.setattr(oracle, 'MOST_POINTS', 8)
    assert len(oracle._looped(group.main)) > 1
    np.testing.assert_array_equal(oracle.reference(group, arrays), whole)
