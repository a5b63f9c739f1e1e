"""Normalisations before 1x1 convolutions on GPUs: a small DenseNet with and without the pass."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from devices import device

import tilewright as tw
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph
from tilewright.graph.lower import lower
from tilewright.graph.passes import GPU_PASSES, PASSES
from tilewright.machine.gpu import known_gpu
from tilewright.network.compile import prepare
from tilewright.ops.core import core
from tilewright.ops.front import has_front
from tilewright.ops.group import Group
from tilewright.runtime.gpu.network import GpuNetwork
from tilewright.runtime.gpu.session import open_device
from tilewright.schedule.choice import Choice
from tilewright.schedule.gpu import GpuSchedule
from tilewright.store import tuned
from tilewright.targets.gpu import assemble, choose
from tilewright.targets.gpu.cost import GpuCost
from tilewright.zoo.as_graph import to_graph
from tilewright.zoo.layers import Builder
from tilewright.zoo.weights import weights

WITHOUT = tuple(name for name in PASSES if name != 'prologue')
LAYERS = 2  # 1x1 convolutions with something before them


@cache
def dense(batch: int) -> Graph:
    """A dense layer: normalised, 1x1, normalised, 3x3, concatenated; then a transition."""
    net = Builder('dense', batch, 9, 1)
    x = net.max_pool('image', 3, 1, 1)
    y = net.conv(net.relu(net.batch_norm(x)), 12, 1, bias=False)
    y = net.conv(net.relu(net.batch_norm(y)), 5, 3, pad=1, bias=False)
    x = net.conv(net.relu(net.batch_norm(net.concat([x, y]))), 8, 1, bias=False)
    network = net.finish(net.global_average(net.relu(net.batch_norm(x))))
    return to_graph(network, weights(network, 0))


def image(batch: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((batch, 3, 9, 9)).astype(np.float32)


def compiled(target: str, batch: int, **options) -> GpuNetwork:
    device(target)
    net = tw.compile(dense(batch), target=target, **options)
    assert isinstance(net, GpuNetwork)
    return net


def right(net: GpuNetwork, batch: int) -> None:
    x = image(batch)
    want = evaluate(lower(dense(batch)), {'image': x})['scores']
    assert np.abs(net(x) - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize('batch', [1, 3])
def test_each_is_in_the_task_of_its_convolution(batch: int, monkeypatch) -> None:
    monkeypatch.setattr(choose, 'TRIALS', 60)  # enough to find the schema that applies fronts
    joined, cost = compiled('host', batch), GpuCost(open_device('host').machine)
    apart = prepare(dense(batch), None, WITHOUT, cost, GPU_PASSES)
    assert len(apart.tasks) - len(joined.gpu_tasks) == LAYERS
    fronts = [task for task in joined.gpu_tasks if has_front(task.group)]
    assert len(fronts) == LAYERS
    for task in fronts:
        assert task.schedule.schema == 'tiled'
        assert len(task.calls) == 1
    right(joined, batch)


def test_opencl_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its compiler takes seconds for a tuned kernel; fronts of those are tried on it elsewhere.
    monkeypatch.setattr(choose, 'has_products', lambda group: False)
    right(compiled('opencl', 1), 1)


def test_it_is_measured_with_its_convolution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as the convolution alone, whose fastest schedule may be one that cannot apply it."""
    timed: dict[str, Group] = {}

    def fastest(
        groups: dict[str, Group], chosen: dict[str, Sequence[Choice]], *_: object
    ) -> dict[str, Choice]:
        timed.update(groups)
        return {name: chosen[name][-1] for name in groups}

    monkeypatch.setattr(assemble, 'fastest', fastest)
    net = compiled('host', 1, tune='measure', trials=2, check=False)
    groups = [task.group for task in net.gpu_tasks if has_front(task.group)]
    assert {core(group, front=True).digest for group in groups} <= timed.keys()
    assert not {core(group).digest for group in groups} & timed.keys()
    right(net, 1)


def test_tuned_results_of_the_convolution_alone_are_not_taken(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    program = prepare(dense(1), None, None, GpuCost(known_gpu('h200')), GPU_PASSES)
    group = next(task.group for task in program.tasks if has_front(task.group))
    patch = Choice(GpuSchedule.of('patch', 'mma_tf32x3', bk=16), 1e-6, 1e-7, 'launch')
    for target, found in (('cuda', None), ('cpu', patch)):
        where = tuned.Where(target, {'name': 'some'}, 0, 1e-4)
        tuned.remember(core(group), where, patch, 8)
        assert tuned.find(group, where, 8) == found
        tuned.remember(group, where, patch, 8)
        assert tuned.find(core(group, front=target != 'cpu'), where, 8) == patch
