"""`tilewright model`: train, evaluate and show learned models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.cli.output import Output
from tilewright.errors import InputError
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.features import FEATURES
from tilewright.rank.files import (
    SEARCHED,
    find_model,
    load_model,
    name_of,
    own_folder,
    save_model,
    shipped,
)
from tilewright.rank.gat_files import SUFFIX, shipped_gats
from tilewright.rank.model import PARTS, LearnedModel
from tilewright.rank.rankers import Predicted
from tilewright_lab.collect.datasets import (
    Data,
    Measured,
    Problem,
    possible,
    read_data,
    rows_in,
    shape_text,
)
from tilewright_lab.figures.cnnopt import (
    CHOSEN_FROM,
    has_few_rows,
    load_gpu,
    recipe_for,
    validated,
)
from tilewright_lab.train.evaluate import (
    TOPS,
    Ranking,
    beside_analytical,
    check_validated,
    judged,
    means,
    ranking_of,
)
from tilewright_lab.train.forest import RECIPES, fit, table_of, train

AUTO = 'auto'


def run_train(
    out: Output, *, data: list[Path], machine: str, kind: str, recipe: str, output: Path | None,
    seed: int,
) -> int:  # fmt: skip
    """Train on the problems of one or more folders, validate, write a file."""
    if recipe != AUTO and recipe not in RECIPES:
        known = ', '.join(RECIPES)
        raise InputError(f'{recipe!r} is not a recipe; choose {AUTO} or one of {known}')
    gpu = load_gpu(machine)
    found_in = [_of(_said(possible(read_data(folder), gpu), out), kind) for folder in data]
    proposed = [one.proposed if kind == SEARCHED else () for one in found_in]
    sets = [m for some, one in zip(proposed, found_in, strict=True) for m in (*some, *one.train)]
    if not sets:
        raise InputError(f'{", ".join(map(str, data))}: no training problems of kind {kind!r}')
    table = table_of(sets, gpu)
    problems = judged(table)
    # Kernels of different kinds are compared by their times, which ranking alone has not.
    tried = CHOSEN_FROM if recipe == AUTO else (recipe,)
    names = [n for n in tried if kind != SEARCHED or RECIPES[n].has_times]
    found = validated(table, names, problems, few=has_few_rows(sets), seed=seed)
    chosen = recipe_for(found.name, rows_in(sets))
    kinds = [m.kind for m in sets for _ in range(len(m))]
    without = _predicted(sets, gpu) if kind == SEARCHED else table.base
    if not RECIPES[found.name].windows:
        problems = judged(table, windows=False)
    beside = beside_analytical(
        table, lambda rest: fit(rest, RECIPES[found.name], seed), problems, kinds, without,
        seed=seed,
    )  # fmt: skip
    check_validated(beside, f'a model of {kind} kernels on {gpu.name}')
    validation = {
        'problems': len(problems), 'why': found.why, 'recipes': dict(found.scores),
        'kinds': beside,
    }  # fmt: skip
    model = train(sets, gpu, chosen, seed=seed, validation=validation, table=table)
    path = output or own_folder() / f'{name_of(gpu.name, [kind])}.npz'
    save_model(model, path)
    return wrote(out, path, model_text(model), model.header)


def _predicted(sets: Sequence[Measured], gpu: GpuMachine) -> np.ndarray:
    """What the time model says of every row."""
    return np.concatenate(
        [
            Predicted(m.batch.group, gpu)([m.batch.schedule(row) for row in range(len(m))])
            for m in sets
        ]
    )


def wrote(out: Output, path: Path, text: str, header: Mapping[str, Any]) -> int:
    """Report a model that was written; comes out: the exit code."""
    size = path.stat().st_size
    out.say(text)
    out.say(f'wrote {path} ({size / 1e6:.1f} MB)')
    out.write({'model': str(path), 'bytes': size, 'header': dict(header)})
    return 0


def run_evaluate(out: Output, *, data: Path, machine: str, kind: str, model: str | None) -> int:
    """Rank the layers of a folder; comes out: the exit code."""
    gpu = load_gpu(machine)
    learned, source = _model(model, gpu, kind, out)
    layers = _of(_said(read_data(data), out), kind).layers
    if not layers:
        raise InputError(f'{data}: no layers of kind {kind!r} to rank')
    # Kernels of several kinds compete within a layer.
    by_problem: dict[Problem, list[Measured]] = {}
    for m in layers:
        by_problem.setdefault(m.problem, []).append(m)
    rows: list[tuple[Problem, Ranking]] = []
    out.say(f'{source}; losses in percent')
    out.say(f'{"layer":34s} configs  {"  ".join(f"top {n:<3d}" for n in TOPS)}  trials 95%  100%')
    for problem, members in by_problem.items():
        scores = np.concatenate(learned.scores([m.batch for m in members], gpu))
        found = ranking_of(scores, np.concatenate([m.seconds for m in members]))
        rows.append((problem, found))
        losses = '  '.join(f'{100 * found.loss(n):7.1f}' for n in TOPS)
        out.say(
            f'{shape_text(problem):34s} {found.size:7d}  {losses}  {found.trials_95:10d}  '
            f'{found.trials_100:4d}'
        )
    average = means(found for _, found in rows)
    losses = '  '.join(f'{100 * average[f"loss_{n}"]:7.2f}' for n in TOPS)
    out.say(
        f'{"mean":34s} {rows_in(layers):7d}  {losses}  {average["trials_95"]:10.1f}  '
        f'{average["trials_100"]:4.1f}'
    )
    out.write(
        {
            'model': source, 'machine': gpu.to_json(), 'data': str(data), 'means': average,
            'layers': [{'shape': list(problem), **found.to_json()} for problem, found in rows],
        }
    )  # fmt: skip
    return 0


def run_show(out: Output, *, model: str | None) -> int:
    """What a model was learned from; without one, the models that there are, and the features."""
    if model is not None:
        learned = load_model(Path(model)) if model.endswith('.npz') else _named(model)
        out.say(model_text(learned))
        out.write({'model': model, 'header': dict(learned.header)})
        return 0
    files = own_folder().iterdir() if own_folder().is_dir() else ()
    own = sorted(p.stem for p in files if p.suffix in ('.npz', SUFFIX))
    there = sorted(shipped() + shipped_gats())
    out.say(f'shipped: {", ".join(there) or "none"}')
    out.say(f'own ({own_folder()}): {", ".join(own) or "none"}')
    out.say('\nfeatures:')
    width = max(len(f.name) for f in FEATURES)
    for feature in FEATURES:
        out.say(f'  {feature.name.ljust(width)}  {feature.group:10s}  {feature.formula}')
    out.write(
        {
            'shipped': there, 'own': own,
            'features': [
                {'name': f.name, 'group': f.group, 'formula': f.formula} for f in FEATURES
            ],
        }
    )  # fmt: skip
    return 0


def _named(name: str) -> LearnedModel:
    machine, _, kind = name.partition('-')
    found = find_model(machine, kind)
    if found is None:
        raise InputError(
            f'no model is called {name!r}; there are {", ".join(shipped()) or "none"}; or name a '
            f'file .npz'
        )
    return found[0]


def _model(name: str | None, gpu: GpuMachine, kind: str, out: Output) -> tuple[LearnedModel, str]:
    if name is not None:
        model = load_model(Path(name))
        if model.header['machine'] != gpu.name:
            out.warn(f'{name} was trained on {model.header["machine"]}, not on {gpu.name}')
        return model, name
    found = find_model(gpu.name, kind)
    if found is None:
        raise InputError(
            f'no learned model knows {kind} kernels on {gpu.name}; train one (tilewright model '
            f'train), or name a file by --model'
        )
    return found


def _of(data: Data, kind: str) -> Data:
    return data.of(data.kinds if kind == SEARCHED else [kind])


def _said(data: Data, out: Output) -> Data:
    for note in data.notes:
        out.warn(note)
    return data


def model_text(model: LearnedModel) -> str:
    h = model.header
    parts = (getattr(model, part) for part in PARTS)
    trees = sum(len(e.roots) for e in parts if e)
    lines = [
        f'{h["recipe"]["name"]} for {", ".join(h["kinds"])} kernels on {h["machine"]}: {trees} '
        f'trees, {len(h["features"])} features (version {h["feature_version"]})',
        f'learned from {h["rows"]} rows of {h["problems"]} problems, sha256 '
        f'{h["data_sha256"][:16]}, seed {h["seed"]}',
    ]
    for name, scores in h['validation'].get('recipes', {}).items():
        losses = ', '.join(f'top {n} {100 * scores[f"loss_{n}"]:.2f}%' for n in TOPS)
        lines.append(
            f'  {name}, cross-validated on {h["validation"]["problems"]} problems: {losses}; '
            f'{scores["trials_95"]:.1f} trials to 95%'
        )
    for name, costs in h['validation'].get('kinds', {}).items():
        lines.append(
            f'  {name}: costs {100 * costs["learned"]:.2f}%, the analytical order '
            f'{100 * costs["analytical"]:.2f}% on {costs["problems"]} problems'
        )
    return '\n'.join(lines)
