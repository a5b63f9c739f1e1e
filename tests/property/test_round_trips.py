"""What is written down can be read back: schedules, groups, levels, micro-kernel names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import SEEDS, groups, schedule_of, sizes

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu.generate import generate
from tilewright.kernels.cpu.isa.micro import micro_name, parse_name
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Level, Schedule

ISA_NAMES = st.sampled_from(list(ISAS))


@given(group=groups(), name=ISA_NAMES, seed=SEEDS)
def test_a_schedule_survives_json(group, name, seed):
    schedule = schedule_of(group, name, seed)
    again = Schedule.from_json(json.loads(json.dumps(schedule.to_json())))
    assert again == schedule
    assert again.digest == schedule.digest
    assert hash(again) == hash(schedule)
    assert generate(group, again) == generate(group, schedule)


@given(group=groups())
def test_a_group_survives_json(group):
    again = Group.from_json(json.loads(json.dumps(group.to_json())))
    assert again == group
    assert again.digest == group.digest


@given(
    tiles=st.dictionaries(st.sampled_from('nkcrshw'), sizes(100), min_size=1), shuffle=st.randoms()
)
def test_levels_are_equal_when_their_tiles_are(tiles, shuffle):
    """The order in which tiles are given does not matter; the loop order does."""
    order = tuple(tiles)
    mixed = list(tiles.items())
    shuffle.shuffle(mixed)
    level = Level.of('l1', order, tiles)
    assert level == Level.of('l1', order, dict(mixed))
    assert level.tile == tiles
    assert (level == Level.of('l1', order[::-1], tiles)) == (len(order) == 1)


@given(name=ISA_NAMES, extents=st.lists(sizes(40), min_size=1, max_size=4), vectors=sizes(8))
def test_micro_kernel_names_can_be_parsed(name, extents, vectors):
    assert parse_name(micro_name(name, tuple(extents), vectors)) == (name, tuple(extents), vectors)


@pytest.mark.parametrize('bad', ['', 'mk_neon', 'mk_neon_p_v2', 'mk_neon_p2_v', 'xmk_neon_p2_v2'])
def test_other_names_are_refused(bad):
    with pytest.raises(ScheduleError, match='micro-kernel name'):
        parse_name(bad)


@given(
    group=groups(),
    seed=SEEDS,
    field=st.sampled_from(['schema', 'isa', 'vector', 'levels', 'parallel', 'pack']),
)
def test_a_stored_schedule_with_a_missing_field_is_refused(group, seed, field):
    data = schedule_of(group, 'portable', seed).to_json()
    del data[field]
    with pytest.raises(ScheduleError, match='cannot be read'):
        Schedule.from_json(data)
