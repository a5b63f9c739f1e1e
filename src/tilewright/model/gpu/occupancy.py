"""How many blocks a multiprocessor holds, and in how many waves a grid runs (CNNOpt Sec. 4.1).

Goes in: what one block takes, and a machine. Comes out: resident blocks and the limit that binds;
waves, and how full the last one is.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.machine.gpu import GpuMachine

# Granularity of allocation: registers of a warp; warps, since each quarter of a multiprocessor has
# its own registers; shared memory of a block; and what the driver keeps of a block's shared memory
# from compute capability 8 on. On 115 kernels, resident warps are those that ncu calls theoretical.
WARP_REGISTERS = 256
QUARTERS = 4
SHARED_BYTES = 128
RESERVED_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks of a multiprocessor, the limit that binds, warps over those that fit."""

    blocks: int
    by: str
    warps: int
    share: float


@dataclass(frozen=True, slots=True)
class Waves:
    """A grid as waves of resident blocks.

    whole   waves, the last one counted in full
    tail    how full the last wave is, 0 to 1
    busiest blocks that the busiest multiprocessor computes
    """

    whole: int
    tail: float
    busiest: int


def occupancy(machine: GpuMachine, threads: int, registers: int, shared_bytes: int) -> Occupancy:
    """[threads, registers of each, shared bytes of a block] -> [Occupancy]"""
    warps = -(-threads // machine.warp)
    per_warp = -(-registers * machine.warp // WARP_REGISTERS) * WARP_REGISTERS
    reserved = RESERVED_BYTES if machine.capability >= (8, 0) else 0
    shared = -(-shared_bytes // SHARED_BYTES) * SHARED_BYTES + reserved if shared_bytes else 0
    limits = {
        'threads': machine.threads // (warps * machine.warp),
        'registers': machine.registers // QUARTERS // max(per_warp, 1) * QUARTERS // warps,
        'blocks': machine.blocks,
        'shared memory': machine.shared_bytes // shared if shared else machine.blocks,
    }
    by = min(limits, key=lambda name: limits[name])
    if limits[by] < 1:
        raise ScheduleError(
            f'a block of {threads} threads with {registers} registers each and {shared_bytes} '
            f'bytes of shared memory does not fit {machine.name}: too many {by}; choose smaller '
            f'tiles'
        )
    held = limits[by]
    return Occupancy(held, by, held * warps, held * warps * machine.warp / machine.threads)


def waves(machine: GpuMachine, blocks: int, resident: int) -> Waves:
    """[blocks of the grid, resident blocks of a multiprocessor] -> [Waves]"""
    at_once = machine.multiprocessors * resident
    whole = -(-blocks // at_once)
    last = blocks - (whole - 1) * at_once
    return Waves(whole, last / at_once, -(-blocks // machine.multiprocessors))
