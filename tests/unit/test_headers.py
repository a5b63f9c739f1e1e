"""Precompiled headers of tests: only for sources that include them, one for each set of flags."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import headers
import pytest

from tilewright.machine import compiler


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Command lines that make headers, by a compiler that does."""
    lines: list[list[str]] = []

    def run(words: list[str]) -> tuple[int, str, str]:
        lines.append(words)
        Path(words[words.index('-o') + 1]).touch()
        return 0, '', ''

    (tmp_path / 'headers').mkdir()
    monkeypatch.setenv(headers.FOLDER, str(tmp_path / 'headers'))
    monkeypatch.setattr(headers, '_run', run)
    monkeypatch.setattr(headers, '_uses', headers.Counter())
    monkeypatch.setattr(compiler, 'compiler_version', lambda words: f'{words[0]} (Debian) 12.2.0')
    return lines


def line(folder: Path, text: str, *flags: str, command: str = 'gcc') -> list[str]:
    source = folder / 'kernel.c'
    source.write_text(text)
    return [command, *flags, str(source), '-o', str(folder / 'kernel'), '-lm']


def test_what_killed_sessions_left_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen(['true'])
    ended.wait()
    left = [tmp_path / f'{headers.PREFIX}-{pid}-abc' for pid in (ended.pid, os.getpid())]
    for folder in left:
        folder.mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    monkeypatch.setenv(headers.FOLDER, '')
    headers.begin()
    own = Path(os.environ[headers.FOLDER])
    assert {path.name for path in tmp_path.iterdir()} == {left[1].name, own.name}
    headers.end()
    assert [path.name for path in tmp_path.iterdir()] == [left[1].name]


@pytest.mark.parametrize('name', headers.GUARDS)
def test_a_header_is_made_for_each_set_of_flags(
    name: str, tmp_path: Path, made: list[list[str]]
) -> None:
    text = f'#include <math.h>\n#include <{name}>\n'
    words = line(tmp_path, text, '-O1', '-shared')
    for _ in range(headers.FIRST_USES):
        assert headers.with_header(words) == words
    command, include, header, *rest = headers.with_header(words)
    assert [command, *rest] == words
    assert include == '-include'
    assert Path(header).name == name
    assert Path(f'{header}.gch').exists()
    assert headers.with_header(words)[1:3] == [include, header]
    assert len(made) == 1
    assert made[0][:4] == ['gcc', '-O1', '-x', 'c-header']
    other = line(tmp_path, text, '-O2')
    assert headers.with_header(other) == other  # its first use
    linked = headers.with_header(line(tmp_path, text, '-O1', '-fuse-ld=gold'))
    assert linked[1:3] == ['-include', header]


@pytest.mark.parametrize(
    ('text', 'command'),
    [('int x;\n', 'gcc'), ('/* arm_neon.h */\n', 'gcc'), ('#include <arm_neon.h>\n', 'clang')],
)
def test_other_sources_and_compilers_get_none(
    text: str, command: str, tmp_path: Path, made: list[list[str]]
) -> None:
    """What a source forgets to include has to be an error in tests as well."""
    words = line(tmp_path, text, '-O1', command=command)
    for _ in range(headers.FIRST_USES + 2):
        assert headers.with_header(words) == words
    assert made == []
