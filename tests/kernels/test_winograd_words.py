"""Winograd's integer convolutions on every instruction set, equal to their definition."""

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
from tilewright.kernels.cpu.schemas.winograd_words.code import PIECES, constant_places
from tilewright.kernels.cpu.schemas.winograd_words.plan import (
    draw_winograd_words,
    plan_winograd_words,
    winograd_words_schedule,
    word_dtypes,
)
from tilewright.machine.compiler import build, compiler, run_compiler
from tilewright.machine.isa import ISAS, cpu_flags, host_arch, host_isas
from tilewright.machine.known import known_machine
from tilewright.ops.channels_last import channels_last
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.winograd_words import SIZES, whole_transform, why_not_words
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.choose import choose
from tilewright.search.cpu.rank import rank
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


def runnable(isa: str) -> str:
    """What words of a set hold that this host or an emulator runs."""
    return next(d for d in word_dtypes(isa) if can_run(isa, replace(GOOD, isa=isa, dtype=d)))


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


ENDS = {'least': -128, 'most': 127}


@pytest.mark.parametrize('weights', ['least', 'most', 'both', 'in turns'])
@pytest.mark.parametrize(('dtype', 'pad'), [('u8', 0), ('u8', 255), ('i8', -128)])
def test_nothing_overflows(dtype: str, pad: int, weights: str, isa: str, tools: Tools) -> None:
    """The largest numbers of either sign, more channels than one sum may have of them; in turns
    they cancel, so that pieces of a sum are large where it is not.
    """
    words = runnable(isa)
    channels, rng = 240, np.random.default_rng(0)
    group = images_last(bound(conv2d(c=channels, k=2, h=5, w=4, r=3, s=3, pad=1), dtype, pad))
    filters = np.full(group.tensor('Ker').shape, ENDS.get(weights, -128))
    if weights == 'both':
        filters = rng.choice([-128, 127], filters.shape)
    if weights == 'in turns':
        filters[:, channels // 2 :] = 127
    ends = np.iinfo(np.uint8 if dtype == 'u8' else np.int8)
    for number, image in enumerate((ends.min, ends.max, [ends.min, ends.max])):
        arrays = {
            'In': rng.choice(np.atleast_1d(image), group.tensor('In').shape).astype(ends.dtype),
            'Ker': filters.astype(np.int8),
        }
        want = reference(group, arrays)
        m, ahead = SIZES[-1 if number else 0], number % 2
        schedule = winograd_words_schedule(group, isa, words, m, 2, 1, 2, 40, ahead)
        flags = (*compiler_flags(schedule), '-O0')
        source = generate(group, schedule)
        (out,) = run_program(group, source, arrays, tools(isa), flags, ('end',))
        assert np.array_equal(out, want)


def layer(channels: int, size: int = 14, k: int = 16) -> Group:
    conv = conv2d(c=channels, k=k, h=size, w=size, r=3, s=3, pad=1)
    return images_last(bound(conv, 'u8', 0))


GOOD = winograd_words_schedule(layer(16), 'avx2', 'i16', 4, 6, 2, 8, 16, 0)


def test_numbers_stay_within_their_bits() -> None:
    """What is transformed fits 16 bits, pairs of products 32, and sums of few channels come back
    from 2^shift times themselves; of one channel more they might not.
    """
    for m in SIZES:
        f = whole_transform(m)
        largest = 128 * f.reach('bt'), 128 * f.reach('g')
        assert max(largest) < 1 << 15
        assert 2 * largest[0] * largest[1] < 1 << 31
        size = 128 * 128 * 9 * f.most_channels
        assert size < 1 << 31 - f.shift <= size + 128 * 128 * 9
        for i, j in itertools.product(range(m), repeat=2):
            assert f.scales[i] * f.scales[j] * f.factor(i, j) % (1 << 32) == 1 << f.shift
    assert [whole_transform(m).most_channels for m in SIZES] == [3640, 227]
    rng = np.random.default_rng(0)
    f, image, taps = (
        whole_transform(4),
        rng.integers(-128, 128, (6, 6)),
        rng.integers(-9, 9, (3, 3)),
    )
    at, g, bt = (np.array(rows, dtype=object) for rows in (f.at, f.g, f.bt))
    made = at @ ((g @ taps @ g.T) * (bt @ image @ bt.T)) @ at.T
    want = [[(image[i : i + 3, j : j + 3] * taps).sum() for j in range(4)] for i in range(4)]
    assert np.array_equal(made, np.array(want, dtype=object) * np.outer(f.scales, f.scales))


@pytest.mark.parametrize(
    ('channels', 'm', 'most'), [(224, 4, 1), (256, 4, 2), (512, 4, 3), (512, 2, 1)]
)
def test_weights_decide_into_how_many_pieces_sums_are_cut(
    channels: int, m: int, most: int, native_isa: str
) -> None:
    """None where they are small, as many as any weights need at most."""
    dtype, group = runnable(native_isa), layer(channels, 6)
    schedule = winograd_words_schedule(group, native_isa, dtype, m, 2, 1, 4, 32, 0)
    plan = plan_winograd_words(group, schedule)
    assert plan.pieces >= most
    kernel = Kernel.load(build(generate(group, schedule), compiler_flags(schedule)), group)
    found = []
    for weight in (20, -128):
        filters = np.full(group.tensor('Ker').shape, weight, np.int8)
        packed = kernel.pack({'Ker': filters}).view(np.int32)
        place = constant_places(plan)[0].get(PIECES)
        found.append(int(packed[place]) if place is not None else 1)
    assert found == [1, most]


def test_what_it_does_not_have_is_refused() -> None:
    shapes: tuple[tuple[dict[str, Any], str], ...] = (
        ({'r': 5, 's': 5}, '5 x 5'),
        ({'r': 3, 's': 3, 'stride': 2}, 'strided'),
        ({'r': 3, 's': 3, 'dilation': 2}, 'strided, dilated'),
        ({'r': 3, 's': 3, 'groups': 2}, 'dense'),
    )
    for sizes, words in shapes:
        conv = conv2d(c=8, k=8, h=9, w=9, **sizes)
        assert words in why_not_words(channels_last(bound(conv, 'u8', 0), {'In', 'Out'}))
    assert 'NHWC' in why_not_words(bound(conv2d(c=8, k=8, h=9, w=9, r=3, s=3), 'u8', 0))
    assert 'products of 8-bit' in why_not_words(conv2d(c=8, k=8, h=9, w=9, r=3, s=3))
    options = dict(GOOD.options)
    changes: tuple[tuple[dict[str, Any], str], ...] = (
        ({'isa': 'neon', 'dtype': 'i8'}, 'no products of i8, in which'),
        ({'parallel': (('t', 2),)}, 'cut between threads'),
        ({'options': {'m': 5}}, 'choose one of'),
        ({'options': {'run': 12}}, 'registers'),
        ({'options': {'words': 6}}, 'multiple of 4'),
        ({'options': {'words': 116}}, 'at most 112'),
        ({'options': {'ahead': 2}}, 'ahead 0 or 1'),
    )
    for bad, words in changes:
        if 'options' in bad:
            bad = {'options': tuple(sorted((options | bad['options']).items()))}
        with pytest.raises(ScheduleError, match=words):
            plan_winograd_words(layer(16), replace(GOOD, **bad))


def test_it_is_ranked_where_words_have_room() -> None:
    """Before direct products on a machine of words of two numbers, nowhere on one of four."""
    machine = replace(
        known_machine('i7-9700k'), dot_dtype='i16', dot_one_gops=200.0, dot_all_gops=1500.0
    )
    for group in (layer(64, 56, 64), layer(512, 7, 512)):
        best = choose(group, machine, 2, 1)[0]
        assert best.schedule.schema == 'winograd_words'
        assert dict(best.schedule.options)['m'] == 4
        direct = choose(group, machine, 2, 1, 'direct')[0]
        assert best.prediction.seconds < direct.prediction.seconds
    vnni = replace(
        known_machine('i9-10980xe'), dot_dtype='u8', dot_one_gops=400.0, dot_all_gops=6000.0
    )
    assert not rank(layer(64, 56, 64), vnni, 2, 1, 'winograd')


@pytest.mark.skipif(
    host_arch() != ISAS['avx512'].arch,
    reason='compilers of Arm hosts do not read AVX-512: run it on x86',
)
def test_vectors_of_avx512_compile(tmp_path: Path) -> None:
    """Where nothing here runs them, compilers read them at least."""
    source, made = tmp_path / 'kernel.c', 0
    for seed in range(4):
        group = drawn(seed)
        schedule = draw_winograd_words(group, 'avx512', Random(seed), 2, 3)
        assert schedule is not None
        assert schedule.dtype == 'i16'
        source.write_text(generate(group, schedule))
        words = [*compiler(), '-std=gnu11', '-O0', '-c', *compiler_flags(schedule)]
        run_compiler([*words, str(source), '-o', str(tmp_path / 'kernel.o')])
        made += 1
    assert made == 4


def test_what_follows_sums_at_another_place_is_left_to_others() -> None:
    """Sums with their channels last, the result without: no epilogue of a tile computes that."""
    conv = conv2d(n=1, c=5, k=9, h=6, w=5, r=3, s=3, pad=1)
    group = channels_last(with_scale(bound(conv, 'u8', 3), 'u8', 5), {'In', 'Acc0'})
    assert 'is not one sum' in why_not_words(group)
    chosen = choose(group, known_machine('zen3-2vcpu'), threads=2, top=3)
    assert chosen[0].schedule.schema == 'general'


def test_threads_without_tiles_compute_nothing(tools: Tools) -> None:
    group = images_last(bound(conv2d(c=8, k=8, h=3, w=3, r=3, s=3), 'u8', 3))
    isa, dtype = host_isas()[0], runnable(host_isas()[0])
    schedule = winograd_words_schedule(group, isa, dtype, 4, 4, 1, 4, 4, 0, (('n', 2),))
    arrays = arrays_of(group, 0)
    source, flags = generate(group, schedule), compiler_flags(schedule)
    for out in run_program(group, source, arrays, tools(isa), flags):
        np.testing.assert_array_equal(out, reference(group, arrays))
