"""The tables of a network in C: what its steps are, what they read, and where that lies.

Goes in: a program and its memory plan. Comes out: `Tables`, which name kernels, constants and
places by number, and which say what the file of weights holds, in which order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tilewright.graph.graph import DTYPES
from tilewright.graph.memory import Memory, Place
from tilewright.graph.program import Program

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
class Tables:
    """Numbers for everything.

    kernels    digests of the distinct groups, in the order of first use
    constants  names of the program's constants that are needed, as the weights file has them
    offsets    their places in it; data_bytes is all of it
    packs      (kernel, constants that it packs): each distinct set once
    steps      (kernel, pack, first read, reads, result)
    kept       constants that kernels read, or callers get, as they are
    copies     (array of the caller, from where, bytes)
    """

    kernels: tuple[str, ...]
    constants: tuple[str, ...]
    offsets: tuple[int, ...]
    data_bytes: int
    data_sum: int
    packs: tuple[tuple[int, tuple[int, ...]], ...]
    reads: tuple[Where, ...]
    steps: tuple[tuple[int, int, int, int, Where], ...]
    kept: tuple[int, ...]
    copies: tuple[tuple[int, Where, int], ...]
    arena_bytes: int
    bytes: tuple[int, ...]

    def text(self, name: str, kernels: int) -> str:
        """The tables as C."""
        packed = [number for _, names in self.packs for number in names]
        firsts = np.cumsum([0, *(len(names) for _, names in self.packs)]).tolist()
        most = max((len(names) for _, names in self.packs), default=0)
        words = ('parts', 'scratch_bytes', 'packed_bytes', 'pack', 'part')
        return '\n'.join(
            [
                _TYPES.replace('tw_args', f'{name}_args'),
                f'#define ARENA_BYTES {self.arena_bytes}L',
                f'#define DATA_BYTES {self.data_bytes}L',
                f'#define DATA_SUM {self.data_sum}u',
                f'enum {{ PACKS = {len(self.packs)}, KEPT = {len(self.kept)}, STEPS = '
                f'{len(self.steps)}, READS = {len(self.reads)}, COPIES = {len(self.copies)},',
                f'       MOST_CONSTANTS = {most} }};',
                '',
                _table(
                    'kernel',
                    'kernels',
                    (
                        f'{{{", ".join(f"{name}_k{number}_{word}" for word in words)}}}'
                        for number in range(1, kernels + 1)
                    ),
                ),
                _table('constant', 'constants', map(self._constant, packed)),
                _table('constant', 'kept', map(self._constant, self.kept)),
                _table(
                    'pack',
                    'packs',
                    (
                        f'{{{kernel}, {first}, {len(names)}}}'
                        for (kernel, names), first in zip(self.packs, firsts, strict=False)
                    ),
                ),
                _table('place', 'reads', map(str, self.reads)),
                _table(
                    'step',
                    'steps',
                    (f'{{{k}, {p}, {first}, {out}}}' for k, p, first, _, out in self.steps),
                ),
                _table('copy', 'copies', (f'{{{to}, {w}, {n}}}' for to, w, n in self.copies)),
            ]
        )

    def _constant(self, number: int) -> str:
        return f'{{{self.offsets[number]}, {self.bytes[number]}}}'


_TYPES = """\
typedef struct {
    long (*parts)(void), (*scratch_bytes)(void), (*packed_bytes)(void);
    void (*pack)(const float *const *constants, float *packed);
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
    int kernel, first, count; /* of `constants` */
} pack;

typedef struct {
    int kernel, pack, first_read;
    place out;
} step;

typedef struct {
    int to;
    place from;
    long bytes;
} copy;
"""


def tables(program: Program, memory: Memory) -> Tables:
    """[Program, Memory] -> [Tables]"""
    kernels = list(dict.fromkeys(task.group.digest for task in program.tasks))
    packs: dict[tuple[str, tuple[str, ...]], None] = {}
    for task in program.tasks:
        packs[task.group.digest, tuple(program.packed(task))] = None
    operands = [
        memory.places[task.operands[tensor.name]]
        for task in program.tasks
        for tensor in task.group.with_role('input')
    ]
    copied = [memory.places[value] for _, value in memory.copies]
    kept = sorted({p.name for p in [*operands, *copied] if p.kind == 'constant'})
    needed = dict.fromkeys([*(name for _, names in packs for name in names), *kept])
    constants = [name for name in program.constants if name in needed]
    sizes = [_bytes(program, name) for name in constants]
    offsets = np.cumsum([0, *(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)]).tolist()
    numbers = {name: number for number, name in enumerate(constants)}
    outputs = [name for name, _ in program.outputs]

    def where(place: Place) -> Where:
        if place.kind == 'arena':
            return Where('ARENA', 0, place.offset)
        if place.kind == 'constant':
            return Where('CONSTANT', kept.index(place.name), place.offset)
        if place.kind == 'input':
            return Where('ARRAY', program.inputs.index(place.name), place.offset)
        return Where('ARRAY', len(program.inputs) + outputs.index(place.name), place.offset)

    listed, steps, first = list(packs), [], 0
    for task in program.tasks:
        key = (task.group.digest, tuple(program.packed(task)))
        count = len(task.group.with_role('input'))
        result = where(memory.places[task.result])
        steps.append((kernels.index(key[0]), listed.index(key), first, count, result))
        first += count
    return Tables(
        tuple(kernels), tuple(constants), tuple(offsets[:-1]), offsets[-1],
        sum_of(data(program, constants)),
        tuple((kernels.index(digest), tuple(numbers[n] for n in names)) for digest, names in packs),
        tuple(map(where, operands)), tuple(steps), tuple(numbers[name] for name in kept),
        tuple(
            (len(program.inputs) + outputs.index(name), where(memory.places[value]),
             _bytes(program, value))
            for name, value in memory.copies
        ),
        memory.arena_bytes, tuple(sizes),
    )  # fmt: skip


def data(program: Program, constants: Sequence[str]) -> Iterable[np.ndarray]:
    """The bytes of the weights file, constant by constant, each padded; in whole words."""
    for name in constants:
        kind = np.dtype(DTYPES[program.values[name].dtype]).newbyteorder('<')
        array = np.ascontiguousarray(program.constants[name], kind)
        whole = array.nbytes // 8 * 8
        flat = array.reshape(-1).view(np.uint8)
        rest = np.zeros(-(-array.nbytes // ALIGNMENT) * ALIGNMENT - whole, np.uint8)
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


def _bytes(program: Program, value: str) -> int:
    kind = program.values[value]
    return math.prod(kind.shape) * np.dtype(DTYPES[kind.dtype]).itemsize


def _table(kind: str, name: str, rows: Iterable[str]) -> str:
    """static const kind name[] = {..}; never empty, which C does not allow."""
    listed = list(rows)
    body = '\n'.join(f'    {row},' for row in listed) or '    {0},'
    return f'static const {kind} {name}[] = {{\n{body}\n}};\n'
