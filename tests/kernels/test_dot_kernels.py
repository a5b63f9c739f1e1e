"""Integer convolutions and products on every instruction set, equal to their definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tilewright.kernels.cpu.contraction import contract, vector_candidates
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.schemas.channelwise.plan import draw_channelwise
from tilewright.kernels.cpu.schemas.channelwise.plan import why_not as why_not_channelwise
from tilewright.kernels.cpu.schemas.dot.plan import ROWS, draw_dot, has_rows, why_not
from tilewright.kernels.cpu.schemas.outer.space import register_tiles
from tilewright.machine.isa import ISAS, cpu_flags, host_isas, word_isa
from tilewright.ops.channels_last import channels_last
from tilewright.ops.compose import append
from tilewright.ops.convolution import conv2d
from tilewright.ops.dtypes import NUMPY, is_float
from tilewright.ops.elementwise import elementwise
from tilewright.ops.flatten import flatten
from tilewright.ops.functions import add, mul, sub
from tilewright.ops.group import Group
from tilewright.ops.integer import (
    in_rows,
    in_words,
    integer_products,
    requantised,
    saturated,
)
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.ops.stage import Expr, call, cast, const, read, whole
from tilewright.runtime import verify
from tilewright.schedule.schedule import Schedule
from tilewright_lab.simulate.emulate import Toolchain, run_program

QUICK, ALL = 40, 2000
Tools = Callable[[str], Toolchain]


def bound(group: Group, image: str, pad: int) -> Group:
    """The integer form, with operands of 8 bits and constants of their types."""
    made = integer_products(group, pad)
    first, second = (access.tensor for access in made.main.reads)
    kinds = {first: image, second: 'i8'}
    return Group(
        made.label,
        tuple(
            type(t)(t.name, t.dims, t.shape, t.role, kinds.get(t.name, t.dtype))
            for t in made.tensors
        ),
        made.stages,
        made.storage,
    )


def with_scale(group: Group, dtype: str, zero: int) -> Group:
    """The sums times one scale for each channel, stored in 8 bits."""
    shape = group.output.shape
    per_channel = (1, shape[1], 1, 1) if len(shape) == 4 else (1, shape[1])
    after = elementwise(
        requantised(const(zero), dtype), shape, per_channel, dtypes=['i32', 'f32'], out=dtype,
        name='requantize', shape=shape,
    )  # fmt: skip
    first = after.with_role('input')[0].name
    found = append(group, after, first)
    assert found is not None
    given = set(found.consumer_names.values())
    tensors = tuple(
        type(t)(t.name, t.dims, t.shape, 'constant', t.dtype) if t.name in given else t
        for t in found.group.tensors
    )
    return Group(found.group.label, tensors, found.group.stages, found.group.storage)


def appended(group: Group, expr: Expr, *others: tuple[str, tuple[int, ...]], out: str) -> Group:
    """What one more stage makes of a group's result and of other tensors."""
    shape = group.output.shape
    after = elementwise(
        expr, shape, *(other for _, other in others), out=out, name='then', shape=shape,
        dtypes=[group.output.dtype, *(dtype for dtype, _ in others)],
    )  # fmt: skip
    found = append(group, after, after.with_role('input')[0].name)
    assert found is not None
    return found.group


def stored_again(group: Group, random: Random, dtype: str) -> Group:
    """8-bit numbers dequantised and quantised again, as a part of a concatenation is; or added to
    others, by factors that lose no bits, as a residual is.
    """
    low = -128 if group.output.dtype == 'i8' else 0
    zero = whole(low + random.randint(0, 255))
    real = cast(sub(cast(read(0), 'i32'), cast(zero, 'i32')), 'f32')
    moved = const(random.randint(-100, 100))
    if random.random() < 0.5:
        other = mul(cast(sub(cast(read(1), 'i32'), whole(7)), 'f32'), const(0.75))
        expr = saturated(add(mul(real, const(1.25)), other), moved, dtype)
        return appended(group, expr, (random.choice(('u8', 'i8')), group.output.shape), out=dtype)
    group = appended(group, mul(real, read(1)), ('f32', (1,) * len(group.output.shape)), out='f32')
    by = const(float(np.float32(random.uniform(0.001, 0.02))))
    return appended(group, saturated(call('div', read(0), by), moved, dtype), out=dtype)


def drawn(seed: int) -> Group:
    """A convolution or product with any border, stride, groups, types, zero points and layout."""
    random = Random(seed)
    image = random.choice(('u8', 'i8'))
    low = 0 if image == 'u8' else -128
    pad = random.randint(low, low + 255)
    kind = random.random()
    if kind < 0.15:
        group = matmul(m=random.randint(1, 20), n=random.randint(1, 40), k=random.randint(1, 30))
        group = bound(group, image, 0)
    else:
        depthwise = kind > 0.8
        groups = random.randint(2, 40) if depthwise else random.choice((1, 1, 1, 2))
        r, s = random.choice((1, 1, 2, 3)), random.choice((1, 1, 2, 3))
        channels = groups * (4 * random.randint(1, 3) if groups > 1 else random.randint(1, 13))
        channels = groups if depthwise else channels
        border = tuple(random.randint(0, 2) for _ in range(4))
        conv = conv2d(
            n=random.choice((1, 1, 2)), c=channels,
            k=groups * (1 if depthwise else random.randint(1, 40)),
            h=r + random.randint(2, 9), w=s + random.randint(2, 9), r=r, s=s,
            stride=random.choice((1, 1, 2)), pad=random.choice((0, border)),
            dilation=random.choice((1, 1, 2)), groups=groups, bias=random.random() < 0.5,
        )  # fmt: skip
        group = bound(conv, image, pad)
    if random.random() < 0.7:
        group = with_scale(group, random.choice(('u8', 'i8')), random.randint(low, low + 255))
        if random.random() < 0.4:
            group = stored_again(group, random, random.choice(('u8', 'i8')))
    if len(group.output.shape) == 4:
        kinds = (set(), {'In'}, {'Out'}, {'In', 'Out'}, {'In', 'Out'}, {'In', 'Out'})
        names = kinds[-1] if kind > 0.8 else random.choice(kinds)
        if 'Out' in names:  # so lies what is added to it
            others = (t for t in group.with_role('input') if t.name != 'In')
            names = names | {t.name for t in others if t.shape == group.output.shape}
        group = channels_last(group, names) if names else group
    return group


def schedule_for(group: Group, isa: str, seed: int) -> Schedule | None:
    random = Random(seed)
    draw = draw_dot if why_not_channelwise(group) else draw_channelwise
    for _ in range(20):
        found = draw(group, isa, random, 2, 3)
        dot = ISAS[isa].dot(found.dtype) if found else None
        if found and dot and (isa not in host_isas() or cpu_flags() >= {*dot.required_flags}):
            return found
    return None


def arrays_of(group: Group, seed: int) -> dict[str, np.ndarray]:
    """Whole numbers of all sizes; scales that bring sums into the range of 8 bits."""
    made = verify.random_arrays(group, seed)
    draw = np.random.default_rng(seed)
    for tensor in group.tensors:
        if tensor.role not in ('input', 'constant'):
            continue
        if is_float(tensor.dtype):
            made[tensor.name][...] = draw.uniform(0.0002, 0.01, tensor.shape)
        elif tensor.dtype == 'i32':
            most = 10 ** (7 if seed % 3 == 0 else 5)  # beyond what is small, and below
            made[tensor.name][...] = draw.integers(-most, most, tensor.shape)
        else:
            ends = np.iinfo(NUMPY[tensor.dtype])
            made[tensor.name][...] = draw.integers(ends.min, ends.max + 1, tensor.shape)
    return verify.freeze_all(made)


def check(seed: int, isa: str, tools: Tools) -> bool:
    """Whether a case was computed; every element has to be the definition's.

    Buffers lie flush against pages that cannot be touched, at their start and at their end.
    """
    group = drawn(seed)
    alone = not why_not_channelwise(group)
    if why_not(group) and not alone:
        return False
    tiled = flatten(group) if seed % 2 and not alone else group
    schedule = schedule_for(tiled, isa, seed)
    if schedule is None:
        return False
    arrays = arrays_of(group, seed)
    want = reference(group, arrays)
    flags = (*compiler_flags(schedule), '-O2' if seed % 4 == 0 else '-O0')
    for out in run_program(group, generate(tiled, schedule), arrays, tools(isa), flags):
        assert np.array_equal(out, want), (
            f'case {seed}: {group.label}, {schedule.schema} of {schedule.dtype}, '
            f'{np.count_nonzero(out != want)} of {want.size} differ'
        )
    return True


def test_random_integer_products_are_the_definition(isa: str, tools: Tools) -> None:
    """Sums, borders, zero points, layouts and rounding."""
    first = list(ISAS).index(isa)
    assert sum(check(seed, isa, tools) for seed in range(first, QUICK, len(ISAS))) >= 8


def in_f16(seed: int) -> Group:
    """A layer of bytes among layers of f16: sums times scales, with or without a residual of f16
    and a limit, are stored as f16.
    """
    random = Random(seed)
    channels, alone = random.randint(1, 40), seed % 2 == 0
    conv = conv2d(
        n=1, c=channels if alone else 4 * random.randint(1, 6), k=channels,
        groups=channels if alone else 1, h=random.randint(3, 9), w=random.randint(3, 9),
        r=random.choice((1, 3)), s=3, pad=1, bias=random.random() < 0.5,
    )  # fmt: skip
    group = bound(conv, random.choice(('u8', 'i8')), 0)
    scales = 'f32', (1, group.output.shape[1], 1, 1)
    group = appended(group, mul(cast(read(0), 'f32'), read(1)), scales, out='f32')
    if random.random() < 0.6 and not alone:
        group = appended(group, add(read(0), read(1)), ('f32', group.output.shape), out='f32')
    if random.random() < 0.6:
        group = appended(group, call('max', read(0), const(0.0)), out='f32')
    tensors = tuple(
        replace(t, dtype='f16') if t.dtype == 'f32' and t.role in ('input', 'output')
        and t.shape == group.output.shape else t
        for t in group.tensors
    )  # fmt: skip
    if random.random() < 0.8:  # as networks have them
        scaled = (1, group.output.shape[1], 1, 1)
        tensors = tuple(
            replace(t, role='constant') if (t.role, t.shape, t.dtype) == ('input', scaled, 'f32')
            else t for t in tensors
        )  # fmt: skip
    others = {t.name for t in tensors if t.dtype == 'f16'}
    return channels_last(replace(group, tensors=tensors), {'In', *others})


def test_results_of_f16_are_the_definition(half: tuple[str, str], tools: Tools) -> None:
    """Rounded once, from float32, as they are stored."""
    isa, schemas = half[1], set()
    for seed in range(12):
        group = in_f16(seed)
        schedule = schedule_for(group, isa, seed)
        assert schedule is not None
        arrays = {
            name: array * array.dtype.type(0.05) if array.dtype.kind == 'f' else array
            for name, array in arrays_of(group, seed).items()
        }  # results that f16 holds
        want = reference(group, arrays)
        assert np.abs(want).max() < np.finfo(np.float16).max
        source = generate(group, schedule)
        if 'put_f16' in source:
            schemas.add(schedule.schema)
        else:  # channelwise: tiles of less than 16 channels
            assert schedule.schema == 'channelwise'
        flags = (*compiler_flags(schedule), '-O2' if seed % 4 == 0 else '-O0')
        for out in run_program(group, source, verify.freeze_all(arrays), tools(isa), flags):
            assert out.dtype == np.float16
            off = np.abs(out.astype(np.float64) - want)
            assert (off <= 1.01 * 2.0**-11 * np.abs(want) + 1e-6).all(), f'{seed}: {group.label}'
    assert schemas == {'dot', 'channelwise'}


@pytest.mark.slow
@pytest.mark.parametrize('quarter', range(4))
def test_two_thousand_integer_products(quarter: int, native_isa: str, tools: Tools) -> None:
    """Together with the sets that this host runs: 2,000 of which it computes each."""
    seeds = range(QUICK + quarter, 0x7FFFFFFF, 4)
    done = (check(seed, native_isa, tools) for seed in seeds)
    assert sum(itertools.islice(filter(None, done), ALL // 4)) == ALL // 4


def first_layer(seed: int) -> Group:
    """A large window over few channels, in planes or side by side."""
    random = Random(seed)
    conv = conv2d(
        c=(3, 3, 4, 1, 2)[seed % 5], k=random.randint(1, 40), h=random.randint(7, 15),
        w=random.randint(7, 15), r=random.choice((3, 5, 7)), s=(7, 5, 3)[seed % 3],
        pad=tuple(random.randint(0, 3) for _ in range(4)), stride=random.choice((1, 2, 2)),
    )  # fmt: skip
    group = bound(conv, random.choice(('u8', 'i8')), random.randint(0, 127))
    group = with_scale(group, 'u8', random.randint(0, 255))
    return channels_last(group, {'In', 'Out'} if seed % 2 else {'Out'})


def test_first_layers_are_the_definition(isa: str, tools: Tools) -> None:
    """Windows whose rows are words, each with parts of two columns, and steps that are a loop."""
    ways, groups = set(), [first_layer(seed) for seed in range(10)]
    for seed, group in enumerate(groups):
        arrays = arrays_of(group, seed)
        want = reference(group, arrays)
        schedule = schedule_for(group, isa, seed)
        assert schedule is not None
        ways.add(bool(dict(schedule.options).get(ROWS)))
        flags, source = (*compiler_flags(schedule), '-O0'), generate(group, schedule)
        for out in run_program(group, source, arrays, tools(isa), flags):
            assert np.array_equal(out, want), f'case {seed}: {group.label}'
    has = any(has_rows(dot) for dot in ISAS[isa].dots)
    assert ways == ({False, True} if has else {False})


def test_words_of_rows_need_windows_that_begin_with_one() -> None:
    """Two of three channels are a word and a half: columns then have words of their own."""
    for stride, words in ((2, 11), (1, 0), (4, 11)):
        conv = bound(conv2d(c=3, k=8, h=12, w=12, r=7, s=7, pad=3, stride=stride), 'u8', 0)
        form = in_rows(conv, 2)
        assert (form.group.main.sizes[form.dim] if form else 0) == words


def test_register_tiles_leave_room_for_what_products_pass_through() -> None:
    """Else every pixel would be broadcast once for each vector of weights."""
    form = in_words(flatten(bound(conv2d(c=64, h=14, w=14, k=256, r=1, s=1), 'u8', 0)), 2)
    assert form is not None
    contraction = contract(form.group, vector_candidates(form.group)[0])
    for name in ('avx2', 'avx512'):
        for tile in register_tiles(contraction, ISAS[word_isa(name, 'i16')]):
            pixels = math.prod(tile[d] for d in contraction.pixels)
            vectors = tile[contraction.vector] // ISAS[name].lanes
            need = registers_needed(pixels, vectors) + (name == 'avx2')
            assert need <= ISAS[name].registers, f'{name}: {pixels} x {vectors}'


def test_nothing_saturates(isa: str, tools: Tools) -> None:
    """The largest products of either sign, many of them: pairs of u8 and i8 exceed 16 bits."""
    conv = conv2d(c=40, k=2, h=3, w=4, r=3, s=3, pad=1)
    group = channels_last(bound(conv, 'u8', 255), {'In'})
    weights = np.array([-128, 127], np.int8).reshape(2, 1, 1, 1)
    arrays = {
        'In': np.full(group.tensor('In').shape, 255, np.uint8),
        'Ker': np.broadcast_to(weights, group.tensor('Ker').shape),
    }
    want = np.broadcast_to(255 * 360 * weights.astype(np.int32).reshape(1, 2, 1, 1), (1, 2, 3, 4))
    for number, dot in enumerate(ISAS[isa].dots):
        if isa in host_isas() and not cpu_flags() >= {*dot.required_flags}:
            continue
        drawings = (draw_dot(group, isa, Random(n), 1, 1) for n in itertools.count(number))
        schedule = next(s for s in drawings if s is not None and s.dtype == dot.dtype)
        flags, source = (*compiler_flags(schedule), '-O0'), generate(group, schedule)
        (out,) = run_program(group, source, arrays, tools(isa), flags, ('end',))
        assert np.array_equal(out, want)
