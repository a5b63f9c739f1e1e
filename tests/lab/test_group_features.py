"""Footprints counted one element at a time; statistics of every schema; graphs of groups."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from groups import HOPPER, fused

from tilewright.model.gpu.time import predict_gpu
from tilewright.ops.convolution import conv2d
from tilewright.ops.pooling import max_pool
from tilewright.ops.reduction import REDUCTIONS
from tilewright.ops.windows import windows
from tilewright.rank.counts import batches_of
from tilewright.rank.footprints import footprints, tiling_of, touched
from tilewright.rank.graph_features import NODE_FEATURES, NODE_NAMES, graph_of, side_by_side
from tilewright.rank.statistics import NAMES, STATISTICS, probe, statistics_for, statistics_of
from tilewright.schedule.gpu import GpuSchedule
from tilewright_lab.collect.space import draw

STRIDED = conv2d(c=6, h=17, w=17, k=8, r=3, s=3, stride=2, pad=1)
LAYER = conv2d(c=16, h=14, w=14, k=32, r=3, s=3, pad=1)
DEPTHWISE = conv2d(c=16, h=14, w=14, k=16, r=3, s=3, pad=1, groups=16, bias=True)


def elements(group, access, tile: dict[str, int]) -> set[tuple[int, ...]]:
    """What a tile in the middle of the tensor touches, point by point."""
    tensor = group.tensor(access.tensor)
    names = [name for name in tile if name in access.names]
    found = set()
    for point in itertools.product(*(range(tile[name]) for name in names)):
        at = dict(zip(names, point, strict=True))
        place = tuple(e.at(at) - e.const for e in access.index)
        if all(0 <= i < size for i, size in zip(place, tensor.shape, strict=True)):
            found.add(place)
    return found


@pytest.mark.parametrize(
    'tile',
    [
        {'n': 1, 'k': 4, 'h': 2, 'w': 3, 'c': 2, 'r': 3, 's': 3},
        {'n': 1, 'k': 8, 'h': 1, 'w': 8, 'c': 6, 'r': 1, 's': 1},
        {'n': 1, 'k': 1, 'h': 5, 'w': 5, 'c': 1, 'r': 3, 's': 3},
    ],
)
def test_what_a_tile_touches_is_counted_point_by_point(tile: dict[str, int]) -> None:
    stage = STRIDED.main
    sizes = {name: np.array([size]) for name, size in tile.items()}
    for access in stage.accesses:
        tensor = STRIDED.tensor(access.tensor)
        want = elements(STRIDED, access, tile)
        got, lines = touched(tensor, access, sizes, 4)
        assert got[0] == len(want)
        # Lines lie inside runs of neighbouring elements; no tile has fewer than its bytes need.
        assert lines[0] >= math.ceil(4 * len(want) / 128)
        assert lines[0] <= len(want)


def test_a_whole_tensor_is_one_run_of_lines() -> None:
    stage = LAYER.main
    sizes = {name: np.array([size]) for name, size in stage.sizes.items()}
    weights = LAYER.tensor('Ker')
    got, lines = touched(weights, stage.reads[1], sizes, 4)
    assert got[0] == weights.size
    assert lines[0] == math.ceil(4 * weights.size / 128)


def test_footprints_of_a_tiled_schedule_by_hand() -> None:
    schedule = GpuSchedule.of(
        'tiled', bk=16, bp=28, tk=4, tp=4, kb=8, stages=2, split=2, joint=0
    )  # fmt: skip
    ((batch, _),) = batches_of(LAYER, [schedule])
    tiling = tiling_of(batch)
    assert {name: size[0] for name, size in tiling.block.items()} == {
        'k': 16, 'n': 1, 'h': 2, 'w': 14,
    }  # fmt: skip
    assert tiling.share['c'][0] == 8
    found = footprints(batch, tiling, np.array([28.0]))
    assert found['weights'].block_bytes[0] == 4 * 16 * 8 * 9
    assert found['input'].block_bytes[0] == 4 * 8 * 4 * 14  # rows with halo, clipped to the image
    assert found['result'].block_bytes[0] == 4 * 16 * 2 * 14
    assert found['result'].passes[0] == pytest.approx(28 * 16 * 28 / (32 * 196))
    assert found['weights'].uses[0] == 28  # each weight for every pixel of the block
    assert found['beside'].bytes[0] == 0
    assert (found['input'].lane_stride[0], found['weights'].lane_stride[0]) == (1, 0)


def some_schedules():
    for schema, intrinsic in (
        ('tiled', 'fma'), ('tiled', 'mma_tf32x3'), ('patch', 'mma_tf32x3'),
        ('patch', 'wgmma_tf32x3'), ('rs', 'fma'), ('s', 'fma'), ('general', 'fma'),
    ):  # fmt: skip
        yield LAYER, draw(LAYER, HOPPER, schema, intrinsic, 3, 1)[0]
    yield DEPTHWISE, [GpuSchedule.of('depthwise', th=2, tw=4, bh=4, bw=4, bp=4, shared=1)]
    yield (
        max_pool((1, 16, 14, 14), windows((14, 14), 3, 3)),
        [GpuSchedule.of('general', threads=64, lanes=1)],
    )
    yield (
        REDUCTIONS['mean'].group('mean', (1, 64, 7, 7), (2, 3)),
        [GpuSchedule.of('general', threads=128, lanes=32)],
    )


def test_every_schema_has_statistics_and_starts_from_the_time_model() -> None:
    for group, schedules in some_schedules():
        x, base = statistics_for(group, HOPPER, schedules)
        assert x.shape == (len(schedules), len(STATISTICS))
        assert np.isfinite(x).all()
        for row, schedule in enumerate(schedules):
            said = predict_gpu(group, schedule, HOPPER).seconds
            assert base[row] == pytest.approx(math.log(said), rel=1e-6), schedule


def test_statistics_do_not_depend_on_the_company() -> None:
    schedules = [s for group, some in some_schedules() if group is LAYER for s in some]
    together, base = statistics_for(LAYER, HOPPER, schedules)
    for row, schedule in enumerate(schedules):
        ((batch, _),) = batches_of(LAYER, [schedule])
        alone, start = statistics_of(batch, HOPPER)
        np.testing.assert_allclose(together[row], alone[0], rtol=1e-6)
        assert base[row] == pytest.approx(start[0])


def test_tables_are_documented_and_have_no_twins() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert len(set(NODE_NAMES)) == len(NODE_NAMES)
    assert all(s.formula for s in STATISTICS)
    assert all(f.formula and (f.stage or f.tensor) for f in NODE_FEATURES)
    assert np.isfinite(probe()).all()


def test_the_graph_of_a_fused_group() -> None:
    group = fused(16, 14, 32)  # conv2d, bias, relu; In, Ker, Bias, two inner tensors, Out
    graph = graph_of(group)
    assert len(graph) == len(group.stages) + len(group.tensors)
    assert (graph.adjacency == graph.adjacency.T).all()
    assert graph.adjacency.sum() / 2 == sum(len(stage.accesses) for stage in group.stages)
    column = {name: graph.nodes[:, i] for i, name in enumerate(NODE_NAMES)}
    assert column['is_products'].tolist() == [1, *[0] * (len(graph) - 1)]
    assert column['is_pointwise'].sum() == 2
    assert (column['is_constant'].sum(), column['is_inner'].sum()) == (2, 2)
    assert column['size_k'][0] == pytest.approx(math.log2(33))
    # Stages know nothing of bytes, tensors nothing of points.
    stages = slice(0, len(group.stages))
    assert (column['bytes'][stages] == 0).all()
    assert (column['points'][len(group.stages) :] == 0).all()


def test_graphs_side_by_side_are_filled_up() -> None:
    small, large = graph_of(LAYER), graph_of(fused(16, 14, 32))
    both = side_by_side([small, large])
    assert both.present.sum(1).tolist() == [len(small), len(large)]
    assert (both.nodes[0, len(small) :] == 0).all()
    assert both.adjacency[0].sum() == small.adjacency.sum()
