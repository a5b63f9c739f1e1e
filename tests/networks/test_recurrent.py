"""Recurrent layers of PyTorch, whose export unrolls them: forwards, backwards, and both."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw

torch = pytest.importorskip('torch', reason='install the extra tilewright[torch]')


@pytest.mark.parametrize('kind', ['LSTM', 'GRU', 'RNN'])
def test_both_directions(kind: str) -> None:
    """The second direction reads the sequence backwards: flips must survive fusion."""
    torch.manual_seed(0)
    layer = getattr(torch.nn, kind)(3, 4, bidirectional=True, batch_first=True).eval()
    x = torch.randn(2, 3, 3)
    with torch.no_grad():
        want = layer(x)[0].numpy()

    class Sequence(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x)[0]

    got = tw.compile(Sequence(), example_inputs=[x], threads=1)(x.numpy())
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()
