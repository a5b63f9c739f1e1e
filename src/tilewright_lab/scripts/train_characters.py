"""A recurrent network learns the text of this repository, character by character, beside PyTorch.

    python -m tilewright_lab.scripts.train_characters [--text FILE ..] [--target cpu] [--threads 2]
        [--steps 300] [--max-rel-err 1e-6] [--json FILE] [--picture FILE]

Goes in: plain text, the pages of docs/ if nothing else is named. Comes out: the loss of every step
of both, from the same weights on the same batches: pieces of text at random places, of which each
character is to be named from those before it; and PyTorch's from weights moved by a rounding.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import tilewright as tw
from tilewright_lab.scripts.train_digits import Theirs, errors, learn, tell

BATCH, LENGTH, RATE = 16, 32, 3e-3


class Characters(nn.Module):
    """Characters, embedded, through an LSTM; scores of the next one at every place."""

    def __init__(self, kinds: int, units: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(kinds, units // 2)
        self.lstm = nn.LSTM(units // 2, units, batch_first=True)
        self.scores = nn.Linear(units, kinds)

    def forward(self, x: Any) -> Any:
        return self.scores(self.lstm(self.embedding(x))[0]).flatten(0, 1)


def pieces(text: np.ndarray, steps: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(characters, those that follow each) of every batch."""
    draw = np.random.default_rng(0)
    for _ in range(steps):
        at = draw.integers(0, len(text) - LENGTH - 1, BATCH)[:, None] + np.arange(LENGTH)
        yield text[at], text[at + 1].reshape(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--text', nargs='*', type=Path, default=sorted(Path('docs').glob('*.md')))
    parser.add_argument('--target', default='cpu')
    parser.add_argument('--threads', type=int)
    parser.add_argument('--max-rel-err', type=float, help='of tw.compile_training')
    parser.add_argument('--steps', type=int, default=300)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--picture', type=Path)
    asked = parser.parse_args()
    letters, numbers = np.unique(
        list(''.join(file.read_text() for file in asked.text)), return_inverse=True
    )
    text = numbers.astype(np.int64)
    torch.manual_seed(0)
    module = Characters(len(letters))
    optimizer = partial(torch.optim.Adam, lr=RATE)
    theirs = Theirs(module, optimizer)
    first = next(pieces(text, 1))
    step = tw.compile_training(
        module,
        'cross_entropy',
        theirs.rule,
        first,
        target=asked.target,
        threads=asked.threads,
        **errors(asked.max_rel_err),
    )
    losses = learn(
        {'tilewright': step, 'torch': theirs, 'torch_nudged': Theirs(module, optimizer, True)},
        pieces(text, asked.steps),
    )
    report = {
        'target': asked.target, 'max_rel_err': asked.max_rel_err, 'steps': len(losses['torch']),
        'batch': BATCH, 'length': LENGTH,
        'kinds': len(letters), 'characters': len(text), 'torch': torch.__version__,
        'loss': losses,
    }  # fmt: skip
    tell(report, asked.json, asked.picture)


if __name__ == '__main__':
    main()
