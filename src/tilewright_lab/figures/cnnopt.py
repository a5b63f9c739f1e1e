"""What CNNOpt's Tables 8 and 9 share: data, machine, layers by name, results that are remembered.

Goes in: a folder of measured configurations and a GPU machine. Comes out: parts of the tables: one
for each kernel and stride, since models are trained for these separately (Sec. 4.1). What a seed
gave is kept in the cache directory, so that a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import InputError
from tilewright.machine.compiler import cache_dir
from tilewright.machine.gpu import GpuMachine, known_gpu, known_gpus
from tilewright.rank.features import probe
from tilewright.rank.files import load_model, save_model
from tilewright.rank.model import LearnedModel
from tilewright_lab.collect.datasets import (
    Data,
    Measured,
    Problem,
    digest_of,
    possible,
    read_data,
    rows_in,
    shape_text,
)
from tilewright_lab.collect.problems import layers as suite_layers
from tilewright_lab.figures.cnnopt_volumes import volumes
from tilewright_lab.figures.figures import Options
from tilewright_lab.figures.pictures import canvas, save
from tilewright_lab.figures.remembered import remembered
from tilewright_lab.train.evaluate import (
    FOLDS,
    Choice,
    Ranking,
    check_folds,
    choose,
    judged,
    one_fold,
)
from tilewright_lab.train.forest import BLEND, RECIPES, WITHIN, Recipe, Table, table_of, train

KERNELS = ('rs', 's')
SEEDS = 3
CHOSEN_FROM = ('plain', 'forest', 'boosted', 'ranked', 'mixed', BLEND, WITHIN)
LEAST_PROBLEMS = 10  # training problems below which a kernel has no model
# Rows of a problem, in the middle, below which recipes are judged by more than one division into
# folds.
FEW_ROWS = 10
DIVISIONS = 3
# Ensembles of each member whose mean is taken, by the most training rows that have as many: the
# fewer rows, the more they differ, and the less they take.
BAGS = ((20_000, 4), (math.inf, 1))


@dataclass(frozen=True)
class Part:
    """The layers of one kernel and stride, and what a model for them may learn from.

    borrowed   the training rows are of other strides too: a kernel's are learned together
    few        problems have few rows each
    largest    operations of the kernel's largest layer of any stride
    """

    kernel: str
    stride: int
    train: tuple[Measured, ...]
    layers: tuple[tuple[str, Measured], ...]
    borrowed: bool
    few: bool = False
    largest: float = math.inf

    def recipe(self, name: str) -> Recipe:
        return recipe_for(name, rows_in(self.train))

    @property
    def name(self) -> str:
        return f'{self.kernel.upper()} kernel, stride {self.stride}'


def has_few_rows(sets: Sequence[Measured]) -> bool:
    """Whether problems have few rows, kernels of all kinds together."""
    rows: Counter[Problem] = Counter()
    for m in sets:
        rows[m.problem] += len(m)
    return bool(rows) and statistics.median(rows.values()) < FEW_ROWS


def recipe_for(name: str, rows: int) -> Recipe:
    """A recipe by its name, with more ensembles where there are few rows."""
    return replace(RECIPES[name], bags=next(bags for most, bags in BAGS if rows <= most))


Keep = Callable[[Mapping[str, Any], Callable[[], Any]], Any]  # what was made, or is kept of it


def validated(
    table: Table, names: Sequence[str], problems: Sequence[int], *, few: bool = False,
    seed: int = 0, keep: Keep = lambda _, make: make(), ranked: Sequence[int] = (),
) -> Choice:  # fmt: skip
    """The chosen recipe of several by cross-validation, all by one ensemble of each member. Where
    `ranked` holds all of `problems`, these are what is ranked and kept, so that other choices from
    the same rows need no other models.
    """
    ranked = ranked if set(problems) <= set(ranked) else problems
    recipes = [RECIPES[name] for name in names]
    rankings: dict[str, list[Ranking]] = {name: [] for name in names}
    check_folds(problems)
    for division in range(seed, seed + (DIVISIONS if few else 1)):
        for number in range(FOLDS):

            def make(division: int = division, number: int = number) -> dict[str, Any]:
                found = one_fold(table, recipes, ranked, number, seed=division)
                return {
                    name: {str(p): ranking.to_json() for p, ranking in mine.items()}
                    for name, mine in found.items()
                }

            what = {'fold': number, 'division': division, 'of': list(names)}
            for name, mine in keep(what | {'problems': list(ranked)}, make).items():
                rankings[name] += [
                    Ranking.from_json(mine[str(p)]) for p in problems if str(p) in mine
                ]
    return choose(rankings)


def machine_of(options: Options) -> GpuMachine:
    if options.gpu is None:
        raise InputError(f'{options.name} needs a GPU; name it by --machine, one of {known_gpus()}')
    return options.gpu


def load_gpu(name: str) -> GpuMachine:
    """A GPU by the name of a known one, or by a file of its figures."""
    if not name.endswith('.json'):
        return known_gpu(name)
    try:
        gpu = GpuMachine.from_json(json.loads(Path(name).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f'--machine {name} cannot be read as a GPU: {error}') from None
    for figure in dataclasses.fields(GpuMachine):
        value = getattr(gpu, figure.name)
        if figure.type in ('int', 'float') and not (type(value) in (int, float) and value > 0):
            raise InputError(f'--machine {name}: {figure.name} is {value!r}; give a number above 0')
    return gpu


def data_of(options: Options) -> Data:
    if options.data is None:
        raise InputError(
            f'{options.name} evaluates measured configurations; name their directory by --data'
        )
    return read_data(options.data)


def data_name(options: Options) -> str:
    """The folder of the data as results name it: without what lies above it on this machine."""
    if options.data is None:
        return ''
    return options.data.name if options.data.is_absolute() else str(options.data)


def parts_of(data: Data) -> list[Part]:
    """[Data] -> [Part]: kernels of the paper that have layers and something to learn from."""
    named = {problem.shape: name for name, problem in suite_layers().items()}
    found = []
    for kernel in KERNELS:
        for stride in (1, 2):
            mine, train = data.of([kernel], stride), data.of([kernel]).train
            if not mine.layers or len(train) < LEAST_PROBLEMS:
                continue
            borrowed = len(mine.train) < len(train)
            layers = sorted(
                ((named.get(m.problem, shape_text(m.problem)), m) for m in mine.layers),
                key=lambda pair: _place(pair[0]),
            )
            largest = max(m.batch.group.flops for m in data.of([kernel]).layers)
            few = has_few_rows(train)
            found.append(Part(kernel, stride, train, tuple(layers), borrowed, few, largest))
    if not found:
        raise InputError(
            f'the data have no layers of the kernels {", ".join(KERNELS)} with at least '
            f'{LEAST_PROBLEMS} training problems; measure some (scripts/gpu_dataset.py)'
        )
    return found


def _place(name: str) -> tuple[str, int, str]:
    """Layers in the order of the paper's tables."""
    letter, number = name[:1], name[1:]
    order = {'R': '0', 'Y': '1', 'D': '2'}.get(letter, '3') if number.isdigit() else '4'
    return order, int(number) if number.isdigit() else 0, name


def volume_scores(m: Measured, machine: GpuMachine) -> np.ndarray:
    """The paper's analytical ranking: bandwidth-scaled movement at the binding level (Sec. 4.3)."""
    staged, read = volumes(m.batch)
    return np.maximum(staged / machine.global_gbps, read / machine.shared_gbps)


@cache
def _code() -> str:
    """A hash of what trains and evaluates, and of what its features give."""
    found = hashlib.sha256(repr(probe()).encode())
    for package, names in (
        ('tilewright.rank', ('trees.c', 'trees.py', 'model.py', 'online.py')),
        ('tilewright_lab.train', ('evaluate.py', 'forest.py')),
    ):
        for name in names:
            found.update((resources.files(package) / name).read_bytes())
    return found.hexdigest()


class Memory:
    """Results of earlier runs on the same data, machine and code, one file each."""

    def __init__(self, part: Part, machine: GpuMachine) -> None:
        layers = [m for _, m in part.layers]
        self._train = f'{_code()} {digest_of(part.train)} {machine.to_json()}'
        self._key = f'{self._train} {digest_of(layers)}'

    def get(self, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """What `make` gives, from the file where it was kept."""
        return self._kept(self._key, what, make)

    def of_training(self, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        """The same of what does not depend on the layers."""
        return self._kept(self._train, what, make)

    def model(self, recipe: Recipe, seed: int, make: Callable[[], LearnedModel]) -> LearnedModel:
        """A model of the training rows: all strides of a kernel have the same."""
        path = _file(f'{self._train} {json.dumps(recipe.to_json(), sort_keys=True)} {seed}', 'npz')
        if not path.exists():
            save_model(make(), path)
        return load_model(path)

    def _kept(self, key: str, what: Mapping[str, Any], make: Callable[[], Any]) -> Any:
        return remembered(_file(f'{key} {json.dumps(what, sort_keys=True)}', 'json'), make)


def _file(key: str, suffix: str) -> Path:
    name = hashlib.sha256(key.encode()).hexdigest()[:24]
    return cache_dir() / 'reproduce' / 'learned' / f'{name}.{suffix}'


class Training:
    """Features of a part's training rows, computed when they are first needed; models from them."""

    def __init__(self, part: Part, machine: GpuMachine) -> None:
        self.part, self.machine = part, machine
        self.memory = Memory(part, machine)
        self._table: Table | None = None

    @property
    def table(self) -> Table:
        if self._table is None:
            self._table = table_of(self.part.train, self.machine)
        return self._table

    def chosen(self, say: Callable[[str], None]) -> tuple[Recipe, dict[str, Any]]:
        """(recipe, why and the scores of each): by cross-validation on training problems alone."""
        largest = max(m.batch.group.flops for _, m in self.part.layers)

        def validate() -> dict[str, Any]:
            say(f'{self.part.name}: validating {", ".join(CHOSEN_FROM)}')
            problems = judged(self.table, largest)
            found = validated(
                self.table, CHOSEN_FROM, problems, few=self.part.few,
                keep=self.memory.of_training, ranked=judged(self.table, self.part.largest),
            )  # fmt: skip
            return asdict(found) | {'problems': len(problems)}

        kept = self.memory.get({'validate': list(CHOSEN_FROM)}, validate)
        say(f'{self.part.name}: {kept["name"]} is chosen; {kept["why"]}')
        return self.part.recipe(kept['name']), kept

    def scores(self, recipe: Recipe, seed: int) -> list[list[float]]:
        """Scores of every layer's configurations by a model of a seed."""

        def make() -> list[list[float]]:
            model = self.memory.model(
                recipe, seed,
                lambda: train(self.part.train, self.machine, recipe, seed=seed, table=self.table),
            )  # fmt: skip
            return [model.scores([m.batch], self.machine)[0].tolist() for _, m in self.part.layers]

        return self.memory.get({'recipe': recipe.to_json(), 'seed': seed}, make)


def table_json(
    options: Options,
    steps: Callable[[list[Part]], int],
    part_json: Callable[[Part, Options, Training, list[int]], dict[str, Any]],
    more: Callable[[list[int], list[dict]], dict[str, Any]],
) -> dict[str, Any]:
    """A table for JSON: `part_json` of every part, and `more` that follows from seeds and parts.

    What is finished comes out, also after an interrupt. `steps` counts what is reported.
    """
    machine = machine_of(options)
    data = possible(data_of(options), machine)
    parts = parts_of(data)
    seeds = [options.seed + i for i in range(SEEDS)]
    options.report.plan(steps(parts))
    for note in data.notes:
        options.report.say(note)
    found, interrupted = [], False
    try:
        for part in parts:
            found.append(part_json(part, options, Training(part, machine), seeds))
    except KeyboardInterrupt:
        interrupted = True
    return {
        'figure': options.name, 'data': data_name(options), 'machine': machine.to_json(),
        'seeds': seeds, 'notes': list(data.notes), 'layers': found, **more(seeds, found),
        'complete': len(found) == len(parts), 'interrupted': interrupted,
    }  # fmt: skip


def plot_bars(
    found: dict[str, Any], path: Path, label: str,
    heights: Mapping[str, Callable[[dict[str, Any]], float]], scale: str = 'linear',
) -> None:  # fmt: skip
    """A picture for each part: a group of bars for each layer, one by each model's function."""
    parts, width = found['layers'], 0.8 / len(heights)
    figure = canvas(12, 3.2 * len(parts))
    axes = figure.subplots(len(parts), 1, squeeze=False)[:, 0]
    for axis, part in zip(axes, parts, strict=True):
        places = np.arange(len(part['layers']))
        for number, (model, height) in enumerate(heights.items()):
            values = [height(row) for row in part['layers']]
            axis.bar(places + width * number, values, width, label=model)
        axis.set_xticks(places + 0.4 - width / 2, [row['layer'] for row in part['layers']])
        axis.set_yscale(scale)
        axis.set_ylabel(label)
        axis.set_title(part['name'])
    axes[0].legend()
    save(figure, path)
