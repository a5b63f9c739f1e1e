"""`tilewright compile` and `run`: files in, files out, one sentence for what is wrong."""

from __future__ import annotations

import json

import graphs
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.cli.main import invoke
from tilewright.errors import InputError, MissingError
from tilewright.runtime.gpu.session import open_device
from tilewright.targets.gpu import choose


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    """x -> Conv -> Relu -> y, with an open batch size."""
    weights = graphs.floats(4, 3, 1, 1)
    graph = helper.make_graph(
        [helper.make_node('Conv', ['x', 'w'], ['c']), helper.make_node('Relu', ['c'], ['y'])],
        'small',
        [helper.make_tensor_value_info('x', TensorProto.FLOAT, ['batch', 3, 4, 4])],
        [helper.make_tensor_value_info('y', TensorProto.FLOAT, ['batch', 4, 4, 4])],
        [numpy_helper.from_array(weights, 'w')],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)
    path = tmp_path_factory.mktemp('cli') / 'small.onnx'
    onnx.save(made, path)
    return path, weights


def want_of(weights, x) -> np.ndarray:
    return np.maximum(np.einsum('nchw,kc->nkhw', x, weights[:, :, 0, 0]), 0)


def test_compile_then_run(model, tmp_path, capsys):
    path, weights = model
    target, report = tmp_path / 'small.tw', tmp_path / 'report.json'
    code = invoke(
        ['compile', str(path), '-o', str(target), '--shape', 'x=1,3,4,4', '--json', str(report)]
    )
    assert code == 0
    data = json.loads(report.read_text())
    assert data['verb'] == 'compile'
    assert data['network']['inputs'] == [['x', [1, 3, 4, 4], 'f32']]
    assert len(data['network']['tasks']) == 1
    x = graphs.floats(1, 3, 4, 4, seed=1)
    np.savez(tmp_path / 'x.npz', x=x)
    code = invoke(['run', str(target), '--input', str(tmp_path / 'x.npz'), '--output',
                   str(tmp_path / 'y.npz'), '--repeat', '2', '--profile', '--trace',
                   str(tmp_path / 'trace.json'), '--json', str(report)])  # fmt: skip
    assert code == 0
    with np.load(tmp_path / 'y.npz') as results:
        np.testing.assert_allclose(results['y'], want_of(weights, x), rtol=1e-4, atol=1e-5)
    data = json.loads(report.read_text())
    assert len(data['samples_ms']) == 2
    assert data['profile']['tasks'][0]['name'] == data['network']['tasks'][0]['name']
    assert json.loads((tmp_path / 'trace.json').read_text())['traceEvents']
    assert 'GFLOP/s' in capsys.readouterr().out


def test_run_compiles_by_itself(model, tmp_path):
    path, weights = model
    x = graphs.floats(2, 3, 4, 4, seed=2)
    np.save(tmp_path / 'x.npy', x)
    code = invoke(['run', str(path), '--shape', 'x=2,3,4,4', '--input', str(tmp_path / 'x.npy'),
                   '--output', str(tmp_path / 'y.npz'), '--repeat', '1'])  # fmt: skip
    assert code == 0
    with np.load(tmp_path / 'y.npz') as results:
        np.testing.assert_allclose(results['y'], want_of(weights, x), rtol=1e-4, atol=1e-5)


def test_compile_then_run_for_another_target(model, tmp_path, capsys):
    path, weights = model
    saved, report = tmp_path / 'small.tw', tmp_path / 'report.json'
    x = graphs.floats(1, 3, 4, 4, seed=3)
    np.savez(tmp_path / 'x.npz', x=x)
    assert invoke(['compile', str(path), '--target', 'host', '-o', str(saved), '--shape',
                   'x=1,3,4,4', '--json', str(report)]) == 0  # fmt: skip
    assert json.loads(report.read_text())['target'] == 'host'
    answers = tmp_path / 'y.npz'
    assert invoke(['run', str(saved), '--input', str(tmp_path / 'x.npz'), '--output', str(answers),
                   '--repeat', '1', '--json', str(report)]) == 0  # fmt: skip
    with np.load(tmp_path / 'y.npz') as results:
        np.testing.assert_allclose(results['y'], want_of(weights, x), rtol=1e-4, atol=1e-5)
    assert len(json.loads(report.read_text())['network']['tasks']) == 1
    assert 'predicted one after the other' in capsys.readouterr().out
    assert invoke(['compile', str(path), '--target', 'tpu', '--shape', 'x=1,3,4,4']) == 2
    assert invoke(['run', str(saved), '--target', 'opencl']) == 2
    assert capsys.readouterr().err.count('\n') == 2


def test_without_a_device_one_sentence(model, capsys):
    try:
        open_device('cuda')
    except MissingError:
        assert invoke(['run', str(model[0]), '--target', 'cuda', '--shape', 'x=1,3,4,4']) == 3
        assert capsys.readouterr().err.count('\n') == 1
    else:
        pytest.skip('there is a CUDA device')


def test_networks_of_the_zoo_are_known_by_their_names(monkeypatch, tmp_path):
    asked = []

    def compiled(network, *words, **options):
        asked.append(type(network).__name__)
        raise InputError('that is enough')

    monkeypatch.setattr('tilewright.cli.compile.compile_network', compiled)
    monkeypatch.setattr('tilewright.cli.run.compile_network', compiled)
    monkeypatch.chdir(tmp_path)
    assert invoke(['compile', 'squeezenet']) == 2
    assert invoke(['run', 'squeezenet']) == 2
    assert invoke(['run', 'squeezenet', '--target', 'cuda']) == 2
    assert asked == ['ModelProto', 'ModelProto', 'Graph']
    assert invoke(['compile', 'squeezenot']) == 2
    assert len(asked) == 3


def test_explain_for_a_gpu_that_is_not_there(model, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(choose, 'TRIALS', 8)
    report = tmp_path / 'report.json'
    words = ['explain', str(model[0]), '--shape', 'x=1,3,4,4', '--machine', 'h200']
    assert invoke([*words, '--json', str(report)]) == 0
    said = capsys.readouterr().out
    assert '1 tasks of 1 kinds' in said
    (group,) = json.loads(report.read_text())['networks'][0]['groups']
    assert group['predicted_us'] >= group['bound_us'] > 0
    assert group['schedule'] in said
    assert invoke([*words, '--measure']) == 2
    assert invoke(['explain', 'missing.tw', '--machine', 'h200']) == 2
    assert capsys.readouterr().err.count('\n') == 2


def test_random_inputs_follow_the_seed(model, tmp_path):
    path, _ = model
    answers = []
    for name in ('a', 'b'):
        out = tmp_path / f'{name}.npz'
        assert invoke(['run', str(path), '--shape', 'x=1,3,4,4', '--seed', '5', '--repeat', '1',
                       '--output', str(out)]) == 0  # fmt: skip
        with np.load(out) as results:
            answers.append(results['y'])
    np.testing.assert_array_equal(*answers)


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['compile', 'MODEL', '--shape', 'z=1'], "no input 'z'"),
        (['compile', 'MODEL', '--shape', 'x'], '--shape'),
        (['compile', 'MODEL', '--shape', 'x=1,a'], '--shape'),
        (['compile', 'MODEL', '-o', 'out.zip'], 'does not end in .tw'),
        (['compile', 'missing.onnx'], 'cannot be read'),
        (['run', 'missing.tw'], 'cannot be read'),
        (['run', 'MODEL', '--shape', 'x=1,3,4,4', '--input', 'missing.npz'], 'cannot be read'),
        (['run', 'MODEL', '--shape', 'x=1,3,4,4', '--repeat', '0'], 'at least one'),
        (['compile', 'MODEL', '--trials', '3'], "add tune='measure'"),
    ],
)
def test_bad_input_is_one_sentence(model, words, said, capsys):
    words = [str(model[0]) if word == 'MODEL' else word for word in words]
    assert invoke(words) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count('\n') == 1


def test_arrays_that_do_not_fit(model, tmp_path, capsys):
    np.savez(tmp_path / 'x.npz', z=graphs.floats(1, 3, 4, 4), x=graphs.floats(1, 3, 4, 4))
    assert (
        invoke(['run', str(model[0]), '--shape', 'x=1,3,4,4', '--input', str(tmp_path / 'x.npz')])
        == 2
    )
    assert "no input 'z'" in capsys.readouterr().err
    (tmp_path / 'bad.npz').write_bytes(b'PK\x03\x04 and nothing else')
    assert (
        invoke(['run', str(model[0]), '--shape', 'x=1,3,4,4', '--input', str(tmp_path / 'bad.npz')])
        == 2
    )
