"""Groups with several reducing stages, and the regions of inner tensors that a tile asks for.

    dw 3x3 -> Y;  Y -> conv 1x1 -> Out      becomes      dw 3x3 >> conv 1x1 -> Out,  Y in 'cache'

Goes in: two groups, one behind the other, or a group and the tile of its result that a block of
threads, or a thread, computes. Comes out: the joined group, whose inner edge has a storage level;
for each stage, the range of every dimension that the tile needs, found by walking the accesses
from the result backwards. Nothing here knows of convolutions: halos, strides and whole rows (for a
softmax) follow from the accesses. DeepCuts joins the same way, at shared memory (Sec. "Shared-
Memory-Level and Register-Level Fusion"), for equal sizes alone; here a halo is computed again by
every tile that needs it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.ops.compose import Composed, placed, put_behind
from tilewright.ops.group import Group
from tilewright.ops.stage import Affine, Stage


def chain(
    producer: Group, consumer: Group, tensor: str, storage: str = 'cache'
) -> Composed | None:  # fmt: skip
    """The consumer behind the producer, whose output is its input `tensor`, kept in `storage`.

    None where tensors differ, or where one of the groups is found by more than affine indices.
    """
    source, made = producer.output, consumer.tensor(tensor)
    if (source.shape, source.dtype) != (made.shape, made.dtype) or made.role != 'input':
        return None
    if not producer.is_plain or not consumer.is_plain:
        return None
    return put_behind(producer, consumer, tensor, ((tensor, storage),), '>>')


def is_chained(group: Group) -> bool:
    """Whether an inner tensor is to be kept in a cache or in shared memory."""
    return any(level == 'cache' for _, level in group.storage)


@dataclass(frozen=True, slots=True)
class Span:
    """A range of `size` positions of one axis. `start` is affine in the origin of the tile, under
    the names of the last stage's dimensions; where it is below 0, or the end is beyond the axis,
    there is padding.
    """

    start: Affine
    size: int


@dataclass(frozen=True, slots=True)
class Region:
    """What a tile of the result needs of one stage: a span for each of its dimensions, and for each
    axis of what it writes.
    """

    dims: Mapping[str, Span]
    written: tuple[Span, ...]

    @property
    def points(self) -> int:
        return math.prod(span.size for span in self.dims.values())

    @property
    def elements(self) -> int:
        return math.prod(span.size for span in self.written)


def regions(
    group: Group, tile: Mapping[str, int], cut: Mapping[str, Mapping[str, int]] | None = None
) -> dict[str, Region]:
    """The region of every stage, by its name, for a tile of the last stage's parallel dimensions.

    A dimension that `tile` does not name is whole. An axis that readers need in ranges which move
    differently with the tile is whole, too, and so is one that several iterators write together.
    `cut`: stages and sizes of their reductions that are computed a part at a time; spans then begin
    where that part does, under the name of the reduction. ScheduleError for a stage in front of
    others that leaves gaps in what it writes.
    """
    last = group.stages[-1]
    sizes = {name: min(tile.get(name, size), size) for name, size in last.sizes.items()}
    own = {
        name: Span(Affine(((name, 1),)) if sizes[name] < size else Affine(()), sizes[name])
        for name, size in last.sizes.items()
    }
    needed: dict[str, tuple[Span, ...]] = {}
    found: dict[str, Region] = {}
    for stage in reversed(group.stages):
        dims: Mapping[str, Span]
        if stage is last:
            dims = own
            written = tuple(_span(e, own) for e in stage.write.index)
        else:
            shape = group.tensor(stage.write.tensor).shape
            # Groups of channels: several iterators walk one axis, which is then computed whole.
            written = tuple(
                Span(Affine(()), extent) if len(e.terms) > 1 else span
                for e, span, extent in zip(
                    stage.write.index, needed[stage.write.tensor], shape, strict=True
                )
            )
            dims = _dims(stage, written)
        if cut and stage.name in cut:
            dims = {**dims} | {
                n: Span(Affine(((n, 1),)), size) for n, size in cut[stage.name].items()
            }
        found[stage.name] = Region(dims, written)
        for access in stage.reads:
            tensor = group.tensor(access.tensor)
            if tensor.role not in ('inner', 'output'):
                continue
            spans = tuple(
                _clipped(_span(e, dims), extent)
                for e, extent in zip(access.index, tensor.shape, strict=True)
            )
            before = needed.get(tensor.name)
            needed[tensor.name] = spans if before is None else tuple(
                _hull(a, b, extent)
                for a, b, extent in zip(before, spans, tensor.shape, strict=True)
            )  # fmt: skip
    return {stage.name: found[stage.name] for stage in group.stages}


def tile_counts(group: Group, tile: Mapping[str, int]) -> int:
    """How many tiles cover the result."""
    last = group.stages[-1]
    return math.prod(-(-last.sizes[n] // min(tile.get(n, last.sizes[n]), last.sizes[n]))
                     for n in last.parallel)  # fmt: skip


def repetition(group: Group, tile: Mapping[str, int]) -> dict[str, float]:
    """For each stage, points that all tiles compute over its points: 1 where no halo is computed
    again. Padding and the rest of the last tile count as computed.
    """
    found, tiles = regions(group, tile), tile_counts(group, tile)
    return {s.name: found[s.name].points * tiles / s.points for s in group.stages}


def _span(expression: Affine, dims: Mapping[str, Span]) -> Span:
    """Where an affine index goes while its iterators walk their spans."""
    start = placed(expression, {name: span.start for name, span in dims.items()})
    return Span(start, expression.extent({name: span.size for name, span in dims.items()}))


def _clipped(span: Span, extent: int) -> Span:
    """Spans that are as long as the axis, wherever they start, are the axis."""
    return Span(Affine(()), extent) if span.size >= extent else span


def _hull(one: Span, other: Span, extent: int) -> Span:
    if dict(one.start.terms) != dict(other.start.terms):
        return Span(Affine(()), extent)
    first = min(one.start.const, other.start.const)
    end = max(one.start.const + one.size, other.start.const + other.size)
    return _clipped(Span(replace(one.start, const=first), end - first), extent)


def _dims(stage: Stage, written: tuple[Span, ...]) -> dict[str, Span]:
    """The spans of a stage's dimensions that write these spans; reductions are whole."""
    dims = {name: Span(Affine(()), stage.sizes[name]) for name in stage.reduction}
    for expression, span in zip(stage.write.index, written, strict=True):
        names = expression.names
        if len(names) != 1:
            dims |= {name: Span(Affine(()), stage.sizes[name]) for name in names}
            continue
        (name,) = names
        if expression.coefficient(name) != 1:
            raise ScheduleError(
                f'stage {stage.name} writes {stage.write.tensor} at {expression.terms}; a stage in '
                f'front of others has to write at single iterators, every element'
            )
        dims[name] = Span(replace(span.start, const=span.start.const - expression.const), span.size)
    return dims
