"""Nodes that are not supported run in ONNX Runtime, the rest here: right, and only what must."""

from __future__ import annotations

import json
import threading

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.cli.main import invoke
from tilewright.errors import ArrayError, InputError, MissingError, ModelError, UnsupportedError
from tilewright.fallback import sessions
from tilewright.fallback.network import MixedNetwork
from tilewright.fallback.split import split, units_of
from tilewright.graph.lowering.operators import OPERATORS
from tilewright.importers.onnx import import_traced
from tilewright.runtime.cpu.network import Network

onnxruntime = pytest.importorskip('onnxruntime')
pytestmark = pytest.mark.filterwarnings('ignore:.*nominal figures.*')
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


@pytest.fixture(autouse=True, scope='module')
def _top_k_is_theirs():
    """TopK stands for operators that nobody lowers: two results, a shape that is known."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delitem(OPERATORS, 'TopK')
        yield


def model(nodes, inputs, outputs, opset=21, domains=(), **constants) -> onnx.ModelProto:
    """inputs: name -> shape of floats; outputs: name -> type."""
    graph = helper.make_graph(
        nodes,
        'mixed',
        [helper.make_tensor_value_info(name, F32, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    imports = [helper.make_opsetid('', opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def node(op, inputs, outputs, **attributes):
    made = outputs.split()
    return helper.make_node(op, inputs.split(), made, name=f'{op}_{made[0]}', **attributes)


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def compare(made: onnx.ModelProto, network, **arrays) -> None:
    session = onnxruntime.InferenceSession(
        made.SerializeToString(), providers=['CPUExecutionProvider']
    )
    names = [out.name for out in session.get_outputs()]
    want = dict(zip(names, session.run(names, arrays), strict=True))
    got = network.run(arrays)
    assert list(got) == names
    for name in names:
        assert got[name].dtype == want[name].dtype
        assert got[name].shape == want[name].shape
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-4)


def top_k() -> onnx.ModelProto:
    """Ours, theirs, ours: the shape behind TopK is known, since k is."""
    return model(
        [
            node('Conv', 'x w', 'a'),
            node('Relu', 'a', 'b'),
            node('Shape', 'b', 's', start=3, end=4),
            node('Div', 's two', 'k'),
            node('TopK', 'b k', 'values places'),
            node('Conv', 'values v', 'c'),
            node('Add', 'places one', 'next'),
        ],
        {'x': (1, 3, 4, 6)}, {'c': F32, 'next': I64, 'b': F32},
        w=floats(4, 3, 1, 1), v=floats(2, 4, 1, 1), two=np.array([2]), one=np.array([1]),
    )  # fmt: skip


def suppression() -> onnx.ModelProto:
    """Behind NonMaxSuppression shapes are open, so that the rest of that branch is theirs."""
    return model(
        [
            node('Sigmoid', 'x', 'p'),
            node('Add', 'p p', 'boxes'),
            node('Relu', 'y', 'scores'),
            node('NonMaxSuppression', 'boxes scores most overlap', 'chosen'),
            node('Gather', 'chosen last', 'rows', axis=1),
            node('Cast', 'rows', 'asfloat', to=F32),
            node('Mul', 'scores scores', 'squares'),
        ],
        {'x': (1, 8, 4), 'y': (1, 2, 8)}, {'asfloat': F32, 'squares': F32},
        most=np.array([3]), overlap=np.array([0.4], np.float32), last=np.array([2]),
    )  # fmt: skip


def branching() -> onnx.ModelProto:
    """Subgraphs that use values from outside: of ours, of the network's inputs, constants."""
    value = helper.make_tensor_value_info('r', F32, None)
    then = helper.make_graph([node('Add', 'a k', 'r')], 'then', [], [value])
    other = helper.make_graph([node('Mul', 'a x', 'r')], 'other', [], [value])
    return model(
        [
            node('Relu', 'x', 'a'),
            node('ReduceSum', 'x', 'total', keepdims=0),
            node('Greater', 'total zero', 'positive'),
            node('If', 'positive', 'i', then_branch=then, else_branch=other),
            node('Neg', 'i', 'y'),
        ],
        {'x': (2, 3)}, {'y': F32}, k=floats(3), zero=np.float32(0),
    )  # fmt: skip


def contributed() -> onnx.ModelProto:
    """An operator of another domain, whose shape ONNX Runtime infers; Conv behind it is ours."""
    gelu = helper.make_node('Gelu', ['a'], ['b'], name='gelu', domain='com.microsoft')
    return model(
        [node('Conv', 'x w', 'a'), gelu, node('Conv', 'b w', 'y')],
        {'x': (1, 3, 4, 4)}, {'y': F32}, domains=['com.microsoft'], w=floats(3, 3, 1, 1),
    )  # fmt: skip


def sequences() -> onnx.ModelProto:
    """A value between two nodes of theirs that is not a tensor."""
    return model(
        [
            node('Relu', 'x', 'a'),
            node('SplitToSequence', 'a', 'list', axis=0),
            node('SequenceAt', 'list which', 'y'),
            node('Neg', 'a', 'z'),
        ],
        {'x': (2, 3)}, {'y': F32, 'z': F32}, which=np.int64(1),
    )  # fmt: skip


def old() -> onnx.ModelProto:
    """An opset whose operators mean what they meant then: TopK had k as an attribute."""
    return model(
        [node('Relu', 'x', 'a'), node('TopK', 'a', 'v i', k=2), node('Neg', 'v', 'y')],
        {'x': (3, 5)}, {'y': F32, 'i': I64}, opset=9,
    )  # fmt: skip


MODELS = {
    'top_k': (top_k, ['TopK']),
    'suppression': (suppression, ['NonMaxSuppression', 'Gather', 'Cast']),
    'branching': (branching, ['If']),
    'contributed': (contributed, ['Gelu']),
    'sequences': (sequences, ['SplitToSequence', 'SequenceAt']),
    'old': (old, ['TopK']),
}


def inputs_of(made: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {
        value.name: floats(*(d.dim_value for d in value.type.tensor_type.shape.dim), seed=number)
        for number, value in enumerate(made.graph.input)
    }


@pytest.fixture(scope='module', params=MODELS)
def mixed(request):
    made, theirs = MODELS[request.param]
    return made(), tw.compile(made(), fallback='onnxruntime'), theirs


def test_results_are_those_of_onnx_runtime_and_only_what_must_is_left_to_it(mixed):
    made, network, theirs = mixed
    assert isinstance(network, MixedNetwork)
    assert [op for op, _ in network.theirs] == theirs
    arrays = inputs_of(made)
    compare(made, network, **arrays)
    with pytest.raises(UnsupportedError, match=r"supported: .*; fallback='onnxr") as caught:
        tw.compile(made)
    assert set(caught.value.nodes) <= {name for _, name in network.theirs}


def test_calls_profiles_and_words(mixed):
    made, network, _ = mixed
    arrays = inputs_of(made)
    results = network(*arrays.values())
    listed = results if isinstance(results, tuple) else (results,)
    out = [np.empty_like(array) for array in listed]
    network(*arrays.values(), out=out)
    for got, want in zip(out, listed, strict=True):
        np.testing.assert_array_equal(got, want)
    profile = network.profile(*arrays.values(), calls=2)
    assert {'theirs'} < {task.schema for task in profile.tasks}
    assert 'by ONNX Runtime' in repr(network)
    assert 'theirs' in network.explain(*arrays.values(), calls=1)
    assert len(network.time(arrays, 3)) == 3


def test_pieces_are_few_and_constants_are_not_passed_around():
    traced = import_traced(top_k())
    network = tw.compile(top_k(), fallback='onnxruntime')
    kinds = ['ours' if isinstance(p.runs, Network) else 'theirs' for p in network.pieces]
    assert kinds == ['ours', 'theirs', 'ours']
    assert network.pieces[1].reads == ('b',)
    assert [unit.name for unit in units_of(traced)][-1] == 'Add_next'


def test_a_model_of_f16_has_f16_between_its_pieces():
    """Our pieces compute in f16 where the processor does, and take and give float32 then."""
    f16 = TensorProto.FLOAT16
    weights = floats(8, 6).astype(np.float16)
    graph = helper.make_graph(
        [
            node('MatMul', 'x w', 'a'),
            node('TopK', 'a three', 'best places', axis=-1),
            node('Relu', 'best', 'cut'),
            node('Add', 'cut cut', 'y'),
        ],
        'halves',
        [helper.make_tensor_value_info('x', f16, (5, 8))],
        [helper.make_tensor_value_info('y', f16, None)],
        [numpy_helper.from_array(weights, 'w'), numpy_helper.from_array(np.array([3]), 'three')],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)
    network = tw.compile(made, threads=1, fallback='onnxruntime', check=True)
    x = floats(5, 8, seed=1).astype(np.float16)
    got = network(x)
    assert got.dtype == np.float16
    best = -np.sort(-(x.astype(np.float64) @ weights.astype(np.float64)), axis=-1)[:, :3]
    np.testing.assert_allclose(got, 2 * np.maximum(best, 0), rtol=5e-3, atol=5e-3)
    assert network.profile(x, calls=1).tasks


def test_a_model_that_is_supported_is_a_network_of_ours(tmp_path):
    made = model([node('Relu', 'x', 'y')], {'x': (2, 3)}, {'y': F32})
    network = tw.compile(made, fallback='onnxruntime', save=tmp_path / 'net.tw')
    assert isinstance(network, Network)
    assert isinstance(tw.load(tmp_path / 'net.tw'), Network)


def test_results_that_are_inputs_or_constants_are_copies():
    made = model(
        [node('Identity', 'x', 'same'), node('TopK', 'x k', 'v i'), node('Identity', 'k', 'fixed')],
        {'x': (2, 3)}, {'same': F32, 'v': F32, 'fixed': I64}, k=np.array([1]),
    )  # fmt: skip
    network = tw.compile(made, fallback='onnxruntime')
    x = floats(2, 3)
    for _ in range(2):
        got = network.run({'x': x})
        np.testing.assert_array_equal(got['same'], x)
        np.testing.assert_array_equal(got['fixed'], [1])
        got['same'][...] = 0
        got['fixed'][...] = 0
    assert x.any()


def test_results_may_be_written_over_the_inputs():
    """One result is the input itself, and another one is written there first."""
    made = model(
        [node('TopK', 'x k', 'v i'), node('Neg', 'v', 'y'), node('Identity', 'x', 'same')],
        {'x': (2, 3)}, {'y': F32, 'same': F32}, k=np.array([3]),
    )  # fmt: skip
    network = tw.compile(made, fallback='onnxruntime')
    given = floats(2, 3)
    x, same = given.copy(), np.empty_like(given)
    y, copied = network(x, out=[x, same])
    assert y is x
    assert copied is same
    np.testing.assert_array_equal(same, given)
    np.testing.assert_array_equal(x, -np.sort(given)[:, ::-1])
    with pytest.raises(ArrayError, match='two arrays of out overlap'):
        network(given, out=[x, x])


def test_several_threads(mixed):
    made, network, _ = mixed
    arrays = inputs_of(made)
    want = network.run(arrays)
    wrong = []

    def work() -> None:
        for _ in range(20):
            for name, array in network.run(arrays).items():
                if not np.array_equal(array, want[name]):
                    wrong.append(name)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda net, x: net(), "input 'x' is missing"),
        (lambda net, x: net(x, x), 'takes 1 inputs'),
        (lambda net, x: net(x, x=x), 'given twice'),
        (lambda net, x: net(z=x), "no input 'z'"),
        (lambda net, x: net(x[:1]), 'has shape'),
        (lambda net, x: net(x.astype(np.float64)), 'is float64'),
        (lambda net, x: net(x, out=[x]), 'has 2 results'),
        (lambda net, x: net.run({'x': x}, {'w': x}), "no result 'w'"),
        (lambda net, x: net.run({'x': x}, {'y': x}), 'the result has'),
        (lambda net, x: net.run({'x': x}, {'y': 1}), 'not a numpy array'),
    ],
)
def test_wrong_arrays_are_one_sentence(call, message):
    network = tw.compile(old(), fallback='onnxruntime')
    with pytest.raises(ArrayError, match=message):
        call(network, floats(3, 5))


def test_what_cannot_be_done_is_one_sentence(tmp_path, monkeypatch):
    strange = helper.make_node('Strange', ['x'], ['y'], name='odd', domain='nobody')
    made = model([strange], {'x': (2, 3)}, {'y': F32}, domains=['nobody'])
    with pytest.raises(ModelError, match=r"cannot run 1 x nobody::Strange \(first: 'odd'\) either"):
        tw.compile(made, fallback='onnxruntime')
    with pytest.raises(InputError, match="fallback is 'tvm'"):
        tw.compile(old(), fallback='tvm')
    with pytest.raises(InputError, match='runs nodes of ONNX models'):
        tw.compile(import_traced(old()).graph, fallback='onnxruntime')
    with pytest.raises(InputError, match='cannot be written: ONNX Runtime runs 1 x TopK'):
        tw.compile(old(), fallback='onnxruntime', save=tmp_path / 'net.tw')

    def absent(name: str):
        raise ImportError(name)

    monkeypatch.setattr(sessions, 'import_module', absent)
    with pytest.raises(MissingError, match='not installed'):
        tw.compile(old(), fallback='onnxruntime')


def test_splits_of_what_is_supported_have_one_piece():
    traced = import_traced(model([node('Relu', 'x', 'y')], {'x': (2, 3)}, {'y': F32}))
    found = split(traced, lambda *_: pytest.fail('nothing is left to others'))
    assert [(piece.ours, piece.reads, piece.gives) for piece in found.pieces] == [
        (True, ('x',), ('y',))
    ]


def test_the_command_line(tmp_path, capsys):
    path, report = tmp_path / 'topk.onnx', tmp_path / 'report.json'
    onnx.save(top_k(), path)
    assert invoke(['run', str(path), '--repeat', '1']) == 2
    assert "1 x TopK (first: 'TopK_values')" in capsys.readouterr().err
    words = ['--fallback', 'onnxruntime', '--threads', '1', '--json', str(report)]
    assert invoke(['run', str(path), '--repeat', '2', '--profile', *words]) == 0
    assert 'theirs' in capsys.readouterr().out
    assert len(json.loads(report.read_text())['samples_ms']) == 2
    assert invoke(['compile', str(path), *words]) == 0
    assert 'topk.tw is not written' in capsys.readouterr().err
    assert invoke(['compile', str(path), '-o', str(tmp_path / 'topk.tw'), *words]) == 2
    assert 'topk.tw is not written' in capsys.readouterr().err
    assert not (tmp_path / 'topk.tw').exists()
    assert json.loads(report.read_text())['fallback'] == [['TopK', 'TopK_values']]


def test_sums_of_integers_do_not_saturate_where_a_zero_point_is_shared() -> None:
    """Two products of 255 by 127 in a pair: 64,770, which 16 bits do not hold."""
    names = ('a', 'b')
    arrays = {
        'w': np.full((4, 1), 127, np.int8), 'xz': np.uint8(0), 'wz': np.int8(0),
        **{f'w{name}': np.full((4, 1), 127, np.int8) for name in names},
    }  # fmt: skip
    nodes = [
        helper.make_node('MatMulInteger', [f'x{name}', f'w{name}', 'xz', 'wz'], [name])
        for name in names
    ]
    graph = helper.make_graph(
        nodes, 'shared',
        [helper.make_tensor_value_info(f'x{n}', TensorProto.UINT8, (1, 4)) for n in names],
        [helper.make_tensor_value_info(n, TensorProto.INT32, (1, 1)) for n in names],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid('', 21)]
    session = sessions.Session(
        helper.make_model(graph, opset_imports=opset, ir_version=10), 1, 'shared'
    )
    found = session.run({f'x{name}': np.full((1, 4), 255, np.uint8) for name in names})
    assert {name: int(found[name].item()) for name in names} == dict.fromkeys(names, 4 * 255 * 127)
