"""What was chosen before: schedules by what decides them, so that a network compiles once.

Goes in: a question (group, machine, threads, budget, how many) and the answer of the search. Comes
out: that answer, the next time the same version is asked the same. One small JSON file for each, in
`chosen/` of the cache directory, which may be deleted at any time. A file that cannot be read is no
answer. Nothing in it is run: a schedule is numbers and names that code generation checks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import knobs
from tilewright.errors import TilewrightError
from tilewright.machine.compiler import cache_dir, prune_files
from tilewright.machine.private import make_private
from tilewright.schedule.choice import Choice
from tilewright.version import VERSION

MOST_FILES = 8192
_DECIDES = ('kernels', 'machine', 'model', 'ops', 'schedule', 'search')
GPU_DECIDES = ('rank', 'targets/gpu')  # of what is chosen for GPUs, beside those
Hear = Callable[[str, Any], object]
_HEARD: ContextVar[Hear | None] = ContextVar('heard', default=None)


@cache
def code_version(also: tuple[str, ...] = ()) -> str:
    """Version, and a hash of the sources that decide which schedules are chosen: folders of the
    package, and `also` further ones.
    """
    root = Path(__file__).parents[1]
    total = hashlib.sha256(VERSION.encode())
    for folder in (*_DECIDES, *also):
        for path in sorted((root / folder).rglob('*.py')):
            total.update(path.relative_to(root).as_posix().encode() + b'\0')
            total.update(path.read_bytes())
    return total.hexdigest()[:16]


def key_of(question: Mapping[str, Any], also: tuple[str, ...] = ()) -> str:
    """The name of a question: what is asked, the version that is asked (`code_version`), and the
    compiler flags that the user added, since what was measured with others is no answer.
    """
    text = json.dumps([code_version(also), question, *knobs.get('cflags')], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def recall(key: str) -> Any | None:
    """The answer that is kept under a key, or None."""
    path = _path(key)
    try:
        answer = json.loads(path.read_text())
        os.utime(path)
        return answer
    except (OSError, ValueError):
        return None


def recall_choices(key: str) -> tuple[Choice, ...] | None:
    """The choices that are kept under a key; None where there are none, or they cannot be read."""
    kept = recall(key)
    try:
        return None if kept is None else tuple(Choice.from_json(item) for item in kept)
    except (TilewrightError, TypeError):
        return None


def keep_choices(key: str, found: Iterable[Choice]) -> None:
    """Keep choices, best first, for `recall_choices`."""
    keep(key, [choice.to_json() for choice in found])


def keep(key: str, answer: Any) -> None:
    """Keep an answer. It appears whole or not at all; where nothing can be written, it is lost."""
    path, hear = _path(key), _HEARD.get()
    if hear is not None:
        hear(key, answer)
    with contextlib.suppress(OSError):
        if not path.parent.is_dir():
            make_private(path.parent)
            prune_files(path.parents[1].glob('*/*.json'), MOST_FILES)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix='tmp') as scratch:
            made = Path(scratch) / path.name
            made.write_text(json.dumps(answer))
            os.replace(made, path)


@contextlib.contextmanager
def heard(hear: Hear) -> Iterator[None]:
    """Meanwhile `hear` is called with every key and answer that this thread keeps."""
    token = _HEARD.set(hear)
    try:
        yield
    finally:
        _HEARD.reset(token)


def _path(key: str) -> Path:
    return cache_dir() / 'chosen' / key[:2] / f'{key}.json'
