"""One compiled network for ranges of sizes: right at every size, saved, refused with a sentence."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from ranged_models import LONGEST, WORDS, detector, encoder

import tilewright as tw
from tilewright import zoo
from tilewright.errors import ArrayError, InputError, ModelError
from tilewright.graph.ranges import find_ranges, spread
from tilewright.network import export

ort = pytest.importorskip('onnxruntime')
LENGTHS = {'ids': (1, range(1, 11))}
IMAGES = {'x': (range(1, 3), 3, range(16, 49, 16), range(16, 49, 16))}


def compare(net, model, shapes: dict, most: int, tolerance: float = 1e-5) -> None:
    """A network against ONNX Runtime at points of its ranges."""
    session = ort.InferenceSession(model.SerializeToString())
    rng = np.random.default_rng(0)
    ranges = find_ranges(shapes)
    assert ranges is not None
    for point in spread(ranges.box, most):
        arrays = {
            name: rng.integers(0, WORDS, shape)
            if name == 'ids'
            else rng.standard_normal(shape).astype(np.float32)
            for name, shape in ranges.at(point).items()
        }
        for got, right in zip(net.run(arrays).values(), session.run(None, arrays), strict=True):
            assert got.shape == right.shape, point
            assert np.abs(got - right).max() <= tolerance * np.abs(right).max(), point


@pytest.fixture(scope='module')
def made(tmp_path_factory):
    """An encoder for some lengths, and the file that it was saved as."""
    file = tmp_path_factory.mktemp('ranges') / 'encoder.tw'
    return tw.compile(encoder(), shapes=LENGTHS, threads=1, save=file), file


def test_every_length_is_right(made):
    compare(made[0], encoder(), LENGTHS, 1000)


def test_weights_are_there_once_and_memory_is_that_of_the_largest(made):
    net, _ = made
    before = net.weight_bytes, net.arena_bytes
    for length in LENGTHS['ids'][1]:
        net(np.zeros((1, length), np.int64))
    assert (net.weight_bytes, net.arena_bytes) == before
    alone = tw.compile(encoder(), shapes={'ids': (1, 10)}, threads=1)
    assert net.arena_bytes <= 1.25 * alone.arena_bytes
    assert net.at(10).arena_bytes == net.arena_bytes


def test_a_file_of_ranges_is_loaded(made):
    net, file = made
    ids = np.arange(7)[None]
    loaded = tw.load(file)
    assert np.array_equal(loaded(ids), net(ids))
    assert (loaded.ranges, loaded.certificate) == (net.ranges, net.certificate)
    with pytest.raises(ModelError, match='holds a network for ranges of sizes'):
        export.export(file, file.parent / 'c')


def test_sizes_outside_are_one_sentence(made):
    net, _ = made
    with pytest.raises(ArrayError, match=r"axis 1 of 'ids' has size 11, outside of 1 to 10"):
        net(np.zeros((1, 11), np.int64))
    with pytest.raises(ArrayError, match='has shape'):
        net(np.zeros((2, 5), np.int64))
    with pytest.raises(ArrayError, match="'ids' is missing"):
        net.run({})
    with pytest.raises(InputError, match='is not a point'):
        net.at(0)


def test_what_cannot_be_a_range_is_one_sentence():
    with pytest.raises(ModelError, match='a range ascends'):
        tw.compile(encoder(), shapes={'ids': (1, range(5, 1))})
    with pytest.raises(InputError, match="not for target 'host'"):
        tw.compile(encoder(), 'host', shapes=LENGTHS)
    with pytest.raises(InputError, match='fallback= cannot be combined'):
        tw.compile(encoder(), shapes=LENGTHS, fallback='onnxruntime')
    with pytest.raises(InputError, match='has one size for everything'):
        tw.compile(zoo.graph('resnet18', **zoo.SMALL['resnet18']), shapes={'image': (range(1, 3),)})


def test_sizes_that_are_halved_unevenly_are_refused():
    """Every second size has another remainder: no polynomial says what becomes of it."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ['n', 2, 'h']) for n in 'xy')
    pool = helper.make_node('MaxPool', ['x'], ['y'], kernel_shape=[1], strides=[2])
    model = helper.make_model(
        helper.make_graph([pool], 'halves', [x], [y]),
        opset_imports=[helper.make_opsetid('', 17)], ir_version=8,
    )  # fmt: skip
    with pytest.raises(ModelError, match='larger steps'):
        tw.compile(model, shapes={'x': (1, 2, range(1, 100))}, threads=1)
    net = tw.compile(model, shapes={'x': (1, 2, range(2, 100, 2))}, threads=1)
    compare(net, model, {'x': (1, 2, range(2, 100, 2))}, 100)


@pytest.mark.slow
def test_batches_heights_and_widths_vary_together():
    net = tw.compile(detector(), shapes=IMAGES, threads=2, check=True)
    compare(net, detector(), IMAGES, 100)


@pytest.mark.slow
def test_batches_and_lengths_vary_together():
    shapes = {'ids': (range(1, 4), range(1, LONGEST + 1))}
    net = tw.compile(encoder(), shapes=shapes, threads=2)
    compare(net, encoder(), shapes, 200)
