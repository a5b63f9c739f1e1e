"""Tilewright's environment variables: typed, documented, in one place.

`knobs.table()` is what `docs/knobs.md` and `tilewright --help` show. Variables of the system that
are read too (CC, PATH, XDG_CACHE_HOME) are in `docs/knobs.md`.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewright.errors import InputError


@dataclass(frozen=True, slots=True)
class Knob:
    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str

    @property
    def variable(self) -> str:
        return f'TILEWRIGHT_{self.name.upper()}'

    def get(self) -> Any:
        text = os.environ.get(self.variable, '')
        if not text:
            return self.default
        try:
            return self.parse(text)
        except ValueError:
            raise InputError(f'{self.variable}={text!r} cannot be read: {self.help}') from None


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1e6:  # false for nan; more than eleven days is more than a wait can be told
        raise ValueError(text)
    return value


def _bytes(text: str) -> int:
    value = int(text)
    if not 0 < value < 1 << 63:
        raise ValueError(text)
    return value


def _cpus(text: str) -> str:
    """A list of numbers and ranges, as it is; which of them are there is the host's matter."""
    for part in text.split(','):
        ends = [int(word) for word in part.split('-')]
        if len(ends) > 2 or not 0 <= ends[0] <= ends[-1] < 1 << 16:
            raise ValueError(text)
    return text


def _words(text: str) -> tuple[str, ...]:
    return tuple(shlex.split(text))


KNOBS = (
    Knob('cache_dir', Path, None, 'directory for compiled code, machine files and the store'),
    Knob('isa', str, '', 'instruction set to generate for: avx512, avx2, neon, portable'),
    Knob('threads', _whole, 0, 'threads to use when a call does not say (0: all usable cores)'),
    Knob(
        'cpus', _cpus, '', 'CPUs that kernels run on, such as 0-7 or 0,2,4,6 [those of the process]'
    ),
    Knob('jobs', _whole, 0, 'searches and compilations at the same time (0: all usable cores)'),
    Knob('spin_us', _whole, 200, 'microseconds that idle threads look for work before they sleep'),
    Knob('debug', _whole, 0, '1 stages and times, 2 candidates, 3 schedules, 4 source'),
    Knob('dump', Path, None, 'directory into which every artefact is written'),
    Knob('cc', str, '', 'C compiler to use instead of $CC, gcc, clang or cc'),
    Knob('cflags', _words, (), 'flags for the C compiler, after its others: -O1 builds sooner'),
    Knob('time_limit', _seconds, 60.0, 'seconds that one candidate may take, above 0, at most 1e6'),
    Knob('seed', _whole, 0, 'of searches on GPUs: another draws other candidates'),
    Knob('memory_limit', _bytes, 8 << 30, 'bytes of address space that a worker may use, above 0'),
    Knob('tvm_python', Path, None, 'interpreter of the environment that has TVM (make peers-tvm)'),
    Knob('shared', Path, None, 'directory with the data sets that some tests and tables read'),
)
_BY_NAME = {knob.name: knob for knob in KNOBS}


def get(name: str) -> Any:
    """The value of a knob: from the environment, or its default."""
    return _BY_NAME[name].get()


@contextmanager
def held(name: str, value: str) -> Iterator[None]:
    """Another value of a knob for a while, also for processes that are started meanwhile."""
    variable = _BY_NAME[name].variable
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before


def table() -> list[tuple[str, str, str]]:
    """(variable, default, help) of every knob."""
    return [(k.variable, '' if k.default in (None, ()) else str(k.default), k.help) for k in KNOBS]


def debug(level: int, text: str) -> None:
    """Print to standard error when TILEWRIGHT_DEBUG asks for this level."""
    if get('debug') >= level:
        print(f'tilewright: {text}', file=sys.stderr)
