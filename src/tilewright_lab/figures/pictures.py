"""What all pictures need: matplotlib or one sentence, and a file or one sentence."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from tilewright.errors import InputError, MissingError

ABSENT = 'a picture needs matplotlib, which is not installed; install tilewright[report]'


def absence() -> str:
    """The sentence to say where matplotlib is missing, else ''."""
    return '' if importlib.util.find_spec('matplotlib') else ABSENT


def canvas(width: float, height: float) -> Any:
    """An empty matplotlib figure of that many inches, drawn without any display."""
    try:
        from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise MissingError(ABSENT) from None
    return Figure(figsize=(width, height), layout='constrained')


def save(figure: Any, path: Path) -> None:
    """Write a figure; the suffix of `path` chooses the format."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InputError(f'the picture cannot be written to {path}: {error}') from None


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
