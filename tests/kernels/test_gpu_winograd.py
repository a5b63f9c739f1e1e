"""The winograd schema of GPUs against the reference, on the host dialect and, where it is there, on
OpenCL; its errors beside the expected ones; its CUDA text through NVRTC, where that is there.
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
from tilewright.ops.compose import append
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import call, const, read
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

FMA = {'bk': 16, 'bp': 32, 'tk': 4, 'tp': 4, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
WARPS = {'bk': 16, 'bp': 32, 'tk': 16, 'tp': 16, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
WIDE = WARPS | {'tp': 64, 'queue': 2}
DECISIONS = {
    'fma': FMA, 'mma_tf32x3': WARPS, 'wgmma_tf32x3': WIDE,
    'wgmma_tf32_bf16': WIDE | {'late': 1, 'bulk': 1},
}  # fmt: skip


def schedule_of(intrinsic: str, m: int, group: Group, **changes: int) -> GpuSchedule:
    """One of each kind; a patch is no larger than there are tiles."""
    n, _, h, w = group.output.shape
    tiles = n * -(-h // m) * -(-w // m)
    decided = DECISIONS[intrinsic] | changes
    if intrinsic != 'fma':
        decided['bp'] = min(decided['bp'], tiles)
    return GpuSchedule.of('winograd', intrinsic, m=m, **decided)


def computed(group: Group, schedule: GpuSchedule, on: str, seed: int = 0) -> tuple:
    """(the result of a second call on other data than the first, the reference)."""
    first, arrays = random_arrays(group, seed + 1), random_arrays(group, seed)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    names = [t.name for t in group.with_role('input')]
    with Runner(generate(group, schedule), device(on), constants) as runner:
        runner(**{name: first[name] for name in names})
        out = runner.arrays[group.output.name]
        runner.device.write(out, np.full(group.output.shape, np.nan, np.float32))
        return runner(**{name: arrays[name] for name in names}), reference(group, arrays)


def close(group: Group, schedule: GpuSchedule, on: str = 'host', seed: int = 0) -> None:
    """Within three times the expected error, which is that of many normal numbers."""
    got, want = computed(group, schedule, on, seed)
    limit = 3 * sum_error(group, schedule) + 1e-7
    assert np.abs(got - want).max() <= limit * max(np.abs(want).max(), 1.0)


SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 17)


@pytest.mark.parametrize(('place', 'm'), covering(range(len(SIDES)), [2, 4]))
def test_images_around_the_edges_of_tiles(place: int, m: int) -> None:
    """Every height beside another width; batches, paddings and odd channels in turn."""
    h, w = SIDES[place], SIDES[(7 * place + 3) % len(SIDES)]
    pad = (1, 2, (2, 1, 0, 1), (0, 2, 2, 0))[place % 4]
    n, c, k = (1, 2, 5)[place % 3], (3, 8, 9)[place % 3], (17, 5, 16)[(place + 1) % 3]
    group = tw.conv2d(n=n, c=c, h=h, w=w, k=k, r=3, s=3, pad=pad, bias=place % 2 > 0)
    kinds = list(DECISIONS)
    for intrinsic in ('fma', kinds[1 + place % 3]):
        close(group, schedule_of(intrinsic, m, group), 'host', place)


SHAPES = ((1, 4, 3, 3, 5, 0), (5, 3, 6, 9, 4, 1), (2, 9, 14, 5, 17, 2), (1, 8, 9, 10, 33, 0))


@pytest.mark.parametrize(('shape', 'm'), covering(SHAPES, [2, 4]))
def test_on_opencl(shape: tuple[int, ...], m: int) -> None:
    n, c, h, w, k, pad = shape
    group = tw.conv2d(n=n, c=c, h=h, w=w, k=k, r=3, s=3, pad=pad, bias=True, activation='relu')
    close(group, schedule_of('fma', m, group), 'opencl')


@pytest.mark.parametrize('intrinsic', DECISIONS)
def test_splits_stages_and_fours(intrinsic: str) -> None:
    """36 tiles: fours of them are copied at once where the patch has fours, single ones else."""
    group = tw.conv2d(n=4, c=24, h=11, w=12, k=20, r=3, s=3, pad=1, bias=True)
    for number, changes in enumerate(({'split': 2, 'stages': 3}, {'split': 3, 'stages': 1})):
        wide = {'bp': (20, 18)[number]} if intrinsic != 'fma' else {}
        wide |= {'late': 1 - number} if intrinsic == 'wgmma_tf32_bf16' else {}
        schedule = schedule_of(intrinsic, 4, group, **changes, **wide)
        text = generate(group, schedule).steps[1].kernel.body
        assert intrinsic == 'fma' or ('COPY4(to_a' in text) == (number == 0)
        close(group, schedule, 'host', number)


STORES = ((12, 'STORE4'), (14, 'STORE2'), (13, 'to[0] ='))


@pytest.mark.parametrize(('store', 'm'), covering(STORES, [4, 2]))
def test_rows_are_stored_as_they_are_aligned(store: tuple[int, str], m: int) -> None:
    """With bias, residual and an activation behind them."""
    w, run = store
    group = tw.conv2d(n=2, c=4, h=6, w=w, k=5, r=3, s=3, pad=1, bias=True)
    total = call('max', call('add', read(0), read(1)), const(0.0))
    joined = append(group, elementwise(total, *[group.output.shape] * 2, name='then'), 'In0')
    assert joined is not None
    schedule = schedule_of('fma', m, joined.group)
    text = generate(joined.group, schedule).steps[-1].kernel.body
    assert (run if m == 4 else run.replace('4', '2')) in text
    close(joined.group, schedule)


LOADS = ((4, 12, 'LOAD4'), (4, 14, 'LOAD2'), (2, 12, 'LOAD2'))


@pytest.mark.parametrize(('pad', 'load'), covering([0, 1, 2, (1, 0, 2, 3)], LOADS))
def test_rows_are_loaded_as_they_are_aligned(pad: int, load: tuple[int, int, str]) -> None:
    m, w, run = load
    group = tw.conv2d(n=2, c=3, h=5, w=w, k=4, r=3, s=3, pad=pad)
    schedule = schedule_of('fma', m, group)
    assert run in generate(group, schedule).steps[0].kernel.body
    close(group, schedule)


def test_the_result_may_have_longer_rows() -> None:
    group = into_slice(tw.conv2d(c=4, h=6, w=8, k=5, r=3, s=3, pad=1), 3, 0, 11)
    schedule = GpuSchedule.of('winograd', m=4, **FMA)
    arrays = random_arrays(group, 0)
    runner = Runner(generate(group, schedule), device('host'), arrays)
    runner.device.write(runner.arrays['Out'], np.full(group.output.shape, 7.0, np.float32))
    got, want = runner(In=arrays['In']), reference(group, arrays)
    np.testing.assert_allclose(got[..., :8], want[..., :8], atol=1e-5 * np.abs(want).max())
    assert (got[..., 8:] == 7.0).all()


@pytest.mark.parametrize(
    ('intrinsic', 'm'), covering(['fma', 'wgmma_tf32x3', 'wgmma_tf32_bf16'], [2, 4])
)
def test_errors_are_as_expected(intrinsic: str, m: int) -> None:
    """Of normal numbers. The host rounds where matrix units cut, so that it is off by less."""
    group = tw.conv2d(n=2, c=96, h=16, w=16, k=32, r=3, s=3, pad=1)
    schedule = schedule_of(intrinsic, m, group, bk=32, **({} if intrinsic == 'fma' else {'tk': 32}))
    rng = np.random.default_rng(0)
    arrays = {
        t.name: rng.standard_normal(t.shape).astype(np.float32)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }
    with Runner(generate(group, schedule), device('host'), arrays) as runner:
        got = runner(In=arrays['In'])
    want = reference(group, arrays)
    error = np.abs(got - want).max() / np.abs(want).max()
    expected = sum_error(group, schedule)
    assert (0.5 if intrinsic == 'fma' else 0.2) * expected < error < 1.5 * expected


@pytest.mark.parametrize(
    ('group', 'part'),
    [
        (tw.conv2d(c=4, h=8, w=8, k=4, r=3, s=3, stride=2), 'stride'),
        (tw.conv2d(c=4, h=8, w=8, k=4, r=5, s=5), 'filter'),
        (tw.conv2d(c=4, h=8, w=8, k=4, r=1, s=3), 'filter'),
        (tw.conv2d(c=4, h=8, w=8, k=4, r=1, s=1), 'nothing to save'),
        (tw.conv2d(c=4, h=8, w=8, k=4, r=3, s=3, dilation=2), 'dilated'),
        (tw.conv2d(c=4, h=8, w=8, k=4, r=3, s=3, groups=2), '2 groups'),
        (tw.conv2d(c=4, h=8, w=8, k=4, r=3, s=3, groups=4), 'dimensions'),
        (tw.matmul(m=4, n=4, k=4), 'dimensions'),
    ],
)
def test_what_it_does_not_compute_is_said(group: Group, part: str) -> None:
    with pytest.raises(ScheduleError, match=f'stride 1, dilation 1 and one group.*{part}'):
        generate(group, GpuSchedule.of('winograd', m=2, **FMA))


@pytest.mark.parametrize(
    ('schedule', 'part'),
    [
        (GpuSchedule.of('winograd', m=3, **FMA), 'm is 3; choose one of'),
        (GpuSchedule.of('winograd', **FMA), "value for 'm'"),
        (GpuSchedule.of('winograd', 'wmma', m=2, **FMA), 'not by wmma'),
        (GpuSchedule.of('winograd', m=2, **(FMA | {'bk': 18})), 'tk divides bk'),
        (GpuSchedule.of('winograd', 'mma_tf32x3', m=4, **WARPS), 'bp, 32, is at most'),
    ],
)
def test_an_illegal_schedule_says_why(schedule: GpuSchedule, part: str) -> None:
    with pytest.raises(ScheduleError, match=part):
        generate(tw.conv2d(c=4, h=8, w=8, k=4, r=3, s=3), schedule)


@needs_nvrtc
@pytest.mark.parametrize(('m', 'architecture'), covering([2, 4], ['sm_75', 'sm_80', 'sm_90']))
def test_the_transforms_have_registers_to_spare(m: int, architecture: str) -> None:
    """64 registers: four blocks of a multiprocessor, each thread with many loads under way."""
    from tilewright.runtime.gpu.cuda import compile_cubins

    group = tw.conv2d(n=128, c=256, h=14, w=14, k=256, r=3, s=3, pad=1, bias=True)
    kernels = [
        kernel
        for kernel in generate(group, schedule_of('fma', m, group)).kernels
        if kernel.name.startswith('winograd')
    ]
    _, _, resources = compile_cubins(kernels, architecture)
    assert len(kernels) == 3
    for kernel in kernels:
        taken = resources[kernel.name]
        assert taken.spill_bytes == 0
        assert taken.registers is not None
        assert taken.registers <= 64
