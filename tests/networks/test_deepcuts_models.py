"""DeepSpeech2, Attention-RNN and DLRM, compiled, against PyTorch in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from devices import device

import tilewright as tw
from tilewright import zoo
from tilewright.targets.gpu import choose

torch = pytest.importorskip('torch', reason='install the extra tilewright[torch]')
TINY = {
    'deepspeech2': {'batch': 2, 'image': 7, 'width': 64},
    'attention_rnn': {'batch': 3, 'image': 4, 'width': 64},
    'dlrm': {'batch': 5, 'image': 50, 'width': 16},
}
FEW = [pytest.param(n, marks=[pytest.mark.slow] * (n != 'attention_rnn')) for n in TINY]


def check(name: str, compiled: Any, **sizes: int) -> None:
    """A network of the zoo, however it was compiled, against its module in float64."""
    given = zoo.inputs(zoo.network(name, **sizes))
    module = zoo.torch_module(name, **sizes).double()
    tensors = [torch.from_numpy(array) for array in given.values()]
    want = module(*(t.double() if t.is_floating_point() else t for t in tensors)).numpy()
    got = compiled(*given.values())
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize('name', FEW)
def test_graphs_on_a_cpu(name: str) -> None:
    check(name, tw.compile(zoo.graph(name, **TINY[name]), threads=2, check=False), **TINY[name])


@pytest.mark.slow
@pytest.mark.parametrize('name', list(TINY))
def test_modules_on_a_cpu(name: str) -> None:
    """What PyTorch exports of the modules: bags, pairs by two lists of indices, layers at once."""
    given = zoo.inputs(zoo.network(name, **TINY[name]))
    module = zoo.torch_module(name, **TINY[name])
    net = tw.compile(module, example_inputs=tuple(given.values()), threads=1, check=False)
    check(name, net, **TINY[name])


@pytest.mark.slow
@pytest.mark.parametrize('target', ['host', 'opencl'])
@pytest.mark.parametrize('name', list(TINY))
def test_graphs_on_gpus(name: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device(target)
    monkeypatch.setattr(choose, 'has_products', lambda group: False)
    net = tw.compile(zoo.graph(name, **TINY[name]), target=target, check=False)
    check(name, net, **TINY[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    ('name', 'batch'), [('deepspeech2', 1), ('attention_rnn', 2), ('dlrm', 128)]
)
def test_networks_of_full_size(name: str, batch: int) -> None:
    net = tw.compile(zoo.graph(name, batch=batch), threads=2, check=False)
    check(name, net, batch=batch)
