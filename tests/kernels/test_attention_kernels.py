"""Attention on every instruction set, around the edges of its tiles, against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.isa.micro import rows_fit
from tilewright.kernels.cpu.schemas.attention.plan import plan_attention
from tilewright.kernels.cpu.schemas.attention.space import attention_choices, made
from tilewright.machine.compiler import build
from tilewright.machine.isa import ISAS, host_isas
from tilewright.ops.attention import causal, join, read_attention
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.products import einsum
from tilewright.ops.reference import reference
from tilewright.ops.stage import call, const, read
from tilewright.runtime.cpu.kernel import Kernel
from tilewright_lab.simulate.emulate import run_program

HOSTED = [pytest.param(isa, marks=pytest.mark.isa) for isa in host_isas()]


def attention(
    sizes: dict[str, int], q: str = 'bhid', k: str = 'bhjd', v: str = 'bhjv', out: str = 'bhiv',
    between: tuple = (),
) -> Group:  # fmt: skip
    """A group of two products whose operands have these axes; scores are [b, h, i, j]."""

    def shape(names: str) -> tuple[int, ...]:
        return tuple(sizes[n] for n in names)

    first = {n: sizes[n] for n in 'bhijd'}
    last = {n: sizes[n] for n in 'bhijv'}
    scores = einsum('scores', [shape(q), shape(k)], [list(q), list(k)], list('bhij'), first)
    values = einsum('values', [shape('bhij'), shape(v)], [list('bhij'), list(v)], list(out), last)
    found = join(scores, between, values, 'In0')
    assert found is not None
    return found[0]


def sized(b: int, h: int, i: int, j: int, d: int, v: int) -> dict[str, int]:
    return {'b': b, 'h': h, 'i': i, 'j': j, 'd': d, 'v': v}


def arrays_of(group: Group, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        t.name: rng.integers(0, 2, t.shape).astype(bool)
        if t.dtype == 'bool'
        else rng.standard_normal(t.shape).astype(np.float32)
        for t in group.tensors
        if t.role in ('input', 'constant')
    }


def computed(group: Group, schedule, arrays: dict[str, np.ndarray]) -> np.ndarray:
    kernel = Kernel.load(build(generate(group, schedule), compiler_flags(schedule)), group)
    out = np.zeros(group.output.shape, np.float32)
    kernel.run(arrays, kernel.pack({}), out)
    return out


def agrees(group: Group, schedule, arrays: dict[str, np.ndarray] | None = None) -> None:
    arrays = arrays or arrays_of(group)
    want = reference(group, arrays)
    got = computed(group, schedule, arrays)
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max(), (group.label, schedule)


def masks(sizes: dict[str, int], offset: int) -> tuple:
    """Scale, a mask that is added, one that chooses, and a causal one."""
    whole = tuple(sizes[n] for n in 'bhij')
    row = (sizes['b'], 1, 1, sizes['j'])
    chosen = call('where', read(1), read(0), const(-30.0))
    return (
        (elementwise(call('mul', read(0), const(0.3)), whole, name='scale'), 'In'),
        (elementwise('add', whole, row), 'In0'),
        (elementwise(chosen, whole, row, dtypes=['f32', 'bool'], out='f32', name='mask'), 'In0'),
        (elementwise(causal('h', 'w', offset), whole, name='causal'), 'In'),
    )


@pytest.mark.parametrize('isa', HOSTED)
def test_blocks_of_every_size_agree(isa):
    """Rows, keys, depth and columns one below, at and above tiles; several blocks of keys."""
    lanes = ISAS[isa].lanes
    for i, j, d, v in ((1, 1, 1, 1), (13, 2 * lanes, 4, lanes), (15, 2 * lanes + 1, 5, lanes + 1)):
        group = attention(sized(1, 2, i, j, d, v))
        form = read_attention(group)
        tile, direct = (3, 2 * lanes), (1, lanes)
        agrees(group, made(form, isa, tile, (6, 2 * lanes), ()))
        agrees(group, made(form, isa, direct, (1, lanes), (), direct=True))


@pytest.mark.parametrize('isa', HOSTED)
def test_masks_between_the_products(isa):
    sizes = sized(2, 2, 7, 37, 8, 6)
    group = attention(sizes, between=masks(sizes, 30))
    assert read_attention(group).causal == 30
    choices = list(attention_choices(group, isa, 2, 2))
    agrees(group, choices[0])
    agrees(group, choices[-1])


@pytest.mark.parametrize(
    'layout', [('bihd', 'bjhd', 'bjhv', 'bihv'), ('bhdi', 'bhdj', 'bhvj', 'bvhi')]
)
@pytest.mark.parametrize('direct', [False, True])
def test_any_order_of_axes(layout, direct):
    """Heads inside rows, keys that are turned: only indices differ."""
    isa = host_isas()[0]
    group = attention(sized(2, 3, 6, 40, 9, 11), *layout)
    width = 2 * ISAS[isa].lanes
    tile = (1, width) if direct else (3, width)
    agrees(group, made(read_attention(group), isa, tile, (tile[0], width), (), direct=direct))


@pytest.mark.parametrize('direct', [False, True])
def test_heads_that_share_keys(direct):
    isa = host_isas()[0]
    group = attention(sized(2, 4, 5, 20, 8, 8), k='bjd', v='bjv')
    plan = plan_attention(
        group, made(read_attention(group), isa, (1, ISAS[isa].lanes), (5, 2 * ISAS[isa].lanes), ())
    )
    assert plan.packed_by == ('s0',)
    assert plan.sharing == ('s1',)
    tile = (1, ISAS[isa].lanes)
    block = (1, 2 * ISAS[isa].lanes)
    agrees(group, made(read_attention(group), isa, tile, block, (), direct=direct))


@pytest.mark.parametrize('parallel', [(('s1', 2),), (('i', 3),), (('s0', 2), ('i', 2))])
def test_threads_share_heads_or_rows(parallel):
    isa = host_isas()[0]
    sizes = sized(2, 2, 29, 33, 8, 8)
    group = attention(sizes, between=masks(sizes, 4)[-1:])
    width = ISAS[isa].lanes
    agrees(group, made(read_attention(group), isa, (4, width), (8, 2 * width), parallel))


@pytest.mark.parametrize('direct', [False, True])
def test_rows_that_see_nothing_and_numbers_that_are_none(direct):
    """A row of -inf alone, or with NaN, is NaN; a block of -inf before others changes nothing."""
    isa = host_isas()[0]
    lanes = ISAS[isa].lanes
    sizes = sized(1, 1, 4, 3 * lanes, 2, 3)
    whole = tuple(sizes[n] for n in 'bhij')
    group = attention(sizes, between=((elementwise('add', whole, whole), 'In0'),))
    arrays = arrays_of(group)
    mask = arrays['Mask']
    mask[...] = 0
    mask[0, 0, 0] = -np.inf
    mask[0, 0, 1, : 2 * lanes] = -np.inf
    mask[0, 0, 2, 5] = np.nan
    schedule = made(read_attention(group), isa, (1, lanes), (1, lanes), (), direct=direct)
    got, want = computed(group, schedule, arrays), reference(group, arrays)
    assert np.isnan(got[0, 0, [0, 2]]).all()
    assert np.isnan(want[0, 0, [0, 2]]).all()
    np.testing.assert_allclose(got[0, 0, [1, 3]], want[0, 0, [1, 3]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('isa', HOSTED)
def test_weights_of_scores_of_any_size(isa):
    """Rows that a mask moves as far down as float32 goes are weighed as if it were not there, and
    scores far below their peak have the weights that float64 gives them, down to none.
    """
    lanes = ISAS[isa].lanes
    sizes = sized(1, 1, 3, 4 * lanes + 3, 2, 3)
    whole = tuple(sizes[n] for n in 'bhij')
    group = attention(sizes, between=((elementwise('add', whole, whole), 'In0'),))
    arrays = arrays_of(group)
    mask = arrays['Mask']
    mask[0, 0, 0] = np.finfo(np.float32).min
    mask[0, 0, 1] = -np.linspace(0, 130, sizes['j'])
    mask[0, 0, 2] = 1e4
    schedule = made(read_attention(group), isa, (3, 2 * lanes), (3, 4 * lanes), ())
    got, want = computed(group, schedule, arrays), reference(group, arrays)
    np.testing.assert_allclose(got[0, 0, 0], arrays['V'][0, 0].mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[0, 0, 1], want[0, 0, 1], rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(got[0, 0, 2], want[0, 0, 2], rtol=1e-2, atol=1e-2)


@pytest.mark.isa
def test_rows_are_walked_by_lanes():
    """On an instruction set that multiplies by lanes the tile is one whose rows need no copy."""
    group = attention(sized(1, 2, 64, 64, 64, 64))
    for schedule in attention_choices(group, 'neon', 2, 2):
        high, width = schedule.reg.tile['i'], schedule.reg.tile['v']
        assert rows_fit(ISAS['neon'], high, width // ISAS['neon'].lanes)


@pytest.mark.isa
def test_neon_by_a_program_of_its_own(tools):
    sizes = sized(1, 2, 17, 21, 9, 6)
    group = attention(sizes, between=masks(sizes, 4)[-1:])
    arrays = arrays_of(group)
    schedule = next(iter(attention_choices(group, 'neon', 1, 2)))
    source = generate(group, schedule)
    for got in run_program(group, source, arrays, tools('neon'), compiler_flags(schedule)):
        np.testing.assert_allclose(got, reference(group, arrays), rtol=1e-4, atol=1e-5)
