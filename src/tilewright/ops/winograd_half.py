"""Winograd's F(m, r) of f16 images with their channels last: transforms, tiles, expected errors.

Goes in: the group of a convolution in NHWC and the tile size m. Comes out: its `half_geometry`, and
what it is expected to be off by (`half_error`).

*Points.* Roundings of 2^-11 want points that keep the transforms small: those that make the second
moments of ops/winograd_error.py least among fractions of eighths, zero and symmetric pairs. F(4, 3)
at 0, 5/8, -5/8, 3/2, -3/2 and infinity is off by 2.2 times less than at 0, 1, -1, 2, -2. All of
their squares are exact in f16, so that both passes of a transform multiply by exact numbers.
F(2, 5) has the same points, and is off by less: its outputs are fewer sums of them. At stride 2 a
filter of three taps is one of two and one of one tap, which need few points.

*Scales.* Rows of B^T are divided by the power of two that is at least the sum of their magnitudes,
rows of G multiplied by it: no transformed input is larger than the largest input, so that nothing
overflows there, and transformed weights stay away from what is too small for f16. Powers of two
change no rounding.

*Errors.* As in ops/winograd_error.py, with u = 2^-11 for every rounding: two passes of the input, a
rounding of the weights, sums of c channels in runs of L that are added up in f16, and two passes of
the output. A sum of n numbers in order has (n + 1) / 2 roundings, runs (L + 1) / 2 and their sums
(c / L + 1) / 2.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from tilewright.errors import SpecError
from tilewright.ops.dtypes import HALVES
from tilewright.ops.epilogue_error import final_error
from tilewright.ops.group import Group
from tilewright.ops.stage import Affine, affine, var
from tilewright.ops.winograd import Geometry
from tilewright.ops.winograd_error import UNIT, transform_error
from tilewright.ops.winograd_matrices import Matrix, Transform, check, transform

# (taps, stride) -> outputs of a tile -> pairs of points beside zero and infinity; at a stride those
# of ops/winograd_matrices.py.
PAIRS: dict[tuple[int, int], dict[int, tuple[str, ...]]] = {
    (3, 1): {2: ('1',), 4: ('5/8', '3/2'), 6: ('1/2', '1', '2')},
    (5, 1): {2: ('5/8', '3/2')},
    (3, 2): {2: (), 3: (), 4: ()},
}
SIZES = {filters: tuple(sizes) for filters, sizes in PAIRS.items()}
STRIDES = (1, 2)
LANES = 8  # f16 of a vector
# What errors of f16 are compared with: so many times the limit that kernels of float32 have, whose
# roundings are 2^13 times smaller. By default 1e-4 admits 1.28e-2 at the worst output of a tile:
# F(4, 3), which is off by 5e-3 in the mean, as sums of 2,304 products in f16 are.
LENIENT = 128.0


@lru_cache(maxsize=16)
def half_transform(m: int, taps: int = 3, stride: int = 1) -> Transform:
    """F(m, taps) at points for f16, its rows scaled."""
    points = (Fraction(0),)
    for text in PAIRS[taps, stride][m]:
        points = (*points, Fraction(text), -Fraction(text))
    own = (points, True) if stride == 1 else (None, None)
    plain = transform(m, taps, *own, stride)
    scales = [_power(sum(map(abs, row), Fraction(0))) for row in plain.bt]
    made = replace(
        plain,
        bt=_scaled(plain.bt, [1 / scale for scale in scales]),
        g=_scaled(plain.g, scales),
    )
    check(made)
    return made


def _power(value: Fraction) -> Fraction:
    """The least power of two that is at least a number."""
    return Fraction(2) ** math.ceil(math.log2(value))


def _scaled(rows: Matrix, scales: list[Fraction]) -> Matrix:
    return tuple(
        tuple(x * scale for x in row) for row, scale in zip(rows, scales, strict=True)
    )  # fmt: skip


def why_not_half(group: Group) -> str:
    """'' for a convolution of f16 in NHWC, of a filter and stride in `PAIRS`, weights constant;
    else why not.
    """
    stage = group.main
    if group.half != 'f16' or not stage.is_product_sum or group.stages[0] is not stage:
        return f'{group.label} does not begin with a sum of products of f16'
    sizes = stage.sizes
    if set(sizes) - {'g'} != set('nkhwcrs') or stage.pad_value != 0:
        return f'{group.label} has the dimensions {tuple(sizes)}, not those of a convolution'
    if sizes['r'] != sizes['s'] or (sizes['r'], 1) not in PAIRS:
        shown = ' and '.join(f'{taps} x {taps}' for taps, stride in PAIRS if stride == 1)
        return f'{group.label} has a filter of {sizes["r"]} x {sizes["s"]}; {shown} are transformed'
    image, weights = stage.reads
    kept = group.tensor(weights.tensor)
    if kept.role != 'constant' or any(group.tensor(a.tensor).dtype != 'f16' for a in stage.reads):
        return f'{group.label} has weights that are not constant, or factors that are not f16'
    rows, columns = image.index[1:3] if len(image.index) == 4 else (None, None)
    if rows is None or columns is None:
        return f'{group.label} reads no image of four axes'

    def channel(dim: str, const: int = 0) -> Affine:
        """The channels of a group behind those of the ones before it."""
        grouped = (('g', sizes[dim]),) if 'g' in sizes else ()
        return affine(*grouped, (dim, 1), const=const)

    right = (
        stage.write.index[:3] == (var('n'), var('h'), var('w'))
        and stage.write.index[3:] == (channel('k', stage.write.index[-1].const),)
        and weights.index == (channel('k'), var('c'), var('r'), var('s'))
        and (image.index[0], image.index[3]) == (var('n'), channel('c', image.index[3].const))
        and (sizes['r'], half_stride(group)) in PAIRS
        and max(rows.const, columns.const) <= 0
    )
    groups, first = sizes.get('g', 1), image.index[3].const  # of a larger image, these channels
    depth = group.tensor(image.tensor).shape[3]
    if not right or not 0 <= first <= depth - groups * sizes['c']:
        return f'{group.label} is strided, dilated, or not laid out as NHWC'
    if groups > 1 and (sizes['c'] % LANES or sizes['k'] % LANES):
        return f'{group.label} has groups that are no whole vectors of {LANES} channels'
    return ''


def half_stride(group: Group) -> int:
    """The stride of a convolution both ways; 0 where it has none of `STRIDES`."""
    rows, columns = group.main.reads[0].index[1:3]
    for stride in STRIDES:
        right = (
            affine(('h', stride), ('r', 1), const=rows.const),
            affine(('w', stride), ('s', 1), const=columns.const),
        )
        if (rows, columns) == right:
            return stride
    return 0


def half_sizes(group: Group) -> tuple[int, ...]:
    """Outputs that tiles of a group may have each way; none where it does not apply."""
    return () if why_not_half(group) else SIZES[group.main.sizes['r'], half_stride(group)]


@lru_cache(maxsize=1024)
def half_geometry(group: Group, m: int) -> Geometry:
    """[Group] -> [Geometry]; SpecError where it does not apply. Groups of channels are no dimension
    of it: k counts all output channels, c those that each of them is a sum over.
    """
    reason = why_not_half(group)
    if reason or m not in half_sizes(group):
        shown = reason or f'choose one of {half_sizes(group)}'
        raise SpecError(f'Winograd in f16 with m={m} does not apply: {shown}')
    sizes, image = group.main.sizes, group.main.reads[0]
    _, height, width, _ = group.tensor(image.tensor).shape
    f = half_transform(m, sizes['r'], half_stride(group))
    return Geometry(
        n=sizes['n'], g=1, k=sizes.get('g', 1) * sizes['k'], c=sizes['c'], height=height,
        width=width, out_h=sizes['h'], out_w=sizes['w'], pad_top=-image.index[1].const,
        pad_left=-image.index[2].const, down=f, across=f,
    )  # fmt: skip


def half_error(group: Group, m: int, run: int) -> float:
    """Expected largest error over the largest result, with runs of so many channels; inf if it does
    not apply.
    """
    if m not in half_sizes(group):
        return math.inf
    channels = group.main.sizes['c']
    long = min(run, channels)
    # Additions of a sum in order that round as much as runs and their sums do together.
    alike = long + channels / long
    f = half_transform(m, group.main.sizes['r'], half_stride(group))
    return final_error(group, transform_error(f, f, alike) * HALVES['f16'] / UNIT)
