"""Dialects of CUCL: what one is, and how to add one, is said in table.py; these are ours.

The dialect of NVIDIA's OpenCL (nvidia.py) depends on the device, so it has no entry.
"""

from __future__ import annotations

from tilewright.kernels.gpu.dialects.cuda import CUDA
from tilewright.kernels.gpu.dialects.host import HOST
from tilewright.kernels.gpu.dialects.opencl import OPENCL
from tilewright.kernels.gpu.dialects.table import register

for _own in (CUDA, OPENCL, HOST):
    register(_own)
