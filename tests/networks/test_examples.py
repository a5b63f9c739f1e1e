"""Every example runs as it is written, on small networks."""

from __future__ import annotations

import re
import runpy
import shutil
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / 'examples'
SMALL = ('--image', '32', '--width', '16')
# file -> words on its command line, a package that it needs, what it says at the end
EXAMPLES = {
    'accuracy.py': (
        ('--network', 'alexnet', '--image', '67', '--width', '16'),
        'onnxruntime',
        r'kept',
    ),
    'classify.py': (SMALL, 'onnx', r'class \d+: '),
    'replace_layer.py': (SMALL, 'onnx', 'largest difference'),
    'torch_compile.py': ((), 'torch', 'largest difference'),
    'export_c.py': (SMALL, 'onnx', 'scores: right, largest relative difference'),
    'voice_activity.py': (('--seconds', '0.5'), 'onnxruntime', r'states [0-9.]+e-0[5-9]'),
}
SLOW = ('accuracy.py', 'torch_compile.py')  # test_mix.py and test_torch_backend.py do the same
pytestmark = [
    pytest.mark.skipif(
        not any(map(shutil.which, ('gcc', 'clang', 'cc'))), reason='no C compiler is installed'
    ),
    # A machine that was not measured, what PyTorch runs itself: warnings are part of examples.
    pytest.mark.filterwarnings('ignore'),
]


@pytest.fixture(scope='module')
def cache(tmp_path_factory):
    """One for all examples: several of them compile the same network."""
    return tmp_path_factory.mktemp('cache')


@pytest.mark.parametrize(
    'name',
    [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in EXAMPLES],
)
def test_an_example_runs(name, tmp_path, cache, monkeypatch, capfd):
    """As `python examples/NAME`, but in this process, which has imported what takes seconds."""
    words, package, said = EXAMPLES[name]
    if find_spec(package) is None:
        pytest.skip(f'{name} needs {package}')
    if package == 'torch' and not entry_points(group='torch_dynamo_backends', name='tilewright'):
        pytest.skip('this package was installed before it had a backend: pip install -e . again')
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(cache))
    monkeypatch.setattr(sys, 'argv', [str(FOLDER / name), *words])
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(FOLDER / name), run_name='__main__')
    out = capfd.readouterr().out
    assert re.search(said, out), out
