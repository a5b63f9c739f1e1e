"""The general schema: loops in C for any group, any expression, combiner, dtype and index.

Goes in: a group and a schedule with schema 'general', whose only decision is how the work is cut
between threads. Comes out: a C translation unit with the ABI of kernels/cpu/abi.py.

A group of several parts (ops/parts.py) is computed part by part for one point of the dimensions
that all parts share, so that what lies between them stays in the first caches and threads need not
wait for each other:

    softmax over w:     for n, h (shared):  Peak; Total; Out[w]
    softmax over c:     for n, h (shared), 256 pixels w at a time:  Peak[w]; Total[w]; Out[c, w]

Parts that need no input (how many elements the windows of a mean hold) are computed when constants
are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from tilewright.errors import ScheduleError
from tilewright.kernels.cpu import abi
from tilewright.kernels.cpu.expression import C_TYPES, Typed
from tilewright.kernels.cpu.functions import write_functions
from tilewright.kernels.cpu.names import TAKEN, rename_stage, safe_iterators
from tilewright.kernels.cpu.nest import Nest, part_extents
from tilewright.kernels.cpu.schemas.general import halves
from tilewright.kernels.cpu.schemas.general.nest import PieceWriter
from tilewright.kernels.cpu.schemas.general.plan import (
    Piece,
    Place,
    Tables,
    local_strides,
    piece_of,
)
from tilewright.kernels.cpu.shared import Shared, shared_dims
from tilewright.kernels.cpu.writer import Writer, scaled
from tilewright.ops.dtypes import DTYPES
from tilewright.ops.group import Group
from tilewright.ops.parts import depends_on_inputs, parts
from tilewright.ops.stage import Access
from tilewright.schedule.schedule import Schedule

FLAGS = ('-fno-trapping-math', '-fopenmp-simd')
CHUNK = 256  # neighbours that are carried through all parts at once
LINE = 64

HELPERS = """\
#include <stdint.h>

/* Smallest whole number that is at least a / b, for b > 0 and any a. */
static inline long ceil_div(long a, long b) { return a > 0 ? (a + b - 1) / b : -(-a / b); }
"""


def check(group: Group, schedule: Schedule) -> None:
    """Raise ScheduleError where the schedule is not legal for this schema."""
    stage = group.main
    if set(schedule.reg.tile) != set(stage.sizes):
        raise ScheduleError(f'{group.label}: the schedule does not tile {sorted(stage.sizes)}')
    bad = [d for d, _ in schedule.parallel if d not in stage.parallel]
    if bad:
        raise ScheduleError(f'{group.label}: {bad} cannot be cut between threads')
    extents = part_extents(stage, schedule)
    tiled = [d for level in schedule.levels for d, t in level.tiles if t < extents[d]]
    if tiled:
        raise ScheduleError(
            f'{group.label}: the schedule tiles {sorted(set(tiled))}, the general schema does not; '
            f'give tiles that hold all that a thread owns'
        )


def can_cut(group: Group) -> tuple[str, ...]:
    """Dimensions of the main stage that may be cut between threads: those that all parts share."""
    running = _running(group)
    if len(running) == 1:
        return tuple(d for d in group.main.parallel if group.main.sizes[d] > 1)
    number = next((n for n, p in enumerate(running) if p.main == group.main), None)
    if number is None:
        return ()
    return tuple(item.names[number] for item in shared_dims(running))


def plan_general(group: Group, schedule: Schedule) -> GeneralPlan:
    """[Group, Schedule] -> [GeneralPlan]"""
    check(group, schedule)
    return GeneralPlan.of(group, schedule)


def generate(unit: GeneralPlan) -> str:
    """[GeneralPlan] -> [C source]"""
    body, functions, typed = Writer(), Writer(), Typed()
    unit.write_pack(body, functions, typed)
    unit.write_part(body, functions, typed)
    writer = Writer()
    abi.write_head(writer, unit.group, unit.schedule)
    writer.lines += [*HELPERS.splitlines(), '']
    if any(t.dtype == 'f16' for t in unit.group.tensors):
        writer.lines += [*halves.FUNCTIONS.splitlines(), '']
    write_functions(writer, typed.functions)
    for table in unit.tables.all():
        values = ', '.join(map(str, table.values))
        writer.line(f'static const int {table.name}[] = {{{values}}};')
    writer.lines += [*functions.lines, *body.lines]
    return writer.text()


def _running(group: Group) -> tuple[Group, ...]:
    """The parts that run with every call: those that need an input, and the last one."""
    found = parts(group)
    needed = (*depends_on_inputs(group)[:-1], True)
    return tuple(part for part, runs in zip(found, needed, strict=True) if runs)


@dataclass(frozen=True)
class GeneralPlan:
    """Everything that is decided before a line is written.

    ahead, running  parts of either kind, with names that can stand in C; `shared` ones are the same
                    in all that run
    chunked         the shared dimension that is carried in chunks, or ''
    packed          tensor -> where it lies among the packed constants, in floats
    local           tensor -> (bytes into a thread's scratch memory, strides)
    """

    group: Group
    schedule: Schedule
    ahead: tuple[Group, ...]
    running: tuple[Group, ...]
    shared: tuple[str, ...]
    chunked: str
    packed: Mapping[str, int]
    packed_floats: int
    local: Mapping[str, tuple[int, tuple[int, ...]]]
    scratch_bytes: int
    tables: Tables

    @classmethod
    def of(cls, group: Group, schedule: Schedule) -> GeneralPlan:
        running = _running(group)
        ahead = tuple(safe_iterators(p, TAKEN)[0] for p in parts(group) if p not in running)
        shared = shared_dims(running) if len(running) > 1 else ()
        cut = [name for name, _ in schedule.parallel]
        if len(running) > 1 and not set(cut) <= set(can_cut(group)):
            raise ScheduleError(
                f'{group.label}: {cut} cannot be cut between threads; all parts share '
                f'{list(can_cut(group))}'
            )
        main = next((n for n, p in enumerate(running) if p.main == group.main), 0)
        names = tuple(item.names[main] for item in shared)
        renamed = tuple(_renamed(p, n, shared, names) for n, p in enumerate(running))
        chunked = _chunked(renamed[-1], names)
        packed, floats = {}, 0
        stored = (*group.with_role('constant'), *(p.output for p in ahead))
        for tensor in stored:
            packed[tensor.name] = floats
            floats += abi.aligned(-(-tensor.bytes // 4))
        local, size = {}, 0
        for number, part in enumerate(running[:-1]):
            tensor = part.output
            kept = {item.axes[number]: 1 for item in shared}
            for item, name in zip(shared, names, strict=True):
                if name == chunked:
                    kept[item.axes[number]] = CHUNK
            local[tensor.name] = size, local_strides(tensor.shape, kept)
            count = 1
            for axis, extent in enumerate(tensor.shape):
                count *= kept.get(axis, extent)
            size += -(-count * DTYPES[tensor.dtype] // LINE) * LINE
        return cls(
            group, schedule, ahead, renamed, names, chunked, packed, floats, local, size, Tables()
        )

    def write_pack(self, writer: Writer, functions: Writer, typed: Typed) -> None:
        """Constants are copied; parts that need nothing else are computed."""
        constants = self.group.with_role('constant')
        writer.open('void tw_pack(const float *const *constants, float *packed)')
        for number, tensor in enumerate(constants):
            place = self.packed[tensor.name]
            writer.line(f'memcpy(packed + {place}, constants[{number}], {tensor.bytes});')
        for part in self.ahead:
            self._write_piece(
                writer, functions, typed, part, {}, lambda name: f'packed + {self.packed[name]}'
            )
        if not constants and not self.ahead:
            writer.line('(void)constants, (void)packed;')
        elif not constants:
            writer.line('(void)constants;')
        writer.close()
        writer.line()
        abi.write_sizes(writer, self.schedule.threads, self.scratch_bytes // 4, self.packed_floats)

    def write_part(self, writer: Writer, functions: Writer, typed: Typed) -> None:
        inputs = {t.name: f'args->in[{i}]' for i, t in enumerate(self.group.with_role('input'))}
        scratch = 'args->scratch + part * tw_scratch_bytes()'

        def base(name: str) -> str:
            if name in inputs:
                return inputs[name]
            if name in self.packed:
                return f'args->packed + {self.packed[name]}'
            if name in self.local:
                return f'({scratch} + {self.local[name][0]})'
            return 'args->out'

        writer.open('void tw_part(const tw_args *args, long part)')
        writer.line('(void)part;')
        nest = Nest(self.group.main, self.schedule, writer)
        nest.open_parts()
        opened = self._open_shared(writer, nest)
        for part in self.running:
            ranges = {}
            if not opened:
                cut = dict(self.schedule.parallel)
                ranges = {d: nest.at(d) for d in part.main.parallel if cut.get(d, 1) > 1}
            self._write_piece(writer, functions, typed, part, ranges, base)
        writer.close(opened + 1)

    def _open_shared(self, writer: Writer, nest: Nest) -> int:
        """Loops over the dimensions that all parts share, the chunked one inside."""
        for name in sorted(self.shared, key=lambda d: d == self.chunked):
            low, high = nest.at(name)
            if name != self.chunked:
                writer.open(f'for (long {name} = {low}; {name} < {high}; {name}++)')
                continue
            writer.open(f'for (long chunk_ = {low}; chunk_ < {high}; chunk_ += {CHUNK})')
            writer.line(f'const long length_ = min_long({CHUNK}, {high} - chunk_);')
        return len(self.shared)

    def _write_piece(
        self, writer: Writer, functions: Writer, typed: Typed, part: Group,
        ranges: Mapping[str, tuple[str, str]], base: Callable[[str], str],
    ) -> None:  # fmt: skip
        """One part: its pointers and its loops."""
        shared = self.shared if part in self.running else ()
        chunked = self.chunked if part in self.running else ''
        spans = dict(ranges) | ({chunked: ('0', 'length_')} if chunked else {})
        fixed = [d for d in shared if d != chunked]
        names: list[str] = []

        def pointer(tensor: str, access: Access) -> tuple[str, tuple[int, ...]]:
            strides = part.tensor(tensor).strides
            if tensor in self.local and part in self.running:
                strides = self.local[tensor][1]
            names.append(tensor)
            return f'p{len(names) - 1}_', strides

        piece = piece_of(part, self.tables, pointer, spans, fixed)
        if len(self.running) == 1:
            piece = halves.as_bits(piece)
        writer.open('')
        for place in piece.places:
            own = chunked and place.tensor not in self.local
            step = scaled('chunk_', place.strides.get(chunked, 0)) if own else ''
            _declare(writer, place, piece, base(place.tensor), step)
        alone = len(self.running) == 1 and not self.ahead
        PieceWriter(writer, functions, typed, piece, self.schedule.isa, alone).write()
        writer.close()


def _declare(writer: Writer, place: Place, piece: Piece, base: str, step: str) -> None:
    const = '' if place is piece.write else 'const '
    kind = C_TYPES[place.dtype]
    text = base if place.dtype == 'f32' and 'scratch' not in base else f'({const}{kind} *)({base})'
    writer.line(f'{const}{kind} *restrict {place.pointer} = {text}{f" + {step}" if step else ""};')


def _renamed(part: Group, number: int, shared: Sequence[Shared], names: Sequence[str]) -> Group:
    """The part with shared dimensions under their common names, the others under safe ones."""
    own = {item.names[number]: name for item, name in zip(shared, names, strict=True)}
    safe = safe_iterators(part, TAKEN)[1]
    mapping = {}
    for dim in part.main.dims:
        name = own.get(dim.name) or safe[dim.name]
        while dim.name not in own and name in names:
            name += '_'
        mapping[dim.name] = name
    stages = tuple(rename_stage(s, mapping) if s is part.main else s for s in part.stages)
    return replace(part, stages=stages)


def _chunked(last: Group, shared: Sequence[str]) -> str:
    """The shared dimension whose neighbours lie side by side in the result, if there is one."""
    index = last.main.write.index
    if not index or len(index[-1].terms) != 1 or index[-1].terms[0][1] != 1:
        return ''
    name = index[-1].names[0]
    return name if name in shared else ''
