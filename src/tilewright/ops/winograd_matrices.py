"""The matrices of F(m, r): what Winograd's algorithm does to inputs, weights and products.

Goes in: m outputs, r taps, a stride. Comes out: a `Transform` with A^T, G and B^T such that

    y = A^T [(G g) * (B^T d)],    y_i = sum_k g_k d_{stride i + k}

(Winograd 1980; Lavin & Gray 2016). They come from Toom-Cook interpolation at distinct points and
infinity, exact in fractions, for any m and r, and are checked by the bilinear identity

    sum_t A^T[i, t] G[t, k] B^T[t, l] = 1 where l = stride i + k, else 0.

A strided filter is a sum of filters of stride 1, one for each residue of the inputs, and so is its
transform (`_strided`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from tilewright.errors import SpecError

Matrix = tuple[tuple[Fraction, ...], ...]

# Zero and symmetric pairs, which share work in the transforms. Up to seven, a point beside its
# reciprocal balances the growth of high and low powers (Barabasz et al. 2020, Sec. 5); beyond, the
# pairs that make the error of ops/winograd_error.py least. All are dyadic: exact in binary.
FEW = tuple(Fraction(text) for text in ('0', '1', '-1', '2', '-2', '1/2', '-1/2'))
MANY = tuple(
    Fraction(text)
    for text in ('0', '1', '-1', '1/2', '-1/2', '4', '-4', '5/4', '-5/4', '3/4', '-3/4')
)


@dataclass(frozen=True, slots=True, eq=False)
class Transform:
    """The matrices of F(m, r) at a stride: A^T is m x t, G is t x r, B^T is t x length.

    Compared by identity: `transform` makes each only once, and models look them up often.

    At stride 1, t = length = m + r - 1. At other strides `phases` are the transforms of stride 1
    that it is made of, one for each residue of the inputs that has taps; else it is empty.
    """

    m: int
    r: int
    at: Matrix
    g: Matrix
    bt: Matrix
    stride: int = 1
    phases: tuple[Transform, ...] = ()

    @property
    def t(self) -> int:
        return len(self.bt)

    @property
    def length(self) -> int:
        """Inputs of a tile."""
        return self.stride * (self.m - 1) + self.r

    @property
    def step(self) -> int:
        """Inputs from a tile to the next."""
        return self.stride * self.m

    @property
    def name(self) -> str:
        return f'F({self.m},{self.r})' + (f'/{self.stride}' if self.stride > 1 else '')

    @property
    def parts(self) -> tuple[Part, ...]:
        """The points by the phase that they come from, in the order of the rows of B^T."""
        found, first, kind = [], 0, 0
        for residue, f in enumerate(self.phases or (self,)):
            shared = f.m if f.r == 1 else 1
            found.append(Part(residue, f, first, kind, shared))
            first, kind = first + f.t, kind + f.t // shared
        return tuple(found)

    @property
    def kinds(self) -> int:
        """Distinct rows of G: points of a phase with one tap all have the same weight."""
        return sum(part.kinds for part in self.parts)

    def array(self, name: str) -> np.ndarray:
        """One of the matrices ('at', 'g', 'bt') in float64."""
        rows: Matrix = getattr(self, name)
        return np.array([[float(x) for x in row] for row in rows])


@dataclass(frozen=True, slots=True)
class Part:
    """The points of a transform that come from inputs of one residue modulo the stride.

    residue   inputs stride * i + residue of a tile
    f         what is done to them: a transform of stride 1
    first     the first of its points, `kind` the first of its distinct weights
    shared    points that have the same weight: 1, or all where the phase has one tap
    """

    residue: int
    f: Transform
    first: int
    kind: int
    shared: int

    @property
    def kinds(self) -> int:
        return self.f.t // self.shared


@lru_cache(maxsize=256)
def transform(
    m: int,
    r: int,
    points: tuple[Fraction, ...] | None = None,
    infinity: bool | None = None,
    stride: int = 1,
) -> Transform:
    """The transform of F(m, r) from m + r - 1 distinct points, of which infinity may be one.

    By default infinity is used where that leaves an odd number of finite points: zero and pairs.
    With one output or one tap there is nothing to save, and the matrices are the identity. At a
    stride of 2 or more, points are always the default.
    """
    if m < 1 or r < 1 or stride < 1:
        raise SpecError(
            f'F({m}, {r}) at stride {stride} does not exist; all three must be at least 1'
        )
    if stride > 1:
        result = _strided(m, r, stride)
    elif points is None and infinity is None and min(m, r) == 1:
        result = _trivial(m, r)
    else:
        result = _toom_cook(m, r, points, infinity)
    check(result)
    return result


def _trivial(m: int, r: int) -> Transform:
    """m outputs of one tap, or one output of r taps: all products, one for each input."""
    size = max(m, r)
    identity = tuple(tuple(Fraction(i == j) for j in range(size)) for i in range(size))
    ones = tuple(Fraction(1) for _ in range(size))
    if r == 1:
        return Transform(m, r, identity, tuple((one,) for one in ones), identity)
    return Transform(m, r, (ones,), identity, identity)


def _strided(m: int, r: int, stride: int) -> Transform:
    """The sum over residues p of F(m, taps k = p modulo stride) of the inputs l = p.

    Output i, tap k = stride k' + p reads input stride i + k = stride (i + k') + p: within a residue
    that is a filter of stride 1. Rows of B^T and G of a residue are zero elsewhere, and A^T has
    the columns of all residues side by side.
    """
    phases = tuple(transform(m, -(-(r - p) // stride)) for p in range(min(stride, r)))
    length = stride * (m - 1) + r
    at: list[list[Fraction]] = [[] for _ in range(m)]
    g, bt = [], []
    for p, f in enumerate(phases):
        for rows, target, width in ((f.bt, bt, length), (f.g, g, r)):
            for row in rows:
                spread = [Fraction(0)] * width
                spread[p::stride] = row
                target.append(spread)
        for line, row in zip(at, f.at, strict=True):
            line += row
    return Transform(m, r, _frozen(at), _frozen(g), _frozen(bt), stride, phases)


def _toom_cook(
    m: int, r: int, points: tuple[Fraction, ...] | None, infinity: bool | None
) -> Transform:
    """F(m, r) by interpolation of the product of two polynomials."""
    size = m + r - 1
    at_infinity = size % 2 == 0 if infinity is None else infinity
    count = size - at_infinity
    default = FEW if count <= len(FEW) else MANY
    chosen = default[:count] if points is None else tuple(points)
    if len(chosen) != count or len(set(chosen)) != count:
        raise SpecError(
            f'F({m}, {r}) needs {count} distinct finite points, got {len(set(chosen))}; give as '
            f'many, or choose a smaller m'
        )
    beyond = [Fraction(0)] * at_infinity
    at = [[x**i for x in chosen] + [Fraction(i == m - 1)] * at_infinity for i in range(m)]
    g, bt = [], []
    for j, x in enumerate(chosen):
        others = chosen[:j] + chosen[j + 1 :]
        scale = Fraction(1)
        for y in others:
            scale *= x - y
        # Monic rows: every coefficient of a dyadic point is exact in binary, and most cost no
        # multiplication; all that is not exact goes into G, which is applied ahead in float64.
        bt.append([*_polynomial(others), *beyond])
        g.append([x**i / scale for i in range(r)])
    if at_infinity:
        bt.append(_polynomial(chosen))
        g.append([Fraction(i == r - 1) for i in range(r)])
    return Transform(m, r, _frozen(at), _frozen(g), _frozen(bt))


def check(f: Transform) -> None:
    """Raise SpecError unless the bilinear identity holds exactly.

    Sums are of whole numbers over one denominator, and only of what is not zero: at a stride, most
    of G and B^T is. In fractions, and over everything, F(7, 64) at stride 16 took a minute.
    """
    (at, under), (g, over), (bt, beside) = (_whole(rows) for rows in (f.at, f.g, f.bt))
    one = under * over * beside
    totals = [[[0] * f.length for _ in range(f.r)] for _ in range(f.m)]
    for t in range(f.t):
        taps = [(k, x) for k, x in enumerate(g[t]) if x]
        inputs = [(column, x) for column, x in enumerate(bt[t]) if x]
        for i in range(f.m):
            if not at[i][t]:
                continue
            for k, tap in taps:
                factor, row = at[i][t] * tap, totals[i][k]
                for column, x in inputs:
                    row[column] += factor * x
    for i, of_output in enumerate(totals):
        for k, row in enumerate(of_output):
            row[f.stride * i + k] -= one
            if any(row):
                column = next(column for column, x in enumerate(row) if x)
                right = column == f.stride * i + k
                raise SpecError(
                    f'the matrices of {f.name} give {Fraction(row[column], one) + right} for '
                    f'output {i}, tap {k}, input {column}; they must give {int(right)}'
                )


def _whole(rows: Matrix) -> tuple[list[list[int]], int]:
    """A matrix times the least number that makes it whole, and that number."""
    over = math.lcm(*(x.denominator for row in rows for x in row))
    return [[x.numerator * (over // x.denominator) for x in row] for row in rows], over


def _polynomial(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of prod(x - root), lowest power first."""
    coefficients = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *coefficients]
        scaled = [root * c for c in coefficients] + [Fraction(0)]
        coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return coefficients


def _frozen(rows: list[list[Fraction]]) -> Matrix:
    return tuple(tuple(Fraction(c) for c in row) for row in rows)
