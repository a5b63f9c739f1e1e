"""Small updates of a training step as few launches: what may start together, and the same numbers.

If these fail, steps on a GPU run updates before what they wait for, or write them elsewhere.
"""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.gpu.bundle import put_together

torch = pytest.importorskip('torch')


def test_launches_keep_the_order_of_their_kernels() -> None:
    waits = ((), (0,), (0,), (1,), (2,), (3, 4))
    order, needed = put_together(waits, [(1, 2), (3, 4)])
    assert order == [(0,), (1, 2), (3, 4), (5,)]
    assert needed == [(), (0,), (1,), (2,)]


def test_updates_of_a_step_are_few_launches() -> None:
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()]
    layers += [torch.nn.Conv2d(4, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.Flatten()]
    module = torch.nn.Sequential(*layers, torch.nn.Linear(5 * 16, 3)).train()
    x, y = torch.randn(2, 3, 8, 8), torch.tensor([0, 2])
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9)
    step = tw.compile_training(
        module, 'cross_entropy', tw.SGD(0.1, 0.9), (x, y), target='host', check=False
    )
    net = step.network
    assert len(net.launches[0]) < len(net.calls) - 20
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        assert step(x.numpy(), y.numpy()) == pytest.approx(float(loss.detach()), rel=1e-4)
    found = step.state_dict()
    for name, want in module.state_dict().items():
        assert np.allclose(found[name].numpy(), want.numpy(), rtol=1e-3, atol=1e-4), name


def test_a_table_of_embeddings_is_updated_at_once() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(3000, 16), torch.nn.Linear(16, 3)).train()
    x, y = torch.randint(0, 3000, (24,)), torch.randint(0, 3, (24,))
    x[5], x[20] = x[2], x[2]
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9)
    step = tw.compile_training(
        module, 'cross_entropy', tw.SGD(0.1, 0.9), (x, y), target='host', check=False
    )
    tasks = [t for t in step.network.gpu_tasks if t.schedule.schema == 'scatter']
    assert [t.group.label for t in tasks] == ['gather_grad-In-3000x16+momentum']
    for _ in range(2):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        assert step(x.numpy(), y.numpy()) == pytest.approx(float(loss.detach()), rel=1e-4)
    found = step.state_dict()
    for name, want in module.state_dict().items():
        assert np.allclose(found[name].numpy(), want.numpy(), rtol=1e-4, atol=1e-5), name
