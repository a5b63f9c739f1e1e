"""GPU data sets without a GPU: problems, files, families compiled and checked on the host."""

from __future__ import annotations

import importlib.util
import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tilewright.errors import CompilerError, StoreError
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.schema import kind_name
from tilewright.machine.gpu import known_gpu
from tilewright.runtime.gpu.device import Resources
from tilewright.runtime.pool import LostError
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import schedule_text
from tilewright_lab.collect import group_sample
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.collector import Collector
from tilewright_lab.collect.compiled import Compiled, Family, Translate, compile_families
from tilewright_lab.collect.datasets import read_data
from tilewright_lab.collect.layers import (
    LAYERS,
    by_definition,
    decisions,
    group_of,
    layout,
    names,
)
from tilewright_lab.collect.meter import Meter, Row, host_meter
from tilewright_lab.collect.problems import (
    SAMPLED,
    LayerSource,
    Problem,
    ProposedSource,
    by_tiles,
    families_of,
    layer_sources,
    layers,
    pointwise_problems,
    proposed_of,
    random_problems,
    train_sources,
)
from tilewright_lab.collect.rows import RowFile, journal_of, read_rows
from tilewright_lab.collect.sets import RowSets, chunks
from tilewright_lab.collect.space import draw

H200 = known_gpu('h200')
SMALL = Problem(32, 6, 8, 4, 3, 1, 0)


def test_layers_are_those_of_the_suite() -> None:
    found = layers()
    assert len(found) == 20
    assert found['R4'] == Problem(128, 28, 28, 64, 3, 2, 1)
    assert found['R1'] == Problem(64, 112, 112, 3, 7, 2, 3)
    for problem in found.values():
        for one in (problem, problem.prepadded):
            sizes = one.group.main.sizes
            assert (sizes['k'], sizes['h'], sizes['w'], sizes['c']) == problem.shape[:4]
    assert found['R4'].group.tensor('In').shape == (1, 64, 56, 56)
    assert found['R4'].prepadded.group.tensor('In').shape == (1, 64, 57, 57)


def test_random_problems_are_in_the_ranges_and_no_layers() -> None:
    found = random_problems(160)
    assert found == random_problems(160)
    assert found[:20] == random_problems(20)
    assert len({p.shape for p in found}) == 160
    assert not {p.shape for p in found} & {p.shape for p in layers().values()}
    assert {p.stride for p in found} == {1, 2}
    assert {p.r for p in found} == {3, 5, 7}
    for problem in found:
        assert 16 <= problem.k <= 1024
        assert problem.c == 3 or 16 <= problem.c <= 1024
        assert 3 <= problem.h <= 1024
        assert 3 <= problem.w <= 1024
        for size in (problem.h, problem.w):
            for prime in (2, 3, 5, 7, 11, 13, 17):
                while size % prime == 0:
                    size //= prime
            assert size == 1


def test_the_sets_are_large_enough() -> None:
    """Counted where that is quick: a training set of 20,000 needs 125 of each of 160 problems."""
    sources = train_sources(160)
    assert len({s.problem.shape for s in sources}) == 160
    some = [f for s in sources[:24] for f in families_of(s, H200)]
    per_problem = sum(len(f.schedules) for f in some) / len({f.of.shape for f in some})
    assert per_problem * 160 > 20_000
    frozen = layer_sources([('rs', 'fma'), ('tiled', 'fma')], ('R12', 'Y18'))
    assert [(s.schema, s.count, s.problem.pad) for s in frozen] == [
        ('rs', 0, 0), ('rs', 0, 0), ('tiled', 300, 1), ('tiled', 300, 1),
    ]  # fmt: skip
    for schema in ('tiled', 'patch', 'general'):
        assert sum(count for (s, _), (count, _) in SAMPLED.items() if s == schema) >= 1000


def test_families_hold_all_splits_of_a_tile() -> None:
    found, _ = factor_space(SMALL.group, H200, 'rs')
    found_families = by_tiles(SMALL, found)
    assert sorted(s.digest for f in found_families for s in f.schedules) == sorted(
        s.digest for s in found
    )
    for family in found_families:
        assert [s['split'] for s in family.schedules] == [1, 2, 4]


def test_rows_are_journalled_and_packed(tmp_path: Path) -> None:
    path = tmp_path / 'a' / 'rows.csv.gz'
    file = RowFile(path, ('a', 'b'))
    for number in range(5):
        file.add(number, 'x,y')
        assert len(read_rows(path)) == number + 1  # nothing is held back
    with journal_of(path).open('ab') as journal:
        journal.write(b'5,cut o')  # killed while it was written
    again = RowFile(path, ('a', 'b'))
    assert [row['a'] for row in again.rows] == ['0', '1', '2', '3', '4']
    again.add(5, 'z')
    left = journal_of(path).read_bytes()
    again.pack()
    assert not journal_of(path).exists()
    journal_of(path).write_bytes(left)  # killed between the two steps of packing
    third = RowFile(path, ('a', 'b'))
    assert [row['a'] for row in third.rows] == ['0', '1', '2', '3', '4', '5']
    third.add(6, 'w')
    third.pack()
    assert [row['b'] for row in read_rows(path)] == ['x,y'] * 5 + ['z', 'w']
    with pytest.raises(StoreError, match='has the columns a,b, not a,c'):
        RowFile(path, ('a', 'c'))
    with pytest.raises(StoreError, match='a row has 1 of 2 values'):
        third.add(1)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError, match='cannot be read'):
        RowFile(path, ('a', 'b'))


def translated(kernels: Sequence[Kernel]) -> tuple[bytes, dict[str, Resources]]:
    return b'', {kernel.name: Resources(40, 0) for kernel in kernels}


def compiled(some: Sequence[Family], translate: Translate) -> list[Compiled]:
    return compile_families(some[0].of.group, some, translate)


def meter(times: list[int]) -> Meter:
    made = host_meter(partial(by_definition, group_of))

    def seconds(calls: object) -> float:
        times.append(1)
        return 1e-6 * len(times)

    made.seconds = seconds
    return made


def rs_schedules() -> list[GpuSchedule]:
    return factor_space(SMALL.group, H200, 'rs')[0]


def some_families() -> list[Family]:
    strided = Problem(32, 4, 5, 3, 3, 2, 1)
    plain = rs_schedules()
    rows, _ = factor_space(SMALL.group, H200, 's')
    tiles = {'bk': 16, 'bp': 16, 'tk': 4, 'tp': 4, 'kb': 4, 'stages': 2, 'split': 2, 'joint': 1}
    tiled = GpuSchedule('tiled', tuple(tiles.items()))
    return [
        by_tiles(SMALL, plain)[3],
        by_tiles(SMALL, rows)[0],
        Family(strided, (tiled,)),
        Family(strided, (GpuSchedule.of('general', threads=64),)),
    ]


def test_families_are_compiled_together_and_once_for_all_splits() -> None:
    first, second, *others = some_families()
    (made,) = compiled((first, by_tiles(SMALL, rs_schedules())[5]), translated)
    names = [kernel.name for kernel, _ in made.kernels]
    assert len(set(names)) == len(names)
    assert [n.rpartition('_')[0] for n in names[:4]] == [
        'cnnopt_pack', 'rs_conv2d', 'cnnopt_zero', 'rs_conv2d',
    ]  # fmt: skip
    assert 5 <= len(names) <= 7  # what both need is compiled once
    times: list[int] = []
    on = meter(times)
    rest = [one for family in (second, *others) for one in compiled((family,), translated)]
    rows = [row for one in (made, *rest) for row in on.measure(one)]
    assert [row.status for row in rows] == ['ok'] * len(rows)
    assert [row.schedule for row in rows] == [s for one in (made, *rest) for s in one.schedules]
    assert len(times) == len(rows)
    assert rows[0].time_us == pytest.approx(1.0)
    assert rows[0].registers == 40


def test_a_wrong_result_and_a_refused_schedule_are_rows() -> None:
    family = some_families()[2]
    (made,) = compiled((family,), translated)
    on = meter([])
    assert [row.status for row in on.measure(made)] == ['ok']
    # The main kernel left out: the result stays NaN.
    (part,) = made.parts
    idle = replace(part, variants=tuple(replace(v, steps=()) for v in part.variants))
    assert [row.status for row in on.measure(replace(made, parts=(idle,)))] == ['wrong']
    tiles = dict(family.schedules[0].tiles) | {'split': 99}
    impossible = Family(family.of, (GpuSchedule('tiled', tuple(tiles.items())),))
    (refused,) = compiled((impossible, family), translated)
    assert [row.status for row in on.measure(refused)] == ['refused', 'ok']
    assert 'at most' in refused.refused[0][1]
    # More registers than a block can have.
    greedy = tuple((kernel, Resources(5000, 0)) for kernel, _ in made.kernels[1:])
    fat = replace(made, kernels=(made.kernels[0], *greedy))
    assert [row.status for row in on.measure(fat)] == ['refused']


def test_what_is_compiled_together_is_told_apart_where_that_fails() -> None:
    first, second = (by_tiles(SMALL, rs_schedules())[i] for i in (3, 5))
    bad = {
        kernel for kernel, _ in compiled((second,), translated)[0].kernels if 'rs_' in kernel.name
    }
    bodies = {kernel.body for kernel in bad}

    def picky(kernels: Sequence[Kernel]) -> tuple[bytes, dict[str, Resources]]:
        if any(kernel.body in bodies for kernel in kernels):
            raise CompilerError('refused')
        return translated(kernels)

    one, other = compiled((first, second), picky)
    assert one.schedules == list(first.schedules)
    assert not one.refused
    assert [s for s, _ in other.refused] == list(second.schedules)


class Instant:
    """A crew of one that does its work at once, and loses what has a certain split."""

    def __init__(self, deadly: int) -> None:
        self.deadly, self.asked = deadly, []

    def submit(self, function: object, made: Compiled) -> Future:
        self.asked.append(made)
        future: Future = Future()
        if any(s['split'] == self.deadly for s in made.schedules):
            future.set_exception(LostError('its process died (SIGSEGV)'))
        else:
            future.set_result([Row(made.of, s, 'ok', 1.0) for s in made.schedules])
        return future


def test_a_measurement_that_takes_its_process_down_is_found(tmp_path: Path) -> None:
    crew, sets, said = Instant(4), RowSets(tmp_path, layout('layers')), []
    flow = Collector(LAYERS, (), sets, H200, say=said.append)
    chosen = by_tiles(SMALL, rs_schedules())[3:5]
    waiting: dict[Future, Compiled] = {}
    for made in compiled(chosen, translated):
        waiting[crew.submit(None, made)] = made
    while waiting:
        future, made = waiting.popitem()
        flow._rows(crew, future, made, waiting)  # type: ignore[arg-type]
    assert dict(flow.counts) == {'ok': 4, 'crashed': 2}
    rows = read_rows(tmp_path / 'layers-rs.csv.gz')
    assert {row['split'] for row in rows if row['status'] == 'crashed'} == {'4'}
    assert 'SIGSEGV' in said[0]
    lost: Future = Future()
    lost.set_exception(LostError('it had not ended after 1 s'))
    (refused,) = flow._made(lost, (chosen[0],))
    assert 'not ended' in refused.refused[0][1]


@pytest.mark.slow
def test_the_whole_flow_runs_without_a_gpu_and_goes_on(tmp_path: Path) -> None:
    """Drawn, compiled and measured in processes; cut off, then again to the end."""
    chosen = [LayerSource(SMALL, 'rs', 'fma', 1), LayerSource(SMALL, 'general', 'fma', 2)]
    said: list[str] = []

    def flow(seconds: float) -> Collector:
        sets = RowSets(tmp_path, layout('train'))
        return Collector(
            LAYERS, chosen, sets, H200, 'host', '', 1, 4, seconds, say=said.append
        )  # fmt: skip

    assert not flow(0.0).run()
    whole = flow(120.0)
    assert whole.run()
    assert dict(whole.counts) == {'known': 0, 'ok': 5}
    again = flow(120.0)
    assert again.run()
    assert dict(again.counts) == {'known': 5}
    assert 'Measured GPU schedules' in (tmp_path / 'README.md').read_text()
    assert json.loads((tmp_path / 'dataset.json').read_text())['multiprocessors'] > 0


def script() -> ModuleType:
    path = Path(__file__).parents[2] / 'src' / 'tilewright_lab' / 'scripts' / 'gpu_dataset.py'
    spec = importlib.util.spec_from_file_location('gpu_dataset', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules['gpu_dataset'] = module
    spec.loader.exec_module(module)
    return module


def test_a_second_run_leaves_out_what_was_measured(tmp_path: Path) -> None:
    family = some_families()[0]
    sets = RowSets(tmp_path, layout('layers'))
    assert sets.claimed(family) == family
    on = meter([])
    for row in list(on.measure(compiled((family,), translated)[0]))[:2]:
        sets.add(row)
    sets.close()
    left = RowSets(tmp_path, layout('layers')).claimed(family)
    assert left is not None
    assert [s['split'] for s in left.schedules] == [4]
    (row, _) = read_rows(tmp_path / 'layers-rs.csv.gz')
    assert (row['k'], row['pad'], row['split'], row['status']) == ('32', '0', '1', 'ok')
    assert float(row['time_us']) > 0


def test_chunks_are_of_one_problem_and_schema() -> None:
    rs = by_tiles(SMALL, rs_schedules())[:5]
    found = chunks([*rs, *some_families()[1:]], 3)
    assert [len(chunk) for chunk in found] == [3, 2, 1, 1, 1]


def test_every_kind_of_schedule_has_its_columns() -> None:
    assert names('rs', 'fma')[:3] == ('rk', 'ry', 'rx')
    assert 'columns' not in names('patch', 'wgmma_tf32x3')
    for schema, intrinsic in SAMPLED:
        (schedule, *_), _ = draw(layers()['R6'].group, H200, schema, intrinsic, 2, 1)
        assert len(decisions(schedule)) == len(schedule.tiles)


def test_sources_of_the_command(tmp_path: Path) -> None:
    tool = script()
    options = Namespace(set='layers', schemas='rs,patch', layers='R2', problems=3)
    assert [(s.schema, s.intrinsic) for s in tool.sources(options)] == [
        ('rs', 'fma'), ('patch', 'mma_tf32x3'), ('patch', 'wgmma_tf32x3'),
    ]  # fmt: skip
    with pytest.raises(SystemExit, match="'winograd' is not a schema"):
        tool.kinds('winograd')
    few = Namespace(set='train', problems=2, schemas='rs', tiles=0, first_problem=0)
    trained = tool.sources(few)
    assert len({s.problem.shape for s in trained}) == 2
    assert np.isfinite([s.problem.flops for s in trained]).all()
    assert all(isinstance(s, LayerSource) for s in trained)


def test_what_searches_propose_is_a_set_that_models_are_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = dict.fromkeys([('strip', 'wgmma_tf32_bf16'), ('patch', 'wgmma_tf32_bf16')], 1)
    monkeypatch.setattr(group_sample, 'SHARES', few)
    options = Namespace(problems=2, first_problem=1, turns=2, pointwise=False)
    first, second = script().proposed_sources(options)
    assert (first.turn, second.turn) == (0, 1)
    assert first.problem == second.problem == random_problems(2)[1]
    options.pointwise = True
    assert {s.problem.r for s in script().proposed_sources(options)} == {1}
    problem = pointwise_problems(1)[0]
    found = proposed_of(ProposedSource(problem, 0), H200)
    kinds = {family.kind for family in found}
    assert kinds == {*few, ('general', 'fma')}
    sets = RowSets(tmp_path, layout('proposed'))
    for family in found:
        for schedule in family.schedules:
            sets.add(Row(problem, schedule, 'ok', 7.0, 32, 0))
    sets.close()
    trained = read_data(tmp_path).proposed
    assert {m.kind for m in trained} == {kind_name(*kind) for kind in kinds}
    again = {m.batch.schedule(row) for m in trained for row in range(len(m))}
    given = {schedule for family in found for schedule in family.schedules}
    assert {schedule_text(s) for s in again if s.schema == 'strip'} == {
        schedule_text(s) for s in given if s.schema == 'strip'
    }
    assert len(again) == len(given)


def test_an_intrinsic_makes_up_for_what_the_other_has_not_got() -> None:
    plain = replace(H200, instructions=())
    source = LayerSource(layers()['R6'], 'tiled', 'fma', 3, besides=('mma_tf32x3', 5))
    assert len(families_of(source, plain)) == 8
    assert len(families_of(source, H200)) == 3
