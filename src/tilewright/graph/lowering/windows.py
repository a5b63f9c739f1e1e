"""The windows of a node: its strides, dilations, and pads or auto_pad."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.errors import ModelError
from tilewright.graph.lowering.reader import NodeReader
from tilewright.ops import windows as description
from tilewright.ops.windows import Window

AUTO_PAD = ('NOTSET', 'SAME_UPPER', 'SAME_LOWER', 'VALID')
MAX_WINDOW = 1 << 20


def windows(
    node: NodeReader, sizes: Sequence[int], taps: Sequence[int], ceil: bool = False
) -> tuple[Window, ...]:
    """One window for each axis of an image."""
    rank = len(sizes)
    strides, dilations = node.ints('strides', rank, 1), node.ints('dilations', rank, 1)
    pads = node.ints('pads', 2 * rank, 0)
    check_windows({'kernel_shape': taps, 'strides': strides, 'dilations': dilations}, pads=pads)
    auto = node.text('auto_pad', 'NOTSET', AUTO_PAD)
    if auto == 'VALID':
        pads = (0,) * (2 * rank)
    elif auto.startswith('SAME'):
        totals = [
            max(0, (-(-size // s) - 1) * s + (t - 1) * d + 1 - size)
            for size, t, s, d in zip(sizes, taps, strides, dilations, strict=True)
        ]
        small, large = [t // 2 for t in totals], [t - t // 2 for t in totals]
        pads = (*small, *large) if auto == 'SAME_UPPER' else (*large, *small)
    return description.windows(sizes, taps, strides, pads, dilations, ceil)


def check_windows(positive: dict[str, Sequence[int]], **others: Sequence[int]) -> None:
    """Raise unless all numbers are plausible; those of `others` may be 0."""
    rows = [(name, numbers, 1) for name, numbers in positive.items()]
    for name, numbers, least in (*rows, *((name, row, 0) for name, row in others.items())):
        if any(not least <= n <= MAX_WINDOW for n in numbers):
            raise ModelError(
                f'its {name} are {list(numbers)}; they must be from {least} to {MAX_WINDOW}'
            )
