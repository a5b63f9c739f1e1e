"""Kernels that several files call."""

from __future__ import annotations

import pytest

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.space import register_order, whole_tile
from tilewright.machine.compiler import build
from tilewright.machine.isa import ISAS, host_isas
from tilewright.ops.convolution import conv2d
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.schedule.schedule import Level, Schedule


@pytest.fixture
def optimised(monkeypatch: pytest.MonkeyPatch, full_searches: None) -> None:
    """Kernels are searched and built as for a user, not as quickly as for most tests."""
    monkeypatch.delenv('TILEWRIGHT_CFLAGS', raising=False)
    monkeypatch.delenv('POCL_EXTRA_BUILD_FLAGS', raising=False)


@pytest.fixture(scope='session')
def outer_kernel() -> Kernel:
    """A packed convolution in two parts whose input and output have the same shape."""
    group = conv2d(c=16, h=12, w=12, k=16, r=3, s=3, pad=1, bias=True, activation='relu')
    isa = host_isas()[0]
    stage, order = group.main, register_order(group.main)
    reg = dict.fromkeys(stage.sizes, 1) | {'w': 4, 'k': ISAS[isa].lanes}
    whole = whole_tile(stage, reg)
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole | {'c': 4}))
    schedule = Schedule('outer', isa, 'k', levels, (('h', 2),), 'l1')
    return Kernel.load(build(generate(group, schedule), compiler_flags(schedule)), group)
