"""A small residual network learns handwritten digits, by us and by PyTorch, on the same batches.

    python -m tilewright_lab.scripts.train_digits [--target cpu] [--threads 2] [--epochs 6]
        [--max-rel-err 1e-6] [--json FILE] [--picture FILE]

Goes in: the 1,797 digits of 8x8 pixels that scikit-learn carries (pip install 'tilewright[train]'),
the last 297 of them held back. Comes out: the loss of every step of both, and the share of
held-back digits that each names right, with the same weights at first and the same order of
batches. How far apart two curves get by roundings alone is said by PyTorch once more, from weights
moved to the next float32.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
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


class Theirs:
    """PyTorch's copy of a module, which learns beside ours; `nudged`: from the next weights."""

    def __init__(
        self, module: nn.Module, optimizer: Callable[[Any], Any], nudged: bool = False
    ) -> None:
        self.module = copy.deepcopy(module)
        if nudged:
            with torch.no_grad():
                draw = torch.Generator().manual_seed(1)
                for weights in self.module.parameters():
                    up = torch.rand(weights.shape, generator=draw) < 0.5
                    weights.copy_(torch.nextafter(weights, torch.where(up, torch.inf, -torch.inf)))
        self.rule = optimizer(self.module.parameters())

    def __call__(self, x: np.ndarray, y: np.ndarray) -> float:
        loss = nn.functional.cross_entropy(self.module(torch.from_numpy(x)), torch.from_numpy(y))
        self.rule.zero_grad()
        loss.backward()
        self.rule.step()
        return loss.item()


def learn(
    learners: Mapping[str, Callable[[np.ndarray, np.ndarray], float]],
    data: Iterable[tuple[np.ndarray, np.ndarray]],
) -> dict[str, list[float]]:
    """Losses of every step by each of several."""
    losses: dict[str, list[float]] = {name: [] for name in learners}
    for x, y in data:
        for name, step in learners.items():
            losses[name].append(step(x, y))
    return losses


def tell(report: dict, json_file: Path | None, picture: Path | None) -> None:
    """Say how the curves of `report['loss']` compare; write them, and draw them, where asked."""
    losses = {name: np.array(values) for name, values in report['loss'].items()}
    ours, theirs = losses['tilewright'], losses['torch']
    print(f'{len(ours)} steps: loss {ours[0]:.4f} to {np.mean(ours[-10:]):.4f}, PyTorch to '
          f'{np.mean(theirs[-10:]):.4f}')  # fmt: skip
    report['apart'] = {
        name: {str(n): float(np.abs(losses[name] - theirs)[:n].max()) for n in (30, 60, len(ours))}
        for name in ('tilewright', 'torch_nudged')
    }
    for name, apart in report['apart'].items():
        said = ', '.join(f'{value:.1e} in the first {n}' for n, value in apart.items())
        print(f'{name} differs from PyTorch by {said} steps')
    if json_file:
        json_file.write_text(json.dumps(report, indent=1) + '\n')
    if picture:
        figure = canvas(7, 3.2)
        axes = figure.subplots()
        axes.plot(theirs, label='PyTorch', linewidth=2.5, color='0.7')
        axes.plot(
            losses['torch_nudged'], label='PyTorch, weights nudged', linewidth=0.9, color='C1'
        )
        axes.plot(ours, label='tw.compile_training', linewidth=0.9)
        axes.set(xlabel='step', ylabel='loss', yscale='log')
        axes.legend()
        save(figure, picture)


def errors(max_rel_err: float | None) -> dict[str, Any]:
    """The option of `compile_training`, where it is given."""
    return {} if max_rel_err is None else {'max_rel_err': max_rel_err}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('--target', default='cpu')
    parser.add_argument('--threads', type=int)
    parser.add_argument('--max-rel-err', type=float, help='of tw.compile_training')
    parser.add_argument('--epochs', type=int, default=6)
    parser.add_argument('--json', type=Path)
    parser.add_argument('--picture', type=Path)
    asked = parser.parse_args()
    x, y = digits()
    torch.manual_seed(0)
    module = small_resnet().train()
    optimizer = partial(torch.optim.SGD, lr=RATE, momentum=MOMENTUM, weight_decay=DECAY)
    theirs = Theirs(module, optimizer)
    step = tw.compile_training(
        module, 'cross_entropy', theirs.rule, (x[:BATCH], y[:BATCH]), target=asked.target,
        threads=asked.threads, **errors(asked.max_rel_err),
    )  # fmt: skip
    losses = learn(
        {'tilewright': step, 'torch': theirs, 'torch_nudged': Theirs(module, optimizer, True)},
        ((x[i], y[i]) for i in batches(asked.epochs)),
    )
    module.load_state_dict(step.state_dict())
    held = (x[TRAINED:], y[TRAINED:])
    report = {
        'target': asked.target, 'max_rel_err': asked.max_rel_err, 'steps': len(losses['torch']),
        'batch': BATCH, 'torch': torch.__version__,
        'right': {'tilewright': right(module, *held), 'torch': right(theirs.module, *held)},
        'loss': losses,
    }  # fmt: skip
    tell(report, asked.json, asked.picture)
    print(f'right {report["right"]}')


if __name__ == '__main__':
    main()
