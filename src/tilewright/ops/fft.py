"""Convolution by Fourier's transform of overlapping tiles: where it applies, its tiles, its points.

Goes in: a convolution's group and the outputs m of a tile (or rows x columns). Comes out: its
`FftGeometry`. Tiles of n = m + r - 1 inputs, m apart, are transformed; with D and W the transforms
of a tile and of the weights, a circular correlation of length n,

    Y = conj(W) D  summed over channels,        y_i = sum_k g_k d_{i + k}

has no wrap-around in its first m results, which are kept (overlap-save; for networks Mathieu,
Henaff & LeCun 2014, tiles as in Vasilache et al. 2015). Inputs are real: along the height only
frequencies up to n / 2 are computed (ops/fft_programs.py), of which the first and the last are
real rows again. A complex frequency is three real products, three *points*:

    real rows      2 (3/2 n_across - 1) points
    complex rows   (n_down / 2 - 1) 3 n_across

about 3/2 of a tile's inputs, whatever the filter, so that long filters cost no more than short
ones. Points are numbered row 0, row n/2, rows 1, 2, ...; in each of them frequency by frequency.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.errors import SpecError
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.tiles import (
    Tile,
    TileGeometry,
    border_of,
    geometry_fields,
    product_stage,
    tile_of,
    why_not_constant,
    why_not_plain,
)

# Lengths of transforms: even, with small prime factors.
SIZES = (12, 16, 20, 24, 28, 32, 36, 40, 48, 64)
SIZES_TRIED = 5  # in each direction of one convolution
FEWEST_TAPS = 5  # in each direction: shorter filters are what Winograd is for


@dataclass(frozen=True, slots=True)
class Fourier:
    """m outputs of a filter with r taps, by a transform of length m + r - 1."""

    m: int
    r: int

    @property
    def length(self) -> int:
        return self.m + self.r - 1

    @property
    def step(self) -> int:
        return self.m

    @property
    def name(self) -> str:
        return f'FFT{self.length}'


@dataclass(frozen=True, slots=True)
class FftGeometry(TileGeometry[Fourier]):
    """Tiles of `down.length` x `across.length` inputs."""

    @property
    def real_points(self) -> int:
        """Of a row of real numbers."""
        return 3 * self.across.length // 2 - 1

    @property
    def complex_points(self) -> int:
        """Of a row of complex numbers."""
        return 3 * self.across.length

    @property
    def complex_rows(self) -> int:
        return self.down.length // 2 - 1

    @property
    def t(self) -> int:
        return 2 * self.real_points + self.complex_rows * self.complex_points


def applies(group: Group, m: Tile) -> str:
    """'' where tiles of m (or rows x columns) outputs can compute this group, else why not."""
    reason = why_not_filter(group)
    if reason:
        return reason
    taps = group.main.sizes['r'], group.main.sizes['s']
    for size, r in zip(tile_of(m), taps, strict=True):
        if size < 1 or size + r - 1 not in SIZES:
            shown = ', '.join(map(str, SIZES))
            return f'm={size} with {r} taps needs transforms of {size + r - 1}; there are {shown}'
    return ''


def why_not_filter(group: Group) -> str:
    """'' where tiles of some size can compute this group, else why none can."""
    reason = why_not_plain(group)
    border = None if reason else border_of(group)
    if border is None:
        return reason
    taps = group.main.sizes['r'], group.main.sizes['s']
    shown = 'x'.join(map(str, taps))
    if border.strides != (1, 1):
        return f'{group.label} has stride {"x".join(map(str, border.strides))}, not 1'
    if min(taps) < FEWEST_TAPS:
        return f'{group.label} has a {shown} filter, smaller than {FEWEST_TAPS}x{FEWEST_TAPS}'
    if max(taps) >= max(SIZES):
        return f'{group.label} has a {shown} filter; transforms have at most {max(SIZES)} inputs'
    return why_not_constant(group)


def tiles_of(group: Group) -> tuple[tuple[int, int], ...]:
    """Every (rows, columns) of outputs that a tile may have; none where FFT does not apply.

    In each direction those that cover the image with the fewest inputs, shorter ones first.
    """
    if why_not_filter(group):
        return ()
    sizes = group.main.sizes
    ways = []
    for taps, extent in ((sizes['r'], sizes['h']), (sizes['s'], sizes['w'])):
        covered = sorted((n * -(-extent // (n - taps + 1)), n) for n in SIZES if n >= taps)
        ways.append([n - taps + 1 for _, n in covered[:SIZES_TRIED]])
    return tuple((rows, columns) for rows in ways[0] for columns in ways[1])


@lru_cache(maxsize=1024)
def geometry(group: Group, m: Tile) -> FftGeometry:
    """[Group] -> [FftGeometry]; SpecError where FFT does not apply."""
    reason = applies(group, m)
    border = None if reason else border_of(group)
    if border is None:
        raise SpecError(f'FFT with m={m} does not apply: {reason}; use the direct algorithm')
    rows, columns = tile_of(m)
    down, across = Fourier(rows, group.main.sizes['r']), Fourier(columns, group.main.sizes['s'])
    return FftGeometry(**geometry_fields(group, border), down=down, across=across)


def matmul_stage(group: Group, m: Tile) -> Stage:
    """The batched matrix product in the middle, over tiles instead of pixels."""
    return product_stage(geometry(group, m))
