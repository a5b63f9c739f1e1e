"""A small residual network learns handwritten digits, by us and by PyTorch, on the same batches.

    python -m tilewright_lab.scripts.train_digits [--target cpu] [--threads 2] [--epochs 6]
        [--json FILE] [--picture FILE]

Goes in: the 1,797 digits of 8x8 pixels that scikit-learn carries (pip install 'tilewright[train]'),
the last 297 of them held back. Comes out: the loss of every step of both, and the share of
held-back digits that each names right, with the same weights at first and the same order of
batches.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import tilewright as tw
from tilewright.report.pictures import canvas, save

BATCH, TRAINED, RATE, MOMENTUM, DECAY = 50, 1500, 0.05, 0.9, 1e-4


class Block(nn.Module):
    """Two 3x3 convolutions around which the input goes, by a 1x1 convolution where sizes change."""

    def __init__(self, c: int, k: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(c, k, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(k)
        self.second = nn.Conv2d(k, k, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(k)
        self.short = nn.Identity() if c == k else nn.Conv2d(c, k, 1, stride, bias=False)

    def forward(self, x: Any) -> Any:
        inner = torch.relu(self.first_norm(self.first(x)))
        return torch.relu(self.second_norm(self.second(inner)) + self.short(x))


def small_resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 16, 1), Block(16, 32, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(32, 10),
    )  # fmt: skip


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images [1797, 1, 8, 8] from 0 to 1, and what they show."""
    from sklearn.datasets import load_digits  # pyright: ignore[reportMissingImports]

    found: Any = load_digits()
    return found.images[:, None].astype(np.float32) / 16, found.target.astype(np.int64)


def batches(epochs: int) -> Iterator[np.ndarray]:
    """Numbers of the digits of each batch, shuffled anew in every epoch."""
    draw = np.random.default_rng(0)
    for _ in range(epochs):
        yield from draw.permutation(TRAINED).reshape(-1, BATCH)


def right(module: Any, x: np.ndarray, y: np.ndarray) -> float:
    with torch.no_grad():
        found = module.eval()(torch.from_numpy(x)).argmax(1).numpy()
    return float((found == y).mean())


def learn(
    step: Any, other: Any, rule: Any, data: Iterable[tuple[np.ndarray, np.ndarray]]
) -> tuple[list[float], list[float]]:
    """Losses of every step, ours and those of PyTorch's module under its optimiser."""
    ours, theirs = [], []
    for x, y in data:
        ours.append(step(x, y))
        loss = nn.functional.cross_entropy(other(torch.from_numpy(x)), torch.from_numpy(y))
        rule.zero_grad()
        loss.backward()
        rule.step()
        theirs.append(loss.item())
    return ours, theirs


def tell(report: dict, json_file: Path | None, picture: Path | None) -> None:
    """Say how two curves of `report['loss']` compare; write them, and draw them, where asked."""
    ours, theirs = report['loss']['tilewright'], report['loss']['torch']
    off = np.abs(np.array(ours) - theirs)
    print(f'{len(ours)} steps: loss {ours[0]:.4f} to {np.mean(ours[-10:]):.4f}, PyTorch to '
          f'{np.mean(theirs[-10:]):.4f}; they differ by {off.max():.1e} at most, '
          f'{off[:30].max():.1e} in the first 30')  # fmt: skip
    if json_file:
        json_file.write_text(json.dumps(report, indent=1) + '\n')
    if picture:
        figure = canvas(7, 3.2)
        axes = figure.subplots()
        axes.plot(theirs, label='PyTorch', linewidth=2.5, color='0.7')
        axes.plot(ours, label='tw.compile_training', linewidth=0.9)
        axes.set(xlabel='step', ylabel='loss', yscale='log')
        axes.legend()
        save(figure, picture)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--target', default='cpu')
    parser.add_argument('--threads', type=int)
    parser.add_argument('--epochs', type=int, default=6)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--picture', type=Path)
    asked = parser.parse_args()
    x, y = digits()
    torch.manual_seed(0)
    module = small_resnet().train()
    other = copy.deepcopy(module)
    rule = torch.optim.SGD(other.parameters(), RATE, MOMENTUM, weight_decay=DECAY)
    step = tw.compile_training(
        module, 'cross_entropy', rule, (x[:BATCH], y[:BATCH]), target=asked.target,
        threads=asked.threads,
    )  # fmt: skip
    ours, theirs = learn(step, other, rule, ((x[i], y[i]) for i in batches(asked.epochs)))
    module.load_state_dict(step.state_dict())
    held = (x[TRAINED:], y[TRAINED:])
    report = {
        'target': asked.target, 'steps': len(ours), 'batch': BATCH, 'torch': torch.__version__,
        'right': {'tilewright': right(module, *held), 'torch': right(other, *held)},
        'loss': {'tilewright': ours, 'torch': theirs},
    }  # fmt: skip
    tell(report, asked.json, asked.picture)
    print(f'right {report["right"]}')


if __name__ == '__main__':
    main()
