"""Element-wise stages in front of a sum of products, applied by the tiled schema as it copies."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from devices import device

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.ops.elementwise import elementwise
from tilewright.ops.front import has_front, put_in_front
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.stage import Expr, call, const, read
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

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
    *(GpuSchedule.of('tiled', **tiles, joint=0) for tiles in FMA),
    *(GpuSchedule.of('tiled', 'mma_tf32x3', **tiles, joint=0) for tiles in MATRIX),
]


def fronted(front: Expr, **sizes) -> Group:
    """A convolution with an expression over its image and numbers of its channels before it."""
    conv = tw.conv2d(**sizes, r=sizes.get('r', 1), s=sizes.get('s', 1))
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
