"""What a GPU schema is: one value with all that the rest of the system wants to know of it.

A schema is a way to compute a group on a GPU. Its folder (kernels/gpu/schemas/NAME) exports one
`GpuSchema`, or several that share their code; kernels/gpu/registry.py lists them, and
`GPU_SCHEMAS.register` takes one from anywhere. Generation, the design space, searches, the time
model, features of learned models and texts for people follow from the value: nothing else names a
schema.

Counts are machine-free (kernels/gpu/work.py); what they cost is said by model/gpu.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.errors import InputError, ScheduleError
from tilewright.kernels.gpu.columns import Batch, Counts, Tiling
from tilewright.kernels.gpu.language import Kernel
from tilewright.kernels.gpu.module import Module
from tilewright.kernels.gpu.work import CountsWork, Need, Work
from tilewright.machine.gpu import GpuMachine
from tilewright.ops.convolution import conv2d
from tilewright.ops.group import Group
from tilewright.ops.integer import is_integer_products
from tilewright.schedule.gpu import GpuSchedule

# Names of decisions that are taken together -> their values, neighbours beside each other.
Table = Mapping[tuple[str, ...], Sequence[tuple[int, ...]]]
DIRECT = 'direct'
STEP = 8  # depths of one matrix instruction of a warp
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

# Words of the target languages and identifiers that bodies of kernels have in common; a schema adds
# its own. Iterators of a group are not called by them.
_WORDS = """
a acc acos acosh all arrived asin asinh asm at atan atanh b base begin bool break case ceil channel
char column const continue cos cosh counter default depth depths do double e else end erf exp expm1
extern fabs first flat float floor fmax fmin fmod for four fresh from goto group half high i if
image inline inner input inside int j joined kernel l lane lanes last left line local log log1p long
lookup low min mine next now offset out part partial piece pixel place plane point pow private q
register return rint row share short signed sin sinh sizeof slot sqrt static step struct sums switch
tan tanh there tile to top two typedef u union unsigned v value values visible void volatile warp
weight while whole window x y
"""
RESERVED = frozenset(_WORDS.split())


@dataclass(frozen=True, slots=True)
class Shortcut:
    """What an algorithm saves on a group, at its best, and what it costs beside.

    saved_flops   of the direct algorithm      moved_bytes   between its kernels, and back
    launches      beside the main kernel       intrinsics    what may multiply
    many          whether there is enough of it for the machine's units to be filled at all
    """

    saved_flops: float
    moved_bytes: int
    launches: int
    intrinsics: tuple[str, ...]
    many: bool


@dataclass(frozen=True, slots=True)
class Detour:
    """What a schedule computes instead of the group's own operations.

    flops     of its main kernel
    between   for each buffer that one kernel leaves for the next: its bytes, and those that the
              kernel at its other end moves beside it
    intrinsic the units that multiply, where the schedule does not say: a library chooses by itself
    """

    flops: int
    between: tuple[tuple[int, int], ...]
    intrinsic: str = ''


@dataclass(frozen=True, slots=True)
class Probe:
    """A fixed schedule whose features are written into learned models: should a formula change, and
    with it what a model was trained on, loading it tells. It counts in the table of features, in
    that of statistics, or in both.
    """

    decisions: Mapping[str, int]
    intrinsic: str = 'fma'
    group: Group = field(
        default_factory=lambda: conv2d(c=32, h=28, w=28, k=64, r=3, s=3, pad=1), repr=False
    )
    features: bool = True
    statistics: bool = True


def _fma() -> Mapping[str, float]:
    return {'fma': 1.0}


def _nothing() -> Mapping:
    return {}


def _as_decided(values: Mapping) -> dict[str, int]:
    return dict(values)


def _never(_: Kernel) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSchema:
    """Only name, words and `generate` are needed; what else is given decides who makes use of it.

    words       one line for people
    generate    [Group, GpuSchedule] -> [Module]; raises ScheduleError where it is not legal
    intrinsics  what may multiply -> how often that is drawn, where it applies
    whole       it takes groups of several parts and of any dtype; else generate.py hands it the
                part with the main stage, float32 at affine indices
    half        it computes groups with tensors of f16 or bf16 instead (ops/group.py: `half`)
    both        it computes these and those of float32
    integers    it also computes products of 8-bit numbers (ops/integer.py)
    front       it computes what comes before the products as it copies their image (ops/front.py);
                for others that is a part, and a kernel, of its own
    algorithm   'direct', or the name by which people ask for this one (`algorithm=`)
    reserved    identifiers of its kernels beside RESERVED

    of searches (search/gpu/moves.py; without a table it is not searched)
    table       (group, intrinsic) -> values of each decision
    pairs       decisions that are worth changing together
    unsaid      what a decision is where a schedule does not name it
    fixed       whether a kernel's blocks are the same whatever is decided
    starts      schedules among which a search by the model begins, in no order
    shortcut    what its algorithm saves on a group, None where it does not apply
    propose     schedules that need no search, best first (targets/gpu/choose.py)

    of samples (`draw` of tilewright_lab/collect/space.py)
    sampled     intrinsic -> values of each choice
    decided     values of choices -> decisions of the schedule
    need        what a block takes

    of models
    work        what a block does; without it schedules are priced by their bytes
    detour      what it computes instead of the group's own operations, if it does
    error       expected error of the result (precision.py), where it is more than that of sums
    at_once     terms that matrix units add up before they begin anew, of schedules with the
                decision `fresh`; None: it has no such decision

    of learned models (rank/)
    measured    intrinsics that the data of learned models knows
    levels      which decision is which tile of `columns.TILE_FIELDS`
    count_many  counts of many schedules at once; else `work` of each
    tiling      outputs of blocks and threads; else one thread for each point
    probes      schedules that tell whether a model's features are still the same
    """

    name: str
    words: str
    generate: Callable[[Group, GpuSchedule], Module]
    intrinsics: Mapping[str, float] = field(default_factory=_fma)
    whole: bool = False
    half: bool = False
    both: bool = False
    integers: bool = False
    front: bool = False
    algorithm: str = DIRECT
    reserved: frozenset[str] = frozenset()
    table: Callable[[Group, str], Table] | None = None
    pairs: tuple[tuple[str, str], ...] = ()
    unsaid: Mapping[str, int] = field(default_factory=_nothing)
    fixed: Callable[[Kernel], bool] = _never
    starts: Callable[[Group, GpuMachine], Sequence[GpuSchedule]] | None = None
    shortcut: Callable[[Group], Shortcut | None] | None = None
    propose: Callable[[Group, GpuMachine], Sequence[GpuSchedule]] | None = None
    sampled: Mapping[str, Mapping[str, Sequence]] = field(default_factory=_nothing)
    decided: Callable[[Mapping], dict[str, int]] = _as_decided
    need: Callable[[Group, GpuSchedule], Need] | None = None
    work: CountsWork | None = None
    detour: Callable[[Group, GpuSchedule], Detour] | None = None
    error: Callable[[Group, GpuSchedule], float] | None = None
    at_once: Callable[[Group, GpuSchedule], int] | None = None
    measured: tuple[str, ...] = ()
    levels: Mapping[str, str] = field(default_factory=_nothing)
    count_many: Callable[[Batch], Counts] | None = None
    tiling: Callable[[Batch], Tiling] | None = None
    probes: tuple[Probe, ...] = ()

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or not self.intrinsics:
            raise InputError(
                f'the GPU schema {self.name!r} has the intrinsics {list(self.intrinsics)}; give it '
                f'a name that is an identifier and at least one intrinsic'
            )

    def count_need(self, group: Group, schedule: GpuSchedule) -> Need:
        """[Group, GpuSchedule] -> [Need]; raises ScheduleError where the schema refuses."""
        if self.need is None:
            raise ScheduleError(
                f'schema {self.name!r} has no counts of what a block needs; sample another one'
            )
        return self.need(group, schedule)

    def takes(self, group: Group) -> bool:
        """Whether it computes the types of a group."""
        plain = group.is_plain and (self.both or not self.half)
        whole = self.integers and is_integer_products(group)
        return whole or plain or (bool(group.half) and (self.both or self.half))

    def count_work(
        self, group: Group, schedule: GpuSchedule, registers: int | None = None
    ) -> Work:  # fmt: skip
        """[Group, GpuSchedule] -> [Work]; `registers` of a thread as the compiler counted them."""
        if self.work is None:
            raise ScheduleError(
                f'schema {self.name!r} has no counts of what a block does; price its schedules by '
                f'their bytes'
            )
        return self.work(group, schedule, registers)


def each(**values: Sequence[int]) -> dict[tuple[str, ...], list[tuple[int, ...]]]:
    """A table of decisions that are taken on their own, values in ascending order."""
    return {(name,): [(v,) for v in sorted(set(list_))] for name, list_ in values.items()}


def kind_name(schema: str, intrinsic: str) -> str:
    """'tiled', 'tiled-mma_tf32x3': kernels of one kind, as data sets and models name them."""
    return schema if intrinsic == 'fma' else f'{schema}-{intrinsic}'
