"""The generator of networks: what it draws, what it finds, and a minute of what it is for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import MissingError
from tilewright.graph import memory
from tilewright.graph import passes as stages
from tilewright.graph.graph import Graph
from tilewright.graph.lowering.operators import OPERATORS
from tilewright.graph.lowering.reader import NodeReader
from tilewright.runtime.gpu.session import open_device

from . import check, fateful, generate, graphs, judge, oracle, shrink, targets
from .graphs import Net, Node
from .operators import ROWS
from .run import Runner, arguments

SEED = 1
# Graphs of the fixed seed for each target, and more of them in the slow run.
GRAPHS = {'numpy': 60, 'numpy-gpu': 8, 'cpu': 8, 'host': 1, 'opencl': 1}
MORE = {'numpy-gpu': 60, 'cpu': 16, 'host': 5, 'opencl': 2}


@pytest.mark.parametrize(
    ('target', 'numbers'),
    [
        *((target, range(count)) for target, count in GRAPHS.items()),
        *(
            pytest.param(target, range(GRAPHS[target], count), marks=pytest.mark.slow)
            for target, count in MORE.items()
        ),
    ],
)
def test_graphs_of_a_fixed_seed_are_right(target: str, numbers: range) -> None:
    """A wrong kernel, pass or plan: the message has the small model and how to run it again."""
    if target in ('host', 'opencl'):
        try:
            open_device(target)
        except MissingError as error:
            pytest.skip(str(error))
    for number in numbers:
        net = generate.drawn(SEED, number)
        for passes in check.variants_of(number, target):
            kind, message, _ = check.tried(net, target, passes, 'quick')
            assert not kind, (
                f'{message}; python -m tests.fuzz --replay {SEED}:{number} --targets {target} '
                f'--passes "{targets.passes_text(passes)}" --style quick'
            )


def test_every_claimed_operator_is_drawn() -> None:
    """An operator without a row would never be fuzzed. Not drawn are operators with bodies
    (tests/networks/test_control_flow.py), of training (test_training.py), of PyTorch alone
    (test_torch_import.py), and those that round to eight bits, whose results jump where sums differ
    in their last bit: chains of them are drawn that are exact (test_quantised.py).
    """
    bodies, torch = {'If', 'Loop', 'Scan'}, {'tilewright::Expm1', 'tilewright::Log1p'}
    training = {
        'NegativeLogLikelihoodLoss', 'SoftmaxCrossEntropyLoss', 'tilewright::Dropout',
        'tilewright::Gradient',
    }  # fmt: skip
    eight_bits = {
        'ConvInteger', 'DequantizeLinear', 'DynamicQuantizeLinear', 'MatMulInteger', 'QLinearConv',
        'QLinearMatMul', 'QuantizeLinear', 'com.microsoft::QLinearAdd',
    }  # fmt: skip
    assert set(ROWS) | bodies | training | torch | eight_bits == set(OPERATORS)
    drawn = {node.op for number in range(60) for node in generate.drawn(SEED, number).nodes}
    assert len(drawn) > 100


def test_a_graph_follows_from_its_number() -> None:
    """Workers draw graphs in any order; a failure has to be found again by seed and number."""
    first = [_bytes(generate.drawn(SEED, n)) for n in (3, 4, 5)]
    assert [_bytes(generate.drawn(SEED, n)) for n in (5, 4, 3)] == first[::-1]
    assert _bytes(generate.drawn(SEED + 1, 3)) != first[0]


def _bytes(net: Net) -> bytes:
    data = b''.join(a.tobytes() for a in net.inputs.values())
    return net.proto().SerializeToString() + data


def test_every_pair_has_its_turn() -> None:
    """Every (producer, consumer) is asked for, and nearly all that are asked for are there."""
    count = -(-len(generate.all_pairs()) // generate.PAIRS_EACH)
    asked = {pair for n in range(count) for pair in generate.wanted_pairs(SEED, n)}
    assert asked == set(generate.all_pairs())
    assert len(asked) == len(ROWS) ** 2
    for producer, consumer in (
        ('Conv', 'Softmax'), ('Slice', 'Pad'), ('Shape', 'ConstantOfShape'), ('Less', 'Where'),
    ):  # fmt: skip
        net = generate.pair(SEED, producer, consumer)
        assert net is not None
        assert (producer, consumer) in net.pairs
    assert generate.pair(SEED, 'Less', 'Conv', attempts=5) is None  # a truth value is not an image


def test_every_operator_has_a_graph_of_every_type() -> None:
    """A type that no graph has is claimed and never run."""
    without = {
        case
        for case in generate.all_types()
        if case[1] not in ('float32', 'float64') and generate.single(SEED, *case, 40) is None
    }
    # The standard has no signed shifts and no products of 8 and 16 bits; nobody else computes some.
    assert {op for op, _ in without} <= {
        'BitShift', 'MatMul', 'Gemm', 'Einsum', 'OneHot', 'Range', 'Resize',
    }  # fmt: skip


@pytest.mark.parametrize('target', targets.TARGETS)
def test_every_pass_is_off_and_alone_within_a_hundred_graphs(target: str) -> None:
    run = [passes for n in range(100, 200) for passes in check.variants_of(n, target)]
    assert None in run
    assert () in run
    for name in targets.PASSES:
        assert (name,) in run
        assert tuple(other for other in targets.PASSES if other != name) in run
    assert [targets.passes_named(targets.passes_text(p)) for p in run] == run


# -- what is planted is found


def _found(target: str, most: int) -> check.Finding:
    for number in range(most):
        net = generate.drawn(SEED, number)
        for passes in check.variants_of(number, target):
            if check.tried(net, target, passes, 'quick')[0]:
                return check.examined(net, f'{SEED}:{number}', target, passes, 'quick', None, 20)
    raise AssertionError(f'nothing was found in {most} graphs')


def test_a_wrong_lowering_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    right = OPERATORS['Concat'].lower

    def turned(node: NodeReader):
        return right(NodeReader(node.node, node.inputs[::-1]))

    monkeypatch.setitem(OPERATORS, 'Concat', replace(OPERATORS['Concat'], lower=turned))
    found = _found('numpy', 40)
    assert found.nodes == 1
    assert 'Concat' in found.shown
    assert found.passes == 'none'


@pytest.mark.slow
def test_a_wrong_pass_is_found_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relu behind a Sigmoid changes nothing; here it is dropped behind anything."""

    def careless(graph: Graph, _: object) -> Graph:
        nodes = [replace(n, op='Identity') if n.op == 'Relu' else n for n in graph.nodes]
        return replace(graph, nodes=tuple(nodes))

    monkeypatch.setitem(stages.NODE_PASSES, 'simplify', careless)
    found = _found('numpy', 40)
    assert found.nodes <= 3
    assert 'Relu' in found.shown
    assert found.passes == 'simplify'


@pytest.mark.slow
def test_a_wrong_memory_plan_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values that live at the same time at the same place."""
    monkeypatch.setattr(memory, 'offsets_of', lambda lives: dict.fromkeys(lives, 0))
    found = _found('numpy', 20)
    assert found.kind == 'wrong'
    assert found.nodes <= 3


# -- right and wrong


def _net(*nodes: Node, **inputs: np.ndarray) -> Net:
    return shrink.rebuilt(nodes, inputs, {}, nodes[-1].outputs)


def test_differences_are_judged_by_what_errors_do() -> None:
    """One element too many is wrong; a floor at the edge of a whole number is not judged."""
    x = np.array([0.5, 1.5, 2.5], np.float32)
    net = _net(Node('Exp', ('x',), ('y',)), x=x)
    right = {'y': np.exp(x)}
    assert judge.judge(net, right) == judge.Verdict()
    wrong = judge.judge(net, {'y': right['y'] * np.array([1, 1, 1.001], np.float32)})
    assert 'at [2]' in wrong.message
    assert '1 of 3' in wrong.message
    assert 'float64' in judge.judge(net, {'y': right['y'].astype(np.float64)}).message
    edge = _net(
        Node('Div', ('x', 'x'), ('one',)), Node('Floor', ('one',), ('y',)), x=x
    )  # fmt: skip
    below = judge.judge(edge, {'y': np.array([1, 0, 1], np.float32)})
    assert not below.message
    assert below.unstable == 1
    assert judge.judge(edge, {'y': np.array([1, 3, 1], np.float32)}).unstable == 1


def test_nan_where_nan_is_right() -> None:
    net = _net(Node('Log', ('x',), ('y',)), x=np.array([-1.0, 1.0], np.float32))
    assert not judge.judge(net, {'y': np.array([np.nan, 0], np.float32)}).message
    assert 'is 0.0 at [0]' in judge.judge(net, {'y': np.zeros(2, np.float32)}).message


def test_a_saved_failure_is_the_same_again(tmp_path: Path) -> None:
    net = generate.drawn(SEED, 7)
    graphs.save(net, tmp_path / 'x.onnx')
    again = shrink.rebuilt(*graphs.load(tmp_path / 'x.onnx'))
    assert [str(n.op) for n in again.nodes] == [n.op for n in net.nodes]
    assert all(np.array_equal(again.values[o], net.values[o], equal_nan=True)
               for o in net.outputs if net.values[o].dtype.kind == 'f')  # fmt: skip


def test_what_onnx_runtime_lacks_is_computed_otherwise() -> None:
    x = np.array([[100, 1], [100, 4]], np.int8)
    found, by = oracle.compute(Node('CumSum', ('x', 'a'), ('y',)), {'x': x}, {'a': np.array(0)})
    assert by == 'int64'
    assert found['y'].dtype == np.int8
    assert found['y'].tolist() == [[100, 1], [-56, 5]]
    with pytest.raises(oracle.OracleError, match='Conv'):
        oracle.compute(Node('Conv', ('x', 'x'), ('y',)), {'x': np.ones(3, np.float32)}, {})


# -- workers


def test_a_worker_that_dies_or_hangs_is_a_finding(tmp_path: Path) -> None:
    written = tmp_path / 'found.json'
    given = arguments(['--graphs', '5', '--workers', '2', '--json', str(written)])
    runner = Runner(given, fateful.work, limit_s=5.0)
    assert runner.run() == 1
    assert {(f['graph'], f['kind']) for f in runner.findings} == {('1:1', 'crash'), ('1:2', 'hang')}
    assert runner.graphs == 3
    assert runner.runs['cpu'] == 3
    assert runner.pairs['Relu', 'Add'] == 3
    assert '"Relu": "Add:3"' in written.read_text()
