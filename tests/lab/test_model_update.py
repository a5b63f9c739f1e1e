"""`tilewright model update`: what searches have measured becomes a model, or is refused."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest

from tilewright.cli.main import invoke
from tilewright.errors import InputError
from tilewright.machine.gpu import known_gpu
from tilewright.ops.convolution import conv2d
from tilewright.rank.files import SEARCHED, find_model, load_model, own_folder
from tilewright.rank.rankers import ranker_for
from tilewright.rank.rows import row_of
from tilewright.rank.trees import Settings
from tilewright.runtime.measure import Measurement
from tilewright.store.records import open_store
from tilewright.targets.gpu.tuning import Memory, Place, validators_of
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.stored import StoredRows, read_rows, rows_in_store, write_rows
from tilewright_lab.train.forest import Member, Recipe

MACHINE = known_gpu('v100')  # no model comes with the package that knows it
GROUPS = [conv2d(c=c, h=h, w=h, k=k, r=3, s=3) for c, h, k in
          ((4, 14, 32), (4, 14, 64), (8, 11, 64), (4, 20, 32), (4, 10, 64))]  # fmt: skip


SMALL = Recipe('small', (Member('time', Settings(trees=30, leaves=8, least=3)),))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    monkeypatch.setattr('tilewright_lab.cli.model_update.recipe_for', lambda *_: SMALL)
    return tmp_path


def tuned(seconds) -> None:
    """What a search would leave: `seconds` of a random number and the decisions of a schedule."""
    place = Place.described('cuda', '', MACHINE, 'sm_70', {})
    random = np.random.default_rng(0)
    with open_store() as store:
        memory = Memory(store, validators_of(place), MACHINE)
        for group in GROUPS:
            space = factor_space(group, MACHINE, 'rs')[0]
            for i in random.permutation(len(space))[:40]:
                took = 1e3 * seconds(random.random(), dict(space[i].tiles))
                found = Measurement(space[i].digest, 'ok', (took,), 0.0, '')
                memory.put(group, space[i], found)


def test_a_search_leaves_rows_and_they_become_a_model(folder: Path, capsys) -> None:
    tuned(lambda noise, tiles: 1e-5 * (1 + tiles['rx'] % 3) * (1 + 0.01 * noise))
    with open_store() as store:
        rows = rows_in_store(store, ('v100',))
    assert len(rows) == 200
    assert rows.counted == {'rs': 200}
    before = ranker_for('auto', GROUPS[0], MACHINE, 'search')
    assert 'no learned model knows' in before.note
    assert invoke(['model', 'update', '--machine', 'v100']) == 0
    said = capsys.readouterr().out
    assert 'these rows alone: costs' in said
    assert 'the model of h200: costs' in said
    assert 'the model of h200, its errors learned: costs' in said
    model = load_model(own_folder() / 'v100-search.npz')
    assert model.ranked_kinds == {'rs'}
    after = ranker_for('auto', GROUPS[0], MACHINE, 'search')
    assert 'orders kernels of rs' in after.note
    assert not after.fell_back


def test_a_model_that_orders_worse_is_not_installed(folder: Path, capsys) -> None:
    """Times that are what the analytical model says: trees of noise can only be worse."""
    machine = MACHINE
    with open_store() as store:
        memory = Memory(store, validators_of(Place.described('cuda', '', machine, '', {})), machine)
        for group in GROUPS:
            for schedule in factor_space(group, machine, 'rs')[0][:30]:
                took = 1e3 * np.exp(row_of(group, machine, schedule)['predicted'])
                memory.put(group, schedule, Measurement(schedule.digest, 'ok', (took,), 0.0, ''))
    assert invoke(['model', 'update', '--machine', 'v100']) == 2
    said = capsys.readouterr().err
    assert 'is not installed: its order costs' in said
    assert 'the analytical one 0.00%' in said
    assert not (own_folder() / 'v100-search.npz').exists()


def test_a_gpu_that_no_model_knows_begins_with_that_of_another_one(folder: Path, capsys) -> None:
    """Times that are what the other model says, bent a little: 200 rows alone cannot tell them."""
    found = find_model('h200', SEARCHED)
    assert found is not None
    random = np.random.default_rng(0)
    place = Place.described('cuda', '', MACHINE, 'sm_70', {})
    with open_store() as store:
        memory = Memory(store, validators_of(place), MACHINE)
        for group in GROUPS:
            schedules = factor_space(group, MACHINE, 'rs')[0]
            for i in random.permutation(len(schedules))[:40]:
                said = row_of(group, MACHINE, schedules[i])
                log_s = found[0].log_seconds(np.array([said['x']]), np.array([said['base']]))[0]
                took = 1e3 * float(np.exp(log_s + 0.01 * random.standard_normal()))
                memory.put(
                    group, schedules[i], Measurement(schedules[i].digest, 'ok', (took,), 0.0, '')
                )
    assert invoke(['model', 'update', '--machine', 'v100']) == 0
    model = load_model(own_folder() / 'v100-search.npz')
    assert model.header['machine'] == 'v100'
    assert model.header['kinds'] == ['rs']  # not those that were found on the other GPU
    assert model.ranked_kinds == {'rs'}
    costs = dict(re.findall(r'^(.*): costs ([\d.]+)%', capsys.readouterr().out, re.M))
    alone = float(costs['these rows alone'])
    assert float(costs['the model of h200, its errors learned']) < alone


def some_rows(machine: str = 'v100', groups: int = 2, seconds: float = 1e-5) -> StoredRows:
    said = row_of(GROUPS[0], MACHINE, factor_space(GROUPS[0], MACHINE, 'rs')[0][0])
    one = StoredRows((machine,), ('a',), ('rs',), (tuple(said['problem']),), (seconds,),
                     (said['base'],), (said['predicted'],), (tuple(said['x']),))  # fmt: skip
    found = StoredRows()
    for i in range(6 * groups):
        found += StoredRows(one.machine, (str(i % groups),), one.kind, one.problem, one.seconds,
                            one.base, one.predicted, one.x)  # fmt: skip
    return found


def test_bad_rows_are_refused_in_one_sentence(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match='rows are of 1 problem;'):
        some_rows(groups=1).table()
    with pytest.raises(InputError, match=r'several devices \(h200, v100\)'):
        (some_rows('h200') + some_rows('v100')).table()
    path = tmp_path / 'rows.csv.gz'
    write_rows(path, some_rows(seconds=-1.0))
    assert read_rows(path).left_out == (('with impossible times', 12),)
    text = gzip.decompress(path.read_bytes()).decode().replace('time_us', 'time')
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(InputError, match='lacks the columns time_us'):
        read_rows(path)
    assert len(read_rows_of(tmp_path, some_rows())) == 12


def read_rows_of(folder: Path, rows: StoredRows) -> StoredRows:
    write_rows(folder / 'again.csv.gz', rows)
    return read_rows(folder / 'again.csv.gz')


def test_rows_by_the_name_of_a_driver_are_those_of_the_known_gpu(folder: Path, capsys) -> None:
    """'Tesla V100-SXM2-16GB' is v100; a P100 is not."""
    for name, says in (('Tesla V100-SXM2-16GB', 'problems with at least'), ('P100', 'of P100')):
        path = folder / f'{name}.csv.gz'
        write_rows(path, some_rows(name))
        assert invoke(['model', 'update', '--machine', 'v100', '--rows', str(path)]) == 2
        assert says in capsys.readouterr().err


def test_nothing_measured_yet(folder: Path, capsys) -> None:
    assert invoke(['model', 'update', '--machine', 'v100']) == 2
    assert 'no search has measured anything on v100' in capsys.readouterr().err
