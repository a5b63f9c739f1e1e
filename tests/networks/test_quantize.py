"""`tilewright quantize` writes what ONNX Runtime computes alike, and says what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import zoo
from tilewright.cli.main import invoke
from tilewright.errors import InputError, MissingError
from tilewright.graph.graph import Value
from tilewright.machine.measure import load_machine
from tilewright.precision.entropy import threshold
from tilewright.precision.samples import samples_of
from tilewright_lab.scripts.integer_networks import exact_results, unit

pytest.importorskip('onnxruntime')


def small_model() -> onnx.ModelProto:
    """x -> Conv -> Relu -> Conv -> Add(its input) -> GlobalAveragePool -> Flatten -> Gemm -> y"""
    random = np.random.default_rng(7)
    arrays = {
        'w1': random.standard_normal((8, 4, 3, 3)), 'b1': random.standard_normal(8),
        'w2': random.standard_normal((8, 8, 1, 1)), 'b2': random.standard_normal(8),
        'w3': random.standard_normal((8, 5)), 'b3': random.standard_normal(5),
    }  # fmt: skip
    nodes = [
        helper.make_node('Conv', ['x', 'w1', 'b1'], ['c1'], 'conv1', pads=[1, 1, 1, 1]),
        helper.make_node('Relu', ['c1'], ['r1'], 'relu1'),
        helper.make_node('Conv', ['r1', 'w2', 'b2'], ['c2'], 'conv2'),
        helper.make_node('Add', ['c2', 'r1'], ['a'], 'add1'),
        helper.make_node('GlobalAveragePool', ['a'], ['g'], 'mean1'),
        helper.make_node('Flatten', ['g'], ['f'], 'flatten1'),
        helper.make_node('Gemm', ['f', 'w3', 'b3'], ['y'], 'linear1'),
    ]
    graph = helper.make_graph(
        nodes, 'small',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, (1, 4, 6, 6))],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, (1, 5))],
        [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)


def samples(count: int = 6) -> np.ndarray:
    return np.random.default_rng(11).standard_normal((count, 4, 6, 6), np.float32)


@pytest.mark.parametrize(
    'options',
    [
        {}, {'activations': 'i8'}, {'symmetric': True}, {'per_channel': False},
        {'ranges': 'percentile', 'percentile': 99.9}, {'ranges': 'entropy'},
    ],
    ids=str,
)  # fmt: skip
def test_a_quantised_model_is_near_its_floats_and_equal_to_onnxruntime(options, tmp_path) -> None:
    path = tmp_path / 'small.onnx'
    made = tw.quantize(small_model(), samples(), save=path, **options)
    assert made.output.rel < 0.1
    weighted = [row for row in made.layers if row.weights is not None]
    assert [row.name for row in weighted] == ['conv1', 'conv2', 'linear1']
    assert all(0 < row.weights < 0.02 and 0 < row.error < 0.2 for row in weighted)
    machine, _ = load_machine(measure=False)
    x = samples(1)
    mine = tw.compile(path, machine=machine, threads=1).run({'x': x})['y']
    apart = np.abs(np.rint((mine - exact_results(path, {'x': x})) / unit(path)))
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= 1


# (network, options, most results that differ, each by one unit)
@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'options', 'differ'),
    [
        ('resnet18', {}, 2),
        ('mobilenet_v1', {'ranges': 'percentile'}, 3),
        ('mobilenet_v2', {'activations': 'i8', 'symmetric': True}, 3),
        ('squeezenet', {'per_channel': False}, 3),
        ('alexnet', {'ranges': 'entropy'}, 3),
    ],
)
def test_networks_of_the_zoo_are_those_of_onnxruntime(name, options, differ, tmp_path) -> None:
    net, path = zoo.network(name, **zoo.SMALL[name]), tmp_path / 'small.onnx'
    given = [zoo.inputs(net, seed) for seed in range(1, 5)]
    tw.quantize(zoo.onnx_model(name, **zoo.SMALL[name]), given, save=path, **options)
    machine, _ = load_machine(measure=False)
    inputs = zoo.inputs(net)
    mine = next(iter(tw.compile(path, machine=machine, threads=2).run(inputs).values()))
    apart = np.abs(np.rint((mine - exact_results(path, inputs)) / unit(path)))
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= differ


def test_the_command_line_writes_a_model_and_a_report(tmp_path: Path, capsys) -> None:
    onnx.save(small_model(), tmp_path / 'm.onnx')
    (tmp_path / 'data').mkdir()
    for number, x in enumerate(samples(3)):
        np.save(tmp_path / 'data' / f'{number}.npy', x[None])
    words = ['quantize', str(tmp_path / 'm.onnx'), '--data', str(tmp_path / 'data'), '-o',
             str(tmp_path / 'q.onnx')]  # fmt: skip
    assert invoke([*words, '--exclude', 'conv2', '--json', str(tmp_path / 'r.json')]) == 0
    said = capsys.readouterr().out
    assert 'linear1' in said
    assert 'relative error' in said
    report = json.loads((tmp_path / 'r.json').read_text())
    assert report['samples'] == 3
    weighted = {row['name'] for row in report['layers'] if row['weights'] is not None}
    assert weighted == {'conv1', 'linear1'}
    ops = [node.op_type for node in onnx.load(tmp_path / 'q.onnx').graph.node]
    assert 'QuantizeLinear' in ops


@pytest.mark.parametrize(
    ('given', 'sentence'),
    [
        (np.zeros((3, 4, 6, 5), np.float32), r"'x' have shape \[3, 4, 6, 5\].*\[1, 4, 6, 6\]"),
        (samples(1), '1 samples are given, and at least 2'),
        ([], '0 samples are given'),
        (np.full((3, 4, 6, 6), np.inf, np.float32), "samples of 'x' hold 144 values .* infinite"),
        ({'z': samples(), 'x': samples()}, "arrays named 'x', 'z', where the inputs are 'x'"),
        (samples().astype(np.complex64), "samples of 'x' are complex64"),
        (7, 'samples are int; give a file or a folder'),
        (np.full((3, 4, 6, 6), 3e38, np.float32), r"'\w+' at node '\w+' ranges from"),
        (np.zeros((3, 4, 6, 6), np.float32), r"'x' at node 'conv1' is 0 in all of 3 samples"),
    ],
)
def test_samples_that_cannot_serve_are_one_sentence(given, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tw.quantize(small_model(), given)


@pytest.mark.parametrize(
    ('options', 'sentence'),
    [
        ({'ranges': 'all'}, "ranges is 'all'; choose one of minmax, percentile, entropy"),
        ({'activations': 'f16'}, "activations is 'f16'; choose one of u8, i8"),
        ({'percentile': 120}, 'percentile is 120.0; give one from 50 to 100'),
        ({'exclude': ['conv9']}, "node 'conv9' is not in the model"),
        ({'save': 'm.tw'}, 'does not end in .onnx'),
    ],
)
def test_options_that_mean_nothing_are_one_sentence(options, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        tw.quantize(small_model(), samples(), **options)


def test_a_model_of_integers_and_a_missing_package_are_one_sentence(monkeypatch) -> None:
    small = tw.quantize(small_model(), samples()).model
    with pytest.raises(InputError, match='holds quantised values already'):
        tw.quantize(small, samples())
    monkeypatch.setitem(sys.modules, 'onnxruntime', None)
    monkeypatch.setitem(sys.modules, 'onnxruntime.quantization', None)
    with pytest.raises(MissingError, match=r'quantising needs onnxruntime.*pip install'):
        tw.quantize(small_model(), samples())


def test_samples_are_split_into_calls() -> None:
    inputs = (Value('x', (2, 3)), Value('ids', (2,), 'i64'))
    x, ids = np.arange(12, dtype=np.float64).reshape(4, 3), np.arange(4)
    joined = samples_of({'x': x, 'ids': ids}, inputs, 1)
    stacked = samples_of({'x': x.reshape(2, 2, 3), 'ids': ids.reshape(2, 2)}, inputs, 1)
    assert len(joined) == len(stacked) == 2
    for a, b in zip(joined, stacked, strict=True):
        assert all(np.array_equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)
    assert joined[1]['x'].dtype == np.float32
    with pytest.raises(InputError, match="2 of 'x', 1 of 'ids'"):
        samples_of({'x': x, 'ids': ids[:2]}, inputs, 1)


def test_entropy_keeps_all_of_an_even_spread_and_cuts_an_outlier() -> None:
    edges = np.linspace(0, 8, 2049)
    even = np.full(2048, 10_000)
    assert threshold(even, edges, 127) == 8
    decaying = (1e7 * np.exp(-edges[:-1] * 6)).astype(np.int64)
    decaying[-1] = 1
    assert 0.4 < threshold(decaying, edges, 127) < 7


def test_layers_of_torch_that_tools_or_an_older_opset_do_not_know(tmp_path: Path) -> None:
    """Grouped transposed convolutions, constants on the left of a product, attention, log1p."""
    torch, onnxruntime = map(pytest.importorskip, ('torch', 'onnxruntime'))

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up = torch.nn.ConvTranspose2d(4, 6, 2, stride=2, groups=2)
            self.mixed = torch.nn.Linear(6, 18)
            self.register_buffer('left', torch.linspace(-1, 1, 8 * 16).reshape(8, 16))

        def forward(self, x: Any) -> Any:
            y = torch.nn.functional.softplus(self.up(x)).flatten(2).transpose(1, 2)
            q, k, v = self.mixed(self.left @ y).unsqueeze(1).chunk(3, -1)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v), y.expm1()

    torch.manual_seed(0)
    module = Layers().eval()
    x = np.random.default_rng(1).standard_normal((4, 4, 2, 2), np.float32)
    path = tmp_path / 'small.onnx'
    made = tw.quantize(module, x, shapes={'x': (1, 4, 2, 2)}, save=path)
    assert made.output.cosine > 0.99
    found = tw.compile(path, threads=1).run({'x': x[:1]})
    plain = onnxruntime.SessionOptions()
    plain.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, plain)
    for got, want in zip(found.values(), session.run(None, {'x': x[:1]}), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
