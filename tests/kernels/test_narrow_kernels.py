"""Products whose weights are stored in 16 bits: kernels, and networks with few rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import InputError, ScheduleError
from tilewright.graph.graph import Graph, Node, Value
from tilewright.kernels.cpu.generate import compiler_flags, generate
from tilewright.kernels.cpu.schemas.narrow.plan import draw_narrow, has_narrow, plan_narrow, why_not
from tilewright.machine.isa import host_isas
from tilewright.machine.known import known_machine
from tilewright.machine.measure import load_machine
from tilewright.network.arguments import check_narrow
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.matmul import matmul
from tilewright.ops.reference import reference
from tilewright.runtime import verify
from tilewright_lab.simulate.emulate import Toolchain, run_program

pytest.importorskip('ml_dtypes')

hosted = pytest.mark.skipif(
    not has_narrow(host_isas()[0]),
    reason=f'16-bit weights need AVX2 or AVX-512, and this processor has {host_isas()[0]}: run '
    f'this test on an x86 machine',
)


def narrow(group: Group, dtype: str) -> Group:
    weights = group.with_role('constant')[0].name
    tensors = (replace(t, dtype=dtype) if t.name == weights else t for t in group.tensors)
    return replace(group, tensors=tuple(tensors))


GROUPS = (
    matmul(m=3, n=70, k=33),
    conv2d(c=9, k=40, h=4, w=3, r=3, s=3, pad=1, bias=True),
)


@pytest.mark.parametrize('dtype', ['f16', 'bf16'])
@pytest.mark.parametrize('isa', ['avx512', 'avx2'])
def test_weights_are_widened_as_they_are_loaded(isa: str, dtype: str, tools) -> None:
    for number, plain in enumerate(GROUPS):
        group = narrow(plain, dtype)
        assert not why_not(group)
        assert why_not(plain)
        schedule = next(filter(None, (draw_narrow(group, isa, Random(number + n), 2, 3)
                                      for n in range(20))))  # fmt: skip
        arrays = verify.random_arrays(group, number)
        want = reference(group, arrays)
        toolchain: Toolchain = tools(isa)
        source = generate(group, schedule)
        for out in run_program(group, source, arrays, toolchain, compiler_flags(schedule)):
            np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_other_sets_have_no_such_kernels() -> None:
    group = narrow(GROUPS[0], 'f16')
    schedule = next(filter(None, (draw_narrow(group, 'avx512', Random(n), 1, 1) for n in range(9))))
    with pytest.raises(ScheduleError, match='neon has no kernels with weights of 16 bits'):
        plan_narrow(group, replace(schedule, isa='neon'))


def few_rows() -> Graph:
    rng = np.random.default_rng(0)
    constants = {
        'v': rng.standard_normal((256, 300), np.float32) / 16,
        'w': rng.standard_normal((300, 120), np.float32) / 17,
        'b': rng.standard_normal(300, np.float32),
    }
    nodes = (
        Node('MatMul', 'first', ('x', 'v'), ('p',)),
        Node('Add', 'bias', ('p', 'b'), ('q',)),
        Node('Relu', 'relu', ('q',), ('r',)),
        Node('MatMul', 'second', ('r', 'w'), ('out',)),
    )
    return Graph('rows', (Value('x', (2, 256)),), (('out', 'out'),), nodes, constants)


@hosted
@pytest.mark.parametrize(('precision', 'error'), [('fp16', 1e-3), ('bf16', 1e-2)])
def test_a_network_with_few_rows_stores_its_weights_in_16_bits(
    precision: str, error: float, tmp_path: Path
) -> None:
    path, x = tmp_path / 'narrow.tw', np.random.default_rng(1).standard_normal((2, 256), np.float32)
    host = load_machine(measure=False)[0]
    machine = replace(host, bf16_one_gflops=0.0, bf16_all_gflops=0.0)  # tiles would take them
    want = tw.compile(few_rows(), machine=machine).run({'x': x})['out']
    made = tw.compile(few_rows(), machine=machine, precision=precision, save=path)
    assert [made.kernels[task.digest].schedule.schema for task in made.tasks] == ['narrow'] * 2
    got = made.run({'x': x})['out']
    assert 0 < np.abs(got - want).max() < error * np.abs(want).max()
    assert np.array_equal(tw.load(path).run({'x': x})['out'], got)
    assert made.weight_bytes < 0.6 * 4 * (256 * 300 + 300 * 120)


@hosted
def test_weights_that_f16_cannot_hold_stay() -> None:
    graph = few_rows()
    large = replace(graph, constants={**graph.constants, 'v': graph.constants['v'] * 1e6})
    made = tw.compile(large, precision='fp16')
    schemas = [made.kernels[task.digest].schedule.schema for task in made.tasks]
    assert schemas == ['outer', 'narrow']


def test_a_machine_without_them_says_what_it_has() -> None:
    plain = replace(known_machine('neoverse-n1'), half_one_gflops=0.0, half_all_gflops=0.0)
    with pytest.raises(InputError, match=r'neon.*has no arithmetic .* it has fp32, int8, auto'):
        check_narrow('fp16', plain)
    with pytest.raises(InputError, match='it has fp32, fp16, int8, auto'):
        check_narrow('bf16', replace(plain, half_one_gflops=80.0, half_all_gflops=160.0))
