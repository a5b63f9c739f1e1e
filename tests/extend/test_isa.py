"""An instruction set from outside the package, derived from a row of it: one registration.

It is the best set of this host with a quarter of its registers. What would be broken if a test
failed is named in its first line.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

import tilewright as tw
from tilewright.errors import InputError, ScheduleError
from tilewright.kernels.cpu.contraction import contract
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.isa import micro
from tilewright.kernels.cpu.schemas.outer.space import register_tiles
from tilewright.kernels.cpu.space import random_schedule
from tilewright.machine.detect import describe_host
from tilewright.machine.isa import ISAS, Isa, best_isa, host_isas
from tilewright.machine.known import known_machine
from tilewright.machine.machine import Machine
from tilewright.machine.measure import Effort, load_machine, measure_host, nominal_machine
from tilewright.search.cpu.choose import choose
from tilewright.store.records import open_store

BASE = ISAS[host_isas()[0]]
FEW = replace(BASE, name=f'{BASE.name}few', registers=8)
PRODUCT = tw.matmul(m=24, n=64, k=30)
CONV = tw.conv2d(c=8, h=9, w=9, k=32, r=3, s=3, pad=1, bias=True)
DEPTHWISE = tw.conv2d(c=16, h=14, w=14, k=16, r=3, s=3, pad=1, groups=16)


@pytest.fixture
def few() -> Iterator[Isa]:
    yield ISAS.register(FEW)
    ISAS.unregister(FEW.name)


def machine_with(isa: Isa) -> Machine:
    """A machine that has it, with one cache, so that searches are short."""
    whole = known_machine('i9-10980xe')
    return replace(
        whole, isa=isa.name, caches=whole.caches[:1],
        bandwidth_one_gbps=whole.bandwidth_one_gbps[:2],
        bandwidth_all_gbps=whole.bandwidth_all_gbps[:2],
    )  # fmt: skip


def registers_of(schedule) -> int:
    """Registers that the largest micro-kernel of an outer-product schedule needs."""
    reg, roles = schedule.reg.tile, contract(PRODUCT, schedule.vector)
    pixels = 1
    for name in roles.pixels:
        pixels *= reg[name]
    return micro.registers_needed(pixels, reg[schedule.vector] // ISAS[schedule.isa].lanes)


@pytest.mark.parametrize('group', [PRODUCT, CONV, DEPTHWISE], ids=['product', 'conv', 'depthwise'])
@pytest.mark.parametrize('algorithm', ['direct', 'auto'])
def test_it_is_searched_priced_and_generated(few, group, algorithm):
    """Searches that assume as many registers as the package's sets have."""
    found = choose(group, machine_with(few), 2, 4, algorithm)
    for candidate in found:
        assert candidate.schedule.isa == few.name
        assert candidate.prediction.seconds >= candidate.prediction.bound_s > 0
        assert few.name in generate(group, candidate.schedule)
    assert compiler_flags(found[0].schedule)[: len(few.compiler_flags)] == few.compiler_flags


def test_fewer_registers_are_kept_to_and_cost_time(few):
    """Micro-kernels, prices or tiles that look at a set's name instead of what it offers."""
    found = choose(PRODUCT, machine_with(few), 1, 3, 'direct')
    usual = choose(PRODUCT, machine_with(BASE), 1, 3, 'direct')
    assert all(registers_of(c.schedule) <= few.registers for c in found)
    assert any(registers_of(c.schedule) > few.registers for c in usual)
    assert found[0].prediction.seconds > usual[0].prediction.seconds
    with pytest.raises(ScheduleError, match=f'registers; {few.name} has 8'):
        generate(PRODUCT, replace(usual[0].schedule, isa=few.name))


def test_registers_that_cannot_hide_latency_are_used_as_far_as_they_go():
    """A search without an end where no tile has as many accumulators as the pipeline wants."""
    roles = contract(PRODUCT, 'j')
    for registers in range(3, 17):
        isa = replace(BASE, name='some', registers=registers)
        tiles = register_tiles(roles, isa)
        needs = [micro.registers_needed(t['i'], t['j'] // isa.lanes) for t in tiles]
        assert tiles
        assert max(needs) <= registers


@pytest.mark.parametrize('group', [PRODUCT, CONV, DEPTHWISE], ids=['product', 'conv', 'depthwise'])
def test_its_kernels_compute_the_reference(few, group, check):
    """Emitters that know the package's names, or use registers which the set has not got."""
    for candidate in choose(group, machine_with(few), 2, 2, 'direct'):
        check(group, candidate.schedule)
    for seed in range(3):
        check(group, random_schedule(group, few.name, Random(seed)))


def test_it_is_built_measured_verified_and_explained_by_optimize(few, tmp_path):
    """The way from a machine that has the set to a kernel of it that was verified."""
    machine = nominal_machine(describe_host(), few.name)
    with open_store(tmp_path / 'store.sqlite') as store:
        found = tw.optimize(PRODUCT, machine, top=2, threads=1, store=store)
    assert found.best.measurement is not None
    assert found.best.measurement.ok, found.best.measurement.message
    assert f'mk_{few.name}_p' in found.source()
    said = found.explain()
    assert f'({few.name}, nominal figures)' in said
    assert f'accumulators in 8 {few.name} registers' in said


def test_the_host_can_be_asked_for_it(few, monkeypatch):
    """A set that can be registered and not used: TILEWRIGHT_ISA, the probe, the machine's name."""
    assert host_isas()[-1] == few.name
    assert best_isa() == BASE.name
    monkeypatch.setenv('TILEWRIGHT_ISA', few.name)
    assert load_machine(measure=False)[0].isa == few.name
    quick = Effort(seconds=1e-4, least_laps=1, most_laps=2, largest_bytes=1 << 16)
    record = measure_host(describe_host(), few.name, quick)
    assert record.machine.isa == few.name
    assert record.machine.peak_one_gflops > 0


def test_it_is_listed_and_gone_when_it_is_unregistered():
    """Error messages that list other sets than there are."""
    ISAS.register(FEW)
    try:
        with pytest.raises(InputError, match=f'choose one of .*{FEW.name}'):
            replace(known_machine('i7-9700k'), isa='sse9')
        with pytest.raises(InputError, match='there is an instruction set'):
            ISAS.register(FEW)
        schedule = random_schedule(PRODUCT, FEW.name, Random(1))
    finally:
        ISAS.unregister(FEW.name)
    with pytest.raises(ScheduleError, match=f"'{FEW.name}' is not an instruction set"):
        generate(PRODUCT, schedule)
    with pytest.raises(InputError, match=f"isa is '{FEW.name}'"):
        machine_with(FEW)
    with pytest.raises(InputError, match='small letters and digits'):
        replace(BASE, name='AVX-2')


def test_a_set_for_a_dtype_that_no_schema_offers_is_refused():
    """Kernels of fp32 on a set that is for something else."""
    double = ISAS.register(replace(BASE, name='double', dtype='f64', accumulation='f64'))
    try:
        assert double.lanes == BASE.lanes // 2
        with pytest.raises(
            InputError, match=r'f64 on double .*offered are f32 \(outer, narrow, general'
        ):
            tw.optimize(PRODUCT, machine_with(double), measure=False, threads=1)
        with pytest.raises(ScheduleError, match='adds in f32; double offers f64'):
            micro.MicroKernel('double', (0,), 1, (0,), 1, (0,), 'mk_double_p1_v1')
    finally:
        ISAS.unregister('double')
