"""Networks of f16 on CPUs that compute in it: results, types, files, C, and what is refused."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_half import _dense_block, _graph

import tilewright as tw
from tilewright import zoo
from tilewright.check.check import Check, Checked
from tilewright.errors import InputError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.fuse import fuse
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.half import halved
from tilewright.graph.lower import lower
from tilewright.graph.passes import PROGRAM_PASSES, apply_passes, passes_of
from tilewright.kernels.cpu.schemas.half.plan import why_not
from tilewright.machine.machine import Machine
from tilewright.machine.measure import load_machine

MACHINE = load_machine(measure=False)[0]
computes = pytest.mark.skipif(
    not MACHINE.half, reason=f'{MACHINE.name} has no arithmetic of f16 (asimdhp)'
)


def image(graph: Graph, seed: int = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {v.name: rng.standard_normal(v.shape, np.float32) for v in graph.inputs}


def off(got: np.ndarray, want: np.ndarray) -> float:
    """The root mean square of differences, as a share of that of results."""
    return float(np.sqrt(np.mean((got - want) ** 2) / np.mean(want**2)))


@computes
@pytest.mark.parametrize('graph', [_graph(), _dense_block()], ids=['layers', 'dense block'])
def test_networks_are_right_and_near_those_of_float32(graph: Graph) -> None:
    """Every kernel is checked by itself; all that multiplies multiplies f16."""
    found: list[Checked] = []
    made = tw.compile(graph, precision='fp16', check=Check(report=found.append))
    assert found[0].within
    (want,), (got,) = (
        n.run(image(graph)).values() for n in (tw.compile(graph), made)
    )  # fmt: skip
    assert got.dtype == want.dtype == np.float32
    assert 0 < off(got, want) < 3e-3
    schemas = {made.kernels[task.digest].schedule.schema for task in made.tasks}
    assert 'half' in schemas
    assert not schemas & {'outer', 'winograd', 'stencil'}


@pytest.mark.parametrize(
    ('channels', 'stride', 'window', 'pads'),
    [(3, 2, 7, (3, 3, 3, 3)), (3, 2, 3, (0, 0, 1, 1)), (1, 2, 5, (2, 1, 0, 0)),
     (3, 4, 11, (0, 0, 0, 0)), (2, 1, 3, (1, 1, 1, 1)), (3, 1, 3, (1, 1, 1, 1)),
     (4, 2, 3, (1, 1, 1, 1))],
)  # fmt: skip
def test_first_layers_in_rows_compute_the_same(
    channels: int, stride: int, window: int, pads: tuple[int, ...]
) -> None:
    """An input of few channels is padded and read in rows, where pixels begin at words."""
    rng = np.random.default_rng(3)
    shape = (8, channels, window, window)
    graph = Graph(
        'first', (Value('x', (2, channels, 20, 23)),), (('y', 'y'),),
        (Node('Conv', 'c', ('x', 'w', 'b'), ('z',), {'strides': (stride,) * 2, 'pads': pads}),
         Node('Relu', 'r', ('z',), ('y',))),
        {'w': rng.standard_normal(shape, np.float32), 'b': rng.standard_normal(8, np.float32)},
    )  # fmt: skip
    program = fuse(lower(graph), lambda _: 0.0)
    made = halved(program, 'f16', on_cpu=True)
    x = {'x': rng.standard_normal((2, channels, 20, 23), np.float32)}
    want, got = (evaluate(p, x, exact=True)['y'] for p in (program, made))
    assert np.abs(got - want).max() < 2e-3 * np.abs(want).max()
    rows = channels * stride % 2 == 0 and channels < 4
    assert any('in rows' in task.group.label for task in made.tasks) == rows
    if rows:
        assert why_not(made.tasks[-1].group) == ''


@computes
@pytest.mark.slow
@pytest.mark.parametrize(
    'name', ['squeezenet', 'mobilenet_v2', 'densenet121', 'inception_v1', 'bert_base']
)
def test_networks_of_the_zoo_are_near_those_of_float32(name: str) -> None:
    small = zoo.SMALL.get(name, {})
    graph, given = zoo.graph(name, **small), zoo.inputs(zoo.network(name, **small))
    want, got = (
        next(iter(tw.compile(graph, precision=p).run(given).values())) for p in ('fp32', 'fp16')
    )
    assert off(got, want) < 2e-2


def test_products_of_values_stay_float32() -> None:
    """Attention has no kernels of f16 on CPUs; products with weights around it have."""
    graph = zoo.graph('bert_base', **zoo.SMALL['bert_base'])
    program = apply_passes(graph, passes_of(None), lambda _: 0.0, PROGRAM_PASSES)
    made = halved(program, 'f16', on_cpu=True)
    for task in made.tasks:
        factors = [task.group.tensor(a.tensor) for a in task.group.main.reads]
        if task.group.main.is_product_sum:
            constant = any(t.role == 'constant' for t in factors)
            assert {t.dtype for t in factors} == ({'f16'} if constant else {'f32'})
    given = zoo.inputs(zoo.network('bert_base', **zoo.SMALL['bert_base']))
    for name, want in evaluate(program, given, exact=True).items():
        assert off(evaluate(made, given, exact=True)[name], want) < 5e-3


@computes
def test_a_network_is_saved_and_loaded(tmp_path: Path) -> None:
    path, graph = tmp_path / 'half.tw', _graph()
    made = tw.compile(graph, precision='fp16', save=path)
    want = made.run(image(graph))['out']
    assert np.array_equal(tw.load(path).run(image(graph))['out'], want)


@computes
@pytest.mark.skipif(
    not (shutil.which('make') and shutil.which('gcc')), reason='make or gcc is not installed'
)
def test_exported_c_computes_the_same(tmp_path: Path) -> None:
    graph = _graph()
    path, folder = tmp_path / 'half.tw', tmp_path / 'c'
    tw.compile(graph, precision='fp16', save=path)
    tw.export(path, folder)
    done = subprocess.run(
        ['make', '-j2', 'CFLAGS=-O1', 'all', 'check'], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@computes
def test_a_model_of_f16_is_computed_in_f16() -> None:
    """Its inputs are given as float32, as on a GPU."""
    graph = _graph()
    halves = replace(
        graph,
        constants={n: a.astype(np.float16) for n, a in graph.constants.items()},
        inputs=tuple(replace(v, dtype='f16') for v in graph.inputs),
    )
    made = tw.compile(halves)
    want = tw.compile(graph, precision='fp16').run(image(graph))['out']
    assert off(made.run(image(graph))['out'], want) < 2e-3


@computes
def test_weights_that_f16_cannot_hold_stay() -> None:
    graph = _graph()
    small = {name: graph.constants[name] * np.float32(1e-6) for name in ('w1', 'b1')}
    large = {'w2': graph.constants['w2'] * np.float32(1e6)}
    other = replace(graph, constants={**graph.constants, **small, **large})
    want, got = (tw.compile(other, precision=p).run(image(graph))['out'] for p in ('fp32', 'fp16'))
    assert off(got, want) < 5e-2  # what is as small as 1e-6 has few bits


def test_a_machine_without_a_type_says_what_it_has() -> None:
    if MACHINE.isa != 'neon':
        pytest.skip(f'{MACHINE.isa} stores weights of 16 bits')
    plain = replace(MACHINE, half_one_gflops=0.0, half_all_gflops=0.0)
    with pytest.raises(InputError, match=r'has no arithmetic of it.*it has fp32, int8, auto'):
        tw.compile(_graph(), precision='fp16', machine=plain)
    with pytest.raises(InputError, match=r'has no arithmetic of it.*it has fp32'):
        tw.compile(_graph(), precision='bf16')


def test_machine_files_know_the_peak_of_f16() -> None:
    known = tw.load_machine('neoverse-n1') if hasattr(tw, 'load_machine') else MACHINE
    machine = known[0] if isinstance(known, tuple) else known
    assert Machine.from_json(machine.to_json()) == machine
    if machine.half:
        seen = machine.in_halves()
        assert seen.peak_one_gflops == machine.half_one_gflops / 2
        assert seen.isa == f'{machine.isa}half'
    with pytest.raises(InputError, match=r'has no arithmetic of f16'):
        replace(machine, isa='avx2', dot_dtype='', half_one_gflops=1.0)
