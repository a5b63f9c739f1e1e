"""What no GPU kernel can beat, against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

import tilewright as tw
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.bounds import compute_gflops, gpu_bounds, schedule_bounds
from tilewright.model.gpu.time import predict_gpu
from tilewright.schedule.gpu import GpuSchedule

H200, V100 = known_gpu('h200'), known_gpu('v100')
# 128 rows (8 x 16 pixels), 128 columns, a depth of 9 x 32
GROUP = tw.conv2d(c=32, h=8, w=16, k=128, r=3, s=3, pad=1)


def test_bounds_by_hand() -> None:
    flops = 2 * 128 * 128 * 9 * 32
    moved = 4 * (32 * 8 * 16 + 128 * 32 * 9 + 128 * 128)
    bound = gpu_bounds(GROUP, H200)
    assert bound.compute_s == pytest.approx(flops / (2 * 132 * 128 * 1.98e9))
    assert bound.l2_s == pytest.approx(moved / 5700e9)
    assert bound.dram_s == 0
    assert bound.resident
    assert bound.by == 'compute'
    assert bound.seconds == bound.compute_s


def test_bounds_of_what_does_not_stay_in_l2() -> None:
    group = tw.conv2d(n=64, c=16, h=128, w=128, k=16, r=1, s=1)
    bound = gpu_bounds(group, H200)
    moved = 4 * (2 * 64 * 16 * 128 * 128 + 16 * 16)
    assert not bound.resident
    assert bound.dram_s == pytest.approx((moved - 60 * 2**20) / 4300e9)
    assert bound.l2_s == pytest.approx(moved / 5700e9)
    assert bound.by == 'L2'
    assert bound.seconds == bound.l2_s
    slow = gpu_bounds(group, replace(H200, global_gbps=1000.0))
    assert slow.by == slow.to_json()['by'] == 'DRAM'
    assert slow.seconds == slow.dram_s


def test_bounds_grow_without_a_step_where_l2_is_full() -> None:
    """One row more than fits costs one row of memory, not all of it."""
    sizes = [tw.conv2d(n=n, c=16, h=64, w=64, k=16, r=1, s=1) for n in range(110, 130)]
    found = [gpu_bounds(group, H200) for group in sizes]
    assert {bound.resident for bound in found} == {True, False}
    steps = [b.seconds - a.seconds for a, b in pairwise(found)]
    assert max(steps) == pytest.approx(min(steps), rel=1e-6)


def test_the_bound_of_winograd() -> None:
    """2048 tiles of 36 points: fewer products than direct kernels have, and V and M between."""
    group = tw.conv2d(n=128, c=256, h=14, w=14, k=256, r=3, s=3, pad=1)
    tiles = {'bk': 128, 'bp': 128, 'tk': 128, 'tp': 64, 'kb': 32, 'stages': 2, 'split': 1}
    schedule = GpuSchedule.of('winograd', 'wgmma_tf32x3', m=4, joint=0, **tiles)
    direct = gpu_bounds(group, H200, 'wgmma_tf32x3')
    bound = schedule_bounds(group, schedule, H200)
    assert bound.compute_s == pytest.approx(direct.compute_s * 36 * 2048 / (9 * 128 * 14 * 14))
    between = 4 * 36 * 256 * 2048
    assert bound.l2_s == pytest.approx(direct.l2_s + 4 * between / 5700e9)
    assert bound.dram_s == pytest.approx(direct.dram_s + 4 * (between - 60 * 2**20) / 4300e9)
    assert not bound.resident
    assert bound.seconds < predict_gpu(group, schedule, H200).seconds
    patch = GpuSchedule.of('patch', 'wgmma_tf32x3')
    assert schedule_bounds(group, patch, H200) == direct


def test_matrix_units_have_a_peak_of_their_own() -> None:
    assert compute_gflops(H200, 'fma') == H200.peak_gflops
    assert compute_gflops(H200, 'mma_tf32x3') == pytest.approx(2 * 132 * 1024 * 1.98 / 3)
    assert compute_gflops(V100, 'mma_tf32x3') == 0
    assert gpu_bounds(GROUP, V100, 'mma_tf32x3') == gpu_bounds(GROUP, V100)
