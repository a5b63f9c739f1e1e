"""bench/boda_figures.py on a comparison that is made up: rows, means, and what is missing."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / 'bench' / 'boda_figures.py'


@pytest.fixture(scope='module')
def figures() -> ModuleType:
    spec = importlib.util.spec_from_file_location('boda_figures', SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def layer(name: str, ours: float, opencl: float | None, general: float) -> dict:
    contestants: list[dict] = [
        {'name': 'ours/0', 'median_us': 2 * ours},
        {'name': 'ours/1', 'median_us': ours},
        {'name': 'general', 'median_us': general},
        {'name': 'opencl', 'median_us': opencl} if opencl
        else {'name': 'opencl', 'status': 'failed', 'message': 'too much shared memory'},
    ]  # fmt: skip
    return {'name': name, 'flops': 1, 'ours_us': ours, 'contestants': contestants, 'candidates': []}


def test_rows_and_means(figures: ModuleType) -> None:
    layers = [layer('a', 10, 10.9, 40), layer('b', 10, 12, 90), layer('c', 10, None, 60)]
    rows = figures.side_by_side(layers, {'a': {'ours_us': 5.0, 'contestants': []}})
    assert [row['cuda_us'] for row in rows] == [10, 10, 10]
    assert rows[0]['pocl_us'] == 5.0
    assert rows[2]['opencl_us'] is None
    assert rows[2]['opencl_message'] == 'too much shared memory'
    found = figures.summary(rows, {'single_over_tuned': 1.5})
    assert found['opencl_within_10_percent'] == 1
    assert found['opencl_timed'] == 2
    assert found['opencl_over_cuda'] == pytest.approx((1.09 * 1.2) ** 0.5)
    assert found['general_over_tuned'] == pytest.approx((4 * 9 * 6) ** (1 / 3))
    assert found['single_over_tuned'] == 1.5


def test_the_script_without_a_gpu(
    figures: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    data, out = tmp_path / 'boda.json', tmp_path / 'out.json'
    data.write_text(
        json.dumps({'device': 'x', 'target': 'cuda', 'layers': [layer('a', 10, 10, 20)]})
    )
    words = ['boda_figures.py', str(data), '--no-measure', '--json', str(out)]
    monkeypatch.setattr(sys, 'argv', words)
    assert figures.main() == 0
    assert 'cuda_us' in capsys.readouterr().out
    assert json.loads(out.read_text())['general_over_tuned'] == pytest.approx(2)
