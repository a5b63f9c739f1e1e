"""Groups of f16 and bf16 on GPUs against float64: matrix instructions, vectors, plain loops."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc
from test_attention_kernels import attention, sized

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.graph.half import half_group
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.precision import half_error
from tilewright.kernels.gpu.quick import QUICK_OPS
from tilewright.kernels.gpu.registry import schema_named
from tilewright.machine.gpu import known_gpu
from tilewright.ops.compose import append
from tilewright.ops.dtypes import HALVES, NUMPY
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.normalise import row_norm
from tilewright.ops.pooling import average_pool, max_pool
from tilewright.ops.reference import reference
from tilewright.ops.stage import call, const, read
from tilewright.ops.windows import windows
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import compare, random_arrays
from tilewright.schedule.gpu import GpuSchedule

DTYPES = tuple(HALVES)


def products() -> dict[str, Group]:
    """Padding, strides, groups, ragged tiles, epilogues."""
    return {
        'dense': tw.conv2d(c=8, h=9, w=10, k=24, r=3, s=3, pad=1, bias=True, activation='relu'),
        'strided': tw.conv2d(n=2, c=16, h=11, w=9, k=12, r=3, s=3, stride=2, pad=1),
        'grouped': tw.conv2d(c=16, h=7, w=7, k=12, r=3, s=1, groups=2, pad=(1, 0)),
        'pointwise': tw.conv2d(n=3, c=48, h=5, w=6, k=40, r=1, s=1, activation='silu', bias=True),
        'first': tw.conv2d(c=4, h=13, w=12, k=16, r=5, s=5, stride=2, pad=2),
        'product': tw.matmul(m=13, n=24, k=40),
    }


def with_constants(group: Group, *names: str) -> Group:
    """The group with some of its inputs as constants."""
    tensors = (replace(t, role='constant') if t.name in names else t for t in group.tensors)
    return replace(group, tensors=tuple(tensors))


WARPS = (
    {'bp': 64, 'bk': 16, 'tp': 32, 'tk': 16, 'kb': 32, 'stages': 3, 'split': 2},
    {'bp': 16, 'bk': 64, 'tp': 16, 'tk': 64, 'kb': 64, 'stages': 1, 'split': 1},
    {'bp': 32, 'bk': 32, 'tp': 32, 'tk': 32, 'kb': 16, 'stages': 2, 'split': 1, 'near': 1},
)
QUEUED = {'queue': 2, 'bulk': 1}
WARPGROUPS = (
    {'bp': 64, 'bk': 32, 'tp': 64, 'tk': 32, 'kb': 64, 'stages': 2, 'split': 1},
    {'bp': 128, 'bk': 16, 'tp': 64, 'tk': 16, 'kb': 32, 'stages': 3, 'split': 1, **QUEUED},
    {'bp': 128, 'bk': 48, 'tp': 128, 'tk': 48, 'kb': 16, 'stages': 4, 'split': 2, **QUEUED},
    {'bp': 64, 'bk': 32, 'tp': 64, 'tk': 32, 'kb': 16, 'stages': 3, 'split': 3, 'cluster': 1},
)
SCHEDULES = [
    *(GpuSchedule.of('channels', 'mma_half', **tiles) for tiles in WARPS),
    *(GpuSchedule.of('channels', 'wgmma_half', **tiles) for tiles in WARPGROUPS),
]


def _run(group: Group, schedule: GpuSchedule, name: str = 'host') -> None:
    """Compile, run and compare; the tolerance is that of the result's type."""
    arrays = random_arrays(group, 1)
    want = reference(group, arrays)
    module = generate(group, schedule)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    inputs = {t.name: arrays[t.name] for t in group.with_role('input')}
    with Runner(module, device(name), constants) as runner:
        found = compare(group, runner(**inputs), want)
    assert found.ok, found.message
    assert found.error <= 1e-4 + 1.01 * HALVES.get(group.output.dtype, 0.0)


def _cases() -> list[Any]:
    """Every schedule on every group; all but two of each schedule are slow."""
    found = []
    for number, schedule in enumerate(SCHEDULES):
        for place, name in enumerate(products()):
            if name == 'grouped' and dict(schedule.tiles)['split'] > 1:
                continue  # it has one piece
            marks = [] if (place + number) % 3 == 0 else [pytest.mark.slow]
            found.append(pytest.param(number, name, DTYPES[(place + number) % 2], marks=marks))
    return found


@pytest.mark.parametrize(('number', 'name', 'dtype'), _cases())
def test_products_by_matrix_instructions(number: int, name: str, dtype: str) -> None:
    _run(half_group(products()[name], dtype), SCHEDULES[number])


@pytest.mark.parametrize('more', [{}, {'bulk': 1}, {'cluster': 1}, {'stages': 2, 'cluster': 1}])
def test_a_part_without_pieces_waits_for_its_biases(more: dict[str, int]) -> None:
    """Five pieces are shared as 2, 2, 1 and none; 96 columns have biases in shared memory."""
    made = half_group(tw.conv2d(c=320, h=8, w=8, k=96, r=1, s=1, bias=True), 'f16')
    tiles = {'bp': 64, 'bk': 96, 'tp': 64, 'tk': 96, 'kb': 64, 'stages': 1, 'split': 4, **more}
    schedule = GpuSchedule.of('channels', 'wgmma_half', **tiles)
    assert '_all' in generate(made, schedule).steps[0].kernel.body
    _run(made, schedule)


@pytest.mark.parametrize('number', range(len(SCHEDULES)))
@pytest.mark.parametrize('k', [40, 20, 18])
def test_a_residual_is_asked_for_before_it_is_used(number: int, k: int) -> None:
    """Results of eight, four and two neighbours; rows and columns that tiles do not divide."""
    group = tw.conv2d(n=2, c=16, h=9, w=11, k=k, r=1, s=1, bias=True)
    total = call('max', call('add', read(0), read(1)), const(0.0))
    joined = append(group, elementwise(total, *[group.output.shape] * 2, name='then'), 'In0')
    assert joined is not None
    schedule = SCHEDULES[number]
    made = half_group(joined.group, DTYPES[number % 2])
    if dict(schedule.tiles)['split'] > 1:
        made = half_group(joined.group, DTYPES[0])
        schedule = replace(schedule, tiles=tuple((n, {'split': 1, 'cluster': 0}.get(n, v))
                                                 for n, v in schedule.tiles))  # fmt: skip
    body = generate(made, schedule).steps[-1].kernel.body
    assert ('_w[turn]' in body) == (k != 18)
    _run(made, schedule)


@pytest.mark.parametrize('lanes', [2, 8, 32])
@pytest.mark.parametrize('dtype', DTYPES)
def test_lanes_share_a_reduction(lanes: int, dtype: str) -> None:
    """Sums and maxima of whole images, alone and with something behind; points that no block
    divides.
    """
    averaged = average_pool((3, 24, 8, 5), windows((8, 5), (7, 4), 1), 28)
    pooled = max_pool((1, 16, 9, 9), windows((9, 9), 3, 2))
    for group in (averaged, pooled):
        made = half_group(group, dtype)
        schedule = GpuSchedule.of('vector', run=8, threads=64, lanes=lanes)
        assert 'LANE_XOR' in generate(made, schedule).steps[0].kernel.body
        _run(made, schedule)


def test_few_points_of_long_reductions_have_lanes() -> None:
    machine = known_gpu('h200')
    few = half_group(average_pool((1, 512, 8, 8), windows((8, 8), 7, 1), 49), 'f16')
    many = half_group(max_pool((16, 64, 112, 112), windows((112, 112), 3, 2)), 'f16')
    (first, *_), (other, *_) = (schema_named('vector').propose(g, machine) for g in (few, many))
    assert dict(first.tiles)['lanes'] == 16
    assert 'lanes' not in dict(other.tiles)


@pytest.mark.parametrize('name', ['host', 'opencl'])
@pytest.mark.parametrize('dtype', DTYPES)
def test_plain_loops_and_vectors(name: str, dtype: str) -> None:
    depthwise = tw.conv2d(n=2, c=16, h=7, w=6, k=16, r=3, s=3, pad=1, groups=16, bias=True)
    pooled = max_pool((1, 16, 9, 9), windows((9, 9), 3, 2))
    added = elementwise('add', (1, 16, 5, 5), (1, 16, 5, 5))
    for group in (depthwise, pooled, added):
        made = half_group(group, dtype)
        _run(made, GpuSchedule.of('general', threads=64), name)
        module = generate(made, GpuSchedule.of('vector', run=8, threads=64))
        assert [step.kernel.name.partition('_')[0] for step in module.steps] == ['vector']
        _run(made, GpuSchedule.of('vector', run=8, threads=64), name)


@pytest.mark.parametrize('length', [48, 264, 768, 1288])
@pytest.mark.parametrize('run', [8, 1])
@pytest.mark.parametrize('dtype', DTYPES)
def test_a_warp_for_each_row(dtype: str, run: int, length: int) -> None:
    """Rows of one turn, of few that are unrolled, ragged or not, and of many; with scales that are
    given, and with constant ones, which a lane may hold from before it waits.
    """
    made = half_group(row_norm('layernorm', (5, length)), dtype)
    schedule = GpuSchedule.of('rows', threads=128, lanes=32, run=run)
    _run(made, schedule)
    fixed = with_constants(made, 'Scale', 'Bias')
    held = 'held_' in generate(fixed, schedule).steps[0].kernel.body
    assert held == (run == 8 and length < 1024)
    _run(fixed, schedule)


@pytest.mark.parametrize('name', ['host', 'opencl'])
@pytest.mark.parametrize('dtype', DTYPES)
def test_every_number_is_converted_as_numpy_does(name: str, dtype: str) -> None:
    """All bit patterns, and floats around the limits, halves of a unit, infinities and NaN."""
    bits = np.arange(1 << 16, dtype=np.uint16).view(NUMPY[dtype])
    with np.errstate(all='ignore'):
        floats = bits.astype(np.float32)
        between = (floats[:-1] + floats[1:]) / 2
        near = np.concatenate([np.nextafter(between, np.float32(np.inf)), between, floats])
    near = np.resize(near, -(-near.size // 64) * 64).astype(np.float32)
    for array, given, made in ((bits, dtype, 'f32'), (near, 'f32', dtype)):
        group = elementwise('abs', array.shape, dtypes=[given], out=made)
        with Runner(
            generate(group, GpuSchedule.of('general', threads=64)), device(name), {}
        ) as run:
            got = run(In=array).astype(np.float32)
        with np.errstate(all='ignore'):
            want = np.abs(array.astype(np.float32)).astype(NUMPY[made]).astype(np.float32)
        assert np.array_equal(got, want, equal_nan=True)


def test_what_a_schema_does_not_offer_is_refused() -> None:
    plain = tw.conv2d(c=8, h=9, w=10, k=24, r=3, s=3, pad=1)
    with pytest.raises(ScheduleError, match='computes f16 or bf16'):
        generate(plain, SCHEDULES[0])
    with pytest.raises(ScheduleError, match='computes float32'):
        generate(
            half_group(plain, 'f16'),
            GpuSchedule.of('tiled', bk=16, bp=32, tk=4, tp=4, kb=8, stages=2, split=1, joint=0),
        )
    few = half_group(tw.conv2d(c=6, h=9, w=10, k=24, r=3, s=3), 'f16')
    with pytest.raises(ScheduleError, match='multiple of 4'):
        generate(few, SCHEDULES[0])


@needs_nvrtc
@pytest.mark.parametrize(
    ('number', 'dtype', 'architecture'),
    [
        (0, 'bf16', 'sm_80'), (4, 'f16', 'sm_90a'),
        pytest.param(1, 'f16', 'sm_80', marks=pytest.mark.slow),
        pytest.param(5, 'bf16', 'sm_90a', marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_cuda_text_compiles_without_spills(number: int, dtype: str, architecture: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    for name in ('dense', 'first')[number % 2 :]:
        module = generate(half_group(products()[name], dtype), SCHEDULES[number])
        _, _, resources = compile_cubin(module.steps[0].kernel, architecture)
        assert resources.spill_bytes == 0


@needs_nvrtc
def test_vectors_compile_for_every_gpu() -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    for dtype, architecture in zip(DTYPES, ('sm_75', 'sm_90'), strict=True):
        pooled = half_group(max_pool((1, 16, 9, 9), windows((9, 9), 3, 2)), dtype)
        module = generate(pooled, GpuSchedule.of('vector', run=8, threads=64))
        _, _, resources = compile_cubin(module.steps[0].kernel, architecture)
        assert resources.spill_bytes == 0


def _in_float64(op: str, x: np.ndarray) -> np.ndarray:
    """What an operator gives, one number at a time."""
    if op in ('div', 'sigmoid'):
        return x / 3 if op == 'div' else 1 / (1 + np.exp(-x))
    return np.vectorize(math.erf)(x) if op == 'erf' else getattr(np, op)(x)


@pytest.mark.parametrize('op', sorted(QUICK_OPS))
@pytest.mark.parametrize('name', ['host', 'opencl'])
def test_quick_functions_are_exact_enough_for_halves(name: str, op: str) -> None:
    """From f16 to float32, so that nothing is rounded behind them; NaN and infinities included."""
    x = np.concatenate([np.linspace(-9, 9, 997), [np.nan, np.inf, -np.inf]]).astype(np.float16)
    if op == 'sqrt':
        x = np.abs(x)
    plain = elementwise(call(op, *[read(0), const(3.0)][: 1 + (op == 'div')]), (8, 125), name=op)
    tensors = tuple(replace(t, dtype='f16') if t.role == 'input' else t for t in plain.tensors)
    module = generate(replace(plain, tensors=tensors), GpuSchedule.of('general', threads=64))
    assert f'quick_{op}(' in module.steps[0].kernel.body
    (given,) = plain.with_role('input')
    with Runner(module, device(name), {}) as runner:
        got = runner(**{given.name: x.reshape(8, 125)}).astype(np.float64)
    with np.errstate(all='ignore'):
        want = _in_float64(op, x.astype(np.float64)).reshape(8, 125)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    assert np.array_equal(got[np.isinf(want)], want[np.isinf(want)])
    there = np.isfinite(want)
    got, want = got[there], want[there]
    assert (np.abs(got - want) <= 1e-6 * np.maximum(np.abs(want), 1)).all()


def test_an_attention_of_halves_may_be_off_by_the_rounding_of_its_weights() -> None:
    product = half_group(tw.matmul(m=13, n=24, k=40), 'f16')
    assert half_error(product) == 2 * HALVES['f16']
    assert half_error(tw.matmul(m=13, n=24, k=40)) == 0
    heads = attention(sized(1, 2, 17, 40, 8, 12))
    halves = tuple(
        replace(t, dtype='f16') if t.role in ('input', 'output') else t for t in heads.tensors
    )
    assert half_error(replace(heads, tensors=halves)) == 4 * HALVES['f16']
