"""What no kernel can beat on a GPU: its arithmetic, and the bytes that have to move once.

Goes in: a group, a machine, the intrinsic. Comes out: seconds by each limit, and the binding one.
A call that is replayed finds in L2 what the call before left there, at best as much as L2 holds. So
all bytes are charged at the bandwidth of L2, and those beyond its size also at that of memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.transactions import detour
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

# tf32 products that a multiprocessor's matrix units start in a cycle (dense), by capability: the
# vendor's peak over multiprocessors and clock.
_TF32_LANES = {
    (8, 0): 512, (8, 6): 128, (8, 9): 128, (9, 0): 1024, (10, 0): 2048, (12, 0): 128
}  # fmt: skip
# Times of a TF32 product that one of fp32 takes; those of f16 and bf16 take half of one, those of
# 8-bit numbers a quarter.
_PRODUCTS = {
    'mma_tf32x3': 3, 'wgmma_tf32x3': 3, 'wgmma_tf32_bf16': 2, 'mma_half': 0.5, 'wgmma_half': 0.5,
    'mma_int8': 0.25, 'wgmma_int8': 0.25,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GpuBounds:
    """Seconds by limit; `dram_s` is of what L2 cannot hold, `resident` where that is nothing."""

    compute_s: float
    l2_s: float
    dram_s: float
    resident: bool

    @property
    def by(self) -> str:
        limits = {'compute': self.compute_s, 'L2': self.l2_s, 'DRAM': self.dram_s}
        return max(limits, key=lambda name: limits[name])

    @property
    def seconds(self) -> float:
        return max(self.compute_s, self.l2_s, self.dram_s)

    @property
    def microseconds(self) -> float:
        return 1e6 * self.seconds

    def to_json(self) -> dict:
        return asdict(self) | {'by': self.by, 'seconds': self.seconds}


def compute_gflops(machine: GpuMachine, intrinsic: str) -> float:
    """Peak of fp32 results by an intrinsic: multiply-add units, or matrix units."""
    if intrinsic not in _PRODUCTS:
        return machine.peak_gflops
    lanes = _TF32_LANES.get(machine.capability, 0)
    return 2 * machine.multiprocessors * lanes * machine.clock_ghz / _PRODUCTS[intrinsic]


def gpu_bounds(group: Group, machine: GpuMachine, intrinsic: str = 'fma') -> GpuBounds:
    """[Group, GpuMachine] -> [GpuBounds] of direct kernels; 'fma' where there is no intrinsic."""
    return _bounds(group.flops, group.compulsory_bytes, machine, intrinsic)


def schedule_bounds(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> GpuBounds:
    """What no kernel can beat by the algorithm of a schedule: it may have fewer products, and what
    it leaves between its kernels is written and read, as far as L2 cannot hold it in memory.
    """
    done = detour(group, schedule)
    between = [own for own, _ in done.between]
    intrinsic = done.intrinsic or schedule.intrinsic
    return _bounds(done.flops, group.compulsory_bytes, machine, intrinsic, between)


def _bounds(
    flops: int, moved: int, machine: GpuMachine, intrinsic: str, between: Sequence[int] = ()
) -> GpuBounds:
    peak = compute_gflops(machine, intrinsic) or machine.peak_gflops
    beyond = sum(2 * max(size - machine.l2_bytes, 0) for size in between)
    return GpuBounds(
        flops / peak / 1e9,
        (moved + 2 * sum(between)) / machine.l2_gbps / 1e9,
        (max(moved - machine.l2_bytes, 0) + beyond) / machine.global_gbps / 1e9,
        moved <= machine.l2_bytes and not beyond,
    )
