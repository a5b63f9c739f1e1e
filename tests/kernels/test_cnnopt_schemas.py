"""CNNOpt's RS and S schemas against the reference: host dialect, OpenCL, NVRTC."""

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
from tilewright.kernels.gpu.module import Module
from tilewright.kernels.gpu.schemas.cnnopt.plan import plan
from tilewright.machine.gpu import known_gpu
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

ARCHITECTURES = ('sm_75', 'sm_80', 'sm_90')
NAMES = ('rk', 'ry', 'rx', 'tk', 'ty', 'tx', 'wk', 'wy', 'wx', 'cb', 'stages', 'split', 'join')


def schedule(schema: str, *numbers: int) -> GpuSchedule:
    return GpuSchedule.of(schema, **dict(zip(NAMES, numbers, strict=True)))


# Lanes over k as in the paper's data, over pixels, over both; every way of joining.
SCHEDULES = [
    schedule('rs', 1, 2, 4, 32, 1, 1, 1, 1, 1, 1, 1, 1, 0),
    schedule('rs', 4, 1, 2, 4, 2, 4, 1, 2, 1, 2, 2, 1, 0),
    schedule('rs', 2, 1, 3, 8, 1, 4, 2, 1, 1, 1, 2, 2, 0),
    schedule('rs', 1, 2, 2, 16, 2, 1, 1, 1, 2, 2, 3, 2, 1),
    schedule('rs', 3, 2, 1, 4, 4, 2, 1, 1, 1, 1, 1, 3, 2),
    schedule('s', 2, 1, 5, 16, 1, 2, 1, 2, 1, 1, 1, 1, 0),
    schedule('s', 4, 2, 4, 2, 8, 2, 2, 1, 1, 2, 2, 2, 0),
    schedule('s', 1, 1, 4, 8, 2, 2, 1, 1, 1, 3, 2, 2, 1),
    schedule('s', 8, 1, 2, 1, 4, 8, 2, 1, 1, 2, 3, 2, 2),
]


def groups() -> dict[str, Group]:
    """Padding by bounds and ahead, strides, dilation, groups, batches, odd sizes, epilogues."""
    return {
        'padded': tw.conv2d(c=6, h=9, w=10, k=20, r=3, s=3, pad=1, bias=True, activation='relu'),
        'prepadded': tw.conv2d(c=6, h=10, w=10, k=32, r=3, s=3),
        'strided': tw.conv2d(n=2, c=5, h=11, w=9, k=7, r=3, s=3, stride=2, pad=1),
        'dilated': tw.conv2d(c=4, h=12, w=12, k=16, r=3, s=3, dilation=2, pad=2, bias=True),
        'grouped': tw.conv2d(c=8, h=7, w=7, k=12, r=3, s=1, groups=2, pad=(1, 0), bias=True),
        'pointwise': tw.conv2d(n=2, c=16, h=4, w=6, k=24, r=1, s=1, activation='silu'),
        'first': tw.conv2d(c=3, h=17, w=19, k=16, r=7, s=7, stride=2, pad=3),
    }


def run(module: Module, on: Device, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(the result of a second call on other data than the first, the reference)."""
    group = module.group
    first, second = (random_arrays(group, seed + i) for i in range(2))
    constants = {t.name: second[t.name] for t in group.with_role('constant')}
    runner = Runner(module, on, constants)
    names = [t.name for t in group.with_role('input')]
    runner(**{name: first[name] for name in names})
    on.write(runner.arrays[group.output.name], np.full(group.output.shape, np.nan, np.float32))
    return runner(**{name: second[name] for name in names}), reference(group, second)


def fitted(group: Group, wanted: GpuSchedule) -> Module:
    """The module; not split where there are too few channels for it."""
    try:
        return generate(group, wanted)
    except ScheduleError:
        whole = tuple((n, 1 if n == 'split' else v) for n, v in wanted.tiles)
        return generate(group, GpuSchedule(wanted.schema, whole))


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert np.abs(got - want).max() <= 2e-6 * max(np.abs(want).max(), 1.0)


@pytest.mark.parametrize(('number', 'name'), covering(range(len(SCHEDULES)), groups()))
def test_against_the_reference_on_the_host(name: str, number: int) -> None:
    close(*run(fitted(groups()[name], SCHEDULES[number]), device('host'), number))


@pytest.mark.parametrize('number', range(len(SCHEDULES)))
def test_against_the_reference_on_opencl(number: int) -> None:
    """Every schedule, the problems in turn: OpenCL on a CPU compiles unrolled code slowly."""
    problems = list(groups().values())
    close(*run(fitted(problems[number % len(problems)], SCHEDULES[number]), device('opencl'), 1))


@pytest.mark.parametrize('edge', range(-1, 2))
def test_sizes_around_the_edges_of_a_tile(edge: int) -> None:
    """Channels, rows and columns one below, at and one above what a block and a piece take."""
    for wanted in (SCHEDULES[1], SCHEDULES[6]):
        k, y, x = plan(groups()['prepadded'], wanted).block
        group = tw.conv2d(c=4 + edge, h=y + edge, w=x + edge, k=k + edge, r=3, s=3, pad=1)
        close(*run(generate(group, wanted), device('host'), 5 + edge))


@pytest.mark.parametrize('seed', [11, pytest.param(12, marks=pytest.mark.slow)])
def test_random_schedules_of_random_problems(seed: int) -> None:
    draw = random.Random(seed)
    lanes = [(a, b, 32 // a // b) for a in (1, 2, 4, 8, 16, 32) for b in (1, 2, 4) if a * b <= 32]
    tried = 0
    while tried < 7:
        window = draw.choice([1, 3, 5])
        group = tw.conv2d(
            n=draw.randint(1, 2), c=draw.randint(1, 9), h=draw.randint(5, 13),
            w=draw.randint(5, 13), k=draw.randint(1, 40), r=window, s=draw.choice([1, window]),
            stride=draw.randint(1, 2), pad=draw.randint(0, window // 2), bias=True,
        )  # fmt: skip
        wanted = schedule(
            draw.choice(['rs', 's']), draw.randint(1, 5), draw.randint(1, 3), draw.randint(1, 5),
            *draw.choice(lanes), draw.randint(1, 2), draw.randint(1, 2), draw.randint(1, 2),
            draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 4), draw.randint(0, 2),
        )  # fmt: skip
        try:
            module = generate(group, wanted)
        except ScheduleError:
            continue
        tried += 1
        close(*run(module, device('host'), tried))


@pytest.mark.parametrize('number', [3, 4, 7, 8])
def test_fixed_orders_give_the_same_bits_every_time(number: int) -> None:
    module = generate(groups()['padded'], SCHEDULES[number])
    first, _ = run(module, device('host'), 3)
    second, _ = run(module, device('host'), 3)
    np.testing.assert_array_equal(first, second)


def test_every_kernel_of_a_call_is_a_step() -> None:
    """Zeroing, joining and a late epilogue are counted with the call."""
    group = groups()['padded']
    names = [[s.kernel.name for s in generate(group, one).steps] for one in SCHEDULES[2:5]]
    assert names == [
        ['cnnopt_zero', 'rs_conv2d', 'cnnopt_finish'],
        ['rs_conv2d', 'cnnopt_join'],
        ['rs_conv2d'],
    ]
    bare = generate(groups()['prepadded'], SCHEDULES[2])
    assert [s.kernel.name for s in bare.steps] == ['cnnopt_zero', 'rs_conv2d']


def test_an_input_padded_before_needs_no_tests() -> None:
    wanted = schedule('rs', 1, 2, 4, 32, 1, 1, 1, 1, 2, 1, 1, 1, 0)
    source = generate(groups()['prepadded'], wanted).steps[0].kernel.body
    assert 'unsigned' not in source
    assert 'if (h' not in source
    assert 'unsigned' in generate(groups()['padded'], wanted).steps[0].kernel.body


def test_registers_shared_memory_and_blocks_by_hand() -> None:
    """RS tile 2x2x4 of a 3x3: Eq. 2 with the product, 16 + 4 x 6 + 1; S: 16 + 6 + 1."""
    group = tw.conv2d(c=8, h=18, w=18, k=64, r=3, s=3)
    numbers = (2, 2, 4, 32, 1, 1, 1, 2, 2, 2, 3, 4, 2)
    rs, s = plan(group, schedule('rs', *numbers)), plan(group, schedule('s', *numbers))
    assert (rs.operands, s.operands) == (41, 23)
    assert (rs.block, rs.plane, rs.tiles) == ((64, 4, 8), (6, 10), (1, 4, 2))
    assert rs.shared_floats == 3 * 2 * (6 * 10 + 9 * 64)
    assert (rs.threads, rs.grid, rs.iterations) == (128, (8, 1, 4), 4)


@pytest.mark.parametrize(
    ('change', 'part'),
    [
        ({'tk': 16}, 'tk ty tx are 32'),
        ({'rx': 0}, 'at least 1'),
        ({'split': 9}, 'at most the 6 pieces'),
        ({'join': 3}, 'join is below 3: atomics'),
    ],
)
def test_an_illegal_schedule_says_why(change: dict, part: str) -> None:
    tiles = dict(SCHEDULES[0].tiles) | change
    with pytest.raises(ScheduleError, match=part):
        generate(groups()['padded'], GpuSchedule('rs', tuple(tiles.items())))
    with pytest.raises(ScheduleError, match="the intrinsic is 'fma'"):
        generate(groups()['padded'], GpuSchedule('s', SCHEDULES[0].tiles, 'mma_tf32x3'))


def test_other_operators_are_refused() -> None:
    with pytest.raises(ScheduleError, match='needs a window over two dimensions'):
        generate(tw.matmul(m=13, n=24, k=40), SCHEDULES[0])


@needs_nvrtc
@pytest.mark.parametrize(
    'architecture',
    ['sm_75', *(pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES[1:])],
)
@pytest.mark.parametrize('number', range(len(SCHEDULES)))
def test_cuda_text_compiles_without_spills(number: int, architecture: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    limits = known_gpu('rtx2080ti')
    for kernel in generate(groups()['padded'], SCHEDULES[number]).kernels:
        _, _, resources = compile_cubin(kernel, architecture)
        assert resources.spill_bytes == 0
        limits.fits(kernel.name, kernel.threads, kernel.shared_bytes, resources.registers)
