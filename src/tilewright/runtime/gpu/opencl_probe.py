"""`python -m tilewright.runtime.gpu.opencl_probe DEVICE`: how code for its own target gets to a
device.

Comes out: one line of JSON, a `Route` (runtime/gpu/opencl_nvidia.py). A process of its own, since
what it tries may crash a driver.
"""

from __future__ import annotations

import json
import sys

from tilewright.runtime.gpu.opencl import OpenCLDevice
from tilewright.runtime.gpu.opencl_nvidia import Route, find_route


def main(name: str) -> None:
    device = OpenCLDevice(name, route=Route())
    print(json.dumps(find_route(device.tried).to_json()))


if __name__ == '__main__':
    main(sys.argv[1])
