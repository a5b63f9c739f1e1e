"""The time model of kernels of f16: parts that add up, clusters that find no place, where searches
begin.

If these fail, networks of f16 on GPUs are computed by worse tiles than were measured to be best.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

import tilewright as tw
from tilewright.graph.half import half_group
from tilewright.kernels.gpu.schemas.channels import CHANNELS
from tilewright.kernels.gpu.schemas.channels.plan import plan
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.staged import STAGED, layers, staged_time
from tilewright.model.gpu.time import predict_gpu
from tilewright.model.gpu.transactions import work
from tilewright.schedule.gpu import GpuSchedule
from tilewright.targets.gpu.choose import PIPELINE, varied

H200 = known_gpu('h200')
GROUP = half_group(tw.conv2d(c=256, h=14, w=14, k=256, r=3, s=3, pad=1, bias=True), 'f16')
TILES = {
    'bk': 64, 'tk': 64, 'bp': 64, 'tp': 64, 'stages': 6, 'queue': 2, 'bulk': 1, 'kb': 64,
    'split': 1, 'near': 1, 'cluster': 0,
}  # fmt: skip


def _schedule(**tiles: int) -> GpuSchedule:
    return GpuSchedule.of('channels', 'wgmma_half', **(TILES | tiles))


def test_parts_add_up_by_hand() -> None:
    done, c = work(GROUP, _schedule()), STAGED
    assert (done.blocks, done.pieces, done.threads) == (16, 36, 128)
    made = staged_time(done, H200, 1, 0)
    cycle = 1e-9 / H200.clock_ghz
    busy = done.wide * c.wide_cycles + done.instructions / 4 * c.instruction_cycles
    busy += 64 * 64 / 128 * c.result_cycles
    assert made.throughput_s == pytest.approx(busy * cycle)
    ahead = 5
    step = (c.step_cycles**c.overlap + (c.copy_cycles / ahead) ** c.overlap) ** (1 / c.overlap)
    assert made.latency_s == pytest.approx((c.first_cycles + 36 * step) * cycle)
    assert made.join_s == made.dram_s == 0.0
    whole = (made.throughput_s + made.latency_s) ** c.overlap + made.l2_s**c.overlap
    assert made.seconds == pytest.approx(c.launch_s + whole ** (1 / c.overlap))
    assert predict_gpu(GROUP, _schedule(), H200).seconds == pytest.approx(made.seconds)


@pytest.mark.parametrize(
    ('size', 'fitting'), [(1, 132), (2, 64), (3, 40), (4, 30), (6, 16), (8, 13)]
)
def test_clusters_that_find_no_place_run_later(size: int, fitting: int) -> None:
    done = replace(work(GROUP, _schedule()), split=size, cluster=size > 1)
    assert layers(replace(done, blocks=size * fitting), H200, 1) == 1
    assert layers(replace(done, blocks=size * (fitting + 1)), H200, 1) == 2


def test_joining_in_clusters_and_through_memory_has_its_price() -> None:
    beside = predict_gpu(GROUP, _schedule(split=4, cluster=1), H200)
    assert beside.join_s == pytest.approx(STAGED.cluster_s + 4 * STAGED.member_s)
    apart = predict_gpu(GROUP, _schedule(split=4), H200)
    assert apart.join_s == pytest.approx(STAGED.split_s + 4 * 4 * 64 * 64 * STAGED.byte_s)


def test_deeper_pipelines_are_not_slower() -> None:
    times = [predict_gpu(GROUP, _schedule(stages=n), H200).seconds for n in (3, 4, 5, 6)]
    assert times == sorted(times, reverse=True)
    waiting = predict_gpu(GROUP, _schedule(queue=1), H200).seconds
    assert waiting > times[-1]


@pytest.mark.parametrize('k', [64, 256, 1000])
def test_searches_begin_with_legal_tiles_that_fill_the_machine(k: int) -> None:
    group = half_group(tw.conv2d(c=256, h=14, w=14, k=k, r=1, s=1, bias=True), 'f16')
    assert CHANNELS.starts is not None
    found = CHANNELS.starts(group, H200)
    plans = [plan(group, schedule) for schedule in found]
    assert len(set(found)) == len(found)
    assert 20 <= len(found) <= 160
    for p in plans:
        assert p.split == 1 or p.tiles * p.split <= H200.multiprocessors
    assert {p.wide for p in plans} == {True, False}
    assert max(p.tiles * p.split for p in plans if p.split > 1) > H200.multiprocessors // 2


def test_nothing_begins_where_the_schema_does_not_apply() -> None:
    assert CHANNELS.starts is not None
    assert CHANNELS.starts(tw.matmul(m=64, n=64, k=64), H200) == ()


def test_kept_choices_have_other_tiles() -> None:
    """Those that differ in how tiles come alone would all be measured for nothing."""
    same = [_schedule(stages=n) for n in (6, 5, 4)]
    others = [_schedule(bk=32, tk=32), _schedule(split=4, cluster=1)]
    assert varied([*same, *others], 4) == [same[0], *others, same[1]]
    assert {'stages', 'queue'} <= PIPELINE
