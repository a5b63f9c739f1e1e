"""`tilewright run --check MODEL.onnx`: do results agree with what a model's own file computes?

Goes in: inputs and results by name, and the ONNX file that a network was made from. Comes out:
`Checked`, the largest difference of every result. ONNX Runtime computes what is right; where it is
not installed, our reference in numpy does, which shares no code with kernels.
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

TOLERANCE = 1e-4

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a result is from what is right.

    share   the largest difference over the largest value; infinite where one of them is no number
            and the other is, where shapes or types differ, and for whole numbers that differ
    worst   where that is, and both values there, in words; '' where there is no difference
    """

    name: str
    share: float
    worst: str = ''


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict: what computed the right results, and how far each of ours is from them."""

    file: str
    by: str
    tolerance: float
    differences: tuple[Difference, ...]

    @property
    def ok(self) -> bool:
        return all(found.share <= self.tolerance for found in self.differences)

    def __str__(self) -> str:
        return '\n'.join(map(self._line, self.differences))

    def _line(self, found: Difference) -> str:
        if math.isinf(found.share):
            return f'{found.name}: differs from {self.by}, {found.worst}'
        verdict = 'within' if found.share <= self.tolerance else 'beyond'
        return (
            f'{found.name}: largest difference from {self.by} {found.share:.1e} of its largest '
            f'value, {verdict} {self.tolerance:g}'
        )

    @property
    def sentence(self) -> str:
        """What is wrong, of the result that is furthest off."""
        found = max(self.differences, key=lambda found: found.share)
        share = f' by {found.share:.2g} of its largest value' if math.isfinite(found.share) else ''
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
            'differences': {
                found.name: found.share if math.isfinite(found.share) else str(found.share)
                for found in self.differences
            },
        }


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
        raise InputError(f'--tolerance {tolerance} is no share; give 0 or more, such as 1e-4')
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
        [name for name, _ in graph.outputs],
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
        )  # fmt: skip
    with np.errstate(all='ignore'):
        same = np.asarray((got == want) | ((got != got) & (want != want)))
        if same.all():
            return Difference(name, 0.0)
        if got.dtype.kind != 'f':
            apart = np.where(same, 0.0, math.inf)
        else:
            right = want.astype(np.float64)
            apart = np.where(same, 0.0, np.abs(got.astype(np.float64) - right))
            apart = np.where(np.isfinite(apart), apart, math.inf)
            largest = np.abs(right).max(initial=0.0, where=np.isfinite(right))
            apart = apart / largest if largest else apart
    where = tuple(map(int, np.unravel_index(int(apart.argmax()), apart.shape)))
    said = f'at {list(where)}: {got[where]} instead of {want[where]}'
    return Difference(name, float(apart[where]), said)
