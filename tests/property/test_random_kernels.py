"""Random problems x random legal schedules compute the reference, on every ISA that can run."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import SEEDS, groups, schedule_of

from tilewright.errors import MissingError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.machine.compiler import run_compiler
from tilewright.machine.isa import ISAS
from tilewright.ops.reference import reference
from tilewright_lab.simulate.emulate import cross_compiler, run_program

ASSEMBLED = [name for name, row in ISAS.items() if row.arch != 'any']


@settings(max_examples=6)
@given(group=groups(), seed=SEEDS)
def test_a_random_schedule_computes_the_reference(isa, check, group, seed):
    check(group, schedule_of(group, isa, seed), seed)


@pytest.mark.slow
@settings(max_examples=200)
@given(group=groups(), seed=SEEDS)
def test_many_random_schedules_compute_the_reference(isa, check, group, seed):
    check(group, schedule_of(group, isa, seed), seed)


@pytest.mark.slow
@settings(max_examples=100)
@given(group=groups(), seed=SEEDS)
def test_random_schedules_stay_inside_their_buffers(isa, tools, whole_numbers, agrees, group, seed):
    schedule = schedule_of(group, isa, seed)
    arrays = whole_numbers(group, seed)
    source, flags = generate(group, schedule), compiler_flags(schedule)
    want = reference(group, arrays)
    for out in run_program(group, source, arrays, tools(isa), flags):
        assert agrees(group, out, want)


@settings(max_examples=4)
@given(group=groups(), seed=SEEDS)
@pytest.mark.isa
@pytest.mark.parametrize('name', ASSEMBLED)
def test_random_schedules_are_accepted_by_the_assembler(name, tmp_path_factory, group, seed):
    """Also for instruction sets that nothing here can run."""
    assemble(name, tmp_path_factory, group, seed)


@pytest.mark.slow
@settings(max_examples=40)
@given(group=groups(), seed=SEEDS)
@pytest.mark.isa
@pytest.mark.parametrize('name', ASSEMBLED)
def test_many_random_schedules_are_accepted_by_the_assembler(name, tmp_path_factory, group, seed):
    assemble(name, tmp_path_factory, group, seed)


def assemble(name, tmp_path_factory, group, seed):
    try:
        command = cross_compiler(name)
    except MissingError as error:
        pytest.skip(str(error))
    schedule = schedule_of(group, name, seed)
    source = tmp_path_factory.mktemp('assembled') / 'kernel.c'
    source.write_text(generate(group, schedule))
    flags = (*compiler_flags(schedule), '-O1', '-Wall', '-Werror', '-Wno-unused-variable')
    made = source.with_suffix('.o')
    run_compiler([*command, *flags, '-c', str(source), '-o', str(made)])
    assert made.stat().st_size > 0


@settings(max_examples=6)
@given(group=groups(), seed=SEEDS, data=st.data())
def test_parts_write_disjoint_elements_that_cover_the_output(
    whole_numbers, part_by_part, group, seed, data
):
    """No two threads ever write the same element: there is no write conflict to lose."""
    check_parts(whole_numbers, part_by_part, group, seed, data)


@pytest.mark.slow
@settings(max_examples=60)
@given(group=groups(), seed=SEEDS, data=st.data())
def test_parts_of_many_kernels_write_disjoint_elements(
    whole_numbers, part_by_part, group, seed, data
):
    check_parts(whole_numbers, part_by_part, group, seed, data)


def check_parts(whole_numbers, part_by_part, group, seed, data):
    schedule = schedule_of(group, 'portable', seed)
    writers = np.zeros(group.output.shape, int)
    arrays = whole_numbers(group, data.draw(SEEDS))
    for out in part_by_part(group, schedule, arrays):
        writers += ~np.isnan(out)
    assert writers.min() == writers.max() == 1
