"""Embeddings: PyTorch's bags in every form, indices outside a table, tables that are not copied."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tilewright.graph.evaluate import evaluate
from tilewright.graph.lower import lower
from tilewright.importers.torch import import_torch

torch = pytest.importorskip('torch', reason='install the extra tilewright[torch]')
ROWS, COLUMNS = 9, 5
OFFSETS = (None, (0, 3, 3, 5), (0, 2, 7, 9), (0, 0, 9, 9))


def bags(mode: str, offsets: tuple | None, weighted: bool, last: bool, padding: int | None):
    """A module, and inputs for it; no offsets: indices in two dimensions."""
    torch.manual_seed(3)
    layer = torch.nn.EmbeddingBag(
        ROWS, COLUMNS, mode=mode, include_last_offset=last, padding_idx=padding
    ).double()
    indices = torch.randint(0, ROWS, (3, 4) if offsets is None else (9,))
    indices.view(-1)[:3] = 4  # a bag of padding alone
    given = [indices]
    if offsets is not None:
        given.append(torch.tensor([*offsets, 9] if last else offsets))
    elif weighted:
        given.append(None)
    if weighted:
        given.append(torch.randn(indices.shape, dtype=torch.float64))
    return layer.eval(), given


CASES = [
    case
    for case in product(('sum', 'mean', 'max'), OFFSETS, (False, True), (False, True), (None, 4))
    if (case[0] == 'sum' or not case[2]) and (case[1] is not None or not case[3])
]


@pytest.mark.parametrize(
    'case',
    [pytest.param(c, marks=[pytest.mark.slow] * (n % 13 > 0)) for n, c in enumerate(CASES)],
    ids=str,
)
def test_bags_are_what_pytorch_computes(case) -> None:
    """Modes, offsets at the call, weights, padding, empty bags; exactly as PyTorch in float64."""
    layer, given = bags(*case)
    graph = import_torch(layer, example_inputs=given)
    arrays = [tensor.numpy() for tensor in given if tensor is not None]
    named = dict(zip((v.name for v in graph.inputs), arrays, strict=True))
    (got,) = evaluate(lower(graph), named).values()
    np.testing.assert_allclose(got, layer(*given).detach().numpy(), rtol=1e-12, atol=1e-14)
