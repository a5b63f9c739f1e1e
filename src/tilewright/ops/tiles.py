"""A convolution cut into overlapping tiles, each multiplied at points: Winograd's and Fourier's.

Goes in: a convolution's group. Comes out: whether it is a plain one, how it reads its image, and,
for the transforms of an algorithm along each direction, a `TileGeometry` with the stage of products
in the middle (`product_stage`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tilewright.ops.group import Group
from tilewright.ops.stage import Access, Dim, Stage, affine, call, read, var

ALGORITHMS = (
    'auto',
    'direct',
    'winograd',
    'fft',
    'strassen',
)  # what one may ask for; auto: the fastest
Tile = int | tuple[int, int]  # outputs of a tile: the same both ways, or rows x columns


def algorithm_title(name: str) -> str:
    """What people call an algorithm: Winograd, FFT."""
    return 'FFT' if name == 'fft' else name.capitalize()


class Axis(Protocol):
    """A transform along one direction: `m` outputs of `r` taps from `length` inputs, `step` apart
    from one tile to the next.
    """

    @property
    def m(self) -> int: ...
    @property
    def r(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def name(self) -> str: ...


A = TypeVar('A', bound=Axis, covariant=True)


@dataclass(frozen=True, slots=True)
class TileGeometry(ABC, Generic[A]):
    """A convolution cut into tiles: what code, model and lowering all need to know.

    `across` and `down` are the transforms along the width and the height; `ph` x `pw` tiles of
    `down.m` x `across.m` outputs cover the image, the last ones reaching beyond it. Matrices are
    multiplied at `t` points.
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
    down: A
    across: A

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
    @abstractmethod
    def t(self) -> int:
        """Points at which matrices are multiplied."""

    @property
    def weights(self) -> int:
        """Distinct matrices of transformed weights."""
        return self.t

    @property
    def sharing(self) -> tuple[tuple[int, int], ...]:
        """(points that share a weight, number of such weights)."""
        return ((1, self.t),)

    @property
    def saving(self) -> float:
        """Products of the direct algorithm for one of this algorithm, whole tiles counted."""
        direct = self.out_h * self.out_w * self.down.r * self.across.r
        return direct / (self.ph * self.pw * self.t)


def tile_of(m: Tile) -> tuple[int, int]:
    """(rows, columns) of outputs of a tile."""
    return (m, m) if isinstance(m, int) else m


@dataclass(frozen=True, slots=True)
class Border:
    """How a convolution reads its image: rows, then columns."""

    padding: tuple[int, int]
    strides: tuple[int, int]


def why_not_plain(group: Group) -> str:
    """'' for a dense convolution in NCHW without dilation, else why a group is none."""
    stage = group.main
    if not stage.is_product_sum or stage.pad_value != 0 or group.stages[0] is not stage:
        return f'{group.label} does not begin with a sum of products'
    sizes = stage.sizes
    if not {'n', 'k', 'h', 'w', 'c', 'r', 's'} <= set(sizes) <= set('ngkhwcrs'):
        return f'{group.label} has the dimensions {tuple(sizes)}, not those of a dense convolution'
    if border_of(group) is None:
        return f'{group.label} is dilated, or not laid out as NCHW'
    return ''


def why_not_constant(group: Group) -> str:
    """'' where weights are known ahead, so that they are transformed once."""
    if group.tensor(group.main.reads[1].tensor).role != 'constant':
        return f'{group.label} has weights that are not constant'
    return ''


def border_of(group: Group) -> Border | None:
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
    border = Border(
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


def geometry_fields(group: Group, border: Border) -> dict[str, int]:
    """Fields of a `TileGeometry` that do not depend on the transforms."""
    sizes = group.main.sizes
    image = group.tensor(group.main.reads[0].tensor)
    return {
        'n': sizes['n'],
        'g': sizes.get('g', 1),
        'k': sizes['k'],
        'c': sizes['c'],
        'height': image.shape[2],
        'width': image.shape[3],
        'out_h': sizes['h'],
        'out_w': sizes['w'],
        'pad_top': border.padding[0],
        'pad_left': border.padding[1],
    }


def product_stage(shape: TileGeometry[Axis]) -> Stage:
    """The batched matrix product in the middle: M[t] += V[t] U[t], over tiles instead of pixels."""
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
