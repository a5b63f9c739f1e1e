"""Kernels of the FFT schema against the float64 reference: a wrong twiddle, a tile that wraps
around, or a vector of channels that reaches too far would show here.
"""

from __future__ import annotations

import numpy as np
import pytest
from sampling import TURNS, taken

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.fft.plan import fft_schedule, plan_fft
from tilewright.kernels.cpu.schemas.winograd.plan import tile
from tilewright.machine.isa import ISAS
from tilewright.ops.convolution import conv2d
from tilewright.ops.fft_error import predicted_error
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.schedule import Schedule
from tilewright_lab.simulate.emulate import run_program


def sizes(isa: str) -> list[tuple[Group, Schedule]]:
    """Outputs around whole tiles, channels around whole vectors, transforms of several lengths."""
    lanes, cases = ISAS[isa].lanes, []
    for taps, m, around in ((7, 10, -1), (7, 10, 0), (7, 6, 1), (5, 20, 0), (5, (8, 12), 1)):
        rows, columns = (m, m) if isinstance(m, int) else m
        group = conv2d(
            c=lanes + around, k=2 * lanes + around, h=rows + around, w=2 * columns - around,
            r=taps, s=taps, pad=taps // 2,
        )  # fmt: skip
        cases.append((group, fft_schedule(group, isa, m, 3, 1, 2, (1, 2, 2))))
    return cases


def shapes(isa: str) -> list[tuple[Group, Schedule]]:
    """Filters of any shape, padding of every kind, groups, batches, threads, tiny images."""
    problems = [
        ({'h': 23, 'w': 9, 'r': 11, 's': 5, 'pad': (5, 2)}, (2, 8), (('ph', 2),)),
        ({'h': 9, 'w': 30, 'r': 5, 's': 7, 'pad': (4, 0, 1, 6), 'n': 2}, (8, 6), (('n', 2),)),
        ({'h': 9, 'w': 9, 'r': 5, 's': 5, 'pad': 2, 'groups': 2}, 12, (('g', 2), ('k', 2))),
        ({'h': 5, 'w': 3, 'r': 5, 's': 5, 'pad': (0, 2)}, 8, ()),
        ({'h': 1, 'w': 2, 'r': 9, 's': 9, 'pad': 8}, 4, (('pw', 3),)),
    ]
    cases = []
    for problem, m, parallel in problems:
        group = conv2d(c=6, k=ISAS[isa].lanes + 2, **problem)
        cases.append((group, fft_schedule(group, isa, m, 4, 2, 1, (2, 2, 2), parallel)))
    return cases


def epilogues(isa: str) -> list[tuple[Group, Schedule]]:
    group = conv2d(n=2, c=3, k=7, h=9, w=13, r=7, s=7, pad=3, bias=True, activation='silu')
    return [(group, fft_schedule(group, isa, 10, 4, 1, 1, (1, 2, 2)))]


@pytest.mark.parametrize('in_turn', TURNS)
@pytest.mark.parametrize('cases', [sizes, shapes, epilogues])
def test_kernels_are_right_and_stay_inside_their_buffers(isa, cases, in_turn, tools):
    for number, (group, schedule) in enumerate(taken(cases(isa), isa, in_turn)):
        arrays = random_arrays(group, number)
        want = reference(group, arrays)
        limit = 8 * predicted_error(group, tile(schedule)) * np.abs(want).max() + 1e-7
        flags = (*compiler_flags(schedule), '-O1')
        for out in run_program(group, generate(group, schedule), arrays, tools(isa), flags):
            assert np.abs(out - want).max() <= limit, f'{group.label} {schedule.to_json()}'


def test_what_it_cannot_compute_is_refused():
    plain = conv2d(c=4, k=4, h=20, w=20, r=7, s=7, pad=3)
    schedule = fft_schedule(plain, 'avx2', 10, 4, 1, 1, (1, 1, 2))
    for change, said in (
        ({'stride': 2}, 'stride 2x2'), ({'dilation': 2}, 'dilated'), ({'r': 3, 's': 3}, '3x3')
    ):  # fmt: skip
        group = conv2d(**({'c': 4, 'k': 4, 'h': 20, 'w': 20, 'r': 7, 's': 7, 'pad': 3} | change))
        with pytest.raises(ScheduleError, match=said):
            plan_fft(group, schedule)
