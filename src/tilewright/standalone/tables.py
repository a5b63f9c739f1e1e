"""The tables of a network in C: what its steps are, what they read, and where that lies.

Goes in: programs and memory plans, one for each size of the network. Comes out: `Tables`, which
name kernels, constants and places by number, and which say what the file of weights holds, in which
order. A network of one size has tables of one; constants that sizes share are there once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.memory import Memory, Place
from tilewright.graph.program import Program
from tilewright.kernels.cpu.scratch import NO_SCRATCH, Scratch
from tilewright.kernels.cpu.sized import SizedCall, SourceAtSize

ALIGNMENT = 64


@dataclass(frozen=True, slots=True)
class Where:
    """kind: ARENA, ARRAY (of the caller: inputs, then results) or CONSTANT; which; at what byte."""

    kind: str
    number: int
    offset: int

    def __str__(self) -> str:
        return f'{{{self.kind}, {self.number}, {self.offset}}}'


@dataclass(frozen=True)
class AtSize:
    """One size of a network: its program, and where its values lie.

    point   its sizes; none where the network has one size
    calls   digest -> (number of its kernel, what that is told of the size)
    packed  for each task what tells its packed constants from others
    kept    constant that is read as it is -> what tells it from that of another size
    """

    point: tuple[int, ...]
    program: Program
    memory: Memory
    calls: Mapping[str, tuple[int, SizedCall]]
    packed: Sequence[Hashable]
    kept: Mapping[str, Hashable]

    @classmethod
    def only(
        cls, program: Program, memory: Memory, sources: Mapping[str, SourceAtSize]
    ) -> AtSize:  # fmt: skip
        """That of a network of one size; the source of each distinct group by its digest."""
        calls = {
            digest: (number, one.call((one.scratch_bytes,)))
            for number, (digest, one) in enumerate(sources.items())
        }
        packed = [(task.group.digest, *program.packed(task)) for task in program.tasks]
        return cls((), program, memory, calls, packed, {name: name for name in program.constants})


@dataclass(frozen=True)
class Tables:
    """Numbers for everything, of all sizes.

    data       arrays of the weights file, in its order
    constants  (offset in it, bytes) of what is packed, set by set
    packs      (kernel, first of `numbers`, first of `constants`, how many, bytes when packed)
    reads      what the steps read, step by step
    steps      (kernel, pack, first read, first of `numbers`, parts, (rooms that they work in, bytes
               of one), result)
    kept       (offset, bytes) of constants that kernels read, or callers get, as they are
    copies     (array of the caller, from where, bytes)
    numbers    what kernels are told of their size
    sizes      (first step, steps, first read, reads, first copy, copies, *point)
    """

    data: list[np.ndarray] = field(default_factory=list)
    constants: list[tuple[int, int]] = field(default_factory=list)
    packs: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    reads: list[Where] = field(default_factory=list)
    steps: list[tuple[int, int, int, int, int, tuple[int, int], Where]] = field(
        default_factory=list
    )
    kept: list[tuple[int, int]] = field(default_factory=list)
    copies: list[tuple[int, Where, int]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    sizes: list[tuple[int, ...]] = field(default_factory=list)
    arena_bytes: int = 0
    scratch: Scratch = NO_SCRATCH

    def text(self, name: str, kernels: int) -> str:
        """The tables as C."""
        axes = len(self.sizes[0]) - 6
        most = max((count for *_, count, _ in self.packs), default=0)
        steps, reads = (max(size[at] for size in self.sizes) for at in (1, 3))
        return '\n'.join(
            [
                _TYPES.replace('tw_args', f'{name}_args').replace('AXES', str(axes)),
                f'#define ARENA_BYTES {self.arena_bytes}L',
                f'#define SCRATCH_BYTES {self.scratch.bytes}L',
                f'#define DATA_BYTES {sum(_padded(array.nbytes) for array in self.data)}L',
                f'#define DATA_SUM {sum_of(data(self.data))}u',
                f'enum {{ PACKS = {len(self.packs)}, KEPT = {len(self.kept)}, MOST_STEPS = {steps},'
                f' MOST_READS = {reads},',
                f'       MOST_CONSTANTS = {most}, AXES = {axes}, SIZES = {len(self.sizes)} }};',
                '',
                _table(
                    'kernel',
                    'kernels',
                    (f'{{{name}_k{n}_pack, {name}_k{n}_part}}' for n in range(1, kernels + 1)),
                ),
                _table('constant', 'constants', map(_row, self.constants)),
                _table('constant', 'kept', map(_row, self.kept)),
                _table('long', 'numbers', map(str, self.numbers), '0'),
                _table('pack', 'packs', map(_row, self.packs)),
                _table('place', 'reads', map(str, self.reads)),
                _table('step', 'steps', map(self._step, self.steps)),
                _table('copy', 'copies', map(_row, self.copies)),
                _table('size', 'sizes', (_row((*s[:6], _row(s[6:] or (0,)))) for s in self.sizes)),
            ]
        )

    def _step(self, step: tuple[int, int, int, int, int, tuple[int, int], Where]) -> str:
        *which, rooms, result = step
        return _row((*which, self.scratch.shift(*rooms), result))


def _row(values: Iterable[object]) -> str:
    return f'{{{", ".join(map(str, values))}}}'


_TYPES = """\
typedef struct {
    void (*pack)(const long *numbers, const float *const *constants, float *packed);
    void (*part)(const tw_args *args, long part);
} kernel;

enum { ARENA, ARRAY, CONSTANT };

typedef struct {
    int kind, number; /* ARRAY: of the caller, results behind inputs; CONSTANT: of `kept` */
    long offset;
} place;

typedef struct {
    long offset, bytes; /* in the file of weights */
} constant;

typedef struct {
    int kernel, numbers, first, count; /* of `constants` */
    long bytes;
} pack;

typedef struct {
    int kernel, pack, first_read, numbers;
    long parts, shift; /* how much further a part's scratch memory lies than the kernel places it */
    place out;
} step;

typedef struct {
    int to;
    place from;
    long bytes;
} copy;

typedef struct {
    int first_step, steps, first_read, reads, first_copy, copies;
    long point[AXES + 1];
} size;
"""


def tables(sizes: Iterable[AtSize]) -> Tables:
    """[AtSize], the largest first -> [Tables]"""
    made = _Making()
    for one in sizes:
        made.add(one)
    return made.tables()


class _Making:
    """Tables while they grow by one size after another."""

    def __init__(self) -> None:
        self.made, self.most = Tables(), 0
        self.places: dict[tuple[str, tuple[int, ...]], tuple[int, int]] = {}
        self.packs: dict[Hashable, int] = {}
        self.kept: dict[Hashable, int] = {}
        self.numbers: dict[tuple[int, ...], int] = {}
        self.offset = 0

    def tables(self) -> Tables:
        made = self.made
        return Tables(
            made.data, made.constants, made.packs, made.reads, made.steps, made.kept, made.copies,
            made.numbers, made.sizes, self.most,
            Scratch.of(rooms for *_, rooms, _ in made.steps),
        )  # fmt: skip

    def add(self, one: AtSize) -> None:
        made, program, memory = self.made, one.program, one.memory
        firsts = len(made.steps), len(made.reads), len(made.copies)
        for task, packed in zip(program.tasks, one.packed, strict=True):
            number, call = one.calls[task.group.digest]
            numbers = self._numbers(call.numbers)
            # Nothing lies where the next thing does; and what is larger may begin alike.
            mark = packed if call.packed_bytes else None
            if mark in self.packs and made.packs[self.packs[mark]][-1] < call.packed_bytes:
                mark = (packed, call.packed_bytes)
            if mark not in self.packs:
                self.packs[mark] = len(made.packs)
                names = list(program.packed(task))
                first = len(made.constants)
                made.packs.append((number, numbers, first, len(names), call.packed_bytes))
                made.constants.extend(self._constant(program, name) for name in names)
            first = len(made.reads)
            operands = (task.operands[tensor.name] for tensor in task.group.with_role('input'))
            made.reads.extend(self._where(one, memory.places[name]) for name in operands)
            result = self._where(one, memory.places[task.result])
            made.steps.append(
                (number, self.packs[mark], first, numbers, call.parts, call.scratch, result)
            )
        outputs = [name for name, _ in program.outputs]
        made.copies.extend(
            (len(program.inputs) + outputs.index(name), self._where(one, memory.places[value]),
             _bytes(program, value))
            for name, value in memory.copies
        )  # fmt: skip
        self.most = max(self.most, memory.arena_bytes)
        ends = len(made.steps), len(made.reads), len(made.copies)
        spans = (n for first, end in zip(firsts, ends, strict=True) for n in (first, end - first))
        made.sizes.append((*spans, *one.point))

    def _numbers(self, numbers: tuple[int, ...]) -> int:
        """Where a kernel's numbers begin."""
        if numbers not in self.numbers:
            self.numbers[numbers] = len(self.made.numbers)
            self.made.numbers.extend(numbers)
        return self.numbers[numbers]

    def _constant(self, program: Program, name: str) -> tuple[int, int]:
        """Where a constant lies in the file, and how many bytes it has."""
        key = name, program.values[name].shape
        if key not in self.places:
            kind = np.dtype(DTYPES[program.values[name].dtype]).newbyteorder('<')
            self.made.data.append(np.ascontiguousarray(program.constants[name], kind))
            self.places[key] = self.offset, _bytes(program, name)
            self.offset += _padded(self.made.data[-1].nbytes)
        return self.places[key]

    def _where(self, one: AtSize, place: Place) -> Where:
        program = one.program
        if place.kind == 'arena':
            return Where('ARENA', 0, place.offset)
        if place.kind == 'constant':
            mark = one.kept[place.name]
            if mark not in self.kept:
                self.kept[mark] = len(self.made.kept)
                self.made.kept.append(self._constant(program, place.name))
            return Where('CONSTANT', self.kept[mark], place.offset)
        if place.kind == 'input':
            return Where('ARRAY', program.inputs.index(place.name), place.offset)
        outputs = [name for name, _ in program.outputs]
        return Where('ARRAY', len(program.inputs) + outputs.index(place.name), place.offset)


def data(arrays: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    """The bytes of the weights file, array by array, each padded; in whole words."""
    for array in arrays:
        whole = array.nbytes // 8 * 8
        flat = array.reshape(-1).view(np.uint8)
        rest = np.zeros(_padded(array.nbytes) - whole, np.uint8)
        rest[: array.nbytes - whole] = flat[whole:]
        yield flat[:whole]
        yield rest


def sum_of(pieces: Iterable[np.ndarray]) -> int:
    """What `sum_of` of network.c computes: words of eight bytes times odd numbers, mod 2^64.

    Every odd number has an inverse, so that no single word can change unnoticed.
    """
    total, first = 0, 0
    for piece in pieces:
        if piece.nbytes % 8:
            raise ValueError('pieces are whole words of eight bytes')
        words = piece.view('<u8')
        odd = np.arange(2 * first + 1, 2 * (first + words.size) + 1, 2, dtype=np.uint64)
        total += int((words * odd).sum(dtype=np.uint64))
        first += words.size
    return total % 2**64


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _bytes(program: Program, value: str) -> int:
    kind = program.values[value]
    return math.prod(kind.shape) * np.dtype(DTYPES[kind.dtype]).itemsize


def _table(kind: str, name: str, rows: Iterable[str], none: str = '{0}') -> str:
    """static const kind name[] = {..}; never empty, which C does not allow."""
    body = '\n'.join(f'    {row},' for row in rows) or f'    {none},'
    return f'static const {kind} {name}[] = {{\n{body}\n}};\n'
