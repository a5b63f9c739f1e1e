"""Files that people name: read only where they end, and written whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from tilewright.errors import InputError


def path_of(what: str, given: object) -> Path:
    """A path that a caller gives as `what`, or an InputError."""
    if not isinstance(given, str | os.PathLike) or not isinstance(os.fspath(given), str):
        raise InputError(f'{what} is {given!r}; give a path')
    return Path(given)


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading. Devices and pipes, which may never end, are an OSError."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags | getattr(os, 'O_NONBLOCK', 0))  # a pipe would wait here

    file = open(path, 'rb', opener=opener)  # noqa: SIM115 (the caller closes it)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, 'it is not a regular file', str(path))
    return file


def read_regular(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a regular file."""
    with open_regular(path) as file:
        return file.read()


def read_json(path: str | os.PathLike[str], what: str, remedy: str) -> Any:
    """What a file of JSON holds; `what` people called it by, `remedy` says how to write one."""
    try:
        return json.loads(read_regular(path))
    except OSError as error:
        raise InputError(f'{what} cannot be read: {error.strerror}') from None
    except (ValueError, RecursionError) as error:
        raise InputError(f'{what} is not JSON ({error}); {remedy}') from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file to write to, which takes the name `path` once it is complete; a device is written
    itself. Whatever fails meanwhile leaves nothing behind, and what was there before as it was.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    with tempfile.TemporaryDirectory(dir=path.parent, prefix='.tilewright-') as scratch:
        made = Path(scratch) / path.name
        yield made
        os.replace(made, path)


@contextmanager
def replacing_all(folder: Path) -> Iterator[Path]:
    """A folder to write files into, which are moved to `folder` once all of them are complete."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix='.tilewright-') as scratch:
            yield Path(scratch)
            for path in Path(scratch).iterdir():
                os.replace(path, folder / path.name)
    except BaseException:
        for path in missing:
            with suppress(OSError):  # somebody else has put something there
                path.rmdir()
        raise
