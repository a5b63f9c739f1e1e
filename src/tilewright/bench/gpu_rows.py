"""Rows of measurements in a compressed file that can be appended to and survives being cut off.

A file is a sequence of gzip members, each with whole CSV lines, the first with the header. A run
that is killed leaves at most one unfinished member at the end, which is dropped at the next start.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import zlib
from collections.abc import Sequence
from pathlib import Path

from tilewright.errors import StoreError


class RowFile:
    """Rows of one kind: appended in batches, read back as dictionaries of text."""

    def __init__(self, path: Path, columns: Sequence[str], batch: int = 200) -> None:
        self.path, self.columns, self.batch = path, tuple(columns), batch
        self.pending: list[list[str]] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        text, good = _members(path.read_bytes() if path.exists() else b'')
        if path.exists() and good < path.stat().st_size:
            os.truncate(path, good)
        self.rows = list(csv.DictReader(io.StringIO(text)))
        head = next(csv.reader(io.StringIO(text)), None)
        if head is not None and tuple(head) != self.columns:
            raise StoreError(
                f'{path} has the columns {",".join(head)}, not {",".join(self.columns)}; move it '
                f'away, or measure with the version that wrote it'
            )
        self.empty = head is None

    def add(self, *values: object) -> None:
        if len(values) != len(self.columns):
            raise StoreError(f'{self.path}: a row has {len(values)} of {len(self.columns)} values')
        self.pending.append([str(value) for value in values])
        if len(self.pending) >= self.batch:
            self.flush()

    def flush(self) -> None:
        """Write what is pending as one member, on the disk when this returns."""
        if not self.pending:
            return
        text = io.StringIO()
        writer = csv.writer(text, lineterminator='\n')
        if self.empty:
            writer.writerow(self.columns)
        writer.writerows(self.pending)
        with open(self.path, 'ab') as file:
            file.write(gzip.compress(text.getvalue().encode(), 9, mtime=0))
            file.flush()
            os.fsync(file.fileno())
        self.pending, self.empty = [], False

    def repack(self) -> None:
        """All members into one: smaller, the same rows."""
        self.flush()
        text, _ = _members(self.path.read_bytes() if self.path.exists() else b'')
        if text:
            fresh = self.path.with_suffix('.tmp')
            fresh.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
            os.replace(fresh, self.path)


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows of a file, an unfinished member left out."""
    return list(csv.DictReader(io.StringIO(_members(path.read_bytes())[0])))


def _members(data: bytes) -> tuple[str, int]:
    """(text of all complete members, bytes that they take)."""
    texts, place = [], 0
    while place < len(data):
        inflater = zlib.decompressobj(wbits=31)
        try:
            text = inflater.decompress(data[place:])
        except zlib.error:
            break
        if not inflater.eof:
            break
        texts.append(text)
        place = len(data) - len(inflater.unused_data)
    return b''.join(texts).decode(), place
