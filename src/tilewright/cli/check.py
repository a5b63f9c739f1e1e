"""`tilewright run --check FILE`: do results agree with what a model's own file computes?

Goes in: inputs and results by name, and the ONNX file that a network was made from, or a .tw file,
whose program is computed in float64. Comes out: `Checked`, the difference of every result, and the
right results. ONNX Runtime computes what is right; where it is not installed, our reference in
numpy does, which shares no code with kernels (check/expected.py).
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tilewright.check.check import Checked, compare
from tilewright.check.expected import Expected, by_file, inputs_of
from tilewright.errors import InputError, ModelError
from tilewright.graph.graph import Value

Arrays = Mapping[str, np.ndarray]


def check_options(file: Path | None, tolerance: float | None) -> None:
    """Refuse what cannot be checked before any work begins."""
    if file is None:
        if tolerance is not None:
            raise InputError('--tolerance means nothing without --check FILE; leave it out')
        return
    if file.suffix not in ('.onnx', '.tw'):
        raise InputError(f'--check {file} is no .onnx or .tw file; name the one that was compiled')
    try:
        plain = stat.S_ISREG(file.stat().st_mode)
    except OSError as error:
        raise InputError(f'--check {file} cannot be read: {error.strerror}') from None
    if not plain:
        raise InputError(f'--check {file} is not a plain file; name the one that was compiled')
    if tolerance is not None and not 0.0 <= tolerance < math.inf:
        raise InputError(f'--tolerance {tolerance} is no error; give 0 or more, such as 1e-3')


def check(
    file: Path,
    inputs: Sequence[Value],
    arrays: Arrays,
    results: Arrays,
    tolerance: float | None = None,
    threads: int = 1,
) -> tuple[Checked, Expected]:
    """The results of a network against those of its file, on the same inputs."""
    shapes = {value.name: value.shape for value in inputs}
    try:
        missing = [name for name in inputs_of(file, shapes) if name not in arrays]
        if missing:
            raise InputError(
                f'--check {file} has an input {missing[0]!r} that the network has not; name the '
                f'file that it was compiled from, or it was compiled with constants=, which '
                f'--check does not know'
            )
        right, limit = by_file(file, shapes, arrays, threads)
    except ModelError as error:
        raise ModelError(f'--check: {error}') from None
    if set(right.arrays) != set(results):
        raise InputError(
            f'--check {file} gives {", ".join(sorted(right.arrays))}, the network '
            f'{", ".join(sorted(results))}; name the file that it was compiled from'
        )
    return compare(str(file), right, results, limit if tolerance is None else tolerance), right
