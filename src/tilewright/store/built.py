"""Which library a schedule of a group became, so that its source need not be generated again.

Source follows from group and schedule, and a library from source, flags and compiler; the first
takes tenths of a second. What is kept is the place of an entry of the compile cache, which is
compared with its checksum before it is used (`machine/compiler.py`). Nothing is kept of schemas and
instruction sets that were registered: the next process may mean others by their names.
"""

from __future__ import annotations

from pathlib import Path

from tilewright.kernels.cpu.schema import is_shipped
from tilewright.machine import compiler as build
from tilewright.ops.group import Group
from tilewright.schedule.schedule import Schedule
from tilewright.store import choices


def find(group: Group, schedule: Schedule) -> Path | None:
    """The library that was built before, if it is still there and whole."""
    if not is_shipped(schedule):
        return None
    kept = choices.recall(_key(group, schedule))
    if not isinstance(kept, str):
        return None
    root = build.cache_dir() / 'code'
    library = root / kept
    if library.suffix != '.so' or root not in library.parents or '..' in library.parts:
        return None
    return library if build.is_intact(library) else None


def remember(group: Group, schedule: Schedule, library: Path) -> None:
    """Note the library of a schedule."""
    root = build.cache_dir() / 'code'
    if root in library.parents and is_shipped(schedule):
        choices.keep(_key(group, schedule), library.relative_to(root).as_posix())


def _key(group: Group, schedule: Schedule) -> str:
    command, version = build.identity()
    return choices.key_of(
        {
            'library': group.digest,
            'schedule': schedule.digest,
            'compiler': [*command, version],
            'flags': list(build.BASE_FLAGS),
        }
    )
