"""An indenting list of lines: all that the C generators need to write readable source."""

from __future__ import annotations


class Writer:
    """Lines of C; `open` begins a block, `close` ends it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0

    def line(self, text: str = '') -> None:
        self.lines.append('    ' * self.depth + text if text else '')

    def open(self, text: str) -> None:
        self.line(f'{text} {{' if text else '{')
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line('}')

    def text(self) -> str:
        return '\n'.join(self.lines) + '\n'


def total(terms: list[str]) -> str:
    """A C sum of the terms that are not zero."""
    return ' + '.join(t for t in terms if t and t != '0') or '0'


def scaled(name: str, factor: int) -> str:
    """A C product, without the obvious."""
    if factor == 0:
        return ''
    return name if factor == 1 else f'{name} * {factor}'
