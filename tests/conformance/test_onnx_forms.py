"""Forms that ONNX's node tests leave out, against ONNX Runtime: older opsets, whole networks."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from sampling import NETWORKS

from tilewright import zoo
from tilewright.fallback.sessions import EXACT_INTEGERS
from tilewright.graph.evaluate import evaluate
from tilewright.graph.fold import fold
from tilewright.graph.graph import Graph
from tilewright.graph.lower import lower
from tilewright.graph.simplify import simplify
from tilewright.importers.onnx import import_onnx

onnxruntime = pytest.importorskip('onnxruntime', reason='ONNX Runtime is the oracle here')


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def model(opset: int, inputs: dict, tensors: dict, *nodes: object) -> ModelProto:
    """Nodes as (operator, inputs, attributes); outputs are y0, y1, .."""
    made = [
        helper.make_node(op, names, [f'y{i}'], **attributes)
        for i, (op, names, attributes) in enumerate(nodes)  # pyright: ignore
    ]
    graph = helper.make_graph(
        made,
        'test',
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(f'y{i}', 0, None) for i in range(len(made))],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in tensors.items()],
    )
    for info in graph.output:
        info.ClearField('type')
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', opset)], ir_version=7)


def same(made: ModelProto, inputs: dict) -> Graph:
    """Compares every output; returns the graph."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry(*EXACT_INTEGERS)
    data = made.SerializeToString()
    names = [info.name for info in made.graph.output]
    session = onnxruntime.InferenceSession(data, options, providers=['CPUExecutionProvider'])
    expected = session.run(names, inputs)
    graph = import_onnx(made)
    for form in (graph, simplify(fold(graph))):
        found = evaluate(lower(form), inputs)
        for name, want in zip(names, expected, strict=True):
            assert found[name].shape == want.shape, name
            assert found[name].dtype == want.dtype, name
            np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-5, err_msg=name)
    return graph


@pytest.mark.parametrize('opset', [7, 8, 9, 10, 11, 12, 13, 17, 18, 21])
def test_forms_that_changed(opset: int) -> None:
    """Attributes that became inputs, and Softmax, which once flattened; at every opset."""
    x = noise(2, 3, 4, 5)
    nodes, tensors = [], {}

    def add(op: str, since: int, values: dict, attributes: dict | None = None) -> None:
        """`values` are inputs from opset `since` on, attributes before."""
        names = ['x']
        if opset >= since:
            for key, value in values.items():
                names.append(f'{op}_{key}{len(nodes)}')
                tensors[names[-1]] = value
            nodes.append((op, names, attributes or {}))
        else:
            own = {k: v.tolist() for k, v in values.items()}
            nodes.append((op, names, {**own, **(attributes or {})}))

    axes = {'axes': np.array([1, 3])}
    add('ReduceSum', 13, axes, {'keepdims': 0})
    add('ReduceMax', 18, axes)
    add('ReduceLogSumExp', 18, axes)
    add('Unsqueeze', 13, {'axes': np.array([0, 2])})
    add('Clip', 11, {'min': np.float32(-0.5), 'max': np.float32(0.25)})
    add('Pad', 11, {'pads': np.array([0, 0, 1, 2, 0, 0, 0, 1]), 'value': np.float32(3)})
    add(
        'Slice',
        10,
        {'starts': np.array([1, -3]), 'ends': np.array([9, -1]), 'axes': np.array([2, 3])},
    )
    for axis in (0, 1, 2, 3):
        nodes.append(('Softmax', ['x'], {'axis': axis}))
        nodes.append(('LogSoftmax', ['x'], {'axis': axis}))
    nodes.append(('Hardmax', ['x'], {'axis': 2}))
    graph = same(model(opset, {'x': x}, tensors, *nodes), {'x': x})
    assert all('axes' not in n.attributes for n in graph.nodes)


@pytest.mark.parametrize('opset', [7, 9, 10])
def test_enlarging_before_opset_11(opset: int) -> None:
    x = noise(1, 2, 3, 4)
    scales = np.array([1, 1, 2, 3], np.float32)
    op = 'Resize' if opset == 10 else 'Upsample'
    for mode in ('nearest', 'linear'):
        node = (op, ['x', 's'], {'mode': mode})
        if opset < 9:
            node = (op, ['x'], {'mode': mode, 'scales': scales.tolist()})
        same(model(opset, {'x': x}, {'s': scales}, node), {'x': x})


@pytest.mark.parametrize('opset', [7, 9, 12, 14])
def test_dropout_and_batch_norm_are_for_use(opset: int) -> None:
    x, s = noise(2, 3, 4, 4), np.abs(noise(3)) + 0.5
    drop = ('Dropout', ['x'], {'ratio': 0.3} if opset < 12 else {})
    norm = ('BatchNormalization', ['y0', 's', 's', 's', 's'], {'epsilon': 1e-3})
    same(model(opset, {'x': x}, {'s': s}, drop, norm), {'x': x})


def test_group_normalisation_had_one_scale_a_group() -> None:
    x = noise(2, 6, 3, 3)
    tensors = {'s': noise(2), 'b': noise(2, 1).ravel()}
    made = model(18, {'x': x}, tensors, ('GroupNormalization', ['x', 's', 'b'], {'num_groups': 2}))
    found = evaluate(lower(import_onnx(made)), {'x': x})['y0']
    parts = x.reshape(2, 2, -1).astype(float)
    normal = (parts - parts.mean(2, keepdims=True)) / np.sqrt(parts.var(2, keepdims=True) + 1e-5)
    want = normal * tensors['s'][:, None] + tensors['b'][:, None]
    np.testing.assert_allclose(found, want.reshape(x.shape), rtol=1e-5, atol=1e-5)


CONVOLUTIONS = [
    {'pads': [1, 0, 0, 2], 'strides': [2, 1], 'dilations': [1, 2]},
    {'auto_pad': 'SAME_LOWER', 'strides': [2, 3]},
    {'auto_pad': 'SAME_UPPER'},
    {'auto_pad': 'VALID', 'strides': [3, 2]},
]


@pytest.mark.parametrize('attributes', CONVOLUTIONS)
@pytest.mark.parametrize('groups', [1, 2, 4])
def test_convolutions_with_computed_weights(attributes: dict, groups: int) -> None:
    """Weights that are inputs of the network, in groups and depthwise."""
    x, w, b = noise(2, 4, 9, 10), noise(8, 4 // groups, 3, 2), noise(8)
    if attributes.get('auto_pad', '').startswith('SAME') and 'strides' in attributes:
        attributes = {**attributes, 'dilations': [1, 1]}
    inputs = {'x': x, 'w': w, 'b': b}
    same(model(17, inputs, {}, ('Conv', list(inputs), {**attributes, 'group': groups})), inputs)


@pytest.mark.parametrize('rank', [1, 2, 3])
@pytest.mark.parametrize('groups', [1, 3])
def test_transposed_convolutions(rank: int, groups: int) -> None:
    """Strides, dilations, padding on both sides and behind, in one to three dimensions."""
    x, w, b = noise(2, 3, *(4, 5, 3)[:rank]), noise(3, 2, *(3, 4, 2)[:rank]), noise(2 * groups)
    for strides, dilations, pads, extra in (
        ((1, 1, 1), (1, 1, 1), (0,) * 6, (0, 0, 0)),
        ((2, 3, 2), (1, 1, 1), (1, 0, 0, 0, 1, 1), (1, 2, 0)),
        ((3, 2, 1), (2, 1, 3), (1, 1, 2, 2, 1, 0), (0, 1, 0)),
        ((2, 2, 2), (3, 2, 2), (0, 1, 0, 1, 0, 1), (0, 0, 1)),
    ):
        node = ('ConvTranspose', ['x', 'w', 'b'], {
            'strides': strides[:rank], 'dilations': dilations[:rank], 'group': groups,
            'pads': (*pads[:rank], *pads[3 : 3 + rank]), 'output_padding': extra[:rank],
        })  # fmt: skip
        same(model(17, {'x': x}, {'w': w, 'b': b}, node), {'x': x})


@pytest.mark.parametrize('rank', [1, 2, 3])
def test_poolings(rank: int) -> None:
    x = noise(2, 3, *(9, 8, 7)[:rank])
    nodes = []
    for ceil in (0, 1):
        shared = {'kernel_shape': (3, 2, 3)[:rank], 'strides': (2, 2, 1)[:rank], 'ceil_mode': ceil}
        pads = (*(1, 1, 0)[:rank], *(0, 1, 1)[:rank])
        nodes.append(('MaxPool', ['x'], {**shared, 'pads': pads, 'dilations': (2, 1, 1)[:rank]}))
        nodes.append(('MaxPool', ['x'], {'kernel_shape': (2,) * rank, 'auto_pad': 'SAME_LOWER'}))
        for counted in (0, 1):
            nodes.append(
                ('AveragePool', ['x'], {**shared, 'pads': pads, 'count_include_pad': counted})
            )
    nodes += [
        ('GlobalAveragePool', ['x'], {}),
        ('GlobalMaxPool', ['x'], {}),
        ('GlobalLpPool', ['x'], {'p': 3}),
    ]
    nodes.append(('LpPool', ['x'], {'kernel_shape': (2,) * rank, 'p': 3}))
    same(model(17, {'x': x}, {}, *nodes), {'x': x})


@pytest.mark.parametrize('name', NETWORKS)
def test_networks(name: str) -> None:
    """Every network of the zoo, in its small form."""
    made = zoo.onnx_model(name, **zoo.SMALL[name])
    image = zoo.example(zoo.network(name, **zoo.SMALL[name]), 0)
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=['CPUExecutionProvider']
    )
    want = session.run(None, {'image': image})[0]
    found = evaluate(lower(simplify(fold(import_onnx(made)))), {'image': image})['scores']
    assert np.abs(found - want).max() <= 1e-5 * np.abs(want).max()
