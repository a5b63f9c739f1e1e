"""What a dialect of CUCL is: a table of words, some lines of text, and how a kernel begins.

One file for each: cuda.py, opencl.py, host.py. Words that stand for more than a keyword (16-byte
loads, asynchronous copies, matrix instructions) are macros or functions in `head`, under the same
names in every dialect; docs/cucl.md lists them. A dialect from anywhere is made known by `register`
and found by its name; a `Device` that runs it takes the value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.errors import InputError
from tilewright.kernels.gpu.language import Kernel


def _nothing(_: object) -> str:
    return ''


def warpgroup_products(kernels: Sequence[Kernel]) -> list[tuple[str, int]]:
    """('tf32' or 'bf16', columns) of every product that a need such as 'wgmma_tf32/64' names."""
    needs = sorted({need for kernel in kernels for need in kernel.needs if '/' in need})
    split = [need.removeprefix('wgmma_').split('/') for need in needs]
    return sorted((kind, int(columns)) for kind, columns in split)


@dataclass(frozen=True, slots=True)
class Dialect:
    """One target language.

    family        the language that foreign bodies for it are written in
    words         identifier of CUCL -> text
    head          text before every kernel
    entry         (kernel, parameters) -> the line that opens its function
    pointer       (element type, name, written) -> a parameter
    shared        kernel -> declarations of its shared arrays
    capabilities  what kernels may need: 'mma_tf32', 'wgmma_tf32', 'wgmma_bf16', 'bulk_copy',
                  'device_fence'
    extra         kernels -> text between head and kernels: what their needs ask for
    tail          text behind the kernel
    """

    name: str
    family: str
    words: Mapping[str, str]
    head: str
    entry: Callable[[Kernel, str], str]
    pointer: Callable[[str, str, bool], str]
    shared: Callable[[Kernel], list[str]]
    capabilities: frozenset[str] = frozenset()
    extra: Callable[[Sequence[Kernel]], str] = _nothing
    tail: Callable[[Kernel], str] = _nothing


_DIALECTS: dict[str, Dialect] = {}


def register(dialect: Dialect) -> Dialect:
    """Make a dialect known in this process."""
    if dialect.name in _DIALECTS:
        raise InputError(
            f'there is a dialect {dialect.name!r} already; choose another name, or unregister it'
        )
    _DIALECTS[dialect.name] = dialect
    return dialect


def unregister(name: str) -> None:
    """Forget a dialect; kernels that were lowered stay as they are."""
    del _DIALECTS[dialect_named(name).name]


def dialects() -> tuple[Dialect, ...]:
    """All that are known, in the order in which they came."""
    return tuple(_DIALECTS.values())


def dialect_named(name: str) -> Dialect:
    """The dialect of a name; the error lists all names."""
    if name not in _DIALECTS:
        raise InputError(
            f'{name!r} is not a dialect of CUCL; choose one of {", ".join(_DIALECTS)}, or register '
            f'it'
        )
    return _DIALECTS[name]
