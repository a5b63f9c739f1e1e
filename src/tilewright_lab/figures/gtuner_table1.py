"""GTuner's Table 1 (DAC'22, Sec. 4.2): graph layers compared, on groups of unseen networks.

Goes in: measured groups. Comes out: for GTuner's model with WL-GCN layers and with three others in
their place, for trees on the same statistics and for the time model alone: Spearman's coefficient,
pairs in the right order, loss of performance at the top 10 and 30 (means over test groups, three
seeds with least and most), and by how much a network is slower than with every group's best. The
paper's own figure, ResNet-18's latency on an RTX 3090, is printed beside.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tilewright.rank.gat import VARIANTS
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.gtuner import ANALYTICAL, METRICS, TOPS, run_models, spread_text
from tilewright_lab.figures.pictures import aligned, canvas, save

MODELS = {
    ANALYTICAL: 'the time model alone',
    'forest': 'a forest on the statistics',
    'mixed': 'boosted and ranking trees on the statistics',
    **{name: VARIANTS[name].about for name in ('gtuner', 'specgcn', 'maskgat', 'graphsage')},
}
# Table 1: latency of ResNet-18 in ms; 'Ansor' has no model of this list.
PAPER = {'gtuner': 0.923, 'specgcn': 1.016, 'maskgat': 1.105, 'graphsage': 1.168}
_HEADS = {
    'spearman': 'Spearman', 'pairs': 'pairs', **{f'loss_{n}': f'loss at {n}' for n in TOPS},
}  # fmt: skip


def run(options: Options) -> dict[str, Any]:
    """Train and rank; comes out: JSON."""
    return run_models(options, MODELS) | {'paper_ms': PAPER}


def text(found: dict[str, Any]) -> str:
    """The table for people."""
    networks = sorted({n for row in found['layers'] for n in row['seeds'][0]['networks']['10']})
    head = ['model', *_HEADS.values(), *(f'{n} at 10' for n in networks), 'paper ms']
    body = []
    for row in found['layers']:
        means = [[one['means'][name] for one in row['seeds']] for name in METRICS]
        slower = [[one['networks']['10'][n] for one in row['seeds']] for n in networks]
        paper = found['paper_ms'].get(row['model'])
        body.append(
            [
                row['model'],
                *(spread_text(values, name != 'spearman')
                  for name, values in zip(METRICS, means, strict=True)),
                *(spread_text(values, True) for values in slower),
                '' if paper is None else f'{paper:.3f}',
            ]
        )  # fmt: skip
    tested = found['test_groups']
    training = found['training']
    return '\n'.join(
        [
            f'{found["train_rows"]} rows of {found["train_groups"]} groups to learn from, '
            f'{sum(one["schedules"] for one in tested)} of {len(tested)} groups to rank; '
            f'{training["epochs"]} epochs from {training["rate"]:g}, batches of '
            f'{training["batch"]}, {len(found["seeds"])} seeds',
            '', *aligned([head, *body]),
        ]
    )  # fmt: skip


def plot(found: dict[str, Any], path: Path) -> None:
    """Losses at the top 10 and 30, with the spread of the seeds."""
    rows = found['layers']
    figure = canvas(9, 4)
    axis = figure.subplots()
    for number, name in enumerate(f'loss_{n}' for n in TOPS):
        values = [[100 * one['means'][name] for one in row['seeds']] for row in rows]
        middle = np.array([np.mean(v) for v in values])
        around = [middle - [min(v) for v in values], [max(v) for v in values] - middle]
        at = np.arange(len(rows)) + 0.4 * number
        axis.bar(at, middle, 0.4, yerr=around, label=_HEADS[name])
    axis.set_xticks(np.arange(len(rows)) + 0.2, [row['model'] for row in rows])
    axis.set_ylabel('loss of performance, percent')
    axis.legend()
    save(figure, path)
