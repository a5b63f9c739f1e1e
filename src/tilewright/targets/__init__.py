"""Targets: cpu, cuda, opencl and host, one value each (targets/target.py)."""

from tilewright.targets.target import TARGETS, Target, Wanted, target_of

__all__ = ['TARGETS', 'Target', 'Wanted', 'target_of']
