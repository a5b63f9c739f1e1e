"""Winograd's minimal filtering F(m, r) of a convolution: where it applies, its tiles, its products.

Goes in: a convolution's group and the tile size m. Comes out: its `geometry`, and the stage of
products (`matmul_stage`) of

    U = G g G^T                  weights, ahead of time if constant       t | r s
    V = B^T d B                  input tiles, two passes of one dimension  t n c ph pw
    M[t] = V[t] U[t]             a matrix product for each point t         t n k ph pw | c
    Y = A^T M A                  output tiles, two passes, then cropped, then the epilogue

(Lavin & Gray 2016; Winograd 1980) with the matrices of ops/winograd_matrices.py. Tiles need not be
square: m is a number or (rows, columns). A filter of one row or one column is the one-dimensional
form: F(1, 1) in the other dimension.
"""

from __future__ import annotations

from collections import Counter
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
    why_not_plain,
)
from tilewright.ops.winograd_matrices import MANY, Transform, transform

# Points in one direction: AlexNet's first layer, F(7,11)/4, has 35. With more, transforms are some
# thousand instructions for a tile, and matrices take seconds to make and to look at.
MOST_POINTS = 64


@dataclass(frozen=True, slots=True)
class Geometry(TileGeometry[Transform]):
    """Tiles of F(m, r) each way."""

    @property
    def t(self) -> int:
        return self.down.t * self.across.t

    @property
    def weights(self) -> int:
        """Distinct matrices of transformed weights."""
        return self.down.kinds * self.across.kinds

    @property
    def sharing(self) -> tuple[tuple[int, int], ...]:
        """(points that share a weight, number of such weights)."""
        found: Counter[int] = Counter()
        for down in self.down.parts:
            for across in self.across.parts:
                found[down.shared * across.shared] += down.kinds * across.kinds
        return tuple(found.items())


def applies(group: Group, m: Tile) -> str:
    """'' where tiles of m (or rows x columns) outputs can compute this group, else why not."""
    tile = tile_of(m)
    shown = f'm={tile[0]}' if tile[0] == tile[1] else f'm={tile[0]}x{tile[1]}'
    if min(tile) < 1 or max(tile) < 2:
        return f'{shown}: a tile of fewer than two outputs saves nothing'
    sizes, border = group.main.sizes, None
    reason = why_not_plain(group)
    if reason or (border := border_of(group)) is None:
        return reason
    taps = (sizes['r'], sizes['s'])
    if max(taps) == 1:
        return f'{group.label} has a 1x1 filter: there is nothing to save'
    for size, r, stride in zip(tile, taps, border.strides, strict=True):
        longest = -(-r // stride)
        if r > 1 and longest + size - 1 > len(MANY):
            return f'F({size}, {longest}) needs more than {len(MANY)} points'
        points = min(stride, r) * (size - 1) + r
        if r > 1 and points > MOST_POINTS:
            return f'F({size}, {r}) at stride {stride} has {points} points, more than {MOST_POINTS}'
    return ''


@lru_cache(maxsize=1024)
def geometry(group: Group, m: Tile) -> Geometry:
    """[Group] -> [Geometry]; SpecError where Winograd does not apply."""
    reason = applies(group, m)
    border = None if reason else border_of(group)
    if border is None:
        raise SpecError(f'Winograd with m={m} does not apply: {reason}; use the direct algorithm')
    sizes = group.main.sizes
    down, across = (
        transform(size if taps > 1 else 1, taps, stride=stride)
        for size, taps, stride in zip(
            tile_of(m), (sizes['r'], sizes['s']), border.strides, strict=True
        )
    )
    return Geometry(**geometry_fields(group, border), down=down, across=across)


def matmul_stage(group: Group, m: Tile) -> Stage:
    """The batched matrix product in the middle: M[t] += V[t] U[t], over tiles instead of pixels."""
    return product_stage(geometry(group, m))
