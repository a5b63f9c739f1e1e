"""What the schema of Strassen along pixels decides before it writes a line.

Goes in: a 1x1 convolution of stride 1 whose result has pixels innermost, and a schedule with schema
'strassen_pixels', which tiles it as schedules of pixels do: `reg` has channels of half the result
and the pixels of a strip. Comes out: a `StrassenPixelsPlan`, or a ScheduleError.

Channels of the result, channels of the image and pixels are cut in two: channels in halves, pixels
in pairs of strips that follow each other, so that any run of pixels is whole pairs and a rest:

    pairs of `wide` vectors | one narrower pair | at most two single vectors

A single vector is a pair without a second strip. Four of the seven products are then enough
(`ops.strassen.SINGLE`), as many as the direct algorithm has, of the same sums of weights.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, fields, replace
from functools import cached_property

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.isa.x86_rows import RowKernel
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.schemas.pixels.plan import (
    FAR_BYTES,
    PixelsPlan,
    kernel_name,
    plan_pixels,
    shape_of,
    why_no_pixels,
)
from tilewright.kernels.cpu.vector_epilogue import VectorEpilogue, plan_vector_epilogue
from tilewright.ops.flatten import flatten, tiled_form
from tilewright.ops.group import Group
from tilewright.ops.strassen import PRODUCTS, predicted_error
from tilewright.schedule.schedule import Schedule

SCHEMA = 'strassen_pixels'
LEAST_PIXELS = 32  # of an image: below, there are more single vectors than pairs
OPTIONS = (('levels', 1),)


@dataclass(frozen=True)
class StrassenPixelsPlan(PixelsPlan):
    """A plan of pixels whose channels are those of a half, and whose copy holds sums:

        V[piece][product][c][pixels of a strip]       M[piece][product][channel][pixels of a strip]

    where pieces are the pairs and single vectors of a block.
    """

    @property
    def half(self) -> int:
        """Channels of half the result."""
        return self.sizes[self.shape.channels] // 2

    @property
    def deep(self) -> int:
        """Channels of half the image."""
        return self.sizes[self.shape.summed] // 2

    @cached_property
    def counts(self) -> tuple[int, ...]:
        tiles = -(-self.half // self.most)
        starts = [tile * self.half // tiles for tile in range(tiles + 1)]
        return tuple(end - start for start, end in itertools.pairwise(starts))

    @property
    def pair(self) -> int:
        """Pixels of a pair of strips."""
        return 2 * self.strip

    @property
    def rest(self) -> int:
        """Pixels of an image behind its last pair of whole strips."""
        return self.shape.across.size % self.pair

    @property
    def narrow(self) -> int:
        """Vectors of each strip of the narrower pair behind that; 0 where there is none."""
        return self.rest // (2 * self.lanes)

    @property
    def singles(self) -> tuple[int, ...]:
        """Pixels of each single vector at the end of an image."""
        left = self.rest - 2 * self.narrow * self.lanes
        return tuple(min(self.lanes, left - at) for at in range(0, left, self.lanes))

    @property
    def corner(self) -> int:
        """Pixels of the last single vector, if they are few."""
        last = self.singles[-1] if self.singles else 0
        return last if last <= self.lanes // 2 and max(self.counts) <= self.lanes else 0

    def pieces(self, pixels: int) -> tuple[int, int, int]:
        """(pairs, narrower pairs, single vectors) of so many pixels, which end in a whole pair or
        where the image does.
        """
        ends = pixels % self.pair != 0
        return pixels // self.pair, int(ends and self.narrow > 0), len(self.singles) if ends else 0

    @property
    def strip_floats(self) -> int:
        """Floats from one product's sums to those of the next."""
        lines = -(-self.deep * self.strip // LINE_FLOATS)
        return (lines | 1) * LINE_FLOATS

    @property
    def piece_floats(self) -> int:
        return PRODUCTS * self.strip_floats

    @property
    def slots(self) -> int:
        """Most pieces of a block."""
        size = self.shape.across.size
        return min(self.block, size) // self.pair + (self.narrow > 0) + len(self.singles)

    @property
    def buffer_floats(self) -> int:
        return self.slots * self.piece_floats

    @property
    def held_floats(self) -> int:
        return max(1, min(self.block, self.shape.across.size) // self.pair) * self.piece_floats

    @property
    def tile_floats(self) -> int:
        """Floats of one product of a piece."""
        return abi.aligned(max(self.most * self.strip, self.corner * self.lanes))

    @property
    def m_floats(self) -> int:
        return self.slots * PRODUCTS * self.tile_floats

    @property
    def scratch_floats(self) -> int:
        return abi.aligned(self.buffer_floats) + self.m_floats

    @property
    def packed_floats(self) -> int:
        return PRODUCTS * self.half * self.deep

    @property
    def ahead(self) -> int:
        """One line, where weights come from afar; pieces share in asking for those of the next
        product.
        """
        return int(4 * self.packed_floats >= FAR_BYTES)

    @cached_property
    def after(self) -> VectorEpilogue:
        """What follows the sums, on vectors."""
        return plan_vector_epilogue(self.group)

    def kernel(
        self, channels: int, high: int, wide: int, corner: int = 0, copies: bool = False
    ) -> RowKernel:
        """The micro-kernel of one product of a piece."""
        assert not copies
        places = tuple(v * self.lanes for v in range(wide))
        name = kernel_name(self.schedule.isa, channels, high, wide, corner)
        return RowKernel(
            self.schedule.isa, channels, places, places, (), (0,), 1, 0, self.strip, self.strip,
            name, ahead=self.ahead, corner=corner,
        )  # fmt: skip


def why_not(group: Group) -> str:
    """Why no schedule can compute a group; '' where one can, with micro-kernels along rows."""
    flat = flatten(group)
    why = why_no_pixels(flat)
    if why:
        return why
    shape = shape_of(flat)
    assert shape is not None
    if not shape.flat:
        return f'{group.label}: pixels of a row are not one run of memory, in the image as well'
    sizes = flat.main.sizes
    odd = [d for d in (shape.channels, shape.summed) if sizes[d] % 2]
    if odd:
        return f'{group.label}: {odd[0]}={sizes[odd[0]]} is not a multiple of 2'
    if shape.across.size < LEAST_PIXELS:
        return f'{group.label}: images of {shape.across.size} pixels; at least {LEAST_PIXELS}'
    return _why_no_operands(flat, shape.across.name)


def _why_no_operands(group: Group, across: str) -> str:
    """Operands of what follows the sums are vectors of neighbours, or one number for all lanes."""
    try:
        operands = plan_vector_epilogue(group).operands
    except ScheduleError as error:
        return str(error)
    apart = [item.tensor for item in operands if item.stride(across) not in (0, 1)]
    return f'{group.label}: numbers of {apart[0]} do not lie side by side' if apart else ''


def schedule_error(group: Group, schedule: Schedule) -> float:
    """Expected largest error over the largest output."""
    flat = tiled_form(group, schedule.reg.tile)
    shape = shape_of(flat)
    assert shape is not None
    return predicted_error(flat, shape.summed, 1)


def plan_strassen_pixels(group: Group, schedule: Schedule) -> StrassenPixelsPlan:
    """[Group, Schedule] -> [StrassenPixelsPlan]"""
    why = why_not(group)
    if why:
        raise ScheduleError(f'Strassen along pixels: {why}; use the direct algorithm')
    if schedule.options != OPTIONS:
        raise ScheduleError(
            f'{group.label}: the {SCHEMA} schema has one level (levels=1), not {schedule.options}'
        )
    inner = plan_pixels(group, replace(schedule, schema='pixels', options=()))
    values = {f.name: getattr(inner, f.name) for f in fields(PixelsPlan)}
    values |= {'schedule': schedule, 'dealt': 2 * inner.strip, 'copies': False}
    plan = StrassenPixelsPlan(**values)
    if plan.block % plan.pair:
        raise ScheduleError(
            f'{group.label}: blocks of {plan.block} pixels are not made of pairs of strips of '
            f'{plan.strip}'
        )
    if plan.most > plan.half:
        raise ScheduleError(
            f'{group.label}: register tiles of {plan.most} channels; half of them is {plan.half}'
        )
    return plan
