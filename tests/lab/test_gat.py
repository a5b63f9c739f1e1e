"""GTuner's model: layers against sums written out, numpy against torch, training, files, verbs."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from groups import HOPPER, fused, schedules_of, write_groups

from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.time import predict_gpu
from tilewright.rank import safetensors
from tilewright.rank.gat import (
    HEAD,
    HEADS,
    JOINED,
    NUMPY,
    VARIANTS,
    GatModel,
    attend,
    embed,
    forward,
    shapes,
)
from tilewright.rank.gat_files import find_gat, load_gat, own_gat, save_gat
from tilewright.rank.graph_features import NODE_NAMES, graph_of, side_by_side
from tilewright.rank.rankers import HOPELESS_S, Gat
from tilewright.rank.statistics import NAMES, statistics_for
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.cli import model_gat
from tilewright_lab.cli.model_gat import load_gat_for
from tilewright_lab.collect.group_data import read_groups
from tilewright_lab.figures import gtuner, gtuner_fig7
from tilewright_lab.figures.gtuner import metrics_of, pairwise
from tilewright_lab.train.group_table import group_table


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp('groups')
    write_groups(made)
    return made


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path_factory):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path_factory.getbasetemp() / 'gat-cache'))


@pytest.fixture(scope='module')
def table(folder, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    with patch.context() as m:
        m.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path_factory.getbasetemp() / 'gat-cache'))
        return group_table(read_groups(folder).train, HOPPER)


def weights_of(variant: str, seed: int = 0, statistics: int = 7, nodes: int = 5):
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(size=shape) / math.sqrt(shape[-2] if len(shape) > 1 else 1)).astype('f4')
        for name, shape in shapes(VARIANTS[variant], statistics, nodes).items()
    }


def a_graph(seed: int = 0, count: int = 6, features: int = 5):
    """Nodes of a random graph and its adjacency, and one place that is empty."""
    rng = np.random.default_rng(seed)
    nodes = np.zeros((1, count, features), 'f4')
    nodes[0, : count - 1] = rng.normal(size=(count - 1, features))
    upper = np.triu(rng.random((count - 1, count - 1)) < 0.5, 1)
    adjacency = np.zeros((1, count, count), 'f4')
    adjacency[0, : count - 1, : count - 1] = upper | upper.T
    present = np.array([[1.0] * (count - 1) + [0.0]], 'f4')
    return nodes, adjacency, present


def by_hand(kind: str, w, at: str, x, neighbours):
    """One layer of a graph, node by node."""
    out = []
    for i, near in enumerate(neighbours):
        own = x[i] @ w[f'{at}.own']
        if kind in ('wl', 'sage'):
            total = sum((x[j] for j in near), np.zeros_like(x[i]))
            others = total if kind == 'wl' or not near else total / len(near)
            value = own + others @ w[f'{at}.others']
        elif kind == 'spectral':
            around = [*near, i]
            value = sum(
                x[j] @ w[f'{at}.own'] / math.sqrt(len(around) * (len(neighbours[j]) + 1))
                for j in around
            )
        else:
            around = [*near, i]
            h = {j: x[j] @ w[f'{at}.own'] for j in around}
            e = [(h[i] @ w[f'{at}.source'] + h[j] @ w[f'{at}.target']).item() for j in around]
            e = np.exp([v if v > 0 else 0.2 * v for v in e])
            value = sum(share * h[j] for share, j in zip(e / e.sum(), around, strict=True))
        out.append(np.maximum(value + w[f'{at}.bias'], 0))
    return np.array(out)


@pytest.mark.parametrize('name', ['gtuner', 'specgcn', 'maskgat', 'graphsage'])
def test_graph_layers_are_the_sums_of_their_papers(name: str) -> None:
    variant, w = VARIANTS[name], weights_of(name)
    nodes, adjacency, present = a_graph()
    count = int(present.sum())
    neighbours = [np.flatnonzero(row[:count]).tolist() for row in adjacency[0, :count]]
    x = nodes[0, :count]
    for at in ('graph1', 'graph2'):
        x = by_hand(variant.graph, w, at, x, neighbours)
    got = embed(NUMPY, variant, w, nodes, adjacency, present)
    np.testing.assert_allclose(got[0], x.mean(0), rtol=1e-4, atol=1e-5)


def test_attention_is_that_of_the_equations() -> None:
    w, x = weights_of('mhsa'), np.random.default_rng(1).normal(size=(3, JOINED)).astype('f4')
    got = attend(NUMPY, w, x)
    for row in range(3):
        tokens = x[row].reshape(HEADS, HEAD)  # x^R
        heads = []
        for i in range(HEADS):
            q, k, v = (tokens @ w[f'attention.{name}'][i] for name in 'qkv')
            scores = np.exp(q @ k.T / math.sqrt(HEAD))
            heads.append(scores / scores.sum(1, keepdims=True) @ v)  # Eq. 4
        want = np.concatenate(heads, 1) @ w['attention.out']  # Eq. 5
        np.testing.assert_allclose(got[row], want.reshape(-1), rtol=1e-3, atol=1e-4)


def test_the_order_of_nodes_does_not_matter() -> None:
    variant, w = VARIANTS['gtuner'], weights_of('gtuner')
    nodes, adjacency, present = a_graph(3)
    order = np.random.default_rng(0).permutation(nodes.shape[1])
    turned = nodes[:, order], adjacency[:, order][:, :, order], present[:, order]
    one, other = (embed(NUMPY, variant, w, *g) for g in ((nodes, adjacency, present), turned))
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', VARIANTS)
def test_torch_and_numpy_say_the_same(name: str) -> None:
    torch = pytest.importorskip('torch')
    from tilewright_lab.train.gat_training import ops_on

    variant, w = VARIANTS[name], weights_of(name)
    graphs = [np.concatenate(parts) for parts in zip(a_graph(1), a_graph(2), strict=True)]
    x = np.random.default_rng(2).normal(size=(5, 7)).astype('f4')
    which = np.array([0, 1, 1, 0, 1])
    ours = forward(NUMPY, variant, w, x, graphs, which)
    theirs = forward(
        ops_on('cpu'), variant, {k: torch.from_numpy(v) for k, v in w.items()},
        torch.from_numpy(x), [torch.from_numpy(g) for g in graphs], torch.from_numpy(which),
    )  # fmt: skip
    np.testing.assert_allclose(ours, theirs.numpy(), rtol=2e-3, atol=2e-4)


def trained(table, epochs: int = 3, variant: str = 'gtuner', checkpoint=None, report=None):
    pytest.importorskip('torch')
    from tilewright_lab.train.gat_training import Training, train_gat

    header = {
        'machine': 'h200', 'rows': len(table), 'groups': len(table.labels), 'seed': 0,
        'data_sha256': '0' * 64, 'validation': {},
    }  # fmt: skip
    training = Training(epochs=epochs, rate=1e-3, batch=64, decay=0.1)
    return train_gat(
        table, VARIANTS[variant], training, header, checkpoint=checkpoint, report=report
    )


@pytest.fixture
def one_thread():
    """Libraries take fewer threads on a busy machine, and add up in another order then."""
    torch = pytest.importorskip('torch')
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_training_learns_and_a_seed_decides(table, one_thread) -> None:
    losses: list[float] = []
    model = trained(table, 3, report=lambda _, loss: losses.append(loss))
    assert losses[-1] < 0.7 * losses[0]
    again = trained(table, 3)
    assert all((model.weights[name] == again.weights[name]).all() for name in model.weights)


def test_interrupted_training_ends_as_if_it_had_not_been(table, tmp_path, monkeypatch) -> None:
    pytest.importorskip('torch')
    monkeypatch.setattr('tilewright_lab.train.gat_training.SAVED_EVERY_S', 0.0)
    whole, path = trained(table, 2), tmp_path / 'checkpoint'

    def stop(epoch: int, _: float) -> None:
        if epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(table, 2, checkpoint=path, report=stop)
    assert path.exists()
    seen: list[int] = []
    model = trained(table, 2, checkpoint=path, report=lambda epoch, _: seen.append(epoch))
    assert seen == [1]
    assert not path.exists()
    assert all((model.weights[n] == whole.weights[n]).all() for n in whole.weights)


def test_too_few_rows_and_wild_settings_are_refused(table) -> None:
    pytest.importorskip('torch')
    from tilewright_lab.train.gat_training import Training

    with pytest.raises(InputError, match='too few'):
        trained(table.take(np.arange(5)))
    with pytest.raises(InputError, match='epochs'):
        Training(epochs=0)


@pytest.fixture(scope='module')
def model() -> GatModel:
    """Weights at random: files and rankings need no training."""
    from tilewright.rank.gat import Scaling

    w = weights_of('gtuner', 0, len(NAMES), len(NODE_NAMES))
    s, n = len(NAMES), len(NODE_NAMES)
    scaling = Scaling(
        np.zeros(s, 'f4'), np.ones(s, 'f4'), np.zeros(n, 'f4'), np.ones(n, 'f4'),
        np.array([0, 1], 'f4'),
    )  # fmt: skip
    header = {
        'machine': 'h200', 'rows': 100, 'groups': 4, 'seed': 0, 'data_sha256': '0' * 64,
        'validation': {}, 'variant': 'gtuner', 'statistics': list(NAMES),
        'node_features': list(NODE_NAMES),
        'training': {'epochs': 1, 'rate': 1e-4, 'batch': 512, 'decay': 1.0, 'seed': 0},
    }  # fmt: skip
    return GatModel(VARIANTS['gtuner'], w, scaling, header)


def test_a_file_gives_the_model_back(model, tmp_path) -> None:
    path = tmp_path / 'h200-gat.safetensors'
    save_gat(model, path)
    assert path.stat().st_size < 5e6
    back = load_gat(path)
    group = fused(16, 14, 32)
    schedules = schedules_of(group, 6)
    np.testing.assert_array_equal(
        back.scores(group, HOPPER, schedules), model.scores(group, HOPPER, schedules)
    )
    ranker = Gat(group, HOPPER, back)
    assert ranker.learned([]) is ranker
    assert np.argsort(ranker(schedules)).tolist() == np.argsort(
        model.scores(group, HOPPER, schedules)
    ).tolist()  # fmt: skip


def changed(path, tmp_path, edit):
    """The file with its header changed and hashed again."""
    arrays, metadata = safetensors.load_file(path)
    arrays, header = edit(dict(arrays), json.loads(metadata['header']))
    text = json.dumps(header, sort_keys=True)
    import hashlib

    digest = hashlib.sha256(safetensors.dump(arrays, {'header': text})).hexdigest()
    made = tmp_path / 'changed.safetensors'
    safetensors.save_file(made, arrays, {'header': text, 'sha256': digest})
    return made


@pytest.mark.parametrize(
    ('edit', 'said'),
    [
        (lambda a, h: (a, h | {'statistics': h['statistics'][:-1]}), 'for features'),
        (lambda a, h: (a, h | {'feature_version': 99}), 'version 99'),
        (lambda a, h: (a, h | {'probe': [2 * v + 1 for v in h['probe']]}), 'computed differently'),
        (lambda a, h: (a, {k: v for k, v in h.items() if k != 'machine'}), 'does not say'),
        (lambda a, h: (a, h | {'format': 7}), 'format 7'),
        (lambda a, h: ({k: v for k, v in a.items() if k != 'mlp1.bias'}, h), 'not those of'),
        (lambda a, h: (a | {'mlp4.bias': np.array([np.nan], 'f4')}, h), 'no numbers'),
    ],
)  # fmt: skip
def test_models_for_other_features_are_refused(model, tmp_path, edit, said: str) -> None:
    path = tmp_path / 'model.safetensors'
    save_gat(model, path)
    with pytest.raises(InputError, match=said):
        load_gat(changed(path, tmp_path, edit))


def test_tampered_and_cut_files_are_refused(model, tmp_path) -> None:
    path = tmp_path / 'model.safetensors'
    save_gat(model, path)
    data = path.read_bytes()
    for spoiled in (
        data[:-1], data + b'\0', data[:100], b'', data[:-4] + b'\0\0\0\x40',
    ):  # fmt: skip
        path.write_bytes(spoiled)
        with pytest.raises(InputError, match=r'write it again|was changed'):
            load_gat(path)
    with pytest.raises(InputError, match='does not exist'):
        load_gat(tmp_path / 'none.safetensors')


def test_another_machine_is_warned_of_and_own_models_are_found(model, tmp_path) -> None:
    path = tmp_path / 'model.safetensors'
    save_gat(model, path)
    assert load_gat_for(str(path), HOPPER)[1] == str(path)
    assert 'trained on h200' in load_gat_for(str(path), known_gpu('rtx2080ti'))[1]
    assert find_gat('rtx2080ti') is None
    save_gat(model, own_gat('rtx2080ti'))
    found = find_gat('rtx2080ti')
    own_gat('rtx2080ti').unlink()
    assert found is not None
    assert found[0].header['rows'] == 100


def test_metrics_by_hand() -> None:
    seconds = np.array([4.0, 1.0, 2.0, 2.0])
    assert pairwise(np.array([4.0, 1.0, 2.0, 3.0]), seconds) == 1.0
    assert pairwise(-seconds, seconds) == 0.0
    assert pairwise(np.zeros(4), seconds) == 0.5
    assert pairwise(np.zeros(2), np.ones(2)) == 1.0
    found = metrics_of(np.log(seconds), seconds)
    assert found == {'spearman': 1.0, 'pairs': 1.0, 'loss_10': 0.0, 'loss_30': 0.0}


def test_schemas_that_it_has_not_seen_go_by_the_time_model(model) -> None:
    group = fused(32, 16, 32)
    seen = schedules_of(group)[:3]
    tiles = {'bk': 16, 'bp': 16, 'tk': 4, 'tp': 4, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
    other, wild = (GpuSchedule.of('winograd', m=m, **tiles) for m in (4, 5))
    ranker = Gat(group, HOPPER, model)
    mixed = ranker([seen[0], other, *seen[1:], wild])
    np.testing.assert_allclose(mixed[[0, 2, 3]], ranker(seen), rtol=1e-6)
    assert mixed[1] == math.log(predict_gpu(group, other, HOPPER).seconds)
    assert mixed[4] == math.log(HOPELESS_S)
    with pytest.raises(InputError, match="nothing of the schema 'winograd'"):
        statistics_for(group, HOPPER, [other])


def test_a_group_is_foretold_alike_in_any_table(model, table) -> None:
    rows = table.rows_of(1)
    part = table.take(rows)
    together = model.log_seconds(table.x, table.base, table.graphs, table.which)[rows]
    alone = model.log_seconds(part.x, part.base, part.graphs, part.which)
    np.testing.assert_allclose(together, alone, rtol=1e-4)
    group = fused(32, 14, 64)
    one = side_by_side([graph_of(group)])
    single = model.log_seconds(part.x, part.base, one, np.zeros(len(rows), int))
    np.testing.assert_allclose(single, alone, rtol=1e-4)


def test_the_verbs_train_evaluate_and_show(folder, tmp_path, call, monkeypatch) -> None:
    pytest.importorskip('torch')
    monkeypatch.setattr(model_gat, 'LEAST', 3)
    path = tmp_path / 'own.safetensors'
    words = ['--data', folder, '--machine', 'h200']
    code, out, _ = call(
        'model', 'train', '--model', 'gat', *words, '--epochs', 2, '--rate', 1e-3, '--batch', 256,
        '-o', path,
    )  # fmt: skip
    assert code == 0
    assert 'held out' in out
    code, out, _ = call('model', 'evaluate', *words, '--model', path)
    assert code == 0
    assert 'mean' in out
    code, out, _ = call('model', 'show', path)
    assert code == 0
    assert '2 epochs' in out
    code, out, _ = call('model', 'show', 'gat')
    assert code == 0
    assert 'weights_lines' in out
    assert 'size_k' in out
    for bad in (['--model', 'svm'], ['--model', 'gat', '--variant', 'x'], ['--epochs', 3]):
        code, _, err = call('model', 'train', *words, *bad)
        assert code == 2
        assert len(err.strip().splitlines()) == 1


@pytest.mark.slow
def test_the_figures_on_small_data(folder, tmp_path, call, monkeypatch) -> None:
    pytest.importorskip('torch')
    monkeypatch.setattr(gtuner, 'LEAST', 10)
    monkeypatch.setattr(gtuner, 'SEEDS', 1)
    monkeypatch.setattr(gtuner_fig7, 'SEEDS', 1)
    monkeypatch.setattr(gtuner_fig7, 'LEAST', 20)
    monkeypatch.setattr(gtuner_fig7, 'TRIALS', 24)
    monkeypatch.setattr(gtuner_fig7, 'SHOWN', (1, 24))
    words = ['--data', folder, '--machine', 'h200', '--epochs', 1]
    path = tmp_path / 'found.json'
    for name, model in (('gtuner-table1', 'specgcn'), ('gtuner-table2', 'gnn-mlp')):
        code, out, _ = call('reproduce', name, *words, '--json', path)
        assert code == 0
        assert model in out
        found = json.loads(path.read_text())
        rows = {row['model']: row['seeds'][0] for row in found['layers']}
        assert {row for row in rows if row in VARIANTS} >= {'gtuner', model}
        for row in rows.values():
            assert -1 <= row['means']['spearman'] <= 1
            assert 0 <= row['networks']['30']['resnet18'] <= row['networks']['10']['resnet18']
    # Trees have seen the rule that was put on top of the model; the model has not.
    call('reproduce', 'gtuner-table1', *words, '--json', path)
    rows = {row['model']: row['seeds'][0] for row in json.loads(path.read_text())['layers']}
    assert rows['forest']['means']['spearman'] > rows['analytical']['means']['spearman']
    code, out, _ = call('reproduce', 'gtuner-fig7', *words, '--json', path, '--plot', tmp_path)
    assert code == 0
    assert (tmp_path / 'gtuner-fig7.png').exists()
    for row in json.loads(path.read_text())['layers']:
        for curve in row['curves'][0]:
            assert len(curve) == 24
            assert all(a >= b >= 1 for a, b in itertools.pairwise(curve))
    code, _, err = call('reproduce', 'cnnopt-table8', *words)
    assert code == 2
    assert 'trains no network' in err
