"""C source -> shared library, through a content-addressed cache in the user's cache directory.

Goes in: source text, compiler flags. Comes out: the path of a library, built once. The key is the
hash of source, flags, compiler and its version. A library appears under its final name by rename,
so that two processes, or one that is killed, never leave half of one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import platformdirs

from tilewright import knobs
from tilewright.errors import CompilerError, MissingError, StoreError

BASE_FLAGS = ('-std=gnu11', '-O3', '-fno-math-errno', '-fPIC', '-shared', '-pthread')


@cache
def _writable(path: Path) -> bool:
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return True
    except OSError:
        return False


def cache_dir() -> Path:
    """The cache directory; a private temporary one when the user's cannot be written."""
    chosen = knobs.get('cache_dir')
    if chosen is not None:
        if not _writable(chosen):
            raise StoreError(
                f'TILEWRIGHT_CACHE_DIR={chosen} cannot be written; name a directory that can'
            )
        return chosen
    path = Path(platformdirs.user_cache_dir('tilewright'))
    return path if _writable(path) else _fallback_dir()


@cache
def _fallback_dir() -> Path:
    return Path(tempfile.mkdtemp(prefix='tilewright-'))


@cache
def _find(preferred: str) -> tuple[str, ...]:
    for name in (preferred, os.environ.get('CC', ''), 'gcc', 'clang', 'cc'):
        words = name.split()
        if words and shutil.which(words[0]):
            return tuple(words)
    with contextlib.suppress(ImportError):
        import ziglang  # pyright: ignore[reportMissingImports]

        return (str(Path(ziglang.__file__).parent / 'zig'), 'cc')
    raise MissingError(
        'no C compiler was found; install gcc or clang, or name one in the variable CC'
    )


def compiler() -> tuple[str, ...]:
    """The compiler's command, as words."""
    return _find(knobs.get('cc'))


@cache
def compiler_version(command: tuple[str, ...]) -> str:
    answer = subprocess.run([*command, '--version'], capture_output=True, text=True, check=False)
    return answer.stdout.split('\n', 1)[0]


def build(source: str, flags: tuple[str, ...] = (), *, name: str = 'kernel') -> Path:
    """[C source] -> [shared library]. Cached; safe against concurrent builders and kills."""
    command = compiler()
    key = '\0'.join([source, *BASE_FLAGS, *flags, *command, compiler_version(command)])
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    folder = cache_dir() / 'code' / digest[:2]
    library = folder / f'{name}-{digest}.so'
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            text, made = Path(scratch) / f'{name}.c', Path(scratch) / f'{name}.so'
            text.write_text(source)
            run_compiler([*command, *BASE_FLAGS, *flags, str(text), '-o', str(made), '-lm'])
            os.replace(made, library)
            os.replace(text, library.with_suffix('.c'))
    except OSError as error:
        raise StoreError(
            f'the compile cache {folder} cannot be used ({error.strerror}); free it, or set '
            f'TILEWRIGHT_CACHE_DIR'
        ) from None
    return library


def run_compiler(words: list[str]) -> None:
    """Run a compiler command line; its first complaint becomes the error."""
    limit = knobs.get('time_limit')
    try:
        answer = subprocess.run(words, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        raise CompilerError(
            f'the compiler took longer than {limit:g} s; raise TILEWRIGHT_TIME_LIMIT'
        ) from None
    if answer.returncode:
        lines = [line for line in answer.stderr.splitlines() if 'error' in line] or ['no message']
        raise CompilerError(f'{words[0]} failed: {lines[0].strip()}')
