"""Blocks of a cluster, which run together and read each other's shared memory.

If these fail, parts of a split are added up wrongly, or in another order than without clusters.
"""

from __future__ import annotations

import numpy as np
import pytest
from devices import device
from marks import needs_nvrtc

import tilewright as tw
from tilewright.errors import CheckError, ScheduleError
from tilewright.graph.half import half_group
from tilewright.kernels.gpu.dialects.opencl import OPENCL
from tilewright.kernels.gpu.generate import generate
from tilewright.kernels.gpu.language import Array, Kernel, lower
from tilewright.machine.gpu import known_gpu
from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.compose import append
from tilewright.ops.elementwise import elementwise
from tilewright.ops.group import Group
from tilewright.ops.reference import reference
from tilewright.ops.stage import call, const, read
from tilewright.runtime.gpu.device import Call
from tilewright.runtime.gpu.modules import Runner
from tilewright.runtime.verify import compare, random_arrays
from tilewright.schedule.gpu import GpuSchedule

TILES = {'bp': 64, 'bk': 32, 'tp': 64, 'tk': 32, 'kb': 16, 'stages': 3}
OUT = Array('out', ('block', 'i'), (6, 4), written=True)


def _kernel(body: str, cluster: int = 3) -> Kernel:
    return Kernel(
        'together', (OUT,), body, (1, 2, cluster), 4, (('mine', 4),), needs=frozenset({'cluster'}),
        cluster=cluster,
    )  # fmt: skip


def _ran(kernel: Kernel) -> np.ndarray:
    host = device('host')
    out = host.empty(OUT.dims, OUT.sizes)
    host.launch(Call(host.compile(kernel), {'out': out}))
    return host.download(out)


def test_blocks_read_what_the_others_of_their_cluster_have() -> None:
    """Clusters lie along the third dimension, so that block z is the z-th of its own."""
    got = _ran(
        _kernel("""
mine[THREAD] = BLOCK_Y * 100 + BLOCK_Z * 10 + THREAD;
CLUSTER_BARRIER;
const int next = (BLOCK_Z + 1) % 3;
const float4 four = BESIDE4(mine, next);
const float one = BESIDE1(mine + THREAD, next);
@out[block=BLOCK_Y * 3 + BLOCK_Z, i=THREAD] = THREAD == 0 ? four.x + 0.5f : one;
CLUSTER_BARRIER;
""")
    )
    want = [[y * 100 + (z + 1) % 3 * 10 + i for i in range(4)] for y in range(2) for z in range(3)]
    assert np.array_equal(got - [0.5, 0, 0, 0], want)


def test_a_block_that_leaves_before_a_barrier_is_noticed() -> None:
    with pytest.raises(CheckError, match='every thread has to reach every barrier'):
        _ran(_kernel('if (BLOCK_Z == 1)\n    return;\nCLUSTER_BARRIER;'))


def test_clusters_divide_the_grid_and_have_a_dialect() -> None:
    with pytest.raises(ScheduleError, match='clusters of 9 blocks along a grid of 9'):
        _kernel('', 9)
    with pytest.raises(ScheduleError, match='clusters of 2 blocks along a grid of 3'):
        Kernel('uneven', (OUT,), '', (1, 1, 3), 4, cluster=2)
    with pytest.raises(ScheduleError, match='needs cluster, which opencl does not have'):
        lower(_kernel(''), OPENCL)


def _with_residual(k: int) -> Group:
    group = tw.conv2d(n=2, c=48, h=9, w=11, k=k, r=1, s=1, bias=True)
    total = call('max', call('add', read(0), read(1)), const(0.0))
    joined = append(group, elementwise(total, *[group.output.shape] * 2, name='then'), 'In0')
    assert joined is not None
    return half_group(joined.group, 'f16')


@pytest.mark.parametrize('on', ['host', pytest.param('cuda', marks=pytest.mark.gpu)])
@pytest.mark.parametrize('k', [40, 20, 18])
@pytest.mark.parametrize('split', [2, 3])
def test_sums_are_those_of_parts_that_pass_through_memory(k: int, split: int, on: str) -> None:
    """To the bit: eight, four and two neighbours at once, bias and residual behind them."""
    group = _with_residual(k)
    arrays = random_arrays(group, k)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    inputs = {t.name: arrays[t.name] for t in group.with_role('input')}
    found = []
    for cluster in (0, 1):
        schedule = GpuSchedule.of('channels', 'wgmma_half', **TILES, split=split, cluster=cluster)
        module = generate(group, schedule)
        assert module.steps[-1].kernel.cluster == (split if cluster else 1)
        assert any(b.name == 'partial' for b in module.buffers) == (not cluster)
        with Runner(module, device(on), constants) as runner:
            found.append(runner(**inputs))
    assert np.array_equal(*found)
    assert compare(group, found[1], reference(group, arrays)).ok


@pytest.mark.gpu
@pytest.mark.parametrize('split', range(2, 9))
def test_clusters_of_every_size_run_on_a_gpu(split: int) -> None:
    group = half_group(tw.conv2d(n=2, c=128, h=14, w=14, k=72, r=3, s=3, pad=1, bias=True), 'f16')
    arrays = random_arrays(group, split)
    constants = {t.name: arrays[t.name] for t in group.with_role('constant')}
    tiles = {**TILES, 'kb': 64, 'stages': 4, 'queue': 2, 'bulk': 1, 'split': split, 'cluster': 1}
    module = generate(group, GpuSchedule.of('channels', 'wgmma_half', **tiles))
    with Runner(module, device('cuda'), constants) as runner:
        found = compare(group, runner(In=arrays['In']), reference(group, arrays))
    assert found.ok, found.message


@pytest.mark.parametrize(('intrinsic', 'split'), [('mma_half', 2), ('wgmma_half', 1)])
def test_who_has_no_clusters_says_so(intrinsic: str, split: int) -> None:
    schedule = GpuSchedule.of('channels', intrinsic, **TILES, split=split, cluster=1)
    with pytest.raises(ScheduleError, match='a cluster has 2 to 8 blocks, of warpgroups'):
        generate(_with_residual(40), schedule)


def test_what_a_cluster_adds_up_is_read_by_all_of_its_blocks() -> None:
    """Elsewhere the last block reads all parts alone, which takes longer where they are large, and
    no longer where there is little to add up.
    """
    h200 = known_gpu('h200')
    deep = tw.conv2d(c=256, h=14, w=14, k=256, r=3, s=3, pad=1)
    small = tw.conv2d(c=128, h=28, w=28, k=256, r=1, s=1, stride=2)
    for conv, bk, split, better in ((deep, 64, 8, True), (small, 16, 2, False)):
        tiles = {**TILES, 'bk': bk, 'tk': bk, 'split': split}
        apart, beside = (
            predict_gpu(
                half_group(conv, 'f16'),
                GpuSchedule.of('channels', 'wgmma_half', **tiles, cluster=c), h200,
            )
            for c in (0, 1)
        )  # fmt: skip
        assert (beside.join_s < apart.join_s) == better
        assert (beside.seconds < apart.seconds) == better


@needs_nvrtc
@pytest.mark.parametrize('split', [2, pytest.param(8, marks=pytest.mark.slow)])
def test_cuda_text_compiles_without_spills(split: int) -> None:
    from tilewright.runtime.gpu.cuda import compile_cubin

    group = half_group(tw.conv2d(c=256, h=14, w=14, k=256, r=3, s=3, pad=1, bias=True), 'f16')
    tiles = {'bp': 128, 'bk': 64, 'tp': 64, 'tk': 64, 'kb': 64, 'stages': 4, 'queue': 2, 'bulk': 1}
    schedule = GpuSchedule.of('channels', 'wgmma_half', **tiles, split=split, cluster=1)
    kernel = generate(group, schedule).steps[-1].kernel
    _, source, resources = compile_cubin(kernel, 'sm_90a')
    assert f'__cluster_dims__(1, 1, {split})' in source
    assert resources.spill_bytes == 0
