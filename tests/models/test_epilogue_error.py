"""What stages behind a convolution do to an error's share of the largest output."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tilewright.kernels.gpu.precision import sum_error
from tilewright.ops.convolution import conv2d
from tilewright.ops.core import core
from tilewright.ops.epilogue_error import GENTLE, MARGIN, final_error, growth
from tilewright.ops.group import Group, Tensor
from tilewright.ops.pointwise import pointwise
from tilewright.ops.stage import Access, Dim, Expr, call, const, read, var
from tilewright.ops.winograd import geometry
from tilewright.ops.winograd_error import predicted_error, transform_error
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.cpu.rank_winograd import tiles_within

ERROR = 2.0**-20
X, Z = read(0), read(1)


def layer(activation: str | None = None, c: int = 64, **more) -> Group:
    return conv2d(c=c, h=28, w=28, k=64, r=3, s=3, pad=1, activation=activation, **more)


def behind(expr: Expr, other: bool = False) -> Group:
    """A convolution with an expression behind it, perhaps of another tensor too."""
    group = layer()
    out = group.output
    dims = tuple(Dim(d, size) for d, size in zip('nkhw', out.shape, strict=True))
    main = group.main
    reads = [Access('Other', tuple(var(d.name) for d in dims))] if other else []
    return Group(
        'made', (*group.tensors[:-1], replace(out, name='Acc', role='inner'),
                 *([Tensor('Other', out.dims, out.shape)] if other else []), out),
        (replace(main, write=replace(main.write, tensor='Acc')),
         pointwise('made', dims, 'Out', 'Acc', expr, *reads)),
    )  # fmt: skip


def largest(c: int = 64) -> float:
    """The largest of the layer's sums that is expected."""
    return math.sqrt(9 * c) * math.sqrt(2 * math.log(64 * 28 * 28))


@pytest.mark.parametrize('activation', [None, 'relu', 'leaky_relu', 'silu'])
@pytest.mark.parametrize('bias', [False, True])
def test_where_nothing_shrinks_the_share_stays_as_it_is(activation, bias):
    group = layer(activation, bias=bias)
    shape = geometry(group, 4)
    assert predicted_error(group, 4) == transform_error(shape.down, shape.across, 64)
    assert tiles_within(group, 1e-4) == tiles_within(layer(), 1e-4)
    assert core(group).digest == core(layer()).digest


def test_what_saturates_makes_errors_count_for_more():
    """By hand: the steepest slope times the largest sum, over the largest output."""
    for activation, slope, most in (('relu6', 1, 6), ('tanh', 1, 1), ('sigmoid', 0.25, 1)):
        for c in (16, 512):
            expected = slope * largest(c) / most
            assert growth(layer(activation, c), ERROR) == pytest.approx(expected, rel=1e-3)
            assert growth(layer(activation, c, bias=True), ERROR) == pytest.approx(
                expected, rel=0.01
            )
        assert final_error(layer(activation), ERROR) == pytest.approx(
            MARGIN * ERROR * slope * largest() / most, rel=1e-3
        )
        group = layer(activation)
        assert core(group) is group


def test_residuals_gates_and_norms():
    sigmoid = call('sigmoid', X)
    for harmless in (
        call('add', X, Z), call('sub', Z, X), call('mul', X, Z), call('div', X, Z),
        call('mul', X, call('sigmoid', Z)), call('max', X, Z),
    ):  # fmt: skip
        assert growth(behind(harmless, other=True), ERROR) <= 1 + 1e-6
    gate = growth(behind(call('mul', sigmoid, Z), other=True), ERROR)
    assert gate == pytest.approx(growth(behind(sigmoid), ERROR), rel=1e-3)
    assert growth(behind(call('mul', X, const(1e-6))), ERROR) == pytest.approx(1)
    assert growth(behind(call('mul', X, X)), ERROR) == pytest.approx(2, rel=1e-3)
    assert growth(behind(call('min', call('max', X, const(0)), Z), other=True), ERROR) > 10


def test_steps_are_found_and_continuous_choices_are_none():
    positive = call('gt', X, const(0.3))
    step = growth(behind(call('where', positive, const(1), const(0))), ERROR)
    assert step == pytest.approx(1 / ERROR, rel=1e-3)
    assert growth(behind(call('round', X)), ERROR) > 0.9 / (ERROR * largest())
    leaky = call('where', call('gt', X, const(0)), X, call('mul', X, const(0.2)))
    assert growth(behind(leaky), ERROR) == pytest.approx(1)
    # The slope of a root has no limit: the share of an error is its root.
    root = growth(behind(call('sqrt', call('max', X, const(0)))), ERROR)
    assert root == pytest.approx(1 / math.sqrt(ERROR), rel=0.01)


def test_smaller_tiles_are_left_where_outputs_are_small():
    plain, limited = tiles_within(layer(), 1e-4), tiles_within(layer('tanh'), 1e-4)
    assert (7, 7) in plain
    assert limited
    assert set(limited) < set(plain)
    assert max(a * b for a, b in limited) < 16
    assert not tiles_within(behind(call('round', X)), 1e-4)


def test_gpus_have_the_same_rule():
    schedule = GpuSchedule.of('winograd', 'mma_tf32x3', m=4, split=1)
    plain, limited = (sum_error(layer(a), schedule) for a in (None, 'tanh'))
    assert sum_error(layer('relu'), schedule) == plain
    assert limited > 50 * plain
    assert growth(layer('silu'), ERROR) < GENTLE
