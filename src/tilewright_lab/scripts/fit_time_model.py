"""Fit the constants of the time model (machine/constants.py) to samples of many layers.

Goes in: samples of `tilewright reproduce mopt-fig5` (random schedules, one thread), of one machine
or of several. Comes out: the constants, how well they rank, and the same for layers that were left
out of the fit: what defaults by instruction set rest on. `tilewright machine --calibrate` does the
same on a host, with layers of its own.

    python -m tilewright_lab.scripts.fit_time_model \
        bench/results/neoverse-n1/mopt-fig5-samples*.jsonl.gz
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from tilewright.machine.machine import Machine
from tilewright.model.cpu.fit import FOLDS, TimedSchedule, fit, score
from tilewright_lab.figures.dataset import read


def samples(paths: Sequence[Path]) -> tuple[Machine, list[TimedSchedule]]:
    """The machine, and a layer of every file by itself, under the number of the file and its
    name."""
    found, machine = [], None
    for number, path in enumerate(paths):
        data = read(path)
        machine = data.machine
        for name, layer in data.layers.items():
            found += [
                TimedSchedule(
                    f'{number}:{name}', layer.group, layer.samples[key].schedule, ms / 1e3
                )
                for key, ms in layer.times_ms().items()
            ]
    assert machine is not None, 'at least one file is given'
    return replace(machine, constants=None), found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').split('\n')[0])
    parser.add_argument('samples', type=Path, nargs='+', help='samples of reproduce mopt-fig5')
    given = parser.parse_args()
    machine, found = samples(given.samples)
    print(f'{len(found)} samples; as it is: {score(found, machine)}', flush=True)
    names = list(dict.fromkeys(s.layer.partition(':')[2] for s in found))
    for fold in range(FOLDS):
        left = set(names[fold::FOLDS])
        kept = [s for s in found if s.layer.partition(':')[2] not in left]
        unseen = [s for s in found if s.layer.partition(':')[2] in left]
        constants, pull = fit(kept, machine)
        after = score(unseen, replace(machine, constants=constants))
        print(
            f'fold {fold}, pull {pull}: before {score(unseen, machine)}, after {after}', flush=True
        )
    constants, pull = fit(found, machine)
    print(f'all, pull {pull}: {score(found, replace(machine, constants=constants))}')
    for name, value in asdict(constants).items():
        print(f'{name:22} {value:.3g}')


if __name__ == '__main__':
    main()
