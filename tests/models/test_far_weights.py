"""Networks whose weights no cache keeps would get kernels that are fast with warm caches alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tilewright.machine.known import known_machine
from tilewright.machine.machine import Machine
from tilewright.model.cpu.far_weights import are_far, late_seconds
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.winograd import geometry
from tilewright.schedule.choice import Choice
from tilewright.search.cpu.rank import rank
from tilewright.search.cpu.rank_winograd import rank_winograd
from tilewright.targets.cpu.choose import with_far_weights

MACHINES = ('neoverse-n1', 'xeon-2vcpu')


def small_image() -> Group:
    return conv2d(n=1, c=256, h=7, w=7, k=256, r=3, s=3, pad=1)


def remembering(machine: Machine, gbps: float) -> Machine:
    """The same with another memory."""
    return replace(
        machine,
        bandwidth_one_gbps=(*machine.bandwidth_one_gbps[:-1], gbps),
        bandwidth_all_gbps=(*machine.bandwidth_all_gbps[:-1], gbps),
    )


def weights_of(group: Group, choice: Choice) -> float:
    """How many weights there are for each of the group's own."""
    if choice.schedule.schema != 'winograd':
        return 1.0
    options = dict(choice.schedule.options)
    return geometry(group, (options['m'], options.get('mw', options['m']))).weights / 9


@pytest.mark.parametrize('name', MACHINES)
def test_slower_memory_is_never_less_to_wait_for(name: str) -> None:
    group, machine = small_image(), known_machine(name)
    for candidate in (*rank_winograd(group, machine, 2, 4), *rank(group, machine, 2, 2)):
        late = [
            late_seconds(group, candidate.schedule, remembering(machine, gbps))
            for gbps in (1e6, 30.0, 10.0, 1.0)
        ]
        assert late == sorted(late)
        assert late[0] < 1e-6  # all of it hides behind products
        assert late[-1] > 1e-4


@pytest.mark.parametrize('name', MACHINES)
def test_with_a_slow_memory_fewer_weights_come_first(name: str) -> None:
    group, machine = small_image(), known_machine(name)
    ranked = (*rank_winograd(group, machine, 2, 4), *rank(group, machine, 2, 1))
    found = [Choice(c.schedule, c.prediction.seconds, 0.0) for c in ranked]
    slow = with_far_weights(group, found, remembering(machine, 0.5))
    assert weights_of(group, slow[0]) == 1.0
    grown = [weights_of(group, choice) for choice in slow]
    assert max(grown) > 1.0
    fast = with_far_weights(group, found, remembering(machine, 1e6))
    best = min(found, key=lambda choice: choice.predicted_s)
    assert fast[0].schedule == best.schedule


def test_what_the_last_cache_keeps_is_near() -> None:
    machine = known_machine('xeon-2vcpu')
    room = machine.caches[-1].usable_bytes
    assert not are_far(room, machine)
    assert are_far(room + 1, machine)
