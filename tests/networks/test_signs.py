"""Quantised tensors move to the sign that a machine multiplies, and stand for the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph
from tilewright.graph.integer import on_integers
from tilewright.graph.lower import lower
from tilewright.graph.signs import with_sign
from tilewright.importers.onnx import import_onnx

SHAPE = (1, 4, 6, 6)


def model(dtype: type, leaves: bool = False) -> onnx.ModelProto:
    """Two convolutions, what moves and compares elements between them, a sum and a concatenation;
    `leaves`: the numbers of the first one are a result of the model.
    """
    random = np.random.default_rng(5)
    zeros = [70, 11, 140] if dtype is np.uint8 else [-58, -117, 12]
    arrays = {
        'xs': np.float32(0.02), 'ys': np.float32(0.03), 'zs': np.float32(0.05),
        'xz': dtype(zeros[0]), 'yz': dtype(zeros[1]), 'zz': dtype(zeros[2]),
        'w': random.integers(-128, 128, (4, 4, 3, 3)).astype(np.int8),
        'ws': random.uniform(0.001, 0.01, 4).astype(np.float32), 'wz': np.zeros(4, np.int8),
        'low': dtype(zeros[1] + 3), 'high': dtype(zeros[1] + 99), 'shape': np.array(SHAPE),
    }  # fmt: skip
    of_x, of_y, weights = ['xs', 'xz'], ['ys', 'yz'], ['w', 'ws', 'wz']
    pads: dict[str, Any] = {'pads': [1, 1, 1, 1]}
    nodes = [
        helper.make_node('QuantizeLinear', ['x', *of_x], ['q']),
        helper.make_node('QLinearConv', ['q', *of_x, *weights, *of_y], ['c'], **pads),
        helper.make_node('Clip', ['c', 'low', 'high'], ['cut']),
        helper.make_node('MaxPool', ['cut'], ['m'], kernel_shape=[3, 3], **pads),
        helper.make_node('Reshape', ['m', 'shape'], ['r']),
        helper.make_node('QLinearConv', ['r', *of_y, *weights, 'zs', 'zz'], ['d'], **pads),
        helper.make_node('QLinearAdd', ['d', 'zs', 'zz', 'r', *of_y, 'zs', 'zz'], ['s'],
                         domain='com.microsoft'),
        helper.make_node('Concat', ['s', 'd'], ['j'], axis=1),
        helper.make_node('DequantizeLinear', ['j', 'zs', 'zz'], ['y']),
    ]  # fmt: skip
    results = [helper.make_tensor_value_info('y', TensorProto.FLOAT, (1, 8, 6, 6))]
    if leaves:
        kind = TensorProto.UINT8 if dtype is np.uint8 else TensorProto.INT8
        results.append(helper.make_tensor_value_info('c', kind, SHAPE))
    graph = helper.make_graph(
        nodes, 'signs', [helper.make_tensor_value_info('x', TensorProto.FLOAT, SHAPE)], results,
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )  # fmt: skip
    domains = [helper.make_opsetid('', 21), helper.make_opsetid('com.microsoft', 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def moved_zeros(before: Graph, after: Graph) -> int:
    """How many inputs of nodes are other constants than before."""
    pairs = zip(before.nodes, after.nodes, strict=True)
    return sum(
        a != b for one, other in pairs for a, b in zip(one.inputs, other.inputs, strict=True)
    )


@pytest.mark.parametrize(('dtype', 'words'), [(np.uint8, 'i8'), (np.int8, 'u8')])
@pytest.mark.parametrize('leaves', [False, True])
def test_moved_tensors_compute_the_same(dtype: type, words: str, leaves: bool) -> None:
    """A zero point or limit that is not moved with its tensor would change nearly every number."""
    graph = on_integers(import_onnx(model(dtype, leaves)))
    made = with_sign(graph, words)
    x = np.random.default_rng(0).uniform(-2, 2, SHAPE).astype(np.float32)
    want, found = (evaluate(lower(one), {'x': x}) for one in (graph, made))
    for name, array in want.items():
        assert np.array_equal(array, found[name])
        assert array.dtype == found[name].dtype
    # Nine zero points and two limits. Where `c` is a result its own stays, and with it those of all
    # that has its elements: of q, d, s and j six are left.
    assert moved_zeros(graph, made) == (6 if leaves else 11)


@pytest.mark.parametrize('words', ['', 'i16', 'i32'])
def test_other_words_change_nothing(words: str) -> None:
    """Sets that widen numbers as they are copied take either sign."""
    graph = on_integers(import_onnx(model(np.uint8)))
    assert with_sign(graph, words) is graph
