"""The fft schema of GPUs against the reference: tiles that leave the image, blocks that end within
a channel, transforms of every kind of length; its errors beside the expected ones.
"""

from __future__ import annotations

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc
from sampling import covering

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.precision import sum_error
from tilewright.kernels.gpu.schemas.fft.plan import block_tiles
from tilewright.ops.fft import SIZES
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

FMA = {'bk': 16, 'bp': 32, 'tk': 4, 'tp': 4, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
# n, c, h, w, k, r, s, pad, size, where
SHAPES = (
    (1, 3, 10, 11, 5, 7, 7, 3, 16, 'host'),
    (3, 9, 6, 17, 7, 5, 5, 0, 12, 'opencl'),
    (2, 4, 15, 9, 17, 5, 11, (2, 5), 20, 'host'),
    (1, 2, 3, 2, 3, 7, 5, (6, 1, 0, 4), 16, 'host'),
    (2, 5, 27, 13, 4, 9, 9, 4, 24, 'host'),
)


def error_of(group: Group, schedule: GpuSchedule, on: str) -> float:
    """The largest error over the largest result."""
    arrays = random_arrays(group, 1)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with Runner(generate(group, schedule), device(on), constants) as runner:
        out = runner.arrays[group.output.name]
        runner.device.write(out, np.full(group.output.shape, np.nan, np.float32))
        got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize('shape', SHAPES)
def test_images_of_any_size(shape: tuple) -> None:
    n, c, h, w, k, r, s, pad, size, on = shape
    group = tw.conv2d(n=n, c=c, h=h, w=w, k=k, r=r, s=s, pad=pad, bias=True, activation='relu')
    schedule = GpuSchedule.of('fft', size=size, **FMA)
    assert error_of(group, schedule, on) <= 4 * sum_error(group, schedule)


@pytest.mark.slow
def test_long_filters_and_long_transforms() -> None:
    group = tw.conv2d(c=2, h=40, w=36, k=3, r=31, s=31, pad=15)
    schedule = GpuSchedule.of('fft', size=64, **FMA)
    assert error_of(group, schedule, 'opencl') <= 4 * sum_error(group, schedule)


def test_blocks_fit_every_gpu() -> None:
    for size in SIZES:
        tiles = block_tiles(size)
        assert tiles >= 2
        assert tiles * size <= 512
        assert 4 * size * size * (tiles + 1) <= 48 << 10


@pytest.mark.parametrize(
    ('changes', 'size', 'said'),
    [
        ({'stride': 2}, 16, 'stride 2x2'),
        ({'groups': 2}, 16, '2 groups'),
        ({'r': 3, 's': 3}, 16, '3x3 filter'),
        ({}, 14, 'size is 14; choose one of 12, 16'),
    ],
)
def test_what_it_does_not_compute_is_said(changes: dict, size: int, said: str) -> None:
    group = tw.conv2d(**({'c': 4, 'h': 9, 'w': 9, 'k': 4, 'r': 7, 's': 7} | changes))
    with pytest.raises(ScheduleError, match=said):
        generate(group, GpuSchedule.of('fft', size=size, **FMA))


@needs_nvrtc
@pytest.mark.parametrize(('size', 'architecture'), covering([16, 32], ['sm_75', 'sm_80', 'sm_90']))
def test_transforms_keep_their_numbers_in_registers(size: int, architecture: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubins

    group = tw.conv2d(n=4, c=64, h=56, w=56, k=64, r=7, s=7, pad=3, bias=True)
    made = generate(group, GpuSchedule.of('fft', size=size, **FMA)).kernels
    kernels = [kernel for kernel in made if kernel.name in ('fft_input', 'fft_output')]
    _, _, resources = compile_cubins(kernels, architecture)
    assert len(kernels) == 2
    for kernel in kernels:
        assert resources[kernel.name].spill_bytes == 0
