"""What GTuner's tables and its Figure 7 share: measured groups, models, scores that are remembered.

Goes in: a folder of measured groups (tilewright_lab/collect/group_data.py) and the GPU. Comes out:
scores of the test groups' schedules by every model: the variants of GTuner's (rank/gat.py), trees
on the same statistics, the time model. Models learn from groups of Inception-v3 and VGG-11 and are
asked about groups of networks that they have not seen (Sec. 4). What a model and seed gave is kept
in the cache directory, and training leaves checkpoints there: a run that was interrupted goes on
where it was.

The paper trains for 300 epochs at a rate of 1e-4. Here it is `EPOCHS` at a higher rate that falls,
since two cores take some tenths of a second for each step; `--epochs` chooses another number.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.compiler import cache_dir
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.counts import Array
from tilewright.rank.gat import VARIANTS
from tilewright.rank.statistics import NAMES, probe
from tilewright_lab.collect.group_data import (
    GroupData,
    GroupRows,
    digest_of,
    read_catalogue,
    read_groups,
    rows_in,
)
from tilewright_lab.figures.evaluate import spearman
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.remembered import remembered, result_in
from tilewright_lab.train.evaluate import ranking_of
from tilewright_lab.train.group_table import GroupTable, group_table
from tilewright_lab.train.group_trees import RECIPES, fit_trees

if TYPE_CHECKING:
    from tilewright_lab.train.gat_training import Training

SEEDS = 3
EPOCHS, RATE, DECAY, BATCH = 2, 1e-3, 0.05, 2048
LEAST = 30  # schedules of a group that say something of a ranking
TOPS = (10, 30)
ANALYTICAL = 'analytical'
NETWORK, TRIALS = 'resnet18', (10, 20, 40, 80)  # of Tables 1 and 2
METRICS = ('spearman', 'pairs', *(f'loss_{n}' for n in TOPS))


@cache
def _code() -> str:
    """A hash of what trains and evaluates, and of what its features give."""
    found = hashlib.sha256(repr((NAMES, probe())).encode())
    for package, names in (
        ('tilewright.rank', ('trees.c', 'trees.py', 'gat.py', 'graph_features.py', 'online.py')),
        ('tilewright_lab.train', ('group_trees.py', 'gat_training.py')),
    ):
        for name in names:
            found.update((resources.files(package) / name).read_bytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Study:
    """Data, machine and settings, with everything that follows from them when it is asked for."""

    data: GroupData
    machine: GpuMachine
    epochs: int
    counts: Mapping[str, Mapping[str, int]]  # of a group's digest: how often a network has it

    @cached_property
    def test(self) -> tuple[GroupRows, ...]:
        """Test groups with enough schedules."""
        return tuple(rows for rows in self.data.test if len(rows) >= LEAST)

    def uses(self, rows: GroupRows) -> dict[str, int]:
        """How often each network that was not learned from has a group."""
        learned = {network for one in self.data.train for network in one.networks}
        counts = self.counts[rows.group.digest]
        return {network: n for network, n in counts.items() if network not in learned}

    @cached_property
    def train_table(self) -> GroupTable:
        return group_table(self.data.train, self.machine)

    @cached_property
    def test_table(self) -> GroupTable:
        return group_table(self.test, self.machine)

    @cached_property
    def key(self) -> str:
        parts = [_code(), digest_of(self.data.train), digest_of(self.test), self.machine.to_json()]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    def kept(self, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """What `make` gives, from the file where it was kept."""
        return remembered(self.file(what, '.json'), make)

    def has(self, what: Mapping[str, Any]) -> bool:
        """Whether it is kept."""
        return self.file(what, '.json').exists()

    def file(self, what: Mapping[str, Any], suffix: str) -> Path:
        text = f'{self.key} {json.dumps(what, sort_keys=True)}'
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
        return cache_dir() / 'reproduce' / 'gtuner' / f'{name}{suffix}'

    def scores(self, model: str, seed: int, step: Callable[[int, float], object]) -> list[Array]:
        """Scores of every test group's schedules by a model of a seed, lowest first."""
        what = self._words(model, seed)
        flat = np.array(self.kept(what, lambda: self._made(model, seed, what, step).tolist()))
        return np.split(flat, np.cumsum([len(rows) for rows in self.test])[:-1])

    def keep(self, model: str, seed: int, scores: Array) -> None:
        """Scores of the test table's rows that were made elsewhere: `scores` finds them then."""
        self.kept(self._words(model, seed), scores.tolist)

    def _words(self, model: str, seed: int) -> dict[str, Any]:
        """What scores are kept by."""
        trained = {'epochs': self.epochs, 'rate': RATE, 'decay': DECAY, 'batch': BATCH}
        return {'model': model, 'seed': seed} | (trained if model in VARIANTS else {})

    def _made(
        self, model: str, seed: int, what: Mapping[str, Any], step: Callable[[int, float], object]
    ) -> Array:
        test = self.test_table
        if model == ANALYTICAL:
            return test.base
        if model in RECIPES:
            return fit_trees(self.train_table, RECIPES[model], seed)(test)
        from tilewright_lab.train.gat_training import train_gat

        found = train_gat(
            self.train_table, VARIANTS[model], self.training(seed), {},
            checkpoint=self.file(what, '.npz'), report=step,
        )  # fmt: skip
        return found.log_seconds(test.x, test.base, test.graphs, test.which)

    def training(self, seed: int) -> Training:
        from tilewright_lab.train.gat_training import Training

        return Training(self.epochs, RATE, BATCH, DECAY, seed)


def study_of(options: Options) -> Study:
    """[Options] -> [Study]; one sentence where data or machine are missing."""
    if options.data is None:
        raise InputError(
            f'{options.name} evaluates measured groups; name their directory by --data'
        )
    data = read_groups(options.data)
    machine = options.gpu or data.machine
    if machine is None:
        raise InputError(f'{options.data} does not say which GPU it is of; name it by --machine')
    counts = {digest: one.networks for digest, one in read_catalogue(options.data).items()}
    study = Study(data, machine, options.epochs or EPOCHS, counts)
    if not data.train or not study.test:
        raise InputError(
            f'{options.data} has {len(data.train)} groups to train on and {len(study.test)} to '
            f'test with at least {LEAST} schedules; measure some of each'
        )
    return study


def metrics_of(scores: Array, seconds: Array) -> dict[str, float]:
    """Spearman's coefficient, pairs in the right order, losses at the top, of one group."""
    ranking = ranking_of(scores, seconds)
    rank = spearman(scores.tolist(), seconds.tolist())
    return {
        'spearman': 0.0 if rank is None else rank,
        'pairs': pairwise(scores, seconds),
        **{f'loss_{n}': ranking.loss(n) for n in TOPS},
    }


def pairwise(scores: Array, seconds: Array) -> float:
    """The share of pairs with different times that the scores order rightly; ties count half."""
    faster = np.sign(seconds[:, None] - seconds[None, :])
    said = np.sign(scores[:, None] - scores[None, :])
    differ = faster != 0
    if not differ.any():
        return 1.0
    return float(np.where(said == 0, 0.5, said == faster)[differ].mean())


def network_losses(study: Study, scores: Sequence[Array], top: int) -> dict[str, float]:
    """By how much each test network is slower than with every group's best schedule, if the best of
    the first `top` of each group is taken; groups that were not measured count as nothing.
    Networks that were learned from share a group or two with them, and are left out.
    """
    taken: dict[str, float] = {}
    best: dict[str, float] = {}
    for rows, said in zip(study.test, scores, strict=True):
        order = np.argsort(said, kind='stable')[:top]
        for network, number in study.uses(rows).items():
            taken[network] = taken.get(network, 0.0) + number * float(rows.seconds[order].min())
            best[network] = best.get(network, 0.0) + number * rows.best
    return {network: taken[network] / best[network] - 1 for network in sorted(taken)}


def latencies(
    scores: Sequence[Array], test: Sequence[GroupRows], counts: Mapping[str, Mapping[str, int]],
    network: str = NETWORK,
) -> dict[str, float]:  # fmt: skip
    """By trials of every group, what the groups of a network take one after the other, in ms: each
    the best of the first so many, as often as the network has it.
    """
    found = dict.fromkeys(map(str, TRIALS), 0.0)
    for rows, said in zip(test, scores, strict=True):
        order = np.argsort(said, kind='stable')
        for trials in TRIALS:
            best = float(rows.seconds[order[:trials]].min())
            found[str(trials)] += 1e3 * counts[rows.group.digest].get(network, 0) * best
    return found


def run_models(options: Options, models: Mapping[str, str]) -> dict[str, Any]:
    """Every model's figures on the test groups; `models` has a line about each. Where the data are
    what an earlier run of the figure wrote, that is the answer.
    """
    before = result_in(options.data, options.name)
    if before is not None:
        return before
    study, report = study_of(options), options.report
    seeds = [options.seed + i for i in range(SEEDS)]
    for note in study.data.notes:
        report.say(note)
    report.plan(len(models) * len(seeds))
    rows, interrupted = [], False
    try:
        for name, about in models.items():
            found = []
            for seed in seeds:
                report.begin(f'{name}, seed {seed}')
                scores = study.scores(name, seed, _teller(options, name, study.epochs))
                found.append(_figures(study, scores))
                report.finish()
            rows.append({'model': name, 'about': about, 'seeds': found})
    except KeyboardInterrupt:
        interrupted = True
    return {
        'figure': options.name, 'machine': study.machine.to_json(), 'seeds': seeds,
        'training': {'epochs': study.epochs, 'rate': RATE, 'decay': DECAY, 'batch': BATCH},
        'train_groups': len(study.data.train), 'train_rows': rows_in(study.data.train),
        'test_groups': [
            {'label': one.group.label, 'networks': list(one.networks), 'schedules': len(one)}
            for one in study.test
        ],
        'data': 'the checkpoints in the cache directory', 'notes': list(study.data.notes),
        'layers': rows, 'complete': not interrupted, 'interrupted': interrupted,
    }  # fmt: skip


def _teller(options: Options, name: str, epochs: int) -> Callable[[int, float], None]:
    def tell(epoch: int, loss: float) -> None:
        options.report.step(f'{name}: loss {loss:.3f}', epoch + 1, epochs, 0.0)

    return tell


def _figures(study: Study, scores: Sequence[Array]) -> dict[str, Any]:
    each = [metrics_of(said, rows.seconds) for said, rows in zip(scores, study.test, strict=True)]
    return {
        'means': {name: statistics.fmean(one[name] for one in each) for name in METRICS},
        'networks': {str(top): network_losses(study, scores, top) for top in TOPS},
        'latency_ms': latencies(scores, study.test, study.counts),
        'groups': each,
    }


def spread_text(values: Sequence[float], percent: bool) -> str:
    """The mean, and the least and most where they differ."""
    factor, digits = (100, 2) if percent else (1, 3)
    mean, low, high = (f'{factor * f(values):.{digits}f}' for f in (statistics.fmean, min, max))
    unit = '%' if percent else ''
    return f'{mean}{unit}' if low == high else f'{mean}{unit} ({low}-{high})'
