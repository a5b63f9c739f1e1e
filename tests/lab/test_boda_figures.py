"""src/tilewright_lab/scripts/boda_figures.py on records that are made up: rows, means, and what is
missing.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

SCRIPT = Path(__file__).parents[2] / 'src' / 'tilewright_lab' / 'scripts' / 'boda_figures.py'


@pytest.fixture(scope='module')
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location('boda_figures', SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCHEDULE = {'schema': 'general', 'tiles': [['threads', 64]], 'intrinsic': 'fma'}


def timed(name: str, runtime: str, us: float | None, message: str = '') -> dict:
    """One schedule through one runtime, as the script records it."""
    samples = [] if us is None else [[us, us, us]]
    return {
        'name': name, 'runtime': runtime, 'schedule': SCHEDULE, 'message': message,
        'samples_us': {'batched': samples},
    }  # fmt: skip


def record(name: str, cuda: float, opencl: float | None, message: str = '') -> dict:
    sides = [timed('winner', 'cuda', cuda), timed('winner', 'opencl', opencl, message)]
    return {
        'name': name, 'flops': 1, 'tuned_us': cuda, 'cudnn_us': 3 * cuda, 'message': '',
        'sides': sides,
    }  # fmt: skip


def test_a_row_says_what_is_missing(figures: ModuleType) -> None:
    made = figures.row(record('a', 10.0, None, 'too much shared memory'))
    assert made['winner_cuda_us'] == 10.0
    assert made['winner_opencl_us'] is None
    assert 'too much shared memory' in figures.line(made)
    assert made['general_cuda_us'] is None


def test_what_was_measured_is_not_measured_again(figures: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / 'figures.json'
    options = SimpleNamespace(known=path, again='b,c')
    assert figures.known_records(options) == []
    records = [record(f'{name}@5', 10.0, 10.0) for name in 'abd']
    path.write_text(json.dumps({'records': records}))
    assert [r['name'] for r in figures.known_records(options)] == ['a@5', 'd@5']
    assert figures.known_records(SimpleNamespace(known=None, again='')) == []


def test_what_is_within_ten_percent(figures: ModuleType) -> None:
    records = [
        record('a', 10.0, 10.9), record('b', 10.0, 12.0), record('c', 10.0, None, 'no'),
        record('d', 10.0, 8.0),
    ]  # fmt: skip
    found = figures.fig5([figures.row(r) for r in records], 'winner')
    assert (found['operations'], found['timed'], found['within_10_percent']) == (4, 3, 1)
    assert found['opencl_over_cuda'] == pytest.approx((1.09 * 1.2 * 0.8) ** (1 / 3))
    assert found['slower'] == {'b': pytest.approx(1.2)}
    assert found['faster'] == {'d': pytest.approx(0.8)}


def test_pocl_is_put_in_without_a_device(figures: ModuleType, tmp_path: Path) -> None:
    path, pocl = tmp_path / 'figures.json', tmp_path / 'pocl.json'
    single = {'single_over_tuned': 1.5}
    known = {
        'device': 'a GPU', 'machine': {}, 'opencl': {}, 'fig8': single,
        'records': [record(f'{name}@5', 10.0, 10.0) for name in 'ba'],
    }  # fmt: skip
    path.write_text(json.dumps(known))
    pocl.write_text(json.dumps({'operations': {'a@5': {'us': 7e4}}}))
    options = SimpleNamespace(known=path, again='', json=path, pocl=pocl, count=200)
    figures.races(options, [{'name': 'a@5'}, {'name': 'b@5'}], {})
    made = json.loads(path.read_text())
    assert [(r['name'], r['pocl_us']) for r in made['fig9']] == [('a@5', 7e4), ('b@5', None)]
    assert made['fig8'] == single
    assert made['fig5_winners']['within_10_percent'] == 2
    assert [r['name'] for r in made['records']] == ['a@5', 'b@5']
