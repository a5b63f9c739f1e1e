"""Instruction sets: a table of what each offers, and which of them this host can run.

Goes in: the architecture and the flags of /proc/cpuinfo. Comes out: names of table rows, best
first. `ISAS.register` adds another one: a row that names its emitter of micro-kernels and says what
models and probes need to know. One that is derived from a row (`dataclasses.replace`) inherits all
of that.
"""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright import knobs
from tilewright.errors import InputError
from tilewright.ops.dtypes import DTYPES
from tilewright.registry import Registry

Emitter = Callable[[Any], str]  # MicroKernel -> C function


@dataclass(frozen=True, slots=True)
class Dot:
    """Multiply-adds of small whole numbers: a lane adds `products` of them, which are neighbours in
    a word of 32 bits, to an i32. Nothing saturates on the way.

    dtype   what a word of the image holds; a word of weights holds as many, signed. Numbers of 8
            bits are widened to it, or moved by 128 where only their sign differs
    scratch how many registers products pass through before they are added
    """

    dtype: str
    products: int
    required_flags: tuple[str, ...] = ()
    compiler_flags: tuple[str, ...] = ()
    scratch: int = 0


@dataclass(frozen=True, slots=True)
class Half:
    """Multiply-adds of f16 that add in f16, twice as many lanes in a vector as floats."""

    required_flags: tuple[str, ...] = ()
    compiler_flags: tuple[str, ...] = ()
    emit: Emitter | str = ''


@dataclass(frozen=True, slots=True)
class Tiles:
    """Registers of two dimensions: eight of 16 rows of 16 words, of which a multiply-add takes one
    of the image, rows of pixels, and one of weights, and adds to 16 x 16 sums.
    """

    required_flags: tuple[str, ...] = ()
    compiler_flags: tuple[str, ...] = ()
    emit: Emitter | str = 'tilewright.kernels.cpu.isa.tiles:emit'


TILE_ROWS = 16  # pixels, lanes and words of a tile


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set, as a micro-kernel sees it.

    `registers` are vector registers. Multiply-adds in flight that fill the pipeline are
    `fma_per_cycle * fma_latency_cycles` (Little's law, MOpt Sec. 6); between two that add to the
    same register it takes `fma_chain_cycles`, which cores that forward late operands shorten.
    `required_flags` must all be in /proc/cpuinfo; `compiler_flags` are what gcc and clang need to
    accept the instructions.

    emit       [MicroKernel] -> [C function], or a hook to it (kernels/cpu/isa)
    probe      which loop of machine/probe.c measures its peak; others run the portable one
    by_lane    a multiply-add takes one lane of a register as its factor, so that up to four
               neighbours are loaded at once and none is broadcast
    rows_emit  [RowKernel] -> [C function], or a hook to it: micro-kernels that have pixels across
               the lanes and store rows of results (kernels/cpu/isa/x86_rows.py); '' where none are
    turns      micro-kernels may keep blocks of 4 x 4 transposed (kernels/cpu/isa/micro.py)
    stream_bytes how far ahead to ask for weights that are read once, from memory: prefetchers stop
               at the end of a page. Too far, and lines are gone again, or are in the way of others
    streams    runs of memory to read side by side where weights come from a far cache in every
               step: some prefetchers have more under way with several
    loop_instructions   of an iteration of a micro-kernel, beside multiply-adds and loads
    dtype, accumulation what multiply-adds multiply, and what they add in
    dots       what it has for small whole numbers, best first; the last needs nothing else
    half       what it has for f16; the row that kernels of f16 go by is `half_isa` of its name
    tiles      what it has in tiles; the row that their kernels go by is `tile_isa` of its name
    rows       pixels of a tile, in such a row; 0 where registers are vectors
    weight_registers   that a vector of weights takes in one step
    """

    name: str
    arch: str
    vector_bytes: int
    registers: int
    emit: Emitter | str
    fma_per_cycle: int = 2
    fma_latency_cycles: int = 4
    fma_chain_cycles: int = 4
    loads_per_cycle: int = 2
    compiler_flags: tuple[str, ...] = ()
    required_flags: tuple[str, ...] = ()
    probe: str = 'portable'
    by_lane: bool = False
    rows_emit: Callable[[Any], str] | str = ''
    turns: bool = False
    stream_bytes: int = 4096
    streams: int = 4
    loop_instructions: int = 3  # two pointers, a counter with its branch
    dtype: str = 'f32'
    accumulation: str = 'f32'
    dots: tuple[Dot, ...] = ()
    half: Half | None = None
    weight_registers: int = 1
    tiles: Tiles | None = None
    rows: int = 0

    def __post_init__(self) -> None:
        if not re.fullmatch('[a-z0-9]+', self.name):
            raise InputError(
                f'instruction set {self.name!r}: names of micro-kernels contain it, so it must be '
                f'made of small letters and digits, such as avx2'
            )
        for name in (self.dtype, self.accumulation):
            if name not in DTYPES:
                raise InputError(
                    f'instruction set {self.name}: dtype {name!r} is not one of {", ".join(DTYPES)}'
                )

    @property
    def lanes(self) -> int:
        """Sums in a vector."""
        return self.vector_bytes // DTYPES[self.accumulation]

    @property
    def numbers(self) -> tuple[tuple[str, str], ...]:
        """What it can multiply, and what it adds that in."""
        own = ((self.dtype, self.accumulation),)
        own = (*own, ('f16', 'f16')) if self.dtype == 'f16' else own
        return *own, *((dot.dtype, 'i32') for dot in self.dots)

    def dot(self, dtype: str) -> Dot | None:
        """How it multiplies small whole numbers in words of a dtype, if it does."""
        return next((dot for dot in self.dots if dot.dtype == dtype), None)

    @property
    def flops_per_cycle(self) -> int:
        """Operations in a cycle; a multiply-add counts as two."""
        return 2 * self.fma_per_cycle * self.lanes


# Best first. Throughput and latency are those of the cores that are common in servers (Skylake-SP
# and newer, Zen 2 and newer, Neoverse); the measured peak, not this table, is what models use.
# Portable C has to do with 16 registers and, on plain x86-64, with separate multiply and add.
_ROWS = (
    Isa(
        name='avx512',
        arch='x86_64',
        vector_bytes=64,
        registers=32,
        compiler_flags=('-mavx512f', '-mavx512vl', '-mavx512dq', '-mavx512bw', '-mfma'),
        required_flags=('avx512f', 'avx512vl', 'avx512dq', 'avx512bw', 'fma'),
        emit='tilewright.kernels.cpu.isa.x86:emit',
        rows_emit='tilewright.kernels.cpu.isa.x86_rows:emit',
        probe='avx512',
        dots=(Dot('u8', 4, ('avx512_vnni',), ('-mavx512vnni',)), Dot('i16', 2)),
        tiles=Tiles(('amx_tile', 'amx_int8', 'amx_bf16', 'avx512_bf16'), ('-mavx512bf16',)),
    ),
    Isa(
        name='avx2',
        arch='x86_64',
        vector_bytes=32,
        registers=16,
        compiler_flags=('-mavx2', '-mfma'),
        required_flags=('avx2', 'fma'),
        emit='tilewright.kernels.cpu.isa.x86:emit',
        rows_emit='tilewright.kernels.cpu.isa.x86_rows:emit',
        probe='avx2',
        stream_bytes=512,  # 41 GB/s on two cores of a Zen 3, 37 with 4 KiB
        dots=(Dot('i16', 2, scratch=1),),
    ),
    Isa(
        name='neon',
        arch='aarch64',
        vector_bytes=16,
        registers=32,
        fma_chain_cycles=2,
        required_flags=('asimd',),
        emit='tilewright.kernels.cpu.isa.neon:emit',
        probe='neon',
        by_lane=True,
        turns=True,
        stream_bytes=512,  # 34 GB/s on two Neoverse-N1 cores, 31 without, 24 with 4 KiB
        streams=1,  # 10 MB from the third cache: 64 GB/s on two Neoverse-N1 cores, 55 with 4
        dots=(Dot('i8', 4, ('asimddp',), ('-march=armv8.2-a+dotprod',)), Dot('i32', 1)),
        half=Half(
            ('asimdhp',), ('-march=armv8.2-a+fp16',), 'tilewright.kernels.cpu.isa.neon_half:emit'
        ),
        loop_instructions=8,  # large numbers are added in two, prefetches have a base of their own
    ),
    Isa(
        name='portable',
        arch='any',
        vector_bytes=16,
        registers=16,
        fma_per_cycle=1,
        fma_latency_cycles=8,
        fma_chain_cycles=8,
        emit='tilewright.kernels.cpu.isa.portable:emit',
        turns=True,
        stream_bytes=512,  # 34 GB/s on two Neoverse-N1 cores, 31 without, 24 with 4 KiB
        dots=(Dot('i32', 1),),
        tiles=Tiles(),  # in plain C, so that kernels of tiles are tested on every machine
    ),
)
_HALF = 'half'  # how names of rows for f16 end
_TILES = 'tiles'  # and those for tiles
_WORDS = 'words'  # and those for words whose products pass through registers


def half_isa(name: str) -> str:
    """The row that kernels of f16 go by in an instruction set; '' where it has no such numbers."""
    return f'{name}{_HALF}' if ISAS[name].half else ''


@lru_cache(maxsize=16)
def _half_row(row: Isa) -> Isa:
    """A row for f16, by words of 32 bits with two of them each: an element is as large as a float.

    A step multiplies both halves of a word, one behind the other, by vectors of twice as many
    lanes, so that a word and a vector take two multiply-adds that add to the same register. Sums
    of a run of steps are added up in float32, which is what `lanes` counts.
    """
    assert row.half is not None
    return replace(
        row,
        name=f'{row.name}{_HALF}',
        vector_bytes=2 * row.vector_bytes,
        fma_per_cycle=max(row.fma_per_cycle // 2, 1),
        fma_latency_cycles=2 * row.fma_latency_cycles,
        fma_chain_cycles=2 * row.fma_chain_cycles,
        required_flags=(*row.required_flags, *row.half.required_flags),
        compiler_flags=(*row.compiler_flags, *row.half.compiler_flags),
        emit=row.half.emit,
        rows_emit='',
        turns=False,
        dtype='f16',
        dots=(),
        half=None,
        weight_registers=2,
    )


def tile_isa(name: str) -> str:
    """The row that kernels of tiles go by in an instruction set; '' where it has no tiles."""
    return f'{name}{_TILES}' if ISAS[name].tiles else ''


@lru_cache(maxsize=16)
def _tile_row(row: Isa) -> Isa:
    """A row for tiles, by words of 32 bits: two bf16 added in float32, or four bytes in i32.

    A row of a tile of the image, 16 words of one pixel, is multiplied by 16 x 16 words of weights
    in a cycle: as many multiply-adds of vectors of words.
    """
    assert row.tiles is not None
    return replace(
        row,
        name=f'{row.name}{_TILES}',
        vector_bytes=4 * TILE_ROWS,
        registers=8,
        fma_per_cycle=TILE_ROWS,
        fma_latency_cycles=4,
        required_flags=(*row.required_flags, *row.tiles.required_flags),
        compiler_flags=(*row.compiler_flags, *row.tiles.compiler_flags),
        emit=row.tiles.emit,
        by_lane=False,
        rows_emit='',
        turns=False,
        dtype='bf16',
        dots=(Dot('u8', 4), Dot('i8', 4)),
        half=None,
        tiles=None,
        rows=TILE_ROWS,
    )


def word_isa(name: str, dtype: str) -> str:
    """The row that register tiles of words are chosen and priced by: what products pass through
    holds no sums, and only additions wait for each other. Kernels go by the set itself.
    """
    dot = ISAS[name].dot(dtype)
    return f'{name}{_WORDS}' if dot and dot.scratch else name


@lru_cache(maxsize=16)
def _word_row(row: Isa) -> Isa:
    scratch = max(dot.scratch for dot in row.dots)
    name = f'{row.name}{_WORDS}'
    return replace(row, name=name, registers=row.registers - scratch, fma_chain_cycles=1)


class IsaTable(Registry[Isa]):
    """Instruction sets by name. Rows for f16, tiles and words are found under theirs and not listed
    beside the others: they are forms of a row, for kernels of one schema, and nobody chooses
    between them.
    """

    def __getitem__(self, name: str) -> Isa:
        base = name.removesuffix(_HALF)
        if base != name and base in self._load() and super().__getitem__(base).half:
            return _half_row(super().__getitem__(base))
        base = name.removesuffix(_TILES)
        if base != name and base in self._load() and super().__getitem__(base).tiles:
            return _tile_row(super().__getitem__(base))
        base = name.removesuffix(_WORDS)
        if base != name and base in self._load():
            return _word_row(super().__getitem__(base))
        return super().__getitem__(name)

    def is_shipped(self, name: str) -> bool:
        forms = (name, *(name.removesuffix(end) for end in (_HALF, _TILES, _WORDS)))
        return any(super(IsaTable, self).is_shipped(form) for form in forms)


ISAS: Registry[Isa] = IsaTable('an instruction set', _ROWS)

_ARCH_NAMES = {'amd64': 'x86_64', 'x64': 'x86_64', 'arm64': 'aarch64'}


def host_arch() -> str:
    """The architecture of this process, under the name that the table uses."""
    name = platform.machine().lower()
    return _ARCH_NAMES.get(name, name)


def cpu_flags(root: Path = Path('/')) -> frozenset[str]:
    """The flags of /proc/cpuinfo ('flags' on x86-64, 'Features' on ARM) that all CPUs share."""
    try:
        text = (root / 'proc/cpuinfo').read_text(errors='replace')
    except OSError:
        return frozenset()
    sets = []
    for line in text.splitlines():
        key, _, value = line.partition(':')
        if key.strip() in ('flags', 'Features'):
            sets.append(frozenset(value.split()))
    return frozenset.intersection(*sets) if sets else frozenset()


def host_isas(root: Path = Path('/'), arch: str | None = None) -> tuple[str, ...]:
    """Names of the instruction sets that this host can run, best first.

    Those that were registered stand last, so that one uses them by asking: TILEWRIGHT_ISA, or a
    machine that has them.
    """
    arch, flags = arch or host_arch(), cpu_flags(root)
    return tuple(
        row.name
        for row in ISAS.values()
        if row.arch in (arch, 'any') and flags.issuperset(row.required_flags)
    )


def host_dot(isa: str, root: Path = Path('/')) -> str:
    """The dtype of the best dot products that this host has within an instruction set."""
    flags = cpu_flags(root)
    return next((d.dtype for d in ISAS[isa].dots if flags.issuperset(d.required_flags)), '')


def host_half(isa: str, root: Path = Path('/')) -> bool:
    """Whether this host multiplies f16 within an instruction set."""
    half = ISAS[isa].half
    return half is not None and cpu_flags(root).issuperset(half.required_flags)


def host_tiles(isa: str, root: Path = Path('/')) -> bool:
    """Whether this host has tiles within an instruction set, and lets processes use them."""
    row = ISAS[isa]
    if row.tiles is None or not row.tiles.required_flags:
        return False  # plain C is for tests, and faster nowhere
    return cpu_flags(root).issuperset(row.tiles.required_flags) and tiles_allowed()


@lru_cache(maxsize=1)
def tiles_allowed() -> bool:
    """Whether the system gives this process the state of tiles: arch_prctl(ARCH_REQ_XCOMP_PERM,
    XFEATURE_XTILEDATA), which stays given. Kernels ask again, for exported C has no Python.
    """
    if host_arch() != 'x86_64' or not platform.system().startswith('Linux'):
        return False
    return ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0


def host_multiplies(isa: str, dtype: str) -> bool:
    """Whether this host has what kernels of an instruction set need for a dtype."""
    dot, base = ISAS[isa].dot(dtype), isa.removesuffix(_HALF)
    if base != isa:
        return base in host_isas() and host_half(base)
    base = isa.removesuffix(_TILES)
    if base != isa:
        return base in host_isas() and (ISAS[base].arch == 'any' or host_tiles(base))
    return isa in host_isas() and (dot is None or cpu_flags().issuperset(dot.required_flags))


def best_isa(isas: tuple[str, ...] | None = None) -> str:
    """The instruction set to use: the knob TILEWRIGHT_ISA if set, else the best of the host's."""
    runnable = host_isas() if isas is None else isas
    chosen = knobs.get('isa')
    if not chosen:
        return runnable[0]
    if chosen not in runnable:
        why = 'cannot run on this host' if chosen in ISAS else 'is not an instruction set'
        raise InputError(f'TILEWRIGHT_ISA={chosen!r} {why}; choose one of {", ".join(runnable)}')
    return chosen
