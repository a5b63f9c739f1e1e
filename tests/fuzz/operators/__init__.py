"""The table: every operator that Tilewright claims, and how a node of it is drawn."""

from __future__ import annotations

from ..draw import Row
from . import elementwise, moving, patterns, sums

ROWS: dict[str, Row] = {
    row.op: row for row in (*elementwise.ROWS, *moving.ROWS, *patterns.ROWS, *sums.ROWS)
}
