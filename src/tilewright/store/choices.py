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
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilewright import knobs
from tilewright.errors import InputError, TilewrightError
from tilewright.machine.compiler import cache_dir
from tilewright.schedule.schedule import Schedule
from tilewright.version import VERSION

MOST_FILES = 8192
_DECIDES = ('kernels', 'machine', 'model', 'ops', 'schedule', 'search')
GPU_DECIDES = ('network/gpu', 'rank')  # of what is chosen for GPUs, beside those


@dataclass(frozen=True, slots=True)
class Choice:
    """A schedule, what it takes by the model, what limits that, and what no kernel can beat."""

    schedule: Schedule
    predicted_s: float
    bound_s: float
    limit: str = ''

    def to_json(self) -> dict:
        return {
            'schedule': self.schedule.to_json(),
            'predicted_s': self.predicted_s,
            'bound_s': self.bound_s,
            'limit': self.limit,
        }

    @classmethod
    def from_json(cls, data: Mapping) -> Choice:
        try:
            seconds = float(data['predicted_s']), float(data['bound_s'])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f'a stored choice cannot be read: {error!r}') from None
        return cls(Schedule.from_json(data['schedule']), *seconds, str(data.get('limit', '')))


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


def recall_choice(key: str) -> Choice | None:
    """The choice that is kept under a key, or None."""
    found = recall(key)
    try:
        return None if found is None else Choice.from_json(found)
    except (TilewrightError, TypeError):
        return None


def keep(key: str, answer: Any) -> None:
    """Keep an answer. It appears whole or not at all; where nothing can be written, it is lost."""
    path = _path(key)
    with contextlib.suppress(OSError):
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            _prune(path.parents[1])
        with tempfile.TemporaryDirectory(dir=path.parent, prefix='tmp') as scratch:
            made = Path(scratch) / path.name
            made.write_text(json.dumps(answer))
            os.replace(made, path)


def _path(key: str) -> Path:
    return cache_dir() / 'chosen' / key[:2] / f'{key}.json'


def _prune(folder: Path) -> None:
    """Remove the answers that were not used for the longest time."""
    files = list(folder.glob('*/*.json'))
    if len(files) <= MOST_FILES:
        return
    ages = []
    for path in files:
        with contextlib.suppress(OSError):
            ages.append((path.stat().st_mtime, path))
    for _, path in sorted(ages)[: len(files) - MOST_FILES // 2]:
        with contextlib.suppress(OSError):
            path.unlink()
