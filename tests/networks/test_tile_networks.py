"""Networks in tiles, which plain C computes here: bf16 by `precision=`, int8 from a QDQ model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import zoo
from tilewright.machine.detect import describe_host
from tilewright.machine.machine import Machine
from tilewright.machine.measure import nominal_machine

SMALL = {'image': 67, 'width': 8}


@pytest.fixture
def with_tiles() -> Machine:
    """This host in portable C, as if it had tiles: peaks that make them worth while."""
    plain = nominal_machine(describe_host(), 'portable')
    peaks = {'tile_one_gops': 4e3, 'tile_all_gops': 8e3}
    return replace(plain, **peaks, bf16_one_gflops=2e3, bf16_all_gflops=4e3)


def schemas(net: tw.Network) -> set[str]:
    return {kernel.schedule.schema for kernel in net.kernels.values()}


def small_model() -> onnx.ModelProto:
    """A first layer at stride 2, maxima, a 1x1 layer, a residual, a mean and a product."""
    draw = np.random.default_rng(1)
    shapes = {'w1': (32, 3, 3, 3), 'b1': (32,), 'w2': (32, 32, 1, 1), 'w3': (32, 10), 'b3': (10,)}
    constants = [
        numpy_helper.from_array(draw.normal(0, 0.2, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node('Conv', ['x', 'w1', 'b1'], ['c1'], strides=[2, 2], pads=[1] * 4),
        helper.make_node('Relu', ['c1'], ['r1']),
        helper.make_node('MaxPool', ['r1'], ['m1'], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node('Conv', ['m1', 'w2'], ['c2']),
        helper.make_node('Add', ['c2', 'm1'], ['a2']),
        helper.make_node('Relu', ['a2'], ['r2']),
        helper.make_node('GlobalAveragePool', ['r2'], ['g']),
        helper.make_node('Flatten', ['g'], ['f']),
        helper.make_node('Gemm', ['f', 'w3', 'b3'], ['y']),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (('x', [1, 3, 20, 20]), ('y', [1, 10]))
    )
    graph = helper.make_graph(nodes, 'small', [x], [y], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)])


def test_a_network_in_bf16_is_near_fp32(with_tiles: Machine) -> None:
    pytest.importorskip('ml_dtypes', reason='numpy has no bf16 without the package ml_dtypes')
    model = small_model()
    inputs = {'x': np.random.default_rng(2).normal(0, 1, (1, 3, 20, 20)).astype(np.float32)}
    net = tw.compile(model, machine=with_tiles, threads=2, precision='bf16')
    assert 'tiles' in schemas(net)
    (got,), (want,) = (
        n.run(inputs).values() for n in (net, tw.compile(model, machine=with_tiles, threads=2))
    )
    assert got.dtype == want.dtype == np.float32
    assert np.abs(got - want).max() <= 0.03 * np.abs(want).max()


@pytest.mark.slow
def test_a_quantised_network_in_tiles_has_the_integers_of_vectors(
    with_tiles: Machine, tmp_path: Path
) -> None:
    pytest.importorskip('onnxruntime', reason='models are quantised by onnxruntime')
    from tilewright_lab.scripts.integer_networks import quantise

    path = quantise('alexnet', tmp_path / 'small.onnx', image=SMALL['image'], width=SMALL['width'])
    inputs = zoo.inputs(zoo.network('alexnet', **SMALL))
    net = tw.compile(path, machine=with_tiles, threads=2)
    plain = replace(with_tiles, tile_one_gops=0.0, tile_all_gops=0.0)
    isas = {kernel.schedule.isa for kernel in net.kernels.values()}
    assert 'portabletiles' in isas
    (got,), (want,) = (
        n.run(inputs).values() for n in (net, tw.compile(path, machine=plain, threads=2))
    )
    assert np.array_equal(got, want)


def test_a_machine_without_tiles_or_narrow_weights_says_what_it_has(with_tiles: Machine) -> None:
    plain = nominal_machine(describe_host(), 'portable')
    with pytest.raises(tw.TilewrightError, match='it has fp32'):
        tw.compile('squeezenet', machine=plain, precision='bf16')
    with pytest.raises(tw.TilewrightError, match='it has fp32, bf16'):
        tw.compile('squeezenet', machine=with_tiles, precision='fp16')
