"""Data files that are right and wrong, and model files that are whole, cut off and changed."""

from __future__ import annotations

import gzip
import json
import zipfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from tilewright.cli.main import invoke
from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.rank import files
from tilewright.rank.counts import batches_of
from tilewright.rank.features import matrix_of
from tilewright.rank.files import find_model, load_model, save_model
from tilewright.rank.model import LearnedModel
from tilewright.rank.rankers import ranker_for
from tilewright.rank.trees import Settings
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.datasets import Measured, digest_of, group_of, read_data, rows_in
from tilewright_lab.figures.cnnopt import validated
from tilewright_lab.train.evaluate import (
    Ranking,
    choose,
    cross_validate,
    judged,
    means,
    ranking_of,
)
from tilewright_lab.train.forest import RECIPES, Member, Recipe, corrected, table_of, train

MACHINE = known_gpu('rtx2080ti')
RS = 'K,H,W,C,R,TK,TH,TW,BK,BH,BW,CMult,Time\n'
S = 'K,H,W,C,R,Th,Tw,Tk,Wh,Ww,Wk,Bh,Bw,Bk,Time\n'
LAYER = 'Reg.timesForProblem64x6x6_8_3.csv'


def folder(tmp_path: Path, train: str, layer: str = '64,6,6,8,3,1,1,2,32,3,1,2,0.5\n') -> Path:
    made = tmp_path / 'dir_rs'
    made.mkdir(exist_ok=True)
    (made / 'train_set_rs.csv').write_text(train)
    (made / LAYER).write_text(RS + layer)
    return tmp_path


def test_columns_become_decisions(tmp_path: Path) -> None:
    where = folder(tmp_path, RS + '32, 12, 10, 4, 3, 1, 2, 5, 32, 3, 2, 4, 0.25 \n' * 2)
    (tmp_path / 'dir_s').mkdir()
    row = '64,8,8,16,3,1,4,2,1,2,16,2,1,3,1.5\n'
    (tmp_path / 'dir_s' / 'train_set_s.csv').write_text(S + row)
    (tmp_path / 'dir_st2_x').mkdir()
    (tmp_path / 'dir_st2_x' / 'test_set.csv').write_text('32,8,8,4,3,1,1,1,32,1,1,2,0.1\n')
    data = read_data(where)
    by_kind = {(m.kind, m.problem[5]): m for m in data.train}
    rs = by_kind['rs', 1]
    assert len(rs) == 1  # the repeated row counts once
    assert rs.problem == (32, 12, 10, 4, 3, 1)
    assert rs.seconds.tolist() == [0.25e-3]
    assert dict(rs.batch.schedule(0).tiles) == {
        'rk': 1, 'ry': 2, 'rx': 5, 'tk': 32, 'ty': 1, 'tx': 1, 'wk': 1, 'wy': 3, 'wx': 2, 'cb': 1,
        'stages': 1, 'split': 4, 'join': 0,
    }  # fmt: skip
    s = by_kind['s', 1].batch.schedule(0)
    assert [s[n] for n in ('rk', 'ry', 'rx', 'tk', 'ty', 'tx', 'wk', 'wy', 'wx')] == [
        2, 1, 4, 16, 1, 2, 3, 2, 1,
    ]  # fmt: skip
    assert by_kind['rs', 2].problem == (32, 8, 8, 4, 3, 2)
    assert [m.problem for m in data.layers] == [(64, 6, 6, 8, 3, 1)]


def test_training_rows_of_a_tested_layer_are_left_out(tmp_path: Path) -> None:
    row = '64,6,6,8,3,1,1,1,32,1,1,1,0.7\n'
    data = read_data(folder(tmp_path, RS + row + row.replace('64,6,6', '64,12,12')))
    assert [m.problem for m in data.train] == [(64, 12, 12, 8, 3, 1)]
    assert any('tested layers' in note for note in data.notes)


GOOD = '32,12,12,4,3,1,2,6,32,3,2,4,0.25\n'


def test_bad_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    bad = 'CUDA error: 700\n' + GOOD.replace('0.25', 'nan') + GOOD.replace('0.25', '-1')
    data = read_data(folder(tmp_path, RS + GOOD * 4 + bad))
    assert rows_in(data.train) == 1
    (note,) = data.notes
    assert '2 of 7 lines are not numbers' in note
    assert '1 have impossible' in note


@pytest.mark.parametrize(
    ('text', 'says'),
    [
        ('', 'is empty'),
        ('K,H,W,C,R,CMult,Time\n1,2,3,4,5,6,7\n', 'lacks the columns TK'),
        (RS + 'x,y\n' * 3, '3 of 3 lines are no measurements'),
        (RS + GOOD.replace('0.25', '0') * 3, '3 of 3 lines are no measurements'),
        (RS + GOOD.replace('0.25', 'nan'), 'are no measurements'),
        (RS, 'are no measurements'),
        ('1,2,3\n', 'has 3 columns and no head'),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read_data(folder(tmp_path, text))
    assert '\n' not in str(caught.value)


def test_a_folder_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='holds no measured configurations'):
        read_data(tmp_path)
    with pytest.raises(InputError, match='is not a directory'):
        read_data(tmp_path / 'nowhere')


def test_our_own_layout(tmp_path: Path) -> None:
    head = 'k,h,w,c,r,stride,pad,threads,status,time_us,registers,spill_bytes\n'
    rows = '16,8,8,4,3,1,1,64,ok,12.5,32,0\n16,8,8,4,3,1,1,96,wrong,,32,0\n'
    for which, k in (('train', 16), ('layers', 32)):
        text = head + rows.replace('16,8,8', f'{k},8,8')
        (tmp_path / f'{which}-general.csv.gz').write_bytes(gzip.compress(text.encode()))
    data = read_data(tmp_path)
    (m,) = data.train
    assert (m.kind, m.problem) == ('general', (16, 8, 8, 4, 3, 1))
    assert m.seconds.tolist() == pytest.approx([12.5e-6])
    assert data.kinds == ['general']
    (tmp_path / 'train-general.csv.gz').write_bytes(b'no archive')
    with pytest.raises(InputError, match='cannot be read'):
        read_data(tmp_path)
    (tmp_path / 'train-general.csv.gz').write_bytes(gzip.compress(b'k,h\n1,2\n'))
    with pytest.raises(InputError, match='lacks the columns'):
        read_data(tmp_path)


@cache
def measured(seed: int = 0) -> list[Measured]:
    """Made-up times: what the analytical model says, bent by something that it does not know."""
    random = np.random.default_rng(seed)
    found = []
    for k, h, c in ((32, 12, 4), (64, 12, 4), (64, 9, 8), (32, 18, 4), (64, 8, 4), (32, 16, 4)):
        problem = (k, h, h, c, 3, 1)
        group = group_of(problem)
        schedules = factor_space(group, MACHINE, 'rs')[0]
        picked = [schedules[i] for i in random.permutation(len(schedules))[:60]]
        ((batch, _),) = batches_of(group, picked)
        work = (
            1e-5 * (1 + batch.tiles['rx'] % 3) * (1 + 1 / (batch.tiles['rk'] * batch.tiles['ry']))
        )
        found.append(Measured(problem, batch, work * (1 + 0.01 * random.random(len(batch)))))
    return found


SMALL = Recipe(
    'small',
    (
        Member('time', Settings(trees=30, leaves=8, least=3)),
        Member('rank', Settings('ranked', trees=20, leaves=8, least=3)),
    ),
)


@pytest.fixture(scope='module')
def model() -> LearnedModel:
    return train(measured(), MACHINE, SMALL, seed=4, validation={'problems': 0, 'recipes': {}})


def test_learning_beats_the_analytical_order_on_problems_not_seen() -> None:
    table = table_of(measured(), MACHINE)
    problems = judged(table)
    assert len(problems) == 6
    learned = means(cross_validate(table, [SMALL], problems)['small'])
    blind = [
        float(np.argmax(table.slower[rows][np.argsort(table.base[rows])] <= 1.05)) + 1
        for rows in (np.flatnonzero(table.group == p) for p in problems)
    ]
    assert learned['trials_95'] < np.mean(blind)
    assert learned['loss_10'] < 0.05


def test_a_few_measurements_correct_a_model_of_another_machine(model: LearnedModel) -> None:
    slow = [Measured(m.problem, m.batch, 3 * m.seconds) for m in measured(2)]
    few = [Measured(m.problem, m.batch.take(np.arange(10)), m.seconds[:10]) for m in slow]
    better = corrected(model, table_of(few, MACHINE), MACHINE.name)

    def error(one: LearnedModel) -> float:
        told = [one.seconds(m.batch, MACHINE) for m in slow]
        pairs = [(t, m.seconds) for t, m in zip(told, slow, strict=True) if t is not None]
        return float(np.mean([abs(np.log(t / seconds)).mean() for t, seconds in pairs]))

    assert error(model) > 0.8
    assert error(better) < 0.3
    assert better.header['calibrated_rows'] == 60


def test_validation_needs_enough_problems() -> None:
    table = table_of(measured()[:2], MACHINE)
    with pytest.raises(InputError, match='too few for 3 folds'):
        cross_validate(table, [SMALL], judged(table))


def test_too_few_rows_are_refused() -> None:
    few = measured()[0]
    rows = np.arange(5)
    with pytest.raises(InputError, match='5 measured rows are too few'):
        train([Measured(few.problem, few.batch.take(rows), few.seconds[rows])], MACHINE, SMALL)
    with pytest.raises(InputError, match='no measured problems'):
        train([], MACHINE, SMALL)


def test_a_file_gives_the_model_back(model: LearnedModel, tmp_path: Path) -> None:
    save_model(model, tmp_path / 'm.npz')
    again = load_model(tmp_path / 'm.npz')
    batch = measured(1)[2].batch
    np.testing.assert_array_equal(
        again.scores([batch], MACHINE)[0], model.scores([batch], MACHINE)[0]
    )
    assert dict(again.header) == json.loads(json.dumps(dict(model.header)))
    assert again.header['data_sha256'] == digest_of(measured())
    seconds = again.seconds(batch, MACHINE)
    assert seconds is not None
    assert (seconds > 0).all()


def rewritten(source: Path, target: Path, **changes: np.ndarray) -> Path:
    with np.load(source) as archive:
        arrays = {name: archive[name] for name in archive.files} | changes
    np.savez(target, **arrays)
    return target


def sealed(source: Path, target: Path, header=None, **changes: np.ndarray) -> Path:
    """Changed by somebody who knows how files are sealed."""
    with np.load(source) as archive:
        arrays = {name: archive[name] for name in archive.files if name != 'sha256'} | changes
    if header is not None:
        old = json.loads(arrays['header'].tobytes())
        arrays['header'] = np.frombuffer(json.dumps(old | header).encode(), np.uint8)
    seal = np.frombuffer(files._digest(arrays).encode(), np.uint8)
    np.savez(target, **arrays, sha256=seal)
    return target


def test_damaged_and_foreign_files_are_refused(model: LearnedModel, tmp_path: Path) -> None:
    good = tmp_path / 'm.npz'
    save_model(model, good)
    cut = tmp_path / 'cut.npz'
    cut.write_bytes(good.read_bytes()[: good.stat().st_size // 2])
    with np.load(good) as archive:
        value, left = archive['time_value'], archive['time_left']
        pickled = np.array([object()], dtype=object)
    cases = [
        (tmp_path / 'absent.npz', 'does not exist'),
        (cut, 'is not a learned model'),
        (rewritten(good, tmp_path / 'a.npz', time_value=value + 1), 'was changed'),
        (sealed(good, tmp_path / 'b.npz', {'feature_version': 99}), 'features of version 99'),
        (sealed(good, tmp_path / 'c.npz', {'features': ['colour']}), 'unknown here: colour'),
        (sealed(good, tmp_path / 'd.npz', {'probe': [1.0]}), 'computed differently'),
        (sealed(good, tmp_path / 'e.npz', time_left=0 * left), 'damaged'),
        (sealed(good, tmp_path / 'f.npz', time_value=value * np.nan), 'damaged'),
        (sealed(good, tmp_path / 'g.npz', time_value=value.astype(np.int8)), 'not whole'),
    ]
    hostile = tmp_path / 'h.npz'
    with np.load(good) as archive:
        arrays = {name: archive[name] for name in archive.files} | {'time_value': pickled}
    np.savez(hostile, allow_pickle=True, **arrays)
    cases.append((hostile, 'is not a learned model'))
    text = tmp_path / 'i.npz'
    text.write_text('not an archive')
    cases.append((text, 'is not a learned model'))
    for path, says in cases:
        with pytest.raises(InputError, match=says) as caught:
            load_model(path)
        assert '\n' not in str(caught.value)


def test_a_model_knows_which_groups_are_like_those_it_learned_from(model: LearnedModel) -> None:
    window = conv2d(c=8, h=8, w=8, k=8, r=3, s=3, pad=1)
    point = conv2d(c=8, h=8, w=8, k=8, r=1, s=1)
    planes = conv2d(c=8, h=8, w=8, k=8, r=3, s=3, pad=1, groups=8)
    assert model.header['pointwise'] is False
    assert [model.resembles(g) for g in (window, point, planes)] == [True, False, False]
    header = {**model.header, 'pointwise': True, 'kinds': ['depthwise', 'rs']}
    wider = replace(model, header=header)
    assert all(wider.resembles(g) for g in (window, point, planes))
    halves = tuple(replace(t, dtype='f16') for t in window.tensors)
    assert not wider.resembles(replace(window, tensors=halves))


def test_an_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    bomb = tmp_path / 'bomb.npz'
    with zipfile.ZipFile(bomb, 'w', zipfile.ZIP_DEFLATED) as archive:
        archive.writestr('header.npy', bytes(files.LARGEST_BYTES + 1))
    with pytest.raises(InputError, match='unpacks to'):
        load_model(bomb)


def test_own_models_are_found_and_others_fall_back(
    model: LearnedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    monkeypatch.setattr(files, 'shipped', lambda: [])
    group = group_of((32, 12, 12, 4, 3, 1))
    assert find_model('rtx2080ti', 'rs') is None
    fallen = ranker_for('auto', group, MACHINE, 'rs')
    assert fallen.name == 'analytical'
    assert 'no learned model knows rs kernels on rtx2080ti' in fallen.note
    with pytest.raises(InputError, match='no learned model knows'):
        ranker_for('forest', group, MACHINE, 'rs')
    save_model(model, files.own_folder() / 'rtx2080ti-rs.npz')
    found = ranker_for('auto', group, MACHINE, 'rs')
    assert found.name == 'forest'
    schedules = factor_space(group, MACHINE, 'rs')[0][:40]
    ((batch, _),) = batches_of(group, schedules)
    scores = found.ranker(schedules)
    np.testing.assert_allclose(scores, model.comparable(*matrix_of(batch, MACHINE)))
    np.testing.assert_allclose(found.ranker(schedules[20:]), scores[20:])
    with pytest.raises(InputError, match='is not a model'):
        ranker_for('oracle', group, MACHINE, 'rs')
    path = str(files.own_folder() / 'rtx2080ti-rs.npz')
    other = ranker_for(path, group, known_gpu('h200'), 'rs')
    assert 'was trained on rtx2080ti' in other.note
    Path(path).write_text('damaged')
    assert ranker_for('auto', group, MACHINE, 'rs').name == 'analytical'
    with pytest.raises(InputError, match='is not a learned model'):
        ranker_for('forest', group, MACHINE, 'rs')


def test_every_recipe_can_be_made() -> None:
    assert set(RECIPES) >= {'black box', 'plain', 'forest', 'boosted', 'ranked', 'mixed', 'blend'}
    with pytest.raises(InputError, match='give members'):
        Recipe('nothing')
    with pytest.raises(InputError, match="not 'oracle'"):
        Recipe('unknown', ('oracle',))
    with pytest.raises(InputError, match='only rank needs ranked trees'):
        Member('rank', Settings('boosted'))


WITHIN = Recipe(
    'among',
    (
        Member('within', Settings(trees=30, leaves=8, least=3), power=2.0),
        Member('beside', Settings(trees=30, leaves=8, least=3)),
    ),
)


def test_how_long_a_problem_takes_is_nothing_to_those_that_order_within_it(tmp_path: Path) -> None:
    """Each problem's times may be multiplied by a number of its own."""
    longer = [Measured(m.problem, m.batch, 3.0**i * m.seconds) for i, m in enumerate(measured(1))]
    one, other = (train(sets, MACHINE, WITHIN, seed=1) for sets in (measured(1), longer))
    for m in measured(2):
        (here,), (there,) = (made.scores([m.batch], MACHINE) for made in (one, other))
        assert np.corrcoef(here, there)[0, 1] > 0.99  # but for splits that gain the same
    m = measured(2)[-1]
    assert not one.has_times
    assert ranking_of(one.scores([m.batch], MACHINE)[0], m.seconds).loss(10) < 0.1
    with pytest.raises(InputError, match='only ranks'):
        corrected(one, table_of(measured(2), MACHINE), MACHINE.name)
    save_model(one, tmp_path / 'm.npz')
    again = load_model(tmp_path / 'm.npz')
    assert (again.scores([m.batch], MACHINE)[0] == one.scores([m.batch], MACHINE)[0]).all()


def test_validation_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(measured(), MACHINE)
    monkeypatch.setitem(cast(dict, RECIPES), 'small', SMALL)
    monkeypatch.setitem(cast(dict, RECIPES), 'among', WITHIN)
    kept: dict[str, object] = {}

    def keep(what, make):
        key = json.dumps(what)
        if key not in kept:
            if len(kept) == 2:
                raise KeyboardInterrupt
            kept[key] = json.loads(json.dumps(make()))
        return kept[key]

    asked = table, ('small', 'among'), judged(table)
    with pytest.raises(KeyboardInterrupt):
        validated(*asked, keep=keep)
    assert len(kept) == 2
    whole = validated(*asked)
    found = cross_validate(table, [RECIPES[name] for name in asked[1]], asked[2])
    assert whole.scores == {name: means(mine) for name, mine in found.items()}
    kept |= {json.dumps({'fold': 9}): None}  # a third: the next is made
    assert validated(*asked, keep=keep) == whole


def ranked(*costs: float) -> list[Ranking]:
    """Problems of a recipe, each with its cost."""
    return [Ranking(((1, 0.0), (10, 0.0), (30, 0.0)), 1, 1, cost, 9) for cost in costs]


def test_the_blend_is_taken_unless_one_recipe_is_better_by_more_than_noise() -> None:
    near = choose({'plain': ranked(0.1, 0.3, 0.2), 'blend': ranked(0.2, 0.2, 0.21)})
    assert near.name == 'blend'
    assert 'the best other recipe (plain) 20.00%' in near.why
    far = choose({'plain': ranked(0.1, 0.3, 0.2), 'blend': ranked(0.3, 0.5, 0.41)})
    assert far.name == 'plain'
    assert choose({'plain': ranked(0.2), 'forest': ranked(0.1)}).name == 'forest'
    both = {'blend': ranked(0.2, 0.2, 0.3), 'within': ranked(0.2, 0.21, 0.31)}
    assert choose(both).name == 'within'
    with pytest.raises(InputError, match='no recipes'):
        choose({})


def test_a_layer_that_goes_wrong_costs_by_its_logarithm() -> None:
    seconds = np.array([8.0, 1.0, 2.0])
    right, wrong = (ranking_of(np.array(s), seconds) for s in ([2, 0, 1], [0, 1, 2]))
    assert right.cost == 0.0
    counts = sum(1 / n for n in range(1, 31))
    assert wrong.cost == pytest.approx(np.log(8) / counts)


def test_the_verbs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {True: '', False: ''}
    for number, m in enumerate(measured()):
        k, h, w, c, r, _ = m.problem
        t = m.batch.tiles
        for i in range(len(m)):
            rows[number == 0] += (
                f'{k},{h},{w},{c},{r},{t["rk"][i]},{t["ry"][i]},{t["rx"][i]},32,{t["wy"][i]},'
                f'{t["wx"][i]},{t["split"][i]},{1e3 * m.seconds[i]}\n'
            )
    where = folder(tmp_path, RS + rows[False], rows[True])
    made = tmp_path / 'own.npz'
    common = ['--data', str(where), '--machine', 'rtx2080ti']
    assert invoke(['model', 'train', *common, '--recipe', 'boosted', '-o', str(made)]) == 0
    assert '300 rows of 5 problems' in capsys.readouterr().out
    assert invoke(['model', 'evaluate', *common, '--model', str(made)]) == 0
    assert '32x12x12 of 4 channels' in capsys.readouterr().out
    assert invoke(['model', 'show', str(made)]) == 0
    assert 'cross-validated on 5 problems' in capsys.readouterr().out
    assert invoke(['model', 'show']) == 0
    listed = capsys.readouterr().out
    assert 'log2 us: arithmetic at peak' in listed
    assert 'h200-gat, h200-' in listed
    assert invoke(['model', 'train', *common, '--recipe', 'oak', '-o', str(made)]) == 2
    assert invoke(['model', 'train', *common, '--kind', 'patch', '-o', str(made)]) == 2
    other = ['--data', str(where), '--machine', 'h200']
    assert invoke(['model', 'evaluate', *other, '--model', str(made)]) == 0
    assert 'was trained on rtx2080ti' in capsys.readouterr().err
    for figure in ('cnnopt-table8', 'cnnopt-table9'):
        assert invoke(['reproduce', figure, '--machine', 'rtx2080ti']) == 2
        assert invoke(['reproduce', figure, '--data', str(where)]) == 2
        assert invoke(['reproduce', figure, *common]) == 2  # too few problems to learn from
    assert 'training problems' in capsys.readouterr().err
