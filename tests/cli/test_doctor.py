"""`doctor` names what is wrong with a remedy; `completion` knows the parser; wheels are whole."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tilewright.cli import doctor
from tilewright.cli.main import invoke
from tilewright.machine.detect import describe_host

ROOT = Path(__file__).parents[2]


def findings(capsys: Any) -> tuple[int, dict[str, list[dict]]]:
    code = invoke(['doctor', '--json', '-'])
    found: dict[str, list[dict]] = {}
    for each in json.loads(capsys.readouterr().out)['findings']:
        found.setdefault(each['what'], []).append(each)
    return code, found


def test_a_host_that_works_is_said_to(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv('TILEWRIGHT_JOBS', raising=False)
    code, found = findings(capsys)
    wrong = [each for group in found.values() for each in group if each['state'] == 'wrong']
    assert (code, wrong) == (0, [])
    assert {'package', 'compiler', 'processor', 'threads', 'cache', 'nvrtc'} <= found.keys()
    assert 'numpy' in found['packages'][0]['said']


@pytest.mark.parametrize(
    ('variable', 'value', 'what', 'remedy'),
    [
        ('TILEWRIGHT_CC', 'no-such-compiler', 'compiler', 'name a C compiler'),
        ('TILEWRIGHT_ISA', 'mmx', 'processor', 'choose one of'),
        ('TILEWRIGHT_THREADS', '100000', 'threads', 'ask for at most'),
        ('TILEWRIGHT_THREAD', '2', 'settings', 'docs/knobs.md'),
        ('TILEWRIGHT_CACHE_DIR', '/proc/nowhere', 'cache', 'name a directory that can'),
    ],
)
def test_what_is_set_wrong_is_named_with_a_remedy(
    variable: str, value: str, what: str, remedy: str, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv(variable, value)
    code, found = findings(capsys)
    wrong = [each for each in found.get(what, []) if each['state'] == 'wrong']
    assert code == 1
    assert wrong
    assert remedy in wrong[0]['remedy']
    assert value in wrong[0]['said'] or variable in wrong[0]['said']


def test_a_package_that_is_needed_and_not_there_is_wrong(monkeypatch: Any) -> None:
    monkeypatch.setattr(doctor, 'installed', lambda name: None)
    states = {finding.what: finding.state for finding in doctor._packages()}
    assert states['packages'] == 'wrong'
    assert set(states.values()) == {'wrong', 'missing'}


def test_versions_are_compared_with_those_that_are_tested() -> None:
    tested = doctor.tested_versions()
    assert tested['numpy']
    assert tested['importlib-metadata']
    needed = doctor.requirements()
    assert {'numpy', 'onnx'} <= set(needed[''])
    assert needed['torch'] == ['torch']


def test_a_quota_is_shown(capsys: Any, monkeypatch: Any) -> None:
    from dataclasses import replace

    facts = replace(describe_host(), quota=1.5)
    monkeypatch.setattr(doctor, 'describe_host', lambda: facts)
    _, found = findings(capsys)
    assert any('cgroup quota 1.5 CPUs' in each['said'] for each in found['threads'])


def completed(script: str, *words: str) -> list[str]:
    """What bash offers for the last of these words."""
    line = ' '.join(f"'{word}'" for word in words)
    asked = (
        f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _tilewright; echo "${{COMPREPLY[@]}}"'
    )
    found = subprocess.run(
        ['bash', '-c', f'{script}\n{asked}'],
        capture_output=True,
        text=True,
        check=True,
        cwd='/proc/self/fd',
    )
    return found.stdout.split()


@pytest.mark.skipif(
    shutil.which('bash') is None,
    reason='completion for bash is tried by bash, which is not installed',
)
def test_bash_completes_verbs_options_and_values(capsys: Any) -> None:
    assert invoke(['completion', 'bash']) == 0
    script = capsys.readouterr().out
    assert completed(script, 'tilewright', 'opt') == ['optimize']
    assert completed(script, 'tilewright', 'optimize', '--fl') == ['--fleet']
    assert completed(script, 'tilewright', 'optimize', '--algorithm', 'w') == ['winograd']
    assert completed(script, 'tilewright', 'model', 'tr') == ['train']


@pytest.mark.parametrize('shell', ['zsh', 'fish'])
def test_other_shells_know_every_verb_and_option(shell: str, capsys: Any) -> None:
    assert invoke(['completion', shell]) == 0
    script = capsys.readouterr().out
    words = set(re.findall(r'[\w-]+', script))
    assert {'optimize', 'doctor', 'compile', 'winograd'} <= words
    assert ('-l fleet' if shell == 'fish' else '--fleet') in script


def test_data_files_are_in_the_wheel() -> None:
    """Every file beside the sources is covered by a pattern of package-data."""
    data = tomllib.loads((ROOT / 'pyproject.toml').read_text())
    patterns = data['tool']['setuptools']['package-data']
    for package, globs in patterns.items():
        folder = ROOT / 'src' / package
        covered = {path for glob in globs for path in folder.glob(glob)}
        files = {path for path in folder.rglob('*') if path.is_file()}
        beside = {path for path in files if path.suffix not in ('.py', '.pyc')}
        assert beside - covered == set()
        assert folder / 'py.typed' in covered


def test_the_script_and_the_labs_verbs_are_entry_points() -> None:
    found = {each.name: each.group for each in metadata.distribution('tilewright').entry_points}
    assert found['tilewright'] in ('console_scripts', 'torch_dynamo_backends')
    assert found['lab'] == 'tilewright.commands'
