"""Is an answer right? Random data, a poisoned output, and the comparison with the reference.

Goes in: a group and a seed, or an answer and its float64 reference. Comes out: arrays by tensor
name, or a `Comparison`.

*Tolerance* (Boda Sec. 4): a relative difference whose denominator is clamped from below, so that it
becomes absolute for small values,

    error = |got - want| / max(|got|, |want|, scale),    ok when error <= tolerance everywhere.

Boda's data and results are of order one and so is its clamp. A sum of some thousand products is
not, therefore `scale` is the root mean square of the reference: what order one is in the units of
this output. Without it, the few results that cancel to nearly zero would fail a correct kernel.

Whole numbers and truth values have to be equal; sums of f16 that are quantised as they are stored
(ops/stored.py) may be so many steps away as the sums may be off by, and one more (`half_steps`).

*Networks* (`compare_results`) are judged by the same formula, with a larger tolerance and a clamp
from below. Errors of kernels behind each other add up, as independent ones do: a hundred kernels,
each at the budget of 1e-4 that it is chosen within, are off by sqrt(100) 1e-4 = 1e-3. And a network
computes with values of order one, whatever its results are: libraries' sigmoid, 1/2 + p(x)/q(x), is
right to 1e-7, also where it gives 1e-4. Differences of 1e-6 say nothing (`LEAST` x tolerance).

*Data* are random in sign with magnitudes in [1/4, 1): nothing is zero, so no term can be left out
unseen, and sums do not grow so large that a lost term hides below the tolerance. Kernels of bytes
are timed with other images (`timed_arrays`).

*Poison* is one signalling NaN. Its exact bits left in an output mean 'not written'; arithmetic with
it sets the quiet bit, so a kernel that adds to memory it never set is told apart.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.errors import ArrayError
from tilewright.kernels.cpu.schema import SCHEMAS
from tilewright.ops.dtypes import HALVES, NUMPY, holds_floats, is_float, limits
from tilewright.ops.group import Group, Tensor
from tilewright.ops.integer import SMALL, factors, is_integer_products
from tilewright.ops.reference import reference
from tilewright.ops.stored import as_stored
from tilewright.ops.winograd_error import DEFAULT_LIMIT
from tilewright.ops.winograd_half import LENIENT

TOLERANCE = {'f32': 1e-3, 'f64': 1e-9}
# Results that are stored in half a float are rounded once more, and so is what they are made of.
TOLERANCE |= {name: TOLERANCE['f32'] + 2 * rounded for name, rounded in HALVES.items()}
# CPUs add f16 in f16, in runs of at most 256 products (kernels/cpu/schemas/half): six times what is
# expected of those, 2^-11 sqrt(256 / 24) of a result.
HALF_SUMS = 6 * HALVES['f16'] * (256 / 24) ** 0.5
NETWORK_TOLERANCE = {2: 1e-2, 4: 1e-3, 8: 1e-8}  # by the bytes of an element
LEAST = 1e-3  # results of networks below this are compared as if they were so large
_POISON = {4: 0x7FA5A5A5, 8: 0x7FF4A5A5A5A5A5A5}
_QUIET = {4: 1 << 22, 8: 1 << 51}
_HUGE_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict on one output.

    max_rel_err  largest |got - want| as a share of the largest |want|; inf for a missing value.
    where        index of the worst element when the answer is wrong, else None.
    message      one sentence when the answer is wrong, else ''.
    error        largest error by the formula above, which decides; inf for a missing value. Where
                 an answer is right at once (`Oracle`), a bound of it.
    """

    ok: bool
    max_rel_err: float
    where: tuple[int, ...] | None = None
    message: str = ''
    error: float = field(default=0.0, compare=False)


def random_arrays(group: Group, seed: int) -> dict[str, np.ndarray]:
    """[Group, seed] -> every input and constant, guarded: floats of order one, small integers."""
    arrays = {}
    for number, tensor in enumerate(group.tensors):
        if tensor.role not in ('input', 'constant'):
            continue
        rng = np.random.default_rng([seed, number])
        if tensor.dtype != 'f32':
            arrays[tensor.name] = _random_other(tensor, rng)
            continue
        array = guarded_empty(tensor.shape)
        rng.random(dtype=np.float32, out=array)
        array *= np.float32(0.75)
        array += np.float32(0.25)
        np.negative(array, out=array, where=rng.integers(0, 2, tensor.shape, dtype=np.bool_))
        arrays[tensor.name] = array
    return arrays


def _random_other(tensor: Tensor, rng: np.random.Generator) -> np.ndarray:
    """Doubles as floats are; integers up to 4, which are indices of most tensors; truth values."""
    array = guarded_empty(tensor.shape, NUMPY[tensor.dtype])
    if is_float(tensor.dtype):
        array[...] = rng.choice([-1.0, 1.0], tensor.shape) * (
            0.25 + 0.75 * rng.random(tensor.shape)
        )
    else:
        low, high = limits(tensor.dtype)
        array[...] = rng.integers(max(low, -4), min(high, 4) + 1, tensor.shape)
    return array


def timed_arrays(
    group: Group, arrays: Mapping[str, np.ndarray], seed: int
) -> Mapping[str, np.ndarray]:
    """Arrays to time kernels with: those that check them, but where bytes are multiplied, whose
    sizes some kernels' time depends on, the image is one as networks have them.
    """
    if not is_integer_products(group):
        return arrays
    image = group.tensor(factors(group)[0].tensor)
    if image.dtype not in SMALL:
        return arrays
    low, high = limits(image.dtype)
    zero = int(group.main.pad_value)
    # Four standard deviations are stored. Behind a ReLU, where 0 is the least number, half are 0.
    spread = (high - zero if zero == low else (high - low) / 2) / 4
    array = guarded_empty(image.shape, NUMPY[image.dtype])
    drawn = np.random.default_rng([seed, len(group.tensors)]).standard_normal(image.shape)
    array[...] = np.clip(np.rint(zero + spread * drawn), low, high)
    return {**arrays, image.name: freeze(array)}


def poison(array: np.ndarray) -> np.ndarray:
    """Fill an array, in place, with the poison pattern; comes out: the same array.

    Elements of one or two bytes are all ones: too common to tell what was not written.
    """
    size = array.dtype.itemsize
    array.view(f'u{size}').fill(_POISON.get(size, (1 << 8 * size) - 1))
    return array


def half_tolerance(group: Group) -> float:
    """What kernels of a CPU may be off by on a group of f16: six times what is expected of sums,
    and of Winograd's and Strassen's algorithms where they apply.
    """
    others = [s for s in SCHEMAS.values() if s.half and s.algorithm != 'direct']
    fewer = 6 * LENIENT * DEFAULT_LIMIT if any(not s.why_not(group) for s in others) else 0.0
    return TOLERANCE['f16'] + max(HALF_SUMS, fewer)


def half_steps(group: Group, arrays: Mapping[str, np.ndarray]) -> int:
    """How many steps 8-bit results may be away that were sums of f16; 0 for all others."""
    made, stored = as_stored(group)
    if stored is None:
        return 0
    off = half_tolerance(made) * scale_of(reference(made, arrays))
    return 1 + math.ceil(off / stored.scale)


def denominator(got: np.ndarray, want: np.ndarray, scale: float) -> np.ndarray:
    """What differences are divided by, element by element."""
    return np.maximum(np.maximum(np.abs(got), np.abs(want)), scale)


def compare(
    group: Group, got: np.ndarray, want: np.ndarray, *, tolerance: float | None = None
) -> Comparison:
    """Judge the output `got` of a group against the reference `want`."""
    if got.shape != want.shape:
        raise ArrayError(f'{group.label}: the output has shape {got.shape}, expected {want.shape}')
    limit = TOLERANCE.get(group.output.dtype, 0.0) if tolerance is None else tolerance
    return compare_arrays(group.output.name, got, want, tolerance=limit)


def compare_results(
    got: Mapping[str, np.ndarray],
    want: Mapping[str, np.ndarray],
    *,
    tolerance: float | None = None,
) -> Comparison:
    """Judge the results of a network, by name: the verdict on the one that is furthest off."""
    if set(got) != set(want):
        said = f'it gives {", ".join(sorted(got))}, expected are {", ".join(sorted(want))}'
        return _hopeless(said)
    found = [compare_result(name, got[name], want[name], tolerance=tolerance) for name in want]
    far = max((one.max_rel_err for one in found), default=0.0)
    worst = max(found, key=lambda one: (not one.ok, one.error), default=Comparison(True, 0.0))
    return replace(worst, max_rel_err=far)


def compare_result(
    name: str, got: np.ndarray, want: np.ndarray, *, tolerance: float | None = None
) -> Comparison:
    """Judge one result of a network; of another shape or dtype it is wrong."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return _hopeless(
            f'{name} is {got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}'
        )
    limit = NETWORK_TOLERANCE.get(want.dtype.itemsize, 0.0) if tolerance is None else tolerance
    return compare_arrays(name, got, want, tolerance=limit, least=LEAST)


def compare_arrays(
    name: str, got: np.ndarray, want: np.ndarray, *, tolerance: float, least: float = 0.0
) -> Comparison:
    """Judge an array against one of its shape; `least` is a further clamp of the denominator."""
    unwritten = _unwritten(got)
    if unwritten is not None:
        return unwritten
    if not holds_floats(got):
        return _compare_whole(name, got, want)
    # A NaN in `got` may be the signalling one: numpy would warn of it on conversion.
    with np.errstate(all='ignore'):
        answer, right = got.astype(np.float64), np.asarray(want, dtype=np.float64)
        finite = np.isfinite(right)
        largest = float(np.max(np.abs(right), where=finite, initial=0.0))
        scale = max(root_mean_square(right, finite), least)
        # numpy makes numbers of arrays without dimensions; these are assigned to.
        distance = np.asarray(np.abs(answer - right))
        base = np.asarray(denominator(answer, right, scale))
        error = np.divide(distance, base, out=np.zeros_like(base), where=distance > 0)
        same = (answer == right) | (np.isnan(answer) & np.isnan(right))
        bad = ~same & ~np.isfinite(error + answer)
        bad |= ~same & np.isnan(right)
    if bad.any():
        where = _first(bad)
        return _hopeless(
            f'{name} is {answer[where]} at index {where}, expected {right[where]:.9g}', where
        )
    distance[same] = error[same] = 0.0
    worst, far = float(distance.max(initial=0.0)), float(error.max(initial=0.0))
    share = worst / largest if largest else worst
    if far <= tolerance:
        return Comparison(True, share, error=far)
    where = _index(int(error.argmax()), got.shape)
    return Comparison(
        False, share, where,
        f'{name} is {answer[where]:.9g} at index {where}, expected {right[where]:.9g}: a relative '
        f'difference of {error[where]:.2g}, the tolerance is {tolerance:g}', far
    )  # fmt: skip


def _hopeless(message: str, where: tuple[int, ...] | None = None) -> Comparison:
    return Comparison(False, float('inf'), where, message, float('inf'))


def _compare_whole(name: str, got: np.ndarray, want: np.ndarray) -> Comparison:
    wrong = got != want
    if not wrong.any():
        return Comparison(True, 0.0)
    where = _first(wrong)
    return _hopeless(
        f'{name} is {got[where]} at index {where}, expected {want[where]}: {int(wrong.sum())} of '
        f'{got.size} elements differ', where
    )  # fmt: skip


def _unwritten(got: np.ndarray) -> Comparison | None:
    """The verdict on an output in which poison is left, or None."""
    size = got.dtype.itemsize
    if size not in _POISON:
        return None
    bits = np.ascontiguousarray(got).view(f'u{size}').reshape(got.shape)
    for pattern, said in (
        (_POISON[size], 'not written'),
        (_POISON[size] | _QUIET[size], 'made from memory that was never written'),
    ):
        left = bits == pattern
        if left.any():
            where = _first(left)
            count = int(left.sum())
            return _hopeless(f'{said} at index {where} ({count} of {got.size} elements)', where)
    return None


def root_mean_square(values: np.ndarray, chosen: np.ndarray) -> float:
    """What order one is in the units of these values, of the chosen ones."""
    count = int(chosen.sum())
    if not count:
        return 0.0
    return float(np.sqrt(np.sum(np.square(values), where=chosen) / count))


def scale_of(want: np.ndarray) -> float:
    """What order one is in the units of a reference: its root mean square."""
    values = np.asarray(want, np.float64)
    return root_mean_square(values, np.isfinite(values))


def _first(mask: np.ndarray) -> tuple[int, ...]:
    return _index(int(mask.argmax()), mask.shape)


def _index(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(flat, shape))


@dataclass(frozen=True, slots=True)
class Oracle:
    """The reference of one group, prepared so that many answers can be judged quickly."""

    group: Group
    want: np.ndarray
    scale: float
    largest: float
    tolerance: float
    steps: int = 0  # that whole numbers may be away

    @classmethod
    def of(
        cls, group: Group, want: np.ndarray, tolerance: float | None = None, steps: int = 0
    ) -> Oracle:
        limit = TOLERANCE.get(group.output.dtype, 0.0) if tolerance is None else tolerance
        values = np.asarray(want, np.float64)
        finite = np.isfinite(values)
        largest = float(np.max(np.abs(values), where=finite, initial=0.0))
        kept = guarded_empty(want.shape, want.dtype)
        kept[...] = want
        return cls(group, freeze(kept), root_mean_square(values, finite), largest, limit, steps)

    def judge(self, got: np.ndarray) -> Comparison:
        """What `compare` says; in one pass when no element is off by more than the clamp allows."""
        if not is_float(self.group.output.dtype):
            away = int(np.max(np.abs(got.astype(int) - self.want), initial=0)) if self.steps else 1
            if away <= self.steps:
                return Comparison(True, away / max(self.largest, 1.0), error=float(away))
            return compare(self.group, got, self.want)
        with np.errstate(all='ignore'):
            worst = float(np.max(np.abs(got - self.want), initial=0.0))
        if self.largest > 0 and worst <= self.tolerance * self.scale:  # false for NaN
            return Comparison(True, worst / self.largest, error=worst / self.scale)
        return compare(self.group, got, self.want, tolerance=self.tolerance)


def guarded_empty(shape: tuple[int, ...], dtype: np.typing.DTypeLike = np.float32) -> np.ndarray:
    """An array in a mapping of its own, page-aligned, with an unreadable page at either end.

    A candidate that runs past its tensors stops there, and does not damage the next one's data.
    """
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    body = -(-max(count * kind.itemsize, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, body + 2 * mmap.PAGESIZE)
    if body >= _HUGE_BYTES and hasattr(mmap, 'MADV_HUGEPAGE'):
        pages.madvise(mmap.MADV_HUGEPAGE)  # as numpy does, so that timings are those of its arrays
    array = np.frombuffer(pages, kind, count, mmap.PAGESIZE).reshape(shape)
    start = array.ctypes.data
    _protect(start - mmap.PAGESIZE, mmap.PAGESIZE, 0)
    _protect(start + body, mmap.PAGESIZE, 0)
    return array


def freeze(array: np.ndarray) -> np.ndarray:
    """Make an array read-only for numpy, and one of `guarded_empty` for the processor as well: the
    pages of any other one may hold what `free` writes to.
    """
    if array.nbytes and _is_guarded(array):
        _protect(array.ctypes.data, -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE, 1)
    array.flags.writeable = False
    return array


def _is_guarded(array: np.ndarray) -> bool:
    base: object = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)


def freeze_all(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: freeze(array) for name, array in arrays.items()}


def _protect(address: int, size: int, rights: int) -> None:
    """mprotect: 0 no access, 1 read. Where there is none, the arrays are merely not protected."""
    if sys.platform != 'win32':
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), rights)
