"""Winograd's minimal filtering F(m, r) of a convolution: where it applies, its tiles, its products.

Goes in: a convolution's group and the tile size m. Comes out: its `geometry`, and the stage of
products (`matmul_stage`) of

    U = G g G^T                  weights, transformed ahead of time       t | r s
    V = B^T d B                  input tiles, two passes of one dimension  t n c ph pw
    M[t] = V[t] U[t]             a matrix product for each point t         t n k ph pw | c
    Y = A^T M A                  output tiles, two passes, then cropped, then the epilogue

(Lavin & Gray 2016; Winograd 1980) with the matrices of ops/winograd_matrices.py. Tiles need not be
square: m is a number or (rows, columns). A filter of one row or one column is the one-dimensional
form: F(1, 1) in the other dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from tilewright.errors import SpecError
from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Dim, Stage, affine, call, read, var
from tilewright.ops.winograd_matrices import MANY, Transform, transform

ALGORITHMS = ('auto', 'direct', 'winograd')  # what one may ask for; auto: the faster
# Points in one direction: AlexNet's first layer, F(7,11)/4, has 35. With more, transforms are some
# thousand instructions for a tile, and matrices take seconds to make and to look at.
MOST_POINTS = 64
Tile = int | tuple[int, int]  # outputs of a tile: the same both ways, or rows x columns


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution cut into Winograd tiles: what code, model and lowering all need to know.

    `across` and `down` are the transforms along the width and the height; `ph` x `pw` tiles of
    `down.m` x `across.m` outputs cover the image, the last ones reaching beyond it.
    """

    n: int
    g: int
    k: int
    c: int
    height: int
    width: int
    out_h: int
    out_w: int
    pad_top: int
    pad_left: int
    down: Transform
    across: Transform

    @property
    def name(self) -> str:
        """F(4,3), F(4,3)xF(2,3), F(4,3)/2: down x across, and the stride."""
        square = self.down.name == self.across.name
        return self.down.name if square else f'{self.down.name}x{self.across.name}'

    @property
    def ph(self) -> int:
        return -(-self.out_h // self.down.m)

    @property
    def pw(self) -> int:
        return -(-self.out_w // self.across.m)

    @property
    def t(self) -> int:
        return self.down.t * self.across.t

    @property
    def weights(self) -> int:
        """Distinct matrices of transformed weights."""
        return self.down.kinds * self.across.kinds

    @property
    def saving(self) -> float:
        """Products of the direct algorithm for one of this algorithm, whole tiles counted."""
        direct = self.out_h * self.out_w * self.down.r * self.across.r
        return direct / (self.ph * self.pw * self.t)


def tile_of(m: Tile) -> tuple[int, int]:
    """(rows, columns) of outputs of a tile."""
    return (m, m) if isinstance(m, int) else m


def applies(group: Group, m: Tile) -> str:
    """'' where tiles of m (or rows x columns) outputs can compute this group, else why not."""
    tile = tile_of(m)
    shown = f'm={tile[0]}' if tile[0] == tile[1] else f'm={tile[0]}x{tile[1]}'
    if min(tile) < 1 or max(tile) < 2:
        return f'{shown}: a tile of fewer than two outputs saves nothing'
    stage = group.main
    if not stage.is_product_sum or stage.pad_value != 0 or group.stages[0] is not stage:
        return f'{group.label} does not begin with a sum of products'
    sizes = stage.sizes
    if not {'n', 'k', 'h', 'w', 'c', 'r', 's'} <= set(sizes) <= set('ngkhwcrs'):
        return f'{group.label} has the dimensions {tuple(sizes)}, not those of a dense convolution'
    border = _border(group)
    if border is None:
        return f'{group.label} is dilated, or not laid out as NCHW'
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
    if group.tensor(stage.reads[1].tensor).role != 'constant':
        return f'{group.label} has weights that are not constant'
    return ''


@dataclass(frozen=True, slots=True)
class _Border:
    """How a convolution reads its image: rows, then columns."""

    padding: tuple[int, int]
    strides: tuple[int, int]


def _border(group: Group) -> _Border | None:
    """Padding and strides where the accesses are those of a plain convolution, else None."""
    stage = group.main
    sizes = stage.sizes
    grouped = 'g' in sizes
    out_k = affine(('g', sizes['k']), ('k', 1)) if grouped else var('k')
    in_c = affine(('g', sizes['c']), ('c', 1)) if grouped else var('c')
    image, weights = stage.reads
    if len(image.index) != 4:
        return None
    rows, columns = image.index[2:]
    border = _Border(
        (-rows.const, -columns.const), (rows.coefficient('h'), columns.coefficient('w'))
    )
    if min(border.strides) < 1:
        return None
    right = (
        stage.write.index == (var('n'), out_k, var('h'), var('w'))
        and weights.index == (out_k, var('c'), var('r'), var('s'))
        and image.index[:2] == (var('n'), in_c)
        and rows == affine(('h', border.strides[0]), ('r', 1), const=rows.const)
        and columns == affine(('w', border.strides[1]), ('s', 1), const=columns.const)
    )
    return border if right else None


@lru_cache(maxsize=1024)
def geometry(group: Group, m: Tile) -> Geometry:
    """[Group] -> [Geometry]; SpecError where Winograd does not apply."""
    reason = applies(group, m)
    border = None if reason else _border(group)
    if border is None:
        raise SpecError(f'Winograd with m={m} does not apply: {reason}; use the direct algorithm')
    sizes = group.main.sizes
    image = group.tensor(group.main.reads[0].tensor)
    down, across = (
        transform(size if taps > 1 else 1, taps, stride=stride)
        for size, taps, stride in zip(
            tile_of(m), (sizes['r'], sizes['s']), border.strides, strict=True
        )
    )
    return Geometry(
        n=sizes['n'],
        g=sizes.get('g', 1),
        k=sizes['k'],
        c=sizes['c'],
        height=image.shape[2],
        width=image.shape[3],
        out_h=sizes['h'],
        out_w=sizes['w'],
        pad_top=border.padding[0],
        pad_left=border.padding[1],
        down=down,
        across=across,
    )


def matmul_stage(group: Group, m: Tile) -> Stage:
    """The batched matrix product in the middle: M[t] += V[t] U[t], over tiles instead of pixels."""
    shape = geometry(group, m)
    batch = (Dim('g', shape.g),) if shape.g > 1 else ()
    at_g = (var('g'),) if batch else ()
    tiles = (var('ph'), var('pw'))
    return Stage(
        'matmul',
        (
            Dim('t', shape.t), Dim('n', shape.n), *batch, Dim('k', shape.k),
            Dim('ph', shape.ph), Dim('pw', shape.pw), Dim('c', shape.c, 'reduction'),
        ),
        Access('M', (var('t'), var('n'), *at_g, var('k'), *tiles)),
        (
            Access('V', (var('t'), var('n'), *at_g, var('c'), *tiles)),
            Access('U', (var('t'), *at_g, var('k'), var('c'))),
        ),
        call('mul', read(0), read(1)),
        'sum',
    )  # fmt: skip
