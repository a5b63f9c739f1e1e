"""Windows that slide over the axes of an image, as convolutions and poolings describe them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.errors import SpecError
from tilewright.ops.stage import Affine, affine

Numbers = int | Sequence[int]


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


def windows(
    sizes: Sequence[int],
    taps: Numbers,
    strides: Numbers = 1,
    pads: Numbers = 0,
    dilations: Numbers = 1,
    ceil: bool = False,
) -> tuple[Window, ...]:
    """One window for each axis; numbers that are the same for all axes need not be repeated.

    pads  before every axis, then behind every axis
    ceil  one window more where elements are left, if it begins in the image
    """
    rank = len(sizes)
    around = _each(pads, 2 * rank)
    rows = zip(
        sizes, _each(taps, rank), _each(strides, rank), _each(dilations, rank), around[:rank],
        around[rank:], strict=True,
    )  # fmt: skip
    return tuple(_window(*row, ceil=ceil) for row in rows)


def _each(numbers: Numbers, count: int) -> tuple[int, ...]:
    found = (numbers,) * count if isinstance(numbers, int) else tuple(numbers)
    if len(found) != count:
        raise SpecError(f'a window has the numbers {found}; give one, or {count}')
    return found


def _window(
    size: int, taps: int, stride: int, dilation: int, before: int, after: int, ceil: bool
) -> Window:
    span = (taps - 1) * dilation + 1
    room = size + before + after - span
    if room < 0:
        raise SpecError(
            f'the window spans {span} along an axis of {size}, with padding '
            f'{size + before + after}: it does not fit'
        )
    out = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (out - 1) * stride >= size + before:
        out -= 1  # a window that would begin in the padding behind the image
    return Window(size, taps, stride, dilation, before, after, out)


def axis_names(rank: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Iterators over an image and over a window: h w and r s for two axes."""
    if rank <= 3:
        return tuple('dhw'[3 - rank :]), tuple('trs'[3 - rank :])
    return tuple(f'x{i}' for i in range(rank)), tuple(f't{i}' for i in range(rank))
