"""An operator from outside: a description, a function that reads its attributes, one registration.

`com.example::ScaledShift` moves a tensor along an axis and multiplies it by a number,

    Out[.., i, ..] = scale * In[.., i - shift, ..]      zero where nothing was

It is then imported, lowered, fused, planned, compiled, checked, priced, explained and listed as the
package's own operators are. This file is the recipe.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

import tilewright as tw
from tilewright.cli.main import invoke
from tilewright.errors import InputError, ModelError, UnsupportedError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower
from tilewright.graph.lowering.operators import FAMILIES, OPERATORS, register, unregister
from tilewright.graph.lowering.reader import FLOATS, NodeReader, Operator, axis_of
from tilewright.graph.lowering.result import Result, compute
from tilewright.importers.onnx import import_onnx
from tilewright.ops.describe import Shape, dims_of, group_of, label_of
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Stage, affine, call, const, read, var
from tilewright.runtime.gpu.network import GpuNetwork

DOMAIN, NAME = 'com.example', 'ScaledShift'


def scaled_shift(shape: Shape, axis: int, shift: int, scale: float, dtype: str = 'f32') -> Group:
    """The description: what is read and written, and what is computed of it."""
    dims = dims_of(shape)
    here = tuple(var(d.name) for d in dims)
    moved = affine((dims[axis].name, 1), const=-shift)
    place = tuple(moved if i == axis else at for i, at in enumerate(here))
    stage = Stage(
        'scaled_shift', dims, Access('Out', here), (Access('In', place),),
        call('mul', read(0), const(scale)),
    )  # fmt: skip
    return group_of(f'{label_of("scaled_shift", shape)}@{axis}by{shift}', [stage], {'In': shape},
                    dtype)  # fmt: skip


def lowered(node: NodeReader) -> Result:
    """What the file says, and what that becomes."""
    x = node.input(0)
    axis = axis_of(node.int('axis', -1), len(x.shape))
    shift, scale = node.int('shift'), node.float('scale', 1.0)
    return compute(scaled_shift(x.shape, axis, shift, scale, x.dtype), {'In': x})


@pytest.fixture
def registered() -> Iterator[Operator]:
    yield register(
        NAME, Operator(lowered, FLOATS, forms='zeros are shifted in'), domain=DOMAIN, family='Own'
    )
    unregister(NAME, domain=DOMAIN)


def expected(x: np.ndarray, axis: int, shift: int, scale: float) -> np.ndarray:
    """By numpy, which knows nothing of our description."""
    widths = [(max(shift, 0), max(-shift, 0)) if i == axis else (0, 0) for i in range(x.ndim)]
    first = max(-shift, 0)
    kept = range(first, first + x.shape[axis])
    return scale * np.pad(x, widths).take(kept, axis)


def model(**attributes) -> ModelProto:
    """x -> Conv -> ScaledShift -> Relu -> y"""
    weights = np.random.default_rng(0).standard_normal((4, 3, 1, 1), np.float32)
    nodes = [
        helper.make_node('Conv', ['x', 'w'], ['a'], name='conv'),
        helper.make_node(NAME, ['a'], ['b'], name='shift', domain=DOMAIN, **attributes),
        helper.make_node('Relu', ['b'], ['y'], name='relu'),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, c, 8, 9])
        for name, c in (('x', 3), ('y', 4))
    ]
    tensors = [numpy_helper.from_array(weights, 'w')]
    graph = helper.make_graph(nodes, 'shifted', values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid('', 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


MODEL = model(axis=2, shift=3, scale=0.5)
X = np.random.default_rng(1).standard_normal((1, 3, 8, 9), np.float32)


def right_results() -> np.ndarray:
    weights = numpy_helper.to_array(MODEL.graph.initializer[0])[:, :, 0, 0]
    image = np.einsum('kc,nchw->nkhw', weights.astype(np.float64), X)
    return np.maximum(expected(image, 2, 3, 0.5), 0)


def test_without_it_the_model_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=f'1 x {DOMAIN}::{NAME}') as error:
        lower(import_onnx(MODEL))
    assert error.value.nodes == ('shift',)


@pytest.mark.parametrize(('axis', 'shift'), [(0, 1), (1, -2), (2, 3), (-1, 0), (2, 100)])
def test_it_computes_what_it_says(registered: Operator, axis: int, shift: int) -> None:
    x = np.random.default_rng(2).standard_normal((2, 4, 5)).astype(np.float32)
    group = scaled_shift(x.shape, axis % 3, shift, -1.5)
    graph = import_onnx(single(axis=axis, shift=shift, scale=-1.5))
    (task,) = lower(graph).tasks
    assert task.group.digest == group.digest
    (got,) = evaluate(lower(graph), {'x': x}).values()
    np.testing.assert_allclose(got, expected(x, axis % 3, shift, -1.5), rtol=1e-6)


def single(**attributes) -> ModelProto:
    node = helper.make_node(NAME, ['x'], ['y'], name='shift', domain=DOMAIN, **attributes)
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4, 5]) for n in 'xy']
    graph = helper.make_graph([node], 'single', infos[:1], infos[1:])
    opsets = [helper.make_opsetid('', 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize(
    ('attributes', 'said'),
    [
        ({}, "com.example::ScaledShift 'shift': it needs the attribute shift"),
        ({'shift': 1.5}, 'its shift is 1.5; it must be a whole number'),
        ({'shift': 1, 'axis': 7}, 'axis 7 is none of 4 dimensions'),
    ],
)
def test_wrong_attributes_are_one_sentence(registered: Operator, attributes, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        lower(import_onnx(model(**attributes)))


@pytest.mark.parametrize('target', ['cpu', 'host'])
def test_networks_with_it_are_compiled_and_checked(registered: Operator, target: str) -> None:
    """What follows it is fused with it; results are compared with a program without any pass."""
    threads = 1 if target == 'cpu' else None
    network = tw.compile(MODEL, target=target, check=True, threads=threads)
    tasks = network.gpu_tasks if isinstance(network, GpuNetwork) else network.tasks
    assert ('shift', 'relu') in [task.origin for task in tasks]
    np.testing.assert_allclose(network(X), right_results(), rtol=1e-5, atol=1e-6)


def test_a_saved_network_needs_no_registration(registered: Operator, tmp_path: Path) -> None:
    path = tmp_path / 'shifted.tw'
    tw.compile(MODEL, threads=1, save=path)
    unregister(NAME, domain=DOMAIN)
    try:
        np.testing.assert_allclose(tw.load(path)(X), right_results(), rtol=1e-5, atol=1e-6)
    finally:
        register(NAME, registered, domain=DOMAIN, family='Own')


@pytest.mark.filterwarnings('ignore:.*nominal figures.*')
@pytest.mark.parametrize('machine', ['i7-9700k', 'h200'])
def test_it_is_priced_and_explained(
    registered: Operator, machine: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path, report = tmp_path / 'shifted.onnx', tmp_path / 'report.json'
    save(MODEL, path)
    assert invoke(['explain', str(path), '--machine', machine, '--json', str(report)]) == 0
    said = capsys.readouterr().out
    assert 'scaled_shift' in said
    (network,) = json.loads(report.read_text())['networks']
    (group,) = (g for g in network['groups'] if 'relu' in g['tasks'])
    assert group['label'].endswith('scaled_shift-1x4x8x9@2by3+relu')  # alone, or last of a chain
    assert group['predicted_us' if machine == 'h200' else 'predicted_ms'] > 0


def test_it_is_listed_until_it_is_taken_back() -> None:
    """docs/operators.md is written from `FAMILIES`."""
    before = dict(OPERATORS), list(FAMILIES)
    operator = register(NAME, Operator(lowered), domain=DOMAIN, family='Own')
    try:
        assert FAMILIES['Own'] == {f'{DOMAIN}::{NAME}': operator}
        with pytest.raises(InputError, match='already; choose another name'):
            register(NAME, operator, domain=DOMAIN)
    finally:
        unregister(NAME, domain=DOMAIN)
    assert (dict(OPERATORS), list(FAMILIES)) == before
    with pytest.raises(InputError, match="'Relu' was not registered"):
        unregister('Relu')
    with pytest.raises(InputError, match="'Conv' already"):
        register('Conv', operator, domain='ai.onnx')
