"""What the strip schema decides: convolutions in tiles, along pixels through all rows.

Goes in: a group of bf16 or 8-bit products with channels innermost, and a schedule with schema
'strip' or 'byte_strip', which tiles the sum in words (ops/integer.py). Comes out: a `StripPlan`.

A tile of AMX has 16 pixels, evenly spaced; weights are loaded as often for fewer. Images whose
windows leave them, or step over pixels, are copied with a border, so narrow that what stands behind
one row stands in front of the next one as well, and pixels step from row to row as along one:

    . a b c . d e f . g h i .       3 x 3 pixels in rows of 4, a border of one: 11 pixels in a strip

So tiles need not end where rows do; sums of places between rows are not stored. A stride keeps its
phases apart. The words that tiles multiply at once are planes of their own, in which a pixel is a
line of a cache or an even share of one: lines of many channels would lie in a few sets of the
nearest cache, of which each holds a dozen. What follows sums of some tiles is computed while the
next ones are multiplied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import operand
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.expression import C_TYPES
from tilewright.kernels.cpu.half_vectors import half_value
from tilewright.kernels.cpu.isa.tiles import depth
from tilewright.kernels.cpu.nest import part_extents, part_sets
from tilewright.kernels.cpu.pointwise import access_strides, typed_epilogue
from tilewright.kernels.cpu.schemas.channelwise.plan import Slide, slide
from tilewright.kernels.cpu.schemas.dot.plan import (
    SUMS,
    DotPlan,
    moved_epilogue,
    vector_epilogue,
    why_no_tiles,
)
from tilewright.kernels.cpu.schemas.dot.plan import why_not as why_no_bytes
from tilewright.kernels.cpu.schemas.half.words import PRODUCTS, why_no_words, with_epilogue
from tilewright.kernels.cpu.schemas.outer.panels import Panels
from tilewright.kernels.cpu.schemas.outer.plan import OuterPlan
from tilewright.kernels.cpu.space import cuts_up_to, even_cuts, register_order, whole_tile
from tilewright.machine.isa import ISAS, TILE_ROWS, tile_isa
from tilewright.ops.flatten import flatten
from tilewright.ops.group import Group
from tilewright.ops.integer import IN_BYTES, Words, factors, in_words
from tilewright.schedule.schedule import Level, Schedule

TILES, BLOCK = 'tiles', 'block'  # options: of pixels in a micro-kernel; of those between two panels
# Tiles of pixels, of channels: sums, besides one of pixels and those of channels. The last shape
# takes all registers and is not chosen (isa/tiles.py).
SHAPES = ((2, 2), (5, 1), (4, 1), (3, 1), (1, 2), (2, 1), (1, 1), (6, 1))
BLOCKS = (1, 2, 4, 8, 1 << 16)
# Steps of products that pay for finishing sums between them: with fewer, loads of tiles wait for
# stores whose addresses look alike, and the schema `tiles` is faster.
LEAST_STEPS = 7
LEAST_PIXELS = 7  # of a row, or of a strip; with fewer vectors are as fast


@dataclass(frozen=True, slots=True)
class Copy:
    """The copied image: planes of a phase each and, in them, of `deep` of the `words` of a pixel:
    `rows` of `pitch` pixels.

    Without strips pixels of the result follow each other in rows alone.
    """

    batch: str
    down: Slide
    across: Slide
    rows: int
    pitch: int
    words: int
    deep: int

    @property
    def apart(self) -> int:
        """Words from a pixel to the next: no pixel begins in one line and ends in another."""
        return 1 << (self.deep - 1).bit_length()

    @property
    def chunks(self) -> int:
        return self.words // self.deep

    @property
    def chunk(self) -> int:
        """Words of a plane of some words of every pixel."""
        return self.rows * self.pitch * self.apart

    @property
    def row_phases(self) -> list[int]:
        return _phases(self.down)

    @property
    def column_phases(self) -> list[int]:
        return _phases(self.across)

    @property
    def plane(self) -> int:
        return self.chunks * self.chunk

    @property
    def size(self) -> int:
        """Words of the buffer: tiles look behind the last pixel."""
        planes = len(self.row_phases) * len(self.column_phases)
        return planes * self.plane + (self.across.span + 2 * TILE_ROWS) * self.apart

    def steps(self, order: tuple[str, ...], sizes: dict[str, int]) -> tuple[int, ...]:
        """Words from the first tap to each."""
        found = [0]
        for name in order:
            offsets = [0] * sizes[name]
            for side, unit, planes in (
                (self.down, self.pitch * self.apart, len(self.column_phases) * self.plane),
                (self.across, self.apart, self.plane),
            ):
                if side.tap == name:
                    phases = _phases(side)
                    for tap in range(side.taps):
                        place, phase = divmod(tap * side.dilation, side.stride)
                        offsets[tap] = place * unit + phases.index(phase) * planes
            found = [at + offset for at in found for offset in offsets]
        return tuple(found)


def _phases(side: Slide) -> list[int]:
    return sorted({tap * side.dilation % side.stride for tap in range(side.taps)})


@dataclass(frozen=True)
class StripPlan:
    """Everything that is decided before a line is written.

    dot     the words: panels of weights, what follows sums, where constants lie
    copy    how the image is copied; None where it is read in place
    pixels  dimensions of pixels, the last along which tiles walk
    rows    pixels of a tile
    """

    dot: DotPlan
    copy: Copy | None
    pixels: tuple[str, ...]
    rows: int
    tiles: int
    block: int

    @property
    def words(self) -> OuterPlan:
        return self.dot.words

    @property
    def contraction(self) -> Contraction:
        return self.dot.words.contraction

    @property
    def steps(self) -> tuple[int, ...]:
        """Words to what a tile multiplies in each step of a chunk of channels."""
        all_of_them = self.words.operand.steps
        return all_of_them[:: self.words.deep] if self.words.taps else all_of_them

    @property
    def chunks(self) -> int:
        """How often the steps are made, each time for the next words of a pixel."""
        c = self.contraction
        if self.words.taps or not c.loop:
            return 1
        return c.stage.sizes[c.loop] // self.words.deep

    @property
    def chunk_step(self) -> int:
        """Words from what a chunk multiplies of a pixel to what the next one does."""
        return self.copy.chunk if self.copy else self.words.deep


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group of bf16; '' where it can, on a machine with tiles."""
    return why_no_words(group, 'bf16') or _why_no_strips(group, PRODUCTS)


def why_not_bytes(group: Group) -> str:
    """The same of 8-bit numbers."""
    return why_no_bytes(group) or _why_no_strips(group, IN_BYTES)


def _why_no_strips(group: Group, products: int) -> str:
    form = in_words(flatten(group), products)
    assert form is not None
    reason = why_no_tiles(form)
    if reason:
        return reason
    vector = vector_candidates(form.group)[0]
    contraction, stage = contract(form.group, vector), group.main
    if not form.in_place or contraction.columns or contraction.batch or contraction.outer:
        return f'{group.label}: words of a pixel do not lie side by side'
    strides, _ = access_strides(group, stage.write)
    if strides.get(vector) != 1:
        return f'{group.label}: channels of the result do not lie side by side'
    if not all(s.is_affine and not set(s.expr.iterators()) for s in group.stages):
        return f'{group.label}: what follows its sums is not found affinely'
    items = typed_epilogue(group).operands
    if any(item.stride(vector) not in (0, 1) for item in items):
        return f'{group.label}: what is added to its sums does not lie along its channels'
    if products == PRODUCTS and half_value(group, vector, ISAS['portable']) is None:
        return f'{group.label}: what follows its sums is not computed on vectors'
    if operand.reads_outside(form.group, contraction) and not _copies(form.group, contraction):
        return f'{group.label}: windows leave an image that is not one of rows and columns'
    least = max((stage.sizes[d] for d in stage.parallel if d != vector), default=1)
    if least < LEAST_PIXELS:
        return f'{group.label}: it has too few pixels for a tile'
    return ''


def _copies(group: Group, contraction: Contraction) -> tuple[str, Slide, Slide] | None:
    """(batch, rows, columns) of an image that can be copied as planes; None for others."""
    index = contraction.a.index
    shape = group.tensor(contraction.a.tensor).shape
    if len(index) != 4 or len(contraction.pixels) not in (2, 3) or not contraction.loop:
        return None
    if index[3].names != (contraction.loop,) or len(index[0].terms) > 1 or index[0].const:
        return None
    row, column = contraction.pixels[-2:]
    down, across = slide(group, index[1], row, shape[1]), slide(group, index[2], column, shape[2])
    if down is None or across is None or set(index[0].names) & {row, column}:
        return None
    if {down.tap, across.tap} - {''} != set(contraction.unrolled):
        return None
    return (index[0].names or ('',))[0], down, across


def _copy(group: Group, contraction: Contraction, schedule: Schedule) -> Copy:
    found = _copies(group, contraction)
    if found is None:
        raise ScheduleError(f'{group.label}: its image is not one of rows and columns: leave it')
    batch, down, across = found
    part = part_extents(group.main, schedule)
    rows = part[down.out] + (down.span - 1) // down.stride
    pitch = across.size + (across.span - 1) // across.stride
    if across.stride == 1:
        behind = across.size - 1 + across.span - across.before - across.extent
        pitch -= max(0, min(across.before, behind))
    deep, taps = depth(contraction)
    words = group.main.sizes[contraction.loop]
    return Copy(batch, down, across, rows, pitch, words, 1 if taps else deep)


def _run(copy: Copy, rows: int) -> int:
    """Places of a strip of so many rows, from its first pixel to its last."""
    return rows * copy.pitch - (copy.pitch - copy.across.size)


def plan_strip(group: Group, schedule: Schedule) -> StripPlan:
    """[Group, Schedule] -> [StripPlan]"""
    bytes_ = schedule.dtype != 'bf16'
    reason = why_not_bytes(group) if bytes_ else why_not(group)
    if reason:
        raise ScheduleError(reason)
    isa = ISAS[schedule.isa]
    form = in_words(group, IN_BYTES if bytes_ else PRODUCTS)
    if form is None or not isa.rows:
        raise ScheduleError(f'{group.label}: {schedule.isa} has no tiles for it')
    image = group.tensor(factors(group)[0].tensor)
    if image.dtype != schedule.dtype:
        raise ScheduleError(f'{group.label} multiplies {image.dtype}, not {schedule.dtype}')
    contraction, reg = contract(form.group, schedule.vector), schedule.reg.tile
    vectors, options = reg[schedule.vector] // isa.lanes, dict(schedule.options)
    tiles, block = options.get(TILES, 0), options.get(BLOCK, 0)
    if reg[schedule.vector] % isa.lanes or (tiles, vectors) not in SHAPES or block < 1:
        raise ScheduleError(
            f'{group.label}: {tiles} x {vectors} tiles of sums in blocks of {block} are not what '
            f'registers hold: {", ".join(f"{m} x {v}" for m, v in SHAPES)}'
        )
    cut = {d for d, _ in schedule.parallel}
    pixels = contraction.pixels
    if not cut <= {schedule.vector, *pixels}:
        raise ScheduleError(f'{group.label}: {sorted(cut)} cannot be cut between threads')
    copy = None
    if schedule.pack:
        copy = _copy(form.group, contraction, schedule)
        if cut & {copy.across.out}:
            raise ScheduleError(f'{group.label}: rows of a copied image cannot be cut')
    elif operand.reads_outside(form.group, contraction):
        raise ScheduleError(f'{group.label} reads outside its input: it must pack it')
    rows = TILE_ROWS
    if copy:  # even tiles, since one takes as long as it has rows
        run = _run(copy, part_extents(form.group.main, schedule)[copy.down.out])
        rows = -(-run // -(-run // TILE_ROWS))
    else:
        rows = min(TILE_ROWS, *part_sets(form.group.main, schedule)[pixels[-1]])
    words = _words(group, form, schedule, contraction, copy)
    if bytes_:
        epilogue = moved_epilogue(group, None)
        vector = vector_epilogue(group, epilogue, schedule)
        words = replace(
            words, epilogue=replace(epilogue, functions=()) if vector else epilogue,
            result=C_TYPES[group.output.dtype], sums=SUMS, whole=vector,
        )  # fmt: skip
    else:
        words = with_epilogue(group, words)
    dot = DotPlan(group, words, form, IN_BYTES if bytes_ else PRODUCTS, False, True)
    plan = StripPlan(dot, copy, pixels, rows, tiles, block)
    # As many register tiles, but even ones: few sums wait for each other.
    run = strip_pixels(plan)[1]
    return replace(plan, tiles=-(-run // -(-run // tiles)))


def _words(
    group: Group, form: Words, schedule: Schedule, contraction: Contraction, copy: Copy | None
) -> OuterPlan:
    """What the words have in common with outer products: panels, places, sums of two register
    tiles.
    """
    isa, sizes = ISAS[schedule.isa], form.group.main.sizes
    vectors = schedule.reg.tile[schedule.vector] // isa.lanes
    panels = Panels.of(contraction, isa.lanes, vectors)
    source = operand.in_place(form.group, contraction)
    if copy:
        steps = copy.steps(contraction.unrolled, dict(sizes))
        source = operand.Operand(
            {
                copy.down.out: copy.pitch * copy.apart, copy.across.out: copy.apart,
                contraction.loop: 1,
            },
            steps, copy.size, (), {},
        )  # fmt: skip
    deep, taps = depth(contraction)
    if copy and taps:  # phases lie apart
        deep, taps = 1, False
    out_strides, out_const = access_strides(form.group, form.group.main.write)
    sums = dict(schedule.options)[TILES] * TILE_ROWS * panels.width
    return OuterPlan(
        form.group, schedule, contraction, panels, source, None, typed_epilogue(group),
        contraction.pixels[-1], False, (), {}, 2 * sums, out_strides, out_const, None,
        deep=deep, taps=taps,
    )  # fmt: skip


def _schedules(
    name: str, group: Group, isa: str, dtype: str, cuts: list[tuple[tuple[str, int], ...]]
) -> Iterator[Schedule]:
    """Every schedule of a flattened group that is cut in one of these ways."""
    products = PRODUCTS if dtype == 'bf16' else IN_BYTES
    form = in_words(group, products)
    assert form is not None
    vector = vector_candidates(form.group)[0]
    contraction, stage = contract(form.group, vector), form.group.main
    lanes, pixels = ISAS[isa].lanes, contraction.pixels
    copied = _copies(form.group, contraction)
    outside = operand.reads_outside(form.group, contraction)
    accumulation = 'f32' if dtype == 'bf16' else 'i32'
    for tiles, vectors in SHAPES[:-1]:
        if vectors > 1 and lanes * (vectors - 1) >= stage.sizes[vector]:
            continue
        tile = dict.fromkeys(stage.sizes, 1) | {vector: lanes * vectors}
        whole = whole_tile(stage, tile)
        order = register_order(stage)
        for cut in cuts:
            for pack in ('', 'l1'):
                if (pack and (copied is None or pixels[-1] in dict(cut))) or (outside and not pack):
                    continue
                reg = dict(tile)
                if not pack:
                    reg[pixels[-1]] = min(TILE_ROWS, stage.sizes[pixels[-1]])
                levels = (
                    Level.of('reg', order, reg),
                    Level.of('l1', order, {d: max(whole[d], reg[d]) for d in whole}),
                )
                for block in BLOCKS:
                    yield Schedule(
                        name, isa, vector, levels, cut, pack, ((BLOCK, block), (TILES, tiles)),
                        dtype=dtype, accumulation=accumulation,
                    )  # fmt: skip


def strip_choices(group: Group, isa: str, dtype: str, threads: int) -> Iterator[Schedule]:
    """The schedules of a flattened group that are worth pricing, by the row for tiles."""
    form = in_words(group, PRODUCTS if dtype == 'bf16' else IN_BYTES)
    assert form is not None
    vector = vector_candidates(form.group)[0]
    contraction, stage = contract(form.group, vector), form.group.main
    deep, _ = depth(contraction)
    if math.prod(stage.sizes[d] for d in stage.reduction) < LEAST_STEPS * deep:
        return
    cuts = [
        cut
        for free in ((vector,), contraction.pixels[-1:], contraction.pixels[:-1])
        for cut in even_cuts(stage, threads, free)[:1]
        if free
    ]
    name = 'strip' if dtype == 'bf16' else 'byte_strip'
    yield from _schedules(name, group, isa, dtype, list(dict.fromkeys(cuts)))


def draw_strip(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Any legal schedule."""
    return None if not tile_isa(isa) or why_not(group) else _draw(group, isa, random, most_threads)


def draw_byte_strip(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    if not tile_isa(isa) or why_not_bytes(group):
        return None
    return _draw(group, isa, random, most_threads)


def _draw(group: Group, isa: str, random: Random, most_threads: int) -> Schedule | None:
    dtype = group.tensor(factors(group)[0].tensor).dtype
    form = in_words(group, PRODUCTS if dtype == 'bf16' else IN_BYTES)
    if form is None or why_no_tiles(form):
        return None
    vector = vector_candidates(form.group)[0]
    free = {vector, *contract(form.group, vector).pixels}
    name = 'strip' if dtype == 'bf16' else 'byte_strip'
    cuts = [random.choice(cuts_up_to(form.group.main, most_threads, free))]
    found = list(_schedules(name, group, tile_isa(isa), dtype, cuts))
    return random.choice(found) if found else None


def strip_pixels(p: StripPlan) -> tuple[int, int]:
    """(runs of tiles that a thread walks along for each panel, tiles of the longest)."""
    part = part_extents(p.words.group.main, p.words.schedule)
    extents = [part[d] for d in p.pixels]
    if p.copy:
        return math.prod(extents[:-2]), -(-_run(p.copy, part[p.copy.down.out]) // p.rows)
    return math.prod(extents[:-1]), -(-extents[-1] // p.rows)
