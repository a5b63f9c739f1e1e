"""A layer is tuned once: whoever measured it first, layers and networks find the result."""

from __future__ import annotations

import graphs
import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.convolution import conv2d
from tilewright.runtime.gpu.worker import GpuWorker
from tilewright.runtime.worker import Worker

SHAPE = {'c': 4, 'h': 6, 'w': 6, 'k': 8, 'r': 3, 's': 3, 'pad': 1}


def model():
    """The layer of `SHAPE` before a bias and a ReLU."""
    rng = np.random.default_rng(3)
    nodes = [
        graphs.node('Conv', 'x w b', 'c', pads=(1, 1, 1, 1)),
        graphs.node('Relu', 'c', 'y'),
    ]
    weights = rng.standard_normal((8, 4, 3, 3), np.float32)
    bias = rng.standard_normal(8, np.float32)
    return graphs.graph({'x': (1, 4, 6, 6)}, 'y', nodes, w=weights, b=bias)


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """How many kernels were checked or timed, in an empty cache."""
    monkeypatch.setenv('TILEWRIGHT_CACHE_DIR', str(tmp_path))
    calls = []
    for worker, name in ((Worker, 'check'), (Worker, 'time'), (GpuWorker, 'attempt')):
        real = getattr(worker, name)
        monkeypatch.setattr(
            worker, name, lambda *a, _real=real, **k: calls.append(a) or _real(*a, **k)
        )
    return calls


@pytest.mark.parametrize('target', ['cpu', 'host'])
def test_a_network_does_not_measure_a_layer_that_optimize_tuned(counted, target):
    plan = tw.optimize(conv2d(**SHAPE), target=target, trials=3, top=3)
    assert plan.best.time_ms is not None
    assert counted, 'optimize measured nothing'
    del counted[:]
    network = tw.compile(model(), target=target, tune='measure', trials=3, check=False)
    assert counted == []
    kernels = network.kernels.values() if target == 'cpu' else network.gpu_tasks
    assert plan.best.schedule in [kernel.schedule for kernel in kernels]


@pytest.mark.parametrize('target', ['cpu', 'host'])
def test_optimize_does_not_measure_again(counted, target):
    first = tw.optimize(conv2d(**SHAPE), target=target, trials=3, top=3)
    del counted[:]
    again = tw.optimize(conv2d(**SHAPE), target=target, trials=3, top=3)
    times = {c.schedule.digest: c.time_ms for c in first.candidates}
    if target == 'host':
        assert counted == []
        assert {c.schedule.digest: c.time_ms for c in again.candidates} == times
    assert again.candidates[0].time_ms is not None
