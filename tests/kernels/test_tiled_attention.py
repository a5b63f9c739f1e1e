"""Attention and normalised rows of bf16 against their definition, between guard pages: in plain C
everywhere, on tiles where they are; sizes around the edges of tiles.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_attention_kernels import attention, masks, sized
from test_dot_kernels import arrays_of as bytes_of
from test_dot_kernels import bound, with_scale
from test_half_kernels import assert_exact, fixed_product, followed
from test_tile_kernels import tile_rows

from tilewright.errors import ScheduleError
from tilewright.graph.half import half_group
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.attention.space import made
from tilewright.kernels.cpu.schemas.attention_tiles.plan import plan_tiled_attention, why_not
from tilewright.kernels.cpu.schemas.attention_tiles.space import tiled_attention_choices
from tilewright.kernels.cpu.schemas.normal_rows.plan import row_choices
from tilewright.kernels.cpu.schemas.normal_rows.plan import why_not as why_no_rows
from tilewright.machine.known import known_machine
from tilewright.ops.attention import read_attention
from tilewright.ops.flatten import flatten
from tilewright.ops.functions import gelu
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.normalise import row_norm
from tilewright.ops.reference import reference
from tilewright.runtime import verify
from tilewright.schedule.schedule import Schedule
from tilewright.search.cpu.rank_dot import rank_dot
from tilewright.search.cpu.rank_tiles import rank_tiles
from tilewright_lab.simulate.emulate import native, run_program

ROWS = tuple(tile_rows())
NEAR = 2.0**-7  # of the largest result: two roundings to bf16


def tiled(group: Group, isa: str, tile: tuple, block: tuple, cut: tuple = ()) -> Schedule:
    schedule = made(read_attention(group), isa, tile, block, cut)
    return replace(schedule, schema='attention_tiles', dtype='bf16', accumulation='f32', options=())


def agrees(group: Group, schedule: Schedule, arrays: dict | None = None) -> None:
    arrays = arrays or verify.freeze_all(verify.random_arrays(group, 5))
    want = reference(group, arrays).astype(np.float32)
    flags = (*compiler_flags(schedule), '-O2')
    for out in run_program(group, generate(group, schedule), arrays, native(), flags):
        off = np.abs(out.astype(np.float32) - want).max()
        assert off <= NEAR * np.abs(want).max(), (group.label, schedule, off)


@pytest.mark.parametrize('isa', ROWS)
def test_blocks_of_every_size_agree(isa: str) -> None:
    """Rows, keys, depth and columns one below, at and above tiles; several blocks of keys."""
    for i, j, d, v in ((17, 31, 32, 32), (33, 65, 30, 33), (32, 96, 65, 15), (5, 40, 1, 1)):
        group = half_group(attention(sized(1, 2, i, j, d, v)), 'bf16', last=False)
        agrees(group, tiled(group, isa, (min(i, 32), 32), (min(i, 32), 32)))
        agrees(group, tiled(group, isa, (7, 32), (14, 64)))


@pytest.mark.parametrize('isa', ROWS)
@pytest.mark.parametrize(
    'layout', [('bihd', 'bjhd', 'bjhv', 'bihv'), ('bhdi', 'bhdj', 'bhvj', 'bvhi')]
)
def test_any_order_of_axes(isa: str, layout: tuple[str, ...]) -> None:
    """Heads inside rows, keys that are turned: only indices differ."""
    q, k, v, out = layout
    group = attention(sized(2, 3, 18, 40, 36, 11), q, k, v, out)
    group = half_group(group, 'bf16', last=False)
    agrees(group, tiled(group, isa, (9, 32), (18, 64), (('s1', 2),)))


@pytest.mark.parametrize('isa', ROWS)
def test_masks_between_the_products(isa: str) -> None:
    """Scale, masks of both kinds and a causal one, with all keys at once and in blocks."""
    sizes = sized(2, 2, 20, 70, 16, 8)
    group = attention(sizes, between=masks(sizes, 30))
    assert read_attention(group).causal == 30
    given = {t.name for t in group.tensors if t.name[0] in 'QKV'} | {group.output.name}
    group = replace(
        group, tensors=tuple(replace(t, dtype='bf16') if t.name in given and t.role != 'inner'
                             else t for t in group.tensors),
    )  # fmt: skip
    for schedule in tiled_attention_choices(group, isa, 2, 2):
        agrees(group, schedule)
    agrees(group, tiled(group, isa, (10, 32), (10, 32), (('i', 2),)))


@pytest.mark.parametrize('isa', ROWS)
def test_heads_share_keys_and_factors_may_be_floats(isa: str) -> None:
    group = half_group(attention(sized(2, 4, 16, 33, 8, 8), k='bjd', v='bjv'), 'bf16', last=False)
    agrees(group, tiled(group, isa, (16, 32), (16, 32)))
    floats = replace(
        group, tensors=tuple(replace(t, dtype='f32') if t.name in ('K', 'V', 'Out') else t
                             for t in group.tensors),
    )  # fmt: skip
    agrees(floats, tiled(floats, isa, (16, 32), (16, 64)))


def test_what_is_not_attention_in_tiles_is_refused() -> None:
    group = half_group(attention(sized(1, 1, 16, 32, 8, 8)), 'bf16', last=False)
    assert not why_not(group)
    assert 'are not bf16' in why_not(attention(sized(1, 1, 16, 32, 8, 8)))
    with pytest.raises(ScheduleError, match='not multiples of 32 keys'):
        plan_tiled_attention(group, tiled(group, 'portabletiles', (16, 16), (16, 32)))
    with pytest.raises(ScheduleError, match='needs tiles'):
        plan_tiled_attention(group, tiled(group, 'portable', (16, 32), (16, 32)))
    with pytest.raises(ScheduleError, match='more than tiles hold'):
        plan_tiled_attention(group, tiled(group, 'portabletiles', (64, 32), (64, 32)))


@pytest.mark.parametrize('isa', ROWS)
@pytest.mark.parametrize('length', [1, 15, 64, 83, 160])
@pytest.mark.parametrize('centred', [False, True])
def test_rows_are_normalised(isa: str, length: int, centred: bool) -> None:
    group = half_group(row_norm('norm', (5, length), 1 + centred, 1e-5, centred), 'bf16')
    assert not why_no_rows(group)
    for threads in (1, 2):
        for schedule in row_choices(group, isa, threads, 2):
            agrees(group, schedule)


def test_rows_of_other_kinds_are_left_to_others() -> None:
    assert 'has no bf16' in why_no_rows(row_norm('norm', (5, 32)))
    assert 'rows by sums' in why_no_rows(half_group(fixed_product(5, 32, 8), 'bf16'))


@pytest.mark.parametrize('isa', ROWS)
def test_panels_of_rows_with_what_follows_them(isa: str) -> None:
    """What the model prefers for many rows: panels, weights asked for ahead, a function and another
    summand computed behind the next tile; rows that are no whole tiles.
    """
    machine = known_machine('xeon-16vcpu')
    for m, n, k in ((128, 512, 512), (37, 544, 520), (70, 530, 600)):
        group = half_group(followed(fixed_product(m, n, k), gelu()), 'bf16')
        (best, *_) = rank_tiles(group, machine, 2, 1)
        schedule = replace(best.schedule, isa=isa)
        form = flatten(group)
        arrays = verify.freeze_all(verify.random_arrays(group, 5))
        want = reference(group, arrays).astype(np.float32)
        source = generate(form, schedule)
        assert ('pending' in source) == (n % 32 == 0)
        for out in run_program(group, source, arrays, native(), (*compiler_flags(schedule), '-O2')):
            off = np.abs(out.astype(np.float32) - want).max()
            assert off <= NEAR * np.abs(want).max()


@pytest.mark.parametrize('isa', ROWS)
def test_panels_of_rows_of_bytes(isa: str) -> None:
    machine = known_machine('xeon-16vcpu')
    for m, n, k in ((128, 512, 1024), (37, 544, 1040)):
        group = with_scale(bound(matmul(m=m, n=n, k=k), 'u8', 3), 'u8', 4)
        (best, *_) = rank_dot(group, machine, 2, 1)
        assert best.schedule.isa == 'avx512tiles'
        schedule = replace(best.schedule, isa=isa)
        assert_exact(group, flatten(group), schedule, bytes_of(group, 7), native(), '-O2')
