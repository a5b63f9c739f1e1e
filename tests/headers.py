"""Headers of intrinsics are parsed once for each set of flags, not once for each kernel.

Goes in: a compiler's command line. Comes out: the same one with a precompiled header, where the
source itself includes intrinsics and GCC compiles it. Parsing arm_neon.h takes 0.2 s, twice as long
as all else of a small kernel. `make test-all` compiles as for users, without this.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections import Counter
from pathlib import Path

from tilewright.machine import compiler

FOLDER = 'HEADERS_OF_TESTS'  # a folder that the processes of a session share
FIRST_USES = 3  # without: making a precompiled header takes as long as parsing it that often
MOST = 10  # headers of a session, of 26 MB each
PREFIX = 'tilewright-headers'
GUARDS = {'arm_neon.h': '__ARM_NEON', 'immintrin.h': '__x86_64__'}
LINKING = re.compile('-c|-S|-shared|-static|-l.*|-fuse-ld=.*')

_run = compiler._run
_uses: Counter[str] = Counter()
_refused: set[str] = set()


def begin() -> None:
    """Make the session's folder; those of sessions that were killed go."""
    for left in Path(tempfile.gettempdir()).glob(f'{PREFIX}-*-*'):
        with contextlib.suppress(ValueError, PermissionError):
            try:
                os.kill(int(left.name.split('-')[2]), 0)
            except ProcessLookupError:
                shutil.rmtree(left, ignore_errors=True)
    os.environ[FOLDER] = tempfile.mkdtemp(prefix=f'{PREFIX}-{os.getpid()}-')


def end() -> None:
    shutil.rmtree(os.environ.pop(FOLDER, ''), ignore_errors=True)


def run(words: list[str]) -> tuple[int, str, str]:
    """What compiler._run does, sooner."""
    return _run(with_header(words))


def with_header(words: list[str]) -> list[str]:
    folder = os.environ.get(FOLDER)
    sources = [word for word in words if word.endswith('.c')]
    if not folder or len(sources) != 1 or not compiler.is_gcc(_version(words[0])):
        return words
    try:
        text = Path(sources[0]).read_text()
    except OSError:
        return words
    name = next((name for name in GUARDS if f'#include <{name}>' in text), None)
    if name is None:
        return words
    flags = _flags(words)
    key = hashlib.sha256('\0'.join([name, *flags]).encode()).hexdigest()[:16]
    _uses[key] += 1
    header = Path(folder) / key / name
    made = header.with_name(f'{name}.gch')
    if not made.exists():
        if key in _refused or _uses[key] <= FIRST_USES or len(os.listdir(folder)) >= MOST:
            return words
        if not _make(header, made, name, flags):
            _refused.add(key)
            return words
    return [words[0], '-include', str(header), *words[1:]]


def _version(command: str) -> str:
    try:
        return compiler.compiler_version((command,))
    except compiler.MissingError:
        return ''


def _flags(words: list[str]) -> list[str]:
    """The words that decide what a header means: none about files, nor about linking."""
    kept, rest = [], iter(words)
    for word in rest:
        if word == '-o':
            next(rest, None)
        elif not word.endswith('.c') and not LINKING.fullmatch(word):
            kept.append(word)
    return kept


def _make(header: Path, made: Path, name: str, flags: list[str]) -> bool:
    """Whether it was made: by another process at the same time is as good."""
    header.parent.mkdir(exist_ok=True)
    text = header.with_name(f'{os.getpid()}.h')
    text.write_text(f'#ifdef {GUARDS[name]}\n#include <{name}>\n#endif\n')
    part = header.with_name(f'{os.getpid()}.gch')
    code, _, _ = _run([*flags, '-x', 'c-header', str(text), '-o', str(part)])
    if not code:
        os.replace(text, header)
        os.replace(part, made)
    return not code
