"""GTuner's Figure 7 (DAC'22, Sec. 4.3): the best time found against the number of trials.

Goes in: measured groups. Comes out: for each test group and search the best time after every trial,
over the best that was measured; geometric means over groups, three seeds. In replay, on schedules
that worked:

    genetic+gat, genetic+forest   asked before anything is measured, and learning from each batch
                                  what they get wrong (rank/online.py)
    online                        trees trained from nothing on this run's own trials, as Ansor's
    random

and what the groups of each network take one after the other, each the best after so many trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array
from tilewright.rank.online import Online
from tilewright.runtime.pool import Pool
from tilewright.schedule.gpu import GpuSchedule
from tilewright.search.gpu.strategies import replay, search
from tilewright.search.gpu.tune import Tried
from tilewright_lab.collect.group_data import GroupRows
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.gtuner import SEEDS, Study, study_of
from tilewright_lab.figures.pictures import aligned, canvas, save
from tilewright_lab.figures.remembered import result_in

TRIALS = 80
BATCH = 8
LEAST = 200  # schedules of a group in which a search of 80 trials can go wrong
SHOWN = (1, 5, 10, 20, 40, 60, 80)
# search -> (strategy, the model that it begins with)
SEARCHES = {
    'genetic+gat': ('genetic', 'gtuner'),
    'genetic+forest': ('genetic', 'mixed'),
    'online': ('online', ''),
    'random': ('random', ''),
}


def run(options: Options) -> dict[str, Any]:
    """Search in replay, or what an earlier run wrote; comes out: JSON."""
    before = result_in(options.data, 'gtuner-fig7', 'gtuner-fig8')
    if before is not None:
        return before | {'figure': options.name}
    study, report = study_of(options), options.report
    seeds = [options.seed + i for i in range(SEEDS)]
    groups = [i for i, rows in enumerate(study.test) if len(rows) >= LEAST]
    if not groups:
        raise InputError(
            f'{options.data} has no test group of at least {LEAST} schedules; measure more'
        )
    report.plan(len(SEARCHES) * len(seeds))
    found, interrupted = [], False
    try:
        for name, (_, model) in SEARCHES.items():
            curves = []
            for seed in seeds:
                report.begin(f'{name}, seed {seed}')
                scores = study.scores(model, seed, lambda *_: None) if model else None
                curves.append(_curves(study, groups, name, seed, scores))
                report.finish()
            found.append({'search': name, 'curves': curves, 'means': _means(curves)})
    except KeyboardInterrupt:
        interrupted = True
    return {
        'figure': options.name, 'machine': study.machine.to_json(), 'seeds': seeds,
        'trials': TRIALS, 'batch': BATCH, 'epochs': study.epochs,
        'groups': [
            {'label': study.test[i].group.label, 'networks': list(study.test[i].networks),
             'schedules': len(study.test[i]), 'best_us': 1e6 * study.test[i].best,
             'uses': study.uses(study.test[i])}
            for i in groups
        ],
        'data': 'the checkpoints in the cache directory', 'notes': list(study.data.notes),
        'layers': found, 'complete': not interrupted, 'interrupted': interrupted,
    }  # fmt: skip


def _curves(
    study: Study, groups: Sequence[int], name: str, seed: int, scores: Sequence[Array] | None
) -> list[list[float]]:
    """The curve of every group, kept; those that are new side by side."""
    with Pool() as pool:
        made: dict[int, Future[list[float]]] = {}

        def make(number: int) -> list[float]:
            return made[number].result()

        for number in groups:
            if study.has(_words(study, number, name, seed)):
                continue
            x = study.test_table.x[study.test_table.rows_of(number)]
            said = None if scores is None else scores[number]
            words = (study.machine, study.test[number], x, SEARCHES[name][0], seed, said)
            made[number] = pool.submit(curve, *words)
        return [
            study.kept(_words(study, number, name, seed), partial(make, number))
            for number in groups
        ]  # fmt: skip


def _words(study: Study, number: int, name: str, seed: int) -> dict[str, Any]:
    """What a curve is kept by."""
    return {
        'search': name, 'seed': seed, 'group': study.test[number].group.digest,
        'epochs': study.epochs, 'trials': TRIALS, 'batch': BATCH,
    }  # fmt: skip


def curve(
    machine: GpuMachine, rows: GroupRows, x: Array, strategy: str, seed: int, scores: Array | None
) -> list[float]:
    """The best time over the best of all, after each of `TRIALS` trials."""
    space, measure = replay(dict(zip(rows.schedules, rows.seconds.tolist(), strict=True)))
    place = {schedule.digest: i for i, schedule in enumerate(rows.schedules)}

    def looked_up(values: Array) -> Callable[[Sequence[GpuSchedule]], Array]:
        return lambda wanted: values[[place[schedule.digest] for schedule in wanted]]

    model = Online(
        rows.group, machine, None if scores is None else looked_up(scores), seed=seed,
        features=looked_up(x),
    )  # fmt: skip
    order: list[Tried] = []
    search(
        space, measure, strategy, trials=TRIALS, model=model, batch=BATCH, seed=seed,
        on_tried=order.append,
    )  # fmt: skip
    times = [math.inf if t.seconds is None else t.seconds for t in order]
    best = np.minimum.accumulate(times) / rows.best
    return [*best.tolist(), *[float(best[-1])] * (TRIALS - len(best))]


def _means(curves: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    """By seed, the geometric mean over groups after each trial."""
    return [np.exp(np.log(np.array(one)).mean(0)).tolist() for one in curves]


def latencies(found: Mapping[str, Any]) -> dict[str, dict[str, Array]]:
    """By network and search, seeds x trials: ms of the network's groups in `found`, as often as it
    has them, one after the other, each by the best of so many trials.
    """
    uses = [group.get('uses', {}) for group in found['groups']]
    best = np.array([1e-3 * group['best_us'] for group in found['groups']])
    said: dict[str, dict[str, Array]] = {}
    for network in sorted({network for one in uses for network in one}):
        weights = best * [one.get(network, 0) for one in uses]
        said[network] = {
            row['search']: np.einsum('g,sgt->st', weights, np.array(row['curves']))
            for row in found['layers']
        }
    return said


def _networks(found: Mapping[str, Any]) -> list[str]:
    """A table for every network."""
    lines = []
    for network, searches in latencies(found).items():
        mine = [group for group in found['groups'] if group['uses'].get(network)]
        number = sum(group['uses'][network] for group in mine)
        head = [f'{network}, ms', *(f'{n} trials' for n in SHOWN)]
        body = [
            [name, *(f'{ms[:, n - 1].mean():.4f}' for n in SHOWN)] for name, ms in searches.items()
        ]
        lines += [
            '', f'{network}: {number} calls of {len(mine)} groups, one after the other; the best '
            f'measured {sum(1e-3 * g["best_us"] * g["uses"][network] for g in mine):.4f} ms',
            '', *aligned([head, *body]),
        ]  # fmt: skip
    return lines


def text(found: dict[str, Any]) -> str:
    """The figure in numbers."""
    head = ['search', *(f'{n} trials' for n in SHOWN)]
    body = []
    for row in found['layers']:
        means = np.array(row['means'])
        cells = [
            f'{means[:, n - 1].mean():.3f} ({means[:, n - 1].min():.3f}-'
            f'{means[:, n - 1].max():.3f})'
            for n in SHOWN
        ]
        body.append([row['search'], *cells])
    groups = found['groups']
    return '\n'.join(
        [
            f'best time over the best of {sum(g["schedules"] for g in groups)} schedules of '
            f'{len(groups)} groups: geometric mean, least and most of {len(found["seeds"])} seeds',
            '', *aligned([head, *body]), *_networks(found),
        ]
    )  # fmt: skip


def plot(found: dict[str, Any], path: Path) -> None:
    """Curves, with the spread of the seeds."""
    figure = canvas(7, 4.5)
    axis = figure.subplots()
    trials = np.arange(1, found['trials'] + 1)
    for row in found['layers']:
        means = np.array(row['means'])
        axis.plot(trials, means.mean(0), label=row['search'])
        axis.fill_between(trials, means.min(0), means.max(0), alpha=0.2)
    axis.set_xlabel('trials')
    axis.set_ylabel('best time over the best measured')
    axis.set_ylim(0.98, 2.0)
    axis.grid(alpha=0.3)
    axis.legend()
    save(figure, path)
