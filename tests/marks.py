"""Marks that several files share: what a test needs, and what to install where it is missing."""

from __future__ import annotations

import importlib.util
import shutil

import pytest

needs_nvrtc = pytest.mark.skipif(
    importlib.util.find_spec('cuda') is None or importlib.util.find_spec('nvidia') is None,
    reason="NVRTC is not installed: pip install 'tilewright[cuda]'",
)
needs_make = pytest.mark.skipif(
    not shutil.which('make'),
    reason='make, which builds exported C, is not installed: apt install make',
)
