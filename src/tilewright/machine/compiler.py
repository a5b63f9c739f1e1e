"""C source -> shared library, through a content-addressed cache in the user's cache directory.

Goes in: source text, compiler flags. Comes out: the path of a library, built once. The key is the
hash of source, flags, compiler and its version.

An entry is a folder `code/ab/<name>-<digest>/` that holds the library, its source, and a seal: a
checksum that only this user can make (private.py). It appears by renaming a finished scratch
folder, so that two builders, or one that is killed, never leave half of one; and the seal is
compared on every hit, because loading a truncated library can kill the process that loads it, and
one that somebody else made could do anything. A damaged entry is removed and built again. The cache
is bounded: the entries that were not used for the longest time go first.

Which compiler built last is noted, so that a host that has lost it can still use what it built.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import hashlib
import hmac
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tilewright import knobs
from tilewright.errors import CompilerError, MissingError, StoreError
from tilewright.files import replacing
from tilewright.machine.private import check_private, make_private, seal, why_open

BASE_FLAGS = ('-std=gnu11', '-O3', '-fno-math-errno', '-fPIC', '-shared', '-pthread')
# GCC tries to combine up to four instructions at a time, which takes up to half of its time on long
# straight code of intrinsics and finds nothing there that pairs do not give.
GCC_FLAGS = ('--param', 'max-combine-insns=2')
CACHE_LIMIT_BYTES = 512 << 20
KEEP_SECONDS = 3600.0
_PRUNE_EVERY = 64
_SEAL = 'seal'
_LAST = 'compiler.json'
_builds = 0


@cache
def _writable(path: Path) -> bool:
    try:
        make_private(path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError:
        return False
    check_private(path)
    return True


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
    """A temporary directory that goes when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix='tilewright-'))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not in a child that was forked
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    warnings.warn(
        f'the cache directory of this user cannot be written, so this run is remembered in '
        f'{folder} only, until it ends; set TILEWRIGHT_CACHE_DIR to a directory that can be '
        f'written',
        stacklevel=2,
    )
    return folder


def for_children() -> dict[str, str]:
    """Variables that let a child process use the same cache directory."""
    if knobs.get('cache_dir') is None and _fallback_dir.cache_info().currsize:
        return {'TILEWRIGHT_CACHE_DIR': str(_fallback_dir())}
    return {}


def _words(text: str, search_path: str) -> tuple[str, ...]:
    """A command as words, if it can be run: a path may have blanks, and begin with ~."""
    with contextlib.suppress(ValueError):  # quotes that do not end
        for words in ((text,), tuple(shlex.split(text))):
            name = os.path.expanduser(words[0]) if words else ''
            if name and shutil.which(name, path=search_path):
                return (name, *words[1:])
    return ()


@cache
def _find(preferred: str, fallback: str, search_path: str) -> tuple[str, ...]:
    for name in (preferred, fallback, 'gcc', 'clang', 'cc'):
        words = _words(name, search_path)
        if words:
            return words
        if name and name == preferred:
            raise MissingError(
                f'TILEWRIGHT_CC={preferred!r} is not a program that can be run; name a C compiler, '
                f'or unset it to use gcc or clang'
            )
    with contextlib.suppress(ImportError):
        import ziglang  # pyright: ignore[reportMissingImports]

        return (str(Path(str(ziglang.__file__)).parent / 'zig'), 'cc')
    raise NoCompilerError(
        'no C compiler was found; install gcc or clang, or name one in the variable CC'
    )


class NoCompilerError(MissingError):
    """There is none, and none was asked for."""


def compiler() -> tuple[str, ...]:
    """The compiler's command, as words."""
    return _find(knobs.get('cc'), os.environ.get('CC', ''), os.environ.get('PATH', os.defpath))


@cache
def compiler_version(command: tuple[str, ...]) -> str:
    """The first line that the compiler says of itself: part of cache keys and of store records."""
    _, said, _ = _run([*command, '--version'])
    return said.split('\n', 1)[0]


def is_gcc(version: str) -> bool:
    """Whether a first line is GCC's: 'gcc (Debian 12.2.0-14) 12.2.0', 'x86_64-linux-gnu-gcc (..'"""
    return re.match(r'\S*\b(gcc|cc)\S* \(', version) is not None


def identity() -> tuple[tuple[str, ...], str]:
    """(command, version) of the compiler; of the one that built last where there is none now."""
    try:
        command = compiler()
        return command, compiler_version(command)
    except NoCompilerError:
        try:
            kept = json.loads((cache_dir() / 'code' / _LAST).read_text())
            return tuple(map(str, kept['command'])), str(kept['version'])
        except (OSError, ValueError, LookupError, TypeError):
            pass
        raise


def build(
    source: str, flags: tuple[str, ...] = (), *, name: str = 'kernel', asked: bool = True
) -> Path:
    """[C source] -> [shared library]. Cached; safe against concurrent builders and kills. Flags of
    TILEWRIGHT_CFLAGS count where they are `asked` for.
    """
    command, version = identity()
    quick = GCC_FLAGS if is_gcc(version) else ()
    words = [*command, *BASE_FLAGS, *quick, *flags, *(knobs.get('cflags') if asked else ())]
    key = '\0'.join([source, *words, version, platform.machine()])
    digest = hashlib.sha256(key.encode()).hexdigest()[:24]
    entry = cache_dir() / 'code' / digest[:2] / f'{name}-{digest}'
    library = entry / f'{name}.so'
    try:
        if is_intact(library):
            os.utime(entry)
        else:
            compiler()  # the one that is known may not be here any more
            _make(entry, source, words, name)
            _note(command, version)
        _dump(entry, words)
    except OSError as error:
        raise StoreError(
            f'the compile cache {entry.parent} cannot be used ({error.strerror or error}); free '
            f'it, or set TILEWRIGHT_CACHE_DIR'
        ) from None
    return library


def is_intact(library: Path) -> bool:
    """Whether an entry is complete, and nobody but this user can have written it."""
    entry = library.parent
    try:
        if any(map(why_open, (library, entry, *entry.parents[:2]))):
            return False
        want = (entry / _SEAL).read_text()
        return hmac.compare_digest(seal(cache_dir(), library.read_bytes()), want)
    except (OSError, TypeError, UnicodeDecodeError):
        return False


def _make(entry: Path, source: str, words: list[str], name: str) -> None:
    make_private(entry.parent)
    check_private(*reversed(entry.parents[:2]))
    _prune_sometimes()
    with tempfile.TemporaryDirectory(dir=entry.parent, prefix='tmp') as scratch:
        made = Path(scratch) / 'entry'
        made.mkdir(mode=0o700)
        text, library = made / f'{name}.c', made / f'{name}.so'
        text.write_text(source)
        run_compiler([*words, str(text), '-o', str(library), '-lm'])
        library.chmod(0o700)
        (made / _SEAL).write_text(seal(cache_dir(), library.read_bytes()))
        _discard_damaged(entry, library.name, scratch)
        # Fails when another builder was quicker; its entry then serves as well as ours.
        with contextlib.suppress(OSError):
            os.rename(made, entry)
        if not is_intact(entry / library.name):
            raise OSError(f'{entry} cannot be replaced')


def _note(command: tuple[str, ...], version: str) -> None:
    """Note who built last, for `identity`."""
    path, text = cache_dir() / 'code' / _LAST, json.dumps({'command': command, 'version': version})
    with contextlib.suppress(OSError, ValueError):
        if not path.exists() or path.read_text() != text:
            with replacing(path) as made:
                made.write_text(text)


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
    code, _, complaints = _run(words)
    if code:
        lines = [line for line in complaints.splitlines() if 'error' in line] or ['no message']
        if re.search('No space left|quota exceeded|File too large|size limit', complaints):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise CompilerError(f'{words[0]} failed: {lines[0].strip()}')


def _run(words: list[str]) -> tuple[int, str, str]:
    """(exit code, standard output, standard error) of a compiler, within TILEWRIGHT_TIME_LIMIT."""
    limit = knobs.get('time_limit')
    # A session of its own: a compiler driver that is killed leaves its passes running otherwise.
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
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
            said, complaints = process.communicate(timeout=limit)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            raise CompilerError(
                f'{words[0]} took longer than {limit:g} s; raise TILEWRIGHT_TIME_LIMIT, or name '
                f'another compiler in the variable CC'
            ) from None
    return process.returncode, said, complaints
