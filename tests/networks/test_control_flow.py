"""If, Loop and Scan: written out where constants decide them, listed with names where not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import GraphProto, ModelProto, TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright.errors import ModelError, UnsupportedError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower, written_out
from tilewright.importers.onnx import import_onnx

ort = pytest.importorskip('onnxruntime', reason='install the extra tilewright[onnxruntime]')
KINDS = {np.dtype(np.float32): 1, np.dtype(np.int64): 7, np.dtype(np.bool_): 9}


def info(name: str, kind: int = TensorProto.FLOAT, shape: Sequence[int] | None = None):
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, outputs: str, **attributes):
    """A node whose inputs and outputs are words; '-' is one that is left out."""
    listed = [[name.replace('-', '') for name in words.split()] for words in (inputs, outputs)]
    return helper.make_node(op, *listed, name=f'{op}_{listed[1][0]}', **attributes)


def body(nodes: Sequence, inputs: Sequence = (), outputs: str = '', **constants) -> GraphProto:
    tensors = [numpy_helper.from_array(np.asarray(v), n) for n, v in constants.items()]
    results = [
        info(n, TensorProto.BOOL if n == 'on' else TensorProto.FLOAT) for n in outputs.split()
    ]
    return helper.make_graph(nodes, 'body', inputs, results, tensors)


def model(nodes: Sequence, outputs: str, given: dict, opset: int = 17, **constants) -> ModelProto:
    inputs = [info(name, KINDS[a.dtype], a.shape) for name, a in given.items()]
    graph = body(nodes, inputs, outputs, **constants)
    versions = [helper.make_opsetid('', opset)]
    return helper.make_model(graph, opset_imports=versions, ir_version=8)


def agree(made: ModelProto, given: dict) -> None:
    """The reference of our program computes what ONNX Runtime does."""
    session = ort.InferenceSession(made.SerializeToString(), providers=['CPUExecutionProvider'])
    names = [output.name for output in made.graph.output]
    got = evaluate(lower(import_onnx(made)), given)
    for name, want in zip(names, session.run(names, given), strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-6, err_msg=name)
        assert got[name].shape == want.shape


X = {'x': np.arange(1, 13, dtype=np.float32).reshape(4, 3)}
STATE = [info('step', 7, ()), info('going', 9, ()), info('a', shape=[3])]


def loop(condition: Sequence, **constants) -> GraphProto:
    """a -> a * x[step] + bias, which is also gathered; x and the bias come from outside."""
    steps = [node('Gather', 'x step', 'row', axis=0), node('Mul', 'a row', 'product'),
             node('Add', 'product bias', 'next'), node('Neg', 'next', 'shown')]  # fmt: skip
    return body([*steps, *condition], STATE, 'on next shown', **constants)


LOOPS = {
    'a count': ('count -', [node('Identity', 'going', 'on')], {'count': 3}),
    'a count and a condition': ('count true', [node('Identity', 'going', 'on')], {'count': 2}),
    'a condition': ('- true', [node('Less', 'step two', 'on')], {'two': np.int64(2)}),
    'a condition before the count': (
        'count true', [node('Less', 'step two', 'on')], {'count': 4, 'two': np.int64(1)}),
}  # fmt: skip


@pytest.mark.parametrize('case', list(LOOPS))
def test_loops_with_states_and_results_of_every_step(case: str) -> None:
    inputs, condition, constants = LOOPS[case]
    numbers = {name: np.int64(value) for name, value in constants.items()}
    made = model(
        [node('Loop', f'{inputs} first', 'last all', body=loop(condition))], 'last all', X,
        first=np.ones(3, np.float32), bias=np.float32(0.5), true=np.bool_(True), **numbers,
    )  # fmt: skip
    agree(made, X)


SCANS = {
    'forwards': {},
    'backwards': {'scan_input_directions': [1]},
    'results backwards': {'scan_output_directions': [1]},
    'columns': {'scan_input_axes': [1], 'scan_output_axes': [1], 'size': 4},
}


@pytest.mark.parametrize('case', list(SCANS))
def test_scans_in_every_direction(case: str) -> None:
    form = dict(SCANS[case])
    size = form.pop('size', 3)
    nodes = [node('Add', 'a row', 'sum'), node('Mul', 'sum factor', 'next'),
             node('Sqrt', 'next', 'shown')]  # fmt: skip
    inner = body(nodes, [info('a', shape=[size]), info('row', shape=[size])], 'next shown')
    scan = node('Scan', 'first x', 'last all', body=inner, num_scan_inputs=1, **form)
    first = np.ones(size, np.float32)
    agree(model([scan], 'last all', X, first=first, factor=np.float32(0.5)), X)


def test_nested_ifs_of_shapes_are_decided() -> None:
    """What exporters ask of sizes, such as whether an axis has one element, is known."""
    then, els = (body([node(op, 'x', 'r')], (), 'r') for op in ('Relu', 'Neg'))
    inner = body([node('If', 'is_four', 'deep', then_branch=then, else_branch=els)], (), 'deep')
    other = body([node('Abs', 'x', 'r')], (), 'r')
    nodes = [
        node('Shape', 'x', 'shape'), node('Gather', 'shape one', 'size', axis=0),
        node('Equal', 'size one', 'single'), node('Equal', 'size four', 'is_four'),
        node('If', 'single', 'y', then_branch=other, else_branch=inner),
    ]  # fmt: skip
    made = model(nodes, 'y', X, one=np.int64(1), four=np.int64(4))
    graph = written_out(import_onnx(made))
    assert not any(n.op == 'If' for n in graph.nodes)
    assert 'Neg' in {n.op for n in graph.nodes}
    agree(made, X)


def branches(other: float) -> ModelProto:
    then, els = (body([node('Mul', 'x c', 'r')], (), 'r', c=np.float32(v)) for v in (2.0, other))
    given = X | {'flag': np.array(True)}
    return model([node('If', 'flag', 'y', then_branch=then, else_branch=els)], 'y', given)


def test_branches_that_are_alike_need_no_condition() -> None:
    for flag in (True, False):
        agree(branches(2.0), X | {'flag': np.array(flag)})


def test_what_cannot_be_written_out_is_listed_with_what_is_inside() -> None:
    """One message: conditions and counts of the call by their names, operators in bodies too."""
    strange = body([node('Special', 'x', 'r', domain='org.test')], (), 'r')
    plain = body([node('Neg', 'x', 'r')], (), 'r')
    going = loop([node('Less', 'step count', 'on')])
    nodes = [
        node('If', 'flag', 'y', then_branch=strange, else_branch=plain),
        node('Loop', 'count - first', 'last all', body=going),
    ]
    given = X | {'flag': np.array(True), 'count': np.array(3)}
    made = model(
        nodes, 'y last all', given, first=np.ones(3, np.float32), bias=np.float32(0.5)
    )  # fmt: skip
    with pytest.raises(UnsupportedError) as caught:
        lower(import_onnx(made))
    for said in (
        "If with the condition 'flag', known only when it runs (first: 'If_y')",
        "1 x org.test::Special (first: 'Special_r')",
        "Loop with the number of steps 'count', known only when it runs (first: 'Loop_last')",
    ):
        assert said in str(caught.value)
    assert set(caught.value.nodes) == {'If_y', 'Loop_last'}
    fixed = import_onnx(branches(3.0), constants={'flag': np.array(False)})
    np.testing.assert_array_equal(evaluate(lower(fixed), X)['y'], 3 * X['x'])


def test_loops_that_go_on_for_ever_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A condition that stays true, and a body that takes other values than it is given."""
    monkeypatch.setattr('tilewright.graph.lower.MAX_NODES', 100)
    endless = body([node('Identity', 'going', 'on'), node('Neg', 'a', 'next')], STATE, 'on next')
    wrong = body([node('Identity', 'going', 'on')], STATE[:2], 'on')
    constants = {'first': np.ones(3, np.float32), 'bias': np.float32(0.5), 'true': np.bool_(True)}
    many = {'count': np.int64(2**40)}
    for inner, inputs, said in (
        (endless, '- - first', 'does not end'),
        (endless, 'count true first', 'more than 100 nodes'),
        (wrong, 'count true first', 'gives its body 3 values; it takes 2'),
    ):
        made = model([node('Loop', inputs, 'y', body=inner)], 'y', X, **constants, **many)
        with pytest.raises(ModelError, match=said):
            lower(import_onnx(made))


def test_a_loop_is_compiled_like_any_network() -> None:
    inputs, condition, constants = LOOPS['a count']
    made = model(
        [node('Loop', f'{inputs} first', 'last all', body=loop(condition))], 'last all', X,
        first=np.ones(3, np.float32), bias=np.float32(0.5), count=np.int64(constants['count']),
    )  # fmt: skip
    got = tw.compile(made, threads=1, check=False).run(X)
    want = evaluate(lower(import_onnx(made)), X)
    assert all(np.allclose(got[name], want[name]) for name in ('last', 'all'))


def test_sizes_of_minus_one_are_open() -> None:
    """Some exporters write -1 for a size that is not known."""
    made = model([node('Neg', 'x', 'y')], 'y', X)
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    assert import_onnx(made).inputs[0].shape == (1, 3)
    assert import_onnx(made, {'x': (5, 3)}).inputs[0].shape == (5, 3)
