"""The depthwise schema against the reference, on the host dialect and, where it is there, on
OpenCL; its CUDA text through NVRTC, where that is there.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc
from sampling import covering

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.machine.gpu import known_gpu
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.slices import into_slice
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.compare.first_choice import depthwise_schedules


def groups() -> dict[str, Group]:
    """Rows that can be read in fours and rows that cannot, strides, dilation, large windows."""
    return {
        'plain': tw.conv2d(c=6, h=9, w=12, k=6, r=3, s=3, pad=1, groups=6, bias=True),
        'odd': tw.conv2d(n=2, c=5, h=7, w=7, k=5, r=3, s=3, pad=1, groups=5, activation='relu'),
        'strided': tw.conv2d(c=4, h=16, w=16, k=4, r=3, s=3, stride=2, pad=1, groups=4, bias=True),
        'strided odd': tw.conv2d(c=3, h=11, w=13, k=3, r=3, s=3, stride=2, pad=1, groups=3),
        'tall': tw.conv2d(c=4, h=12, w=8, k=4, r=5, s=1, stride=(3, 1), pad=(2, 0), groups=4),
        'wide': tw.conv2d(c=2, h=10, w=20, k=2, r=1, s=7, pad=(0, 3), groups=2),
        'dilated': tw.conv2d(c=3, h=12, w=12, k=3, r=3, s=3, dilation=2, pad=2, groups=3),
        'large': tw.conv2d(c=2, h=14, w=16, k=2, r=9, s=9, pad=4, groups=2, activation='silu'),
        'multiplied': tw.conv2d(n=2, c=3, h=6, w=8, k=6, r=3, s=3, pad=1, groups=3, bias=True),
        'unpadded': tw.conv2d(c=4, h=8, w=8, k=4, r=2, s=2, groups=4),
        'uneven': tw.conv2d(c=2, h=8, w=12, k=2, r=3, s=3, pad=(0, 2, 1, 0), groups=2),
    }


TILES = (
    {'th': 1, 'tw': 1, 'bh': 4, 'bw': 8, 'bp': 1},
    {'th': 2, 'tw': 4, 'bh': 2, 'bw': 2, 'bp': 3},
    {'th': 4, 'tw': 2, 'bh': 1, 'bw': 5, 'bp': 2},
    {'th': 3, 'tw': 8, 'bh': 2, 'bw': 1, 'bp': 4},
)
SCHEDULES = [
    GpuSchedule.of('depthwise', **tiles, shared=shared) for tiles in TILES for shared in (0, 1)
]


def check(group: Group, schedule: GpuSchedule, on: Device, seed: int) -> None:
    arrays = random_arrays(group, seed)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    runner = Runner(generate(group, schedule), on, constants)
    on.write(runner.arrays[group.output.name], np.full(group.output.shape, np.nan, np.float32))
    got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 2e-6 * max(np.abs(want).max(), 1.0)


@pytest.mark.parametrize(('on', 'name'), covering(['host', 'opencl'], groups()))
def test_every_kind_of_window(name: str, on: str) -> None:
    """Each with some schedules, so that every schedule meets rows of every kind."""
    place = list(groups()).index(name)
    steps = (0, 3, 6) if on == 'host' else (1, 4)
    for number in ((place + step) % len(SCHEDULES) for step in steps):
        check(groups()[name], SCHEDULES[number], device(on), number)


def test_random_schedules_of_random_problems() -> None:
    draw = random.Random(3)
    for seed in range(10):
        channels, window = draw.randint(1, 5), draw.choice([1, 2, 3, 5])
        group = tw.conv2d(
            n=draw.randint(1, 2), c=channels + 1, k=channels + 1, groups=channels + 1,
            h=draw.randint(6, 17), w=draw.randint(6, 17), r=window, s=window, bias=True,
            stride=draw.randint(1, 3), pad=draw.randint(0, window // 2),
        )  # fmt: skip
        legal = list(depthwise_schedules(group, known_gpu('h200')))
        check(group, draw.choice(legal), device('host'), seed)


def test_the_result_may_be_a_slice() -> None:
    group = into_slice(groups()['plain'], 1, 3, 11)
    arrays = random_arrays(group, 0)
    runner = Runner(generate(group, SCHEDULES[2]), device('host'), arrays)
    before = np.full(group.output.shape, 7.0, np.float32)
    runner.device.write(runner.arrays['Out'], before)
    got = runner(In=arrays['In'])
    want = reference(group, arrays)
    np.testing.assert_allclose(got[:, 3:9], want[:, 3:9], rtol=1e-5, atol=1e-6)
    assert (np.delete(got, range(3, 9), axis=1) == 7.0).all()


@pytest.mark.parametrize(
    ('axis', 'offset', 'extent'), [(3, 0, 14), (3, 0, 13), (3, 2, 16), (3, 1, 14), (2, 1, 11)]
)
@pytest.mark.parametrize('schema', ['depthwise', 'rs', 's'])
def test_slices_that_are_not_aligned(schema: str, axis: int, offset: int, extent: int) -> None:
    """Rows of the result begin anywhere: stores of two or four only where they may."""
    if schema == 'depthwise':
        group, schedule = groups()['plain'], SCHEDULES[2]
        if offset:
            with pytest.raises(ScheduleError, match='rows and columns'):
                generate(into_slice(group, axis, offset, extent), schedule)
            return
    else:
        group = tw.conv2d(c=4, h=9, w=12, k=32, r=3, s=3, pad=1, bias=True)
        names = ('rk', 'ry', 'rx', 'tk', 'ty', 'tx', 'wk', 'wy', 'wx', 'cb', 'stages', 'split')
        numbers = (1, 1, 4, 32, 1, 1, 1, 1, 2, 1, 1, 1)
        schedule = GpuSchedule.of(schema, **dict(zip(names, numbers, strict=True)), join=0)
    sliced = into_slice(group, axis, offset, extent)
    text = '\n'.join(kernel.body for kernel in generate(sliced, schedule).kernels)
    assert 'STORE4' not in text or (offset % 4, extent % 4) == (0, 0) or axis == 2
    check_slice(sliced, schedule, axis, offset, group.output.shape[axis])


def check_slice(group: Group, schedule: GpuSchedule, axis: int, offset: int, size: int) -> None:
    arrays = random_arrays(group, 0)
    runner = Runner(generate(group, schedule), device('host'), arrays)
    before = np.full(group.output.shape, 7.0, np.float32)
    runner.device.write(runner.arrays['Out'], before)
    got, want = runner(In=arrays['In']), reference(group, arrays)
    inside = range(offset, offset + size)
    np.testing.assert_allclose(
        np.take(got, inside, axis), np.take(want, inside, axis), rtol=1e-5, atol=1e-5
    )
    assert (np.delete(got, inside, axis=axis) == 7.0).all()


def test_the_space_is_legal_and_fits() -> None:
    group, machine = groups()['plain'], known_gpu('rtx2080ti')
    space = list(depthwise_schedules(group, machine))
    assert len(space) == len(set(space)) > 50
    for schedule in space:
        (kernel,) = generate(group, schedule).kernels
        machine.fits(kernel.name, kernel.threads, kernel.shared_bytes)


@pytest.mark.parametrize(
    ('change', 'part'),
    [
        ({'bp': 0}, 'at least 1'),
        ({'th': 40, 'tw': 40}, 'at most 4096'),
        ({'th': 16, 'tw': 16}, 'keeps at most 160'),
    ],
)
def test_an_illegal_schedule_says_why(change: dict, part: str) -> None:
    with pytest.raises(ScheduleError, match=part):
        generate(groups()['plain'], GpuSchedule.of('depthwise', **(TILES[0] | change), shared=0))


def test_a_dense_convolution_is_refused() -> None:
    with pytest.raises(ScheduleError, match='no other sum'):
        generate(tw.conv2d(c=4, h=8, w=8, k=4, r=3, s=3), SCHEDULES[0])
    with pytest.raises(ScheduleError, match='rows and columns'):
        generate(tw.matmul(m=4, n=4, k=4), SCHEDULES[0])


@needs_nvrtc
@pytest.mark.parametrize(
    ('name', 'architecture'), covering(['plain', 'strided', 'large'], ['sm_75', 'sm_80', 'sm_90'])
)
def test_cuda_text_compiles_without_spills(name: str, architecture: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    for schedule in SCHEDULES[2:4]:
        (kernel,) = generate(groups()[name], schedule).kernels
        _, _, resources = compile_cubin(kernel, architecture)
        assert resources.spill_bytes == 0
        assert resources.registers is not None
        assert resources.registers <= 128
