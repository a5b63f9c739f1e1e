"""The devices that GPU kernels are tested on: this host, OpenCL and CUDA where there is any."""

from __future__ import annotations

from functools import cache

import pytest

from tilewright.errors import MissingError
from tilewright.runtime.gpu.device import Device
from tilewright.runtime.gpu.session import open_device


@cache
def device(name: str) -> Device:
    """By target: host, opencl or cuda; skips the test where there is none."""
    try:
        return open_device(name)
    except MissingError as error:
        pytest.skip(str(error))
