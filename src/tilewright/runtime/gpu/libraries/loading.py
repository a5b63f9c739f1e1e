"""Shared libraries of a vendor, found where people have them: wheels of `nvidia`, then the system.

Goes in: a `Wanted`, which files to look for and what to install. Comes out: the library with the
types of its functions declared, or a MissingError of one sentence. Nothing is loaded before it is
asked for, and each once.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.errors import MissingError
from tilewright.kernels.gpu.schemas.library.calls import version_text

# function -> (what it returns, types of its arguments)
Signatures = Mapping[str, tuple[Any, Sequence[Any]]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A library.

    files      below the folder `nvidia` of site-packages, best first; their names are those that
               the system's loader is asked for
    version    the function that tells it; `least` is the oldest that will do
    package    what to install
    """

    title: str
    files: tuple[str, ...]
    version: str
    least: int
    package: str

    @property
    def remedy(self) -> str:
        return f'pip install {self.package}, or leave --libraries none'


def places(wanted: Wanted, paths: Sequence[str]) -> list[str]:
    """Where a library may be, in the order in which it is tried."""
    below = [
        str(path)
        for folder in dict.fromkeys(paths)
        for file in wanted.files
        if (path := Path(folder or '.') / 'nvidia' / file).is_file()
    ]
    return [*below, *(Path(file).name for file in wanted.files)]


def found(
    wanted: Wanted, paths: Sequence[str], load: Callable[[str], Any] = ctypes.CDLL
) -> tuple[Any, int]:
    """(the library, its version); `load` is another one in tests."""
    for place in places(wanted, paths):
        try:
            api = load(place)
        except OSError:
            continue
        ask = getattr(api, wanted.version)
        ask.restype = ctypes.c_size_t
        version = int(ask())
        if version < wanted.least:
            raise MissingError(
                f'{wanted.title} {version_text(version)} is too old, {version_text(wanted.least)} '
                f'is needed; {wanted.remedy}'
            )
        return api, version
    raise MissingError(
        f'{wanted.title} {wanted.least // 10000} is not found; {wanted.remedy}'
    )  # fmt: skip


@cache
def loaded(wanted: Wanted) -> tuple[Any, int]:
    """(the library, its version), once for the process."""
    return found(wanted, sys.path)


def declared(api: Any, signatures: Signatures) -> Any:
    """The library with the types of its functions: without them ctypes cuts pointers to 32 bits."""
    for name, (result, arguments) in signatures.items():
        function = getattr(api, name)
        function.restype, function.argtypes = result, list(arguments)
    return api
