"""CNNOpt's Table 9 (PACT'22, Sec. 4.3): loss of performance of three models, by layer.

Goes in: measured configurations (tilewright_lab/collect/datasets.py) and the GPU that they were
taken on. Comes out: for every layer the loss at the top 1, 10 and 30 and the trials to 95% and 100%
of the best of

    analytical   bandwidth-scaled data movement, as in the paper
    black box    a forest on problem and tiles
    plain        a forest on all features, the seconds' logarithm, no weights
    ours         the recipe that the protocol chose on training problems (docs/learned.md)

each learned one for three seeds, with the paper's columns beside. Layers are ranked by models that
have seen none of their rows; they take no part in choosing.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright_lab.collect.datasets import rows_in
from tilewright_lab.figures.cnnopt import (
    SEEDS,
    Part,
    Training,
    plot_bars,
    table_json,
    volume_scores,
)
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.pictures import aligned
from tilewright_lab.train.evaluate import TOPS, Ranking, means, ranking_of
from tilewright_lab.train.forest import RECIPES
from tilewright_lab.train.printed import TABLE9

MODELS = ('analytical', 'black box', 'plain', 'ours')
LEARNED = MODELS[1:]
PRINTED = ('analytical', 'black box', 'ours')  # columns that the paper has


def run(options: Options) -> dict[str, Any]:
    """Train, rank, compare; comes out: JSON."""
    return table_json(
        options,
        lambda parts: len(parts) * (1 + len(LEARNED) * SEEDS),
        _part,
        lambda _, found: {'tops': list(TOPS), 'all_sets': _all_sets(found)},
    )


def _all_sets(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Averages over all layers of all parts, each set once: mean, least and most of the seeds."""
    if not parts:
        return {}
    found: dict[str, Any] = {'sets': sum(len(part['layers']) for part in parts)}
    for model in MODELS:
        seeds = range(len(parts[0]['averages'][model]))
        found[model] = {}
        for key in parts[0]['averages'][model][0]:
            values = [
                sum(part['averages'][model][seed][key] * len(part['layers']) for part in parts)
                / found['sets']
                for seed in seeds
            ]
            found[model][key] = {
                'mean': statistics.fmean(values), 'min': min(values), 'max': max(values),
            }  # fmt: skip
    return found


def _part(part: Part, options: Options, training: Training, seeds: list[int]) -> dict[str, Any]:
    report = options.report
    report.begin(f'{part.name}: choosing')
    recipe, validation = training.chosen(report.say)
    report.finish()
    rankings: dict[str, list[list[Ranking]]] = {
        'analytical': [
            [ranking_of(volume_scores(m, training.machine), m.seconds) for _, m in part.layers]
        ]
    }
    for model in LEARNED:
        made = recipe if model == 'ours' else RECIPES[model]
        rankings[model] = []
        for seed in seeds:
            report.begin(f'{part.name}: {made.name}, seed {seed}')
            scores = training.scores(made, seed)
            rankings[model].append(
                [
                    ranking_of(np.array(s), m.seconds)
                    for s, (_, m) in zip(scores, part.layers, strict=True)
                ]
            )
            report.finish()
    printed = TABLE9.get(training.machine.name, {})
    rows = [
        {
            'layer': name, 'shape': list(m.problem), 'configurations': len(m),
            'best_ms': 1e3 * float(m.seconds.min()),
            'paper_loss_30_percent': {
                ('ours' if model == 'hybrid' else model): printed[model].get(name)
                for model in printed
            },
            'models': {
                model: _summary([one[i] for one in rankings[model]]) for model in MODELS
            },
        }
        for i, (name, m) in enumerate(part.layers)
    ]  # fmt: skip
    return {
        'kernel': part.kernel, 'stride': part.stride, 'name': part.name,
        'train_rows': rows_in(part.train), 'train_problems': len(part.train),
        'borrowed_strides': part.borrowed, 'chosen': recipe.to_json(), 'validation': validation,
        'layers': rows,
        'averages': {
            model: [means(one) for one in rankings[model]] for model in MODELS
        },
    }  # fmt: skip


def _summary(rankings: Sequence[Ranking]) -> dict[str, Any]:
    """One layer and model over the seeds: mean and spread of every figure."""
    columns = {f'loss_{n}': [r.loss(n) for r in rankings] for n in TOPS} | {
        'trials_95': [float(r.trials_95) for r in rankings],
        'trials_100': [float(r.trials_100) for r in rankings],
    }
    return {
        name: {'mean': statistics.fmean(values), 'min': min(values), 'max': max(values)}
        for name, values in columns.items()
    }


def text(found: dict[str, Any]) -> str:
    """The tables for people; losses in percent."""
    lines = []
    for part in found['layers']:
        borrowed = ', of other strides too' if part['borrowed_strides'] else ''
        lines += [
            f'{part["name"]}: {part["train_rows"]} training rows of {part["train_problems"]} '
            f'problems{borrowed}; chosen: {part["chosen"]["name"]} ({part["validation"]["why"]})',
            '',
        ]
        head = ['layer', 'configs', *(f'paper {m}' for m in PRINTED)]
        head += [f'{m}@30' for m in MODELS]
        head += ['ours@10', 'ours@1', 'trials 95%', '100%']
        body = [_row(row) for row in part['layers']]
        lines += [*aligned([head, *body, _average(part)]), '']
        lines += [_spread(part, model) for model in LEARNED]
        lines.append('')
    if found['all_sets']:
        ours = found['all_sets']['ours']
        losses = ', '.join(f'top {n} {100 * ours[f"loss_{n}"]["mean"]:.2f}%' for n in TOPS)
        lines.append(
            f'all {found["all_sets"]["sets"]} sets, ours: {losses}; trials to 95% '
            f'{ours["trials_95"]["mean"]:.2f}, to 100% {ours["trials_100"]["mean"]:.1f}'
        )
    return '\n'.join(lines)


def _row(row: dict[str, Any]) -> list[str]:
    printed, models = row['paper_loss_30_percent'], row['models']
    ours = models['ours']
    return [
        row['layer'], str(row['configurations']),
        *('' if printed.get(m) is None else f'{printed[m]:.1f}' for m in PRINTED),
        *(f'{100 * models[m]["loss_30"]["mean"]:.1f}' for m in MODELS),
        f'{100 * ours["loss_10"]["mean"]:.1f}', f'{100 * ours["loss_1"]["mean"]:.1f}',
        f'{ours["trials_95"]["mean"]:.1f}', f'{ours["trials_100"]["mean"]:.1f}',
    ]  # fmt: skip


def _average(part: dict[str, Any]) -> list[str]:
    def mean(model: str, key: str) -> float:
        return statistics.fmean(one[key] for one in part['averages'][model])

    printed = [[row['paper_loss_30_percent'].get(m) for row in part['layers']] for m in PRINTED]
    return [
        'mean', str(sum(row['configurations'] for row in part['layers'])),
        *('' if None in column else f'{statistics.fmean(column):.2f}' for column in printed),
        *(f'{100 * mean(m, "loss_30"):.2f}' for m in MODELS),
        f'{100 * mean("ours", "loss_10"):.2f}', f'{100 * mean("ours", "loss_1"):.2f}',
        f'{mean("ours", "trials_95"):.2f}', f'{mean("ours", "trials_100"):.2f}',
    ]  # fmt: skip


def _spread(part: dict[str, Any], model: str) -> str:
    seeds = part['averages'][model]

    def span(key: str, scale: float = 100.0, digits: int = 2) -> str:
        values = [scale * one[key] for one in seeds]
        mean = statistics.fmean(values)
        return f'{mean:.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})'

    losses = ', '.join(f'top {n} {span(f"loss_{n}")}%' for n in TOPS)
    return (
        f'{model}, {len(seeds)} seeds: {losses}; trials to 95% {span("trials_95", 1.0)}, to 100% '
        f'{span("trials_100", 1.0, 1)}'
    )


def plot(found: dict[str, Any], path: Path) -> None:
    """Losses at the top 30, a group of bars for each layer."""
    heights = {
        model: lambda row, model=model: 100 * row['models'][model]['loss_30']['mean']
        for model in MODELS
    }
    plot_bars(found, path, 'loss at top 30, %', heights)
