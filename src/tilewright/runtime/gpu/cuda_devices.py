"""CUDA devices by name, and the versions that a measurement on one depends on."""

from __future__ import annotations

import re

from tilewright.errors import MissingError
from tilewright.runtime.gpu.cuda import CudaDevice, _bindings, checked


def cuda_devices() -> list[str]:
    """Names of all CUDA devices, in the driver's order; none where there is no driver."""
    try:
        first = CudaDevice(0)
    except MissingError:
        return []
    count = checked(first.cu.cuDeviceGetCount())
    names = (checked(first.cu.cuDeviceGetName(128, checked(first.cu.cuDeviceGet(i))))
             for i in range(count))  # fmt: skip
    return [name.split(b'\0')[0].decode().strip() for name in names]


def cuda_device(name: str = '') -> CudaDevice:
    """A CUDA device by number or by a part of its name; the first one for ''."""
    if not name or re.fullmatch(r'\d+', name):
        return CudaDevice(int(name or 0))
    names = cuda_devices()
    if not names:
        return CudaDevice(0)  # says what is missing
    for number, label in enumerate(names):
        if name.lower() in label.lower():
            return CudaDevice(number)
    raise MissingError(f'no CUDA device is called {name!r}; there are: {"; ".join(names)}')


def cuda_versions() -> dict[str, str]:
    """NVRTC's version and the newest CUDA that the driver knows."""
    major, minor = checked(_bindings('nvrtc').nvrtcVersion())
    driver = checked(_bindings('driver').cuDriverGetVersion())
    return {
        'nvrtc': f'{major}.{minor}', 'cuda_driver': f'{driver // 1000}.{driver % 1000 // 10}'
    }  # fmt: skip
