"""Windows that slide over the axes of an image, as convolutions and poolings describe them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.errors import ModelError
from tilewright.graph.lowering.given import Given
from tilewright.ops.stage import Affine, affine

AUTO_PAD = ('NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID')
MAX_WINDOW = 1 << 20


@dataclass(frozen=True, slots=True)
class Window:
    """Along one axis: `out` windows of `taps` elements, over `size` elements and their padding."""

    size: int
    taps: int
    stride: int
    dilation: int
    before: int
    after: int
    out: int

    @property
    def span(self) -> int:
        return (self.taps - 1) * self.dilation + 1

    @property
    def leaves(self) -> bool:
        """Whether a window holds anything outside the axis."""
        return self.before > 0 or (self.out - 1) * self.stride - self.before + self.span > self.size

    def index(self, out: str, tap: str) -> Affine:
        return affine((out, self.stride), (tap, self.dilation), const=-self.before)

    def counts(self, padding_counts: bool) -> np.ndarray:
        """How many elements each window holds; of what lies behind the padding, none."""
        low = -self.before if padding_counts else 0
        high = self.size + (self.after if padding_counts else 0)
        starts = np.arange(self.out) * self.stride - self.before
        # The first tap at or behind a limit, rounded up.
        first = np.clip(-((starts - low) // self.dilation), 0, self.taps)
        last = np.clip(-((starts - high) // self.dilation), 0, self.taps)
        return last - first


def axis_names(rank: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Iterators over an image and over a window: h w and r s for two axes."""
    if rank <= 3:
        return tuple('dhw'[3 - rank :]), tuple('trs'[3 - rank :])
    return tuple(f'x{i}' for i in range(rank)), tuple(f't{i}' for i in range(rank))


def windows(
    given: Given, sizes: Sequence[int], taps: Sequence[int], ceil: bool = False
) -> tuple[Window, ...]:
    """The windows of a node: its strides, dilations, and pads or auto_pad."""
    rank = len(sizes)
    strides, dilations = given.ints('strides', rank, 1), given.ints('dilations', rank, 1)
    pads = given.ints('pads', 2 * rank, 0)
    for name, numbers, least in (
        ('kernel_shape', taps, 1), ('strides', strides, 1), ('dilations', dilations, 1),
        ('pads', pads, 0),
    ):  # fmt: skip
        if any(not least <= n <= MAX_WINDOW for n in numbers):
            raise ModelError(
                f'its {name} are {list(numbers)}; they must be from {least} to {MAX_WINDOW}'
            )
    auto = given.text('auto_pad', 'NOTSET', AUTO_PAD)
    made = []
    for axis in range(rank):
        before, after = pads[axis], pads[axis + rank]
        span = (taps[axis] - 1) * dilations[axis] + 1
        if auto.startswith('SAME'):
            total = max(
                0, (-(-sizes[axis] // strides[axis]) - 1) * strides[axis] + span - sizes[axis]
            )
            small, large = total // 2, total - total // 2
            before, after = (small, large) if auto == 'SAME_UPPER' else (large, small)
        elif auto == 'VALID':
            before = after = 0
        room = sizes[axis] + before + after - span
        if room < 0:
            raise ModelError(
                f'its window spans {span} along an axis of {sizes[axis]}, with padding '
                f'{sizes[axis] + before + after}: it does not fit'
            )
        out = (-(-room // strides[axis]) if ceil else room // strides[axis]) + 1
        if ceil and (out - 1) * strides[axis] >= sizes[axis] + before:
            out -= 1  # a window that would begin in the padding behind the image
        made.append(
            Window(sizes[axis], taps[axis], strides[axis], dilations[axis], before, after, out)
        )
    return tuple(made)
