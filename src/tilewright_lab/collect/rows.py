"""Rows of measurements: a compressed file, and beside it a journal that grows row by row.

`rows.csv.gz` is one CSV file; `rows.csv.gz.journal` holds the lines that came since, each written
when it is known. A run that is killed loses the row in flight. `pack` makes one of the two.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import StoreError

RESULT = ('status', 'time_us', 'registers', 'spill_bytes')  # the last columns of GPU data sets


class RowFile:
    """Rows of one kind: appended one by one, read back as dictionaries of text."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)
        self.journal = journal_of(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = _text(path)
        head = next(csv.reader(io.StringIO(text)), None)
        if head is not None and tuple(head) != self.columns:
            raise StoreError(
                f'{path} has the columns {",".join(head)}, not {",".join(self.columns)}; move it '
                f'away, or measure with the version that wrote it'
            )
        self.rows = list(csv.DictReader(io.StringIO(text)))
        if self.journal.exists():  # a line without its end was cut off while it was written
            kept = _whole_lines(self.journal.read_bytes())
            os.truncate(self.journal, len(kept))

    def add(self, *values: object) -> None:
        """One row; it is with the system when this returns."""
        if len(values) != len(self.columns):
            raise StoreError(f'{self.path}: a row has {len(values)} of {len(self.columns)} values')
        fresh = not self.journal.exists() and not self.path.exists()
        with open(self.journal, 'ab') as file:
            file.write(((_line(self.columns) if fresh else '') + _line(values)).encode())

    def pack(self) -> None:
        """All rows into the compressed file; the journal goes."""
        if self.journal.exists():
            fresh = self.path.with_suffix('.tmp')
            fresh.write_bytes(gzip.compress(_text(self.path).encode(), 9, mtime=0))
            os.replace(fresh, self.path)
            self.journal.unlink()


def journal_of(path: Path) -> Path:
    return path.with_name(f'{path.name}.journal')


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a file and its journal."""
    return list(csv.DictReader(io.StringIO(_text(path))))


def _line(values: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator='\n').writerow([str(value) for value in values])
    return text.getvalue()


def _whole_lines(data: bytes) -> bytes:
    return data[: data.rfind(b'\n') + 1]


def _text(path: Path) -> str:
    """What is compressed, then the journal. Rows that are in both were packed when a run was
    killed before the journal went: they count once.
    """
    try:
        packed = gzip.decompress(path.read_bytes()).decode() if path.exists() else ''
    except (OSError, EOFError) as error:
        raise StoreError(f'{path} cannot be read ({error}); restore it or move it away') from None
    journal = journal_of(path)
    added = _whole_lines(journal.read_bytes()).decode() if journal.exists() else ''
    known = set(packed.splitlines())
    return packed + ''.join(f'{line}\n' for line in added.splitlines() if line not in known)
