"""Quantised models: on integers from end to end, and equal to ONNX Runtime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright import zoo
from tilewright.graph.evaluate import evaluate
from tilewright.graph.integer import on_integers
from tilewright.importers.onnx import import_onnx
from tilewright.machine.isa import ISAS
from tilewright.machine.measure import load_machine
from tilewright.network.compile import compile, prepare
from tilewright.ops.integer import is_integer_products
from tilewright_lab.scripts.integer_networks import exact_results, quantise, unit


def quantised_conv(
    activation: str = '', zero: int = 7, last: bool = True, dtype: type = np.uint8
) -> onnx.ModelProto:
    """x -> QuantizeLinear -> DequantizeLinear -> Conv -> (activation) -> Q -> DQ, as tools write
    them; without `last` the convolution's result is not quantised.
    """
    random = np.random.default_rng(3)
    weights = random.integers(-128, 128, (6, 5, 3, 3)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, 6).astype(np.float32)
    arrays = {
        'xs': np.float32(0.02), 'xz': dtype(zero), 'w': weights, 'ws': scales,
        'wz': np.zeros(6, np.int8), 'b': random.integers(-500, 500, 6).astype(np.int32),
        'bs': np.float32(0.02) * scales, 'ys': np.float32(0.03), 'yz': dtype(11),
        'low': np.float32(0), 'high': np.float32(1.5),
    }  # fmt: skip
    nodes = [
        helper.make_node('QuantizeLinear', ['x', 'xs', 'xz'], ['q']),
        helper.make_node('DequantizeLinear', ['q', 'xs', 'xz'], ['f']),
        helper.make_node('DequantizeLinear', ['w', 'ws', 'wz'], ['wf'], axis=0),
        helper.make_node('DequantizeLinear', ['b', 'bs'], ['bf'], axis=0),
        helper.make_node('Conv', ['f', 'wf', 'bf'], ['c'], pads=[1, 0, 1, 2], strides=[2, 1]),
    ]
    value = 'c'
    if activation:
        limits = ['low', 'high'] if activation == 'Clip' else []
        nodes.append(helper.make_node(activation, [value, *limits], ['a']))
        value = 'a'
    if last:
        nodes.append(helper.make_node('QuantizeLinear', [value, 'ys', 'yz'], ['o']))
        nodes.append(helper.make_node('DequantizeLinear', ['o', 'ys', 'yz'], ['y']))
    else:
        nodes[-1].output[0] = 'y'
    read = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, 'quantised',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, (1, 5, 9, 8))],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, (1, 6, 5, 8))],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items() if n in read],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)


X = np.random.default_rng(5).standard_normal((1, 5, 9, 8), np.float32)


@pytest.mark.parametrize('activation', ['', 'Relu', 'Clip'])
@pytest.mark.parametrize('dtype', [np.uint8, np.int8])
def test_a_convolution_between_quantised_tensors_is_one_group(activation: str, dtype: type) -> None:
    """Sums on integers, and everything behind them in one group; what is computed stays."""
    model = quantised_conv(activation, dtype=dtype)
    graph = import_onnx(model)
    ops = [node.op for node in on_integers(graph).nodes]
    assert ops.count('QLinearConv') == 1
    assert 'Conv' not in ops
    program = prepare(model)
    assert len(program.tasks) == 2  # the input is quantised first
    made = evaluate(program, {'x': X})['y']
    plain = evaluate(prepare(model, passes=['fold', 'dead']), {'x': X})['y']
    assert np.abs(np.rint((made - plain) / 0.03)).max() <= 1
    assert np.count_nonzero(np.rint((made - plain) / 0.03)) <= 1


@pytest.mark.parametrize('dtype', [np.uint8, np.int8])
def test_zero_points_that_are_left_out_are_zero(dtype: type) -> None:
    """They are optional; a model without them runs on its integers all the same."""
    model = quantised_conv('Relu', zero=0, dtype=dtype)
    want = evaluate(prepare(model), {'x': X})['y']
    for node in model.graph.node:
        if node.op_type == 'DequantizeLinear' and node.input[-1] != 'yz':
            del node.input[2:]
        if node.op_type == 'QuantizeLinear' and node.input[-1] == 'xz':
            del node.input[2:]
            node.attribute.append(
                helper.make_attribute(
                    'output_dtype', helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
                )
            )
    ops = [node.op for node in on_integers(import_onnx(model)).nodes]
    assert ops.count('QLinearConv') == 1
    np.testing.assert_array_equal(evaluate(prepare(model), {'x': X})['y'], want)


def test_weights_that_are_stored_once_may_have_two_scales() -> None:
    """Scales along the first axis of one product are not those along the second of another."""
    random = np.random.default_rng(7)
    arrays = {
        's': np.float32(0.02), 'z': np.uint8(9), 'w': random.integers(-99, 99, (4, 4)).astype('i1'),
        'rows': random.uniform(0.01, 0.1, 4).astype('f4'), 'zeros': np.zeros(4, np.int8),
    }  # fmt: skip
    nodes = [
        helper.make_node('QuantizeLinear', ['x', 's', 'z'], ['q']),
        helper.make_node('DequantizeLinear', ['q', 's', 'z'], ['f']),
        helper.make_node('DequantizeLinear', ['w', 'rows', 'zeros'], ['columns'], axis=1),
        helper.make_node('DequantizeLinear', ['w', 'rows', 'zeros'], ['lines'], axis=0),
        helper.make_node('MatMul', ['f', 'columns'], ['a']),
        helper.make_node('MatMul', ['f', 'lines'], ['b']),
    ]
    graph = helper.make_graph(
        nodes, 'shared', [helper.make_tensor_value_info('x', TensorProto.FLOAT, (3, 4))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, (3, 4)) for name in 'ab'],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)
    x = random.standard_normal((3, 4), np.float32)
    plain = evaluate(prepare(model, passes=['fold', 'dead']), {'x': x})
    made = evaluate(prepare(model), {'x': x})
    for name in 'ab':
        np.testing.assert_allclose(made[name], plain[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize('last', [True, False])
@pytest.mark.parametrize('zero', [0, 7, 128])
def test_products_know_what_stands_for_zero_in_their_image(zero: int, last: bool) -> None:
    """Its zero point says how large numbers are: prices of products of bytes depend on it."""
    random = np.random.default_rng(3)
    weights = random.integers(-128, 128, (6, 5)).astype(np.int8)
    quantise = ['QLinearMatMul', ['x', 'xs', 'xz', 'w', 'ws', 'wz', 'ys', 'yz']]
    op, given = quantise if last else ['MatMulInteger', ['x', 'w', 'xz', 'wz']]
    arrays = {
        'xs': np.float32(0.02), 'xz': np.uint8(zero), 'w': weights, 'ws': np.float32(0.01),
        'wz': np.int8(3), 'ys': np.float32(0.03), 'yz': np.uint8(11),
    }  # fmt: skip
    out = TensorProto.UINT8 if last else TensorProto.INT32
    graph = helper.make_graph(
        [helper.make_node(op, given, ['y'])], 'products',
        [helper.make_tensor_value_info('x', TensorProto.UINT8, (4, 6))],
        [helper.make_tensor_value_info('y', out, (4, 5))],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items() if n in given],
    )  # fmt: skip
    opsets = [helper.make_opsetid('', 21)]
    program = prepare(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    (task,) = [t for t in program.tasks if is_integer_products(t.group)]
    assert task.group.main.pad_value == zero
    x = random.integers(0, 256, (4, 6)).astype(np.uint8)
    sums = (x.astype(int) - zero) @ (weights.astype(int) - 3)
    scale = np.float32(0.02) * np.float32(0.01) / np.float32(0.03)
    want = np.clip(np.rint(sums.astype(np.float32) * scale) + 11, 0, 255) if last else sums
    np.testing.assert_array_equal(evaluate(program, {'x': x})['y'], want)


def test_sums_that_nobody_quantises_are_scaled_once() -> None:
    model = quantised_conv(last=False)
    ops = [node.op for node in on_integers(import_onnx(model)).nodes]
    assert ops[-2:] == ['ConvInteger', 'DequantizeLinear']
    x = np.random.default_rng(5).standard_normal((1, 5, 9, 8), np.float32)
    made = evaluate(prepare(model), {'x': x})['y']
    plain = evaluate(prepare(model, passes=['fold', 'dead']), {'x': x})['y']
    np.testing.assert_allclose(made, plain, rtol=1e-5, atol=1e-5)


def test_a_compiled_convolution_is_that_of_onnxruntime(tmp_path: Path) -> None:
    path = tmp_path / 'model.onnx'
    onnx.save(quantised_conv('Relu'), path)
    machine, _ = load_machine(measure=False)
    x = np.random.default_rng(5).standard_normal((1, 5, 9, 8), np.float32)
    made = compile(path, machine=machine, threads=2).run({'x': x})['y']
    np.testing.assert_array_equal(made, exact_results(path, {'x': x}))


def concatenation(second_scale: float, first: int = 20) -> onnx.ModelProto:
    """Two 1x1 convolutions of one quantised image, their results concatenated and quantised."""
    random = np.random.default_rng(7)
    arrays = {
        'xs': np.float32(0.02), 'xz': np.uint8(7), 'ys': np.float32(0.03), 'yz': np.uint8(11),
        'zs': np.float32(second_scale), 'zz': np.uint8(11), 'wz': np.int8(0),
    }  # fmt: skip
    nodes = [
        helper.make_node('QuantizeLinear', ['x', 'xs', 'xz'], ['q']),
        helper.make_node('DequantizeLinear', ['q', 'xs', 'xz'], ['f']),
    ]
    for name, scale, channels in (('a', 'y', first), ('b', 'z', 8)):
        arrays[f'{name}w'] = random.integers(-128, 128, (channels, 8, 1, 1)).astype(np.int8)
        arrays[f'{name}s'] = np.float32(0.004)
        nodes += [
            helper.make_node('DequantizeLinear', [f'{name}w', f'{name}s', 'wz'], [f'{name}f']),
            helper.make_node('Conv', ['f', f'{name}f'], [f'{name}c']),
            helper.make_node(
                'QuantizeLinear', [f'{name}c', f'{scale}s', f'{scale}z'], [f'{name}q']
            ),
            helper.make_node('DequantizeLinear', [f'{name}q', f'{scale}s', f'{scale}z'], [name]),
        ]
    nodes += [
        helper.make_node('Concat', ['a', 'b'], ['j'], axis=1),
        helper.make_node('QuantizeLinear', ['j', 'ys', 'yz'], ['jq']),
        helper.make_node('DequantizeLinear', ['jq', 'ys', 'yz'], ['jf']),
        helper.make_node('MaxPool', ['jf'], ['m'], kernel_shape=[2, 2]),
        helper.make_node('QuantizeLinear', ['m', 'ys', 'yz'], ['mq']),
        helper.make_node('DequantizeLinear', ['mq', 'ys', 'yz'], ['o']),
    ]
    graph = helper.make_graph(
        nodes, 'concatenation',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, (1, 8, 6, 5))],
        [helper.make_tensor_value_info('o', TensorProto.FLOAT, (1, first + 8, 5, 4))],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)


@pytest.mark.parametrize('second_scale', [0.03, 0.05])
def test_parts_of_a_concatenation_are_written_where_they_belong(
    second_scale: float, tmp_path: Path
) -> None:
    """With channels innermost, and stored anew where their scale is another one."""
    path = tmp_path / 'model.onnx'
    onnx.save(concatenation(second_scale), path)
    tasks = prepare(path).tasks
    assert [task.writes_part for task in tasks].count(True) == 2
    assert len(tasks) == 4  # the input is quantised, two convolutions, the pooling
    machine, _ = load_machine(measure=False)
    x = np.random.default_rng(5).standard_normal((1, 8, 6, 5), np.float32)
    made = compile(path, machine=machine, threads=2).run({'x': x})['o']
    np.testing.assert_array_equal(made, exact_results(path, {'x': x}))


@pytest.mark.parametrize('threads', [1, 2])
def test_a_concatenation_may_have_a_part_of_one_channel(threads: int, tmp_path: Path) -> None:
    """Such a part lies in memory as if its channels were last, but has the axes of the model."""
    path = tmp_path / 'model.onnx'
    onnx.save(concatenation(0.03, first=1), path)
    machine, _ = load_machine(measure=False)
    x = np.random.default_rng(5).standard_normal((1, 8, 6, 5), np.float32)
    made = compile(path, machine=machine, threads=threads).run({'x': x})['o']
    np.testing.assert_array_equal(made, exact_results(path, {'x': x}))


# (network, most units, most results that differ of those of the network): ties that one of both
# rounds up, which later layers carry on.
@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'signed', 'units', 'differ'),
    [
        ('resnet18', False, 1, 2),
        ('resnet18', True, 1, 2),
        ('mobilenet_v1', False, 1, 3),
        ('mobilenet_v2', False, 1, 3),
        ('squeezenet', False, 1, 3),
    ],
)
def test_a_quantised_network_is_that_of_onnxruntime(
    name: str, signed: bool, units: int, differ: int, tmp_path: Path
) -> None:
    small = zoo.SMALL[name]
    path = quantise(name, tmp_path / 'model.onnx', signed=signed, **small)
    machine, _ = load_machine(measure=False)
    inputs = zoo.inputs(zoo.network(name, **small))
    mine = next(iter(compile(path, machine=machine, threads=2).run(inputs).values()))
    apart = np.abs(np.rint((mine - exact_results(path, inputs)) / unit(path)))
    assert apart.max() <= units
    assert np.count_nonzero(apart) <= differ


def test_winograd_of_whole_numbers_is_that_of_onnxruntime(tmp_path: Path) -> None:
    """Residuals, borders with zero points, two threads: as exact as direct sums."""
    small = zoo.SMALL['resnet18']
    path = quantise('resnet18', tmp_path / 'model.onnx', signed=False, **small)
    machine, _ = load_machine(measure=False)
    words = ISAS[machine.isa].dots[-1].dtype  # of numbers that are wide enough, whatever else is
    machine = replace(machine, dot_dtype=words, dot_one_gops=100.0, dot_all_gops=200.0)
    inputs = zoo.inputs(zoo.network('resnet18', **small))
    found = {
        algorithm: compile(path, machine=machine, threads=2, algorithm=algorithm)
        for algorithm in ('winograd', 'direct')
    }
    kernels = found['winograd'].kernels.values()
    assert any(kernel.schedule.schema == 'winograd_words' for kernel in kernels)
    made, direct = (next(iter(network.run(inputs).values())) for network in found.values())
    np.testing.assert_array_equal(made, direct)
    apart = np.abs(np.rint((made - exact_results(path, inputs)) / unit(path)))
    assert apart.max() <= 1
    assert np.count_nonzero(apart) <= 2
