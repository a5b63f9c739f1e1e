"""The cache simulator: an independent witness for the traffic model.

Goes in: a stage, its tiled nest (levels from the registers outwards, each with `.order` and
`.tile`), caches. Comes out: what the real address stream of that nest does, counted by tensor:
register loads and stores, and for every cache the lines filled and written back. Nothing is shared
with the analytical model: the stream is generated and replayed word by word in `cachesim.c`.

What is replayed:

- The loops of all levels, outermost level first, each cutting the range of one dimension into tiles
  (the last may be partial). The body is one register tile.
- At each body, an operand loads the distinct words of its register tile, in row-major order. A
  *held* tensor (by default the one that is written: the accumulators) is loaded when its register
  tile changes and, if written, stored when it changes again. So accumulators stay in registers
  during the innermost reduction loops, as micro-kernels keep them. A stage without a combiner only
  stores its result.
- Tensors are dense boxes of every index that the stage can touch, padding included, row-major
  unless told otherwise, each starting on a line of its own: the zero-padded copy that generated
  code reads.
- Caches start empty, allocate on writes, evict true LRU, and are flushed at the end. A miss looks
  into the next cache; a dirty victim goes down whole (allocated there without a fetch). The caches
  are neither inclusive nor exclusive.
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

import numpy as np

from tilewright.errors import InputError, ScheduleError
from tilewright.machine.compiler import build
from tilewright.machine.machine import Cache
from tilewright.ops.group import row_major_strides
from tilewright.ops.stage import Access, Stage

_MAX_DIMS, _MAX_CACHES, _MAX_INDEX = 16, 4, 8
_MAX_LINES = 2**31 - 1


class TileLevel(Protocol):
    """What the simulator needs of a level: schedule.Level has it."""

    @property
    def order(self) -> tuple[str, ...]: ...
    @property
    def tile(self) -> Mapping[str, int]: ...


@dataclass(frozen=True, slots=True)
class SimCache:
    """A cache of `lines` lines in sets of `ways`; ways=0 is fully associative."""

    lines: int
    ways: int = 0

    def __post_init__(self) -> None:
        if self.lines < 1 or self.ways < 0 or (self.ways and self.lines % self.ways):
            raise InputError(
                f'a cache of {self.lines} lines in {self.ways} ways is impossible; give at least '
                f'one line and ways that divide the lines, or 0 for fully associative'
            )

    @classmethod
    def of(cls, cache: Cache, *, associative: bool = False) -> SimCache:
        """A machine's cache; with `associative`, as fully associative, the model's idealisation."""
        lines = cache.bytes // cache.line_bytes
        ways = 0 if associative else cache.ways
        return cls(lines - lines % ways if ways else lines, ways)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a tensor lies: address in words of its smallest index tuple, and words per step."""

    base: int
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CacheCount:
    """Lines that crossed the outer boundary of one cache, by tensor."""

    fills: dict[str, int]
    writebacks: dict[str, int]

    def lines(self) -> dict[str, int]:
        """Lines moved in and out, by tensor: what MOpt calls data volume, at this granularity."""
        return {name: fills + self.writebacks[name] for name, fills in self.fills.items()}


@dataclass(frozen=True, slots=True)
class Simulation:
    """Register loads and stores in words, and one count for each cache, the innermost first."""

    loads: dict[str, int]
    stores: dict[str, int]
    caches: tuple[CacheCount, ...]
    line_words: int

    def words(self, cache: int) -> dict[str, int]:
        """Words moved over the outer boundary of a cache, by tensor."""
        return {name: n * self.line_words for name, n in self.caches[cache].lines().items()}


def simulate(
    stage: Stage,
    levels: Sequence[TileLevel],
    caches: Sequence[SimCache],
    *,
    line_words: int = 1,
    held: Collection[str] | None = None,
    layout: Mapping[str, int | Layout] | None = None,
) -> Simulation:
    """[Stage, levels from the inside out, caches from the inside out] -> [Simulation].

    `held` names the tensors that stay in registers while their register tile stays the same
    (default: the written one). `layout` gives a tensor another fastest index than the last (its
    position), or a place and strides of its own.
    """
    _check(stage, levels, caches, line_words)
    boxes = _boxes(stage)
    tensors = list(boxes)
    layout = layout or {}
    fastest = {name: at for name, at in layout.items() if isinstance(at, int)}
    chosen = {name: at for name, at in layout.items() if isinstance(at, Layout)}
    placed = {**_dense(boxes, fastest, line_words), **chosen}
    owner = _owners(boxes, placed, line_words)
    held = {stage.write.tensor} if held is None else set(held)
    number = {d.name: i for i, d in enumerate(stage.dims)}
    loops = [(number[name], level.tile[name]) for level in reversed(levels) for name in level.order]
    rows, indices, terms = [], [], []
    for access in stage.accesses:
        written = access is stage.write
        place = placed[access.tensor]
        low = [lo for lo, _ in boxes[access.tensor]]
        base = place.base + sum(
            (e.const - lo) * s for e, lo, s in zip(access.index, low, place.strides, strict=True)
        )
        reads = not written or stage.combiner is not None
        rows.append(
            (
                tensors.index(access.tensor),
                base,
                len(access.index),
                access.tensor in held,
                reads,
                written,
            )
        )
        for expression, stride in zip(access.index, place.strides, strict=True):
            indices.append((len(expression.terms), stride, expression.extent(stage.sizes)))
            terms += [(number[name], coefficient) for name, coefficient in expression.terms]
    counts = np.zeros((2 + 2 * len(caches), len(tensors)), np.int64)
    ways = [c.ways or c.lines for c in caches]
    status = _library().tilewright_simulate(
        len(stage.dims),
        _array([d.size for d in stage.dims]),
        len(loops),
        _array([d for d, _ in loops]),
        _array([t for _, t in loops]),
        len(rows),
        _array(rows),
        _array(indices),
        _array([d for d, _ in terms]),
        _array([c for _, c in terms]),
        len(tensors),
        len(owner),
        line_words,
        owner,
        len(caches),
        _array([c.lines // w for c, w in zip(caches, ways, strict=True)]),
        _array(ways),
        counts,
    )
    if status:
        raise InputError(
            f'simulating {stage.name} over {len(owner)} lines ran out of memory; use a smaller '
            f'problem'
        )
    by_tensor = [dict(zip(tensors, map(int, row), strict=True)) for row in counts]
    pairs = zip(by_tensor[2::2], by_tensor[3::2], strict=True)
    return Simulation(by_tensor[0], by_tensor[1], tuple(CacheCount(*p) for p in pairs), line_words)


def _check(
    stage: Stage, levels: Sequence[TileLevel], caches: Sequence[SimCache], line_words: int
) -> None:
    names = sorted(stage.sizes)
    if not levels:
        raise ScheduleError('a simulation needs at least one level, the register tile')
    for level in levels:
        if sorted(level.order) != names or sorted(level.tile) != names:
            raise ScheduleError(
                f'a level orders {level.order} and tiles {sorted(level.tile)}; stage {stage.name} '
                f'has {names}: give each dimension once'
            )
        if min(level.tile.values()) < 1:
            raise ScheduleError(f'tile {dict(level.tile)} has a size below 1')
    if line_words < 1:
        raise InputError(f'a line of {line_words} words is impossible; give at least 1')
    for access in stage.accesses:
        seen = [name for expression in access.index for name in expression.names]
        if len(set(seen)) != len(seen):
            raise InputError(
                f'{access.tensor} uses one iterator in two indices ({seen}); the simulator needs '
                f'each at most once'
            )
    index = max(len(access.index) for access in stage.accesses)
    for what, value, limit in (
        ('dimensions', len(names), _MAX_DIMS),
        ('caches', len(caches), _MAX_CACHES),
        ('indices of a tensor', index, _MAX_INDEX),
    ):
        if value > limit:
            raise InputError(f'{value} {what} are too many for the simulator; at most {limit}')


def _boxes(stage: Stage) -> dict[str, list[tuple[int, int]]]:
    """Smallest and largest value of every index of every tensor, over all of its accesses."""
    boxes: dict[str, list[tuple[int, int]]] = {}
    for access in stage.accesses:
        box = _box(access, stage)
        if access.tensor in boxes:
            old = boxes[access.tensor]
            box = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(old, box, strict=True)]
        boxes[access.tensor] = box
    return boxes


def _box(access: Access, stage: Stage) -> list[tuple[int, int]]:
    return [(e.const, e.const + e.extent(stage.sizes) - 1) for e in access.index]


def _dense(
    boxes: Mapping[str, list[tuple[int, int]]], fastest: Mapping[str, int], line_words: int
) -> dict[str, Layout]:
    """Dense boxes one behind the other, each starting on a new line."""
    layouts, base = {}, 0
    for name, box in boxes.items():
        shape = tuple(hi - lo + 1 for lo, hi in box)
        order = list(range(len(shape)))
        if name in fastest:
            order.append(order.pop(fastest[name]))
        moved = row_major_strides(tuple(shape[i] for i in order))
        strides = dict(zip(order, moved, strict=True))
        layouts[name] = Layout(base, tuple(strides[i] for i in range(len(shape))))
        words = int(np.prod(shape, dtype=np.int64))
        base += -(-words // line_words) * line_words
    return layouts


def _owners(
    boxes: Mapping[str, list[tuple[int, int]]], layouts: Mapping[str, Layout], line_words: int
) -> np.ndarray:
    """The tensor (by number) of every line. Two tensors in one line are refused."""
    spans = []
    for number, (name, box) in enumerate(boxes.items()):
        layout = layouts[name]
        if layout.base < 0 or len(layout.strides) != len(box) or min(layout.strides, default=1) < 0:
            raise InputError(
                f'layout of {name} is {layout}; it needs a base of at least 0 and {len(box)} '
                f'non-negative strides'
            )
        reach = sum((hi - lo) * s for (lo, hi), s in zip(box, layout.strides, strict=True))
        spans.append((layout.base // line_words, (layout.base + reach) // line_words, number, name))
    lines = 1 + max(last for _, last, _, _ in spans)
    if lines > _MAX_LINES:
        raise InputError(f'{lines} lines are too many to simulate; at most {_MAX_LINES}')
    owner = np.full(lines, -1, np.int32)
    for first, last, number, name in spans:
        if (owner[first : last + 1] >= 0).any():
            raise InputError(f'{name} shares a line with another tensor; move its base')
        owner[first : last + 1] = number
    return owner


def _array(values: Sequence) -> np.ndarray:
    return np.ascontiguousarray(values, np.int64)


@cache
def _library() -> ctypes.CDLL:
    source = Path(__file__).with_name('cachesim.c').read_text()
    library = ctypes.CDLL(str(build(source, name='cachesim')))
    words = np.ctypeslib.ndpointer(np.int64, flags='C_CONTIGUOUS')
    owners = np.ctypeslib.ndpointer(np.int32, flags='C_CONTIGUOUS')
    whole, long = ctypes.c_int, ctypes.c_int64
    library.tilewright_simulate.restype = whole
    library.tilewright_simulate.argtypes = [
        whole, words, whole, words, words, whole, words, words, words, words,
        whole, long, long, owners, whole, words, words, words,
    ]  # fmt: skip
    return library
