"""Kernels that start while the one before them ends touch no memory until it has, but constants.

If these fail, networks on Hopper read what is not there yet, now and then.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from marks import needs_nvrtc
from test_gpu_coverage import CASES, problem
from test_gpu_half import SCHEDULES, products, with_constants

from tilewright.graph.half import half_group
from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.dialects.opencl import OPENCL
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import BEGINS, ENDS, Array, Kernel, lower
from tilewright.ops.group import Group
from tilewright.ops.normalise import row_norm
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.bind import let_in
from tilewright.targets.gpu.bundle import bundle

MEMORY = re.compile(r'\b(ld|st|atom|red)\.(\w+\.)*global|cp\.async\.(ca|cg|bulk)|ld\.(b|f|u|s|v)')


def ptx_of(source: str) -> list[str]:
    from cuda.bindings import nvrtc

    options = [b'--gpu-architecture=compute_90a', b'--std=c++17']
    status, program = nvrtc.nvrtcCreateProgram(source.encode(), b'kernel.cu', 0, [], [])
    assert int(status) == 0
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    assert int(status) == 0
    _, size = nvrtc.nvrtcGetPTXSize(program)
    text = bytes(size)
    nvrtc.nvrtcGetPTX(program, text)
    nvrtc.nvrtcDestroyProgram(program)
    return text.decode().splitlines()


@needs_nvrtc
@pytest.mark.parametrize('name', ['general', 'tiled', 'depthwise', 'rows', 'patch/wgmma'])
def test_nothing_is_read_or_written_before_the_wait(name: str) -> None:
    kernel = generate(problem(name, 1), CASES[name]).steps[-1].kernel
    lines = ptx_of(lower(kernel, CUDA))
    (wait,) = [n for n, line in enumerate(lines) if 'griddepcontrol.wait' in line]
    touched = [n for n, line in enumerate(lines) if MEMORY.search(line)]
    assert touched
    assert touched[0] > wait


def _normalised() -> Group:
    return with_constants(half_group(row_norm('layernorm', (40, 512)), 'f16'), 'Scale', 'Bias')


def _early() -> dict[str, tuple[Group, GpuSchedule]]:
    """Kernels that read constants above their wait."""
    made = {
        f'channels {number} {name}': (half_group(products()[name], 'f16'), schedule)
        for number, schedule in enumerate(SCHEDULES)
        for name in ('dense', 'product')
    }
    return made | {
        f'rows of {run}': (_normalised(), GpuSchedule.of('rows', threads=64, lanes=32, run=run))
        for run in (4, 8)
    }


@pytest.mark.parametrize('name', _early())
def test_what_is_read_above_the_wait_was_made_ahead(name: str) -> None:
    group, schedule = _early()[name]
    module = generate(group, schedule)
    ahead = {array.name for step in module.ahead for array in step.kernel.arrays if array.written}
    ahead |= {tensor.name for tensor in group.with_role('constant')}
    (step,) = module.steps
    kept = {argument for argument, buffer in step.buffers if buffer in ahead}
    first, wait, rest = step.kernel.body.partition(f'{BEGINS}\n')
    assert wait
    assert BEGINS not in rest
    early = {array.name for array in step.kernel.arrays if re.search(rf'\b{array.name}\b', first)}
    assert early <= kept
    assert early or dict(schedule.tiles)['stages'] == 1  # nothing is asked for ahead, nor added
    assert ENDS not in first
    assert ENDS in rest


def test_columns_are_asked_for_above_the_wait() -> None:
    """Of the kernels whose columns come in bulk at least one of them is on its way by then."""
    for group, schedule in _early().values():
        if dict(schedule.tiles).get('bulk'):
            first, _, _ = generate(group, schedule).steps[0].kernel.body.partition(BEGINS)
            assert 'BULK_COPY' in first


OUT = Array('out', ('i',), (4,), written=True)


def _kernel(name: str, cluster: int = 1) -> Kernel:
    body = f'{ENDS}\n@out[i=THREAD] = 1.0f;'
    needs = frozenset({'cluster'} if cluster > 1 else ())
    return Kernel(name, (OUT,), body, (1, 1, cluster), 4, needs=needs, cluster=cluster)


def test_others_are_let_in_behind_the_wait_and_on_cuda_alone() -> None:
    text = lower(_kernel('plain'), CUDA).partition('__global__')[2]
    assert text.index(BEGINS) < text.index(ENDS)
    for line in (BEGINS, ENDS):
        assert line not in lower(_kernel('plain'), OPENCL)
    indented = replace(_kernel('plain'), body=f'if (THREAD == 0) {{\n    {ENDS}\n}}')
    assert ENDS not in lower(indented, OPENCL)


def test_kernels_before_a_cluster_do_not_let_it_in() -> None:
    """Its blocks would be placed among those that are about to end."""
    kernels = [_kernel('first'), _kernel('second'), _kernel('third', 2), _kernel('fourth')]
    made = let_in(kernels, [(), (), (1,), (0, 2)])
    assert [ENDS in kernel.body for kernel in made] == [True, False, True, True]
    assert made[0] is kernels[0]


def test_every_kernel_of_a_bundle_waits() -> None:
    """A block runs one of the bodies alone: what the others wait for does not help it."""
    early = f'const int at = THREAD;\n{BEGINS}\n{ENDS}\nout[at] = 1.0f;'
    bodies = ('out[THREAD] = 2.0f;', early, 'out[THREAD] = 3.0f;')
    kernels = [replace(_kernel(f'k{n}'), body=body) for n, body in enumerate(bodies)]
    for order in (kernels, kernels[::-1], kernels[:1] * 2):
        _, *branches = bundle(order).body.split('if (BLOCK_X')
        assert len(branches) == len(order)
        for branch in branches:
            assert branch.count(BEGINS) == 1
            assert branch.index(BEGINS) < branch.index('out[')
