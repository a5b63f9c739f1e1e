"""Rows of files out of packages: what the page says of them, and what is done again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tilewright_lab.scripts import package_models

GOOD = {'status': 'ok', 'max_rel_err': 1e-6, 'compile_s': 3.4, 'fallback': False, 'theirs': 0}
NOISY = GOOD | {'fallback': True, 'theirs': 2, 'max_rel_err': 7e-3, 'own_noise': 6e-3}
ROWS = {
    'a/one.onnx': {
        'right': {'cpu': GOOD, 'opencl': GOOD}, 'ours_share': 1.0,
        'ms': {'ours': 1.0, 'onnxruntime': 4.0, 'openvino': 2.0},
    },
    'a/two.onnx': {
        'right': {'cpu': NOISY}, 'openvino': 'no such layer', 'ours_share': 0.25,
        'ms': {'ours': 4.0, 'onnxruntime': 2.0},
    },
    'a/three.onnx': {'right': {'cpu': {'status': 'wrong', 'fallback': False}}},
}  # fmt: skip


def test_the_table_counts_what_lost_and_what_is_wrong() -> None:
    lines = package_models.table(ROWS).splitlines()
    assert lines[2] == '| a/one.onnx | alone | 1e-06 | 1e-06 | 3 | 1 | 4 | 2 | 2.00 | 100% |'
    said = (
        '2 nodes by ONNX Runtime | 7e-03 (own noise 6e-03) | - | 3 | 4 | 2 | refuses | 0.50 | 25%'
    )
    assert lines[3] == f'| a/two.onnx | {said} |'
    assert lines[-2] == (
        '3 files: 1 compile alone and are right, 2 with the fallback; 1 are wrong.'
    )
    assert lines[-1] == (
        'Better peer over ours: 1.00 in the geometric mean of 2; ours is faster for 1.'
    )


def test_only_what_is_missing_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that was not done in time is tried again, and the first compile time is kept."""
    files = [package_models.PackageFile('a', f'{name}.onnx', {}) for name in ('one', 'two', 'six')]
    kept = {
        'a/one.onnx': ROWS['a/one.onnx'],
        'a/two.onnx': {'right': {'cpu': {'status': 'not done'}}},
    }
    path = tmp_path / 'rows.json'
    path.write_text(json.dumps({'rows': kept}))
    asked = []

    def row(one: package_models.PackageFile, *_: object) -> dict:
        asked.append(one.name)
        return {'right': {'cpu': GOOD | {'compile_s': 0.1}}}

    monkeypatch.setattr(package_models, 'FILES', files)
    monkeypatch.setattr(package_models, '_in_a_process', row)
    words = ['package_models', '--wheels', str(tmp_path), '--json', str(path)]
    monkeypatch.setattr('sys.argv', words)
    assert package_models.main() == 0
    assert asked == ['a/two.onnx', 'a/six.onnx']
    monkeypatch.setattr('sys.argv', [*words, '--time', 'six'])
    assert package_models.main() == 0
    assert asked[2:] == ['a/six.onnx']
    rows = json.loads(path.read_text())['rows']
    assert rows['a/six.onnx']['right']['cpu']['compile_s'] == 0.1
    assert list(rows) == ['a/one.onnx', 'a/two.onnx', 'a/six.onnx']
    assert 'a/six.onnx' in capsys.readouterr().out
