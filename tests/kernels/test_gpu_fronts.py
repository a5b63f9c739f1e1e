"""Element-wise stages in front of a sum of products, applied by the tiled schema as it copies."""

from __future__ import annotations

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.registry import BESIDE
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.time import COSTS, predict_gpu
from tilewright.ops.core import core
from tilewright.ops.elementwise import elementwise
from tilewright.ops.front import has_front, put_in_front, without_front
from tilewright.ops.group import Group
from tilewright.ops.parts import parts
from tilewright.ops.reference import reference
from tilewright.ops.stage import Expr, call, const, read
from tilewright.rank.files import SEARCHED
from tilewright.rank.rankers import ranker_for
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.choose import choose_all

H200 = known_gpu('h200')
SCALED = call('add', call('mul', read(0), read(1)), read(2))
FRONTS = {
    'norm_relu': call('max', SCALED, const(0.0)),
    'clip': call('min', call('max', read(0), const(-0.25)), const(0.5)),
    'add': call('add', read(0), read(1)),
    'one_over': call('div', const(1.0), call('add', read(0), read(1))),
}
FMA = (
    {'bk': 16, 'bp': 32, 'tk': 4, 'tp': 4, 'kb': 8, 'stages': 2, 'split': 1},
    {'bk': 32, 'bp': 64, 'tk': 8, 'tp': 8, 'kb': 4, 'stages': 3, 'split': 2},
    {'bk': 64, 'bp': 16, 'tk': 4, 'tp': 4, 'kb': 16, 'stages': 1, 'split': 1},
    {'bk': 16, 'bp': 64, 'tk': 8, 'tp': 8, 'kb': 8, 'stages': 4, 'split': 2},
)
MATRIX = (
    {'bk': 16, 'bp': 64, 'tk': 16, 'tp': 32, 'kb': 8, 'stages': 2, 'split': 1},
    {'bk': 32, 'bp': 32, 'tk': 32, 'tp': 16, 'kb': 8, 'stages': 3, 'split': 2},
    {'bk': 32, 'bp': 32, 'tk': 16, 'tp': 16, 'kb': 16, 'stages': 1, 'split': 1},
)
SCHEDULES = [
    *(GpuSchedule.of('tiled', 'fma', **tiles, joint=0) for tiles in FMA),
    *(GpuSchedule.of('tiled', 'mma_tf32x3', **tiles, joint=0) for tiles in MATRIX),
]


def fronted(front: Expr, **sizes) -> Group:
    """A convolution with an expression over its image and numbers of its channels before it."""
    conv = tw.conv2d(**{'r': 1, 's': 1, **sizes})
    shape = conv.tensor('In').shape
    count = 1 + max(front.reads())
    shapes = [shape, *[(shape[1], 1, 1)] * (count - 1)]
    roles = ['input', *['constant'] * (count - 1)]
    producer = elementwise(front, *shapes, roles=roles, name='front')
    made = put_in_front(producer, conv, 'In')
    assert made is not None
    assert has_front(made.group)
    return made.group


def answer(group: Group, schedule: GpuSchedule, on: str, arrays: dict) -> np.ndarray:
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with Runner(generate(group, schedule), device(on), constants) as runner:
        return runner(**{t.name: arrays[t.name] for t in group.with_role('input')})


def close(group: Group, schedule: GpuSchedule, on: str, seed: int) -> None:
    arrays = random_arrays(group, seed)
    got, want = answer(group, schedule, on, arrays), reference(group, arrays)
    assert np.abs(got - want).max() <= 2e-6 * max(np.abs(want).max(), 1.0)


@pytest.mark.parametrize('front', FRONTS)
@pytest.mark.parametrize('number', range(len(SCHEDULES)))
def test_one_kernel_computes_it(front: str, number: int) -> None:
    group = fronted(
        FRONTS[front], n=3, c=21, h=5, w=7, k=19, bias=True, activation='relu'
    )  # fmt: skip
    assert len(generate(group, SCHEDULES[number]).steps) == 1
    close(group, SCHEDULES[number], 'host', number)


@pytest.mark.parametrize('number', range(len(FMA)))
def test_one_kernel_computes_it_on_opencl(number: int) -> None:
    group = fronted(FRONTS['norm_relu'], n=3, c=13, h=4, w=7, k=19, bias=True)
    close(group, SCHEDULES[number], 'opencl', number)


@pytest.mark.parametrize('images', [1, 3])
@pytest.mark.parametrize('edge', [-1, 0, 1])
def test_sizes_around_the_edges_of_a_tile(edge: int, images: int) -> None:
    """Channels, pixels and columns one below, at and one above what a block takes."""
    for number, schedule in enumerate(SCHEDULES):
        depth, pixels = 2 * schedule['kb'] + edge, schedule['bp'] + edge
        group = fronted(FRONTS['norm_relu'], n=images, c=depth, h=1, w=pixels, k=16 + edge)
        close(group, schedule, 'host', number)


def test_strides_windows_over_the_whole_image_and_padding_behind_the_front() -> None:
    strided = fronted(FRONTS['norm_relu'], n=2, c=9, h=7, w=8, k=17, stride=2)
    covering = fronted(FRONTS['add'], n=3, c=9, h=3, w=2, k=17, r=3, s=2)
    padded = fronted(FRONTS['add'], n=2, c=9, h=4, w=5, k=17, pad=(0, 0, 2, 1))
    for group in (strided, covering, padded):
        for number in (0, 3, 4):
            close(group, SCHEDULES[number], 'host', number)


@pytest.mark.parametrize('number', range(len(SCHEDULES)))
def test_nan_and_infinity_go_through(number: int) -> None:
    group = fronted(FRONTS['norm_relu'], n=1, c=13, h=5, w=6, k=19)
    arrays = random_arrays(group, 3)
    image = arrays[group.with_role('input')[0].name]
    image[0, 2, 1, 3], image[0, 12, 4, 5], image[0, 5, 2, 2] = np.nan, np.inf, -np.inf
    with np.errstate(invalid='ignore'):
        want = reference(group, arrays)
    got = answer(group, SCHEDULES[number], 'host', arrays)
    assert np.isnan(want).any()
    sound = np.isfinite(want)
    # Matrix instructions have an infinity as the difference of two: NaN comes out.
    assert not np.isfinite(got[~sound]).any()
    assert np.isnan(got[np.isnan(want)]).all()
    assert np.abs(got[sound] - want[sound]).max() <= 1e-5


def test_nothing_beyond_the_last_channel_is_divided_by() -> None:
    """Zeros that fill up a piece would become infinities, which times zero are NaN."""
    group = fronted(call('div', const(1.0), read(0)), n=1, c=5, h=3, w=3, k=7)
    for schedule in (SCHEDULES[0], SCHEDULES[2], SCHEDULES[4]):
        close(group, schedule, 'host', 1)


def test_other_schemas_compute_it_in_a_kernel_before() -> None:
    group = fronted(FRONTS['norm_relu'], n=1, c=16, h=6, w=7, k=24, bias=True)
    tiles = {'bk': 16, 'bn': 1, 'bh': 2, 'bw': 5, 'tk': 16, 'tp': 16, 'kb': 8, 'stages': 2}
    patch = GpuSchedule.of('patch', 'mma_tf32x3', **tiles, split=1, joint=0)
    assert len(generate(group, patch).steps) == 2
    close(group, patch, 'host', 1)
    both = predict_gpu(group, patch, H200).seconds
    before = predict_gpu(parts(group)[0], BESIDE, H200).seconds
    assert both == before + predict_gpu(without_front(group), patch, H200).seconds
    assert predict_gpu(group, SCHEDULES[4], H200).launch_s == COSTS.launch_s
    alone = predict_gpu(without_front(group), SCHEDULES[4], H200).work
    work = predict_gpu(group, SCHEDULES[4], H200).work
    assert (work.copies, work.matrix) == (alone.copies, alone.matrix)
    # 16 channels of 64 pixels: each read, written back, scaled, shifted and cut off at 0, with two
    # numbers; a warp has 32 threads, which hold one pixel each
    assert work.reads - alone.reads == 16 * 64 / 32 * 2
    assert work.other - alone.other == 16 * 64 / 32 * (3 + 2)


def test_pieces_across_window_points_are_refused() -> None:
    group = fronted(FRONTS['add'], n=1, c=9, h=3, w=2, k=17, r=3, s=2)
    with pytest.raises(ScheduleError, match='joint is 0 where the image is changed'):
        generate(group, GpuSchedule.of('tiled', 'fma', **FMA[0], joint=1))


def test_the_search_compares_one_kernel_with_two() -> None:
    """A launch decides where there is little to do, else how fast the products are."""
    small = {'n': 1, 'c': 64, 'h': 14, 'w': 14, 'k': 128}
    large = {'n': 32, 'c': 1024, 'h': 28, 'w': 28, 'k': 1024}
    front = FRONTS['norm_relu']
    groups = [fronted(front, **sizes, bias=True, activation='relu') for sizes in (small, large)]
    found = choose_all(groups, H200, 2, 1e-4, processes=1, trials=80)
    best = [choices[0].schedule for choices in found]
    assert best[0].schema == 'tiled'
    kernels = [len(generate(g, s).steps) for g, s in zip(groups, best, strict=True)]
    assert kernels == [1, 2]


def test_what_follows_the_products_does_not_decide() -> None:
    sizes = {'n': 1, 'c': 64, 'h': 14, 'w': 14, 'k': 128}
    plain = fronted(FRONTS['norm_relu'], **sizes)
    group = fronted(FRONTS['norm_relu'], **sizes, bias=True, activation='relu')
    assert core(group, front=True).digest == core(plain, front=True).digest
    assert core(group, front=True).digest != core(group).digest
    alone = tw.conv2d(n=1, c=64, h=14, w=14, k=128, r=1, s=1)
    assert core(group).digest == core(alone).digest


def test_learned_models_leave_it_to_the_time_model() -> None:
    group = fronted(FRONTS['norm_relu'], n=1, c=16, h=8, w=8, k=32)
    plain = ranker_for('analytical', group, H200, SEARCHED).ranker(SCHEDULES)
    for model in ('forest', 'gat'):
        np.testing.assert_array_equal(
            ranker_for(model, group, H200, SEARCHED).ranker(SCHEDULES), plain
        )


@needs_nvrtc
@pytest.mark.parametrize('number', range(len(SCHEDULES)))
def test_cuda_text_compiles_without_spills(number: int) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    schedule = SCHEDULES[number]
    group = fronted(FRONTS['norm_relu'], n=1, c=21, h=14, w=14, k=32, bias=True, activation='relu')
    (step,) = generate(group, schedule).steps
    for architecture in ('sm_75', 'sm_80', 'sm_90'):
        if architecture == 'sm_75' and schedule.intrinsic != 'fma':
            continue  # matrix instructions for tf32 came with sm_80
        _, _, resources = compile_cubin(step.kernel, architecture)
        assert resources.spill_bytes == 0
        assert resources.registers is not None
        assert resources.registers <= 255
