"""Bandwidths of GPUs that have no file: what is read, what is measured, and what is kept."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.machine.gpu import known_gpu
from tilewright.machine.nvidia import nvidia_gpu
from tilewright.runtime.gpu import bandwidth
from tilewright.runtime.gpu.device import Call
from tilewright.runtime.gpu.hosted import HostDevice

UNKNOWN = nvidia_gpu('NVIDIA Imagined 9000', (9, 0), 2, 1.5, l2_bytes=1 << 20)


class Timed(HostDevice):
    """A device that runs kernels on the CPU and says how long they took."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.machine = UNKNOWN
        self.seconds, self.timed = seconds, 0

    def time(self, calls: Sequence[Call], repeats: int) -> list[float]:
        self.timed += 1
        return [self.seconds * (1 + i) for i in range(repeats)]


@pytest.mark.parametrize('turns', [1, 3])
def test_all_of_an_array_is_read_in_every_turn(turns: int) -> None:
    device = HostDevice()
    values = np.arange(1, 4 * bandwidth.THREADS + 9, dtype=np.float32)
    kernel = bandwidth.reading(values.size, 3, turns)
    data, out = device.upload(values, ('i',)), device.empty(('i',), (3 * bandwidth.THREADS,))
    device.launch(Call(device.compile(kernel), {'In': data, 'Out': out}))
    device.synchronize()
    assert device.download(out).sum(dtype=np.float64) == turns * values.sum(dtype=np.float64)


def test_bytes_over_the_shortest_time() -> None:
    assert bandwidth.read_gbps(Timed(1e-3), 1 << 20, 4) == pytest.approx(4 * (1 << 20) / 1e6)


def test_a_guess_is_replaced_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    assert set(UNKNOWN.assumed) == set(bandwidth.MEASURED)
    device = Timed(1e-3)
    found = bandwidth.described(device)
    assert found.global_gbps == pytest.approx(8 * (1 << 20) / 1e6)
    assert found.l2_gbps == pytest.approx(16 * (1 << 18) / 1e6)
    assert not set(bandwidth.MEASURED) & set(found.assumed)
    assert device.timed == 2
    assert bandwidth.described(Timed(5e-3)) == found  # as it was kept
    (path,) = (tmp_path / 'machine').glob('gpu-*.json')
    assert json.loads(path.read_text())['name'] == UNKNOWN.name
    path.write_text('{"global_gbps": "x"}')
    assert bandwidth.described(Timed(5e-3)).l2_gbps == pytest.approx(found.l2_gbps / 5)


def test_known_gpus_and_cpus_are_not_measured() -> None:
    device = Timed(1.0)
    for machine in (known_gpu('h200'), known_gpu('pocl'), replace(UNKNOWN, capability=(0, 0))):
        device.machine = machine
        assert bandwidth.described(device) is machine
    assert device.timed == 0
