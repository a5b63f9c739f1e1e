"""The emulator: what it can run, what it says where it cannot, and that guard pages bite."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tilewright.errors import CheckError, CompilerError, InputError, MissingError
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.kernels.cpu.space import random_schedule
from tilewright.machine.compiler import run_compiler
from tilewright.machine.isa import ISAS, host_arch, host_isas
from tilewright.ops.convolution import conv2d
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright_lab.simulate import emulate as module
from tilewright_lab.simulate.emulate import (
    can_emulate,
    cannot_run,
    cross_compiler,
    emulate,
    native,
    run_program,
    run_text,
)

PRODUCT = matmul(m=5, n=6, k=7)
SEEDS = range(3)


def source_of(group=PRODUCT, isa='portable'):
    return generate(group, general_schedule(group, isa, 1, 1))


@pytest.mark.isa
@pytest.mark.parametrize('name', [n for n, row in ISAS.items() if row.arch != 'any'])
@pytest.mark.parametrize('seed', SEEDS)
def test_code_for_every_architecture_is_at_least_assembled(name, seed, tmp_path):
    try:
        command = cross_compiler(name)
    except MissingError as error:
        pytest.skip(str(error))
    group = conv2d(c=6, h=12, w=17, k=40, r=3, s=3, pad=1, stride=1 + seed % 2, bias=True)
    schedule = random_schedule(group, name, Random(seed + 11))
    file = tmp_path / 'kernel.c'
    file.write_text(generate(group, schedule))
    run_compiler([*command, *compiler_flags(schedule), '-O2', '-c', str(file), '-o', f'{file}.o'])


def test_an_emulated_kernel_computes_the_reference(isa, whole_numbers):
    if can_emulate(isa):
        pytest.skip(can_emulate(isa))
    arrays = whole_numbers(PRODUCT, 3)
    for placement in ('start', 'end'):
        schedule = general_schedule(PRODUCT, isa, 2, 1)
        got = emulate(PRODUCT, schedule, arrays, placement=placement)
        assert np.array_equal(got, reference(PRODUCT, arrays))


def test_what_the_host_runs_needs_no_emulator():
    assert {name for name in ISAS if not cannot_run(name)} >= set(host_isas())


def test_a_missing_emulator_is_named(monkeypatch):
    other = next(name for name, row in ISAS.items() if row.arch not in (host_arch(), 'any'))
    monkeypatch.setenv('PATH', '/nonexistent')
    module._emulator.cache_clear()
    try:
        assert f'emulator qemu-{ISAS[other].arch}, which is not installed' in can_emulate(other)
        with pytest.raises(MissingError, match='qemu'):
            emulate(PRODUCT, general_schedule(PRODUCT, other, 1, 1), {})
        with pytest.raises(MissingError, match='cross compiler'):
            cross_compiler(other)
    finally:
        module._emulator.cache_clear()


def test_an_unknown_instruction_set_is_refused():
    with pytest.raises(InputError, match='sse9'):
        can_emulate('sse9')


def test_an_unknown_placement_is_refused(whole_numbers):
    with pytest.raises(InputError, match='middle'):
        run_program(PRODUCT, source_of(), whole_numbers(PRODUCT, 0), native(), (), ('middle',))


@pytest.mark.parametrize(
    ('find', 'put', 'placement'),
    [
        ('float *restrict p2_ = args->out;', 'float *restrict p2_ = args->out + 1;', 'end'),
        ('float *restrict p2_ = args->out;', 'float *restrict p2_ = args->out - 1;', 'start'),
        ('p0_ = args->in[0];', 'p0_ = args->in[0] + 1;', 'end'),
        ('p0_ = args->in[0];', 'p0_ = args->in[0] - 1;', 'start'),
        ('memcpy(packed + 0,', 'memcpy(packed + 7,', 'end'),
        ('memcpy(packed + 0,', 'memcpy(packed - 1,', 'start'),
        ('(void)part;', 'args->scratch[tw_scratch_bytes()] = 1;', 'end'),
        ('(void)part;', 'args->scratch[part * tw_scratch_bytes() - 1] = 1;', 'start'),
        ('(void)part;', '*(float *)args->in[0] = 1.0f;', 'end'),
        ('(void)part;', '*(float *)args->packed = 1.0f;', 'start'),
    ],
)
def test_one_element_outside_any_buffer_is_seen(find, put, placement, whole_numbers):
    """Each buffer, on either side; and writing to what may only be read."""
    source = source_of()
    assert find in source
    broken, arrays = source.replace(find, put), whole_numbers(PRODUCT, 0)
    with pytest.raises(CheckError, match=f'flush at their {placement}, was killed by SIG'):
        run_program(PRODUCT, broken, arrays, native(), (), (placement,))


def test_a_part_that_is_never_written_stays_poisoned(whole_numbers):
    source = source_of().replace('void tw_part', 'static void unused')
    source += (
        'void tw_part(const tw_args *args, long part) { (void)args, (void)part, (void)unused; }'
    )
    for out in run_program(PRODUCT, source, whole_numbers(PRODUCT, 0), native()):
        assert np.isnan(out).all()


def test_a_program_that_fails_says_so(monkeypatch):
    with pytest.raises(CheckError, match=r'code 7 \(it said: help\)'):
        run_text('#include <stdio.h>\nint main(void) { puts("help"); return 7; }\n', native())
    with pytest.raises(CheckError, match='SIGABRT'):
        run_text('#include <stdlib.h>\nint main(void) { abort(); }\n', native())
    with pytest.raises(CompilerError):
        run_text('int main(void) { return nothing; }\n', native())
    monkeypatch.setenv('TILEWRIGHT_TIME_LIMIT', '0.5')
    with pytest.raises((CheckError, CompilerError), match='longer than'):
        run_text('int main(void) { for (;;) ; }\n', native())
