"""Scores of the classes that labels name.

    Out[n, x]  +=  In[n, c, x] where c = Labels[n, x]

A sum over classes with one term in it, so that its gradient is an assignment: nothing is scattered.
Labels beside the classes name nothing, and give zero.
"""

from __future__ import annotations

from tilewright.ops.describe import Shape, group_of, label_of
from tilewright.ops.functions import X, where
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Dim, Stage, call, const, index, read, var


def picked(
    shape: Shape, dtype: str = 'f32', label_dtype: str = 'i64', labels: Shape | None = None
) -> Group:
    """[images, classes, pixels], or one list of classes for all `labels`, [images, pixels]."""
    n, classes, x = shape if labels is None else (labels[0], shape[0], labels[1])
    dims = (Dim('n', n), Dim('x', x), Dim('c', classes, 'reduction'))
    here = (var('n'), var('x'))
    given = (var('n'), var('c'), var('x')) if labels is None else (var('c'),)
    expr = where(call('eq', read(1), index('c')), X, const(0.0))
    stage = Stage('picked', dims, Access('Out', here), (Access('In', given),
                  Access('Labels', here)), expr, 'sum')  # fmt: skip
    return group_of(
        label_of('picked', shape), [stage], {'In': shape, 'Labels': (n, x)}, dtype,
        {'Labels': label_dtype},
    )  # fmt: skip
