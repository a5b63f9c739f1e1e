"""Images of f16 with their channels last: windows over channels, Winograd, and all other groups.

Against the reference, in memory between pages that cannot be touched. On small whole numbers every
sum is exact in f16, so that results have to be equal; on others they are off by what is expected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from test_half_kernels import quantised

from tilewright.errors import CompilerError, ScheduleError
from tilewright.graph.half import half_group
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.schemas.windows.plan import (
    draw_windows,
    plan_windows,
    why_not,
    window_choices,
)
from tilewright.kernels.cpu.schemas.winograd_half.plan import (
    draw_winograd_half,
    plan_winograd_half,
    predicted_error,
    winograd_half_schedule,
)
from tilewright.machine.isa import ISAS, half_isa
from tilewright.machine.known import known_machine
from tilewright.ops import moving
from tilewright.ops.compose import append
from tilewright.ops.convolution import conv2d
from tilewright.ops.dtypes import HALVES, NUMPY, is_float, limits
from tilewright.ops.elementwise import copy, elementwise
from tilewright.ops.flatten import flatten
from tilewright.ops.functions import add, mul, relu, sub, swish
from tilewright.ops.group import Group
from tilewright.ops.integer import saturated
from tilewright.ops.normalise import softmax
from tilewright.ops.pooling import average_pool, max_pool, window_counts
from tilewright.ops.reduction import REDUCTIONS
from tilewright.ops.reference import reference
from tilewright.ops.slices import out_of_slice
from tilewright.ops.stage import Expr, call, cast, const, read, whole
from tilewright.ops.windows import windows
from tilewright.ops.winograd_half import SIZES, half_error, half_transform, why_not_half
from tilewright.runtime import verify
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank import rank
from tilewright_lab.simulate.emulate import Toolchain, run_program

QUICK, ALL = 9, 600
Tools = Callable[[str], Toolchain]
RELU6 = call('min', call('max', read(0), const(0.0)), const(6.0))


def followed(group: Group, expr: Expr, *others: tuple[int, ...]) -> Group:
    """The group with a function of its result, and of other tensors, behind it."""
    found = append(
        group, elementwise(expr, group.output.shape, *others), 'In0' if others else 'In'
    )  # fmt: skip
    assert found is not None
    return found.group


def finished(group: Group, random: Random) -> Group:
    """With a residual, an activation, both or none of them; results of f16 or float32."""
    if random.random() < 0.3:
        group = followed(group, call('add', read(0), read(1)), group.output.shape)
    if random.random() < 0.6:
        group = followed(group, random.choice((relu(), RELU6)))
    made = half_group(group, 'f16')
    if random.random() < 0.2:  # results of networks stay as callers know them
        tensors = (replace(t, dtype='f32') if t.role == 'output' else t for t in made.tensors)
        made = replace(made, tensors=tuple(tensors))
    elif random.random() < 0.4:
        made = quantised(made, 'f16', random)
    return made


def window(seed: int) -> Group:
    """A depthwise convolution or pooling of any size, stride, dilation, border and epilogue."""
    random = Random(seed)
    r, s = random.choice((1, 2, 3, 3, 5)), random.choice((1, 2, 3, 3, 5))
    channels, n = random.choice((3, 8, 13, 24, 40)), random.choice((1, 1, 2))
    h, w = r + random.randint(4, 12), s + random.randint(4, 20)
    if random.random() < 0.3:
        over = windows(
            (h, w), (r, s), random.choice((1, 2)), random.choice((0, 0, 1)) * (r > 2 < s)
        )
        group = max_pool((n, channels, h, w), over)
    else:
        border = tuple(random.randint(0, 2) for _ in range(4))
        group = conv2d(
            n=n, c=channels, k=channels, groups=channels, h=h, w=w, r=r, s=s,
            stride=random.choice((1, 1, 2)), pad=random.choice((0, border)),
            dilation=random.choice((1, 1, 2)), bias=random.random() < 0.6,
        )  # fmt: skip
    return finished(group, random)


def tiled(seed: int) -> Group:
    """A 3 x 3 convolution of any size, stride, groups, border and epilogue."""
    random = Random(seed)
    border = tuple(random.randint(0, 2) for _ in range(4))
    groups = random.choice((1, 1, 1, 2))
    group = conv2d(
        n=random.choice((1, 1, 2)), groups=groups,
        c=random.choice((3, 8, 16, 21, 40) if groups == 1 else (16, 48)),
        k=random.choice((5, 8, 16, 27, 40) if groups == 1 else (16, 32, 80)),
        h=random.randint(3, 14), w=random.randint(3, 14),
        r=3, s=3, pad=random.choice((0, 1, border)), bias=random.random() < 0.5,
        stride=random.choice((1, 1, 2)),
    )  # fmt: skip
    made = finished(group, random)
    if random.random() < 0.4:  # some channels of what several branches wrote
        more, first = random.randint(1, 20), random.randint(0, 9)
        depth = made.tensor('In').shape[3] + first + more
        found = out_of_slice(made, 'In', 3, first, depth)
        assert found is not None
        made = found
    return made


def whole_numbers(group: Group, seed: int) -> dict[str, np.ndarray]:
    """Factors of -1, 0 and 1, so that sums stay exact; anything small beside them."""
    made = verify.random_arrays(group, seed)
    draw = np.random.default_rng(seed)
    factors = {a.tensor for a in group.main.reads}
    for name, array in made.items():
        most = 1 if name in factors else 8
        array[...] = draw.integers(-most, most + 1, array.shape)
    return verify.freeze_all(made)


def results(
    group: Group, schedule: Schedule, arrays: dict[str, np.ndarray], toolchain: Toolchain
) -> list[np.ndarray]:
    flags = (*compiler_flags(schedule), '-O1')
    return list(run_program(group, generate(group, schedule), arrays, toolchain, flags))


def check_exact(group: Group, schedule: Schedule | None, seed: int, toolchain: Toolchain) -> bool:
    """Whether a case was computed; every element has to be the definition's."""
    if schedule is None:
        return False
    arrays = whole_numbers(group, seed)
    want = reference(group, arrays)
    for out in results(group, schedule, arrays, toolchain):
        assert np.array_equal(out, want), (
            f'case {seed}: {group.label}, {np.count_nonzero(out != want)} of {want.size} differ'
        )
    return True


def check_window(seed: int, isa: str, toolchain: Toolchain) -> bool:
    group = window(seed)
    return check_exact(group, draw_windows(group, isa, Random(seed), 2, 3), seed, toolchain)


@pytest.mark.isa
def test_windows_of_whole_numbers_are_the_definition(half, tools: Tools) -> None:
    """Borders, tails of pixels and channels, biases, residuals, limits."""
    assert sum(check_window(seed, half[1], tools(half[1])) for seed in range(QUICK)) > QUICK // 2


@pytest.mark.isa
@pytest.mark.slow
@pytest.mark.parametrize('quarter', range(4))
def test_hundreds_of_windows(half, quarter: int, tools: Tools) -> None:
    seeds = range(QUICK + quarter, QUICK + ALL, 4)
    assert sum(check_window(seed, half[1], tools(half[1])) for seed in seeds) > ALL // 8


@pytest.mark.isa
@pytest.mark.parametrize('kind', ['silu', 'mean', 'scaled', 'large', 'outside'])
def test_what_windows_compute_in_floats(half, kind: str, tools: Tools) -> None:
    """Epilogues that f16 does not have, filters whose rows are a loop, windows in the border."""
    sizes: dict[str, Any] = {'c': 20, 'k': 20, 'groups': 20, 'h': 11, 'w': 13, 'bias': True}
    over = windows((9, 10), 3, 1, 1)
    made = {
        'silu': lambda: followed(conv2d(r=3, s=3, pad=1, **sizes), swish()),
        'mean': lambda: average_pool((1, 20, 9, 10), over, window_counts(over, True)),
        'scaled': lambda: followed(
            conv2d(r=3, s=3, stride=2, pad=1, **sizes), call('mul', read(0), const(0.3))
        ),
        'large': lambda: conv2d(r=9, s=9, pad=4, **sizes),
        'outside': lambda: conv2d(r=3, s=3, pad=(4, 4, 3, 5), **sizes),
    }[kind]()
    group = half_group(made, 'f16')
    assert not why_not(group)
    arrays = verify.random_arrays(group, 3)
    want = reference(group, arrays)
    taps = group.main.sizes.get('r', 3) * group.main.sizes.get('s', 3)
    most = 7 * HALVES['f16'] * np.sqrt(taps / 24) + 2 * HALVES['f16']
    for schedule in window_choices(group, half[1], 2, 2):
        for out in results(group, schedule, arrays, tools(half[1])):
            found = verify.compare(group, out, want, tolerance=4 * most)
            assert found.ok, found.message
            assert np.abs(out.astype(float) - want).std() <= most * want.std()


def test_windows_refuse_what_they_do_not_have() -> None:
    dense = half_group(conv2d(c=4, k=4, h=6, w=6, r=3, s=3), 'f16')
    assert 'every channel alone' in why_not(dense)
    group = half_group(conv2d(c=8, k=8, groups=8, h=6, w=6, r=3, s=3), 'f16')
    schedule = next(window_choices(group, 'neon', 1, 2))
    with pytest.raises(ScheduleError, match='no arithmetic of f16'):
        plan_windows(group, replace(schedule, isa='neon'))
    with pytest.raises(ScheduleError, match='cut between threads'):
        plan_windows(group, replace(schedule, parallel=(('w', 2),)))


# Winograd


def check_tiles(seed: int, isa: str, toolchain: Toolchain) -> bool:
    """F(2, 3) is exact on small whole numbers: its transforms halve and add."""
    group = tiled(seed)
    drawn = draw_winograd_half(group, isa, Random(seed), 2, 3)
    if drawn is None:
        return False
    options = dict(drawn.options)
    schedule = winograd_half_schedule(
        group, isa, 2, options['run'], drawn.reg.tile['k'] // 8, options['block'],
        options['words'], _legal_cut(group, isa, seed),
    )  # fmt: skip
    return check_exact(group, schedule, seed, toolchain)


def _legal_cut(group: Group, isa: str, seed: int) -> tuple[tuple[str, int], ...]:
    for number in range(seed, seed + 50):
        found = draw_winograd_half(group, isa, Random(number), 2, 3)
        if found is not None and dict(found.options)['m'] == 2:
            return found.parallel
    return ()


@pytest.mark.isa
def test_tiles_of_whole_numbers_are_the_definition(half, tools: Tools) -> None:
    """Borders, cropped tiles, tails of channels and panels, blocks, runs, cuts, epilogues."""
    assert sum(check_tiles(seed, half[1], tools(half[1])) for seed in range(QUICK)) > QUICK // 2


@pytest.mark.isa
@pytest.mark.slow
@pytest.mark.parametrize('quarter', range(4))
def test_hundreds_of_tiles(half, quarter: int, tools: Tools) -> None:
    seeds = range(QUICK + quarter, QUICK + ALL, 4)
    assert sum(check_tiles(seed, half[1], tools(half[1])) for seed in seeds) > ALL // 8


FILTERS = [(m, *filters) for filters, sizes in SIZES.items() for m in sizes]


@pytest.mark.isa
@pytest.mark.parametrize(('m', 'taps', 'stride'), FILTERS)
@pytest.mark.parametrize('words', [8, 64])
def test_errors_of_tiles_are_those_that_are_predicted(
    half, m: int, taps: int, stride: int, words: int, tools: Tools
) -> None:
    """Off by no more than the model says, and the model does not say too much."""
    sizes: dict[str, Any] = {'c': 96, 'k': 24, 'h': 15 * stride, 'w': 14 * stride}
    group = half_group(conv2d(**sizes, r=taps, s=taps, stride=stride, pad=taps // 2), 'f16')
    schedule = winograd_half_schedule(group, half[1], m, 12, 2, 12, words)
    arrays = verify.random_arrays(group, 2)
    want = reference(group, arrays)
    for out in results(group, schedule, arrays, tools(half[1])):
        # The model is of the worst output of a tile.
        off = np.abs(out.astype(float) - want).std() / want.std()
        assert predicted_error(group, schedule) / 6 < off < predicted_error(group, schedule)


@pytest.mark.parametrize(('m', 'taps', 'stride'), FILTERS)
def test_transformed_inputs_stay_within_the_range_of_inputs(m: int, taps: int, stride: int) -> None:
    """So that f16 cannot overflow there."""
    assert (np.abs(half_transform(m, taps, stride).array('bt')).sum(axis=1) <= 1).all()


def test_winograd_is_ranked_within_its_error() -> None:
    """Tiles of four by default, smaller ones where less is allowed, none where none is right."""
    machine = replace(known_machine('neoverse-n1'), half_one_gflops=80.0, half_all_gflops=160.0)
    group = half_group(conv2d(c=64, k=64, h=28, w=28, r=3, s=3, pad=1), 'f16')

    def sizes(limit: float) -> set[int]:
        found = rank(group, machine, 2, 50, 'winograd', limit)
        return {dict(c.schedule.options)['m'] for c in found}

    assert sizes(1e-4) == {2, 4}
    assert sizes(2e-5) == {2}
    assert not sizes(1e-6)
    assert half_error(group, 4, 32) < half_error(group, 4, 64) < half_error(group, 6, 32)
    wide = half_group(conv2d(c=64, k=64, h=28, w=28, r=5, s=5, pad=2), 'f16')
    assert {dict(c.schedule.options)['m'] for c in rank(wide, machine, 2, 50, 'winograd')} == {2}
    assert half_error(wide, 2, 32) < half_error(group, 4, 32)
    assert half_error(wide, 4, 32) == math.inf


def test_winograd_refuses_what_it_does_not_have() -> None:
    assert 'strided' in why_not_half(
        half_group(conv2d(c=8, k=8, h=9, w=9, r=5, s=5, stride=2), 'f16')
    )
    assert 'strided' in why_not_half(
        half_group(conv2d(c=8, k=8, h=9, w=9, r=3, s=3, stride=3), 'f16')
    )
    assert 'whole vectors' in why_not_half(
        half_group(conv2d(c=8, k=16, groups=2, h=9, w=9, r=3, s=3), 'f16')
    )
    assert '7 x 7' in why_not_half(half_group(conv2d(c=8, k=8, h=9, w=9, r=7, s=7), 'f16'))
    assert '3 x 5' in why_not_half(half_group(conv2d(c=8, k=8, h=9, w=9, r=3, s=5), 'f16'))
    group = half_group(conv2d(c=8, k=8, h=9, w=9, r=3, s=3), 'f16')
    good = winograd_half_schedule(group, 'neon', 4, 8, 1, 4, 8)
    assert good.isa == half_isa('neon')
    for bad, words in (
        ({'isa': 'neon'}, 'no arithmetic of f16'),
        ({'parallel': (('t', 2),)}, 'cut between threads'),
        ({'options': (('block', 4), ('m', 5), ('run', 8), ('words', 8))}, 'choose one of'),
        ({'options': (('block', 4), ('m', 4), ('run', 40), ('words', 8))}, 'registers'),
        ({'options': (('block', 4), ('m', 4), ('run', 8), ('words', 6))}, 'multiple of 4'),
    ):
        with pytest.raises(ScheduleError, match=words):
            plan_winograd_half(group, replace(good, **bad))


# All else


def others() -> dict[str, Group]:
    """Sizes one below, at and above blocks of eight; windows, tables, several parts."""
    over = windows((7, 9), 3, 2, 1)
    shape = (2, 17, 5, 3)
    groups = {
        'add': elementwise('add', shape, shape),
        'scale': elementwise('mul', (1, 16, 4, 4), (1, 16, 1, 1)),
        'relu': elementwise(relu(), (1, 15, 3, 3)),
        'sigmoid': elementwise(call('sigmoid', read(0)), (1, 8, 3, 7)),
        'swish': elementwise(swish(), (3, 25)),
        'copied': copy((2, 3, 5, 9)),
        'padded': moving.pad((1, 3, 5, 6), {2: (1, 2), 3: (2, 1)}, value=1.5),
        'turned': moving.transpose((2, 9, 17), (0, 2, 1)),
        'maximum': max_pool((1, 9, 7, 9), over),
        'mean': average_pool((1, 24, 7, 9), over, window_counts(over, False)),
        'global': REDUCTIONS['mean'].group('mean', (1, 20, 5, 5), (2, 3), 'f32'),
        'softmax': softmax((3, 37), 1),
        'depthwise': conv2d(c=9, k=9, groups=9, h=6, w=7, r=3, s=3, pad=1, bias=True),
    }
    made = {name: half_group(group, 'f16', last=False) for name, group in groups.items()}
    for name, group in groups.items():  # of those with channels
        last = half_group(group, 'f16', last=True)
        if last != made[name]:
            made[f'{name}, channels last'] = last
    return made


def forms(group: Group) -> tuple[Group, ...]:
    """The group and the group flattened, where they differ."""
    return tuple(dict.fromkeys((group, flatten(group))))


def computed(
    group: Group, source: str, arrays: dict[str, np.ndarray], tool: Any, flags: tuple[str, ...]
) -> list[np.ndarray]:
    """Results of a program in C with `_Float16`, which compilers for x86 have had since gcc 12 and
    clang 15; nothing but such a compiler makes an older one's machine run it.
    """
    try:
        return list(run_program(group, source, arrays, tool, flags))
    except CompilerError as error:
        if '_Float16' in str(error):
            pytest.skip('the C compiler has no _Float16: install gcc 12 or clang 15')
        raise


@pytest.mark.parametrize('name', others())
def test_plain_loops_round_once(isa: str, name: str, tools: Tools) -> None:
    """Whatever is computed between loads and stores is float32, on every instruction set."""
    group = others()[name]
    arrays = verify.random_arrays(group, 1)
    want = reference(group, arrays)
    for form in forms(group):
        schedule = general_schedule(form, isa, 2, 2)
        flags = (*compiler_flags(schedule), '-O1')
        for out in computed(group, generate(form, schedule), arrays, tools(isa), flags):
            found = verify.compare(group, out, want)
            assert found.ok, found.message
            assert found.error <= 1e-5 + 1.01 * HALVES['f16']


# Between floats and 8 bits


def between_types() -> dict[str, Group]:
    """Quantised and dequantised tensors, one below, at and above blocks of sixteen."""
    real = cast(sub(cast(read(0), 'i32'), whole(3)), 'f32')
    scaled, shape = mul(real, read(1)), (2, 5, 3, 17)
    groups = {}
    for dtype, zero in (('u8', 128.0), ('i8', -7.0), ('u8', 0.0)):
        stored = saturated(call('div', read(0), const(0.0123)), const(zero), dtype)
        for kind in ('f16', 'f32'):
            for size in (15, 16, 33):
                groups[f'{kind}-{dtype}-zero {zero:g}-{size}'] = elementwise(
                    stored, (1, size), dtypes=[kind], out=dtype
                )
        groups[f'{dtype}-f16-zero {zero:g}'] = elementwise(
            scaled, shape, (1,), dtypes=[dtype, 'f32'], out='f16'
        )
        groups[f'{dtype}-f16-zero {zero:g}, added'] = elementwise(
            add(scaled, read(2)), shape, (17,), shape, dtypes=[dtype, 'f32', 'f16'], out='f16'
        )
    return groups


@pytest.mark.parametrize('name', between_types())
def test_loops_between_floats_and_bytes_are_the_definition(
    isa: str, name: str, tools: Tools
) -> None:
    """Every 8-bit number is the definition's, also beyond limits; floats are rounded once."""
    group = between_types()[name]
    draw = np.random.default_rng(1)
    arrays = {
        tensor.name: draw.normal(0, 2, tensor.shape).astype(NUMPY[tensor.dtype])
        if is_float(tensor.dtype)
        else draw.integers(*limits(tensor.dtype), tensor.shape).astype(NUMPY[tensor.dtype])
        for tensor in group.with_role('input')
    }
    want = reference(group, arrays)
    for form in forms(group):
        schedule = general_schedule(form, isa, 2, 2)
        source = generate(form, schedule)
        long = group.output.shape[-1] >= 16
        assert ('finish(' in source) == (long and ISAS[isa].arch == 'aarch64')
        flags = (*compiler_flags(schedule), '-O2')
        for out in computed(group, source, arrays, tools(isa), flags):
            if is_float(group.output.dtype):
                off = np.abs(out.astype(np.float64) - want)
                assert (off <= 1.01 * HALVES['f16'] * np.abs(want) + 1e-6).all()
            else:
                assert np.array_equal(out, want)
