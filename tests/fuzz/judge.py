"""Right or wrong: an answer against the oracle's.

Goes in: a `Net` and what a target computed for it. Comes out: a sentence about the worst element,
or '' where all is right. Absolute and relative tolerance together, as in runtime/verify.py: the
difference is divided by the larger of both values and the root mean square of the right ones.
Whole numbers have to be equal.

Where something differs, the oracle computes the graph again, several times, with errors put on its
arithmetic: an element that moves by them is allowed ten times that, and one that jumps (a floor, an
ArgMax of equals) is not judged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from . import oracle
from .graphs import Arrays, Net

TOLERANCE = {'float32': 1e-4, 'float64': 1e-9}
TIMES = 6, 60  # runs with errors; more where something still differs: many may be equal
ALLOWED = 10.0
SMALLEST = 1e-3  # what is smaller than this is compared as if it were this large
JUMP = 1e-2  # a move by this share is none that a tolerance could cover


@dataclass(frozen=True)
class Verdict:
    """What is wrong, in a sentence, or ''; and how many elements could not be judged."""

    message: str = ''
    unstable: int = 0


def judge(net: Net, got: Arrays) -> Verdict:
    """[Net, outputs] -> [Verdict]"""
    want = {name: net.values[name] for name in net.outputs}
    for name, right in want.items():
        if name not in got:
            return Verdict(f'output {name} is missing')
        found = got[name]
        if found.shape != right.shape or found.dtype != right.dtype:
            return Verdict(
                f'{name} is {found.dtype}{list(found.shape)}, expected '
                f'{right.dtype}{list(right.shape)}'
            )
    errors = {name: _errors(got[name], want[name]) for name in want}
    if not any((e > 1).any() for e in errors.values()):
        return Verdict()
    moved = {name: np.zeros(a.shape) for name, a in want.items()}
    jumps = {name: np.zeros(a.shape, bool) for name, a in want.items()}
    verdict = Verdict()
    for seeds in (range(TIMES[0]), range(*TIMES)):
        for seed in seeds:
            for name, other in oracle.noisy(net, seed).items():
                if other.shape != want[name].shape:
                    return Verdict(unstable=sum(a.size for a in want.values()))
                distance, jump = _moved(other, want[name])
                moved[name] = np.maximum(moved[name], distance)
                jumps[name] |= jump
        verdict = _verdict(got, want, errors, moved, jumps)
        if not verdict.message:
            break
    return verdict


def _verdict(got: Arrays, want: Arrays, errors: Arrays, moved: Arrays, jumps: Arrays) -> Verdict:
    """What is wrong although errors of arithmetic were taken into account."""
    unstable = 0
    for name, right in want.items():
        wrong = (_errors(got[name], right, ALLOWED * moved[name]) > 1) & ~jumps[name]
        unstable += int((jumps[name] & (errors[name] > 1)).sum())
        if wrong.any():
            at = tuple(map(int, np.argwhere(wrong)[0]))
            return Verdict(
                f'{name} is {got[name][at]} at {list(at)}, expected {right[at]}; '
                f'{int(wrong.sum())} of {wrong.size} elements are wrong',
                unstable,
            )
    return Verdict(unstable=unstable)


def _errors(got: np.ndarray, want: np.ndarray, slack: np.ndarray | float = 0.0) -> np.ndarray:
    """Differences, one of them being the most that is allowed."""
    if want.dtype.kind != 'f':
        return np.where(got == want, 0.0, np.inf)
    with np.errstate(all='ignore'):
        answer, right = got.astype(np.float64), want.astype(np.float64)
        base = np.maximum(np.maximum(np.abs(answer), np.abs(right)), max(_scale(right), SMALLEST))
        allowed = TOLERANCE[str(want.dtype)] * base + slack
        same = (answer == right) | (np.isnan(answer) & np.isnan(right))
        error = np.where(same, 0.0, np.abs(answer - right) / allowed)
        return np.where(np.isnan(error) | (~same & ~np.isfinite(answer)), np.inf, error)


def _moved(other: np.ndarray, want: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How far errors moved elements, and which of them jumped."""
    if want.dtype.kind != 'f':
        return np.zeros(want.shape), other != want
    with np.errstate(all='ignore'):
        distance = np.abs(other.astype(np.float64) - want.astype(np.float64))
        strange = np.isnan(distance) & ~(np.isnan(other) & np.isnan(want))
        distance = np.where(np.isfinite(distance), distance, 0.0)
        far = distance > JUMP * np.maximum(
            np.abs(want), max(_scale(want.astype(np.float64)), SMALLEST)
        )
        return distance, far | strange | (np.isfinite(other) != np.isfinite(want))


def _scale(right: np.ndarray) -> float:
    """The root mean square of what is finite."""
    finite = np.isfinite(right)
    return float(np.sqrt(np.sum(right**2, where=finite) / max(1, int(finite.sum()))))
