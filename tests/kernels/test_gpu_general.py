"""The general and the rows schema: dtypes, functions, combiners, tables, lookups, lanes, parts."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from marks import needs_nvrtc

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.ops import moving
from tilewright.ops.elementwise import copy, elementwise
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.group import Group
from tilewright.ops.normalise import channel_norm, log_softmax, lrn, row_norm, softmax
from tilewright.ops.pooling import average_pool, max_pool, max_pool_places, window_counts
from tilewright.ops.products import stacked_product
from tilewright.ops.reduction import REDUCTIONS, arg_extreme, running
from tilewright.ops.reference import reference
from tilewright.ops.resize import Resized, interpolate
from tilewright.ops.stage import call, const, read
from tilewright.ops.windows import windows
from tilewright.runtime.gpu.hosted import HostDevice
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

SLIDING = windows((8, 9), 3, 2, 1)


def cast(dtype: str, to: str) -> Group:
    return elementwise(read(0), (300,), dtypes=[dtype], out=to, name=f'{dtype}_to_{to}')


def reduced(kind: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = 'f32') -> Group:
    return REDUCTIONS[kind].group(kind, shape, axes, dtype)


GROUPS = [
    max_pool((1, 2, 6, 7), windows((6, 7), 3, 3, 1), 'i8'),
    max_pool_places((2, 3, 7, 9), windows((7, 9), 3, 2, 1)),
    average_pool((1, 3, 8, 9), SLIDING, window_counts(SLIDING, padding_counts=False)),
    lrn((2, 5, 3, 4)),
    elementwise('exp', ()),
    elementwise(call('where', read(0), read(1), read(2)), (3, 4), (3, 4), (4,),
                dtypes=['bool', 'f32', 'f32'], name='where'),
    cast('f32', 'u8'),
    cast('i64', 'f32'),
    moving.pad((3, 20), {0: (1, 2), 1: (2, 3)}, 'reflect'),
    moving.gather((1, 9, 20), 7),
    moving.gather_nd((1, 9, 20, 1), (1, 7, 2), index_dtype='i32'),
    elementwise(const(2.5), shape=(3, 4), name='fill'),
    interpolate('linear', (3, 5, 7), 1, Resized(5, 9, 9 / 5).neighbours('half_pixel')[0]),
    running('cumsum', (5, 20), 1, 'sum'),
    stacked_product((5, 6), (6, 7), 'i32'),
]  # fmt: skip
SHARED = [
    reduced('mean', (2, 5, 7, 6), (2, 3)),
    fully_connected(n=1, c=77, k=10, bias=True, activation='relu'),
    stacked_product((1, 77), (77, 10)),
    reduced('prod', (30, 40), (0,)),
    reduced('min', (30, 40), (0, 1)),
    reduced('sum', (30, 40), (1,), 'i64'),
    reduced('max', (30, 40), (1,), 'u8'),
    arg_extreme((30, 40), 1, 'max'),
]
PARTS = [
    softmax((3, 77)),
    softmax((1000,), 0),
    softmax((2, 5, 3, 4), 1),
    log_softmax((4, 9, 3), 1),
    row_norm('layernorm', (3, 50)),
    channel_norm('groupnorm', (2, 3, 2, 35), 6),
]
WIDE_ROWS = {g.label: g for g in (row_norm('layernorm', (3, 52)), PARTS[1])}
FUNCTIONS = (
    'exp expm1 tanh sigmoid sqrt abs floor ceil round sign log log1p erf sin cos tan asin acos '
    'atan sinh cosh asinh atanh neg isnan isinf'
)
PAIRS = 'add sub mul div max min mod fmod pow eq lt'
GENERAL = GpuSchedule.of('general', threads=32)
LANES = GpuSchedule.of('general', threads=32, lanes=8)
ROWS = GpuSchedule.of('rows', threads=32)


@cache
def host() -> HostDevice:
    return HostDevice()


def check(group: Group, schedule: GpuSchedule) -> None:
    """The kernels give what the reference does."""
    arrays = random_arrays(group, 3)
    given = {t.name: arrays[t.name] for t in group.with_role('input')}
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with np.errstate(all='ignore'):
        want = reference(group, arrays)
        got = Runner(generate(group, schedule), host(), constants)(**given)
    if got.dtype.kind != 'f':
        assert got.tolist() == want.tolist()
        return
    size = np.abs(want[np.isfinite(want)]).max(initial=1.0)
    assert np.allclose(got, want, rtol=2e-5, atol=2e-6 * size, equal_nan=True)


RUNS = [
    elementwise(call('add', read(0), read(1)), (3, 5, 8), (3, 5, 8), name='add'),
    elementwise(call('mul', call('exp', read(0)), read(1)), (3, 5, 8), (5, 1), name='scaled'),
    elementwise(call('where', read(0), read(1), read(2)), (3, 4), (3, 4), (4,),
                dtypes=['bool', 'f32', 'f32'], name='where'),
    moving.gather((9, 20), 7),
]  # fmt: skip


@pytest.mark.parametrize('group', RUNS, ids=lambda g: g.label)
def test_four_results_of_a_thread(group: Group) -> None:
    schedule = GpuSchedule.of('general', threads=32, run=4)
    (step,) = generate(group, schedule).steps
    assert 'STORE4' in step.kernel.body
    check(group, schedule)


@pytest.mark.parametrize('group', GROUPS, ids=lambda g: g.label)
def test_four_results_only_where_they_lie_so(group: Group) -> None:
    check(group, GpuSchedule.of('general', threads=32, run=4))


@pytest.mark.parametrize('group', GROUPS, ids=lambda g: g.label)
def test_a_thread_for_each_result(group: Group) -> None:
    check(group, GENERAL)


@pytest.mark.parametrize('group', SHARED, ids=lambda g: g.label)
def test_lanes_share_a_reduction(group: Group) -> None:
    check(group, LANES)


@pytest.mark.parametrize('group', PARTS, ids=lambda g: g.label)
def test_all_parts_in_one_kernel(group: Group) -> None:
    assert len(generate(group, ROWS).steps) == 1
    assert len(generate(group, GENERAL).steps) > 1
    check(group, ROWS)


@pytest.mark.parametrize('run', [1, 4])
@pytest.mark.parametrize('group', [PARTS[0], PARTS[2], *WIDE_ROWS.values()], ids=lambda g: g.label)
def test_a_warp_for_each_row(group: Group, run: int) -> None:
    """Two rows of a block, of which the last may be none; neighbours at once where they lie so."""
    schedule = GpuSchedule.of('rows', threads=64, lanes=32, run=run)
    (step,) = generate(group, schedule).steps
    assert ('LOAD4' in step.kernel.body) == (run == 4 and group.label in WIDE_ROWS)
    assert 'BARRIER' not in step.kernel.body
    check(group, schedule)


@pytest.mark.parametrize('dtype', ['f32', 'f64'])
def test_functions_of_floats(dtype: str) -> None:
    """All of them at once, added up: NaN where one of them is."""
    for names in (FUNCTIONS.split()[:13], FUNCTIONS.split()[13:]):
        total = read(0)
        for name in names:
            total = call('add', total, call(name, read(0)))
        check(elementwise(total, (7, 33), dtypes=[dtype], name='all'), GENERAL)


@pytest.mark.parametrize('dtype', ['f32', 'i64', 'i8', 'u8'])
def test_functions_of_two(dtype: str) -> None:
    total = read(0)
    for name in PAIRS.split():
        total = call('add', total, call(name, read(0), read(1)))
    check(elementwise(total, (7, 33), (33,), dtypes=[dtype, dtype], name='all'), GENERAL)


def test_what_does_not_go_together() -> None:
    with pytest.raises(ScheduleError, match='joins several parts'):
        generate(copy((3, 4)), ROWS)
    with pytest.raises(ScheduleError, match='power of two'):
        generate(softmax((3, 5)), GpuSchedule.of('rows', threads=96))
    with pytest.raises(ScheduleError, match='16 lanes of a row, runs of 3'):
        generate(softmax((3, 5)), GpuSchedule.of('rows', threads=64, lanes=16, run=3))
    with pytest.raises(ScheduleError, match='exchange f32, not f64'):
        generate(softmax((3, 5), dtype='f64'), GpuSchedule.of('rows', threads=64, lanes=32))
    with pytest.raises(ScheduleError, match='float32 at affine indices only'):
        generate(copy((300,), 'i64'), GpuSchedule.of('transposed', side=8, rows=4))


@needs_nvrtc
@pytest.mark.parametrize('group', [GROUPS[1], GROUPS[8], GROUPS[9], SHARED[5], PARTS[4]],
                         ids=lambda g: g.label)  # fmt: skip
def test_nvrtc_takes_every_kind(group: Group) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    schedule = ROWS if group in PARTS else LANES if group in SHARED else GENERAL
    for kernel in generate(group, schedule).kernels:
        _, _, resources = compile_cubin(kernel, 'sm_90')
        assert not resources.spill_bytes
