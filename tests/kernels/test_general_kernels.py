"""The general schema on every kind of group: several parts, dtypes, tables, lookups, windows.

Against the reference, in memory between pages that cannot be touched, cut between threads.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.compiler import build
from tilewright.machine.isa import host_isas
from tilewright.machine.known import known_machine
from tilewright.ops import moving
from tilewright.ops.compose import append
from tilewright.ops.convolution_nd import conv
from tilewright.ops.dtypes import NUMPY
from tilewright.ops.elementwise import activate, copy, elementwise, transpose
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group, Tensor
from tilewright.ops.normalise import lrn, softmax
from tilewright.ops.pooling import average_pool2d, global_pool2d, max_pool2d
from tilewright.ops.pooling_nd import max_pool, max_pool_indices
from tilewright.ops.products import gemm, product
from tilewright.ops.reduction import arg, cumulative_sum, reduce
from tilewright.ops.reference import reference
from tilewright.ops.resize import resize, taps
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import Access, Dim, Stage, Table, access, call, index, read, var
from tilewright.ops.statistics import group_norm, layer_norm
from tilewright.ops.transposed import conv_transpose
from tilewright.runtime import verify
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.choose import choose

SMOOTH = (
    'exp expm1 tanh sigmoid sqrt abs floor ceil round sign log log1p erf sin cos tan asin acos '
    'atan sinh cosh asinh atanh neg'
)
PAIRS = 'add sub mul div max min mod fmod eq lt le gt ge and or xor'
LINEAR = [None, taps(5, 9, mode='linear'), taps(7, 4, mode='cubic')]


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


def pooled_relu() -> Group:
    pool = max_pool2d(c=4, h=20, w=40, window=3, stride=2, pad=1)
    made = append(pool, activate('relu', pool.output.shape), 'In')
    assert made is not None
    return made.group


GROUPS = [
    max_pool2d(c=4, h=20, w=41, window=3, stride=2, pad=1),
    max_pool2d(c=3, h=7, w=7, window=5, stride=1, pad=2),
    max_pool2d(c=3, h=9, w=10, window=3, stride=2, pad=1, dilation=2, ceil=True),
    max_pool2d(c=2, h=12, w=25, window=(2, 3), stride=(2, 3)),
    max_pool2d(c=2, h=5, w=3, window=2, stride=1, pad=1),
    max_pool2d(c=2, h=3, w=6, window=3, stride=(2, 1)),  # a single row of results
    max_pool2d(c=2, h=3, w=9, window=(3, 2), stride=(3, 2), pad=(1, 1)),
    max_pool((2, 3, 13), (3,), (2,), (1,), (1,)),
    max_pool((1, 2, 6, 7, 8), (2, 3, 2), (1, 2, 1), (1, 1, 0), (0, 1, 1)),
    max_pool((1, 2, 6, 7), (3, 3), None, (1, 1), (1, 1), dtype='i8'),
    max_pool_indices((2, 3, 7, 9), (3, 3), (2, 2), (1, 1), (1, 1)),
    average_pool2d(c=4, h=20, w=40, window=3, pad=1, stride=1, count_include_pad=False),
    average_pool2d(c=4, h=20, w=40, window=3, pad=1, stride=2),
    global_pool2d(c=70, h=7, w=7),
    pooled_relu(),
    softmax(shape=(2, 100)),
    softmax(shape=(1000,), axis=0),
    softmax(shape=(2, 5, 17, 30), axis=1),
    softmax(shape=(2, 5, 17, 30), axis=2),
    softmax(shape=(1, 3, 30, 40), axis=1),
    lrn(c=9, h=6, w=7),
    lrn(n=2, c=3, h=30, w=20),
    layer_norm((3, 50), 1),
    layer_norm((3, 5, 20), 1, bias=False),
    group_norm((2, 6, 5, 7), 3),
    reduce('log_sum_exp', (3, 40, 5), (1,)),
    reduce('mean', (3, 4, 50), (0, 2), keepdims=False),
    reduce('prod', (30, 40), (0,)),
    reduce('min', (30, 40), (), keepdims=False),
    reduce('sum', (30, 40), (1,), dtype='i64'),
    reduce('max', (30, 40), (1,), dtype='u8'),
    arg('max', (30, 40), 1),
    arg('min', (3, 5, 40), 1, last=True),
    cumulative_sum((5, 20), 1),
    resize((3, 5, 7), LINEAR),
    resize((3, 5, 7), [None, taps(5, 11), taps(7, 3)]),
    transpose((2, 3, 40, 50), (0, 2, 3, 1)),
    transpose((20, 30, 4), (2, 1, 0)),
    elementwise('add', (2, 3, 4), (3, 1)),
    elementwise('exp', ()),
    elementwise('add', (1,), ()),
    into_slice(copy((1, 3, 4, 4)), 1, 0, 3),
    copy((300,), dtype='f32', out='i64'),
    copy((300,), dtype='i64', out='f32'),
    copy((300,), dtype='f32', out='bool'),
    copy((300,), dtype='f32', out='u8'),
    elementwise(call('where', read(0), read(1), read(2)), (3, 4), (3, 4), (4,),
                dtypes=['bool', 'f32', 'f32'], name='where'),
    moving.pad((3, 20), (1, 2), (2, 3), 'constant', 1.5),
    moving.pad((3, 20), (1, 2), (2, 3), 'reflect'),
    moving.gather((3, 20), 1, np.array([[4, 0], [-1, 7]])),
    moving.gather_dynamic((9, 20), 0, (7,)),
    moving.gather_nd((9, 20), (7, 2), index_dtype='i32'),
    moving.depth_to_space((1, 8, 3, 5), 2),
    moving.fill((3, 4), 2.5),
    grid(),
    conv((1, 4, 9, 9), (6, 4, 3, 3), None, (1, 1), (1, 1), bias=True, activation='relu'),
    product((13, 20), (20, 70)),
    product((3, 20), (20,)),
    product((5, 6), (6, 7), dtype='i32'),
    gemm(9, 30, 20, trans_a=True, bias_shape=(9, 1), beta=0.5, roles=('input', 'input', 'input')),
]  # fmt: skip


def run(group: Group, schedule: Schedule, arrays: dict[str, np.ndarray]) -> np.ndarray:
    source, flags = generate(group, schedule), (*compiler_flags(schedule), '-O1')
    kernel = Kernel.load(build(source, flags), group)
    out = verify.poison(verify.guarded_empty(group.output.shape, NUMPY[group.output.dtype]))
    kernel.run(arrays, kernel.pack(arrays), out)
    return out


@pytest.mark.parametrize('group', GROUPS, ids=lambda g: g.label)
def test_right_and_inside(group: Group) -> None:
    arrays = verify.freeze_all(verify.random_arrays(group, 3))
    want = reference(group, arrays)
    for threads in (1, 3):
        schedule = general_schedule(flatten(group), host_isas()[0], threads, 1)
        made = verify.compare(group, run(group, schedule, arrays), want, tolerance=2e-5)
        assert made.ok, f'{threads} threads: {made.message}'


def test_code_for_other_instruction_sets(isa: str, tools, compute) -> None:
    for group in (GROUPS[0], GROUPS[9], softmax(shape=(3, 40)), arg('max', (5, 20), 1)):
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


@pytest.mark.parametrize('dtype', ['f32', 'f64', 'i64', 'i32', 'i8', 'u8'])
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
    for group in (GROUPS[0], max_pool2d(c=4, h=20, w=41, window=2)):
        got = run(group, general_schedule(group, host_isas()[0], 1, 1), {'In': x})
        assert np.array_equal(np.isnan(got), np.isnan(reference(group, {'In': x})))
        assert np.isnan(got).any()


def test_every_piece_of_a_transposed_convolution_leaves_the_others_alone() -> None:
    shape, kernel = (2, 4, 5, 6), (4, 3, 3, 3)
    rng = np.random.default_rng(8)
    x, k = (rng.integers(-4, 5, s).astype(np.float32) for s in (shape, kernel))
    bias = rng.integers(-4, 5, 3).astype(np.float32)
    pieces = conv_transpose(shape, kernel, (2, 3), (1, 0), (0, 1), bias=True)
    out = np.full(pieces[0].group.output.shape, np.nan, np.float32)
    machine = known_machine('i7-9700k')
    for piece in pieces:
        arrays = {'In': x, 'Bias': bias}
        if piece.kernel is not None:
            arrays['Ker'] = reference(piece.kernel, {'Ker': k}).astype(np.float32)
        names = {t.name for t in piece.group.tensors}
        arrays = {n: a for n, a in arrays.items() if n in names}
        found = choose(piece.group, machine, 1, 1, algorithm='direct')[0].schedule
        schedule = general_schedule(flatten(piece.group), host_isas()[0], 2, 1)
        assert found.schema in ('outer', 'general')
        kernel_ = Kernel.load(build(generate(piece.group, schedule), compiler_flags(schedule)),
                              piece.group)  # fmt: skip
        before = out.copy()
        kernel_.run(arrays, kernel_.pack(arrays), out)
        changed = ~(np.isnan(before) & np.isnan(out)) & ~(before == out)
        assert np.isnan(before[changed]).all()
        want = reference(piece.group, arrays)
        assert np.array_equal(out[changed], want[changed])
    assert np.isfinite(out).all()


def test_small_groups_run_on_one_thread() -> None:
    machine = known_machine('i7-9700k')
    small = choose(elementwise('add', (64,), (64,)), machine, 4, 1)[0].schedule
    large = choose(elementwise('add', (1 << 22,), (1 << 22,)), machine, 4, 1)[0].schedule
    assert (small.threads, large.threads) == (1, 4)
    assert math.isfinite(choose(softmax(shape=(9, 9)), machine, 2, 1)[0].prediction.seconds)
