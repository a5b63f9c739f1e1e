"""Targets: cpu, cuda, opencl and host, one value each (targets/target.py)."""

from tilewright.targets.cpu.target import CpuTarget
from tilewright.targets.gpu.target import GPU_TARGETS
from tilewright.targets.target import Target, Wanted, register, target_names, target_of

__all__ = ['Target', 'Wanted', 'register', 'target_names', 'target_of']

for _target in (CpuTarget(), *GPU_TARGETS):
    register(_target)
