"""Products of 8-bit numbers by matrix instructions of GPUs, equal to their definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc
from test_dot_kernels import arrays_of, bound, stored_again, with_scale

from tilewright.errors import ScheduleError
from tilewright.graph.half import WEIGHTS_LAST, rewritten
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.schemas.channels import CHANNELS
from tilewright.kernels.gpu.schemas.channels.plan import is_served, why_not
from tilewright.kernels.gpu.schemas.vector import VECTOR
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.bounds import schedule_bounds
from tilewright.ops.channels_last import channels_last
from tilewright.ops.convolution import conv2d
from tilewright.ops.core import core
from tilewright.ops.elementwise import elementwise
from tilewright.ops.functions import mul, sub
from tilewright.ops.group import Group
from tilewright.ops.integer import saturated
from tilewright.ops.matmul import matmul
from tilewright.ops.pooling import max_pool
from tilewright.ops.reference import reference
from tilewright.ops.stage import call, cast, const, read, whole
from tilewright.ops.windows import windows
from tilewright.runtime.gpu.modules import Runner
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import tables
from tilewright.targets.gpu.choose import choose_all

QUEUED = {'queue': 2, 'bulk': 1}
SCHEDULES = [
    *(GpuSchedule.of('channels', 'mma_int8', **tiles) for tiles in (
        {'bp': 64, 'bk': 16, 'tp': 32, 'tk': 16, 'kb': 64, 'stages': 3, 'split': 2},
        {'bp': 16, 'bk': 64, 'tp': 16, 'tk': 64, 'kb': 128, 'stages': 1, 'split': 1},
        {'bp': 32, 'bk': 32, 'tp': 32, 'tk': 32, 'kb': 32, 'stages': 2, 'split': 1, 'near': 1},
    )),
    *(GpuSchedule.of('channels', 'wgmma_int8', **tiles) for tiles in (
        {'bp': 64, 'bk': 32, 'tp': 64, 'tk': 32, 'kb': 128, 'stages': 2, 'split': 1},
        {'bp': 128, 'bk': 16, 'tp': 64, 'tk': 16, 'kb': 64, 'stages': 3, 'split': 1, **QUEUED},
        {'bp': 128, 'bk': 48, 'tp': 128, 'tk': 48, 'kb': 32, 'stages': 4, 'split': 2, **QUEUED},
        {'bp': 64, 'bk': 48, 'tp': 64, 'tk': 48, 'kb': 32, 'stages': 4, 'split': 2, 'cluster': 1,
         **QUEUED},
    )),
]  # fmt: skip
QUICK, ALL, ON_GPU = 4, 200, 8  # random groups for each schedule


def drawn(seed: int) -> Group:
    """A convolution or product with any border, zero points, types, and what stands behind it."""
    random = Random(seed)
    image = random.choice(('u8', 'i8'))
    low = 0 if image == 'u8' else -128
    unit = 8 * random.choice((1, 2, 3, 4))
    if random.random() < 0.2:
        sizes = {'m': random.randint(1, 70), 'n': random.randint(1, 60), 'k': 3 * unit}
        group = bound(matmul(**sizes), image, 0)
    else:
        groups = random.choice((1, 1, 1, 2))
        r = random.choice((1, 2, 3))
        conv = conv2d(
            n=random.choice((1, 2)), c=groups * unit, k=groups * random.randint(1, 40),
            h=r + random.randint(2, 9), w=r + random.randint(2, 9), r=r, s=r,
            stride=random.choice((1, 1, 2)), dilation=random.choice((1, 1, 2)), groups=groups,
            pad=random.choice((0, tuple(random.randint(0, 2) for _ in range(4)))),
            bias=random.random() < 0.7,
        )  # fmt: skip
        group = bound(conv, image, random.choice((0, random.randint(low, low + 255))))
    if random.random() < 0.85:
        group = with_scale(group, random.choice(('u8', 'i8')), random.randint(low, low + 255))
        if random.random() < 0.4:
            group = stored_again(group, random, random.choice(('u8', 'i8')))
    if len(group.output.shape) == 4:
        others = (t for t in group.with_role('input') if t.shape == group.output.shape)
        group = channels_last(group, {'In', 'Out', *(t.name for t in others)})
    return group


def _check(group: Group, schedule: GpuSchedule, seed: int, on: str = 'host') -> None:
    """Every result is the definition's, to the last unit."""
    arrays = arrays_of(group, seed)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    inputs = {t.name: arrays[t.name] for t in group.with_role('input')}
    with Runner(generate(group, schedule), device(on), constants) as runner:
        got = runner(**inputs)
    np.testing.assert_array_equal(got, reference(group, arrays), err_msg=group.label)


@pytest.mark.parametrize('number', range(len(SCHEDULES)))
@pytest.mark.parametrize(
    'many', [QUICK, pytest.param(ALL, marks=pytest.mark.slow)], ids=['quick', 'all']
)
def test_products_are_the_definition(number: int, many: int) -> None:
    """Random groups that the schema serves; those of one piece have no depth to split."""
    for seed in itertools.islice(_served(number), many):
        _check(drawn(seed), SCHEDULES[number], seed)


@pytest.mark.gpu
@pytest.mark.parametrize('number', range(len(SCHEDULES)))
def test_products_are_the_definition_on_a_gpu(number: int) -> None:
    device('cuda')  # or this is skipped
    for seed in itertools.islice(_served(number), ON_GPU):
        _check(drawn(seed), SCHEDULES[number], seed, 'cuda')


def _served(number: int) -> Iterator[int]:
    """Seeds of groups for one of the schedules."""
    seeds = range(10_000 * number, 10_000 * (number + 1))
    return (s for s in seeds if is_served(drawn(s)) and _fits(drawn(s), SCHEDULES[number]))


def _fits(group: Group, schedule: GpuSchedule) -> bool:
    depth = math.prod(group.main.sizes[d] for d in group.main.reduction)
    return dict(schedule.tiles)['split'] == 1 or depth > dict(schedule.tiles)['kb']


@pytest.mark.parametrize('number', range(len(SCHEDULES)))
def test_a_residual_is_asked_for_before_it_is_used(number: int) -> None:
    """Results of sixteen, eight and four neighbours, which others are added to."""
    for k in (48, 40, 20):
        conv = bound(conv2d(n=2, c=192, h=9, w=11, k=k, r=1, s=1, bias=True), 'u8', 0)
        scaled = with_scale(conv, 'u8', 3)
        drawn_ends = (stored_again(scaled, Random(seed), 'i8') for seed in range(20))
        group, other = next(
            (one, t.name)
            for one in drawn_ends
            for t in one.with_role('input')
            if t.name != 'In' and t.shape == one.output.shape
        )
        group = channels_last(group, {'In', 'Out', other})
        schedule = SCHEDULES[number]
        body = generate(group, schedule).steps[-1].kernel.body
        assert ('_w[turn]' in body) == (k != 20)
        _check(group, schedule, k)


def test_searches_have_integer_products_on_gpus_with_such_instructions() -> None:
    group = channels_last(bound(conv2d(c=32, h=8, w=8, k=32, r=3, s=3, pad=1), 'u8', 7), {'In'})
    machine = known_gpu('h200')
    assert {kind for _, kind in tables(group, machine)} == {'mma_int8', 'wgmma_int8'}
    assert not tables(group, known_gpu('v100'))
    # Four products of 8 bits in the time of one of TF32.
    whole, third = (GpuSchedule.of('channels', kind) for kind in ('mma_int8', 'mma_tf32x3'))
    fast, slow = (schedule_bounds(group, one, machine).compute_s for one in (whole, third))
    assert slow / fast == pytest.approx(12)


def test_what_is_quantised_behind_floats_is_searched_as_sums_of_integers() -> None:
    """A normalisation between a layer and what quantises it, as exporters leave them: its core
    once stored f16, which only plain loops compute, ten times as slowly.
    """
    layer = with_scale(bound(conv2d(c=32, h=8, w=8, k=32, r=3, s=3, pad=1), 'u8', 7), 'u8', 3)
    group = next(
        one
        for one in (stored_again(layer, Random(seed), 'u8') for seed in range(20))
        if one.tensor(one.stages[-1].reads[0].tensor).dtype == 'f32'
    )
    group = channels_last(group, {'In', 'Out'})
    assert core(group).output.dtype == 'u8'
    (found,) = choose_all([group], known_gpu('h200'), 1, 1e-4, processes=1, trials=20)
    assert found[0].schedule.schema == 'channels'


@pytest.mark.parametrize(
    ('group', 'why'),
    [
        (bound(conv2d(c=32, h=8, w=8, k=32, r=3, s=3), 'u8', 0), 'not contiguous'),
        (
            channels_last(bound(conv2d(c=12, h=8, w=8, k=32, r=3, s=3), 'i8', 0), {'In'}),
            'multiple of 8',
        ),
        (conv2d(c=32, h=8, w=8, k=32, r=3, s=3), 'no products of 8-bit numbers'),
    ],
)
def test_what_the_schema_does_not_compute_is_one_sentence(group: Group, why: str) -> None:
    assert why in why_not(group)
    with pytest.raises(ScheduleError):
        generate(group, SCHEDULES[0])
    assert CHANNELS.table is not None
    assert not CHANNELS.table(group, 'mma_int8')


@needs_nvrtc
@pytest.mark.parametrize(
    ('number', 'architecture'), [(0, 'sm_80'), (3, 'sm_90a'), (5, 'sm_90a')]
)  # fmt: skip
def test_cuda_text_compiles_without_spills(number: int, architecture: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    for image in ('u8', 'i8'):
        conv = bound(conv2d(c=64, h=9, w=9, k=48, r=3, s=3, pad=1, bias=True), image, 5)
        group = channels_last(with_scale(conv, 'u8', 9), {'In', 'Out'})
        module = generate(group, SCHEDULES[number])
        for step in (*module.steps, *module.ahead):
            _, _, resources = compile_cubin(step.kernel, architecture)
            assert resources.spill_bytes == 0


def moved_at_once() -> dict[str, Group]:
    """Pooling, depthwise convolutions and element-wise work on 8-bit numbers."""
    depthwise = bound(
        conv2d(n=2, c=24, h=7, w=6, k=24, r=3, s=3, pad=1, groups=24, bias=True), 'u8', 130
    )
    filters = rewritten(
        channels_last(with_scale(depthwise, 'i8', -7), {'In', 'Out'}),
        {}, {'Ker': WEIGHTS_LAST}, {},
    )  # fmt: skip
    pooled = max_pool((2, 16, 9, 9), windows((9, 9), 3, 2))
    of_bytes = Group(
        pooled.label,
        tuple(replace(t, dtype='i8') for t in pooled.tensors), pooled.stages, pooled.storage,
    )  # fmt: skip
    scaled = mul(cast(sub(cast(read(0), 'i32'), whole(9)), 'f32'), const(0.375))
    then = elementwise(scaled, (3, 5, 8), dtypes=['u8'], out='f32', name='dequantize')
    stored = elementwise(
        saturated(call('div', read(0), const(0.05)), const(3.0), 'u8'), (2, 3, 12),
        dtypes=['f32'], out='u8', name='quantize',
    )  # fmt: skip
    return {
        'depthwise': filters, 'pooled': channels_last(of_bytes, {'In', 'Out'}),
        'dequantized': then, 'quantized': stored,
    }  # fmt: skip


@pytest.mark.parametrize('name', moved_at_once())
@pytest.mark.parametrize('run', [8, 4, 2])
def test_neighbours_are_moved_at_once(name: str, run: int) -> None:
    group = moved_at_once()[name]
    schedule = GpuSchedule.of('vector', run=run, threads=64)
    kernel = generate(group, schedule).steps[0].kernel
    assert kernel.name.startswith('vector')
    _check(group, schedule, run)
    assert VECTOR.propose is not None
    assert VECTOR.propose(group, known_gpu('h200'))
