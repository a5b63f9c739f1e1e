"""The table: every operator that Tilewright claims, and how a node of it is drawn."""

from __future__ import annotations

from ..draw import Row
from . import elementwise, moving, patterns, sequences, sums

ROWS: dict[str, Row] = {
    row.op: row for table in (elementwise, moving, patterns, sums, sequences) for row in table.ROWS
}
# Operators for which NaN and infinities have one meaning: others sum them up in an order of their
# own, or choose the largest of them, and there ONNX Runtime does not follow the standard itself.
CLEAR: tuple[str, ...] = tuple(
    row.op for row in (*elementwise.ROWS, *moving.ROWS) if row.op not in ('Clip', 'Resize')
)
