"""Loop, If and Scan through the fallback give what ONNX Runtime gives for the whole model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_fallback import _top_k_is_theirs, compare, floats, inputs_of, model, node  # noqa: F401

import tilewright as tw
from tilewright.errors import ModelError
from tilewright.fallback import sessions
from tilewright.fallback.sessions import Kind, Session, sub_model
from tilewright.fallback.subgraphs import captured, ready

onnxruntime = pytest.importorskip('onnxruntime')
pytestmark = pytest.mark.filterwarnings('ignore:.*nominal figures.*')
F32, I64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
X = {'x': (1, 80, 16)}  # a batch of one, so that a lost or added dimension is seen
YES, ZERO = np.bool_(True), np.float32(0)


def info(name, shape=None, kind=F32):
    return helper.make_tensor_value_info(name, kind, shape)


def graph(nodes, inputs, outputs, **constants):
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()]
    return helper.make_graph(nodes, 'inner', inputs, outputs, tensors)


def loop_body(nodes, state, outputs, **constants):
    """`state` and `outputs`: name -> the shape that is declared, None for none."""
    return graph(
        [*nodes, node('Identity', 'go', 'on')],
        [info('i', [], I64), info('go', [], BOOL), *(info(n, s) for n, s in state.items())],
        [info('on', [], BOOL), *(info(n, s) for n, s in outputs.items())],
        **constants,
    )


def branching(then, other, behind=(), outputs=('y',), before=(), **constants):
    """If the sum of x is positive, `then`, else `other`, into i."""
    return model(
        [
            *before,
            node('ReduceSum', 'x', 'total', keepdims=0),
            node('Greater', 'total zero', 'positive'),
            node('If', 'positive', 'i', then_branch=then, else_branch=other),
            *behind,
        ],
        X, dict.fromkeys(outputs, F32), zero=ZERO, **constants,
    )  # fmt: skip


def loop_with_captured_values():
    """State and scanned results; of the outer graph: an input, a constant and a value of ours."""
    body = loop_body(
        [node('Add', 'h w', 'h1'), node('Mul', 'h1 a', 'h2'), node('Sub', 'h2 x', 's')],
        {'h': [1, 80, 16]}, {'h2': [1, 80, 16], 's': None},
    )  # fmt: skip
    return model(
        [node('Relu', 'x', 'a'), node('Loop', 'times yes a', 'h_last all', body=body),
         node('Neg', 'all', 'y')],
        X, {'y': F32, 'h_last': F32}, w=floats(80, 16), times=np.int64(3), yes=YES,
    )  # fmt: skip


def loop_as_often_as_the_batch():
    body = loop_body([node('Gather', 'x i', 'row', axis=0)], {}, {'row': None})
    return model(
        [node('Shape', 'x', 'sizes'), node('Gather', 'sizes first', 'times', axis=0),
         node('Loop', 'times yes', 'rows', body=body), node('Add', 'rows x', 'y')],
        X, {'y': F32}, first=np.int64(0), yes=YES,
    )  # fmt: skip


def loop_without_a_count():
    body = graph(
        [node('Add', 'n one', 'n2'), node('Less', 'n2 most', 'on'), node('Mul', 'x n2', 's')],
        [info('i', [], I64), info('go', [], BOOL), info('n', [])],
        [info('on', [], BOOL), info('n2', []), info('s')],
    )
    loop = helper.make_node('Loop', ['', 'yes', 'zero'], ['n_last', 'y'], name='loop', body=body)
    return model(
        [loop], X, {'y': F32, 'n_last': F32}, yes=YES, zero=ZERO, one=np.float32(1),
        most=np.float32(4),
    )  # fmt: skip


def loop_whose_state_grows():
    """The body declares the shape that the state has in the first iteration only."""
    body = loop_body([node('Concat', 'h x', 'h2', axis=0)], {'h': [1, 80, 16]}, {'h2': [1, 80, 16]})
    return model(
        [node('Loop', 'times yes x', 'h_last', body=body), node('Shape', 'h_last', 'sizes'),
         node('Expand', 'x sizes', 'y')],
        X, {'y': F32, 'h_last': F32}, times=np.int64(2), yes=YES,
    )  # fmt: skip


def inner_names_that_come_again_behind():
    """`v` is a value of the body; behind the loop another one, which TopK reads."""
    body = loop_body([node('Add', 'x x', 'v')], {}, {'v': None})
    return model(
        [node('Loop', 'times yes', 'all', body=body), node('Sigmoid', 'x', 'v'),
         node('TopK', 'v k', 'top places'), node('Add', 'all top', 'y')],
        X, {'y': F32}, times=np.int64(1), yes=YES, k=np.array([16]),
    )  # fmt: skip


def state_named_like_what_it_begins_with():
    body = loop_body([node('Add', 'h x', 'h2')], {'h': None}, {'h2': None})
    return model(
        [node('Shape', 'x', 'sizes'), node('ConstantOfShape', 'sizes', 'h'),
         node('Loop', 'times yes h', 'y', body=body)],
        X, {'y': F32}, times=np.int64(3), yes=YES,
    )  # fmt: skip


def branches_of_different_rank():
    then = graph([node('Squeeze', 'a axis', 'r')], [], [info('r')])
    other = graph([node('Mul', 'a x', 's')], [], [info('s')])
    return branching(
        then, other, [node('Add', 'i x', 'y')], before=[node('Relu', 'x', 'a')], axis=np.array([0])
    )


def branches_said_to_be_numbers():
    """'No dimensions' is what some exporters write for 'not known'. Shape(i) is ours."""
    then = graph([node('Add', 'w x', 'r')], [], [info('r', [])])
    other = graph([node('Sub', 'w x', 'r')], [], [info('r', [])])
    behind = [node('Shape', 'i', 'sizes'), node('Expand', 'x sizes', 'y')]
    return branching(then, other, behind, w=floats(80, 1, 16))


def branches_of_constants():
    value = numpy_helper.from_array(floats(80, 16))
    then = graph([helper.make_node('Constant', [], ['r'], value=value)], [], [info('r')])
    other = graph([], [], [info('s')], s=floats(80, 16, seed=1))
    return branching(then, other, [node('Add', 'i x', 'y')])


def a_condition_that_is_known():
    then = graph([node('Squeeze', 'x axis', 'r')], [], [info('r')])
    other = graph([node('Identity', 'x', 's')], [], [info('s')])
    return model(
        [node('Shape', 'x', 'sizes'), node('Gather', 'sizes first', 'batch', axis=0),
         node('Equal', 'batch one', 'p'),
         node('If', 'p', 'i', then_branch=then, else_branch=other), node('Relu', 'i', 'y')],
        X, {'y': F32}, first=np.int64(0), one=np.int64(1), axis=np.array([0]),
    )  # fmt: skip


def nested():
    """An If inside a Loop, which captures from the body and from outside of it."""
    then = graph([node('Add', 'h w', 'r')], [], [info('r')])
    other = graph([node('Sub', 'h a', 'r')], [], [info('r')])
    body = loop_body(
        [node('Equal', 'i one', 'p'), node('If', 'p', 'h2', then_branch=then, else_branch=other),
         node('Identity', 'h2', 's')],
        {'h': None}, {'h2': None, 's': None},
    )  # fmt: skip
    return model(
        [node('Relu', 'x', 'a'), node('Loop', 'times yes a', 'h_last y', body=body)],
        X, {'y': F32, 'h_last': F32}, w=floats(80, 16), one=np.int64(1), times=np.int64(3), yes=YES,
    )  # fmt: skip


def scan_with_captured_values():
    body = graph(
        [node('Add', 'h e', 'h1'), node('Mul', 'h1 a', 'h2'), node('Identity', 'h2', 's')],
        [info('h', [1, 16]), info('e', [1, 16])], [info('h2', [1, 16]), info('s', [1, 16])],
    )  # fmt: skip
    scan = node(
        'Scan', 'start x', 'h_last all', body=body, num_scan_inputs=1, scan_input_axes=[1],
        scan_output_axes=[1],
    )  # fmt: skip
    return model(
        [node('Relu', 'w', 'a'), scan, node('Add', 'all x', 'y')],
        X | {'w': (16,)}, {'y': F32, 'h_last': F32}, start=floats(1, 16),
    )  # fmt: skip


def sequences_in_a_loop():
    """What PyTorch makes of a list that is appended to."""
    listed = helper.make_tensor_sequence_value_info
    body = graph(
        [node('Gather', 'x i', 'row', axis=0), node('SequenceInsert', 'l row', 'l2'),
         node('Identity', 'go', 'on')],
        [info('i', [], I64), info('go', [], BOOL), listed('l', F32, None)],
        [info('on', [], BOOL), listed('l2', F32, None)],
    )  # fmt: skip
    empty = helper.make_node('SequenceEmpty', [], ['none'], name='empty')
    return model(
        [empty, node('Loop', 'times yes none', 'rows', body=body),
         node('ConcatFromSequence', 'rows', 'y', axis=0, new_axis=1)],
        X, {'y': F32}, times=np.int64(1), yes=YES,
    )  # fmt: skip


MODELS = [
    loop_with_captured_values, loop_as_often_as_the_batch, loop_without_a_count,
    loop_whose_state_grows, inner_names_that_come_again_behind,
    state_named_like_what_it_begins_with, branches_of_different_rank, branches_said_to_be_numbers,
    branches_of_constants, a_condition_that_is_known, nested, scan_with_captured_values,
    sequences_in_a_loop,
]  # fmt: skip


@pytest.mark.parametrize('sign', [1, -1])
@pytest.mark.parametrize('made', MODELS, ids=lambda made: made.__name__)
def test_a_model_with_subgraphs_is_that_of_onnx_runtime(made, sign):
    """The sign decides which branch is taken."""
    whole = made()
    network = tw.compile(whole, fallback='onnxruntime', threads=1)
    arrays = {name: sign * np.abs(array) for name, array in inputs_of(whole).items()}
    compare(whole, network, **arrays)
    for result, got in zip(network.outputs, network.run(arrays).values(), strict=True):
        assert Kind('', result.shape).holds(got.shape)


def test_results_that_are_left_out_are_no_trap():
    """ONNX Runtime dies of a Loop that leaves out a result, and refuses such an If."""
    body = loop_body([node('Add', 'h x', 'h2'), node('Neg', 'h2', 's')], {'h': None},
                     {'h2': None, 's': None})  # fmt: skip
    loop = helper.make_node('Loop', ['times', 'yes', 'x'], ['', 'all'], name='loop', body=body)
    then = graph([node('Neg', 'x', 'r'), node('Abs', 'x', 's')], [], [info('r'), info('s')])
    other = graph([node('Abs', 'x', 'r'), node('Neg', 'x', 's')], [], [info('r'), info('s')])
    choice = helper.make_node(
        'If', ['positive'], ['', 'y'], name='if', then_branch=then, else_branch=other
    )
    made = model(
        [loop, node('ReduceSum', 'x', 'total', keepdims=0), node('Greater', 'total zero',
         'positive'), choice],
        X, {'all': F32, 'y': F32}, times=np.int64(2), yes=YES, zero=ZERO,
    )  # fmt: skip
    x = np.abs(floats(1, 80, 16))
    got, y = tw.compile(made, fallback='onnxruntime', threads=1)(x)
    np.testing.assert_allclose(got, np.stack([-2 * x, -3 * x]), rtol=1e-6)
    np.testing.assert_array_equal(y, x)


def test_names_of_a_subgraph_are_its_own():
    """Inside, `a` is another value than outside: ONNX Runtime refuses that, or mixes them up."""
    then = graph([node('Abs', 'x', 'a'), node('Add', 'a w', 'r')], [], [info('r')],
                 w=floats(80, 16))  # fmt: skip
    other = graph([node('Add', 'a w', 'r')], [], [info('r')])
    made = branching(
        then, other, [node('Add', 'i a', 'y')], before=[node('Relu', 'x', 'a')],
        w=floats(80, 16, seed=1),
    )  # fmt: skip
    network = tw.compile(made, fallback='onnxruntime', threads=1)
    x = np.abs(floats(1, 80, 16))
    np.testing.assert_allclose(network(x), x + floats(80, 16) + x, rtol=1e-6)
    np.testing.assert_allclose(network(-x), floats(80, 16, seed=1)[None], rtol=1e-6)


def test_weights_of_subgraphs_may_lie_in_a_file_beside_the_model(tmp_path):
    then = graph([node('Add', 'x w', 'r')], [], [info('r')], w=floats(80, 16))
    value = numpy_helper.from_array(floats(80, 16, seed=1))
    constant = helper.make_node('Constant', [], ['w'], value=value)
    other = graph([constant, node('Mul', 'x w', 'r')], [], [info('r')])
    made, path = branching(then, other, [node('Relu', 'i', 'y')]), tmp_path / 'model.onnx'
    beside = onnx.ModelProto()
    beside.CopyFrom(made)
    onnx.save(
        beside, path, save_as_external_data=True, location='weights', size_threshold=0,
        convert_attribute=True,
    )  # fmt: skip
    network = tw.compile(path, fallback='onnxruntime', threads=1)
    for x in (floats(1, 80, 16), -floats(1, 80, 16)):
        compare(made, network, x=x)


def test_what_a_subgraph_captures():
    inner = graph([node('Add', 'p q', 'r'), node('Neg', 'r', 's')], [info('p')], [info('s')])
    nested = node('If', 'c', 'z', then_branch=inner, else_branch=graph([], [], [info('outside')]))
    body = graph([nested, node('Mul', 'z k', 'y')], [info('c')], [info('y')], k=ZERO)
    assert captured(node('Loop', 'm', 'o', body=body)) == {'q', 'outside'}
    loop = node('Loop', 'm', 'o', body=body)
    (ready_node,) = ready([loop], {'q', 'outside', 'z', 'k', 's'}, None)
    assert captured(ready_node) == {'q', 'outside'}
    names = {name for n in ready_node.attribute[0].g.node for name in n.output}
    assert not names & {'z', 'k', 's'}


def test_a_value_that_nothing_gives_is_one_sentence():
    then = graph([node('Add', 'x nowhere', 'r')], [], [info('r')])
    other = graph([node('Neg', 'x', 'r')], [], [info('r')])
    with pytest.raises(ModelError, match=r"If 'If_i' reads 'nowhere', which no node"):
        tw.compile(branching(then, other, [node('Neg', 'i', 'y')]), fallback='onnxruntime')


def test_results_that_are_no_tensors_are_refused():
    made = model([node('SplitToSequence', 'x', 'l', axis=1)], X, {})
    made.graph.output.append(helper.make_tensor_sequence_value_info('l', F32, None))
    with pytest.raises(ModelError, match=r"result 'l' of type seq\(tensor\(float\)\)") as caught:
        tw.compile(made, fallback='onnxruntime')
    assert '\n' not in str(caught.value)


def test_shapes_unlike_those_that_were_inferred_are_noticed():
    """Kernels and folded shapes rely on what a session said before it ran."""
    made = model([node('TopK', 'x k', 'v i')], X, {'v': F32}, k=np.array([2]))
    kinds = {'x': Kind('tensor(float)', (1, 80, 16))}
    small = sub_model(made, list(made.graph.node), kinds, {'k': np.array([2])}, ['v'])
    expected = {'v': Kind('tensor(float)', (1, None, 3))}
    session = Session(small, 1, '1 x TopK', expected)
    with pytest.raises(ModelError, match=r"gives 'v' of 1 x TopK with shape \[1, 80, 2\], where it "
                                         r'had inferred \[1, \?, 3\]'):  # fmt: skip
        session.run({'x': floats(1, 80, 16)})


def test_shapes_that_only_decide_constants_are_compared_too(monkeypatch):
    """Shape(i) is folded, so that nothing of ours reads i when the network runs."""
    then = graph([node('Add', 'w x', 'r')], [], [info('r')])
    other = graph([node('Sub', 'w x', 'r')], [], [info('r')])
    behind = [node('Shape', 'i', 'sizes'), node('Expand', 'x sizes', 'y')]
    made = branching(then, other, behind, w=floats(80, 1, 16))
    wrong = {'i': Kind('tensor(float)', (1, 80, 16))}
    inferred = sessions.Session.kinds
    monkeypatch.setattr(sessions.Session, 'kinds', lambda self: inferred(self) | wrong)
    network = tw.compile(made, fallback='onnxruntime', threads=1)
    with pytest.raises(ModelError, match=r"gives 'i' of .* with shape \[80, 80, 16\]"):
        network(floats(1, 80, 16))


def test_an_opset_that_onnx_runtime_does_not_know_is_tried_as_an_older_one():
    """It refuses a file by its number, also where no operator in it has changed."""
    made = model(
        [node('TopK', 'x k', 'v i'), node('Neg', 'v', 'y')], X, {'y': F32}, k=np.array([2])
    )
    newest = onnx.defs.onnx_opset_version()
    made.opset_import[0].version, made.ir_version = newest, onnx.IR_VERSION
    kinds = {'x': Kind('tensor(float)', (1, 80, 16))}
    small = sub_model(made, list(made.graph.node), kinds, {'k': np.array([2])}, ['y'])
    older = sessions._in_older_opset(small)
    assert older is not None
    assert older.opset_import[0].version < newest
    x = floats(1, 80, 16)
    got = Session(small, 1, '1 x TopK').run({'x': x})['y']
    np.testing.assert_array_equal(got, -np.sort(x)[..., :-3:-1])
