"""A table of text cells, for a terminal or for a Markdown page."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Grid:
    """A table before it is laid out: headings, and rows of as many cells."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def text(self) -> str:
        """Columns aligned for a terminal; the first to the left, the others to the right."""
        rows = [self.head, *self.rows]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.head))]
        return '\n'.join(
            '  '.join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in rows
        )

    def markdown(self) -> str:
        lines = [self.head, ('---',) * len(self.head), *self.rows]
        return '\n'.join(f'| {" | ".join(cells)} |' for cells in lines)
