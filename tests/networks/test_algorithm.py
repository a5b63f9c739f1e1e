"""`algorithm` of `tw.compile`: which convolutions Winograd computes, and what is recorded."""

from __future__ import annotations

import json
import warnings

import graphs
import numpy as np
import pytest

import tilewright as tw
from tilewright.cli.main import invoke
from tilewright.errors import InputError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph
from tilewright.machine.known import known_machine
from tilewright.machine.measure import load_machine
from tilewright.network.compile import prepare
from tilewright.ops.convolution import conv2d
from tilewright.runtime.gpu.session import open_device
from tilewright.store import network_file
from tilewright.targets.cpu.choose import Question, choose_all
from tilewright.targets.gpu import choose
from tilewright.targets.gpu.choose import choose_all as choose_for_gpu
from tilewright.targets.gpu.tuning import How


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Hosts that were not measured are no trouble here; the model looks at few GPU schedules."""
    monkeypatch.setattr(choose, 'TRIALS', 12)
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', '.*nominal figures.*')
        yield


def two(last: str = 'Relu', taps: int = 3) -> Graph:
    """A 3x3 convolution, where Winograd applies, and a 1x1 one, where it does not; FFT applies to
    the first with 5 taps.
    """
    nodes = [
        graphs.node('Conv', 'x w0', 'a', pads=(taps // 2,) * 4),
        graphs.node(last, 'a', 'b'),
        graphs.node('Conv', 'b w1', 'y'),
    ]
    return graphs.graph(
        {'x': (1, 16, 10, 10)}, 'y', nodes,
        w0=graphs.floats(16, 16, taps, taps), w1=graphs.floats(8, 16, 1, 1, seed=2),
    )  # fmt: skip


def schemas(network) -> list[str]:
    kernels = getattr(network, 'gpu_tasks', None) or [
        network.kernels[task.digest] for task in network.tasks
    ]
    return [kernel.schedule.schema for kernel in kernels]


def test_each_algorithm_on_the_cpu(tmp_path):
    x = graphs.floats(1, 16, 10, 10, seed=1)
    for algorithm, taps, first in (
        ('winograd', 3, {'winograd'}), ('fft', 5, {'fft'}),
        ('direct', 3, {'outer', 'pixels', 'stencil'}),
    ):  # fmt: skip
        made = two(taps=taps)
        want = evaluate(prepare(made, passes=()), {'x': x})['y']
        path = tmp_path / f'{algorithm}.tw'
        network = tw.compile(made, algorithm=algorithm, save=path, threads=1)
        np.testing.assert_allclose(network(x), want, rtol=1e-3, atol=1e-4 * np.abs(want).max())
        assert schemas(network)[0] in first
        assert schemas(network)[1] not in ('winograd', 'fft')
        assert network_file.read(path).algorithm == algorithm
        assert schemas(tw.load(path)) == schemas(network)


def test_the_same_on_the_host_dialect(tmp_path):
    made = two()
    path = tmp_path / 'fast.tw'
    fast = tw.compile(made, target='host', algorithm='winograd', save=path)
    direct = tw.compile(made, target='host', algorithm='direct')
    assert 'winograd' in schemas(fast)
    assert 'winograd' not in schemas(direct)
    assert network_file.read(path).algorithm == 'winograd'
    x = graphs.floats(1, 16, 10, 10, seed=1)
    want = evaluate(prepare(made, passes=()), {'x': x})['y']
    for network in (fast, direct):
        np.testing.assert_allclose(network(x), want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(('algorithm', 'name'), [('winograd', 'Winograd'), ('fft', 'FFT')])
def test_an_algorithm_that_nothing_can_have_is_said(algorithm, name):
    nodes = [graphs.node('Conv', 'x w', 'y')]
    made = graphs.graph({'x': (1, 4, 6, 6)}, 'y', nodes, w=graphs.floats(8, 4, 1, 1))
    with pytest.warns(UserWarning, match=f'no convolution of test can be computed by {name}'):
        tw.compile(made, algorithm=algorithm, threads=1)


def test_what_makes_errors_count_for_more_decides():
    """Behind tanh, the tiles of the same convolution are smaller."""
    machine = known_machine('i9-10980xe')

    def points(activation: str) -> int:
        group = conv2d(c=64, h=28, w=28, k=64, r=3, s=3, pad=1, activation=activation)
        choice = choose_all([group], machine, 1, 1, 1e-4, algorithm='winograd')[0][0]
        assert choice.schedule.schema == 'winograd'
        options = dict(choice.schedule.options)
        return options['m'] * options.get('mw', options['m'])

    assert points('tanh') < points('relu')


def test_gpus_refuse_large_tiles_behind_tanh():
    """F(4, 3) is within the budget behind relu and beyond it behind tanh."""
    machine = open_device('host').machine

    def chosen(activation: str) -> set[str]:
        group = conv2d(n=8, c=64, h=32, w=32, k=64, r=3, s=3, pad=1, activation=activation)
        found = choose_for_gpu([group], machine, 4, 1e-4, processes=1, algorithm='winograd')[0]
        return {choice.schedule.schema for choice in found}

    assert chosen('relu') == {'winograd'}
    assert 'winograd' not in chosen('tanh')


def test_what_is_asked_is_part_of_the_question():
    group, machine = conv2d(c=4, h=8, w=8, k=4, r=3, s=3), load_machine(measure=False)[0]
    plain = Question(group, machine, 1, 4, 1e-4)
    assert 'algorithm' not in plain.to_json()
    asked = {Question(group, machine, 1, 4, 1e-4, algorithm=a).key for a in ('direct', 'winograd')}
    assert len(asked | {plain.key}) == 3
    gpu = open_device('host').machine
    assert How(algorithm='direct').key(group, gpu) != How().key(group, gpu) == {}


def test_what_cannot_be_meant_is_refused(tmp_path, capsys):
    with pytest.raises(InputError, match="algorithm 'karatsuba' is not known"):
        tw.compile(two(), algorithm='karatsuba')
    path = tmp_path / 'net.tw'
    tw.compile(two(), algorithm='direct', save=path, threads=1)
    with pytest.raises(InputError, match=r'algorithm= means nothing with .*compiled already'):
        tw.compile(path, algorithm='direct')
    assert invoke(['compile', str(path), '--algorithm', 'direct', '-o', str(path)]) == 2
    assert 'compiled already' in capsys.readouterr().err


def test_the_command_line(tmp_path):
    onnx = pytest.importorskip('onnx')
    from onnx import TensorProto, helper, numpy_helper

    made = helper.make_graph(
        [helper.make_node('Conv', ['x', 'w'], ['y'], pads=[1, 1, 1, 1])], 'one',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, [1, 32, 14, 14])],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, [1, 32, 14, 14])],
        [numpy_helper.from_array(graphs.floats(32, 32, 3, 3), 'w')],
    )  # fmt: skip
    model, report = tmp_path / 'one.onnx', tmp_path / 'report.json'
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid('', 21)], ir_version=10),
              model)  # fmt: skip
    for algorithm in ('direct', 'winograd'):
        words = ['compile', str(model), '--algorithm', algorithm, '--threads', '1']
        assert invoke([*words, '--json', str(report)]) == 0
        data = json.loads(report.read_text())
        schema = data['network']['tasks'][0]['schedule']['schema']
        assert data['algorithm'] == algorithm
        assert (schema == 'winograd') is (algorithm == 'winograd')
