"""What the Winograd schema of whole numbers decides before it writes a line.

Goes in: the group of an integer convolution in NHWC and a schedule over the dimensions of the
products at points (`ops.tiles.product_stage`), with the options

    m      outputs of a tile, each way         run    tiles that a micro-kernel takes at most
    block  tiles that are transformed at once  ahead  1: weights are transformed as they are packed;
    words  of channels that are multiplied            0: panel by panel in every call, from bytes,
           at once                                       so many words at a time

Comes out: a `WordTilesPlan`, or a ScheduleError that says why the schedule is not legal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.isa.micro import registers_needed
from tilewright.kernels.cpu.operand import LINE_FLOATS
from tilewright.kernels.cpu.pointwise import Epilogue
from tilewright.kernels.cpu.schemas.dot.plan import moved_epilogue, vector_epilogue
from tilewright.kernels.cpu.schemas.winograd.plan import option, split_runs
from tilewright.kernels.cpu.space import Cut, cuts_up_to, even_cuts
from tilewright.kernels.cpu.whole_vectors import WholeValue
from tilewright.machine.isa import ISAS
from tilewright.ops.group import Group, Tensor
from tilewright.ops.integer import WORD_BYTES, factors
from tilewright.ops.stage import Stage
from tilewright.ops.tiles import product_stage
from tilewright.ops.winograd_words import (
    SIZES,
    WordsGeometry,
    why_not_words,
    words_geometry,
)
from tilewright.schedule.schedule import Level, Schedule

SCHEMA = 'winograd_words'
STEPS = 4  # words of channels of an iteration of a micro-kernel
MOST_PRODUCTS = 2  # of a word: numbers of 8 bits cannot hold what is transformed
BLOCKS = (8, 16, 24, 32, 48, 64, 96)  # tiles that are transformed at once, at most
WORDS = (
    16,
    24,
    32,
    48,
    64,
)  # of channels that are multiplied at once, at most, and as many as may be
FREE = ('n', 'k', 'ph', 'pw')  # what may be cut between threads


@dataclass(frozen=True)
class WordTilesPlan:
    """Everything that is decided before a line is written."""

    group: Group
    schedule: Schedule
    shape: WordsGeometry
    stage: Stage
    epilogue: Epilogue
    vector: WholeValue | None
    products: int

    @property
    def image(self) -> Tensor:
        return self.group.tensor(factors(self.group)[0].tensor)

    @property
    def depth(self) -> int:
        """Channels of the image, of which these are some from `first` on."""
        return self.image.shape[3]

    @property
    def first(self) -> int:
        return factors(self.group)[0].index[3].const

    @property
    def moves(self) -> bool:
        """Whether numbers of the image are moved by 128, to -128 .. 127."""
        return self.image.dtype == 'u8'

    @property
    def lanes(self) -> int:
        """Sums in a vector."""
        return ISAS[self.schedule.isa].lanes

    @property
    def numbers(self) -> int:
        """Transformed numbers in a vector."""
        return self.lanes * self.products

    @property
    def width(self) -> int:
        """Output channels of a panel."""
        return self.schedule.reg.tile['k']

    @property
    def vectors(self) -> int:
        return self.width // self.lanes

    @property
    def panels(self) -> int:
        return -(-self.shape.k // self.width)

    @property
    def words(self) -> int:
        """Words of channels of a sum, in whole iterations."""
        per = STEPS * self.products
        return -(-self.shape.c // per) * STEPS

    @property
    def chunk(self) -> int:
        """Words of channels that are multiplied at once: sums of later ones are added to those."""
        return min(option(self.schedule, 'words'), self.words)

    @property
    def chunks(self) -> int:
        return -(-self.words // self.chunk)

    @property
    def pieces(self) -> int:
        """Into how many pieces sums are cut at most, each of whole chunks: so many that none is too
        large whatever the weights are.
        """
        return -(-self.chunks // (whole_words(self.shape, self.products) // self.chunk))

    @property
    def pitch(self) -> int:
        """Words from one transformed tile to the next."""
        whole = -(-self.words // self.lanes) * self.lanes
        return -(-max(whole, self.words) // LINE_FLOATS) * LINE_FLOATS

    @property
    def point_pitch(self) -> int:
        """Words from one point to the next, an odd number of lines: points of a tile are stored one
        behind the other, and would share few sets of a cache.
        """
        return _odd_lines(self.block * self.pitch)

    @property
    def block(self) -> int:
        return min(option(self.schedule, 'block'), self.tiles)

    @property
    def ahead(self) -> bool:
        """Whether weights are transformed as they are packed."""
        return bool(option(self.schedule, 'ahead'))

    @property
    def tiles(self) -> int:
        return self.shape.n * self.shape.ph * self.shape.pw

    @property
    def k_ways(self) -> int:
        """Threads that share the panels."""
        return dict(self.schedule.parallel).get('k', 1)

    @property
    def tile_ways(self) -> int:
        """Threads that share the tiles, whichever of their dimensions the schedule cuts."""
        return self.schedule.threads // self.k_ways

    def block_sizes(self, part: int) -> tuple[int, ...]:
        """Tiles of every block of one of the threads that share them."""
        ways = self.tile_ways
        low, high = self.tiles * part // ways, self.tiles * (part + 1) // ways
        count = max(1, -(-(high - low) // self.block))
        ends = [low + (high - low) * number // count for number in range(count + 1)]
        return tuple(b - a for a, b in itertools.pairwise(ends))

    @property
    def runs(self) -> dict[int, tuple[int, ...]]:
        """Number of tiles of a block -> how micro-kernels share them."""
        most = option(self.schedule, 'run')
        sizes = {s for part in range(self.tile_ways) for s in self.block_sizes(part) if s}
        return {size: split_runs(size, most) for size in sorted(sizes)}

    @property
    def filter_pitch(self) -> int:
        """Words of U from one point to the next; of a chunk, apart as those of V, unless it was
        packed.
        """
        if self.ahead:
            return self.words * self.width
        return _odd_lines(self.chunk * self.width)

    @property
    def filter_words(self) -> int:
        """U: transformed weights of a panel, in words; or of a chunk of it at the points of a pair
        of rows.
        """
        f = self.shape.down
        return (f.t if self.ahead else max(map(len, f.pairs))) * f.t * self.filter_pitch

    @property
    def packed_words(self) -> int:
        """Weights as they are packed: transformed, or the bytes of all taps."""
        if self.ahead:
            return self.panels * self.filter_words
        return self.panels * self.panel_bytes // WORD_BYTES

    @property
    def panel_bytes(self) -> int:
        """Of the weights of a panel as they are given."""
        return self.words * self.products * self.shape.down.r * self.shape.across.r * self.width

    @property
    def input_words(self) -> int:
        """V: transformed tiles of a block."""
        return self.shape.t * self.point_pitch

    @property
    def piece_sums(self) -> int:
        """M of one piece: sums of a block with a panel."""
        return self.block * self.shape.t * self.width

    @property
    def scratch_floats(self) -> int:
        held = abi.aligned(self.input_words) + abi.aligned(self.pieces * self.piece_sums)
        return held + (0 if self.ahead else abi.aligned(self.filter_words))


def whole_words(shape: WordsGeometry, products: int) -> int:
    """Words of channels whose sums are right whatever the weights are, in whole iterations."""
    return max(shape.down.most_channels // (STEPS * products), 1) * STEPS


def _odd_lines(words: int) -> int:
    """At least so many words, in an odd number of lines."""
    lines = -(-words // LINE_FLOATS)
    return (lines + (lines % 2 == 0)) * LINE_FLOATS


def product(group: Group, schedule: Schedule) -> Stage:
    """The products at points, whose dimensions a schedule tiles."""
    return product_stage(words_geometry(group, option(schedule, 'm')))


def title(group: Group, schedule: Schedule) -> str:
    return f'Winograd {words_geometry(group, option(schedule, "m")).name} of whole numbers, exact'


def plan_winograd_words(group: Group, schedule: Schedule) -> WordTilesPlan:
    """[Group, Schedule] -> [WordTilesPlan]"""
    reason = why_not_words(group)
    if reason:
        raise ScheduleError(f'Winograd of whole numbers: {reason}; use the direct algorithm')
    m, run = option(schedule, 'm'), option(schedule, 'run')
    if m not in SIZES:
        raise ScheduleError(f'{group.label}: tiles of m={m} outputs; choose one of {SIZES}')
    isa = ISAS[schedule.isa]
    dot, lanes = isa.dot(schedule.dtype), isa.lanes
    if dot is None or dot.products > MOST_PRODUCTS or isa.rows:
        raise ScheduleError(
            f'{group.label}: {schedule.isa} has no products of {schedule.dtype}, in which what is '
            f'transformed fits'
        )
    shape = words_geometry(group, m)
    stage = product_stage(shape)
    if set(schedule.reg.tile) != set(stage.sizes) or schedule.reg.tile['k'] % lanes:
        raise ScheduleError(f'{group.label}: k has to be tiled by vectors of {lanes}')
    if any(size > 1 for d, size in schedule.reg.tile.items() if d != 'k'):
        raise ScheduleError(
            f'{group.label}: only k is tiled; tiles are flattened by the option run'
        )
    if any(name not in FREE for name, _ in schedule.parallel):
        raise ScheduleError(f'{group.label}: only {", ".join(FREE)} are cut between threads')
    need = registers_needed(run, schedule.reg.tile['k'] // lanes)
    if run < 1 or need > isa.registers:
        raise ScheduleError(
            f'{group.label}: runs of {run} tiles x {schedule.reg.tile["k"]} channels need {need} '
            f'registers; {schedule.isa} has {isa.registers}'
        )
    if option(schedule, 'block') < 1 or option(schedule, 'ahead') not in (0, 1):
        raise ScheduleError(f'{group.label}: block has to be at least 1, ahead 0 or 1')
    words, most = option(schedule, 'words'), whole_words(shape, dot.products)
    if words < 1 or words % STEPS or words > most:
        raise ScheduleError(
            f'{group.label}: words={words} has to be a multiple of {STEPS}, at most {most}: '
            f'sums of more might be too large'
        )
    moves = group.tensor(factors(group)[0].tensor).dtype == 'u8'
    epilogue = moved_epilogue(group, {'k': 1} if moves else None)
    value = None if isa.arch == 'aarch64' else vector_epilogue(group, epilogue, schedule)
    return WordTilesPlan(group, schedule, shape, stage, epilogue, value, dot.products)


def winograd_words_schedule(
    group: Group, isa: str, dtype: str, m: int, run: int, vectors: int, block: int, words: int,
    ahead: int, cut: Cut = (),
) -> Schedule:  # fmt: skip
    """The schedule of these decisions."""
    stage = product_stage(words_geometry(group, m))
    order, reg = tuple(stage.sizes), dict.fromkeys(stage.sizes, 1)
    reg['k'] = ISAS[isa].lanes * vectors
    whole = {d: -(-size // reg[d]) * reg[d] for d, size in stage.sizes.items()}
    levels = (Level.of('reg', order, reg), Level.of('l1', order, whole))
    options = (
        ('ahead', ahead), ('block', block), ('m', m), ('run', run), ('words', words)
    )  # fmt: skip
    return Schedule(SCHEMA, isa, 'k', levels, cut, options=options, dtype=dtype, accumulation='i32')


def register_tiles(isa: str) -> list[tuple[int, int]]:
    """(run, vectors): the longest run of tiles for each number of vectors of output channels, with
    a register left for pairs of products.
    """
    row, found = ISAS[isa], []
    for vectors in (1, 2, 3, 4):
        runs = [
            r for r in range(1, row.registers) if registers_needed(r, vectors) < row.registers
        ]  # fmt: skip
        if runs:
            found.append((max(runs), vectors))
    return found


def word_dtypes(isa: str) -> list[str]:
    """What words may hold: numbers of at least 16 bits."""
    return [dot.dtype for dot in ISAS[isa].dots if dot.products <= MOST_PRODUCTS]


def winograd_words_choices(group: Group, isa: str, dtype: str, threads: int) -> Iterator[Schedule]:
    """Schedules worth pricing: sizes of tiles, register tiles, blocks, weights, cuts."""
    if why_not_words(group) or dtype not in word_dtypes(isa):
        return
    products = next(dot.products for dot in ISAS[isa].dots if dot.dtype == dtype)
    for m in SIZES:
        shape = words_geometry(group, m)
        stage, most = product_stage(shape), whole_words(shape, products)
        whole = -(-shape.c // (STEPS * products)) * STEPS
        # In equal chunks, for all of which there is a micro-kernel of so many words.
        few = sorted({-(-whole // -(-whole // w) // STEPS) * STEPS for w in (*WORDS, most)})
        # Tiles are cut alike whichever of their dimensions is: one of each number of threads.
        cuts = {dict(c).get('k', 1): c for c in reversed(even_cuts(stage, threads, FREE))}
        for cut in list(cuts.values())[:3]:
            ways = math.prod(n for d, n in cut if d != 'k')
            tiles = -(-shape.n * shape.ph * shape.pw // ways)
            blocks = sorted({-(-tiles // -(-tiles // b)) for b in BLOCKS})
            for (run, vectors), block in itertools.product(register_tiles(isa), blocks):
                if (vectors - 1) * ISAS[isa].lanes >= stage.sizes['k']:
                    continue
                for words, ahead in (*((w, 0) for w in few if w <= most), (few[-1], 1)):
                    yield winograd_words_schedule(
                        group, isa, dtype, m, run, vectors, block, words, ahead, cut
                    )  # fmt: skip


def draw_winograd_words(
    group: Group, isa: str, random: Random, _levels: int, most_threads: int
) -> Schedule | None:
    """Any legal decisions."""
    dtypes = word_dtypes(isa)
    if why_not_words(group) or not dtypes or ISAS[isa].rows:
        return None
    m, (run, vectors) = random.choice(SIZES), random.choice(register_tiles(isa))
    cut = random.choice(cuts_up_to(product_stage(words_geometry(group, m)), most_threads, FREE))
    return winograd_words_schedule(
        group, isa, random.choice(dtypes), m, random.randint(1, run), vectors,
        random.randint(1, 16), STEPS * random.randint(1, 28), random.randint(0, 1), cut,
    )  # fmt: skip
