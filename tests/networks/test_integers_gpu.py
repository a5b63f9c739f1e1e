"""Quantised models on GPUs: on integers from end to end, bit for bit what CPUs compute."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from devices import device
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.errors import InputError
from tilewright.runtime.gpu.network import GpuNetwork

CHANNELS, IMAGE = 32, 20


def network() -> onnx.ModelProto:
    """Floats: a first layer, dense layers with a residual, a depthwise one, pooling, a product."""
    draw = np.random.default_rng(0)
    constants, nodes = [], []

    def constant(name: str, *shape: int) -> str:
        array = draw.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        constants.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def conv(x: str, y: str, channels: int, size: int, stride: int = 1, groups: int = 1) -> str:
        given = [x, constant(f'{y}w', CHANNELS, channels // groups, size, size)]
        nodes.append(
            helper.make_node(
                'Conv', [*given, constant(f'{y}b', CHANNELS)], [f'{y}c'], name=y,
                pads=[size // 2] * 4, strides=[stride] * 2, group=groups,
            )
        )  # fmt: skip
        nodes.append(helper.make_node('Relu', [f'{y}c'], [y]))
        return y

    first = conv('x', 'first', 3, 3, stride=2)
    second = conv(conv(first, 'dense', CHANNELS, 3), 'narrow', CHANNELS, 1)
    nodes.append(helper.make_node('Add', [second, first], ['total']))
    wise = conv('total', 'depthwise', CHANNELS, 3, stride=2, groups=CHANNELS)
    nodes += [
        helper.make_node('MaxPool', [wise], ['pooled'], kernel_shape=[2, 2], strides=[1, 1]),
        helper.make_node('GlobalAveragePool', [conv('pooled', 'last', CHANNELS, 1)], ['mean']),
        helper.make_node('Flatten', ['mean'], ['flat']),
        helper.make_node(
            'Gemm', ['flat', constant('fw', 10, CHANNELS), constant('fb', 10)], ['y'], transB=1
        ),
    ]
    graph = helper.make_graph(
        nodes, 'quantised',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, (1, 3, IMAGE, IMAGE))],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, (1, 10))], constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)


@pytest.fixture(scope='module')
def samples() -> np.ndarray:
    draw = np.random.default_rng(1)
    return draw.standard_normal((4, 1, 3, IMAGE, IMAGE)).astype(np.float32)


@pytest.fixture(scope='module', params=['u8', 'i8'])
def quantised(request: pytest.FixtureRequest, samples: np.ndarray) -> onnx.ModelProto:
    return tw.quantize(network(), samples, activations=request.param).model


@pytest.mark.parametrize('target', ['host', 'opencl', pytest.param('cuda', marks=pytest.mark.gpu)])
def test_results_are_those_of_a_cpu(
    target: str, quantised: onnx.ModelProto, samples: np.ndarray
) -> None:
    """Where there are matrix instructions, products use them; images lie channels last."""
    device(target)  # or this is skipped
    on_cpu = tw.compile(quantised)
    made = tw.compile(quantised, target=target)
    assert isinstance(made, GpuNetwork)
    for image in samples:
        np.testing.assert_array_equal(made(image), on_cpu(image))
    schemas = {task.name: task.schedule.schema for task in made.gpu_tasks}
    assert schemas['depthwise'] == schemas['pooled'] == 'vector'
    units = target != 'opencl'
    assert {schemas[n] == 'channels' for n in ('first', 'dense', 'narrow', 'last')} == {units}
    dense = next(task.group for task in made.gpu_tasks if task.name == 'dense')
    assert dense.output.shape == (1, IMAGE // 2, IMAGE // 2, CHANNELS)
    # A border of one pixel in front, four channels, windows of three pixels made even.
    first = next(task.group for task in made.gpu_tasks if task.name == 'first')
    assert first.tensor('In').shape == (1, IMAGE + 1, 4 * (IMAGE + 2))


def test_a_file_holds_the_network_as_it_is_computed(
    tmp_path: Path, quantised: onnx.ModelProto, samples: np.ndarray
) -> None:
    made = tw.compile(quantised, target='host', save=tmp_path / 'a.tw')
    loaded = tw.load(tmp_path / 'a.tw')
    np.testing.assert_array_equal(loaded(samples[0]), made(samples[0]))


def test_a_model_of_floats_is_quantised_for_a_gpu(samples: np.ndarray) -> None:
    model = network()
    made = tw.compile(model, target='host', precision='int8', samples=samples, tune='model')
    want = tw.compile(tw.quantize(model, samples).model)
    np.testing.assert_array_equal(made(samples[0]), want(samples[0]))
    with pytest.raises(InputError, match='fp32, fp16, bf16 and int8; choose one of them'):
        tw.compile(model, target='host', precision='auto', accuracy='rel=0.01', samples=samples)


def test_kernels_of_integers_are_timed_on_a_gpu(
    quantised: onnx.ModelProto, samples: np.ndarray
) -> None:
    """Every candidate is checked against the definition on the device before it is timed."""
    made = tw.compile(quantised, target='host', tune='measure', trials=2)
    np.testing.assert_array_equal(made(samples[0]), tw.compile(quantised)(samples[0]))
