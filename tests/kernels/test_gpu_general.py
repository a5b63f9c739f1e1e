"""The general and the rows schema: dtypes, functions, combiners, tables, lookups, lanes, parts."""

from __future__ import annotations

import importlib.util
from functools import cache

import numpy as np
import pytest

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.ops import moving
from tilewright.ops.elementwise import copy, elementwise
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.group import Group
from tilewright.ops.normalise import log_softmax, lrn, softmax
from tilewright.ops.pooling import average_pool2d, global_pool2d
from tilewright.ops.pooling_nd import max_pool, max_pool_indices
from tilewright.ops.products import gemm, product
from tilewright.ops.reduction import arg, cumulative_sum, reduce
from tilewright.ops.reference import reference
from tilewright.ops.resize import resize, taps
from tilewright.ops.stage import call, read
from tilewright.ops.statistics import group_norm, layer_norm
from tilewright.runtime.gpu.hosted import HostDevice
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

GROUPS = [
    max_pool((1, 2, 6, 7), (3, 3), None, (1, 1), (1, 1), dtype='i8'),
    max_pool_indices((2, 3, 7, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    average_pool2d(c=3, h=8, w=9, window=3, stride=2, pad=1, count_include_pad=False),
    lrn(n=2, c=5, h=3, w=4),
    elementwise('exp', ()),
    elementwise(call('where', read(0), read(1), read(2)), (3, 4), (3, 4), (4,),
                dtypes=['bool', 'f32', 'f32'], name='where'),
    copy((300,), dtype='f32', out='u8'),
    copy((300,), dtype='i64', out='f32'),
    moving.pad((3, 20), (1, 2), (2, 3), 'reflect'),
    moving.gather_dynamic((9, 20), 0, (7,)),
    moving.gather_nd((9, 20), (7, 2), index_dtype='i32'),
    moving.fill((3, 4), 2.5),
    resize((3, 5, 7), [None, taps(5, 9, mode='linear'), taps(7, 3)]),
    cumulative_sum((5, 20), 1),
    product((5, 6), (6, 7), dtype='i32'),
]  # fmt: skip
REDUCTIONS = [
    global_pool2d(n=2, c=5, h=7, w=6),
    fully_connected(n=1, c=77, k=10, bias=True, activation='relu'),
    gemm(1, 10, 77, roles=('input', 'constant', 'constant')),
    reduce('prod', (30, 40), (0,)),
    reduce('min', (30, 40), (), keepdims=False),
    reduce('sum', (30, 40), (1,), dtype='i64'),
    reduce('max', (30, 40), (1,), dtype='u8'),
    arg('max', (30, 40), 1),
]
PARTS = [
    softmax(shape=(3, 77)),
    softmax(shape=(1000,), axis=0),
    softmax(shape=(2, 5, 3, 4), axis=1),
    log_softmax(shape=(4, 9, 3), axis=1),
    layer_norm((3, 50), 1),
    group_norm((2, 6, 5, 7), 3),
]
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


@pytest.mark.parametrize('group', GROUPS, ids=lambda g: g.label)
def test_a_thread_for_each_result(group: Group) -> None:
    check(group, GENERAL)


@pytest.mark.parametrize('group', REDUCTIONS, ids=lambda g: g.label)
def test_lanes_share_a_reduction(group: Group) -> None:
    check(group, LANES)


@pytest.mark.parametrize('group', PARTS, ids=lambda g: g.label)
def test_all_parts_in_one_kernel(group: Group) -> None:
    assert len(generate(group, ROWS).steps) == 1
    assert len(generate(group, GENERAL).steps) > 1
    check(group, ROWS)


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
        generate(softmax(shape=(3, 5)), GpuSchedule.of('rows', threads=96))
    with pytest.raises(ScheduleError, match='float32 at affine indices only'):
        generate(copy((300,), dtype='i64'), GpuSchedule.of('transposed', side=8, rows=4))


@pytest.mark.skipif(
    importlib.util.find_spec('cuda') is None, reason='cuda-bindings with NVRTC is not installed'
)
@pytest.mark.parametrize('group', [GROUPS[1], GROUPS[8], GROUPS[9], REDUCTIONS[5], PARTS[4]],
                         ids=lambda g: g.label)  # fmt: skip
def test_nvrtc_takes_every_kind(group: Group) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    schedule = ROWS if group in PARTS else LANES if group in REDUCTIONS else GENERAL
    for kernel in generate(group, schedule).kernels:
        _, _, resources = compile_cubin(kernel, 'sm_90')
        assert not resources.spill_bytes
