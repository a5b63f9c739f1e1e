"""Training steps against PyTorch: losses, parameters and running statistics after every step.

If these fail, a network that is trained by us learns something else than in PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright import zoo
from tilewright.errors import CheckError, InputError, ModelError, UnsupportedError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.graph import Graph, Node, Value
from tilewright.graph.levels import by_levels, successors
from tilewright.graph.optimizer import Optimizer
from tilewright.graph.training import (
    LOSS,
    NEXT,
    RATE,
    STEP,
    TrainedGraph,
    step_program,
    trainable,
)
from tilewright.network.training import optimizer_of

torch = pytest.importorskip('torch', reason='PyTorch is the oracle here')
from tilewright.importers.torch import import_training  # noqa: E402

nn, functional = torch.nn, torch.nn.functional


def small() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


def batch() -> tuple[Any, Any]:
    torch.manual_seed(1)
    return torch.randn(6, 1, 8, 8), torch.randint(0, 10, (6,))


class Interpreted:
    """A step by the reference interpreter: no compiler, the definition of what a step computes."""

    def __init__(self, trained: TrainedGraph, optimizer: Optimizer) -> None:
        self.program, self.state = step_program(trained, optimizer)
        self.inputs, self.rate = trained.data, np.array([optimizer.lr], np.float32)

    def __call__(self, *arrays: Any) -> float:
        given = {v.name: np.asarray(a) for v, a in zip(self.inputs, arrays, strict=True)}
        found = evaluate(self.program, {**self.state, RATE: self.rate, **given})
        self.state = {name: found.get(f'{name}{NEXT}', array) for name, array in self.state.items()}
        return float(found[LOSS])


def theirs(module: Any, optimizer: Any, loss: Callable, x: Any, y: Any) -> float:
    found = loss(module(x), y)
    optimizer.zero_grad()
    found.backward()
    optimizer.step()
    return found.item()


OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, 0.1),
    lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=1e-2, nesterov=True),
    lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=1e-2),
    lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1),
    lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
    lambda p: torch.optim.Adam(p, 1e-2, betas=(0.0, 0.5)),
]


@pytest.mark.parametrize('make', OPTIMIZERS)
def test_optimizers_move_parameters_as_in_pytorch(make: Callable) -> None:
    draw = np.random.default_rng(0)
    x, y, w = (draw.standard_normal(s).astype(np.float32) for s in ((5, 3), (5, 2), (3, 2)))
    graph = Graph('net', (Value('x', x.shape),), (('y', 'y'),),
                  (Node('MatMul', 'm', ('x', 'w'), ('y',)),), {'w': w})  # fmt: skip
    weight = torch.from_numpy(w.copy()).requires_grad_()
    optimizer = make([weight])
    step = Interpreted(trainable(graph, 'mse'), optimizer_of(optimizer))
    for _ in range(3):
        want = theirs(
            lambda x: x @ weight, optimizer, functional.mse_loss, *map(torch.from_numpy, (x, y))
        )
        assert step(x, y) == pytest.approx(want, rel=1e-5)
        np.testing.assert_allclose(step.state['w'], weight.detach().numpy(), rtol=2e-6, atol=2e-6)


def test_the_first_step_of_adam_is_as_long_as_its_rate() -> None:
    """m / (1 - beta1) over the root of v / (1 - beta2) is the sign of the gradient, to the digits
    that float32 has: 1 - 0.999 is not subtracted there."""
    draw = np.random.default_rng(0)
    x, y, w = (draw.standard_normal(s).astype(np.float32) for s in ((5, 3), (5, 2), (3, 2)))
    graph = Graph('net', (Value('x', x.shape),), (('y', 'y'),),
                  (Node('MatMul', 'm', ('x', 'w'), ('y',)),), {'w': w})  # fmt: skip
    step = tw.compile_training(graph, 'mse', tw.Adam(256.0), (x, y), threads=1)
    step(x, y)
    np.testing.assert_allclose(np.abs(step.arrays()['w'] - w), 256.0, rtol=1e-6)


class Stopped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([2.0, 3.0]))

    def forward(self, x: Any) -> Any:
        return ((x * self.w).detach() * self.w).sum()


def test_gradients_that_pytorch_stops_are_refused() -> None:
    with pytest.raises(ModelError, match=r'of what parameters change \(detach\)'):
        import_training(Stopped(), None, (torch.ones(2),))


def test_rows_of_padding_are_not_learned() -> None:
    """PyTorch gives the row of `padding_idx` no gradient; one that is not zero is refused."""
    module = nn.Embedding(5, 3, padding_idx=2)
    ids, want = torch.tensor([[1, 2, 4], [2, 2, 0]]), torch.randn(2, 3, 3)
    step = Interpreted(import_training(module, functional.mse_loss, (ids, want)), tw.SGD(1.0))
    rule = torch.optim.SGD(module.parameters(), 1.0)
    assert step(ids, want) == pytest.approx(
        theirs(module, rule, functional.mse_loss, ids, want), rel=1e-6
    )
    np.testing.assert_allclose(step.state['weight'], module.weight.detach().numpy(), atol=1e-6)
    with torch.no_grad():
        module.weight[2] = 1.0
    with pytest.raises(ModelError, match='padding_idx whose row is not zero'):
        import_training(module, functional.mse_loss, (ids, want))


def test_a_compiled_step_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """Compiled code gives PyTorch's losses; what was saved continues with the same bits."""
    module, (x, y) = small(), batch()
    step = tw.compile_training(module, 'cross_entropy', tw.SGD(0.1, 0.9), (x, y), threads=2)
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9)
    for _ in range(2):
        want = theirs(module, optimizer, functional.cross_entropy, x, y)
        assert step(x, y) == pytest.approx(want, rel=1e-5)
    step.save(tmp_path / 'two.npz')
    first = [step(x, y) for _ in range(2)], step.arrays()
    assert step.steps == 4
    step.load(tmp_path / 'two.npz')
    assert step.steps == 2
    second = [step(x, y) for _ in range(2)], step.arrays()
    assert first[0] == second[0]
    for name, array in first[1].items():
        np.testing.assert_array_equal(array, second[1][name])
    other = small()
    other.load_state_dict(step.state_dict())
    loss = functional.cross_entropy(other.train()(x), y).item()
    assert step(x, y) == pytest.approx(loss, rel=1e-5)
    step.load_state_dict(small().state_dict())
    step.check_nan = True
    before = step.arrays()
    with pytest.raises(CheckError, match='loss of step 6 is nan, which first appears in'):
        step(np.full(x.shape, np.nan, np.float32), y)
    np.testing.assert_array_equal(step.arrays()['0.weight'], before['0.weight'])
    (tmp_path / 'other.npz').write_bytes(b'no')
    with pytest.raises(InputError, match='is not a checkpoint'):
        step.load(tmp_path / 'other.npz')


def test_on_a_device_the_state_stays_and_is_changed_in_place(tmp_path: Path) -> None:
    """Only batches go up and losses come back; state is read, written and kept as on a CPU."""
    module, x, y = nn.Linear(5, 3), torch.randn(4, 5), torch.randint(0, 3, (4,))
    step = tw.compile_training(
        module, 'cross_entropy', tw.SGD(0.1, 0.9, weight_decay=1e-2), (x, y), target='host'
    )
    net: Any = step.network
    state = {'weight', 'bias', 'weight/momentum_buffer', 'bias/momentum_buffer', STEP}
    assert net.carried == state
    optimizer = torch.optim.SGD(module.parameters(), 0.1, 0.9, weight_decay=1e-2)
    for _ in range(3):
        want = theirs(module, optimizer, functional.cross_entropy, x, y)
        assert step(x, y) == pytest.approx(want, rel=1e-5)
    for name, array in module.state_dict().items():
        torch.testing.assert_close(step.state_dict()[name], array)
    step.save(tmp_path / 'three.npz')
    losses = step(x, y), step(x, y)
    step.load(tmp_path / 'three.npz')
    assert step.steps == 3
    assert (step(x, y), step(x, y)) == losses
    step.check_nan, before = True, step.arrays()
    with pytest.raises(CheckError, match='loss of step 6 is nan'):
        step(np.full(x.shape, np.nan, np.float32), y)
    for name, array in step.arrays().items():
        np.testing.assert_array_equal(array, before[name])


def test_what_replaces_an_input_is_written_behind_its_readers() -> None:
    """Tasks that read a parameter have lower levels than the one that writes over it."""
    graph = zoo.graph('resnet18', **zoo.SMALL['resnet18'])
    program = by_levels(step_program(trainable(graph, 'cross_entropy'), tw.SGD(0.1, 0.9))[0])
    replaced = successors(program)
    assert set(replaced.values()) == set(program.carried)
    for value, name in replaced.items():
        (writer,) = (n for n, task in enumerate(program.tasks) if task.result == value)
        readers = [n for n, task in enumerate(program.tasks)
                   if any(program.base(v) == name for v in task.operands.values())]  # fmt: skip
        assert max(readers) <= writer


def test_nodes_without_a_gradient_are_all_named() -> None:
    """Also those behind which another one stands."""
    draw = np.random.default_rng(0)
    constants = {name: draw.standard_normal((1, 3, 3)).astype(np.float32) for name in 'wr'}
    nodes = (
        Node('RNN', 'first', ('x', 'w', 'r'), ('', 'a'), {'clip': 1.0}),
        Node('RNN', 'second', ('a', 'w', 'r'), ('', 'b'), {'clip': 2.0}),
    )
    graph = Graph('net', (Value('x', (4, 2, 3)),), (('y', 'b'),), nodes, constants)
    with pytest.raises(UnsupportedError, match='rnn with clip has no gradient') as found:
        step_program(trainable(graph, 'mse'), tw.SGD(0.1))
    assert found.value.nodes == ('second', 'first')
    with pytest.raises(InputError, match="loss is 'hinge'; choose one of cross_entropy"):
        trainable(graph, 'hinge')


class Recurrent(nn.Module):
    """A recurrent layer whose outputs, last state and last cell all matter."""

    def __init__(self, kind: str, **options: Any) -> None:
        super().__init__()
        self.layer = getattr(nn, kind)(3, 4, batch_first=True, **options)

    def forward(self, x: Any) -> Any:
        y, state = self.layer(x)
        last = state[0] + state[1] if isinstance(state, tuple) else state
        return y.mean(1) * y[:, -1] + y[:, 0] + last.sum()


RECURRENT = [
    ('LSTM', {}), *(pytest.param(*c, marks=pytest.mark.slow) for c in (
        ('RNN', {}), ('GRU', {}), ('LSTM', {'bidirectional': True, 'num_layers': 2}),
        ('GRU', {'bidirectional': True})))
]  # fmt: skip


@pytest.mark.parametrize(('kind', 'options'), RECURRENT)
def test_recurrent_layers_learn_as_in_pytorch(kind: str, options: dict) -> None:
    torch.manual_seed(0)
    module = Recurrent(kind, **options)
    x, y = torch.randn(2, 5, 3), torch.randn(2, 8 if options.get('bidirectional') else 4)
    loss = functional.mse_loss
    step = Interpreted(import_training(module, loss, (x, y)), tw.SGD(0.1, momentum=0.9))
    rule = torch.optim.SGD(module.parameters(), 0.1, 0.9)
    for _ in range(3):
        assert step(x, y) == pytest.approx(theirs(module, rule, loss, x, y), rel=1e-5)


def test_dropout_draws_by_its_counter() -> None:
    """The share that is dropped, other masks in every call, and gradients through the same mask."""
    nodes = (
        Node('Mul', 'scaled', ('x', 'w'), ('a',)),
        Node('Dropout', 'drop', ('a', 'ratio'), ('b',)),
    )
    constants = {'w': np.ones(4000, np.float32), 'ratio': np.float32(0.3)}
    graph = Graph('net', (Value('x', (4000,)),), (('y', 'b'),), nodes, constants)
    step = Interpreted(trainable(graph, 'mse'), tw.SGD(1000.0))
    x, zero = np.ones(4000, np.float32), np.zeros(4000, np.float32)
    kept = []
    for _ in range(2):
        step.state['w'] = np.ones(4000, np.float32)
        loss = step(x, zero)
        # loss = mean((mask w / 0.7)^2), so that a gradient of zero says what was dropped
        kept.append(step.state['w'] != 1)
        assert loss == pytest.approx(kept[-1].mean() / 0.49, rel=1e-5)
    assert [k.mean() for k in kept] == pytest.approx([0.7, 0.7], abs=0.03)
    assert 0.35 < (kept[0] != kept[1]).mean() < 0.49


class Words(nn.Module):
    """An embedding, attention, layer norms and gelu."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.layer = nn.TransformerEncoderLayer(
            8, 2, 16, dropout=0.0, batch_first=True, activation='gelu'
        )
        self.scores = nn.Linear(8, 11)

    def forward(self, words: Any) -> Any:
        return self.scores(self.layer(self.embedding(words))).transpose(1, 2)


class Images(nn.Module):
    """Borders, upsampling, a transposed convolution, and reductions of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, padding_mode='reflect')
        self.norm, self.slope = nn.GroupNorm(2, 4), nn.PReLU()
        self.up = nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1)

    def forward(self, x: Any) -> Any:
        x = functional.avg_pool2d(self.slope(self.norm(self.conv(x))), 3, 2, 1)
        x = torch.cat([self.up(x), functional.interpolate(x, scale_factor=2)], 1)
        x = functional.interpolate(x, scale_factor=2, mode='bilinear')
        return functional.silu(x).std(1) + functional.softplus(x.amax(1)).cumsum(1)


def compare(module: Any, loss: Callable, x: Any, y: Any) -> None:
    """A step of plain SGD at rate 1 moves each parameter by its gradient: in float64, without a
    compiler, against PyTorch in float64.
    """
    trained = import_training(module, loss, (x, y))
    program, state = step_program(trained, tw.SGD(1.0))
    given = dict(zip((v.name for v in trained.data), (x.numpy(), y.numpy()), strict=True))
    found = evaluate(program, {**state, RATE: np.ones(1, np.float32), **given}, exact=True)
    x, y = (t.double() if t.is_floating_point() else t for t in (x, y))
    want = loss(module.double().train()(x), y)
    want.backward()
    assert float(found[LOSS]) == pytest.approx(want.item(), rel=1e-6)
    for own, parameter in module.named_parameters():
        got, slope = state[own].astype(np.float64) - found[f'{own}{NEXT}'], parameter.grad.numpy()
        np.testing.assert_allclose(got, slope, rtol=1e-5, atol=1e-5 * np.abs(slope).max() + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize('kind', [Words, Images])
def test_gradients_of_layers(kind: type) -> None:
    torch.manual_seed(0)
    if kind is Images:
        x, y = torch.randn(2, 2, 8, 8), torch.randn(2, 16, 16)
        return compare(kind(), functional.mse_loss, x, y)
    x, y = torch.randint(0, 11, (3, 5)), torch.randint(0, 11, (3, 5))
    return compare(kind(), functional.cross_entropy, x, y)


@pytest.mark.slow
@pytest.mark.parametrize('name', zoo.NAMES)
def test_gradients_of_the_zoo(name: str) -> None:
    module = zoo.torch_module(name, batch=2, **zoo.SMALL[name]).train()
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    x = torch.from_numpy(zoo.example(zoo.network(name, 2, **zoo.SMALL[name])))
    compare(module, functional.cross_entropy, x, torch.tensor([1, 3]))
