"""Measured fused groups: the catalogue, the files, and what is refused."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import windows
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import tables
from tilewright_lab.collect.group_data import (
    DECISIONS,
    Known,
    catalogue_text,
    columns,
    decisions,
    digest_of,
    file_name,
    read_catalogue,
    read_groups,
    rows_in,
    schedule_of,
)

H200 = known_gpu('h200')
CONV = conv2d(c=16, h=8, w=8, k=32, r=3, s=3, pad=1, bias=True, activation='relu')
POOL = max_pool((1, 4, 8, 8), windows((8, 8), 2, 2))
TILED = ('tiled', 'fma')
HEAD = ','.join(columns(*TILED))


def row(digest: str, split: int, status: str, time: str) -> str:
    return f'{digest},32,64,4,8,16,2,{split},0,{status},{time},64,0'


def folder(path: Path, *lines: str, head: str = HEAD) -> Path:
    known = {
        CONV.digest: Known(CONV, 'train', {'vgg11': 2}),
        POOL.digest: Known(POOL, 'test', {'resnet18': 1, 'resnet34': 1}),
    }
    (path / 'groups.json').write_text(catalogue_text(known))
    text = '\n'.join([head, *lines, ''])
    (path / file_name(*TILED)).write_bytes(gzip.compress(text.encode()))
    return path


def test_columns_are_those_of_the_spaces_that_are_searched() -> None:
    many = conv2d(n=64, c=256, h=14, w=14, k=256, r=3, s=3, pad=1)  # enough for winograd
    assert set(tables(many, H200)) > set(tables(CONV, H200))
    for kind, table in tables(many, H200).items():
        names = tuple(name for group in table for name in group)
        extra = ('lanes',) if kind[0] == 'general' else ()
        assert DECISIONS[kind] == names + extra


def test_decisions_and_schedules_are_inverse() -> None:
    for kind, names in DECISIONS.items():
        schedule = schedule_of(*kind, range(1, len(names) + 1))
        assert decisions(schedule) == tuple(range(1, len(names) + 1))
    plain = GpuSchedule.of('general', threads=64)
    assert decisions(plain) == (64, 0)
    assert schedule_of('general', 'fma', (64, 0)) == plain
    assert len({file_name(*kind) for kind in DECISIONS}) == len(DECISIONS)


def test_the_catalogue_gives_groups_back(tmp_path: Path) -> None:
    found = read_catalogue(folder(tmp_path))
    assert [one.group for one in found.values()] == [CONV, POOL]
    assert found[POOL.digest].networks == {'resnet18': 1, 'resnet34': 1}


def test_rows_by_group_and_part(tmp_path: Path) -> None:
    place = folder(
        tmp_path,
        row(CONV.digest, 1, 'ok', '20.0'), row(CONV.digest, 4, 'ok', '11.0'),
        row(CONV.digest, 4, 'ok', '13.0'), row(CONV.digest, 4, 'ok', '12.0'),
        row(CONV.digest, 8, 'wrong', ''), row(POOL.digest, 1, 'ok', '3.5'),
    )  # fmt: skip
    (place / 'dataset.json').write_text(json.dumps(H200.to_json() | {'tilewright': '0.1'}))
    data = read_groups(place)
    (train,), (test,) = data.train, data.test
    assert train.group == CONV
    assert [s['split'] for s in train.schedules] == [1, 4]
    np.testing.assert_allclose(train.seconds, [20e-6, 12e-6])
    assert train.best == pytest.approx(12e-6)
    assert [(s['split'], status) for s, status in train.failed] == [(8, 'wrong')]
    assert test.networks == ('resnet18', 'resnet34')
    assert data.machine == H200
    assert data.notes == ()
    assert rows_in([train, test]) == 3
    other = replace(train, seconds=train.seconds * 2)
    assert digest_of(data.train) == digest_of((train,)) != digest_of((other,))


def test_lines_that_cannot_be_are_left_out_and_counted(tmp_path: Path) -> None:
    good = [row(CONV.digest, n, 'ok', '5.0') for n in (1, 2, 3, 4, 6, 8, 12)]
    bad = [
        row(CONV.digest, 16, 'ok', '-1'), row(CONV.digest, 16, 'ok', 'nan'),
        row(CONV.digest, 16, 'ok', 'fast'), row(CONV.digest, 16, 'fine', '1.0'),
        f'{CONV.digest},1,2', row('0123456789abcdef', 16, 'ok', '1.0'),
    ]  # fmt: skip
    data = read_groups(folder(tmp_path, *good, *bad))
    assert len(data.train[0]) == len(good)
    (note,) = data.notes
    assert '5 of 13 lines' in note
    assert '1 are of groups' in note


@pytest.mark.parametrize(
    ('lines', 'said'),
    [
        ([row(CONV.digest, 1, 'ok', '0')], '1 of 1 lines are no measurements'),
        ([row(CONV.digest, 1, 'refused', '')], 'no row of its files worked'),
    ],
)
def test_files_without_measurements_are_refused(
    tmp_path: Path, lines: list[str], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        read_groups(folder(tmp_path, *lines))


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='lacks the columns time_us'):
        read_groups(folder(tmp_path, head=HEAD.replace('time_us', 'ms')))


def test_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='is not a directory'):
        read_groups(tmp_path / 'nothing')
    with pytest.raises(InputError, match=r'groups\.json cannot be read'):
        read_groups(tmp_path)
    place = folder(tmp_path, row(CONV.digest, 1, 'ok', '1.0'))
    file = place / file_name(*TILED)
    whole = file.read_bytes()
    for damage in (whole[:-12], b'text', whole[:20] + b'\0\0\0\0' + whole[24:]):
        file.write_bytes(damage)
        with pytest.raises(InputError, match='cannot be read'):
            read_groups(place)
    file.unlink()
    with pytest.raises(InputError, match=r'holds no groups-\*'):
        read_groups(place)
    (place / 'groups-fft.csv.gz').write_bytes(whole)
    with pytest.raises(InputError, match='of no schema'):
        read_groups(place)


def test_a_catalogue_that_was_changed_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path)
    path = place / 'groups.json'
    text = path.read_text()
    for old, new, said in (
        ('"format": 1', '"format": 2', 'has format 2'),
        (CONV.digest, POOL.digest[::-1], 'was changed'),
        ('"part":"train"', '"part":"both"', 'was changed'),
        ('"dims"', '"dimensions"', 'cannot be used'),
        ('"networks"', '"nets"', 'not a catalogue'),
        ('{', '', 'not a catalogue'),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(InputError, match=said):
            read_catalogue(place)


def test_a_machine_that_is_none_is_refused(tmp_path: Path) -> None:
    place = folder(tmp_path, row(CONV.digest, 1, 'ok', '1.0'))
    assert read_groups(place).machine is None
    for text in ('[]', '{', '{"name": "x"}'):
        (place / 'dataset.json').write_text(text)
        with pytest.raises(InputError, match='does not describe a GPU'):
            read_groups(place)
