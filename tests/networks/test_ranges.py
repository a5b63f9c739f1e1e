"""One compiled network for ranges of sizes: right at every size, saved, refused with a sentence."""

from __future__ import annotations

import ctypes
import json
import runpy
import subprocess
import sys
from collections import Counter
from functools import partial
from itertools import product as product_of
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import pytest
from marks import needs_make
from onnx import TensorProto, helper
from ranged_models import LONGEST, WORDS, detector, encoder

import tilewright as tw
from tilewright import zoo
from tilewright.cli.main import invoke
from tilewright.errors import ArrayError, InputError, ModelError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower
from tilewright.graph.passes import passes_of
from tilewright.graph.ranges import find_ranges, spread
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.kernels.cpu.schemas.pixels.space import pixels_choices
from tilewright.machine.known import known_machine
from tilewright.network import export
from tilewright.network.compile import read
from tilewright.network.ranged import plan_ranges, ranged_network
from tilewright.ops.flatten import flatten
from tilewright.schedule.choice import Choice
from tilewright.store import ranges_file
from tilewright.targets.cpu import choose, ranged
from tilewright.targets.cpu.site import CpuSite
from tilewright.targets.site import Asked

ort = pytest.importorskip('onnxruntime')
LENGTHS = {'ids': (1, range(2, 8))}
WORD = np.arange(7)[None]
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
    assert net.at(7).arena_bytes == net.at(2).arena_bytes == net.arena_bytes


def test_a_file_of_ranges_is_loaded(made):
    net, file = made
    ids = np.arange(5)[None]
    loaded = tw.load(file)
    assert np.array_equal(loaded(ids), net(ids))
    assert (loaded.ranges, loaded.certificate) == (net.ranges, net.certificate)


@pytest.mark.filterwarnings('error:.*not built ahead')
def test_a_loaded_file_has_the_same_libraries_from_the_sources_that_it_names(made, monkeypatch):
    """Other libraries would be compiled by `load`, and sources of all sizes take long to write."""
    net, file = made
    looked: list[int] = []
    at = ranged._Look.at

    def count_looks(look, number, point):
        looked[-1] += 1
        return at(look, number, point)

    monkeypatch.setattr(ranged._Look, 'at', count_looks)
    for version in (ranged.code_version(), 'of code that writes other sources'):
        monkeypatch.setattr(ranged, 'code_version', lambda version=version: version)
        looked.append(0)
        loaded = tw.load(file)
        assert loaded.plans.kernels.sources().keys() == net.plans.kernels.sources().keys()
        for length in LENGTHS['ids'][1]:
            assert np.array_equal(loaded(WORD[:, :length]), net(WORD[:, :length]))
    assert looked[0] < looked[1]


def test_a_file_that_names_sources_it_cannot_have_is_refused(made):
    saved = made[0].plans.saved
    family, shown = saved.families[0].family, saved.families[0].shown
    assert shown is not None
    assert ranges_file._shown(family, {'shown': shown.to_json()}) == shown
    for wrong in ([[0, 100]], [[-1, 3]], [[0, 3, 3]], [[len(family.groups), 3]], [[0, 2.0]]):
        with pytest.raises(ModelError):
            ranges_file._shown(family, {'shown': {'version': '1', 'points': wrong}})


@needs_make
def test_exported_c_is_told_its_sizes(made, tmp_path, monkeypatch):
    """C of a range computes at every size what the network does, and says where it cannot."""
    net, file = made
    folder = tw.export(file, tmp_path / 'c', name='encoder').folder
    subprocess.run(['make', 'check', 'CFLAGS=-O1'], cwd=folder, check=True, capture_output=True)
    words = [
        'cc',
        '-shared',
        '-Wl,--whole-archive',
        'libencoder.a',
        '-Wl,--no-whole-archive',
        '-lm',
    ]
    subprocess.run([*words, '-pthread', '-o', 'net.so'], cwd=folder, check=True)
    library = ctypes.CDLL(str(folder / 'net.so'))
    library.encoder_open.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(library.encoder_open(str(folder / 'encoder.weights').encode(), None))
    for length in (7, 2, 5, 3, 4, 6):
        ids = np.arange(length)[None]
        out = np.full((1, length, 2), np.nan, np.float32)
        arrays = [ctypes.c_void_p(array.ctypes.data) for array in (ids, out)]
        assert library.encoder_run(handle, ctypes.c_long(length), *arrays) == 1
        assert np.abs(out - net(ids)).max() < 1e-6, length
    assert library.encoder_run(handle, ctypes.c_long(8), *arrays) == 0
    monkeypatch.setattr(export, 'MOST_SIZES', 5)
    with pytest.raises(InputError, match='has 6 sizes, and C holds tables for each, at most 5'):
        tw.export(file, tmp_path / 'other')


def test_sizes_outside_are_one_sentence(made):
    net, _ = made
    with pytest.raises(ArrayError, match=r"axis 1 of 'ids' has size 8, outside of 2 to 7"):
        net(np.zeros((1, 8), np.int64))
    with pytest.raises(ArrayError, match='has shape'):
        net(np.zeros((2, 5), np.int64))
    with pytest.raises(ArrayError, match="'ids' is missing"):
        net.run({})
    with pytest.raises(InputError, match='is not a point'):
        net.at(0)
    with pytest.raises(InputError, match='give a size for each of 1 axes, whole numbers one after'):
        net.at((3,))


@pytest.mark.parametrize(
    ('size', 'why'),
    [
        ((65, 64), "axis 2 of 'x' has size 65, between .* 64 to 640 in steps of 32; .* 64 or 96"),
        ((64, 639), "axis 3 of 'x' has size 639, between .* pad the input to 608 or 640"),
        ((32, 64), "axis 2 of 'x' has size 32, outside of 64 to 640 .* a range that holds it"),
        ((64, 672), "axis 3 of 'x' has size 672, outside of 64 to 640"),
    ],
)
def test_sizes_of_two_axes_outside_or_between_steps_are_one_sentence(size, why):
    ranges = find_ranges({'x': (1, 3, range(64, 641, 32), range(64, 641, 32))})
    assert ranges is not None
    with pytest.raises(ArrayError, match=why):
        ranges.point_of('detector', {'x': (1, 3, *size)})


def test_what_cannot_be_a_range_is_one_sentence():
    with pytest.raises(ModelError, match='a range ascends'):
        tw.compile(encoder(), shapes={'ids': (1, range(5, 1))})
    with pytest.raises(InputError, match=r'save= cannot be combined with ranges .* on a GPU'):
        tw.compile(encoder(), 'host', shapes=LENGTHS, save='encoder.tw')
    with pytest.raises(InputError, match=r'has 99 sizes, and a GPU takes .* at most 64'):
        tw.compile(encoder(), 'host', shapes={'ids': (1, range(1, 100))})
    with pytest.raises(InputError, match='fallback= cannot be combined'):
        tw.compile(encoder(), shapes=LENGTHS, fallback='onnxruntime')
    with pytest.raises(InputError, match='has one size for everything'):
        tw.compile(zoo.graph('resnet18', **zoo.SMALL['resnet18']), shapes={'image': (range(1, 3),)})


@pytest.fixture(scope='module')
def halves():
    """Every second element of a row: nothing to search."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ['n', 2, 'h']) for n in 'xy')
    pool = helper.make_node('MaxPool', ['x'], ['y'], kernel_shape=[1], strides=[2])
    return helper.make_model(
        helper.make_graph([pool], 'halves', [x], [y]),
        opset_imports=[helper.make_opsetid('', 17)], ir_version=8,
    )  # fmt: skip


def test_sizes_that_are_halved_unevenly_are_refused(halves):
    """Every second size has another remainder: no polynomial says what becomes of it."""
    with pytest.raises(ModelError, match='larger steps'):
        tw.compile(halves, shapes={'x': (1, 2, range(1, 100))}, threads=1)
    shapes = {'x': (1, 2, range(2, 100, 2))}
    compare(tw.compile(halves, shapes=shapes, threads=1), halves, shapes, 100)


def test_a_gpu_has_a_network_for_each_size(halves):
    shapes = {'x': (range(1, 3), 2, range(4, 9, 2))}
    net = tw.compile(halves, 'host', shapes=shapes)
    compare(net, halves, shapes, 100)
    assert net.arena_bytes > net.at(2, 8).arena_bytes
    with pytest.raises(ArrayError, match=r"axis 2 of 'x' has size 5, between two sizes of 4 to 8"):
        net(np.zeros((1, 2, 5), np.float32))


def test_the_command_line_knows_ranges(halves, tmp_path, capsys):
    model, file, report = (tmp_path / n for n in ('halves.onnx', 'halves.tw', 'report.json'))
    onnx.save(halves, model)
    sizes = ['--shape', 'x=1:2,2,4:8:2', '--threads', '1']
    assert invoke(['compile', str(model), '-o', str(file), '--json', str(report), *sizes]) == 0
    said = json.loads(report.read_text())['network']
    assert said['ranges']['axes'][1][:3] == [4, 9, 2]
    assert said['certificate']['loss'] == 0
    np.save(tmp_path / 'x.npy', np.ones((2, 2, 6), np.float32))
    words = ['run', str(file), '--input', str(tmp_path / 'x.npy'), '--check', str(model)]
    assert invoke([*words, '--repeat', '1']) == 0
    assert 'y: float32[2, 2, 3]' in capsys.readouterr().out
    for model_file, more in ((model, sizes), (file, sizes[2:])):
        assert invoke(['explain', str(model_file), *more]) == 0
        assert 'x[1:2,2,4:8:2], below at the largest size: within 10% of' in capsys.readouterr().out
    assert invoke(['export', str(file), '-o', str(tmp_path / 'c')]) == 0
    assert (
        'int halves_run(halves *net, long x_0, long x_2,'
        in (tmp_path / 'c' / 'halves.h').read_text()
    )


@pytest.mark.slow
def test_a_program_exported_with_dims_keeps_them():
    torch = pytest.importorskip('torch')
    module = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Softmax(-1))
    x = torch.randn(3, 8)
    dims = ({0: torch.export.Dim('n', max=5)},)
    exported = torch.export.export(module, (x,), dynamic_shapes=dims)
    net = tw.compile(exported, threads=1)
    assert net.ranges.box[0][-1] == 5
    for rows in net.ranges.box[0]:
        given = torch.randn(rows, 8)
        assert np.abs(net(given.numpy()) - module(given).numpy()).max() < 1e-6
    ranged = tw.compile(module, shapes={'input': (range(1, 4), 8)}, threads=1)
    assert np.array_equal(ranged(x.numpy()), net(x.numpy()))


class Looked:
    """Stands for sources of a group: a kernel serves the points it was made for, and all that have
    it once two of them were seen.
    """

    def __init__(self, box, form):
        family = SimpleNamespace(box=box, largest=tuple(sizes[-1] for sizes in box))
        self.one, self.made, self.seen = SimpleNamespace(family=family), form, {}
        self.characters = {0: 50_000}

    def at(self, number, point):
        served = point in self.seen or self.serves(point)
        self.seen[point] = self.made(*point)
        return served

    def serves(self, point):
        return point in self.seen or self.forms(0).count(self.made(*point)) > 1

    def form(self, number, point):
        return self.seen[point]

    def forms(self, number):
        return list(self.seen.values())


@pytest.mark.parametrize(
    ('box', 'form'),
    [
        ((range(1, 3), range(16, 49, 16), range(16, 49, 16)), lambda n, h, w: (n, h > w, w == 32)),
        ((range(2, 4), range(2, 65)), lambda n, w: n == 3 and w % 4 == 0 and w >= 48),
        ((range(1, 4), range(1, 101)), lambda n, w: n * w % 12 == 0 and w > 40),
        ((range(1, 2), range(1, 65)), lambda n, w: w % 2),
    ],
)
def test_kernels_that_some_sizes_have_by_turns_are_built_ahead(box, form):
    """A size whose kernel no size that was looked at has is compiled while a caller waits."""
    look = Looked(box, form)
    for corner in product_of(*((sizes[-1], sizes[0]) for sizes in box)):
        look.at(0, corner)
    ranged._look_further(cast(Any, look), 0)
    points = list(product_of(*box))
    assert [point for point in points if not look.serves(point)] == []
    assert len(look.seen) <= max(ranged.FEW, len(points) // 2)


@pytest.mark.slow
def test_batches_heights_and_widths_vary_together():
    net = tw.compile(detector(), shapes=IMAGES, threads=2, check=True)
    compare(net, detector(), IMAGES, 100)


@pytest.mark.slow
@pytest.mark.filterwarnings('error:.*not built ahead')
def test_heights_and_widths_are_right_at_every_size():
    """All 49 sizes of an image, from libraries that were all there before the first call."""
    shapes = {'x': (1, 3, range(16, 113, 16), range(16, 113, 16))}
    net = tw.compile(detector(), shapes=shapes, threads=2)
    compare(net, detector(), shapes, 100)
    assert net.plans.kernels.late == 0
    with pytest.raises(InputError, match=r'x\[3\] = 17 is between two sizes of 16 to 112'):
        net.at(16, 17)


@pytest.mark.slow
def test_searches_and_libraries_do_not_grow_with_the_number_of_sizes(monkeypatch):
    """Per-size work: 400 sizes would take a hundred times as long as 4 to compile."""
    searched, built = Counter(), Counter()
    choose = CpuSite.choose

    def count_searches(site, program, *more):
        searched[now] += len({task.group.digest for task in program.tasks})
        return choose(site, program, *more)

    def count_builds(source, flags):
        built[now] += 1
        return Path(f'{built[now]}.so')

    monkeypatch.setattr(CpuSite, 'choose', count_searches)
    monkeypatch.setattr(ranged, 'build', count_builds)
    site = CpuSite.of(None, 2)
    for now in (3, 20):
        sizes = range(64, 64 + 32 * now, 32)
        ranges = find_ranges({'x': (1, 3, sizes, sizes)})
        assert ranges is not None
        saved = plan_ranges(partial(read, detector()), ranges, site, Asked(), passes_of(None, None))
        ranged.build_ahead(saved.families, site.machine)
    assert searched[20] == searched[3] <= 12
    assert built[20] <= 2 * built[3]


def product(inner: int, columns: int) -> onnx.ModelProto:
    """Rows of a number that varies by one matrix of weights."""
    weights = np.random.default_rng(0).standard_normal((inner, columns)).astype(np.float32)
    node = helper.make_node('MatMul', ['x', 'w'], ['y'])
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ['rows', size])
        for name, size in (('x', inner), ('y', columns))
    ]
    initial = helper.make_tensor('w', TensorProto.FLOAT, weights.shape, weights.tobytes(), raw=True)
    graph = helper.make_graph([node], 'product', values[:1], values[1:], [initial])
    opset = [helper.make_opsetid('', 17)]
    return helper.make_model(graph, opset_imports=opset, ir_version=8)


@pytest.mark.filterwarnings('error:.*not built ahead')
def test_few_rows_of_large_weights_have_sums_in_one_piece_and_kernels_built_ahead():
    """Weights that are read once are read in order; a long line of sizes has kernels everywhere."""
    inner, columns, shapes = 1536, 1024, {'x': (range(1, 73), 1536)}
    model = product(inner, columns)
    net = tw.compile(model, shapes=shapes, threads=1)
    compare(net, model, shapes, 1000)
    (few,) = net.at(1).kernels.values()
    assert few.schedule.schema == 'outer'
    assert all(level.tile['k'] == inner for level in few.schedule.levels[1:])


@pytest.mark.slow
def test_batches_and_lengths_vary_together():
    shapes = {'ids': (range(1, 4), range(1, LONGEST + 1))}
    net = tw.compile(encoder(), shapes=shapes, threads=2)
    compare(net, encoder(), shapes, 200)


@pytest.mark.slow
def test_every_length_of_a_longer_range_is_right():
    shapes = {'ids': (1, range(1, 33))}
    compare(tw.compile(encoder(), shapes=shapes, threads=2), encoder(), shapes, 1000)


@pytest.mark.slow
def test_batches_of_mobilenet_are_right():
    """Every batch size of the zoo's network, small, against the graph of that size in float64."""
    small = zoo.SMALL['mobilenet_v2'] | {'image': 32}

    def graph(shapes):
        return zoo.graph('mobilenet_v2', batch=shapes['image'][0], **small)

    ranges = find_ranges({'image': (range(1, 9), 3, 32, 32)})
    site, asked = CpuSite.of(None, 2), Asked()
    saved = plan_ranges(graph, ranges, site, asked, passes_of(None, None))
    net = ranged_network(saved, site)
    for batch in range(1, 9):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 32, 32)).astype(np.float32)
        (right,) = evaluate(lower(graph({'image': x.shape})), {'image': x}).values()
        assert np.abs(net(x) - right).max() <= 1e-4 * np.abs(right).max()


@pytest.mark.slow
@pytest.mark.filterwarnings('ignore')
def test_the_example_runs(tmp_path, monkeypatch, capfd):
    onnx.save(encoder(), tmp_path / 'encoder.onnx')
    file = Path(__file__).parents[2] / 'examples' / 'lengths.py'
    words = ['--model', str(tmp_path / 'encoder.onnx'), '--longest', '12']
    monkeypatch.setattr(sys, 'argv', [str(file), *words])
    runpy.run_path(str(file), run_name='__main__')
    assert 'has size 13, outside of 1 to 12' in capfd.readouterr().out


def test_others_for_kernels_of_one_size_are_searched_once(monkeypatch, tmp_path):
    """Where they were kept, nothing is searched, in this process or in others."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    machine = known_machine('i9-10980xe')
    groups = [tw.conv2d(c=16, h=14, w=14, k=32 * n, r=1, s=1) for n in (1, 2)]
    ways = [pixels_choices(flatten(group), 'avx512', 1, 3) for group in groups]
    fixed = [Choice(next(some), 1e-3, 1e-4, 'compute') for some in ways]
    served = ranged.of_every_size(fixed, groups, machine, 1e-4)
    assert all(not SCHEMAS[choice.schedule.schema].fixed for choice in served)
    monkeypatch.setattr(choose, 'each', lambda *_: iter(()))
    assert ranged.of_every_size(fixed, groups, machine, 1e-4) == served
    assert ranged.of_every_size(served, groups, machine, 1e-4) == served
