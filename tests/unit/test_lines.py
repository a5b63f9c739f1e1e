"""Counting what the lines of a module are."""

from __future__ import annotations

from tilewright_lab.scripts.lines import kinds, sources

MODULE = '''"""Two
lines."""

import os
from sys import (
    path,
)


# a remark
def size() -> int:
    """One."""
    text = """not
    a docstring"""
    return len(os.fspath(path[0])) + len(text)  # statement
'''


def test_lines_are_counted_by_what_they_are():
    assert kinds(MODULE) == {
        'docstring': 3, 'import': 4, 'blank': 3, 'comment': 1, 'statement': 4,
    }  # fmt: skip


def test_every_line_is_counted_once():
    """In modules of one package, which have all kinds of lines."""
    found = {path: text for path, text in sources(None) if path.parts[0] == 'graph'}
    assert len(found) > 20
    for path, text in found.items():
        assert kinds(text).total() == len(text.splitlines()), path
