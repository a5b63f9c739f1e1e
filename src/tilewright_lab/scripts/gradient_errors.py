"""Gradients of a training step of every network of the zoo, compiled, beside PyTorch's in float64.

    python -m tilewright_lab.scripts.gradient_errors [NETWORK ..] [--batch 2] [--target cpu]
        [--max-rel-err 1e-4] [--json FILE]

Goes in: names of the zoo (all of it by default), with small layers and the structure of the large
ones. Comes out: for each the length of the difference over that of the gradient, of all parameters
together, ours in fp32 and PyTorch's own in fp32 (also with its inputs changed in their last bit),
both against PyTorch in float64, and whether ours is right: at most 1e-5, or 2.5 times PyTorch's own
where that is more (a network that amplifies roundings; gpu_training.py). Batch norms of two numbers
amplify them without limit: give such a network a larger batch. Rows that the file has are not
computed again.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import tilewright as tw
from tilewright import zoo
from tilewright.cli.output import versions
from tilewright.errors import TilewrightError
from tilewright.network.training import TrainingStep
from tilewright_lab.scripts.gpu_training import MOMENTUM, RATE, Workload, checked

KEPT = ('gradient_errors', 'typical_errors', 'losses', 'loss_error', 'right')


def row_of(name: str, asked: argparse.Namespace) -> dict:
    begin = time.perf_counter()
    try:
        workload = Workload(name, asked.batch, small=True)
        options = {'target': asked.target}
        if asked.max_rel_err is not None:
            options['max_rel_err'] = asked.max_rel_err
        if asked.target == 'cpu':
            options['threads'] = 2
        step = TrainingStep(workload.imported(), tw.SGD(RATE, MOMENTUM), False, options)
    except TilewrightError as error:
        return {'error': f'{type(error).__name__}: {error}'}
    found = checked(step, workload, 'cuda' if asked.target == 'cuda' else 'cpu')
    row = {key: found[key] for key in KEPT}
    row |= {'batch': asked.batch, 'max_rel_err': asked.max_rel_err}
    return row | {'seconds': time.perf_counter() - begin}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').partition('\n')[0])
    parser.add_argument('names', nargs='*', metavar='NETWORK', help=', '.join(zoo.KNOWN))
    parser.add_argument('--batch', type=int, default=2)
    parser.add_argument('--target', default='cpu', choices=['cpu', 'cuda', 'host'])
    parser.add_argument('--max-rel-err', type=float)
    parser.add_argument('--json', type=Path)
    asked = parser.parse_args()
    rows: dict[str, dict] = {}
    if asked.json is not None and asked.json.exists():
        rows = json.loads(asked.json.read_text())['rows']
    for name in asked.names or zoo.KNOWN:
        if name not in rows:
            rows[name] = row_of(name, asked)
        row = rows[name]
        said = row.get('error') or ', '.join(
            f'{who} {error:.1e}' for who, error in row['gradient_errors'].items()
        )
        print(f'{name:16} {said} {"right" if row.get("right") else "NOT RIGHT"}', flush=True)
        if asked.json is not None:
            whole = {'target': asked.target, 'rows': rows, 'versions': versions()}
            asked.json.write_text(json.dumps(whole, indent=1) + '\n')


if __name__ == '__main__':
    main()
