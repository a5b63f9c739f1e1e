"""The time of plain loops: windows are priced along results, as the loops that are made go."""

from __future__ import annotations

import pytest

from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.known import known_machine
from tilewright.model.cpu.general_time import predict_general
from tilewright.ops.group import Group
from tilewright.ops.pooling import Window, max_pool


def windows(size: int, taps: int, step: int) -> list[Window]:
    return 2 * [Window(size, taps, step, 1, 0, 0, (size - taps) // step + 1)]


def cycles(group: Group, name: str) -> float:
    """Of one thread for each result."""
    machine = known_machine(name)
    schedule = general_schedule(group, machine.isa, 1, len(machine.caches))
    seconds = predict_general(group, schedule, machine).seconds
    return 1e9 * seconds * machine.clock_ghz / group.output.size


@pytest.mark.parametrize('name', ['neoverse-n1', 'xeon-2vcpu', 'i7-9700k'])
@pytest.mark.parametrize('step', [1, 2])
def test_windows_cost_a_few_cycles_a_result(name: str, step: int) -> None:
    """Three rows and columns of a vector's neighbours: not an element, nor a loop, for each tap."""
    pool = max_pool((1, 64, 112, 112), windows(112, 3, step))
    assert 0.3 < cycles(pool, name) < 9


def test_results_that_are_far_apart_cost_an_element_for_each_tap() -> None:
    """Windows of six elements side by side: no vector holds neighbours of two results."""
    apart = max_pool((1, 64, 96, 96), windows(96, 6, 6))
    beside = max_pool((1, 64, 96, 96), windows(96, 6, 1))
    assert cycles(apart, 'xeon-2vcpu') > 2 * cycles(beside, 'xeon-2vcpu')
