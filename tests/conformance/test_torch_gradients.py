"""PyTorch's OpInfo samples, turned around: gradients by every float tensor that an operator takes.

Each sample is traced with its tensors as parameters, and with a sum of its results, weighted by
fixed numbers, as the loss. A step of plain SGD at rate 1 moves them by their gradients: by the
reference interpreter in float64, against PyTorch in float64, within 1e-5 of the largest element.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ModelError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.training import NEXT, RATE, step_program

torch = pytest.importorskip('torch')
from torch_samples import CONVOLUTIONS, POOLINGS, Sample, load, samples  # noqa: E402

from tilewright.importers.torch import import_training  # noqa: E402

FUNCTIONAL = (
    'celu', 'cross_entropy', 'elu', 'embedding', 'gelu', 'group_norm', 'hardsigmoid', 'hardswish',
    'hardtanh', 'instance_norm', 'interpolate', 'l1_loss', 'layer_norm', 'leaky_relu', 'linear',
    'logsigmoid', 'mish', 'mse_loss', 'nll_loss', 'pad', 'prelu', 'relu', 'relu6', 'selu', 'silu',
    'smooth_l1_loss', 'softplus', 'softsign', 'unfold',
)  # fmt: skip
PLAIN = (
    'abs', 'add', 'addmm', 'amax', 'amin', 'atan', 'baddbmm', 'bmm', 'ceil', 'clamp', 'cos', 'cosh',
    'cumsum', 'diff', 'div', 'erf', 'exp', 'expand', 'expm1', 'flatten', 'flip', 'gather',
    'index_select', 'linalg.norm', 'log', 'log1p', 'log_softmax', 'logsumexp', 'masked_fill',
    'matmul', 'maximum', 'mean', 'minimum', 'mm', 'movedim', 'mul', 'narrow', 'neg', 'permute',
    'pow', 'prod', 'reciprocal', 'repeat', 'reshape', 'rsqrt', 'rsub', 'select', 'sigmoid', 'sin',
    'sinh', 'softmax', 'sqrt', 'square', 'squeeze', 'std', 'sub', 'sum', 'tan', 'tanh', 'transpose',
    'tril', 'triu', 'unsqueeze', 'var', 'where',
)  # fmt: skip
OPERATORS = (*PLAIN, *(f'nn.functional.{name}' for name in FUNCTIONAL), *CONVOLUTIONS, *POOLINGS)
QUICK = ('matmul', 'var', 'nn.functional.layer_norm', 'nn.functional.conv2d')
MOST = 16  # samples of an operator in the slow run
LARGE = 4000  # elements of a tensor: beyond, the interpreter takes seconds


class Learned(torch.nn.Module):
    """Samples whose float tensors are parameters; a weighted sum of their results is the loss."""

    def __init__(self, found: Sequence[Sample]) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(0)
        self.calls, self.weights = [], []
        self.learned = torch.nn.ParameterList()
        for sample in found:
            places = []
            for tensor in sample.tensors:
                is_float = tensor.is_floating_point()
                places.append(len(self.learned) if is_float else tensor)
                if is_float:
                    self.learned.append(torch.nn.Parameter(tensor.clone()))
            self.calls.append((sample, places))
            results = [y for y in sample.call(sample.tensors) if y.is_floating_point()]
            self.weights.append([torch.rand(y.shape, generator=draw) + 0.5 for y in results])

    def forward(self, one: Any) -> Any:
        total = one.sum()
        for (sample, places), weights in zip(self.calls, self.weights, strict=True):
            given = [self.learned[p] if isinstance(p, int) else p for p in places]
            results = [y for y in sample.call(given) if y.is_floating_point()]
            for y, w in zip(results, weights, strict=True):
                total = total + (y * w.to(y.dtype)).sum()
        return total


def usable(info: Any) -> list[Sample]:
    """Samples with something to learn, of a size that the interpreter takes."""
    found = samples(info)
    return [
        s
        for s in found
        if any(t.is_floating_point() and t.numel() for t in s.tensors)
        and max(t.numel() for t in s.tensors) <= LARGE
        and _is_learned(s)
    ]


def _is_learned(sample: Sample) -> bool:
    """Whether PyTorch takes all of its floats as parameters; weights of classes it does not."""
    given = [
        t.clone().requires_grad_() if t.is_floating_point() else t for t in sample.tensors
    ]  # fmt: skip
    try:
        sample.call(given)
    except RuntimeError as error:
        if 'not differentiable with respect to' not in str(error):
            raise
        return False
    return True


def check(found: Sequence[Sample]) -> None:
    module, one = Learned(found), torch.ones(1)
    trained = import_training(module, None, (one,))
    program, state = step_program(trained, tw.SGD(1.0))
    given = {trained.data[0].name: one.numpy(), RATE: np.ones(1, np.float32)}
    moved = evaluate(program, {**state, **given}, exact=True)
    wide = module.double()
    wide(one.double()).backward()
    for name, parameter in wide.named_parameters():
        if parameter.grad is None:
            continue
        want = parameter.grad.to_dense().numpy()
        got = state[name].astype(np.float64) - moved[f'{name}{NEXT}']
        most = np.abs(want).max(initial=0.0)
        keys = [sample.key for sample in found]
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * most + 1e-12, err_msg=str(keys))


@pytest.fixture(scope='module')
def operators() -> dict[str, Any]:
    return load(OPERATORS)


@pytest.mark.filterwarnings('ignore')
def test_a_few_samples_have_pytorchs_gradients(operators: dict[str, Any]) -> None:
    check([s for name in QUICK for s in usable(operators[name])[:6:2]])


@pytest.mark.slow
@pytest.mark.parametrize('name', OPERATORS)
def test_samples_have_pytorchs_gradients(operators: dict[str, Any], name: str) -> None:
    """Calls that cannot be imported are refused as such; of each operator some can."""
    found = usable(operators[name])
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')
        assert _checked(found[:: max(1, -(-len(found) // MOST))])


def _checked(found: Sequence[Sample]) -> int:
    """How many can be imported and are right: in one trace, or each half by itself."""
    try:
        check(found)
    except ModelError:
        half = len(found) // 2
        return _checked(found[:half]) + _checked(found[half:]) if half else 0
    return len(found)
