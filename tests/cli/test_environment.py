"""What is not the model's fault: files without an end, full disks, little memory, Ctrl-C."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from tilewright import zoo
from tilewright.cli import zoo as zoo_verb
from tilewright.errors import StoreError
from tilewright.machine.compiler import build
from tilewright.machine.measure import load_machine

SMALL = 'mb1ic4ih6oc4oh6kh3ph1'


@pytest.fixture(autouse=True)
def _no_hang() -> Iterator[None]:
    signal.alarm(120)
    yield
    signal.alarm(0)


@pytest.fixture(scope='module')
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp('model') / 'net.onnx'
    onnx.save(zoo.onnx_model('squeezenet', image=32, width=8), path)
    return path


@pytest.fixture
def host(tmp_path) -> Path:
    path = tmp_path / 'host.json'
    path.write_text(json.dumps(load_machine(measure=False)[0].to_json()))
    return path


@pytest.fixture(params=['pipe', 'device'])
def endless(request, tmp_path):
    """Makes files that never end, under any name."""

    def make(name: str) -> Path:
        path = tmp_path / name
        if request.param == 'pipe':
            os.mkfifo(path)
        else:
            path.symlink_to('/dev/zero')
        return path

    return make


@pytest.mark.parametrize(
    'words',
    [
        ('optimize', SMALL, '--no-measure', '--machine', 'a.json'),
        ('explain', 'benchdnn:a.txt'),
        ('compile', 'a.onnx', '-o', 'out.tw'),
        ('run', 'a.tw'),
        ('run', 'MODEL', '--input', 'a.npz'),
        ('optimize', 'cnnopt/R12', '--no-measure', '--machine', 'h200', '--model', 'a.npz'),
        ('optimize', 'cnnopt/R12', '--no-measure', '--machine', 'h200', '--model', 'a.safetensors'),
    ],
)
def test_a_file_that_never_ends_is_bad_input(call, endless, model, tmp_path, words):
    made = [
        str(model) if word == 'MODEL'
        else f'benchdnn:{endless("a.txt")}' if word.startswith('benchdnn:')
        else str(endless(word)) if word.startswith('a.')
        else str(tmp_path / word) if word.startswith('out.')
        else word
        for word in words
    ]  # fmt: skip
    code, _, said = call(*made)
    assert code == 2, said
    assert said.startswith('tilewright: ')
    assert said.count('\n') == 1


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """As on a disk that becomes full: no file can grow beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    'words',
    [
        ('zoo', 'squeezenet', '-o', 'out.onnx'),
        ('compile', 'MODEL', '-o', 'out.tw'),
        ('run', 'MODEL', '--output', 'out.npz'),
        ('run', 'MODEL', '--trace', 'out.json'),
        ('optimize', SMALL, '--no-measure', '--machine', 'HOST', '--emit', 'out'),
        ('export', 'MODEL', '-o', 'out'),
        ('export', 'MODEL', '-o', 'out/deep'),
        ('zoo', 'squeezenet', '--json', 'out.json'),
    ],
)
def test_a_full_disk_is_one_sentence_and_leaves_nothing(call, model, host, tmp_path, words):
    folder = tmp_path / 'here'
    folder.mkdir()
    named = {'MODEL': str(model), 'HOST': str(host)}
    made = [
        str(folder / word) if word.startswith('out') else named.get(word, word) for word in words
    ]
    assert call(*made)[0] == 0  # the cache has what it takes
    written = [path.stat().st_size for path in folder.rglob('*') if path.is_file()]
    subprocess.run(['rm', '-r', *folder.iterdir()], check=True)
    with files_up_to(min(max(written) - 1, 4000)):
        code, _, said = call(*made)
    assert code == 2, said
    sentence = said.splitlines()[-1]
    assert 'cannot be written: File too large' in sentence
    assert list(folder.iterdir()) == []


def test_a_disk_that_is_full_while_a_kernel_is_linked(tmp_path, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))
    with files_up_to(1000), pytest.raises(StoreError, match=r'cannot be used .*; free it'):
        build('int answer(void) { return 42; }')


@pytest.mark.skipif(not os.path.exists('/dev/full'), reason='there is no /dev/full')
def test_standard_output_that_is_full_is_one_sentence():
    with open('/dev/full', 'w') as full:
        done = subprocess.run(
            [sys.executable, '-m', 'tilewright', 'zoo'],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith('tilewright: the output cannot be used: No space left')
    assert done.stderr.count('\n') == 1


def test_too_little_memory_is_one_sentence(call, monkeypatch):
    def large(*_: object, **__: object) -> int:
        return np.empty(1 << 60, np.float32).size

    monkeypatch.setattr(zoo_verb, 'run', large)
    code, _, said = call('zoo')
    assert code == 2
    assert said.startswith('tilewright: there is too little memory (Unable to allocate')
    assert said.count('\n') == 1


def test_a_machine_of_impossible_size_is_bad_input(call, host):
    data = json.loads(host.read_text())
    for changes, names in (
        ({'cores': 1 << 70}, 'cores'),
        ({'clock_ghz': 1 << 2000}, 'clock_ghz'),
        ({'caches': [{**data['caches'][0], 'bytes': 1 << 70}, *data['caches'][1:]]}, 'bytes'),
    ):
        host.write_text(json.dumps(data | changes))
        code, _, said = call('explain', SMALL, '--machine', host)
        assert code == 2
        assert names in said


def test_an_interrupt_ends_with_130_and_a_sentence(call, monkeypatch):
    def interrupt(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(zoo_verb, 'run', interrupt)
    assert call('zoo') == (130, '', 'tilewright: interrupted\n')


def test_an_interrupt_during_imports_is_the_same_sentence(capsys, monkeypatch):
    from tilewright.__main__ import main

    class Interrupted:
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, 'tilewright.cli.main', Interrupted())
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err == 'tilewright: interrupted\n'


@pytest.fixture
def no_compiler(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv('PATH', str(tmp_path / 'nothing'))
    for name in ('CC', 'TILEWRIGHT_CC'):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, 'ziglang', None)


def test_sources_are_emitted_without_a_compiler(call, host, tmp_path, no_compiler, monkeypatch):
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path / 'cache'))
    words = ('optimize', SMALL, '--no-measure', '--machine', host, '--emit', tmp_path / 'out')
    code, said, _ = call(*words, '--threads', 1)
    assert code == 0
    assert 'not compiled: there is no C compiler' in said
    assert list((tmp_path / 'out').glob('01-*.c'))


def test_a_compiled_network_runs_where_the_compiler_is_gone(call, model, tmp_path, request):
    path = tmp_path / 'net.tw'
    assert call('compile', model, '-o', path)[0] == 0
    assert call('run', path)[0] == 0
    request.getfixturevalue('no_compiler')
    code, _, said = call('run', path)
    assert code == 0, said
