"""A dialect of CUCL from outside: one value and one call of `DIALECTS.register`.

The dialect: C for the host's runner whose words are functions and macros of its own, and which
counts how often a block waits at a barrier. It has no matrix instructions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import InputError, ScheduleError
from tilewright.kernels.gpu.dialects.host import HOST
from tilewright.kernels.gpu.dialects.table import DIALECTS
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Kernel, lower
from tilewright.ops.group import Group
from tilewright.ops.normalise import softmax
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.hosted import HostDevice
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

NAME = 'counting'
CONV = tw.conv2d(c=5, h=9, w=10, k=7, r=3, s=3, pad=1, bias=True)
TILED = {'bk': 16, 'bp': 32, 'tk': 4, 'tp': 4, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}


def _entry(kernel: Kernel, parameters: str) -> str:
    return f'/* {kernel.threads} threads a block */\nKERNEL {kernel.name}({parameters})'


COUNTING = replace(
    HOST,
    name=NAME,
    words={
        **HOST.words, 'THREAD': 'work_item()', 'BLOCK_X': 'work_group(0)',
        'BARRIER': 'WAIT_FOR_ALL', 'GLOBAL': 'FAR', 'SHARED': 'NEAR',
    },
    head=f"""{HOST.head}
#define KERNEL static void
#define FAR
#define NEAR
static long waits;
#define WAIT_FOR_ALL (waits++, tw_barrier())
static inline int work_item(void) {{ return tw_thread; }}
static inline int work_group(int axis) {{ return tw_block[axis]; }}
""",
    entry=_entry,
    capabilities=frozenset({'device_fence'}),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    DIALECTS.register(COUNTING)
    yield
    DIALECTS.unregister(NAME)


@pytest.mark.parametrize(
    ('group', 'schedule'),
    [
        (CONV, GpuSchedule.of('tiled', **TILED)),
        (CONV, GpuSchedule.of('general', threads=64)),
        (softmax(shape=(3, 77)), GpuSchedule.of('rows', threads=32)),
    ],
    ids=['tiled', 'general', 'rows'],
)
def test_kernels_run_in_it(group: Group, schedule: GpuSchedule) -> None:
    on, arrays = HostDevice(dialect=DIALECTS.named(NAME)), random_arrays(group, 1)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with Runner(generate(group, schedule), on, constants) as runner:
        got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max()


def test_a_kernel_is_lowered_to_its_words() -> None:
    kernel = generate(CONV, GpuSchedule.of('tiled', **TILED)).steps[0].kernel
    text = lower(kernel, DIALECTS.named(NAME)).removeprefix(COUNTING.head)
    assert '/* 32 threads a block */\nKERNEL tiled_' in text
    assert 'work_item()' in text
    assert 'WAIT_FOR_ALL;' in text
    assert not {'THREAD', 'BLOCK_X', 'BARRIER', 'GLOBAL', 'SHARED'} & set(text.split())


def test_it_says_what_it_cannot_do() -> None:
    matrix = GpuSchedule.of('tiled', 'mma_tf32x3', **(TILED | {'tk': 16, 'tp': 16}))
    kernel = generate(CONV, matrix).steps[0].kernel
    with pytest.raises(ScheduleError, match=f'needs mma_tf32, which {NAME} does'):
        lower(kernel, DIALECTS.named(NAME))


def test_it_is_listed_while_it_is_registered() -> None:
    assert list(DIALECTS) == ['cuda', 'opencl', 'host', NAME]
    with pytest.raises(InputError, match=f"'metal' is not a dialect of CUCL; .*, {NAME}$"):
        DIALECTS.named('metal')
    with pytest.raises(InputError, match=f'{NAME!r} already; choose another name'):
        DIALECTS.register(COUNTING)
    with pytest.raises(InputError, match="'metal' was not registered"):
        DIALECTS.unregister('metal')
