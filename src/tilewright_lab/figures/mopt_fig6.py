"""MOpt's Fig. 6 (Sec. 9): performance and data movement of samples in predicted order.

Goes in: `Options`. Comes out: for every layer its samples, best predicted first, each with its
measured time, the words that micro-kernels load and store, and the bytes that cross the outer
boundary of each cache in the cache simulator (tilewright_lab/figures/replay.py says what is
simulated; the paper read hardware counters). Where the model is right, performance falls along that
order and the traffic of the resource that binds rises.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tilewright.machine.machine import Machine
from tilewright_lab.figures.evaluate import spearman
from tilewright_lab.figures.figures import Options, Reporter
from tilewright_lab.figures.measured import Priced, figure
from tilewright_lab.figures.pictures import aligned, canvas, save, short
from tilewright_lab.figures.replay import Traffic, traffic

SIMULATED = (
    'one call from empty caches with their real ways; packed weights, zero-padded input; without '
    'the copying of input tiles'
)


def run(options: Options) -> dict[str, Any]:
    """Measure (or read) the samples of every layer, and simulate each of them."""
    return figure(
        options,
        False,
        lambda priced, found: layer_json(priced, found.machine, options.samples, options.report),
        _line,
        lambda rows: {'simulated': SIMULATED},
    )


def layer_json(priced: Priced, machine: Machine, samples: int, report: Reporter) -> dict[str, Any]:
    """The first `samples` samples of a layer, in predicted order, with their traffic."""
    layer = priced.layer
    keys = list(priced.predictions)[:samples]
    keys.sort(key=lambda key: (priced.predictions[key].seconds, key))
    simulated = _simulate(priced, keys, machine, report)
    points = []
    for key in keys:
        prediction, moved, time_ms = priced.predictions[key], simulated[key], priced.times_ms[key]
        points.append(
            {
                'key': key,
                'schema': layer.samples[key].schedule.schema,
                'predicted_ms': 1e3 * prediction.seconds,
                'limit': prediction.limit,
                'measured_ms': time_ms,
                'gflops_per_s': layer.group.flops / time_ms / 1e6,
                'register_words': moved.register_words,
                **{
                    f'{cache.name}_bytes': bytes_moved
                    for cache, bytes_moved in zip(machine.caches, moved.cache_bytes, strict=True)
                },
            }
        )
    predicted = [point['predicted_ms'] for point in points]
    return {
        'name': layer.name,
        'label': layer.group.label,
        'flops': layer.group.flops,
        'samples': len(points),
        'rank_correlation': {
            what: spearman(predicted, [point[what] for point in points])
            for what in ('measured_ms', *_metrics(machine))
        },
        'points': points,
    }


def _metrics(machine: Machine) -> list[str]:
    return ['register_words', *(f'{cache.name}_bytes' for cache in machine.caches)]


def _simulate(
    priced: Priced, keys: list[str], machine: Machine, report: Reporter
) -> dict[str, Traffic]:
    """Simulations on all cores: the simulator is C code, and nothing is being timed."""
    group, samples = priced.layer.group, priced.layer.samples
    began = time.monotonic()
    pool = ThreadPoolExecutor(os.cpu_count() or 1)
    found = {}
    try:
        waiting = [(k, pool.submit(traffic, group, samples[k].schedule, machine)) for k in keys]
        for number, (key, result) in enumerate(waiting, 1):
            found[key] = result.result()
            left_s = (time.monotonic() - began) / number * (len(keys) - number)
            report.step('simulating', number, len(keys), left_s)
    finally:
        pool.shutdown(cancel_futures=True)
    return found


def _line(row: dict) -> str:
    ranks = ', '.join(
        f'{what.rpartition("_")[0]} {_rank(value)}'
        for what, value in row['rank_correlation'].items()
    )
    return f'{row["name"]}: {row["samples"]} samples; predicted time against {ranks}'


def _rank(value: float | None) -> str:
    return '-' if value is None else f'{value:.2f}'


def text(data: dict[str, Any]) -> str:
    """Rank correlations of the predicted time with each measure, and what the model names."""
    lines = []
    if data['layers']:
        measures = list(data['layers'][0]['rank_correlation'])
        head = ['rank correlation with', *(m.rpartition('_')[0] for m in measures), 'limits']
        rows = [head]
        for row in data['layers']:
            limits = dict.fromkeys(point['limit'] for point in row['points'][:5])
            ranks = [_rank(row['rank_correlation'][m]) for m in measures]
            rows.append([row['name'], *ranks, '/'.join(limits)])
        lines += aligned(rows)
        lines += ['', 'limits: what the model says binds the five best predicted samples']
    lines.append(f'simulated: {data["simulated"]}')
    lines.append(
        f'{data["measured_on"]}, threads: {data["threads"]}, seed: {data["seed"]}; samples are in '
        f'{data["data"]}'
    )
    return '\n'.join(lines)


def plot(data: dict[str, Any], path: Path) -> None:
    """A column for each layer; performance, registers and caches as rows; predicted order."""
    rows = data['layers']
    caches = [cache['name'] for cache in data['machine']['caches']]
    charts = [
        ('gflops_per_s', 1.0, 'GFLOP/s'),
        ('register_words', 1e6, 'register loads,\nstores, 10^6 words'),
        *((f'{name}_bytes', 1e6, f'{name.upper()} traffic, MB') for name in caches),
    ]
    figure = canvas(4.2 * max(len(rows), 1), 1.9 * len(charts))
    grid = figure.subplots(len(charts), max(len(rows), 1), squeeze=False, sharex='col')
    for column, row in enumerate(rows):
        for axes, (what, unit, label) in zip(grid[:, column], charts, strict=True):
            values = [point[what] / unit for point in row['points']]
            axes.plot(values, 'o', ms=3)
            axes.set_ylim(0, 1.08 * max(values) or 1)
            rank = row['rank_correlation'].get('measured_ms' if unit == 1.0 else what)
            said = '' if rank is None else f'rank correlation {rank:.2f}'
            axes.set_title(said, loc='right', fontsize=7, pad=2)
            if column == 0:
                axes.set_ylabel(label, fontsize=8)
        grid[0, column].set_title(short(row['name']))
        grid[-1, column].set_xlabel('samples, best predicted first', fontsize=8)
    figure.suptitle(f'{data["measured_on"]}; traffic simulated', fontsize=10)
    save(figure, path)
