"""Candidate libraries for a 4 x 4 matrix product, right ones and every kind of bad one."""

from pathlib import Path

from tilewright.machine.compiler import build
from tilewright.ops.matmul import matmul

GROUP = matmul(m=4, n=4, k=4)
_FOLDER = Path(__file__).parent


def library(name: str, *defines: str) -> Path:
    """Build the candidate in `<name>.c`; `defines` make libraries of the same text differ."""
    text = (_FOLDER / 'matmul.h').read_text() + (_FOLDER / f'{name}.c').read_text()
    return build(text, ('-O1', *(f'-D{d}' for d in defines)), name=name)
