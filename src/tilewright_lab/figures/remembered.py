"""Results that take minutes and follow from their key: kept in a file, one each."""

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
