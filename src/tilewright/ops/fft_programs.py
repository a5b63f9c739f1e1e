"""Fourier transforms as straight-line programs: a list of short sums, printed by any generator.

Goes in: the length of a transform. Comes out: a `LinearProgram` from the inputs along one direction
of a tile to what is multiplied there, and the one back.

A program is a list of steps; each is a weighted sum of earlier values, which takes one instruction
less than it has terms: weights other than 1 become multiply-adds. A value is kept as a factor and a
step whose largest weight is 1. So a rotation by a twiddle factor costs one multiply-add for each of
its two results, the cosine being left to the butterfly behind it (Linzer & Feig 1993), and sums
that differ by a factor are computed once.

The transform of length n = p m, p its smallest prime, is p transforms of length m, rotated and
joined (Cooley & Tukey 1965). Of real inputs only the frequencies up to n / 2 are computed.

Products of complex numbers are three real ones (Karatsuba, Gauss):

    (a + ib)(c + id) = (x - z) + i(x + y)      x = (a + b) c    y = a (d - c)    z = b (c + d)

so a complex frequency is three *points*, at which plain matrices are multiplied. With F the
forward transform, inputs are K F d, K: (a, b) -> (a + b, a, b), and results are the transpose of
L F, L: (a, b) -> (a + b, b, -a): the transpose of a program is a program as well (each step hands
its result back to its terms), and the transpose of F is its inverse but for a factor that weights
take.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

Term = tuple[float, int]  # weight, number of a value
Complex = tuple[Term | None, Term | None]  # real and imaginary part; None is zero


@dataclass(frozen=True, slots=True)
class LinearProgram:
    """Values 0 .. inputs - 1 are given, each step adds one; outputs are values with a factor."""

    inputs: int
    steps: tuple[tuple[Term, ...], ...]
    outputs: tuple[Term, ...]

    @property
    def operations(self) -> int:
        """Additions, multiply-adds and multiplications."""
        scaled = sum(abs(weight) != 1 for weight, _ in self.outputs)
        return sum(len(terms) - 1 for terms in self.steps) + scaled

    @property
    def matrix(self) -> np.ndarray:
        """outputs x inputs"""
        values = self._values()
        return np.array([weight * values[at] for weight, at in self.outputs])

    def _values(self) -> np.ndarray:
        """Every value as weights of the inputs."""
        values = np.zeros((self.inputs + len(self.steps), self.inputs))
        values[: self.inputs] = np.eye(self.inputs)
        for number, terms in enumerate(self.steps, self.inputs):
            values[number] = sum(weight * values[at] for weight, at in terms)
        return values

    def _shares(self) -> np.ndarray:
        """For every value, what of it arrives in each output."""
        shares = np.zeros((self.inputs + len(self.steps), len(self.outputs)))
        for number, (weight, at) in enumerate(self.outputs):
            shares[at, number] += weight
        for number in reversed(range(self.inputs, len(shares))):
            for weight, at in self.steps[number - self.inputs]:
                shares[at] += weight * shares[number]
        return shares

    @property
    def kappa(self) -> float:
        """Roundings that outputs have, relative to the outputs: mean square over mean square, in
        units of the variance of one relative rounding. Inputs are independent and alike.
        """
        sizes, reach = ((x**2).sum(axis=1) for x in (self._values(), self._shares()))
        made = sum(
            (len(terms) - 1) * sizes[number] * reach[number]
            for number, terms in enumerate(self.steps, self.inputs)
        )
        made += sum(weight**2 * sizes[at] for weight, at in self.outputs if abs(weight) != 1)
        return float(made / reach[: self.inputs].sum())

    def transposed(self) -> LinearProgram:
        """The program of the transposed matrix: values hand their terms what came back to them."""
        made = _Builder(len(self.outputs))
        back: list[list[Term]] = [[] for _ in range(self.inputs + len(self.steps))]
        for number, (weight, at) in enumerate(self.outputs):
            back[at].append((weight, number))
        for number in reversed(range(self.inputs, len(back))):
            whole = made.add(*back[number])
            for weight, at in self.steps[number - self.inputs]:
                if part := _times(weight, whole):
                    back[at].append(part)
        return made.program([made.add(*back[number]) for number in range(self.inputs)])

    def first(self, count: int) -> LinearProgram:
        """The same for the first outputs alone."""
        return _pruned(LinearProgram(self.inputs, self.steps, self.outputs[:count]))


class _Builder:
    """Steps so far; equal sums, and multiples of them, are one step."""

    def __init__(self, inputs: int) -> None:
        self.inputs = inputs
        self.steps: list[tuple[Term, ...]] = []
        self._known: dict[tuple[Term, ...], int] = {}

    def add(self, *terms: Term | None) -> Term | None:
        """The weighted sum: a factor, and a step whose largest weight is 1."""
        joined: dict[int, float] = {}
        for term in terms:
            if term:
                joined[term[1]] = joined.get(term[1], 0.0) + term[0]
        kept = sorted((at, weight) for at, weight in joined.items() if weight)
        if len(kept) < 2:
            return (kept[0][1], kept[0][0]) if kept else None
        factor = max((weight for _, weight in kept), key=abs)
        key = tuple((weight / factor, at) for at, weight in kept)
        if key not in self._known:
            self._known[key] = self.inputs + len(self.steps)
            self.steps.append(key)
        return factor, self._known[key]

    def program(self, outputs: Sequence[Term | None]) -> LinearProgram:
        """What is needed for these outputs; one that is zero has the factor 0."""
        made = LinearProgram(
            self.inputs, tuple(self.steps), tuple(term or (0.0, 0) for term in outputs)
        )
        return _pruned(made)


def _pruned(program: LinearProgram) -> LinearProgram:
    """Without steps that no output needs."""
    needed = {at for weight, at in program.outputs if weight}
    for number in reversed(range(len(program.steps))):
        if program.inputs + number in needed:
            needed |= {at for _, at in program.steps[number]}
    kept = [n for n in range(len(program.steps)) if program.inputs + n in needed]
    places = {n: n for n in range(program.inputs)}
    places |= {program.inputs + n: program.inputs + i for i, n in enumerate(kept)}
    steps = tuple(tuple((w, places[at]) for w, at in program.steps[n]) for n in kept)
    outputs = tuple((w, places[at]) if w else (0.0, 0) for w, at in program.outputs)
    return LinearProgram(program.inputs, steps, outputs)


def _times(factor: float, term: Term | None) -> Term | None:
    return (factor * term[0], term[1]) if term and factor else None


@lru_cache(maxsize=4096)
def cosine(turn: Fraction) -> float:
    """cos(2 pi turn): of equal size wherever symmetry says so, and exact at quarters."""
    turn = abs(turn - round(turn))
    if turn > Fraction(1, 4):
        return -cosine(Fraction(1, 2) - turn)
    if turn > Fraction(1, 8):
        return math.sin(2 * math.pi * float(Fraction(1, 4) - turn))
    return math.cos(2 * math.pi * float(turn))


@lru_cache(maxsize=4096)
def sine(turn: Fraction) -> float:
    return cosine(turn - Fraction(1, 4))


def _rotated(made: _Builder, value: Complex, turn: Fraction) -> Complex:
    """value * exp(-2 pi i turn)"""
    real, imaginary, c, s = *value, cosine(turn), sine(turn)
    return (
        made.add(_times(c, real), _times(s, imaginary)),
        made.add(_times(c, imaginary), _times(-s, real)),
    )


def _transform(made: _Builder, values: Sequence[Complex]) -> list[Complex]:
    """The Fourier transform of the values."""
    n = len(values)
    if n == 1:
        return list(values)
    p = next(q for q in range(2, n + 1) if n % q == 0)
    m = n // p
    parts = [_transform(made, values[first::p]) for first in range(p)]
    is_real = all(imaginary is None for _, imaginary in values)
    found: list[Complex] = [(None, None)] * n
    for k in range(m):
        rotated = [_rotated(made, part[k], Fraction(q * k, n)) for q, part in enumerate(parts)]
        for j, value in enumerate(_joined(made, rotated)):
            found[k + m * j] = value
    if is_real:
        for k in range(n // 2 + 1, n):
            real, imaginary = found[n - k]
            found[k] = real, _times(-1.0, imaginary)
    return found


def _joined(made: _Builder, values: Sequence[Complex]) -> list[Complex]:
    """The transform of a prime length: mirrored inputs are added and subtracted first."""
    p = len(values)
    found = []
    mirrored = [(values[q], values[p - q]) for q in range(1, (p + 1) // 2)]
    sums, differences = (
        [
            tuple(made.add(a, _times(sign, b)) for a, b in zip(one, other, strict=True))
            for one, other in mirrored
        ]
        for sign in (1.0, -1.0)
    )
    for j in range(p):
        turns = [Fraction(j * q, p) for q in range(1, len(mirrored) + 1)]
        middle = [values[p // 2]] * (p % 2 == 0)
        even = [
            made.add(
                values[0][part],
                *(_times(cosine(turn), x[part]) for turn, x in zip(turns, sums, strict=True)),
                *(_times((-1.0) ** j, x[part]) for x in middle),
            )
            for part in (0, 1)
        ]
        odd = [
            made.add(*(_times(sine(t), x[part]) for t, x in zip(turns, differences, strict=True)))
            for part in (0, 1)
        ]
        found.append((made.add(even[0], odd[1]), made.add(even[1], _times(-1.0, odd[0]))))
    return found


@lru_cache(maxsize=64)
def _spectrum(n: int, *, is_real: bool) -> tuple[_Builder, list[Complex]]:
    """Inputs are n numbers, or n real parts and n imaginary ones. More may be built on it: what is
    not needed is left out of a program.
    """
    made = _Builder(n if is_real else 2 * n)
    inputs: list[Complex] = [((1.0, i), None if is_real else (1.0, n + i)) for i in range(n)]
    return made, _transform(made, inputs)


@lru_cache(maxsize=64)
def packed(n: int) -> LinearProgram:
    """n real inputs -> re 0, then re f, im f of each frequency f between, then re n/2."""
    made, found = _spectrum(n, is_real=True)
    inner = [part for value in found[1 : n // 2] for part in value]
    return made.program([found[0][0], *inner, found[n // 2][0]])


@lru_cache(maxsize=64)
def points(n: int, *, is_real: bool, back: bool = False) -> LinearProgram:
    """Inputs of a row -> its points, K F of the module's text; with `back`, L F.

    The first and the last frequency of real inputs are real: one point each.
    """
    made, found = _spectrum(n, is_real=is_real)
    outputs: list[Term | None] = []
    for frequency, (a, b) in enumerate(found[: n // 2 + 1] if is_real else found):
        if is_real and frequency in (0, n // 2):
            outputs.append(a)
        elif back:
            outputs += [made.add(a, b), b, _times(-1.0, a)]
        else:
            outputs += [made.add(a, b), a, b]
    return made.program(outputs)


@lru_cache(maxsize=256)
def unpacked(n: int, m: int) -> LinearProgram:
    """What `packed` makes -> the first m of n numbers, transposed."""
    return packed(n).transposed().first(m)


@lru_cache(maxsize=256)
def results(n: int, m: int, *, is_real: bool) -> LinearProgram:
    """Products at a row's points -> the first m numbers of it; m real and m imaginary parts."""
    whole = points(n, is_real=is_real, back=True).transposed()
    if is_real:
        return whole.first(m)
    kept = whole.outputs[:m] + whole.outputs[n : n + m]
    return LinearProgram(whole.inputs, whole.steps, kept).first(2 * m)
