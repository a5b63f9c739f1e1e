"""Every GPU schema the same way: around the edges of its tile on OpenCL, within the limits of GPUs,
and through NVRTC for three architectures. What a schema does beyond that is in its own file.
"""

from __future__ import annotations

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc
from test_attention_kernels import attention, masks, sized

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.registry import OWN
from tilewright.machine.gpu import known_gpu
from tilewright.ops.group import Group
from tilewright.ops.moving import transpose
from tilewright.ops.normalise import softmax
from tilewright.ops.recurrence import Recurrent, recurrence
from tilewright.ops.reference import reference
from tilewright.ops.stage import call, read
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule

SIGMOID, TANH = call('sigmoid', read(0)), call('tanh', read(0))
TILED = {'bk': 16, 'bp': 32, 'tk': 4, 'tp': 4, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
CNNOPT = {'rk': 1, 'ry': 2, 'rx': 4, 'tk': 8, 'ty': 2, 'tx': 2, 'wk': 2, 'wy': 1, 'wx': 1,
          'cb': 2, 'stages': 2, 'split': 2, 'join': 2}  # fmt: skip
PATCH = {'bn': 1, 'bh': 4, 'bw': 8, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
STRIP = {'bp': 64, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
WINOGRAD = {'m': 2, 'bk': 16, 'bp': 32, 'tk': 16, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
CASES = {
    'attention': GpuSchedule.of('attention', bi=8, bj=8, ti=1, lanes=8, wide=1),
    'attention/mma': GpuSchedule.of('attention', 'mma_tf32x3', bi=16, bj=16, ti=16, lanes=32,
                                    wide=1),
    'depthwise': GpuSchedule.of('depthwise', th=2, tw=4, bh=2, bw=2, bp=4, shared=1),
    'dfg': GpuSchedule.of('dfg', threads=64, bn=1, bk=8, bh=4, bw=8, tk=4, tp=2),
    'fft': GpuSchedule.of('fft', size=12, **TILED),
    'fft/mma': GpuSchedule.of('fft', 'mma_tf32x3', size=12,
                              **(TILED | {'bp': 2, 'tk': 16, 'tp': 16})),
    'general': GpuSchedule.of('general', threads=64),
    'matrix_steps': GpuSchedule.of('matrix_steps', 'mma_tf32x3', bk=16, bp=16, tk=16, tp=8, kb=8,
                                   stages=2, split=1),
    'matrix_steps/split': GpuSchedule.of('matrix_steps', 'mma_tf32x3', bk=16, bp=16, tk=16, tp=8,
                                         kb=8, stages=2, split=2),
    'patch': GpuSchedule.of('patch', 'mma_tf32x3', **PATCH, bk=16, tk=16, tp=16),
    'patch/wgmma': GpuSchedule.of('patch', 'wgmma_tf32x3', **PATCH, bk=16, tk=16, tp=64),
    'patch/mixed': GpuSchedule.of('patch', 'wgmma_tf32_bf16', **PATCH, bk=16, tk=16, tp=64),
    'persistent': GpuSchedule.of('persistent', per=3, kept=1, batch=2),
    'recurrence': GpuSchedule.of('recurrence', threads=32, lanes=8, batch=2, wide=1),
    'rows': GpuSchedule.of('rows', threads=32),
    'rs': GpuSchedule.of('rs', **CNNOPT),
    's': GpuSchedule.of('s', **CNNOPT),
    'strip': GpuSchedule.of('strip', 'mma_tf32x3', **STRIP, bk=16, tk=16, tp=16),
    'strip/mixed': GpuSchedule.of('strip', 'wgmma_tf32_bf16', **STRIP, bk=16, tk=16, tp=64, late=1,
                                  bulk=1),
    'strip/rows': GpuSchedule.of('strip', 'wgmma_tf32_bf16', **STRIP, bk=16, tk=16, tp=64, late=1,
                                 bulk=1),
    'tiled': GpuSchedule.of('tiled', **TILED),
    'tiled/mma': GpuSchedule.of('tiled', 'mma_tf32x3', **(TILED | {'tk': 16, 'tp': 16})),
    'transposed': GpuSchedule.of('transposed', side=8, rows=4),
    'winograd': GpuSchedule.of('winograd', m=2, **TILED),
    'winograd/mma': GpuSchedule.of('winograd', 'mma_tf32x3', **WINOGRAD, tp=16),
    'winograd/wgmma': GpuSchedule.of('winograd', 'wgmma_tf32x3', **WINOGRAD, tp=64),
    'winograd/mixed': GpuSchedule.of('winograd', 'wgmma_tf32_bf16', **WINOGRAD, tp=64, late=1,
                                     bulk=1),
}  # fmt: skip
WARPGROUPS = (
    'patch/mixed', 'patch/wgmma', 'strip/mixed', 'strip/rows', 'winograd/mixed', 'winograd/wgmma',
)  # fmt: skip
# No OpenCL that runs on a CPU has these, nor blocks that run together.
MATRIX = (
    'attention/mma', 'fft/mma', 'matrix_steps', 'matrix_steps/split', 'patch', 'strip', *WARPGROUPS,
    'tiled/mma', 'winograd/mma',
)  # fmt: skip


def problem(schema: str, edge: int) -> Group:
    """Sizes one below, at and one above what two blocks take; strides, batches, groups in turn."""
    if schema == 'transposed':
        return transpose((3, 8 + edge, 8 + edge), (0, 2, 1))
    if schema == 'strip/rows':
        return tw.matmul(m=128 + edge, n=32 + edge, k=16)
    if schema == 'rows':
        return softmax(shape=(3, 64 + edge))
    if schema.startswith('attention'):
        heads = sized(1, 2, 16 + edge, 32 + edge, 8 + edge, 12 - edge)
        return attention(heads, between=masks(heads, 16))
    if schema in ('recurrence', 'persistent') or schema.startswith('matrix_steps'):
        kind = ('gru', 'lstm', 'rnn')[edge + 1]
        batch, long = (2, 8) if schema in ('recurrence', 'persistent') else (16, 16)
        functions = {
            'gru': (SIGMOID, TANH), 'lstm': (SIGMOID, TANH, TANH), 'rnn': (TANH,)
        }[kind]  # fmt: skip
        layer = Recurrent(
            kind, 3, batch + edge, long + edge, (False, True), (functions,) * 2,
            projected=5 if kind == 'lstm' and schema == 'recurrence' else 0,
            lengths='i32' if kind == 'gru' else '',
            initial_state=kind != 'rnn',
        )  # fmt: skip
        return recurrence(layer)
    plain = schema.startswith(('winograd', 'fft'))
    taps = 5 if schema.startswith('fft') else 3
    stride = 2 if edge == 0 and not plain else 1
    batch = (2, 1, 3)[edge + 1]
    side, long = (8 + edge) * stride, (16 + edge) * stride
    common = {
        'n': batch,
        'h': side,
        'w': long,
        'r': taps,
        's': taps,
        'stride': stride,
        'bias': True,
    }
    if schema == 'depthwise':
        return tw.conv2d(c=4 + edge, k=4 + edge, groups=4 + edge, pad=1, **common)
    dilation = groups = 2 if edge == 1 and not plain else 1
    return tw.conv2d(
        c=groups * (8 + edge), k=groups * (16 + edge), groups=groups, pad=dilation,
        dilation=dilation, **common,
    )  # fmt: skip


def test_every_schema_is_here() -> None:
    elsewhere = {'channels', 'vector'}  # test_gpu_half.py
    elsewhere |= {'sums', 'inner', 'scatter'}  # test_gpu_sums.py
    covered = {schedule.schema for schedule in CASES.values()} | elsewhere
    assert covered == {schema.name for schema in OWN}


@pytest.mark.parametrize('edge', range(-1, 2))
@pytest.mark.parametrize('schema', CASES)
def test_around_the_edges_of_a_tile(schema: str, edge: int) -> None:
    on = device('host' if schema in (*MATRIX, 'persistent') else 'opencl')
    group = problem(schema, edge)
    arrays = random_arrays(group, 3 + edge)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with Runner(generate(group, CASES[schema]), on, constants) as runner:
        on.write(runner.arrays[group.output.name], np.full(group.output.shape, np.nan, np.float32))
        got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * max(np.abs(want).max(), 1.0)


@pytest.mark.parametrize('machine', ['h200', 'v100', 'rtx2080ti'])
@pytest.mark.parametrize('schema', CASES)
def test_within_the_limits_of_gpus(schema: str, machine: str) -> None:
    limits = known_gpu(machine)
    for kernel in generate(problem(schema, 0), CASES[schema]).kernels:
        limits.fits(kernel.name, kernel.threads, kernel.shared_bytes)
        with pytest.raises(ScheduleError, match='registers a block'):
            limits.fits(kernel.name, 1024, kernel.shared_bytes, 255)


@needs_nvrtc
@pytest.mark.parametrize(
    'architecture',
    ['sm_90', *(pytest.param(name, marks=pytest.mark.slow) for name in ('sm_75', 'sm_80'))],
)
@pytest.mark.parametrize('schema', CASES)
def test_nvrtc_compiles_it(schema: str, architecture: str) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubins

    if schema in MATRIX and architecture == 'sm_75':
        pytest.skip('matrix instructions for tf32 came with sm_80')
    if schema in WARPGROUPS:
        if architecture != 'sm_90':
            pytest.skip('warpgroup instructions are those of sm_90a')
        architecture = 'sm_90a'
    kernels = generate(problem(schema, 1), CASES[schema]).kernels
    binary, _, resources = compile_cubins(kernels, architecture)
    assert binary.startswith(b'\x7fELF')
    for kernel in kernels:
        taken = resources[kernel.name]
        assert taken.spill_bytes == 0
        assert taken.registers is not None
        assert taken.registers <= 168
