"""How far a result is from the right one, and how far a network's results may be.

Goes in: two arrays. Comes out: a `Difference`, by the rule that kernels are judged by
(runtime/verify.py),

    error = |got - want| / max(|got|, |want|, root mean square of want, least),

which is relative for large values and absolute for small ones; `least` is `LEAST` of verify.py for
results of networks, 0 for kernels. Whole numbers, truth values, NaN and infinities must be equal.

*Tolerance.* One kernel may be off by `TOLERANCE` of verify.py (1e-3 for floats), for which it is
planned with an error of `max_rel_err` of its largest result. A network adds up the errors of the
sums on its longest way. They are as good as independent, and on random data a layer hands them on
about as large, relative to its values, as it got them. So their squares add up:

    tolerance = TOLERANCE * max(1, max_rel_err / 1e-4) * sqrt(sums on the longest way)

Networks that magnify what comes in are beyond this without being wrong, which check.py finds out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.program import Program
from tilewright.ops.dtypes import holds_floats
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.runtime.verify import TOLERANCE, denominator, root_mean_square

Arrays = Mapping[str, np.ndarray]
Compute = Callable[[Arrays], Arrays]
MANY = 16  # elements that are off: more than a few tries can be asked to move one by one


@dataclass(frozen=True, slots=True)
class Difference:
    """How far a result is from what is right.

    error     what the tolerance is for; infinite where values, shapes or types cannot be compared,
              and for whole numbers that differ
    absolute  the largest |got - want|
    share     that over the largest |want|
    worst     where the error is largest and both values there, in words; '' without a difference
    """

    name: str
    error: float
    absolute: float = 0.0
    share: float = 0.0
    worst: str = ''

    @property
    def amount(self) -> str:
        """'by 0.5, 0.1 of the largest value'; '' where there is no measure."""
        if not math.isfinite(self.error):
            return ''
        return f' by at most {self.absolute:.3g}, {self.share:.2g} of the largest value'


def difference(name: str, got: np.ndarray, want: np.ndarray, least: float = 0.0) -> Difference:
    """How far one result is off."""
    if got.shape != want.shape or got.dtype != want.dtype:
        said = f'being {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}'
        return Difference(name, math.inf, math.inf, math.inf, said)
    error = errors(got, want, least)
    if not error.max(initial=0.0):
        return Difference(name, 0.0)
    where = tuple(map(int, np.unravel_index(int(error.argmax()), error.shape)))
    said = f'at {list(where)}: {_said(got[where])} instead of {_said(want[where])}'
    if not math.isfinite(error[where]):
        count = int((~np.isfinite(error)).sum())
        said += f', as are {count} of {error.size} elements' if count > 1 else ''
        return Difference(name, math.inf, math.inf, math.inf, said)
    with np.errstate(all='ignore'):
        right = want.astype(np.float64)
        apart = np.abs(np.where(got == want, 0.0, got.astype(np.float64) - right))
    most = float(np.nanmax(apart))
    largest = float(np.abs(right).max(initial=0.0, where=np.isfinite(right)))
    return Difference(name, float(error[where]), most, most / largest if largest else most, said)


def errors(got: np.ndarray, want: np.ndarray, least: float = 0.0) -> np.ndarray:
    """The error of every element of arrays with the same shape and dtype."""
    with np.errstate(all='ignore'):
        same = np.asarray((got == want) | ((got != got) & (want != want)))
        if not holds_floats(got):
            return np.where(same, 0.0, math.inf)
        answer, right = got.astype(np.float64), want.astype(np.float64)
        scale = max(root_mean_square(right, np.isfinite(right)), least)
        error = np.abs(answer - right) / denominator(answer, right, scale)
        # An infinity over an infinity is not a number, and neither is what a NaN is part of.
        error = np.where(np.isfinite(error) & np.isfinite(answer), error, math.inf)
        return np.where(same, 0.0, error)


def tolerance_of(program: Program, max_rel_err: float = DEFAULT_LIMIT) -> float:
    """How far the results of a program may be off, see above."""
    return kernel_tolerance(_dtypes(program), max_rel_err) * math.sqrt(max(1, _sums(program)))


def kernel_tolerance(dtypes: Sequence[str], max_rel_err: float = DEFAULT_LIMIT) -> float:
    """How far one kernel with tensors of these dtypes may be off."""
    floats = [TOLERANCE[dtype] for dtype in dtypes if dtype in TOLERANCE]
    return max(floats, default=TOLERANCE['f32']) * max(1.0, max_rel_err / DEFAULT_LIMIT)


def _dtypes(program: Program) -> list[str]:
    return [value.dtype for value in program.values.values()]


def _sums(program: Program) -> int:
    """Tasks that sum up, on the way that has most of them."""
    deep: dict[str, int] = {}
    for task in program.tasks:
        roots = [program.place(value)[0] for value in task.operands.values()]
        own = sum(stage.combiner == 'sum' for stage in task.group.stages)
        root, _ = program.place(task.result)
        before = max((deep.get(read, 0) for read in roots), default=0)
        deep[root] = max(deep.get(root, 0), before + own)
    return max(deep.values(), default=0)


def explained(
    compute: Compute, arrays: Arrays, got: Arrays, limit: float, moved_by: float, tries: int,
    *, whole: bool = False,
) -> bool:  # fmt: skip
    """Whether results differ only where they hang by a thread.

    compute   the exact results for some inputs, by name
    got       results that are further from them than `limit`
    moved_by  the relative amount by which inputs are moved at random
    whole     these are the results of a whole network, through all of its roundings

    An index of the larger of two values that are nearly equal, a number just before it is rounded,
    a quotient by nearly nothing: where exact results for inputs that were moved a little are as
    far off, the difference says nothing against whoever made it.

    A few tries do not move every one of `MANY` elements. What a network that rounds at each layer
    gives, as quantised ones do, is then judged together: at most twice as many elements may be off
    as in one of the tries, and at most twice as far.
    """
    exact = compute(arrays)
    rng = np.random.default_rng(0)
    tried = [compute(_moved(arrays, moved_by, rng)) for _ in range(tries)]
    return all(
        _reached(got[name], right, others, limit)
        or (whole and _alike(got[name], right, others, limit))
        for name, right, others in (
            (name, exact[name].astype(got[name].dtype), [t[name] for t in tried]) for name in got
        )
    )


def _moved(arrays: Arrays, amount: float, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {
        name: (a * (1 + amount * rng.uniform(-1, 1, a.shape))).astype(a.dtype)
        if holds_floats(a)
        else a
        for name, a in arrays.items()
    }


def _reached(got: np.ndarray, exact: np.ndarray, tried: Sequence[np.ndarray], limit: float) -> bool:
    """Whether every element is right, or one of those that were tried, or between them."""
    bad = errors(got, exact) > limit
    if not bad.any():
        return True
    here = got[bad]
    others = np.stack([other.astype(got.dtype)[bad] for other in tried])
    with np.errstate(all='ignore'):
        same = (others == here) | ((others != others) & (here != here))
        fine = same.any(axis=0)
        if holds_floats(got):
            centre = exact[bad].astype(np.float64)
            reach = 2 * np.abs(others.astype(np.float64) - centre).max(axis=0)
            fine |= np.abs(here.astype(np.float64) - centre) <= reach
    return bool(fine.all())


def _alike(got: np.ndarray, exact: np.ndarray, tried: Sequence[np.ndarray], limit: float) -> bool:
    """Whether many numbers are off, but at most twice as many as in a try, and twice as far."""
    centre = exact.astype(np.float64)

    def off(array: np.ndarray) -> tuple[int, float]:
        made = array.astype(got.dtype)
        with np.errstate(all='ignore'):
            furthest = np.abs(made.astype(np.float64) - centre).max()
        return int(np.count_nonzero(errors(made, exact) > limit)), float(furthest)

    if not holds_floats(got):
        return False
    others = [off(array) for array in tried]
    count, furthest = off(got)
    if count < MANY or not all(math.isfinite(by) for _, by in others):
        return False
    return count <= 2 * max(n for n, _ in others) and furthest <= 2 * max(by for _, by in others)


def _said(number: np.generic) -> str:
    return f'{number:.9g}' if np.issubdtype(type(number), np.floating) else str(number)
