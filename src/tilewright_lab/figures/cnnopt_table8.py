"""CNNOpt's Table 8 (PACT'22, Sec. 4.2): trials to 95% and to 100% of the best, by layer.

Goes in: measured configurations (tilewright_lab/collect/datasets.py) and the GPU that they were
taken on. Comes out: for every layer the trials of

    ours     configurations in the order of the model that Table 9 chooses
    online   boosted trees trained from nothing on each layer's own trials, 16 at a time, as Ansor
             searches; on the same configurations, in replay
    random   in any order: what is expected, exactly

with the paper's figures of Ansor (in its own space, 2,000 trials) and CNNOpt beside, on the same
GPU or, where it has none, on a V100. Figures are means over three seeds.
"""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array
from tilewright.rank.features import matrix_of
from tilewright.rank.online import Online
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.strategies import replay, search
from tilewright.search.gpu.tune import Tried
from tilewright_lab.collect.datasets import Measured, rows_in
from tilewright_lab.figures.cnnopt import Part, Training, plot_bars, table_json
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.pictures import aligned
from tilewright_lab.train.evaluate import NEAR, ranking_of
from tilewright_lab.train.printed import TABLE8

ONLINE_SEEDS = 3
PRINTED_ON = 'v100'
BATCH = 16


def run(options: Options) -> dict[str, Any]:
    """Rank, and search in replay; comes out: JSON."""
    return table_json(
        options,
        lambda parts: sum(len(part.layers) for part in parts) + len(parts),
        _part,
        lambda seeds, _: {'online_seeds': seeds[:ONLINE_SEEDS], 'online_batch': BATCH},
    )


def _part(part: Part, options: Options, training: Training, seeds: list[int]) -> dict[str, Any]:
    report = options.report
    report.begin(f'{part.name}: ranking')
    recipe, _ = training.chosen(report.say)
    scores = [training.scores(recipe, seed) for seed in seeds]
    report.finish()
    printed_on = training.machine.name if training.machine.name in TABLE8 else PRINTED_ON
    rows = []
    for i, (name, m) in enumerate(part.layers):
        report.begin(f'{part.name}: {name}')
        ours = [ranking_of(np.array(one[i]), m.seconds) for one in scores]
        online = [
            training.memory.get(
                {'online': name, 'seed': seed, 'batch': BATCH},
                lambda m=m, seed=seed: online_trials(m, training.machine, seed),
            )
            for seed in seeds[:ONLINE_SEEDS]
        ]
        rows.append(
            {
                'layer': name, 'shape': list(m.problem), 'configurations': len(m),
                'ours': [[r.trials_95, r.trials_100] for r in ours], 'online': online,
                'random': [expected_trials(m.seconds, NEAR), expected_trials(m.seconds, 1.0)],
                'paper': {
                    system: [column.get(name) for column in columns]
                    for system, columns in TABLE8[printed_on].items()
                },
            }
        )  # fmt: skip
        report.finish()
    return {
        'kernel': part.kernel, 'stride': part.stride, 'name': part.name,
        'train_rows': rows_in(part.train), 'chosen': recipe.name, 'paper_machine': printed_on,
        'layers': rows,
    }  # fmt: skip


def online_trials(m: Measured, machine: GpuMachine, seed: int) -> list[int]:
    """Trials of an online search until within 5% of the best, and until the best, its end."""
    schedules = [m.batch.schedule(row) for row in range(len(m))]
    space, measure = replay(dict(zip(schedules, m.seconds.tolist(), strict=True)))
    times: list[float] = []
    least = float(m.seconds.min())

    def hear(one: Tried) -> None:
        times.append(math.inf if one.seconds is None else one.seconds)
        if times[-1] <= least:
            raise _Reached

    model = Online(m.batch.group, machine, seed=seed, features=_looked_up(m, machine, schedules))
    with contextlib.suppress(_Reached):
        search(
            space, measure, 'online', trials=len(m), model=model, batch=BATCH, seed=seed,
            on_tried=hear,
        )  # fmt: skip
    return [next(i for i, t in enumerate(times, 1) if t <= share * least) for share in (NEAR, 1)]


class _Reached(Exception):  # noqa: N818 (it is no error)
    """The best was tried: nothing that comes later is counted."""


def _looked_up(
    m: Measured, machine: GpuMachine, schedules: Sequence[GpuSchedule]
) -> Callable[[Sequence[GpuSchedule]], Array]:
    x, _ = matrix_of(m.batch, machine)
    row = {schedule: i for i, schedule in enumerate(schedules)}
    return lambda wanted: x[[row[schedule] for schedule in wanted]]


def expected_trials(seconds: Array, within: float) -> float:
    """Mean trials in random order until one of the g good of n: (n + 1) / (g + 1)."""
    good = int((seconds <= within * seconds.min()).sum())
    return (len(seconds) + 1) / (good + 1)


def text(found: dict[str, Any]) -> str:
    """The tables for people."""
    lines = []
    for part in found['layers']:
        head = ['layer', 'configs']
        for share in ('95%', '100%'):
            head += [f'{share}: ours', 'online', 'random', 'CNNOpt', 'Ansor']
        body = [_row(row) for row in part['layers']]
        paper = f'the columns of the paper: {part["paper_machine"]}'
        lines += [f'{part["name"]}, chosen: {part["chosen"]}; {paper}', '']
        lines += [*aligned([head, *body, _average(part['layers'])]), '']
    return '\n'.join(lines)


def _figures(row: dict[str, Any]) -> list[float | None]:
    found: list[float | None] = []
    for which in (0, 1):
        found += [statistics.fmean(one[which] for one in row[k]) for k in ('ours', 'online')]
        found.append(row['random'][which])
        found += [row['paper'].get(k, [None, None])[which] for k in ('cnnopt', 'ansor')]
    return found


def _row(row: dict[str, Any]) -> list[str]:
    return [row['layer'], str(row['configurations']), *map(_cell, _figures(row))]


def _average(rows: list[dict[str, Any]]) -> list[str]:
    columns = zip(*(_figures(row) for row in rows), strict=True)
    averages = [
        None if any(v is None for v in column) else statistics.fmean(v for v in column if v)
        for column in columns
    ]
    return ['mean', str(sum(row['configurations'] for row in rows)), *map(_cell, averages)]


def _cell(value: float | None) -> str:
    return '' if value is None else f'{value:.1f}'


def plot(found: dict[str, Any], path: Path) -> None:
    """Trials to 95%, logarithmic."""
    heights = {
        model: lambda row, model=model: statistics.fmean(one[0] for one in row[model])
        for model in ('ours', 'online')
    }
    plot_bars(found, path, 'trials to 95%', heights, 'log')
