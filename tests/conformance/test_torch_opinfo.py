"""PyTorch's OpInfo samples of convolutions and poolings, through importer, compiler and kernels.

Every distinct sample is imported and computed by numpy; some of each operator are also compiled,
and in the slow run all are. Calls that PyTorch refuses are refused, with its reason.
"""

from __future__ import annotations

import shutil
import warnings

import numpy as np
import pytest

from tilewright.errors import ModelError
from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower
from tilewright.importers.torch import import_torch
from tilewright.network.compile import compile as compile_graph

torch = pytest.importorskip('torch')
from torch_samples import OPERATORS, Samples, errors, load, samples  # noqa: E402 (needs torch)

# Samples of an operator that are computed, and compiled, in the quick run; at once in the slow run.
MOST, COMPILED, TOGETHER = 10, 2, 30
LARGE = ('nn.functional.conv_transpose3d',)  # takes numpy seconds each
# Of the operators on lines and volumes kernels and refusals are slow: their code is that of planes.
PLANES = [
    pytest.param(name, marks=[pytest.mark.slow] * (not name.endswith('2d'))) for name in OPERATORS
]
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ('gcc', 'clang', 'cc'))), reason='no C compiler is installed'
)


@pytest.fixture(scope='module')
def operators():
    return load()


def spread(found, most):
    """At most so many, evenly out of all."""
    return found[:: max(1, -(-len(found) // most))]


def check(found, run):
    """[samples] -> what `run` makes of their graph is what PyTorch computes."""
    module = Samples(found)
    tensors = [tensor for sample in found for tensor in sample.tensors]
    graph = import_torch(module, example_inputs=tensors)
    arrays = {v.name: t.numpy() for v, t in zip(graph.inputs, tensors, strict=True)}
    got = list(run(graph, arrays).values())
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter('ignore')
        answers = [(sample.key, y) for sample in found for y in sample.call(sample.tensors)]
    assert len(answers) == len(got)
    for (key, want), answer in zip(answers, got, strict=True):
        assert answer.dtype == want.numpy().dtype, key
        np.testing.assert_allclose(answer, want.numpy(), rtol=1e-5, atol=1e-4, err_msg=key)


def by_numpy(graph, arrays):
    return evaluate(lower(graph), arrays)


def by_kernels(graph, arrays):
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', UserWarning)  # a machine that was never measured
        return compile_graph(graph, threads=1).run(arrays)


@pytest.mark.parametrize('name', OPERATORS)
def test_samples_by_numpy(operators, name):
    check(spread(samples(operators[name]), 3 if name in LARGE else MOST), by_numpy)


@needs_compiler
@pytest.mark.parametrize('name', PLANES)
def test_samples_by_kernels(operators, name):
    check(spread(samples(operators[name]), COMPILED), by_kernels)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize('name', OPERATORS)
def test_all_samples(operators, name):
    found = samples(operators[name])
    for start in range(0, len(found), TOGETHER):
        part = found[start : start + TOGETHER]
        check(part, by_numpy)
        check(part, by_kernels)


@pytest.mark.parametrize('name', PLANES)
def test_calls_that_pytorch_refuses_are_refused(operators, name):
    for sample, _, pattern in errors(operators[name]):
        with pytest.raises(ModelError, match='does not run on the example inputs') as caught:
            import_torch(Samples([sample]), example_inputs=sample.tensors)
        assert '\n' not in str(caught.value)
        with pytest.raises(Exception, match=pattern):
            sample.call(sample.tensors)
