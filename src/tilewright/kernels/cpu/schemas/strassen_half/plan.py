"""What the Strassen schema of f16 decides before it writes a line.

Goes in: a group that multiplies rows of f16, which lie side by side, by constant weights, such as a
1x1 convolution in NHWC, and a schedule over the dimensions of one block of the product
(`ops.strassen.block_group`), with the options

    levels  how often operands are cut in two    run     rows that a micro-kernel takes at most
    rows    of a block that are added at once    words   words of the sum added in registers

Comes out: a `HalfBlocksPlan`, or a ScheduleError that says why the schedule is not legal.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi, operand
from tilewright.kernels.cpu.contraction import Contraction, contract, vector_candidates
from tilewright.kernels.cpu.half_epilogue import (
    LANES,
    HalfEpilogue,
    plan_half_epilogue,
    why_no_epilogue,
)
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.pointwise import access_strides
from tilewright.kernels.cpu.schemas.half.words import why_no_words
from tilewright.kernels.cpu.schemas.strassen.plan import blocks_of, levels_of, why_no_blocks
from tilewright.kernels.cpu.schemas.winograd.plan import option
from tilewright.kernels.cpu.space import Cut, cuts_up_to, even_cuts
from tilewright.machine.isa import ISAS, half_isa
from tilewright.ops.epilogue_error import final_error
from tilewright.ops.flatten import flatten, tiled_form
from tilewright.ops.group import Group
from tilewright.ops.stage import Stage
from tilewright.ops.strassen import MOST_LEVELS, PRODUCTS, half_product_error
from tilewright.schedule.schedule import Level, Schedule

SCHEMA = 'strassen_half'
STEPS = 4  # words of the sum of an iteration of a micro-kernel: a vector of eight f16
RUNS = (32,)  # words that are added in registers
LEAST_ROWS = 4  # of a block
# Roundings that an epilogue may add in f16: sums are off by many.
ROUNDINGS = 4


@dataclass(frozen=True)
class HalfBlocksPlan:
    """Everything that is decided before a line is written; sizes are those of one block."""

    group: Group
    schedule: Schedule
    contraction: Contraction
    stage: Stage
    epilogue: HalfEpilogue

    @property
    def levels(self) -> int:
        return levels_of(self.schedule)

    @property
    def parts(self) -> int:
        """Blocks that a dimension is cut into."""
        return 1 << self.levels

    @property
    def products(self) -> int:
        return PRODUCTS**self.levels

    @property
    def row(self) -> str:
        return self.contraction.pixels[-1]

    @property
    def vector(self) -> str:
        return self.contraction.vector

    @property
    def high(self) -> int:
        return self.stage.sizes[self.row]

    @property
    def wide(self) -> int:
        return self.stage.sizes[self.vector]

    @property
    def deep(self) -> int:
        return self.stage.sizes[self.contraction.loop]

    @property
    def rows(self) -> int:
        """Rows that are added, multiplied and stored at once."""
        return option(self.schedule, 'rows')

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return self.schedule.reg.tile[self.vector]

    @property
    def panels(self) -> int:
        return -(-self.wide // self.width)

    @property
    def widths(self) -> tuple[int, ...]:
        """Vectors that panels have: the last one may have fewer."""
        last = self.wide - (self.panels - 1) * self.width
        return tuple(dict.fromkeys((self.width // LANES, last // LANES)))

    @property
    def column_ways(self) -> int:
        """Threads that share the panels."""
        return dict(self.schedule.parallel).get(self.vector, 1)

    @property
    def row_ways(self) -> int:
        return dict(self.schedule.parallel).get(self.row, 1)

    @property
    def run(self) -> int:
        """Iterations of a micro-kernel whose products are added in registers."""
        return min(option(self.schedule, 'words'), self.deep // 2) // STEPS

    @property
    def runs(self) -> dict[int, tuple[int, ...]]:
        """Number of rows -> how micro-kernels share them."""
        most = option(self.schedule, 'run')
        found = {}
        for count in range(1, self.rows + 1):
            size, more = divmod(count, -(-count // most))
            found[count] = (size + 1,) * more + (size,) * (-(-count // most) - more)
        return found

    @property
    def sizes(self) -> dict[int, int]:
        """Rows at once -> how often the thread with the most rows has that many."""
        rows = -(-self.high // self.row_ways)
        times = -(-rows // self.rows)
        size, more = divmod(rows, times)
        return {size + 1: more, size: times - more}

    @property
    def pitch(self) -> int:
        """f16 from one row of all sums of blocks to the next: an odd number of lines, so that rows
        do not share sets of a cache.
        """
        return 2 * operand.odd_lines(abi.aligned(self.products * self.deep // 2))

    @property
    def weight_halves(self) -> int:
        return self.products * self.deep * self.wide

    @property
    def input_halves(self) -> int:
        """V: sums of blocks of the input."""
        return self.rows * self.pitch

    @property
    def product_halves(self) -> int:
        """M: products of all rows with a panel."""
        return self.products * self.rows * self.width

    @property
    def scratch_floats(self) -> int:
        return abi.aligned(self.input_halves // 2) + abi.aligned(self.product_halves // 2)


def why_not(group: Group) -> str:
    """Why no schedule can compute a group; '' where one can, on a machine with f16."""
    reason = why_no_words(group, 'f16')
    if reason:
        return reason
    flat = flatten(group)
    return why_not_so_often(flat, vector_candidates(flat)[0], 1)


def why_not_so_often(group: Group, vector: str, levels: int) -> str:
    """Why a group in its flat form cannot be cut in two so often; '' where it can."""
    c, sizes = contract(group, vector), group.main.sizes
    reason = why_no_blocks(group, c, levels, LEAST_ROWS) or why_no_epilogue(group, vector)
    if reason:
        return reason
    if len(c.pixels) != 1:
        return f'{group.label} has rows along {c.pixels}, not along one dimension'
    odd = [d for d in (vector, c.loop) if sizes[d] % (LANES << levels)]
    if odd:
        return f'{group.label}: blocks of {odd[0]}={sizes[odd[0]]} are no vectors of {LANES}'
    if access_strides(group, group.main.write)[0].get(vector) != 1:
        return f'{group.label}: results of a row do not lie side by side'
    return ''


def block_stage(group: Group, schedule: Schedule) -> Stage:
    """The product of one block, whose dimensions a schedule tiles."""
    flat = tiled_form(group, schedule.reg.tile)
    return blocks_of(flat, schedule.vector, levels_of(schedule), LEAST_ROWS).main


def title(_group: Group, schedule: Schedule) -> str:
    levels = levels_of(schedule)
    return f'Strassen in f16, {PRODUCTS**levels} products for {8**levels}'


def predicted_error(group: Group, schedule: Schedule) -> float:
    """What a result is expected to be off by, as a share of the largest."""
    flat = tiled_form(group, schedule.reg.tile)
    terms = flat.main.sizes[contract(flat, schedule.vector).loop]
    made = half_product_error(terms, levels_of(schedule), 2 * option(schedule, 'words'))
    return final_error(flat, made)


def plan_strassen_half(group: Group, schedule: Schedule) -> HalfBlocksPlan:
    """[Group, Schedule] -> [HalfBlocksPlan]"""
    levels, isa = levels_of(schedule), ISAS[schedule.isa]
    if schedule.vector not in vector_candidates(group):
        raise ScheduleError(
            f'{group.label}: {schedule.vector!r} is not one of {vector_candidates(group)}'
        )
    reason = why_no_words(group, 'f16') or why_not_so_often(group, schedule.vector, levels)
    if reason:
        raise ScheduleError(f'Strassen in f16: {reason}; use the direct algorithm')
    stage = blocks_of(group, schedule.vector, levels, LEAST_ROWS).main
    c = contract(group, schedule.vector)
    if isa.dtype != 'f16':
        raise ScheduleError(f'{group.label}: {schedule.isa} has no arithmetic of f16')
    reg = schedule.reg.tile
    if set(reg) != set(stage.sizes) or reg[c.vector] % LANES:
        raise ScheduleError(f'{group.label}: {c.vector} has to be tiled by vectors of {LANES}')
    if any(size > 1 for d, size in reg.items() if d != c.vector):
        raise ScheduleError(
            f'{group.label}: only {c.vector} is tiled; rows are shared by the option run'
        )
    free = (c.pixels[-1], c.vector)
    if any(name not in free for name, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: only {", ".join(free)} are cut between threads')
    run, rows, words = (option(schedule, name) for name in ('run', 'rows', 'words'))
    need = registers_needed(run, reg[c.vector] // LANES, isa.weight_registers)
    if run < 1 or need > isa.registers:
        raise ScheduleError(
            f'{group.label}: {run} rows x {reg[c.vector]} columns need {need} registers; '
            f'{schedule.isa} has {isa.registers}'
        )
    if words < STEPS or words % STEPS or rows < 1:
        raise ScheduleError(
            f'{group.label}: words={words} has to be a multiple of {STEPS}, rows={rows} at least 1'
        )
    epilogue = plan_half_epilogue(group, c.vector, starts=False, most=ROUNDINGS)
    return HalfBlocksPlan(group, schedule, c, stage, epilogue)


def strassen_half_schedule(
    group: Group, isa: str, levels: int, run: int, vectors: int, rows: int, words: int,
    cut: Cut = (),
) -> Schedule:  # fmt: skip
    """The schedule of these decisions, of a group in its flat form."""
    vector = vector_candidates(group)[0]
    stage = blocks_of(group, vector, levels, LEAST_ROWS).main
    order, reg = tuple(stage.sizes), dict.fromkeys(stage.sizes, 1) | {vector: LANES * vectors}
    whole = {d: -(-size // reg[d]) * reg[d] for d, size in stage.sizes.items()}
    made = (Level.of('reg', order, reg), Level.of('l1', order, whole))
    options = (('levels', levels), ('rows', rows), ('run', run), ('words', words))
    return Schedule(
        SCHEMA, half_isa(isa), vector, made, cut, options=options, dtype='f16', accumulation='f16'
    )


def register_tiles(group: Group, isa: str, levels: int) -> list[tuple[int, int]]:
    """(run, vectors): the most rows for each number of vectors of a block's columns."""
    row = ISAS[half_isa(isa)]
    most = group.main.sizes[vector_candidates(group)[0]] // (LANES << levels)
    found = []
    for vectors in (v for v in (2, 3) if v <= most) if most > 1 else (1,):
        runs = (
            r for r in range(1, row.registers)
            if registers_needed(r, vectors, row.weight_registers) < row.registers
        )  # fmt: skip
        found.append((max(runs), vectors))
    return found


def strassen_half_choices(group: Group, isa: str, threads: int) -> Iterator[Schedule]:
    """Schedules worth pricing of a group in its flat form: levels, register tiles, rows, cuts."""
    if not half_isa(isa) or why_not(group):
        return
    vector = vector_candidates(group)[0]
    for levels in range(1, MOST_LEVELS + 1):
        if why_not_so_often(group, vector, levels):
            return
        stage = blocks_of(group, vector, levels, LEAST_ROWS).main
        free = (contract(group, vector).pixels[-1], vector)
        for cut in even_cuts(stage, threads, free)[:3]:
            for run, vectors in register_tiles(group, isa, levels):
                if dict(cut).get(vector, 1) * vectors * LANES > stage.sizes[vector] + LANES:
                    continue
                # More rows at once are sums that the second cache has to hold, and gain nothing.
                for words in RUNS:
                    yield strassen_half_schedule(
                        group, isa, levels, run, vectors, run, words, cut
                    )  # fmt: skip


def draw_strassen_half(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Any legal decisions."""
    if not half_isa(isa) or why_not(group) or flatten(group) != group:
        return None
    vector = vector_candidates(group)[0]
    possible = [
        n for n in range(1, MOST_LEVELS + 1) if not why_not_so_often(group, vector, n)
    ]  # fmt: skip
    levels = random.choice(possible)
    stage = blocks_of(group, vector, levels, LEAST_ROWS).main
    run, vectors = random.choice(register_tiles(group, isa, levels))
    free = (contract(group, vector).pixels[-1], vector)
    cut = random.choice(cuts_up_to(stage, most_threads, free))
    return strassen_half_schedule(
        group, isa, levels, random.randint(1, run), vectors, random.randint(1, 20),
        STEPS * random.randint(1, 8), cut,
    )  # fmt: skip
