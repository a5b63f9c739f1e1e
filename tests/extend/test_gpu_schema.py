"""A GPU schema from outside: one value and one registration, and it is used like our own.

The schema: a thread computes `run` neighbouring results of a sum of products, in registers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import InputError, ScheduleError
from tilewright.kernels.cpu.names import rename_stage
from tilewright.kernels.gpu import pieces
from tilewright.kernels.gpu.epilogue import gpu_epilogue, helpers
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module, Step, tensor_buffers
from tilewright.kernels.gpu.precision import sum_error
from tilewright.kernels.gpu.registry import GPU_SCHEMAS, OWN, schema_named
from tilewright.kernels.gpu.schema import GpuSchema, Table, each
from tilewright.kernels.gpu.work import WARP, Need, Work
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.bounds import schedule_bounds
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.rank.statistics import is_known
from tilewright.report.gpu_explain import explain_gpu, explanation_text
from tilewright.runtime.gpu.hosted import HostDevice
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import random_arrays
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.moves import moves
from tilewright.targets.gpu.choose import choose_all
from tilewright_lab.collect.space import draw, excluded

NAME = 'row_runs'
THREADS = 64
RUNS = (1, 2, 4, 8)


def _threads(group: Group, run: int) -> list[tuple[str, int]]:
    """Dimensions of the result, the last one in runs: a thread for each point of these."""
    *outer, last = group.main.parallel
    sizes = group.main.sizes
    return [*((d, sizes[d]) for d in outer), ('strip', -(-sizes[last] // run))]


def _generate(group: Group, schedule: GpuSchedule) -> Module:
    stage, run = group.main, schedule['run']
    if not stage.is_product_sum or run < 1:
        raise ScheduleError(f'{group.label}: {NAME} needs a sum of products, and run from 1 on')
    epilogue = gpu_epilogue(group)
    last, extent = stage.parallel[-1], stage.sizes[stage.parallel[-1]]
    inside = [
        f'{last} < {extent}',
        *(test for read in stage.reads for test in pieces.guards(group, read, stage.sizes)),
    ]
    factors = ' * '.join(pieces.element(group, read) for read in stage.reads)
    dims = _threads(group, run)
    each_result = [
        f'for (int i = 0; i < {run}; i++) {{',
        f'    const int {last} = strip * {run} + i;',
    ]
    body = [
        f'const int flat = BLOCK_X * {THREADS} + THREAD;',
        f'if (flat >= {math.prod(size for _, size in dims)})',
        '    return;',
        *pieces.decode('flat', dims),
        f'float acc[{run}];',
        f'for (int i = 0; i < {run}; i++)',
        '    acc[i] = 0.0f;',
        *(f'for (int {d} = 0; {d} < {stage.sizes[d]}; {d}++)' for d in stage.reduction),
        *each_result,
        f'    if ({" && ".join(inside)})',
        f'        acc[i] += {factors};',
        '}',
        *each_result,
        f'    if ({last} >= {extent})',
        '        return;',
        '    const float value = acc[i];',
        *pieces.epilogue_lines(epilogue),
        f'    {pieces.element(group, replace(stage.write, tensor=group.output.name))} = '
        f'{epilogue.expression};',
        '}',
    ]
    kernel = Kernel(
        f'{NAME}_{stage.name}',
        (
            *(pieces.argument(group.tensor(read.tensor)) for read in stage.reads),
            *pieces.epilogue_arrays(group, epilogue),
            pieces.argument(group.output, written=True),
        ),
        '\n'.join(body), (_blocks(group, run), 1, 1), THREADS, helpers=helpers(group, epilogue),
    )  # fmt: skip
    operands = {item.name: item.tensor for item in epilogue.operands}
    return Module(group, tensor_buffers(group), (Step.of(kernel, **operands),))


def _blocks(group: Group, run: int) -> int:
    return -(-math.prod(size for _, size in _threads(group, run)) // THREADS)


def _need(group: Group, schedule: GpuSchedule) -> Need:
    run, stage = schedule['run'], group.main
    blocks = _blocks(group, run)
    results = math.prod(stage.sizes[d] for d in stage.parallel)
    return Need(THREADS, 0, run + 24, blocks, 1, blocks * THREADS * run / results, code=run)


def _work(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
    """A run reads one weight and `run` inputs for each of its steps."""
    wanted, run, stage = _need(group, schedule), schedule['run'], group.main
    steps = THREADS / WARP * math.prod(stage.sizes[d] for d in stage.reduction)
    return Work(
        wanted.blocks, 1, THREADS, registers or wanted.registers, 0, 1, 1, steps * run, 0.0,
        steps * (run + 1), steps * (run + 1), 0.0, 4.0 * steps * (run + 1), steps * run,
        4.0 * THREADS * run, 0.0,
    )  # fmt: skip


def _table(_: Group, __: str) -> Table:
    return each(run=RUNS)


SCHEMA = GpuSchema(
    name=NAME,
    words='neighbouring results of a thread in registers',
    generate=_generate,
    reserved=frozenset({'strip'}),
    table=_table,
    sampled={'fma': {'run': RUNS}},
    need=_need,
    work=_work,
)
H200 = known_gpu('h200')
CONV = tw.conv2d(n=2, c=8, h=14, w=13, k=12, r=3, s=3, pad=1, bias=True, activation='relu')
# One of its dimensions is called as the schema calls something of its own.
STRIPS = replace(
    CONV,
    stages=tuple(
        rename_stage(s, {d.name: 'strip' if d.name == 'n' else d.name for d in s.dims})
        if s is CONV.main
        else s
        for s in CONV.stages
    ),
)
GROUPS = (
    CONV,
    STRIPS,
    tw.conv2d(c=4, h=15, w=17, k=6, r=5, s=3, stride=2, pad=2),
    tw.conv2d(c=6, h=9, w=8, k=6, r=3, s=3, pad=1, groups=6),
    tw.matmul(m=33, n=30, k=21),
)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    GPU_SCHEMAS.register(SCHEMA)
    yield
    GPU_SCHEMAS.unregister(NAME)


@pytest.mark.parametrize('run', [1, 4, 5])
@pytest.mark.parametrize('group', GROUPS, ids=lambda group: group.label)
def test_it_computes_the_reference_on_the_host(group: Group, run: int) -> None:
    on, arrays = HostDevice(), random_arrays(group, run)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    with Runner(generate(group, GpuSchedule.of(NAME, run=run)), on, constants) as runner:
        on.write(runner.arrays[group.output.name], np.full(group.output.shape, np.nan, np.float32))
        got = runner(**{t.name: arrays[t.name] for t in group.with_role('input')})
    want = reference(group, arrays)
    assert np.abs(got - want).max() <= 3e-6 * np.abs(want).max()


def test_the_search_draws_it_and_walks_through_its_decision() -> None:
    space, rng = moves(CONV, H200), random.Random(1)
    assert (NAME, 'fma') in space.tables
    drawn = [space.draw(rng) for _ in range(60)]
    assert {s.schema for s in drawn if s} > {NAME}
    near = moves(CONV, H200, [NAME]).neighbours(GpuSchedule.of(NAME, run=2))
    assert [s['run'] for s in near] == [1, 4]


def test_its_space_is_sampled_and_wasteful_runs_are_left_out() -> None:
    found, reasons = draw(tw.matmul(m=64, n=6, k=8), H200, NAME, 'fma', 12, 3)
    assert sorted(s['run'] for s in found) == [1, 2, 4, 8]
    assert not reasons
    narrow = tw.matmul(m=64, n=3, k=8)
    assert excluded(narrow, GpuSchedule.of(NAME, run=8), H200) == 'waste'
    assert sum_error(narrow, GpuSchedule.of(NAME, run=8)) == 0.0


def test_the_time_model_prices_what_it_counts() -> None:
    large = tw.conv2d(n=16, c=64, h=56, w=56, k=64, r=3, s=3, pad=1)
    told = {run: predict_gpu(large, GpuSchedule.of(NAME, run=run), H200) for run in RUNS}
    for run, predicted in told.items():
        bound = schedule_bounds(large, GpuSchedule.of(NAME, run=run), H200)
        assert predicted.seconds > bound.seconds > 0
        assert predicted.work.blocks == 16 * 64 * 56 * 56 // run // THREADS
    assert told[8].work.global_bytes < told[1].work.global_bytes
    assert told[8].seconds < told[1].seconds
    assert not is_known(GpuSchedule.of(NAME, run=1))  # so that learned models leave it to this one


def test_it_is_explained() -> None:
    found = explain_gpu('a layer', CONV, H200, schemas=[NAME])
    assert found.schedule.schema == NAME
    text = explanation_text(found)
    assert f'best schedule: {NAME} fma run{found.schedule["run"]}' in text
    assert f'{NAME}: {SCHEMA.words}' in text


def test_it_is_listed_while_it_is_registered() -> None:
    assert [*GPU_SCHEMAS.values()][-1] is schema_named(NAME) is SCHEMA
    with pytest.raises(ScheduleError, match=f"'nowhere' is not a GPU schema; .*, {NAME}$"):
        generate(CONV, GpuSchedule.of('nowhere'))
    with pytest.raises(InputError, match=f'{NAME!r} already; choose another name'):
        GPU_SCHEMAS.register(SCHEMA)
    with pytest.raises(InputError, match=f'not registered as a GPU schema; registered are {NAME}'):
        GPU_SCHEMAS.unregister(OWN[0].name)
    with pytest.raises(InputError, match='a name that is an identifier'):
        replace(SCHEMA, name='row runs')


def test_choices_of_a_network_are_kept_apart_from_those_without_it(tmp_path, monkeypatch) -> None:
    """A choice that names a schema of one process must not be recalled in another."""

    def nearly_nothing(group: Group, schedule: GpuSchedule, registers: int | None) -> Work:
        return replace(_work(group, schedule, registers), blocks=1, products=1.0, reads=1.0)

    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    eager = GPU_SCHEMAS.register(
        replace(SCHEMA, name='eager', intrinsics={'fma': 50.0}, work=nearly_nothing)
    )
    try:
        (chosen,) = choose_all([CONV], H200, 1, 1e-4, trials=24)
    finally:
        GPU_SCHEMAS.unregister(eager.name)
    assert chosen[0].schedule.schema == eager.name
    (without,) = choose_all([CONV], H200, 1, 1e-4, trials=24)
    assert without[0].schedule.schema != eager.name
    assert len(list(tmp_path.rglob('*.json'))) >= 2
