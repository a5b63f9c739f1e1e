"""Where tensors of a block lie in shared memory: between segments, and in pieces of a sum.

Goes in: the segments of a block. Comes out: for each tensor between two of them a `Kept`, for each
operand that is copied in pieces a `Staged`, for each constant of later segments that is copied
before all else another, with windows, strides and places. Memory of what no later segment reads is
used again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.kernels.gpu.language import padded
from tilewright.kernels.gpu.schemas.dfg.graph import GLOBAL, SHARED, Load
from tilewright.kernels.gpu.schemas.dfg.segment import FOUR, Segment, leaves, reach
from tilewright.ops.chain import Span
from tilewright.ops.group import Tensor, row_major_strides
from tilewright.ops.stage import Affine

BANKS = 32
SPREAD = 8  # floats, modulo banks, between planes


@dataclass(frozen=True, slots=True)
class Walk:
    """A reduction of `size` points that a block walks in parts."""

    name: str
    size: int
    part: int

    @property
    def parts(self) -> int:
        return self.size // self.part


@dataclass(frozen=True, slots=True)
class Kept:
    """A tensor between segments: its window in shared memory, at `offset` floats.

    fill   what positions outside the tensor hold, where all readers agree; else None, and readers
           look at the bounds
    """

    tensor: Tensor
    window: tuple[Span, ...]
    strides: tuple[int, ...]
    floats: int
    offset: int
    fill: float | None

    @property
    def bytes(self) -> int:
        return 4 * self.floats


@dataclass(frozen=True, slots=True)
class Staged:
    """One piece of an operand in shared memory, `floats` each of `buffers`, from `offset` on.

    moves   what a step of the chunked reduction is along each axis; windows begin without it
    counts  the axis that counts pieces, if there is one
    """

    load: Load
    tensor: Tensor
    window: tuple[Span, ...]
    moves: tuple[int, ...]
    strides: tuple[int, ...]
    floats: int
    buffers: int
    offset: int
    counts: int | None = None

    @property
    def bytes(self) -> int:
        return 4 * padded(self.floats) * self.buffers


class _Space:
    """Floats of shared memory, taken from one segment to another."""

    def __init__(self) -> None:
        self._taken: list[tuple[int, int, int, int]] = []  # segments, floats: first and last

    def take(self, first: int, last: int, floats: int) -> int:
        """The lowest place beside all that lives at the same time."""
        beside = sorted((low, high) for a, b, low, high in self._taken if a <= last and first <= b)
        place = 0
        for low, high in beside:
            if place + floats <= low:
                break
            place = max(place, high)
        self._taken.append((first, last, place, place + padded(floats)))
        return place


def stored(
    tensors: Mapping[str, Tensor], made: Sequence[Segment], form: int, buffers: int, early: bool,
    walk: Walk | None,
) -> tuple[dict[str, Kept], dict[str, Staged], dict[str, Staged]]:  # fmt: skip
    """(tensor -> Kept, load -> Staged in pieces, load -> Staged before all else) of a block.

    walk   the reduction of the last segment that a block walks in parts, computing what those
           before it need for each: all they keep lives as long as the block then
    """
    space = _Space()
    kept: dict[str, Kept] = {}
    ahead = _ahead(tensors, made, space, walk) if early else {}
    for number, segment in enumerate(made):
        if segment.store.level != SHARED:
            continue
        tensor = tensors[segment.store.tensor]
        readers = [
            (n, load, reader)
            for n, reader in enumerate(made)
            for load in reader.loads
            if load.tensor == tensor.name and load.level == SHARED
        ]
        window = _window(tensor, segment, [(load, reader) for _, load, reader in readers])
        strides, floats = laid_out(tuple(s.size for s in window), form)
        pads = {
            load.pad for _, load, r in readers if leaves(load, tensor.shape, r.stage.sizes)
        }  # fmt: skip
        fill = pads.pop() if len(pads) == 1 else None if pads else 0.0
        offset = space.take(number, max(n for n, _, _ in readers), floats)
        kept[tensor.name] = Kept(tensor, window, strides, floats, offset, fill)
    staged: dict[str, Staged] = {}
    for number, segment in enumerate(made):
        for load in segment.loads:
            if load.name in segment.staged:
                count = min(buffers, segment.chunks)
                staged[load.name] = _staged(tensors, segment, load, form, count, space, number)
    return kept, staged, ahead


def _ahead(
    tensors: Mapping[str, Tensor], made: Sequence[Segment], space: _Space, walk: Walk | None
) -> dict[str, Staged]:
    """Constants that are read behind the first barrier, or for every part of a walk."""
    found: dict[str, Staged] = {}
    for number, segment in enumerate(made):
        packed = [item.tensor.name for item in segment.packed if item is not segment.fragments]
        for load in segment.loads if number or walk else ():
            tensor = tensors[load.tensor]
            if (
                load.level != GLOBAL or tensor.role != 'constant' or load.name in segment.staged
                or load.tensor in packed or leaves(load, tensor.shape, segment.stage.sizes)
            ):  # fmt: skip
                continue
            window = [_whole(reach(e, segment), walk) for e in load.index]
            item = segment.fragments
            if item is not None and load.tensor == item.tensor.name:
                columns = segment.column_units * segment.tk
                window[-2] = _whole(Span(reach(load.index[-2], segment).start, columns), walk)
                window[-1] = Span(Affine(()), tensor.shape[-1])
                window[item.piece_axis] = Span(Affine(()), item.depths.chunks)
            strides, floats = laid_out(tuple(s.size for s in window), 0)
            last = len(made) - 1 if walk else number
            offset = space.take(0, last, floats)
            still = (0,) * len(window)
            found[load.name] = Staged(
                load, tensor, tuple(window), still, strides, floats, 1, offset
            )  # fmt: skip
    return found


def _whole(span: Span, walk: Walk | None) -> Span:
    """A span over all parts of a walk."""
    if walk is None or not span.start.coefficient(walk.name):
        return span
    factor = span.start.coefficient(walk.name)
    rest = Affine(tuple(t for t in span.start.terms if t[0] != walk.name), span.start.const)
    return Span(rest, span.size + factor * (walk.size - walk.part))


def _window(
    tensor: Tensor, segment: Segment, readers: Sequence[tuple[Load, Segment]]
) -> tuple[Span, ...]:
    """What is computed of each axis; with the border that readers see, where it stays in place."""
    spans = []
    for axis, extent in enumerate(tensor.shape):
        written = segment.region.written[axis]
        asked = [reach(load.index[axis], reader) for load, reader in readers]
        if any(s.start.terms for s in asked) or written.start.terms or written.size < extent:
            spans.append(written)
            continue
        low = min([0, *(s.start.const for s in asked)])
        high = max([extent, *(s.start.const + s.size for s in asked)])
        spans.append(Span(Affine((), low), high - low))
    return tuple(spans)


def _staged(
    tensors: Mapping[str, Tensor], segment: Segment, load: Load, form: int, buffers: int,
    space: _Space, number: int,
) -> Staged:  # fmt: skip
    roles = segment.roles
    assert roles is not None
    window = [reach(e, segment, {roles.chunk: segment.depth}) for e in load.index]
    item, counts = segment.fragments, None
    if item is not None and load is roles.across:
        window[-2] = Span(window[-2].start, segment.column_units * segment.tk)
        window[-1] = Span(window[-1].start, item.tensor.shape[-1])
        form, counts = 0, item.piece_axis
    elif load is roles.across and is_packed(segment, load):
        # Whole fours, for all columns that threads of the segment hold.
        count = -(-segment.column_units * segment.tk // FOUR) * FOUR
        window[-1] = Span(window[-1].start, count)
        form = 0
    strides, floats = laid_out(tuple(s.size for s in window), form)
    moves = tuple(e.coefficient(roles.chunk) for e in load.index)
    offset = space.take(number, number, padded(floats) * buffers)
    return Staged(
        load, tensors[load.tensor], tuple(window), moves, strides, floats, buffers, offset, counts
    )  # fmt: skip


def is_packed(segment: Segment, load: Load) -> bool:
    return any(item.tensor.name == load.tensor for item in segment.packed)


def laid_out(sizes: tuple[int, ...], form: int) -> tuple[tuple[int, ...], int]:
    """Strides of a window's axes, 0 for those of one element, and all its floats."""
    if form == 3:
        return _in_fours(sizes)
    order = list(range(len(sizes)))
    if form == 2:
        first = next((axis for axis in order if sizes[axis] > 1), 0)
        order = [*(axis for axis in order if axis != first), first]
    lengths = [sizes[axis] for axis in order]
    if form and lengths[-1] > 1:
        lengths[-1] |= 1
    steps = row_major_strides(tuple(lengths))
    strides = {a: s if sizes[a] > 1 else 0 for a, s in zip(order, steps, strict=True)}
    return tuple(strides[axis] for axis in range(len(sizes))), math.prod(lengths)


def _in_fours(sizes: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Rows filled up to whole fours; planes, of which four and eight places in each are read by a
    matrix instruction, `SPREAD` banks apart.
    """
    lengths = [*sizes[:-1], -(-sizes[-1] // FOUR) * FOUR if sizes[-1] > 1 else 1]
    first = next((axis for axis, n in enumerate(sizes) if n > 1), 0)
    plane = math.prod(lengths[first + 1 :])
    filled = plane + (SPREAD - plane) % BANKS if plane > FOUR else plane
    strides = [n * filled // plane if axis < first else n
               for axis, n in enumerate(row_major_strides(tuple(lengths)))]  # fmt: skip
    strides[first] = filled
    return tuple(s if n > 1 else 0 for s, n in zip(strides, sizes, strict=True)), (
        filled * sizes[first]
    )
