"""The OpenCL backend over the vendors' libraries: what it finds, runs, refuses, and survives."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import ArrayError, CompilerError, MissingError, ScheduleError, StoreError
from tilewright.kernels.gpu.language import Array, Kernel, Scalar
from tilewright.runtime.gpu import opencl, opencl_api
from tilewright.runtime.gpu.device import Call
from tilewright.runtime.gpu.hosted import HostDevice
from tilewright.runtime.gpu.opencl import OpenCLDevice, complaint

X = Array('X', ('i',), (96,))
Y = Array('Y', ('i',), (96,), written=True)


def scale(body: str = '@Y[i=BLOCK_X * 32 + THREAD] = by * @X[i=BLOCK_X * 32 + THREAD];') -> Kernel:
    return Kernel('scale', (X, Y, Scalar('by', 'f32')), body, (3, 1, 1), 32)


@pytest.fixture(scope='module')
def device() -> OpenCLDevice:
    try:
        return OpenCLDevice()
    except MissingError as error:
        pytest.skip(str(error))


def test_a_kernel_runs_with_arrays_and_numbers(device: OpenCLDevice) -> None:
    values = np.arange(96, dtype=np.float32)
    x, y = device.upload(values, ('i',)), device.empty(('i',), (96,))
    call = Call(device.compile(scale()), {'X': x, 'Y': y, 'by': 2.5})
    device.launch(call)
    np.testing.assert_array_equal(y.numpy(), 2.5 * values)
    times = device.time([call, call], 3)
    assert len(times) == 3
    assert all(t > 0 for t in times)


def test_a_compile_error_shows_the_line_and_leaves_the_device_usable(device: OpenCLDevice) -> None:
    with pytest.raises(CompilerError, match=r'refused kernel scale: line \d+: .*nonsense here;'):
        device.compile(scale('int a = 1;\nnonsense here;'))
    test_a_kernel_runs_with_arrays_and_numbers(device)


def test_limits_and_memory(device: OpenCLDevice) -> None:
    need = device.machine.shared_bytes_per_block + 4
    hungry = Kernel('hungry', (Y,), '', (1, 1, 1), 32, (('much', need // 4),))
    with pytest.raises(ScheduleError, match='bytes of shared memory a block'):
        device.compile(hungry)
    with pytest.raises(StoreError, match=r'has no \d+ bytes left; use smaller arrays'):
        device.empty(('i',), (1 << 44,))
    test_a_kernel_runs_with_arrays_and_numbers(device)


def test_arrays_that_do_not_fit_the_call(device: OpenCLDevice) -> None:
    program = device.compile(scale())
    x, y = device.empty(('i',), (96,)), device.empty(('i',), (96,))
    values = {'X': x, 'Y': y, 'by': 1.0}
    with pytest.raises(ArrayError, match='declared i, but an array j was passed'):
        device.launch(Call(program, values | {'X': device.empty(('j',), (96,))}))
    with pytest.raises(ArrayError, match='compiled for sizes'):
        device.launch(Call(program, values | {'X': device.empty(('i',), (95,))}))
    elsewhere = HostDevice().empty(('i',), (96,))
    with pytest.raises(ArrayError, match='lives on host'):
        device.launch(Call(program, values | {'X': elsewhere}))
    with pytest.raises(ArrayError, match='upload it'):
        device.launch(Call(program, values | {'X': np.zeros(96, np.float32)}))  # type: ignore[dict-item]


def test_arrays_that_are_not_contiguous_are_copied(device: OpenCLDevice) -> None:
    values = np.arange(192, dtype=np.float32).reshape(96, 2)[:, 1]
    np.testing.assert_array_equal(device.upload(values, ('i',)).numpy(), values)


def test_a_device_by_a_wrong_name(device: OpenCLDevice) -> None:
    with pytest.raises(MissingError, match="no OpenCL device is called 'abacus'; there are: "):
        OpenCLDevice('abacus')
    assert device.name in opencl.devices()


def test_memory_is_given_back(device: OpenCLDevice) -> None:
    array = device.empty(('i',), (1000,))
    assert array.memory.release.alive
    device.free(array)
    assert not array.memory.release.alive


def test_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An .icd file whose library is not there counts for nothing."""
    (tmp_path / 'gone.icd').write_text('libno-such-driver.so.1\n')
    monkeypatch.setenv('OCL_ICD_VENDORS', str(tmp_path))
    monkeypatch.setattr(opencl_api, 'LIBRARIES', ())
    monkeypatch.setattr(opencl_api, 'WHEELS', ())
    opencl_api.platforms.cache_clear()
    try:
        assert opencl.devices() == []
        with pytest.raises(MissingError, match='there is no OpenCL driver'):
            OpenCLDevice()
    finally:
        monkeypatch.undo()
        opencl_api.platforms.cache_clear()


def test_libraries_of_icd_files_and_wheels_are_tried(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[str] = []
    (tmp_path / 'one.icd').write_text('libone.so\n')
    (tmp_path / 'wheel_of_pocl').mkdir()
    (tmp_path / 'wheel_of_pocl' / '__init__.py').touch()
    (tmp_path / 'pyopencl' / '.libs').mkdir(parents=True)
    carried = tmp_path / 'pyopencl' / '.libs' / 'libpocl-1234.so'
    carried.touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv('OCL_ICD_VENDORS', str(tmp_path))
    monkeypatch.setattr(opencl_api, 'WHEELS', ('wheel_of_pocl',))
    monkeypatch.setattr(opencl_api, 'LIBRARIES', ('libtwo.so',))
    monkeypatch.setattr(opencl_api.ctypes, 'CDLL', asked.append)
    list(opencl_api._libraries())
    assert asked == ['libone.so', str(carried), 'libtwo.so']


def test_complaints_of_compilers() -> None:
    source = 'one\ntwo\n    three;'
    assert complaint('x.cl:3:5: error: bad', source) == 'line 3: bad: three;'
    assert complaint('k.cu(2): error: bad', source) == 'line 2: bad: two'
    assert complaint('error: /a/b.cl:3:1: bad\nlast', source) == 'line 3: bad: three;'
    assert complaint('whatever\nlast', source) == 'last'
    assert complaint('', source) == 'no message'
