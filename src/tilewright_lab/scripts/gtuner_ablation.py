"""Whether GTuner's graph and attention help: learning curves, and an ablation of the graph.

    python -m tilewright_lab.scripts.gtuner_ablation --json FILE [--epochs 300] [--within SECONDS]

Goes in: measured groups (bench/results/h200/groups). Comes out: for the full model, without the
graph (MHSA), without attention (GCN), and the full model with the graphs of other groups, trained
on all training groups and on a half and a quarter of them, what it is worth on test groups; trees
on the same statistics beside; and what ResNet-18's groups take after so many trials of each. What
is done is written at once; a file that has it is continued.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.rank.gat import VARIANTS
from tilewright_lab.collect.group_data import GroupRows, read_catalogue, read_groups
from tilewright_lab.figures.evaluate import spearman
from tilewright_lab.figures.gtuner import LEAST
from tilewright_lab.train.evaluate import TOPS, ranking_of
from tilewright_lab.train.gat_training import Training, train_gat
from tilewright_lab.train.group_table import GroupTable, group_table
from tilewright_lab.train.group_trees import RECIPES, fit_trees

BATCH, RATE, DECAY = 2048, 1e-3, 0.05
DESTROYED = 'graph destroyed'
SHARES = (1.0, 0.5, 0.25)
NETWORK, TRIALS = 'resnet18', (10, 20, 40, 80)  # of Tables 1 and 2
MODELS = ('gtuner', 'mhsa', 'gnn-mlp', DESTROYED, 'mixed')


def destroyed(table: GroupTable, seed: int) -> GroupTable:
    """Every group with the graph of another one."""
    order = np.random.default_rng(seed).permutation(len(table.labels))
    parts = ('nodes', 'adjacency', 'present')
    fields = {name: getattr(table.graphs, name)[order] for name in parts}
    return replace(table, graphs=replace(table.graphs, **fields))


def part_of(table: GroupTable, share: float, seed: int) -> GroupTable:
    """The rows of some of the groups."""
    order = np.random.default_rng(seed).permutation(len(table.labels))
    taken = order[: round(share * len(order))]
    return table.take(np.flatnonzero(np.isin(table.which, taken)))


def scores_of(
    model: str, train: GroupTable, test: GroupTable, epochs: int, seed: int
) -> np.ndarray:  # fmt: skip
    if model in RECIPES:
        return fit_trees(train, RECIPES[model], seed)(test)
    if model == DESTROYED:
        train, test = destroyed(train, seed), destroyed(test, seed + 1)
    variant = VARIANTS['gtuner' if model == DESTROYED else model]
    made = train_gat(train, variant, Training(epochs, RATE, BATCH, DECAY, seed), {})
    return made.log_seconds(test.x, test.base, test.graphs, test.which)


def worth(scores: np.ndarray, test: GroupTable) -> dict[str, float]:
    """Means over test groups, and medians of the losses, which no single group decides."""
    rows = [test.rows_of(g) for g in range(len(test.labels))]
    rows = [mine for mine in rows if len(mine)]
    found = [ranking_of(scores[mine], test.slower[mine]) for mine in rows]
    ranks = [spearman(scores[mine].tolist(), test.slower[mine].tolist()) or 0.0 for mine in rows]
    return {
        'spearman': statistics.fmean(ranks), 'cost': statistics.fmean(r.cost for r in found),
        'trials_95': statistics.fmean(r.trials_95 for r in found),
        **{f'loss_{n}': statistics.fmean(r.loss(n) for r in found) for n in TOPS},
        **{f'median_{n}': statistics.median(r.loss(n) for r in found) for n in TOPS},
    }  # fmt: skip


def latencies(
    scores: np.ndarray, test: Sequence[GroupRows], counts: Mapping[str, Mapping[str, int]],
    network: str = NETWORK,
) -> dict[str, float]:  # fmt: skip
    """By trials of every group, what the groups of a network take one after the other, in ms: each
    the best of the first so many, as often as the network has it.
    """
    ends = np.cumsum([len(rows) for rows in test])
    found = dict.fromkeys(map(str, TRIALS), 0.0)
    for rows, end in zip(test, ends, strict=True):
        order = np.argsort(scores[end - len(rows) : end], kind='stable')
        for trials in TRIALS:
            best = float(rows.seconds[order[:trials]].min())
            found[str(trials)] += 1e3 * counts[rows.group.digest].get(network, 0) * best
    return found


def text(found: dict[str, Any]) -> str:
    lines = [f'{"model":16s} groups  seed  Spearman   cost  loss at 1     at 10     at 30  trials']
    for row in found['rows'].values():
        w = row['worth']
        losses = '  '.join(f'{100 * w[f"loss_{n}"]:7.2f}%' for n in TOPS)
        lines.append(
            f'{row["model"]:16s} {row["groups"]:6d}  {row["seed"]:4d}  {w["spearman"]:8.3f} '
            f'{100 * w["cost"]:5.2f}%  {losses}  {w["trials_95"]:6.1f}'
        )
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--data', type=Path, default=Path('bench/results/h200/groups'))
    parser.add_argument('--json', type=Path, required=True)
    parser.add_argument('--epochs', type=int, default=300)
    parser.add_argument('--seeds', type=int, default=1)
    parser.add_argument('--models', default=','.join(MODELS))
    parser.add_argument('--shares', default=','.join(map(str, SHARES)), help='of the groups')
    parser.add_argument('--within', type=float, default=1e9)
    options = parser.parse_args()
    began = time.monotonic()
    found: dict[str, Any] = {'epochs': options.epochs, 'batch': BATCH, 'rate': RATE, 'rows': {}}
    if options.json.exists():
        found = json.loads(options.json.read_text())
    data = read_groups(options.data)
    assert data.machine is not None
    train = group_table(data.train, data.machine)
    tested = [rows for rows in data.test if len(rows) >= LEAST]
    counts = {digest: one.networks for digest, one in read_catalogue(options.data).items()}
    test = group_table(tested, data.machine)
    for seed in range(options.seeds):
        for share in map(float, options.shares.split(',')):
            for model in options.models.split(','):
                key = f'{model} {share} {seed}'
                late = time.monotonic() - began > options.within
                if key in found['rows'] or late or (model == DESTROYED and share < 1):
                    continue
                some, start = part_of(train, share, seed), time.monotonic()
                scores = scores_of(model, some, test, options.epochs, seed)
                found['rows'][key] = {
                    'model': model, 'share': share, 'seed': seed, 'train_rows': len(some),
                    'groups': len(np.unique(some.which)), 'worth': worth(scores, test),
                    'resnet18_ms': latencies(scores, tested, counts),
                    'seconds': round(time.monotonic() - start, 1),
                }  # fmt: skip
                options.json.write_text(json.dumps(found, indent=1) + '\n')
    print(text(found))


if __name__ == '__main__':
    main()
