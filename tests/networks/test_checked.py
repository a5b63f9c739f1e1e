"""`check=True`: a network that is wrong is found, and who is to blame is named."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import graphs
import numpy as np
import onnx
import pytest
from devices import device
from onnx import TensorProto, helper, numpy_helper

import tilewright as tw
from tilewright import zoo
from tilewright.check import check, failure
from tilewright.check.cause import Subject
from tilewright.check.check import check_network, wanted
from tilewright.check.data import random_inputs
from tilewright.check.difference import kernel_tolerance, tolerance_of
from tilewright.check.expected import Expected
from tilewright.check.failure import Files
from tilewright.check.source import Source
from tilewright.cli.main import invoke
from tilewright.errors import CheckError, InputError
from tilewright.graph import passes as stages
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.lower import lower
from tilewright.graph.lowering.operators import OPERATORS
from tilewright.network import compile as network_stages
from tilewright.runtime.gpu import network as gpu_network
from tilewright.targets.cpu import kernels
from tilewright.targets.cpu import site as cpu_site
from tilewright.targets.gpu import assemble, bind

WRONG_PART = """
void tw_part(const tw_args *args, long part) {
    tw_part_right(args, part);
    ((float *)args->out)[7] += 1.0f;
}
"""


@pytest.fixture
def failures(monkeypatch, tmp_path):
    """Where failures are written."""
    monkeypatch.setattr(failure, 'cache_dir', lambda: tmp_path / 'cache')
    return tmp_path / 'cache' / 'failures'


@pytest.fixture
def break_kernel(monkeypatch):
    """Let kernels of groups with a word in their labels add one to an element of their results."""

    def broken(word: str) -> None:
        right = kernels.source_of

        def wrong(group, schedule):
            source = right(group, schedule)
            if word not in group.label:
                return source
            return re.sub(r'\btw_part\b', 'tw_part_right', source) + WRONG_PART

        wrong.cache_clear = right.cache_clear
        monkeypatch.setattr(kernels, 'source_of', wrong)
        monkeypatch.setattr(kernels.built, 'find', lambda group, schedule: None)
        monkeypatch.setattr(kernels.built, 'remember', lambda group, schedule, library: None)

    return broken


@pytest.fixture
def break_gpu_kernel(monkeypatch):
    """The same for GPU kernels: everything that they compute is off by a half."""
    right = assemble.generate

    def broken(word: str) -> None:
        def wrong(group, schedule):
            made = right(group, schedule)
            if word not in group.label:
                return made
            return replace(
                made,
                steps=tuple(
                    replace(s, kernel=replace(
                        s.kernel, body=s.kernel.body.replace('value_0 = ', 'value_0 = 0.5f + ')))
                    for s in made.steps
                ),
            )  # fmt: skip

        monkeypatch.setattr(assemble, 'generate', wrong)

    return broken


def lose_relus(graph: Graph, *_: object) -> Graph:
    """A pass that is wrong."""
    nodes = (replace(n, op='Identity') if n.op == 'Relu' else n for n in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def same_memory(plan):
    """A memory plan that is wrong: whatever is not a caller's array begins at the same byte."""

    def planned(program):
        made = plan(program)
        places = {
            name: replace(place, offset=0) if place.kind == 'arena' else place
            for name, place in made.places.items()
        }
        return replace(made, places=places)

    return planned


def chain() -> Graph:
    """x -> Relu a -> Sigmoid b -> a + b -> Tanh y: `a` and `b` are needed at once."""
    nodes = [
        graphs.node('Relu', 'x', 'a'),
        graphs.node('Sigmoid', 'a', 'b'),
        graphs.node('Add', 'a b', 'c'),
        graphs.node('Tanh', 'c', 'y'),
    ]
    return graphs.graph({'x': (3, 50)}, 'y', nodes)


def as_onnx(nodes, inputs, outputs, **constants):
    """A model; inputs: name -> array of the type."""
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes,
        'small',
        [helper.make_tensor_value_info(n, kind(a.dtype), a.shape) for n, a in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()],
    )
    for value in graph.output:
        value.ClearField('type')
    return helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)


def checked(model, target='cpu', **options):
    """The verdict on a network."""
    found = []
    options.setdefault('seed', 0)
    own = {key: options.pop(key) for key in ('seed', 'arrays', 'tolerance') if key in options}
    tw.compile(model, target, check=tw.Check(report=found.append, **own), **options)
    return found[0]


def failed(model, target='cpu', **options) -> str:
    """What is said of a network that is wrong."""
    with pytest.raises(CheckError) as raised:
        tw.compile(model, target, check=True, **options)
    assert raised.value.exit_code == 1
    return str(raised.value)


def reproduced(said: str, failures: Path, capsys) -> str:
    """What the command that a failure names says: it fails again, with exit code 1."""
    folder = next(failures.iterdir())
    assert str(folder) in said
    with np.load(folder / 'got.npz') as got, np.load(folder / 'expected.npz') as want:
        assert set(got) == set(want)
        assert any(not np.allclose(got[name], want[name]) for name in got)
    report = json.loads((folder / 'report.json').read_text())
    command = shlex.split(report['again'].strip('`'))
    assert command[:2] == ['tilewright', 'run']
    assert report['again'] in said
    capsys.readouterr()
    assert invoke([*command[1:], '--repeat', '1']) == 1
    return capsys.readouterr().err


def test_a_broken_kernel_is_named(failures, break_kernel, capsys):
    """The second convolution, not the first, whose results it reads, and no pass."""
    break_kernel('+add+relu')
    said = failed(graphs.convolutions())
    assert "the task 'Conv_c1' (mb1ic4ih6" in said
    assert 'of Conv_c1, Add_z, Relu_y' in said
    assert 'is the first whose result is wrong' in said
    assert 'at [0, 0, 1, 1]' in said
    assert 'the tolerance of one kernel is 0.001' in said
    assert re.search(r'schema \w+, schedule \w+', said)
    again = reproduced(said, failures, capsys)
    assert "the task 'Conv_c1'" in again


@pytest.mark.parametrize('target', ['host', 'opencl'])
def test_a_broken_kernel_of_a_gpu_is_named(failures, break_gpu_kernel, target, capsys):
    device(target)
    break_gpu_kernel('sigmoid')
    said = failed(chain(), target, passes=())
    assert "the task 'Sigmoid_b'" in said
    assert 'schema general' in said
    assert "'b' differs from its reference by at most 0.5" in said
    assert "the task 'Sigmoid_b'" in reproduced(said, failures, capsys)


@pytest.mark.parametrize('target', ['cpu', 'host'])
def test_a_broken_pass_is_named(failures, monkeypatch, target, capsys):
    monkeypatch.setitem(stages.NODE_PASSES, 'simplify', lose_relus)
    said = failed(graphs.convolutions(), target)
    assert "the pass 'simplify' changes what the network computes: 'y' differs" in said
    assert "the pass 'simplify'" in reproduced(said, failures, capsys)


def test_a_broken_pass_over_tasks_is_named(failures, monkeypatch):
    """And the task that it changed: the one whose result has other values than before."""

    def without_bias(program, cost):
        made = stages.fuse(program, cost)
        constants = {**made.constants, 'b0': np.zeros_like(made.constants['b0'])}
        return replace(made, constants=constants)

    monkeypatch.setitem(stages.PROGRAM_PASSES, 'fuse', without_bias)
    said = failed(graphs.convolutions())
    assert "the pass 'fuse' changes what the network computes" in said
    assert "first in the task 'Conv_c0'" in said
    assert 'concat' not in said


@pytest.fixture
def unproved(monkeypatch) -> None:
    """Plans as they come: the proof of plans would refuse these before anything runs."""
    monkeypatch.setattr('tilewright.runtime.cpu.network.prove_memory', lambda *_: None)
    monkeypatch.setattr(bind, 'prove_bound', lambda _: None)


@pytest.mark.usefixtures('unproved')
def test_a_broken_memory_plan_is_named(failures, monkeypatch, capsys):
    monkeypatch.setattr(cpu_site, 'plan', same_memory(cpu_site.plan))
    said = failed(chain(), passes=())
    assert "the task 'Sigmoid_b'" in said
    assert "writes over 'a', which 'Add_c' reads later" in said
    assert 'the memory plan gives both the same bytes' in said
    assert "writes over 'a'" in reproduced(said, failures, capsys)


@pytest.mark.usefixtures('unproved')
@pytest.mark.parametrize('target', ['host', 'opencl'])
def test_a_broken_memory_plan_of_a_gpu_is_named(failures, monkeypatch, target, capsys):
    device(target)
    right = bind.place

    def wrong(program, modules):
        made = right(program, modules)
        return replace(made, values={**made.values, 'b': made.values['a']})

    monkeypatch.setattr(bind, 'place', wrong)
    said = failed(chain(), target, passes=())
    assert "writes over 'a', which 'Add_c' reads later" in said
    assert "writes over 'a'" in reproduced(said, failures, capsys)


def test_a_kernel_that_writes_outside_its_result_is_named(failures, monkeypatch, break_kernel):
    """Its own result is right: what it spoils is another one's."""
    monkeypatch.setattr(
        'test_checked.WRONG_PART', WRONG_PART.replace('[7] += 1.0f', '[3 * 50 + 20] = 9.0f')
    )
    monkeypatch.setattr(cpu_site, 'plan', _a_behind_b(cpu_site.plan))
    break_kernel('sigmoid')
    said = failed(chain(), passes=())
    assert "the task 'Sigmoid_b'" in said
    assert "writes over 'a'" in said
    assert 'its kernel writes outside its result' in said


def _a_behind_b(plan):
    """`a` in the bytes right behind `b`, 640 of which are 3 x 50 floats and what is rounded up."""

    def planned(program):
        made = plan(program)
        places = {
            **made.places,
            'b': replace(made.places['b'], offset=0),
            'a': replace(made.places['a'], offset=640),
            'c': replace(made.places['c'], offset=1280),
        }
        return replace(made, places=places, arena_bytes=1920)

    return planned


def test_an_operator_that_is_misread_is_named(failures, monkeypatch):
    """Passes and kernels compute what was read; only ONNX Runtime knows that it is wrong."""
    pytest.importorskip('onnxruntime')
    nodes = [
        helper.make_node('MatMul', ['x', 'w'], ['m'], name='product'),
        helper.make_node('Sinh', ['m'], ['s'], name='mistaken'),
        helper.make_node('Relu', ['s'], ['y'], name='last'),
    ]
    model = as_onnx(nodes, {'x': graphs.floats(4, 5)}, ['y'], w=graphs.floats(5, 3))
    monkeypatch.setitem(OPERATORS, 'Sinh', OPERATORS['Tanh'])
    said = failed(model)
    assert 'computes something else than ONNX Runtime, without any pass or kernel' in said
    assert "first in the task 'mistaken'" in said


def test_tasks_that_are_wrong_only_together_are_said_to_be(failures, monkeypatch):
    """What was recorded runs in another order than its tasks depend on each other."""
    right = gpu_network.recorded
    monkeypatch.setattr(
        gpu_network, 'recorded', lambda device, calls, waits: right(device, calls[::-1], None)
    )
    said = failed(chain(), 'host', passes=())
    assert 'every task is right when they run one after the other' in said


def test_the_command_line_says_it_with_exit_code_1(failures, break_kernel, tmp_path, call):
    break_kernel('+relu')
    model, output = tmp_path / 'model.onnx', tmp_path / 'model.tw'
    weights = graphs.floats(4, 3, 1, 1)
    nodes = [
        helper.make_node('Conv', ['x', 'w'], ['c']),
        helper.make_node('Relu', ['c'], ['y']),
    ]
    onnx.save(as_onnx(nodes, {'x': graphs.floats(1, 3, 4, 4)}, ['y'], w=weights), model)
    code, _, error = call('compile', model, '-o', output, '--check')
    assert code == 1
    line = error.splitlines()[-1]
    assert line.startswith('tilewright: ')
    assert 'is the first whose result is wrong' in line
    assert not output.exists()
    assert call('compile', model, '-o', output, '--no-check')[0] == 0
    assert output.exists()
    code, _, error = call('run', output, '--check', output, '--seed', 3, '--repeat', 1)
    assert code == 1
    assert 'is the first whose result is wrong' in error


def test_the_command_line_says_what_was_checked(tmp_path, call):
    pytest.importorskip('onnxruntime')
    model, report = tmp_path / 'model.onnx', tmp_path / 'report.json'
    nodes = [helper.make_node('MatMul', ['x', 'w'], ['y'])]
    onnx.save(as_onnx(nodes, {'x': graphs.floats(2, 5)}, ['y'], w=graphs.floats(5, 3)), model)
    words = ('compile', model, '-o', tmp_path / 'model.tw', '--seed', 4, '--json', report)
    code, said, _ = call(*words, '--check')
    assert code == 0
    assert 'checked: y: largest difference from ONNX Runtime' in said
    found = json.loads(report.read_text())['check']
    assert found['ok']
    assert found['errors']['y'] <= found['tolerance'] == 1e-3
    assert call(*words)[0] == 0
    assert json.loads(report.read_text())['check'] is None


@pytest.mark.parametrize(
    'name',
    ['squeezenet', 'mobilenet_v1']
    + [pytest.param(n, marks=pytest.mark.slow) for n in ('resnet18', 'densenet121')],
)
def test_networks_of_the_zoo_pass(name):
    """All passes, and kernels for which nothing is searched."""
    pytest.importorskip('onnxruntime')
    model = zoo.onnx_model(name, image=32, width=16)
    graph = network_stages.read(model)
    program, source = network_stages.prepare(graph), Source('onnx', model, graph)
    subject = Subject(graphs.quick(program), program, source.plain)
    found = check_network(subject, tw.Check(seed=3), Files(), source.right)
    assert found.by == 'ONNX Runtime'
    assert found.within
    assert found.differences[0].error > 0.0  # it was not compared with itself


@pytest.mark.slow
@pytest.mark.parametrize('target', ['cpu', 'host', 'opencl'])
def test_networks_with_convolutions_pass_on_every_target(target):
    pytest.importorskip('onnxruntime')
    if target != 'cpu':
        device(target)
    assert checked(graphs.branches(), target).within
    assert checked(zoo.onnx_model('mobilenet_v1', image=32, width=16), target).within


@pytest.mark.parametrize('target', ['host', 'opencl'])
def test_networks_of_gpus_pass(target):
    device(target)
    found = checked(chain(), target)
    assert found.within
    assert found.differences[0].error > 0.0


def test_a_module_is_compared_with_pytorch():
    torch = pytest.importorskip('torch')
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Dropout(), torch.nn.ReLU()
    )
    found = checked(module, shapes={'input': (1, 3, 6, 6)})
    assert found.by == 'PyTorch'
    assert found.within
    assert module.training  # as it was


def test_a_graph_is_compared_with_its_own_program_in_float64():
    found = checked(graphs.convolutions())
    assert found.by == 'the reference in numpy'
    assert found.within


def test_a_file_is_compared_with_the_program_it_holds(failures, break_kernel, tmp_path):
    """Nothing is left of passes in a file; kernels and memory are checked."""
    tw.compile(graphs.convolutions(), save=tmp_path / 'net.tw')
    assert tw.load(tmp_path / 'net.tw', check=True).name == 'test'
    break_kernel('+add+relu')
    with pytest.raises(CheckError, match="the task 'Conv_c1'"):
        tw.load(tmp_path / 'net.tw', check=True)
    with pytest.raises(CheckError, match="the task 'Conv_c1'"):
        tw.compile(tmp_path / 'net.tw', check=True)
    assert tw.load(tmp_path / 'net.tw').name == 'test'


@pytest.mark.parametrize('broken', [False, True])
def test_a_mixture_is_compared_with_all_of_it_in_onnxruntime(failures, break_kernel, broken):
    pytest.importorskip('onnxruntime')
    nodes = [
        helper.make_node('Det', ['x'], ['d']),  # of square matrices: not ours
        helper.make_node('Sigmoid', ['d'], ['s']),
        helper.make_node('MatMul', ['s', 'w'], ['y'], name='product'),
    ]
    model = as_onnx(nodes, {'x': graphs.floats(8, 3, 3)}, ['y'], w=graphs.floats(8, 9))
    if not broken:
        assert checked(model, fallback='onnxruntime').within
        return
    break_kernel('')
    assert 'is the first whose result is wrong' in failed(model, fallback='onnxruntime')


@pytest.mark.parametrize('order', [[2, 0, 3, 1], [3, 2, 1, 0], [0, 1, 2, 3], [1, 1, 1, 1]])
def test_wrong_results_are_not_handed_out(failures, order):
    """Relu -> Gather, which passes may take for a copy: the order of columns is kept, or named."""
    nodes = [graphs.node('Relu', 'x', 'r'), graphs.node('Gather', 'r i', 'y', axis=1)]
    made, net = graphs.graph({'x': (3, 4)}, 'y', nodes, i=np.array(order)), None
    with contextlib.suppress(CheckError):
        net = tw.compile(made, check=True)
    x = graphs.floats(3, 4)
    assert net is None or np.array_equal(net(x), np.maximum(x, 0)[:, order])
    reports = list(failures.glob('*/report.json'))
    assert len(reports) == (net is None)
    assert all(json.loads(r.read_text())['cause']['kind'] == 'pass' for r in reports)


def test_indices_and_divisors_are_drawn_from_what_they_may_be():
    """Through a view, a cast and a sum; two lookups: the smaller one counts."""
    made = Graph(
        'indices',
        (Value('i', (40,), 'i32'), Value('d', (40,), 'i64'), Value('b', (40,), 'u8')),
        (('y', 'y'), ('q', 'q'), ('z', 'z')),
        (
            Node('Cast', 'cast', ('i',), ('c',), {'to': 7}),
            Node('Reshape', 'reshape', ('c', 'shape'), ('r',)),
            Node('Gather', 'large', ('wl', 'r'), ('g',)),
            Node('Gather', 'small', ('ws', 'r'), ('h',)),
            Node('Add', 'add', ('g', 'h'), ('y',)),
            Node('Div', 'div', ('c', 'd'), ('q',)),
            Node('Cast', 'wide', ('b',), ('z',), {'to': 1}),
        ),
        {
            'shape': np.array([8, 5]), 'wl': graphs.floats(9, 3), 'ws': graphs.floats(5, 3),
        },
    )  # fmt: skip
    arrays = random_inputs(lower(made), 0)
    assert set(arrays['i']) == set(range(5))
    assert arrays['d'].min() == 1
    assert arrays['b'].max() > 100  # bytes are as often large as small
    assert [a.dtype for a in arrays.values()] == [np.int32, np.int64, np.uint8]
    assert all(np.array_equal(random_inputs(lower(made), 0)[n], a) for n, a in arrays.items())
    assert not np.array_equal(random_inputs(lower(made), 1)['b'], arrays['b'])


def test_an_index_of_two_nearly_equal_values_is_no_failure(failures):
    """Which of two values that differ by less than rounding is larger, either may say."""
    nodes = [graphs.node('Mul', 'x f', 'm'), graphs.node('ArgMax', 'm', 'y', axis=1, keepdims=0)]
    made = graphs.graph({'x': (6, 4)}, 'y', nodes, f=np.float32(3.0))
    x = np.tile(np.float32([1, 5, 5, 2]), (6, 1))
    x[:, 1] *= np.float32(1 + 1e-7)
    index = {'y': np.array([1, 1, 2, 1, 2, 1])}  # as somebody else rounds
    with pytest.warns(UserWarning, match='magnifies rounding'):
        tw.compile(made, check=tw.Check(arrays={'x': x}, expected=Expected(index, 'others')))
    index['y'][3] = 0  # a value that is far from the largest
    with pytest.raises(CheckError, match=r"'y' differs, at \[2\]|'y' differs, at \[3\]"):
        tw.compile(made, check=tw.Check(arrays={'x': x}, expected=Expected(index, 'others')))


def test_networks_that_magnify_rounding_are_no_failure():
    """sin(1e6 * sum): its digits are those that float32 rounds away. Each task is right."""
    pytest.importorskip('onnxruntime')
    nodes = [
        helper.make_node('MatMul', ['x', 'w'], ['m']),
        helper.make_node('Mul', ['m', 'scale'], ['s']),
        helper.make_node('Sin', ['s'], ['y']),
    ]
    model = as_onnx(
        nodes, {'x': graphs.floats(3, 300)}, ['y'], w=graphs.floats(300, 20),
        scale=np.float32(1e6),
    )  # fmt: skip
    with pytest.warns(UserWarning, match='it is the network that magnifies rounding'):
        found = checked(model)
    assert found.ok
    assert not found.within


def test_a_tolerance_that_is_given_holds_whatever_the_reason(failures):
    with pytest.raises(CheckError, match='magnifies rounding'):
        checked(graphs.convolutions(), tolerance=1e-12)


def test_what_is_no_number_has_to_be_where_it_should():
    """log of a negative number in both: right. A check that NaN passes anywhere would be none."""
    nodes = [graphs.node('Log', 'x', 'l'), graphs.node('Relu', 'l', 'y')]
    found = checked(graphs.graph({'x': (5, 7)}, 'y', nodes))
    assert found.within


def test_tolerance_grows_with_the_root_of_the_sums():
    one = graphs.lowered(graphs.graph({'x': (3, 3)}, 'y', [graphs.node('MatMul', 'x x', 'y')]))
    assert tolerance_of(one) == 1e-3
    assert tolerance_of(graphs.lowered(graphs.convolutions())) == pytest.approx(2**0.5 * 1e-3)
    assert tolerance_of(one, 3e-4) == pytest.approx(3e-3)
    assert tolerance_of(one, 1e-6) == 1e-3  # rounding is there, whatever was asked for
    assert kernel_tolerance(['f64', 'i64']) == 1e-9
    assert kernel_tolerance(['f64', 'f32']) == 1e-3


@pytest.mark.parametrize(
    ('wish', 'tune', 'runs'),
    [
        (None, 'model', False), (None, 'measure', True), (True, 'model', True),
        (False, 'measure', False),
    ],
)  # fmt: skip
def test_what_is_measured_is_checked_unless_it_is_said(wish, tune, runs, monkeypatch):
    seen = []
    monkeypatch.setattr(network_stages, 'check_network', lambda *given: seen.append(given))
    tw.compile(chain(), tune=tune, check=wish, trials=1 if tune == 'measure' else None)
    assert bool(seen) == runs


def test_a_reference_that_takes_long_is_left_to_those_who_ask_for_it(monkeypatch):
    """By default, and where nobody but numpy can compute it."""
    monkeypatch.setattr(check, 'MOST_FLOPS', 100)
    with pytest.warns(UserWarning, match='test is not checked: its reference in numpy takes more'):
        tw.compile(chain(), tune='measure', trials=1)
    assert checked(chain()).within


def test_what_is_no_wish_is_refused():
    with pytest.raises(InputError, match="check is 'yes'; give True, False, None or a Check"):
        wanted('yes', 'model')
