"""All GPU tables of docs/results.md in one go, on a host with a CUDA device.

    PYTHONPATH=src python -m tilewright_lab.scripts.gpu_layers --out bench/results/h200 --trials 160

Each table is one `tilewright bench` command, which is printed; what was measured is kept in the
tuning store, so that a run that was stopped goes on. Exit code: the largest of the commands'.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from tilewright.cli.main import invoke

BATCHED = 'cnnopt/R2,cnnopt/R9,cnnopt/Y4'
# name of the file, spec, further words
TABLES = (
    ('cnnopt', 'cnnopt', []),
    ('batch32', BATCHED, ['--batch', '32']),
    ('batch128', BATCHED, ['--batch', '128']),
    ('boda', 'boda', []),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--out', type=Path, default=Path('bench/results/gpu'))
    parser.add_argument('--only', default=','.join(name for name, *_ in TABLES))
    parser.add_argument('--against', default='cudnn,cudnn_tf32,general')
    parser.add_argument('--target', default='cuda')
    parser.add_argument('--trials', type=int, default=128)
    parser.add_argument('--seconds', type=float, help='most seconds of search for each layer')
    parser.add_argument('--seed', type=int)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    worst = 0
    for name, spec, more in TABLES:
        if name not in options.only.split(','):
            continue
        words = [
            'bench', spec, '--target', options.target, '--against', options.against,
            '--trials', str(options.trials), *more,
            *(['--seconds', str(options.seconds)] if options.seconds else []),
            *(['--seed', str(options.seed)] if options.seed is not None else []),
            '--json', str(options.out / f'{name}.json'),
        ]  # fmt: skip
        print(f'\n$ tilewright {shlex.join(words)}', flush=True)
        worst = max(worst, invoke(words))
    return worst


if __name__ == '__main__':
    sys.exit(main())
