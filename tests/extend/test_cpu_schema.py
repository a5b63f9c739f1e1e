"""A CPU schema from outside the package: one value, one registration, and everything follows.

The schema is a plain nest over rows with one decision, how many neighbours of a row are summed side
by side. What would be broken if a test failed is named in its first line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import InputError, ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.contraction import check_plain, why_no_products
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.nest import Nest
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schema import SCHEMAS, CpuSchema, Work, is_extended, is_shipped
from tilewright.kernels.cpu.space import even_cuts, random_schedule, register_order, whole_tile
from tilewright.kernels.cpu.writer import Writer, scaled, total
from tilewright.machine.isa import best_isa
from tilewright.machine.known import known_machine
from tilewright.model.cpu.predict import predict
from tilewright.model.cpu.roofline import roofline
from tilewright.ops.group import Group
from tilewright.registry import resolve
from tilewright.report.network import Kind, network_report
from tilewright.schedule.schedule import Level, Schedule
from tilewright.store.records import open_store
from tilewright.targets.cpu.choose import choose_all

NAME = 'rows'
PRODUCT = tw.matmul(m=12, n=37, k=20)
_WHOLE = known_machine('i7-9700k')
MACHINE = replace(  # with one cache, so that searches are short
    _WHOLE, caches=_WHOLE.caches[:1], bandwidth_one_gbps=_WHOLE.bandwidth_one_gbps[:2],
    bandwidth_all_gbps=_WHOLE.bandwidth_all_gbps[:2],
)  # fmt: skip


# The schema: all that a new folder of kernels/cpu/schemas would hold.


def why_not(group: Group) -> str:
    if len(group.stages) > 1:
        return f'{group.label} has stages behind its sum'
    return why_no_products(group)


def schedule_of(group: Group, isa: str, block: int, parallel=()) -> Schedule:
    stage = group.main
    reg = dict(stage.sizes) | dict.fromkeys(stage.parallel, 1) | {stage.parallel[-1]: block}
    order = register_order(stage)
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole_tile(stage, reg)))
    return Schedule(NAME, isa, '', levels, parallel)


def choices(group: Group, isa: str, threads: int, _levels: int) -> Iterator[Schedule]:
    rows = group.main.parallel[:-1]
    for block in (1, 4, 16):
        yield schedule_of(group, isa, block, even_cuts(group.main, threads, rows)[0])


def plan(group: Group, schedule: Schedule) -> tuple[Group, Schedule]:
    check_plain(group)
    if why_not(group):
        raise ScheduleError(f'{why_not(group)}; the {NAME} schema cannot compute it')
    wide = [d for d in group.main.parallel[:-1] if schedule.reg.tile[d] > 1]
    if wide:
        raise ScheduleError(f'{group.label}: {wide} are tiled; only the last dimension is')
    return group, schedule


def write(planned: tuple[Group, Schedule]) -> str:
    group, schedule = planned
    writer, stage = Writer(), group.main
    abi.write_head(writer, group, schedule)
    places = abi.constant_places(group, '', 0)
    writer.open('void tw_pack(const float *const *constants, float *packed)')
    floats = abi.write_constants(writer, group, places, 0)
    writer.line('(void)constants, (void)packed;')
    writer.close()
    abi.write_sizes(writer, schedule.threads, 0, floats)
    inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(group.with_role('input'))}
    writer.open('void tw_part(const tw_args *args, long part)')
    writer.line('(void)part;')
    nest = Nest(stage, schedule, writer)
    nest.open_parts()
    for name in stage.parallel:
        nest.open_loop(schedule.reg, name)
    last = stage.parallel[-1]
    low, high = nest.at(last)
    point = {d: nest.start(d) for d in stage.parallel} | {last: f'({low} + lane)'}

    def element(access, base: str) -> str:
        strides, const = access_strides(group, access)
        terms = [scaled(point.get(d, d), step) for d, step in strides.items()]
        return f'({base})[{total([*terms, str(const)])}]'

    reads = [
        element(a, inputs.get(a.tensor) or f'args->packed + {places[a.tensor]}')
        for a in stage.reads
    ]
    writer.line(f'float sums[{schedule.reg.tile[last]}] = {{0}};')
    for name in stage.reduction:
        writer.open(f'for (long {name} = 0; {name} < {stage.sizes[name]}; {name}++)')
    writer.line(f'for (long lane = 0; lane < {high} - {low}; lane++)')
    writer.line(f'    sums[lane] += {reads[0]} * {reads[1]};')
    writer.close(len(stage.reduction))
    writer.line(f'for (long lane = 0; lane < {high} - {low}; lane++)')
    writer.line(f'    {element(stage.write, "args->out")} = sums[lane];')
    nest.close()
    writer.close()
    return writer.text()


def work(group: Group, schedule: Schedule) -> Work:
    """Elements one by one where nothing is side by side; a line's worth at a time at best."""
    together = min(schedule.reg.tile[group.main.parallel[-1]], LINE_FLOATS // 2)
    return Work(group.flops, group.compulsory_bytes, 2 * group.main.points / together)


ROWS = CpuSchema(
    name=NAME,
    words='rows, by a schema of the tests',
    plan=plan,
    generate=write,
    why_not=why_not,
    choices=choices,
    work=work,
    registers=False,
)


@pytest.fixture
def rows() -> Iterator[CpuSchema]:
    yield SCHEMAS.register(ROWS)
    SCHEMAS.unregister(NAME)


def ours(plan: tw.Plan) -> tw.Plan:
    """The plan with the candidates of the schema alone."""
    kept = tuple(c for c in plan.candidates if c.schedule.schema == NAME)
    return replace(plan, candidates=kept)


def test_it_is_searched_and_priced(rows):
    """A search that asks only the package's schemas, or a price that a new schema has not got."""
    found = tw.optimize(PRODUCT, MACHINE, top=4, measure=False, threads=2)
    assert {'outer', NAME} <= {c.schedule.schema for c in found.candidates}
    times = [c.prediction.seconds for c in found.candidates]
    assert min(times) >= found.candidates[0].prediction.bound_s > 0
    blocks = [predict(PRODUCT, s, MACHINE).seconds for s in choices(PRODUCT, 'avx2', 1, 3)]
    assert blocks == sorted(blocks, reverse=True)
    assert blocks[0] > blocks[-1]


def test_it_is_asked_for_groups_that_it_can_compute_alone(rows):
    """A schema that is tried on groups which it refuses."""
    biased = tw.conv2d(c=4, h=8, w=8, k=8, r=1, s=1, bias=True)
    found = tw.optimize(biased, MACHINE, top=8, measure=False, threads=1)
    assert NAME not in {c.schedule.schema for c in found.candidates}
    with pytest.raises(ScheduleError, match='has stages behind its sum'):
        generate(biased, schedule_of(biased, 'avx2', 4))


@pytest.mark.parametrize('group', [PRODUCT, tw.conv2d(c=5, h=7, w=9, k=6, r=3, s=2)])
@pytest.mark.parametrize('block', [1, 4, 5, 64])
def test_it_computes_the_reference(rows, group, block, check):
    """Generation, building and running of a schema that the package does not know."""
    parallel = ((group.main.parallel[-2], 2),)
    check(group, schedule_of(group, 'portable', block, parallel))
    assert compiler_flags(schedule_of(group, 'portable', block)) == rows.flags


def test_it_is_built_measured_and_verified_by_optimize(rows, tmp_path):
    """The way through worker, verifier and store, from `optimize` to a callable."""
    machine = replace(MACHINE, isa=best_isa())
    with open_store(tmp_path / 'store.sqlite') as store:
        found = tw.optimize(PRODUCT, machine, top=3, threads=1, store=store)
        again = tw.optimize(PRODUCT, machine, top=3, threads=1, store=store)
    for made in (found, again):
        (best, *_) = ours(made).candidates
        assert best.measurement is not None
        assert best.measurement.ok, best.measurement.message
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, t.shape).astype(np.float32) for t in PRODUCT.tensors[:2])
    kernel = ours(found).build(constants={PRODUCT.tensors[1].name: b})
    np.testing.assert_array_equal(kernel(a), a @ b)


def test_it_is_explained(rows):
    """Reports that have words for the package's own schemas only."""
    found = ours(tw.optimize(PRODUCT, MACHINE, top=3, measure=False, threads=2))
    said = found.explain()
    assert f'({NAME} schema)' in said
    assert '2 threads: cut 12 of i in 2, at most 6 each' in said
    assert 'plain loops over' in said
    (entry,) = network_report('net', MACHINE, 2, [Kind(found, 'product', ('a',))]).entries
    assert entry.algorithm == ROWS.words
    assert sum(ms for _, ms in entry.parts) <= entry.predicted_ms * (1 + 1e-9)


def test_random_schedules_are_drawn_from_it(rows):
    """A space that does not follow from the table of schemas."""
    drawn = [random_schedule(PRODUCT, 'avx2', Random(seed)) for seed in range(30)]
    assert {NAME, 'outer', 'general'} <= {s.schema for s in drawn}
    assert all('tw_part' in generate(PRODUCT, s) for s in drawn)
    conv = tw.conv2d(c=4, h=8, w=8, k=8, r=3, s=3, pad=1, bias=True)
    assert NAME not in {random_schedule(conv, 'avx2', Random(s)).schema for s in range(30)}


def test_a_network_gets_it_where_it_is_fastest():
    """Networks that search in other processes, or remember what only this one can generate."""

    def instant(group, schedule, machine):
        return roofline(group, schedule, machine, 0.0, group.flops, group.compulsory_bytes)

    SCHEMAS.register(replace(ROWS, time=instant))
    try:
        assert is_extended()
        wide = tw.matmul(m=14, n=37, k=20)
        for answer in choose_all([PRODUCT, wide], MACHINE, 1, 2, 1e-4):
            assert answer[0].schedule.schema == NAME
            assert not is_shipped(answer[0].schedule)
    finally:
        SCHEMAS.unregister(NAME)
    assert not is_extended()
    (answer,) = choose_all([PRODUCT], MACHINE, 1, 2, 1e-4)
    assert answer[0].schedule.schema == 'outer'


def test_it_is_listed_and_gone_when_it_is_unregistered():
    """Error messages that list other schemas than there are."""
    unknown = replace(schedule_of(PRODUCT, 'avx2', 4), schema='guess')
    SCHEMAS.register(ROWS)
    try:
        with pytest.raises(ScheduleError, match=f'not a CPU schema.*outer, .*{NAME}'):
            generate(PRODUCT, unknown)
        with pytest.raises(InputError, match=f"there is a CPU schema '{NAME}' already"):
            SCHEMAS.register(ROWS)
    finally:
        SCHEMAS.unregister(NAME)
    with pytest.raises(ScheduleError, match=r"'rows' is not a CPU schema.*normal_rows$"):
        generate(PRODUCT, schedule_of(PRODUCT, 'avx2', 4))
    with pytest.raises(InputError, match='neither choices nor a rank'):
        replace(ROWS, choices=None)
    with pytest.raises(InputError, match=r"hook 'nowhere:time' cannot be resolved"):
        resolve('nowhere:time')
    with pytest.raises(InputError, match=r"algorithm 'karatsuba' is not one of direct, winograd"):
        replace(ROWS, algorithm='karatsuba')


def test_a_dtype_or_storage_that_no_schema_offers_is_refused(rows):
    """A request that is ignored, or whose refusal does not say what there is."""
    other = replace(schedule_of(PRODUCT, 'avx2', 4), dtype='i8', accumulation='i32')
    with pytest.raises(ScheduleError, match=rf'i8 added in i32 on avx2 .*f32 \(outer,.* {NAME}\)'):
        generate(PRODUCT, other)
    assert Schedule.from_json(other.to_json()) == other
    assert other.digest != schedule_of(PRODUCT, 'avx2', 4).digest
    assert 'dtype' not in schedule_of(PRODUCT, 'avx2', 4).to_json()
    conv = tw.conv2d(c=4, h=6, w=6, k=8, r=3, s=3, bias=True)
    for level, schemas in (('cache', {'general'}), ('register', {'outer', 'winograd'})):
        kept = replace(conv, storage=(('Acc0', level),))
        found = tw.optimize(kept, MACHINE, top=4, measure=False, threads=1)
        assert {c.schedule.schema for c in found.candidates} <= schemas
    far = replace(conv, storage=(('Acc0', 'global'),))
    with pytest.raises(
        InputError,
        match=r"storage 'global'.*register \(outer.*cache \(general, chain, attention, "
        r'attention_tiles\)',
    ):
        tw.optimize(far, MACHINE, measure=False, threads=1)
