"""Tilewright: convolutions turned into the fastest kernels a machine can run, by modelling."""

from tilewright.check.check import Check
from tilewright.errors import TilewrightError
from tilewright.machine.machine import Machine
from tilewright.network.compile import compile, load
from tilewright.network.export import export
from tilewright.ops.blocked import blocked, from_blocked, to_blocked
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.suites import parse
from tilewright.pipeline import optimize
from tilewright.runtime.cpu.network import Network
from tilewright.schedule.schedule import Schedule
from tilewright.targets.plan import Plan
from tilewright.version import VERSION

__all__ = [
    'Check',
    'Machine',
    'Network',
    'Plan',
    'Schedule',
    'TilewrightError',
    'blocked',
    'compile',
    'conv2d',
    'export',
    'from_blocked',
    'load',
    'matmul',
    'optimize',
    'parse',
    'to_blocked',
]
__version__ = VERSION
