"""A compiled network, run once and compared, before it is handed out.

    random data -> network -> results  <- compare ->  right results <- ONNX Runtime, PyTorch, numpy
                                             |
                              too far: cause.py finds who is to blame

Goes in: a network and what it was made from. Comes out: `Checked`, or a `CheckError` that names
the pass or the task and the folder that shows it again. Results further off than the
tolerance are no failure where every pass and every task is right by itself: then the network
magnifies the rounding of its kernels, and a warning says so.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewright.check.cause import Cause, Subject, cause_of
from tilewright.check.data import random_inputs
from tilewright.check.difference import Arrays, Difference, difference, tolerance_of
from tilewright.check.expected import Expected, by_program
from tilewright.check.failure import Files, write_failure
from tilewright.errors import CheckError, InputError
from tilewright.runtime.verify import LEAST

MOST_FLOPS = 5e9  # of our reference: ten seconds or so on two cores


@dataclass(frozen=True, slots=True)
class Checked:
    """The verdict: what computed the right results, and how far each of ours is from them.

    file     the model's, or its name
    grown    whether they are beyond the tolerance although every part is right
    """

    file: str
    by: str
    tolerance: float
    differences: tuple[Difference, ...]
    grown: bool = False

    @property
    def ok(self) -> bool:
        return self.grown or self.within

    @property
    def within(self) -> bool:
        return all(found.error <= self.tolerance for found in self.differences)

    def __str__(self) -> str:
        return '\n'.join(map(self._line, self.differences))

    def _line(self, found: Difference) -> str:
        if math.isinf(found.error):
            return f'{found.name}: differs from {self.by}, {found.worst}'
        verdict = 'within' if found.error <= self.tolerance else 'beyond'
        return (
            f'{found.name}: largest difference from {self.by} {found.share:.1e} of its largest '
            f'value, error {found.error:.1e}, {verdict} {self.tolerance:.2g}'
        )

    @property
    def sentence(self) -> str:
        """What is wrong, of the result that is furthest off."""
        found = max(self.differences, key=lambda found: found.error)
        return (
            f'{found.name!r} differs from what {self.by} computes for {self.file}{found.amount}, '
            f'{found.worst}; {_measure(found)}the tolerance is {self.tolerance:.2g}'
        )

    def to_json(self) -> dict:
        return {
            'file': self.file,
            'by': self.by,
            'tolerance': self.tolerance,
            'ok': self.ok,
            'grown': self.grown,
            'differences': {found.name: _number(found.share) for found in self.differences},
            'errors': {found.name: _number(found.error) for found in self.differences},
        }


def _measure(found: Difference) -> str:
    return f'its error is {found.error:.2g}, ' if math.isfinite(found.error) else ''


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


@dataclass(frozen=True)
class Check:
    """What a check is to do; `tw.compile(check=True)` is `Check()`.

    seed       of the random inputs
    arrays     inputs, instead of random ones
    expected   the right results for `arrays`, where somebody has computed them
    tolerance  how far results may be off; one that is given holds, whatever the reason
    report     called with the verdict
    most_flops operations that our reference in numpy may take, where nobody else computes it: it
               is left to it by default, when kernels are timed, if that takes seconds
    """

    seed: int = 0
    arrays: Arrays | None = None
    expected: Expected | None = None
    tolerance: float | None = None
    report: Callable[[Checked], object] | None = None
    most_flops: float = math.inf


def wanted(check: object, tune: str) -> Check | None:
    """What `check=` of `tw.compile` asks for: by default what is measured is also checked."""
    if check is None:
        return Check(most_flops=MOST_FLOPS) if tune == 'measure' else None
    if isinstance(check, Check):
        return check
    if isinstance(check, bool):
        return Check() if check else None
    raise InputError(f'check is {check!r}; give True, False, None or a Check')


def compare(
    file: str, expected: Expected, results: Mapping[str, np.ndarray], tolerance: float
) -> Checked:
    """How far results are from the right ones."""
    found = tuple(
        difference(name, np.asarray(results[name]), np.asarray(expected.arrays[name]), LEAST)
        for name in results
    )
    return Checked(file, expected.by, tolerance, found)


def check_network(
    subject: Subject,
    check: Check,
    files: Files,
    right: Callable[[Arrays, float], Expected | None] | None = None,
) -> Checked | None:
    """Run a network once and judge it; raises CheckError where it is wrong.

    `right` computes what is right in so many operations; by default the program does, in as many
    as it takes. None: it would take more.
    """
    program, network = subject.plain or subject.program, subject.network
    arrays = random_inputs(program, check.seed) if check.arrays is None else check.arrays
    expected = check.expected
    if expected is None:
        expected = by_program(program, arrays) if right is None else right(arrays, check.most_flops)
    if expected is None:
        warnings.warn(
            f'{network.name} is not checked: its reference in numpy takes more than '
            f'{check.most_flops:.0e} operations; check=True computes it all the same',
            stacklevel=3,
        )
        return None
    limit = check.tolerance
    if limit is None:
        # What is compiled may be stored in fewer bits than the model says.
        limit = max(tolerance_of(p, subject.max_rel_err) for p in (program, subject.program))
    got = network.run(arrays)
    verdict = compare(network.name, expected, got, limit)
    if not verdict.within:
        cause = cause_of(subject, arrays, got, expected, limit)
        if cause is not None or check.tolerance is not None:
            shown = write_failure(network.name, files, cause, arrays, expected.arrays, got)
            raise CheckError(f'{_said(network.name, verdict, cause)}; {shown}')
        verdict = Checked(verdict.file, verdict.by, limit, verdict.differences, grown=True)
        warnings.warn(f'{verdict.sentence}; {GROWN}', stacklevel=3)
    if check.report is not None:
        check.report(verdict)
    return verdict


GROWN = (
    'every task by itself is right within the tolerance of one kernel, so that it is the network '
    'that magnifies rounding'
)


def _said(name: str, verdict: Checked, cause: Cause | None) -> str:
    if cause is None:
        return f'{verdict.sentence}; {GROWN}'
    return f'{name}: {cause.sentence}; {_end(verdict)}'


def _end(verdict: Checked) -> str:
    """The result of the network that differs most, briefly."""
    found = max(verdict.differences, key=lambda found: found.error)
    measure = f' (error {found.error:.2g})' if math.isfinite(found.error) else ''
    return (
        f'in the end {found.name!r} differs from {verdict.by}{measure}, and the tolerance is '
        f'{verdict.tolerance:.2g}'
    )
