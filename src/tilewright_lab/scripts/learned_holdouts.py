"""Ten random holdouts of training problems: the outer part of the protocol (docs/learned.md).

    python -m tilewright_lab.scripts.learned_holdouts DATA MACHINE [--kind rs] [--json FILE]

Each time 30% of the training problems are held out; the recipe is chosen on the others alone, by
the inner cross-validation, and ranks those that were held out, beside the plain forest. Shown are
means over the holdouts with standard errors. What a holdout gave is written at once, and a file
that has it is gone on from; after `--within` seconds no other is begun.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.machine.gpu import known_gpu
from tilewright_lab.collect.datasets import read_data
from tilewright_lab.figures.cnnopt import CHOSEN_FROM, has_few_rows, recipe_for, validated
from tilewright_lab.train.evaluate import TOPS, judged, means, rankings_of
from tilewright_lab.train.forest import PLAIN, Table, fit_all, table_of

HOLDOUTS, SHARE = 10, 0.3
KEYS = (*(f'loss_{n}' for n in TOPS), 'trials_95')


def holdout(table: Table, problems: list[int], seed: int, few: bool) -> dict[str, Any]:
    """One division: which recipe was chosen, and what it and the plain forest are worth."""
    drawn = np.random.default_rng(seed).permutation(problems)
    out = sorted(drawn[: round(SHARE * len(problems))].tolist())
    rest = table.take(np.flatnonzero(~np.isin(table.group, out)))
    chosen = validated(rest, CHOSEN_FROM, [p for p in problems if p not in out], few=few)
    recipes = [recipe_for(name, len(rest)) for name in dict.fromkeys((chosen.name, PLAIN))]
    models = fit_all(rest, recipes, seed)
    found = {name: means(rankings_of(model, table, out)) for name, model in models.items()}
    return {'chosen': chosen.name, 'why': chosen.why, 'held_out': len(out),
            'ours': found[chosen.name], 'plain': found[PLAIN]}  # fmt: skip


def table_text(found: dict[str, Any]) -> str:
    lines = ['model       loss at 1        at 10        at 30        trials to 95%']
    rows = list(found['holdouts'].values())
    for model in ('ours', 'plain'):
        cells = []
        for key in KEYS:
            values = [(1 if 'trials' in key else 100) * row[model][key] for row in rows]
            error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
            cells.append(f'{statistics.fmean(values):6.2f} +- {error:.2f}')
        lines.append(f'{model:8s} {"  ".join(cells)}')
    names = [row['chosen'] for row in rows]
    lines.append('chosen: ' + ', '.join(f'{n} {names.count(n)}x' for n in dict.fromkeys(names)))
    return '\n'.join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('data', type=Path)
    parser.add_argument('machine')
    parser.add_argument('--kind', default='rs')
    parser.add_argument('--within', type=float, default=1e9)
    parser.add_argument('--json', type=Path, required=True)
    options = parser.parse_args()
    began = time.monotonic()
    data = read_data(options.data).of([options.kind])
    table = table_of(data.train, known_gpu(options.machine))
    problems = judged(table, max(m.batch.group.flops for m in data.layers))
    head = {'machine': options.machine, 'kind': options.kind, 'rows': len(table),
            'problems': len(problems)}  # fmt: skip
    found = head | {'holdouts': {}}
    if options.json.exists():
        kept = json.loads(options.json.read_text())
        found = kept if all(kept.get(key) == head[key] for key in head) else found
    for seed in range(HOLDOUTS):
        if str(seed) in found['holdouts'] or time.monotonic() - began > options.within:
            continue
        found['holdouts'][str(seed)] = holdout(table, problems, seed, has_few_rows(data.train))
        options.json.write_text(json.dumps(found, indent=1) + '\n')
    if found['holdouts']:
        print(table_text(found))
    else:
        print(f'no holdout was begun: reading took longer than {options.within:g} s')


if __name__ == '__main__':
    main()
