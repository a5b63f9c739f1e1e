"""Counts, occupancy, waves, predictions, PUL and the bound of GPU schedules, worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.kernels.gpu.schemas.cnnopt.plan import DECISIONS, plan
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.occupancy import occupancy, waves
from tilewright.model.gpu.pul import balance, bound, pul
from tilewright.model.gpu.time import (
    COSTS,
    join_cycles,
    latency_cycles,
    parts_of,
    predict_gpu,
    throughput_cycles,
    time_of,
)
from tilewright.model.gpu.transactions import work
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.figures.cnnopt_volumes import cnnopt_volumes

H200, TURING = known_gpu('h200'), known_gpu('rtx2080ti')


def cnnopt(schema: str, *numbers: int) -> GpuSchedule:
    return GpuSchedule(schema, tuple(zip(DECISIONS, numbers, strict=True)))


def tiled(intrinsic: str = 'fma', **changes: int) -> GpuSchedule:
    tiles = {'bk': 32, 'bp': 64, 'tk': 4, 'tp': 8, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
    return GpuSchedule('tiled', tuple((tiles | changes).items()), intrinsic)


# 64 outputs of 16 x 16, 32 input channels, 3x3, padded before.
GROUP = tw.conv2d(c=32, h=18, w=18, k=64, r=3, s=3)


def test_occupancy_by_each_limit() -> None:
    assert occupancy(H200, 256, 32, 0).blocks == 8
    assert occupancy(H200, 256, 32, 0).by == 'threads'
    # 100 registers: 3328 of a warp (13 x 256), 26624 of a block of 8 warps.
    held = occupancy(H200, 256, 100, 0)
    assert (held.blocks, held.by, held.warps, held.share) == (2, 'registers', 16, 0.25)
    # 50 KB and the driver's one: 233472 // 52224 = 4.
    assert occupancy(H200, 64, 32, 50 * 1024).blocks == 4
    assert occupancy(TURING, 64, 32, 20 * 1024).blocks == 3
    assert occupancy(H200, 32, 16, 0).by == 'blocks'
    # 48 registers are 1536 of a warp: 10 warps in each quarter of 16384, 40 in all, 13 blocks of 3.
    assert occupancy(H200, 96, 48, 0).blocks == 13
    with pytest.raises(ScheduleError, match='too many registers'):
        occupancy(H200, 1024, 128, 0)


def test_waves_and_tail() -> None:
    grid = waves(H200, 300, 2)
    assert (grid.whole, grid.busiest) == (2, 3)
    assert grid.tail == pytest.approx(36 / 264)
    assert waves(H200, 264, 2).tail == 1.0


def test_counts_of_the_rs_kernel() -> None:
    """Tiles 2 x 2 x 4, all lanes along k, 2 x 2 warps: a block has 64 x 4 x 8 outputs."""
    done = work(GROUP, cnnopt('rs', 2, 2, 4, 32, 1, 1, 1, 2, 2, 1, 1, 2, 0))
    channels = 16  # half of 32
    assert (done.blocks, done.threads, done.pieces) == (4 * 2 * 2, 128, channels)
    assert done.products == 4 * channels * 9 * 16
    inputs, weights = 4 * 6, 9 * 2
    assert done.reads == done.wavefronts == 4 * channels * (inputs + weights)
    assert done.copied == 4 * channels * (6 * 10 + 9 * 64)
    assert done.extra_kernels == 1
    assert done.extra_bytes == 4 * 64 * 256


def test_counts_of_the_s_kernel() -> None:
    """Weights again for each row of outputs, inputs for each row of taps."""
    done = work(GROUP, cnnopt('s', 2, 2, 4, 32, 1, 1, 1, 2, 2, 1, 1, 1, 0))
    inputs, weights = 2 * 3 * 6, 9 * 2 * 2
    assert done.reads == 4 * 32 * (inputs + weights)
    assert done.products == 4 * 32 * 9 * 16


def test_lanes_that_meet_in_a_bank() -> None:
    """Eight lanes along x: tiles of 1 are side by side, tiles of 32 lie in one bank."""
    spread = work(GROUP, cnnopt('rs', 1, 1, 1, 4, 1, 8, 1, 1, 1, 1, 1, 1, 0))
    assert spread.wavefronts == spread.reads
    wide = tw.conv2d(c=4, h=34, w=34 * 8, k=64, r=3, s=3)
    met = work(wide, cnnopt('rs', 1, 1, 32, 4, 1, 8, 1, 1, 1, 1, 1, 1, 0))
    inputs, weights = 3 * 34, 9
    assert met.wavefronts == 4 * (8 * inputs + weights)


def test_volumes_of_the_paper() -> None:
    """Sec. 4.3 with the factor C numTB: planes of 6 x 10 are 2 transactions, weights 18."""
    p = plan(GROUP, cnnopt('rs', 2, 2, 4, 32, 1, 1, 1, 2, 2, 1, 1, 4, 0))
    volumes = cnnopt_volumes(p)
    blocks = 4 * 2
    assert volumes.global_to_shared == (2 + 18) * blocks * 32
    assert volumes.shared_to_register == (4 * 6 + 9 * 2) * 4 * blocks * 32


def test_counts_of_the_tiled_schema() -> None:
    done = work(GROUP, tiled())
    depth = 9 * 32
    assert (done.blocks, done.threads, done.pieces) == (2 * 4, 64, depth // 8)
    assert done.products == 2 * depth * 32
    assert done.reads == 2 * depth * 3
    # 8 lanes along rows: 128 bytes in one cycle; 4 along columns: one cycle as well.
    assert done.wavefronts == done.reads
    assert done.copied == 4 * depth * (64 + 32)
    assert done.copies == depth * (64 / 32 + 32 / 128)


def test_counts_of_matrix_instructions() -> None:
    done = work(GROUP, tiled('mma_tf32x3', bk=32, bp=64, tk=16, tp=32))
    steps = 4 * 9 * 32 / 8
    assert done.matrix == steps * 3 * 4 * 1
    assert done.reads == steps * (4 * 2 + 1 * 4)
    assert done.products == 0


PATCH = {'bk': 64, 'bn': 1, 'bh': 4, 'bw': 16, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}


def test_counts_of_the_patch_schema() -> None:
    """The patch under 4 x 16 pixels is 6 x 18 for all nine window points; 4 pieces of 9 steps."""
    done = work(GROUP, GpuSchedule.of('patch', 'mma_tf32x3', **PATCH, tk=32, tp=32))
    assert (done.blocks, done.threads, done.pieces) == (4, 128, 4)
    assert done.copied == 4 * 4 * (8 * 6 * 18 + 9 * 8 * 64)
    steps = 4 * 4 * 9  # four warps
    assert done.matrix == steps * 3 * 4 * 2
    assert done.reads == steps * (4 * 2 + 2 * 4)
    assert done.wide == done.turns == 0


def test_counts_of_warpgroups() -> None:
    """One warpgroup of 64 pixels by 64 columns: m64n64k8 is 32 of a warp's m16n8k8."""
    done = work(GROUP, GpuSchedule.of('patch', 'wgmma_tf32x3', **PATCH, tk=64, tp=64))
    assert (done.blocks, done.threads) == (4, 128)
    assert done.wide == 4 * 9 * 3 * 32
    assert done.turns == 4 * 9
    assert done.copied == 4 * 4 * (8 * 6 * 18 + 2 * 9 * 8 * 64)
    # A lane reads four operands; the units read 64 x 8 numbers in 128 bytes a cycle, three times.
    assert done.wavefronts == 4 * 4 * 9 * 4 + 4 * 9 * 3 * 16


def test_counts_of_the_other_schemas() -> None:
    general = work(GROUP, GpuSchedule.of('general', threads=128))
    assert general.blocks == 64 * 256 // 128
    assert general.blocks * general.products * 32 == GROUP.flops / 2
    image = tw.conv2d(c=8, h=16, w=16, k=8, r=3, s=3, pad=1, groups=8)
    tiles = {'th': 2, 'tw': 4, 'bh': 8, 'bw': 4, 'bp': 4, 'shared': 0}
    done = work(image, GpuSchedule.of('depthwise', **tiles))
    assert (done.blocks, done.threads) == (2, 128)
    assert done.blocks * done.products * 32 == 8 * 256 * 9
    assert done.copied == 4 * 4 * 18 * 18
    assert done.stored == 4 * 4 * 256


def test_counts_of_winograd() -> None:
    """16 x 16 images in 4 x 4 tiles: 36 products of 64 x 32 by 8192 tiles, and what is between."""
    group = tw.conv2d(n=512, c=32, h=16, w=16, k=64, r=3, s=3, pad=1, bias=True)
    decided = dict(tiled().tiles)
    done = work(group, GpuSchedule.of('winograd', m=4, **decided))
    assert done.blocks == 36 * (64 // 32) * (8192 // 64)
    assert done.blocks * done.products * 32 == 36 * 64 * 32 * 8192
    image, result = 4 * 512 * 32 * 256, 4 * 512 * 64 * 256
    v, m = 4 * 36 * 32 * 8192, 4 * 36 * 64 * 8192
    assert done.extra_kernels == 2
    assert done.extra_bytes == image + v + m + result + 4 * 64
    assert done.registers == work(group, GpuSchedule.of('winograd', m=2, **decided)).registers
    # M is more than L2 holds beside the result: it is written and read. V and the image fit.
    assert v + image < H200.l2_bytes < m + result
    said = predict_gpu(group, GpuSchedule.of('winograd', m=4, **decided), H200)
    assert said.dram_s == pytest.approx((group.compulsory_bytes + 2 * m) / H200.global_gbps / 1e9)
    assert said.launch_s == 3 * COSTS.launch_s


def test_fours_of_a_patch_are_one_copy() -> None:
    group = tw.conv2d(n=64, c=32, h=16, w=16, k=64, r=3, s=3, pad=1)
    tiles = {'bk': 64, 'tk': 64, 'tp': 64, 'kb': 8, 'stages': 2, 'split': 1, 'joint': 0}
    done = work(group, GpuSchedule.of('winograd', 'wgmma_tf32x3', m=4, bp=64, **tiles))
    # 64 tiles and two parts of 64 columns of each of 8 channels, four at a time.
    assert done.copies == 4 * (8 * 64 + 2 * 8 * 64) / 4 / 32
    odd = work(group, GpuSchedule.of('winograd', 'wgmma_tf32x3', m=4, bp=63, **tiles))
    assert odd.copies == 4 * (8 * 63 + 2 * 8 * 64 / 4) / 32


def test_many_schedules_at_once_are_as_one_by_one() -> None:
    some = [work(GROUP, tiled(split=s, stages=t)) for s in (1, 4) for t in (1, 3)]
    names = ('products', 'wide', 'matrix', 'wavefronts', 'instructions', 'warps', 'pieces',
             'turns', 'stages', 'split', 'extra_kernels', 'joined', 'global_bytes')  # fmt: skip
    arrays = SimpleNamespace(**{n: np.array([getattr(w, n) for w in some]) for n in names})
    held = [occupancy(H200, w.threads, w.registers, w.shared_bytes).blocks for w in some]
    busiest = [waves(H200, w.blocks, h).busiest for w, h in zip(some, held, strict=True)]
    together = parts_of(
        arrays, np.array(held), np.array(busiest), H200, GROUP.compulsory_bytes, COSTS
    )
    alone = [time_of(w, H200, GROUP.compulsory_bytes).seconds for w in some]
    np.testing.assert_allclose(together[0], alone, rtol=1e-12)


def test_work_is_conserved() -> None:
    """Where tiles divide, products of all blocks are those of the group, however it is cut."""
    macs = GROUP.flops / 2
    for schedule in (
        tiled(split=4),
        tiled(bk=64, tk=8, kb=16),
        cnnopt('rs', 2, 2, 4, 32, 1, 1, 1, 2, 2, 1, 1, 4, 0),
        cnnopt('s', 4, 1, 4, 8, 1, 4, 2, 4, 1, 2, 2, 2, 2),
    ):
        done = work(GROUP, schedule)
        assert done.blocks * done.products * 32 == macs


def test_latency_and_throughput_by_hand() -> None:
    done = work(GROUP, tiled())
    chain = (done.products + done.reads + done.copies) / 2 / 36
    c = COSTS
    piece = max(chain * c.chain_cycles + c.step_cycles, c.copy_latency)
    assert latency_cycles(done) == pytest.approx(36 * piece + c.copy_latency)
    parts, power = (done.products / 4, done.wavefronts, done.instructions / 4), c.overlap
    assert throughput_cycles(done) == pytest.approx(sum(x**power for x in parts) ** (1 / power))
    assert join_cycles(done) == 0
    split = work(GROUP, tiled(split=4))
    assert join_cycles(split) == pytest.approx(c.join_cycles + 4 * 4 * 32 * 64 / c.join_bytes)
    slow = replace(done, stages=1)
    assert latency_cycles(slow) > latency_cycles(done)


def test_a_prediction_says_what_binds() -> None:
    small = predict_gpu(tw.conv2d(c=4, h=10, w=10, k=32, r=3, s=3), tiled(kb=4), H200)
    assert small.by in ('launch', 'latency')
    large = predict_gpu(tw.conv2d(c=256, h=66, w=66, k=512, r=3, s=3), tiled(bk=64, tk=8), H200)
    assert large.by == 'throughput'
    assert large.seconds > large.throughput_s
    assert large.to_json()['by'] == 'throughput'
    assert large.occupancy.blocks >= 1
    assert (large.waves.whole, large.waves.busiest) == (1, 4)


def test_more_registers_never_make_it_faster() -> None:
    times = [predict_gpu(GROUP, tiled(split=8), H200, registers=r).seconds for r in (32, 96, 200)]
    assert times == sorted(times)


def test_wbratio_is_the_right_way_round() -> None:
    """79 blocks on 80 multiprocessors: 0.99, where the print gives 0.01."""
    assert balance(79, 80, 1) == pytest.approx(79 / 80)
    assert balance(81, 80, 1) == pytest.approx(81 / 160)
    assert balance(160, 80, 2) == 1.0
    assert balance(240, 80, 2) == pytest.approx(240 / 320)


def test_pul_by_hand() -> None:
    schedule = tiled()
    done = work(GROUP, schedule)
    ratios = pul(GROUP, schedule, H200)
    flops = 64 * done.products
    assert ratios.global_memory == pytest.approx(
        min(1, flops / done.copied / (H200.peak_gflops / H200.global_gbps))
    )
    assert ratios.shared_memory == pytest.approx(min(1, flops / 32 / done.reads / 20))
    assert ratios.balance == pytest.approx(8 / 132)
    assert ratios.value == pytest.approx(
        ratios.global_memory * ratios.shared_memory * ratios.balance
    )


def test_pul_admits_exactly_the_limit_and_looks_at_registers() -> None:
    full = tiled(bk=128, bp=128, tk=4, tp=4, kb=8)
    assert work(GROUP, full).threads == 1024
    assert pul(GROUP, full, H200).fits
    few = replace(H200, registers=16384)
    assert pul(GROUP, full, few).value == 0.0


def test_the_bound_by_hand() -> None:
    """One block of 64 threads a multiprocessor: its products and reads, four in a cycle."""
    schedule = tiled()
    done = work(GROUP, schedule)
    limit = bound(GROUP, schedule, H200)
    assert limit.by == 'instructions'
    assert limit.seconds == pytest.approx((done.products + done.reads) / 4 / 1.98e9)
    assert limit.share_of_peak == pytest.approx(
        GROUP.flops / limit.seconds / 1e9 / H200.peak_gflops
    )


def test_no_prediction_beats_the_bound() -> None:
    for split in (1, 2, 4, 8):
        for stages in (1, 2, 3):
            schedule = tiled(split=split, stages=stages)
            assert predict_gpu(GROUP, schedule, H200).seconds > bound(GROUP, schedule, H200).seconds


def test_schemas_without_counts_say_so() -> None:
    with pytest.raises(ScheduleError, match="'transposed' has no counts"):
        work(GROUP, GpuSchedule.of('transposed'))
    assert math.isfinite(predict_gpu(GROUP, tiled(), TURING).seconds)
