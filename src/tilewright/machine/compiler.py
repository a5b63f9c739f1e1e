"""C source -> shared library, through a content-addressed cache in the user's cache directory.

Goes in: source text, compiler flags. Comes out: the path of a library, built once. The key is the
hash of source, flags, compiler and its version.

An entry is a folder `code/ab/<name>-<digest>/` that holds the library, its source, and a checksum.
It appears by renaming a finished scratch folder, so that two builders, or one that is killed, never
leave half of one; and the checksum is compared on every hit, because loading a truncated library
can kill the process that loads it. A damaged entry is removed and built again. The cache is
bounded: the entries that were not used for the longest time go first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tilewright import knobs
from tilewright.errors import CompilerError, MissingError, StoreError

BASE_FLAGS = ('-std=gnu11', '-O3', '-fno-math-errno', '-fPIC', '-shared', '-pthread')
CACHE_LIMIT_BYTES = 512 << 20
KEEP_SECONDS = 3600.0
_PRUNE_EVERY = 64
_SUM = 'sha256'
_builds = 0


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
    path = _user_cache()
    return path if _writable(path) else _fallback_dir()


def _user_cache() -> Path:
    """The user's cache directory; by the XDG rule where platformdirs is not installed."""
    try:
        import platformdirs
    except ImportError:
        base = os.environ.get('XDG_CACHE_HOME') or '~/.cache'
        return Path(base).expanduser() / 'tilewright'
    return Path(platformdirs.user_cache_dir('tilewright'))


@cache
def _fallback_dir() -> Path:
    return Path(tempfile.mkdtemp(prefix='tilewright-'))


@cache
def _find(preferred: str, fallback: str, search_path: str) -> tuple[str, ...]:
    if preferred and not shutil.which(preferred.split()[0], path=search_path):
        raise MissingError(
            f'TILEWRIGHT_CC={preferred!r} is not a program that can be run; name a C compiler, or '
            f'unset it to use gcc or clang'
        )
    for name in (preferred, fallback, 'gcc', 'clang', 'cc'):
        words = name.split()
        if words and shutil.which(words[0], path=search_path):
            return tuple(words)
    with contextlib.suppress(ImportError):
        import ziglang  # pyright: ignore[reportMissingImports]

        return (str(Path(str(ziglang.__file__)).parent / 'zig'), 'cc')
    raise MissingError(
        'no C compiler was found; install gcc or clang, or name one in the variable CC'
    )


def compiler() -> tuple[str, ...]:
    """The compiler's command, as words."""
    return _find(knobs.get('cc'), os.environ.get('CC', ''), os.environ.get('PATH', os.defpath))


@cache
def compiler_version(command: tuple[str, ...]) -> str:
    """The first line that the compiler says of itself: part of cache keys and of store records."""
    try:
        answer = subprocess.run(
            [*command, '--version'], capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise MissingError(
            f'the C compiler {command[0]} cannot be run ({error.strerror}); name another in the '
            f'variable CC'
        ) from None
    return answer.stdout.split('\n', 1)[0]


def build(source: str, flags: tuple[str, ...] = (), *, name: str = 'kernel') -> Path:
    """[C source] -> [shared library]. Cached; safe against concurrent builders and kills."""
    command = compiler()
    words = [*command, *BASE_FLAGS, *flags, *knobs.get('cflags')]
    key = '\0'.join([source, *words, compiler_version(command), platform.machine()])
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    entry = cache_dir() / 'code' / digest[:2] / f'{name}-{digest}'
    library = entry / f'{name}.so'
    try:
        if is_intact(library):
            os.utime(entry)
        else:
            _make(entry, source, words, name)
        _dump(entry, words)
    except OSError as error:
        raise StoreError(
            f'the compile cache {entry.parent} cannot be used ({error.strerror or error}); free '
            f'it, or set TILEWRIGHT_CACHE_DIR'
        ) from None
    return library


def is_intact(library: Path) -> bool:
    """Whether an entry is complete and has the bytes that were built."""
    try:
        want = (library.parent / _SUM).read_text()
        return hashlib.sha256(library.read_bytes()).hexdigest() == want
    except (OSError, UnicodeDecodeError):
        return False


def _make(entry: Path, source: str, words: list[str], name: str) -> None:
    entry.parent.mkdir(parents=True, exist_ok=True)
    _prune_sometimes()
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix='tmp') as scratch:
        made = Path(scratch) / 'entry'
        made.mkdir()
        text, library = made / f'{name}.c', made / f'{name}.so'
        text.write_text(source)
        run_compiler([*words, str(text), '-o', str(library), '-lm'])
        (made / _SUM).write_text(hashlib.sha256(library.read_bytes()).hexdigest())
        _discard_damaged(entry, library.name, scratch)
        # Fails when another builder was quicker; its entry then serves as well as ours.
        with contextlib.suppress(OSError):
            os.rename(made, entry)
        if not is_intact(entry / library.name):
            raise OSError(f'{entry} cannot be replaced')


def _discard_damaged(entry: Path, library: str, scratch: str) -> None:
    """Move a damaged entry into the scratch folder, which is removed soon. Never written in place:
    another process may have the library mapped."""
    if entry.exists() and not is_intact(entry / library):
        with contextlib.suppress(FileNotFoundError):
            os.rename(entry, Path(scratch) / 'damaged')


def _dump(entry: Path, words: list[str]) -> None:
    """Copy source, library and command line of an entry into TILEWRIGHT_DUMP."""
    folder = knobs.get('dump')
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in entry.iterdir():
            if path.suffix in ('.c', '.so'):
                shutil.copyfile(path, folder / f'{entry.name}{path.suffix}')
        (folder / f'{entry.name}.cmd').write_text(shlex.join(words) + '\n')
    except OSError as error:
        raise StoreError(
            f'TILEWRIGHT_DUMP={folder} cannot be written ({error.strerror}); name a directory '
            f'that can'
        ) from None


def _prune_sometimes() -> None:
    global _builds
    if _builds % _PRUNE_EVERY == 0:
        prune()
    _builds += 1


def prune_files(files: Iterable[Path], most: int) -> None:
    """Where there are more than `most` files, remove those that were not used for the longest time
    until half as many are left.
    """
    listed = list(files)
    ages = []
    for path in listed if len(listed) > most else ():
        with contextlib.suppress(OSError):
            ages.append((path.stat().st_mtime, path))
    for _, path in sorted(ages)[: len(listed) - most // 2]:
        with contextlib.suppress(OSError):
            path.unlink()


def prune(limit_bytes: int = CACHE_LIMIT_BYTES, keep_seconds: float = KEEP_SECONDS) -> int:
    """Shrink the compile cache below `limit_bytes`; comes out: the number of entries removed.

    Entries used within `keep_seconds` stay, since somebody may be about to load them. Scratch
    folders that a killed builder left behind go as soon as they are that old.
    """
    now = time.time()
    entries: list[tuple[float, int, Path]] = []
    removed = 0
    for folder in (cache_dir() / 'code').glob('*/*'):
        try:
            age = now - folder.stat().st_mtime
            if folder.name.startswith('tmp'):
                if age > keep_seconds:
                    shutil.rmtree(folder, ignore_errors=True)
                    removed += 1
                continue
            entries.append((age, sum(f.stat().st_size for f in folder.iterdir()), folder))
        except OSError:
            continue  # another process removed it, or it is nothing of ours
    total = sum(size for _, size, _ in entries)
    for age, size, folder in sorted(entries, key=lambda e: -e[0]):
        if total <= limit_bytes or age <= keep_seconds:
            break
        shutil.rmtree(folder, ignore_errors=True)
        total -= size
        removed += 1
    return removed


def run_compiler(words: list[str]) -> None:
    """Run a compiler command line; its first complaint becomes the error."""
    limit = knobs.get('time_limit')
    # A session of its own: a compiler driver that is killed leaves its passes running otherwise.
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors='replace',
            start_new_session=True,
        )
    except OSError as error:
        raise MissingError(
            f'the C compiler {words[0]} cannot be run ({error.strerror}); name another in the '
            f'variable CC'
        ) from None
    with process:
        try:
            _, complaints = process.communicate(timeout=limit)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise CompilerError(
                f'the compiler took longer than {limit:g} s; raise TILEWRIGHT_TIME_LIMIT'
            ) from None
    if process.returncode:
        lines = [line for line in complaints.splitlines() if 'error' in line] or ['no message']
        raise CompilerError(f'{words[0]} failed: {lines[0].strip()}')
