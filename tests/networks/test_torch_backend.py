"""torch.compile(backend='tilewright'): right results, fall-backs that say why."""

from __future__ import annotations

import copy
import shutil
import warnings

import pytest

from tilewright.network import torch_backend
from tilewright.network.torch_backend import tilewright

torch = pytest.importorskip('torch')
pytestmark = [
    pytest.mark.skipif(
        not any(map(shutil.which, ('gcc', 'clang', 'cc'))), reason='no C compiler is installed'
    ),
    pytest.mark.filterwarnings('ignore:.*was never measured'),
    pytest.mark.filterwarnings('ignore::DeprecationWarning'),
    pytest.mark.filterwarnings('ignore::FutureWarning'),
]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)
        self.norm = torch.nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        return self.norm(self.conv(x)).relu_()


class Apply(torch.nn.Module):
    def forward(self, x, weight):
        return (torch.nn.functional.conv2d(x, weight),)


def compiled(module, **more):
    return torch.compile(module, backend=tilewright, options={'threads': 1, **more})


def close(got, want):
    return bool((got - want).abs().max() <= 1e-5 * want.abs().max())


def said(caught):
    return [str(w.message) for w in caught if w.category is UserWarning]


def test_a_module_is_compiled_and_right():
    module = Small().eval()
    fast = compiled(module)
    with torch.inference_mode(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for batch in (1, 1, 2, 3):  # the tracer leaves sizes open from the second shape on
            x = torch.randn(batch, 3, 6, 7)
            assert close(fast(x), module(x))
    assert not [text for text in said(caught) if 'PyTorch instead' in text]


def test_inputs_of_any_layout():
    module = Small().eval()
    fast = compiled(module)
    x = torch.randn(1, 3, 7, 6)
    with torch.no_grad():
        assert close(fast(x.transpose(2, 3)), module(x.transpose(2, 3)))
        assert close(
            fast(x.contiguous(memory_format=torch.channels_last).transpose(2, 3)),
            module(x.transpose(2, 3)),
        )


def test_weights_that_change_are_noticed():
    module = Small().eval()
    fast = compiled(module)
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        before = fast(x)
        module.conv.weight.mul_(2)
        module.norm.running_mean.add_(0.5)
        assert close(fast(x), module(x))
        assert not close(fast(x), before)


def test_weights_that_are_replaced_are_noticed():
    """Also where a new tensor gets the address in Python of one that is gone."""
    module = torch.nn.Conv2d(3, 4, 3).eval()
    graph = torch_backend._Graph(
        torch.fx.symbolic_trace(Apply()), (None, module.weight), {'threads': 1}
    )
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad():
        for scale in (1, 2, 3):
            weight = torch.nn.Parameter(torch.full((4, 3, 3, 3), float(scale)))
            (got,) = graph(x, weight)
            assert close(got, torch.nn.functional.conv2d(x, weight))
            address = id(weight)
            del weight
        reused = [torch.nn.Parameter(torch.randn(4, 3, 3, 3)) for _ in range(100)]
        for weight in sorted(reused, key=lambda w: id(w) != address)[:2]:
            (got,) = graph(x, weight)
            assert close(got, torch.nn.functional.conv2d(x, weight))
        weight.data = torch.randn(4, 3, 3, 3)  # another array under the same name
        (got,) = graph(x, weight)
        assert close(got, torch.nn.functional.conv2d(x, weight))


def test_results_do_not_share_memory():
    fast = compiled(Small().eval())
    with torch.no_grad():
        first = fast(torch.ones(1, 3, 6, 6))
        kept = first.clone()
        fast(torch.zeros(1, 3, 6, 6))
    assert torch.equal(first, kept)


def test_graph_breaks_and_unsupported_graphs_run_in_pytorch():
    inner = Small().eval()

    def function(x):
        y = inner(x)
        torch._dynamo.graph_break()
        return torch.linalg.svdvals(y[0, 0]), y.sum((2, 3)), x

    fast = compiled(function)
    x = torch.randn(1, 3, 6, 6)
    with torch.no_grad(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        got = [fast(x) for _ in range(2)][1]
        want = function(x)
    assert all(close(a, b) for a, b in zip(got, want, strict=True))
    assert got[2] is x
    texts = [text for text in said(caught) if 'runs in PyTorch instead' in text]
    assert len(texts) == 1  # once for each graph
    assert 'contains what is not supported: 1 x aten._linalg_svd' in texts[0]


def layers():
    return torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.Dropout(0.5), torch.nn.Tanh())


def images():
    return torch.nn.Sequential(Small(), torch.nn.Dropout(0.5), torch.nn.MaxPool2d(2))


@pytest.mark.parametrize('make', [layers, pytest.param(images, marks=pytest.mark.slow)])
def test_a_module_is_trained_by_compiled_graphs(make):
    """Forward and backward are ours, up to what PyTorch draws: as without us, statistics too."""
    module = make().train()
    other = copy.deepcopy(module)
    fast, made = compiled(module), []
    x = torch.randn(2, 3, 6, 6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter('always')
        for network in (fast, other):
            torch.manual_seed(1)
            made.append(network(x))
            made[-1].square().sum().backward()
    assert close(*made)
    # A bias before a batch norm has the gradient 0, up to the rounding of the others.
    scale = max(p.grad.abs().max() for p in other.parameters())
    for ours, theirs in zip(module.parameters(), other.parameters(), strict=True):
        assert (ours.grad - theirs.grad).abs().max() <= 1e-5 * scale
    for ours, theirs in zip(module.buffers(), other.buffers(), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
    texts = said(caught)
    assert any('these run in PyTorch: 1 x aten.native_dropout.default' in t for t in texts)
    assert not any('instead' in text for text in texts)


def test_shapes_that_are_kept_are_bounded(monkeypatch):
    monkeypatch.setattr(torch_backend, 'MOST_SHAPES', 2)
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    backend = tilewright(graph, [torch.ones(1)], options={'threads': 1})
    for size in range(1, 5):
        assert torch.equal(backend(torch.ones(size))[0], torch.ones(size))
    assert len(backend.compiled) == 2


@pytest.mark.parametrize(
    ('options', 'reason'),
    [({'tune': 'guess'}, "tune is 'guess'"), ({'tunes': 'model'}, "'tunes', which is not known")],
)
def test_bad_options_fall_back_with_a_reason(options, reason):
    fast = compiled(Small().eval(), **options)
    with torch.no_grad(), pytest.warns(UserWarning, match=reason):
        assert fast(torch.randn(1, 3, 6, 6)).shape == (1, 4, 4, 4)
