"""A CPU schema: one way to compute groups in C, all that belongs to it in one value; and the table.

Goes in: nothing; a folder of `schemas/` exports one `CpuSchema`. Comes out: `SCHEMAS`, which code
generation, the design space, models, searches and reports follow. `SCHEMAS.register(schema)` adds
one from anywhere; it is then searched, priced, generated, verified, explained and listed like those
of the package (tests/extend/test_cpu_schema.py is an example).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from tilewright.errors import InputError
from tilewright.kernels.cpu.words import nest_lines
from tilewright.machine.isa import ISAS, Isa
from tilewright.ops.flatten import tiled_form
from tilewright.ops.group import Group
from tilewright.ops.integer import is_integer_products
from tilewright.ops.stage import Stage
from tilewright.ops.tiles import ALGORITHMS
from tilewright.registry import Registry
from tilewright.schedule.schedule import Schedule

Numbers = tuple[str, str]  # dtype of what is multiplied, dtype of what sums are added in
# A choice between two expressions becomes vectors only if neither may stop the process.
FLAGS = ('-fno-trapping-math',)


@dataclass(frozen=True, slots=True)
class Work:
    """What one call does, all threads together: what a price can be made of.

    flops  operations;  moved  bytes to and from memory, each once;  loads  vectors loaded or stored
    """

    flops: float
    moved: float
    loads: float


def counted_work(group: Group, schedule: Schedule) -> Work:
    """What a group asks for: every read and every write of every point, whole vectors at a time."""
    touched = sum(s.points * (len(s.reads) + (not s.combiner)) for s in group.stages)
    return Work(group.flops, group.compulsory_bytes, touched / ISAS[schedule.isa].lanes)


def main_stage(group: Group, schedule: Schedule) -> Stage:
    """The main stage of the form of the group that the schedule was made for."""
    return tiled_form(group, schedule.reg.tile).main


def every_group(_group: Group) -> str:
    return ''


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuSchema:
    """One schema. Groups come in the form that the schedule tiles, under names that C can have.

    name       what schedules call it
    words      what people call it: text, or [Group, Schedule] -> text
    plan       [Group, Schedule] -> all that is decided before a line is written; ScheduleError
               where the schedule is not legal
    generate   [plan] -> [C source] with the ABI of kernels/cpu/abi.py
    why_not    [Group] -> why no schedule of it can compute the group; '' where one can
    choices    [Group, ISA, threads, cache levels] -> schedules worth pricing, where they are few
    rank       else a hook: [Group, Machine, threads, top, max_rel_err] -> [Candidate], best first
    time       a hook: [Group, Schedule, Machine] -> [Prediction]; '' prices what `work` counts
    work       [Group, Schedule] -> [Work]
    draw       [Group, ISA, Random, cache levels, most threads] -> any legal schedule, or None to
               leave the turn to the next schema; without it one of `choices`
    error      [Group, Schedule] -> largest error over largest output that is expected of it; None
               where sums are those of the definition
    lines      [Group, Schedule] -> the loops in words, outermost first
    stage      [Group, Schedule] -> the stage whose dimensions the schedule tiles
    algorithm  which of `--algorithm` it belongs to
    flags      for the compiler, beside those of the instruction set
    dtypes     what its kernels multiply and add in; `any_dtype`: tensors may have others, too
    storage    where it can keep inner tensors of a group (`Group.storage`)
    flattens   its schedules tile the flattened form of a group (ops/flatten.py)
    registers  its innermost tile is held in registers; else loops are left to the compiler
    sequential  it computes groups whose stages take turns, step by step, and no others
    last_resort  it is only asked where no other schema of its algorithm applies
    reason     a sentence for people: why it is what a group has
    integer    it multiplies small whole numbers, in what the machine has for them (`Isa.dots`)
    half       it multiplies f16, by the row of the machine's instruction set for them (`Isa.half`)
    tiles      it multiplies bf16, by the row for tiles (`Isa.tiles`)
    front      it computes what comes before the products as it copies their image (ops/front.py)
    fixed      its code is of one size alone: ranges take the next best schema
    selective  of a group's sizes it computes large ones alone: ranges have another schema beside it
    """

    name: str
    words: str | Callable[[Group, Schedule], str]
    plan: Callable[[Group, Schedule], Any]
    generate: Callable[[Any], str]
    why_not: Callable[[Group], str] = every_group
    choices: Callable[[Group, str, int, int], Iterable[Schedule]] | None = None
    rank: Callable[..., Any] | str = ''
    time: Callable[..., Any] | str = ''
    work: Callable[[Group, Schedule], Work] = counted_work
    draw: Callable[[Group, str, Random, int, int], Schedule | None] | None = None
    error: Callable[[Group, Schedule], float] | None = None
    lines: Callable[[Group, Schedule], list[str]] = nest_lines
    stage: Callable[[Group, Schedule], Stage] = main_stage
    algorithm: str = 'direct'
    flags: tuple[str, ...] = FLAGS
    dtypes: tuple[Numbers, ...] = (('f32', 'f32'),)
    any_dtype: bool = False
    storage: tuple[str, ...] = ('register',)
    flattens: bool = False
    registers: bool = True
    sequential: bool = False
    last_resort: bool = False
    reason: str = ''
    integer: bool = False
    half: bool = False
    tiles: bool = False
    front: bool = False
    fixed: bool = False
    selective: bool = False

    def __post_init__(self) -> None:
        if self.choices is None and not self.rank:
            raise InputError(
                f'CPU schema {self.name!r} has neither choices nor a rank; without one of them '
                f'nothing can be searched'
            )
        if self.algorithm not in ALGORITHMS[1:]:
            raise InputError(
                f'CPU schema {self.name!r}: algorithm {self.algorithm!r} is not one of '
                f'{", ".join(ALGORITHMS[1:])}'
            )

    def title(self, group: Group, schedule: Schedule) -> str:
        """What people call a schedule of it."""
        return self.words if isinstance(self.words, str) else self.words(group, schedule)

    def lacks(self, group: Group, isa: Isa, numbers: Numbers) -> str:
        """Why its kernels do not offer what is asked for, and who does; '' where they do."""
        if numbers not in self.dtypes or numbers not in isa.numbers:
            return (
                f'{numbers_text(numbers)} on {isa.name} is not what the {self.name} schema offers; '
                f'offered are {_offered(lambda s: map(numbers_text, s.dtypes))}, and {isa.name} is '
                f'for {", ".join(map(numbers_text, isa.numbers))}'
            )
        if group.is_sequential != self.sequential:
            return (
                f'steps that {"" if group.is_sequential else "do not "}follow each other are not '
                f'what the {self.name} schema offers'
            )
        if self.integer and not is_integer_products(group):
            return f'the {self.name} schema offers sums of products of 8-bit numbers alone'
        offered = {elements for elements, _ in self.dtypes}
        other = [t.name for t in group.tensors if t.dtype not in offered]
        if other and not self.any_dtype:
            anyone = ', '.join(s.name for s in SCHEMAS.values() if s.any_dtype)
            return (
                f'{other} are not {" or ".join(sorted(offered))}, all that the {self.name} schema '
                f'offers; tensors of any dtype are offered by: {anyone}'
            )
        far = [(name, level) for name, level in group.storage if level not in self.storage]
        if far:
            name, level = far[0]
            return (
                f'{name} is to be kept in storage {level!r}, which the {self.name} schema does not '
                f'offer; offered are {_offered(lambda s: s.storage)}'
            )
        return ''


def numbers_text(numbers: Numbers) -> str:
    """('f32', 'f32') -> 'f32'; ('f16', 'f32') -> 'f16 added in f32'."""
    elements, accumulation = numbers
    return elements if elements == accumulation else f'{elements} added in {accumulation}'


def _offered(of: Callable[[CpuSchema], Iterable[str]]) -> str:
    """'register (outer, general), cache (general)': what there is, and which schemas have it."""
    found: dict[str, list[str]] = {}
    for schema in SCHEMAS.values():
        for item in of(schema):
            found.setdefault(item, []).append(schema.name)
    return ', '.join(f'{item} ({", ".join(names)})' for item, names in found.items())


_FOLDERS = 'tilewright.kernels.cpu.schemas'
SCHEMAS: Registry[CpuSchema] = Registry(
    'a CPU schema',
    (
        f'{_FOLDERS}.outer:OUTER',
        f'{_FOLDERS}.dot:DOT',
        f'{_FOLDERS}.half:HALF',
        f'{_FOLDERS}.tiles:TILES',
        f'{_FOLDERS}.strip:STRIP',
        f'{_FOLDERS}.strip:BYTE_STRIP',
        f'{_FOLDERS}.narrow:NARROW',
        f'{_FOLDERS}.general:GENERAL',
        f'{_FOLDERS}.winograd:WINOGRAD',
        f'{_FOLDERS}.fft:FFT',
        f'{_FOLDERS}.strassen:STRASSEN',
        f'{_FOLDERS}.stencil:STENCIL',
        f'{_FOLDERS}.pixels:PIXELS',
        f'{_FOLDERS}.channelwise:CHANNELWISE',
        f'{_FOLDERS}.windows:WINDOWS',
        f'{_FOLDERS}.wide:WIDE',
        f'{_FOLDERS}.interleave:INTERLEAVE',
        f'{_FOLDERS}.winograd_half:WINOGRAD_HALF',
        f'{_FOLDERS}.winograd_words:WINOGRAD_WORDS',
        f'{_FOLDERS}.byte_pairs:BYTE_PAIRS',
        f'{_FOLDERS}.strassen_half:STRASSEN_HALF',
        f'{_FOLDERS}.strassen_pixels:STRASSEN_PIXELS',
        f'{_FOLDERS}.chain:CHAIN',
        f'{_FOLDERS}.recurrence:RECURRENCE',
        f'{_FOLDERS}.attention:ATTENTION',
        f'{_FOLDERS}.attention_tiles:ATTENTION_TILES',
        f'{_FOLDERS}.normal_rows:NORMAL_ROWS',
    ),
)


def is_shipped(schedule: Schedule) -> bool:
    """Whether schema and instruction set are the package's own, the same in every process.

    What is kept on disk about others may have come from another version of them.
    """
    return SCHEMAS.is_shipped(schedule.schema) and ISAS.is_shipped(schedule.isa)


def is_extended() -> bool:
    """Whether schemas or instruction sets were registered, which other processes do not have."""
    return bool(SCHEMAS.added or ISAS.added)
