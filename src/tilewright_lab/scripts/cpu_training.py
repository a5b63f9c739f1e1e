"""A training step on a CPU beside PyTorch: forward, loss, backward and SGD with momentum.

    python -m tilewright_lab.scripts.cpu_training [NETWORK ..] [--threads 2] [--batch 8]
        [--rounds 9] [--peers eager compile] [--compile-only] [--profile 20] [--json FILE]

Goes in: names out of `NETWORKS`. Comes out: seconds of a step in interleaved rounds, ours and
PyTorch's (eager, and by torch.compile; the faster one counts), the losses of the first steps from
the same weights on the same batch, and how far they are apart. Each contestant takes two steps in
its turn, and the second is timed, so that thread pools of the others sleep by then.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import tilewright as tw
from tilewright import zoo
from tilewright.cli.output import versions

RATE, MOMENTUM, CHECKED = 0.01, 0.9, 3
WORDS, LENGTH, CLASSES = 1000, 64, 10
Step = Callable[[Any, Any], float]


class LstmClassifier(nn.Module):
    """Words, embedded, through one LSTM; the last state is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 128)
        self.lstm = nn.LSTM(128, 256, batch_first=True)
        self.out = nn.Linear(256, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.out(self.lstm(self.embedding(x))[0][:, -1])


class TransformerClassifier(nn.Module):
    """Words, embedded, through two encoder layers; the mean over words is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(256, CLASSES)

    def forward(self, x: Any) -> Any:
        return self.out(self.encoder(self.embedding(x)).mean(1))


def _images(name: str, batch: int) -> tuple[nn.Module, Any, Any]:
    """With PyTorch's first weights: the zoo's are drawn for inference."""
    x = torch.randn(*zoo.network(name, batch).shape)  # pyright: ignore[reportAttributeAccessIssue]
    module = zoo.torch_module(name, batch=batch)
    for part in module.modules():
        if hasattr(part, 'reset_parameters'):
            part.reset_parameters()
    return module, x, torch.randint(0, 1000, (batch,))


def _words(module: nn.Module, batch: int) -> tuple[nn.Module, Any, Any]:
    return module, torch.randint(0, WORDS, (batch, LENGTH)), torch.randint(0, CLASSES, (batch,))


NETWORKS: dict[str, Callable[[int], tuple[nn.Module, Any, Any]]] = {
    'resnet18': lambda batch: _images('resnet18', batch),
    'mobilenet_v2': lambda batch: _images('mobilenet_v2', batch),
    'lstm': lambda batch: _words(LstmClassifier(), batch),
    'transformer': lambda batch: _words(TransformerClassifier(), batch),
}


def torch_step(module: nn.Module, compiled: bool) -> Step:
    own = copy.deepcopy(module).train()
    rule = torch.optim.SGD(own.parameters(), RATE, MOMENTUM)
    run: Any = torch.compile(own) if compiled else own

    def step(x: Any, y: Any) -> float:
        loss = nn.functional.cross_entropy(run(x), y)
        rule.zero_grad()
        loss.backward()
        rule.step()
        return loss.item()

    return step


def seconds(step: Step, x: Any, y: Any) -> float:
    step(x, y)
    start = time.perf_counter()
    step(x, y)
    return time.perf_counter() - start


def measured(name: str, asked: argparse.Namespace) -> dict:
    """[name of a network] -> samples of every contestant, the ratio, losses."""
    torch.manual_seed(0)
    module, x, y = NETWORKS[name](asked.batch)
    module.train()
    start = time.perf_counter()
    ours = tw.compile_training(
        copy.deepcopy(module),
        'cross_entropy',
        tw.SGD(RATE, MOMENTUM),
        (x, y),
        threads=asked.threads,
    )
    found: dict[str, Any] = {'name': name, 'compile_s': time.perf_counter() - start}
    found['arena_bytes'] = ours.network.arena_bytes
    steps: dict[str, Step] = {'tilewright': ours}
    steps |= {peer: torch_step(module, peer == 'compile') for peer in asked.peers}
    found['losses'] = {who: [step(x, y) for _ in range(CHECKED)] for who, step in steps.items()}
    wanted = found['losses'].get('eager', found['losses']['tilewright'])
    found['apart'] = max(
        abs(a - b) / abs(b) for a, b in zip(found['losses']['tilewright'], wanted, strict=True)
    )
    print(f'{name}: compiled in {found["compile_s"]:.0f} s; losses {found["losses"]}, apart by '
          f'{found["apart"]:.1e}', flush=True)  # fmt: skip
    if asked.compile_only:
        return found
    samples: dict[str, list[float]] = {who: [] for who in steps}
    for _ in range(asked.rounds):
        for who, step in steps.items():
            samples[who].append(seconds(step, x, y))
    best = {who: statistics.median(times) for who, times in samples.items()}
    theirs = [who for who in asked.peers if who in samples]
    if theirs:
        rounds = zip(zip(*(samples[w] for w in theirs), strict=True), samples['tilewright'],
                     strict=True)  # fmt: skip
        ratios = [min(them) / us for them, us in rounds]
        found['ratio'] = statistics.median(ratios)
    text = ', '.join(f'{who} {1e3 * best[who]:.1f} ms' for who in steps)
    print(f'{name}: {text}; ratio {found.get("ratio", math.nan):.2f}', flush=True)
    if asked.profile:
        print(slowest(ours, x, y, asked.profile), flush=True)
    return found | {'samples_s': samples}


def slowest(step: Any, x: Any, y: Any, count: int) -> str:
    """Kinds of tasks by the time that they take together."""
    found = step.profile(x, y, calls=3)
    kinds: dict[str, list[Any]] = {}
    for task in found.tasks:
        kinds.setdefault(f'{task.schema:10} {task.label}', []).append(task)
    rows = sorted(kinds.items(), key=lambda item: -sum(task.time_ms for task in item[1]))
    lines = [f'{found.total_ms:.1f} ms in {len(found.tasks)} tasks of {len(kinds)} kinds']
    for text, tasks in rows[:count]:
        spent, said, bound = (
            sum(getattr(task, f'{what}_ms') for task in tasks)
            for what in ('time', 'predicted', 'bound')
        )
        lines.append(f'{spent:8.2f} ms ({said:8.2f}, bound {bound:8.2f}) {len(tasks):3} x {text}')
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('names', nargs='*', metavar='NETWORK', help=', '.join(NETWORKS))
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--batch', type=int, default=8)
    parser.add_argument('--rounds', type=int, default=9)
    parser.add_argument('--peers', nargs='*', default=['eager', 'compile'])
    parser.add_argument('--compile-only', action='store_true', help='compile, and check losses')
    parser.add_argument('--profile', type=int, default=0, help='how many kinds of tasks to list')
    parser.add_argument('--json', type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    rows = [measured(name, asked) for name in asked.names or list(NETWORKS)]
    ratios = [row['ratio'] for row in rows if 'ratio' in row]
    if len(ratios) > 1:
        print(f'geometric mean {statistics.geometric_mean(ratios):.2f}, worst {min(ratios):.2f}')
    if asked.json is not None:
        whole = {'threads': asked.threads, 'batch': asked.batch, 'rows': rows,
                 'versions': versions()}  # fmt: skip
        asked.json.write_text(json.dumps(whole, indent=1) + '\n')


if __name__ == '__main__':
    main()
