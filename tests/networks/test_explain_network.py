"""`tilewright explain` of networks: every task is accounted for, parts add up, reasons are true."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.cli.main import invoke
from tilewright.kernels.cpu.schemas.general.space import general_schedule
from tilewright.machine.known import known_machine
from tilewright.model.cpu.predict import predict
from tilewright.ops.convolution import conv2d
from tilewright.ops.core import core
from tilewright.report.network import Kind, network_report
from tilewright.search.cpu.choose import choose
from tilewright.targets.plan import Candidate, Plan

MACHINE = known_machine('i7-9700k')


@pytest.fixture(scope='module')
def plan() -> Plan:
    group = core(conv2d(c=16, h=14, w=14, k=16, r=3, s=3, pad=1, bias=True, activation='relu'))
    found = choose(group, MACHINE, 1, 4)
    return Plan(group, MACHINE, 1, tuple(Candidate(c.schedule, c.prediction) for c in found))


def test_times_add_up_and_the_slowest_comes_first(plan):
    kinds = [
        Kind(plan, 'conv', ('a', 'b'), 5.0),
        Kind(plan, 'other', ('c',), 6.0),
    ]
    report = network_report('net', MACHINE, 1, kinds, 12.0)
    assert [entry.label for entry in report.entries] == ['other', 'conv']
    each_ms = 1e3 * plan.best.prediction.seconds
    assert report.predicted_ms == pytest.approx(3 * each_ms)
    assert report.bound_ms == pytest.approx(3 * plan.algorithm_bound_ms)
    assert sum(entry.share for entry in report.entries) == pytest.approx(1)
    for entry, count in zip(report.entries, (1, 2), strict=True):
        whole = sum(ms for _, ms in entry.parts)
        assert whole == pytest.approx(count * each_ms, rel=1e-6)
        assert entry.left_ms == pytest.approx(entry.time_ms - entry.bound_ms)
    text = str(report)
    assert 'predicted' in text
    assert 'measured 12.000 ms' in text
    assert 'a, b: conv' in text


def test_rivals_are_named_with_what_they_would_cost(plan):
    schemas = {c.schedule.schema for c in plan.candidates}
    assert {'winograd', 'outer'} <= schemas
    (entry,) = network_report('net', MACHINE, 1, [Kind(plan, 'conv', ('a',))]).entries
    rival = next(c for c in plan.candidates if c.schedule.schema != plan.best.schedule.schema)
    assert f'{1e3 * rival.prediction.seconds:.3f} ms' in ' '.join(entry.why)


def test_reasons_for_what_cannot_be_winograd():
    group = conv2d(c=4, h=6, w=6, k=4, r=1, s=1)
    found = choose(group, MACHINE, 1, 1)
    one = Plan(group, MACHINE, 1, (Candidate(found[0].schedule, found[0].prediction),))
    (entry,) = network_report('net', MACHINE, 1, [Kind(one, 'conv', ('a',))]).entries
    assert 'Winograd does not apply: it has a 1x1 filter' in entry.why[0]
    schedule = general_schedule(group, 'avx2', 1, 1)
    said = predict(group, schedule, MACHINE)
    plain = Plan(group, MACHINE, 1, (Candidate(schedule, said),))
    (entry,) = network_report('net', MACHINE, 1, [Kind(plain, 'conv', ('a',))]).entries
    assert entry.algorithm == 'plain loops'
    assert sum(ms for _, ms in entry.parts) <= entry.predicted_ms * (1 + 1e-9)


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    """x -> Conv -> Relu -> Conv -> MaxPool -> y"""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((4, c, 1, 1)).astype(np.float32), f'w{i}')
        for i, c in enumerate((3, 4))
    ]
    nodes = [
        helper.make_node('Conv', ['x', 'w0'], ['a'], name='first'),
        helper.make_node('Relu', ['a'], ['b']),
        helper.make_node('Conv', ['b', 'w1'], ['c'], name='second'),
        helper.make_node('MaxPool', ['c'], ['y'], name='pool', kernel_shape=[2, 2]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ['n', c, s, s])
        for name, c, s in (('x', 3, 8), ('y', 4, 7))
    ]
    graph = helper.make_graph(nodes, 'small', values[:1], values[1:], weights)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)
    path = tmp_path_factory.mktemp('explain') / 'small.onnx'
    onnx.save(made, path)
    return path


@pytest.mark.filterwarnings('ignore:.*nominal figures.*')
def test_the_command_line(model, tmp_path, capsys):
    report = tmp_path / 'report.json'
    words = ['explain', str(model), '--shape', 'x=1,3,8,8', '--threads', '1']
    assert invoke([*words, '--json', str(report)]) == 0
    said = capsys.readouterr().out
    assert 'first' in said
    assert 'Left above the bound' in said
    (network,) = json.loads(report.read_text())['networks']
    assert network['measured_ms'] is None
    assert sorted(t for g in network['groups'] for t in g['tasks']) == ['first', 'pool', 'second']
    assert invoke([*words, '--measure', '--json', str(report)]) == 0
    (network,) = json.loads(report.read_text())['networks']
    assert network['measured_ms'] > 0
    assert all(group['measured_ms'] > 0 for group in network['groups'])
    capsys.readouterr()
    target = tmp_path / 'small.tw'
    assert invoke(['compile', str(model), '-o', str(target), *words[2:]]) == 0
    assert invoke(['explain', str(target), '--threads', '1']) == 0
    assert '3 tasks' in capsys.readouterr().out


@pytest.mark.filterwarnings('ignore:.*nominal figures.*')
def test_what_cannot_be_explained(model, capsys):
    assert invoke(['explain', 'mopt/R2', '--measure']) == 2
    assert 'is for networks' in capsys.readouterr().err
    words = ['--measure', '--machine', 'i7-9700k', '--threads', '1', '--shape', 'x=1,3,8,8']
    assert invoke(['explain', str(model), *words]) == 2
    assert 'times this host' in capsys.readouterr().err
    assert invoke(['explain', 'there-is-none.onnx']) == 2
    assert 'cannot be read' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['net.tw', '--shape', 'x=1,3,8,8'], '--shape means nothing with net.tw'),
        (['mopt/R9', '--shape', 'x=1,3,8,8'], '--shape x=1,3,8,8 is for networks'),
        (['resnet18', '--algorithm', 'direct'], '--algorithm direct is for layers'),
    ],
)
def test_options_that_mean_nothing_are_refused(words, said, capsys):
    assert invoke(['explain', *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    # That a machine was not measured is warned of before.
    assert len([line for line in error.splitlines() if not line.startswith('warning: ')]) == 1
