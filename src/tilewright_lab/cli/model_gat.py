"""`tilewright model` for graph-attention models: train, evaluate, show."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.cli.output import Bar, Output
from tilewright.errors import InputError
from tilewright.machine.compiler import cache_dir
from tilewright.machine.gpu import GpuMachine
from tilewright.rank.gat import VARIANTS, GatModel
from tilewright.rank.gat_files import (
    SUFFIX,
    find_gat,
    load_gat,
    own_gat,
    save_gat,
    shipped_gats,
)
from tilewright.rank.graph_features import NODE_FEATURES
from tilewright.rank.statistics import STATISTICS
from tilewright.runtime.measure import Progress
from tilewright_lab.cli.model import wrote
from tilewright_lab.collect.group_data import GroupData, digest_of, read_groups, rows_in
from tilewright_lab.figures.cnnopt import load_gpu
from tilewright_lab.figures.gtuner import LEAST, METRICS, metrics_of
from tilewright_lab.train.group_table import GroupTable, group_table

HELD_OUT = 5  # every fifth group is held out to validate
EPOCHS, RATE, BATCH = 300, 1e-4, 512  # GTuner Sec. 4.1


def is_gat(model: str) -> bool:
    """Whether a file or name is of a graph-attention model."""
    return model.endswith((SUFFIX, '-gat')) or model == 'gat'


def run_train(
    out: Output, *, data: Path, machine: str, output: Path | None, seed: int, epochs: int | None,
    rate: float | None, batch: int | None, variant: str | None,
) -> int:  # fmt: skip
    """Train on groups of a folder, validate on some that are held out, write a file."""
    if variant is not None and variant not in VARIANTS:
        raise InputError(f'{variant!r} is not a variant; choose one of {", ".join(VARIANTS)}')
    from tilewright_lab.train.gat_training import Training, train_gat

    decay = 1.0 if rate is None else 0.05
    training = Training(
        EPOCHS if epochs is None else epochs, RATE if rate is None else rate,
        BATCH if batch is None else batch, decay, seed,
    )  # fmt: skip
    gpu = load_gpu(machine)
    found = _said(read_groups(data), gpu, out)
    kind = VARIANTS[variant or 'gtuner']
    table = group_table(found.train, gpu)
    name = f'{digest_of(found.train)} {training} {kind} {gpu.to_json()}'
    folder = cache_dir() / 'learned'

    def fitted(rows: GroupTable, part: str, header: Mapping[str, Any]) -> GatModel:
        digest = hashlib.sha256(f'{name} {part}'.encode()).hexdigest()[:24]
        with Bar(training.epochs) as bar:
            bar.begin(part)
            return train_gat(
                rows, kind, training, header, checkpoint=folder / f'{digest}.checkpoint',
                report=lambda epoch, loss: bar.report(
                    Progress(f'{part}: loss {loss:.4f}', '', epoch + 1, training.epochs, 0, None)
                ),
            )  # fmt: skip

    validation = {}
    out_of = np.arange(len(table.labels)) % HELD_OUT == HELD_OUT - 1
    held = out_of[table.which]
    if held.any() and not held.all():
        some = fitted(table.take(np.flatnonzero(~held)), 'validating', {})
        validation = validated(some, table, np.flatnonzero(out_of))
    header = {
        'machine': gpu.name, 'rows': len(table), 'groups': len(table.labels), 'seed': seed,
        'data_sha256': digest_of(found.train), 'validation': validation,
    }  # fmt: skip
    model = fitted(table, 'training', header)
    path = output or own_gat(gpu.name)
    save_gat(model, path)
    return wrote(out, path, text_of(model), model.header)


def validated(model: GatModel, table: GroupTable, groups: np.ndarray) -> dict[str, Any]:
    """Means over groups that the model has not seen, those with enough schedules."""
    found = []
    for group in groups:
        rows = table.rows_of(group)
        if len(rows) >= LEAST:
            one = table.take(rows)
            said = model.log_seconds(one.x, one.base, one.graphs, one.which)
            found.append(metrics_of(said, np.exp(one.log_seconds)))
    if not found:
        return {}
    means = {name: statistics.fmean(one[name] for one in found) for name in METRICS}
    return {'groups': len(found)} | means


def run_evaluate(out: Output, *, data: Path, machine: str, model: str | None) -> int:
    """Rank the test groups of a folder; comes out: the exit code."""
    gpu = load_gpu(machine)
    learned, source = _model(model, gpu, out)
    groups = [rows for rows in _said(read_groups(data), gpu, out).test if len(rows) >= LEAST]
    if not groups:
        raise InputError(f'{data}: no test group has {LEAST} schedules or more; measure some')
    out.say(source)
    out.say(f'{"group":60s} configs  Spearman   pairs  loss at 10  at 30')
    rows = []
    for one in groups:
        said = learned.scores(one.group, gpu, one.schedules)
        rows.append({'group': one.group.label, 'schedules': len(one)} | metrics_of(
            said, one.seconds))  # fmt: skip
        out.say(_line(one.group.label, len(one), rows[-1]))
    means = {name: statistics.fmean(row[name] for row in rows) for name in METRICS}
    out.say(_line('mean', rows_in(groups), means))
    out.write({'model': source, 'machine': gpu.to_json(), 'means': means, 'groups': rows})
    return 0


def _line(label: str, schedules: int, figures: Mapping[str, Any]) -> str:
    return (
        f'{label[:60]:60s} {schedules:7d}  {figures["spearman"]:8.3f}  '
        f'{100 * figures["pairs"]:5.1f}%  '
        f'{100 * figures["loss_10"]:9.2f}%  {100 * figures["loss_30"]:4.2f}%'
    )


def _model(name: str | None, gpu: GpuMachine, out: Output) -> tuple[GatModel, str]:
    if name is not None and name.endswith(SUFFIX):
        model, said = load_gat_for(name, gpu)
        if said != name:
            out.warn(said)
        return model, name
    found = find_gat(gpu.name if name is None else name.removesuffix('-gat'))
    if found is None:
        raise InputError(
            f'no graph-attention model knows {gpu.name}; train one (tilewright model train --model '
            f'gat), or name a file {SUFFIX} by --model'
        )
    return found


def run_show(out: Output, *, model: str) -> int:
    """What a graph-attention model was learned from; of 'gat', the features of all of them."""
    if model == 'gat':
        return _show_features(out)
    if model.endswith(SUFFIX):
        learned = load_gat(Path(model))
    else:
        found = find_gat(model.removesuffix('-gat'))
        if found is None:
            raise InputError(f'no model is called {model!r}; name another, or a file {SUFFIX}')
        learned = found[0]
    out.say(text_of(learned))
    out.write({'model': model, 'header': dict(learned.header)})
    return 0


def _show_features(out: Output) -> int:
    tables = {
        'statistics': [(s.name, s.kind, s.formula) for s in STATISTICS],
        'nodes': [
            (f.name, 'stage' if f.stage else 'tensor', f.formula) for f in NODE_FEATURES
        ],
    }  # fmt: skip
    out.say(f'shipped: {", ".join(shipped_gats()) or "none"}')
    for title, rows in tables.items():
        width = max(len(name) for name, _, _ in rows)
        out.say(f'\n{title}:')
        for name, kind, formula in rows:
            out.say(f'  {name.ljust(width)}  {kind:10s}  {formula}')
    out.write({'shipped': shipped_gats()} | tables)
    return 0


def _said(data: GroupData, gpu: GpuMachine, out: Output) -> GroupData:
    for note in data.notes:
        out.warn(note)
    other = data.machine
    if other is not None and (other.multiprocessors, other.capability) != (
        gpu.multiprocessors, gpu.capability,
    ):  # fmt: skip
        out.warn(f'the data were measured on {other.name}, not on {gpu.name}')
    return data


def text_of(model: GatModel) -> str:
    """A model in some lines."""
    h = model.header
    weights = sum(array.size for array in model.weights.values())
    training = h['training']
    lines = [
        f'graph attention ({model.variant.name}: {model.variant.about}) for {h["machine"]}: '
        f'{weights} weights, {len(h["statistics"])} statistics, {len(h["node_features"])} features '
        f'of a node',
        f'learned from {h["rows"]} rows of {h["groups"]} groups, sha256 {h["data_sha256"][:16]}, '
        f'seed {training["seed"]}; {training["epochs"]} epochs from {training["rate"]:g}, batches '
        f'of {training["batch"]}',
    ]
    v = h['validation']
    if v:
        lines.append(
            f'  on {v["groups"]} groups held out: Spearman {v["spearman"]:.3f}, '
            f'{100 * v["pairs"]:.1f}% of pairs, loss {100 * v["loss_10"]:.2f}% at 10, '
            f'{100 * v["loss_30"]:.2f}% at 30'
        )
    return '\n'.join(lines)


def load_gat_for(path: str, machine: GpuMachine) -> tuple[GatModel, str]:
    """(model, a sentence): a model for another machine is used, and said to be."""
    model = load_gat(Path(path))
    trained = model.header['machine']
    if trained != machine.name:
        return model, (
            f'{path} was trained on {trained}, and this is for {machine.name}: its ranking may be '
            f'wrong'
        )
    return model, path
