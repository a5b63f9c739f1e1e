"""The devices that GPU kernels are tested on: this host, and OpenCL where there is any."""

from __future__ import annotations

from functools import cache

import pytest

from tilewright.errors import MissingError
from tilewright.runtime.device import Device
from tilewright.runtime.hosted import HostDevice


@cache
def device(name: str) -> Device:
    """By name: host or opencl; skips the test where there is none."""
    if name == 'host':
        return HostDevice()
    from tilewright.runtime.opencl import OpenCLDevice

    try:
        return OpenCLDevice()
    except MissingError as error:
        pytest.skip(str(error))
