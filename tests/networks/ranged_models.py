"""Small ONNX models whose sizes are open: an encoder of words, a detector of images."""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper

HEADS, HEAD, HIDDEN, WORDS, LONGEST = 2, 16, 32, 50, 64


def _weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in shapes.items()
    }


def _model(nodes: list, inputs: list, outputs: list, arrays: dict[str, np.ndarray]) -> ModelProto:
    constants = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, 'ranged', inputs, outputs, constants)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=8
    )  # fmt: skip


def encoder() -> ModelProto:
    """Words and places, one layer of attention with residuals and normalisation, two scores."""
    node = helper.make_node
    arrays = _weights(
        table=(WORDS, HIDDEN), places=(LONGEST, HIDDEN), wq=(HIDDEN, HIDDEN), wk=(HIDDEN, HIDDEN),
        wv=(HIDDEN, HIDDEN), wo=(HIDDEN, HIDDEN), w1=(HIDDEN, 4 * HIDDEN), b1=(4 * HIDDEN,),
        w2=(4 * HIDDEN, HIDDEN), ws=(HIDDEN, 2),
    )  # fmt: skip
    arrays |= {
        'scale': np.ones(HIDDEN, np.float32), 'split': np.array([0, 0, HEADS, HEAD]),
        'join': np.array([0, 0, HIDDEN]), 'zero': np.array([0]), 'one': np.array([1]),
        'root': np.float32(HEAD**-0.5),
    }  # fmt: skip
    nodes = [
        node('Gather', ['table', 'ids'], ['words']),
        node('Shape', ['ids'], ['shape']),
        node('Slice', ['shape', 'one', 'two'], ['length']),
        node('Slice', ['places', 'zero', 'length', 'zero'], ['here']),
        node('Add', ['words', 'here'], ['x']),
    ]
    arrays['two'] = np.array([2])
    apart, turned = [0, 2, 1, 3], [0, 2, 3, 1]
    for name in 'qkv':
        nodes += [
            node('MatMul', ['x', f'w{name}'], [f'{name}0']),
            node('Reshape', [f'{name}0', 'split'], [f'{name}1']),
            node('Transpose', [f'{name}1'], [name], perm=turned if name == 'k' else apart),
        ]
    nodes += [
        node('MatMul', ['q', 'k'], ['s0']),
        node('Mul', ['s0', 'root'], ['s1']),
        node('Softmax', ['s1'], ['p'], axis=-1),
        node('MatMul', ['p', 'v'], ['a0']),
        node('Transpose', ['a0'], ['a1'], perm=[0, 2, 1, 3]),
        node('Reshape', ['a1', 'join'], ['a2']),
        node('MatMul', ['a2', 'wo'], ['a3']),
        node('Add', ['a3', 'x'], ['r']),
        node('LayerNormalization', ['r', 'scale'], ['n']),
        node('MatMul', ['n', 'w1'], ['f0']),
        node('Add', ['f0', 'b1'], ['f1']),
        node('Relu', ['f1'], ['f2']),
        node('MatMul', ['f2', 'w2'], ['f3']),
        node('Add', ['f3', 'n'], ['f4']),
        node('MatMul', ['f4', 'ws'], ['scores']),
    ]
    ids = helper.make_tensor_value_info('ids', TensorProto.INT64, ['batch', 'length'])
    scores = helper.make_tensor_value_info('scores', TensorProto.FLOAT, ['batch', 'length', 2])
    return _model(nodes, [ids], [scores], arrays)


def detector() -> ModelProto:
    """Convolutions down to an eighth and a path up again, boxes of each place, a mean of all."""
    node = helper.make_node
    arrays = _weights(
        w0=(8, 3, 3, 3), b0=(8,), w1=(8, 1, 3, 3), w2=(16, 8, 1, 1), w3=(16, 16, 3, 3),
        w4=(6, 24, 1, 1),
    )  # fmt: skip
    pads = [1, 1, 1, 1]
    nodes = [
        node('Conv', ['x', 'w0', 'b0'], ['c0'], pads=pads, strides=[2, 2]),
        node('Relu', ['c0'], ['a0']),
        node('Conv', ['a0', 'w1'], ['c1'], pads=pads, group=8),
        node('Clip', ['c1', 'low', 'high'], ['a1']),
        node('Conv', ['a1', 'w2'], ['c2']),
        node('MaxPool', ['c2'], ['m'], kernel_shape=[2, 2], strides=[2, 2]),
        node('Conv', ['m', 'w3'], ['c3'], pads=pads, strides=[1, 1]),
        node('Resize', ['c3', '', 'factors'], ['up'], mode='nearest',
             coordinate_transformation_mode='asymmetric', nearest_mode='floor'),
        node('Concat', ['up', 'a1'], ['both'], axis=1),
        node('Conv', ['both', 'w4'], ['boxes']),
        node('GlobalAveragePool', ['c3'], ['mean']),
    ]  # fmt: skip
    arrays |= {
        'low': np.float32(-1), 'high': np.float32(2), 'factors': np.array([1, 1, 2, 2], np.float32)
    }  # fmt: skip
    x = helper.make_tensor_value_info('x', TensorProto.FLOAT, ['n', 3, 'h', 'w'])
    boxes = helper.make_tensor_value_info('boxes', TensorProto.FLOAT, ['n', 6, 'bh', 'bw'])
    mean = helper.make_tensor_value_info('mean', TensorProto.FLOAT, ['n', 16, 1, 1])
    return _model(nodes, [x], [boxes, mean], arrays)
