"""Names and columns of figures as text; the pictures themselves are made by report/pictures.py."""

from __future__ import annotations

from tilewright.report.pictures import ABSENT, absence, canvas, save

__all__ = ['ABSENT', 'absence', 'aligned', 'canvas', 'save', 'short']


def short(name: str) -> str:
    """'mopt/R2' -> 'R2', for axes."""
    return name.rpartition('/')[2]


def aligned(rows: list[list[str]]) -> list[str]:
    """Rows as lines, the first column to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        '  '.join(
            [row[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        ).rstrip()
        for row in rows
    ]
