"""Networks against peers: right answers, honest rows, round trips. Nothing depends on a time."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tilewright import zoo
from tilewright.cli.main import invoke
from tilewright.cli.zoo import networks_of
from tilewright.errors import InputError, MissingError, ModelError
from tilewright.machine.detect import describe_host
from tilewright.machine.isa import best_isa
from tilewright.machine.measure import nominal_machine
from tilewright_lab.cli import networks as bench_networks
from tilewright_lab.cli.bench import peers_of
from tilewright_lab.compare.network_results import NetworkResult, grid, mean_ratio, table
from tilewright_lab.compare.networks import NetworkArena, Subject, compare_network
from tilewright_lab.compare.results import Contestant
from tilewright_lab.peers import mobile, peers
from tilewright_lab.peers.contestants import OURS, peer_names, table_of
from tilewright_lab.peers.peers import Peer, absence

pytest.importorskip('onnxruntime')
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ('gcc', 'clang', 'cc'))), reason='no C compiler is installed'
)
QUICK = {'rounds': 1, 'turn_ms': 1.0}


def skip_if_absent(name):
    sentence = absence(name, 'network')
    if sentence:
        pytest.skip(sentence)


def one_layer(path, batch=1):
    """A convolution and a relu as an ONNX file; `batch` may be a name."""
    weights = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node('Conv', ['x', 'w'], ['a'], kernel_shape=[3, 3]),
        helper.make_node('Relu', ['a'], ['y']),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, *shape])
        for name, shape in (('x', (3, 8, 8)), ('y', (4, 6, 6)))
    )
    graph = helper.make_graph(nodes, 'layer', [x], [y], [numpy_helper.from_array(weights, 'w')])
    opset = helper.make_opsetid('', 21)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


@pytest.fixture(scope='module')
def subject(tmp_path_factory):
    folder = tmp_path_factory.mktemp('zoo')
    return Subject.of_zoo('squeezenet', folder, 3, batch=2, **zoo.SMALL['squeezenet'])


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n in ('torch', 'torch-compile')))
        for n in peer_names('network')
    ],
)
def test_every_peer_answers_right(name, subject):
    skip_if_absent(name)
    with NetworkArena([name], 1, None) as arena:
        result = compare_network(subject, arena, **QUICK)
    (peer,) = result.peers
    row = table_of('network')[name]
    assert peer.status == 'ok', peer.message
    assert peer.max_rel_err <= (row.tolerance or 1e-4)
    assert peer.reduced is row.reduced
    assert len(peer.samples_ms) == 1
    assert len(peer.samples_ms[0]) >= 3
    assert dict(peer.versions)
    assert dict(peer.settings) in [t['settings'] for t in peer.tried]
    # A setting that fails is told, with the reason: in silence it would make a peer look slow.
    assert all(('trial_median_ms' in t) != ('message' in t) for t in peer.tried)
    assert all('trial_median_ms' in t for t in peer.tried)
    if name == 'openvino':  # whose own choice would be another precision on some machines
        assert dict(peer.settings)['INFERENCE_PRECISION_HINT'] == 'f32'
    assert (
        result.flops == 2 * zoo.network('squeezenet', 2, **zoo.SMALL['squeezenet']).multiplications
    )


# A contestant of ours from elsewhere: what it answers, it is told by its last argument.
IMPOSTOR = """
import json, os, sys
import numpy as np
def say(**words): print(json.dumps(words), flush=True)
say(status='ok', versions={})
for line in sys.stdin:
    request = json.loads(line)
    if request['do'] == 'prepare':
        outputs = {k: np.zeros(s, d) for k, (s, d) in request['outputs'].items()}
        say(status='progress', what='compiling', done=1, total=2)
        if sys.argv[1] == 'fails':
            say(status='failed', message='it does not know this network')
        elif sys.argv[1] == 'dies':
            os._exit(3)
        else:
            say(status='ok', settings={}, tried=[], algorithm='', estimate_ms=1.0)
    elif request['do'] == 'answer':
        if sys.argv[1] == 'NaN':
            outputs = {k: np.full_like(a, np.nan) for k, a in outputs.items()}
        np.savez(request['path'], json.dumps(list(outputs)), *outputs.values())
        say(status='ok')
"""


@pytest.mark.parametrize(
    ('how', 'status', 'words'),
    [
        ('wrong', 'wrong', ', the tolerance is 0.001'),
        ('NaN', 'wrong', 'is nan at index'),
        ('fails', 'failed', 'it does not know this network'),
        ('dies', 'crashed', 'exit code 3'),
    ],
)
def test_an_answer_that_is_not_right_has_no_time(subject, how, status, words):
    told = []
    impostor = Peer(OURS, 1, command=[sys.executable, '-c', IMPOSTOR, how])
    with NetworkArena([], 1, impostor) as arena:
        result = compare_network(
            subject, arena, progress=lambda *words: told.append(words), **QUICK
        )
    assert (result.ours.status, result.ours.samples_ms) == (status, ())
    assert words in result.ours.message
    assert ('compiling', 1, 2) in told
    assert result.best is None
    assert status in grid([result]).text()
    assert f'{subject.name}: ours {status}' in table([result])


def test_a_peer_that_is_missing_keeps_its_row(subject, monkeypatch):
    found = peers.importlib.util.find_spec
    monkeypatch.setattr(
        peers.importlib.util, 'find_spec',
        lambda name: None if name == 'openvino' else found(name),
    )  # fmt: skip
    with NetworkArena(['openvino'], 1, None) as arena:
        (peer,) = compare_network(subject, arena, **QUICK).peers
    assert peer.status == 'missing'
    assert 'needs the package openvino' in peer.message
    monkeypatch.setattr(peers.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(MissingError, match='answers are checked against ONNX Runtime'):
        NetworkArena([], 1, None).oracle(subject)


@pytest.mark.parametrize(
    ('name', 'package'), [('ncnn', 'ncnn'), ('ncnn', 'pnnx'), ('mnn-low', 'MNN')]
)
def test_an_absent_package_or_converter_is_named_with_its_extra(name, package, monkeypatch):
    monkeypatch.setattr(
        peers.importlib.util, 'find_spec', lambda asked: None if asked == package else object()
    )
    assert absence(name, 'network') == (
        f'peer {name} needs the package {package}, which is not installed; '
        f"pip install 'tilewright[bench-mobile]'"
    )


@pytest.mark.parametrize('name', ['ncnn', 'mnn'])
def test_files_are_converted_at_the_batch_size_asked_for(name, tmp_path):
    """Their converters fix sizes, and ncnn has no batches: an open first size has to survive."""
    skip_if_absent(name)
    subject = Subject.of_file(one_layer(tmp_path / 'a.onnx', 'n'), 0, batch=3)
    with NetworkArena([name], 1, None) as arena:
        (peer,) = compare_network(subject, arena, **QUICK).peers
    assert peer.status == 'ok', peer.message
    assert peer.max_rel_err <= 1e-4


def test_a_converter_that_fails_is_quoted(tmp_path):
    command = [sys.executable, '-c', 'print("no such operator"); raise SystemExit(4)']
    with pytest.raises(
        InputError, match=r'pnnx cannot convert .* \(exit code 4\): no such operator'
    ):
        mobile._convert('pnnx', command, tmp_path, tmp_path / 'a.ncnn.bin')
    with pytest.raises(InputError, match='exit code 0'):  # nothing was written
        mobile._convert('MNN', [sys.executable, '-c', ''], tmp_path, tmp_path / 'a.mnn')


def test_reduced_precision_is_shown_and_never_the_best_peer():
    found = result('a', 10.0, 20.0, 5.0)
    exact, low = found.peers
    found = replace(found, peers=(exact, replace(low, reduced=True)))
    assert (found.best.peer, found.best.value) == ('p0', 2.0)
    assert [ratio.peer for ratio in found.ratios] == ['p0', 'p1']
    assert 'p1 is not float32, and not counted as best peer: off by 1.0e-06' in table([found])
    assert NetworkResult.from_json(json.loads(json.dumps(found.to_json()))) == found
    usual = [name for name in peer_names('network') if table_of('network')[name].usual]
    assert not {'ncnn-low', 'mnn-low', 'openvino-low'} & set(usual)


def test_where_ours_is_reduced_so_may_the_best_peer_be():
    found = result('a', 10.0, 20.0, 5.0)
    exact, low = found.peers
    ours = replace(found.ours, reduced=True)
    found = replace(found, ours=ours, peers=(exact, replace(low, reduced=True)))
    assert (found.best.peer, found.best.value) == ('p1', 0.5)
    text = table([found])
    assert 'off by' in text
    assert 'p1 is not float32: off by 1.0e-06' in text
    assert 'less than float32' in text


def test_files_have_inputs_made_up_for_them(tmp_path):
    path = one_layer(tmp_path / 'a.onnx', 'n')
    assert Subject.of_file(path, 0).inputs['x'].shape == (1, 3, 8, 8)
    four = Subject.of_file(path, 0, batch=4)
    assert (four.inputs['x'].shape, four.batch, four.name) == ((4, 3, 8, 8), 4, 'a')
    assert four.inputs['x'].dtype == np.float32
    again = Subject.of_file(path, 0, batch=4).inputs['x']
    assert np.array_equal(four.inputs['x'], again)
    with NetworkArena(['onnxruntime'], 1, None) as arena:
        (peer,) = compare_network(four, arena, **QUICK).peers
    assert peer.status == 'ok', peer.message


def test_files_that_cannot_be_compared_are_one_sentence(tmp_path):
    fixed = one_layer(tmp_path / 'b.onnx', 2)
    with pytest.raises(InputError, match='has batch size 2, and --batch is 3'):
        Subject.of_file(fixed, 0, batch=3)
    with pytest.raises(InputError, match='does not exist'):
        Subject.of_file(tmp_path / 'none.onnx', 0)
    bad = tmp_path / 'bad.onnx'
    bad.write_bytes(b'not a model')
    with pytest.raises(ModelError, match='cannot be read as an ONNX model'):
        Subject.of_file(bad, 0)
    model = onnx.load(fixed)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    onnx.save(model, bad)
    with pytest.raises(InputError, match="input 'x' is not float32"):
        Subject.of_file(bad, 0)
    model = onnx.load(fixed)
    model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = 'w'
    onnx.save(model, bad)
    with pytest.raises(InputError, match='leaves sizes open'):
        Subject.of_file(bad, 0)


def contestant(name, *times):
    return Contestant(
        name, versions=((name, '1.0'),), settings=(('mode', 'fast'),),
        samples_ms=tuple((t, t, t) for t in times), max_rel_err=1e-6,
    )  # fmt: skip


def result(name, ours, *peers):
    rows = tuple(contestant(f'p{number}', time) for number, time in enumerate(peers))
    return NetworkResult(name, 1, 2_000_000_000, 2, 1, False, 0, contestant('tilewright', ours), rows)  # fmt: skip # noqa: E501


def test_tables_and_means():
    results = [result('a', 10.0, 20.0, 16.0), result('b', 10.0, 8.0, 12.0)]
    assert [r.best.peer for r in results] == ['p1', 'p0']
    assert mean_ratio(results) == pytest.approx((1.6 * 0.8) ** 0.5)
    text = table(results, 400.0)
    assert '1.60 [1.60, 1.60] p1' in text
    assert 'geometric mean 1.131 over 2 networks, least 0.800' in text
    assert '200.0' in text  # GFLOP/s
    assert '50.0' in text  # % of the peak
    assert 'p0 1.0: mode fast (a, b)' in text
    assert '| a | 10.00 |' in grid(results, brief=True).markdown()
    lost = replace(results[0], peers=(Contestant('p0', 'hung', 'no answer'),))
    assert 'p0 hung on a: no answer' in table([lost])
    assert mean_ratio([lost]) is None


def test_results_survive_json():
    before = result('a', 10.0, 20.0, 16.0)
    data = json.loads(json.dumps(before.to_json()))
    assert NetworkResult.from_json(data) == before
    assert data['best'] == {'peer': 'p1', 'value': 1.6, 'low95': 1.6, 'high95': 1.6}
    with pytest.raises(InputError, match='cannot be read'):
        NetworkResult.from_json({'name': 'a'})


def test_what_a_spec_names():
    assert networks_of('mopt/R2') is None
    assert networks_of('resnet18, x/y.onnx') == ('resnet18', 'x/y.onnx')
    assert networks_of('networks,resnet18') == zoo.NAMES
    with pytest.raises(InputError, match="'mopt/R2' is not a network, but 'resnet18' is"):
        networks_of('resnet18,mopt/R2')


def test_peers_that_can_take_part():
    assert peers_of('torch, openvino', 'network') == ('torch', 'openvino')
    with pytest.raises(InputError, match='torch cannot read x'):
        peers_of('torch', 'network', ['x.onnx'])
    with pytest.raises(InputError, match="peer 'tvm' is not known on networks"):
        peers_of('tvm', 'network')
    with pytest.raises(InputError, match='names no peer'):
        peers_of(',', 'network')
    assert 'torch' not in peers_of(None, 'network', ['x.onnx'])


@pytest.fixture
def _quick(monkeypatch, tmp_path):
    """Without measuring the machine: its figures are not what is tested here."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))
    found = nominal_machine(describe_host(), best_isa())
    monkeypatch.setattr(bench_networks, 'machine_of', lambda *_: found)
    monkeypatch.setattr(bench_networks, 'peaks_now', lambda *_: {'used_gflops_per_s': 100.0})


@needs_compiler
@pytest.mark.usefixtures('_quick')
def test_bench_compares_a_file(tmp_path, capsys):
    path, found = one_layer(tmp_path / 'layer.onnx'), tmp_path / 'bench.json'
    words = [
        'bench', path, '--against', 'onnxruntime', '--rounds', 1, '--turn-ms', 1, '--threads', 1,
        '--tune', 'model', '--json', found, '--seed', 4,
    ]  # fmt: skip
    assert invoke([str(word) for word in words]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split()[:2] == ['network', 'ours']
    data = json.loads(found.read_text())
    (row,) = data['networks']
    assert (row['name'], row['ours']['status'], row['batch']) == ('layer', 'ok', 1)
    assert row['ours']['max_rel_err'] <= 1e-4
    assert row['ours']['samples_ms'][0]
    assert row['peers'][0]['samples_ms'][0]
    assert row['best']['value'] == pytest.approx(data['geometric_mean']['best_peer_over_ours'])
    assert (data['complete'], data['tune'], data['seed']) == (True, 'model', 4)


@needs_compiler
@pytest.mark.usefixtures('_quick')
def test_bench_compares_one_network_at_several_sizes(tmp_path):
    """A range is compiled once for all of its sizes, and every size is a row."""
    path, found = one_layer(tmp_path / 'layer.onnx', 'n'), tmp_path / 'bench.json'
    words = [
        'bench', path, '--shape', 'x=2:3,3,8,8', '--against', 'onnxruntime', '--rounds', 1,
        '--turn-ms', 1, '--threads', 1, '--tune', 'model', '--json', found,
    ]  # fmt: skip
    assert invoke([str(word) for word in words]) == 0
    rows = json.loads(found.read_text())['networks']
    assert [(row['name'], row['batch'], row['ours']['status']) for row in rows] == [
        (f'layer x=[{batch}, 3, 8, 8]', batch, 'ok') for batch in (2, 3)
    ]


@pytest.mark.usefixtures('_quick')
def test_an_interrupted_comparison_goes_on_where_it_stopped(monkeypatch, tmp_path, capsys):
    files = [one_layer(tmp_path / f'{name}.onnx') for name in 'ab']
    calls = []

    def compare(name, *_):
        calls.append(name)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return result(name, 10.0, 20.0)

    monkeypatch.setattr(bench_networks, '_compare', compare)
    words = ['bench', ','.join(map(str, files)), '--against', 'onnxruntime', '--threads', '1']
    assert invoke(words) == 130
    assert 'interrupted after 1 of 2 networks' in capsys.readouterr().err
    assert invoke(words) == 0
    assert [name[-6:] for name in calls] == ['a.onnx', 'b.onnx', 'b.onnx']
    said = capsys.readouterr()
    assert '1 of 2 networks were compared before an interrupt' in said.err
    assert 'over 2 networks' in said.out


@pytest.mark.usefixtures('_quick')
@pytest.mark.parametrize(
    ('words', 'sentence'),
    [
        (['--rounds', '0'], 'rounds is 0'),
        (['--turn-ms', '0'], 'turn_ms is 0'),
        (['--tune', 'guess'], "--tune 'guess'; choose one of model, measure"),
        (['--against', 'mxnet'], "peer 'mxnet' is not known on networks"),
        (['--target', 'cuda', '--shape', 'x=1'], '--shape x=1 gives the sizes of one network on'),
    ],
)
def test_bad_options_are_one_sentence(words, sentence, capsys):
    assert invoke(['bench', 'resnet18', *words]) == 2
    assert sentence in capsys.readouterr().err
