"""DeepCuts' performance upper limit (PLDI'21), corrected, and a bound that really is one.

Goes in: a group, a schedule and a machine. Comes out: shares of peak, 0 to 1.

As printed, PUL = GMRatio SMRatio WBRatio COEF_r multiplies limits that overlap, so it is a score
and no upper limit. Corrected here: WBRatio, which is printed upside down (79 blocks on 80
multiprocessors give 0.01), is N_TB / (N_SM ceil(N_TB / N_SM)) with resident blocks; COEF_r admits a
block of exactly the limit, and looks at registers too; halos come from the plan, so from the access
maps, where Tables 7-8 hold for stride 1 and padding 1 alone. SMRatio ignores that other warps hide
the latency of shared memory, as printed.

`bound` is the minimum of limits, each of which holds for every kernel with these tiles: products
that are computed though no result needs them, multiprocessors that are idle, bandwidth of shared
memory, instructions that have to be started, compulsory bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.work import Work
from tilewright.machine.gpu import GpuMachine
from tilewright.model.gpu.occupancy import occupancy
from tilewright.model.gpu.time import SCHEDULERS
from tilewright.model.gpu.transactions import work
from tilewright.ops.group import Group
from tilewright.schedule.gpu import GpuSchedule

SHARED_LATENCY = 20.0  # LAT_shared in cycles, the value of DeepCuts' example


@dataclass(frozen=True, slots=True)
class Pul:
    """The four ratios and their product, as a share of the machine's fp32 peak."""

    global_memory: float
    shared_memory: float
    balance: float
    fits: bool

    @property
    def value(self) -> float:
        return self.global_memory * self.shared_memory * self.balance * self.fits


def pul(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> Pul:
    """[Group, GpuSchedule, GpuMachine] -> [Pul]"""
    return pul_of(work(group, schedule), machine)


def pul_of(done: Work, machine: GpuMachine) -> Pul:
    """[Work, GpuMachine] -> [Pul]"""
    try:
        resident = occupancy(machine, done.threads, done.registers, done.shared_bytes).blocks
    except ScheduleError:
        return Pul(0.0, 0.0, 0.0, False)
    flops = _flops(done)
    intensity = flops / done.copied  # OI_TB = COMP_block / bytes
    peak_intensity = machine.peak_gflops / machine.global_gbps
    per_read = flops / machine.warp / done.reads  # COMP_thread / N_load
    fits = done.threads <= machine.threads_per_block and (
        done.shared_bytes <= machine.shared_bytes_per_block
    )
    return Pul(
        min(1.0, intensity / peak_intensity),
        min(1.0, per_read / SHARED_LATENCY),
        balance(done.blocks, machine.multiprocessors, resident),
        fits,
    )


def _flops(done: Work) -> float:
    """Operations of one block: 64 of a warp's multiply-add; three m16n8k8 are one of 2048."""
    return 64 * done.products + 2048 * _matrix(done) / 3


def _matrix(done: Work) -> float:
    """Products of m16n8k8: those of warps, or what those of warpgroups amount to."""
    return done.wide or done.matrix


def balance(blocks: int, multiprocessors: int, resident: int) -> float:
    """WBRatio: blocks over the places for them in all waves."""
    waves = math.ceil(blocks / (multiprocessors * resident))
    places = multiprocessors * resident if waves > 1 else multiprocessors
    rounds = math.ceil(blocks / places)
    return blocks / (places * rounds)


@dataclass(frozen=True, slots=True)
class Bound:
    """Seconds that no kernel with these tiles can beat, and which limit says so."""

    seconds: float
    by: str
    share_of_peak: float


def bound(group: Group, schedule: GpuSchedule, machine: GpuMachine) -> Bound:
    """[Group, GpuSchedule, GpuMachine] -> [Bound]

    The busiest multiprocessor has ceil(blocks / multiprocessors) blocks; each block needs all its
    products, reads and instructions. What blocks copy twice may be found in L1, so that of memory
    only compulsory bytes are a limit.
    """
    return bound_of(group, work(group, schedule), machine)


def bound_of(group: Group, done: Work, machine: GpuMachine) -> Bound:
    """[Group, Work, GpuMachine] -> [Bound]"""
    busiest = math.ceil(done.blocks / machine.multiprocessors)
    cycle = 1 / (machine.clock_ghz * 1e9)
    lanes = machine.fp32_lanes / machine.warp
    reads = done.least_reads or done.reads
    # A matrix unit starts 1024 products in a cycle (capability 9): one m16n8k8 of a warp.
    limits = {
        'products': busiest * (done.products / lanes + _matrix(done)) * cycle,
        'shared memory': busiest * (done.least_wavefronts or done.wavefronts) * cycle,
        'instructions': busiest * (done.products + done.matrix + reads) / SCHEDULERS * cycle,
        'compulsory': group.compulsory_bytes / max(machine.l2_gbps, machine.global_gbps) / 1e9,
    }
    by = max(limits, key=lambda name: limits[name])
    seconds = limits[by]
    return Bound(seconds, by, group.flops / seconds / machine.peak_gflops / 1e9)
