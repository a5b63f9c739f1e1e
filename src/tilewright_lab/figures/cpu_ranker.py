"""A learned ranking of CPU schedules beside the analytical one, on layers that it has not seen.

Goes in: samples of figure 5 (tilewright_lab/figures/dataset.py), a directory of several runs or a
file. Comes out: for every layer and run the loss at the top 1, 2 and 5 of

    analytical   model/cpu
    hybrid       trees on features of group, schedule and machine
                 (tilewright_lab/train/cpu_features.py) that learn the logarithm of measured over
                 analytical time, and trees that learn the order

The hybrid is trained once for each shape that is left out: on all runs of the layers of other
shapes, so that neither a layer nor its twin of the same shape is seen. Losses are those of figure 5
(tilewright_lab/figures/evaluate.py). What a shape gave is kept in the cache directory.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.compiler import cache_dir
from tilewright.machine.machine import Machine
from tilewright.rank.counts import Array
from tilewright.rank.trees import grow
from tilewright_lab.figures.dataset import SUFFIXES, LayerData, read
from tilewright_lab.figures.evaluate import TOPS, evaluate
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.pictures import aligned, canvas, save, short
from tilewright_lab.train.cpu_features import CPU_NAMES, cpu_matrix
from tilewright_lab.train.forest import BOOSTED, FOREST, GAIN, RANKED

LEAST_SHAPES = 4
MODELS = ('analytical', 'forest', 'boosted', 'ranked', 'hybrid')


@dataclass(frozen=True)
class Rows:
    """Samples of one layer and run as features."""

    run: str
    layer: LayerData
    keys: tuple[str, ...]
    x: Array
    base: Array
    log_s: Array

    @property
    def shape(self) -> str:
        return self.layer.group.label


def run(options: Options) -> dict[str, Any]:
    """Train without each shape in turn, and rank its layers; comes out: JSON."""
    if options.data is None:
        raise InputError(
            f'{options.name} evaluates samples of figure 5; name a directory of them by --data'
        )
    found = _rows(options.data, options.machine)
    shapes = sorted({rows.shape for rows in found})
    if len(shapes) < LEAST_SHAPES:
        raise InputError(
            f'--data {options.data} has layers of {len(shapes)} shapes, too few to leave some out; '
            f'measure at least {LEAST_SHAPES} (tilewright reproduce mopt-fig5)'
        )
    options.report.plan(len(shapes))
    out: list[dict[str, Any]] = []
    interrupted = False
    try:
        for shape in shapes:
            options.report.begin(shape)
            scores = _remembered(found, shape, options.seed)
            out += [_row(r, s) for r, s in zip(_of(found, shape), scores, strict=True)]
            options.report.finish()
    except KeyboardInterrupt:
        interrupted = True
    name = options.data.name if options.data.is_absolute() else str(options.data)
    return {
        'figure': options.name, 'data': name, 'seed': options.seed, 'features': len(CPU_NAMES),
        'samples': sum(len(rows.keys) for rows in found), 'shapes': len(shapes),
        'runs': sorted({rows.run for rows in found}), 'complete': not interrupted,
        'interrupted': interrupted, 'layers': out, 'means': _means(out),
    }  # fmt: skip


def _rows(path: Path, machine: Machine | None) -> list[Rows]:
    """Every layer of every run that was timed."""
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES))
        if not files:
            raise InputError(f'--data {path} holds no file that ends in {" or ".join(SUFFIXES)}')
    found = []
    for file in files:
        data = read(file)
        for layer in data.layers.values():
            times = layer.times_ms()
            if not times:
                continue
            schedules = [layer.samples[key].schedule for key in times]
            x, base = cpu_matrix(layer.group, schedules, machine or data.machine)
            seconds = np.log(1e-3 * np.array([*times.values()]))
            found.append(Rows(f'seed {data.seed}', layer, tuple(times), x, base, seconds))
    return found


def _of(found: list[Rows], shape: str) -> list[Rows]:
    return [rows for rows in found if rows.shape == shape]


def _remembered(found: list[Rows], shape: str, seed: int) -> list[dict[str, list[float]]]:
    """Scores of a shape's samples, from the file where they were kept."""
    key = hashlib.sha256(f'{shape} {seed} {CPU_NAMES} {BOOSTED} {RANKED} {FOREST}'.encode())
    for rows in found:
        key.update(rows.x.tobytes() + rows.log_s.tobytes())
    key.update((resources.files('tilewright.rank') / 'trees.c').read_bytes())
    path = cache_dir() / 'reproduce' / 'learned' / f'cpu-{key.hexdigest()[:24]}.json'
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        value = scores_without(found, shape, seed)
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f'.{os.getpid()}')
    fresh.write_text(json.dumps(value))
    os.replace(fresh, path)
    return value


def scores_without(found: list[Rows], shape: str, seed: int) -> list[dict[str, list[float]]]:
    """Scores of a shape's samples by models that have seen all others, lowest first."""
    seen = [rows for rows in found if rows.shape != shape]
    x = np.concatenate([rows.x for rows in seen])
    error = np.concatenate([rows.log_s - rows.base for rows in seen])
    share = np.concatenate([np.exp(rows.log_s.min() - rows.log_s) for rows in seen])
    group = np.concatenate([np.full(len(rows.keys), i) for i, rows in enumerate(seen)])
    forest = grow(x, error, FOREST, weights=share, seed=seed)
    boosted = grow(x, error, BOOSTED, weights=share, seed=seed)
    ranked = grow(x, share**GAIN, RANKED, groups=group, seed=seed)
    out = []
    for rows in _of(found, shape):
        time, order = rows.base + boosted(rows.x), ranked(rows.x)
        scores = {
            'analytical': rows.base, 'forest': rows.base + forest(rows.x), 'boosted': time,
            'ranked': order, 'hybrid': _standard(time) + _standard(order),
        }  # fmt: skip
        out.append({name: values.tolist() for name, values in scores.items()})
    return out


def _standard(values: Array) -> Array:
    return (values - values.mean()) / max(float(values.std()), 1e-12)


def _row(rows: Rows, scores: Mapping[str, list[float]]) -> dict[str, Any]:
    models = {}
    for name in MODELS:
        found = evaluate(rows.layer, dict(zip(rows.keys, scores[name], strict=True)))
        assert found is not None
        models[name] = {
            'loss_percent': {f'top{k}': 100 * found.losses[k] for k in TOPS},
            'rank_correlation': found.rank,
        }
    return {
        'layer': rows.layer.name, 'shape': rows.shape, 'run': rows.run, 'samples': len(rows.keys),
        'models': models,
    }  # fmt: skip


def _means(out: list[dict[str, Any]]) -> dict[str, Any]:
    """Over all layers and runs, and by run."""
    found: dict[str, Any] = {}
    for run_name in ('all', *sorted({row['run'] for row in out})):
        rows = [row for row in out if run_name in ('all', row['run'])]
        found[run_name] = {
            name: {
                **{
                    f'top{k}': statistics.fmean(
                        row['models'][name]['loss_percent'][f'top{k}'] for row in rows
                    )
                    for k in TOPS
                },
                'worst_top5': max(row['models'][name]['loss_percent']['top5'] for row in rows),
                'rank': statistics.fmean(
                    row['models'][name]['rank_correlation'] or 0.0 for row in rows
                ),
            }
            for name in MODELS
        }
    return found


def text(found: dict[str, Any]) -> str:
    """Means for people; losses in percent."""
    head = ['run', 'ranking', *(f'top-{k}' for k in TOPS), 'worst top-5', 'rank']
    body = [
        [
            run_name, name, *(f'{means[f"top{k}"]:.2f}' for k in TOPS),
            f'{means["worst_top5"]:.1f}', f'{means["rank"]:.3f}',
        ]
        for run_name, models in found['means'].items()
        for name, means in models.items()
    ]  # fmt: skip
    head_line = (
        f'{found["samples"]} samples of {found["shapes"]} shapes, {len(found["runs"])} runs; each '
        f'shape ranked by models that have not seen it; loss in percent'
    )
    return '\n'.join([head_line, '', *aligned([head, *body])])


def plot(found: dict[str, Any], path: Path) -> None:
    """Loss at the top 5 by layer, mean over the runs."""
    figure = canvas(12, 3.5)
    axes = figure.subplots()
    names = list(dict.fromkeys(row['layer'] for row in found['layers']))
    for place, model in enumerate(('analytical', 'hybrid')):
        heights = [
            statistics.fmean(
                row['models'][model]['loss_percent']['top5']
                for row in found['layers']
                if row['layer'] == name
            )
            for name in names
        ]
        axes.bar(np.arange(len(names)) + 0.4 * place, heights, 0.4, label=model)
    axes.set_xticks(np.arange(len(names)) + 0.2, [short(name) for name in names], fontsize=8)
    axes.set_ylabel('loss at top 5, %')
    axes.legend()
    save(figure, path)
