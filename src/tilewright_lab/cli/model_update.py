"""`tilewright model update`: a model learns from what searches have measured, in seconds.

Goes in: the rows of the store (rank/rows.py), and of files if some are named. Comes out: a model of
all kernels that a search proposes, in the folder of the user's own. Compared are, by problems held
out: the analytical order, the model that is there, or else those of other GPUs, the same with their
errors learned, and one of these rows alone. The best is installed if it is new and better than the
analytical order; else it is said by how much it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from tilewright.cli.output import Output
from tilewright.errors import InputError
from tilewright.machine.gpu import known_by
from tilewright.rank.files import (
    SEARCHED,
    find_model,
    name_of,
    own_folder,
    save_model,
    shipped,
)
from tilewright.rank.model import LearnedModel
from tilewright.rank.rankers import names_of
from tilewright.store.records import open_store
from tilewright_lab.cli.model import model_text, wrote
from tilewright_lab.collect.stored import StoredRows, read_rows, rows_in_store
from tilewright_lab.figures.cnnopt import load_gpu, recipe_for
from tilewright_lab.train.evaluate import ALL, FOLDS, beside_analytical, check_validated
from tilewright_lab.train.forest import BLEND, Table, corrected, fit

LEAST_ROWS = 5  # of a problem that is judged
OWN_ROWS = 200  # from which on a model of these rows alone is tried

Maker = Callable[[Table], LearnedModel]


def run_update(
    out: Output, *, machine: str | None, files: list[Path], output: Path | None, seed: int
) -> int:  # fmt: skip
    gpu = None if machine is None else load_gpu(machine)
    rows = _rows(None if gpu is None else names_of(gpu), files)
    for why, count in rows.left_out:
        out.say(f'{count} rows {why} are left out')
    name = gpu.name if gpu else next(iter(rows.machine), '')
    if not rows.seconds:
        raise InputError(
            f'no search has measured anything on {machine or "a GPU"} that could be learned from; '
            f'tune something there, or name rows by --rows'
        )
    table = rows.table()
    counts = np.bincount(table.group, minlength=len(table.problems))
    problems = np.flatnonzero(counts >= LEAST_ROWS).tolist()
    if len(problems) < FOLDS:
        raise InputError(
            f'{len(problems)} problems with at least {LEAST_ROWS} rows each are too few for '
            f'{FOLDS} folds; tune more on {name}'
        )
    before = _before(names_of(gpu) if gpu else _names(name))
    starts = _of_others() if before is None else {'the model that is there': before}
    makers: dict[str, Maker] = {}
    for way, start in starts.items():
        makers[way] = lambda _, start=start: start
        if start.has_times:
            makers[f'{way}, its errors learned'] = lambda rest, start=start: corrected(
                start, rest, name, seed
            )
    if len(rows) >= OWN_ROWS or before is None:
        recipe = recipe_for(BLEND, len(rows))
        makers['these rows alone'] = lambda rest: fit(rest, recipe, seed)
    found = {
        way: beside_analytical(
            table, make, problems, rows.kind, np.array(rows.predicted), seed=seed
        )
        for way, make in makers.items()
    }
    for way, costs in found.items():
        out.say(f'{way}: costs {100 * costs[ALL]["learned"]:.2f}% on problems held out')
    best = min(found, key=lambda way: found[way][ALL]['learned'])
    out.say(f'the analytical order: {100 * found[best][ALL]["analytical"]:.2f}%')
    check_validated(found[best], f'a model of {len(rows)} rows on {name}')
    model = makers[best](table)
    if model is before:
        out.say('the model that is there orders them best; it stays')
        out.write({'model': None, 'costs': found})
        return 0
    told, seen = {}, {*rows.kind}
    if before is not None:  # what was found on this GPU before still holds
        told = model.header.get('validation', {}).get('kinds', {})
        seen |= {*model.header.get('kinds', ())}
    header = {
        **model.header, 'machine': name, 'kinds': sorted(seen), 'rows': len(rows),
        'problems': len(table.problems), 'data_sha256': model.header.get('data_sha256', ''),
        'validation': {'problems': len(problems), 'recipes': {}, 'kinds': {**told, **found[best]}},
    }  # fmt: skip
    made = replace(model, header=header)
    path = output or own_folder() / f'{name_of(name, [SEARCHED])}.npz'
    save_model(made, path)
    return wrote(out, path, model_text(made), header)


def _rows(machines: tuple[str, ...] | None, files: list[Path]) -> StoredRows:
    found = sum(map(read_rows, files), StoredRows())
    if files and machines is not None:
        others = sorted(m for m in set(found.machine) if not {*_names(m)} & {*machines})
        if others:
            raise InputError(
                f'the rows are of {", ".join(others)}, and the model is for {machines[0]}; name '
                f'the machine that they were measured on'
            )
    with open_store() as store:
        return found + rows_in_store(store, machines)


def _names(machine: str) -> tuple[str, ...]:
    """A device's own name, and that of the known GPU that it means."""
    known = known_by(machine)
    return (machine,) if known is None else (machine, known.name)


def _before(machines: tuple[str, ...]) -> LearnedModel | None:
    for name in machines:
        try:
            found = find_model(name, SEARCHED)
        except InputError:  # damaged, or of other features: it takes no part
            continue
        if found is not None:
            return found[0]
    return None


def _of_others() -> dict[str, LearnedModel]:
    """Shipped models of other GPUs, by what is said of them: a GPU that none knows begins there."""
    known = [name.removesuffix(f'-{SEARCHED}') for name in shipped() if name.endswith(SEARCHED)]
    found = {name: find_model(name, SEARCHED) for name in known}
    return {f'the model of {name}': one[0] for name, one in found.items() if one is not None}
