"""Winograd's F(m, 3) of whole numbers, exactly: integer transforms, sums that wrap around.

Goes in: the group of a convolution of 8-bit numbers in NHWC and the tile size m. Comes out: its
`words_geometry`; how many channels one sum may have (`most_channels`).

*Matrices.* Rows of G are multiplied until they are whole, columns of A^T divided by as much, and
rows of A^T multiplied by the least scale that makes them whole. What columns of A^T have in common
goes back into G. Then

    scale_i scale_j y_ij = (A^T [(G g G^T) * (B^T d B)] A)_ij

is an identity of whole numbers. F(4, 3) has the scales 24, 12, 6, 6; F(2, 3) has 2, 2.

*Numbers.* d are 8-bit numbers moved to -128 .. 127: |B^T d B| <= 12,800 and |G g G^T| <= 6,272 with
m = 4, so that both fit in 16 bits, and a pair of products in 32.

*Wrapping.* Sums of products and A^T are computed modulo 2^32. An odd factor has an inverse there:
scale_i scale_j y, times the inverse of its odd part, times what is missing to 2^shift, is 2^shift y
modulo 2^32; shifted back by as much, with its sign, it is y, if -2^(31 - shift) <= y < 2^(31 -
shift). Since |y| <= 128 sum |w|, that is known from the weights, and of few channels it is always
so: 128 * 128 * 9 c < 2^(31 - shift). Sums of more channels are cut into pieces, of which each is
brought back by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from tilewright.errors import SpecError
from tilewright.ops.group import Group
from tilewright.ops.integer import factors, is_integer_products
from tilewright.ops.parts import parts
from tilewright.ops.stage import affine, var
from tilewright.ops.tiles import TileGeometry
from tilewright.ops.winograd_matrices import Matrix, Transform, check, transform

TAPS = 3
POINTS = {2: ('1',), 4: ('1', '2')}  # by outputs of a tile: pairs of points beside 0 and infinity
SIZES = tuple(POINTS)
LARGEST = 128  # of a number of the image or a weight, once it is moved
WORD = 32  # bits that sums have


@dataclass(frozen=True, slots=True)
class WholeTransform:
    """The matrices of F(m, 3) in whole numbers; row i of A^T gives `scales[i]` times the output."""

    m: int
    at: Matrix
    g: Matrix
    bt: Matrix
    scales: tuple[int, ...]
    r: int = TAPS

    @property
    def t(self) -> int:
        return len(self.bt)

    @property
    def length(self) -> int:
        return self.m + self.r - 1

    @property
    def step(self) -> int:
        return self.m

    @property
    def name(self) -> str:
        return f'F({self.m},{self.r})'

    @property
    def shift(self) -> int:
        """The power of two that results are multiplied by before they are shifted back."""
        return 2 * max(_twos(scale) for scale in self.scales)

    @property
    def pairs(self) -> tuple[tuple[int, ...], ...]:
        """Rows of G that differ in signs only, together."""
        found: dict[tuple[Fraction, ...], list[int]] = {}
        for number, row in enumerate(self.g):
            found.setdefault(tuple(sorted(abs(x) for x in row)), []).append(number)
        return tuple(map(tuple, found.values()))

    def factor(self, i: int, j: int) -> int:
        """What makes 2^shift y of scale_i scale_j y, modulo 2^32."""
        scale = self.scales[i] * self.scales[j]
        odd = scale >> _twos(scale)
        return pow(odd, -1, 1 << WORD) << (self.shift - _twos(scale)) & (1 << WORD) - 1

    def reach(self, name: str) -> int:
        """How many times the largest number of its input a transform ('bt', 'g') may give, both
        passes together.
        """
        rows: Matrix = getattr(self, name)
        return int(max(sum(map(abs, row)) for row in rows)) ** 2

    @property
    def most_size(self) -> int:
        """The largest sum, in size, that is brought back right."""
        return (1 << (WORD - 1 - self.shift)) - 1

    @property
    def most_channels(self) -> int:
        """Channels whose sums are right whatever the weights are."""
        return self.most_size // (LARGEST * LARGEST * self.r * self.r)


def _twos(value: int) -> int:
    """How often two divides a number."""
    return (value & -value).bit_length() - 1


@lru_cache(maxsize=4)
def whole_transform(m: int) -> WholeTransform:
    """F(m, 3) in whole numbers."""
    points = (Fraction(0),)
    for text in POINTS[m]:
        points = (*points, Fraction(text), -Fraction(text))
    plain = transform(m, TAPS, points, True)
    into = [_whole(row) for row in plain.bt]
    bt, g = _scaled(plain.bt, into), _scaled(plain.g, _inverse(into))
    back = [_whole(row) * (-1 if sum(row) < 0 else 1) for row in g]
    g = _scaled(g, back)
    at = tuple(tuple(x / scale for x, scale in zip(row, back, strict=True)) for row in plain.at)
    scales = [_whole(row) for row in at]
    at = _scaled(at, scales)
    columns = [Fraction(math.gcd(*(int(x) for x in column))) for column in zip(*at, strict=True)]
    at = tuple(tuple(x / by for x, by in zip(row, columns, strict=True)) for row in at)
    g = _scaled(g, columns)
    made = WholeTransform(m, at, g, bt, tuple(int(scale) for scale in scales))
    check(Transform(m, TAPS, _scaled(at, _inverse(scales)), g, bt))
    assert all(LARGEST * made.reach(name) < 1 << 15 for name in ('bt', 'g'))
    return made


def _whole(row: tuple[Fraction, ...]) -> Fraction:
    """The least factor that makes a row whole numbers without a common divisor."""
    under = math.lcm(*(x.denominator for x in row))
    return Fraction(under, math.gcd(*(int(x * under) for x in row)))


def _inverse(scales: list[Fraction]) -> list[Fraction]:
    return [1 / scale for scale in scales]


def _scaled(rows: Matrix, scales: list[Fraction]) -> Matrix:
    return tuple(tuple(x * by for x in row) for row, by in zip(rows, scales, strict=True))


@dataclass(frozen=True, slots=True)
class WordsGeometry(TileGeometry[WholeTransform]):
    """Square tiles of F(m, 3)."""

    @property
    def t(self) -> int:
        return self.down.t * self.across.t


def why_not_words(group: Group) -> str:
    """'' for a dense 3 x 3 convolution of 8-bit numbers in NHWC at stride 1, weights constant; else
    why not.
    """
    stage = group.main
    if not is_integer_products(group) or parts(group) != (group,):
        return f'{group.label} is not one sum of products of 8-bit numbers and what follows it'
    sizes = stage.sizes
    if set(sizes) != set('nkhwcrs'):
        return f'{group.label} has the dimensions {tuple(sizes)}, not those of a dense convolution'
    if (sizes['r'], sizes['s']) != (TAPS, TAPS):
        return f'{group.label} has a filter of {sizes["r"]} x {sizes["s"]}; 3 x 3 is transformed'
    image, weights = factors(group)
    kept = group.tensor(weights.tensor)
    if kept.role != 'constant' or kept.dtype != 'i8':
        return f'{group.label} has weights that are not constant i8'
    rows, columns = image.index[1:3] if len(image.index) == 4 else (None, None)
    if rows is None or columns is None:
        return f'{group.label} reads no image of four axes'
    channels, result = image.index[3], stage.write.index
    right = (
        result[:3] == (var('n'), var('h'), var('w'))
        and result[3:] == (affine(('k', 1), const=result[-1].const),)
        and weights.index == (var('k'), var('c'), var('r'), var('s'))
        and image.index[0] == var('n')
        and channels == affine(('c', 1), const=channels.const)
        and rows == affine(('h', 1), ('r', 1), const=rows.const)
        and columns == affine(('w', 1), ('s', 1), const=columns.const)
        and max(rows.const, columns.const) <= 0
    )
    depth = group.tensor(image.tensor).shape[3]
    if not right or not 0 <= channels.const <= depth - sizes['c']:
        return f'{group.label} is strided, dilated, or not laid out as NHWC'
    return ''


@lru_cache(maxsize=1024)
def words_geometry(group: Group, m: int) -> WordsGeometry:
    """[Group] -> [WordsGeometry]; SpecError where it does not apply."""
    reason = why_not_words(group)
    if reason or m not in SIZES:
        shown = reason or f'choose one of {SIZES}'
        raise SpecError(f'Winograd of whole numbers with m={m} does not apply: {shown}')
    sizes, image = group.main.sizes, factors(group)[0]
    _, height, width, _ = group.tensor(image.tensor).shape
    f = whole_transform(m)
    return WordsGeometry(
        n=sizes['n'], g=1, k=sizes['k'], c=sizes['c'], height=height, width=width,
        out_h=sizes['h'], out_w=sizes['w'], pad_top=-image.index[1].const,
        pad_left=-image.index[2].const, down=f, across=f,
    )  # fmt: skip
