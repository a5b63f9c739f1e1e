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


def save(figure: Any, path: Path, **how: Any) -> None:
    """Write a figure; the suffix of `path` chooses the format."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, **how)
    except (OSError, ValueError) as error:
        raise InputError(f'the picture cannot be written to {path}: {error}') from None
