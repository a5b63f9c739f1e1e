"""Data volume under a finite LRU cache: which reuse survives, loop by loop.

Goes in: a stage, its tiled nest (levels from the registers outwards), cache capacities. Comes out:
words moved over the outer boundary of each cache, by tensor. Analytical, derived from the access
maps; nothing is replayed.

MOpt's model (traffic.py) gives the cache a tile and assumes that reuse stops at the first loop
outside it that is present in an access: "the combined footprint of two adjacent tiles exceeds the
capacity" (Sec. 3.1). An LRU cache does not know tiles. Reuse goes on as long as the words touched
between two uses of a word fit. So here the loops of *all* levels are one nest, walked inwards:

    loop p *carries* reuse of A   if trips of p share words (p is absent from A, or windows
                                  overlap) or lines
    it *survives*                 if the words touched from the last use of a word in trip i to
                                  its first use in trip i + 1 fit the cache

    V_A(p, box) = words of A in the box                      if all tensors' words in the box fit
                = sum over trips of V_A(p + 1, trip's box)   otherwise, less the share that survives
                  - share * (sum over trips of words of A in the trip's box - words in the box)

Partial tiles are boxes of their own. A word's last use in trip i and first use in trip i + 1 follow
from its indices: walking inwards, a loop absent from A stands at its last (first) trip, one that is
present at the last (first) trip that can reach the word. The *window* between them is what the
loops still have to do in trip i, and what they have done in trip i + 1: a few boxes. (With a
stride, trips i and i + m may be the first to meet; those between are in the window too.) A tensor
that the outermost of these loops moves along is in the window once; one that each of its steps
sweeps whole is there twice if p changes it. That is why a footprint just below the capacity misses
more than MOpt says, unless the reused tensor is the one swept in each inner step. A fixed set of
words is looked at; the share that fits is the share kept.

Further caches see only what the inner ones miss: a word kept there is not refreshed, so its window
starts where it was brought in. Accumulators are held in registers over the innermost reduction
loops, and touched before and after. See docs/cachesim.md for how well this does.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

from tilewright.model.cpu.traffic import Band, touched
from tilewright.ops.group import row_major_strides
from tilewright.ops.stage import Access, Stage

Box = Mapping[str, tuple[int, int]]  # dimension -> (first, how many)
Image = tuple[int, ...]  # of a box in a tensor: for each index, its values as bits of a number

_SAMPLES = 16  # words whose windows are evaluated, spread evenly over a box


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop of the nest that makes more than one trip: `range` in steps of `step`."""

    dim: str
    step: int
    range: int


def nest(levels: Sequence[Band], sizes: Mapping[str, int]) -> tuple[Loop, ...]:
    """The loops of all levels, outermost first; those of a single trip are left out."""
    loops, outer = [], dict(sizes)
    for level in reversed(levels):
        inner = {d: min(int(level.tile[d]), outer[d]) for d in outer}
        loops += [Loop(d, inner[d], outer[d]) for d in level.order if inner[d] < outer[d]]
        outer = inner
    return tuple(loops)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """An access, with where its words lie: strides of the dense box that it can touch."""

    access: Access
    strides: tuple[int, ...]
    line: int
    steps: Mapping[str, int]  # smallest step of each dimension that has a loop

    @property
    def slow_to_fast(self) -> list[int]:
        return sorted(range(len(self.strides)), key=lambda i: -self.strides[i])

    def aligned(self, loops: Sequence[Loop]) -> int:
        """How many loops, from the outside, keep the tensor's tiles on whole lines."""
        *slower, fastest = self.slow_to_fast or [-1]
        if fastest < 0 or any(self.strides[i] % self.line for i in slower):
            return 0
        for number, loop in enumerate(loops):
            if self.access.index[fastest].coefficient(loop.dim) * loop.step % self.line:
                return number
        return len(loops)

    def line_image(self, box: Box) -> Image:
        """`image` with lines for words along the fastest index; the box counts from a line."""
        fastest = self.slow_to_fast[-1]
        return tuple(
            _line_values(values, self.line) if i == fastest else values
            for i, values in enumerate(self.image(box))
        )

    def lines(self, sizes: Mapping[str, int], starts: Mapping[str, int] | None = None) -> float:
        """Lines that a tile of these sizes touches; mean over the alignments that occur.

        `starts`: multiples of what each dimension's tile starts at (none: at 0 only).
        """
        counts = [touched(e, sizes) for e in self.access.index]
        words = math.prod(counts)
        if self.line == 1:
            return words
        starts = self.steps if starts is None else starts
        grain = self.line
        for e, stride in zip(self.access.index, self.strides, strict=True):
            for name, c in e.terms:
                grain = math.gcd(grain, stride * c * starts.get(name, 0))
        least, runs, order = float(words), words, self.slow_to_fast
        run = 1
        for i in reversed(order):
            # this index and the faster ones are one run of words (small gaps inside are filled)
            run += (self.access.index[i].extent(sizes) - 1) * self.strides[i]
            runs //= counts[i]
            between = (self.strides[j] for j in order if self.strides[j] > self.strides[i])
            apart = math.gcd(grain, *(between if runs > 1 else ()))
            least = min(least, runs * _run_lines(run, self.line, apart))
        return least

    def image(self, box: Box) -> Image:
        """The values of every index over a box, each set as the bits of a number."""
        return tuple(
            [_placed(tuple([(c, *box[n]) for n, c in e.terms])) for e in self.access.index]
        )


@lru_cache(1 << 16)
def _placed(terms: tuple[tuple[int, int, int], ...]) -> int:
    """Values of sum(c * i), lo <= i < lo + n over the terms (c, lo, n), as bits."""
    return _values(tuple((c, n) for c, _, n in terms)) << sum(c * lo for c, lo, _ in terms)


@lru_cache(1 << 16)
def _values(terms: tuple[tuple[int, int], ...]) -> int:
    """Values of sum(c * i), 0 <= i < n over the terms (c, n), as bits."""
    bits = 1
    for c, n in terms:
        bits = functools.reduce(int.__or__, (bits << (c * i) for i in range(n)))
    return bits


@lru_cache(1 << 16)
def _line_values(values: int, line: int) -> int:
    """The lines, as bits, of words given as bits."""
    block, bits = (1 << line) - 1, 0
    for i in range(0, values.bit_length(), line):
        bits |= bool(values >> i & block) << (i // line)
    return bits


@lru_cache(1 << 16)
def _run_lines(run: int, line: int, grain: int) -> float:
    """Mean number of lines in a run of words that starts at a multiple of `grain`."""
    starts = range(0, line, grain)
    return sum((s + run - 1) // line + 1 for s in starts) / len(starts)


def lru_volumes(
    stage: Stage,
    levels: Sequence[Band],
    sizes: Mapping[str, int],
    capacities_words: Sequence[int],
    *,
    line_words: int = 1,
    layout: Mapping[str, int] | None = None,
) -> list[dict[str, float]]:
    """Words over the outer boundary of each cache (the innermost first), by tensor.

    `capacities_words` are those of fully associative LRU caches; their number is independent of the
    number of levels. Tensors are dense, each starting on a line; the fastest index is the last, or
    the one at the position that `layout` gives. A tensor that is accumulated moves twice, in and
    out; the result of a stage without combiner too (its lines are allocated, then written back).
    """
    loops = nest(levels, sizes)
    steps: dict[str, int] = {}
    for loop in loops:
        steps[loop.dim] = loop.step
    tensors = []
    for access in stage.accesses:
        shape = tuple(e.extent(sizes) for e in access.index)
        strides = dense_strides(shape, (layout or {}).get(access.tensor, len(shape) - 1))
        tensors.append(_Tensor(access, strides, line_words, steps))
    result, kept = [], [len(loops)] * len(tensors)
    windows: dict[tuple, float] = {}
    for capacity in capacities_words:
        volumes: dict[str, float] = {}
        for number, tensor in enumerate(tensors):
            walk = _Walk(loops, tensors, number, capacity / line_words, kept[number], windows)
            words = walk.volume(sizes) * line_words * (2 if number == 0 else 1)
            volumes[tensor.access.tensor] = volumes.get(tensor.access.tensor, 0.0) + words
            kept[number] = walk.first_kept(sizes)
        result.append(volumes)
    return result


def dense_strides(shape: tuple[int, ...], fastest: int) -> tuple[int, ...]:
    """Strides of a dense array whose index at position `fastest` moves by one word."""
    order = [i for i in range(len(shape)) if i != fastest % max(len(shape), 1)]
    order += [fastest % len(shape)] if shape else []
    moved = row_major_strides(tuple(shape[i] for i in order))
    strides = dict(zip(order, moved, strict=True))
    return tuple(strides[i] for i in range(len(shape)))


class _Walk:
    """The walk inwards for one tensor and one cache of `capacity` lines.

    Over loops from `kept` on, an inner cache keeps the tensor's words.
    """

    def __init__(
        self,
        loops: tuple[Loop, ...],
        tensors: Sequence[_Tensor],
        number: int,
        capacity: float,
        kept: int,
        windows: dict[tuple, float],
    ) -> None:
        self.loops, self.tensors, self.capacity, self.kept = loops, tensors, capacity, kept
        self.tensor = tensors[number]
        self.names = frozenset(self.tensor.access.names)
        self.held = len(loops)  # first of the loops over which accumulators stay in registers
        while number == 0 and self.held and loops[self.held - 1].dim not in self.names:
            self.held -= 1
        self.seen: dict[tuple, float] = {}
        self.windows = windows  # lines in a window, whoever asked
        # for each loop: its indices of the tensor, as (index, coefficient, other terms)
        self.uses = [
            [
                (i, e.coefficient(loop.dim), [t for t in e.terms if t[0] != loop.dim])
                for i, e in enumerate(self.tensor.access.index)
                if e.coefficient(loop.dim)
            ]
            for loop in loops
        ]
        self.fastest = (self.tensor.slow_to_fast or [-1])[-1]
        self.aligned = [tensor.aligned(loops) for tensor in tensors]

    def volume(self, sizes: Mapping[str, int]) -> float:
        """Lines filled while all loops run over the whole domain."""
        return self._filled(0, dict(sizes))

    def first_kept(self, sizes: Mapping[str, int]) -> int:
        """First loop such that it and all inside it hit, mostly, in this cache (in full tiles)."""
        size, boxes = dict(sizes), []
        for loop in self.loops:
            boxes.append(dict(size))
            size[loop.dim] = loop.step
        first = len(self.loops)
        for p in range(first - 1, -1, -1):
            again = sum(count for count, _ in self._shared(p, boxes[p]))
            if self._saved(p, boxes[p]) < 0.5 * again:
                break
            first = p
        return first

    def _filled(self, p: int, size: dict[str, int]) -> float:
        """Lines filled while the loops from p on run over a box of this size, once."""
        if p == len(self.loops) or self._needed([_at_origin(size)], p) <= self.capacity:
            return self._lines(size, p)
        if p == self.held:  # evicted while in registers, and fetched again to be written
            return 1.5 * self._lines(size, p)
        loop = self.loops[p]
        if size[loop.dim] <= loop.step:
            return self._filled(p + 1, size)
        key = (p, *size.values())
        if key not in self.seen:
            full, rest = divmod(size[loop.dim], loop.step)
            filled = full * self._filled(p + 1, {**size, loop.dim: loop.step})
            if rest:
                filled += self._filled(p + 1, {**size, loop.dim: rest})
            self.seen[key] = filled - self._saved(p, size)
        return self.seen[key]

    def _saved(self, p: int, size: Mapping[str, int]) -> float:
        """Lines that trips of loop p find in the cache because an earlier trip touched them."""
        return sum(
            again * self._survival(p, size, following) for again, following in self._shared(p, size)
        )

    def _shared(self, p: int, size: Mapping[str, int]) -> list[tuple[float, int]]:
        """Lines that trips touch again: (how many, size of these trips), full and partial apart."""
        loop = self.loops[p]
        full, rest = divmod(size[loop.dim], loop.step)

        def lines(extent: int, outside: int) -> float:
            return self._lines({**size, loop.dim: extent}, outside) if extent else 0.0

        before = lines(full * loop.step, p)
        again = [(full * lines(loop.step, p + 1) - before, loop.step)]
        again.append((before + lines(rest, p + 1) - lines(size[loop.dim], p), rest))
        return [(count, trip) for count, trip in again if count > 1e-9 * before]

    def _lines(self, size: Mapping[str, int], p: int) -> float:
        return self.tensor.lines(size, {loop.dim: loop.step for loop in self.loops[:p]})

    def _survival(self, p: int, size: Mapping[str, int], following: int) -> float:
        """Share of the words reused by loop p, in a trip of size `following`, that still hit."""
        loop = self.loops[p]
        body = {**size, loop.dim: loop.step}
        after = {**size, loop.dim: following}
        apart = self._apart(p, body, size[loop.dim])
        shift = {**dict.fromkeys(size, 0), loop.dim: apart * loop.step}
        then = {d: (shift[d], after[d]) for d in after}
        between = {**_at_origin(body), loop.dim: (loop.step, (apart - 1) * loop.step)}
        window = [between] if apart > 1 else []
        if self._needed([_at_origin(body), then, *window], p + 1) <= self.capacity:
            return 1.0
        index = self.tensor.access.index
        ranges = [e.extent(body) for e in index]
        shifts = [e.coefficient(loop.dim) * shift[loop.dim] for e in index]
        here, there = self.tensor.image(_at_origin(body)), self.tensor.image(then)
        meet = [_bits(a & b) for a, b in zip(here, there, strict=True)]
        fitting = 0
        for point in _spread(len(meet)):
            # a word that both trips touch, its indices counted from the corner of each trip; trips
            # that share no word (but a line) meet at the end of one and the start of the next
            last, first = [], []
            for x, values, extent, step in zip(point, meet, ranges, shifts, strict=True):
                last.append(values[int(x * len(values))] if values else extent - 1)
                first.append(last[-1] - step if values else 0)
            self._whole_line(last, first, ranges)
            boxes = window + self._side(p, body, last, True)
            for box in self._side(p, after, first, False):
                boxes.append({d: (lo + shift[d], n) for d, (lo, n) in box.items()})
            fitting += self._needed(boxes, p + 1) <= self.capacity
        return fitting / _SAMPLES

    def _apart(self, p: int, body: Mapping[str, int], extent: int) -> int:
        """How many trips of loop p lie between the nearest two that share a word; 1 if none do."""
        loop = self.loops[p]
        here = self.tensor.image(_at_origin(body))
        for trips in range(1, -(-extent // loop.step)):
            there = self.tensor.image(
                {**_at_origin(body), loop.dim: (trips * loop.step, loop.step)}
            )
            if all(a & b for a, b in zip(here, there, strict=True)):
                return trips
        return 1

    def _whole_line(self, last: list[int], first: list[int], ranges: list[int]) -> None:
        """A line's last use is that of its last word, its first use that of its first."""
        line, i = self.tensor.line, self.fastest
        if line > 1 and i >= 0:
            last[i] = min(last[i] - last[i] % line + line, ranges[i]) - 1
            first[i] -= first[i] % line

    def _side(self, p: int, body: Mapping[str, int], word: list[int], after: bool) -> list[Box]:
        """What a trip of loop p does after the last use of a word, or before its first use."""
        left = list(word)
        lo, size = dict.fromkeys(body, 0), dict(body)
        boxes: list[Box] = []
        for k in range(p + 1, len(self.loops)):
            loop = self.loops[k]
            d, step = loop.dim, loop.step
            end = -(-size[d] // step) - 1
            if end <= 0:
                continue
            y = self._trip_of(k, left, size, end, after and k < self.kept)
            for i, c, _ in self.uses[k]:
                left[i] -= c * step * y
            begin, stop = ((y + 1) * step, size[d]) if after else (0, y * step)
            if stop > begin:
                boxes.append({**_box(lo, size), d: (lo[d] + begin, stop - begin)})
            lo[d] += y * step
            size[d] = min(step, size[d] - y * step)
        return boxes

    def _trip_of(
        self, k: int, left: list[int], size: Mapping[str, int], end: int, latest: bool
    ) -> int:
        """The latest (or the first) trip of loop k that touches a word; 0..end for any."""
        step = self.loops[k].step
        early, late, reachable = 0, end, []
        for i, c, others in self.uses[k]:
            terms = tuple((a, size[n]) for n, a in others)
            inside = _values((*terms, (c, step)))
            late = min(late, left[i] // (c * step))
            early = max(early, -((inside.bit_length() - 1 - left[i]) // (c * step)))
            reachable.append((left[i], c * step, inside))
        for y in range(late, early - 1, -1) if latest else range(early, late + 1):
            if all(inside >> (word - stride * y) & 1 for word, stride, inside in reachable):
                return y
        return max(min(late, end), 0)

    def _needed(self, boxes: Sequence[Box], outside: int) -> float:
        """Lines of all tensors in several boxes together, counted from a corner that `outside`
        loops place."""
        whole = tuple(outside <= depth for depth in self.aligned)
        key = (whole, *(tuple(box.values()) for box in boxes))
        if key not in self.windows:
            self.windows[key] = sum(map(_union, self.tensors, itertools.repeat(boxes), whole))
        return self.windows[key]


def _union(tensor: _Tensor, boxes: Sequence[Box], whole: bool) -> float:
    """Lines of a tensor in several boxes together: each adds what the ones before it lack.

    `whole`: boxes count from the start of a line; else the share of a box's words that is new is
    taken for the share of its lines.
    """
    exact = whole and tensor.line > 1
    total, before = 0.0, []
    for box in boxes:
        image = tensor.line_image(box) if exact else tensor.image(box)
        if any(_inside(image, other) for other in before):
            continue
        pieces = [image]
        for other in before:
            pieces = [rest for piece in pieces for rest in _minus(piece, other)]
        added = sum(_size(piece) for piece in pieces)
        if added and tensor.line > 1 and not exact:
            added *= tensor.lines({d: n for d, (_, n) in box.items()}) / _size(image)
        total += added
        before.append(image)
    return total


def _size(image: Image) -> int:
    return math.prod(values.bit_count() for values in image)


def _minus(a: Image, b: Image) -> list[Image]:
    """a without b, as disjoint products of sets."""
    if not all(x & y for x, y in zip(a, b, strict=True)):
        return [a]
    pieces = []
    for i, (x, y) in enumerate(zip(a, b, strict=True)):
        if x & ~y:
            common = tuple(p & q for p, q in zip(a[:i], b[:i], strict=True))
            pieces.append((*common, x & ~y, *a[i + 1 :]))
    return pieces


def _inside(a: Image, b: Image) -> bool:
    return all(x & ~y == 0 for x, y in zip(a, b, strict=True))


def _bits(values: int) -> list[int]:
    return [i for i in range(values.bit_length()) if values >> i & 1]


def _box(lo: Mapping[str, int], size: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    return {d: (lo[d], size[d]) for d in lo}


def _at_origin(size: Mapping[str, int]) -> Box:
    return {d: (0, n) for d, n in size.items()}


@cache
def _spread(dimensions: int) -> tuple[tuple[float, ...], ...]:
    """Points spread evenly over a unit cube: multiples of powers of a root of x^(d+1) = x + 1."""
    root = 1.5
    for _ in range(40):
        root = (1 + root) ** (1 / (dimensions + 1))
    steps = [root ** -(i + 1) for i in range(dimensions)]
    return tuple(tuple((0.5 + n * s) % 1.0 for s in steps) for n in range(_SAMPLES))
