"""`tilewright run --check`: results against the model's own file, on a user's data."""

from __future__ import annotations

import json
import math

import graphs
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright.check.check import Checked
from tilewright.check.difference import Difference, difference, explained
from tilewright.cli.check import check
from tilewright.cli.main import invoke
from tilewright.errors import InputError, MissingError
from tilewright.fallback import sessions
from tilewright.graph.graph import Value


def written(path, weights, **names) -> None:
    """x -> Conv -> Relu -> y and the place of its largest channel, with an open batch size."""
    image, result = names.get('image', 'x'), names.get('result', 'y')
    graph = helper.make_graph(
        [
            helper.make_node('Conv', [image, 'w'], ['c']),
            helper.make_node('Relu', ['c'], [result]),
            helper.make_node('ArgMax', [result], ['best'], axis=1),
        ],
        'small',
        [helper.make_tensor_value_info(image, TensorProto.FLOAT, ['batch', 3, 4, 4])],
        [
            helper.make_tensor_value_info(result, TensorProto.FLOAT, None),
            helper.make_tensor_value_info('best', TensorProto.INT64, None),
        ],
        [numpy_helper.from_array(weights, 'w')],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)
    onnx.save(made, path)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A compiled network, the file that it was made from, and files that are something else."""
    made = tmp_path_factory.mktemp('check')
    weights = graphs.floats(4, 3, 1, 1)
    written(made / 'right.onnx', weights)
    weights[2, 1] += 0.01
    written(made / 'wrong.onnx', weights)
    written(made / 'input.onnx', weights, image='image')
    written(made / 'result.onnx', weights, result='z')
    np.savez(made / 'x.npz', x=graphs.floats(2, 3, 4, 4, seed=1))
    words = ['compile', str(made / 'right.onnx'), '-o', str(made / 'net.tw')]
    assert invoke([*words, '--shape', 'x=2,3,4,4']) == 0
    return made


def run(folder, file, *words) -> int:
    return invoke(['run', str(folder / 'net.tw'), '--repeat', '1', '--check', str(folder / file),
                   *words])  # fmt: skip


@pytest.fixture(params=['ONNX Runtime', 'the reference in numpy'])
def by(request, monkeypatch):
    if request.param == 'ONNX Runtime':
        pytest.importorskip('onnxruntime')
    else:

        def absent():
            raise MissingError('not here')

        monkeypatch.setattr(sessions, '_onnxruntime', absent)
    return request.param


def test_right_results_pass(folder, by, tmp_path, capsys):
    report = tmp_path / 'report.json'
    assert run(folder, 'right.onnx', '--input', str(folder / 'x.npz'), '--json', str(report)) == 0
    said = capsys.readouterr().out
    assert f'y: largest difference from {by}' in said
    assert f'best: largest difference from {by} 0.0e+00' in said
    data = json.loads(report.read_text())['check']
    assert data['ok']
    assert data['by'] == by
    assert data['differences']['best'] == 0.0
    assert data['differences']['y'] <= data['errors']['y'] <= data['tolerance'] == 1e-3


def test_wrong_results_make_the_exit_code_1(folder, by, capsys):
    assert run(folder, 'wrong.onnx', '--seed', '5') == 1
    error = capsys.readouterr().err
    # That a machine was not measured is warned of before.
    assert len([line for line in error.splitlines() if not line.startswith('warning: ')]) == 1
    assert f'differs from what {by} computes for' in error
    assert 'the tolerance is 0.001 (random inputs of --seed 5)' in error
    assert f'computes something else than {by}, without any pass or kernel' in error


def test_a_tolerance_may_be_given(folder):
    arrays = {'x': graphs.floats(2, 3, 4, 4, seed=1)}
    inputs = [Value('x', (2, 3, 4, 4), 'f32')]
    weights = numpy_helper.to_array(onnx.load(folder / 'right.onnx').graph.initializer[0])
    y = np.maximum(np.einsum('nchw,kc->nkhw', arrays['x'], weights[:, :, 0, 0]), 0)
    results = {'y': y.astype(np.float32), 'best': y.argmax(1, keepdims=True)}
    assert check(folder / 'right.onnx', inputs, arrays, results)[0].ok
    results['y'] = results['y'] + np.float32(0.01) * np.abs(y).max()
    found, _ = check(folder / 'right.onnx', inputs, arrays, results)
    assert not found.ok
    assert found.tolerance == 1e-3
    assert found.differences[0].share == pytest.approx(0.01, rel=1e-3)
    error = found.differences[0].error
    assert 0.01 < error < 0.1  # over the root mean square, where values are small
    assert check(folder / 'right.onnx', inputs, arrays, results, 1.01 * error)[0].ok
    assert not check(folder / 'right.onnx', inputs, arrays, results, 0.99 * error)[0].ok


def test_differences():
    want = np.array([1.0, -4.0, np.nan, np.inf], np.float32)
    assert difference('y', want, want).share == 0.0
    found = difference('y', want + np.float32([0, 1, 0, 0]), want)
    assert (found.absolute, found.share) == (1.0, 0.25)
    assert found.error == 0.25  # over the larger of both
    small = difference('y', want + np.float32([1, 0, 0, 0]), want)
    assert small.error == pytest.approx(1 / np.sqrt(17 / 2))  # over the root mean square
    for wrong in (0, 2, 3):
        got = want.copy()
        got[wrong] = np.nan if wrong == 0 else 1.0
        found = difference('y', got, want)
        assert found.error == math.inf
        assert f'at [{wrong}]' in found.worst
    assert difference('y', np.array([3, 4]), np.array([3, 5])).error == math.inf
    assert difference('y', np.zeros(3), np.zeros(4)).error == math.inf
    assert difference('y', np.zeros(3, np.float32), np.zeros(3)).error == math.inf
    assert difference('y', np.float32(2.0), np.asarray(np.float32(4.0))).share == 0.5


@pytest.mark.parametrize(
    ('steps', 'whole', 'fine'),
    [
        (1, True, True),  # as many, as far
        (1, False, False),  # of one kernel
        (5, True, False),  # further than tries that moved the inputs
    ],
)
def test_a_network_that_rounds_everywhere_is_judged_as_a_whole(steps, whole, fine):
    """Numbers just before they are rounded: tries turn half of them, others than somebody else."""
    x = (np.arange(400) + 0.5).astype(np.float32)
    turned = np.random.default_rng(5).random(400) < 0.5
    got = np.floor(x) + np.where(turned, np.float32(-steps), np.float32(0))

    def compute(inputs):
        return {'y': np.floor(inputs['x'] + 0.5 - 1e-4).astype(np.float64)}

    assert explained(compute, {'x': x}, {'y': got}, 1e-4, 1e-4, 2, whole=whole) == fine


def test_few_elements_are_judged_one_by_one():
    x = (np.arange(400) + 0.5).astype(np.float32)
    got = np.floor(x).astype(np.float32)
    got[7] -= 1

    def compute(inputs):
        found = np.floor(inputs['x'])
        found[20:] += np.random.default_rng(int(inputs['x'][0] * 1e9) % 97).integers(0, 2, 380)
        return {'y': found}

    assert not explained(compute, {'x': x}, {'y': got}, 1e-4, 1e-9, 2, whole=True)


def test_what_has_no_share_says_none():
    wrong = difference('best', np.array([3, 4]), np.array([3, 5]))
    found = Checked(
        'f.onnx', 'ONNX Runtime', 1e-4, (Difference('y', 1e-6, 2e-6, 1e-6, 'at [0]'), wrong)
    )
    said = f'{found}\n{found.sentence}'
    assert 'inf' not in said
    assert 'y: largest difference from ONNX Runtime 1.0e-06 of its largest value, error ' in said
    assert 'best: differs from ONNX Runtime, at [1]: 4 instead of 5' in said
    assert 'computes for f.onnx, at [1]: 4 instead of 5; the tolerance is 0.0001' in said


def test_an_input_that_was_made_a_constant(folder):
    with pytest.raises(InputError, match='compiled with constants=, which --check does not know'):
        check(folder / 'right.onnx', [Value('x', (2, 3, 4, 4), 'f32')], {}, {})


@pytest.mark.parametrize('file', ['right.onnx', 'wrong.onnx'])
def test_kernels_of_a_gpu_are_checked_too(folder, by, file, capsys):
    words = ['--shape', 'x=2,3,4,4', '--target', 'host', '--repeat', '1', '--seed', '5']
    code = invoke(['run', str(folder / 'right.onnx'), *words, '--check', str(folder / file)])
    assert code == (0 if file == 'right.onnx' else 1)
    assert f'y: largest difference from {by}' in capsys.readouterr().out


@pytest.mark.parametrize('shift', [0.0, 0.5])
def test_parts_that_others_compute_are_checked_with_the_rest(tmp_path, shift, capsys):
    """The whole file is computed by ONNX Runtime, the nodes that it runs for the network too."""
    pytest.importorskip('onnxruntime')
    for name, add in (('model.onnx', 0.0), ('other.onnx', shift)):
        graph = helper.make_graph(
            [
                helper.make_node('Det', ['x'], ['d']),  # of square matrices: not ours
                helper.make_node('Add', ['d', 'b'], ['y']),
            ],
            'mixed',
            [helper.make_tensor_value_info('x', TensorProto.FLOAT, [2, 3, 3])],
            [helper.make_tensor_value_info('y', TensorProto.FLOAT, None)],
            [numpy_helper.from_array(np.array([1.0 + add], np.float32), 'b')],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 21)], ir_version=10)
        onnx.save(made, tmp_path / name)
    words = ['run', str(tmp_path / 'model.onnx'), '--fallback', 'onnxruntime', '--repeat', '1']
    code = invoke([*words, '--seed', '5', '--check', str(tmp_path / 'other.onnx')])
    assert code == (1 if shift else 0)
    assert 'y: largest difference from ONNX Runtime' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('words', 'said'),
    [
        (['--check', 'missing.onnx'], 'No such file'),
        (['--check', 'x.npz'], 'no .onnx or .tw file'),
        (['--check', 'input.onnx'], "no input 'x'"),
        (['--check', 'result.onnx'], 'gives best, z, the network best, y'),
        (['--check', 'right.onnx', '--tolerance', '-1'], '--tolerance'),
        (['--tolerance', '1e-3'], 'means nothing without --check'),
        (['--shape', 'x=2,3,4,4'], '--shape x=2,3,4,4 means nothing'),
        (['--input', 'net.tw'], 'it holds no arrays'),
    ],
)
def test_what_cannot_be_checked_is_one_sentence(folder, words, said, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert invoke(['run', 'net.tw', '--repeat', '1', *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    # That a machine was not measured is warned of before.
    assert len([line for line in error.splitlines() if not line.startswith('warning: ')]) == 1
