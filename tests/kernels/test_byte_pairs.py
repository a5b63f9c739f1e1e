"""Products of bytes whose pairs are added in 16 bits, equal to their definition."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from test_dot_kernels import arrays_of, bound, stored_again, with_scale

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.byte_pairs.plan import (
    byte_pairs_schedule,
    draw_byte_pairs,
    longest_run,
    multiplies,
    plan_byte_pairs,
    why_not,
)
from tilewright.machine.compiler import build, compiler, run_compiler
from tilewright.machine.isa import ISAS, host_arch, host_isas
from tilewright.machine.known import known_machine
from tilewright.ops.channels_last import channels_last
from tilewright.ops.convolution import conv2d
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.report.words import loop_lines
from tilewright.runtime.worker import Worker
from tilewright.search.cpu.choose import choose
from tilewright_lab.simulate.emulate import Toolchain, is_translated, run_program

QUICK, ALL = 24, 1000
SETS = [pytest.param(isa, marks=pytest.mark.isa) for isa in ('avx2', 'avx512')]
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
        window = random.choice(((1, 1, 0), (1, 1, 0), (3, 2, 1)))
        conv = conv2d(
            n=random.choice((1, 1, 2)), c=channels[0], k=channels[1], h=random.randint(3, 9),
            w=random.randint(3, 9), bias=random.random() < 0.5, stride=random.choice((1, 1, 2)),
            r=window[0], s=window[1], pad=window[2],
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
    if isa not in host_isas() and not is_translated(isa):
        pytest.skip(f'this host has no {isa}')
    assert sum(check(seed, isa, tools) for seed in range(QUICK)) >= QUICK // 2


@pytest.mark.slow
@pytest.mark.parametrize('quarter', range(4))
def test_a_thousand_products(quarter: int, native_isa: str, tools: Tools) -> None:
    if not multiplies(ISAS[native_isa]):
        pytest.skip(f'{native_isa} has no pairs of products of bytes')
    seeds = range(QUICK + quarter, 0x7FFFFFFF, 4)
    done = (check(seed, native_isa, tools) for seed in seeds)
    assert sum(itertools.islice(filter(None, done), ALL // 4)) == ALL // 4


def layer(image: str = 'u8', pad: int = 0, **sizes: Any) -> Group:
    given: dict[str, Any] = {'c': 64, 'k': 48, 'h': 7, 'w': 7, 'r': 1, 's': 1, **sizes}
    return images_last(with_scale(bound(conv2d(**given), image, pad), 'u8', 3))


@pytest.mark.parametrize('image', ['u8', 'i8'])
@pytest.mark.parametrize('weight', [-128, 127])
@pytest.mark.parametrize('isa', SETS)
def test_nothing_saturates(isa: str, weight: int, image: str, tools: Tools) -> None:
    """The largest sums of two, four and all numbers, and those one above what fits in 16 bits."""
    if isa not in host_isas() and not is_translated(isa):
        pytest.skip(f'this host has no {isa}')
    group = images_last(bound(conv2d(c=24, k=17, h=4, w=16, r=1, s=1), image, 0))
    rng, ends = np.random.default_rng(0), np.iinfo(image)
    shape = group.tensor('In').shape
    numbers = np.full(shape, 255)
    numbers[0, 1] = rng.choice([0, 64, 65, 128, 129, 255], shape[2:])
    numbers[0, 2] = rng.choice([0, 1, 128], shape[2:], p=[0.4, 0.3, 0.3])
    numbers[0, 3] = rng.choice([0, 1, 254, 255], shape[2:], p=[0.85, 0.05, 0.05, 0.05])
    arrays = {
        'In': (numbers + ends.min).astype(ends.dtype),
        'Ker': np.full(group.tensor('Ker').shape, weight, np.int8),
    }
    want = reference(group, arrays)
    for run, vectors in ((1, 1), (longest_run(isa, 2), 2)):
        schedule = byte_pairs_schedule(group, isa, run, vectors, 3)
        source, flags = generate(group, schedule), (*compiler_flags(schedule), '-O1')
        for out in run_program(group, source, arrays, tools(isa), flags):
            assert np.array_equal(out, want)


def test_what_it_does_not_have_is_refused() -> None:
    product = conv2d(c=8, k=8, h=9, w=9, r=3, s=3)
    assert 'products of 8-bit' in why_not(product)
    assert 'not neighbours' in why_not(bound(product, 'u8', 0))
    grouped = bound(conv2d(c=8, k=8, h=9, w=9, r=1, s=1, groups=2), 'u8', 0)
    assert 'every channel' in why_not(images_last(grouped))
    group = layer()
    good = byte_pairs_schedule(group, 'avx2', 5, 2, 4)
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({'isa': 'neon', 'dtype': 'i8'}, 'no pairs'),
        ({'parallel': (('c', 2),)}, 'not cut between threads'),
        ({'options': (('block', 4), ('run', 6))}, 'registers for 1 to 5'),
        ({'options': (('block', 0), ('run', 5))}, 'block has to be'),
    )
    for bad, words in changes:
        with pytest.raises(ScheduleError, match=words):
            plan_byte_pairs(group, replace(good, **bad))


def test_it_is_chosen_where_numbers_are_small_as_a_rule() -> None:
    """Behind a ReLU on AVX2; not where 0 stands in the middle, nor where sets add in 32 bits."""
    machine = known_machine('zen3-2vcpu')
    for c, k, size in ((512, 512, 14), (64, 256, 56), (24, 144, 56)):
        for pad in (0, 120):
            best = choose(layer(pad=pad, c=c, k=k, h=size, w=size), machine, 2, 1)[0]
            if pad or c > 24:
                assert best.schedule.schema == ('dot' if pad else 'byte_pairs')
    vnni = replace(
        known_machine('i9-10980xe'), dot_dtype='u8', dot_one_gops=400.0, dot_all_gops=6000.0
    )
    assert choose(layer(c=512, k=512), vnni, 2, 1)[0].schedule.schema == 'dot'


def test_explain_says_what_it_does() -> None:
    group = flatten(layer(c=40, h=8, w=8))
    schedule = byte_pairs_schedule(group, 'avx2', 5, 2, 4, (('hw', 2),))
    assert loop_lines(group, schedule)[1:] == [
        'for each block of 4 runs of 5 pixels, of 32 pixels:',
        '  pack each run: 40 input channels (c), in units of 8; what is too large for sums in 16 '
        'bits goes to a list',
        '  for each panel of 16 output channels (k) of 48 (3 times):',
        '    for each run:',
        '      micro-kernel: 5 pixels x 2 vectors of channels, 10 accumulators in 16 avx2 '
        'registers',
        '        inside: loop over 5 units, then over the list',
        '      store the results through requantize',
    ]
    windows = layer(c=40, r=3, s=3, pad=1)
    lines = loop_lines(windows, byte_pairs_schedule(windows, 'avx2', 5, 2, 4))
    assert any('for each of 9 points of the window, in units of 8' in line for line in lines)


def test_a_worker_judges_it_on_the_images_that_it_is_timed_with(native_isa: str) -> None:
    """A right kernel would be wrong if its results were those of the numbers it is checked with."""
    if not multiplies(ISAS[native_isa]):
        pytest.skip(f'{native_isa} has no pairs of products of bytes')
    group = layer(c=40)
    schedule = byte_pairs_schedule(group, native_isa, 3, 2, 4)
    library = build(generate(group, schedule), compiler_flags(schedule))
    with Worker(seed=5) as worker:
        assert worker.check(group, library).ok
        assert worker.time(group, library, min_ms=0.01, max_calls=4).ok


@pytest.mark.skipif(
    host_arch() != ISAS['avx512'].arch,
    reason='compilers of Arm hosts do not read AVX-512: run it on x86',
)
def test_vectors_of_avx512_compile(tmp_path: Path) -> None:
    """Where nothing here runs them, compilers read them at least."""
    source = tmp_path / 'kernel.c'
    for seed in range(4):
        group = drawn(seed)
        schedule = draw_byte_pairs(group, 'avx512', Random(seed), 2, 3)
        assert schedule is not None
        source.write_text(generate(group, schedule))
        words = [*compiler(), '-std=gnu11', '-O0', '-c', *compiler_flags(schedule)]
        run_compiler([*words, str(source), '-o', str(tmp_path / 'kernel.o')])
