"""GPU data sets without a GPU: problems, files, units compiled and checked on the host."""

from __future__ import annotations

import importlib.util
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tilewright.bench.gpu_measure import Compiled, Meter, compile_unit
from tilewright.bench.gpu_problems import (
    Problem,
    Source,
    Unit,
    by_tiles,
    layer_sources,
    layers,
    random_problems,
    train_sources,
    units_of,
)
from tilewright.bench.gpu_rows import RowFile, read_rows
from tilewright.codegen.gpu.language import Kernel
from tilewright.errors import StoreError
from tilewright.machine.gpu import known_gpu
from tilewright.runtime.device import Program, Resources
from tilewright.runtime.hosted import HostDevice
from tilewright.schedule.cnnopt_space import factor_space
from tilewright.schedule.gpu import GpuSchedule

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
    some = [u for s in sources[:24] for u in units_of(s, H200)]
    per_problem = sum(len(u.schedules) for u in some) / len({u.problem.shape for u in some})
    assert per_problem * 160 > 20_000
    frozen = layer_sources([('rs', 'fma'), ('tiled', 'fma')], ('R12', 'Y18'))
    assert [(s.schema, s.count, s.problem.pad) for s in frozen] == [
        ('rs', 0, 0), ('rs', 0, 0), ('tiled', 1000, 1), ('tiled', 1000, 1),
    ]  # fmt: skip


def test_units_hold_all_splits_of_a_tile() -> None:
    found, _ = factor_space(SMALL.group, H200, 'rs')
    units = by_tiles(SMALL, found)
    assert sorted(s.digest for u in units for s in u.schedules) == sorted(s.digest for s in found)
    for unit in units:
        assert [s['split'] for s in unit.schedules] == [1, 2, 4]


def test_rows_are_appended_and_an_unfinished_member_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / 'a' / 'rows.csv.gz'
    file = RowFile(path, ('a', 'b'), batch=2)
    for number in range(5):
        file.add(number, 'x,y')
    assert len(read_rows(path)) == 4
    file.flush()
    whole = path.read_bytes()
    again = RowFile(path, ('a', 'b'))
    again.add(5, 'z')
    again.flush()
    path.write_bytes(path.read_bytes()[:-3])
    third = RowFile(path, ('a', 'b'))
    assert path.read_bytes() == whole
    assert [row['a'] for row in third.rows] == ['0', '1', '2', '3', '4']
    third.repack()
    assert [row['b'] for row in read_rows(path)] == ['x,y'] * 5
    assert path.stat().st_size < len(whole)
    with pytest.raises(StoreError, match='has the columns a,b, not a,c'):
        RowFile(path, ('a', 'c'))
    with pytest.raises(StoreError, match='a row has 1 of 2 values'):
        third.add(1)


def untranslated(kernel: Kernel) -> tuple[bytes, Resources]:
    return b'', Resources(40, 0)


def meter(times: list[int]) -> Meter:
    device = HostDevice()

    def load(kernel: Kernel, binary: bytes, resources: Resources) -> Program:
        return Program(kernel, '', resources, device.compile(kernel).handle)

    def seconds(calls: object) -> float:
        times.append(1)
        return 1e-6 * len(times)

    return Meter(device, load, lambda _: None, seconds, lambda _: None)


def units() -> list[Unit]:
    strided = Problem(32, 4, 5, 3, 3, 2, 1)
    plain, _ = factor_space(SMALL.group, H200, 'rs')
    rows, _ = factor_space(SMALL.group, H200, 's')
    tiles = {'bk': 16, 'bp': 16, 'tk': 4, 'tp': 4, 'kb': 4, 'stages': 2, 'split': 2, 'joint': 1}
    tiled = GpuSchedule('tiled', tuple(tiles.items()))
    return [
        by_tiles(SMALL, plain)[3],
        by_tiles(SMALL, rows)[0],
        Unit(strided, (tiled,)),
        Unit(strided, (GpuSchedule.of('general', threads=64),)),
    ]


def test_units_are_compiled_once_for_all_splits_and_measured() -> None:
    first, *others = (compile_unit(unit, untranslated) for unit in units())
    names = [kernel.name for kernel, _, _ in first.kernels]
    assert names == ['cnnopt_pack', 'rs_conv2d', 'cnnopt_zero', 'rs_conv2d']
    times: list[int] = []
    on = meter(times)
    rows = [row for made in (first, *others) for row in on.measure(made)]
    assert [row.status for row in rows] == ['ok'] * len(rows)
    assert len(rows) == len(times) == sum(len(u.schedules) for u in units())
    assert rows[0].time_us == pytest.approx(1.0)
    assert rows[0].registers == 40


def test_a_wrong_result_and_a_refused_schedule_are_rows() -> None:
    unit = units()[2]
    made = compile_unit(unit, untranslated)
    on = meter([])
    assert [row.status for row in on.measure(made)] == ['ok']
    # The main kernel left out: the result stays NaN.
    idle = Compiled(
        unit,
        made.kernels,
        made.buffers,
        made.ahead,
        tuple(replace(v, steps=()) for v in made.variants),
    )
    assert [row.status for row in on.measure(idle)] == ['wrong']
    tiles = dict(unit.schedules[0].tiles) | {'split': 99}
    impossible = Unit(SMALL, (GpuSchedule('tiled', tuple(tiles.items())),))
    refused = compile_unit(impossible, untranslated)
    assert [row.status for row in on.measure(refused)] == ['refused']
    assert 'at most' in refused.refused[0][1]


def script() -> ModuleType:
    path = Path(__file__).parents[2] / 'bench' / 'gpu_dataset.py'
    spec = importlib.util.spec_from_file_location('gpu_dataset', path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules['gpu_dataset'] = module
    spec.loader.exec_module(module)
    return module


def test_a_second_run_leaves_out_what_was_measured(tmp_path: Path) -> None:
    tool = script()
    unit = units()[0]
    sets = tool.Sets(tmp_path, 'layers')
    assert sets.left(unit) == unit
    on = meter([])
    for row in list(on.measure(compile_unit(unit, untranslated)))[:2]:
        sets.add(unit, row)
    sets.close()
    again = tool.Sets(tmp_path, 'layers')
    left = again.left(unit)
    assert [s['split'] for s in left.schedules] == [4]
    (row, _) = read_rows(tmp_path / 'layers-rs.csv.gz')
    assert (row['k'], row['pad'], row['split'], row['status']) == ('32', '0', '1', 'ok')
    assert float(row['time_us']) > 0


def test_sources_of_the_command(tmp_path: Path) -> None:
    tool = script()
    options = Namespace(set='layers', schemas='rs,patch/mma_tf32x3', layers='R2', problems=3)
    assert [(s.schema, s.intrinsic) for s in tool.sources(options)] == [
        ('rs', 'fma'), ('patch', 'mma_tf32x3'),
    ]  # fmt: skip
    trained = tool.sources(Namespace(set='train', problems=2))
    assert len({s.problem.shape for s in trained}) == 2
    assert np.isfinite([s.problem.flops for s in trained]).all()
    assert all(isinstance(s, Source) for s in trained)
