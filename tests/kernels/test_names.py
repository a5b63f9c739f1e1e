"""Dimension names that would clash with the generated C, or are no C identifiers, still run."""

from dataclasses import replace

import numpy as np
import pytest

from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.compiler import build
from tilewright.machine.measure import load_machine
from tilewright.ops.group import Group, Tensor
from tilewright.ops.reference import reference
from tilewright.ops.stage import Access, Dim, Stage, call, read, var
from tilewright.runtime.cpu.kernel import Kernel
from tilewright.runtime.verify import compare, random_arrays
from tilewright.search.cpu.rank import rank


def product(i: str, j: str, k: str) -> Group:
    stage = Stage(
        'product',
        (Dim(i, 9), Dim(j, 11), Dim(k, 7, 'reduction')),
        Access('C', (var(i), var(j))),
        (Access('A', (var(i), var(k))), Access('B', (var(k), var(j)))),
        call('mul', read(0), read(1)),
        'sum',
    )
    tensors = (
        Tensor('A', (i, k), (9, 7)),
        Tensor('B', (k, j), (7, 11), 'constant'),
        Tensor('C', (i, j), (9, 11), 'output'),
    )
    return Group(f'product over {i}, {j}, {k}', tensors, (stage,))


@pytest.mark.parametrize('names', [('b', 'out', 'to'), ('for', 'e0', 'width'), ('ü', 'x y', 't1')])
def test_any_name_will_do(names):
    group = product(*names)
    machine, _ = load_machine(measure=False)
    plain = general_schedule(group, machine.isa, 1, len(machine.caches))
    for schedule in (rank(group, machine, 1, 1)[0].schedule, plain):
        library = build(generate(group, schedule), compiler_flags(schedule))
        kernel = Kernel.load(library, group)
        arrays = random_arrays(group, 3)
        out = np.full(group.output.shape, np.nan, np.float32)
        kernel.run(arrays, kernel.pack(arrays), out)
        assert compare(group, out, reference(group, arrays)).ok


def test_harmless_names_are_kept():
    group = product('i', 'j', 'k')
    schedule = rank(group, load_machine(measure=False)[0], 1, 1)[0].schedule
    assert 'j_reg' in generate(group, replace(schedule))
