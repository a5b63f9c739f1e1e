"""What the GPU data sets measure: problems, and schedules of each, the same on every machine.

Goes in: the name of a set. Comes out: `Family`s, schedules that share their compiled kernels. Sets:

    layers   the 20 layers of CNNOpt's table. Schemas rs and s: the complete factor-tile space under
             that paper's conventions (tilewright_lab/collect/cnnopt_space.py), on inputs padded
             before. Others: a seeded sample of 1,000 of each schema, shared out among its
             intrinsics, and all of the general one, on the layers as they are
    train    random problems in CNNOpt's ranges (Sec. 4.1), strides 1 and 2, none of them a layer;
             seeded samples of every schema
    proposed the same problems as they are, and 1x1 convolutions, with what searches propose and
             compare (tilewright_lab/collect/group_sample.py), turn by turn
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

from tilewright.machine.gpu import GpuMachine
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.suites import suite
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.cnnopt_space import factor_space
from tilewright_lab.collect.compiled import Family
from tilewright_lab.collect.group_sample import GroupSource, families
from tilewright_lab.collect.space import draw

SEED = 20
PROBLEMS = 176
LARGEST_PRIME = 17
# Work of a random problem: enough to fill a GPU, little enough to be measured often.
FLOPS = (1e7, 2e9)
# Sampled schemas, and how many schedules of each a layer gets, and a random problem.
SAMPLED = {
    ('tiled', 'fma'): (300, 6), ('tiled', 'mma_tf32x3'): (700, 10),
    ('patch', 'mma_tf32x3'): (300, 6), ('patch', 'wgmma_tf32x3'): (700, 10),
    ('general', 'fma'): (1000, 1),
}  # fmt: skip
TILES = {'rs': 18, 's': 6}  # register tiles of CNNOpt's kernels, all splits of each


@dataclass(frozen=True, slots=True)
class Problem:
    """A square-window convolution of one image: outputs k x h x w, c input channels.

    pad   half the window, so that inputs are `stride` times the outputs; 0 is the convention of
          CNNOpt's measurements: the input was padded before
    """

    k: int
    h: int
    w: int
    c: int
    r: int
    stride: int
    pad: int

    @property
    def group(self) -> Group:
        height, width = (
            n * self.stride if self.pad else (n - 1) * self.stride + self.r
            for n in (self.h, self.w)
        )
        return conv2d(
            c=self.c, h=height, w=width, k=self.k, r=self.r, s=self.r, stride=self.stride,
            pad=self.pad,
        )  # fmt: skip

    @property
    def shape(self) -> tuple[int, ...]:
        """What makes it a problem of its own, however it is padded."""
        return self.k, self.h, self.w, self.c, self.r, self.stride

    @property
    def flops(self) -> float:
        return 2.0 * self.k * self.h * self.w * self.c * self.r * self.r

    @property
    def prepadded(self) -> Problem:
        return replace(self, pad=0)


def layers() -> dict[str, Problem]:
    """CNNOpt's layers by name."""
    found = {}
    for layer in suite('cnnopt'):
        sizes, access = layer.group.main.sizes, layer.group.main.reads[0]
        found[layer.name] = Problem(
            sizes['k'], sizes['h'], sizes['w'], sizes['c'], sizes['r'],
            access.index[-1].coefficient('w'), -access.index[-1].const,
        )  # fmt: skip
    return found


def random_problems(count: int = PROBLEMS, seed: int = SEED) -> list[Problem]:
    """Distinct problems in CNNOpt's ranges, none of them one of its layers."""
    random = Random(f'problems {seed}')
    sizes = [n for n in range(3, 1025) if _largest_prime(n) <= LARGEST_PRIME]
    taken = {problem.shape for problem in layers().values()}
    found: list[Problem] = []
    while len(found) < count:
        # Half of the sizes come from the lower end, where layers of networks are.
        high = random.choice([128, 1024])
        h, w = (random.choice([n for n in sizes if n <= high]) for _ in range(2))
        w = h if random.random() < 0.5 else w
        k = random.choice([16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024])
        c = random.choice([3, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024])
        r, stride = random.choice([3, 3, 5, 7]), random.choice([1, 1, 2])
        problem = Problem(k, h, w, c, r, stride, r // 2)
        if problem.shape in taken or not FLOPS[0] <= problem.flops <= FLOPS[1]:
            continue
        taken.add(problem.shape)
        found.append(problem)
    return found


def pointwise_problems(count: int, seed: int = SEED) -> list[Problem]:
    """Distinct 1x1 convolutions as networks have them, many channels and few pixels among them."""
    random = Random(f'pointwise {seed}')
    channels = [16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 768, 1024, 2048]
    taken = {problem.shape for problem in layers().values()}
    found: list[Problem] = []
    while len(found) < count:
        h = random.choice([7, 8, 10, 12, 13, 14, 17, 19, 20, 24, 28, 35, 40, 52, 56, 80, 112])
        k, c, stride = random.choice(channels), random.choice(channels), random.choice([1, 1, 1, 2])
        problem = Problem(k, h, h, c, 1, stride, 0)
        if problem.shape in taken or not FLOPS[0] <= problem.flops <= FLOPS[1]:
            continue
        taken.add(problem.shape)
        found.append(problem)
    return found


def _largest_prime(n: int) -> int:
    largest, factor = 1, 2
    while n > 1:
        while n % factor == 0:
            largest, n = factor, n // factor
        factor += 1
    return largest


def by_tiles(problem: Problem, schedules: list[GpuSchedule]) -> list[Family[Problem]]:
    """Schedules that differ in their split alone become one family."""
    groups: dict[tuple, list[GpuSchedule]] = {}
    for schedule in schedules:
        tiles = tuple(pair for pair in schedule.tiles if pair[0] != 'split')
        groups.setdefault(tiles, []).append(schedule)
    return [Family(problem, tuple(members)) for members in groups.values()]


@dataclass(frozen=True, slots=True)
class LayerSource:
    """Where families come from: one problem and schema. `count` is of families; 0 takes all.

    `besides` is another intrinsic of the schema with its count: what that has not got is made up
    for here, so that a schema has as many as it should.
    """

    problem: Problem
    schema: str
    intrinsic: str
    count: int
    seed: int = SEED
    besides: tuple[str, int] | None = None

    @property
    def stage(self) -> str:
        """How far a run is."""
        return f'{self.schema}/{self.intrinsic}'


def families_of(source: LayerSource, machine: GpuMachine) -> list[Family[Problem]]:
    """[LayerSource] -> [Family]; takes some seconds where samples are large."""
    problem = source.problem
    if source.schema in TILES:
        found = by_tiles(problem, factor_space(problem.group, machine, source.schema)[0])
        if not source.count:
            return found
        random = Random(f'{source.seed} {source.schema} {problem}')
        return random.sample(found, min(source.count, len(found)))
    count = source.count
    if source.besides:
        other, wanted = source.besides
        have, _ = draw(problem.group, machine, source.schema, other, wanted, source.seed)
        count += wanted - len(have)
    found, _ = draw(problem.group, machine, source.schema, source.intrinsic, count, source.seed)
    return [Family(problem, (schedule,)) for schedule in found]


def layer_sources(kinds: list[tuple[str, str]], names: tuple[str, ...] = ()) -> list[LayerSource]:
    """The frozen set: schema by schema, layer by layer."""
    chosen = [problem for name, problem in layers().items() if not names or name in names]
    return [
        LayerSource(problem.prepadded, schema, intrinsic, 0)
        if schema in TILES
        else _sampled(problem, schema, intrinsic)
        for schema, intrinsic in kinds
        for problem in chosen
    ]


@dataclass(frozen=True, slots=True)
class ProposedSource:
    """What searches propose of one problem, in one turn."""

    problem: Problem
    turn: int

    @property
    def stage(self) -> str:
        """How far a run is."""
        return f'turn {self.turn}'


def proposed_of(source: ProposedSource, machine: GpuMachine) -> list[Family[Problem]]:
    """[ProposedSource] -> [Family]; takes some seconds."""
    group = source.problem.group
    found = families(GroupSource(group.digest, source.turn), group, machine)
    return [Family(source.problem, family.schedules) for family in found]


# The intrinsic of a schema that makes up for what the other one has not got.
_FILLS = {('tiled', 'fma'): 'mma_tf32x3', ('patch', 'mma_tf32x3'): 'wgmma_tf32x3'}


def _sampled(problem: Problem, schema: str, intrinsic: str) -> LayerSource:
    other = _FILLS.get((schema, intrinsic))
    besides = (other, SAMPLED[schema, other][0]) if other else None
    count = SAMPLED[schema, intrinsic][0]
    return LayerSource(problem, schema, intrinsic, count, besides=besides)


def train_sources(
    count: int = PROBLEMS, seed: int = SEED, kinds: Sequence[tuple[str, str]] = (), tiles: int = 0,
    first: int = 0,
) -> list[LayerSource]:  # fmt: skip
    """The training set, problem by problem, so that any part of it has all schemas.

    kinds   these alone          tiles   of CNNOpt's kernels, instead of `TILES`
    first   the first problem; those before are left out
    """
    return [
        source
        for problem in random_problems(count, seed)[first:]
        for source in (
            *(
                LayerSource(problem.prepadded, schema, 'fma', tiles or usual, seed)
                for schema, usual in TILES.items()
            ),
            *(
                LayerSource(problem, schema, intrinsic, samples, seed)
                for (schema, intrinsic), (_, samples) in SAMPLED.items()
            ),
        )
        if not kinds or (source.schema, source.intrinsic) in kinds
    ]
