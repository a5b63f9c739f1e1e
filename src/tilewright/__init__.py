"""Tilewright: convolutions turned into the fastest kernels a machine can run, by modelling.

The public names are imported when they are first used: a worker that times one kernel is a process
of its own, and starts in half the time without the importers, searches and networks.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tilewright.version import VERSION

if TYPE_CHECKING:
    from tilewright.check.check import Check
    from tilewright.errors import TilewrightError
    from tilewright.graph.optimizer import SGD, Adam, AdamW
    from tilewright.machine.machine import Machine
    from tilewright.network.compile import compile, load
    from tilewright.network.export import export
    from tilewright.network.training import TrainingStep, compile_training
    from tilewright.ops.blocked import blocked, from_blocked, to_blocked
    from tilewright.ops.convolution import conv1d, conv2d, conv3d
    from tilewright.ops.convolution_transposed import (
        conv_transpose1d,
        conv_transpose2d,
        conv_transpose3d,
    )
    from tilewright.ops.matmul import matmul
    from tilewright.ops.suites import parse
    from tilewright.pipeline import optimize
    from tilewright.precision.quantize import quantize
    from tilewright.runtime.cpu.network import Network
    from tilewright.schedule.schedule import Schedule
    from tilewright.targets.plan import Plan

__all__ = [
    'SGD',
    'Adam',
    'AdamW',
    'Check',
    'Machine',
    'Network',
    'Plan',
    'Schedule',
    'TilewrightError',
    'TrainingStep',
    'blocked',
    'compile',
    'compile_training',
    'conv1d',
    'conv2d',
    'conv3d',
    'conv_transpose1d',
    'conv_transpose2d',
    'conv_transpose3d',
    'export',
    'from_blocked',
    'load',
    'matmul',
    'optimize',
    'parse',
    'quantize',
    'to_blocked',
]
__version__ = VERSION
_MODULES = {
    'Adam': 'graph.optimizer',
    'AdamW': 'graph.optimizer',
    'Check': 'check.check',
    'Machine': 'machine.machine',
    'Network': 'runtime.cpu.network',
    'Plan': 'targets.plan',
    'SGD': 'graph.optimizer',
    'Schedule': 'schedule.schedule',
    'TilewrightError': 'errors',
    'TrainingStep': 'network.training',
    'blocked': 'ops.blocked',
    'compile': 'network.compile',
    'compile_training': 'network.training',
    'conv1d': 'ops.convolution',
    'conv2d': 'ops.convolution',
    'conv3d': 'ops.convolution',
    'conv_transpose1d': 'ops.convolution_transposed',
    'conv_transpose2d': 'ops.convolution_transposed',
    'conv_transpose3d': 'ops.convolution_transposed',
    'export': 'network.export',
    'from_blocked': 'ops.blocked',
    'load': 'network.compile',
    'matmul': 'ops.matmul',
    'optimize': 'pipeline',
    'parse': 'ops.suites',
    'quantize': 'precision.quantize',
    'to_blocked': 'ops.blocked',
}


def __getattr__(name: str) -> object:
    """A public name, imported from the module that defines it."""
    if name not in _MODULES:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    value = getattr(import_module(f'{__name__}.{_MODULES[name]}'), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
