"""Folders and files that nobody but this user can have written: what code is loaded from.

Goes in: a path. Comes out: whether it is private, or a `StoreError` that says what to do. Libraries
that are run again are sealed with a key that only this user can read, so that one that somebody
else placed there, when the folder was still open to all, is none of ours.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
import tempfile
from functools import cache
from pathlib import Path

from tilewright.errors import StoreError

KEY = 'key'
KEY_BYTES = 32


def make_private(folder: Path) -> None:
    """Create a folder, and what is missing above it, for this user alone, whatever the umask is."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was quicker
            path.mkdir(mode=0o700)
    if missing and not missing[0].is_dir():
        raise NotADirectoryError(20, 'Not a directory', str(missing[0]))


def why_open(path: Path) -> str:
    """Why others could have written it; '' where they could not. Raises OSError."""
    found = path.stat()
    if not hasattr(os, 'geteuid'):
        return ''
    if found.st_uid != os.geteuid():
        return f'it belongs to user {found.st_uid}, and you are {os.geteuid()}'
    mode = stat.S_IMODE(found.st_mode)
    return f'others can write to it (mode {mode:04o})' if mode & 0o022 else ''


def check_private(*paths: Path) -> None:
    """Raise unless others can write to none of these."""
    for path in paths:
        why = why_open(path)
        if why:
            raise StoreError(
                f'{path} is not safe to load code from: {why}; run `chmod -R go-w {path}` if it is '
                f'yours, or set TILEWRIGHT_CACHE_DIR to a directory of your own'
            )


def seal(root: Path, data: bytes) -> str:
    """What only this user can say of these bytes."""
    return hmac.digest(_key(root), data, 'sha256').hex()


@cache
def _key(root: Path) -> bytes:
    """The key of a cache directory, made at its first use; it appears whole or not at all."""
    path = root / KEY
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=root, prefix='tmp') as made:  # of mode 0600
            made.write(secrets.token_bytes(KEY_BYTES))
            made.flush()
            with contextlib.suppress(FileExistsError):
                os.link(made.name, path)
    check_private(path)
    key = path.read_bytes()
    if len(key) != KEY_BYTES or stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise StoreError(f'{path} is not a key that you alone can read; remove it')
    return key
