"""What a GPU schedule takes and does, in numbers that no machine is needed for.

`Need` is what a block takes: what samples of the design space are held to. `Work` is what a block
does, in warp instructions and bytes, for the time model (model/gpu/time.py), which prices it. Both
are counted by the schema, in its folder.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilewright.machine.gpu import GpuMachine
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

WARP = 32
TRANSACTION = 32  # elements of one memory transaction: 128 bytes
BANKS_BYTES = 128  # what shared memory delivers in a cycle
ADDED = 4 / 3  # instructions for each product of parts where sums are added in fp32
CUT_INSTRUCTIONS = 7  # to cut one operand of a matrix instruction in two, addresses included


@dataclass(frozen=True, slots=True)
class Need:
    """What a schedule's main kernel takes: of a block, and how many blocks and tiles there are.

    Registers are an estimate: operands and sums by the plan, the rest by medians over some thousand
    kernels compiled for sm_90. The compiler's own count decides later (`GpuMachine.fits`).

    computed   products that are computed over those that the group has: the cost of partial tiles
    code       instructions of one piece, as far as it is written out
    """

    threads: int
    shared_bytes: int
    registers: int  # of a thread
    blocks: int
    split: int
    computed: float
    code: int = 0

    def broken(self, machine: GpuMachine) -> str | None:
        """The first limit of a machine that is exceeded; registers are handed out in eights."""
        registers = -(-self.registers // 8) * 8
        for name, need, limit in (
            ('threads', self.threads, machine.threads_per_block),
            ('shared memory', self.shared_bytes, machine.shared_bytes_per_block),
            ('registers a thread', self.registers, machine.registers_per_thread),
            ('registers a block', registers * self.threads, machine.registers),
        ):
            if need > limit:
                return name
        return None


@dataclass(frozen=True, slots=True)
class Work:
    """One block of the main kernel, all its warps together, over all its pieces.

    pieces         steps of the loop, each with a barrier
    products       warp multiply-adds         matrix    matrix instructions of a warp
    wide           products of warpgroups, in matrix instructions of a warp that do as much
    turns          times that a warp waits for products of its warpgroup
    reads          warp loads from shared memory        wavefronts   cycles that they take there
    copies         warp copies from global to shared memory          copied   bytes of them
    other          further warp instructions
    stored         bytes of results           joined    bytes of partial sums that one part leaves
    extra_kernels  launches of a call beside the main one   extra_bytes   bytes that they move
    bulk           whether one thread asks for the columns of a piece
    staged         whether sums pass through shared memory before they are stored
    cluster        whether all blocks of a tile add its parts up, out of each other's shared memory
    waits          times that a warp waits for memory, beside the first; None: once for each piece,
                   or for each that is not copied ahead
    least_reads, least_wavefronts   of reads, where a compiler may merge up to four of a thread: as
                   many as that needs at least; 0 where nothing is left to merge
    """

    blocks: int
    split: int
    threads: int
    registers: int
    shared_bytes: int
    stages: int
    pieces: int
    products: float
    matrix: float
    reads: float
    wavefronts: float
    copies: float
    copied: float
    other: float
    stored: float
    joined: float
    extra_kernels: int = 0
    extra_bytes: float = 0.0
    wide: float = 0.0
    turns: float = 0.0
    bulk: bool = False
    least_reads: float = 0.0
    least_wavefronts: float = 0.0
    waits: float | None = None
    staged: bool = False
    cluster: bool = False

    @property
    def warps(self) -> int:
        return -(-self.threads // WARP)

    @property
    def instructions(self) -> float:
        return self.products + self.matrix + self.reads + self.copies + self.other

    @property
    def global_bytes(self) -> float:
        """Bytes between L2 and the multiprocessors, all blocks together."""
        joined = 2 * self.joined if self.split > 1 and not self.cluster else 0.0
        return self.blocks * (self.copied + self.stored / self.split + joined) + self.extra_bytes


# Registers of a thread as the compiler counted them, or None for an estimate.
CountsWork = Callable[[Group, GpuSchedule, int | None], Work]


def matrix_code(tk: int, tp: int) -> int:
    """Instructions of a warp for one step of eight depths: reads, cuts, three products of each."""
    across, down = tp // 8, tk // 16
    return 3 * across * down + 8 * (2 * across + 4 * down)
