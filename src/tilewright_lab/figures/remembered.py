"""Results that take minutes and follow from their key: kept in a file, one each. And results that
a command wrote, to be shown again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def remembered(path: Path, make: Callable[[], Any]) -> Any:
    """What `make` gives, from the file where it was kept; one that cannot be read is made again."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        value = make()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f'.{os.getpid()}')
    fresh.write_text(json.dumps(value))
    os.replace(fresh, path)
    return value


def result_in(path: Path | None, *figures: str) -> dict[str, Any] | None:
    """What a run of one of some figures wrote, if that is the file; None for another one, and for a
    folder.
    """
    if path is None:
        return None
    try:
        said = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    mine = isinstance(said, dict) and said.get('figure') in figures and 'layers' in said
    return said if mine else None
