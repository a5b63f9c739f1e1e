"""Gradients that follow from descriptions, against finite differences in float64.

If these fail, training computes wrong gradients of the operator that is named.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tilewright.graph.lowering.result import store
from tilewright.ops import moving, normalise, pooling, reduction
from tilewright.ops.adjoint import GRAD, UP, adjoint, single_stages
from tilewright.ops.convolution import conv2d
from tilewright.ops.derivative import derivative
from tilewright.ops.elementwise import elementwise
from tilewright.ops.functions import gelu, hard_swish, mish, prelu
from tilewright.ops.group import Group
from tilewright.ops.losses import picked
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.ops.resize import interpolate, nearest
from tilewright.ops.stage import FUNCTIONS, call, read
from tilewright.ops.windows import windows

STEP = 1e-6


def gradients(group: Group, arrays: Mapping[str, np.ndarray], up: np.ndarray) -> dict:
    """tensor -> gradient, by the adjoints of all reads of the only stage."""
    found: dict[str, np.ndarray] = {}
    given = {**arrays, group.output.name: reference(group, arrays), UP: up}
    for number, access in enumerate(group.stages[0].reads):
        held = dict(given)
        made = adjoint(group, number)
        for tensor in made:
            held[tensor.tensor] = np.full(tensor.parts[0].output.shape, np.nan)
            for part in tensor.parts:
                names = [t.name for t in part.tensors if t.role != 'output']
                result = reference(part, {name: held[name] for name in names})
                store(held[tensor.tensor], part, result)
        if made:
            found[access.tensor] = found.get(access.tensor, 0) + held[GRAD]
    return found


def check(group: Group, seed: int = 0) -> None:
    """Every stage: Up . (change of the result) = (gradient) . (change of the operand)."""
    draw = np.random.default_rng(seed)
    for stage in single_stages(group):
        arrays = {
            t.name: draw.uniform(0.3, 2.0, t.shape) if t.dtype == 'f32'
            else draw.integers(0, 3, t.shape)
            for t in stage.tensors if t.role in ('input', 'constant')
        }  # fmt: skip
        up = draw.standard_normal(stage.output.shape)
        for name, gradient in gradients(stage, arrays, up).items():
            along = draw.standard_normal(gradient.shape)
            ahead, back = (
                reference(stage, {**arrays, name: arrays[name] + sign * STEP * along})
                for sign in (1, -1)
            )
            want = float((up * (ahead - back)).sum() / (2 * STEP))
            got = float((gradient * along).sum())
            assert got == pytest.approx(want, rel=1e-5, abs=1e-6), (stage.label, name)


@settings(max_examples=12)
@given(
    st.tuples(*[st.integers(1, 4)] * 2), st.tuples(*[st.integers(1, 4)] * 2), st.integers(0, 3),
    st.tuples(*[st.integers(1, 3)] * 2), st.tuples(*[st.integers(3, 9)] * 2),
    st.sampled_from((1, 2)),
)  # fmt: skip
def test_convolutions(
    taps: tuple, strides: tuple, pad: int, dilations: tuple, image: tuple, groups: int
) -> None:
    """Every stride, dilation, padding and window, with groups, bias and relu."""
    spans = [(t - 1) * d + 1 for t, d in zip(taps, dilations, strict=True)]
    assume(all(span <= size + 2 * pad for span, size in zip(spans, image, strict=True)))
    check(
        conv2d(
            n=2, c=2 * groups, h=image[0], w=image[1], k=3 * groups, r=taps[0], s=taps[1],
            stride=strides, pad=pad, dilation=dilations, groups=groups, bias=True,
            activation='relu',
        )
    )  # fmt: skip


def test_gradients_of_convolutions_are_products() -> None:
    """Data and weight gradients stay sums of two factors, which fast kernels compute; each element
    is written by one group.
    """
    (stage, *_) = single_stages(conv2d(n=2, c=4, h=9, w=9, k=6, r=3, s=3, stride=2, pad=1))
    data, weights = adjoint(stage, 0)[-1], adjoint(stage, 1)[-1]
    assert len(data.parts) == 4
    assert len(weights.parts) == 1
    assert all(g.stages[0].is_product_sum for g in (*data.parts, *weights.parts))
    times = np.zeros(data.parts[0].output.shape)
    for part in data.parts:
        one = np.zeros_like(times)
        store(one, part, np.ones_like(times))
        times += one
    np.testing.assert_array_equal(times, 1)


POOLS = [(2, 2, 0, False), (3, 2, 1, False), (3, 2, 0, True), (3, 1, 1, False), (2, 3, 1, False)]


def test_poolings() -> None:
    """Windows that overlap, touch, and leave elements out."""
    for window, stride, pad, ceil in POOLS:
        over = windows((7, 8), window, stride, pad, ceil=ceil)
        check(pooling.max_pool((1, 2, 7, 8), over))
        check(pooling.average_pool((1, 2, 7, 8), over, pooling.window_counts(over, False)))
    check(pooling.lp_pool((1, 2, 6, 6), windows((6, 6), 2, 2), 3))


def test_a_maximum_goes_to_the_first_that_reached_it() -> None:
    group = pooling.max_pool((1, 1, 1, 4), windows((1, 4), (1, 2), (1, 2)))
    image = np.array([3.0, 3.0, 1.0, 2.0]).reshape(1, 1, 1, 4)
    got = gradients(group, {'In': image}, np.array([5.0, 7.0]).reshape(1, 1, 1, 2))
    assert got['In'].ravel().tolist() == [5.0, 0.0, 0.0, 7.0]


def test_rows_that_were_looked_up_several_times() -> None:
    """Large tables: lookups are compared with each other, not with every element."""
    group, draw = moving.gather((1, 300, 16), 20), np.random.default_rng(0)
    indices = np.array([5, 299, -1, 5, 0, *draw.integers(0, 9, 15)])
    up = draw.standard_normal((1, 20, 16))
    want = np.zeros((1, 300, 16))
    np.add.at(want[0], indices, up[0])
    got = gradients(group, {'In': np.zeros((1, 300, 16)), 'Indices': indices}, up)
    np.testing.assert_allclose(got['In'], want, atol=1e-12)
    assert [made.tensor for made in adjoint(group, 0)] == ['Same', 'Rows', 'Seen', 'At', 'Grad']


OTHERS = [
    normalise.softmax((3, 5), 1), normalise.log_softmax((3, 5), 0), normalise.lrn((1, 7, 2, 2)),
    normalise.row_norm('layernorm', (4, 6)), normalise.channel_norm('groupnorm', (2, 2, 3, 5), 6),
    *normalise.batch_moments((3, 2, 5)), moving.transpose((2, 3, 4), (2, 0, 1)),
    moving.slices((7, 9), {0: range(5, 0, -2), 1: range(1, 8, 3)}),
    *(moving.pad((5, 6), {0: (2, 1), 1: (1, 2)}, mode, 1.5) for mode in moving.BORDERS),
    moving.tile((2, 3), (2, 3)), moving.take((2, 4, 3), [1, 1, 3, 0, 1]),
    moving.gather((2, 4, 3), 5), moving.gather((2, 7, 3), 5), moving.gather((1, 300, 16), 20),
    moving.gather_elements((4, 3), 0, (2, 3)),
    moving.gather_nd((2, 4, 5, 3), (2, 3, 2)), reduction.running('sum', (3, 5), 1, 'sum'),
    reduction.running('sum', (3, 5), 0, 'sum', reverse=True, exclusive=True),
    *(kind.group(word, (3, 4, 5), (0, 2)) for word, kind in reduction.REDUCTIONS.items()),
    reduction.running('prod', (3, 4), 1, 'prod'),
    reduction.log_sum_exp((3, 4), (1,)), nearest((2, 3), {1: np.array([0, 0, 1, 2, 2, 2])}),
    interpolate('linear', (2, 4), 1, np.array([[0, 1], [1, 2], [2, 3], [3, -1], [0, 0]])),
    matmul(m=4, n=5, k=6), picked((2, 3, 4)),
    elementwise('add', (2, 3, 4), (3, 1)), elementwise('mul', (2, 3), (2, 3)),
    elementwise(prelu(), (2, 3, 4), (4,)),
    *(elementwise(f, (9,)) for f in (gelu(), gelu(True), hard_swish(), mish())),
]  # fmt: skip


@pytest.mark.parametrize('group', OTHERS, ids=lambda group: group.label)
def test_other_descriptions(group: Group) -> None:
    check(group)


def test_every_function_has_a_derivative() -> None:
    """Those of steps are zero; the rest agree with differences wherever they are smooth."""
    for name, count in FUNCTIONS.items():
        if count > 2 or name == 'cast' or name.startswith(('bit', 'sh')):
            continue
        expr = call(name, *(read(i) for i in range(count)))
        slopes = [derivative(expr, i) for i in range(count)]
        group = elementwise(expr, *[(6,)] * count, out='f64', dtypes=['f64'] * count)
        draw = np.random.default_rng(1)
        given = [draw.uniform(0.1, 0.9, 6) + 2.0 * (name == 'acosh') for _ in range(count)]
        names = [t.name for t in group.with_role('input')]
        got = gradients(group, dict(zip(names, given, strict=True)), np.ones(6))
        for number, slope in enumerate(slopes):
            moved = [g + STEP * (i == number) for i, g in enumerate(given)]
            ahead = reference(group, dict(zip(names, moved, strict=True)))
            back = reference(group, dict(zip(names, given, strict=True)))
            want = (ahead - back) / STEP
            have = got.get(names[number], np.zeros(6)) if slope is not None else np.zeros(6)
            np.testing.assert_allclose(have, want, rtol=1e-3, atol=1e-4, err_msg=name)
