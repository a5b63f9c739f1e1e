"""The data set of fused groups without a GPU: what is drawn, compiled, measured and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import pytest

from tilewright.errors import CompilerError
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Kernel
from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.ops.core import core
from tilewright.ops.elementwise import elementwise
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.ops.pooling import max_pool
from tilewright.ops.windows import windows
from tilewright.runtime.gpu.device import Resources
from tilewright.runtime.pool import LostError, Pool
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.collector import Collector
from tilewright_lab.collect.compiled import (
    Compiled,
    Family,
    compile_families,
    loosened,
    untranslated,
)
from tilewright_lab.collect.group_data import DECISIONS, Known, catalogue_text, read_groups, rows_in
from tilewright_lab.collect.group_sample import (
    SHARES,
    SPLITS,
    GroupSource,
    families,
    has_products,
    sources,
)
from tilewright_lab.collect.groups import GROUPS, LAYOUT, by_reference
from tilewright_lab.collect.meter import Row, host_meter
from tilewright_lab.collect.rows import read_rows
from tilewright_lab.collect.sets import RowSets, chunks
from tilewright_lab.scripts import gpu_groups

H200 = known_gpu('h200')
CONV = conv2d(c=16, h=10, w=10, k=32, r=3, s=3, pad=1, bias=True, activation='relu')
LAYER = conv2d(c=128, h=17, w=17, k=128, r=1, s=7, pad=(0, 3), bias=True, activation='relu')
POOL = max_pool((1, 4, 8, 8), windows((8, 8), 2, 2))
TILED = GpuSchedule.of(
    'tiled', 'fma', bk=16, bp=32, tk=4, tp=4, kb=8, stages=2, split=1, joint=0
)  # fmt: skip


def with_split(schedule: GpuSchedule, split: int) -> GpuSchedule:
    tiles = dict(schedule.tiles) | {'split': split}
    return GpuSchedule.of(schedule.schema, schedule.intrinsic, **tiles)


@pytest.fixture(scope='module')
def drawn() -> list[Family]:
    return families(GroupSource(LAYER.digest, 1), LAYER, H200)


@pytest.mark.slow
def test_a_turn_has_every_schema_and_is_the_same_again(drawn: list[Family]) -> None:
    assert drawn == families(GroupSource(LAYER.digest, 1), LAYER, H200)
    counts = Counter(family.kind for family in drawn)
    for kind, count in SHARES.items():
        if kind[0] not in ('depthwise', 'winograd'):  # which has nothing to gain here
            assert count <= counts[kind] <= 2 * count
    assert ('depthwise', 'fma') not in counts
    other = families(GroupSource(LAYER.digest, 2), LAYER, H200)
    shared = {s for f in other for s in f.schedules} & {s for f in drawn for s in f.schedules}
    assert len(shared) < 5


def test_a_family_differs_in_its_split_alone(drawn: list[Family]) -> None:
    assert sum(len(family.schedules) > 1 for family in drawn) > len(drawn) // 2
    for family in drawn:
        first = family.schedules[0]
        splits = [dict(s.tiles).get('split', 1) for s in family.schedules]
        assert len(set(splits)) == len(splits) <= SPLITS
        assert 1 not in splits or len(splits) == 1
        assert {with_split(s, 1) for s in family.schedules} == {with_split(first, 1)}


def test_other_groups_have_one_turn_of_the_general_schema() -> None:
    found = families(GroupSource(POOL.digest, 0), POOL, H200)
    assert {family.kind for family in found} == {('general', 'fma')}
    lanes = {family.schedules[0]['lanes'] for family in found}
    assert lanes == {1, 2, 4}  # a window of four
    assert not has_products(POOL)
    assert families(GroupSource(POOL.digest, 1), POOL, H200) == []


def test_turns_mix_groups_and_feature_some_that_are_tested() -> None:
    tested = [
        conv2d(c=8 * n, h=8, w=8, k=16, r=3, s=3, bias=True, activation='relu')
        for n in range(1, 10)
    ]
    known = {g.digest: Known(g, 'test', {'resnet18': 1}) for g in tested}
    known |= {g.digest: Known(g, 'train', {'vgg11': 1}) for g in (CONV, POOL)}
    turns = [list(sources(known, turn, turn + 1)) for turn in range(5)]
    assert [len(turn) for turn in turns] == [11, 7, 7, 7, 10]
    assert {s.digest for s in turns[1]} == {CONV.digest, *(g.digest for g in tested[3:])}
    assert list(sources(known, 0, 5)) == [source for turn in turns for source in turn]


def restored(kernel: Kernel, numbers: dict[str, int]) -> str:
    """A loose kernel's text with its numbers put back."""
    body = kernel.body.replace('* share;', f'* {numbers.get("share")};')
    body = body.replace('begin + share', f'begin + {numbers.get("share")}')
    if 'parts' in numbers:
        body = body.replace('(float)(parts - 1)', f'{float(numbers["parts"] - 1)!r}f')
        body = body.replace('part < parts;', f'part < {numbers["parts"]};')
    return body


def test_numbers_put_back_give_the_generated_text(drawn: list[Family]) -> None:
    """So that a kernel for all splits computes what each of them would."""
    seen = set()
    for family in drawn:
        most = max(dict(s.tiles).get('split', 1) for s in family.schedules)
        for schedule in family.schedules:
            split = dict(schedule.tiles).get('split', 1)
            for step in generate(LAYER, schedule).steps:
                loose, numbers = loosened(step.kernel, split, most)
                assert restored(loose, dict(numbers)) == step.kernel.body
                assert (split > 1) == ('share' in dict(numbers)) or 'cnnopt' in step.kernel.name
                seen.add(step.kernel.name)
    assert {name.partition('_')[0] for name in seen} >= {'tiled', 'patch', 'rs', 's'}


def test_splits_share_their_kernels(drawn: list[Family]) -> None:
    for family in drawn:
        (made,) = compile_families(LAYER, (family,), untranslated)
        assert len(made.parts[0].variants) == len(family.schedules)
        one = generate(LAYER, family.schedules[-1]).kernels
        assert len(made.kernels) == len(set(one))
        grids = {v.steps[0].grid for v in made.parts[0].variants}
        split = len(family.schedules) > 1 and 'cnnopt' not in one[1].name
        assert len(grids) == (len(family.schedules) if split else 1)


def test_one_family_that_is_refused_leaves_the_others() -> None:
    def translate(kernels: Sequence[Kernel]) -> tuple[bytes, dict[str, Resources]]:
        if any('share' in kernel.body for kernel in kernels):
            raise CompilerError('no splits today')
        return untranslated(kernels)

    some = [
        Family(CONV.digest, (TILED,)),
        Family(CONV.digest, (with_split(TILED, 2), with_split(TILED, 4))),
        Family(CONV.digest, (GpuSchedule.of('tiled', 'fma', bk=1),)),
    ]
    made = compile_families(CONV, some, translate)
    assert sum(len(one.parts) for one in made) == 1
    said = {s: text for one in made for s, text in one.refused}
    assert said[with_split(TILED, 4)] == 'no splits today'
    assert len(said) == 3


def measured(made: Compiled[str]) -> list[Row]:
    return list(host_meter(partial(by_reference, {CONV.digest: CONV}.get), stay=True).measure(made))


def test_families_are_right_on_the_host_and_wrong_ones_are_seen() -> None:
    family = Family(CONV.digest, tuple(with_split(TILED, n) for n in (2, 3, 6)))
    plain = Family(CONV.digest, (GpuSchedule.of('general', threads=64),))
    (made,) = compile_families(CONV, (family, plain), untranslated)
    rows = measured(made)
    assert [row.status for row in rows] == ['ok'] * 4
    assert all(row.time_us and row.time_us > 0 for row in rows)
    kernels = tuple(
        (replace(k, body=k.body.replace('part < parts;', 'part < parts - 1;')), taken)
        for k, taken in made.kernels
    )
    rows = measured(replace(made, kernels=kernels))
    assert [row.status for row in rows] == ['wrong'] * 3 + ['ok']


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    sets = RowSets(tmp_path, LAYOUT)
    family = Family(CONV.digest, tuple(with_split(TILED, n) for n in (2, 4, 8)))
    assert sets.claimed(family) == family
    assert sets.claimed(family) is None
    sets.add(Row(CONV.digest, family.schedules[0], 'ok', 7.25, 64, 0))
    sets.add(Row(CONV.digest, family.schedules[1], 'crashed'))
    again = RowSets(tmp_path, LAYOUT)  # the first was killed: its rows are in a journal
    left = again.claimed(family)
    assert left is not None
    assert left.schedules == family.schedules[2:]
    again.add(Row(CONV.digest, family.schedules[2], 'ok', 5.0))
    again.close()
    (tmp_path / 'groups.json').write_text(
        catalogue_text({CONV.digest: Known(CONV, 'train', {'vgg11': 1})})
    )
    (rows,) = read_groups(tmp_path).train
    assert [s['split'] for s in rows.schedules] == [2, 8]
    assert rows.failed == ((family.schedules[1], 'crashed'),)


class Lossy:
    """A crew whose device dies of one schedule."""

    def __init__(self, deadly: GpuSchedule) -> None:
        self.deadly = deadly

    def submit(self, _: object, made: Compiled[str]) -> Future:
        future: Future = Future()
        if self.deadly in made.schedules:
            future.set_exception(LostError('it had not ended'))
        else:
            future.set_result([Row(made.of, s, 'ok', 1.0) for s in made.schedules])
        return future


def test_a_schedule_that_breaks_the_device_is_found(tmp_path: Path) -> None:
    family = Family(CONV.digest, tuple(with_split(TILED, n) for n in (2, 3, 6)))
    plain = Family(CONV.digest, (GpuSchedule.of('general', threads=64),))
    (made,) = compile_families(CONV, (family, plain), untranslated)
    crew = Lossy(family.schedules[1])
    flow = Collector(GROUPS, [], RowSets(tmp_path, LAYOUT), H200, say=lambda _: None)
    waiting = {crew.submit(None, made): made}
    while waiting:
        future = next(iter(waiting))
        flow._rows(cast(Pool, crew), future, waiting.pop(future), waiting)
    assert flow.counts == {'ok': 3, 'crashed': 1}
    flow.sets.close()
    rows = read_rows(tmp_path / 'groups-tiled-fma.csv.gz')
    assert [row['split'] for row in rows if row['status'] == 'crashed'] == ['3']
    future = Future()
    future.set_exception(LostError('it died'))
    (lost,) = flow._made(future, (family, plain))
    assert [schedule for schedule, _ in lost.refused] == [*family.schedules, *plain.schedules]


def test_chunks_are_of_one_schema(drawn: list[Family]) -> None:
    found = chunks(drawn, 3)
    assert [family for chunk in found for family in chunk] == drawn
    assert all(len({family.kind for family in chunk}) == 1 for chunk in found)
    assert max(map(len, found)) == 3


def test_a_run_on_the_host(tmp_path: Path) -> None:
    group = elementwise(ACTIVATIONS['relu'], (1, 2, 3, 4), name='relu')
    known = {group.digest: Known(group, 'test', {'resnet18': 1})}
    (tmp_path / 'groups.json').write_text(catalogue_text(known))
    sets = RowSets(tmp_path, LAYOUT)
    first = GpuSchedule.of('general', threads=32, lanes=1)
    sets.add(Row(group.digest, first, 'ok', 1.0))  # a run before this one was cut off
    flow = Collector(
        GROUPS, list(sources(known, 0, 1)), RowSets(tmp_path, LAYOUT), H200, 'host', '', 1,
        seconds=120.0, say=lambda _: None,
    )  # fmt: skip
    assert flow.run()
    assert flow.counts == {'known': 1, 'ok': 9}
    data = read_groups(tmp_path)
    assert len(data.test[0]) == 10
    assert data.machine is not None


def test_rows_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    group = elementwise(ACTIVATIONS['relu'], (1, 2, 3, 4), name='relu')
    before = tmp_path / 'before'
    sets = RowSets(before, LAYOUT)
    for threads in (32, 64, 128):
        schedule = GpuSchedule.of('general', threads=threads, lanes=1)
        sets.add(Row(group.digest, schedule, 'ok', 1e9))
    sets.close()
    (before / 'groups.json').write_text(catalogue_text({group.digest: Known(group, 'test', {})}))
    words = 'repeat --most 2 --target host --architecture= --workers 1 --seconds 100'
    words = [*words.split(), '--out', str(before), '--to', str(tmp_path / 'after')]
    monkeypatch.setattr('sys.argv', ['gpu_groups', *words])
    assert gpu_groups.main() == 0
    assert 'general/fma                  2 again; over the time before: median 0.000' in (
        capsys.readouterr().out
    )


def test_the_set_that_is_kept_is_large_and_its_parts_share_nothing() -> None:
    data = read_groups(Path(__file__).parents[2] / 'bench/results/h200/groups')
    assert data.notes == ()
    assert data.machine is not None
    assert data.machine.name == 'NVIDIA H200'
    cores = [{core(rows.group).digest for rows in part} for part in (data.train, data.test)]
    assert not cores[0] & cores[1]
    assert sum(len(rows) >= 200 for rows in data.test) >= 10
    assert rows_in(data.train) > 100_000
    assert {name for rows in data.test for name in rows.networks} >= {
        'resnet18', 'resnet34', 'mobilenet_v1', 'squeezenet',
    }  # fmt: skip
    kinds = {(s.schema, s.intrinsic) for rows in data.test for s in rows.schedules}
    rare = {kind for kind in DECISIONS if kind[0] == 'winograd'}  # one of many samples is legal
    assert kinds == set(DECISIONS) - rare
