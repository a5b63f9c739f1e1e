"""CNNOpt's own model (PACT'22, Sec. 4.3): memory transactions of its kernels.

Goes in: the plan of one schedule (`cnnopt_volumes`), or a batch of schedules (`volumes`). Comes
out: transactions of a whole call. As printed, the upper level lacks the factor C x numTB.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.kernels.gpu.columns import Array, Batch, ceil_div
from tilewright.kernels.gpu.schemas.cnnopt.columns import count_many, slice_of
from tilewright.kernels.gpu.schemas.cnnopt.counts import thread_reads
from tilewright.kernels.gpu.schemas.cnnopt.plan import CnnoptPlan, plan
from tilewright.kernels.gpu.work import TRANSACTION, WARP


@dataclass(frozen=True, slots=True)
class Volumes:
    """Memory transactions of a whole call in CNNOpt's model, 32 elements each."""

    global_to_shared: int
    shared_to_register: int


def cnnopt_volumes(p: CnnoptPlan) -> Volumes:
    """Sec. 4.3: results are ignored; numTB and numWarp are blocks and warps of a block.

    Global to shared, printed without C numTB: ceil(W^y' W^x' / 32) + ceil(W^k F_x F_y / 32) for
    each channel of each block, primes with halo. Shared to register: a warp's read of one element
    for each thread is one transaction.
    """
    rows, columns = p.plane
    blocks = p.grid[0] * p.grid[1]  # those of a split share the channels
    staged = -(-rows * columns // TRANSACTION) - (-p.block[0] * p.taps // TRANSACTION)
    warps = p.threads // WARP
    return Volumes(staged * blocks * p.channels, sum(thread_reads(p)) * warps * blocks * p.channels)


def volumes(batch: Batch) -> tuple[Array, Array]:
    """Memory transactions (global to shared, shared to register) of whole calls by CNNOpt's model,
    as `cnnopt_volumes` has them for one schedule.
    """
    sample, done = plan(batch.group, batch.schedule(0)), count_many(batch)
    (rk, ry, rx), bk = (done.tiles[f'thread_{dim}'] for dim in 'kyx'), done.tiles['block_k']
    if sample.rows:
        reads = ry * (sample.y.taps * slice_of(sample.x, rx) + sample.taps * rk)
    else:
        reads = slice_of(sample.y, ry) * slice_of(sample.x, rx) + sample.taps * rk
    staged = ceil_div(done.staged_rows * done.staged_columns, WARP)
    staged = staged + ceil_div(bk * sample.taps, WARP)
    channels = done.blocks // done.split * sample.channels  # those of a split share the channels
    return staged * channels, reads * done.warps * channels
