"""What the schema of bytes decides before it writes a line.

Goes in: the group of an integer product over the channels of an NHWC image, in each tap of a window
(a convolution, or rows of a matrix), and a schedule whose register tile has channels of the result,
with the options

    run    pixels of a micro-kernel
    block  runs of pixels that are packed at once, before any panel of weights is read

Comes out: a `BytePairsPlan`, or a ScheduleError that says why the schedule is not legal.

`vpmaddubsw` multiplies u8 by i8 and adds two products in 16 bits, where they saturate: 255 * 127
twice is too much. But numbers x of an image are small as a rule, and

    sum of |x w|  <=  128 * sum of x  <=  32768        where the sum of x is at most LIMIT = 256

holds for any weights. So the image decides, as it is packed. A *unit* is two groups of four
channels, each of two pairs. A pair of the first and one of the second are added in 16 bits where
their numbers are at most 256 together. Where they are not, the second goes to the list of the run
of pixels, whose entries are groups by themselves; and of a pair that is too large alone, what is
beyond 128 of each number. Where a list would be long, groups of all units stand alone: products are
added up in 32 bits sooner, and only pairs have to be small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.pointwise import Epilogue, access_strides
from tilewright.kernels.cpu.schemas.dot.plan import moved_epilogue, vector_epilogue
from tilewright.kernels.cpu.schemas.winograd.plan import option
from tilewright.kernels.cpu.space import Cut, cuts_up_to, even_cuts
from tilewright.kernels.cpu.whole_vectors import WholeValue
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.group import Group, Tensor
from tilewright.ops.integer import factors, is_integer_products
from tilewright.ops.parts import parts
from tilewright.schedule.schedule import Level, Schedule

SCHEMA = 'byte_pairs'
DTYPE = 'i16'  # what pairs of products are added in
LIMIT = 256  # of numbers whose products with any i8 can be added in 16 bits
GROUP, UNIT = 4, 8  # channels of a lane of 32 bits; of two, whose pairs are added
CHUNK = 32  # bytes that are packed at once
HELD = 5  # registers beside sums: ones, two words of the image, two products
LARGEST_RUN = 10
FEW_RUNS = 16  # of pixels, for which the next panel is asked for
BLOCKS = (2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class BytePairsPlan:
    """Everything that is decided before a line is written. Pixels are counted through all
    dimensions but channels: `walk` has these with the image's strides, outermost first. `window`
    has what is added up beside channels.
    """

    group: Group
    schedule: Schedule
    channel: str
    term: str
    walk: tuple[tuple[str, int, int], ...]
    window: tuple[str, ...]
    first: int
    epilogue: Epilogue
    vector: WholeValue | None

    @property
    def image(self) -> Tensor:
        return self.group.tensor(factors(self.group)[0].tensor)

    @property
    def flips(self) -> bool:
        """Whether numbers of the image are moved by 128, to 0 .. 255."""
        return self.image.dtype == 'i8'

    @property
    def lanes(self) -> int:
        return ISAS[self.schedule.isa].lanes

    @property
    def width(self) -> int:
        """Output channels of a panel."""
        return self.schedule.reg.tile[self.channel]

    @property
    def vectors(self) -> int:
        return self.width // self.lanes

    @property
    def size(self) -> int:
        """Output channels."""
        return self.group.main.sizes[self.channel]

    @property
    def panels(self) -> int:
        return -(-self.size // self.width)

    @property
    def depth(self) -> int:
        """Channels that are added up in every tap."""
        return self.group.main.sizes[self.term]

    @property
    def taps(self) -> int:
        return math.prod(self.group.main.sizes[d] for d in self.window)

    @property
    def tap_units(self) -> int:
        return -(-self.depth // UNIT)

    @property
    def units(self) -> int:
        return self.taps * self.tap_units

    @property
    def run(self) -> int:
        return option(self.schedule, 'run')

    @property
    def pixels(self) -> int:
        return math.prod(size for _, size, _ in self.walk)

    @property
    def block(self) -> int:
        """Runs that are packed at once."""
        most = -(-self.pixels // self.tile_ways)
        return min(option(self.schedule, 'block'), -(-most // self.run))

    @property
    def asks_ahead(self) -> bool:
        """Whether runs ask for the next panel: so few share one that weights come late."""
        return -(-self.pixels // self.tile_ways) <= FEW_RUNS * self.run

    @property
    def held(self) -> int:
        """Vectors of weights of a unit that registers hold; others are read for every pixel."""
        spare = ISAS[self.schedule.isa].registers - HELD - self.run * self.vectors
        return min(spare, 2 * self.vectors)

    @property
    def k_ways(self) -> int:
        """Threads that share the panels."""
        return dict(self.schedule.parallel).get(self.channel, 1)

    @property
    def tile_ways(self) -> int:
        """Threads that share the pixels, whichever of their dimensions the schedule cuts."""
        return self.schedule.threads // self.k_ways

    @property
    def panel_bytes(self) -> int:
        return self.units * UNIT * self.width

    @property
    def run_bytes(self) -> int:
        """Of a packed run of pixels."""
        return self.units * UNIT * self.run

    @property
    def entry_words(self) -> int:
        """Of an entry of a list: where its weights lie, and four numbers of every pixel."""
        return 1 + self.run

    @property
    def list_words(self) -> int:
        """Of the longest list: every group twice."""
        return 2 * (UNIT // GROUP) * self.units * self.entry_words

    @property
    def scratch_floats(self) -> int:
        """Packed runs, their lists, how long these are, and the sums of a register tile."""
        places = self.scratch_places
        return places['sums'] + abi.aligned(self.run * self.width)

    @property
    def scratch_places(self) -> dict[str, int]:
        places, offset = {}, 0
        for name, words in (
            ('packed', self.block * self.run_bytes // 4), ('lists', self.block * self.list_words),
            ('counts', 2 * self.block), ('sums', self.run * self.width),
        ):  # fmt: skip
            places[name] = offset
            offset += abi.aligned(words)
        return places


def why_not(group: Group) -> str:
    """Why the schema cannot compute a group; '' where it can, on a set that has the products."""
    if not is_integer_products(group) or parts(group) != (group,):
        return f'{group.label} is not one sum of products of 8-bit numbers with what follows it'
    image, weights = factors(group)
    held, stage = group.tensor(weights.tensor), group.main
    if held.role != 'constant' or held.dtype != 'i8':
        return f'the weights of {group.label} are not constant i8'
    channels = [d for d in stage.parallel if d in weights.names and d not in image.names]
    if len(channels) != 1 or set(weights.names) - {*channels, *stage.reduction}:
        return f'{group.label} is not a sum for every channel of a result'
    if not added_up(group):
        return f'numbers that {group.label} adds up are not neighbours in its image'
    output = access_strides(group, stage.write)[0]
    if output.get(channels[0]) != 1:
        return f'channels of a result of {group.label} are not neighbours'
    names = [d for d in output if d != channels[0]]
    walks = [output, *(dict(item.strides) for item in moved_epilogue(group, None).operands)]
    if not all(_is_line(steps, names, stage.sizes) for steps in walks):
        return f'pixels of a result of {group.label} do not follow each other'
    return ''


def added_up(group: Group) -> str:
    """The dimension that is added up along memory, inside of the image; '' where none is."""
    image, sizes = factors(group)[0], group.main.sizes
    axis, size = image.index[-1], group.tensor(image.tensor).shape[-1]
    names = [d for d in axis.names if d in group.main.reduction]
    if len(axis.terms) != 1 or len(names) != 1 or axis.terms[0][1] != 1:
        return ''
    alone = all(names[0] not in e.names for e in image.index[:-1])
    inside = axis.const >= 0 and axis.const + sizes[names[0]] <= size
    return names[0] if alone and inside else ''


def _is_line(steps: dict[str, int], names: list[str], sizes: dict[str, int]) -> bool:
    """Whether points of these dimensions, counted outermost first, are equally far apart."""
    apart = None
    for name in reversed([d for d in names if sizes[d] > 1]):
        if apart is not None and steps.get(name, 0) != apart:
            return False
        apart = steps.get(name, 0) * sizes[name]
    return True


def line_step(p: BytePairsPlan, steps: dict[str, int]) -> int:
    """How far apart two neighbouring pixels are in a tensor with these strides."""
    return next((steps.get(d, 0) for d, size, _ in reversed(p.walk) if size > 1), 0)


def multiplies(isa: Isa) -> bool:
    """Whether an instruction set has the products: x86 without those that add in 32 bits."""
    return isa.arch == 'x86_64' and not isa.rows and isa.dot(DTYPE) is not None


def longest_run(isa: str, vectors: int) -> int:
    """The most pixels whose sums fit into registers beside what is held."""
    return min((ISAS[isa].registers - HELD) // vectors, LARGEST_RUN)


def plan_byte_pairs(group: Group, schedule: Schedule) -> BytePairsPlan:
    """[Group, Schedule] -> [BytePairsPlan]"""
    reason = why_not(group)
    if reason:
        raise ScheduleError(f'products of bytes: {reason}; use another schema')
    isa, stage = ISAS[schedule.isa], group.main
    if not multiplies(isa) or schedule.dtype != DTYPE:
        raise ScheduleError(f'{group.label}: {schedule.isa} has no pairs of products of bytes')
    image, weights = factors(group)
    channel = next(d for d in stage.parallel if d in weights.names)
    term = added_up(group)
    tile = schedule.reg.tile
    if tile[channel] % isa.lanes or any(n > 1 for d, n in tile.items() if d != channel):
        raise ScheduleError(
            f'{group.label}: {channel} alone is tiled, by vectors of {isa.lanes}; pixels are by '
            f'the option run'
        )
    if any(d not in stage.parallel for d, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: sums are not cut between threads')
    run, most = option(schedule, 'run'), longest_run(schedule.isa, tile[channel] // isa.lanes)
    if not 1 <= run <= most or option(schedule, 'block') < 1:
        raise ScheduleError(
            f'{group.label}: runs of {run} pixels x {tile[channel]} channels; {schedule.isa} has '
            f'registers for 1 to {most}, and block has to be at least 1'
        )
    strides, first = access_strides(group, image)
    walk = tuple(
        (d, stage.sizes[d], strides.get(d, 0))
        for d in access_strides(group, stage.write)[0]
        if d != channel
    )
    flips = group.tensor(image.tensor).dtype == 'i8'
    epilogue = moved_epilogue(group, {channel: 1} if flips else None)
    value = vector_epilogue(group, epilogue, schedule)
    window = tuple(d for d in stage.reduction if d != term)
    return BytePairsPlan(group, schedule, channel, term, walk, window, first, epilogue, value)


def byte_pairs_schedule(
    group: Group, isa: str, run: int, vectors: int, block: int, cut: Cut = ()
) -> Schedule:
    """The schedule of these decisions."""
    stage, weights = group.main, factors(group)[1]
    channel = next(d for d in stage.parallel if d in weights.names)
    reg = {**dict.fromkeys(stage.sizes, 1), channel: ISAS[isa].lanes * vectors}
    whole = {d: -(-size // reg[d]) * reg[d] for d, size in stage.sizes.items()}
    order = tuple(stage.sizes)
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole))
    return Schedule(
        SCHEMA, isa, channel, levels, cut, options=(('block', block), ('run', run)), dtype=DTYPE,
        accumulation='i32',
    )  # fmt: skip


def byte_pairs_choices(group: Group, isa: str, threads: int) -> Iterator[Schedule]:
    """Schedules worth pricing: register tiles, blocks, cuts."""
    if why_not(group) or not multiplies(ISAS[isa]):
        return
    stage, weights = group.main, factors(group)[1]
    channel = next(d for d in stage.parallel if d in weights.names)
    pixels = math.prod(n for d, n in stage.sizes.items() if d in stage.parallel and d != channel)
    # Pixels are cut alike whichever of their dimensions is: one of each number of threads.
    cuts = {dict(c).get(channel, 1): c for c in reversed(even_cuts(stage, threads, stage.parallel))}
    for cut in cuts.values():
        ways = math.prod(n for d, n in cut if d != channel)
        for vectors in (1, 2, 3, 4):
            if (vectors - 1) * ISAS[isa].lanes >= stage.sizes[channel]:
                continue
            share, longest = -(-pixels // ways), longest_run(isa, vectors)
            for run in sorted({min(longest, share), min(max(longest - 1, 1), share)}):
                runs = -(-share // run)
                for block in sorted({-(-runs // -(-runs // b)) for b in BLOCKS}):
                    yield byte_pairs_schedule(group, isa, run, vectors, block, cut)


def draw_byte_pairs(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Any legal decisions."""
    if why_not(group) or not multiplies(ISAS[isa]):
        return None
    cut = random.choice(cuts_up_to(group.main, most_threads, group.main.parallel))
    vectors = random.randint(1, 4)
    run = random.randint(1, longest_run(isa, vectors))
    return byte_pairs_schedule(group, isa, run, vectors, random.randint(1, 5), cut)
