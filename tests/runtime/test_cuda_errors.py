"""The CUDA backend without a GPU: errors of the driver, captures that fail, NVRTC's complaints."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from marks import needs_nvrtc

from tilewright.errors import CompilerError, MissingError, StoreError
from tilewright.kernels.gpu.language import Array, Kernel
from tilewright.runtime.gpu.compilers import resources_of
from tilewright.runtime.gpu.cuda import checked, compile_cubin
from tilewright.runtime.gpu.cuda_graph import Launch, captured, stopwatch

OUT = Array('Out', ('i',), (8,), written=True)


class Status(int):
    """What the driver answers: a number with a name."""

    def __new__(cls, number: int, name: str) -> Status:
        made = super().__new__(cls, number)
        made.name = name  # type: ignore[attr-defined]
        return made


@pytest.mark.parametrize(
    ('name', 'kind', 'part'),
    [
        ('CUDA_ERROR_NO_DEVICE', MissingError, 'no CUDA device that can be used'),
        ('CUDA_ERROR_NOT_INITIALIZED', MissingError, 'no CUDA device'),
        ('CUDA_ERROR_OUT_OF_MEMORY', StoreError, 'no memory left for 64 bytes; use smaller arrays'),
        ('CUDA_ERROR_LAUNCH_FAILED', StoreError, 'CUDA failed for 64 bytes'),
    ],
)
def test_errors_of_the_driver_become_ours(name: str, kind: type, part: str) -> None:
    with pytest.raises(kind, match=part):
        checked((Status(2, name),), ' for 64 bytes')
    assert checked((Status(0, 'CUDA_SUCCESS'), 7)) == 7
    assert checked((Status(0, 'CUDA_SUCCESS'), 7, 8)) == (7, 8)


class Driver:
    """Functions of the driver, which remember what was made and given back."""

    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self, bad: str = '') -> None:
        self.bad, self.alive, self.capturing = bad, set(), False

    def __getattr__(self, name: str):
        def call(*args: object) -> tuple:
            if name == 'cuStreamBeginCapture':
                self.capturing = True
            if name == 'cuStreamEndCapture':
                self.capturing = False
            if name == self.bad:
                return (Status(1, 'CUDA_ERROR_INVALID_VALUE'),)
            made = {'cuStreamEndCapture': 11, 'cuGraphInstantiate': 12}.get(name)
            if name == 'cuEventCreate':
                made = 20 + len(self.alive)
            if made:
                self.alive.add(made)
            if 'Destroy' in name:
                self.alive.discard(args[0])
            value = 2.5 if name == 'cuEventElapsedTime' else made
            return (Status(0, 'CUDA_SUCCESS'), *([] if value is None else [value]))

        return call


def test_a_graph_and_events_are_given_back() -> None:
    driver = Driver()
    with (
        captured(driver, checked, 0, [Launch((1,), None)], 3) as replay,
        stopwatch(driver, checked, 0) as seconds,
    ):
        assert seconds(replay) == 2.5e-3
        assert driver.alive
    assert not driver.alive


@pytest.mark.parametrize('bad', ['cuLaunchKernel', 'cuGraphInstantiate', 'cuGraphLaunch'])
def test_nothing_is_lost_where_a_step_fails(bad: str) -> None:
    """The stream is out of capture, and whatever was made is gone."""
    driver = Driver(bad)
    with (
        pytest.raises(StoreError, match='INVALID_VALUE'),
        captured(driver, checked, 0, [Launch((1,), None)], 3) as replay,
        stopwatch(driver, checked, 0) as seconds,
    ):
        seconds(replay)
    assert not driver.capturing
    assert not driver.alive


def test_the_assemblers_report_by_kernel() -> None:
    report = (
        "ptxas info : Compiling entry function 'a_0' for 'sm_90a'\n"
        '0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\nUsed 40 registers\n'
        "ptxas info : Compiling entry function 'b_1' for 'sm_90a'\n"
        '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nUsed 24 registers\n'
    )
    first, second = (resources_of(report, name) for name in ('a_0', 'b_1'))
    assert (first.registers, first.spill_bytes) == (40, 12)
    assert (second.registers, second.spill_bytes) == (24, 0)
    assert resources_of('', 'a_0').registers is None


@needs_nvrtc
def test_nvrtc_names_the_line_that_it_refuses() -> None:
    bad = Kernel('bad', (OUT,), 'int a = 1;\nthis is not C;', (1, 1, 1), 32)
    with pytest.raises(CompilerError, match=r'refused kernel bad for sm_90: line \d+: .*not C;'):
        compile_cubin(bad, 'sm_90')
    good = Kernel('good', (OUT,), '@Out[i=THREAD % 8] = 1.0f;', (1, 1, 1), 32)
    assert compile_cubin(good, 'sm_90')[2].registers
