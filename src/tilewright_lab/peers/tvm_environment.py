"""Where TVM lives: an environment of its own, since its packages do not go with the others.

Comes out: its interpreter, or a sentence that says how to make one. `make peers-tvm` makes
`.venv-tvm` beside the sources, with the versions of constraints-tvm.txt; TILEWRIGHT_TVM_PYTHON
names an interpreter that is elsewhere.
"""

from __future__ import annotations

import os
from pathlib import Path

from tilewright import knobs
from tilewright.errors import StoreError
from tilewright.machine import compiler as build

VARIABLE = 'TILEWRIGHT_TVM_PYTHON'
FOLDER = '.venv-tvm'


def interpreter() -> Path | None:
    """The interpreter that has TVM: the one named, or that of an environment here or beside us."""
    named = knobs.get('tvm_python')
    if named is not None:
        return named if named.exists() else None
    for folder in (Path.cwd(), Path(__file__).parents[3]):
        found = folder / FOLDER / 'bin' / 'python'
        if found.exists():
            return found
    return None


def absence() -> str:
    """A sentence that says what is missing, '' when there is an interpreter."""
    if interpreter() is not None:
        return ''
    named = knobs.get('tvm_python')
    if named is not None:
        return f'peer tvm: {VARIABLE} names {named}, which does not exist; make peers-tvm'
    return (
        f'peer tvm needs an environment of its own, and there is no {FOLDER}; make peers-tvm makes '
        f'it, or name its interpreter in {VARIABLE}'
    )


def package_link() -> Path:
    """A directory that holds the two packages of this project and nothing else, for another
    interpreter to find.
    """
    source = Path(__file__).parents[2]
    folder = build.cache_dir() / 'tvm' / 'path'
    for name in ('tilewright', 'tilewright_lab'):
        link, package = folder / name, source / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink() or link.readlink() != package:
                link.unlink(missing_ok=True)
                os.symlink(package, link)
        except OSError as error:
            raise StoreError(f'{link} cannot be made: {error.strerror}') from None
    return folder


def schedules_folder() -> Path:
    """Where tuned schedules are kept."""
    return build.cache_dir() / 'tvm' / 'schedules'
