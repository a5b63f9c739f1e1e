"""What all tests of this folder share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quick(short_searches: None) -> None:
    """Schedules are tested elsewhere."""
