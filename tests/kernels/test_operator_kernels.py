"""Operators beside convolution in generated code: on the CPU, and as GPU kernels on the host
dialect and, where it is there, on OpenCL; their CUDA text through NVRTC, where that is there.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from counted import counted_mean
from devices import device
from marks import needs_nvrtc
from winograd_stages import lower, matrices

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.space import random_schedule
from tilewright.kernels.gpu.generate import generate
from tilewright.machine.isa import host_isas
from tilewright.ops.elementwise import elementwise
from tilewright.ops.fully_connected import fully_connected
from tilewright.ops.group import Group, Tensor
from tilewright.ops.moving import transpose
from tilewright.ops.normalise import lrn, softmax
from tilewright.ops.parts import parts
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.ops.pooling import average_pool, max_pool
from tilewright.ops.reduction import REDUCTIONS
from tilewright.ops.reference import reference
from tilewright.ops.slices import into_slice
from tilewright.ops.stage import Access, Dim, Stage, affine, call, read, var
from tilewright.ops.windows import windows
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule


def groups() -> dict[str, Group]:
    return {
        'max_pool': max_pool((2, 3, 9, 10), windows((9, 10), 3, 2, 1, ceil=True)),
        'mean': average_pool((1, 3, 8, 9), windows((8, 9), (2, 3), 2), 6),
        'padded_mean': counted_mean(3, 8, 9),
        'global': REDUCTIONS['mean'].group('mean', (2, 5, 7, 6), (2, 3)),
        'lrn': lrn((2, 7, 4, 5), alpha=0.3, bias=2.0),
        'softmax': softmax((3, 77)),
        'softmax_of_images': softmax((2, 5, 3, 4)),
        'add': elementwise('add', (2, 3, 4, 5), (3, 1, 1)),
        'silu': elementwise(ACTIVATIONS['silu'], (3, 50), name='silu'),
        'transposed': transpose((2, 3, 4, 5), (0, 2, 3, 1)),
        'connected': fully_connected(n=3, c=37, k=10, bias=True, activation='relu'),
        'slice': into_slice(lrn((2, 3, 4, 5)), 1, 2, 6),
        'convolution_slice': into_slice(
            tw.conv2d(n=2, c=3, h=6, w=6, k=5, r=3, s=3, pad=1, bias=True, activation='relu'),
            1, 4, 11,
        ),
    }  # fmt: skip


def close(group: Group, got: np.ndarray, want: np.ndarray) -> None:
    """Where the group writes, the values are right; elsewhere the NaN that was there is left."""
    last = group.stages[-1]
    places = tuple(slice(e.const, e.const + e.extent(last.sizes)) for e in last.write.index)
    written = np.zeros(want.shape, bool)
    written[places] = True
    assert np.isnan(got[~written]).all()
    assert np.abs(got - want)[written].max() <= 4e-6 * max(np.abs(want).max(), 1.0)


def run(group: Group, schedule: GpuSchedule, on: Device) -> None:
    arrays = random_arrays(group, 5)
    module = generate(group, schedule)
    runner = Runner(module, on, {t.name: arrays[t.name] for t in group.with_role('constant')})
    on.write(runner.arrays[group.output.name], np.full(group.output.shape, np.nan, np.float32))
    got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    close(group, got, reference(group, arrays))


@pytest.mark.parametrize('name', groups())
@pytest.mark.parametrize('on', ['host', 'opencl'])
def test_general_kernels(name: str, on: str) -> None:
    run(groups()[name], GpuSchedule.of('general', threads=32), device(on))


@pytest.mark.parametrize('name', ['padded_mean', 'global', 'softmax', 'connected'])
@pytest.mark.parametrize('on', ['host', 'opencl'])
def test_lanes_share_a_reduction(name: str, on: str) -> None:
    for lanes in (2, 32) if on == 'host' else (8,):
        run(groups()[name], GpuSchedule.of('general', threads=64, lanes=lanes), device(on))


@pytest.mark.parametrize('lanes', [3, 0, 64])
def test_lanes_are_a_power_of_two_that_divides_the_block(lanes: int) -> None:
    with pytest.raises(ScheduleError, match='power of two'):
        generate(groups()['softmax'], GpuSchedule.of('general', threads=32, lanes=lanes))


@pytest.mark.parametrize('name', groups())
def test_the_cpu_computes_every_part(name: str, compute) -> None:
    """Part by part with random schedules of any schema that fits."""
    group = groups()[name]
    values: dict[str, np.ndarray] = dict(random_arrays(group, 6))
    want = reference(group, values)
    for number, part in enumerate(parts(group)):
        schedule = random_schedule(part, host_isas()[0], Random(number))
        values[part.output.name] = compute(part, schedule, values)
    close(group, values[group.output.name], want)


@pytest.mark.parametrize('shape', [(2, 3, 4, 5), (1, 9, 8, 8), (1, 17, 3, 3)])
@pytest.mark.parametrize('on', ['host', 'opencl'])
def test_layouts_change_through_squares(shape: tuple[int, ...], on: str) -> None:
    """Sizes below, at and above the side of a square; there and back."""
    for order in ((0, 2, 3, 1), (0, 3, 1, 2)):
        run(transpose(shape, order), GpuSchedule.of('transposed', side=8, rows=4), device(on))


def test_what_cannot_be_transposed_says_why() -> None:
    square = GpuSchedule.of('transposed', side=8, rows=4)
    for name, part in (('softmax', 'without a sum'), ('silu', 'contiguous before')):
        with pytest.raises(ScheduleError, match=part):
            generate(groups()[name], square)
    with pytest.raises(ScheduleError, match='do not divide'):
        generate(groups()['transposed'], GpuSchedule.of('transposed', side=8, rows=3))


def test_what_needs_no_input_is_computed_once() -> None:
    module = generate(groups()['padded_mean'], GpuSchedule.of('general', threads=32))
    assert [s.kernel.name for s in module.ahead] == ['general_ones', 'general_count']
    assert [s.kernel.name for s in module.steps] == ['general_sum_pool']


@pytest.mark.parametrize('schema', ['general', 'tiled'])
def test_a_lowered_convolution_is_a_chain_of_kernels(schema: str) -> None:
    """Winograd's stages, filters ahead; the schema of a schedule is that of the main stage."""
    conv = tw.conv2d(c=8, h=8, w=8, k=9, r=3, s=3, pad=1, bias=True, activation='relu')
    group = lower(conv, 2)
    assert group.main.name != group.stages[0].name
    arrays = random_arrays(conv, 1) | {
        name: values.astype(np.float32) for name, values in matrices(conv, 2).items()
    }
    schedule = GpuSchedule.of('general', threads=64)
    if schema == 'tiled':
        conv = replace(conv, label='tiled')
        group = behind(conv)
        arrays = random_arrays(group, 1)
        schedule = GpuSchedule.of(
            'tiled', bk=16, bp=16, tk=4, tp=4, kb=8, stages=2, split=1, joint=0
        )
    module = generate(group, schedule)
    runner = Runner(module, device('host'), arrays)
    got = runner(In=arrays['In'])
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
    names = [step.kernel.name for step in (*module.ahead, *module.steps)]
    assert ('tiled_conv2d' in names) == (schema == 'tiled')


def behind(conv: Group) -> Group:
    """A convolution, and the sum of neighbouring channels of its result."""
    n, k, h, w = conv.output.shape
    total = Stage(
        'pairs',
        (Dim('n', n), Dim('while', k - 1), Dim('h', h), Dim('w', w), Dim('float', 2, 'reduction')),
        Access('Sum', (var('n'), var('while'), var('h'), var('w'))),
        (Access('Out', (var('n'), affine(('while', 1), ('float', 1)), var('h'), var('w'))),),
        call('abs', read(0)),
        'sum',
    )
    tensors = tuple(replace(t, role='inner') if t.name == 'Out' else t for t in conv.tensors)
    result = Tensor('Sum', ('n', 'k', 'h', 'w'), (n, k - 1, h, w), 'output')
    return Group('behind', (*tensors, result), (*conv.stages, total), conv.storage)


@needs_nvrtc
@pytest.mark.parametrize('architecture', ['sm_75', 'sm_80', 'sm_90'])
def test_cuda_text_compiles_without_spills(architecture: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    for name in ('padded_mean', 'lrn', 'softmax'):
        module = generate(groups()[name], GpuSchedule.of('general', threads=64, lanes=8))
        for kernel in module.kernels:
            _, _, resources = compile_cubin(kernel, architecture)
            assert resources.spill_bytes == 0
    square = generate(groups()['transposed'], GpuSchedule.of('transposed', side=32, rows=8))
    _, _, resources = compile_cubin(square.kernels[0], architecture)
    assert resources.spill_bytes == 0
