"""The files of a GPU data set: one for each schema and intrinsic, and what they hold already.

Goes in: a folder and a `Layout`, which says how files and columns are called. Comes out: `RowSets`,
which takes rows and says what is left of a family.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic

from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.compiled import Family, Of
from tilewright_lab.collect.meter import Row
from tilewright_lab.collect.rows import RESULT, RowFile

LIGHT = {'general': 4, 'rows': 4, 'depthwise': 3}  # families that compile in the time of one


@dataclass(frozen=True, slots=True)
class Layout(Generic[Of]):
    """How rows are written.

    file_name   (schema, intrinsic) -> the file's name
    subject     columns that say what was measured, and `cells` their values
    names       (schema, intrinsic) -> columns of a schedule's decisions, and `decisions` the values
    """

    file_name: Callable[[str, str], str]
    subject: tuple[str, ...]
    cells: Callable[[Of], tuple[object, ...]]
    names: Callable[[str, str], tuple[str, ...]]
    decisions: Callable[[GpuSchedule], tuple[int, ...]]

    def columns(self, schema: str, intrinsic: str) -> tuple[str, ...]:
        return (*self.subject, *self.names(schema, intrinsic), *RESULT)

    def key(self, of: Of, schedule: GpuSchedule) -> tuple[str, ...]:
        """What makes a row one of its own, as text."""
        return tuple(map(str, (*self.cells(of), *self.decisions(schedule))))


class RowSets(Generic[Of]):
    """The files of a set, one for each schema and intrinsic, and what they hold already."""

    def __init__(self, folder: Path, layout: Layout[Of]) -> None:
        self.folder, self.layout = folder, layout
        self.files: dict[tuple[str, str], RowFile] = {}
        self.done: dict[tuple[str, str], set[tuple[str, ...]]] = {}

    def file(self, kind: tuple[str, str]) -> RowFile:
        if kind not in self.files:
            columns = self.layout.columns(*kind)
            file = RowFile(self.folder / self.layout.file_name(*kind), columns)
            self.files[kind] = file
            key = columns[: -len(RESULT)]
            self.done[kind] = {tuple(row[name] for name in key) for row in file.rows}
        return self.files[kind]

    def claimed(self, family: Family[Of]) -> Family[Of] | None:
        """The family without what was measured or claimed before."""
        self.file(family.kind)
        done = self.done[family.kind]
        open_ = []
        for schedule in family.schedules:
            key = self.layout.key(family.of, schedule)
            if key not in done:
                done.add(key)
                open_.append(schedule)
        return Family(family.of, tuple(open_)) if open_ else None

    def add(self, row: Row[Of]) -> None:
        schedule = row.schedule
        taken = ['' if v is None else v for v in (row.registers, row.spill_bytes)]
        micro = '' if row.time_us is None else f'{row.time_us:.3f}'
        self.file((schedule.schema, schedule.intrinsic)).add(
            *self.layout.key(row.of, schedule), row.status, micro, *taken
        )

    def close(self) -> None:
        for file in self.files.values():
            file.pack()


def chunks(families: Sequence[Family[Of]], size: int) -> list[tuple[Family[Of], ...]]:
    """Families of one subject and schema, some at a time: one compilation each."""
    made: list[list[Family[Of]]] = []
    for family in families:
        last = made[-1] if made else []
        same = bool(last) and (last[0].of, last[0].kind) == (family.of, family.kind)
        if same and len(last) < size * LIGHT.get(family.kind[0], 1):
            last.append(family)
        else:
            made.append([family])
    return [tuple(chunk) for chunk in made]
