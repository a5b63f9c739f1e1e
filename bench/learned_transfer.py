"""Leave-one-GPU-out: a model of one GPU ranks the layers of another.

    python bench/learned_transfer.py FROM FROM_MACHINE TO TO_MACHINE [--kind rs] [--json FILE]

FROM and TO are folders of measured configurations (docs/learned.md). Shown are the analytical
order, the model of FROM as it is, the same after a calibration by 50 rows of TO's training
problems, and for comparison a model trained on TO: means over the layers of TO with stride 1, and
seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import numpy as np

from tilewright.learn.datasets import Measured, read_data
from tilewright.learn.evaluate import means, ranking_of
from tilewright.learn.model import RECIPES, LearnedModel, calibrated, fit, table_of, train
from tilewright.machine.gpu import GpuMachine, known_gpu

ROWS = 50


def sample(sets: list[Measured], count: int, seed: int) -> list[Measured]:
    """So many rows of all problems, at random."""
    random = np.random.default_rng(seed)
    number = np.concatenate([np.full(len(m), i) for i, m in enumerate(sets)])
    row = np.concatenate([np.arange(len(m)) for m in sets])
    picked = random.permutation(len(number))[:count]
    found = []
    for i in np.unique(number[picked]):
        rows = np.sort(row[picked[number[picked] == i]])
        found.append(Measured(sets[i].problem, sets[i].batch.take(rows), sets[i].seconds[rows]))
    return found


def judge(model: LearnedModel, layers: list[Measured], machine: GpuMachine) -> dict[str, float]:
    return means(ranking_of(model.scores([m.batch], machine)[0], m.seconds) for m in layers)


def compare(
    source: list[Measured], source_gpu: GpuMachine, target: list[Measured], target_gpu: GpuMachine,
    layers: list[Measured], seeds: int,
) -> dict[str, list[dict[str, float]]]:  # fmt: skip
    tables = table_of(source, source_gpu), table_of(target, target_gpu)
    tested = table_of(layers, target_gpu)
    by_layer = [np.flatnonzero(tested.group == g) for g in range(len(tested.problems))]
    found = {
        'analytical': [means(ranking_of(tested.base[r], tested.slower[r]) for r in by_layer)],
        'transferred': [], 'calibrated': [], 'own': [],
    }  # fmt: skip
    for seed in range(seeds):
        foreign = train(source, source_gpu, RECIPES['mixed'], seed=seed, table=tables[0])
        found['transferred'].append(judge(foreign, layers, target_gpu))
        few = sample(target, ROWS, seed)
        found['calibrated'].append(
            judge(calibrated(foreign, few, target_gpu, seed=seed), layers, target_gpu)
        )
        own = fit(tables[1], RECIPES['mixed'], seed)
        found['own'].append(judge(own, layers, target_gpu))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('source', type=Path)
    parser.add_argument('source_machine')
    parser.add_argument('target', type=Path)
    parser.add_argument('target_machine')
    parser.add_argument('--kind', default='rs')
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--json', type=Path)
    options = parser.parse_args()
    source = read_data(options.source).of([options.kind], 1)
    target = read_data(options.target).of([options.kind], 1)
    tested = {m.problem for m in (*source.layers, *target.layers)}
    found = compare(
        [m for m in source.train if m.problem not in tested], known_gpu(options.source_machine),
        [m for m in target.train if m.problem not in tested], known_gpu(options.target_machine),
        list(target.layers), options.seeds,
    )  # fmt: skip
    print('model         loss at 1   at 10   at 30  trials to 95%  to 100%')
    for name, rows in found.items():
        mean = {key: statistics.fmean(row[key] for row in rows) for key in rows[0]}
        losses = '  '.join(f'{100 * mean[f"loss_{n}"]:6.2f}' for n in (1, 10, 30))
        print(f'{name:12s}     {losses}  {mean["trials_95"]:13.1f}  {mean["trials_100"]:7.1f}')
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + '\n')


if __name__ == '__main__':
    main()
