"""How far results are from those of floats, and limits on that.

Goes in: results of both on the same samples. Comes out: an `OutputError`: relative error, cosine,
and how often the top class is the same. `Accuracy` is a limit on one of these, written as
'rel=0.01', 'cosine=0.999' or 'top1=0.98'.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from tilewright.errors import InputError

# name -> what it limits; the first is the largest that is allowed, the others the least.
MEASURES = {
    'rel': 'the relative error of the results',
    'cosine': 'the cosine between the results',
    'top1': 'the share of rows with the same top class',
}


@dataclass(frozen=True, slots=True)
class OutputError:
    """Over all results and samples.

    rel     ||a - b|| / ||b||
    cosine  a b / (||a|| ||b||)
    top1    the share of rows, along the last axis, whose largest number is at the same place
    """

    rel: float
    cosine: float
    top1: float

    def to_json(self) -> dict:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f'relative error {self.rel:.3g}, cosine {self.cosine:.6f}, top class the same in '
            f'{100 * self.top1:.1f}%'
        )


EXACT = OutputError(0.0, 1.0, 1.0)


def output_error(
    right: Sequence[Mapping[str, np.ndarray]], found: Sequence[Mapping[str, np.ndarray]]
) -> OutputError:
    """[results of floats, results of others] -> [OutputError]"""
    wrong = whole = other = product = 0.0
    same = rows = 0
    for a, b in zip(right, found, strict=True):
        for name, array in a.items():
            if array.dtype.kind != 'f' or not array.size:
                continue
            x, y = array.astype(np.float64), b[name].astype(np.float64)
            wrong += float(((y - x) ** 2).sum())
            whole += float((x**2).sum())
            other += float((y**2).sum())
            product += float((x * y).sum())
            tops = [np.atleast_1d(v).argmax(-1) for v in (x, y)]
            same += int(np.count_nonzero(tops[0] == tops[1]))
            rows += tops[0].size
    if not rows:
        raise InputError('the model gives no floats, of which an error could be measured')
    rel = math.sqrt(wrong / whole) if whole > 0 else math.sqrt(wrong)
    cosine = product / math.sqrt(whole * other) if whole * other > 0 else float(wrong == 0)
    return OutputError(rel, cosine, same / rows)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """A limit on one measure."""

    measure: str
    limit: float

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise InputError(
                f'accuracy by {self.measure!r} is not known; choose one of {", ".join(MEASURES)}'
            )
        most = math.inf if self.measure == 'rel' else 1.0
        if not 0 < self.limit <= most or math.isinf(self.limit):  # false for nan
            bound = 'more than 0' if self.measure == 'rel' else 'more than 0 and at most 1'
            raise InputError(f'accuracy {self.measure}={self.limit}; give {bound}')

    @classmethod
    def of(cls, given: object) -> Accuracy:
        """'rel=0.01', ('rel', 0.01), {'rel': 0.01}, or a number, which is a relative error."""
        if isinstance(given, Accuracy):
            return given
        if isinstance(given, Mapping) and len(given) == 1:
            given = next(iter(given.items()))
        if isinstance(given, int | float) and not isinstance(given, bool):
            given = ('rel', given)
        if isinstance(given, str):
            given = tuple(given.split('='))
        try:
            measure, limit = given  # type: ignore[misc]
            return cls(str(measure).strip(), float(limit))
        except (TypeError, ValueError):
            raise InputError(
                f"accuracy {given!r} cannot be read; write 'rel=0.01', 'cosine=0.999' or "
                f"'top1=0.98'"
            ) from None

    def loss(self, error: OutputError) -> float:
        """What grows with every group that is rounded, about by a number of its own each: squares
        of independent errors add up, and so do angles' squares and rows whose class changes.
        """
        if self.measure == 'rel':
            return error.rel**2
        return 1 - getattr(error, self.measure)

    @property
    def allowed(self) -> float:
        """The largest loss."""
        return self.limit**2 if self.measure == 'rel' else 1 - self.limit

    def holds(self, error: OutputError) -> bool:
        return self.loss(error) <= self.allowed

    def tightened(self, times: float) -> Accuracy:
        """The same with a loss so many times smaller."""
        if self.measure == 'rel':
            return Accuracy('rel', self.limit / math.sqrt(times))
        return Accuracy(self.measure, 1 - self.allowed / times)

    def __str__(self) -> str:
        return f'{self.measure}={self.limit:g}'
