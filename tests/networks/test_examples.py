"""Every example runs as it is written, in a process of its own, on small networks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / 'examples'
SMALL = ('--image', '32', '--width', '16')
# file -> words on its command line, a package that it needs, what it says at the end
EXAMPLES = {
    'classify.py': (SMALL, 'onnx', r'class \d+: '),
    'replace_layer.py': (SMALL, 'onnx', 'largest difference'),
    'torch_compile.py': ((), 'torch', 'largest difference'),
    'export_c.py': (SMALL, 'onnx', 'scores: right, largest relative difference'),
}
pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ('gcc', 'clang', 'cc'))), reason='no C compiler is installed'
)


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
    """One for all examples: several of them compile the same network."""
    return tmp_path_factory.mktemp('cache')


@pytest.mark.parametrize('name', EXAMPLES)
def test_an_example_runs(name, tmp_path, cache):
    words, package, said = EXAMPLES[name]
    if find_spec(package) is None:
        pytest.skip(f'{name} needs {package}')
    if package == 'torch' and not entry_points(group='torch_dynamo_backends', name='tilewright'):
        pytest.skip('this package was installed before it had a backend: pip install -e . again')
    done = subprocess.run(
        [sys.executable, FOLDER / name, *words],
        capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={**os.environ, 'TILEWRIGHT_CACHE_DIR': str(cache)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(said, done.stdout), done.stdout
