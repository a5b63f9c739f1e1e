"""MOpt's Fig. 5 (Sec. 9): what is lost by trusting the model, over random schedules of each layer.

Goes in: `Options`. Comes out: for every layer the loss of performance of the best of the model's
top 1, 2 and 5 against the best measured sample, and the rank correlation of predicted and measured
times; means, the worst layer, and whether the targets hold. The paper reports less than 4.5% on
all 32 layers, less than 3% on thirty.
"""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

from tilewright.runtime.measure import moved
from tilewright_lab.figures.evaluate import NOISE_FACTOR, TOPS, Evaluation, evaluate
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.measured import Priced, figure
from tilewright_lab.figures.pictures import aligned, canvas, save, short

PAPER_WORST_PERCENT = 4.5
MOST_LOSS_PERCENT = {1: 3.0, 2: 2.0, 5: 1.5}
LEAST_RANK = 0.8
COLUMNS = 8  # small pictures in a row
TICKS = (1, 3, 10, 30, 100, 300, 1000)


def run(options: Options) -> dict[str, Any]:
    """Measure (or read) the samples of every layer, and evaluate the model on them."""
    return figure(
        options,
        True,
        lambda priced, found: layer_json(priced, found.data.threads),
        _line,
        summary,
    )


def layer_json(priced: Priced, threads: int) -> dict[str, Any]:
    """One layer: its figures, and every sample with its predicted and measured time."""
    layer = priced.layer
    result = evaluate(layer, priced.predicted_s)
    failed = {k: s for k, s in layer.samples.items() if s.status != 'ok'}
    row: dict[str, Any] = {
        'name': layer.name,
        'label': layer.group.label,
        'flops': layer.group.flops,
        'samples': len(priced.times_ms),
        'failed': [
            {'key': key, 'status': sample.status, 'message': sample.message}
            for key, sample in failed.items()
        ],
        'trouble': moved(layer.states, threads),
    }
    points = [
        {
            'key': key,
            'schema': layer.samples[key].schedule.schema,
            'predicted_ms': 1e3 * prediction.seconds,
            'limit': prediction.limit,
            'measured_ms': priced.times_ms[key],
            'final_ms': result.decided_ms.get(key) if result else None,
        }
        for key, prediction in priced.predictions.items()
    ]
    points.sort(key=lambda point: (point['predicted_ms'], point['key']))
    return row | (_figures(result) if result else _NOTHING) | {'points': points}


def _figures(result: Evaluation) -> dict[str, Any]:
    return {
        'best_ms': result.best_ms,
        'best': result.best,
        'loss_percent': {f'top{k}': 100 * result.losses[k] for k in TOPS},
        'retimed': result.retimed,
        'rank_correlation': result.rank,
        'spread': result.spread,
        'noise': result.noise,
        'ranks_tell': result.tells,
    }


_NOTHING: dict[str, Any] = {
    'best_ms': None, 'best': None, 'loss_percent': None, 'retimed': False,
    'rank_correlation': None, 'spread': None, 'noise': None, 'ranks_tell': False,
}  # fmt: skip


def summary(rows: list[dict]) -> dict[str, Any]:
    """Means over the layers, the worst one, and the targets."""
    counted = [row for row in rows if row['loss_percent']]
    ranks = [row['rank_correlation'] for row in counted if row['ranks_tell']]
    means: dict[str, float | None] = {
        f'top{k}': _mean([row['loss_percent'][f'top{k}'] for row in counted]) for k in TOPS
    }
    mean_rank = _mean(ranks)
    targets = [
        _target(f'mean loss at top-{k}, percent', means[f'top{k}'], at_most=limit)
        for k, limit in MOST_LOSS_PERCENT.items()
    ]
    targets.append(_target('mean rank correlation', mean_rank, at_least=LEAST_RANK))
    worst = {}
    for top in means if counted else ():
        row = max(counted, key=lambda row: row['loss_percent'][top])
        worst[top] = {'layer': row['name'], 'percent': row['loss_percent'][top]}
    return {
        'mean_loss_percent': means,
        'mean_rank_correlation': mean_rank,
        'ranked_layers': len(ranks),
        'worst': worst,
        'paper_worst_percent': PAPER_WORST_PERCENT,
        'targets': targets,
    }


def _mean(values: list[float]) -> float | None:
    return statistics.mean(values) if values else None


def _target(
    what: str, value: float | None, *, at_most: float = math.inf, at_least: float = -math.inf
) -> dict[str, Any]:
    limit = {'at_least': at_least} if at_most == math.inf else {'at_most': at_most}
    holds = value is not None and at_least <= value <= at_most
    return {'what': what, **limit, 'value': value, 'holds': holds}


HEAD = ['layer', 'samples', 'best ms', 'top-1 %', 'top-2 %', 'top-5 %', 'rank', 'spread', 'noise']


def _cells(row: dict) -> list[str]:
    if not row['loss_percent']:
        return [row['name'], str(row['samples']), *['-'] * 7]
    rank = row['rank_correlation']
    return [
        row['name'] + ('' if row['retimed'] else ' *'),
        str(row['samples']),
        f'{row["best_ms"]:.3f}',
        *(f'{row["loss_percent"][f"top{k}"]:.1f}' for k in TOPS),
        '-' if rank is None else f'{rank:.2f}' + ('' if row['ranks_tell'] else ' n'),
        f'{row["spread"]:.2f}',
        f'{row["noise"]:.3f}',
    ]


def _line(row: dict) -> str:
    """One layer for people while the run goes on."""
    if not row['loss_percent']:
        return f'{row["name"]}: no sample was timed'
    losses = ', '.join(f'top-{k} {row["loss_percent"][f"top{k}"]:.1f}%' for k in TOPS)
    rank = row['rank_correlation']
    said = 'not defined' if rank is None else f'{rank:.2f}'
    return f'{row["name"]}: {row["samples"]} samples, loss {losses}, rank correlation {said}'


def text(data: dict[str, Any]) -> str:
    """The table, the means, the worst layer beside the paper's, and the targets."""
    rows = data['layers']
    lines = aligned([HEAD, *(_cells(row) for row in rows)]) if rows else []
    lines.append('')
    if data['worst']:
        for k in TOPS:
            worst = data['worst'][f'top{k}']
            lines.append(
                f'top-{k}: mean loss {data["mean_loss_percent"][f"top{k}"]:.2f}%, worst '
                f'{worst["percent"]:.2f}% on {worst["layer"]} (paper: below '
                f'{PAPER_WORST_PERCENT}% on every layer)'
            )
    if data['mean_rank_correlation'] is not None:
        lines.append(
            f'rank correlation: mean {data["mean_rank_correlation"]:.3f} over '
            f'{data["ranked_layers"]} of {len(rows)} layers, those whose measured spread exceeds '
            f'{NOISE_FACTOR:g} times the noise'
        )
    for target in data['targets']:
        kind, limit = (
            ('at most', target['at_most'])
            if 'at_most' in target
            else ('at least', target['at_least'])
        )
        lines.append(
            f'target: {target["what"]} {kind} {limit:g}: {"holds" if target["holds"] else "fails"}'
        )
    lines += _notes(data)
    return '\n'.join(lines)


def _notes(data: dict[str, Any]) -> list[str]:
    rows = data['layers']
    lines = []
    if any(row['loss_percent'] and not row['retimed'] for row in rows):
        lines.append('*: not all that decide were timed against each other; medians of their own')
    if any(row['loss_percent'] and not row['ranks_tell'] for row in rows):
        lines.append('n: within the noise, not in the mean')
    for row in rows:
        if row['failed']:
            first = row['failed'][0]
            lines.append(
                f'{row["name"]}: {len(row["failed"])} samples failed, the first '
                f'{first["status"]}: {first["message"]}'
            )
        if row['trouble']:
            lines.append(f'{row["name"]}: {row["trouble"]}')
    lines.append(
        f'{data["measured_on"]}, threads: {data["threads"]}, seed: {data["seed"]}; samples are in '
        f'{data["data"]}'
    )
    return lines


def plot(data: dict[str, Any], path: Path) -> None:
    """Loss bars of every layer at top-1, 2 and 5; below, measured against predicted times of each.

    Both are relative to their least; beside the names of layers are rank correlations.
    """
    rows = [row for row in data['layers'] if row['loss_percent']]
    deep = -(-max(len(rows), 1) // COLUMNS)
    figure = canvas(14, 4 + 1.9 * deep)
    above, below = figure.subfigures(2, 1, height_ratios=[3.4, 1.9 * deep])
    axes = above.subplots()
    for place, k in enumerate(TOPS):
        axes.bar(
            [x + 0.28 * (place - 1) for x in range(len(rows))],
            [row['loss_percent'][f'top{k}'] for row in rows],
            0.28,
            label=f'top-{k}',
        )
    axes.axhline(PAPER_WORST_PERCENT, color='0.4', lw=0.8, ls='--', label="paper's worst")
    axes.set_xticks(range(len(rows)), [short(row['name']) for row in rows], fontsize=8)
    axes.set_ylabel('loss of performance, %')
    axes.set_title(f'{data["measured_on"]}, threads: {data["threads"]}; the model against the best')
    axes.legend(fontsize=8)
    grid = below.subplots(deep, COLUMNS, squeeze=False).ravel()
    for axes, row in zip(grid, rows, strict=False):
        predicted, measured = (
            _relative(row['points'], what) for what in ('predicted_ms', 'measured_ms')
        )
        axes.loglog(predicted, measured, '.', ms=3)
        axes.minorticks_off()
        for put, values in ((axes.set_xticks, predicted), (axes.set_yticks, measured)):
            ticks = [tick for tick in TICKS if tick <= 1.1 * max(values)]
            put(ticks, [str(tick) for tick in ticks])
        rank = row['rank_correlation']
        axes.set_title(
            short(row['name']) + ('' if rank is None else f'  {rank:.2f}'), fontsize=8, pad=2
        )
        axes.tick_params(labelsize=5, which='both', pad=1)
    for axes in grid[len(rows) :]:
        axes.set_axis_off()
    below.supxlabel('predicted, relative', fontsize=9)
    below.supylabel('measured, relative', fontsize=9)
    save(figure, path)


def _relative(points: list[dict], what: str) -> list[float]:
    least = min(point[what] for point in points)
    return [point[what] / least for point in points]
