"""`tilewright run --check MODEL.onnx`: do results agree with what a model's own file computes?

Goes in: inputs and results by name, and the ONNX file that a network was made from. Comes out:
`Checked`, the largest difference of every result, judged as runtime/verify.py judges networks. ONNX
Runtime computes what is right; where it is not installed, our reference in numpy does, which shares
no code with kernels.
"""

from __future__ import annotations

import math
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tilewright.errors import InputError, MissingError, ModelError
from tilewright.graph.graph import Value
from tilewright.runtime import verify

TOLERANCE = verify.NETWORK_TOLERANCE[4]

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a result is from what is right.

    share   the largest difference over the largest value; infinite where one of them is no number
            and the other is, where shapes or types differ, and for whole numbers that differ
    worst   where it is worst, and both values there, in words; '' where there is no difference
    error   the largest relative difference, clamped as runtime/verify.py says: this one decides
    """

    name: str
    share: float
    worst: str = ''
    error: float = 0.0


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict: what computed the right results, and how far each of ours is from them."""

    file: str
    by: str
    tolerance: float
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        return all(found.error <= self.tolerance for found in self.differences)

    def __str__(self) -> str:
        return '\n'.join(map(self._line, self.differences))

    def _line(self, found: Difference) -> str:
        if math.isinf(found.error):
            return f'{found.name}: differs from {self.by}, {found.worst}'
        verdict = 'within' if found.error <= self.tolerance else 'beyond'
        return (
            f'{found.name}: largest relative difference from {self.by} {found.error:.1e}, '
            f'{verdict} {self.tolerance:g}; {found.share:.1e} of its largest value'
        )

    @property
    def sentence(self) -> str:
        """What is wrong, of the result that is furthest off."""
        found = max(self.differences, key=lambda found: found.error)
        share = f' by {found.error:.2g}, relatively' if math.isfinite(found.error) else ''
        return (
            f'{found.name!r} differs from what {self.by} computes for {self.file}{share}, '
            f'{found.worst}; the tolerance is {self.tolerance:g}'
        )

    def to_json(self) -> dict:
        return {
            'file': self.file,
            'by': self.by,
            'tolerance': self.tolerance,
            'ok': self.ok,
            'differences': {found.name: _number(found.share) for found in self.differences},
            'errors': {found.name: _number(found.error) for found in self.differences},
        }


def _number(value: float) -> float | str:
    """What JSON can hold."""
    return value if math.isfinite(value) else str(value)


def check_options(file: Path | None, tolerance: float | None) -> float:
    """Refuse what cannot be checked before any work begins; comes out: the tolerance."""
    if file is None:
        if tolerance is not None:
            raise InputError('--tolerance means nothing without --check FILE; leave it out')
        return TOLERANCE
    if file.suffix != '.onnx':
        raise InputError(f'--check {file} is no .onnx file; name the one that was compiled')
    try:
        plain = stat.S_ISREG(file.stat().st_mode)
    except OSError as error:
        raise InputError(f'--check {file} cannot be read: {error.strerror}') from None
    if not plain:
        raise InputError(f'--check {file} is no plain file; name the one that was compiled')
    if tolerance is None:
        return TOLERANCE
    if not 0.0 <= tolerance < math.inf:
        raise InputError(
            f'--tolerance {tolerance} is no relative difference; give 0 or more, such as 1e-4'
        )
    return tolerance


def check(
    file: Path, inputs: Sequence[Value], arrays: Arrays, results: Arrays, tolerance: float
) -> Checked:
    """The results of a network against those of its ONNX file, on the same inputs."""
    want, by = _right(file, inputs, arrays)
    if set(want) != set(results):
        raise InputError(
            f'--check {file} gives {", ".join(sorted(want))}, the network '
            f'{", ".join(sorted(results))}; name the file that it was compiled from'
        )
    found = tuple(difference(name, results[name], np.asarray(want[name])) for name in results)
    return Checked(str(file), by, tolerance, found)


def _right(file: Path, inputs: Sequence[Value], arrays: Arrays) -> tuple[Arrays, str]:
    """What a file computes, and who says so; sizes that it leaves open are the network's."""
    from tilewright.fallback.sessions import Kind, Session, sub_model
    from tilewright.graph.evaluate import evaluate
    from tilewright.graph.lower import lower
    from tilewright.importers.onnx import import_traced

    try:
        traced = import_traced(file, {value.name: value.shape for value in inputs})
    except ModelError as error:
        raise ModelError(f'--check: {error}') from None
    graph, source = traced.graph, traced.model
    missing = [value.name for value in graph.inputs if value.name not in arrays]
    if missing:
        raise InputError(
            f'--check {file} has an input {missing[0]!r} that the network has not; name the file '
            f'that it was compiled from, or it was compiled with constants=, which --check does '
            f'not know'
        )
    stored = {tensor.name for tensor in source.graph.initializer}
    model = sub_model(
        source, source.graph.node, {value.name: Kind.of(value) for value in graph.inputs},
        {name: array for name, array in graph.constants.items() if name in stored},
        [name for name, _ in graph.outputs], traced.folder,
    )  # fmt: skip
    try:
        return Session(model, 1, str(file)).run(arrays), 'ONNX Runtime'
    except MissingError:
        return evaluate(lower(graph), arrays), 'the reference in numpy'


def difference(name: str, got: np.ndarray, want: np.ndarray) -> Difference:
    """How far one result is off."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return Difference(
            name, math.inf,
            f'being {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}',
            math.inf,
        )  # fmt: skip
    found = verify.compare_arrays(name, got, want, tolerance=0.0, least=verify.LEAST)
    if found.where is None:
        return Difference(name, 0.0)
    said = f'at {list(found.where)}: {got[found.where]} instead of {want[found.where]}'
    return Difference(name, found.max_rel_err, said, found.error)
