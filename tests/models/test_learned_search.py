"""Learned models where searches ask for them: by name, for kernels of any kind, in networks."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.cli.main import invoke
from tilewright.errors import InputError, ScheduleError
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu import estimates
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.convolution import conv2d
from tilewright.rank import files, gat_files
from tilewright.rank.counts import batches_of
from tilewright.rank.files import SEARCHED, find_model, save_model, shipped
from tilewright.rank.model import LearnedModel
from tilewright.rank.rankers import Learned, Predicted, kind_of, ranker_for
from tilewright.rank.trees import Settings
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu import strategies
from tilewright.search.gpu import tune as tune_module
from tilewright.search.gpu.moves import moves
from tilewright.search.gpu.tune import tune
from tilewright.targets.gpu import tuning
from tilewright.targets.gpu.tuning import SEARCHES, How
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.datasets import Measured, read_data
from tilewright_lab.figures.cnnopt_table8 import online_trials
from tilewright_lab.train.forest import Member, Recipe, train

MACHINE = known_gpu('h200')
LAYER = conv2d(c=16, h=16, w=16, k=32, r=3, s=3, pad=1)
SMALL = Recipe('small', (Member('time', Settings('boosted', trees=10, leaves=8, least=2)),))
KNOWN = Path(files.__file__).parent / 'known'


@pytest.fixture(autouse=True)
def remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches of one layer look at the same schedules again and again."""
    monkeypatch.setattr(estimates, 'predict_gpu', predicted)
    monkeypatch.setattr(tuning, 'moves', space_of)


predicted, space_of = cache(predict_gpu), cache(moves)


@cache
def drawn(count: int) -> list[GpuSchedule]:
    rng, space = random.Random(1), space_of(LAYER, MACHINE)
    found: dict[str, GpuSchedule] = {}
    while len(found) < count:
        one = space.draw(rng)
        if one is not None:
            found[one.digest] = one
    return list(found.values())


def model_of(schedules: Sequence[GpuSchedule], seconds: Sequence[float]) -> LearnedModel:
    """Trees for the `tiled` kernels among them, of made-up times."""
    sets = [
        Measured((32, 16, 16, 16, 3, 1), batch, np.array(seconds)[places])
        for batch, places in batches_of(LAYER, schedules)
    ]
    return train(sets, MACHINE, SMALL)


def test_the_time_model_ranks_all_kernels_of_a_search() -> None:
    schedules = drawn(12)
    scores = ranker_for('analytical', LAYER, MACHINE, SEARCHED).ranker(schedules)
    want = [predict_gpu(LAYER, s, MACHINE).seconds for s in schedules]
    np.testing.assert_allclose(np.exp(scores), want)
    large = GpuSchedule.of(
        'rs', rk=8, ry=8, rx=8, tk=32, ty=1, tx=1, wk=1, wy=2, wx=2, cb=1, stages=1, split=1, join=0
    )  # 512 sums of a thread
    assert Predicted(LAYER, MACHINE)([large])[0] > scores.max()  # what cannot be comes last


def test_kernels_that_a_model_has_not_seen_are_ranked_by_the_time_model() -> None:
    schedules = drawn(200)
    seen = [s for s in schedules if s.schema == 'tiled']
    model = model_of(seen, np.linspace(1e-6, 2e-6, len(seen)).tolist())
    ranker = Learned(LAYER, MACHINE, model)
    both = ranker(schedules)
    said = Predicted(LAYER, MACHINE)(schedules)
    for place, schedule in enumerate(schedules):
        known = kind_of(schedule) in model.header['kinds']
        assert (both[place] == said[place]) == (not known), schedule
    np.testing.assert_allclose(
        ranker(seen), [both[schedules.index(s)] for s in seen]
    )  # times, whether others are there or not
    assert ranker.learned([]) is ranker


def test_only_kinds_that_were_validated_are_ranked() -> None:
    seen = [s for s in drawn(200) if s.schema == 'tiled']
    header = {**model_of(seen, [1e-6] * len(seen)).header, 'kinds': ['general', 'rs', 's', 'tiled']}
    assert LearnedModel(header=header).ranked_kinds == {'general', 'rs', 's', 'tiled'}
    told = {
        'rs': {'learned': 0.01, 'analytical': 0.02}, 's': {'learned': 0.03, 'analytical': 0.02},
        'tiled': {'learned': 0.02, 'analytical': 0.02},
    }  # fmt: skip
    assert LearnedModel(header={**header, 'validation': {'kinds': told}}).ranked_kinds == {
        'rs', 'tiled'
    }  # fmt: skip


def test_a_model_that_only_ranks_cannot_be_compared_with_times() -> None:
    seen = [s for s in drawn(200) if s.schema == 'tiled']
    model = model_of(seen, np.linspace(1e-6, 2e-6, len(seen)).tolist())
    ranker = Learned(LAYER, MACHINE, LearnedModel(rank=model.time, header=model.header))
    other = next(s for s in drawn(200) if s.schema != 'tiled')
    with pytest.raises(InputError, match='knows no times'):
        ranker([*seen[:3], other])


def test_names_of_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    monkeypatch.setattr(files, 'shipped', lambda: [])
    monkeypatch.setattr(gat_files, 'shipped_gats', lambda: [])
    with pytest.raises(InputError, match='no graph-attention model knows h200'):
        ranker_for('gat', LAYER, MACHINE, SEARCHED)
    fallen = ranker_for('auto', LAYER, MACHINE, SEARCHED)
    assert not fallen.fell_back  # it is the default: no trouble where nothing was learned
    assert 'no learned model knows the kernels of a search on h200' in fallen.note
    assert isinstance(fallen.ranker, Predicted)
    How('auto').check(LAYER, MACHINE)  # warns of damaged models alone
    with pytest.raises(InputError, match='choose the model analytical or auto'):
        How('forest').check(LAYER, MACHINE)
    schedules = drawn(60)
    save_model(
        model_of(schedules, np.linspace(1e-6, 2e-6, 60).tolist()),
        files.own_folder() / 'h200-search.npz',
    )
    found = ranker_for('auto', LAYER, MACHINE, SEARCHED)
    assert (found.name, found.fell_back) == ('forest', False)
    How('auto').check(LAYER, MACHINE)


def took(schedule: GpuSchedule) -> float | None:
    """The model's time for a measured one; None for what does not fit."""
    try:
        return predicted(LAYER, schedule, MACHINE).seconds
    except ScheduleError:
        return None


@pytest.mark.parametrize('search', SEARCHES)
def test_every_search_of_a_network_keeps_its_budget(
    search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, 'POPULATION', 24)
    monkeypatch.setattr(tune_module, 'CLIMBS', 2)
    asked: list[str] = []

    def measure(schedules: Sequence[GpuSchedule]) -> list[float | None]:
        asked.extend(s.digest for s in schedules)
        return [took(s) for s in schedules]

    starts = drawn(3)
    found = How(search=search).search_for(
        LAYER, MACHINE, measure, trials=12, starts=starts, sampled=60
    )
    assert len(asked) == len(set(asked)) == len(found) == 12
    assert {s.digest for s in starts} <= set(asked)
    assert found[0].seconds == min(t.seconds for t in found if t.seconds is not None)


def test_what_a_search_is_remembered_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by what the model was learned from: another one of the same name asks anew."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    assert How('analytical').key(LAYER, MACHINE) == {}
    assert How().key(LAYER, MACHINE)['model'] == 'auto'
    assert How().key(LAYER, known_gpu('v100')) == {}  # nothing was learned of it
    key = How('forest', 'genetic').key(LAYER, MACHINE)
    assert key == How('auto', 'genetic').key(LAYER, MACHINE) | {'model': 'forest'}
    assert (key['model'], key['search'], key['seed'], len(key['content'])) == (
        'forest', 'genetic', 0, 16,
    )  # fmt: skip
    gat = How('gat', 'genetic').key(LAYER, MACHINE)
    assert gat['content'] not in ('', key['content'])
    assert How('analytical', 'genetic').key(LAYER, MACHINE)['content'] == ''
    assert How('forest', 'genetic', 1).key(LAYER, MACHINE) == key | {'seed': 1}
    schedules, own = drawn(60), files.own_folder() / 'h200-search.npz'
    seen = {key['content']}
    for fastest in (1e-6, 2e-6):
        save_model(model_of(schedules, np.linspace(fastest, 3e-6, 60).tolist()), own)
        seen.add(How('forest', 'genetic').key(LAYER, MACHINE)['content'])
    assert len(seen) == 3
    own.write_text('damaged')
    assert How('forest').key(LAYER, MACHINE)['content'] == ''
    with pytest.raises(InputError, match="search is 'magic'"):
        How(search='magic')


@pytest.mark.parametrize('search', SEARCHES)
def test_a_seed_draws_other_candidates(search: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategies, 'POPULATION', 24)
    monkeypatch.setattr(tune_module, 'CLIMBS', 2)

    def asked(seed: int) -> list[str]:
        def measure(schedules: Sequence[GpuSchedule]) -> list[float | None]:
            return [took(s) for s in schedules]

        found = How(search=search, seed=seed).search_for(
            LAYER, MACHINE, measure, trials=8, starts=(), sampled=40
        )
        return sorted(t.schedule.digest for t in found)

    first = asked(0)
    assert asked(0) == first
    assert asked(1) != first


@pytest.mark.parametrize('name', ['forest', 'gat', 'auto'])
def test_a_damaged_own_model_does_not_hide_the_shipped_one(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver calls the machine otherwise than the file of the shipped model does."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    there = replace(MACHINE, name='NVIDIA H200')
    good = ranker_for(name, LAYER, there, SEARCHED)
    assert not good.fell_back
    own = files.own_folder()
    own.mkdir(parents=True)
    for file in ('NVIDIA H200-search.npz', 'NVIDIA H200-gat.safetensors'):
        (own / file).write_text('damaged')
    found = ranker_for(name, LAYER, there, SEARCHED)
    assert (found.name, found.content) == (good.name, good.content)
    assert found.fell_back
    assert 'NVIDIA H200-' in found.note
    assert f'meanwhile {good.note}' in found.note
    with pytest.warns(UserWarning, match='meanwhile h200-'):
        How(name).check(LAYER, there)
    monkeypatch.setattr(files, 'shipped', lambda: [])
    monkeypatch.setattr(gat_files, 'shipped_gats', lambda: [])
    if name == 'auto':
        assert ranker_for(name, LAYER, there, SEARCHED).name == 'analytical'
        return
    with pytest.raises(InputError, match='NVIDIA H200-'):
        ranker_for(name, LAYER, there, SEARCHED)


def test_scores_of_many_and_ranks_of_one_search_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_module, 'CLIMBS', 2)
    space, ranker = space_of(LAYER, MACHINE), Predicted(LAYER, MACHINE)

    def measure(schedules: Sequence[GpuSchedule]) -> list[float | None]:
        return [took(s) for s in schedules]

    by_rank = tune(space, measure, trials=6, rank=lambda s: float(ranker([s])[0]), seed=4)
    by_scores = tune(space, measure, trials=6, model=ranker, seed=4)
    assert by_rank == by_scores


def test_compile_refuses_what_a_target_does_not_have() -> None:
    net = tw.conv2d(c=4, h=8, w=8, k=8, r=3, s=3)
    with pytest.raises(InputError, match="add tune='measure'"):
        tw.compile(net, target='cuda', model='forest')
    with pytest.raises(InputError, match='is for GPU kernels'):
        tw.compile(net, tune='measure', search='genetic')
    with pytest.raises(InputError, match='is for GPU kernels'):
        tw.compile(net, tune='measure', model='forest')
    with pytest.raises(InputError, match="search is 'magic'"):
        tw.compile(net, target='host', tune='measure', search='magic')


def test_optimize_for_a_gpu(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(strategies, 'POPULATION', 24)
    monkeypatch.setattr('tilewright.targets.gpu.ranked.LOOKED_AT', 48)
    monkeypatch.setattr('tilewright.targets.gpu.target.LOOKED_AT', 48)
    made = tmp_path / 'r12.json'
    words = ['optimize', 'cnnopt/R12', '--machine', 'h200', '--top', '2']
    assert invoke([*words, '--no-measure', '--model', 'analytical', '--json', str(made)]) == 0
    assert 'predicted' in capsys.readouterr().out
    (layer,) = json.loads(made.read_text())['layers']
    times = [c['predicted']['seconds'] for c in layer['plan']['candidates']]
    assert times == sorted(times)
    assert len(times) == 2
    assert invoke(words) == 2
    assert '--no-measure' in capsys.readouterr().err
    assert invoke([*words, '--no-measure', '--threads', '2']) == 2
    assert 'threads=2 means nothing on cuda' in capsys.readouterr().err
    assert invoke([*words, '--no-measure', '--model', 'oracle']) == 2
    assert invoke(['optimize', 'mopt/R2', '--no-measure', '--model', 'forest']) == 2
    assert 'ranks GPU kernels' in capsys.readouterr().err


@pytest.mark.parametrize(
    'name', ['h200-rs', 'h200-s', 'h200-search', 'rtx2080ti-rs', 'rtx2080ti-s']
)
def test_models_that_come_with_the_package(name: str) -> None:
    assert name in shipped()
    machine, _, kind = name.partition('-')
    assert (KNOWN / f'{name}.npz').stat().st_size <= 5_000_000
    found = find_model(machine, kind)
    assert found is not None
    header = found[0].header
    assert header['machine'] == machine
    assert kind in (SEARCHED, *header['kinds'])
    assert header['rows'] > 0
    assert len(header['data_sha256']) == 64
    assert header['validation']['recipes']
    assert not any(word in json.dumps(dict(header)) for word in ('/home', '/tmp', '/work'))


def test_a_shipped_model_beats_the_analytical_order_on_layers_it_has_not_seen(
    tmp_path: Path,
) -> None:
    whole = Path(__file__).parents[2] / 'bench' / 'results' / 'h200' / 'layers-rs.csv.gz'
    (tmp_path / whole.name).symlink_to(whole)  # without the files of other kernels
    found = find_model('h200', 'rs')
    assert found is not None
    losses = []
    for layer in read_data(tmp_path).of(['rs']).layers[:6]:
        scores = found[0].scores([layer.batch], MACHINE)[0]
        base = ranker_for('analytical', layer.batch.group, MACHINE, 'rs').ranker(
            [layer.batch.schedule(row) for row in range(len(layer))]
        )
        best = layer.seconds.min()
        losses.append(
            [layer.seconds[np.argsort(s, kind='stable')[:10]].min() / best for s in (scores, base)]
        )
    learned, analytical = np.mean(losses, 0) - 1
    assert learned < 0.05
    assert learned < analytical / 2


def test_data_that_cannot_be_learned_from_stop_cleanly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way from a file to an exit code: a sentence, no traceback, no model."""
    head = 'k,h,w,c,r,stride,pad,threads,status,time_us,registers,spill_bytes\n'
    row = '16,8,8,4,3,1,1,64,ok,12.5,32,0\n'
    made = tmp_path / 'own.npz'
    cases = {
        'k,h,w\n1,2,3\n': 'lacks the columns c',
        head + row.replace('64,ok', 'many,ok') * 3: '3 of 3 lines are no measurements',
        head + row.replace('12.5', '-3') * 3: '3 of 3 lines are no measurements',
        head + row.replace('12.5', '0') * 3: '3 of 3 lines are no measurements',
        head + row.replace('12.5', 'nan') * 3: '3 of 3 lines are no measurements',
        head + row.replace('12.5', 'inf') * 3: '3 of 3 lines are no measurements',
        head + row: 'too few',
        head: 'no training problems',
    }
    for text, says in cases.items():
        (tmp_path / 'train-general.csv.gz').write_bytes(gzip.compress(text.encode()))
        words = ['model', 'train', '--data', str(tmp_path), '--machine', 'h200']
        assert invoke([*words, '--kind', 'general', '-o', str(made)]) == 2, text
        said = capsys.readouterr().err
        assert says in said, said
        assert 'Traceback' not in said
        assert not made.exists()


def test_a_file_that_is_no_machine_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / 'gpu.json'
    path.write_text(json.dumps({'name': 'none'}))
    words = ['model', 'evaluate', '--data', str(tmp_path), '--machine', str(path)]
    assert invoke(words) == 2
    assert 'a GPU machine file has the keys' in capsys.readouterr().err


def test_trials_of_the_online_search() -> None:
    """It ends with the best, and never counts more than there are."""
    space = factor_space(LAYER, MACHINE, 'rs')[0][:60]
    ((batch, _),) = batches_of(LAYER, space)
    seconds = np.exp(ranker_for('analytical', LAYER, MACHINE, 'rs').ranker(space))
    measured = Measured((32, 16, 16, 16, 3, 1), batch, seconds)
    near, best = online_trials(measured, MACHINE, 0)
    assert 1 <= near <= best <= 60
    assert online_trials(measured, MACHINE, 0) == [near, best]
    one = Measured(measured.problem, batch.take(np.array([3])), seconds[3:4])
    assert online_trials(one, MACHINE, 0) == [1, 1]
    same = Measured(measured.problem, batch, np.ones(60))
    assert online_trials(same, MACHINE, 0) == [1, 1]
