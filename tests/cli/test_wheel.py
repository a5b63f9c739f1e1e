"""A wheel works without the source tree: what it misses would only be noticed by users."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
# Not by find_spec: setuptools would leave distutils to Python for the rest of the process.
@pytest.mark.skipif(
    not any(distributions(name='pip')), reason='wheels are built by pip: python -m ensurepip'
)
def test_a_wheel_compiles_and_exports_elsewhere(tmp_path: Path) -> None:
    where, wheels = tmp_path / 'installed', tmp_path / 'wheels'
    pip = [sys.executable, '-m', 'pip', '--quiet']
    subprocess.run([*pip, 'wheel', '--no-deps', '-w', str(wheels), str(ROOT)], check=True)
    [wheel] = wheels.glob('tilewright-*.whl')
    subprocess.run([*pip, 'install', '--no-deps', '--target', str(where), str(wheel)], check=True)
    here = {**os.environ, 'PYTHONPATH': str(where), 'TILEWRIGHT_CACHE_DIR': str(tmp_path / 'cache')}

    def ran(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, '-m', *words], cwd=tmp_path, env=here, capture_output=True, text=True,
            check=True,
        )  # fmt: skip
        return done.stdout

    assert str(where) in ran('tilewright', 'doctor').split('\n')[0]
    ran('tilewright', 'zoo', 'mobilenet_v1', '--image', '32', '--width', '32', '-o', 'm.onnx')
    ran('tilewright', 'compile', 'm.onnx', '-o', 'm.tw')
    ran('tilewright', 'export', 'm.tw', '-o', 'exported')
    assert (tmp_path / 'exported' / 'Makefile').is_file()
    assert 'demo' in ran('tilewright', '--help')
    assert (where / 'tilewright' / 'constraints.txt').is_file()
    assert (where / 'tilewright' / 'py.typed').is_file()
