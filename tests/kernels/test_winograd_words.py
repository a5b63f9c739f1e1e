"""Winograd's integer convolutions on every instruction set, equal to their definition."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from test_dot_kernels import arrays_of, bound, stored_again, with_scale

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.winograd_words.plan import (
    draw_winograd_words,
    plan_winograd_words,
    winograd_words_schedule,
    word_dtypes,
)
from tilewright.machine.isa import ISAS, cpu_flags, host_isas
from tilewright.ops.channels_last import channels_last
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.winograd_words import SIZES, whole_transform, why_not_words
from tilewright.schedule.schedule import Schedule
from tilewright_lab.simulate.emulate import Toolchain, run_program

QUICK, ALL = 32, 1000
Tools = Callable[[str], Toolchain]


def images_last(group: Group) -> Group:
    """Images and what is as large as the result with their channels last."""
    others = {t.name for t in group.with_role('input') if t.shape == group.output.shape}
    return channels_last(group, {'In', 'Out', *others})


def drawn(seed: int) -> Group:
    """A 3 x 3 convolution with any border, types, zero points and what follows its sums."""
    random = Random(seed)
    image = random.choice(('u8', 'i8'))
    low = 0 if image == 'u8' else -128
    conv = conv2d(
        n=random.choice((1, 1, 2)), c=random.choice((random.randint(1, 40), 3, 16, 32)),
        k=random.choice((random.randint(1, 40), 16)), h=random.randint(3, 14),
        w=random.randint(3, 14), r=3, s=3, bias=random.random() < 0.5,
        pad=random.choice((0, 1, 1, tuple(random.randint(0, 2) for _ in range(4)))),
    )  # fmt: skip
    group = bound(conv, image, random.randint(low, low + 255))
    if random.random() < 0.7:
        group = with_scale(group, random.choice(('u8', 'i8')), random.randint(low, low + 255))
        if random.random() < 0.4:
            group = stored_again(group, random, random.choice(('u8', 'i8')))
    return images_last(group)


def can_run(isa: str, schedule: Schedule) -> bool:
    dot = ISAS[isa].dot(schedule.dtype)
    return dot is not None and (isa not in host_isas() or cpu_flags() >= {*dot.required_flags})


def check(seed: int, isa: str, tools: Tools) -> bool:
    """Whether a case was computed; every element has to be the definition's.

    Buffers lie flush against pages that cannot be touched, at their start and at their end.
    """
    group = drawn(seed)
    assert not why_not_words(group)
    schedule = draw_winograd_words(group, isa, Random(seed), 2, 3)
    if schedule is None or not can_run(isa, schedule):
        return False
    arrays = arrays_of(group, seed)
    want = reference(group, arrays)
    flags = (*compiler_flags(schedule), '-O2' if seed % 4 == 0 else '-O0')
    for out in run_program(group, generate(group, schedule), arrays, tools(isa), flags):
        assert np.array_equal(out, want), (
            f'case {seed}: {group.label}, {schedule.options}, {schedule.parallel}: '
            f'{np.count_nonzero(out != want)} of {want.size} differ'
        )
    return True


def test_random_tiles_are_the_definition(isa: str, tools: Tools) -> None:
    """Borders, cropped tiles, tails of channels and panels, blocks, runs, cuts, epilogues."""
    first = list(ISAS).index(isa)
    assert sum(check(seed, isa, tools) for seed in range(first, QUICK, len(ISAS))) >= QUICK // 5


@pytest.mark.slow
@pytest.mark.parametrize('quarter', range(4))
def test_a_thousand_tiles(quarter: int, native_isa: str, tools: Tools) -> None:
    seeds = range(QUICK + quarter, 0x7FFFFFFF, 4)
    done = (check(seed, native_isa, tools) for seed in seeds)
    assert sum(itertools.islice(filter(None, done), ALL // 4)) == ALL // 4
