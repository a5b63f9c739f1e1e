"""Products of bytes whose pairs are added in 16 bits, equal to their definition whatever is in them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from random import Random

import numpy as np
import pytest
from test_dot_kernels import arrays_of, bound, stored_again, with_scale

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.byte_pairs.plan import (
    byte_pairs_schedule,
    draw_byte_pairs,
    longest_run,
    why_not,
)
from tilewright.machine.isa import host_isas
from tilewright.ops.channels_last import channels_last
from tilewright.ops.convolution import conv2d
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright_lab.simulate.emulate import Toolchain, run_program

QUICK, ALL = 32, 1000
SETS = ('avx2', 'avx512')
Tools = Callable[[str], Toolchain]
# Numbers of an image: small ones, as behind a ReLU; any; so large that pairs are too large as well.
RANGES = ((0, 60), (0, 90), (0, 256), (200, 256))


def images_last(group: Group) -> Group:
    """Images and what is as large as the result with their channels last."""
    others = {t.name for t in group.with_role('input') if t.shape == group.output.shape}
    return channels_last(group, {'In', 'Out', *others})


def drawn(seed: int) -> Group:
    """A convolution or a product, with any types, strides and what follows its sums."""
    random = Random(seed)
    image = random.choice(('u8', 'u8', 'i8'))
    low = 0 if image == 'u8' else -128
    channels = random.choice((random.randint(1, 90), 3, 32, 64)), random.randint(1, 60)
    if random.random() < 0.3:
        rows = random.randint(1, 20)
        group = bound(matmul(m=rows, n=channels[1], k=channels[0]), image, low)
    else:
        conv = conv2d(
            n=random.choice((1, 1, 2)), c=channels[0], k=channels[1], h=random.randint(3, 9),
            w=random.randint(3, 9), bias=random.random() < 0.5, stride=random.choice((1, 1, 2)),
            **random.choice(({'r': 1, 's': 1}, {'r': 1, 's': 1}, {'r': 3, 's': 2, 'pad': 1})),
        )  # fmt: skip
        group = bound(conv, image, random.choice((low, random.randint(low, low + 255))))
    if random.random() < 0.8:
        group = with_scale(group, random.choice(('u8', 'i8')), random.randint(low, low + 255))
        if random.random() < 0.4:
            group = stored_again(group, random, random.choice(('u8', 'i8')))
    return images_last(group) if len(group.output.shape) == 4 else group


def numbers(group: Group, seed: int) -> dict[str, np.ndarray]:
    """Arrays of a group; in some of its images most numbers are small, and some are not."""
    arrays, rng = arrays_of(group, seed), np.random.default_rng(seed)
    name = group.main.reads[0].tensor
    image = arrays[name]
    low, high = RANGES[seed % len(RANGES)]
    made = rng.integers(low, high, image.shape)
    made = np.where(rng.random(image.shape) < 0.03, 255, made)
    least = np.iinfo(image.dtype).min
    arrays[name] = (made + least).astype(image.dtype)
    if seed % 3 == 0:
        weights = group.main.reads[1].tensor
        arrays[weights] = rng.choice([-128, 127], arrays[weights].shape).astype(np.int8)
    return arrays


def check(seed: int, isa: str, tools: Tools) -> bool:
    """Whether a case was computed; every element has to be the definition's.

    Buffers lie flush against pages that cannot be touched, at their start and at their end.
    """
    group = drawn(seed)
    tiled = flatten(group) if seed % 2 else group
    schedule = draw_byte_pairs(tiled, isa, Random(seed), 2, 3)
    if schedule is None:
        return False
    arrays = numbers(group, seed)
    want = reference(group, arrays)
    flags = (*compiler_flags(schedule), '-O2' if seed % 4 == 0 else '-O1')
    for out in run_program(group, generate(group, schedule), arrays, tools(isa), flags):
        assert np.array_equal(out, want), (
            f'case {seed}: {group.label}, {schedule.options}, {schedule.parallel}: '
            f'{np.count_nonzero(out != want)} of {want.size} differ'
        )
    return True


@pytest.mark.parametrize('isa', SETS)
def test_random_products_are_the_definition(isa: str, tools: Tools) -> None:
    """Tails of channels, pixels and panels, blocks, runs, cuts, epilogues, lists of any length."""
    if isa not in host_isas():
        pytest.skip(f'this host has no {isa}')
    assert sum(check(seed, isa, tools) for seed in range(QUICK)) >= QUICK // 2


@pytest.mark.slow
@pytest.mark.parametrize('quarter', range(4))
def test_a_thousand_products(quarter: int, native_isa: str, tools: Tools) -> None:
    seeds = range(QUICK + quarter, 0x7FFFFFFF, 4)
    done = (check(seed, native_isa, tools) for seed in seeds)
    assert sum(itertools.islice(filter(None, done), ALL // 4)) == ALL // 4
