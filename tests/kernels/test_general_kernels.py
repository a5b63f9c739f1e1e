"""The general schema on every kind of group: several parts, dtypes, tables, lookups, windows.

Against the reference, in memory between pages that cannot be touched, cut between threads.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from counted import counted_mean

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas
from tilewright.machine.known import known_machine
from tilewright.ops import moving
from tilewright.ops.compose import append
from tilewright.ops.convolution_nd import convolution, interleave, transposed_taps
from tilewright.ops.describe import group_of
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.elementwise import copy, elementwise
from tilewright.ops.flatten import flatten
from tilewright.ops.functions import gelu, one_hot, relu
from tilewright.ops.group import Group, Tensor
from tilewright.ops.normalise import channel_norm, lrn, row_norm, softmax
from tilewright.ops.pooling import average_pool, lp_pool, max_pool, max_pool_places, window_counts
from tilewright.ops.products import einsum, stacked_product
from tilewright.ops.reduction import REDUCTIONS, arg_extreme, log_sum_exp, running
from tilewright.ops.reference import reference
from tilewright.ops.resize import Resized, interpolate, nearest
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import (
    Access,
    Dim,
    Stage,
    Table,
    access,
    affine,
    call,
    const,
    index,
    read,
    var,
)
from tilewright.ops.windows import Window, windows
from tilewright.runtime import verify
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.choose import choose

SMOOTH = (
    'exp expm1 tanh sigmoid sqrt abs floor ceil round sign log log1p erf sin cos tan asin acos '
    'atan sinh cosh asinh atanh neg'
)
OTHERS = ('f64', 'i32', 'i8')  # types with the functions of f32, i64 and u8
PAIRS = 'add sub mul div max min mod fmod eq lt le gt ge and or xor'


def grid() -> Group:
    """Backwards along both axes, plus a product of iterators."""
    stage = Stage(
        'grid', (Dim('i', 30), Dim('j', 40)), Access('Out', (var('i'), var('j'))),
        (
            access('X', Table(tuple(range(29, -1, -1)), var('i')),
                   Table(tuple(range(39, -1, -1)), var('j'))),
        ),
        call('add', read(0), call('mul', index('i'), index('j'))),
    )  # fmt: skip
    tensors = (Tensor('X', ('a', 'b'), (30, 40)), Tensor('Out', ('i', 'j'), (30, 40), 'output'))
    return Group('grid', tensors, (stage,))


def pool(shape: tuple[int, ...], *numbers, dtype: str = 'f32', **more) -> Group:
    return max_pool(shape, windows(shape[2:], *numbers, **more), dtype)


def mean(shape: tuple[int, ...], counted: bool, *numbers) -> Group:
    over = windows(shape[2:], *numbers)
    return average_pool(shape, over, window_counts(over, counted))


def reduced(kind: str, shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = 'f32') -> Group:
    return REDUCTIONS[kind].group(kind, shape, axes, dtype)


def cast(dtype: str, to: str) -> Group:
    return elementwise(read(0), (300,), dtypes=[dtype], out=to, name=f'{dtype}_to_{to}')


def pooled_relu() -> Group:
    pooled = pool((1, 4, 20, 40), 3, 2, 1)
    made = append(pooled, elementwise(relu(), pooled.output.shape, name='relu'), 'In')
    assert made is not None
    return made.group


TURNED = (Window(5, 3, 2, 1, 1, 1, 9), Window(6, 3, 3, 2, 0, 0, 20))
GROUPS = [
    pool((1, 4, 20, 41), 3, 2, 1),
    pool((1, 3, 7, 7), 5, 1, 2),
    pool((1, 3, 9, 10), 3, 2, 1, 2, ceil=True),
    pool((1, 2, 12, 25), (2, 3), (2, 3)),
    pool((1, 2, 5, 3), 2, 1, 1),
    pool((1, 2, 3, 6), 3, (2, 1)),  # a single row of results
    pool((1, 2, 3, 9), (3, 2), (3, 2), 1),
    pool((2, 3, 13), 3, 2, 1),
    pool((1, 2, 6, 7, 8), (2, 3, 2), (1, 2, 1), (1, 1, 0, 0, 1, 1)),
    pool((1, 2, 6, 7), 3, 3, 1, dtype='i8'),
    max_pool_places((2, 3, 7, 9), windows((7, 9), 3, 2, 1)),
    max_pool_places((2, 3, 7, 9), windows((7, 9), 3, 2, 1), by_columns=True, dtype='u8'),
    lp_pool((1, 4, 9, 10), windows((9, 10), 3, 2, 1), 3),
    counted_mean(4, 20, 40),
    mean((1, 4, 20, 40), False, 3, 1, 1),
    mean((1, 4, 20, 40), True, 3, 2, 1),
    reduced('mean', (1, 70, 7, 7), (2, 3)),
    pooled_relu(),
    softmax((2, 100)),
    softmax((1000,), 0),
    softmax((2, 5, 17, 30), 1),
    softmax((2, 5, 17, 30), 2),
    softmax((1, 3, 30, 40), 1),
    lrn((1, 9, 6, 7)),
    lrn((2, 3, 30, 20)),
    row_norm('layernorm', (3, 50)),
    row_norm('layernorm', (3, 100), 1),
    row_norm('rmsnorm', (3, 100), 1, centred=False),
    channel_norm('groupnorm', (2, 3, 2, 35), 6),
    channel_norm('groupnorm', (2, 3, 2, 35), 3),
    log_sum_exp((3, 40, 5), (1,)),
    reduced('mean', (3, 4, 50), (0, 2)),
    reduced('prod', (30, 40), (0,)),
    reduced('min', (30, 40), (0, 1)),
    reduced('sum', (30, 40), (1,), 'i64'),
    reduced('mean', (30, 40), (1,), 'i8'),
    reduced('max', (30, 40), (1,), 'u8'),
    arg_extreme((30, 40), 1, 'max'),
    arg_extreme((3, 5, 40), 1, 'min', last=True),
    running('cumsum', (5, 20), 1, 'sum'),
    running('cumprod', (5, 20), 0, 'prod', exclusive=True, reverse=True),
    interpolate('linear', (3, 5, 7), 1, Resized(5, 9, 9 / 5).neighbours('half_pixel')[0]),
    interpolate('cubic', (3, 5, 7), 2, Resized(7, 4, 4 / 7).neighbours('half_pixel', 'cubic')[0]),
    nearest((3, 5, 7), {1: Resized(5, 11, 11 / 5).nearest('half_pixel', 'floor')}),
    moving.transpose((2, 3, 40, 50), (0, 2, 3, 1)),
    moving.transpose((20, 30, 4), (2, 1, 0)),
    elementwise('add', (2, 3, 4), (3, 1)),
    elementwise('exp', ()),
    elementwise('add', (1,), ()),
    elementwise(gelu(), (7, 30), name='gelu'),
    elementwise(one_hot('d1', 9, 'i64'), (5, 1), (1,), (1,), dtypes=['i64', 'f32', 'f32'],
                name='onehot', shape=(5, 9)),
    into_slice(copy((1, 3, 4, 4)), 1, 0, 3),
    cast('f32', 'i64'),
    cast('i64', 'f32'),
    cast('f32', 'bool'),
    cast('f32', 'u8'),
    elementwise(call('where', read(0), read(1), read(2)), (3, 4), (3, 4), (4,),
                dtypes=['bool', 'f32', 'f32'], name='where'),
    moving.pad((3, 20), {0: (1, 2), 1: (2, 3)}, 'constant', 1.5),
    moving.pad((3, 20), {0: (1, 2), 1: (2, 3)}, 'reflect'),
    moving.tile((3, 20), (2, 3)),
    moving.take((3, 20, 1), (4, 0, 19, 7)),
    moving.gather((1, 9, 20), 7),
    moving.gather_elements((9, 20), 0, (4, 20)),
    moving.gather_nd((1, 9, 20, 1), (1, 7, 2), index_dtype='i32'),
    elementwise(const(2.5), shape=(3, 4), name='fill'),
    grid(),
    convolution((1, 4, 9, 9), 6, windows((9, 9), 3, 1, 1), bias=True),
    convolution((1, 4, 5, 6, 7), 6, windows((5, 6, 7), 3, (1, 2, 1), 1), groups=2, bias=True),
    convolution((1, 5, 9, 20), 5, windows((9, 20), 1, 1, 2), groups=5),  # one tap, rows outside
    transposed_taps((4, 3, 3, 3), TURNED),
    interleave((2, 3, 2, 3, 5, 7), TURNED, bias=True),
    stacked_product((1, 13, 20), (3, 20, 70)),
    stacked_product((2, 5, 6), (1, 6, 7), 'i32'),
    einsum('einsum', [(5, 6), (6, 4)], ['ab', 'bc'], 'ca', {'a': 5, 'b': 6, 'c': 4}),
]  # fmt: skip


def run(group: Group, schedule: Schedule, arrays: dict[str, np.ndarray]) -> np.ndarray:
    source, flags = generate(group, schedule), (*compiler_flags(schedule), '-O1')
    kernel = Kernel.load(build(source, flags), group)
    out = verify.poison(verify.guarded_empty(group.output.shape, NUMPY[group.output.dtype]))
    kernel.run(arrays, kernel.pack(arrays), out)
    return out


@pytest.mark.parametrize('threads', [3, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize('group', GROUPS, ids=lambda g: g.label)
def test_right_and_inside(group: Group, threads: int) -> None:
    arrays = verify.freeze_all(verify.random_arrays(group, 3))
    want = reference(group, arrays)
    schedule = general_schedule(flatten(group), host_isas()[0], threads, 1)
    made = verify.compare(group, run(group, schedule, arrays), want, tolerance=2e-5)
    assert made.ok, f'{threads} threads: {made.message}'


def test_windows_over_images_are_cut_between_rows() -> None:
    """As the convolutions around them are; rows that divide badly leave that to channels."""
    for out, cut in ((27, 'h'), (7, 'nc')):
        group = flatten(pool((1, 64, 2 * out + 1, 2 * out + 1), 3, 2))
        schedule = general_schedule(group, 'avx2', 2, 1)
        assert [name for name, _ in schedule.parallel] == [cut], group.label


def test_code_for_other_instruction_sets(isa: str, tools, compute) -> None:
    for group in (GROUPS[0], GROUPS[9], softmax((3, 40)), arg_extreme((5, 20), 1, 'max')):
        arrays = verify.random_arrays(group, 1)
        schedule = general_schedule(group, isa, 2, 1)
        if schedule.isa in host_isas():
            got = run(group, schedule, arrays)
        else:
            got = compute(group, schedule, arrays)
        made = verify.compare(group, got, reference(group, arrays), tolerance=2e-5)
        assert made.ok, made.message


@pytest.mark.parametrize('name', SMOOTH.split())
def test_functions_of_floats(name: str) -> None:
    """Over all that float32 holds: numbers of every size, infinities, NaN."""
    rng = np.random.default_rng(5)
    small = rng.standard_normal(2000) * np.exp2(rng.uniform(-30, 6, 2000))
    odd = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.6, 88.8, -87.0, -200.0, 1e38, 0.5, -2.5, 1.0]
    x = np.array([*small, *odd], np.float32)
    group = elementwise(name, x.shape)
    got = run(group, general_schedule(group, host_isas()[0], 1, 1), {'In': x})
    with np.errstate(all='ignore'):
        want = reference(group, {'In': x}).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=2e-38)


@pytest.mark.parametrize(
    'dtype', ['f32', 'i64', 'u8', *(pytest.param(t, marks=pytest.mark.slow) for t in OTHERS)]
)
def test_functions_of_two(dtype: str) -> None:
    """Division by zero and powers of whole numbers included, to the bit."""
    names = PAIRS.split()
    names += [] if dtype[0] == 'f' else ['pow', 'bit_and', 'bit_or', 'bit_xor', 'shl', 'shr']
    rng = np.random.default_rng(6)
    kind = NUMPY[dtype]
    if dtype[0] == 'f':
        a, b = (rng.standard_normal(64).astype(kind) for _ in range(2))
        a[:3], b[1:4] = np.nan, (np.nan, np.inf, 2.0)
    else:
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        a = rng.integers(low, high, 64, endpoint=True).astype(kind)
        b = rng.integers(max(low, -3), 9, 64).astype(kind)
        a[:4], b[:4] = low, (0, 1, 2, kind(-1) if low else 3)
    for name in names:
        group = elementwise(name, a.shape, b.shape, dtypes=[dtype, dtype])
        arrays = {'In0': a, 'In1': b}
        got = run(group, general_schedule(group, host_isas()[0], 1, 1), arrays)
        with np.errstate(all='ignore'):
            want = reference(group, arrays).astype(got.dtype)
        if dtype[0] == 'f' and name in ('div', 'mod', 'fmod'):
            np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(got, want, err_msg=name)


def test_maxima_let_nan_through() -> None:
    x = verify.random_arrays(GROUPS[0], 0)['In'].copy()
    x[0, 1, 5, 6] = np.nan
    for group in (GROUPS[0], pool((1, 4, 20, 41), 2, 2)):
        got = run(group, general_schedule(group, host_isas()[0], 1, 1), {'In': x})
        assert np.array_equal(np.isnan(got), np.isnan(reference(group, {'In': x})))
        assert np.isnan(got).any()


@pytest.mark.parametrize('phase', [0, 1])
def test_what_is_written_at_steps_leaves_the_rest_alone(phase: int) -> None:
    """Sums of windows into every second row and third column, with a bias behind them."""
    dims = (Dim('k', 3), Dim('h', 4), Dim('w', 5))
    place = (var('k'), affine(('h', 2), const=phase), affine(('w', 3), const=phase))
    near = (affine(('h', 1), ('r', 1)), affine(('w', 1), ('s', 1)))
    stages = [
        Stage('sum', (*dims, Dim('r', 2, 'reduction'), Dim('s', 3, 'reduction')),
              Access('Acc0', place), (Access('In', (var('k'), *near)),), read(0), 'sum'),
        Stage('bias', dims, Access('Out', place), (Access('Acc0', place),
              Access('Bias', (var('k'),))), call('add', read(0), read(1))),
    ]  # fmt: skip
    group = group_of('steps', stages, {'In': (3, 5, 7), 'Bias': (3,)})
    arrays = verify.random_arrays(group, 2)
    got = run(group, general_schedule(flatten(group), host_isas()[0], 2, 1), arrays)
    written = (slice(None), slice(phase, None, 2), slice(phase, None, 3))
    np.testing.assert_allclose(got[written], reference(group, arrays)[written], rtol=1e-5)
    got[written] = np.nan
    assert np.isnan(got).all()


def test_small_groups_run_on_one_thread() -> None:
    machine = known_machine('i7-9700k')
    small = choose(elementwise('add', (64,), (64,)), machine, 4, 1)[0].schedule
    large = choose(elementwise('add', (1 << 22,), (1 << 22,)), machine, 4, 1)[0].schedule
    assert (small.threads, large.threads) == (1, 4)
    assert math.isfinite(choose(softmax((9, 9)), machine, 2, 1)[0].prediction.seconds)
