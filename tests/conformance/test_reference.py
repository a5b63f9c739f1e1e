"""The float64 reference against two independent oracles: ONNX's own evaluator, and PyTorch.

The reference is the oracle of every other test, so it is checked here against code that shares
nothing with it, on random convolutions: strides, dilations, groups, asymmetric pads, bias.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tilewright.errors import SpecError
from tilewright.ops.convolution import Convolution, conv2d, describe
from tilewright.ops.matmul import matmul
from tilewright.ops.pointwise import ACTIVATIONS
from tilewright.ops.reference import reference

QUICK = settings(
    max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def problems(draw):
    small = st.integers(1, 4)
    groups = draw(st.integers(1, 3))
    try:
        return Convolution(
            draw(st.integers(1, 2)), groups * draw(small), groups * draw(small),
            (draw(st.integers(1, 9)), draw(st.integers(1, 9))), (draw(small), draw(small)),
            (draw(small), draw(small)), tuple(draw(st.integers(0, 4)) for _ in range(4)),
            (draw(st.integers(1, 3)), draw(st.integers(1, 3))), groups, draw(st.booleans()),
        )  # fmt: skip
    except SpecError:
        assume(False)


def arrays_of(group, seed):
    """Float64 data, so that the comparison is not blurred by rounding."""
    rng = np.random.default_rng(seed)
    tensors = [t for t in group.tensors if t.role in ('input', 'constant')]
    return {t.name: rng.standard_normal(t.shape) for t in tensors}


def onnx_answer(conv, arrays):
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    names = ['In', 'Ker', 'Bias'] if conv.bias else ['In', 'Ker']
    node = helper.make_node(
        'Conv', names, ['Out'], kernel_shape=list(conv.taps), strides=list(conv.stride),
        pads=list(conv.pad), dilations=list(conv.dilation), group=conv.groups,
    )  # fmt: skip
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.DOUBLE, arrays[name].shape)
        for name in names
    ]
    output = helper.make_tensor_value_info('Out', TensorProto.DOUBLE, None)
    graph = helper.make_graph([node], 'conv', inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)
    return ReferenceEvaluator(model).run(None, {name: arrays[name] for name in names})[0]


def torch_answer(torch, conv, arrays):
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    top, left, bottom, right = conv.pad
    padded = torch.nn.functional.pad(tensors['In'], (left, right, top, bottom))
    return torch.nn.functional.conv2d(
        padded, tensors['Ker'], tensors.get('Bias'), stride=conv.stride,
        dilation=conv.dilation, groups=conv.groups,
    ).numpy()  # fmt: skip


@pytest.fixture(scope='module')
def torch():
    return pytest.importorskip('torch', reason='torch is not installed (extra: torch)')


@QUICK
@given(problems(), st.integers(0, 2**32 - 1))
def test_convolution_against_onnx(conv, seed):
    group = describe(conv)
    arrays = arrays_of(group, seed)
    expected = onnx_answer(conv, arrays)
    assert expected.shape == group.output.shape
    np.testing.assert_allclose(reference(group, arrays), expected, rtol=1e-10, atol=1e-10)


@QUICK
@given(problems(), st.integers(0, 2**32 - 1))
def test_convolution_against_torch(torch, conv, seed):
    group = describe(conv)
    arrays = arrays_of(group, seed)
    expected = torch_answer(torch, conv, arrays)
    assert expected.shape == group.output.shape
    np.testing.assert_allclose(reference(group, arrays), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize('name', ACTIVATIONS)
def test_activations_against_torch(torch, name):
    functions = {
        'sigmoid': torch.sigmoid,
        'tanh': torch.tanh,
    }
    function = functions.get(name) or getattr(torch.nn.functional, name)
    plain = conv2d(c=3, h=6, w=6, k=4, r=2, s=2, bias=True)
    active = conv2d(c=3, h=6, w=6, k=4, r=2, s=2, bias=True, activation=name)
    arrays = arrays_of(active, 5)
    expected = function(torch.from_numpy(reference(plain, arrays))).numpy()
    np.testing.assert_allclose(reference(active, arrays), expected, rtol=1e-12, atol=1e-12)


def test_convolution_by_hand():
    """A 2x2 filter with stride 2 over 3x3 ones, one column of padding on the right: counted."""
    group = conv2d(c=1, h=3, w=3, k=1, r=2, s=2, stride=2, pad=(0, 0, 1, 1), bias=True)
    arrays = {'In': np.ones((1, 1, 3, 3)), 'Ker': np.ones((1, 1, 2, 2)), 'Bias': np.array([10.0])}
    assert reference(group, arrays).tolist() == [[[[14, 12], [12, 11]]]]


def test_matmul_against_numpy():
    group = matmul(m=5, n=6, k=7)
    arrays = arrays_of(group, 1)
    np.testing.assert_allclose(reference(group, arrays), arrays['A'] @ arrays['B'], rtol=1e-12)
