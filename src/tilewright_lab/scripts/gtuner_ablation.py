"""Whether GTuner's graph and attention help: learning curves, and an ablation of the graph.

    python -m tilewright_lab.scripts.gtuner_ablation --json FILE [--epochs 300] [--within SECONDS]
    python -m tilewright_lab.scripts.gtuner_ablation --json FILE --models mixed,forest  beside it,
        without a GPU; --models '' computes the statistics alone
    python -m tilewright_lab.scripts.gtuner_ablation --json FILE --ship DIR --models gtuner,mhsa

Goes in: measured groups (bench/results/h200/groups). Comes out: for the full model, without the
graph (MHSA), without attention (GCN), with other graph layers, and the full model with the graphs
of other groups, trained on all training groups and on a half and a quarter of them, what it is
worth on test groups; trees on the same statistics beside; and what ResNet-18's groups take after so
many trials of each. What is done is written at once; a file that has it is continued. What a model
of all groups says of each row is kept where `tilewright reproduce gtuner-table1`, `-table2` and
`-fig7` look for it, so that they need not train it again. `--ship` trains on all groups, and on
four fifths to say on the fifth what the model is worth, and writes files of models.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.rank.gat import VARIANTS, GatModel
from tilewright.rank.gat_files import SUFFIX, save_gat
from tilewright.runtime.pool import Pool
from tilewright_lab.cli.model_gat import HELD_OUT, validated
from tilewright_lab.collect.group_data import digest_of, read_catalogue, read_groups
from tilewright_lab.figures.evaluate import spearman
from tilewright_lab.figures.gtuner import ANALYTICAL, BATCH, DECAY, RATE, Study, latencies
from tilewright_lab.train.evaluate import TOPS, ranking_of
from tilewright_lab.train.gat_training import Lesson, Training, train_several
from tilewright_lab.train.group_table import GroupTable, kept_statistics, known_rows
from tilewright_lab.train.group_trees import RECIPES, fit_trees

DESTROYED = 'graph destroyed'
SHARES = (1.0, 0.5, 0.25)
CURVES = ('gtuner', 'mhsa', 'gnn-mlp', 'mixed')  # the others learn from all groups alone
MODELS = ('gtuner', 'mhsa', 'gnn-mlp', DESTROYED, 'specgcn', 'maskgat', 'graphsage')
AT_ONCE = 6  # models that share a GPU, where nothing is said


@dataclass(frozen=True, slots=True)
class Job:
    """A model, the share of the training groups that it learns from, a seed."""

    model: str
    share: float
    seed: int

    @property
    def key(self) -> str:
        return f'{self.model} {self.share} {self.seed}'


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


def variant_of(model: str) -> str:
    return 'gtuner' if model == DESTROYED else model


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


def text(found: Mapping[str, Any]) -> str:
    lines = [f'{"model":16s} groups  seed  Spearman   cost  loss at 1     at 10     at 30  trials']
    for row in found['rows'].values():
        w = row['worth']
        losses = '  '.join(f'{100 * w[f"loss_{n}"]:7.2f}%' for n in TOPS)
        lines.append(
            f'{row["model"]:16s} {row["groups"]:6d}  {row["seed"]:4d}  {w["spearman"]:8.3f} '
            f'{100 * w["cost"]:5.2f}%  {losses}  {w["trials_95"]:6.1f}'
        )
    return '\n'.join(lines)


@dataclass
class Ablation:
    """What was measured, and the file of what is done."""

    study: Study
    path: Path
    found: dict[str, Any]
    at_once: int

    def done(
        self, job: Job, scores: np.ndarray, rows: GroupTable, began: float, **said: float
    ) -> None:
        """Write what a model is worth."""
        study = self.study
        if job.share == 1 and job.model != DESTROYED:
            study.keep(job.model, job.seed, scores)
        each = np.split(scores, np.cumsum([len(rows) for rows in study.test])[:-1])
        self.found['rows'][job.key] = {
            'model': job.model, 'share': job.share, 'seed': job.seed, 'train_rows': len(rows),
            'groups': len(np.unique(rows.which)), 'worth': worth(scores, study.test_table),
            'resnet18_ms': latencies(each, study.test, study.counts),
            'after_s': round(time.monotonic() - began, 1), **said,
        }  # fmt: skip
        self.path.write_text(json.dumps(self.found, indent=1) + '\n')
        print(job.key, f'{time.monotonic() - began:.0f} s', flush=True)

    def lesson(self, job: Job) -> Lesson:
        table = self.study.train_table
        if job.model == DESTROYED:
            table = destroyed(table, job.seed)
        rows = part_of(table, job.share, job.seed)
        return Lesson(rows, VARIANTS[variant_of(job.model)], self.study.training(job.seed))

    def says(self, job: Job, model: GatModel) -> np.ndarray:
        test = self.study.test_table
        if job.model == DESTROYED:
            test = destroyed(test, job.seed + 1)
        return model.log_seconds(test.x, test.base, test.graphs, test.which)

    def networks(self, jobs: Sequence[Job], began: float, within: float) -> None:
        """Train side by side; while one is asked, others are trained."""
        lessons = [self.lesson(job) for job in jobs]
        asked: list[tuple[int, GatModel, Future[np.ndarray]]] = []

        def write() -> None:
            number, model, scores = asked.pop(0)
            rows, loss = lessons[number].table, model.header['loss']
            self.done(jobs[number], scores.result(), rows, began, training_loss=loss)

        with ThreadPoolExecutor(2) as pool:
            for number, model in train_several(lessons, self.at_once):
                asked.append((number, model, pool.submit(self.says, jobs[number], model)))
                while asked and asked[0][2].done():
                    write()
                if time.monotonic() - began > within:
                    break
            while asked:
                write()

    def others(self, jobs: Sequence[Job], began: float, within: float) -> None:
        """Trees and the time model."""
        for job in jobs:
            if time.monotonic() - began > within:
                return
            rows = part_of(self.study.train_table, job.share, job.seed)
            if job.model == ANALYTICAL:
                scores = self.study.test_table.base
            else:
                scores = fit_trees(rows, RECIPES[job.model], job.seed)(self.study.test_table)
            self.done(job, scores, rows, began)


def jobs_of(options: argparse.Namespace) -> Iterator[Job]:
    """All groups first, then the curves."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    for share in map(float, options.shares.split(',')):
        for seed in seeds:
            for model in filter(None, options.models.split(',')):
                if share == 1 or model in CURVES:
                    yield Job(model, share, seed)


def ship(
    folder: Path, models: Sequence[str], table: GroupTable, about: Mapping[str, Any], epochs: int,
    at_once: int,
) -> None:  # fmt: skip
    """Files of models, each with what a twin says of groups that it did not learn from."""
    out_of = np.arange(len(table.labels)) % HELD_OUT == HELD_OUT - 1
    seen = table.take(np.flatnonzero(~out_of[table.which]))
    training = Training(epochs, RATE, BATCH, DECAY, 0)
    lessons = [
        Lesson(rows, VARIANTS[name], training, about) for name in models for rows in (seen, table)
    ]
    made = dict(train_several(lessons, at_once))
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(models):
        twin, model = made[2 * number], made[2 * number + 1]
        found = validated(twin, table, np.flatnonzero(out_of))
        save_gat(
            replace(model, header=dict(model.header) | {'validation': found}),
            folder / f'{name}{SUFFIX}',
        )
        print(name, found, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--data', type=Path, default=Path('bench/results/h200/groups'))
    parser.add_argument('--json', type=Path, required=True)
    parser.add_argument('--epochs', type=int, default=300)
    parser.add_argument('--seeds', type=int, default=3)
    parser.add_argument('--first-seed', type=int, default=0)
    parser.add_argument('--models', default=','.join(MODELS))
    parser.add_argument('--shares', default=','.join(map(str, SHARES)), help='of the groups')
    parser.add_argument('--within', type=float, default=1e9)
    parser.add_argument('--at-once', type=int, default=AT_ONCE)
    parser.add_argument('--ship', type=Path, help='a folder')
    options = parser.parse_args()
    began = time.monotonic()
    found: dict[str, Any] = {'epochs': options.epochs, 'batch': BATCH, 'rate': RATE, 'rows': {}}
    if options.json.exists():
        found = json.loads(options.json.read_text())
    data = read_groups(options.data)
    gpu = data.machine
    assert gpu is not None
    counts = {digest: one.networks for digest, one in read_catalogue(options.data).items()}
    study = Study(data, gpu, options.epochs, counts)
    with Pool() as pool:
        each = [
            pool.submit(kept_statistics, group, gpu, schedules)
            for group, schedules, _ in map(known_rows, (*data.train, *study.test))
        ]
        for one in each:
            one.result()
    train, test = study.train_table, study.test_table
    print(len(train), len(test), f'rows in {time.monotonic() - began:.0f} s', flush=True)
    if options.ship is not None:
        about = {
            'machine': gpu.name, 'rows': len(train), 'groups': len(train.labels), 'seed': 0,
            'data_sha256': digest_of(data.train),
        }  # fmt: skip
        ship(options.ship, options.models.split(','), train, about, options.epochs, options.at_once)
        return
    ablation = Ablation(study, options.json, found, options.at_once)
    jobs = [job for job in jobs_of(options) if job.key not in found['rows']]
    networks = [job for job in jobs if variant_of(job.model) in VARIANTS]
    others = [job for job in jobs if job not in networks]
    ablation.others(others, began, options.within)
    ablation.networks(networks, began, options.within)
    print(text(found))


if __name__ == '__main__':
    main()
