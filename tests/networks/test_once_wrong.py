"""The smallest graphs that were computed wrongly once, on every target, against numpy."""

from __future__ import annotations

import graphs
import numpy as np
import pytest
from devices import device
from graphs import node

import tilewright as tw
from tilewright.graph.graph import Graph, Node, Value


@pytest.fixture(params=['cpu', 'host', 'opencl'])
def target(request: pytest.FixtureRequest) -> str:
    if request.param != 'cpu':
        device(request.param)
    return request.param


def run(graph: Graph, target: str, **inputs: np.ndarray) -> np.ndarray:
    return tw.compile(graph, target=target).run(inputs)['y']


@pytest.mark.parametrize('dtype', ['u8', 'u16', 'u32', 'u64'])
@pytest.mark.parametrize('op', ['Abs', 'ReduceL1'])
def test_unsigned_numbers_have_no_negative(target: str, op: str, dtype: str) -> None:
    """abs(x) as max(x, -x) is -x where that wraps around."""
    x = np.array([[3, 5]], {'u8': 'B', 'u16': 'H', 'u32': 'I', 'u64': 'Q'}[dtype])
    made = Graph('abs', (Value('x', (1, 2), dtype),), (('y', 'y'),), (node(op, 'x', 'y'),))
    assert run(made, target, x=x).tolist() == ([[3, 5]] if op == 'Abs' else [[8]])


def test_numbers_among_doubles_are_doubles(target: str) -> None:
    """The larger of two constants has no operand whose dtype it takes: it takes the result's."""
    low, high = np.float64(-0.9), np.float64(0.6083537882786487)
    made = Graph(
        'numbers', (Value('x', (2,), 'f64'),), (('y', 'y'),), (node('Max', 'a b x', 'y'),),
        {'a': np.array([low]), 'b': np.array([high])},
    )  # fmt: skip
    assert run(made, target, x=np.array([-1.0, 1.0])).tolist() == [high, 1.0]


def test_a_constant_image_has_a_border(target: str) -> None:
    """Constant operands are packed into panels, which have no border: not where there is one."""
    image, kernel = graphs.floats(1, 2, 4, 5), graphs.floats(3, 2, 3, 3, seed=1)
    made = graphs.graph(
        {'w': kernel.shape}, 'y', [node('Conv', 'x w', 'y', pads=(1, 1, 1, 1))], x=image
    )
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    want = np.einsum('nchwrs,kcrs->nkhw', windows, kernel)
    np.testing.assert_allclose(run(made, target, w=kernel), want, rtol=1e-4, atol=1e-5)


def test_a_value_that_is_read_twice_through_a_view(target: str) -> None:
    """Layer normalisation reads its image as a view; here its scale is the same value."""
    nodes = [node('Sigmoid', 'x', 'a'), node('LayerNormalization', 'a a', 'y')]
    x = graphs.floats(4)
    a = 1 / (1 + np.exp(-x.astype(np.float64)))
    want = a * (a - a.mean()) / np.sqrt(a.var() + 1e-5)
    got = run(graphs.graph({'x': (4,)}, 'y', nodes), target, x=x)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('size', [1, 2])
def test_the_mean_of_a_window_in_the_border_is_zero(target: str, size: int) -> None:
    """Taps at -1 and 1 of one element: nothing is inside, and nothing is divided by nothing."""
    pool = node('AveragePool', 'x', 'y', kernel_shape=(2,), dilations=(2,), pads=(1, 1))
    x = np.arange(1, 1 + size, dtype=np.float32).reshape(1, 1, size)
    got = run(graphs.graph({'x': x.shape}, 'y', [pool]), target, x=x)
    assert got.tolist() == ([[[0.0]]] if size == 1 else [[[2.0, 1.0]]])


def test_a_scalar_that_is_repeated_along_no_axis(target: str) -> None:
    """Groups have no tensors without dimensions: nothing is left to do here."""
    made = graphs.graph({'x': ()}, 'y', [node('Tile', 'x to', 'y')], to=np.zeros(0, np.int64))
    assert run(made, target, x=np.array(0.5, np.float32)).tolist() == 0.5


def test_the_mean_of_large_whole_numbers(target: str) -> None:
    """Their sum is more than their type holds."""
    made = Graph(
        'mean', (Value('x', (1, 2), 'i32'),), (('y', 'y'),), (node('ReduceMean', 'x a', 'y'),),
        {'a': np.array([1])},
    )  # fmt: skip
    assert run(made, target, x=np.array([[2**31 - 1, 2**31 - 3]], 'i')).tolist() == [[2**31 - 2]]


def test_cubic_interpolation_to_one_pixel_takes_the_first(target: str) -> None:
    """Where the standard says 0, its own reference says -0.5; ONNX Runtime has 0."""
    how = {'mode': 'cubic', 'coordinate_transformation_mode': 'pytorch_half_pixel'}
    resize = Node('Resize', 'resize', ('x', '', '', 'to'), ('y',), how)
    made = graphs.graph({'x': (1, 1, 2, 2)}, 'y', [resize], to=np.array([1, 1, 1, 1]))
    x = graphs.floats(1, 1, 2, 2)
    assert run(made, target, x=x).ravel().tolist() == [x[0, 0, 0, 0]]


def test_the_first_half_of_channels_in_front_of_a_convolution(target: str) -> None:
    """A slice that begins at 0 has the indices of what it is cut from, and not its own strides."""
    nodes = [node('Split', 'x sizes', 'a b', axis=1), node('Conv', 'a w', 'y')]
    x, w = graphs.floats(2, 6, 3, 4), graphs.floats(4, 3, 1, 1, seed=1)
    made = graphs.graph({'x': x.shape}, 'y', nodes, w=w, sizes=np.array([3, 3]))
    want = np.einsum('nchw,kc->nkhw', x[:, :3].astype(np.float64), w[:, :, 0, 0])
    for passes in (('prologue',), None):
        got = tw.compile(made, target=target, passes=passes).run({'x': x})['y']
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
