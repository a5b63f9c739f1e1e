"""Instruction sets: a table of what each offers, and which of them this host can run.

Goes in: the architecture and the flags of /proc/cpuinfo. Comes out: names of table rows, best
first. A new instruction set is a new row here, and micro-kernels for it in `codegen/cpu`.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from tilewright import knobs
from tilewright.errors import InputError


@dataclass(frozen=True, slots=True)
class Isa:
    """One instruction set, as a micro-kernel sees it.

    `registers` are vector registers. Multiply-adds in flight that fill the pipeline are
    `fma_per_cycle * fma_latency_cycles` (Little's law, MOpt Sec. 6); between two that add to the
    same register it takes `fma_chain_cycles`, which cores that forward late operands shorten.
    `required_flags` must all be
    in /proc/cpuinfo; `compiler_flags` are what gcc and clang need to accept the instructions.
    """

    name: str
    arch: str
    vector_bytes: int
    registers: int
    fma_per_cycle: int
    fma_latency_cycles: int
    fma_chain_cycles: int
    loads_per_cycle: int
    compiler_flags: tuple[str, ...]
    required_flags: tuple[str, ...]

    @property
    def lanes(self) -> int:
        """fp32 values in a vector."""
        return self.vector_bytes // 4

    @property
    def flops_per_cycle(self) -> int:
        """fp32 operations in a cycle; a multiply-add counts as two."""
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
        fma_per_cycle=2,
        fma_latency_cycles=4,
        fma_chain_cycles=4,
        loads_per_cycle=2,
        compiler_flags=('-mavx512f', '-mavx512vl', '-mavx512dq', '-mavx512bw', '-mfma'),
        required_flags=('avx512f', 'avx512vl', 'avx512dq', 'avx512bw', 'fma'),
    ),
    Isa(
        name='avx2',
        arch='x86_64',
        vector_bytes=32,
        registers=16,
        fma_per_cycle=2,
        fma_latency_cycles=4,
        fma_chain_cycles=4,
        loads_per_cycle=2,
        compiler_flags=('-mavx2', '-mfma'),
        required_flags=('avx2', 'fma'),
    ),
    Isa(
        name='neon',
        arch='aarch64',
        vector_bytes=16,
        registers=32,
        fma_per_cycle=2,
        fma_latency_cycles=4,
        fma_chain_cycles=2,
        loads_per_cycle=2,
        compiler_flags=(),
        required_flags=('asimd',),
    ),
    Isa(
        name='portable',
        arch='any',
        vector_bytes=16,
        registers=16,
        fma_per_cycle=1,
        fma_latency_cycles=8,
        fma_chain_cycles=8,
        loads_per_cycle=2,
        compiler_flags=(),
        required_flags=(),
    ),
)
ISAS: dict[str, Isa] = {row.name: row for row in _ROWS}

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
    """Names of the instruction sets that this host can run, best first, 'portable' last."""
    arch, flags = arch or host_arch(), cpu_flags(root)
    return tuple(
        row.name
        for row in _ROWS
        if row.arch in (arch, 'any') and flags.issuperset(row.required_flags)
    )


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
