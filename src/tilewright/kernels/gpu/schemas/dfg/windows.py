"""Windows that slide over an image: outputs of a thread that share what they read.

Goes in: the nodes of one part and its main stage. Comes out: a `Slide`, or None where outputs that
lie side by side read nothing in common. Depthwise convolutions and pooling slide:

    Out[h, w] = combine over r, s of f(In[h * step + r * reach, w * step + s * reach], Ker[r, s])
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.gpu.schemas.dfg.graph import BlockGraph, Combine, Load
from tilewright.ops.stage import Stage

MOST_TAPS = 25
MOST_READ = 100  # elements of the image that a thread holds


@dataclass(frozen=True, slots=True)
class SlidAxis:
    """One axis of the image: `run` outputs of a thread along `dim` read `span` positions.

    tap   the reduction that walks the window; '' where it has one position
    """

    dim: str
    tap: str
    taps: int
    axis: int
    step: int
    reach: int
    run: int

    @property
    def span(self) -> int:
        return (self.run - 1) * self.step + (self.taps - 1) * self.reach + 1


@dataclass(frozen=True, slots=True)
class Slide:
    """Rows and columns of outputs that a thread computes, and the operand that they share."""

    image: Load
    rows: SlidAxis
    columns: SlidAxis

    @property
    def taps(self) -> int:
        return self.rows.taps * self.columns.taps

    @property
    def sums(self) -> int:
        return self.rows.run * self.columns.run

    @property
    def read(self) -> int:
        return self.rows.span * self.columns.span


def slide_of(graph: BlockGraph, stage: Stage, dims: tuple[str, ...], runs: tuple[int, int]
             ) -> Slide | None:  # fmt: skip
    """[nodes, main stage, its parallel dimensions, outputs of a thread along the last two] ->
    [Slide]
    """
    combine = next((n for n in graph.nodes if isinstance(n, Combine)), None)
    if combine is None or len(dims) < 2 or max(runs) == 1:
        return None
    inner = set(dims[-2:])
    loads = [n for n in map(graph.node, combine.inputs) if isinstance(n, Load)]
    moving = [n for n in loads if inner & {name for e in n.index for name in e.names}]
    if len(moving) != 1:
        return None
    image = moving[0]
    axes = [_axis(image, stage, dim, run) for dim, run in zip(dims[-2:], runs, strict=True)]
    rows, columns = axes
    if rows is None or columns is None:
        return None
    made = Slide(image, rows, columns)
    fits = 1 < made.taps <= MOST_TAPS and made.read <= MOST_READ
    return made if fits and rows.tap != columns.tap else None


def _axis(image: Load, stage: Stage, dim: str, run: int) -> SlidAxis | None:
    """How outputs along a dimension walk the image; None where that is not a window of its own."""
    found = [axis for axis, e in enumerate(image.index) if dim in e.names]
    if len(found) != 1:
        return None
    (axis,) = found
    index = image.index[axis]
    taps = [n for n in index.names if n != dim]
    if len(taps) > 1 or any(n not in stage.reduction for n in taps) or index.coefficient(dim) < 1:
        return None
    if not taps:
        return SlidAxis(dim, '', 1, axis, index.coefficient(dim), 1, run)
    (tap,) = taps
    alone = sum(tap in e.names for e in image.index) == 1 and index.coefficient(tap) > 0
    step, reach = index.coefficient(dim), index.coefficient(tap)
    return SlidAxis(dim, tap, stage.sizes[tap], axis, step, reach, run) if alone else None
