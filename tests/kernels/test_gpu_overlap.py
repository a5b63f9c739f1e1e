"""Kernels that start while the one before them ends touch no memory until it has."""

from __future__ import annotations

import re

import pytest
from marks import needs_nvrtc
from test_gpu_coverage import CASES, problem

from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import lower

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
